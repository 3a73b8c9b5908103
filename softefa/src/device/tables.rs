//! The objects of all adapters of a network, as the engines look them up: by index, without hashing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use efa_gda_wire::{AddressHandle, LocalKey, RemoteKey};

use super::attr::{Access, MemoryKeys, MemoryRegionAttr, ProtectionDomain};
use super::completion::CompletionRing;
use super::config::Gid;
use super::doorbells::Doorbells;
use super::memory::{HostRange, Memory};
use super::queue_pair::QueuePairCore;
use super::shared::Shared;
use super::slots::Slots;

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
    /// Numbers in `queue_pairs`, for the engine's round.
    pub(crate) live: Vec<u16>,
    pub(crate) doorbells: Doorbells,
    /// Mixed into rkeys, so that an lkey is never an rkey by chance.
    pub(crate) rkey_salt: u16,
    /// Handles of this adapter by the index of the adapter that they reach.
    known: Vec<Vec<(ProtectionDomain, AddressHandle)>>,
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
    /// The whole region, where it lies in this process.
    host: Option<HostRange>,
}

/// Part of a region that a request may use.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    Host(HostRange),
    Through(&'a dyn Memory, u64, u64),
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) pd: ProtectionDomain,
    pub(crate) gid: Gid,
    /// Index of the adapter with that GID, while there is one.
    pub(crate) target: Option<u16>,
    /// Whether it ever answered.
    pub(crate) answered: AtomicBool,
    users: usize,
}

impl Ports {
    pub(crate) fn port(&self, index: u16) -> Option<&Port> {
        self.ports.get(usize::from(index))?.as_ref()
    }

    pub(crate) fn port_mut(&mut self, index: u16) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(index))?.as_mut()
    }

    pub(crate) fn find(&self, gid: Gid) -> Option<u16> {
        let found = self.ports.iter().position(|port| port.as_ref().is_some_and(|port| port.gid == gid));
        found.map(|index| index as u16)
    }

    /// Points every handle for `gid` at `target`.
    pub(crate) fn resolve(&mut self, gid: Gid, target: Option<u16>) {
        for port in self.ports.iter_mut().flatten() {
            for (_, handle) in port.handles.iter_mut().filter(|(_, handle)| handle.gid == gid) {
                handle.target = target;
            }
            port.index_known();
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
            live: Vec::new(),
            doorbells: Doorbells::default(),
            // A high byte that is not zero: lkeys have zero there.
            rkey_salt: rkey_salt | 0x8000,
            known: Vec::new(),
            by_gid: HashMap::new(),
            shared,
        }
    }

    pub(crate) fn insert_region(&mut self, attr: MemoryRegionAttr) -> Option<MemoryKeys> {
        let mut generation = 0;
        let host = attr.memory.host(attr.address, attr.length);
        let number = self.regions.insert_with(|_, current| {
            generation = current;
            Region {
                pd: attr.pd,
                generation,
                address: attr.address,
                length: attr.length,
                access: attr.access,
                memory: attr.memory,
                host,
            }
        })?;
        Some(self.keys(number, generation))
    }

    fn keys(&self, number: u16, generation: u16) -> MemoryKeys {
        let local = u32::from(generation as u8) << 16 | u32::from(number);
        let remote = u32::from(rkey_generation(generation) ^ self.rkey_salt) << 16 | u32::from(number);
        // 8 and 16 bits fit 24.
        let local = LocalKey::new(local).unwrap_or_default();
        MemoryKeys { local, remote: RemoteKey::new(remote) }
    }

    /// The number of the region with this lkey.
    pub(crate) fn region_number(&self, key: LocalKey) -> Option<u16> {
        let number = key.get() as u16;
        let region = self.regions.get(number)?;
        (region.generation as u8 == (key.get() >> 16) as u8).then_some(number)
    }

    /// Local memory of a request.
    #[inline]
    pub(crate) fn local(
        &self,
        key: LocalKey,
        pd: ProtectionDomain,
        access: Access,
        address: u64,
        length: u64,
    ) -> Option<View<'_>> {
        let region = self.regions.get(key.get() as u16)?;
        let current = region.generation as u8 == (key.get() >> 16) as u8;
        if current { region.view(pd, access, address, length) } else { None }
    }

    /// Memory of this adapter that a peer's request names.
    #[inline]
    pub(crate) fn remote(
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

    pub(crate) fn use_domain(&mut self, pd: ProtectionDomain) {
        if let Some(domain) = self.domains.get_mut(pd.0) {
            domain.users += 1;
        }
    }

    pub(crate) fn leave_domain(&mut self, pd: ProtectionDomain) {
        if let Some(domain) = self.domains.get_mut(pd.0) {
            domain.users -= 1;
        }
    }

    /// One more use of the handle for `gid`, and whether it is the first.
    pub(crate) fn insert_handle(
        &mut self,
        pd: ProtectionDomain,
        gid: Gid,
        target: Option<u16>,
    ) -> Option<(AddressHandle, bool)> {
        if let Some(known) = self.by_gid.get(&(pd, gid)) {
            self.handles.get_mut(known.get())?.users += 1;
            return Some((*known, false));
        }
        let handle = Handle { pd, gid, target, answered: AtomicBool::new(false), users: 1 };
        let number = AddressHandle::new(self.handles.insert_with(|_, _| handle)?);
        self.by_gid.insert((pd, gid), number);
        self.index_known();
        Some((number, true))
    }

    /// One use less; gives the domain when it was the last.
    pub(crate) fn remove_handle(&mut self, number: AddressHandle) -> Option<Option<ProtectionDomain>> {
        let handle = self.handles.get_mut(number.get())?;
        handle.users -= 1;
        if handle.users > 0 {
            return Some(None);
        }
        let handle = self.handles.remove(number.get())?;
        self.by_gid.remove(&(handle.pd, handle.gid));
        self.index_known();
        Some(Some(handle.pd))
    }

    /// Whether this adapter has a handle for the adapter with that index.
    #[inline]
    pub(crate) fn knows(&self, port: u16) -> bool {
        self.known.get(usize::from(port)).is_some_and(|handles| !handles.is_empty())
    }

    /// This adapter's handle, in a domain, for the adapter with that index.
    pub(crate) fn handle_for(&self, port: u16, pd: ProtectionDomain) -> Option<AddressHandle> {
        let handles = self.known.get(usize::from(port))?;
        handles.iter().find(|(domain, _)| *domain == pd).map(|(_, handle)| *handle)
    }

    fn index_known(&mut self) {
        self.known.clear();
        for (number, handle) in self.handles.iter() {
            let Some(target) = handle.target else { continue };
            let index = usize::from(target);
            if self.known.len() <= index {
                self.known.resize(index + 1, Vec::new());
            }
            self.known[index].push((handle.pd, AddressHandle::new(number)));
        }
    }
}

/// The 15 bits of a generation that fit beside the salt's high bit.
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
            None => Some(View::Through(&*self.memory, address, length)),
        }
    }
}
