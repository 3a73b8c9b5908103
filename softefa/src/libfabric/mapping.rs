//! Memory that an application passes as a file descriptor (a dmabuf, a memfd), mapped so that the engine can
//! access it. Memory that the CPU cannot map, such as a GPU's, is an error here; [`crate::cuda`] accesses
//! that.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::device::{DeviceError, HostMemory, Memory, MemoryFault, RingMemory};

use super::ffi::Code;

/// A range of a file, mapped for the life of this value.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The mapped pages.
    pages: NonNull<u8>,
    mapped: usize,
    /// The first byte of the range.
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: this value owns the address range and does not access its bytes; code that does justifies it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes at `offset` of the file `fd`. The caller may close `fd` afterwards.
    ///
    /// # Errors
    /// [`Code::INVALID`] for an empty range, a range past the file's end, and a descriptor that is not open;
    /// [`Code::NOT_SUPPORTED`] for a file that the CPU cannot map.
    pub(crate) fn new(fd: c_int, offset: u64, length: usize) -> Result<Self, Code> {
        let page = crate::device::PAGE_BYTES as u64;
        let skip = (offset % page) as usize;
        let aligned = i64::try_from(offset - skip as u64).map_err(|_| Code::INVALID)?;
        let mapped = length.checked_add(skip).filter(|_| length != 0).ok_or(Code::INVALID)?;
        // SAFETY: all zeroes is a valid stat, and fstat may write it.
        let (is_file, size) = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            (libc::fstat(fd, &mut stat) == 0, stat.st_size)
        };
        // A page past the end of a file can be mapped and then faults on access. Files without a size, such
        // as older dmabufs, report 0.
        if !is_file || (size > 0 && (size as u64) < offset.saturating_add(length as u64)) {
            return Err(Code::INVALID);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let pages = unsafe { libc::mmap(ptr::null_mut(), mapped, protection, libc::MAP_SHARED, fd, aligned) };
        if pages == libc::MAP_FAILED {
            return Err(Code::NOT_SUPPORTED);
        }
        let pages = NonNull::new(pages.cast::<u8>()).ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: `skip` is less than the mapped length.
        let start = unsafe { pages.add(skip) };
        Ok(Self { pages, mapped, start, length })
    }

    /// The range's first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The range as the memory of a ring.
    pub(crate) fn ring(self) -> Result<Arc<RingMemory>, DeviceError> {
        let (start, length) = (self.start, self.length);
        // SAFETY: the range is mapped while this value lives, and the ring memory owns this value. The
        // application passed the memory to share it with an adapter.
        unsafe { RingMemory::from_raw(start, length, Some(Arc::new(self))) }
    }

    /// The range as memory of a region in which entries use `address` for its first byte.
    pub(crate) fn with_address(self, address: u64) -> MappedMemory {
        // SAFETY: the range is mapped, readable and writable while this value lives, and the result owns this
        // value. The application registers it as memory that an adapter may access at any time.
        let host = unsafe { HostMemory::new(self.start, self.length) };
        MappedMemory { host, address, mapping: self }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the pages that `new` mapped, unmapped once.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), self.mapped) };
    }
}

/// A mapped range, accessed by addresses that the application chose.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    host: HostMemory,
    address: u64,
    mapping: Mapping,
}

impl MappedMemory {
    /// The address in this process for the application's `address`.
    fn translate(&self, address: u64) -> u64 {
        let start = self.mapping.start.as_ptr().addr() as u64;
        start.wrapping_add(address.wrapping_sub(self.address))
    }

    /// The fault, with the application's address.
    fn at_client_address(&self, fault: MemoryFault, address: u64) -> MemoryFault {
        MemoryFault { address, length: fault.length }
    }
}

impl Memory for MappedMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.host.read(self.translate(address), into).map_err(|fault| self.at_client_address(fault, address))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        self.host.write(self.translate(address), from).map_err(|fault| self.at_client_address(fault, address))
    }
}
