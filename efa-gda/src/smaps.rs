//! Determines the kind of memory behind a mapping, from the Linux kernel's flags.
//!
//! Registration with CUDA must know whether pages are device memory, such as a BAR: they need the flag
//! `CU_MEMHOSTREGISTER_IOMEMORY`, with which CUDA refuses ordinary memory as "invalid argument". A snapshot must know
//! whether the CPU may read a ring. `/proc/self/smaps` has a `VmFlags` line for each mapping: `io` is VM_IO, and `pf`
//! is VM_PFNMAP, pages without a struct page. The kernel driver of EFA maps its BARs with `io_remap_pfn_range`, which
//! sets both.

use std::io;
use std::ops::Range;

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

/// Why the kind of a range cannot be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The file cannot be read.
    #[error("/proc/self/smaps cannot be read; mount /proc in this container")]
    Unreadable(#[from] io::Error),
    /// The range is not mapped, or has a gap.
    #[error(
        "the mappings of this process do not cover all of {start:#x} to {end:#x}; keep the range mapped",
        start = .0.start, end = .0.end
    )]
    Unmapped(Range<usize>),
    /// The range spans mappings of different kinds.
    #[error(
        "{start:#x} to {end:#x} is partly device memory and partly not; pass a range of one kind",
        start = .0.start, end = .0.end
    )]
    Mixed(Range<usize>),
    /// The kernel did not print `VmFlags` for the mapping.
    #[error("/proc/self/smaps has no VmFlags for {start:#x}; Linux 3.8 or newer prints them", start = .0.start)]
    NoFlags(Range<usize>),
}

/// Returns the properties of the mappings that cover `range`.
///
/// # Errors
/// [`MappingError`] if the kernel does not report them.
pub(crate) fn mapping_of(range: Range<usize>) -> Result<Mapping, MappingError> {
    find(&std::fs::read_to_string("/proc/self/smaps")?, range)
}

/// [`mapping_of`] over the text of an smaps file.
fn find(smaps: &str, range: Range<usize>) -> Result<Mapping, MappingError> {
    let mut result: Option<Mapping> = None;
    let mut covered = range.start;
    let mut current: Option<(Range<usize>, &str)> = None;
    for line in smaps.lines() {
        if let Some(header) = header(line) {
            if current.is_some() {
                return Err(MappingError::NoFlags(range));
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
                Some(before) if before.kind != mapping.kind => return Err(MappingError::Mixed(range)),
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
        return Err(MappingError::NoFlags(range));
    }
    if covered < range.end {
        return Err(MappingError::Unmapped(range));
    }
    result.ok_or(MappingError::Unmapped(range))
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
    use super::*;

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
        assert!(matches!(find(SMAPS, 0x3000..0x5000), Err(MappingError::Mixed(_))));
    }

    #[test]
    fn a_range_that_is_not_mapped_as_a_whole_is_refused() {
        assert!(matches!(find(SMAPS, 0x5000..0x7000), Err(MappingError::Unmapped(_))));
        assert!(matches!(find(SMAPS, 0x100..0x200), Err(MappingError::Unmapped(_))));
    }

    #[test]
    fn a_mapping_without_flags_is_refused() {
        assert!(matches!(find(SMAPS, 0x8000..0x9000), Err(MappingError::NoFlags(_))));
    }

    #[test]
    fn this_process_has_ordinary_memory() {
        let memory = vec![0u8; 3 << 12];
        let start = memory.as_ptr() as usize;
        let mapping = mapping_of(start..start + memory.len()).unwrap();
        assert_eq!(mapping, Mapping { kind: MemoryKind::Ordinary, readable: true, writable: true });
    }
}
