//! The software adapter: finds softefa's provider library and makes the directory from which libfabric
//! loads it (`FI_PROVIDER_PATH`). Each run has its private directory and removes it at its end; a later
//! run removes the directory of a run that was killed.

pub(crate) mod checker;
mod embedded;
pub(crate) mod uverbs;

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::ending;

/// The environment variable that names the provider library.
pub(crate) const SOFTEFA_LIBRARY: &str = "SOFTEFA_LIBRARY";
/// The file name of the provider library.
const LIBRARY: &str = "libsoftefa.so";
/// The link's name; libfabric loads files that are named `*-fi.so`.
const PROVIDER: &str = "softefa-fi.so";
/// The directory of shared memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// The prefix of the private directories' names.
const PREFIX: &str = "gda-probe-";
/// The age at which an unlocked directory is stale: a younger one may belong to a run that has not locked it
/// yet.
const STALE_AGE: Duration = Duration::from_secs(60);

/// Why the software adapter cannot be used.
#[derive(Clone, Debug)]
pub(crate) enum Unready {
    /// The provider library was not found.
    Provider(String),
    /// The provider library in this program cannot be put in a memory file.
    Memory(String),
    /// The directory from which libfabric loads the provider cannot be made.
    Directory(String),
}

impl Unready {
    /// The error for a directory that cannot be made.
    pub(crate) fn directory(error: io::Error) -> Self {
        Self::Directory(format!("a directory in {}: {error}", std::env::temp_dir().display()))
    }
}

/// Finds the provider library: the file that SOFTEFA_LIBRARY names, the one in this executable, or a file beside it, in
/// the parent directory (a test's executable is in `target/*/deps`), in `../lib`, or in a target directory.
pub(crate) fn find() -> Result<PathBuf, Unready> {
    match embedded::file(LIBRARY).filter(|_| std::env::var_os(SOFTEFA_LIBRARY).is_none()) {
        Some(file) => file.map_err(|error| Unready::Memory(format!("memfd_create for {LIBRARY}: {error}"))),
        None => find_file().map_err(Unready::Provider),
    }
}

fn find_file() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(SOFTEFA_LIBRARY) {
        let path = PathBuf::from(named);
        let failed = |error: io::Error| format!("{SOFTEFA_LIBRARY}={}: {error}", path.display());
        let file = path.canonicalize().map_err(failed)?;
        // libfabric silently ignores a file that is not a library, and blocks forever on a pipe.
        return if is_library(&file).map_err(failed)? {
            Ok(file)
        } else {
            Err(failed(io::ErrorKind::InvalidData.into()))
        };
    }
    let program = crate::executable::path()
        .map_err(|error| format!("the path of this executable is unknown: {error}"))?;
    let directories = ["", "..", "../lib", "../target/release", "../target/debug"];
    let beside = program.parent().unwrap_or(Path::new("/"));
    let mut candidates = directories.iter().map(|directory| beside.join(directory).join(LIBRARY));
    candidates.find_map(|file| file.canonicalize().ok()).ok_or_else(|| {
        format!("no {LIBRARY} beside {} or in {}", program.display(), directories[1..].join(", "))
    })
}

/// Whether a file is regular and begins as ELF files do.
fn is_library(path: &Path) -> io::Result<bool> {
    const ELF: [u8; 4] = *b"\x7fELF";
    let mut magic = [0; ELF.len()];
    Ok(fs::metadata(path)?.is_file() && File::open(path)?.read(&mut magic)? == ELF.len() && magic == ELF)
}

/// The private directory. It is removed when the value is dropped and when a signal ends the process.
#[derive(Debug)]
pub(crate) struct ProviderDirectory {
    path: PathBuf,
    /// The kernel releases the lock however the process ends; an unlocked directory is stale.
    _lock: Flock<File>,
}

impl ProviderDirectory {
    /// Makes the directory, mode 0700, with a link to `library` in it: in `TMPDIR`, or else in `/tmp`, or in `/dev/shm`,
    /// which can be written in containers whose root cannot.
    pub(crate) fn new(library: &Path) -> io::Result<Self> {
        let temporary = Self::in_directory(&std::env::temp_dir(), library);
        if std::env::var_os("TMPDIR").is_some() {
            return temporary;
        }
        temporary.or_else(|error| Self::in_directory(Path::new(SHARED_MEMORY), library).map_err(|_| error))
    }

    fn in_directory(base: &Path, library: &Path) -> io::Result<Self> {
        if base.as_os_str().as_bytes().contains(&b':') {
            return Err(io::Error::other(
                "its name contains a colon, which separates directories in FI_PROVIDER_PATH",
            ));
        }
        remove_stale(base);
        let path = make_private(base)?;
        // If locking fails, a later run removes the empty directory.
        let directory = Self { _lock: lock(&path)?, path };
        symlink(library, directory.path.join(PROVIDER))?;
        ending::removes(&directory.path, PROVIDER);
        ending::watch()?;
        Ok(directory)
    }

    /// The value of FI_PROVIDER_PATH: this directory, followed by the current value.
    pub(crate) fn provider_path(&self) -> OsString {
        let mut value = self.path.clone().into_os_string();
        if let Some(set) = std::env::var_os("FI_PROVIDER_PATH").filter(|set| !set.is_empty()) {
            value.push(":");
            // A leading @ (providers of the path come first) would become part of a directory's name here.
            let bytes = set.as_bytes();
            value.push(OsStr::from_bytes(bytes.strip_prefix(b"@").unwrap_or(bytes)));
        }
        value
    }
}

impl Drop for ProviderDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn lock(path: &Path) -> io::Result<Flock<File>> {
    Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
}

/// Removes the directories of this user's runs that were killed.
fn remove_stale(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let user = nix::unistd::geteuid().as_raw();
    for path in entries.flatten().map(|entry| entry.path()) {
        let named = path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()));
        let stale = |metadata: &fs::Metadata| {
            let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
            metadata.is_dir() && metadata.uid() == user && age.is_some_and(|age| age > STALE_AGE)
        };
        // Metadata of the name itself; a link is not followed.
        if named && fs::symlink_metadata(&path).is_ok_and(|metadata| stale(&metadata)) && lock(&path).is_ok()
        {
            remove(&path);
        }
    }
}

fn make_private(base: &Path) -> io::Result<PathBuf> {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    for attempt in 0..16_u32 {
        let name =
            format!("{PREFIX}{}-{:08x}", std::process::id(), clock.subsec_nanos().wrapping_add(attempt));
        let path = base.join(name);
        // Fails if the name exists.
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!("all names that were tried in {} exist", base.display()),
    ))
}

fn remove(path: &Path) {
    ending::remove_directory(path, PROVIDER);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_directory_is_private_and_holds_the_link() {
        let directory = ProviderDirectory::new(Path::new("/dev/null")).unwrap();
        assert_eq!(fs::metadata(&directory.path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_link(directory.path.join(PROVIDER)).unwrap(), Path::new("/dev/null"));
    }

    /// Makes the directory of a run that was killed `age` ago.
    fn killed_run(base: &Path, name: &str, age: Duration) -> PathBuf {
        let path = base.join(name);
        fs::create_dir(&path).unwrap();
        symlink("/dev/null", path.join(PROVIDER)).unwrap();
        let then = std::time::SystemTime::now() - age;
        File::open(&path).unwrap().set_modified(then).unwrap();
        path
    }

    #[test]
    fn stale_directories_are_removed_and_others_stay() {
        const OLD: Duration = Duration::from_secs(3600);
        let base = std::env::temp_dir().join(format!("stale-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let killed = killed_run(&base, "gda-probe-1-00000000", OLD);
        let empty = base.join("gda-probe-2-00000000");
        fs::create_dir(&empty).unwrap();
        File::open(&empty).unwrap().set_modified(std::time::SystemTime::now() - OLD).unwrap();
        let young = killed_run(&base, "gda-probe-3-00000000", Duration::ZERO);
        let locked = killed_run(&base, "gda-probe-4-00000000", OLD);
        let other = killed_run(&base, "another-program", OLD);
        let lock = lock(&locked).unwrap();
        symlink(&other, base.join("gda-probe-5-00000000")).unwrap();
        remove_stale(&base);
        drop(lock);
        assert_eq!(
            [killed, empty, young, locked, other].map(|path| path.exists()),
            [false, false, true, true, true]
        );
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn dropping_removes_the_directory() {
        let directory = ProviderDirectory::new(Path::new("/dev/null")).unwrap();
        let path = directory.path.clone();
        drop(directory);
        assert!(!path.exists());
    }
}
