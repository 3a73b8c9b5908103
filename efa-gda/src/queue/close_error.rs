//! Why a queue is not closed, and what to do then.

use super::backing::{Backing, Libfabric};
use super::{GpuQueue, MappedQueue};
use crate::gpu;

/// Why a queue was not closed, or not in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError<B: Backing = Libfabric> {
    /// The adapter has not completed everything that was posted. The queue is handed back.
    #[error(
        "the adapter holds {in_flight} request(s) of this queue that were rung and have not completed: {}",
        way_out(.queue)
    )]
    Busy {
        /// The queue.
        queue: Box<MappedQueue<B>>,
        /// Requests rung and not completed.
        in_flight: u32,
    },
    /// A kernel that owned the queue returned without closing its `Sender`. The queue is handed back.
    #[error(
        "a kernel that owned this queue returned without closing its Sender, so that what it posted is not known: \
         destroy the queue, which flushes it"
    )]
    Abandoned {
        /// The queue.
        queue: Box<MappedQueue<B>>,
    },
    /// Entries were posted, and nobody rang for them. The queue is handed back.
    #[error(
        "{entries} of this queue's entries were posted and never rung for: {} rings for them and waits; destroying \
         the queue drops them",
        who_rings(.queue)
    )]
    Unrung {
        /// The queue.
        queue: Box<MappedQueue<B>>,
        /// Entries never rung for.
        entries: u32,
    },
    /// The same of a queue that a GPU drives, which is handed back as it was.
    #[error(
        "{entries} of this queue's entries were posted and never rung for: GpuQueue::quiet rings for them and \
         waits; destroying the queue drops them"
    )]
    UnrungOnGpu {
        /// The queue.
        queue: Box<GpuQueue>,
        /// Entries never rung for.
        entries: u32,
    },
    /// Kernels may still use a queue that a GPU drives. The queue is handed back.
    #[error("the queue is lent to {launches} launch(es); wait for them and drop what was lent")]
    LaunchGuard {
        /// The queue.
        queue: Box<GpuQueue>,
        /// Values of [`super::LaunchGuard`] that live.
        launches: usize,
    },
    /// Kernels may still run and post: they did not end, or the driver did not say. The queue is handed back.
    #[error("kernels may still use the queue: {error}")]
    Running {
        /// The queue.
        queue: Box<GpuQueue>,
        /// Why that is not known, or that it took too long.
        #[source]
        error: gpu::Error,
    },
    /// The endpoint could not be closed. What it refers to stays allocated.
    #[error(transparent)]
    Destroy(B::Error),
}

/// What to do about requests in flight: nobody waits on a queue that is out of service.
fn way_out<B: Backing>(queue: &MappedQueue<B>) -> &'static str {
    match queue.poison() {
        None => "wait for them with MappedQueue::quiet, or destroy the queue, which flushes them",
        Some(_) => "the queue is poisoned; destroy it, which flushes them",
    }
}

/// Who can ring for entries that nobody rang for, and see them complete.
fn who_rings<B: Backing>(queue: &MappedQueue<B>) -> &'static str {
    match queue.host_is_blind() {
        None => "MappedQueue::quiet",
        Some(_) => "GpuQueue::quiet, once it is mapped into its GPU again with GpuQueue::new,",
    }
}
