//! The memory callbacks of a program with FI_XPU, which count their calls and fail on request.

#![allow(unreachable_pub, dead_code, reason = "each test binary uses its own part")]

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use efa_gda_sys::fi;

/// The callbacks as a context's attributes have them.
pub fn ops() -> fi::fi_xpu_ops {
    fi::fi_xpu_ops {
        size: size_of::<fi::fi_xpu_ops>(),
        alloc: Some(alloc),
        import: Some(import),
        free: Some(free),
    }
}

/// The device's kind: the CPU.
pub const IFACE: u32 = fi::FI_HMEM_SYSTEM;
/// The device's number, which callbacks get.
pub const DEVICE: u64 = 11;

/// What the callbacks were called for.
#[derive(Clone, Debug)]
pub struct Callbacks {
    pub allocated: usize,
    pub freed: usize,
    /// Start, bytes and flags.
    pub imported: Vec<(usize, u64, u64)>,
    fail: Option<Fail>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fail {
    Alloc,
    Import,
}

static CALLBACKS: Mutex<Callbacks> =
    Mutex::new(Callbacks { allocated: 0, freed: 0, imported: Vec::new(), fail: None });

pub fn calls() -> Callbacks {
    CALLBACKS.lock().unwrap().clone()
}

pub fn fail(fail: Option<Fail>) {
    CALLBACKS.lock().unwrap().fail = fail;
}

unsafe extern "C" fn alloc(
    device: u64,
    size: u64,
    alignment: u64,
    flags: u64,
    addr: *mut *mut c_void,
    _fd: *mut c_int,
    _offset: *mut u64,
) -> c_int {
    let mut calls = CALLBACKS.lock().unwrap();
    if device != DEVICE || flags != 0 {
        return -libc::EINVAL;
    }
    if calls.fail == Some(Fail::Alloc) {
        return -libc::ENOMEM;
    }
    calls.allocated += 1;
    // SAFETY: `addr` can be written (fi_xpu(3)). The memory is filled, as a device's allocator zeroes nothing.
    unsafe {
        let start = libc::aligned_alloc(alignment as usize, size.next_multiple_of(alignment) as usize);
        libc::memset(start, 0xa5, size as usize);
        *addr = start;
    }
    0
}

unsafe extern "C" fn import(
    device: u64,
    host: *mut c_void,
    size: u64,
    flags: u64,
    to: *mut *mut c_void,
) -> c_int {
    let mut calls = CALLBACKS.lock().unwrap();
    if device != DEVICE {
        return -libc::EINVAL;
    }
    if calls.fail == Some(Fail::Import) {
        return -libc::EPERM;
    }
    calls.imported.push((host.addr(), size, flags));
    // SAFETY: `to` can be written (fi_xpu(3)).
    unsafe { *to = host };
    0
}

unsafe extern "C" fn free(device: u64, addr: *mut c_void) {
    assert_eq!(device, DEVICE);
    CALLBACKS.lock().unwrap().freed += 1;
    // SAFETY: `alloc` allocated it, and it is freed once.
    unsafe { libc::free(addr) };
}
