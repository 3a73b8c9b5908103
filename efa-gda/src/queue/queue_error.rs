//! Why an endpoint or queue pair does not become a mapped queue, and what to open instead.

use super::{CountersError, RequestTableError};
use crate::exposure::ExposureError;
use crate::fabric;
use crate::polling::Unclaimable;

/// Why an endpoint or queue pair cannot become a mapped queue, or why its library refused a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// A call into libfabric failed.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// A call into rdma-core failed, or the geometry that it exposes breaks a rule.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] crate::verbs::Error),
    /// The geometry that the endpoint exposes breaks a rule.
    #[error(transparent)]
    Exposure(#[from] ExposureError),
    /// Another mapped queue reads the completion queue.
    #[error(
        "the completion queue already has a reader (another mapped queue): open a completion queue for this endpoint, \
         and bind the endpoint to it"
    )]
    CompletionQueueTaken,
    /// Other endpoints complete on the completion queue.
    #[error(
        "{endpoints} endpoints complete on the completion queue, and a mapped queue would read the completions of all: \
         open a completion queue for this endpoint alone"
    )]
    CompletionQueueShared {
        /// Endpoints, or queue pairs, that complete on it.
        endpoints: usize,
    },
    /// An endpoint that was closed completed on the completion queue.
    #[error(
        "an endpoint that was closed completed on the completion queue, which may hold its completions: open a \
         completion queue for this endpoint"
    )]
    CompletionQueueUsed,
    /// The completion queue can overrun: more requests and receives may complete than it has entries, before a poller
    /// reads one.
    #[error(
        "the completion queue has {completions} entries, and up to {} may be written before one is read ({requests} of \
         the send queue, {receives} of the receive queue): open a completion queue of at least as many entries, or give \
         receives another completion queue", requests + receives
    )]
    ShallowCompletionQueue {
        /// Entries of the completion queue.
        completions: u32,
        /// Entries of the send queue, which all may be in flight.
        requests: u32,
        /// Entries of the receive queue if receives complete there too, otherwise 0.
        receives: u32,
    },
    /// The queue cannot use the completion counters of its endpoint.
    #[error(transparent)]
    Counters(#[from] CountersError),
    /// The queue cannot have a request table.
    #[error(transparent)]
    RequestTable(#[from] RequestTableError),
    /// The inbox for completions of receives cannot be allocated.
    #[error("an inbox of {bytes} bytes cannot be allocated: open a smaller completion queue")]
    NoMemory {
        /// Bytes needed.
        bytes: usize,
    },
}

impl From<Unclaimable> for QueueError {
    fn from(why: Unclaimable) -> Self {
        match why {
            Unclaimable::Taken => Self::CompletionQueueTaken,
            Unclaimable::Shared(endpoints) => Self::CompletionQueueShared { endpoints },
            Unclaimable::Used => Self::CompletionQueueUsed,
        }
    }
}

impl From<QueueError> for crate::Error {
    fn from(error: QueueError) -> Self {
        let kind = match error {
            QueueError::Fabric(error) => return error.into(),
            #[cfg(feature = "verbs")]
            QueueError::Verbs(error) => return error.into(),
            QueueError::Exposure(_) => crate::ErrorKind::Exposure,
            QueueError::ShallowCompletionQueue { .. }
            | QueueError::Counters(CountersError::ShallowCompletionQueue { .. }) => {
                crate::ErrorKind::Argument
            }
            QueueError::RequestTable(RequestTableError::NoMemory { .. }) | QueueError::NoMemory { .. } => {
                crate::ErrorKind::OutOfMemory
            }
            QueueError::Counters(_) | QueueError::RequestTable(_) => crate::ErrorKind::Unsupported,
            _ => crate::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
