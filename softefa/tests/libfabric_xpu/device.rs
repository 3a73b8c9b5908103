//! The device of a program with FI_XPU: the kernels of kernels/examples/fi_xpu.cu on the host executor.

#![allow(unreachable_pub, dead_code, reason = "each test binary uses its own part")]

use std::ffi::{OsStr, OsString, c_int};
use std::sync::OnceLock;

use efa_gda_sys::fi;
use efa_gda_test_support::compile::host_kernels;
use efa_gda_test_support::root;
use libloading::Library;

use super::program::Program;

/// What the kernels do, by the numbers of `enum fi_xpu_operation`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    Write,
    Read,
    Send,
    Receive,
}

/// FI_XPU_WORK_ITEM and its kin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scope {
    Thread,
    Warp,
    Block,
    Device,
}

/// `struct fi_xpu_example`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Args {
    pub ep: *const fi::fid_xpu_ep,
    pub cq: *const fi::fid_xpu_cq,
    pub cntr: *const fi::fid_xpu_cntr,
    pub peer: *const u64,
    pub desc: *const u32,
    pub local: *const u64,
    pub remote: u64,
    pub rkey: u64,
    pub bytes: u64,
    pub flags: u64,
    pub operation: u32,
    pub scope: i32,
    pub calls: u32,
    pub timeout: i32,
    pub threshold: u64,
    pub status: *mut i32,
    pub entries: *mut fi::fi_cq_data_entry,
    pub read: *mut u32,
}

// SAFETY: the kernels access what the pointers lead to as the device library allows.
unsafe impl Sync for Args {}

/// The compiled kernels.
pub struct Device(Library);

impl Device {
    /// Compiles the kernels for the host executor, after libfabric's header if `libfabric` names its folder.
    pub fn compiled(libfabric: Option<OsString>) -> &'static Self {
        let include = libfabric.unwrap_or_default();
        let after: &[&OsStr] = match include.is_empty() {
            true => &[],
            false => &["-DFI_XPU_EXAMPLE_WITH_LIBFABRIC".as_ref(), "-isystem".as_ref(), &include],
        };
        let file = host_kernels(&[root().join("kernels/examples/fi_xpu.cu")], after);
        // SAFETY: the library has no initialisers.
        Box::leak(Box::new(Self(unsafe { Library::new(file) }.expect("the compiled library loads"))))
    }

    pub fn get() -> &'static Self {
        static DEVICE: OnceLock<&'static Device> = OnceLock::new();
        DEVICE.get_or_init(|| Self::compiled(None))
    }

    /// # Safety
    /// `F` must be the type of the function in fi_xpu.cu.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's contract.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.unwrap()
    }

    /// fi_xpu_cntr_wait of one thread.
    pub fn wait(&self, program: &Program, threshold: u64, timeout: c_int) {
        type Wait = unsafe extern "C" fn(*const fi::fid_xpu_cntr, u64, c_int);
        // SAFETY: the type is the function's; the handle outlives the call.
        unsafe { self.function::<Wait>("fi_xpu_cntr_wait_on_host")(&program.exported.2, threshold, timeout) }
    }

    /// fi_xpu_cntr_wait, and then a further call, both of scope FI_XPU_DEVICE, of one block of a grid of `blocks`.
    pub fn wait_as_block(&self, program: &Program, timeout: c_int, block: u32, blocks: u32) -> c_int {
        type Wait = unsafe extern "C" fn(*const fi::fid_xpu_cntr, c_int, u32, u32) -> c_int;
        let cntr = &raw const program.exported.2;
        // SAFETY: as in `wait`.
        unsafe { self.function::<Wait>("fi_xpu_grid_waits_on_host")(cntr, timeout, block, blocks) }
    }

    /// The error that the device reports for a completion status.
    pub fn error_of(&self, status: u32) -> c_int {
        type ErrorOf = unsafe extern "C" fn(u32) -> c_int;
        // SAFETY: the type is the function's.
        unsafe { self.function::<ErrorOf>("fi_xpu_error_of_on_host")(status) }
    }

    /// fi_xpu_cntr_add (0), _set (1), _adderr (2) or _seterr (3).
    pub fn change(&self, program: &Program, how: u32, value: u64) -> i64 {
        type Change = unsafe extern "C" fn(*const fi::fid_xpu_cntr, u32, u64) -> i64;
        // SAFETY: as in `wait`.
        unsafe { self.function::<Change>("fi_xpu_cntr_change_on_host")(&program.exported.2, how, value) }
    }
}
