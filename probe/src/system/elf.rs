//! The symbol versions that a shared library defines, read from its file: which release a libefa
//! is, without running its initialisers. Reads 64-bit little-endian ELF; nothing else runs here.

/// `sh_type` of the section that lists defined versions (`elf.h`: SHT_GNU_verdef).
const SHT_GNU_VERDEF: u32 = 0x6fff_fffd;
/// Bytes of a 64-bit section header.
const SECTION_HEADER: usize = 64;
/// More version definitions than any library has; bounds a walk over a damaged file.
const MOST_DEFINITIONS: usize = 4096;

/// The release that a libfabric names itself by (PACKAGE_VERSION, as `fi_tostr` prints it): the one
/// string of its file that is a version and nothing else. None where there is none, or several.
pub(crate) fn package_version(file: &[u8]) -> Option<String> {
    let is_version = |text: &&[u8]| {
        let mut parts = text.split(|byte| *byte == b'.');
        let major = parts.next().is_some_and(|part| matches!(part, b"1" | b"2" | b"3"));
        let digit = |part: &&[u8]| part.first().is_some_and(u8::is_ascii_digit);
        let (minor, patch) = (parts.next(), parts.next());
        let whole = text.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'.');
        major
            && minor.is_some_and(|part| digit(&part))
            && patch.is_some_and(|part| digit(&part))
            && parts.next().is_none()
            && whole
    };
    // Nothing longer is a version, and most of a file is one string.
    let strings = file.split(|byte| *byte == 0).filter(|text| (5..16).contains(&text.len()));
    let mut found = strings.filter(is_version);
    let first = found.next()?;
    found.all(|other| other == first).then(|| String::from_utf8_lossy(first).into_owned())
}

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
    use super::{defined_versions, package_version};

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
    fn a_release_is_the_one_version_among_a_files_strings() {
        let named = |file: &[u8]| package_version(file);
        assert_eq!(named(b"\x7fELF\0FABRIC_1.6\x001.17.0\0fi_tostr\0").as_deref(), Some("1.17.0"));
        assert_eq!(named(b"\x002.7.0a1\0x\x002.7.0a1\0").as_deref(), Some("2.7.0a1"));
        assert_eq!(named(b"\x001.17.0\x002.1.0\0"), None, "two");
        assert_eq!(named(b"\x001.17\x001.2.3.4\x009.0.1\x001..2\0"), None, "none is of that shape");
    }

    #[test]
    fn a_file_cut_short_is_refused_and_nothing_worse() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        for length in [0, 5, 63, 64, 1000] {
            assert_eq!(defined_versions(&own[..length.min(own.len())]), None, "cut at {length}");
        }
    }
}
