//! Regions: memory of the caller that is registered with a domain.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use efa_gda::fabric::{Access, DeviceMemory, Dmabuf, Error, MemoryRegion, Registration};

use crate::domain::{OpenDomain, Parts};
use crate::error::{Code, Fault};
use crate::handles::Table;
use crate::{Handle, call, refuse_null, write_struct};

static REGIONS: Table<OpenRegion> = Table::new("region", 2 << 32);

struct OpenRegion {
    /// None while it is being closed.
    region: Mutex<Option<MemoryRegion>>,
    is_dmabuf: bool,
    parts: Parts,
}

/// `struct efa_gda_region_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RegionInfo {
    pub(crate) size: usize,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) is_dmabuf: u32,
    pub(crate) reserved: u32,
}

/// Returns the open region of a handle.
pub(crate) fn region(handle: Handle) -> Result<MemoryRegion, Fault> {
    let open = REGIONS.get(handle)?;
    let region = open.region.lock().unwrap_or_else(PoisonError::into_inner);
    region.clone().ok_or_else(being_closed)
}

fn being_closed() -> Fault {
    Fault::argument("the region is being closed")
}

fn access(bits: u64) -> Result<Access, Fault> {
    Access::from_bits(bits).ok_or_else(|| {
        Fault::argument(format_args!(
            "access {bits:#x}: expected one or more values of enum efa_gda_access, and no other bits"
        ))
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// The memory must be as the header demands. `region` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_region_register(
    domain: Handle,
    start: *mut c_void,
    length: usize,
    access_bits: u64,
    region: *mut Handle,
) -> c_int {
    call(|| {
        refuse_null(region, "the pointer to the region")?;
        let parts = OpenDomain::parts(domain)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| Fault::null("the memory"))?;
        let access = access(access_bits)?;
        // SAFETY: the caller guarantees that the memory stays mapped until the region is closed.
        let registered = unsafe { MemoryRegion::register_foreign(&parts.domain, start, length, access) }?;
        let open = OpenRegion { region: Mutex::new(Some(registered)), is_dmabuf: false, parts };
        // SAFETY: it is not null, and the caller guarantees that it is writable.
        unsafe { region.write(REGIONS.insert(open)) };
        Ok(())
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// The GPU's memory must be as the header demands. `dmabuf` must be negative or an open descriptor. `region` must be null
/// or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_region_register_gpu(
    domain: Handle,
    address: u64,
    length: usize,
    gpu: c_int,
    dmabuf: c_int,
    offset: u64,
    access_bits: u64,
    region: *mut Handle,
) -> c_int {
    call(|| {
        refuse_null(region, "the pointer to the region")?;
        let parts = OpenDomain::parts(domain)?;
        let access = access(access_bits)?;
        if gpu < 0 {
            return Err(Fault::argument(format_args!("GPU {gpu}: expected 0 or more")));
        }
        let dmabuf = if dmabuf < 0 {
            Err("the caller passed no dmabuf".to_owned())
        } else {
            // SAFETY: the caller guarantees an open descriptor. It is only duplicated.
            let file = unsafe { BorrowedFd::borrow_raw(dmabuf) }.try_clone_to_owned();
            let file = file.map_err(|error| {
                Fault::argument(format_args!(
                    "descriptor {dmabuf} of the dmabuf cannot be duplicated: {error}"
                ))
            })?;
            Ok(Dmabuf { file, offset })
        };
        // SAFETY: the caller guarantees that the memory stays allocated until the region is closed.
        let memory = unsafe { DeviceMemory::new(address, length, gpu, dmabuf, Arc::new(())) };
        let memory = memory.ok_or_else(|| Fault::null("the memory"))?;
        let (registered, how) = MemoryRegion::register_device(&parts.domain, memory, access)?;
        let is_dmabuf = how == Registration::Dmabuf;
        let open = OpenRegion { region: Mutex::new(Some(registered)), is_dmabuf, parts };
        // SAFETY: it is not null, and the caller guarantees that it is writable.
        unsafe { region.write(REGIONS.insert(open)) };
        Ok(())
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `info` must be null or a struct of the header with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_region_describe(handle: Handle, info: *mut RegionInfo) -> c_int {
    call(|| {
        let open = REGIONS.get(handle)?;
        let region = region(handle)?;
        let value = RegionInfo {
            size: 0,
            address: region.address(),
            length: region.len() as u64,
            lkey: open.parts.ops.get_mr_lkey(&region)?.get(),
            rkey: region.remote_key().get(),
            is_dmabuf: open.is_dmabuf.into(),
            reserved: 0,
        };
        // SAFETY: the caller guarantees a struct with its size.
        unsafe { write_struct(info, "the region's info", value) }
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_region_close(handle: Handle) -> c_int {
    call(|| {
        let open = REGIONS.get(handle)?;
        let mut slot = open.region.lock().unwrap_or_else(PoisonError::into_inner);
        let region = slot.take().ok_or_else(being_closed)?;
        if region.is_shared() {
            *slot = Some(region);
            return Err(Fault::new(
                Code::Busy,
                "a queue retains the region; close or destroy the queue first",
            ));
        }
        REGIONS.remove(handle)?;
        match region.close() {
            // Busy: a call of another thread holds the region since the check above. It is deregistered when that call
            // returns.
            Err(Error::Busy { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
}
