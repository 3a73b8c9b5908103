//! The C library's functions that take a path, other than those that open a file: each passes on the path to use instead.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::transmute;

use libc::{AT_FDCWD, DIR, FILE, glob_t, size_t, ssize_t, stat as Stat};
use softefa_abi::protocol::DEVICE_PREFIX;

use crate::paths::{Emulated, Text, emulated, restore, with};
use crate::real::real;

type Path = *const c_char;
type Void = *const c_void;

/// Interposes functions of which one argument is a path, relative to the descriptor that the second column states.
macro_rules! take_paths {
    ($($name:ident, $at:expr, $path:ident, ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            /// As the C library's function, with the path to use instead.
            ///
            /// # Safety
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller meets the function's preconditions, and `with` passes a C string in place of one.
                unsafe { with($at, $path, |$path| next::$name($($argument),*)) }
            }
        )*

        /// The functions of the next object.
        pub(crate) mod next {
            use super::*;

            real! {
                found:
                $($name, $crate::real::symbol(concat!(stringify!($name), "\0")), ($($argument: $type),*) -> $result;)*
                realpath, c"realpath", (path: Path, into: *mut c_char) -> *mut c_char;
                __realpath_chk, c"__realpath_chk", (path: Path, into: *mut c_char, room: size_t) -> *mut c_char;
                glob, c"glob", (pattern: Path, flags: c_int, error: Void, into: *mut glob_t) -> c_int;
                glob64, c"glob64", (pattern: Path, flags: c_int, error: Void, into: *mut glob_t) -> c_int;
            }
        }
    };
}

// Programs that were built for a glibc before 2.33 call the `xstat` forms, and those with `_FORTIFY_SOURCE` the `chk` forms.
// Functions that open directories themselves are here because the C library does that without `opendir`.
take_paths! {
    access, AT_FDCWD, path, (path: Path, mode: c_int) -> c_int;
    euidaccess, AT_FDCWD, path, (path: Path, mode: c_int) -> c_int;
    eaccess, AT_FDCWD, path, (path: Path, mode: c_int) -> c_int;
    faccessat, at, path, (at: c_int, path: Path, mode: c_int, flags: c_int) -> c_int;
    stat, AT_FDCWD, path, (path: Path, into: *mut Stat) -> c_int;
    stat64, AT_FDCWD, path, (path: Path, into: *mut Stat) -> c_int;
    lstat, AT_FDCWD, path, (path: Path, into: *mut Stat) -> c_int;
    lstat64, AT_FDCWD, path, (path: Path, into: *mut Stat) -> c_int;
    fstatat, at, path, (at: c_int, path: Path, into: *mut Stat, flags: c_int) -> c_int;
    fstatat64, at, path, (at: c_int, path: Path, into: *mut Stat, flags: c_int) -> c_int;
    statx, at, path, (at: c_int, path: Path, flags: c_int, mask: c_uint, into: *mut c_void) -> c_int;
    __xstat, AT_FDCWD, path, (version: c_int, path: Path, into: *mut Stat) -> c_int;
    __xstat64, AT_FDCWD, path, (version: c_int, path: Path, into: *mut Stat) -> c_int;
    __lxstat, AT_FDCWD, path, (version: c_int, path: Path, into: *mut Stat) -> c_int;
    __lxstat64, AT_FDCWD, path, (version: c_int, path: Path, into: *mut Stat) -> c_int;
    __fxstatat, at, path, (version: c_int, at: c_int, path: Path, into: *mut Stat, flags: c_int) -> c_int;
    __fxstatat64, at, path, (version: c_int, at: c_int, path: Path, into: *mut Stat, flags: c_int) -> c_int;
    readlink, AT_FDCWD, path, (path: Path, into: *mut c_char, length: size_t) -> ssize_t;
    readlinkat, at, path, (at: c_int, path: Path, into: *mut c_char, length: size_t) -> ssize_t;
    __readlink_chk, AT_FDCWD, path, (path: Path, into: *mut c_char, length: size_t, room: size_t) -> ssize_t;
    __readlinkat_chk, at, path,
        (at: c_int, path: Path, into: *mut c_char, length: size_t, room: size_t) -> ssize_t;
    opendir, AT_FDCWD, path, (path: Path) -> *mut DIR;
    scandir, AT_FDCWD, path, (path: Path, into: *mut c_void, filter: Void, compare: Void) -> c_int;
    scandir64, AT_FDCWD, path, (path: Path, into: *mut c_void, filter: Void, compare: Void) -> c_int;
    scandirat, at, path, (at: c_int, path: Path, into: *mut c_void, filter: Void, compare: Void) -> c_int;
    scandirat64, at, path, (at: c_int, path: Path, into: *mut c_void, filter: Void, compare: Void) -> c_int;
    ftw, AT_FDCWD, path, (path: Path, call: Void, descriptors: c_int) -> c_int;
    ftw64, AT_FDCWD, path, (path: Path, call: Void, descriptors: c_int) -> c_int;
    nftw, AT_FDCWD, path, (path: Path, call: Void, descriptors: c_int, flags: c_int) -> c_int;
    nftw64, AT_FDCWD, path, (path: Path, call: Void, descriptors: c_int, flags: c_int) -> c_int;
    chdir, AT_FDCWD, path, (path: Path) -> c_int;
    freopen, AT_FDCWD, path, (path: Path, mode: Path, stream: *mut FILE) -> *mut FILE;
    freopen64, AT_FDCWD, path, (path: Path, mode: Path, stream: *mut FILE) -> *mut FILE;
    getxattr, AT_FDCWD, path, (path: Path, name: Path, into: *mut c_void, length: size_t) -> ssize_t;
    lgetxattr, AT_FDCWD, path, (path: Path, name: Path, into: *mut c_void, length: size_t) -> ssize_t;
    listxattr, AT_FDCWD, path, (path: Path, into: *mut c_char, length: size_t) -> ssize_t;
    llistxattr, AT_FDCWD, path, (path: Path, into: *mut c_char, length: size_t) -> ssize_t;
}

/// The canonical path that `call` returns for `path`, as the program would see it on a machine with the adapter.
///
/// # Safety
/// As for `realpath`, which `call` must be.
unsafe fn canonical(path: Path, into: *mut c_char, call: impl FnOnce(Path) -> *mut c_char) -> *mut c_char {
    // SAFETY: by the caller: `path` is a C string, and `result` is `into`, with room for every path, or was allocated.
    unsafe {
        let result = with(AT_FDCWD, path, call);
        restore(result);
        let Some(Emulated::Device(adapter)) = emulated(AT_FDCWD, path).filter(|_| !result.is_null()) else {
            return result;
        };
        // Not that of the stand-in.
        let mut device = Text::new();
        device.push(DEVICE_PREFIX.as_bytes()).number(adapter.into());
        if into.is_null() {
            libc::free(result.cast());
            return libc::strdup(device.pointer());
        }
        std::ptr::copy_nonoverlapping(device.pointer(), into, device.bytes().len() + 1);
        into
    }
}

/// As the C library's function.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn realpath(path: Path, into: *mut c_char) -> *mut c_char {
    // SAFETY: the caller meets the function's preconditions.
    unsafe { canonical(path, into, |path| next::realpath(path, into)) }
}

/// As the C library's function.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __realpath_chk(path: Path, into: *mut c_char, room: size_t) -> *mut c_char {
    // SAFETY: the caller meets the function's preconditions.
    unsafe { canonical(path, into, |path| next::__realpath_chk(path, into, room)) }
}

/// As the C library's function, which is `realpath` into allocated memory.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn canonicalize_file_name(path: Path) -> *mut c_char {
    // SAFETY: the caller meets the function's preconditions.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

macro_rules! interpose_glob {
    ($($name:ident),*) => {$(
        /// As the C library's function, with the pattern to use instead.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(pattern: Path, flags: c_int, error: Void, into: *mut glob_t) -> c_int {
            // SAFETY: the caller meets the function's preconditions. If the function succeeds, the paths are C strings
            // that it allocated, after the places that the caller reserved.
            unsafe {
                let result = with(AT_FDCWD, pattern, |pattern| next::$name(pattern, flags, error, into));
                if result == 0 {
                    let reserved = if flags & libc::GLOB_DOOFFS == 0 { 0 } else { (*into).gl_offs };
                    (0..(*into).gl_pathc).for_each(|index| restore(*(*into).gl_pathv.add(reserved + index)));
                }
                result
            }
        }
    )*};
}

interpose_glob!(glob, glob64);
