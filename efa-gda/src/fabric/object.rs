//! Code that all libfabric objects share: calls through operation tables that may be shorter than the bindings', and how
//! objects are opened and closed.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use efa_gda_sys::fi;

use super::error::{self, FailedCall};
use super::{Info, Library};
#[cfg(doc)]
use crate::ErrorKind;
use crate::object::Destroy;
pub(super) use crate::object::Object;
use crate::{Error, Result};

/// Reads a function from an operation table, or returns
/// [`ErrorKind::Other`]. A table begins with its size in bytes,
/// and an older library's table may end before the function.
///
/// Use it as `table_op!(pointer, fi_ops_av.insert, "fi_av_insert")` in an unsafe block. The SAFETY comment must
/// say why the pointer is null or points to such a table.
macro_rules! table_op {
    ($table:expr, $type:ident . $field:ident, $operation:expr) => {{
        let table: *const efa_gda_sys::fi::$type = $table;
        let end = ::std::mem::offset_of!(efa_gda_sys::fi::$type, $field) + size_of::<usize>();
        let table_bytes = if table.is_null() { 0 } else { (&raw const (*table).size).read() };
        let function = if table_bytes >= end { (&raw const (*table).$field).read() } else { None };
        function.ok_or_else(|| $crate::fabric::error::function_missing($operation, table_bytes))
    }};
}
pub(super) use table_op;

macro_rules! fids {
    ($($type:ident $what:literal;)*) => {
        $(
            const _: () = assert!(std::mem::offset_of!(fi::$type, fid) == 0);
            // SAFETY: a fid is not bound to a thread. Every call on it holds its context's guard, which satisfies
            // FI_THREAD_DOMAIN and all less strict models.
            unsafe impl Destroy for fi::$type {
                type Library = Arc<Context>;

                unsafe fn destroy(context: &Arc<Context>, object: NonNull<Self>) -> Result<()> {
                    let _serialized = context.serialize_calls();
                    // SAFETY: the structure begins with a fid, as asserted above; the caller guarantees a live object.
                    unsafe { close(context, object.as_ptr().cast(), concat!("fi_close(", $what, ")")) }
                }

                fn busy(holders: usize) -> Error {
                    error::busy($what, holders)
                }
            }
        )*
    };
}

fids! {
    fid_fabric "fabric";
    fid_domain "domain";
    fid_av "address vector";
    fid_cq "completion queue";
    fid_cntr "completion counter";
    fid_mr "memory region";
    fid_ep "endpoint";
}

/// State that all objects of one opened fabric, or of one borrowed domain, share.
#[derive(Debug)]
pub(crate) struct Context {
    library: Option<Library>,
    /// Held during each call: libfabric may offer no more than FI_THREAD_DOMAIN.
    calls: Mutex<()>,
}

impl Context {
    pub(super) fn new(library: Option<Library>) -> Arc<Self> {
        Arc::new(Self { library, calls: Mutex::new(()) })
    }

    /// Serializes calls into libfabric. The caller must hold the guard during each call.
    pub(super) fn serialize_calls(&self) -> MutexGuard<'_, ()> {
        // The mutex guards no data that a panic could leave inconsistent.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that `info` came from this context's library, so that calls may read it.
    pub(super) fn require_same_library(&self, info: &Info, operation: &'static str) -> Result<()> {
        match &self.library {
            Some(library) if !info.came_from(library) => Err(error::other_library(operation)),
            _ => Ok(()),
        }
    }

    /// Describes the error that `operation` returned as `code`.
    pub(super) fn failure(&self, operation: &'static str, code: i32) -> FailedCall {
        let text = match &self.library {
            Some(library) => library.raw().strerror(code),
            None => std::io::Error::from_raw_os_error(code.wrapping_abs()).to_string(),
        };
        FailedCall { operation, code, text }
    }

    /// Turns a negative `code` into [`ErrorKind::Other`].
    pub(super) fn check(&self, operation: &'static str, code: c_int) -> Result<()> {
        if code >= 0 { Ok(()) } else { Err(self.failure(operation, code).into()) }
    }
}

impl<T: Destroy<Library = Arc<Context>>, P> Object<T, P> {
    /// Opens an object by `call`, which stores it at the address that it receives, and returns a code.
    ///
    /// # Safety
    /// Where `call` returns 0, it must have stored null or an open object that no other code closes.
    pub(super) unsafe fn open(
        operation: &'static str,
        context: &Arc<Context>,
        parents: P,
        call: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Self> {
        let error = |context: &Context, code| context.failure(operation, code).into();
        // SAFETY: the caller guarantees it, as this function requires.
        unsafe { Self::open_or(operation, context, parents, error, call) }
    }

    /// As [`Self::open`]. Turns a negative code into an error by `error`.
    ///
    /// # Safety
    /// As for [`Self::open`].
    pub(super) unsafe fn open_or(
        operation: &'static str,
        context: &Arc<Context>,
        parents: P,
        error: impl FnOnce(&Context, c_int) -> Error,
        call: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Self> {
        let mut pointer = std::ptr::null_mut();
        let serialized = context.serialize_calls();
        let code = call(&mut pointer);
        drop(serialized);
        if code < 0 {
            return Err(error(context, code));
        }
        let pointer = NonNull::new(pointer).ok_or_else(|| error::no_object(operation))?;
        // SAFETY: the caller guarantees it, as this function requires.
        Ok(unsafe { Self::adopt(pointer, context.clone(), parents) })
    }

    /// The structure's first field.
    pub(super) fn fid(&self) -> *mut fi::fid {
        self.raw().cast()
    }
}

/// Calls `fi_close`.
///
/// # Safety
/// `fid` must be an open object. The caller must not use it after a successful close.
unsafe fn close(context: &Context, fid: *mut fi::fid, operation: &'static str) -> Result<()> {
    // SAFETY: an open fid points to its operation table, or to null.
    let function = unsafe { table_op!((*fid).ops, fi_ops.close, operation) }?;
    // SAFETY: the function comes from the object's own table, and the caller gives up the object.
    context.check(operation, unsafe { function(fid) })
}

/// Binds `other` to `fid` (`fi_ep_bind` and similar calls).
///
/// # Safety
/// Both must be open objects of one domain, and the second must outlive the first.
pub(super) unsafe fn bind(
    context: &Context,
    fid: *mut fi::fid,
    other: *mut fi::fid,
    flags: u64,
    operation: &'static str,
) -> Result<()> {
    // SAFETY: an open fid points to its operation table, or to null.
    let function = unsafe { table_op!((*fid).ops, fi_ops.bind, operation) }?;
    let _serialized = context.serialize_calls();
    // SAFETY: the function comes from the object's own table; the caller guarantees both objects.
    context.check(operation, unsafe { function(fid, other, flags) })
}

/// Calls `fi_control` with a command that takes no argument.
///
/// # Safety
/// `fid` must be an open object of a class that has this command.
pub(super) unsafe fn control(
    context: &Context,
    fid: *mut fi::fid,
    command: u32,
    operation: &'static str,
) -> Result<()> {
    // SAFETY: an open fid points to its operation table, or to null.
    let function = unsafe { table_op!((*fid).ops, fi_ops.control, operation) }?;
    let _serialized = context.serialize_calls();
    // SAFETY: the function comes from the object's own table; the command takes no argument.
    context.check(operation, unsafe { function(fid, command as c_int, std::ptr::null_mut()) })
}

/// Returns the table `name` (`fi_open_ops`), or the code with which the provider refused it.
///
/// # Safety
/// `fid` must be an open domain or fabric.
pub(super) unsafe fn open_ops(
    context: &Context,
    fid: *mut fi::fid,
    name: &CStr,
    operation: &'static str,
) -> Result<std::result::Result<*mut c_void, c_int>> {
    // SAFETY: an open fid points to its operation table, or to null.
    let function = unsafe { table_op!((*fid).ops, fi_ops.ops_open, operation) }?;
    let mut table = std::ptr::null_mut();
    let _serialized = context.serialize_calls();
    // SAFETY: the function comes from the object's own table; the name is a C string and `table` can be
    // written.
    let code = unsafe { function(fid, name.as_ptr(), 0, &mut table, std::ptr::null_mut()) };
    Ok(if code == 0 { Ok(table) } else { Err(code) })
}

/// An attribute structure followed by zeroes. Libraries newer than these bindings append fields to some
/// structures, and read them.
#[repr(C)]
pub(super) struct Padded<T> {
    pub(super) value: T,
    zeroes: [u64; 16],
}

impl<T> Padded<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value, zeroes: [0; 16] }
    }
}
