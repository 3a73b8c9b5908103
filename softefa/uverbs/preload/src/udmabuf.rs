//! `/dev/udmabuf`, by which a kernel makes a dma-buf of a memory file (`linux/udmabuf.h`), where this
//! one has none: the adapter takes the memory file itself, so that the answer is one more descriptor
//! of it. Programs that place completion queues in host memory given as a dma-buf then run here.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr::read_unaligned;

use softefa_abi::Errno;

use crate::{STAND_IN, connection, fail, real};

const PATH: &CStr = c"/dev/udmabuf";
/// `struct udmabuf_create`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}
/// `UDMABUF_CREATE`.
const CREATE: c_ulong = 1 << 30 | (size_of::<Create>() as c_ulong) << 16 | 0x75 << 8 | 0x42;
const FLAGS_CLOEXEC: u32 = 1;
const PAGE: u64 = 4096;

/// What opening `path` came to, or the stand-in where it is a udmabuf that is not there.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn opened(path: *const c_char, flags: c_int, result: c_int) -> c_int {
    if result >= 0 || path.is_null() || !connection::configured() {
        return result;
    }
    // SAFETY: not null, and a C string by the caller's promise.
    if unsafe { CStr::from_ptr(path) } != PATH {
        return result;
    }
    real::open_path(STAND_IN, flags & !(libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL))
}

/// What an ioctl came to, or udmabuf's answer where the stand-in refused its call.
///
/// # Safety
/// `argument` is what the call says.
pub(crate) unsafe fn answered(request: c_ulong, argument: *mut c_void, result: c_int) -> c_int {
    // What the sign of an int made of the number, by way of its callers, does not matter.
    let ours = request as u32 == CREATE as u32 && connection::configured();
    // SAFETY: errno's place is the calling thread's own.
    if result >= 0 || !ours || argument.is_null() || unsafe { *libc::__errno_location() } != libc::ENOTTY {
        return result;
    }
    // SAFETY: by this call's interface the argument is that structure.
    let create = unsafe { read_unaligned(argument.cast::<Create>()) };
    make(&create).unwrap_or_else(fail)
}

/// As the kernel checks it; but for the offset, which one more descriptor of the file cannot have.
fn make(create: &Create) -> Result<c_int, Errno> {
    let memfd = c_int::try_from(create.memfd).map_err(|_| Errno::EBADF)?;
    if create.offset != 0 || create.size == 0 || !create.size.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: integers only.
    let seals = unsafe { libc::fcntl(memfd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || seals & libc::F_SEAL_WRITE != 0 {
        return Err(Errno::EINVAL);
    }
    let cloexec = create.flags & FLAGS_CLOEXEC != 0;
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: integers only.
    match unsafe { libc::fcntl(memfd, command, 0) } {
        made @ 0.. => Ok(made),
        _ => Err(Errno::of(&std::io::Error::last_os_error())),
    }
}
