//! Mapped queues of rdma-core alone: how they are made, and how they find peers. They cannot use completion counters
//! (`with_counters`), and otherwise behave like those of libfabric.

use efa_gda_wire::Peer;

use super::{MappedQueue, QueueError};
use crate::verbs::{self, Address, QueuePair, Ready};

impl MappedQueue<QueuePair<Ready>> {
    /// Maps a queue pair for code on this host's CPU.
    ///
    /// # Errors
    /// [`QueueError`]; the queue pair is then destroyed.
    pub fn over_verbs(pair: QueuePair<Ready>) -> Result<Self, QueueError> {
        let exposure = pair.exposure()?;
        let limits = pair.context().limits()?;
        let receives = pair.send_completions().is_same(pair.receive_completions());
        pair.send_completions().claim()?;
        let number = pair.number();
        Self::from_parts(pair, exposure, limits, number, receives)
    }

    /// Returns the queue pair, for its address and its adapter.
    pub fn queue_pair(&self) -> &QueuePair<Ready> {
        &self.backing
    }

    /// Returns the peer at an address, for entries that name it. Its address handle is retained until the queue pair is
    /// destroyed.
    ///
    /// # Errors
    /// Those of [`QueuePair::peer`].
    pub fn peer(&mut self, address: &Address) -> verbs::Result<Peer> {
        self.backing.peer(address)
    }
}
