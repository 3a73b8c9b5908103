//! Memory registration: `fi_mr_reg`, `fi_mr_regv` and `fi_mr_regattr`, for memory of the process, of a file
//! and of a GPU. The device core checks keys and ranges.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::fi;

use crate::cuda::GpuMemory;
use crate::device::{Access, HostMemory, Memory, MemoryKeys, MemoryRegionAttr, Warning};

use super::candidate;
use super::config::{Config, Defect, RELEASE_2_7};
use super::domain::{Domain, Shared};
use super::ffi::{self, Code, Object};
use super::mapping::Mapping;
use super::references::Reference;

/// The first API with FI_MR_DMABUF.
const FIRST_DMABUF_API: u32 = fi::fi_version(1, 20);

/// An open memory region.
#[repr(C)]
pub(crate) struct Region {
    fid: fi::fid_mr,
    keys: MemoryKeys,
    domain: Arc<Shared>,
    _reference: Reference,
}

static FID_OPS: ffi::Table<fi::fi_ops> = ffi::only_close(close);

static OPS: ffi::Table<fi::fi_ops_mr> = ffi::Table::new(fi::fi_ops_mr {
    size: size_of::<fi::fi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
});

/// The operations for `fid_domain::mr`.
pub(crate) fn ops() -> *mut fi::fi_ops_mr {
    OPS.as_ptr()
}

// SAFETY: repr(C), begins with fid_mr, which begins with fid; only this type uses FID_OPS.
unsafe impl Object for Region {
    const CLASS: u32 = fi::FI_CLASS_MR;
    fn ops() -> *const fi::fi_ops {
        FID_OPS.as_ptr()
    }
}

impl Region {
    pub(crate) fn keys(&self) -> MemoryKeys {
        self.keys
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // After this call the engine does not access the memory.
        if let Err(error) = self.domain.adapter.deregister_memory(self.keys.local) {
            ffi::log(format_args!(
                "memory region with lkey {}: deregistering it on close failed: {error}",
                self.keys.local
            ));
        }
    }
}

/// A registration, in the same form for all three calls.
struct Request {
    address: u64,
    length: u64,
    access: u64,
    memory: Arc<dyn Memory>,
    context: *mut c_void,
}

/// Takes FI_EFA_MR_RELAXED_ORDERING out of the flags of a registration. Returns the other flags, and the ordering. The
/// plain fabric ignores the flag. A release before 2.7 does not have it: then it stays among the flags, and the caller
/// refuses it.
///
/// # Safety
/// `fid` must be an open fid.
unsafe fn take_ordering(fid: *mut fi::fid, flags: u64) -> Result<(u64, Access), Code> {
    const RELAXED: u64 = fi::FI_EFA_MR_RELAXED_ORDERING;
    // SAFETY: the caller's contract.
    let domain = unsafe { ffi::object::<Domain>(fid) }?.shared();
    if flags & RELAXED == 0 || Config::get().is_ok_and(|config| config.version < RELEASE_2_7) {
        return Ok((flags, Access::default()));
    }
    match domain.fabric {
        candidate::Fabric::Direct => Ok((flags & !RELAXED, Access::RELAXED_ORDERING)),
        candidate::Fabric::Plain => Ok((flags & !RELAXED, Access::default())),
    }
}

unsafe extern "C" fn reg(
    fid: *mut fi::fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain.
        let (flags, ordering) = unsafe { take_ordering(fid, flags) }?;
        require_no_flags(flags)?;
        // SAFETY: libfabric's contract for registered memory.
        let request = unsafe { host_request(buf, len, access, context) }?;
        // SAFETY: libfabric's contract: an open domain, and `mr` null or writable.
        unsafe { register(fid, request, ordering, mr) }
    })
}

unsafe extern "C" fn regv(
    fid: *mut fi::fid,
    iov: *const fi::iovec,
    count: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain.
        let (flags, ordering) = unsafe { take_ordering(fid, flags) }?;
        require_no_flags(flags)?;
        // SAFETY: libfabric's contract: null, or a vector of `count` segments.
        let segment = unsafe { single_segment(iov, count) }?;
        // SAFETY: libfabric's contract for registered memory.
        let request = unsafe { host_request(segment.iov_base, segment.iov_len, access, context) }?;
        // SAFETY: libfabric's contract: an open domain, and `mr` null or writable.
        unsafe { register(fid, request, ordering, mr) }
    })
}

unsafe extern "C" fn regattr(
    fid: *mut fi::fid,
    attr: *const fi::fi_mr_attr,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain.
        let domain = unsafe { ffi::object::<Domain>(fid) }?.shared();
        // SAFETY: as above.
        let (flags, ordering) = unsafe { take_ordering(fid, flags) }?;
        if attr.is_null() {
            return Err(Code::INVALID);
        }
        // SAFETY: not null. The struct's length depends on the API version that the application requested.
        // Every version has these fields, and each is read separately.
        let (access, context) = unsafe { ((*attr).access, (*attr).context) };
        // SAFETY: `iface` exists in every API that has FI_HMEM, with which the domain was opened. Without
        // FI_HMEM all memory is the system's, as in the real provider.
        let kind = if domain.hmem { unsafe { (*attr).iface } } else { fi::FI_HMEM_SYSTEM };
        if kind != fi::FI_HMEM_SYSTEM && kind != fi::FI_HMEM_CUDA {
            return Err(Code::NOT_PROVIDED);
        }
        // The real provider, too, treats all GPU memory as device-only, so this flag changes nothing.
        let flags = flags & !fi::FI_HMEM_DEVICE_ONLY;
        let any_api = Config::get().is_ok_and(|config| config.dmabuf_for_old_api);
        let request = if flags == fi::FI_MR_DMABUF && (domain.api >= FIRST_DMABUF_API || any_api) {
            // SAFETY: libfabric's contract: with this flag the union holds a dmabuf.
            unsafe { dmabuf_request(&domain, (*attr).__bindgen_anon_1.dmabuf, access, context) }?
        } else {
            require_no_flags(flags)?;
            // SAFETY: libfabric's contract: without that flag the union holds a vector of `iov_count`
            // segments.
            let segment = unsafe { single_segment((*attr).__bindgen_anon_1.mr_iov, (*attr).iov_count) }?;
            if kind == fi::FI_HMEM_CUDA {
                require_gpu_memory()?;
                let (address, length) = (segment.iov_base.addr() as u64, segment.iov_len as u64);
                let memory = Arc::new(gpu_memory(&domain, address, length)?);
                Request { address, length, access, memory, context }
            } else {
                // SAFETY: libfabric's contract for registered memory.
                unsafe { host_request(segment.iov_base, segment.iov_len, access, context) }?
            }
        };
        // SAFETY: libfabric's contract: an open domain, and `mr` null or writable.
        unsafe { register(fid, request, ordering, mr) }
    })
}

/// Refuses GPU memory as the injected defect does.
fn require_gpu_memory() -> Result<(), Code> {
    // SAFETY: both calls only return numbers. The main thread's is the process's.
    let in_thread = || unsafe { libc::gettid() != libc::getpid() };
    match Config::get().ok().and_then(|config| config.defect) {
        Some(Defect::GpuMemory(code)) => Err(Code::of_system(code)),
        Some(Defect::GpuMemoryOfThreads) if in_thread() => Err(Code::NOT_SUPPORTED),
        _ => Ok(()),
    }
}

fn require_no_flags(flags: u64) -> Result<(), Code> {
    if flags == 0 { Ok(()) } else { Err(Code::BAD_FLAGS) }
}

/// The only segment of a vector; an error for any other number of segments.
///
/// # Safety
/// `iov` must be null or a vector of `count` segments.
unsafe fn single_segment(iov: *const fi::iovec, count: usize) -> Result<fi::iovec, Code> {
    if iov.is_null() || count != 1 {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, with one segment.
    Ok(unsafe { iov.read() })
}

/// A registration of memory of this process.
///
/// # Safety
/// The application must keep `len` bytes at `buf` mapped until it closes the region, and must access them as
/// memory that an adapter may access at any time.
unsafe fn host_request(
    buf: *const c_void,
    len: usize,
    access: u64,
    context: *mut c_void,
) -> Result<Request, Code> {
    let start = NonNull::new(buf.cast::<u8>().cast_mut()).ok_or(Code::INVALID)?;
    if !is_readable(buf, len) {
        ffi::log(format_args!(
            "memory region of {len} bytes at {buf:p} not registered: the CPU cannot read that memory; register GPU \
             memory with fi_mr_regattr and FI_HMEM_CUDA"
        ));
        return Err(Code::BAD_ADDRESS);
    }
    Ok(Request {
        address: buf.addr() as u64,
        length: len as u64,
        access,
        // SAFETY: the caller's contract; closing the region deregisters the memory before it returns.
        memory: Arc::new(unsafe { HostMemory::new(start, len) }),
        context,
    })
}

/// Whether the CPU can read the first and the last byte. Without this check, an address of GPU memory would
/// crash the process later, in the engine. The driver of a real adapter refuses to pin such memory.
pub(crate) fn is_readable(buf: *const c_void, len: usize) -> bool {
    let Some(last) = len.checked_sub(1) else { return true };
    [buf, buf.wrapping_byte_add(last)].into_iter().all(|address| {
        let mut byte = 0_u8;
        let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let from = libc::iovec { iov_base: address.cast_mut(), iov_len: 1 };
        // SAFETY: reads at most one byte into `byte`; an address that is not mapped is an error. If the call
        // itself is forbidden, the memory counts as readable, because nothing is known about it.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
        read >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    })
}

/// A range of GPU memory.
///
/// # Errors
/// [`Code::NOT_PROVIDED`] if the range is not GPU memory or CUDA is not usable; the reason is logged.
pub(crate) fn gpu_memory(domain: &Shared, address: u64, length: u64) -> Result<GpuMemory, Code> {
    let log = domain.adapter.warning_log();
    let report = move |reason: String| {
        ffi::log(format_args!("{reason}"));
        log.warn(Warning::MemoryUnreachable(reason));
    };
    GpuMemory::new(address, length, Box::new(report)).map_err(|reason| {
        ffi::log(format_args!("{reason}"));
        Code::NOT_PROVIDED
    })
}

/// A registration of a file that the CPU can map, or of GPU memory. GPU memory is accessed at the address
/// that the application passes, because the descriptor does not reveal it.
///
/// # Safety
/// `dmabuf` must be null or readable.
unsafe fn dmabuf_request(
    domain: &Shared,
    dmabuf: *const fi::fi_mr_dmabuf,
    access: u64,
    context: *mut c_void,
) -> Result<Request, Code> {
    if dmabuf.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, so readable by the caller's contract.
    let segment = unsafe { dmabuf.read() };
    // Entries use the address that the application passed.
    let address = (segment.base_addr.addr() as u64).wrapping_add(segment.offset);
    let length = segment.len as u64;
    let memory: Arc<dyn Memory> = match Mapping::new(segment.fd, segment.offset, segment.len) {
        Ok(mapping) => Arc::new(mapping.with_address(address)),
        Err(Code::NOT_SUPPORTED) => {
            Arc::new(gpu_memory(domain, address, length).map_err(|_| Code::NOT_SUPPORTED)?)
        }
        Err(code) => return Err(code),
    };
    Ok(Request { address, length, access, memory, context })
}

/// Registers the memory with the adapter and returns the region to C.
///
/// # Safety
/// `fid` must be an open fid, and `mr` null or writable.
unsafe fn register(
    fid: *mut fi::fid,
    request: Request,
    ordering: Access,
    mr: *mut *mut fi::fid_mr,
) -> Result<(), Code> {
    // SAFETY: the caller's contract.
    let domain = unsafe { ffi::object::<Domain>(fid) }?;
    if mr.is_null() {
        return Err(Code::INVALID);
    }
    let shared = domain.shared();
    let keys = shared.adapter.register_memory(MemoryRegionAttr {
        pd: shared.pd,
        address: request.address,
        length: request.length,
        access: adapter_access(request.access) | ordering,
        memory: request.memory,
    })?;
    let region = ffi::expose::<Region, fi::fid_mr>(Box::new(Region {
        fid: fi::fid_mr {
            fid: ffi::header::<Region>(request.context),
            mem_desc: std::ptr::null_mut(),
            key: keys.remote.get().into(),
        },
        keys,
        domain: shared,
        _reference: domain.add_reference(),
    }));
    // SAFETY: the region was just created and is not shared yet. Its descriptor is its own address.
    unsafe { (*region).mem_desc = region.cast() };
    // SAFETY: the caller's contract.
    unsafe { ffi::store(mr, region) }
}

/// Translates libfabric's access rights to the adapter's, as the real provider does
/// (`efa_mr_ofi_to_ibv_access`): 0, or any right that it does not know, means send and receive, and peers may
/// read the source of a send.
fn adapter_access(access: u64) -> Access {
    const KNOWN: u64 =
        fi::FI_SEND | fi::FI_RECV | fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
    let access = if access == 0 || access & !KNOWN != 0 { fi::FI_SEND | fi::FI_RECV } else { access };
    let mut rights = Access::LOCAL_READ;
    if access & (fi::FI_RECV | fi::FI_READ | fi::FI_REMOTE_WRITE) != 0 {
        rights = rights | Access::LOCAL_WRITE;
    }
    if access & (fi::FI_REMOTE_READ | fi::FI_SEND) != 0 {
        rights = rights | Access::REMOTE_READ;
    }
    if access & fi::FI_REMOTE_WRITE != 0 {
        rights = rights | Access::REMOTE_WRITE;
    }
    rights
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    // SAFETY: libfabric's contract for close: an open fid, not used again.
    ffi::entry(|| unsafe { ffi::reclaim::<Region>(fid) }.map(drop))
}
