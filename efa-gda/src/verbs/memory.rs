//! Memory regions: host memory that a region owns, memory of the caller's, and dmabufs.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::verbs;
use efa_gda_wire::{LocalKey, RemoteKey};

use super::context::Capability;
use super::error::{Error, Result};
use super::object::{InLibrary, Object, function, pointer};
use super::{Library, ProtectionDomain};
use crate::memory::{Access, Buffer, RemoteRegion, in_bounds};
use crate::ownership::into_sole_owner;

/// A registered memory region. Cheap to clone; deregistered with its last clone, and only then is a
/// buffer that it owns freed.
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
    on_host: bool,
}

#[derive(Debug)]
struct Parents {
    /// The memory, where the region owns it.
    buffer: Option<Buffer>,
    domain: ProtectionDomain,
}

impl InLibrary for Parents {
    fn library(&self) -> &Library {
        self.domain.library()
    }
}

/// The adapter's bits for what may be done with a region. Reading it locally needs none.
fn bits(access: Access) -> u32 {
    let mut bits = 0;
    if [Access::RECEIVE, Access::READ].iter().any(|one| access.contains(*one)) {
        bits |= verbs::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_WRITE) {
        // The kernel grants remote writing only together with local writing (ib_check_mr_access).
        bits |= verbs::IBV_ACCESS_REMOTE_WRITE | verbs::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_READ) {
        bits |= verbs::IBV_ACCESS_REMOTE_READ;
    }
    bits
}

impl MemoryRegion {
    /// Registers `buffer`, which the region then owns.
    ///
    /// # Errors
    /// [`Error::AdapterLacks`] for remote access that the adapter does not have; [`Error::Call`] with the
    /// answer of `ibv_reg_mr` (ENOMEM is usually the memlock limit); [`Error::TooWide`] for a key
    /// that no entry can carry.
    pub fn register(domain: &ProtectionDomain, buffer: Buffer, access: Access) -> Result<Self> {
        // A buffer is never null; the region keeps it until it is deregistered.
        let (start, length) = (buffer.as_ptr(), buffer.len());
        // SAFETY: the memory is the buffer's, which the region keeps.
        unsafe { Self::host(domain, start, length, access, Some(buffer)) }
    }

    /// Registers memory of the caller's.
    ///
    /// # Safety
    /// The `length` bytes from `start` on stay mapped until the region is deregistered: until its
    /// last clone is gone, and every queue pair that retains it. Until then the adapter reads and
    /// writes them as `access` allows.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub unsafe fn register_foreign(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: passed on to the caller.
        unsafe { Self::host(domain, start.as_ptr(), length, access, None) }
    }

    /// # Safety
    /// As [`Self::register_foreign`], where `buffer` is not what holds the memory.
    unsafe fn host(
        domain: &ProtectionDomain,
        start: *mut u8,
        length: usize,
        access: Access,
        buffer: Option<Buffer>,
    ) -> Result<Self> {
        granted(domain, access)?;
        let register = function!(domain.library(), ibv, ibv_reg_mr)?;
        // SAFETY: the domain is live; the memory is the caller's to register.
        let raw = unsafe { register(domain.raw(), start.cast(), length, bits(access) as i32) };
        let raw = pointer("ibv_reg_mr", raw)?;
        // SAFETY: just registered, and known to nobody else.
        unsafe { Self::adopt(raw, domain, start as u64, length, access, Some(buffer)) }
    }

    /// Registers `length` bytes of a dmabuf, from `offset` on. Entries name its bytes from
    /// `address` on, which for a GPU's memory is their address there. The registration holds the
    /// dmabuf by itself.
    ///
    /// # Errors
    /// As [`Self::register`], with `ibv_reg_dmabuf_mr`, which came with rdma-core 34.
    pub fn register_dmabuf(
        domain: &ProtectionDomain,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<Self> {
        granted(domain, access)?;
        let register = function!(domain.library(), ibv, ibv_reg_dmabuf_mr)?;
        let (fd, access_bits) = (dmabuf.as_raw_fd(), bits(access) as i32);
        // SAFETY: the domain is live, and the descriptor open during the call.
        let raw = unsafe { register(domain.raw(), offset, length, address, fd, access_bits) };
        let raw = pointer("ibv_reg_dmabuf_mr", raw)?;
        // SAFETY: just registered, and known to nobody else.
        unsafe { Self::adopt(raw, domain, address, length, access, None) }
    }

    /// `host`: where it is the host's memory, with the buffer that the region owns.
    ///
    /// # Safety
    /// `raw` is a live region of the domain that nobody else deregisters.
    unsafe fn adopt(
        raw: NonNull<verbs::ibv_mr>,
        domain: &ProtectionDomain,
        address: u64,
        length: usize,
        access: Access,
        host: Option<Option<Buffer>>,
    ) -> Result<Self> {
        let on_host = host.is_some();
        let parents = Parents { buffer: host.flatten(), domain: domain.clone() };
        // SAFETY: passed on to the caller. From here on an error deregisters it.
        let object = unsafe { Object::adopt(raw, parents) };
        // SAFETY: libibverbs fills in the keys before it gives a region out.
        let (lkey, rkey) = unsafe { ((*object.raw()).lkey, (*object.raw()).rkey) };
        let local_key = LocalKey::new(lkey).map_err(|_| Error::TooWide {
            what: "lkey",
            number: lkey.into(),
            bits: 24,
        })?;
        let remote_key = RemoteKey::new(rkey);
        Ok(Self(Arc::new(Inner { object, address, length, access, local_key, remote_key, on_host })))
    }

    /// Deregisters the memory and says how that went. Where it fails, a buffer that the region owns
    /// stays allocated for the life of the process.
    ///
    /// # Errors
    /// [`Error::Busy`] while a queue pair or another clone uses it; [`Error::Call`] with the answer
    /// of `ibv_dereg_mr`.
    pub fn close(self) -> Result<()> {
        match into_sole_owner(self.0) {
            Ok(inner) => inner.object.close(),
            Err(holders) => Err(Error::Busy { what: "memory region", holders }),
        }
    }

    /// The address of its first byte, as entries carry it.
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

    /// What may be done with it.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The memory, where the region owns it.
    pub fn buffer(&self) -> Option<&Buffer> {
        self.0.object.parents().buffer.as_ref()
    }

    /// Whether the host's processor reaches its bytes at its address; not known of a dmabuf.
    pub(crate) fn on_host(&self) -> bool {
        self.0.on_host
    }

    /// The key that entries use for it as local memory (`ibv_mr::lkey`).
    pub fn local_key(&self) -> LocalKey {
        self.0.local_key
    }

    /// The key that peers use for it (`ibv_mr::rkey`).
    pub fn remote_key(&self) -> RemoteKey {
        self.0.remote_key
    }

    /// All of it, as a peer needs to know it.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion { address: self.address(), length: self.len() as u64, key: self.remote_key() }
    }

    /// The address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn at(&self, offset: u64, length: u64) -> Result<u64> {
        in_bounds(offset, length, self.len() as u64)?;
        Ok(self.address() + offset)
    }

    /// The domain that it is in.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.object.parents().domain
    }
}

/// Refuses remote access that the adapter does not have: the driver's answer would not say which.
fn granted(domain: &ProtectionDomain, access: Access) -> Result<()> {
    for (remote, capability) in
        [(Access::REMOTE_WRITE, Capability::RdmaWrite), (Access::REMOTE_READ, Capability::RdmaRead)]
    {
        if access.contains(remote) {
            domain.context().require(capability)?;
        }
    }
    Ok(())
}
