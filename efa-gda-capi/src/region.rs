//! Regions: memory of the caller that is registered with a domain.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda::OpenDomain;
use efa_gda::memory::{Access, DeviceMemory, Dmabuf};
use efa_gda::queue::Region;
use efa_gda::wire::LocalKey;
use efa_gda_sys::fi::FI_EFA_MR_RELAXED_ORDERING;

use crate::error::{Code, Fault};
use crate::handles::Table;
use crate::queue::QUEUES;
use crate::{Handle, Out, call, call_for};

static REGIONS: Table<OpenRegion> = Table::new("region", 2 << 32);

struct OpenRegion {
    region: Region,
    lkey: LocalKey,
}

/// Registers memory for the domain of a queue with `register`, and returns the region's handle.
fn open(queue: Handle, register: impl FnOnce(&OpenDomain) -> Result<Region, Fault>) -> Result<Handle, Fault> {
    // Without the queue's lock, which a wait holds.
    let queue = QUEUES.get(queue)?;
    let region = register(&queue.shared.domain)?;
    let lkey = queue.shared.domain.local_key(&region)?;
    Ok(REGIONS.insert(OpenRegion { region, lkey }, ()))
}

/// Returns the open region of a handle.
pub(crate) fn region(handle: Handle) -> Result<Region, Fault> {
    REGIONS.with(handle, |(), open| Ok(open.region.clone()))
}

fn access(bits: u64) -> Result<Access, Fault> {
    let (rights, relaxed) = (bits & !FI_EFA_MR_RELAXED_ORDERING, bits & FI_EFA_MR_RELAXED_ORDERING != 0);
    let access = Access::from_bits(rights).ok_or_else(|| {
        Fault::argument(format_args!(
            "access {bits:#x}: expected one or more values of enum efa_gda_access, and no other bits but \
             EFA_GDA_ACCESS_RELAXED_ORDERING"
        ))
    })?;
    Ok(if relaxed { access | Access::RELAXED_ORDERING } else { access })
}

/// See `efa_gda.h`.
///
/// # Safety
/// The memory must be as the header demands. `region` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_region_register(
    queue: Handle,
    start: *mut c_void,
    length: usize,
    access_bits: u64,
    region: Out<Handle>,
) -> c_int {
    let body = || {
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| Fault::null("the memory"))?;
        let access = access(access_bits)?;
        // SAFETY: the caller guarantees that the memory stays mapped until the region is closed.
        open(queue, |domain| Ok(unsafe { domain.register_foreign(start, length, access) }?))
    };
    call_for(region, "the pointer to the region", body)
}

/// See `efa_gda.h`.
///
/// # Safety
/// The GPU's memory must be as the header demands. `dmabuf` must be negative or an open descriptor. `region` must be
/// null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_region_register_gpu(
    queue: Handle,
    address: u64,
    length: usize,
    gpu: c_int,
    dmabuf: c_int,
    offset: u64,
    access_bits: u64,
    region: Out<Handle>,
) -> c_int {
    let body = || {
        let access = access(access_bits)?;
        if gpu < 0 {
            return Err(Fault::argument(format_args!("GPU {gpu}: expected 0 or more")));
        }
        // SAFETY: the caller guarantees a negative number or an open descriptor.
        let dmabuf = unsafe { duplicated(dmabuf, offset) }?;
        // SAFETY: the caller guarantees that the memory stays allocated until the region is closed.
        let memory = unsafe { DeviceMemory::new(address, length, gpu, dmabuf, Arc::new(())) };
        let memory = memory.ok_or_else(|| Fault::null("the memory"))?;
        open(queue, |domain| Ok(domain.register_device(memory, access)?))
    };
    call_for(region, "the pointer to the region", body)
}

/// Duplicates the caller's descriptor of a dmabuf. The inner error is the reason why there is none.
///
/// # Safety
/// `file` must be negative or an open descriptor.
unsafe fn duplicated(file: c_int, offset: u64) -> Result<Result<Dmabuf, String>, Fault> {
    if file < 0 {
        return Ok(Err("the caller passed no dmabuf".to_owned()));
    }
    // SAFETY: the caller guarantees an open descriptor.
    let owned = unsafe { BorrowedFd::borrow_raw(file) }.try_clone_to_owned().map_err(|error| {
        Fault::argument(format_args!("descriptor {file} of the dmabuf cannot be duplicated: {error}"))
    })?;
    Ok(Ok(Dmabuf { file: owned, offset }))
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_region_keys(region: Handle, lkey: Out<u32>, rkey: Out<u32>) -> c_int {
    call(|| {
        REGIONS.with(region, |(), open| {
            lkey.set(open.lkey.get());
            rkey.set(open.region.remote_key().get());
            Ok(())
        })
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_retain(queue: Handle, region: Handle) -> c_int {
    call(|| {
        let region = self::region(region)?;
        QUEUES.with(queue, |_, queue| Ok(queue.retain(&region).map(drop)?))
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_region_close(handle: Handle) -> c_int {
    call(|| {
        REGIONS.close(handle, |open, _| match open.region.try_close() {
            Err(region) => {
                let fault = Fault::new(
                    Code::Busy,
                    "a queue retains the region, or a call of another thread uses it; close or destroy the queue, or \
                     wait for the call, and close the region again",
                );
                (Some(OpenRegion { region, ..open }), Err(fault))
            }
            Ok(closed) => (None, closed.map_err(Fault::from)),
        })
    })
}
