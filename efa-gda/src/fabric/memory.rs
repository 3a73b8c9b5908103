//! Memory regions: host memory that a region owns, GPU memory, and memory of the caller.

use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::fi;
use efa_gda_wire::RemoteKey;

use super::error;
use super::object::{Context, InContext, Object, table_op};
use super::{Domain, EFA_DIRECT};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::memory::{Access, Buffer, DeviceMemory, RegionMemory, RegionOrdering, RemoteRegion, in_bounds};
use crate::ownership::into_sole_owner;

const REGISTER: &str = "fi_mr_reg";

/// A registered memory region. Clones are handles of one region, which is deregistered when the last clone is
/// dropped. Memory that the region owns is freed after that.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<RegionInner>);

#[derive(Debug)]
struct RegionInner {
    object: Object<fi::fid_mr, RegionParents>,
    start: NonNull<u8>,
    length: usize,
    access: Access,
    ordering: RegionOrdering,
    remote_key: RemoteKey,
}

// SAFETY: `start` is passed to the adapter and never dereferenced here.
unsafe impl Send for RegionInner {}
// SAFETY: as above.
unsafe impl Sync for RegionInner {}

#[derive(Debug)]
struct RegionParents {
    memory: RegionMemory,
    domain: Domain,
}

impl InContext for RegionParents {
    fn context(&self) -> &Context {
        self.domain.context()
    }
}

impl MemoryRegion {
    /// See [`Domain::register`].
    pub(super) fn register(domain: &Domain, buffer: Buffer, access: Access) -> Result<Self> {
        let (start, length) = (buffer.start(), buffer.len());
        // SAFETY: the buffer owns the memory, and the region owns the buffer until it is deregistered.
        unsafe { Self::open(domain, start, length, access, RegionMemory::Buffer(buffer)) }
    }

    /// Registers memory that the caller owns.
    ///
    /// # Safety
    /// The `length` bytes from `start` must stay mapped until the region is deregistered: until its last clone,
    /// and every endpoint that retains it, is dropped. Until then the adapter reads and writes the bytes as
    /// `access` allows.
    ///
    /// # Errors
    /// Those of [`Domain::register`].
    pub unsafe fn register_foreign(
        domain: &Domain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: the caller guarantees it, as this function requires.
        unsafe { Self::open(domain, start, length, access, RegionMemory::Foreign) }
    }

    /// # Safety
    /// As for [`Self::register_foreign`], unless `memory` keeps the bytes mapped.
    unsafe fn open(
        domain: &Domain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
        memory: RegionMemory,
    ) -> Result<Self> {
        let raw = domain.as_ptr();
        // SAFETY: an open domain points to its operation table, or to null.
        let register = unsafe { table_op!((*raw).mr, fi_ops_mr.reg, REGISTER) }?;
        let (buf, bits, flags) = (start.as_ptr().cast(), access.bits(), access.registration_flags());
        let call = |region: *mut _| {
            // SAFETY: the domain is open, the caller may register the memory, and `region` can be written. Offset and
            // key are 0: the provider chooses the key (FI_MR_PROV_KEY).
            unsafe { register(raw.cast(), buf, length, bits, 0, 0, flags, region, std::ptr::null_mut()) }
        };
        let parents = RegionParents { memory, domain: domain.clone() };
        // SAFETY: no other handle exists to the region that the call opens.
        Self::of(unsafe { Object::open(REGISTER, parents, call) }?, start, length, access)
    }

    /// Takes ownership of a region of GPU memory that [`super::device_memory`] registered.
    ///
    /// # Safety
    /// `raw` must be an open region of the domain and of `memory`, and no other code may close it.
    pub(super) unsafe fn adopt_device(
        domain: &Domain,
        raw: *mut fi::fid_mr,
        memory: DeviceMemory,
        access: Access,
    ) -> Result<Self> {
        let (start, length) = (memory.address, memory.length);
        let memory = RegionMemory::Device { ordinal: memory.ordinal, owner: memory.owner };
        let parents = RegionParents { memory, domain: domain.clone() };
        // SAFETY: the caller guarantees it, as this function requires.
        Self::of(unsafe { Object::adopt(REGISTER, raw, parents) }?, start, length, access)
    }

    fn of(
        object: Object<fi::fid_mr, RegionParents>,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: the region is open; its registration sets the key (fi_mr_key).
        let remote_key = key(unsafe { (&raw const (*object.raw()).key).read() })?;
        let ordering = ordering(&object.parents().domain, access);
        Ok(Self(Arc::new(RegionInner { object, start, length, access, ordering, remote_key })))
    }

    /// Deregisters the memory and reports the result. Where it fails, memory that the region owns stays
    /// allocated until the process ends.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or a queue uses it; [`ErrorKind::Other`] where `fi_close` fails. The handle is dropped
    /// in either case.
    pub fn close(self) -> Result<()> {
        match into_sole_owner(self.0) {
            Ok(inner) => inner.object.close(),
            Err(holders) => Err(error::busy("memory region", holders)),
        }
    }

    /// As [`Self::close`], but hands the region back if it is busy.
    ///
    /// # Errors
    /// The region, while a clone or a queue uses it. The inner result is that of the deregistration.
    pub fn try_close(self) -> std::result::Result<Result<()>, Self> {
        Arc::try_unwrap(self.0).map(|inner| inner.object.close()).map_err(Self)
    }

    /// The address of the first byte. It is an address of a GPU, or of the host.
    pub fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// The address of the first byte, as entries carry it.
    pub fn address(&self) -> u64 {
        self.0.start.as_ptr() as u64
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
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The order of the adapter's writes to the region.
    pub fn ordering(&self) -> RegionOrdering {
        self.0.ordering
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
    pub fn owner<T: std::any::Any>(&self) -> Option<&T> {
        self.0.object.parents().memory.owner()
    }

    /// The key with which peers access the region (`fi_mr_key`).
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
    /// [`ErrorKind::Argument`] where the bytes do not lie in the region.
    pub(crate) fn at(&self, offset: u64, length: u64) -> Result<u64> {
        in_bounds(offset, length, self.len() as u64)?;
        Ok(self.address() + offset)
    }

    /// The raw region, for calls that this library does not wrap.
    pub(crate) fn as_ptr(&self) -> *mut fi::fid_mr {
        self.0.object.raw()
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.0.object.parents().domain
    }
}

/// The order of writes to a region that was registered with `access`. The fabric `efa` ignores the flag, so its regions
/// are strictly ordered; a domain that was borrowed without its info may be of `efa-direct`.
fn ordering(domain: &Domain, access: Access) -> RegionOrdering {
    let honoured = domain.info().is_none_or(|info| info.fabric_name() == EFA_DIRECT);
    if honoured { RegionOrdering::requested_by(access) } else { RegionOrdering::Strict }
}

/// Checks that a key fits the 32 bits that entries have for it.
fn key(key: u64) -> Result<RemoteKey> {
    const OPERATION: &str = "fi_mr_key";
    if key == fi::FI_KEY_NOTAVAIL {
        return Err(error::no_key(OPERATION));
    }
    u32::try_from(key).map(RemoteKey::new).map_err(|_| error::key_too_wide(OPERATION, key, 32))
}
