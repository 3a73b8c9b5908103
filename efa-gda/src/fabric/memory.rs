//! Memory that the adapter may reach: buffers, regions, and what a peer needs to reach one.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::fi;
use efa_gda_wire::RemoteKey;

use super::Domain;
use super::error::{Error, Result};
use super::object::{Context, InContext, Object, table_op};
use crate::memory::{Access, Buffer, DeviceMemory, Owner, RemoteRegion, in_bounds};
use crate::ownership::into_sole_owner;

const REGISTER: &str = "fi_mr_reg";

/// A registered memory region. Cheap to clone; deregistered with its last clone, and only then is a
/// buffer that it owns freed.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<RegionInner>);

#[derive(Debug)]
struct RegionInner {
    object: Object<fi::fid_mr, RegionParents>,
    start: NonNull<u8>,
    length: usize,
    access: Access,
    remote_key: RemoteKey,
}

// SAFETY: `start` is an address that is handed to the adapter and never dereferenced here.
unsafe impl Send for RegionInner {}
// SAFETY: as above.
unsafe impl Sync for RegionInner {}

#[derive(Debug)]
struct RegionParents {
    memory: RegionMemory,
    domain: Domain,
}

/// Whose memory a region is of.
enum RegionMemory {
    /// The region's own.
    Buffer(Buffer),
    /// A GPU's, with what keeps it allocated.
    Device { ordinal: i32, owner: Owner },
    /// The caller's.
    Foreign,
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(buffer) => buffer.fmt(f),
            Self::Device { ordinal, .. } => write!(f, "of GPU {ordinal}"),
            Self::Foreign => f.write_str("the caller's"),
        }
    }
}

impl InContext for RegionParents {
    fn context(&self) -> &Context {
        self.domain.context()
    }
}

impl MemoryRegion {
    /// Registers `buffer`, which the region then owns.
    ///
    /// # Errors
    /// [`Error::Call`] with the answer of `fi_mr_reg` (ENOMEM is usually the memlock limit);
    /// [`Error::KeyNotAvailable`] or [`Error::KeyTooWide`] for a key that no entry can carry.
    pub fn register(domain: &Domain, buffer: Buffer, access: Access) -> Result<Self> {
        let (start, length) = (buffer.start(), buffer.len());
        // SAFETY: the memory is the buffer's, which the region keeps until it is deregistered.
        unsafe { Self::open(domain, start, length, access, RegionMemory::Buffer(buffer)) }
    }

    /// Registers memory of the caller's.
    ///
    /// # Safety
    /// The `length` bytes from `start` on stay mapped until the region is deregistered: until its
    /// last clone is gone, and the endpoint of any queue that was poisoned while it used the region
    /// ([`crate::queue`]). Until then the adapter reads and writes them as `access` allows.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub unsafe fn register_foreign(
        domain: &Domain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: passed on to the caller.
        unsafe { Self::open(domain, start, length, access, RegionMemory::Foreign) }
    }

    /// # Safety
    /// As [`Self::register_foreign`], where `memory` is not what holds it.
    unsafe fn open(
        domain: &Domain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
        memory: RegionMemory,
    ) -> Result<Self> {
        let raw = domain.as_ptr();
        // SAFETY: an open domain points to its table, or to none.
        let register = unsafe { table_op!((*raw).mr, fi_ops_mr.reg, REGISTER) }?;
        let mut region = std::ptr::null_mut();
        let serialized = domain.context().serialize_calls();
        // SAFETY: the domain is open, the memory is the caller's to register, and `region` can be
        // written. Offset, key and flags are 0: the provider chooses the key (FI_MR_PROV_KEY).
        let code = unsafe {
            register(
                raw.cast(),
                start.as_ptr().cast(),
                length,
                access.bits(),
                0,
                0,
                0,
                &mut region,
                std::ptr::null_mut(),
            )
        };
        drop(serialized);
        // SAFETY: the call that returned `code` opened `region`, and nobody else knows it.
        unsafe { Self::adopt(domain, code, region, memory, (start, length), access) }
    }

    /// Takes over a region of device memory that [`super::device_memory`] registered.
    ///
    /// # Safety
    /// `raw` is an open region of the domain and of `memory`, and nobody else closes it.
    pub(super) unsafe fn adopt_device(
        domain: &Domain,
        raw: *mut fi::fid_mr,
        memory: DeviceMemory,
        access: Access,
    ) -> Result<Self> {
        let place = (memory.address, memory.length);
        let held = RegionMemory::Device { ordinal: memory.ordinal, owner: memory.owner };
        // SAFETY: passed on to the caller.
        unsafe { Self::adopt(domain, 0, raw, held, place, access) }
    }

    /// # Safety
    /// As for [`Object::adopt`], and the region is of the place given.
    unsafe fn adopt(
        domain: &Domain,
        code: i32,
        region: *mut fi::fid_mr,
        memory: RegionMemory,
        (start, length): (NonNull<u8>, usize),
        access: Access,
    ) -> Result<Self> {
        let parents = RegionParents { memory, domain: domain.clone() };
        // SAFETY: passed on to the caller.
        let object = unsafe { Object::adopt(REGISTER, code, region, parents) }?;
        // SAFETY: the region is open; its key is set by its registration (fi_mr_key).
        let remote_key = key(unsafe { (&raw const (*object.raw()).key).read() })?;
        Ok(Self(Arc::new(RegionInner { object, start, length, access, remote_key })))
    }

    /// Deregisters the memory and says how that went. Where it fails, a buffer that the region owns
    /// stays allocated for the life of the process.
    ///
    /// # Errors
    /// [`Error::Busy`] while a queue or another clone uses it; [`Error::Call`] with the answer of
    /// `fi_close`.
    pub fn close(self) -> Result<()> {
        match into_sole_owner(self.0) {
            Ok(inner) => inner.object.close(),
            Err(holders) => Err(Error::Busy { what: "memory region", holders }),
        }
    }

    /// Whether others hold a handle of it.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Its first byte; an address of a GPU's where [`Self::device`] says so.
    pub fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// Its address, as entries carry it.
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

    /// What may be done with it.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The memory, where the region owns it.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.0.object.parents().memory {
            RegionMemory::Buffer(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The GPU whose memory it is, as CUDA counts; None where it is the host's.
    pub fn device(&self) -> Option<i32> {
        match &self.0.object.parents().memory {
            RegionMemory::Device { ordinal, .. } => Some(*ordinal),
            _ => None,
        }
    }

    /// What keeps the memory of a GPU allocated, where that is a `T`.
    pub(crate) fn owner<T: std::any::Any>(&self) -> Option<&T> {
        match &self.0.object.parents().memory {
            RegionMemory::Device { owner, .. } => owner.downcast_ref(),
            _ => None,
        }
    }

    /// The key that peers use for it (`fi_mr_key`).
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

    /// The region itself, for calls that this library does not have.
    pub fn as_ptr(&self) -> *mut fi::fid_mr {
        self.0.object.raw()
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.0.object.parents().domain
    }
}

/// A key that fits the 32 bits that entries have for it.
fn key(key: u64) -> Result<RemoteKey> {
    const OPERATION: &str = "fi_mr_key";
    if key == fi::FI_KEY_NOTAVAIL {
        return Err(Error::KeyNotAvailable { operation: OPERATION });
    }
    u32::try_from(key).map(RemoteKey::new).map_err(|_| Error::KeyTooWide {
        operation: OPERATION,
        key,
        bits: 32,
    })
}
