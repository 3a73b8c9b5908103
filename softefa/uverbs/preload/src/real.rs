//! The functions that this library interposes, as the next object in search order (usually the C library) defines them.
//! Each is looked up once. What the library does in their place is in `lib`.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, mode_t, off_t, size_t};

/// A function of the next object.
pub(crate) struct Next {
    name: &'static CStr,
    /// Null until it was found.
    symbol: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, symbol: AtomicPtr::new(null_mut()) }
    }

    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string, and RTLD_NEXT is valid in a shared library.
        let symbol = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.symbol.store(symbol, Ordering::Relaxed);
        symbol
    }

    /// Its address. Ends the process if there is none: this library was then built for another C library, and cannot
    /// forward the call.
    pub(crate) fn address(&self) -> *mut c_void {
        let mut symbol = self.symbol.load(Ordering::Relaxed);
        if symbol.is_null() {
            symbol = self.find();
        }
        if symbol.is_null() {
            // SAFETY: abort has no preconditions.
            unsafe { libc::abort() };
        }
        symbol
    }
}

/// Finds functions before the program calls any: the search takes the loader's lock, which a handler of a signal must not
/// wait for. A function that this C library lacks is one that no program calls.
pub(crate) fn find_all(tables: &[&[&Next]]) {
    for function in [variadic::ALL, fixed::ALL].iter().chain(tables).copied().flatten() {
        function.find();
    }
}

/// The name of a function, which ends with a zero byte.
pub(crate) const fn symbol(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the name must end with a zero byte"),
    }
}

/// Defines `mod $table`, the functions as they were found, and for each a function that calls it.
macro_rules! real {
    ($table:ident: $($name:ident, $text:expr, ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        #[allow(non_upper_case_globals)] // named as the functions
        pub(crate) mod $table {
            use $crate::real::Next;

            $(pub(super) static $name: Next = Next::new($text);)*
            pub(crate) static ALL: &[&Next] = &[$(&$name),*];
        }
        $(
            /// Calls the next object's function of this name.
            ///
            /// # Safety
            /// As for that function.
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                // SAFETY: the C library declares the function of this name with this signature.
                let function = unsafe {
                    transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>($table::$name.address())
                };
                // SAFETY: the caller meets the function's preconditions.
                unsafe { function($($argument),*) }
            }
        )*
    };
}
pub(crate) use real;

/// As `real!`, for variadic functions, which must be called as such.
macro_rules! real_variadic {
    ($table:ident: $($name:ident, $text:expr, ($($argument:ident: $type:ty),*), ($last:ident: $last_type:ty);)*) => {
        #[allow(non_upper_case_globals)] // named as the functions
        mod $table {
            use super::Next;
            $(pub(super) static $name: Next = Next::new($text);)*
            pub(super) static ALL: &[&Next] = &[$(&$name),*];
        }
        $(
            /// Calls the next object's function of this name.
            ///
            /// # Safety
            /// As for that function.
            pub(crate) unsafe fn $name($($argument: $type,)* $last: $last_type) -> c_int {
                // SAFETY: the C library declares the function of this name with this signature.
                let function = unsafe {
                    transmute::<*mut c_void, unsafe extern "C" fn($($type,)* ...) -> c_int>($table::$name.address())
                };
                // SAFETY: the caller meets the function's preconditions.
                unsafe { function($($argument,)* $last) }
            }
        )*
    };
}

real_variadic! {
    variadic:
    open, c"open", (path: *const c_char, flags: c_int), (mode: mode_t);
    open64, c"open64", (path: *const c_char, flags: c_int), (mode: mode_t);
    openat, c"openat", (at: c_int, path: *const c_char, flags: c_int), (mode: mode_t);
    openat64, c"openat64", (at: c_int, path: *const c_char, flags: c_int), (mode: mode_t);
    ioctl, c"ioctl", (descriptor: c_int, request: c_ulong), (argument: *mut c_void);
}

real! {
    fixed:
    mmap, c"mmap", (address: *mut c_void, length: size_t, protection: c_int, flags: c_int,
        descriptor: c_int, offset: off_t) -> *mut c_void;
    mmap64, c"mmap64", (address: *mut c_void, length: size_t, protection: c_int, flags: c_int,
        descriptor: c_int, offset: off_t) -> *mut c_void;
    close_any, c"close", (descriptor: c_int) -> c_int;
    dup2, c"dup2", (old: c_int, new: c_int) -> c_int;
    dup3, c"dup3", (old: c_int, new: c_int, flags: c_int) -> c_int;
    fopen, c"fopen", (path: *const c_char, mode: *const c_char) -> *mut FILE;
    fopen64, c"fopen64", (path: *const c_char, mode: *const c_char) -> *mut FILE;
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
