//! A program's process: its memory, accessed for ioctls as the kernel and for registered regions as an adapter, and its
//! end.
//!
//! The program itself supplies the descriptors of its memory and its mappings (`softefa_abi::protocol`). So the broker
//! never reaches the memory of a process that has the same number later.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use softefa::device::{Adapter, Memory, MemoryFault, Warning, WarningLog};
use softefa_abi::{Errno, UserMemory};

/// The text that names a process in messages.
pub(crate) fn name(process: i32) -> String {
    let name = fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("process {process} ({})", name.trim_ascii().escape_ascii())
}

/// A descriptor that becomes readable when the process ends.
///
/// # Errors
/// The system's, as when the process has ended or this one has too many descriptors.
pub(crate) fn end_of(process: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call has integer arguments.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    match i32::try_from(descriptor) {
        // SAFETY: the call returned a new descriptor, which has no other owner.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(Errno::of(&io::Error::last_os_error())),
    }
}

/// The memory of a process.
#[derive(Debug)]
pub(crate) struct Process {
    memory: File,
    mappings: File,
}

impl Process {
    /// The process that opened `/proc/self/mem` and `/proc/self/maps` as these descriptors.
    ///
    /// # Errors
    /// [`Errno::EBADF`] if they are not these files of procfs.
    pub(crate) fn new(memory: OwnedFd, mappings: OwnedFd) -> Result<Self, Errno> {
        let is = |file: &OwnedFd, name: &str| {
            let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let is_named = path.is_ok_and(|path| path.ends_with(name));
            is_named && fstatfs(file).is_ok_and(|system| system.filesystem_type() == PROC_SUPER_MAGIC)
        };
        match is(&memory, "mem") && is(&mappings, "maps") {
            true => Ok(Self { memory: memory.into(), mappings: mappings.into() }),
            false => Err(Errno::EBADF),
        }
    }

    /// Copies `into.len()` bytes from `address` of the process.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        // Reading ends at the first byte that is not mapped, and at once after the process ended.
        self.memory.read_exact_at(into, address).map_err(|_| Errno::EFAULT)
    }

    /// Copies `from` to `address` of the process.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        self.memory.write_all_at(from, address).map_err(|_| Errno::EFAULT)
    }

    /// Whether the whole range is mapped for reading, and for writing if `writable`.
    pub(crate) fn maps(&self, start: u64, length: u64, writable: bool) -> Result<bool, Errno> {
        let Some(end) = start.checked_add(length) else { return Ok(false) };
        let mut file = &self.mappings;
        let covered = file
            .rewind()
            .and_then(|()| covers(BufReader::with_capacity(1 << 16, file), start, end, writable));
        covered.map_err(|error| Errno::of(&error))
    }
}

/// The range of a line, and its rights.
fn parse(line: &[u8]) -> Option<(u64, u64, &str)> {
    let mut fields = line.split(|byte| byte.is_ascii_whitespace()).map(str::from_utf8);
    let (range, rights) = (fields.next()?.ok()?, fields.next()?.ok()?);
    let (from, to) = range.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, rights))
}

/// Whether the mappings in `text` (`/proc/PID/maps`, in ascending order) cover the range.
fn covers(text: impl BufRead, start: u64, end: u64, writable: bool) -> io::Result<bool> {
    let mut reached = start;
    for line in text.split(b'\n') {
        let line = line?;
        let Some((from, to, rights)) = parse(&line).filter(|(_, to, _)| *to > reached) else { continue };
        let is_allowed = rights.starts_with(if writable { "rw" } else { "r" });
        if from > reached || !is_allowed {
            return Ok(false);
        }
        reached = to;
        if reached >= end {
            return Ok(true);
        }
    }
    Ok(reached >= end)
}

impl UserMemory for Process {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        Process::read(self, address, into)
    }
}

/// A registered region of a process's memory. Work-queue entries may use other addresses than the process.
///
/// The kernel pins the pages of a region for an adapter, which reaches them after the process has unmapped them. Here
/// such a request fails, and the first of a region is a warning of the adapter.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    process: Arc<Process>,
    /// The process's number, which is its name in messages.
    client: i32,
    log: WarningLog,
    /// The process's address minus the entries' address, modulo 2^64.
    shift: u64,
    is_reported: AtomicBool,
}

impl ProcessMemory {
    pub(crate) fn new(process: &Arc<Process>, client: i32, adapter: &Adapter, shift: u64) -> Self {
        let (process, log) = (process.clone(), adapter.warning_log());
        Self { process, client, log, shift, is_reported: AtomicBool::new(false) }
    }

    fn fault(&self, address: u64, length: usize, error: &io::Error) -> MemoryFault {
        // A process that has ended has no memory at all, which is not this error.
        let is_unmapped = error.raw_os_error() == Some(libc::EIO);
        if is_unmapped && !self.is_reported.swap(true, Ordering::Relaxed) {
            let (process, start) = (name(self.client), address.wrapping_add(self.shift));
            let text = format!(
                "registered memory of {process} is not mapped any more, among {length} bytes at {start:#x}, so that a \
                 request failed; an EFA adapter accesses the old pages; deregister memory before it is unmapped"
            );
            self.log.warn(Warning::MemoryUnreachable(text));
        }
        MemoryFault { address, length: length as u64 }
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let read = self.process.memory.read_exact_at(into, address.wrapping_add(self.shift));
        read.map_err(|error| self.fault(address, into.len(), &error))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let written = self.process.memory.write_all_at(from, address.wrapping_add(self.shift));
        written.map_err(|error| self.fault(address, from.len(), &error))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    const MAPS: &[u8] =
        b"1000-3000 rw-p 00000000 00:00 0 /\xff\n3000-4000 r--p 00000000 00:00 0 [x]\n6000-7000 rw-p";

    fn covered(start: u64, end: u64, writable: bool) -> bool {
        covers(MAPS, start, end, writable).unwrap()
    }

    #[test]
    fn adjacent_mappings_cover_a_range_together() {
        assert!(covered(0x1800, 0x3800, false));
    }

    #[test]
    fn a_read_only_mapping_does_not_cover_a_range_for_writing() {
        assert!(!covered(0x1800, 0x3800, true));
        assert!(covered(0x1000, 0x3000, true));
    }

    #[test]
    fn a_range_with_a_hole_is_not_covered() {
        assert!(!covered(0x3000, 0x6800, false));
        assert!(!covered(0x7000, 0x7001, false));
    }

    fn open(process: &str) -> Result<Process, Errno> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"));
        let mappings = File::open(format!("/proc/{process}/maps"));
        Process::new(memory.unwrap().into(), mappings.unwrap().into())
    }

    #[test]
    fn bytes_of_a_process_are_read_and_written() {
        let this = open("self").unwrap();
        let mut target = *b"before";
        let address = target.as_mut_ptr() as u64;
        this.write(address, b"after!").unwrap();
        let mut copy = [0; 6];
        this.read(address, &mut copy).unwrap();
        assert_eq!(&copy, b"after!");
        assert_eq!(this.maps(address, 6, true), Ok(true));
        assert_eq!(this.read(8, &mut copy), Err(Errno::EFAULT));
    }

    #[test]
    fn memory_is_gone_when_its_process_executes_another_program_or_ends() {
        let mut child = Command::new("sh");
        child.args(["-c", "read x; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut streams = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let readable = |process: &Process| {
            let text = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
            let start = text.split('-').next().unwrap();
            process.read(u64::from_str_radix(start, 16).unwrap(), &mut [0; 8]).is_ok()
        };
        let shell = open(&child.id().to_string()).unwrap();
        assert!(readable(&shell));
        // The process keeps its number. When it repeats a line, it is another program.
        streams.0.write_all(b"go\nline\n").unwrap();
        streams.1.read_exact(&mut [0; 5]).unwrap();
        let cat = open(&child.id().to_string()).unwrap();
        assert!(readable(&cat) && !readable(&shell));
        let mapped = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let start = u64::from_str_radix(mapped.split('-').next().unwrap(), 16).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(cat.read(start, &mut [0; 8]), Err(Errno::EFAULT));
        assert_eq!(cat.write(start, &[0; 8]), Err(Errno::EFAULT));
    }
}
