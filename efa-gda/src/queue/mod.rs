//! The mapped queue: an enabled endpoint, what it exposes, and the struct that a kernel receives.
//!
//! A [`MappedQueue`] owns its endpoint, so that nobody else posts to it, and polls its completion
//! queue alone. The struct's address never changes while the queue lives; its geometry is constant,
//! everything else belongs to the engine in `kernels/include/efa_gda/`.
//!
//! # Before the first put
//! - One completion queue, bound to both sides of the endpoint, is needed for receives; with two the
//!   queue takes none. It is at least as deep as the send queue, and where receives are posted as
//!   both rings together: a shallower one can overrun, and the queue warns when it is made.
//! - [`MappedQueue::insert_peer`] on both sides, each with the other's address: a side refuses what
//!   comes from a sender that it does not know
//!   ([`UnknownPeer`](crate::wire::CompletionStatus::UnknownPeer) at the sender).
//! - [`Buffer`](crate::fabric::Buffer) → [`Domain::register`](crate::fabric::Domain::register) →
//!   [`WorkRequest`]. A live [`WorkRequest`] holds a handle of its local regions, so `MemoryRegion::close` answers
//!   busy until it is dropped.
//!
//! # What arrives
//! Receives are posted by device code ([`MappedQueue::post_receives`]). Their completions come on
//! the queue that sends complete on, so whoever polls it, for whatever reason, leaves them in the
//! queue's inbox; [`MappedQueue::receive`] takes them from there. A GPU posts and takes them in the same
//! way ([`GpuQueue::post_receives`], [`GpuQueue::receive`]), and its kernels with `rq.h`. RDMA writes with immediate are
//! taken the same way, and need a posted receive only where
//! [`Endpoint::writes_use_receives`](crate::fabric::Endpoint::writes_use_receives) says so.
//!
//! # Completion counters
//! [`MappedQueue::with_counters`] has device code take room and quiet from an adapter's counters. It then leaves
//! the completion queue alone, which the adapter overwrites, until an error is counted.
//!
//! # When a job hangs
//! [`MappedQueue::snapshot`] and [`GpuQueue::snapshot`] say where a queue stands, also while a kernel
//! runs: cursors, who holds the turn, requests that nobody rang for, the last completions, errors.
//!
//! # When a wait runs out
//! The adapter may still read and write the memory of requests that nobody waits for any more. The
//! queue is then *poisoned*: it takes no more requests, and it keeps the memory regions of what is
//! in flight until its endpoint is destroyed. Until then `MemoryRegion::close` answers busy, and a
//! drop of the region's last handle outside deregisters nothing. [`MappedQueue::destroy`] is the way
//! out: it destroys the endpoint first and deregisters after that.

mod backing;
mod close_error;
mod counters;
mod doorbell_mode;
mod geometry;
mod gpu_memory;
mod mapped;
pub mod measure;
mod on_device;
mod on_gpu;
mod over_verbs;
mod parts;
mod quiet;
mod receive;
mod receive_on_gpu;
mod snapshot;
mod work_error;
mod work_request;

pub use backing::{Backing, Libfabric, Region};
pub use close_error::CloseError;
pub use counters::CountersError;
pub use doorbell_mode::{DoorbellError, Refused};
pub use geometry::{Geometry, geometry};
pub use gpu_memory::Placement;
pub(crate) use mapped::outstanding;
pub use mapped::{AbortFlag, MappedQueue, QueueError, QueueLimits};
pub use on_gpu::{GpuAbortFlag, GpuQueue, LaunchGuard, MapError};
pub use parts::Registered;
pub use receive::{Arrival, PostedReceives, ReceiveError, ReceiveId, Received, Receives, Source};
pub use snapshot::{Counts, Pending, Seen, SeenCompletion, Snapshot};
pub use work_error::{Limit, WorkError, WorkReport};
pub use work_request::{WorkRequest, device_peer};
