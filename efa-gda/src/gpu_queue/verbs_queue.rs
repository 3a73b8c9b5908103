//! Peers of a queue of rdma-core that a GPU drives.

use efa_gda_wire::Peer;

use super::GpuQueue;
use crate::verbs::{self, Address, QueuePair, Ready};

impl GpuQueue<QueuePair<Ready>> {
    /// As [`MappedQueue::peer`](crate::queue::MappedQueue::peer), also while kernels run.
    ///
    /// # Errors
    /// Those of [`QueuePair::peer`].
    pub fn peer(&mut self, address: &Address) -> verbs::Result<Peer> {
        self.mapped.peer(address)
    }
}
