//! Registration of host memory, and keys of regions.

use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::fi;
use efa_gda_wire::RemoteKey;

use super::error;
use super::object::{Object, table_op};
use super::{Domain, EFA_DIRECT};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::memory::{Access, Buffer, DeviceMemory, Region, RegionMemory, RegionOrdering, Registered};

const REGISTER: &str = "fi_mr_reg";

/// The object of a region, with its memory and its domain, which must outlive it.
pub(super) type MemoryObject = Object<fi::fid_mr, (Arc<RegionMemory>, Domain)>;

impl Domain {
    /// Registers a buffer. The region owns it.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `fi_mr_reg` fails (ENOMEM is usually the memlock limit, FI_EBADFLAGS a libfabric before
    /// 2.7 that does not know [`Access::RELAXED_ORDERING`]), and for a key that no entry can carry.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Region> {
        let (start, length) = (buffer.start(), buffer.len());
        // SAFETY: the buffer owns the memory, and the region owns the buffer until it is deregistered.
        unsafe { self.register_host(start, length, access, RegionMemory::Buffer(buffer)) }
    }

    /// Registers memory that the caller owns.
    ///
    /// # Safety
    /// The `length` bytes from `start` must stay mapped until the region is deregistered: until its last clone,
    /// and every endpoint that retains it, is dropped. Until then the adapter reads and writes the bytes as
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
        unsafe { self.register_host(start, length, access, RegionMemory::Foreign) }
    }

    /// # Safety
    /// As for [`Self::register_foreign`], unless `memory` keeps the bytes mapped.
    unsafe fn register_host(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: Access,
        memory: RegionMemory,
    ) -> Result<Region> {
        let raw = self.as_ptr();
        // SAFETY: an open domain points to its operation table, or to null.
        let register = unsafe { table_op!((*raw).mr, fi_ops_mr.reg, REGISTER) }?;
        let (buf, bits, flags) = (start.as_ptr().cast(), access.bits(), access.registration_flags());
        let call = |region: *mut _| {
            // SAFETY: the domain is open, the caller may register the memory, and `region` can be written. Offset and
            // key are 0: the provider chooses the key (FI_MR_PROV_KEY).
            unsafe { register(raw.cast(), buf, length, bits, 0, 0, flags, region, std::ptr::null_mut()) }
        };
        let memory = Arc::new(memory);
        // SAFETY: no other handle exists to the region that the call opens.
        let object = unsafe { Object::open(REGISTER, self.context(), (memory.clone(), self.clone()), call) };
        self.region(object?, memory, (start, length), access)
    }

    /// Takes ownership of a region of GPU memory that [`super::device_memory`] registered.
    ///
    /// # Safety
    /// `raw` must be an open region of the domain and of `memory`, and no other code may close it.
    pub(super) unsafe fn adopt_device(
        &self,
        raw: NonNull<fi::fid_mr>,
        memory: DeviceMemory,
        access: Access,
    ) -> Result<Region> {
        let DeviceMemory { address, length, ordinal, owner, .. } = memory;
        let memory = Arc::new(RegionMemory::Device { ordinal, owner });
        // SAFETY: the caller guarantees it, as this function requires.
        let object = unsafe { Object::adopt(raw, self.context().clone(), (memory.clone(), self.clone())) };
        self.region(object, memory, (address, length), access)
    }

    fn region(
        &self,
        object: MemoryObject,
        memory: Arc<RegionMemory>,
        (start, length): (NonNull<u8>, usize),
        access: Access,
    ) -> Result<Region> {
        // SAFETY: the region is open; its registration sets the key (fi_mr_key).
        let remote_key = key(unsafe { (&raw const (*object.raw()).key).read() })?;
        let (address, ordering) = (start.as_ptr() as u64, ordering(self, access));
        let object = Box::new(object);
        Ok(Registered { object, memory, address, length, access, ordering, remote_key }.into())
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
