//! Pages of rings and doorbells, which the broker and a program both map. Memory that a program supplies is in `process`.
//!
//! An open device has at most one file of them, whatever the number of its queues: a sealed memory file, so that the
//! program cannot truncate it while the engine uses it. The program maps completion queues for reading only.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use softefa::device::{Doorbell, PAGE_BYTES, RingMemory};
use softefa_abi::Errno;

/// Bytes of a file, which limits the rings of an open device. It is sparse: only pages that are used take memory.
const FILE_BYTES: NonZeroUsize = NonZeroUsize::new(1 << 30).unwrap();

/// The rings of one open device.
#[derive(Default)]
pub(crate) struct Rings {
    file: Option<Arc<RingFile>>,
    doorbells: Vec<DoorbellPage>,
}

/// A memory file, mapped until the value is dropped.
struct RingFile {
    file: OwnedFd,
    start: NonNull<u8>,
    /// The allocated ranges: start and length.
    used: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: `start` is an address of this process, which any thread may use; the value makes no references to it.
unsafe impl Send for RingFile {}
// SAFETY: as above.
unsafe impl Sync for RingFile {}

impl Drop for RingFile {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range and only this unmaps it. Every user of the range holds this value.
        let _ = unsafe { munmap(self.start.cast(), FILE_BYTES.get()) };
    }
}

fn errno(error: nix::Error) -> Errno {
    Errno::new(error as i32)
}

/// Zeroed pages that the broker shares with a program.
pub(crate) struct Pages {
    file: Arc<RingFile>,
    start: usize,
    length: usize,
    is_writable: bool,
}

impl Rings {
    /// Allocates pages for `bytes` bytes, which the program may write if `writable`.
    pub(crate) fn allocate(&mut self, bytes: usize, writable: bool) -> Result<Arc<Pages>, Errno> {
        let length = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.file.insert(Arc::new(RingFile::new()?)).clone(),
        };
        let start = file.allocate(length).ok_or(Errno::ENOMEM)?;
        Ok(Arc::new(Pages { file, start, length, is_writable: writable }))
    }
}

impl RingFile {
    fn new() -> Result<Self, Errno> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"softefa", flags).map_err(errno)?);
        file.set_len(FILE_BYTES.get() as u64).map_err(|error| Errno::of(&error))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(errno)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so that no other mapping is replaced.
        let start = unsafe { mmap(None, FILE_BYTES, protection, MapFlags::MAP_SHARED, &file, 0) };
        Ok(Self { start: start.map_err(errno)?.cast(), used: Mutex::default(), file: OwnedFd::from(file) })
    }

    fn free(&self, start: usize) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
    }

    /// The first free range of this length.
    fn allocate(&self, length: usize) -> Option<usize> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut start = 0;
        for (taken, bytes) in &*used {
            if taken - start >= length {
                break;
            }
            start = taken + bytes;
        }
        if FILE_BYTES.get() - start < length {
            return None;
        }
        used.insert(start, length);
        Some(start)
    }
}

impl Drop for Pages {
    /// Gives the memory back, so that the next ring here is zeroed, and then the range.
    fn drop(&mut self) {
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // An error leaves the range allocated, because its bytes may remain.
        if fallocate(self.file.file.as_fd(), hole, self.start as i64, self.length as i64).is_ok() {
            self.file.free(self.start);
        }
    }
}

impl Pages {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Offset of the pages in the file of [`Self::descriptor`].
    pub(crate) fn offset(&self) -> u64 {
        self.start as u64
    }

    /// A descriptor of the file for the program. If the program may only read, it is opened for reading only.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        let descriptor = if self.is_writable {
            self.file.file.try_clone()
        } else {
            let path = format!("/proc/self/fd/{}", self.file.file.as_raw_fd());
            OpenOptions::new().read(true).open(path).map(OwnedFd::from)
        };
        descriptor.map_err(|error| Errno::of(&error))
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The first `length` bytes, as a ring.
    pub(crate) fn ring(self: &Arc<Self>, length: usize) -> Result<Arc<RingMemory>, Errno> {
        if length > self.length {
            return Err(Errno::EINVAL);
        }
        let owner: Arc<dyn Any + Send + Sync> = self.clone();
        // SAFETY: the range is inside the mapping, which `owner` keeps alive and allocated. The file is sealed, so its
        // pages remain. Only another process accesses them besides the ring.
        unsafe { RingMemory::from_raw(self.file.start.add(self.start), length, Some(owner)) }
            .map_err(|_| Errno::EINVAL)
    }
}

/// Bytes between the doorbells of a page: each has a cache line.
const STRIDE: usize = 64;

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

impl Rings {
    pub(crate) fn allocate_doorbell(&mut self) -> Result<AllocatedDoorbell, Errno> {
        if self.doorbells.iter().all(|page| page.used == u64::MAX) {
            let pages = self.allocate(PAGE_BYTES, true)?;
            let ring = pages.ring(PAGE_BYTES)?;
            self.doorbells.push(DoorbellPage { pages, ring, used: 0 });
        }
        let page = self.doorbells.iter_mut().find(|page| page.used != u64::MAX).ok_or(Errno::ENOMEM)?;
        let slot = page.used.trailing_ones() as usize;
        page.used |= 1 << slot;
        let doorbell = Doorbell::new(page.ring.clone(), slot * STRIDE).map_err(|_| Errno::EINVAL)?;
        doorbell.ring(0);
        Ok(AllocatedDoorbell { pages: page.pages.clone(), doorbell })
    }

    pub(crate) fn release_doorbell(&mut self, allocated: &AllocatedDoorbell) {
        for page in self.doorbells.iter_mut().filter(|page| Arc::ptr_eq(&page.pages, &allocated.pages)) {
            page.used &= !(1 << (allocated.doorbell.offset() / STRIDE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_range_is_zeroed_and_allocated_again() {
        let mut rings = Rings::default();
        let (first, second) = (rings.allocate(1, true).unwrap(), rings.allocate(9000, true).unwrap());
        assert_eq!((first.offset(), second.offset(), second.len()), (0, 4096, 12_288));
        first.ring(64).unwrap().store(0, &[7; 8]);
        drop(first);
        let again = rings.allocate(4096, true).unwrap();
        assert_eq!((again.offset(), again.ring(64).unwrap().load_word_acquire(0)), (0, [0; 8]));
        assert!(rings.allocate(FILE_BYTES.get(), true).is_err());
    }
}
