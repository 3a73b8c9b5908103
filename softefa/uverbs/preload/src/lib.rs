//! Preloaded into a program, this makes `/dev/infiniband/uverbsN` exist, and `/dev/udmabuf` where there
//! is none ([`udmabuf`]).
//!
//! It interposes the calls by which libibverbs reaches a device and passes those that are about one
//! on to the broker ([`connection`]); everything else goes to the C library as it came. It knows
//! neither objects nor what calls mean: the broker reads and writes the program's memory itself.
//!
//! `/dev/null` stands in for the device file, so that what libibverbs checks of it (a character
//! device, with the number that sysfs names) holds. Every interposed function keeps `errno`, takes
//! no lock that a C library function could want, and never unwinds.

mod connection;
mod real;
mod table;
mod udmabuf;

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{mode_t, off_t, size_t, stat as Stat};
use softefa_abi::protocol::DEVICE_PREFIX;
use softefa_abi::{Errno, VERBS_IOCTL};

/// What stands in for a device.
const STAND_IN: &CStr = c"/dev/null";
/// The socket family by which libibverbs would ask a kernel that knows RDMA about its devices.
const NETLINK_RDMA: c_int = 20;

/// The adapter that `path` names, if it names one.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn adapter(path: *const c_char) -> Option<u32> {
    if path.is_null() || !connection::configured() {
        return None;
    }
    // SAFETY: not null, and a C string by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    path.to_str().ok()?.strip_prefix(DEVICE_PREFIX)?.parse().ok()
}

/// Sets `errno`, and gives what a failed call gives.
fn fail(error: Errno) -> c_int {
    // SAFETY: errno's place is the calling thread's own.
    unsafe { *libc::__errno_location() = error.get() };
    -1
}

/// Opens the adapter: a descriptor of the stand-in, with a connection beside it.
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
        /// As the C library's. The third argument is variadic there; on this platform a variadic
        /// integer is passed as a named one, and where it is absent nothing reads it.
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller's promise.
            match unsafe { adapter(path) } {
                Some(adapter) => open_adapter(adapter, flags),
                // SAFETY: the caller's promise.
                None => unsafe { udmabuf::opened(path, flags, real::$name(path, flags, mode)) },
            }
        }
    )*};
}

interpose_open!(open, open64);

macro_rules! interpose_openat {
    ($($name:ident),*) => {$(
        /// As the C library's; about the third argument see `open`.
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the caller's promise.
            match unsafe { adapter(path) } {
                Some(adapter) => open_adapter(adapter, flags),
                // SAFETY: the caller's promise.
                None => unsafe { udmabuf::opened(path, flags, real::$name(at, path, flags, mode)) },
            }
        }
    )*};
}

interpose_openat!(openat, openat64);

macro_rules! interpose_open_2 {
    ($($name:ident => $plain:ident),*) => {$(
        /// As the C library's, which programs built with `_FORTIFY_SOURCE` call.
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's promise; without O_CREAT no mode is read.
            unsafe { $plain(path, flags, 0) }
        }
    )*};
}

interpose_open_2!(__open_2 => open, __open64_2 => open64);

macro_rules! interpose_stat {
    ($($name:ident),*) => {$(
        /// As the C library's; a device has the stand-in's attributes.
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, into: *mut Stat) -> c_int {
            // SAFETY: the caller's promise, and a C string of our own.
            unsafe { real::$name(adapter(path).map_or(path, |_| STAND_IN.as_ptr()), into) }
        }
    )*};
}

interpose_stat!(stat, stat64);

macro_rules! interpose_xstat {
    ($($name:ident),*) => {$(
        /// As the C library's, which programs built before glibc 2.33 call.
        ///
        /// # Safety
        /// As of the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(version: c_int, path: *const c_char, into: *mut Stat) -> c_int {
            // SAFETY: the caller's promise, and a C string of our own.
            unsafe { real::$name(version, adapter(path).map_or(path, |_| STAND_IN.as_ptr()), into) }
        }
    )*};
}

interpose_xstat!(__xstat, __xstat64);

/// As the C library's; about the third argument see `open`.
///
/// # Safety
/// As of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(entry) = table::find(descriptor) else {
        // SAFETY: the caller's promise.
        return unsafe { udmabuf::answered(request, argument, real::ioctl(descriptor, request, argument)) };
    };
    if request != VERBS_IOCTL as c_ulong {
        return fail(Errno::ENOTTY);
    }
    // SAFETY: by the interface, the argument of this ioctl is a header with its attributes.
    match unsafe { connection::ioctl(&entry, argument) } {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

macro_rules! interpose_mmap {
    ($($name:ident),*) => {$(
        /// As the C library's; of a device, the broker's memory behind the key is mapped.
        ///
        /// # Safety
        /// As of the C library's function.
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
                // SAFETY: the caller's promise.
                return unsafe { real::$name(address, length, protection, flags, descriptor, offset) };
            };
            // As a device does: nothing private, nothing executable.
            let refused = flags & libc::MAP_SHARED == 0 || protection & libc::PROT_EXEC != 0;
            let writable = protection & libc::PROT_WRITE != 0;
            let mapped = if refused {
                Err(Errno::EINVAL)
            } else {
                connection::map(&entry, offset as u64, length as u64, writable)
            };
            match mapped {
                Ok((memory, offset)) => {
                    // SAFETY: a shared map of another descriptor, otherwise as the caller asked.
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

/// As the C library's; of a device, the connection goes with it.
///
/// # Safety
/// As of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    if let Some(socket) = table::remove(descriptor) {
        real::close(socket);
    }
    real::close(descriptor)
}

/// As the C library's, without the RDMA family: its kernel would name other devices.
///
/// # Safety
/// As of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && connection::configured() {
        return fail(Errno::EPROTONOSUPPORT);
    }
    real::socket(domain, kind, protocol)
}

// The C library's integer types that the signatures above rely on.
const _: () = assert!(size_of::<c_long>() == 8 && size_of::<c_uint>() == 4 && size_of::<off_t>() == 8);
