//! The functions that this library interposes, as the next object has them. Looked up once each.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{mode_t, off_t, size_t, stat as Stat};

/// The next object's function; ends the process where there is none, for then the C library is not
/// what this library was built for, and nothing it could do would be right.
fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a C string; RTLD_NEXT is valid in a library.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // SAFETY: always allowed.
        unsafe { libc::abort() };
    }
    cache.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($($name:ident, $text:literal, ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// The C library's.
        ///
        /// # Safety
        /// As of that function.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static CACHE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let found = next(&CACHE, $text);
            // SAFETY: the C library's function of this name has this signature.
            let function = unsafe {
                transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(found)
            };
            // SAFETY: the caller's promise.
            unsafe { function($($argument),*) }
        }
    )*};
}

/// For functions that are variadic: declared so, as their callee may rely on it.
macro_rules! real_variadic {
    ($($name:ident, $text:literal, ($($argument:ident: $type:ty),*), ($last:ident: $last_type:ty);)*) => {$(
        /// The C library's.
        ///
        /// # Safety
        /// As of that function.
        pub(crate) unsafe fn $name($($argument: $type,)* $last: $last_type) -> c_int {
            static CACHE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let found = next(&CACHE, $text);
            // SAFETY: the C library's function of this name has this signature.
            let function = unsafe {
                transmute::<*mut c_void, unsafe extern "C" fn($($type,)* ...) -> c_int>(found)
            };
            // SAFETY: the caller's promise.
            unsafe { function($($argument,)* $last) }
        }
    )*};
}

real_variadic! {
    open, c"open", (path: *const c_char, flags: c_int), (mode: mode_t);
    open64, c"open64", (path: *const c_char, flags: c_int), (mode: mode_t);
    openat, c"openat", (at: c_int, path: *const c_char, flags: c_int), (mode: mode_t);
    openat64, c"openat64", (at: c_int, path: *const c_char, flags: c_int), (mode: mode_t);
    ioctl, c"ioctl", (descriptor: c_int, request: c_ulong), (argument: *mut c_void);
}

real! {
    stat, c"stat", (path: *const c_char, into: *mut Stat) -> c_int;
    stat64, c"stat64", (path: *const c_char, into: *mut Stat) -> c_int;
    __xstat, c"__xstat", (version: c_int, path: *const c_char, into: *mut Stat) -> c_int;
    __xstat64, c"__xstat64", (version: c_int, path: *const c_char, into: *mut Stat) -> c_int;
    mmap, c"mmap", (address: *mut c_void, length: size_t, protection: c_int, flags: c_int,
        descriptor: c_int, offset: off_t) -> *mut c_void;
    mmap64, c"mmap64", (address: *mut c_void, length: size_t, protection: c_int, flags: c_int,
        descriptor: c_int, offset: off_t) -> *mut c_void;
    close_any, c"close", (descriptor: c_int) -> c_int;
    socket_any, c"socket", (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
}

/// Opens a file that exists.
pub(crate) fn open_path(path: &CStr, flags: c_int) -> c_int {
    // SAFETY: a C string; no mode is read without O_CREAT.
    unsafe { open(path.as_ptr(), flags, 0) }
}

/// Closes a descriptor.
pub(crate) fn close(descriptor: c_int) -> c_int {
    // SAFETY: what a program may always ask; the callers own what they close.
    unsafe { close_any(descriptor) }
}

/// Makes a socket.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: integers only.
    unsafe { socket_any(domain, kind, protocol) }
}
