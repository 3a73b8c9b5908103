//! Memory that an adapter reaches, in terms that do not depend on the library that opened the adapter.
//!
//! [`crate::fabric`] (libfabric) and [`crate::verbs`] (rdma-core) both register memory, open queues in it and
//! name it in requests. Both re-export what their callers need from here. This module calls neither of them,
//! and no foreign library.
//!
//! - [`Buffer`]: zeroed host memory. Bytes are copied in and out, because the adapter may access the
//!   memory at any time.
//! - [`DeviceMemory`]: a range of GPU memory, with the [`Dmabuf`] that represents it and a value that keeps
//!   it allocated.
//! - [`ExternalMemory`]: memory of the caller for a completion queue.
//! - [`CounterMemory`]: a word of the caller for a completion counter, which counts [`CountedOperations`].
//! - [`Access`]: the rights of a registered region; [`RegionOrdering`]: the order of writes to it.
//! - [`Region`]: registered memory, as requests and receives name it.
//! - [`RemoteRegion`]: what a peer needs to read or write a region.
//! - [`Limits`]: how many bytes one request moves.
//!
//! # Ownership
//! A registered region owns its [`Buffer`] or the owner of its [`DeviceMemory`], and releases them after it
//! is deregistered. [`ExternalMemory`] and [`CounterMemory`] own nothing: the functions that take them
//! are unsafe and state how long the memory must stay allocated.
//!
//! # Threads
//! All types may be sent to other threads, except [`ExternalMemory`] and [`CounterMemory`], which
//! hold raw pointers. A [`Buffer`] may be read and written by several threads and the adapter at the same time.
//!
//! # Errors
//! A range outside of a buffer or region is [`ErrorKind::Argument`](crate::ErrorKind::Argument).
//!
//! ```
//! use efa_gda::memory::{Buffer, RemoteRegion};
//! use efa_gda::wire::RemoteKey;
//!
//! let buffer = Buffer::zeroed(4096).expect("4096 bytes");
//! buffer.write(100, b"payload")?;
//! let mut bytes = [0; 7];
//! buffer.read(100, &mut bytes)?;
//! assert_eq!(&bytes, b"payload");
//!
//! let peer = RemoteRegion { address: 0x10_0000, length: 4096, key: RemoteKey::new(7) };
//! assert_eq!(peer.at(100, 7)?.address, 0x10_0064);
//! assert_eq!(peer.at(4095, 2).unwrap_err().kind(), efa_gda::ErrorKind::Argument);
//! # Ok::<(), efa_gda::Error>(())
//! ```

mod access;
mod buffer;
mod counter;
mod device;
mod region;
mod retained;

pub use access::{Access, RegionOrdering};
pub use buffer::Buffer;
pub(crate) use buffer::page_size;
pub use counter::{CountedOperations, CounterMemory, CounterWords};
pub use device::{DeviceMemory, Dmabuf, ExternalMemory};
pub(crate) use device::{Owner, Reader};
pub use region::{Limits, Region, RemoteRegion};
pub(crate) use region::{REGION_IN_USE_HINT, RegionMemory, Registered, in_bounds};
pub(crate) use retained::RetainedRegions;
