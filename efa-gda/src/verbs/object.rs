//! Code that all rdma-core objects share: functions that may be missing, results of calls, and the call that destroys
//! each object.

use std::ffi::c_int;
use std::ptr::NonNull;

use efa_gda_sys::verbs;

use super::Library;
use super::error;
#[cfg(doc)]
use crate::ErrorKind;
use crate::object::Destroy;
pub(super) use crate::object::Object;
use crate::{Error, Result};

/// Reads a function of rdma-core, or returns [`ErrorKind::Unsupported`]: `function!(library, ibv,
/// ibv_open_device)`.
macro_rules! function {
    ($library:expr, $table:ident, $name:ident) => {
        $library.core().$table().$name.ok_or_else(|| $crate::verbs::object::absent(stringify!($name)))
    };
}
pub(super) use function;

/// The error for a function that the loaded release lacks.
pub(super) fn absent(name: &'static str) -> Error {
    error::function_missing(&verbs::call(name).expect("every function of the tables is among the calls"))
}

/// The errno of this thread's last call.
fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Checks a returned code: 0 is success, any other an errno of either sign, or -1 with errno set. -EPERM is
/// also -1, so errno is read for it.
pub(super) fn check(operation: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(error::failed(operation, errno())),
        code => Err(error::failed(operation, code.saturating_abs())),
    }
}

/// Checks a returned pointer: null is a failure with errno set.
pub(super) fn pointer<T>(operation: &'static str, pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| error::failed(operation, errno()))
}

macro_rules! resources {
    ($($type:ident $what:literal $destroy:ident;)*) => {
        $(
            // SAFETY: libibverbs allows its calls from any thread, and this library does not write to these structures.
            unsafe impl Destroy for verbs::$type {
                type Library = Library;

                unsafe fn destroy(library: &Library, object: NonNull<Self>) -> Result<()> {
                    let destroy = function!(library, ibv, $destroy)?;
                    // SAFETY: the caller guarantees it, as this function requires.
                    check(stringify!($destroy), unsafe { destroy(object.as_ptr()) })
                }

                fn busy(holders: usize) -> Error {
                    error::busy($what, holders)
                }
            }
        )*
    };
}

resources! {
    ibv_context "context" ibv_close_device;
    ibv_pd "protection domain" ibv_dealloc_pd;
    ibv_mr "memory region" ibv_dereg_mr;
    ibv_ah "address handle" ibv_destroy_ah;
    ibv_cq "completion queue" ibv_destroy_cq;
    ibv_qp "queue pair" ibv_destroy_qp;
    ibv_comp_cntr "completion counter" ibv_destroy_comp_cntr;
}

/// The size of a structure, as efadv calls take it.
pub(super) const fn inlen<T>(_: &T) -> u32 {
    size_of::<T>() as u32
}
