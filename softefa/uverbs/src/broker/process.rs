//! A program's process: its memory, accessed for ioctls as the kernel and for registered regions as an adapter, and its
//! end.
//!
//! The program itself supplies the descriptors of its memory and its mappings (`softefa_abi::protocol`). So the broker
//! reaches no memory that the program could not reach, nor that of a process that has the same number later.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use softefa::device::{Adapter, Memory, MemoryFault, Warning};
use softefa_abi::{Errno, UserMemory};

/// The most bytes of a process's list of mappings. 65,530 mappings, the default limit of Linux, have fewer.
const MAX_MAPPINGS_TEXT: u64 = 64 << 20;

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

/// The time at which a process started, in `/proc/PID/stat`: the 22nd field. The second one, its name in parentheses, can
/// have any characters.
fn start_time(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The memory of a process.
#[derive(Debug)]
pub(crate) struct Process {
    memory: File,
    mappings: File,
    identity: u64,
}

impl Process {
    /// The process that opened `/proc/self/mem` and `/proc/self/maps` as these descriptors, whose number is `client`.
    ///
    /// # Errors
    /// [`Errno::EBADF`] if they are not these files of procfs. (A pipe or a file of a network could block the engine,
    /// and only lines of `maps` have a bounded length.) This check can block, if they are files of a file system that
    /// does not reply; then only the connection's thread waits, because the device is not open yet.
    pub(crate) fn new(memory: OwnedFd, mappings: OwnedFd, client: i32) -> Result<Self, Errno> {
        let is = |file: &OwnedFd, name: &str| {
            let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let is_named = path.is_ok_and(|path| path.ends_with(name));
            is_named && fstatfs(file).is_ok_and(|system| system.filesystem_type() == PROC_SUPER_MAGIC)
        };
        if !is(&memory, "mem") || !is(&mappings, "maps") {
            return Err(Errno::EBADF);
        }
        let stat = fs::read(format!("/proc/{client}/stat")).unwrap_or_default();
        let started = start_time(&String::from_utf8_lossy(&stat)).unwrap_or(0);
        let identity = started << 32 | u64::from(client.unsigned_abs());
        Ok(Self { memory: memory.into(), mappings: mappings.into(), identity })
    }

    /// The number by which an adapter tells clients apart. The engine may wait for the memory of a process that has ended,
    /// so a process that has the same process number later has another one.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// Whether the memory is gone, because the process executed another program or ended.
    pub(crate) fn is_gone(&self) -> bool {
        // Reading an address that is not mapped fails, but of memory that is gone it returns nothing.
        matches!(self.memory.read_at(&mut [0], 0), Ok(0))
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
        let text = BufReader::with_capacity(1 << 16, FromStart { file: &self.mappings, at: 0 });
        covers(text.take(MAX_MAPPINGS_TEXT), start, end, writable).map_err(|error| Errno::of(&error))
    }
}

/// A file, read from its start on without its position, which the program shares.
struct FromStart<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(into, self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

/// Bytes of a line of `/proc/PID/maps` that are used: two addresses, and the rights.
const USED: usize = 16 + 1 + 16 + 1 + 4;

/// Reads the used bytes of the next line, and skips the others: the program may have supplied another file, with lines
/// of any length. Returns whether there was a line.
fn next_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    text.by_ref().take(USED as u64).read_until(b'\n', line)?;
    if line.len() == USED && line.last() != Some(&b'\n') {
        text.skip_until(b'\n')?;
    }
    Ok(!line.is_empty())
}

/// The range of a line, and its rights.
fn parse(line: &[u8]) -> Option<(u64, u64, &str)> {
    let mut fields = line.split(|byte| byte.is_ascii_whitespace()).map(str::from_utf8);
    let (range, rights) = (fields.next()?.ok()?, fields.next()?.ok()?);
    let (from, to) = range.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, rights))
}

/// Whether the mappings in `text` (`/proc/PID/maps`, in ascending order) cover the range.
fn covers(mut text: impl BufRead, start: u64, end: u64, writable: bool) -> io::Result<bool> {
    let (mut reached, mut line) = (start, Vec::with_capacity(USED));
    while reached < end && next_line(&mut text, &mut line)? {
        let Some((from, to, rights)) = parse(&line).filter(|(_, to, _)| *to > reached) else { continue };
        let is_allowed = rights.starts_with(if writable { "rw" } else { "r" });
        if from > reached || !is_allowed {
            return Ok(false);
        }
        reached = to;
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
    adapter: Weak<Adapter>,
    /// The process's address minus the entries' address, modulo 2^64.
    shift: u64,
    is_reported: AtomicBool,
}

impl ProcessMemory {
    pub(crate) fn new(process: &Arc<Process>, client: i32, adapter: &Arc<Adapter>, shift: u64) -> Self {
        let (process, adapter) = (process.clone(), Arc::downgrade(adapter));
        Self { process, client, adapter, shift, is_reported: AtomicBool::new(false) }
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
            if let Some(adapter) = self.adapter.upgrade() {
                adapter.warn(Warning::MemoryUnreachable(text));
            }
        }
        MemoryFault { address, length: length as u64 }
    }
}

impl Memory for ProcessMemory {
    fn client(&self) -> u64 {
        self.process.identity
    }

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
    use std::io::Write as _;
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

    #[test]
    fn a_line_of_any_length_takes_a_few_bytes() {
        let mut text = BufReader::new(io::repeat(b'x').take(1 << 20).chain(&b"\n1000-2000 rw-p"[..]));
        let mut line = Vec::with_capacity(USED);
        assert!(next_line(&mut text, &mut line).unwrap());
        assert_eq!((line.len(), line.capacity()), (USED, USED));
        assert!(next_line(&mut text, &mut line).unwrap());
        assert_eq!(parse(&line), Some((0x1000, 0x2000, "rw-p")));
        assert!(!next_line(&mut text, &mut line).unwrap());
    }

    #[test]
    fn the_start_time_follows_a_name_of_any_characters() {
        let stat = "7 (a) b) 1 2) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(start_time(stat), Some(4711));
        assert_eq!(start_time("7 (short) S 1"), None);
    }

    fn open(process: &str) -> Result<Process, Errno> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"));
        let mappings = File::open(format!("/proc/{process}/maps"));
        Process::new(memory.unwrap().into(), mappings.unwrap().into(), std::process::id() as i32)
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
        assert!(shell.is_gone() && cat.is_gone() && !open("self").unwrap().is_gone());
        assert_eq!(cat.read(start, &mut [0; 8]), Err(Errno::EFAULT));
        assert_eq!(cat.write(start, &[0; 8]), Err(Errno::EFAULT));
    }
}
