//! A shared mapping of a file in the broker.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use softefa_abi::Errno;

/// Converts an error of the system to one of the interface.
pub(crate) fn errno(error: nix::Error) -> Errno {
    Errno::new(error as i32)
}

/// A shared mapping of a file, which is unmapped when the value is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the value is an address range of this process, which any thread may use; it makes no references to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the `length` bytes from `offset` on. Both must be multiples of the file's page size. No huge pages are
    /// reserved: a program's file must not use up the machine's.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, writable);
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let bytes = NonZeroUsize::new(length).ok_or(Errno::EINVAL)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        // SAFETY: the kernel chooses the address, so that no other mapping is replaced.
        let start = unsafe { mmap(None, bytes, protection, flags, file, offset) };
        Ok(Self { start: start.map_err(errno)?.cast(), length })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range and only this unmaps it. Every user of the range holds this value.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}
