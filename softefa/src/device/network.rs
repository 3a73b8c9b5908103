//! The switch: connects the adapters of one process by GID.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::config::Gid;
use super::engine::random;
use super::error::DeviceError;
use super::shared::Shared;
use super::tables::{Port, Ports};

/// A network of adapters that reach each other.
///
/// It holds all their objects under one lock: engines read while they work, control calls write. So
/// an engine reaches a peer's objects without a second lock, and a control call that returns knows
/// that no engine works on what it removed.
#[derive(Default)]
pub struct Network {
    ports: RwLock<Ports>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    /// A network of its own.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The one network that faces of this process share.
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

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Ports> {
        self.ports.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an adapter in; gives its index.
    pub(crate) fn join(&self, shared: Arc<Shared>) -> Result<u16, DeviceError> {
        let mut ports = self.write();
        let gid = shared.config.gid;
        if ports.find(gid).is_some() {
            return Err(DeviceError::GidTaken(gid));
        }
        let mut seed = shared.config.seed;
        let port = Port::new(shared, random(&mut seed) as u16);
        let index = match ports.ports.iter().position(Option::is_none) {
            Some(free) => free,
            None if ports.ports.len() > usize::from(u16::MAX) => {
                return Err(DeviceError::Exhausted { what: "places for adapters", limit: ports.ports.len() });
            }
            None => {
                ports.ports.push(None);
                ports.ports.len() - 1
            }
        };
        ports.ports[index] = Some(port);
        let target = Some(index as u16);
        // The new adapter's handles are none yet; the others' may wait for it.
        ports.resolve(gid, target);
        Ok(index as u16)
    }

    /// Takes an adapter off; its objects go with it.
    pub(crate) fn leave(&self, index: u16) {
        let mut ports = self.write();
        let port = ports.ports.get_mut(usize::from(index)).and_then(Option::take);
        if let Some(port) = &port {
            ports.resolve(port.gid, None);
        }
        drop(ports);
        // Memory that faces gave is let go outside the lock: their code may do anything.
        drop(port);
    }
}
