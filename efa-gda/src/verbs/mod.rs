//! rdma-core as a source of queues, without libfabric: what it takes to open a queue pair, register memory and insert a
//! peer. A diagnosis uses it too, to tell whether rdma-core or libfabric lacks the operations that expose queues.
//!
//! ```text
//! Library ─ Device ─ Context ─┬─ CompletionQueue ─────┐
//!                             ├─ CompletionCounter ───┤
//!                             └─ ProtectionDomain ─┬──┴─ QueuePair ─► exposure, peers
//!                                                  └──── Region
//! ```
//!
//! [`QueuePair::exposure`] returns where a queue pair's rings and doorbells are. This module posts nothing:
//! a kernel or the host drives the rings through their memory.
//!
//! # Ownership
//! Each object owns a share of its parents, so children are destroyed before parents in any drop order. `close`
//! returns the result of destruction, and [`ErrorKind::Busy`](crate::ErrorKind::Busy) while other handles use the object. A drop logs a failed
//! destruction. Where destruction fails, everything that the object refers to stays allocated until the process
//! ends.
//!
//! # Threads
//! All objects may be used from any thread. libibverbs allows its calls from any thread, so this module takes no
//! lock.
//!
//! # Errors
//! This module calls only exported functions, and returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the loaded release does not
//! have one.
//!
// Not run: it needs an adapter under rdma-core, in a process that `softefa run` started.
//! ```no_run
//! use efa_gda::verbs::{CompletionQueue, Library, ProtectionDomain, QueuePair, QueuePairOptions};
//!
//! let library = Library::load()?;
//! let context = library.adapter(None)?;
//! let domain = ProtectionDomain::allocate(&context)?;
//! let completions = CompletionQueue::create(&context, 1024)?;
//! let queue_pair = QueuePair::open(&domain, &completions, &QueuePairOptions::default())?;
//! println!("{:?}", queue_pair.exposure()?.sq);
//! # Ok::<(), efa_gda::Error>(())
//! ```

mod completion;
mod context;
mod counter;
mod error;
mod library;
mod memory;
mod object;
mod queue_pair;

pub use crate::memory::{
    Access, Buffer, CountedOperations, CounterMemory, ExternalMemory, Limits, Region, RegionOrdering,
    RemoteRegion,
};
pub use completion::CompletionQueue;
pub use context::{Attributes, Capability, Context, Port, ProtectionDomain};
pub use counter::{CompletionCounter, CounterLimits};
pub use efa_gda_sys::verbs::{Call, LoadError, Loaded, RdmaCore, Release};
pub use library::{Device, Library};
pub use queue_pair::{QueuePair, QueuePairOptions};
