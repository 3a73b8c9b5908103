//! Memory that a program supplies as a descriptor: a dma-buf, or a file instead of one. The broker maps it. Memory that
//! a program supplies by address is in `process`.
//!
//! A page that the broker mapped can go: the program truncates the file, or punches a hole into a file of huge pages
//! while the machine has none left. A load there would end the broker by SIGBUS. So the engine loads and stores only
//! where pages remain, and has the kernel copy elsewhere, which then returns an error.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Seek as _, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use softefa::device::{HostMemory, HostRange, Memory, MemoryFault, PAGE_BYTES};
use softefa_abi::Errno;

use super::limits::{Charge, Resource, Shares};
use super::mapping::{Mapping, errno};

/// The file system of dma-bufs (`linux/magic.h`).
const DMA_BUF_MAGIC: FsType = FsType(0x444d_4142);

/// A mapped region of a descriptor, at `address` in work-queue entries.
pub(crate) struct DescriptorMemory {
    /// Address of the region's first byte in work-queue entries.
    address: u64,
    /// Address of the region's first byte in this process.
    start: u64,
    /// The region, if its pages remain while they are mapped.
    direct: Option<HostMemory>,
    is_writable: bool,
    _mapping: Mapping,
    _charges: [Charge; 2],
}

impl DescriptorMemory {
    /// Maps the `length` bytes from `offset` of `descriptor` on for `client`, for writing too if `writable`. Work-queue
    /// entries name them from `address` on.
    pub(crate) fn new(
        (shares, client): (&Arc<Shares>, i32),
        descriptor: OwnedFd,
        offset: u64,
        (address, length): (u64, u64),
        writable: bool,
    ) -> Result<Self, Errno> {
        let mut file = File::from(descriptor);
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        let size = file.seek(SeekFrom::End(0)).map_err(|_| Errno::EBADF)?;
        if end > size || length == 0 {
            return Err(Errno::EINVAL);
        }
        let system = fstatfs(file.as_fd()).map_err(errno)?.filesystem_type();
        let page = match system {
            DMA_BUF_MAGIC | TMPFS_MAGIC => PAGE_BYTES as u64,
            HUGETLBFS_MAGIC => file.metadata().map_err(|error| Errno::of(&error))?.blksize(),
            // A file of a network or of a program could block the engine.
            _ => return Err(Errno::EINVAL),
        };
        let first = offset / page * page;
        let bytes = (end - first).checked_next_multiple_of(page).ok_or(Errno::EINVAL)?;
        let refused = Errno::ENOMEM;
        let charges = [
            shares.take(client, Resource::Mappings, 1).ok_or(refused)?,
            shares.take(client, Resource::MappedBytes, bytes).ok_or(refused)?,
        ];
        let bytes = usize::try_from(bytes).map_err(|_| Errno::EINVAL)?;
        let mapping = Mapping::new(file.as_fd(), first, bytes, writable)?;
        // SAFETY: `offset - first` is less than the mapping's length.
        let start = unsafe { mapping.start().add((offset - first) as usize) };
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
        let remains = system == DMA_BUF_MAGIC || system == TMPFS_MAGIC && seals & libc::F_SEAL_SHRINK != 0;
        // SAFETY: the range is mapped while `_mapping` exists, which is stored with it, and its pages remain. It is
        // writable unless `is_writable` is false. The broker makes no references to it.
        let direct = remains.then(|| unsafe { HostMemory::new(start, length as usize) });
        let start = start.as_ptr() as u64;
        Ok(Self { address, start, direct, is_writable: writable, _mapping: mapping, _charges: charges })
    }

    fn pointer(&self, address: u64) -> u64 {
        address.wrapping_sub(self.address).wrapping_add(self.start)
    }
}

impl Memory for DescriptorMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let (pointer, length) = (self.pointer(address), into.len());
        if let Some(memory) = &self.direct {
            return memory.read(pointer, into);
        }
        let remote = [RemoteIoVec { base: pointer as usize, len: length }];
        let moved = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(into)], &remote);
        if moved == Ok(length) { Ok(()) } else { Err(MemoryFault { address, length: length as u64 }) }
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let (pointer, length) = (self.pointer(address), from.len());
        let fault = MemoryFault { address, length: length as u64 };
        if !self.is_writable {
            return Err(fault);
        }
        if let Some(memory) = &self.direct {
            return memory.write(pointer, from);
        }
        let remote = [RemoteIoVec { base: pointer as usize, len: length }];
        let moved = process_vm_writev(Pid::this(), &[IoSlice::new(from)], &remote);
        if moved == Ok(length) { Ok(()) } else { Err(fault) }
    }

    fn host(&self, address: u64, length: u64) -> Option<HostRange> {
        self.direct.as_ref()?.host(self.pointer(address), length)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::fcntl::SealFlag;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    fn memory_file(name: &std::ffi::CStr, flags: MFdFlags, bytes: u64) -> File {
        let file = File::from(memfd_create(name, flags | MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.set_len(bytes).unwrap();
        file
    }

    fn map(file: &File, length: u64) -> Result<DescriptorMemory, Errno> {
        let file = file.try_clone().unwrap().into();
        DescriptorMemory::new((&Shares::new(), 1), file, 0, (0, length), true)
    }

    #[test]
    fn truncated_pages_and_huge_pages_that_do_not_exist_are_faults() {
        let file = memory_file(c"truncated", MFdFlags::empty(), 8192);
        let memory = map(&file, 8192).unwrap();
        memory.write(4096, &[7; 8]).unwrap();
        file.set_len(4096).unwrap();
        assert!(memory.read(4096, &mut [0; 8]).is_err() && memory.write(4096, &[0; 8]).is_err());
        memory.write(0, &[7; 8]).unwrap();
        // Huge pages that were never reserved. The seal holds the file's size, not its pages.
        let file = memory_file(c"softefa-huge", MFdFlags::MFD_HUGETLB, 4 << 20);
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        let memory = map(&file, 4096).unwrap();
        // Where the machine has free huge pages, the access succeeds. What counts is that it returns.
        let _ = (memory.read(0, &mut [0; 8]), memory.write(0, &[7; 8]));
        let mapped = || fs::read_to_string("/proc/self/maps").unwrap().contains("softefa-huge");
        assert!(mapped());
        drop(memory);
        assert!(!mapped(), "the huge page is unmapped whole");
    }

    #[test]
    fn sparse_files_cannot_take_the_address_space() {
        let file = memory_file(c"sparse", MFdFlags::empty(), 1 << 46);
        let shares = Shares::new();
        let map = |client: i32, length: u64| {
            let file = file.try_clone().unwrap().into();
            DescriptorMemory::new((&shares, client), file, 0, (0, length), true)
        };
        let greedy: Vec<_> = (0..100).map_while(|_| map(1, 1 << 40).ok()).collect();
        assert_eq!(greedy.len(), 16, "half of 2^45 bytes");
        assert!(map(2, 1 << 40).is_ok(), "another client's share");
    }
}
