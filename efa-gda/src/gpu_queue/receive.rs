//! Receives that a GPU posts and takes: a kernel of this library does what the host's CPU does for a
//! [`MappedQueue`](crate::queue::MappedQueue). The host retains the memory in the same way.

use std::time::Duration;

use super::GpuQueue;
use crate::queue::receive::{no_receive_queue, taking};
use crate::queue::{PostedReceives, Received, Receives};
use crate::{Error, Result};

impl GpuQueue {
    /// Checks that the GPU can post receives on this queue.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the endpoint's receives complete on another completion
    /// queue, or the GPU cannot access the receive queue or its doorbell.
    pub fn posts_receives(&self) -> Result<()> {
        match &self.parts.receives {
            Some(Ok(_)) => Ok(()),
            Some(Err(why)) => {
                Err(Error::unsupported(format!("the GPU cannot post receives on this queue: {why}"))
                    .with_hint("post them from the host before the queue is mapped"))
            }
            None => Err(no_receive_queue()),
        }
    }

    /// As [`MappedQueue::post_receives`](crate::queue::MappedQueue::post_receives), with a kernel that posts. The
    /// memory may be the host's or a GPU's.
    ///
    /// # Errors
    /// [`Error`]. After one of the GPU the region is retained until the endpoint is closed.
    pub fn post_receives(&mut self, receives: &Receives) -> Result<PostedReceives> {
        self.refuse_in_launch()?;
        self.posts_receives()?;
        let args = receives.arguments(&self.mapped)?;
        let ran = self.device.receive(&self.gpu, &args, false);
        let state = self.load_state();
        match ran {
            Ok((posted, _)) => {
                let posted = self.mapped.retain_posted(receives, &posted);
                state?;
                Ok(posted?)
            }
            Err(error) => {
                self.mapped.retain_maybe_posted(receives);
                Err(error)
            }
        }
    }

    /// As [`MappedQueue::receive_many`](crate::queue::MappedQueue::receive_many), with a kernel that waits.
    ///
    /// # Errors
    /// Those of [`MappedQueue::receive_many`](crate::queue::MappedQueue::receive_many), those of the GPU, and
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) during a launch of the caller's.
    pub fn receive_many(&mut self, most: usize, timeout: Duration) -> Result<Vec<Received>> {
        self.refuse_in_launch()?;
        self.mapped.report_lost()?;
        let ran = self.device.receive(&self.gpu, &taking(most, timeout), true);
        let state = self.load_state();
        let (taken, entries) = ran?;
        let received = self.mapped.decode_received(&entries, taken.status);
        state?;
        received
    }
}
