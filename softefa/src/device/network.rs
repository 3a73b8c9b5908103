//! The network: connects the adapters of one process by GID, and holds the lock over their objects.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use super::config::Gid;
use super::engine::next_random;
use super::error::DeviceError;
use super::shared::{Shared, lock, wait_until};
use super::tables::{Port, Ports};

/// A network of adapters that can reach each other.
///
/// One lock protects the tables of all their objects, so that an engine finds a peer's objects under the lock that it
/// holds. Engines hold the lock for reading while they work, but not while they access memory that may block; control
/// calls that change objects hold it for writing. Queues have further locks of their own (`engine.rs`, "Locks").
#[derive(Default)]
pub struct Network {
    ports: RwLock<Ports>,
    /// Held by the control call that holds the lock for writing or waits for it. So at most one waits: the lock prefers
    /// writers, and engines would not get it if several waited all the time.
    changing: Mutex<()>,
}

/// The network's lock, held for writing. The lock is released before the mutex.
pub(crate) struct Changing<'a> {
    objects: RwLockWriteGuard<'a, Ports>,
    _changing: MutexGuard<'a, ()>,
}

impl Deref for Changing<'_> {
    type Target = Ports;

    fn deref(&self) -> &Ports {
        &self.objects
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Ports {
        &mut self.objects
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    /// A new network without adapters.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The network that all frontends of this process share.
    pub fn process() -> Arc<Self> {
        static NETWORK: OnceLock<Arc<Network>> = OnceLock::new();
        NETWORK.get_or_init(Self::new).clone()
    }

    /// The GIDs of its adapters.
    pub fn gids(&self) -> Vec<Gid> {
        self.read().ports.iter().flatten().map(|port| port.gid).collect()
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Ports> {
        self.ports.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> Changing<'_> {
        let changing = lock(&self.changing);
        Changing { objects: self.ports.write().unwrap_or_else(PoisonError::into_inner), _changing: changing }
    }

    /// Adds an adapter. Returns its index.
    pub(crate) fn join(&self, shared: Arc<Shared>) -> Result<u16, DeviceError> {
        let mut ports = self.write();
        let gid = shared.config.gid;
        if ports.index_of(gid).is_some() {
            return Err(DeviceError::GidTaken(gid));
        }
        let mut seed = shared.config.seed;
        let port = Port::new(shared, next_random(&mut seed) as u16);
        let index = match ports.ports.iter().position(Option::is_none) {
            Some(free) => free,
            None if ports.ports.len() > usize::from(u16::MAX) => {
                return Err(DeviceError::Exhausted {
                    objects: "adapters on a network",
                    limit: ports.ports.len(),
                });
            }
            None => {
                ports.ports.push(None);
                ports.ports.len() - 1
            }
        };
        ports.ports[index] = Some(port);
        let target = Some(index as u16);
        // Other adapters may already have handles for this GID.
        ports.set_handle_targets(gid, target);
        Ok(index as u16)
    }

    /// Removes an adapter's regions of memory that does not block for long, and waits, without a bound, for accesses to
    /// them. After it has returned, no engine of any adapter accesses that memory through these regions, so its owner
    /// may free it.
    pub(crate) fn remove_prompt_regions(&self, index: u16) {
        let regions = self.write().port_mut(index).map(Port::remove_prompt_regions);
        for mut region in regions.into_iter().flatten() {
            region.wait_until_unused();
        }
    }

    /// Removes an adapter whose threads have ended, and drops its objects when no engine uses them any more. Discards
    /// late writes, because the memory of the regions that [`Self::remove_prompt_regions`] left may block for long. If
    /// engines of other adapters still use an object at `limit`, leaks all objects: else the last of those engines
    /// would drop that object under the network's lock, and the drop runs code of frontends.
    pub(crate) fn leave(&self, index: u16, limit: Instant) {
        let mut ports = self.write();
        let port = ports.ports.get_mut(usize::from(index)).and_then(Option::take);
        if let Some(port) = &port {
            ports.set_handle_targets(port.gid, None);
        }
        // The objects are dropped without the lock, because that runs code of frontends.
        drop(ports);
        let Some(mut port) = port else { return };
        wait_until(|| port.is_unused() || Instant::now() > limit);
        if port.is_unused() {
            port.discard_late_writes();
        } else {
            mem::forget(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::super::attr::{Access, MemoryRegionAttr, ProtectionDomain};
    use super::super::config::AdapterConfig;
    use super::super::memory::{Memory, MemoryFault};
    use super::*;

    /// Memory of a client, and the number of writes.
    struct OfClient(u64, AtomicU64);

    impl Memory for OfClient {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn client(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn dropping_an_adapter_does_not_wait_for_late_writes_to_memory_that_may_block_for_long() {
        let mut config = AdapterConfig::new(Gid::link_local(1));
        config.latest_write = Duration::from_secs(3600);
        let network = Network::new();
        let index = network.join(Arc::new(Shared::new(config))).unwrap();
        let blocked = Arc::new(OfClient(7, AtomicU64::new(0)));
        {
            let (access, memory) = (Access::RELAXED_ORDERING, blocked.clone());
            let attr = MemoryRegionAttr { pd: ProtectionDomain(0), address: 0, length: 8, access, memory };
            let mut ports = network.write();
            let port = ports.port_mut(index).unwrap();
            port.insert_region(attr, None).unwrap();
            (0..16).for_each(|_| port.relaxed[0].1.memory.write(0, &[1]).unwrap());
        }
        let landed = blocked.1.load(Ordering::Relaxed);
        assert!(landed < 16, "some writes are late");
        network.remove_prompt_regions(index);
        network.leave(index, Instant::now());
        assert_eq!(blocked.1.load(Ordering::Relaxed), landed);
    }

    #[test]
    fn an_adapter_whose_engine_is_leaked_keeps_only_regions_of_memory_that_may_block_for_long() {
        let network = Network::new();
        let index = network.join(Arc::new(Shared::new(AdapterConfig::new(Gid::link_local(1))))).unwrap();
        let register = |client, access| {
            let memory = Arc::new(OfClient(client, AtomicU64::new(0)));
            let attr = MemoryRegionAttr { pd: ProtectionDomain(0), address: 0, length: 8, access, memory };
            network.write().port_mut(index).unwrap().insert_region(attr, None).unwrap().local
        };
        let [strict, relaxed, blocking] =
            [(0, Access::ALL), (0, Access::RELAXED_ORDERING), (7, Access::RELAXED_ORDERING)]
                .map(|(client, access)| register(client, access));
        network.remove_prompt_regions(index);
        let mut ports = network.write();
        let port = ports.port_mut(index).unwrap();
        assert_eq!(port.relaxed.len(), 1);
        assert_eq!(
            [strict, relaxed, blocking].map(|key| port.remove_region(key).is_some()),
            [false, false, true]
        );
    }
}
