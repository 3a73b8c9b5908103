//! The network: connects the adapters of one process by GID, and holds the lock over their objects.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::config::Gid;
use super::engine::next_random;
use super::error::DeviceError;
use super::shared::{Shared, lock};
use super::tables::{Port, Ports};

/// A network of adapters that can reach each other.
///
/// It holds all their objects under one lock. Engines hold the lock for reading while they work, but not while they
/// access memory that may block; control calls that change objects hold it for writing. So an engine accesses a peer's
/// objects without a second lock.
#[derive(Default)]
pub struct Network {
    ports: RwLock<Ports>,
    /// Held by the control call that holds the lock for writing or waits for it. So at most one waits: the lock prefers
    /// writers, and where several wait at any time, engines would not get it.
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

    /// Removes an adapter and drops its objects.
    pub(crate) fn leave(&self, index: u16) {
        let mut ports = self.write();
        let port = ports.ports.get_mut(usize::from(index)).and_then(Option::take);
        if let Some(port) = &port {
            ports.set_handle_targets(port.gid, None);
        }
        drop(ports);
        // Objects are dropped outside the lock, because dropping a frontend's `Memory` runs its code.
        drop(port);
    }
}
