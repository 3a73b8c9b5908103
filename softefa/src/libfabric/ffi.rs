//! The boundary to C, which every entry point uses: panics do not cross it, null and foreign pointers are
//! errors, and operations that are not provided return -ENOSYS. It contains no behaviour of the adapter.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use efa_gda_sys::fi;

use crate::device::say;

/// A libfabric error number: a positive errno, or one of libfabric's from 256 on. Entry points return it
/// negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(c_int);

impl Code {
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const ADDRESS_NOT_AVAILABLE: Self = Self(libc::EADDRNOTAVAIL);
    pub(crate) const BAD_ADDRESS: Self = Self(libc::EFAULT);
    pub(crate) const BAD_FLAGS: Self = Self(fi::FI_EBADFLAGS as c_int);
    pub(crate) const BAD_STATE: Self = Self(fi::FI_EOPBADSTATE as c_int);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const ERROR_AVAILABLE: Self = Self(fi::FI_EAVAIL as c_int);
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NO_AV: Self = Self(fi::FI_ENOAV as c_int);
    pub(crate) const NO_CQ: Self = Self(fi::FI_ENOCQ as c_int);
    pub(crate) const NO_DATA: Self = Self(libc::ENODATA);
    pub(crate) const NO_DEVICE: Self = Self(libc::ENODEV);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const NO_OPTION: Self = Self(libc::ENOPROTOOPT);
    pub(crate) const NOT_PROVIDED: Self = Self(libc::ENOSYS);
    pub(crate) const NOT_SUPPORTED: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const OTHER: Self = Self(fi::FI_EOTHER as c_int);
    pub(crate) const TIMED_OUT: Self = Self(libc::ETIMEDOUT);
    pub(crate) const TOO_SMALL: Self = Self(fi::FI_ETOOSMALL as c_int);

    /// A positive errno.
    pub(crate) const fn of_system(errno: c_int) -> Self {
        Self(errno)
    }

    /// The value that an entry point returns for this error.
    pub(crate) const fn returned(self) -> c_int {
        -self.0
    }
}

/// Runs the body of an entry point that returns 0 or a negative error. A panic becomes -FI_EOTHER.
pub(crate) fn entry(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    count_entry(|| body().map(|()| 0)) as c_int
}

/// Runs the body of an entry point that returns a count or a negative error. A panic becomes -FI_EOTHER.
pub(crate) fn count_entry(body: impl FnOnce() -> Result<usize, Code>) -> isize {
    // Unwind safety: every entry point returns at once, so nothing that the body captured is used after a
    // panic.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(count)) => count as isize,
        Ok(Err(code)) => code.returned() as isize,
        Err(_) => Code::OTHER.returned() as isize,
    }
}

/// An object that libfabric refers to by its fid: a struct of this provider whose first field is the fid, so
/// that both have the same address.
///
/// # Safety
/// The implementor must be `repr(C)` and begin with a struct that begins with [`fi::fid`]. No object of
/// another type may have [`Object::ops`] as its operations.
pub(crate) unsafe trait Object: Sized {
    /// The class of the fid.
    const CLASS: u32;

    /// The operations of this type's fids, which no other type uses.
    fn ops() -> *const fi::fi_ops;
}

/// The fid of a new object of type `T`.
pub(crate) fn header<T: Object>(context: *mut c_void) -> fi::fid {
    fi::fid { fclass: T::CLASS as usize, context, ops: T::ops().cast_mut() }
}

/// The object that C passed as `fid`.
///
/// # Errors
/// [`Code::INVALID`] for null and for a fid of another class or another provider.
///
/// # Safety
/// A fid that is not null must be open, and must stay open while the result is used. libfabric guarantees
/// this: an application must not close an object while a call on it runs.
pub(crate) unsafe fn object<'a, T: Object>(fid: *const fi::fid) -> Result<&'a T, Code> {
    if fid.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, and open by the caller's contract; every fid begins with these fields.
    let (class, ops) = unsafe { ((*fid).fclass, (*fid).ops) };
    if class != T::CLASS as usize || !std::ptr::eq(ops, T::ops()) {
        return Err(Code::INVALID);
    }
    // SAFETY: only objects of type T have these operations, and they begin with their fid (contract of
    // Object).
    Ok(unsafe { &*fid.cast::<T>() })
}

/// Transfers an object to C. It lives until [`reclaim`].
pub(crate) fn expose<T: Object, F>(object: Box<T>) -> *mut F {
    Box::into_raw(object).cast()
}

/// Transfers an object to C through a pointer that C passed, as [`expose`]. Drops the object if that fails.
///
/// # Errors
/// [`Code::INVALID`] for null.
///
/// # Safety
/// `out` must be null or writable.
pub(crate) unsafe fn expose_to<T: Object, F>(out: *mut *mut F, object: Box<T>) -> Result<(), Code> {
    if out.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, and writable by the caller's contract.
    unsafe { out.write(expose(object)) };
    Ok(())
}

/// Takes an object back from C, to drop it.
///
/// # Safety
/// As for [`object`]; in addition, C must not use the fid again.
pub(crate) unsafe fn reclaim<T: Object>(fid: *mut fi::fid) -> Result<Box<T>, Code> {
    // SAFETY: the caller's contract; the reference is not used further.
    unsafe { object::<T>(fid)? };
    // SAFETY: an object of type T (checked above), which only `expose` creates, from a Box.
    Ok(unsafe { Box::from_raw(fid.cast::<T>()) })
}

/// Writes `value` through a pointer that C passed.
///
/// # Errors
/// [`Code::INVALID`] for null.
///
/// # Safety
/// `out` must be null or writable.
pub(crate) unsafe fn store<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, and writable by the caller's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// A string that C passed; `None` for null and for text that is not UTF-8.
///
/// # Safety
/// `string` must be null or point to a string that ends in a zero byte and outlives the result.
pub(crate) unsafe fn text<'a>(string: *const c_char) -> Option<&'a str> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(string) }.to_str().ok()
}

extern "C" fn not_provided() -> isize {
    Code::NOT_PROVIDED.returned() as isize
}

/// The pointer for an operation that this provider does not have. libfabric's inline functions call most
/// operations without a null check, so a null pointer would crash the application.
// SAFETY: C calls it with the arguments of the missing operation, which a function may ignore in the C
// calling convention. Operations return an int or ssize_t, whose register this result fills.
pub(crate) const UNUSED: fi::fi_unused_op =
    Some(unsafe { std::mem::transmute::<extern "C" fn() -> isize, unsafe extern "C" fn()>(not_provided) });

/// Operations that releases after 2.7 may have added to a table: eight times what 2.7 added to any.
const NEWER: usize = 8;

/// A table of operations as long as libfabric 2.7's, which its `size` counts, followed by operations of newer releases
/// that return -ENOSYS. libfabric's inline functions compare some operations with `size` before the call, but not those
/// of FI_XPU (`fi_xpu_ctx`, `fi_cq_export_xpu` and its kin), which this provider does not offer: callers of a shorter
/// table would jump to what follows it.
#[repr(C)]
pub(crate) struct Table<T> {
    operations: T,
    newer: [fi::fi_unused_op; NEWER],
}

impl<T> Table<T> {
    pub(crate) const fn new(operations: T) -> Self {
        Self { operations, newer: [UNUSED; NEWER] }
    }

    /// The table as libfabric refers to it; nothing writes through it.
    pub(crate) const fn as_ptr(&'static self) -> *mut T {
        std::ptr::from_ref(self).cast::<T>().cast_mut()
    }
}

/// The operations of a fid that has none but `close`.
pub(crate) const fn only_close(close: unsafe extern "C" fn(*mut fi::fid) -> c_int) -> Table<fi::fi_ops> {
    Table::new(fi::fi_ops {
        size: size_of::<fi::fi_ops>(),
        close: Some(close),
        bind: Some(no_bind),
        control: Some(no_control),
        ops_open: Some(no_ops_open),
        tostr: None,
        ops_set: None,
    })
}

/// `fi_ops::bind` of objects to which nothing can be bound.
pub(crate) unsafe extern "C" fn no_bind(_: *mut fi::fid, _: *mut fi::fid, _: u64) -> c_int {
    Code::NOT_PROVIDED.returned()
}

/// `fi_ops::control` of objects without commands.
pub(crate) unsafe extern "C" fn no_control(_: *mut fi::fid, _: c_int, _: *mut c_void) -> c_int {
    Code::NOT_PROVIDED.returned()
}

/// `fi_ops::ops_open` of objects without further operations.
pub(crate) unsafe extern "C" fn no_ops_open(
    _: *mut fi::fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    Code::NOT_PROVIDED.returned()
}

/// Whether `SOFTEFA_LOG` is set.
pub(crate) fn logs() -> bool {
    std::env::var_os("SOFTEFA_LOG").is_some()
}

/// Writes `message` to stderr if `SOFTEFA_LOG` is set. It states the reason of a refusal, which the error
/// number that C receives cannot.
pub(crate) fn log(message: std::fmt::Arguments<'_>) {
    if logs() {
        say(message);
    }
}
