//! The network: connects the adapters of one process by GID, holds the lock over their objects, and has their engine.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use super::config::Gid;
use super::engine::{self, next_random};
use super::error::DeviceError;
use super::shared::{Shared, lock};
use super::tables::{Port, Ports};

/// A network of adapters that can reach each other. One thread, the engine, executes the requests of all of them.
#[derive(Default)]
pub struct Network {
    ports: RwLock<Ports>,
    /// Held by the control call that holds the lock for writing or waits for it. The engine waits for it before it acquires
    /// the lock: a thread that releases the lock and acquires it again at once would mostly keep others from it.
    changing: Mutex<()>,
    /// The engine's thread, while there are adapters. Held while adapters join and leave, so that one thread starts or
    /// ends it; acquired before the other locks.
    engine: Mutex<Option<JoinHandle<()>>>,
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

    /// As [`Self::read`], after a control call that waits for the lock. For the engine.
    pub(crate) fn read_in_turn(&self) -> RwLockReadGuard<'_, Ports> {
        drop(lock(&self.changing));
        self.read()
    }

    pub(crate) fn write(&self) -> Changing<'_> {
        let changing = lock(&self.changing);
        Changing { objects: self.ports.write().unwrap_or_else(PoisonError::into_inner), _changing: changing }
    }

    /// Adds an adapter, and starts the engine if there is none. Returns the adapter's index.
    pub(crate) fn join(self: &Arc<Self>, shared: Arc<Shared>) -> Result<u16, DeviceError> {
        let mut engine = lock(&self.engine);
        let index = self.insert(shared)?;
        match &*engine {
            Some(thread) if !thread.is_finished() => thread.thread().unpark(),
            // There is none, or a panic ended it.
            _ => match engine::start(self) {
                Ok(thread) => *engine = Some(thread),
                Err(error) => {
                    self.remove(index);
                    return Err(DeviceError::Thread(error.to_string()));
                }
            },
        }
        Ok(index)
    }

    /// Adds an adapter to the tables. Returns its index.
    pub(crate) fn insert(&self, shared: Arc<Shared>) -> Result<u16, DeviceError> {
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

    /// Removes an adapter from the tables.
    fn remove(&self, index: u16) -> Option<Port> {
        let mut ports = self.write();
        let port = ports.ports.get_mut(usize::from(index))?.take()?;
        ports.set_handle_targets(port.gid, None);
        Some(port)
    }

    /// Removes an adapter and drops its objects. If it was the last, waits until the engine has ended.
    pub(crate) fn leave(&self, index: u16) {
        let mut engine = lock(&self.engine);
        let port = self.remove(index);
        if self.read().used() == 0
            && let Some(thread) = engine.take()
        {
            thread.thread().unpark();
            // The panic hook has printed a panic of the thread.
            let _ = thread.join();
        }
        drop(engine);
        // Dropped without a lock, because that runs code of frontends.
        drop(port);
    }

    /// Wakes the engine if it sleeps.
    pub(crate) fn wake(&self) {
        lock(&self.engine).iter().for_each(|thread| thread.thread().unpark());
    }
}
