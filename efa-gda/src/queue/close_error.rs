//! Why a queue is not closed, and what to do then.

use super::{MappedQueue, QueueError};
use crate::Error;

/// Why a queue was not closed, or not in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Requests are in flight. The queue is handed back.
    #[error(
        "the queue was not closed, because {in_flight} request(s) of it were rung and have not completed: {}",
        hint(.queue)
    )]
    Busy {
        /// The queue.
        queue: Box<MappedQueue>,
        /// Requests whose doorbell was rung and that have not completed.
        in_flight: u32,
    },
    /// A kernel that owned the queue returned without closing its `Sender`, or a group that shared it failed with the
    /// ticket lock. The queue is handed back.
    #[error(
        "the queue was not closed, because a kernel that owned it returned without closing its Sender, or failed while \
         it had the lock of a shared queue, so that what it posted is not known: destroy the queue, which flushes its \
         requests"
    )]
    Abandoned {
        /// The queue.
        queue: Box<MappedQueue>,
    },
    /// Entries were posted, and their doorbell was never rung. The queue is handed back.
    #[error(
        "the queue was not closed, because it has entries that were posted and never rung for ({entries}): {} rings \
         for them and waits; destroying the queue drops them",
        waiting_call(.queue)
    )]
    Unrung {
        /// The queue.
        queue: Box<MappedQueue>,
        /// Entries whose doorbell was never rung.
        entries: u32,
    },
    /// The endpoint could not be closed. What it refers to stays allocated.
    #[error(transparent)]
    Destroy(QueueError),
}

impl CloseError {
    /// Returns the error, and the queue if it is handed back.
    pub(crate) fn into_parts(self) -> (Error, Option<Box<MappedQueue>>) {
        let text = self.to_string();
        match self {
            Self::Busy { queue, .. } | Self::Abandoned { queue } | Self::Unrung { queue, .. } => {
                (Error::busy(text), Some(queue))
            }
            Self::Destroy(error) => (error.into(), None),
        }
    }
}

/// What to do about requests in flight. Waiting does not help a poisoned queue.
fn hint(queue: &MappedQueue) -> String {
    match queue.poison() {
        None => {
            format!("wait for them with {} or destroy the queue, which flushes them", waiting_call(queue))
        }
        Some(_) => "the queue is poisoned; destroy it, which flushes them".into(),
    }
}

/// The call that rings for unrung entries and waits for completions, as part of a sentence that goes on after it.
fn waiting_call(queue: &MappedQueue) -> &'static str {
    match queue.host_cannot_poll() {
        None => "MappedQueue::quiet",
        Some(_) => "GpuQueue::quiet, once it is mapped into its GPU again with GpuQueue::new,",
    }
}
