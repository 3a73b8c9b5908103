//! The objects of all adapters of a network. The engine finds them by index, without hashing.
//!
//! The network's lock protects everything in [`Ports`]: a control call changes it under the write lock. Under the read
//! lock the engine writes `Port::engine`, `Handle::target_reached`, and the state of queue pairs and completion queues
//! (`queue_pair.rs`, `completion.rs`).

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use efa_gda_wire::{AddressHandle, LocalKey, RemoteKey};

use super::attr::{Access, MemoryKeys, MemoryRegionAttr, ProtectionDomain};
use super::completion::CompletionRing;
use super::config::Gid;
use super::doorbells::Doorbells;
use super::engine::Engine;
use super::memory::{HostRange, Memory};
use super::queue_pair::QueuePairCore;
use super::relaxed::RelaxedMemory;
use super::shared::Shared;
use super::slots::Slots;

/// Most regions of an adapter whose writes land late, because the engine looks at each of them in every round.
/// Writes to further regions with relaxed ordering are not late.
const MOST_RELAXED: usize = 64;

/// Every adapter of a network, by its index there.
#[derive(Default)]
pub(crate) struct Ports {
    pub(crate) ports: Vec<Option<Port>>,
}

/// One adapter's objects.
pub(crate) struct Port {
    pub(crate) gid: Gid,
    pub(crate) shared: Arc<Shared>,
    pub(crate) domains: Slots<Domain>,
    pub(crate) regions: Slots<Region>,
    pub(crate) handles: Slots<Handle>,
    pub(crate) completions: Slots<Arc<CompletionRing>>,
    pub(crate) queue_pairs: Slots<Arc<QueuePairCore>>,
    /// The memory of regions whose writes land late, by their numbers in `regions`, for the engine's round.
    pub(crate) relaxed: Vec<(u16, Arc<RelaxedMemory>)>,
    /// What the engine keeps of this adapter. Only the engine locks it.
    pub(crate) engine: Mutex<Engine>,
    pub(crate) doorbells: Doorbells,
    /// Mixed into rkeys, so that an rkey of an adapter with another seed is rarely valid by accident.
    pub(crate) rkey_salt: u16,
    /// Handles of this adapter, by the index of the adapter that they address.
    handles_by_target: Vec<Vec<(ProtectionDomain, AddressHandle)>>,
    by_gid: HashMap<(ProtectionDomain, Gid), AddressHandle>,
}

/// A protection domain.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    /// Regions, handles and queue pairs in it.
    pub(crate) users: usize,
}

/// A registered region.
pub(crate) struct Region {
    pd: ProtectionDomain,
    generation: u16,
    address: u64,
    length: u64,
    access: Access,
    memory: Arc<dyn Memory>,
    /// The whole region, if it is memory of this process and its writes do not land late.
    host: Option<HostRange>,
}

/// Part of a region, after keys, range and access were checked.
pub(crate) enum View<'a> {
    /// Memory of this process.
    Host(HostRange),
    /// Memory that only the methods of a [`Memory`] reach, with address and length.
    Indirect(&'a dyn Memory, u64, u64),
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) pd: ProtectionDomain,
    pub(crate) gid: Gid,
    /// Index of the adapter with that GID, while one is on the network.
    pub(crate) target: Option<u16>,
    /// Whether a request ever found that adapter on the network.
    pub(crate) target_reached: AtomicBool,
    /// Uses that [`Port::insert_handle`] counted and [`Port::remove_handle`] did not release yet.
    users: usize,
}

impl Ports {
    pub(crate) fn port(&self, index: u16) -> Option<&Port> {
        self.ports.get(usize::from(index))?.as_ref()
    }

    pub(crate) fn port_mut(&mut self, index: u16) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(index))?.as_mut()
    }

    /// The number of indexes in use: one more than the highest of an adapter, or 0.
    pub(crate) fn used(&self) -> usize {
        self.ports.iter().rposition(Option::is_some).map_or(0, |last| last + 1)
    }

    pub(crate) fn index_of(&self, gid: Gid) -> Option<u16> {
        let index = self.ports.iter().position(|port| port.as_ref().is_some_and(|port| port.gid == gid));
        index.map(|index| index as u16)
    }

    /// Sets the target of every handle for `gid`.
    pub(crate) fn set_handle_targets(&mut self, gid: Gid, target: Option<u16>) {
        for port in self.ports.iter_mut().flatten() {
            for (_, handle) in port.handles.iter_mut().filter(|(_, handle)| handle.gid == gid) {
                handle.target = target;
            }
            port.index_handles();
        }
    }
}

impl Port {
    pub(crate) fn new(shared: Arc<Shared>, rkey_salt: u16) -> Self {
        let limits = shared.config.limits;
        Self {
            gid: shared.config.gid,
            domains: Slots::new(limits.max_pd.into()),
            regions: Slots::new(limits.max_mr as usize),
            handles: Slots::new(limits.max_ah.into()),
            completions: Slots::new(limits.max_cq.into()),
            queue_pairs: Slots::new(limits.max_qp.into()),
            relaxed: Vec::new(),
            engine: Mutex::new(Engine::new(&shared.config)),
            doorbells: Doorbells::default(),
            // Bit 31 of every rkey is set. Lkeys have 24 bits, so no lkey is an rkey.
            rkey_salt: rkey_salt | 0x8000,
            handles_by_target: Vec::new(),
            by_gid: HashMap::new(),
            shared,
        }
    }

    /// Inserts a region. `host` is its memory as memory of this process ([`Memory::host`]).
    pub(crate) fn insert_region(
        &mut self,
        attr: MemoryRegionAttr,
        host: Option<HostRange>,
    ) -> Option<MemoryKeys> {
        let mut generation = 0;
        let is_relaxed = attr.access.allows(Access::RELAXED_ORDERING) && self.relaxed.len() < MOST_RELAXED;
        let mut late = None;
        let config = &self.shared.config;
        let number = self.regions.insert_with(|number, current| {
            generation = current;
            let mut memory = attr.memory;
            if is_relaxed {
                // Regions differ in their pattern, and a run with the same seed repeats it.
                let seed = config.seed ^ u64::from(number) << 32 ^ u64::from(generation) << 48;
                let relaxed = Arc::new(RelaxedMemory::new(memory, config.latest_write, seed));
                memory = relaxed.clone();
                late = Some(relaxed);
            }
            Region {
                pd: attr.pd,
                generation,
                address: attr.address,
                length: attr.length,
                access: attr.access,
                memory,
                host: host.filter(|_| !is_relaxed),
            }
        })?;
        self.relaxed.extend(late.map(|memory| (number, memory)));
        Some(self.keys(number, generation))
    }

    fn keys(&self, number: u16, generation: u16) -> MemoryKeys {
        let local = u32::from(generation as u8) << 16 | u32::from(number);
        let remote = u32::from(rkey_generation(generation) ^ self.rkey_salt) << 16 | u32::from(number);
        // 8 and 16 bits fit 24.
        let local = LocalKey::new(local).unwrap_or_default();
        MemoryKeys { local, remote: RemoteKey::new(remote) }
    }

    /// The region with this lkey, if the low 8 bits of its generation are those of the lkey.
    #[inline]
    fn region(&self, key: LocalKey) -> Option<&Region> {
        let region = self.regions.get(key.get() as u16)?;
        (region.generation as u8 == (key.get() >> 16) as u8).then_some(region)
    }

    /// Removes the region with this lkey.
    pub(crate) fn remove_region(&mut self, key: LocalKey) -> Option<Region> {
        self.region(key)?;
        self.relaxed.retain(|(number, _)| *number != key.get() as u16);
        self.regions.remove(key.get() as u16)
    }

    /// Memory of this adapter that a work-queue entry names by its lkey.
    #[inline]
    pub(crate) fn local_memory(
        &self,
        key: LocalKey,
        pd: ProtectionDomain,
        access: Access,
        address: u64,
        length: u64,
    ) -> Option<View<'_>> {
        self.region(key)?.view(pd, access, address, length)
    }

    /// Memory of this adapter that a peer's request names by its rkey.
    #[inline]
    pub(crate) fn remote_memory(
        &self,
        key: RemoteKey,
        pd: ProtectionDomain,
        access: Access,
        address: u64,
        length: u64,
    ) -> Option<View<'_>> {
        let region = self.regions.get(key.get() as u16)?;
        let generation = (key.get() >> 16) as u16 ^ self.rkey_salt;
        let current = rkey_generation(region.generation) == generation;
        if current { region.view(pd, access, address, length) } else { None }
    }

    pub(crate) fn retain_domain(&mut self, pd: ProtectionDomain) {
        if let Some(domain) = self.domains.get_mut(pd.0) {
            domain.users += 1;
        }
    }

    pub(crate) fn release_domain(&mut self, pd: ProtectionDomain) {
        if let Some(domain) = self.domains.get_mut(pd.0) {
            domain.users -= 1;
        }
    }

    /// Creates the handle for `gid`, or counts one more use of it. Returns it and whether it is new, or `None` if the
    /// table is full.
    pub(crate) fn insert_handle(
        &mut self,
        pd: ProtectionDomain,
        gid: Gid,
        target: Option<u16>,
    ) -> Option<(AddressHandle, bool)> {
        if let Some(existing) = self.by_gid.get(&(pd, gid)) {
            self.handles.get_mut(existing.get())?.users += 1;
            return Some((*existing, false));
        }
        let handle = Handle { pd, gid, target, target_reached: AtomicBool::new(false), users: 1 };
        let number = AddressHandle::new(self.handles.insert_with(|_, _| handle)?);
        self.by_gid.insert((pd, gid), number);
        self.index_handles();
        Some((number, true))
    }

    /// Releases one use of a handle. If that was the last use, removes the handle and returns `Some(Some(its domain))`;
    /// else returns `Some(None)`. Returns `None` if there is no such handle.
    pub(crate) fn remove_handle(&mut self, number: AddressHandle) -> Option<Option<ProtectionDomain>> {
        let handle = self.handles.get_mut(number.get())?;
        handle.users -= 1;
        if handle.users > 0 {
            return Some(None);
        }
        let handle = self.handles.remove(number.get())?;
        self.by_gid.remove(&(handle.pd, handle.gid));
        self.index_handles();
        Some(Some(handle.pd))
    }

    /// Lands the late writes of this adapter's regions that are due `by` then, or all of them. Returns whether any
    /// remain.
    pub(crate) fn land_late_writes(&self, by: Option<Instant>) -> bool {
        self.relaxed.iter().fold(false, |remain, (_, memory)| memory.land_due(by) | remain)
    }

    /// Whether this adapter has a handle for the adapter with that index.
    #[inline]
    pub(crate) fn has_handle_for(&self, port: u16) -> bool {
        self.handles_by_target.get(usize::from(port)).is_some_and(|handles| !handles.is_empty())
    }

    /// The handle of a domain of this adapter for the adapter with that index.
    pub(crate) fn handle_for(&self, port: u16, pd: ProtectionDomain) -> Option<AddressHandle> {
        let handles = self.handles_by_target.get(usize::from(port))?;
        handles.iter().find(|(domain, _)| *domain == pd).map(|(_, handle)| *handle)
    }

    fn index_handles(&mut self) {
        self.handles_by_target.clear();
        for (number, handle) in self.handles.iter() {
            let Some(target) = handle.target else { continue };
            let index = usize::from(target);
            if self.handles_by_target.len() <= index {
                self.handles_by_target.resize(index + 1, Vec::new());
            }
            self.handles_by_target[index].push((handle.pd, AddressHandle::new(number)));
        }
    }
}

/// The low 15 bits of a generation, which an rkey contains. Its bit 31 comes from the salt.
const fn rkey_generation(generation: u16) -> u16 {
    generation & 0x7fff
}

impl Region {
    pub(crate) fn pd(&self) -> ProtectionDomain {
        self.pd
    }

    #[inline]
    fn view(&self, pd: ProtectionDomain, access: Access, address: u64, length: u64) -> Option<View<'_>> {
        let offset = address.checked_sub(self.address)?;
        let inside = offset.checked_add(length)? <= self.length;
        if !inside || self.pd != pd || !self.access.allows(access) {
            return None;
        }
        match self.host {
            Some(host) => host.part(offset, length).map(View::Host),
            None => Some(View::Indirect(&*self.memory, address, length)),
        }
    }
}
