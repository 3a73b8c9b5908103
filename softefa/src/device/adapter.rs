//! The adapter and its control path: each call takes the network's lock for writing, changes the
//! tables, and returns when no engine can be in the middle of anything that it changed.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use efa_gda_wire::{AddressHandle, LocalKey, QueueKey, QueuePairNumber};

use super::attr::{
    CompletionQueue, CompletionQueueAttr, CompletionQueueNumber, MemoryKeys, MemoryRegionAttr,
    ProtectionDomain, QueuePair, QueuePairAttr, QueuePairState, RnrRetry,
};
use super::config::{AdapterConfig, Gid};
use super::counter::{CompletionCounter, Counted};
use super::create;
use super::engine;
use super::error::DeviceError;
use super::network::Network;
use super::shared::{Shared, lock};
use super::statistics::{Captured, Statistics};
use super::tables::{Domain, Port};
use super::violation::{Violation, Warning};

/// How long a dropped adapter waits for its engine. A round is far shorter, unless a
/// [`super::Memory`] blocks; then the thread and the objects are left behind.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A software adapter: its objects, and the thread that works for it.
///
/// Dropping the last reference stops the thread and takes the adapter off its network. Queues that
/// still exist then go without flushing.
pub struct Adapter {
    network: Arc<Network>,
    index: u16,
    shared: Arc<Shared>,
    engine: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("gid", &self.gid()).finish_non_exhaustive()
    }
}

impl Adapter {
    /// Joins a new adapter to `network` and starts its engine.
    ///
    /// # Errors
    /// [`DeviceError::GidTaken`], [`DeviceError::Thread`], [`DeviceError::OutOfRange`] for limits
    /// that cannot be.
    pub fn new(network: &Arc<Network>, config: AdapterConfig) -> Result<Arc<Self>, DeviceError> {
        create::check_limits(&config.limits)?;
        let shared = Arc::new(Shared::new(config));
        let index = network.join(shared.clone())?;
        let (theirs, on_network) = (shared.clone(), network.clone());
        let started = thread::Builder::new()
            .name(format!("softefa-{index}"))
            .spawn(move || engine::run(on_network, index, theirs));
        let engine = match started {
            Ok(engine) => engine,
            Err(error) => {
                network.leave(index);
                return Err(DeviceError::Thread(error.to_string()));
            }
        };
        // Set once, here.
        let _ = shared.engine.set(engine.thread().clone());
        Ok(Arc::new(Self { network: network.clone(), index, shared, engine: Mutex::new(Some(engine)) }))
    }

    /// What it was made with: limits, capabilities, faults.
    pub fn config(&self) -> &AdapterConfig {
        &self.shared.config
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.shared.config.gid
    }

    /// The network that it is on.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Runs `change` on this adapter's tables while no engine works.
    fn change<T>(&self, change: impl FnOnce(&mut Port) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let mut ports = self.network.write();
        let Some(port) = ports.port_mut(self.index) else {
            unreachable!("an adapter is on its network as long as it lives")
        };
        change(port)
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`].
    pub fn allocate_domain(&self) -> Result<ProtectionDomain, DeviceError> {
        self.change(|port| {
            let limit = port.domains.limit();
            let number = port.domains.insert_with(|_, _| Domain::default());
            number.map(ProtectionDomain).ok_or(DeviceError::Exhausted { what: "protection domains", limit })
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
                return Err(DeviceError::Busy { what: format!("protection domain {}", pd.0), users });
            }
            port.domains.remove(pd.0);
            Ok(())
        })
    }

    /// Registers memory.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::Exhausted`]; [`DeviceError::OutOfRange`] where
    /// the range wraps.
    pub fn register_memory(&self, region: MemoryRegionAttr) -> Result<MemoryKeys, DeviceError> {
        if region.address.checked_add(region.length).is_none() {
            let most = u64::MAX - region.address;
            return Err(DeviceError::OutOfRange {
                what: "region length",
                given: region.length,
                least: 0,
                most,
            });
        }
        self.change(|port| {
            let pd = region.pd;
            port.domains.get(pd.0).ok_or(DeviceError::NoSuchDomain(pd))?;
            let limit = port.regions.limit();
            let keys = port.insert_region(region);
            let keys = keys.ok_or(DeviceError::Exhausted { what: "memory regions", limit })?;
            port.use_domain(pd);
            Ok(keys)
        })
    }

    /// Ends a registration. Afterwards no engine touches the memory, and requests that name the keys
    /// fail.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchMemoryRegion`].
    pub fn deregister_memory(&self, key: LocalKey) -> Result<(), DeviceError> {
        let region = self.change(|port| {
            let number = port.region_number(key).ok_or(DeviceError::NoSuchMemoryRegion(key))?;
            let region = port.regions.remove(number).ok_or(DeviceError::NoSuchMemoryRegion(key))?;
            port.leave_domain(region.pd());
            Ok(region)
        })?;
        // Outside the lock: what the client gave as memory may do anything when it goes.
        drop(region);
        Ok(())
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
        let mut ports = self.network.write();
        let target = ports.find(gid);
        let Some(port) = ports.port_mut(self.index) else {
            unreachable!("an adapter is on its network as long as it lives")
        };
        port.domains.get(pd.0).ok_or(DeviceError::NoSuchDomain(pd))?;
        let limit = port.handles.limit();
        let made = port.insert_handle(pd, gid, target);
        let (handle, new) = made.ok_or(DeviceError::Exhausted { what: "address handles", limit })?;
        if new {
            port.use_domain(pd);
        }
        Ok(handle)
    }

    /// Gives one use of a handle back; requests that name it fail once none is left.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchAddressHandle`].
    pub fn destroy_address_handle(&self, handle: AddressHandle) -> Result<(), DeviceError> {
        self.change(|port| {
            let last = port.remove_handle(handle).ok_or(DeviceError::NoSuchAddressHandle(handle))?;
            if let Some(pd) = last {
                port.leave_domain(pd);
            }
            Ok(())
        })
    }

    /// Makes a completion queue. Its phase starts at 1.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Exhausted`], [`DeviceError::RingMemory`],
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Unsupported`] for given memory without
    /// [`super::Capabilities::external_cq`].
    pub fn create_completion_queue(&self, attr: CompletionQueueAttr) -> Result<CompletionQueue, DeviceError> {
        self.change(|port| create::completion_queue(port, attr))
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
                return Err(DeviceError::Busy { what: format!("completion queue {}", queue.0), users });
            }
            let ring = port.completions.remove(queue.0).ok_or(missing)?;
            ring.abandon_backlog();
            if let Some(doorbell) = &ring.doorbell {
                port.doorbells.release(doorbell);
            }
            Ok(ring)
        })?;
        drop(ring);
        Ok(())
    }

    /// Tells the consumer index (a count, not a slot) of a queue whose client does not ring a
    /// doorbell; from the first call on, overruns of this queue are detected.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchCompletionQueue`].
    pub fn set_consumer_index(&self, queue: CompletionQueueNumber, consumed: u64) -> Result<(), DeviceError> {
        let ports = self.network.read();
        let ring = ports.port(self.index).and_then(|port| port.completions.get(queue.0));
        ring.ok_or(DeviceError::NoSuchCompletionQueue(queue))?.set_consumer(consumed);
        Ok(())
    }

    /// Makes an SRD queue pair.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::NoSuchCompletionQueue`],
    /// [`DeviceError::OutOfRange`], [`DeviceError::Exhausted`], [`DeviceError::RingMemory`],
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Unsupported`].
    pub fn create_queue_pair(&self, attr: QueuePairAttr) -> Result<QueuePair, DeviceError> {
        let made = self.change(|port| create::queue_pair(port, attr))?;
        self.shared.wake();
        Ok(made)
    }

    /// Changes a queue pair's state. [`QueuePairState::Error`] flushes what is posted.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`]; [`DeviceError::Unsupported`] for leaving the error state, and
    /// for going back to idle.
    pub fn set_queue_pair_state(
        &self,
        queue_pair: QueuePairNumber,
        state: QueuePairState,
    ) -> Result<(), DeviceError> {
        self.change(|port| {
            let missing = DeviceError::NoSuchQueuePair(queue_pair);
            let queue_pair = port.queue_pairs.get(queue_pair.get()).ok_or(missing)?;
            match (queue_pair.state(), state) {
                (QueuePairState::Error, QueuePairState::Idle | QueuePairState::Ready) => {
                    return Err(DeviceError::Unsupported(
                        "a way back from the error state; make a new queue pair",
                    ));
                }
                (QueuePairState::Ready, QueuePairState::Idle) => {
                    return Err(DeviceError::Unsupported("a way back to idle; make a new queue pair"));
                }
                _ => queue_pair.set_state(state),
            }
            if state == QueuePairState::Error {
                queue_pair.flush();
            }
            Ok(())
        })?;
        self.shared.wake();
        Ok(())
    }

    /// Changes what senders must give to reach a queue pair.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn set_queue_key(&self, queue_pair: QueuePairNumber, key: QueueKey) -> Result<(), DeviceError> {
        self.change(|port| {
            let found = port.queue_pairs.get(queue_pair.get());
            found.ok_or(DeviceError::NoSuchQueuePair(queue_pair))?.set_queue_key(key);
            Ok(())
        })
    }

    /// Changes how often requests of a queue pair are tried again where the receiver is not ready.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn set_rnr_retry(&self, queue_pair: QueuePairNumber, retry: RnrRetry) -> Result<(), DeviceError> {
        self.change(|port| {
            let found = port.queue_pairs.get(queue_pair.get());
            found.ok_or(DeviceError::NoSuchQueuePair(queue_pair))?.set_rnr_retry(retry);
            Ok(())
        })
    }

    /// Has `counter` count what `counted` says of a queue pair, from now on. Each kind of completion
    /// goes to one counter at most.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`]; [`DeviceError::Busy`] where something of it is counted.
    pub fn attach_counter(
        &self,
        queue_pair: QueuePairNumber,
        counted: Counted,
        counter: Arc<CompletionCounter>,
    ) -> Result<(), DeviceError> {
        self.change(|port| {
            let found = port.queue_pairs.get(queue_pair.get());
            let core = found.ok_or(DeviceError::NoSuchQueuePair(queue_pair))?;
            if core.counters.attach(counted, counter) {
                return Ok(());
            }
            let what = format!("a kind of completion of queue pair {queue_pair}");
            Err(DeviceError::Busy { what, users: 1 })
        })
    }

    /// A queue pair's state; [`QueuePairState::Error`] also after a violation.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn queue_pair_state(&self, queue_pair: QueuePairNumber) -> Result<QueuePairState, DeviceError> {
        let ports = self.network.read();
        let found = ports.port(self.index).and_then(|port| port.queue_pairs.get(queue_pair.get()));
        found.map(|found| found.state()).ok_or(DeviceError::NoSuchQueuePair(queue_pair))
    }

    /// Destroys a queue pair. Requests and receives that have not completed complete as flushed
    /// before this returns, with one exception: where the completion queue is full.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchQueuePair`].
    pub fn destroy_queue_pair(&self, queue_pair: QueuePairNumber) -> Result<(), DeviceError> {
        let removed = self.change(|port| {
            let missing = DeviceError::NoSuchQueuePair(queue_pair);
            let removed = port.queue_pairs.remove(queue_pair.get()).ok_or(missing)?;
            port.live.retain(|number| *number != queue_pair.get());
            removed.set_state(QueuePairState::Error);
            removed.flush();
            removed.doorbells().for_each(|doorbell| port.doorbells.release(doorbell));
            removed.send_cq.users.fetch_sub(1, Ordering::Relaxed);
            removed.receive_cq.users.fetch_sub(1, Ordering::Relaxed);
            port.leave_domain(removed.pd);
            Ok(removed)
        })?;
        drop(removed);
        Ok(())
    }

    /// While held, requests are fetched and checked, and wait; releasing executes them. For tests
    /// that need requests in flight.
    pub fn hold(&self, held: bool) {
        self.shared.held.store(held, Ordering::Release);
        self.shared.wake();
    }

    /// Ends the engine's thread for good, as an adapter that died: what is posted stays unanswered, and
    /// objects can still be destroyed. For tests of those who wait.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
    }

    /// What it did so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// The first entries that it fetched, as many as [`AdapterConfig::capture`] says.
    pub fn captured(&self) -> Vec<Captured> {
        self.shared.captured()
    }

    /// The first 1,024 violations, oldest first; [`Statistics::violations`] counts all.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.violations()
    }

    /// Keeps a warning of a face's, beside the adapter's own.
    pub fn warn(&self, warning: Warning) {
        self.shared.warn(warning);
    }

    /// Warnings, oldest first.
    pub fn warnings(&self) -> Vec<Warning> {
        self.shared.warnings()
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let engine = lock(&self.engine).take();
        if let Some(engine) = engine {
            let limit = Instant::now() + STOP_LIMIT;
            while !engine.is_finished() {
                if Instant::now() > limit {
                    return;
                }
                engine.thread().unpark();
                thread::yield_now();
            }
            // A panic of the engine's thread was printed by its own hook; there is no one to tell.
            let _ = engine.join();
        }
        self.network.leave(self.index);
    }
}
