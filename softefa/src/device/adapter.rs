//! The adapter and its control path.

use std::sync::Arc;

use efa_gda_wire::{AddressHandle, LocalKey, QueuePairNumber};

use super::attr::{
    CompletionQueue, CompletionQueueAttr, CompletionQueueNumber, MemoryKeys, MemoryRegionAttr,
    ProtectionDomain, QueuePair, QueuePairAttr, QueuePairState,
};
use super::config::{AdapterConfig, Gid};
use super::error::DeviceError;
use super::network::Network;
use super::statistics::Statistics;
use super::violation::{Violation, Warning};

/// A software adapter: its objects, and the thread that works for it.
///
/// Dropping the last reference stops the thread and takes the adapter off its network.
#[derive(Debug)]
pub struct Adapter {
    config: AdapterConfig,
    network: Arc<Network>,
}

impl Adapter {
    /// Joins a new adapter to `network` and starts its engine.
    ///
    /// # Errors
    /// [`DeviceError::GidTaken`], [`DeviceError::Thread`], [`DeviceError::OutOfRange`] for limits
    /// that cannot be.
    pub fn new(network: &Arc<Network>, config: AdapterConfig) -> Result<Arc<Self>, DeviceError> {
        Ok(Arc::new(Self { config, network: network.clone() }))
    }

    /// What it was made with: limits, capabilities, faults.
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.config.gid
    }

    /// The network that it is on.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`].
    pub fn allocate_domain(&self) -> Result<ProtectionDomain, DeviceError> {
        Err(DeviceError::Unsupported("protection domains"))
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`]; [`DeviceError::Busy`] while it has regions, address handles or
    /// queue pairs.
    pub fn free_domain(&self, pd: ProtectionDomain) -> Result<(), DeviceError> {
        Err(DeviceError::NoSuchDomain(pd))
    }

    /// Registers memory.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::Exhausted`]; [`DeviceError::OutOfRange`] where
    /// the range wraps.
    pub fn register_memory(&self, region: MemoryRegionAttr) -> Result<MemoryKeys, DeviceError> {
        Err(DeviceError::NoSuchDomain(region.pd))
    }

    /// Ends a registration. Afterwards no engine touches the memory, and requests that name the keys
    /// fail.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchMemoryRegion`].
    pub fn deregister_memory(&self, key: LocalKey) -> Result<(), DeviceError> {
        Err(DeviceError::NoSuchMemoryRegion(key))
    }

    /// A handle for the adapter at `gid`, which need not be there yet. As on hardware, one domain
    /// has one handle for a GID: a second call gives the same number, and each needs its own
    /// [`Adapter::destroy_address_handle`].
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::Exhausted`].
    pub fn create_address_handle(
        &self,
        pd: ProtectionDomain,
        gid: Gid,
    ) -> Result<AddressHandle, DeviceError> {
        let _ = gid;
        Err(DeviceError::NoSuchDomain(pd))
    }

    /// Gives one use of a handle back; requests that name it fail once none is left.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchAddressHandle`].
    pub fn destroy_address_handle(&self, handle: AddressHandle) -> Result<(), DeviceError> {
        Err(DeviceError::NoSuchAddressHandle(handle))
    }

    /// Makes a completion queue. Its phase starts at 1.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Exhausted`], [`DeviceError::RingMemory`],
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Unsupported`] for given memory without
    /// [`super::Capabilities::external_cq`].
    pub fn create_completion_queue(&self, attr: CompletionQueueAttr) -> Result<CompletionQueue, DeviceError> {
        let _ = attr;
        Err(DeviceError::Unsupported("completion queues"))
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchCompletionQueue`]; [`DeviceError::Busy`] while queue pairs use it.
    pub fn destroy_completion_queue(&self, queue: CompletionQueueNumber) -> Result<(), DeviceError> {
        Err(DeviceError::NoSuchCompletionQueue(queue))
    }

    /// Tells the consumer index (a count, not a slot) of a queue whose client does not ring a
    /// doorbell; from the first call on, overruns of this queue are detected.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchCompletionQueue`].
    pub fn set_consumer_index(&self, queue: CompletionQueueNumber, consumed: u64) -> Result<(), DeviceError> {
        let _ = consumed;
        Err(DeviceError::NoSuchCompletionQueue(queue))
    }

    /// Makes an SRD queue pair.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::NoSuchCompletionQueue`],
    /// [`DeviceError::OutOfRange`], [`DeviceError::Exhausted`], [`DeviceError::RingMemory`],
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Unsupported`].
    pub fn create_queue_pair(&self, attr: QueuePairAttr) -> Result<QueuePair, DeviceError> {
        Err(DeviceError::NoSuchDomain(attr.pd))
    }

    /// Changes a queue pair's state. [`QueuePairState::Error`] flushes what is posted.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn set_queue_pair_state(
        &self,
        queue_pair: QueuePairNumber,
        state: QueuePairState,
    ) -> Result<(), DeviceError> {
        let _ = state;
        Err(DeviceError::NoSuchQueuePair(queue_pair))
    }

    /// A queue pair's state; [`QueuePairState::Error`] also after a violation.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn queue_pair_state(&self, queue_pair: QueuePairNumber) -> Result<QueuePairState, DeviceError> {
        Err(DeviceError::NoSuchQueuePair(queue_pair))
    }

    /// Destroys a queue pair. Requests and receives that have not completed complete as flushed
    /// before this returns, with one exception: where the completion queue is full.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn destroy_queue_pair(&self, queue_pair: QueuePairNumber) -> Result<(), DeviceError> {
        Err(DeviceError::NoSuchQueuePair(queue_pair))
    }

    /// While held, requests are fetched and checked, and wait; releasing executes them. For tests
    /// that need requests in flight.
    pub fn hold(&self, held: bool) {
        let _ = held;
    }

    /// What it did so far.
    pub fn statistics(&self) -> Statistics {
        Statistics::default()
    }

    /// The first 1,024 violations, oldest first; [`Statistics::violations`] counts all.
    pub fn violations(&self) -> Vec<Violation> {
        Vec::new()
    }

    /// Warnings, oldest first.
    pub fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }
}
