//! Waiting until nothing of a queue's is in flight.

use std::time::Duration;

use efa_gda_sys::device::{EFA_GDA_OP_SEND, efa_gda_put_args};

use super::backing::Backing;
use super::work_error::{Asked, report};
use super::{GpuQueue, MappedQueue, WorkError, WorkReport};
use crate::executor::host;

/// A put of nothing: it takes the queue, rings for what was left unrung, and waits.
fn nothing(timeout: Duration) -> efa_gda_put_args {
    efa_gda_put_args {
        op: EFA_GDA_OP_SEND,
        timeout_ns: timeout.as_nanos().try_into().unwrap_or(u64::MAX),
        ..Default::default()
    }
}

impl<B: Backing> MappedQueue<B> {
    /// Waits until no request of this queue is in flight, such as those of a kernel of the caller's, and
    /// reads their completions, from this thread.
    ///
    /// # Errors
    /// [`WorkError::Completion`] with the first error among the completions that this call read;
    /// [`WorkError::Device`] where the bound ran out, which poisons the queue, or it is poisoned;
    /// [`WorkError::Unsupported`] where its completions lie in a GPU's memory.
    pub fn quiet(&mut self, timeout: Duration) -> Result<WorkReport, WorkError> {
        self.host_polls("waiting on the host")?;
        let args = efa_gda_put_args { queue: self.as_ptr().as_ptr(), ..nothing(timeout) };
        // SAFETY: as in `MappedQueue::execute`, but for the bytes: there are none.
        let ran = unsafe { host::put(&args, 1) };
        report(ran?, self.in_flight(), Asked::default())
    }
}

impl GpuQueue {
    /// As [`MappedQueue::quiet`], with a kernel that waits. No other kernel uses the queue meanwhile.
    ///
    /// # Errors
    /// Those of [`MappedQueue::quiet`], and [`WorkError::Gpu`].
    pub fn quiet(&mut self, timeout: Duration) -> Result<WorkReport, WorkError> {
        self.refuse_in_launch()?;
        self.launch_put(&nothing(timeout), |_, _| ())
    }
}
