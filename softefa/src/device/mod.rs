//! The device core: objects, rings, the engine that polls doorbells and moves bytes, the strict checker,
//! faults and statistics. It does not depend on libfabric, verbs or PCI; frontends translate between those
//! and this module.
//!
//! A frontend creates one [`Network`], joins [`Adapter`]s to it, and calls the control path, where every
//! object is a number as on hardware ([`ProtectionDomain`], [`CompletionQueueNumber`],
//! [`efa_gda_wire::QueuePairNumber`], [`efa_gda_wire::AddressHandle`], keys). The data path is
//! memory alone: the client writes entries into [`SendQueue::memory`], stores its producer index to
//! [`SendQueue::doorbell`], and polls [`CompletionQueue::memory`].
//!
//! `engine.rs` states the protocol: threads, locks, shared words, and what a returned call guarantees.

mod adapter;
mod attr;
mod completion;
mod config;
mod counter;
mod create;
mod deliver;
mod doorbells;
mod engine;
mod error;
mod events;
mod execute;
mod faults;
mod memory;
mod network;
mod pattern;
mod queue_pair;
mod receive_queue;
mod relaxed;
mod rest;
mod ring_memory;
mod run;
mod send_queue;
mod shared;
mod slots;
mod statistics;
mod stderr;
mod tables;
mod traffic;
mod transfer;
mod violation;

pub use adapter::Adapter;
pub use attr::{
    Access, CompletionBacking, CompletionQueue, CompletionQueueAttr, CompletionQueueNumber,
    MAX_FIRST_COUNTER, MemoryKeys, MemoryRegionAttr, ProtectionDomain, QueuePair, QueuePairAttr,
    QueuePairState, ReceiveQueue, RnrRetry, SendQueue, Transport,
};
pub use config::{AdapterConfig, Capabilities, Gid, Limits};
pub use counter::{CompletionCounter, Counted};
pub use error::{ConfigError, DeviceError};
pub use events::SendEvent;
pub use faults::{Faults, Injection};
pub use memory::{HostMemory, HostRange, Memory, MemoryFault};
pub use network::Network;
pub use ring_memory::{Doorbell, PAGE_BYTES, RingMemory};
pub use shared::WarningLog;
pub use statistics::{Captured, Statistics};
#[doc(hidden)]
pub use stderr::say;
pub use traffic::{Moved, Traffic};
pub use violation::{Queue, StrictRule, Violation, Warning};
