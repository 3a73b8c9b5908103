//! Memory that the broker maps: pages of rings and doorbells, which a program maps too, and memory that a program
//! supplies as a descriptor. Memory that it supplies by address is in `process`.
//!
//! Pages are sealed memory files, so that no program can truncate them while the engine uses them.

use std::any::Any;
use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use softefa::device::{Doorbell, HostMemory, HostRange, Memory, MemoryFault, PAGE_BYTES, RingMemory};
use softefa_abi::Errno;

/// Converts an error of the system to one of the interface.
fn errno(error: nix::Error) -> Errno {
    Errno::new(error as i32)
}

/// A shared mapping of a file, which is unmapped when the value is dropped.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the value is an address range of this process, which any thread may use; it makes no references to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, offset: u64, length: usize, writable: bool) -> Result<Self, Errno> {
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, writable);
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let bytes = NonZeroUsize::new(length).ok_or(Errno::EINVAL)?;
        // SAFETY: the kernel chooses the address, so that no other mapping is replaced.
        let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file, offset) };
        Ok(Self { start: start.map_err(errno)?.cast(), length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range and only this unmaps it. Every user of the range holds this value.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}

/// Zeroed pages that the broker shares with a program.
pub(crate) struct Pages {
    file: OwnedFd,
    mapping: Arc<Mapping>,
}

impl Pages {
    pub(crate) fn new(bytes: usize) -> Result<Self, Errno> {
        let length = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"softefa", flags).map_err(errno)?);
        file.set_len(length as u64).map_err(|error| Errno::of(&error))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(errno)?;
        let mapping = Arc::new(Mapping::new(file.as_fd(), 0, length, true)?);
        Ok(Self { file: file.into(), mapping })
    }

    pub(crate) fn len(&self) -> usize {
        self.mapping.length
    }

    /// A descriptor for the program. If the program may only read, the descriptor is opened for reading only.
    pub(crate) fn descriptor(&self, writable: bool) -> Result<OwnedFd, Errno> {
        let descriptor = if writable {
            self.file.try_clone()
        } else {
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            OpenOptions::new().read(true).open(path).map(OwnedFd::from)
        };
        descriptor.map_err(|error| Errno::of(&error))
    }

    /// The `length` bytes from `offset` on, as a ring.
    pub(crate) fn ring(&self, offset: usize, length: usize) -> Result<Arc<RingMemory>, Errno> {
        if offset.checked_add(length).is_none_or(|end| end > self.len()) {
            return Err(Errno::EINVAL);
        }
        let owner: Arc<dyn Any + Send + Sync> = self.mapping.clone();
        // SAFETY: the range is inside the mapping, which `owner` keeps alive. The file is sealed, so its pages remain.
        // Only another process accesses them besides the ring.
        unsafe { RingMemory::from_raw(self.mapping.start.add(offset), length, Some(owner)) }
            .map_err(|_| Errno::EINVAL)
    }
}

/// Bytes between the doorbells of a page: each has a cache line.
const STRIDE: usize = 64;

/// The doorbell pages of one open device.
#[derive(Default)]
pub(crate) struct DoorbellPages {
    pages: Vec<DoorbellPage>,
}

struct DoorbellPage {
    pages: Arc<Pages>,
    ring: Arc<RingMemory>,
    /// Bit i is set if the i-th doorbell is allocated.
    used: u64,
}

/// An allocated doorbell and its page.
pub(crate) struct AllocatedDoorbell {
    pub(crate) pages: Arc<Pages>,
    pub(crate) doorbell: Doorbell,
}

impl DoorbellPages {
    pub(crate) fn allocate(&mut self) -> Result<AllocatedDoorbell, Errno> {
        if self.pages.iter().all(|page| page.used == u64::MAX) {
            let pages = Arc::new(Pages::new(PAGE_BYTES)?);
            let ring = pages.ring(0, PAGE_BYTES)?;
            self.pages.push(DoorbellPage { pages, ring, used: 0 });
        }
        let page = self.pages.iter_mut().find(|page| page.used != u64::MAX).ok_or(Errno::ENOMEM)?;
        let slot = page.used.trailing_ones() as usize;
        page.used |= 1 << slot;
        let doorbell = Doorbell::new(page.ring.clone(), slot * STRIDE).map_err(|_| Errno::EINVAL)?;
        doorbell.ring(0);
        Ok(AllocatedDoorbell { pages: page.pages.clone(), doorbell })
    }

    pub(crate) fn release(&mut self, allocated: &AllocatedDoorbell) {
        for page in self.pages.iter_mut().filter(|page| Arc::ptr_eq(&page.pages, &allocated.pages)) {
            page.used &= !(1 << (allocated.doorbell.offset() / STRIDE));
        }
    }
}

/// Memory that a program supplied as a descriptor: a dma-buf, or a memory file instead of one.
pub(crate) enum DescriptorMemory {
    /// Memory whose size cannot shrink; it is mapped.
    Mapped { memory: HostMemory, start: u64, writable: bool, _owner: Arc<dyn Any + Send + Sync> },
    /// A file that its owner can truncate; it is read and written by system calls.
    File { file: File },
}

impl DescriptorMemory {
    /// Opens the `length` bytes from `offset` of `descriptor` on, for writing too if `writable`.
    pub(crate) fn new(descriptor: OwnedFd, offset: u64, length: u64, writable: bool) -> Result<Self, Errno> {
        let mut file = File::from(descriptor);
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        let size = file.seek(SeekFrom::End(0)).map_err(|_| Errno::EBADF)?;
        if end > size || length == 0 {
            return Err(Errno::EINVAL);
        }
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS);
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        // A dma-buf has no seals, and its size never changes.
        let fixed = seals.map_or(!is_file, |seals| seals & libc::F_SEAL_SHRINK != 0);
        if !fixed {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).map_err(|error| Errno::of(&error))?;
            return Ok(Self::File { file });
        }
        let page = offset / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let bytes = usize::try_from(end - page).map_err(|_| Errno::EINVAL)?;
        let mapping = Arc::new(Mapping::new(file.as_fd(), page, bytes, writable)?);
        // SAFETY: `offset - page` is less than the mapping's length.
        let start = unsafe { mapping.start.add((offset - page) as usize) };
        // SAFETY: the range is mapped while `_owner` exists, which is stored with it. It is writable unless the region
        // does not allow writing. The broker makes no references to it.
        let memory = unsafe { HostMemory::new(start, length as usize) };
        Ok(Self::Mapped { memory, start: start.as_ptr() as u64, writable, _owner: mapping })
    }
}

/// A region of [`DescriptorMemory`], at `address` in work-queue entries.
pub(crate) struct DescriptorRegion {
    pub(crate) memory: DescriptorMemory,
    pub(crate) address: u64,
    /// Offset of the region's first byte in the descriptor's file.
    pub(crate) offset: u64,
}

impl DescriptorRegion {
    fn file_offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.address).wrapping_add(self.offset)
    }

    fn pointer(&self, start: u64, address: u64) -> u64 {
        address.wrapping_sub(self.address).wrapping_add(start)
    }
}

impl Memory for DescriptorRegion {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let fault = MemoryFault { address, length: into.len() as u64 };
        match &self.memory {
            DescriptorMemory::Mapped { memory, start, .. } => {
                memory.read(self.pointer(*start, address), into)
            }
            DescriptorMemory::File { file } => {
                file.read_exact_at(into, self.file_offset(address)).map_err(|_| fault)
            }
        }
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let fault = MemoryFault { address, length: from.len() as u64 };
        match &self.memory {
            DescriptorMemory::Mapped { writable: false, .. } => Err(fault),
            DescriptorMemory::Mapped { memory, start, .. } => {
                memory.write(self.pointer(*start, address), from)
            }
            DescriptorMemory::File { file } => {
                // A write past the end would extend the file, which memory does not do.
                let start = self.file_offset(address);
                let size = file.metadata().map_or(0, |metadata| metadata.len());
                if start.checked_add(from.len() as u64).is_none_or(|end| end > size) {
                    return Err(fault);
                }
                file.write_all_at(from, start).map_err(|_| fault)
            }
        }
    }

    fn host(&self, address: u64, length: u64) -> Option<HostRange> {
        match &self.memory {
            DescriptorMemory::Mapped { memory, start, .. } => {
                memory.host(self.pointer(*start, address), length)
            }
            DescriptorMemory::File { .. } => None,
        }
    }
}
