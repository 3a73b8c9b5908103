//! Waiting until nothing of a queue's is in flight.

use std::time::Duration;

use efa_gda_sys::device::{EFA_GDA_OP_SEND, efa_gda_put_args};

use super::{GpuQueue, PutError, PutReport};

/// A put of nothing: it takes the queue, rings for what was left unrung, and waits.
fn nothing(timeout: Duration) -> efa_gda_put_args {
    efa_gda_put_args {
        op: EFA_GDA_OP_SEND,
        timeout_ns: timeout.as_nanos().try_into().unwrap_or(u64::MAX),
        ..Default::default()
    }
}

impl GpuQueue {
    /// As [`super::MappedQueue::quiet`], with a kernel that waits. No other kernel uses the queue meanwhile.
    ///
    /// # Errors
    /// Those of [`super::MappedQueue::quiet`], and [`PutError::Gpu`].
    pub fn quiet(&mut self, timeout: Duration) -> Result<PutReport, PutError> {
        self.refuse_lent()?;
        self.execute(&nothing(timeout), |_, _| ())
    }
}
