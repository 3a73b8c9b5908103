//! The mapped queue: an enabled endpoint of libfabric or a ready queue pair of rdma-core, the rings that it exposes,
//! and the struct that a kernel receives. This module drives queues from the host;
//! [`crate::gpu_queue`](../gpu_queue/index.html) drives them from a GPU (feature `cuda`).
//!
//! A [`MappedQueue`] owns its endpoint, so nothing else posts to it or polls its completion queue. The struct's address
//! never changes while the queue lives. Its geometry is constant while device code can use the queue: it changes only
//! with a call on the host, such as [`MappedQueue::set_doorbell`]. The device library (`kernels/include/efa_gda/`)
//! writes all other fields.
//!
//! # Before the first work request
//! - Receives need one completion queue that is bound to both sides of the endpoint. It must have at least as many
//!   entries as both rings together ([`Info::completions`](crate::fabric::Info::completions)). With two completion
//!   queues the queue takes no receives, and the completion queue of the send side must have at least as many entries
//!   as the send queue. [`MappedQueue::new`] refuses a shallower completion queue, which completions could overrun. It
//!   also refuses a completion queue on which another endpoint completes, or on which an endpoint completed that was
//!   closed: the completions of that endpoint would be taken for this queue's.
//! - Both sides call [`MappedQueue::insert_peer`] with the other's address, because an adapter refuses requests of an
//!   unknown sender ([`UnknownPeer`](crate::wire::CompletionStatus::UnknownPeer) at the sender).
//! - [`Buffer`](crate::fabric::Buffer) → [`Domain::register`](crate::fabric::Domain::register) → [`WorkRequest`]. A
//!   [`WorkRequest`] holds a handle of its local regions, so `Region::close` returns busy until it is dropped.
//!
//! # Receives
//! Device code posts receives ([`MappedQueue::post_receives`]). Their completions arrive on the completion queue of the
//! sends, so every poller stores them in the queue's inbox. [`MappedQueue::receive_many`] takes them from there, and kernels
//! do with `rq.h`. RDMA writes with immediate data are taken the same way. They need a posted receive only if
//! [`Endpoint::writes_use_receives`](crate::fabric::Endpoint::writes_use_receives) returns true.
//!
//! # Completion counters
//! With [`MappedQueue::with_counters`] (queues of libfabric only), device code computes free slots, and whether the
//! queue is quiet, from completion counters. Until an error is counted it does not read the completion queue, whose old
//! entries the adapter overwrites.
//!
//! # Requests of one group
//! With [`MappedQueue::with_request_table`], a group of device code waits for its own requests, and receives their
//! errors, while other groups continue to post (`Sender::wait` in `post.h`).
//!
//! # When a job hangs
//! [`MappedQueue::snapshot`] shows the state of a queue, also while a kernel runs: cursors, the turn, requests that
//! await a doorbell, the last completions, and errors.
//!
//! # When a wait times out
//! The adapter may still read and write the memory of requests whose wait timed out. The queue is then *poisoned*: it
//! takes no more requests, and it retains the memory regions of requests in flight until its endpoint is destroyed.
//! Until then `Region::close` returns busy, and dropping the region's last other handle deregisters nothing.
//! [`MappedQueue::destroy`] destroys the endpoint first, and deregisters after that.

mod abort;
pub(crate) mod backing;
pub(crate) mod counters;
mod doorbell_mode;
mod geometry;
mod host_access;
pub(crate) mod inline;
pub(crate) mod mapped;
#[cfg(feature = "test-utils")]
pub mod measure;
pub(crate) mod quiet;
pub(crate) mod receive;
mod requests;
pub(crate) mod snapshot;
mod store_width;
pub(crate) mod words;
pub(crate) mod work_error;
pub(crate) mod work_request;

pub use crate::error::Limit;
pub use crate::memory::Region;
pub use abort::AbortFlag;
pub use mapped::{MappedQueue, QueueLimits};
pub use receive::{Arrival, MessageSource, PostedReceives, ReceiveId, Received, Receives};
pub use snapshot::{CompletionEntry, Contents, Counts, PendingRequest, Snapshot};
pub use store_width::StoreWidth;
pub use words::{doorbell_index, outstanding, reserved};
pub use work_error::WorkReport;
pub use work_request::{WorkRequest, device_peer};
