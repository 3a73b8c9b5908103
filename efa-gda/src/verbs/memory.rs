//! Registration of memory of the host or of a GPU.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::verbs;
use efa_gda_wire::{LocalKey, RemoteKey};

use super::ProtectionDomain;
use super::context::Capability;
use super::error;
use super::object::{Object, function, pointer};
#[cfg(doc)]
use crate::ErrorKind;
use crate::memory::{Access, Buffer, DeviceMemory, Region, RegionMemory, RegionOrdering, Registered};
use crate::{Error, Result};

/// The object of a region, with its memory and its domain, which must outlive it.
type MemoryObject = Object<verbs::ibv_mr, (Arc<RegionMemory>, ProtectionDomain)>;

/// Translates access rights to rdma-core's bits. Local reads need none.
fn bits(access: Access) -> u32 {
    let mut bits = 0;
    if [Access::RECEIVE, Access::READ].iter().any(|one| access.contains(*one)) {
        bits |= verbs::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_WRITE) {
        // The kernel grants remote writes only together with local writes (ib_check_mr_access).
        bits |= verbs::IBV_ACCESS_REMOTE_WRITE | verbs::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_READ) {
        bits |= verbs::IBV_ACCESS_REMOTE_READ;
    }
    if access.contains(Access::RELAXED_ORDERING) {
        bits |= verbs::IBV_ACCESS_RELAXED_ORDERING;
    }
    bits
}

impl ProtectionDomain {
    /// Registers `buffer`. The region owns it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for remote access that the adapter does not have; [`ErrorKind::Other`] where
    /// `ibv_reg_mr` fails (ENOMEM is usually the memlock limit); [`ErrorKind::Other`] for a key that no entry can
    /// carry.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Region> {
        let (start, length) = (buffer.as_ptr(), buffer.len());
        // SAFETY: the buffer owns the memory, and the region owns the buffer until it is deregistered.
        unsafe { self.register_host(start, length, access, RegionMemory::Buffer(buffer)) }
    }

    /// Registers memory that the caller owns.
    ///
    /// # Safety
    /// The `length` bytes from `start` must stay mapped until the region is deregistered: until its last clone,
    /// and every queue pair that retains it, is dropped. Until then the adapter reads and writes the bytes as
    /// `access` allows.
    ///
    /// # Errors
    /// Those of [`Self::register`].
    pub unsafe fn register_foreign(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Region> {
        // SAFETY: the caller guarantees it, as this function requires.
        unsafe { self.register_host(start.as_ptr(), length, access, RegionMemory::Foreign) }
    }

    /// # Safety
    /// As for [`Self::register_foreign`], unless `memory` holds the bytes.
    unsafe fn register_host(
        &self,
        start: *mut u8,
        length: usize,
        access: Access,
        memory: RegionMemory,
    ) -> Result<Region> {
        self.require_remote_access(access)?;
        let register = function!(self.library(), ibv, ibv_reg_mr)?;
        // SAFETY: the domain is live; the caller may register the memory.
        let raw = unsafe { register(self.raw(), start.cast(), length, bits(access) as i32) };
        let raw = pointer("ibv_reg_mr", raw)?;
        // SAFETY: the region was just registered, and no other handle to it exists.
        unsafe { self.adopt_region(raw, (start as u64, length), access, memory) }
    }

    /// Registers GPU memory as its dmabuf. Entries name its first byte by the address on the GPU. The region keeps the
    /// memory allocated.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]; those of [`Self::register`], with `ibv_reg_dmabuf_mr`, which rdma-core 34 added.
    pub fn register_device(&self, memory: DeviceMemory, access: Access) -> Result<Region> {
        let DeviceMemory { address, length, ordinal, dmabuf, owner, .. } = memory;
        let dmabuf = dmabuf.map_err(|why| {
            Error::unsupported(format!(
                "GPU memory cannot be registered: {why}, and a domain of rdma-core takes GPU memory only as a dmabuf"
            ))
            .with_hint("open the queue with libfabric, or use memory of the host")
        })?;
        let address = address.as_ptr() as u64;
        self.require_remote_access(access)?;
        let register = function!(self.library(), ibv, ibv_reg_dmabuf_mr)?;
        let (fd, access_bits) = (dmabuf.file.as_raw_fd(), bits(access) as i32);
        // SAFETY: the domain is live, and the descriptor is open during the call.
        let raw = unsafe { register(self.raw(), dmabuf.offset, length, address, fd, access_bits) };
        let raw = pointer("ibv_reg_dmabuf_mr", raw)?;
        // SAFETY: the region was just registered, and no other handle to it exists.
        unsafe { self.adopt_region(raw, (address, length), access, RegionMemory::Device { ordinal, owner }) }
    }

    /// Takes ownership of a region.
    ///
    /// # Safety
    /// `raw` must be a live region of the domain that no other code deregisters.
    unsafe fn adopt_region(
        &self,
        raw: NonNull<verbs::ibv_mr>,
        (address, length): (u64, usize),
        access: Access,
        memory: RegionMemory,
    ) -> Result<Region> {
        let memory = Arc::new(memory);
        // SAFETY: the caller guarantees it, as this function requires. From here on an error deregisters it.
        let object: MemoryObject =
            unsafe { Object::adopt(raw, self.library().clone(), (memory.clone(), self.clone())) };
        local_key(&object)?;
        // SAFETY: libibverbs fills in the keys before it returns a region.
        let remote_key = RemoteKey::new(unsafe { (*object.raw()).rkey });
        let (object, ordering) = (Box::new(object), RegionOrdering::requested_by(access));
        Ok(Registered { object, memory, address, length, access, ordering, remote_key }.into())
    }

    /// Returns the key with which entries name a region of the domain as local memory (`ibv_mr::lkey`).
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for a region of another domain.
    pub fn local_key(&self, region: &Region) -> Result<LocalKey> {
        match region.object::<MemoryObject>().filter(|object| self.is_same(&object.parents().1)) {
            Some(object) => local_key(object),
            None => Err(error::other_context("memory region")),
        }
    }

    /// Refuses remote access that the adapter does not have, because the driver's error would not name it.
    fn require_remote_access(&self, access: Access) -> Result<()> {
        for (remote, capability) in
            [(Access::REMOTE_WRITE, Capability::RdmaWrite), (Access::REMOTE_READ, Capability::RdmaRead)]
        {
            if access.contains(remote) {
                self.context().require(capability)?;
            }
        }
        Ok(())
    }
}

fn local_key(object: &MemoryObject) -> Result<LocalKey> {
    // SAFETY: libibverbs fills in the keys before it returns a region.
    let lkey = unsafe { (*object.raw()).lkey };
    LocalKey::new(lkey).map_err(|_| error::too_wide("lkey", lkey.into(), 24))
}
