//! libfabric objects, opened here or borrowed from a transport, in the order that libfabric needs.
//!
//! [`Library`] → [`Query`] → [`Info`] → [`Fabric`] → [`Domain`] → [`AddressVector`],
//! [`CompletionQueue`], [`MemoryRegion`] and [`Endpoint`]; [`GdaOps`] asks what an endpoint exposes.
//!
//! - Each object owns a share of what it was opened on, so that children close before parents
//!   whatever order values are dropped in. `close` reports how closing went, and refuses while
//!   others use the object; a drop logs it.
//! - An [`Endpoint`] is a type for each state: a query before enable, or an enable without address
//!   vector and completion queues, cannot be written.
//! - Calls go through the operation tables inside each object, after a check that the table of this
//!   release reaches so far. Control calls on one fabric, or one borrowed domain, are made one at a
//!   time.
//!
//! A [`MemoryRegion`] owns the [`Buffer`] it was made of, and is shared: `close` refuses while a
//! [`WorkRequest`](crate::queue::WorkRequest), a queue or another clone holds a handle of it.
//!
//! It knows of GPUs only that memory can be theirs ([`DeviceMemory`]), and does not move bytes: see [`crate::queue`].

mod address;
mod completion;
mod counter;
mod device_memory;
mod domain;
mod endpoint;
mod error;
mod gda;
mod info;
mod memory;
mod object;
mod query;
mod table;

pub use address::{AddressVector, FabricAddress};
pub use completion::{CompletionQueue, ExternalMemory};
pub use counter::{CompletionCounter, Counted, CounterMemory, CounterWords};
pub use device_memory::{DeviceMemory, Dmabuf, Reader, Registration};
pub use domain::{Domain, Fabric};
pub use endpoint::{Bound, Building, Enabled, Endpoint, InjectLimits, Limits, State};
pub use error::{Absence, Error, Failure, QueryOption, Result};
pub use gda::{FIRST_WITH_COUNTERS, FIRST_WITH_GDA_OPS, GdaOps, WorkQueues};
pub use info::{Info, Nic, PciAddress, Version};
pub use memory::{Access, Buffer, MemoryRegion, RemoteRegion};
pub use query::{EFA_DIRECT, Library, Query};
