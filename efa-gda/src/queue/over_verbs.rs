//! The mapped queue through rdma-core alone: how it is made, and how it finds peers. Everything else
//! is as through libfabric.

use efa_gda_wire::Peer;

use super::{MappedQueue, QueueError};
use crate::verbs::{self, Address, QueuePair, Ready};

impl MappedQueue<QueuePair<Ready>> {
    /// Makes a queue of a queue pair for code on this host's CPU.
    ///
    /// # Errors
    /// [`QueueError`]; the queue pair is then destroyed.
    pub fn over_verbs(pair: QueuePair<Ready>) -> Result<Self, QueueError> {
        let exposure = pair.exposure()?;
        let limits = pair.context().limits()?;
        let receives = pair.send_completions().is_same(pair.receive_completions());
        pair.send_completions().claimed()?;
        let number = pair.number();
        Self::over(pair, exposure, limits, number, receives)
    }

    /// The queue pair, for its address and its adapter.
    pub fn queue_pair(&self) -> &QueuePair<Ready> {
        &self.backing
    }

    /// A peer by its address, for entries that go to it. Its address handle is kept until the queue
    /// pair is destroyed.
    ///
    /// # Errors
    /// Those of [`QueuePair::peer`].
    pub fn peer(&mut self, address: &Address) -> verbs::Result<Peer> {
        self.backing.peer(address)
    }
}
