//! Versions of a shared library, read from its file: the symbol versions that it defines and the release
//! that it contains. The library's initialisers do not run.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use object::LittleEndian;
use object::elf::{DT_RPATH, DT_RUNPATH, Dyn64, FileHeader64, SHT_DYNSYM, Sym64};
use object::read::ReadCache;
use object::read::elf::{Dyn as _, FileHeader, SectionHeader, Sym as _};

/// The release of a libfabric (PACKAGE_VERSION, as `fi_tostr` prints it): the only string of its file that
/// is a version and nothing else. Returns None if there is no such string, or several different ones.
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
    // The lengths of a version; without this filter, most of a file is one string.
    let strings = file.split(|byte| *byte == 0).filter(|text| (5..16).contains(&text.len()));
    let mut versions = strings.filter(is_version);
    let first = versions.next()?;
    versions.all(|other| other == first).then(|| String::from_utf8_lossy(first).into_owned())
}

/// Opens the file at `path`. Returns None for a pipe, a device or a folder: reading one may wait or never end.
fn regular_file(path: &Path) -> Option<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
}

/// The most bytes of a section, or of a file that is no library, in which a release is searched.
const MAX_STRINGS: u64 = 64 << 20;

/// The release that follows `marker` among the constants (`.rodata`) of the library in `file`. A file that is no
/// library is searched as text. Returns None for a pipe or a device, and if no number follows.
pub(crate) fn release_after(file: &Path, marker: &str) -> Option<String> {
    // NCCL has hundreds of megabytes of kernels, so only the section of constants is read.
    let cache = ReadCache::new(regular_file(file)?);
    let bytes = constants(&cache).or_else(|| {
        let mut text = Vec::new();
        regular_file(file)?.take(MAX_STRINGS).read_to_end(&mut text).ok()?;
        Some(text)
    })?;
    let marker = marker.as_bytes();
    let ends = bytes.windows(marker.len()).enumerate().filter(|(_, window)| *window == marker);
    let numbers = ends.map(|(at, _)| {
        let rest =
            bytes[at + marker.len()..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
        String::from_utf8_lossy(&rest.copied().collect::<Vec<u8>>()).trim_matches('.').to_owned()
    });
    numbers.into_iter().find(|number| number.contains('.'))
}

/// Whether the library in `file` defines the dynamic symbol `name`. Returns None if the file is no 64-bit little-endian
/// ELF.
pub(crate) fn exports(file: &Path, name: &str) -> Option<bool> {
    let file = &ReadCache::new(regular_file(file)?);
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, file).ok()?;
    let symbols = sections.symbols(endian, file, SHT_DYNSYM).ok()?;
    let is_it = |symbol: &Sym64<LittleEndian>| {
        !symbol.is_undefined(endian)
            && symbol.name(endian, symbols.strings()).is_ok_and(|found| found == name.as_bytes())
    };
    Some(symbols.iter().any(is_it))
}

/// The directories in which the library in `file` searches those that it needs (DT_RUNPATH, DT_RPATH). Returns None if
/// the file is no 64-bit little-endian ELF or names none.
pub(crate) fn run_path(file: &Path) -> Option<Vec<String>> {
    let file = &ReadCache::new(regular_file(file)?);
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, file).ok()?;
    let (entries, strings) = sections.dynamic(endian, file).ok()??;
    let strings = sections.strings(endian, file, strings).ok()?;
    let is_path = |entry: &&Dyn64<LittleEndian>| [DT_RUNPATH, DT_RPATH].contains(&entry.d_tag(endian));
    let text = entries.iter().find(is_path)?.string(endian, strings).ok()?;
    Some(String::from_utf8_lossy(text).split(':').map(str::to_owned).collect())
}

/// The section `.rodata`. Returns None if the file is no 64-bit little-endian ELF.
fn constants(file: &ReadCache<File>) -> Option<Vec<u8>> {
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, file).ok()?;
    let (_, section) = sections.section_by_name(endian, b".rodata")?;
    if section.sh_size(endian) > MAX_STRINGS {
        return None;
    }
    Some(section.data(endian, file).ok()?.to_vec())
}

/// The names of the symbol versions that `file` defines, such as `EFA_1.4`. Returns None for a file that is
/// damaged or not 64-bit little-endian ELF.
pub(crate) fn defined_versions(file: &[u8]) -> Option<Vec<String>> {
    read_versions(file).inspect_err(|error| tracing::debug!(%error, "the file is not a library")).ok()
}

fn read_versions(file: &[u8]) -> object::Result<Vec<String>> {
    let header = FileHeader64::<LittleEndian>::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    let mut versions = Vec::new();
    let Some((mut definitions, strings)) = sections.gnu_verdef(endian, file)? else { return Ok(versions) };
    let strings = sections.strings(endian, file, strings)?;
    while let Some((_, mut names)) = definitions.next()? {
        // The first name is the version's; the others are the versions that it contains.
        if let Some(name) = names.next()? {
            versions.push(String::from_utf8_lossy(name.name(endian, strings)?).into_owned());
        }
    }
    Ok(versions)
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
    fn a_release_is_the_only_version_among_a_files_strings() {
        let release = |file: &[u8]| package_version(file);
        assert_eq!(release(b"\x7fELF\0FABRIC_1.6\x001.17.0\0fi_tostr\0").as_deref(), Some("1.17.0"));
        assert_eq!(release(b"\x002.7.0a1\0x\x002.7.0a1\0").as_deref(), Some("2.7.0a1"));
        assert_eq!(release(b"\x001.17.0\x002.1.0\0"), None, "two versions");
        assert_eq!(release(b"\x001.17\x001.2.3.4\x009.0.1\x001..2\0"), None, "no string is a version");
    }

    #[test]
    fn a_truncated_file_returns_none() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        for length in [0, 5, 63, 64, 1000] {
            assert_eq!(defined_versions(&program[..length.min(program.len())]), None, "cut at {length}");
        }
    }
}
