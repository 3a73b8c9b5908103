//! Errors of queues that a GPU drives. Errors that do not concern the GPU are those of [`crate::queue`], wrapped.

use super::GpuQueue;
use crate::gpu;
use crate::queue::{CloseError, DoorbellError, MappedQueue, ReceiveError, WorkError};

/// Why a queue cannot be mapped into a GPU, or why an operation of a GPU's queue failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuQueueError {
    /// The GPU failed, or a kernel could not start. Requests and receives that were posted stay posted.
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    /// A work request was refused, or failed.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// Receives were refused, or failed.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The queue cannot change its doorbell mode.
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
    /// The GPU cannot read the completion queue, and no doorbell proxy relays its completions.
    #[error(
        "the GPU cannot read the completion queue; map the queue with GpuQueue::with_doorbell, whose doorbell proxy \
         then relays completions, or use completion counters (MappedQueue::with_counters)"
    )]
    CompletionsNotMapped(#[source] gpu::Error),
    /// Memory of one GPU would have to be used by another.
    #[error("{what} is in the memory of GPU {has}, and GPU {needs} drives the queue; use one GPU for both")]
    OtherGpu {
        /// The object in that memory.
        what: &'static str,
        /// The GPU that has the memory.
        has: i32,
        /// The GPU that drives the queue.
        needs: usize,
    },
    /// The caller's kernels use the queue. Nothing was posted or taken.
    #[error(
        "{launches} launch(es) use the queue, so nothing was done: when their kernels have ended, drop their launch guards \
         (in C: efa_gda_mapped_end_launch)"
    )]
    InLaunch {
        /// Values of [`super::LaunchGuard`] that exist.
        launches: usize,
    },
    /// The GPU cannot access the receive queue or its doorbell. Nothing was posted.
    #[error(
        "the GPU cannot post receives on this queue: {why}; post them from the host before the queue is mapped"
    )]
    ReceivesNotMapped {
        /// Why CUDA refused to register them.
        why: String,
    },
}

/// A queue that could not be mapped. The queue is handed back.
#[derive(Debug, thiserror::Error)]
#[error("the queue cannot be mapped into the GPU")]
pub struct MapError {
    /// The cause.
    #[source]
    pub error: GpuQueueError,
    /// The queue, which the host can still drive.
    pub queue: Box<MappedQueue>,
}

/// Why a queue that a GPU drives was not unmapped or closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuCloseError {
    /// The queue is no longer mapped into the GPU, and the host could not close it.
    #[error(transparent)]
    Unmapped(#[from] CloseError),
    /// Entries were posted, and their doorbell was never rung. The queue is handed back, still mapped.
    #[error(
        "the queue was not unmapped, because it has entries that were posted and never rung for ({entries}): \
         GpuQueue::quiet rings for them and waits; destroying the queue drops them"
    )]
    Unrung {
        /// The queue.
        queue: Box<GpuQueue>,
        /// Entries whose doorbell was never rung.
        entries: u32,
    },
    /// The caller's kernels may use the queue. The queue is handed back, still mapped.
    #[error(
        "{launches} launch(es) use the queue, so nothing was done: when their kernels have ended, drop their launch guards \
         (in C: efa_gda_mapped_end_launch)"
    )]
    InLaunch {
        /// The queue.
        queue: Box<GpuQueue>,
        /// Values of [`super::LaunchGuard`] that exist.
        launches: usize,
    },
    /// A kernel that this library launched may still run and post: it did not end within the bound, or the driver did
    /// not report that it ended. In mode `staged` also: the driver did not copy the queue's state, so entries may await
    /// a doorbell. The queue is handed back, still mapped.
    #[error(
        "a kernel of this library may still use the queue, or its staging ring may hold entries that were never rung \
         for; the queue stays mapped: close it again later, or destroy it"
    )]
    Running {
        /// The queue.
        queue: Box<GpuQueue>,
        /// The cause.
        #[source]
        error: gpu::Error,
    },
}

impl GpuCloseError {
    /// Returns the queue, if it is handed back, still mapped.
    pub(crate) fn into_queue(self) -> Option<Box<GpuQueue>> {
        match self {
            Self::Unmapped(_) => None,
            Self::Unrung { queue, .. } | Self::InLaunch { queue, .. } | Self::Running { queue, .. } => {
                Some(queue)
            }
        }
    }
}

impl From<GpuQueueError> for crate::Error {
    fn from(error: GpuQueueError) -> Self {
        let kind = match error {
            GpuQueueError::Gpu(error) => return error.into(),
            GpuQueueError::Work(error) => return error.into(),
            GpuQueueError::Receive(error) => return error.into(),
            GpuQueueError::Doorbell(error) => return error.into(),
            GpuQueueError::ReceivesNotMapped { .. } => crate::ErrorKind::Unsupported,
            GpuQueueError::InLaunch { .. } => crate::ErrorKind::Busy,
            _ => crate::ErrorKind::Gpu,
        };
        Self::new(kind, error)
    }
}

impl From<MapError> for crate::Error {
    fn from(MapError { error, .. }: MapError) -> Self {
        error.into()
    }
}
