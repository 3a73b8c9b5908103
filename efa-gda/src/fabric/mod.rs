//! libfabric objects: opened by this library, or borrowed from a transport.
//!
//! ```text
//! Library ─ Query ─► Info
//!    └──────────────── Fabric ─ Domain ─┬─ AddressVector ─────┐
//!                                       ├─ CompletionQueue ───┤ bind
//!                                       ├─ CompletionCounter ─┤
//!                                       ├─ Endpoint ◄─────────┘
//!                                       ├─ Region
//!                                       └─ GdaOps: what an enabled endpoint exposes
//! ```
//!
//! [`GdaOps`] returns the send queue, receive queue and completion queue of an [`Endpoint`], the address
//! handle of a peer and the local key of a [`Region`]. This module does not post requests; a mapped
//! queue (`crate::queue`) does. GPU memory is a [`DeviceMemory`] here; this module does not call CUDA.
//!
//! # Ownership
//! Each object owns a share of its parents, so children close before parents in any drop order. `close`
//! returns the result of closing, and [`ErrorKind::Busy`](crate::ErrorKind::Busy) while other handles use the object. A drop logs a failed
//! close. Where a close fails, everything that the object refers to stays allocated until the process ends.
//!
//! A [`Region`] owns the [`Buffer`] or the GPU memory that it was registered from. Work requests and queues
//! hold clones of regions.
//!
//! # Threads
//! All objects may be used from any thread. Calls into libfabric are serialized for each opened fabric and
//! for each borrowed domain, because a domain may offer no more than FI_THREAD_DOMAIN.
//!
//! # Errors
//! Calls go through the operation tables inside each object. A table of an older library may end before the
//! function, which is an error.
//!
//! ```
//! # efa_gda_test_support::soft::example();
//! use efa_gda::fabric::{Bindings, Fabric, Library, Query};
//!
//! let library = Library::load()?;
//! let info = Query::new().first(&library)?;
//! let domain = Fabric::open(&library, &info)?.domain(&info)?;
//! let addresses = domain.address_vector(16)?;
//! let completions = domain.completion_queue(1024)?;
//! let endpoint = domain.endpoint(&info, Bindings::shared(&addresses, &completions))?;
//! let queues = domain.gda_ops()?.query_qp_wqs(&endpoint)?;
//! println!("{} send entries", queues.send.num_entries);
//! # Ok::<(), efa_gda::Error>(())
//! ```

mod address;
mod completion;
mod counter;
mod device_memory;
mod domain;
mod endpoint;
pub(crate) mod error;
mod gda;
mod info;
mod memory;
mod object;
mod query;
mod table;

pub use crate::error::QueryOption;
pub use crate::memory::{
    Access, Buffer, CountedOperations, CounterMemory, CounterWords, DeviceMemory, Dmabuf, ExternalMemory,
    Limits, Region, RegionOrdering, RemoteRegion,
};
pub use address::{AddressVector, FabricAddress};
pub use completion::CompletionQueue;
pub use counter::CompletionCounter;
pub use domain::{Domain, Fabric};
pub use endpoint::{Bindings, Endpoint};
pub use error::UnavailableReason;
pub use gda::{FIRST_WITH_COUNTERS, FIRST_WITH_GDA_OPS, GdaOps, WorkQueues};
pub use info::{Info, Nic, PciAddress, Version};
pub use query::{EFA_DIRECT, Library, Query};
