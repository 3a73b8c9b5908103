//! The functions that this library interposes, as the next object in search order (usually the C library) defines them.
//! Each is looked up once. What the library does in their place is in `lib`.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{mode_t, off_t, size_t, stat as Stat};

/// The next object's function `name`. Ends the process if there is none: this library was then built for another C
/// library, and cannot forward the call.
fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let cached = cache.load(Ordering::Relaxed);
    if !cached.is_null() {
        return cached;
    }
    // SAFETY: the name is a C string, and RTLD_NEXT is valid in a shared library.
    let symbol = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if symbol.is_null() {
        // SAFETY: abort has no preconditions.
        unsafe { libc::abort() };
    }
    cache.store(symbol, Ordering::Relaxed);
    symbol
}

macro_rules! real {
    ($($name:ident, $text:literal, ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// Calls the next object's function of this name.
        ///
        /// # Safety
        /// As for that function.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static CACHE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let symbol = next(&CACHE, $text);
            // SAFETY: the C library declares the function of this name with this signature.
            let function = unsafe {
                transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(symbol)
            };
            // SAFETY: the caller meets the function's preconditions.
            unsafe { function($($argument),*) }
        }
    )*};
}

/// As `real!`, for variadic functions, which must be called as such.
macro_rules! real_variadic {
    ($($name:ident, $text:literal, ($($argument:ident: $type:ty),*), ($last:ident: $last_type:ty);)*) => {$(
        /// Calls the next object's function of this name.
        ///
        /// # Safety
        /// As for that function.
        pub(crate) unsafe fn $name($($argument: $type,)* $last: $last_type) -> c_int {
            static CACHE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let symbol = next(&CACHE, $text);
            // SAFETY: the C library declares the function of this name with this signature.
            let function = unsafe {
                transmute::<*mut c_void, unsafe extern "C" fn($($type,)* ...) -> c_int>(symbol)
            };
            // SAFETY: the caller meets the function's preconditions.
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
    dup2, c"dup2", (old: c_int, new: c_int) -> c_int;
    dup3, c"dup3", (old: c_int, new: c_int, flags: c_int) -> c_int;
    socket_any, c"socket", (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
}

/// Opens an existing file.
pub(crate) fn open_path(path: &CStr, flags: c_int) -> c_int {
    // SAFETY: the path is a C string. The caller does not pass O_CREAT, so the mode is not read.
    unsafe { open(path.as_ptr(), flags, 0) }
}

/// Closes a descriptor.
pub(crate) fn close(descriptor: c_int) -> c_int {
    // SAFETY: the argument is an integer. Callers own the descriptor that they close.
    unsafe { close_any(descriptor) }
}

/// Maps all of a file, of `length` bytes, for reading and writing or else for reading. `None`: that is not possible.
pub(crate) fn map(descriptor: c_int, length: usize) -> Option<*mut c_void> {
    [libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ].into_iter().find_map(|protection| {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses the address, so that no other mapping is replaced.
        let start = unsafe { mmap(null_mut(), length, protection, flags, descriptor, 0) };
        (start != libc::MAP_FAILED).then_some(start)
    })
}

/// Creates a socket.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the arguments are integers.
    unsafe { socket_any(domain, kind, protocol) }
}
