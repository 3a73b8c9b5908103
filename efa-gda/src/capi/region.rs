//! Regions: memory of the caller's, registered.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::domain::{OpenDomain, Parts};
use super::error::{Code, Fault};
use super::handles::Table;
use super::{Handle, entry, fill, given};
use crate::fabric::{Access, DeviceMemory, Dmabuf, Error, MemoryRegion, Registration};

static REGIONS: Table<OpenRegion> = Table::new("region", 2 << 32);

pub(super) struct OpenRegion {
    /// None while it is being closed.
    region: Mutex<Option<MemoryRegion>>,
    is_dmabuf: bool,
    parts: Parts,
}

/// `struct efa_gda_region_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RegionInfo {
    size: usize,
    address: u64,
    length: u64,
    lkey: u32,
    rkey: u32,
    is_dmabuf: u32,
    reserved: u32,
}

/// The region behind a handle.
pub(super) fn region(handle: Handle) -> Result<MemoryRegion, Fault> {
    let open = REGIONS.get(handle)?;
    let region = open.region.lock().unwrap_or_else(PoisonError::into_inner);
    region.clone().ok_or_else(|| Fault::argument("the region is being closed"))
}

fn access(bits: u64) -> Result<Access, Fault> {
    Access::from_bits(bits)
        .ok_or_else(|| Fault::argument(format_args!("access {bits:#x} is none, or not known")))
}

/// See `efa_gda.h`.
///
/// # Safety
/// The memory is as the header asks; `region` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_region_register(
    domain: Handle,
    start: *mut c_void,
    length: usize,
    access_bits: u64,
    region: *mut Handle,
) -> c_int {
    entry(|| {
        given(region, "the place for the region")?;
        let parts = OpenDomain::parts(domain)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| Fault::null("the memory"))?;
        let access = access(access_bits)?;
        // SAFETY: the caller keeps the memory until the region is closed.
        let made = unsafe { MemoryRegion::register_foreign(&parts.domain, start, length, access) }?;
        let open = OpenRegion { region: Mutex::new(Some(made)), is_dmabuf: false, parts };
        // SAFETY: not null, and the caller's place.
        unsafe { region.write(REGIONS.insert(open)) };
        Ok(())
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// As [`efa_gda_region_register`], for memory of a GPU; `dmabuf` is -1 or an open descriptor of it.
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
    entry(|| {
        given(region, "the place for the region")?;
        let parts = OpenDomain::parts(domain)?;
        let access = access(access_bits)?;
        if gpu < 0 {
            return Err(Fault::argument(format_args!("GPU {gpu} is none")));
        }
        let dmabuf = if dmabuf < 0 {
            Err("none was given".to_owned())
        } else {
            // SAFETY: an open descriptor, by the caller's promise; it is only duplicated.
            let file = unsafe { BorrowedFd::borrow_raw(dmabuf) }.try_clone_to_owned();
            Ok(Dmabuf { file: file.map_err(Fault::argument)?, offset })
        };
        // SAFETY: the caller keeps the memory until the region is closed.
        let memory = unsafe { DeviceMemory::new(address, length, gpu, dmabuf, Arc::new(())) };
        let memory = memory.ok_or_else(|| Fault::null("the memory"))?;
        let (made, how) = MemoryRegion::register_device(&parts.domain, memory, access)?;
        let is_dmabuf = how == Registration::Dmabuf;
        let open = OpenRegion { region: Mutex::new(Some(made)), is_dmabuf, parts };
        // SAFETY: not null, and the caller's place.
        unsafe { region.write(REGIONS.insert(open)) };
        Ok(())
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `info` is null or a struct of the header's, with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_region_describe(handle: Handle, info: *mut RegionInfo) -> c_int {
    entry(|| {
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
        // SAFETY: the caller's struct.
        unsafe { fill(info, "the region's info", value) }
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_region_close(handle: Handle) -> c_int {
    entry(|| {
        let open = REGIONS.get(handle)?;
        let mut slot = open.region.lock().unwrap_or_else(PoisonError::into_inner);
        let region = slot.take().ok_or_else(|| Fault::argument("the region is being closed"))?;
        if region.is_shared() {
            *slot = Some(region);
            return Err(Fault::new(Code::Busy, "a queue keeps the region; close or destroy the queue first"));
        }
        REGIONS.remove(handle)?;
        // What another thread took meanwhile shows as busy, and goes with that thread's call.
        match region.close() {
            Err(Error::Busy { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
}
