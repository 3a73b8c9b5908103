//! A library that is preloaded into a program. It emulates `/dev/infiniband/uverbsN` and `/dev/udmabuf` ([`udmabuf`]).
//!
//! It interposes the functions by which libibverbs reaches a device. Calls that concern an emulated device go to the
//! broker ([`connection`]); all others go to the C library unchanged. It does not decode ioctls and has no objects: the
//! broker reads and writes the program's memory itself.
//!
//! `/dev/null` stands in for the device file, so that libibverbs' checks succeed: the file is a character device and
//! has the number that sysfs states. Every interposed function takes no lock that a C library function could need, and
//! never unwinds. For a descriptor or path that is no device, it leaves `errno` as the C library's function does.

mod connection;
mod real;
mod table;
mod udmabuf;

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{mode_t, off_t, size_t, stat as Stat};
use softefa_abi::protocol::DEVICE_PREFIX;
use softefa_abi::{Errno, VERBS_IOCTL};

/// The file that stands in for a device.
const STAND_IN: &CStr = c"/dev/null";
/// The netlink protocol through which libibverbs asks the kernel for its RDMA devices.
const NETLINK_RDMA: c_int = 20;

/// The number of the adapter whose device file is `path`, if it is one.
///
/// # Safety
/// `path` must be null or a C string.
unsafe fn adapter(path: *const c_char) -> Option<u32> {
    if path.is_null() || !connection::configured() {
        return None;
    }
    // SAFETY: `path` is not null, so by the caller it is a C string.
    let path = unsafe { CStr::from_ptr(path) };
    path.to_str().ok()?.strip_prefix(DEVICE_PREFIX)?.parse().ok()
}

/// Sets `errno` and returns -1.
fn fail(error: Errno) -> c_int {
    // SAFETY: `__errno_location` returns the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = error.get() };
    -1
}

/// Opens an adapter. Returns a descriptor of the stand-in and records its connection in the table.
fn open_adapter(adapter: u32, flags: c_int) -> c_int {
    let descriptor = real::open_path(STAND_IN, flags & !(libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL));
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

macro_rules! interpose_open {
    ($($name:ident),*) => {$(
        /// As the C library's function; opens a device through the broker. The C library declares the third
        /// argument as variadic. On this platform a variadic integer is passed like a named one, and nothing reads it
        /// if it is absent.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller meets the function's preconditions.
            match unsafe { adapter(path) } {
                Some(adapter) => open_adapter(adapter, flags),
                // SAFETY: the caller meets the function's preconditions.
                None => unsafe { udmabuf::open_result(path, flags, real::$name(path, flags, mode)) },
            }
        }
    )*};
}

interpose_open!(open, open64);

macro_rules! interpose_openat {
    ($($name:ident),*) => {$(
        /// As the C library's function; opens a device through the broker. See `open` for the third argument.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller meets the function's preconditions.
            match unsafe { adapter(path) } {
                Some(adapter) => open_adapter(adapter, flags),
                // SAFETY: the caller meets the function's preconditions.
                None => unsafe { udmabuf::open_result(path, flags, real::$name(at, path, flags, mode)) },
            }
        }
    )*};
}

interpose_openat!(openat, openat64);

macro_rules! interpose_open_2 {
    ($($name:ident => $plain:ident),*) => {$(
        /// As the C library's function, which programs built with `_FORTIFY_SOURCE` call.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller meets the function's preconditions. Without O_CREAT the mode is not read.
            unsafe { $plain(path, flags, 0) }
        }
    )*};
}

interpose_open_2!(__open_2 => open, __open64_2 => open64);

macro_rules! interpose_stat {
    ($($name:ident),*) => {$(
        /// As the C library's function; a device has the attributes of the stand-in.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, into: *mut Stat) -> c_int {
            // SAFETY: the caller meets the function's preconditions, and the stand-in's path is a C string.
            unsafe { real::$name(adapter(path).map_or(path, |_| STAND_IN.as_ptr()), into) }
        }
    )*};
}

interpose_stat!(stat, stat64);

macro_rules! interpose_xstat {
    ($($name:ident),*) => {$(
        /// As the C library's function, which programs built for a glibc before 2.33 call.
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(version: c_int, path: *const c_char, into: *mut Stat) -> c_int {
            // SAFETY: the caller meets the function's preconditions, and the stand-in's path is a C string.
            unsafe { real::$name(version, adapter(path).map_or(path, |_| STAND_IN.as_ptr()), into) }
        }
    )*};
}

interpose_xstat!(__xstat, __xstat64);

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
