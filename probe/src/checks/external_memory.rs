//! Memory with a file descriptor, for a completion queue in external memory.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Entries of the completion queue in external memory.
pub(crate) const ENTRIES: u32 = 1024;
/// Bytes that are enough for these entries.
pub(crate) const BYTES: u64 = 64 << 10;

/// [`BYTES`] of such memory. The driver needs a dmabuf; the software adapter accepts any memory with a
/// descriptor.
///
/// # Errors
/// What failed and what to do, in words.
pub(crate) fn memory(soft: bool) -> Result<OwnedFd, String> {
    let file = memory_file().map_err(|why| {
        format!("memfd_create, ftruncate or sealing failed: {why}; allow them in the seccomp profile")
    })?;
    if soft {
        return Ok(file);
    }
    dmabuf(&file).map_err(|why| {
        format!(
            "/dev/udmabuf, which makes a dmabuf of host memory, failed: {why}; load the module (modprobe udmabuf) and \
             give the process this device"
        )
    })
}

/// Zeroed memory with a descriptor, sealed against shrinking, as udmabuf requires.
fn memory_file() -> std::io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a zero byte; the result is checked.
    let fd = unsafe { libc::memfd_create(c"gda-probe".as_ptr(), flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so this is its only owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(BYTES)?;
    // SAFETY: the descriptor is open; the command takes a number.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(file.into())
}

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`: _IOW('u', 0x42, struct udmabuf_create).
const UDMABUF_CREATE: u64 = 1 << 30 | (size_of::<UdmabufCreate>() as u64) << 16 | (b'u' as u64) << 8 | 0x42;
/// `UDMABUF_FLAGS_CLOEXEC`.
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// The memory as a dmabuf, which needs `/dev/udmabuf`.
fn dmabuf(memory: &OwnedFd) -> std::io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/udmabuf")?;
    let memfd = u32::try_from(memory.as_raw_fd()).unwrap_or(u32::MAX);
    let create = UdmabufCreate { memfd, flags: UDMABUF_FLAGS_CLOEXEC, offset: 0, size: BYTES };
    // SAFETY: the device's command, with the struct that it reads.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE as _, &raw const create) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so this is its only owner; it keeps the memory alive without `memory`.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
