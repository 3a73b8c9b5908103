//! Ends a queue that is not dropped: what a drop cannot report.

#[cfg(feature = "cuda")]
use super::OpenDomain;
use super::{Driven, Queue};
use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::error_chain;
#[cfg(feature = "cuda")]
use crate::gpu_queue::GpuCloseError;
use crate::queue::CloseError;

impl Queue {
    /// Closes the queue, and reports what a drop cannot: requests in flight, and entries without a doorbell. Then the queue
    /// is handed back as it was.
    ///
    /// # Errors
    /// [`NotClosed`].
    pub fn close(self) -> Result<(), NotClosed> {
        if let Err(error) = self.refuse_unfinished() {
            return Err(NotClosed { error, queue: Some(Box::new(self)) });
        }
        let Self { driven, domain, refused } = self;
        let closed = match driven {
            Driven::Host(queue) => queue.close().map_err(CloseError::into_parts),
            #[cfg(feature = "cuda")]
            Driven::Gpu(queue) => {
                return queue.close().map_err(|error| NotClosed::of(error, domain, refused));
            }
        };
        closed.map_err(|(error, queue)| {
            let queue = queue.map(|queue| Box::new(Self { driven: Driven::Host(queue), domain, refused }));
            NotClosed { error, queue }
        })
    }

    /// Refuses to close a queue whose requests are not all known to be done.
    fn refuse_unfinished(&self) -> Result<()> {
        let seen = self.snapshot()?;
        let poisoned = self.mapped().poison().is_some() || seen.poison().is_some();
        let why = match (seen.in_flight(), seen.unrung()) {
            _ if seen.is_in_use() => {
                "a kernel that owned it returned without closing its Sender, or failed while it had the lock of a shared \
                 queue, so that what it posted is not known: destroy the queue, which flushes its requests"
                    .to_owned()
            }
            (requests @ 1.., _) if poisoned => {
                format!("{requests} request(s) of it have not completed, and it is poisoned: destroy it")
            }
            (requests @ 1.., _) => format!(
                "{requests} request(s) of it were rung and have not completed: wait for them with quiet, or destroy the \
                 queue, which flushes them"
            ),
            (0, entries @ 1..) if !poisoned => format!(
                "it has entries that were posted and never rung for ({entries}): quiet rings for them and waits; \
                 destroying the queue drops them"
            ),
            (0, _) => return Ok(()),
        };
        Err(Error::busy(format!("the queue was not closed, because {why}")))
    }

    /// Closes the queue even if requests are in flight, which are flushed.
    ///
    /// # Errors
    /// [`NotClosed`], with the queue if kernels may still use it.
    pub fn destroy(self) -> Result<(), NotClosed> {
        let Self { driven, domain, refused } = self;
        match driven {
            Driven::Host(queue) => {
                // The domain is closed after the queue.
                let _parts = (domain, refused);
                queue.destroy().map_err(|error| NotClosed { error: error.into(), queue: None })
            }
            #[cfg(feature = "cuda")]
            Driven::Gpu(queue) => queue.destroy().map_err(|error| NotClosed::of(error, domain, refused)),
        }
    }
}

/// Why a queue was not closed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotClosed {
    /// The cause.
    pub error: Error,
    /// The queue, unless its endpoint could not be destroyed.
    pub queue: Option<Box<Queue>>,
}

impl From<NotClosed> for Error {
    fn from(not_closed: NotClosed) -> Self {
        not_closed.error
    }
}

#[cfg(feature = "cuda")]
impl NotClosed {
    fn of(error: GpuCloseError, domain: OpenDomain, refused: Vec<String>) -> Self {
        let (error, driven) = match error {
            GpuCloseError::Unmapped(error) => {
                let (error, queue) = error.into_parts();
                (error, queue.map(Driven::Host))
            }
            error => {
                let text = error_chain(&error).to_string();
                (Error::busy(text), error.into_queue().map(Driven::Gpu))
            }
        };
        Self { error, queue: driven.map(|driven| Box::new(Queue { driven, domain, refused })) }
    }
}
