//! What differs between the layers below a queue: libfabric and rdma-core.

use std::fmt::Debug;

use efa_gda::fabric;
#[cfg(feature = "cuda")]
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{self, Backing, Libfabric, MappedQueue};
use efa_gda::verbs::{self, Address, QueuePair, Ready};
use efa_gda::wire::Peer;

use crate::error::Fault;
use crate::region::Region;

/// A layer whose queues the interface has.
pub(crate) trait Layer: Backing<Region: OfRegion, Error: Into<Fault>> + Send + 'static {
    /// Returns the raw address of the queue.
    fn address(queue: &MappedQueue<Self>) -> Result<Vec<u8>, Fault>
    where
        Self: Sized;

    /// Inserts a peer by its raw address.
    fn insert_peer(queue: &mut MappedQueue<Self>, address: &[u8]) -> Result<Peer, Fault>
    where
        Self: Sized;

    /// As [`Self::insert_peer`], for a queue that a GPU drives.
    #[cfg(feature = "cuda")]
    fn insert_peer_of_gpu(queue: &mut GpuQueue<Self>, address: &[u8]) -> Result<Peer, Fault>
    where
        Self: Sized;

    /// Whether the completion queue is in a GPU's memory.
    fn completions_in_gpu(queue: &MappedQueue<Self>) -> bool
    where
        Self: Sized;
}

/// A region of one layer.
pub(crate) trait OfRegion: queue::Region + Debug + Send + Sync {
    /// Returns the region, if it is of this layer.
    fn of(region: &Region) -> Option<&Self>;
}

impl OfRegion for fabric::MemoryRegion {
    fn of(region: &Region) -> Option<&Self> {
        match region {
            Region::Fabric(region) => Some(region),
            Region::Verbs(_) => None,
        }
    }
}

impl OfRegion for verbs::MemoryRegion {
    fn of(region: &Region) -> Option<&Self> {
        match region {
            Region::Verbs(region) => Some(region),
            Region::Fabric(_) => None,
        }
    }
}

/// Returns the region for a queue of its layer.
pub(crate) fn of_layer<R: OfRegion>(region: &Region) -> Result<&R, Fault> {
    R::of(region).ok_or_else(|| {
        Fault::argument(
            "the region and the queue are of different domains (libfabric's and rdma-core's); register the memory with \
             the queue's domain",
        )
    })
}

impl Layer for Libfabric {
    fn address(queue: &MappedQueue<Self>) -> Result<Vec<u8>, Fault> {
        Ok(queue.endpoint().address()?)
    }

    fn insert_peer(queue: &mut MappedQueue<Self>, address: &[u8]) -> Result<Peer, Fault> {
        Ok(queue.insert_peer(address)?)
    }

    #[cfg(feature = "cuda")]
    fn insert_peer_of_gpu(queue: &mut GpuQueue<Self>, address: &[u8]) -> Result<Peer, Fault> {
        Ok(queue.mapped().insert_peer(address)?)
    }

    fn completions_in_gpu(queue: &MappedQueue<Self>) -> bool {
        queue.endpoint().send_completions().device().is_some()
    }
}

fn parsed(address: &[u8]) -> Result<Address, Fault> {
    Address::from_bytes(address).map_err(Fault::argument)
}

impl Layer for QueuePair<Ready> {
    fn address(queue: &MappedQueue<Self>) -> Result<Vec<u8>, Fault> {
        Ok(queue.queue_pair().address()?.to_bytes().to_vec())
    }

    fn insert_peer(queue: &mut MappedQueue<Self>, address: &[u8]) -> Result<Peer, Fault> {
        Ok(queue.peer(&parsed(address)?)?)
    }

    #[cfg(feature = "cuda")]
    fn insert_peer_of_gpu(queue: &mut GpuQueue<Self>, address: &[u8]) -> Result<Peer, Fault> {
        Ok(queue.peer(&parsed(address)?)?)
    }

    fn completions_in_gpu(_: &MappedQueue<Self>) -> bool {
        false
    }
}
