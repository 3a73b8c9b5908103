//! Memory regions: memory of the host or of a GPU that a region owns, and memory of the caller.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::verbs;
use efa_gda_wire::{LocalKey, RemoteKey};

use super::context::Capability;
use super::error::{Error, Result};
use super::object::{InLibrary, Object, function, pointer};
use super::{Library, ProtectionDomain};
use crate::memory::{Access, Buffer, DeviceMemory, RegionMemory, RegionOrdering, RemoteRegion, in_bounds};
use crate::ownership::into_sole_owner;

/// A registered memory region. Clones are handles of one region, which is deregistered when the last clone is
/// dropped. Memory that the region owns is freed after that.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    object: Object<verbs::ibv_mr, Parents>,
    address: u64,
    length: usize,
    access: Access,
    local_key: LocalKey,
    remote_key: RemoteKey,
}

#[derive(Debug)]
struct Parents {
    memory: RegionMemory,
    domain: ProtectionDomain,
}

impl InLibrary for Parents {
    fn library(&self) -> &Library {
        self.domain.library()
    }
}

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

impl MemoryRegion {
    /// Registers `buffer`. The region owns it.
    ///
    /// # Errors
    /// [`Error::AdapterLacks`] for remote access that the adapter does not have; [`Error::Call`] where
    /// `ibv_reg_mr` fails (ENOMEM is usually the memlock limit); [`Error::TooWide`] for a key that no entry can
    /// carry.
    pub fn register(domain: &ProtectionDomain, buffer: Buffer, access: Access) -> Result<Self> {
        // The region owns the buffer until it is deregistered.
        let (start, length) = (buffer.as_ptr(), buffer.len());
        // SAFETY: the buffer owns the memory, and the region owns the buffer.
        unsafe { Self::host(domain, start, length, access, RegionMemory::Buffer(buffer)) }
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
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: the caller guarantees it, as this function requires.
        unsafe { Self::host(domain, start.as_ptr(), length, access, RegionMemory::Foreign) }
    }

    /// # Safety
    /// As for [`Self::register_foreign`], unless `memory` holds the bytes.
    unsafe fn host(
        domain: &ProtectionDomain,
        start: *mut u8,
        length: usize,
        access: Access,
        memory: RegionMemory,
    ) -> Result<Self> {
        require_remote_access(domain, access)?;
        let register = function!(domain.library(), ibv, ibv_reg_mr)?;
        // SAFETY: the domain is live; the caller may register the memory.
        let raw = unsafe { register(domain.raw(), start.cast(), length, bits(access) as i32) };
        let raw = pointer("ibv_reg_mr", raw)?;
        // SAFETY: the region was just registered, and no other handle to it exists.
        unsafe { Self::adopt(raw, domain, start as u64, length, access, memory) }
    }

    /// Registers GPU memory as its dmabuf. Entries name its first byte by the address on the GPU. The region keeps the
    /// memory allocated.
    ///
    /// # Errors
    /// [`Error::NoDmabuf`]; those of [`Self::register`], with `ibv_reg_dmabuf_mr`, which rdma-core 34 added.
    pub fn register_device(domain: &ProtectionDomain, memory: DeviceMemory, access: Access) -> Result<Self> {
        let DeviceMemory { address, length, ordinal, dmabuf, owner, .. } = memory;
        let dmabuf = dmabuf.map_err(|why| Error::NoDmabuf { why })?;
        let address = address.as_ptr() as u64;
        require_remote_access(domain, access)?;
        let register = function!(domain.library(), ibv, ibv_reg_dmabuf_mr)?;
        let (fd, access_bits) = (dmabuf.file.as_raw_fd(), bits(access) as i32);
        // SAFETY: the domain is live, and the descriptor is open during the call.
        let raw = unsafe { register(domain.raw(), dmabuf.offset, length, address, fd, access_bits) };
        let raw = pointer("ibv_reg_dmabuf_mr", raw)?;
        let memory = RegionMemory::Device { ordinal, owner };
        // SAFETY: the region was just registered, and no other handle to it exists.
        unsafe { Self::adopt(raw, domain, address, length, access, memory) }
    }

    /// Takes ownership of a region.
    ///
    /// # Safety
    /// `raw` must be a live region of the domain that no other code deregisters.
    unsafe fn adopt(
        raw: NonNull<verbs::ibv_mr>,
        domain: &ProtectionDomain,
        address: u64,
        length: usize,
        access: Access,
        memory: RegionMemory,
    ) -> Result<Self> {
        let parents = Parents { memory, domain: domain.clone() };
        // SAFETY: the caller guarantees it, as this function requires. From here on an error deregisters it.
        let object = unsafe { Object::adopt(raw, parents) };
        // SAFETY: libibverbs fills in the keys before it returns a region.
        let (lkey, rkey) = unsafe { ((*object.raw()).lkey, (*object.raw()).rkey) };
        let local_key = LocalKey::new(lkey).map_err(|_| Error::TooWide {
            what: "lkey",
            number: lkey.into(),
            bits: 24,
        })?;
        let remote_key = RemoteKey::new(rkey);
        Ok(Self(Arc::new(Inner { object, address, length, access, local_key, remote_key })))
    }

    /// Deregisters the memory and reports the result. Where it fails, memory that the region owns stays
    /// allocated until the process ends.
    ///
    /// # Errors
    /// [`Error::Busy`] while a clone or a queue pair uses it; [`Error::Call`] where `ibv_dereg_mr` fails. The handle is
    /// dropped in either case.
    pub fn close(self) -> Result<()> {
        match into_sole_owner(self.0) {
            Ok(inner) => inner.object.close(),
            Err(holders) => Err(Error::Busy { what: "memory region", holders }),
        }
    }

    /// As [`Self::close`], but hands the region back if it is busy.
    ///
    /// # Errors
    /// The region, while a clone or a queue pair uses it. The inner result is that of the deregistration.
    pub fn try_close(self) -> std::result::Result<Result<()>, Self> {
        Arc::try_unwrap(self.0).map(|inner| inner.object.close()).map_err(Self)
    }

    /// The address of the first byte, as entries carry it.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// The access rights that the region was registered with.
    pub(crate) fn access(&self) -> Access {
        self.0.access
    }

    /// The order of writes to the region that users may rely on. A kernel driver that ignores
    /// [`Access::RELAXED_ORDERING`] keeps the strict order all the same.
    pub fn ordering(&self) -> RegionOrdering {
        RegionOrdering::requested_by(self.0.access)
    }

    /// The host memory that the region owns, if it does.
    pub fn buffer(&self) -> Option<&Buffer> {
        self.0.object.parents().memory.buffer()
    }

    /// The CUDA ordinal of the GPU whose memory this is. None for host memory.
    pub(crate) fn device(&self) -> Option<i32> {
        self.0.object.parents().memory.device()
    }

    /// The value that keeps GPU memory allocated, where it is a `T`.
    #[cfg(feature = "cuda")]
    pub(crate) fn owner<T: std::any::Any>(&self) -> Option<&T> {
        self.0.object.parents().memory.owner()
    }

    /// The key with which entries name the region as local memory (`ibv_mr::lkey`).
    pub fn local_key(&self) -> LocalKey {
        self.0.local_key
    }

    /// The key with which peers access the region (`ibv_mr::rkey`).
    pub fn remote_key(&self) -> RemoteKey {
        self.0.remote_key
    }

    /// Describes the whole region for a peer.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion { address: self.address(), length: self.len() as u64, key: self.remote_key() }
    }

    /// The address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where the bytes do not lie in the region.
    pub fn at(&self, offset: u64, length: u64) -> Result<u64> {
        in_bounds(offset, length, self.len() as u64)?;
        Ok(self.address() + offset)
    }

    /// The protection domain of the region.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.object.parents().domain
    }
}

/// Refuses remote access that the adapter does not have, because the driver's error would not name it.
fn require_remote_access(domain: &ProtectionDomain, access: Access) -> Result<()> {
    for (remote, capability) in
        [(Access::REMOTE_WRITE, Capability::RdmaWrite), (Access::REMOTE_READ, Capability::RdmaRead)]
    {
        if access.contains(remote) {
            domain.context().require(capability)?;
        }
    }
    Ok(())
}
