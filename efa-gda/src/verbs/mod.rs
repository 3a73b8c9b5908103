//! The same queues through rdma-core alone: for a transport without libfabric, and to tell which
//! layer lacks them where libfabric does not expose any.
//!
//! [`Library`] → [`Device`] → [`Context`] → [`ProtectionDomain`], [`CompletionQueue`],
//! [`CompletionCounter`] → [`MemoryRegion`], [`AddressHandle`] and [`QueuePair`], whose
//! [`QueuePair::exposure`] says where its rings and doorbells are.
//!
//! - Each object owns a share of what it was made on, so that children go before parents whatever
//!   order values are dropped in. `close` reports how that went, and refuses while others use the
//!   object; a drop logs it. What rdma-core would not destroy stays allocated, with its parents.
//! - A [`QueuePair`] is a type for each state: a queue that the adapter does not serve yet cannot be
//!   exposed.
//! - Only exported functions are called, each if the loaded release has it. libibverbs may be called
//!   from any thread, so nothing here takes a lock.
//!
//! It moves no bytes and posts nothing: rings are driven through their memory, by a kernel or by the
//! host. It does not use libfabric.
//!
//! ```no_run
//! use efa_gda::verbs::{CompletionQueue, CompletionQueues, Library, ProtectionDomain, QueuePair, QueuePairOptions};
//! use efa_gda::wire::QueueKey;
//!
//! let library = Library::load()?;
//! let context = library.adapter(None)?;
//! let domain = ProtectionDomain::allocate(&context)?;
//! let completions = CompletionQueue::create(&context, 1024)?;
//! let options = QueuePairOptions::new().send_entries(256).receive_entries(256);
//! let queue_pair = QueuePair::create(&domain, CompletionQueues::shared(&completions), &options)?;
//! let queue_pair = queue_pair.activate(QueueKey::new(0x1234))?;
//! println!("{:?}", queue_pair.exposure()?.sq);
//! # Ok::<(), efa_gda::verbs::Error>(())
//! ```

mod address;
mod completion;
mod context;
mod counter;
mod domain;
mod error;
mod library;
mod memory;
mod object;
mod queue_pair;

pub use crate::memory::{
    Access, Buffer, CountedOperations, CounterMemory, ExternalMemory, Limits, OutOfBounds, RemoteRegion,
};
pub use address::{Address, AddressHandle, AddressMalformed, Gid};
pub use completion::CompletionQueue;
pub use context::{Attributes, Capability, Context, Port};
pub use counter::{CompletionCounter, CounterLimits};
pub use domain::ProtectionDomain;
pub use efa_gda_sys::verbs::{Call, LoadError, Loaded, RdmaCore, Release};
pub use error::{Error, FailedCall, Result};
pub use library::{Device, Library};
pub use memory::MemoryRegion;
pub use queue_pair::{CompletionQueues, Created, QueuePair, QueuePairOptions, Ready, State};
