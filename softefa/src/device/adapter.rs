//! The adapter and its control path. A call that changes objects holds the network's lock for writing, so that the engine
//! uses no object during the change, and none that the call removed afterwards.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use efa_gda_wire::{AddressHandle, CompletionStatus, LocalKey, QueueKey, QueuePairNumber};

use super::attr::{
    CompletionQueue, CompletionQueueAttr, CompletionQueueNumber, MemoryKeys, MemoryRegionAttr,
    ProtectionDomain, QueuePair, QueuePairAttr, QueuePairState, RnrRetry,
};
use super::completion::CompletionRing;
use super::config::{AdapterConfig, Gid};
use super::counter::{CompletionCounter, Counted, UnwrittenCounters};
use super::create;
use super::error::DeviceError;
use super::network::Network;
use super::shared::{Shared, WarningLog};
use super::statistics::{Captured, Statistics};
use super::tables::{Domain, Port};
use super::violation::{Violation, Warning};

/// A software adapter: its objects on its network.
///
/// Dropping the last reference removes the adapter from its network and deregisters all memory; late writes land. Queues
/// that still exist are dropped without being flushed. The engine accesses no registered memory after the drop has
/// returned. A [`Memory`](super::Memory) must keep no reference, because the drop waits for the engine.
pub struct Adapter {
    network: Arc<Network>,
    index: u16,
    shared: Arc<Shared>,
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("gid", &self.gid()).finish_non_exhaustive()
    }
}

impl Adapter {
    /// Joins a new adapter to `network`.
    ///
    /// # Errors
    /// [`DeviceError::GidTaken`] if another adapter of the network has the GID; [`DeviceError::Thread`];
    /// [`DeviceError::OutOfRange`] for impossible limits; [`DeviceError::Exhausted`] if the network is full.
    pub fn new(network: &Arc<Network>, config: AdapterConfig) -> Result<Arc<Self>, DeviceError> {
        create::check_limits(&config.limits)?;
        let shared = Arc::new(Shared::new(config));
        let index = network.join(shared.clone())?;
        Ok(Arc::new(Self { network: network.clone(), index, shared }))
    }

    /// Its configuration: limits, capabilities, faults.
    pub fn config(&self) -> &AdapterConfig {
        &self.shared.config
    }

    /// Its GID.
    pub fn gid(&self) -> Gid {
        self.shared.config.gid
    }

    /// Its network.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// As [`Self::change`], with attributes that hold references to frontends' objects, such as a [`super::Memory`]. If
    /// the change fails, the last reference to such an object is dropped after the lock is released, because the drop
    /// runs the frontend's code.
    fn change_with<A: Clone, T>(
        &self,
        attr: A,
        change: impl FnOnce(&mut Port, A) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let _kept = attr.clone();
        self.change(|port| change(port, attr))
    }

    /// Runs `change` on this adapter's objects under the network's write lock.
    fn change<T>(&self, change: impl FnOnce(&mut Port) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let mut ports = self.network.write();
        let Some(port) = ports.port_mut(self.index) else {
            unreachable!("only drop removes an adapter from its network")
        };
        change(port)
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`].
    pub fn allocate_domain(&self) -> Result<ProtectionDomain, DeviceError> {
        self.change(|port| {
            let limit = port.domains.limit();
            let number = port.domains.insert_with(|_, _| Domain::default());
            number
                .map(ProtectionDomain)
                .ok_or(DeviceError::Exhausted { objects: "protection domains", limit })
        })
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`]; [`DeviceError::Busy`] while it has regions, address handles or
    /// queue pairs.
    pub fn free_domain(&self, pd: ProtectionDomain) -> Result<(), DeviceError> {
        self.change(|port| {
            let users = port.domains.get(pd.0).ok_or(DeviceError::NoSuchDomain(pd))?.users;
            if users > 0 {
                return Err(DeviceError::Busy { object: format!("protection domain {}", pd.0), users });
            }
            port.domains.remove(pd.0);
            Ok(())
        })
    }

    /// Registers memory.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::Exhausted`]; [`DeviceError::OutOfRange`] if the range
    /// exceeds the address space.
    pub fn register_memory(&self, region: MemoryRegionAttr) -> Result<MemoryKeys, DeviceError> {
        if region.address.checked_add(region.length).is_none() {
            return Err(DeviceError::OutOfRange {
                attribute: "region length",
                value: region.length,
                min: 0,
                max: u64::MAX - region.address,
            });
        }
        // Without the lock, because this runs a frontend's code.
        let host = region.memory.host(region.address, region.length);
        self.change_with(region, |port, region| {
            let pd = region.pd;
            port.domains.get(pd.0).ok_or(DeviceError::NoSuchDomain(pd))?;
            let limit = port.regions.limit();
            let keys = port.insert_region(region, host);
            let keys = keys.ok_or(DeviceError::Exhausted { objects: "memory regions", limit })?;
            port.retain_domain(pd);
            Ok(keys)
        })
    }

    /// Deregisters memory. After it has returned, the engine does not access the memory, and requests that use the keys
    /// fail.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchMemoryRegion`].
    pub fn deregister_memory(&self, key: LocalKey) -> Result<(), DeviceError> {
        let region = self.change(|port| {
            let region = port.remove_region(key).ok_or(DeviceError::NoSuchMemoryRegion(key))?;
            port.release_domain(region.pd());
            Ok(region)
        })?;
        // Outside the lock, because it runs a frontend's code.
        drop(region);
        Ok(())
    }

    /// Creates an address handle for the adapter with `gid`, which need not exist yet. As on hardware, a
    /// domain has one handle for a GID: a second call returns the same number, and the caller must call
    /// [`Adapter::destroy_address_handle`] once for each call.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::Exhausted`].
    pub fn create_address_handle(
        &self,
        pd: ProtectionDomain,
        gid: Gid,
    ) -> Result<AddressHandle, DeviceError> {
        let mut ports = self.network.write();
        let target = ports.index_of(gid);
        let Some(port) = ports.port_mut(self.index) else {
            unreachable!("only drop removes an adapter from its network")
        };
        port.domains.get(pd.0).ok_or(DeviceError::NoSuchDomain(pd))?;
        let limit = port.handles.limit();
        let inserted = port.insert_handle(pd, gid, target);
        let (handle, is_new) =
            inserted.ok_or(DeviceError::Exhausted { objects: "address handles", limit })?;
        if is_new {
            port.retain_domain(pd);
        }
        Ok(handle)
    }

    /// Releases one use of an address handle. After the last use is released, requests that name it fail.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchAddressHandle`].
    pub fn destroy_address_handle(&self, handle: AddressHandle) -> Result<(), DeviceError> {
        self.change(|port| {
            let unused_domain = port.remove_handle(handle).ok_or(DeviceError::NoSuchAddressHandle(handle))?;
            if let Some(pd) = unused_domain {
                port.release_domain(pd);
            }
            Ok(())
        })
    }

    /// Creates a completion queue. The phase of its first lap is 1.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Exhausted`], [`DeviceError::RingMemory`],
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Unsupported`] for memory of the client without
    /// [`super::Capabilities::external_cq`].
    pub fn create_completion_queue(&self, attr: CompletionQueueAttr) -> Result<CompletionQueue, DeviceError> {
        // Outside the lock, because it reads the whole ring.
        let set_phase = create::first_set_phase(&attr);
        self.change_with(attr, |port, attr| create::completion_queue(port, attr, set_phase))
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchCompletionQueue`]; [`DeviceError::Busy`] while queue pairs use it.
    pub fn destroy_completion_queue(&self, queue: CompletionQueueNumber) -> Result<(), DeviceError> {
        let ring = self.change(|port| {
            let missing = DeviceError::NoSuchCompletionQueue(queue);
            let ring = port.completions.get(queue.0).ok_or(missing.clone())?;
            let users = ring.users.load(Ordering::Relaxed);
            if users > 0 {
                return Err(DeviceError::Busy { object: format!("completion queue {}", queue.0), users });
            }
            let ring = port.completions.remove(queue.0).ok_or(missing)?;
            if let Some(doorbell) = &ring.doorbell {
                port.doorbells.release(doorbell);
            }
            Ok(ring)
        })?;
        ring.abandon();
        Ok(())
    }

    /// Finds a completion queue, for use without the network's lock.
    fn completion_queue(&self, queue: CompletionQueueNumber) -> Result<Arc<CompletionRing>, DeviceError> {
        let ports = self.network.read();
        let ring = ports.port(self.index).and_then(|port| port.completions.get(queue.0));
        ring.cloned().ok_or(DeviceError::NoSuchCompletionQueue(queue))
    }

    /// Discards the backlog and all further completions of a queue, for a client that no longer reads it. A client that
    /// then closes its queue pairs causes no overrun.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchCompletionQueue`].
    pub fn abandon_completion_queue(&self, queue: CompletionQueueNumber) -> Result<(), DeviceError> {
        self.completion_queue(queue)?.abandon();
        Ok(())
    }

    /// Reports the consumer index (a count, not a slot) of a completion queue whose client rings no
    /// doorbell. From the first call on, overruns of the queue are detected.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchCompletionQueue`].
    pub fn set_consumer_index(&self, queue: CompletionQueueNumber, consumed: u64) -> Result<(), DeviceError> {
        self.completion_queue(queue)?.set_consumer_index(consumed);
        Ok(())
    }

    /// Creates an SRD queue pair.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::NoSuchCompletionQueue`],
    /// [`DeviceError::OutOfRange`], [`DeviceError::Exhausted`], [`DeviceError::RingMemory`],
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Unsupported`].
    pub fn create_queue_pair(&self, attr: QueuePairAttr) -> Result<QueuePair, DeviceError> {
        let queue_pair = self.change_with(attr, create::queue_pair)?;
        self.network.wake();
        Ok(queue_pair)
    }

    /// Changes a queue pair's state. [`QueuePairState::Error`] flushes all posted requests and receives; the flush ends
    /// before the call returns.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`]; [`DeviceError::Unsupported`] for leaving the error state, and for
    /// returning to the idle state.
    pub fn set_queue_pair_state(
        &self,
        queue_pair: QueuePairNumber,
        state: QueuePairState,
    ) -> Result<(), DeviceError> {
        self.change(|port| {
            let missing = DeviceError::NoSuchQueuePair(queue_pair);
            let queue_pair = port.queue_pairs.get(queue_pair.get()).ok_or(missing)?;
            match (queue_pair.state(), state) {
                (QueuePairState::Error, QueuePairState::Ready) => {
                    let reason = "leaving the error state, except for the idle state";
                    return Err(DeviceError::Unsupported(reason));
                }
                (_, QueuePairState::Idle) => queue_pair.reset(),
                (_, QueuePairState::Ready) => queue_pair.set_state(state),
                (_, QueuePairState::Error) => {
                    queue_pair.set_state(state);
                    queue_pair.flush(&mut UnwrittenCounters::default());
                }
            }
            Ok(())
        })?;
        self.network.wake();
        Ok(())
    }

    /// Changes the queue key that requests to a queue pair must have.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn set_queue_key(&self, queue_pair: QueuePairNumber, key: QueueKey) -> Result<(), DeviceError> {
        self.change(|port| {
            let core = port.queue_pairs.get(queue_pair.get());
            core.ok_or(DeviceError::NoSuchQueuePair(queue_pair))?.set_queue_key(key);
            Ok(())
        })
    }

    /// Changes how often requests of a queue pair are retried if the receiver has no receive posted.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn set_rnr_retry(&self, queue_pair: QueuePairNumber, retry: RnrRetry) -> Result<(), DeviceError> {
        self.change(|port| {
            let core = port.queue_pairs.get(queue_pair.get());
            core.ok_or(DeviceError::NoSuchQueuePair(queue_pair))?.set_rnr_retry(retry);
            Ok(())
        })
    }

    /// Attaches `counter` to a queue pair: it counts completions of the kinds in `counted` from now on. Each kind has
    /// at most one counter.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`]; [`DeviceError::Busy`] if one of the kinds has a counter.
    pub fn attach_counter(
        &self,
        queue_pair: QueuePairNumber,
        counted: Counted,
        counter: Arc<CompletionCounter>,
    ) -> Result<(), DeviceError> {
        self.change_with(counter, |port, counter| {
            let core = port.queue_pairs.get(queue_pair.get());
            let core = core.ok_or(DeviceError::NoSuchQueuePair(queue_pair))?;
            if core.counters.attach(counted, counter) {
                return Ok(());
            }
            let object = format!("a completion kind of queue pair {queue_pair}");
            Err(DeviceError::Busy { object, users: 1 })
        })
    }

    /// A queue pair's state. It is [`QueuePairState::Error`] after a violation too.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn queue_pair_state(&self, queue_pair: QueuePairNumber) -> Result<QueuePairState, DeviceError> {
        let ports = self.network.read();
        let core = ports.port(self.index).and_then(|port| port.queue_pairs.get(queue_pair.get()));
        core.map(|core| core.state()).ok_or(DeviceError::NoSuchQueuePair(queue_pair))
    }

    /// Destroys a queue pair. Requests and receives that have not completed complete as flushed before this call
    /// returns. If the completion queue is full, they complete as internal errors when its consumer index moves.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn destroy_queue_pair(&self, queue_pair: QueuePairNumber) -> Result<(), DeviceError> {
        let removed = self.change(|port| {
            let missing = DeviceError::NoSuchQueuePair(queue_pair);
            let removed = port.queue_pairs.remove(queue_pair.get()).ok_or(missing)?;
            removed.set_state(QueuePairState::Error);
            removed.flush(&mut UnwrittenCounters::default());
            removed.counters.detach();
            removed.doorbells().for_each(|doorbell| port.doorbells.release(doorbell));
            removed.send_cq.users.fetch_sub(1, Ordering::Relaxed);
            removed.receive_cq.users.fetch_sub(1, Ordering::Relaxed);
            port.release_domain(removed.pd);
            Ok(removed)
        })?;
        // Outside the lock, because it runs code of frontends.
        drop(removed);
        Ok(())
    }

    /// Holds or releases the adapter, for tests that need requests in flight. While it is held, the engine fetches and
    /// checks requests, and executes them after the release. It executes none after a call that holds the adapter has
    /// returned.
    pub fn hold(&self, held: bool) {
        self.shared.held.store(held, Ordering::Release);
        self.network.wake();
        // The engine reads the flag each time after it has acquired the lock.
        drop(self.network.write());
    }

    /// Makes the engine pass over the adapter for good, as if the adapter had died, for tests of waits that must time
    /// out. Posted requests do not complete, but queue pairs can still be destroyed, which flushes their requests. The
    /// adapter executes no request after the call has returned.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        // As in `hold`.
        drop(self.network.write());
    }

    /// Its counts so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Each status of [`Statistics::errors`] so far, with the number of its completions.
    pub fn errors(&self) -> Vec<(CompletionStatus, u64)> {
        self.shared.errors()
    }

    /// The first entries that it fetched, at most [`AdapterConfig::capture`].
    pub fn captured(&self) -> Vec<Captured> {
        self.shared.captured()
    }

    /// The first 1,024 violations, oldest first. [`Statistics::violations`] counts all.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.violations()
    }

    /// The log through which code of a frontend adds to its warnings.
    pub fn warning_log(&self) -> WarningLog {
        WarningLog(self.shared.clone())
    }

    /// The first 1,024 warnings, oldest first.
    pub fn warnings(&self) -> Vec<Warning> {
        self.shared.warnings()
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.network.leave(self.index);
    }
}
