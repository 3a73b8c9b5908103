//! Determines the kind of memory behind a mapping, from the Linux kernel's flags.
//!
//! Registration with CUDA must know whether pages are device memory, such as a BAR: they need the flag
//! `CU_MEMHOSTREGISTER_IOMEMORY`, with which CUDA refuses ordinary memory as "invalid argument". A snapshot must know
//! whether the CPU may read a ring. `/proc/self/smaps` has a `VmFlags` line for each mapping: `io` is VM_IO, and `pf`
//! is VM_PFNMAP, pages without a struct page. The kernel driver of EFA maps its BARs with `io_remap_pfn_range`, which
//! sets both.

use std::ops::Range;

use crate::{Error, Result};

/// The kind of memory behind a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Registers or memory of a device.
    Device,
    /// Pages of the host's memory.
    Ordinary,
}

/// The properties of a range, from `/proc/self/smaps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Whether the mapping may be read.
    pub readable: bool,
    /// Whether the mapping may be written.
    pub writable: bool,
}

/// Returns the properties of the mappings that cover `range`.
///
/// # Errors
/// [`ErrorKind::Argument`](crate::ErrorKind) for a range that is not mapped, or of two kinds; `Unsupported` if the kernel does
/// not report the kind.
pub(crate) fn mapping_of(range: Range<usize>) -> Result<Mapping> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").map_err(|error| {
        let text = format!("/proc/self/smaps cannot be read; mount /proc in this container: {error}");
        Error::unsupported(text)
    })?;
    find(&smaps, range)
}

/// [`mapping_of`] over the text of an smaps file.
fn find(smaps: &str, range: Range<usize>) -> Result<Mapping> {
    let mut result: Option<Mapping> = None;
    let mut covered = range.start;
    let mut current: Option<(Range<usize>, &str)> = None;
    for line in smaps.lines() {
        if let Some(header) = header(line) {
            if current.is_some() {
                return Err(no_flags(&range));
            }
            // Mappings are listed by address, so a gap shows as a jump.
            let wanted = header.0.start <= covered && covered < header.0.end && covered < range.end;
            current = wanted.then_some(header);
        } else if let (Some(flags), Some((addresses, permissions))) =
            (line.strip_prefix("VmFlags:"), current.as_ref())
        {
            let device = flags.split_ascii_whitespace().any(|flag| flag == "io" || flag == "pf");
            let mapping = Mapping {
                kind: if device { MemoryKind::Device } else { MemoryKind::Ordinary },
                readable: permissions.starts_with('r'),
                writable: permissions.as_bytes().get(1) == Some(&b'w'),
            };
            result = Some(match result {
                Some(before) if before.kind != mapping.kind => return Err(mixed(&range)),
                Some(before) => Mapping {
                    kind: mapping.kind,
                    readable: before.readable && mapping.readable,
                    writable: before.writable && mapping.writable,
                },
                None => mapping,
            });
            covered = addresses.end;
            current = None;
        }
    }
    if current.is_some() {
        return Err(no_flags(&range));
    }
    if covered < range.end {
        return Err(unmapped(&range));
    }
    result.ok_or_else(|| unmapped(&range))
}

fn unmapped(range: &Range<usize>) -> Error {
    let (start, end) = (range.start, range.end);
    let text = format!("the mappings of this process do not cover all of {start:#x} to {end:#x}");
    Error::argument(text).with_hint("keep the range mapped")
}

fn mixed(range: &Range<usize>) -> Error {
    let (start, end) = (range.start, range.end);
    let text = format!("{start:#x} to {end:#x} is partly device memory and partly not");
    Error::argument(text).with_hint("pass a range of one kind")
}

fn no_flags(range: &Range<usize>) -> Error {
    let start = range.start;
    Error::unsupported(format!("/proc/self/smaps has no VmFlags for {start:#x}"))
        .with_hint("Linux 3.8 or newer prints them")
}

/// Parses addresses and permissions of a mapping's first line, `start-end perms …`.
fn header(line: &str) -> Option<(Range<usize>, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    Some((start..end, words.next()?))
}

#[cfg(test)]
mod tests {
    use efa_gda_test_support::assert_error;

    use super::*;
    use crate::ErrorKind;

    const SMAPS: &str = "\
1000-3000 rw-s 00000000 00:01 5 /dev/infiniband/uverbs0
Size:                  8 kB
VmFlags: rd wr sh mr mw me ms pf io de dd sd
3000-4000 -w-s 00002000 00:01 5 /dev/infiniband/uverbs0
Size:                  4 kB
VmFlags: wr sh mr mw me ms pf io de dd sd
4000-6000 rw-p 00000000 00:00 0
Size:                  8 kB
VmFlags: rd wr mr mw me ac sd
8000-9000 r--s 00000000 00:01 9 /memfd:cq (deleted)
Size:                  4 kB
";

    #[test]
    fn a_bar_is_device_memory_and_the_heap_is_not() {
        let bar = find(SMAPS, 0x1000..0x2000).unwrap();
        assert_eq!(bar, Mapping { kind: MemoryKind::Device, readable: true, writable: true });
        let heap = find(SMAPS, 0x4800..0x5001).unwrap();
        assert_eq!(heap.kind, MemoryKind::Ordinary);
    }

    #[test]
    fn a_range_over_two_mappings_allows_only_what_both_allow() {
        let both = find(SMAPS, 0x2000..0x4000).unwrap();
        assert_eq!(both, Mapping { kind: MemoryKind::Device, readable: false, writable: true });
    }

    #[test]
    fn a_range_of_two_kinds_of_memory_is_refused() {
        assert_error!(find(SMAPS, 0x3000..0x5000).unwrap_err(), ErrorKind::Argument, "partly device memory");
    }

    #[test]
    fn a_range_that_is_not_mapped_as_a_whole_is_refused() {
        assert_error!(find(SMAPS, 0x5000..0x7000).unwrap_err(), ErrorKind::Argument, "do not cover");
        assert_error!(find(SMAPS, 0x100..0x200).unwrap_err(), ErrorKind::Argument, "do not cover");
    }

    #[test]
    fn a_mapping_without_flags_is_refused() {
        assert_error!(find(SMAPS, 0x8000..0x9000).unwrap_err(), ErrorKind::Unsupported, "VmFlags");
    }

    #[test]
    fn this_process_has_ordinary_memory() {
        let memory = vec![0u8; 3 << 12];
        let start = memory.as_ptr() as usize;
        let mapping = mapping_of(start..start + memory.len()).unwrap();
        assert_eq!(mapping, Mapping { kind: MemoryKind::Ordinary, readable: true, writable: true });
    }
}
