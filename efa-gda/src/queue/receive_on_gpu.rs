//! Receives that a GPU posts and takes: a kernel of this library's does what the host's processor does for a
//! [`MappedQueue`](super::MappedQueue), and the host keeps the memory in the same way.

use std::time::Duration;

use efa_gda_sys::device::efa_gda_receive_args;

use super::receive::{AT_ONCE, nanoseconds, only};
use super::{GpuQueue, PostedReceives, ReceiveError, Received, Receives, WorkError};
use crate::executor::host;

impl GpuQueue {
    /// Whether the GPU posts receives on this queue, and why not.
    ///
    /// # Errors
    /// [`ReceiveError::NoReceiveQueue`] where the endpoint's receives complete elsewhere,
    /// [`ReceiveError::NotMapped`] where the GPU does not reach the receive queue or its doorbell.
    pub fn posts_receives(&self) -> Result<(), ReceiveError> {
        match &self.ranges.receives {
            Some(Ok(_)) => Ok(()),
            Some(Err(why)) => Err(ReceiveError::NotMapped { why: why.clone() }),
            None => Err(ReceiveError::NoReceiveQueue),
        }
    }

    fn refuse_lent_to_receive(&self) -> Result<(), ReceiveError> {
        match self.refuse_in_launch() {
            Err(WorkError::LaunchGuard { launches }) => Err(ReceiveError::LaunchGuard { launches }),
            _ => Ok(()),
        }
    }

    /// As [`MappedQueue::post_receives`](super::MappedQueue::post_receives), with a kernel that posts. The
    /// memory may be the host's or a GPU's.
    ///
    /// # Errors
    /// [`ReceiveError`]. After [`ReceiveError::Gpu`] the region is kept until the endpoint is closed.
    pub fn post_receives(&mut self, receives: &Receives) -> Result<PostedReceives, ReceiveError> {
        self.refuse_lent_to_receive()?;
        self.posts_receives()?;
        let host::Receives { address, stride, timeout_ns, lkey, length, count, .. } =
            receives.arguments(&self.mapped)?;
        let args =
            efa_gda_receive_args { address, stride, timeout_ns, lkey, length, count, ..Default::default() };
        let ran = self.device.receive(&self.gpu, &args, false);
        let state = self.look();
        match ran {
            Ok(did) => {
                let posted = host::PostedReceives { status: did.status, first: did.first, count: did.count };
                let posted = self.mapped.posted(receives, posted);
                state?;
                posted
            }
            Err(error) => {
                self.mapped.maybe_posted(receives);
                Err(error.into())
            }
        }
    }

    /// As [`MappedQueue::receive`](super::MappedQueue::receive), with a kernel that waits.
    ///
    /// # Errors
    /// [`ReceiveError`]; one that completed with an error is [`ReceiveError::Completion`].
    pub fn receive(&mut self, timeout: Duration) -> Result<Received, ReceiveError> {
        only(&self.receive_many(1, timeout)?)
    }

    /// As [`MappedQueue::receive_many`](super::MappedQueue::receive_many), with a kernel that waits.
    ///
    /// # Errors
    /// Those of [`MappedQueue::receive_many`](super::MappedQueue::receive_many), [`ReceiveError::LaunchGuard`] and
    /// [`ReceiveError::Gpu`].
    pub fn receive_many(&mut self, most: usize, timeout: Duration) -> Result<Vec<Received>, ReceiveError> {
        self.refuse_lent_to_receive()?;
        self.mapped.tell_lost()?;
        // At most AT_ONCE, which fits.
        let count = most.min(AT_ONCE) as u32;
        let args = efa_gda_receive_args { count, timeout_ns: nanoseconds(timeout), ..Default::default() };
        let ran = self.device.receive(&self.gpu, &args, true);
        let state = self.look();
        let did = ran?;
        let taken = self.mapped.taken(&did.taken, did.status);
        state?;
        taken
    }
}
