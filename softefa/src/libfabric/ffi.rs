//! What every entry from C goes through: no panic crosses, a null or foreign pointer is an error,
//! and an operation that is not provided answers -ENOSYS. No behaviour of the adapter.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use efa_gda_sys::fi;

/// An error as libfabric counts them: a positive errno, or one of its own from 256 on. Entries
/// return it negated.
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

    /// What an entry returns for this error.
    pub(crate) const fn returned(self) -> c_int {
        -self.0
    }
}

/// Runs the body of an entry that returns 0 or a negative error.
pub(crate) fn entry(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    count_entry(|| body().map(|()| 0)) as c_int
}

/// Runs the body of an entry that returns a count or a negative error. A panic becomes -FI_EOTHER.
pub(crate) fn count_entry(body: impl FnOnce() -> Result<usize, Code>) -> isize {
    // What the body captured is not used after a panic: every entry returns at once.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(count)) => count as isize,
        Ok(Err(code)) => code.returned() as isize,
        Err(_) => Code::OTHER.returned() as isize,
    }
}

/// An object that libfabric holds by its fid: a struct of this provider whose first field is that
/// fid, so that the two have one address.
///
/// # Safety
/// The implementor is `repr(C)`, begins with a struct that begins with [`fi::fid`], and objects
/// with [`Object::ops`] as their operations are made of no other type.
pub(crate) unsafe trait Object: Sized {
    /// The fid's class.
    const CLASS: u32;

    /// The operations of this type's fids, which no other type shares.
    fn ops() -> *const fi::fi_ops;
}

/// The header of a new object of type `T`.
pub(crate) fn header<T: Object>(context: *mut c_void) -> fi::fid {
    fi::fid { fclass: T::CLASS as usize, context, ops: T::ops().cast_mut() }
}

/// The object that C handed in as `fid`.
///
/// # Errors
/// [`Code::INVALID`] for null and for a fid of another class or another provider.
///
/// # Safety
/// A fid that is not null is open, and stays open while the result is used: libfabric's rule that
/// nothing is closed while a call on it runs.
pub(crate) unsafe fn object<'a, T: Object>(fid: *const fi::fid) -> Result<&'a T, Code> {
    if fid.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, and open by the caller's contract; every fid begins with these fields.
    let (class, ops) = unsafe { ((*fid).fclass, (*fid).ops) };
    if class != T::CLASS as usize || !std::ptr::eq(ops, T::ops()) {
        return Err(Code::INVALID);
    }
    // SAFETY: only objects of type T carry these operations (contract of Object), and they begin
    // with their fid.
    Ok(unsafe { &*fid.cast::<T>() })
}

/// Gives an object to C: it lives until [`reclaim`].
pub(crate) fn expose<T: Object, F>(object: Box<T>) -> *mut F {
    Box::into_raw(object).cast()
}

/// Takes back what [`expose`] gave, to be dropped.
///
/// # Safety
/// As for [`object`], and C does not use the fid again.
pub(crate) unsafe fn reclaim<T: Object>(fid: *mut fi::fid) -> Result<Box<T>, Code> {
    // SAFETY: the caller's contract; the reference ends here.
    unsafe { object::<T>(fid)? };
    // SAFETY: an object of type T, which only expose makes, from a Box.
    Ok(unsafe { Box::from_raw(fid.cast::<T>()) })
}

/// Writes `value` through a pointer that C handed in.
///
/// # Errors
/// [`Code::INVALID`] for null.
///
/// # Safety
/// A pointer that is not null can be written.
pub(crate) unsafe fn store<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, and writable by the caller's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// A string that C handed in; null and text that is not UTF-8 are `None`.
///
/// # Safety
/// A pointer that is not null leads to a string that ends in a zero byte and outlives the result.
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

/// Fills the place of an operation that this provider does not have. libfabric's inline functions
/// call most of a table without a look, so that a null would crash the application.
// SAFETY: C calls it with the arguments of that operation, which the C calling convention lets a
// function ignore; operations return an int or ssize_t, whose register this result fills.
pub(crate) const UNUSED: fi::fi_unused_op =
    Some(unsafe { std::mem::transmute::<extern "C" fn() -> isize, unsafe extern "C" fn()>(not_provided) });

/// `fi_ops::bind` of objects to which nothing binds.
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

/// Says on stderr why something was refused, where `SOFTEFA_LOG` is set: the codes that go back to C
/// do not tell.
pub(crate) fn log(message: std::fmt::Arguments<'_>) {
    if logs() {
        eprintln!("softefa: {message}");
    }
}
