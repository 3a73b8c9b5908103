//! A library that is preloaded into a program. It emulates `/dev/infiniband/uverbsN` and `/dev/udmabuf` ([`udmabuf`]).
//!
//! It interposes the functions by which programs find a device ([`paths`], [`path_functions`]) and those by which
//! libibverbs uses it. Calls that concern an emulated device go to the broker ([`connection`]); all others go to the C
//! library. It does not decode ioctls and has no objects: the broker reads and writes the program's memory itself.
//!
//! `/dev/null` stands in for the device file, so that libibverbs' checks succeed: the file is a character device and
//! has the number that sysfs states. Every interposed function takes no lock that a C library function could need, and
//! never unwinds. For a descriptor or path that is no device, it leaves `errno` as the C library's function does.

mod connection;
mod path_functions;
mod paths;
mod real;
mod table;
mod udmabuf;

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr::null_mut;

use libc::{FILE, mode_t, off_t, size_t};
use softefa_abi::{Errno, VERBS_IOCTL};

use paths::{Emulated, Text};

/// The file that stands in for a device.
const STAND_IN: &CStr = c"/dev/null";
/// The netlink protocol through which libibverbs asks the kernel for its RDMA devices.
const NETLINK_RDMA: c_int = 20;

/// The flags with which a file is created, but not opened if it exists.
const EXCLUSIVE: c_int = libc::O_CREAT | libc::O_EXCL;

/// Sets `errno` and returns -1.
fn fail(error: Errno) -> c_int {
    // SAFETY: `__errno_location` returns the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = error.get() };
    -1
}

/// Opens an adapter. Returns a descriptor of the stand-in and records its connection in the table.
fn open_adapter(adapter: u32, flags: c_int) -> c_int {
    if flags & EXCLUSIVE == EXCLUSIVE {
        return fail(Errno::new(libc::EEXIST));
    }
    let descriptor = real::open_path(STAND_IN, flags & !(libc::O_CREAT | libc::O_TRUNC));
    if descriptor < 0 {
        return descriptor;
    }
    match connection::open(adapter).and_then(|socket| table::insert(descriptor, socket)) {
        Ok(()) => descriptor,
        Err(error) => {
            real::close(descriptor);
            fail(error)
        }
    }
}

/// Opens a file that reads as the value of a counter. Refuses what sysfs does.
#[inline(never)] // other calls need no room for its text
fn open_counter(adapter: u32, counter: u32, flags: c_int) -> c_int {
    let refusal = match flags {
        _ if flags & libc::O_DIRECTORY != 0 => Some(Errno::new(libc::ENOTDIR)),
        _ if flags & EXCLUSIVE == EXCLUSIVE => Some(Errno::new(libc::EEXIST)),
        _ if flags & libc::O_ACCMODE != libc::O_RDONLY => Some(Errno::new(libc::EACCES)),
        _ => None,
    };
    if let Some(error) = refusal {
        return fail(error);
    }
    let value = match connection::counter(adapter, counter) {
        Ok(value) => value,
        Err(error) => return fail(error),
    };
    let close = if flags & libc::O_CLOEXEC == 0 { 0 } else { libc::MFD_CLOEXEC };
    let mut text = Text::new();
    text.number(value).push(b"\n");
    // SAFETY: the name is a C string, and the bytes are readable.
    unsafe {
        let file = libc::memfd_create(c"softefa-counter".as_ptr(), close);
        let length = text.bytes().len();
        if file >= 0 && libc::pwrite(file, text.pointer().cast(), length, 0) != length as isize {
            real::close(file);
            return fail(Errno::EIO);
        }
        file
    }
}

/// Opens what `path` is to this library, or else calls `open` with the path to open.
///
/// # Safety
/// As for `openat`, except that `path` may be null if `open` may be called with null.
unsafe fn open_file(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    open: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: by the caller.
    match unsafe { paths::emulated(at, path) } {
        Some(Emulated::Device(adapter)) => open_adapter(adapter, flags),
        Some(Emulated::Counter { adapter, counter }) => open_counter(adapter, counter, flags),
        // SAFETY: by the caller.
        None => unsafe { paths::with(at, path, open) },
    }
}

macro_rules! interpose_open {
    ($($name:ident, $checked:ident, $at:expr, ($($argument:ident: $type:ty)?);)*) => {$(
        /// As the C library's function; opens a device through the broker. The C library declares the last argument as
        /// variadic. On this platform a variadic integer is passed like a named one, and nothing reads it if it is absent.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type,)? path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller meets the function's preconditions.
            unsafe { open_file($at, path, flags, |path| real::$name($($argument,)? path, flags, mode)) }
        }

        /// As the C library's function, which programs built with `_FORTIFY_SOURCE` call.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $checked($($argument: $type,)? path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller meets the function's preconditions. Without O_CREAT the mode is not read.
            unsafe { $name($($argument,)? path, flags, 0) }
        }
    )*};
}

interpose_open! {
    open, __open_2, libc::AT_FDCWD, ();
    open64, __open64_2, libc::AT_FDCWD, ();
    openat, __openat_2, at, (at: c_int);
    openat64, __openat64_2, at, (at: c_int);
}

macro_rules! interpose_fopen {
    ($($name:ident),*) => {$(
        /// As the C library's function, which opens the file without a call of `open` that this library would see.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: the caller meets the function's preconditions: both are C strings.
            unsafe {
                if paths::emulated(libc::AT_FDCWD, path).is_none() {
                    return paths::with(libc::AT_FDCWD, path, |path| real::$name(path, mode));
                }
                let letters = CStr::from_ptr(mode).to_bytes();
                let access = match letters.first() {
                    _ if letters.contains(&b'+') => libc::O_RDWR,
                    Some(b'r') => libc::O_RDONLY,
                    _ => libc::O_WRONLY,
                };
                let close = if letters.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
                let file = open(path, access | close, 0);
                if file < 0 { null_mut() } else { libc::fdopen(file, mode) }
            }
        }
    )*};
}

interpose_fopen!(fopen, fopen64);

/// As the C library's function; forwards a device's ioctls. See `open` for the third argument.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(entry) = table::find(descriptor) else {
        // SAFETY: the caller meets the function's preconditions.
        return unsafe {
            udmabuf::ioctl_result(request, argument, real::ioctl(descriptor, request, argument))
        };
    };
    if request != VERBS_IOCTL as c_ulong {
        return fail(Errno::ENOTTY);
    }
    // SAFETY: by the interface, the argument of this ioctl is a header and its attributes.
    match unsafe { connection::ioctl(&entry, argument) } {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

macro_rules! interpose_mmap {
    ($($name:ident),*) => {$(
        /// As the C library's function; for a device, maps the broker's memory of the key `offset`.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            length: size_t,
            protection: c_int,
            flags: c_int,
            descriptor: c_int,
            offset: off_t,
        ) -> *mut c_void {
            let Some(entry) = table::find(descriptor) else {
                // SAFETY: the caller meets the function's preconditions.
                return unsafe { real::$name(address, length, protection, flags, descriptor, offset) };
            };
            // A device refuses private and executable mappings, too.
            let refused = flags & libc::MAP_SHARED == 0 || protection & libc::PROT_EXEC != 0;
            let writable = protection & libc::PROT_WRITE != 0;
            let mapped = if refused {
                Err(Errno::EINVAL)
            } else {
                connection::map(&entry, offset as u64, length as u64, writable)
            };
            match mapped {
                Ok((memory, offset)) => {
                    // SAFETY: the caller's mapping, of another descriptor.
                    let start = unsafe {
                        real::$name(address, length, protection, flags, memory, offset as off_t)
                    };
                    real::close(memory);
                    start
                }
                Err(error) => {
                    fail(error);
                    libc::MAP_FAILED
                }
            }
        }
    )*};
}

interpose_mmap!(mmap, mmap64);

/// As the C library's function; for a device, closes its connection too.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    table::remove(descriptor);
    real::close(descriptor)
}

/// As the C library's function; if `new` is a device, closes its connection too.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the arguments are integers.
    let result = unsafe { real::dup2(old, new) };
    if result >= 0 && old != new {
        table::remove(new);
    }
    result
}

/// As `dup2`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the arguments are integers.
    let result = unsafe { real::dup3(old, new, flags) };
    if result >= 0 {
        table::remove(new);
    }
    result
}

/// As the C library's function, but refuses netlink's RDMA protocol, through which the kernel would list its devices.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && connection::configured() {
        return fail(Errno::EPROTONOSUPPORT);
    }
    real::socket(domain, kind, protocol)
}

// The signatures above rely on these sizes of the C library's integer types.
const _: () = assert!(size_of::<c_long>() == 8 && size_of::<c_uint>() == 4 && size_of::<off_t>() == 8);

extern "C" fn at_load() {
    real::find_all(&[path_functions::next::found::ALL]);
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
