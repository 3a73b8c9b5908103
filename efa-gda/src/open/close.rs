//! Ends a queue that is not dropped: what a drop cannot report.

use super::{Driven, Opened, Queue};
use crate::error::{Refused, Result};

impl Queue {
    /// Closes the queue, and reports what a drop cannot: requests in flight, and entries without a doorbell. Then the queue
    /// is handed back as it was.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy), with the queue. Other errors if its endpoint could not be destroyed.
    pub fn close(self) -> Result<(), Refused<Self>> {
        let Self { driven, opened } = self;
        match driven {
            Driven::Host(queue) => queue.close().map_err(|error| hand_back(error, Driven::Host, opened)),
            #[cfg(feature = "cuda")]
            Driven::Gpu(queue) => queue.close().map_err(|error| hand_back(error, Driven::Gpu, opened)),
        }
    }

    /// Closes the queue even if requests are in flight, which are flushed.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy), with the queue, if kernels may still use it. Other errors if its
    /// endpoint could not be destroyed.
    pub fn destroy(self) -> Result<(), Refused<Self>> {
        let Self { driven, opened } = self;
        match driven {
            Driven::Host(queue) => {
                // The domain is closed after the queue.
                let _opened = opened;
                queue.destroy().map_err(Refused::gone)
            }
            #[cfg(feature = "cuda")]
            Driven::Gpu(queue) => queue.destroy().map_err(|error| hand_back(error, Driven::Gpu, opened)),
        }
    }
}

/// The whole queue again, from the part of it that was handed back.
fn hand_back<Q>(error: Refused<Q>, driven: impl FnOnce(Box<Q>) -> Driven, opened: Opened) -> Refused<Queue> {
    let Refused { error, queue } = error;
    let queue = queue.map(|queue| Box::new(Queue { driven: driven(queue), opened }));
    Refused { error, queue }
}
