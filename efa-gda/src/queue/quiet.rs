//! Waiting until no request of a queue is in flight.

use std::time::Duration;

use efa_gda_sys::device::{EFA_GDA_OP_SEND, efa_gda_put_args};

use super::receive::nanoseconds;
use super::work_error::{Requested, report};
use super::{MappedQueue, WorkReport};
use crate::Result;
use crate::executor::host;

/// The arguments of a work request without requests: the put kernel then owns the queue, rings for entries that await a
/// doorbell, and waits for all completions.
pub(crate) fn no_requests(timeout: Duration) -> efa_gda_put_args {
    efa_gda_put_args { op: EFA_GDA_OP_SEND, timeout_ns: nanoseconds(timeout), ..Default::default() }
}

impl MappedQueue {
    /// Waits on this thread until no request of this queue is in flight, including those of the caller's kernels, and
    /// reads their completions. The bound counts from the last request that completed, so the call may take longer.
    ///
    /// # Errors
    /// [`ErrorKind::FailedRequest`](crate::ErrorKind) with the first error among the completions that this call read;
    /// `Device` if the bound ran out, which poisons the queue, or if the queue is poisoned; `Unsupported` if its
    /// completions or counters are in a GPU's memory.
    pub fn quiet(&mut self, timeout: Duration) -> Result<WorkReport> {
        self.require_host_polls("waiting on the host")?;
        let args = efa_gda_put_args { queue: self.as_ptr().as_ptr(), ..no_requests(timeout) };
        // SAFETY: as in `MappedQueue::execute`, except that there are no local bytes.
        let ran = unsafe { host::put(&args, 1) };
        report(ran?, self.in_flight(), Requested::default())
    }
}
