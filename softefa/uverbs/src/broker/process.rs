//! A program's memory, accessed from the broker by `process_vm_readv` and `process_vm_writev`, for ioctls as the kernel
//! and for registered regions as an adapter. Memory that a program supplies as a descriptor is in `pages`.

use std::fs;
use std::io::{IoSlice, IoSliceMut};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use softefa::device::{Memory, MemoryFault};
use softefa_abi::{Errno, UserMemory};

/// A process whose memory the broker may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: Pid,
}

impl Process {
    pub(crate) fn new(pid: libc::pid_t) -> Self {
        Self { pid: Pid::from_raw(pid) }
    }

    /// Copies `into.len()` bytes from `address` of the process.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        if into.is_empty() {
            return Ok(());
        }
        let remote = [RemoteIoVec { base: address as usize, len: into.len() }];
        let length = into.len();
        whole(process_vm_readv(self.pid, &mut [IoSliceMut::new(into)], &remote), length)
    }

    /// Copies `from` to `address` of the process.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        if from.is_empty() {
            return Ok(());
        }
        let remote = [RemoteIoVec { base: address as usize, len: from.len() }];
        whole(process_vm_writev(self.pid, &[IoSlice::new(from)], &remote), from.len())
    }

    /// Whether the whole range is mapped for reading, and for writing if `writable`.
    pub(crate) fn maps(&self, start: u64, length: u64, writable: bool) -> Result<bool, Errno> {
        let text =
            fs::read_to_string(format!("/proc/{}/maps", self.pid)).map_err(|error| Errno::of(&error))?;
        let Some(end) = start.checked_add(length) else { return Ok(false) };
        Ok(covers(&text, start, end, writable))
    }
}

/// Checks that a copy moved `expected` bytes.
fn whole(moved: nix::Result<usize>, expected: usize) -> Result<(), Errno> {
    match moved {
        Ok(moved) if moved == expected => Ok(()),
        // The kernel stops at the first byte that is not mapped.
        Ok(_) => Err(Errno::EFAULT),
        Err(error) => Err(Errno::new(error as i32)),
    }
}

/// Whether the mappings in `text` (`/proc/PID/maps`, in ascending order) cover the range.
fn covers(text: &str, start: u64, end: u64, writable: bool) -> bool {
    let mut reached = start;
    for line in text.lines() {
        if reached >= end {
            break;
        }
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else {
            continue;
        };
        if to <= reached {
            continue;
        }
        let rights = rest.as_bytes();
        let allowed = rights.first() == Some(&b'r') && (!writable || rights.get(1) == Some(&b'w'));
        if from > reached || !allowed {
            return false;
        }
        reached = to;
    }
    reached >= end
}

impl UserMemory for Process {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        Process::read(self, address, into)
    }
}

/// A registered region of a process's memory. Work-queue entries may use other addresses than the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessMemory {
    pub(crate) process: Process,
    /// The process's address minus the entries' address, modulo 2^64.
    pub(crate) shift: u64,
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let length = into.len() as u64;
        let remote = address.wrapping_add(self.shift);
        self.process.read(remote, into).map_err(|_| MemoryFault { address, length })
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let length = from.len() as u64;
        let remote = address.wrapping_add(self.shift);
        self.process.write(remote, from).map_err(|_| MemoryFault { address, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 r--p 00000000 00:00 0 [x]\n6000-7000 rw-p";

    #[test]
    fn adjacent_mappings_cover_a_range_together() {
        assert!(covers(MAPS, 0x1800, 0x3800, false));
    }

    #[test]
    fn a_read_only_mapping_does_not_cover_a_range_for_writing() {
        assert!(!covers(MAPS, 0x1800, 0x3800, true));
        assert!(covers(MAPS, 0x1000, 0x3000, true));
    }

    #[test]
    fn a_range_with_a_hole_is_not_covered() {
        assert!(!covers(MAPS, 0x3000, 0x6800, false));
        assert!(!covers(MAPS, 0x7000, 0x7001, false));
    }

    #[test]
    fn bytes_of_a_process_are_read_and_written() {
        let this = Process::new(std::process::id() as libc::pid_t);
        let mut target = *b"before";
        this.write(target.as_mut_ptr() as u64, b"after!").unwrap();
        let mut copy = [0; 6];
        this.read(target.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(&copy, b"after!");
        assert_eq!(this.read(8, &mut copy), Err(Errno::EFAULT));
    }
}
