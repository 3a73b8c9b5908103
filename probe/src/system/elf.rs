//! The symbol versions that a shared library defines, read from its file: which release a libefa
//! is, without running its initialisers. Reads 64-bit little-endian ELF; nothing else runs here.

/// `sh_type` of the section that lists defined versions (`elf.h`: SHT_GNU_verdef).
const SHT_GNU_VERDEF: u32 = 0x6fff_fffd;
/// Bytes of a 64-bit section header.
const SECTION_HEADER: usize = 64;
/// More version definitions than any library has; bounds a walk over a damaged file.
const MOST_DEFINITIONS: usize = 4096;

/// The names of the versions that `file` defines, such as `EFA_1.4`; None where it is not a
/// 64-bit little-endian ELF file or is damaged.
pub(crate) fn defined_versions(file: &[u8]) -> Option<Vec<String>> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let sections = usize::try_from(u64_at(file, 0x28)?).ok()?;
    let count = usize::from(u16_at(file, 0x3c)?);
    let header = |index: usize| {
        let start = sections.checked_add(index.checked_mul(SECTION_HEADER)?)?;
        file.get(start..start.checked_add(SECTION_HEADER)?)
    };
    for index in 0..count {
        let section = header(index)?;
        if u32_at(section, 4)? != SHT_GNU_VERDEF {
            continue;
        }
        let definitions = contents(file, section)?;
        let strings = contents(file, header(usize::try_from(u32_at(section, 0x28)?).ok()?)?)?;
        return walk(definitions, strings);
    }
    Some(Vec::new())
}

/// Walks the chain of `Elf64_Verdef` (20 bytes: version, flags, index, count, hash, aux, next), each
/// with its first `Elf64_Verdaux` (name, next).
fn walk(definitions: &[u8], strings: &[u8]) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut at = 0_usize;
    for _ in 0..MOST_DEFINITIONS {
        let aux = at.checked_add(usize::try_from(u32_at(definitions, at.checked_add(12)?)?).ok()?)?;
        let name = strings.get(usize::try_from(u32_at(definitions, aux)?).ok()?..)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        names.push(String::from_utf8_lossy(&name[..end]).into_owned());
        let next = usize::try_from(u32_at(definitions, at.checked_add(16)?)?).ok()?;
        if next == 0 {
            return Some(names);
        }
        at = at.checked_add(next)?;
    }
    None
}

fn contents<'a>(file: &'a [u8], section: &[u8]) -> Option<&'a [u8]> {
    let start = usize::try_from(u64_at(section, 0x18)?).ok()?;
    let size = usize::try_from(u64_at(section, 0x20)?).ok()?;
    file.get(start..start.checked_add(size)?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::defined_versions;

    #[test]
    fn libc_defines_the_versions_that_it_is_known_for() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .find_map(|line| line.find("/").map(|at| &line[at..]).filter(|p| p.contains("libc.so")));
        let versions = defined_versions(&std::fs::read(libc.unwrap()).unwrap()).unwrap();
        assert!(versions.iter().any(|version| version == "GLIBC_2.17"), "{versions:?}");
    }

    #[test]
    fn a_file_cut_short_is_refused_and_nothing_worse() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        for length in [0, 5, 63, 64, 1000] {
            assert_eq!(defined_versions(&own[..length.min(own.len())]), None, "cut at {length}");
        }
    }
}
