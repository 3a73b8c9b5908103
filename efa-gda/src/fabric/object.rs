//! What every libfabric object has in common: an operation table that may be shorter than ours, a
//! close that can fail, and parents that must outlive it.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use efa_gda_sys::fi;

use super::error::{Error, FailedCall, Result};
use super::{Info, Library};

/// A function of an operation table, or [`Error::FunctionMissing`]: tables begin with their size in
/// bytes, and an older library's may end before the function.
///
/// Called as `table_op!(pointer, fi_ops_av.insert, "fi_av_insert")`, in an unsafe block whose
/// comment says why the pointer is null or points to such a table.
macro_rules! table_op {
    ($table:expr, $type:ident . $field:ident, $operation:expr) => {{
        let table: *const efa_gda_sys::fi::$type = $table;
        let end = ::std::mem::offset_of!(efa_gda_sys::fi::$type, $field) + size_of::<usize>();
        let table_bytes = if table.is_null() { 0 } else { (&raw const (*table).size).read() };
        let function = if table_bytes >= end { (&raw const (*table).$field).read() } else { None };
        function.ok_or($crate::fabric::Error::FunctionMissing { operation: $operation, table_bytes })
    }};
}
pub(super) use table_op;

/// A structure of libfabric's that begins with a `fid`.
///
/// # Safety
/// The type is `repr(C)` and its first field is a `fid`.
pub(super) unsafe trait Fid {
    /// The close call, as errors name it.
    const CLOSE: &'static str;
}

macro_rules! fids {
    ($($type:ident = $close:literal;)*) => {
        $(
            const _: () = assert!(std::mem::offset_of!(fi::$type, fid) == 0);
            // SAFETY: bindgen makes it repr(C), and the assertion above checks the first field.
            unsafe impl Fid for fi::$type {
                const CLOSE: &'static str = $close;
            }
        )*
    };
}

fids! {
    fid_fabric = "fi_close(fabric)";
    fid_domain = "fi_close(domain)";
    fid_av = "fi_close(address vector)";
    fid_cq = "fi_close(completion queue)";
    fid_cntr = "fi_close(completion counter)";
    fid_mr = "fi_close(memory region)";
    fid_ep = "fi_close(endpoint)";
}

/// Shared by all objects that descend from one fabric, or from one borrowed domain.
#[derive(Debug)]
pub(super) struct Context {
    library: Option<Library>,
    /// One control call at a time: libfabric may offer no more than FI_THREAD_DOMAIN.
    calls: Mutex<()>,
}

impl Context {
    pub(super) fn new(library: Option<Library>) -> Self {
        Self { library, calls: Mutex::new(()) }
    }

    /// RegionMemory around each call into libfabric.
    pub(super) fn serialize_calls(&self) -> MutexGuard<'_, ()> {
        // The mutex guards no data that a panic could leave half done.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an info may be given to calls in this context.
    pub(super) fn require_same_library(&self, info: &Info, operation: &'static str) -> Result<()> {
        match &self.library {
            Some(library) if !info.came_from(library) => Err(Error::OtherLibrary { operation }),
            _ => Ok(()),
        }
    }

    /// What `code` means.
    pub(super) fn failure(&self, operation: &'static str, code: i32) -> FailedCall {
        let text = match &self.library {
            Some(library) => library.raw().strerror(code),
            None => std::io::Error::from_raw_os_error(code.wrapping_abs()).to_string(),
        };
        FailedCall { operation, code, text }
    }

    /// Nothing for 0 and above, otherwise [`Error::Call`].
    pub(super) fn check(&self, operation: &'static str, code: c_int) -> Result<()> {
        if code >= 0 { Ok(()) } else { Err(Error::Call(self.failure(operation, code))) }
    }
}

/// Leads from an object's parents to the context that its calls are made in.
pub(super) trait InContext {
    fn context(&self) -> &Context;
}

/// A libfabric object that this library opened, with everything that must outlive it.
///
/// Dropping it closes it and then drops `parents`. Where the close fails, libfabric still has the
/// object, which still refers to its parents: they are then kept for the life of the process.
pub(super) struct Object<T: Fid, P: InContext> {
    pointer: NonNull<T>,
    /// None once closed; a close consumes the object, so others always see Some.
    parents: Option<P>,
}

// SAFETY: a fid is not bound to a thread. Every call on it is made under its context's turn, which
// satisfies FI_THREAD_DOMAIN and all models that are less strict.
unsafe impl<T: Fid, P: InContext + Send> Send for Object<T, P> {}
// SAFETY: as above.
unsafe impl<T: Fid, P: InContext + Sync> Sync for Object<T, P> {}

impl<T: Fid, P: InContext> Object<T, P> {
    /// Takes over what a call that returned `code` left in `pointer`.
    ///
    /// # Safety
    /// Where `code` is 0, `pointer` is null or an open object that nobody else closes.
    pub(super) unsafe fn adopt(
        operation: &'static str,
        code: c_int,
        pointer: *mut T,
        parents: P,
    ) -> Result<Self> {
        parents.context().check(operation, code)?;
        let pointer = NonNull::new(pointer).ok_or(Error::NoObject { operation })?;
        Ok(Self { pointer, parents: Some(parents) })
    }

    pub(super) fn raw(&self) -> *mut T {
        self.pointer.as_ptr()
    }

    pub(super) fn fid(&self) -> *mut fi::fid {
        self.pointer.as_ptr().cast()
    }

    pub(super) fn parents(&self) -> &P {
        self.parents.as_ref().expect("only a close takes the parents, and it consumes the object")
    }

    pub(super) fn parents_mut(&mut self) -> &mut P {
        self.parents.as_mut().expect("only a close takes the parents, and it consumes the object")
    }

    pub(super) fn context(&self) -> &Context {
        self.parents().context()
    }

    /// `fi_close`, with its result.
    pub(super) fn close(mut self) -> Result<()> {
        self.close_once()
    }

    /// Closes once; a second call does nothing.
    fn close_once(&mut self) -> Result<()> {
        let Some(parents) = self.parents.take() else { return Ok(()) };
        let context = parents.context();
        let serialized = context.serialize_calls();
        // SAFETY: the object is open (its parents were still here) and ours to close.
        let closed = unsafe { close(context, self.fid(), T::CLOSE) };
        drop(serialized);
        if closed.is_err() {
            crate::leak::leak(parents);
        }
        closed
    }
}

impl<T: Fid, P: InContext> Drop for Object<T, P> {
    fn drop(&mut self) {
        if let Err(error) = self.close_once() {
            tracing::error!(%error, "what a dropped object refers to stays allocated");
        }
    }
}

impl<T: Fid, P: InContext> std::fmt::Debug for Object<T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}", self.pointer)
    }
}

/// `fi_close`.
///
/// # Safety
/// `fid` is an open object that is not used again when this succeeds.
unsafe fn close(context: &Context, fid: *mut fi::fid, operation: &'static str) -> Result<()> {
    // SAFETY: an open fid points to its table, or to none.
    let function = unsafe { table_op!((*fid).ops, fi_ops.close, operation) }?;
    // SAFETY: the function is the object's own, and the caller gives the object up.
    context.check(operation, unsafe { function(fid) })
}

/// `fi_ep_bind` and its kin.
///
/// # Safety
/// Both are open objects of one domain, and the second outlives the first.
pub(super) unsafe fn bind(
    context: &Context,
    fid: *mut fi::fid,
    other: *mut fi::fid,
    flags: u64,
    operation: &'static str,
) -> Result<()> {
    // SAFETY: an open fid points to its table, or to none.
    let function = unsafe { table_op!((*fid).ops, fi_ops.bind, operation) }?;
    let _serialized = context.serialize_calls();
    // SAFETY: the function is the object's own; the caller vouches for both objects.
    context.check(operation, unsafe { function(fid, other, flags) })
}

/// `fi_control` with a command that takes no argument.
///
/// # Safety
/// `fid` is an open object of a class that has this command.
pub(super) unsafe fn control(
    context: &Context,
    fid: *mut fi::fid,
    command: u32,
    operation: &'static str,
) -> Result<()> {
    // SAFETY: an open fid points to its table, or to none.
    let function = unsafe { table_op!((*fid).ops, fi_ops.control, operation) }?;
    let _serialized = context.serialize_calls();
    // SAFETY: the function is the object's own; the command takes no argument.
    context.check(operation, unsafe { function(fid, command as c_int, std::ptr::null_mut()) })
}

/// `fi_open_ops`: the table called `name`, or the number that the provider answered with.
///
/// # Safety
/// `fid` is an open domain or fabric.
pub(super) unsafe fn open_ops(
    context: &Context,
    fid: *mut fi::fid,
    name: &CStr,
    operation: &'static str,
) -> Result<std::result::Result<*mut c_void, c_int>> {
    // SAFETY: an open fid points to its table, or to none.
    let function = unsafe { table_op!((*fid).ops, fi_ops.ops_open, operation) }?;
    let mut table = std::ptr::null_mut();
    let _serialized = context.serialize_calls();
    // SAFETY: the function is the object's own; the name is a C string and `table` can be written.
    let code = unsafe { function(fid, name.as_ptr(), 0, &mut table, std::ptr::null_mut()) };
    Ok(if code == 0 { Ok(table) } else { Err(code) })
}

/// An attribute structure with zeroes behind it: libraries newer than our headers append fields to
/// some of them, and read those.
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
