//! Emulates the ioctl of `/dev/udmabuf`, which creates a dmabuf from a memory file (`linux/udmabuf.h`). `paths` shows the
//! stand-in there.
//!
//! The result is another descriptor of the memory file, which the adapter accepts as a dmabuf. Programs that place
//! completion queues in host memory through a dmabuf then run on every kernel. A kernel's own udmabuf is not used: the
//! broker could not reach its pages through the program's memory (`VM_PFNMAP`).

use std::ffi::{c_int, c_ulong, c_void};
use std::ptr::read_unaligned;

use softefa_abi::Errno;

use crate::{connection, fail};

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

/// Returns `result` of an ioctl, or the emulated result if the ioctl is udmabuf's and the stand-in refused it.
///
/// # Safety
/// `argument` must be valid for the ioctl `request`.
pub(crate) unsafe fn ioctl_result(request: c_ulong, argument: *mut c_void, result: c_int) -> c_int {
    // Callers may sign-extend the number from an int, so only its low 32 bits count.
    let is_create = request as u32 == CREATE as u32 && connection::configured();
    // SAFETY: `__errno_location` returns the address of the calling thread's errno.
    if result >= 0 || !is_create || argument.is_null() || unsafe { *libc::__errno_location() } != libc::ENOTTY
    {
        return result;
    }
    // SAFETY: by the caller, the argument of this ioctl is that structure. It may be unaligned.
    let create = unsafe { read_unaligned(argument.cast::<Create>()) };
    duplicate(&create).unwrap_or_else(fail)
}

/// Duplicates the memory file's descriptor after the kernel's checks. An offset is refused, because the duplicate
/// cannot represent it.
fn duplicate(create: &Create) -> Result<c_int, Errno> {
    let memfd = c_int::try_from(create.memfd).map_err(|_| Errno::EBADF)?;
    if create.offset != 0 || create.size == 0 || !create.size.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the arguments are integers.
    let seals = unsafe { libc::fcntl(memfd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || seals & libc::F_SEAL_WRITE != 0 {
        return Err(Errno::EINVAL);
    }
    let cloexec = create.flags & FLAGS_CLOEXEC != 0;
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: the arguments are integers.
    match unsafe { libc::fcntl(memfd, command, 0) } {
        descriptor @ 0.. => Ok(descriptor),
        _ => Err(Errno::of(&std::io::Error::last_os_error())),
    }
}
