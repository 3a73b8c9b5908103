//! The software adapter: finds softefa's provider library, and makes the directory through which
//! libfabric loads it (`FI_PROVIDER_PATH`). The directory belongs to this run alone and goes with it;
//! what a run that was killed left behind, the next one removes.

pub(crate) mod checker;
pub(crate) mod uverbs;

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{SigHandler, SigSet, Signal, raise, signal};

/// Names the provider library.
pub(crate) const SOFTEFA_LIBRARY: &str = "SOFTEFA_LIBRARY";
/// The library's file.
const FILE: &str = "libsoftefa.so";
/// The name that libfabric looks for: `*-fi.so`.
const PROVIDER: &str = "softefa-fi.so";
/// How the private directories' names begin.
const PREFIX: &str = "gda-probe-";
/// A directory younger than this may belong to a run that has not locked it yet.
const SETTLED: Duration = Duration::from_secs(60);

/// Why the software adapter cannot stand in.
#[derive(Clone, Debug)]
pub(crate) enum Unready {
    /// Its provider is not there.
    Provider(String),
    /// The directory from which libfabric would load it cannot be made.
    Directory(String),
}

impl Unready {
    /// The directory cannot be made.
    pub(crate) fn directory(error: io::Error) -> Self {
        Self::Directory(format!("a directory in {}: {error}", std::env::temp_dir().display()))
    }
}

/// Finds the provider: where SOFTEFA_LIBRARY says, beside this executable, in `../lib`, or one or
/// two directories up (a test's executable lies in `target/*/deps`).
pub(crate) fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(SOFTEFA_LIBRARY) {
        let path = PathBuf::from(named);
        let said = |error: io::Error| format!("{SOFTEFA_LIBRARY}={}: {error}", path.display());
        let file = path.canonicalize().map_err(said)?;
        // libfabric passes over what is no library without a word, and waits for ever on a pipe.
        return if is_library(&file).map_err(said)? {
            Ok(file)
        } else {
            Err(said(io::ErrorKind::InvalidData.into()))
        };
    }
    let own = crate::executable::path()
        .map_err(|error| format!("this executable's place is not known: {error}"))?;
    let places = ["", "..", "../lib", "../target/release", "../target/debug"];
    let beside = own.parent().unwrap_or(Path::new("/"));
    let found = places.iter().find_map(|place| beside.join(place).join(FILE).canonicalize().ok());
    found.ok_or_else(|| format!("no {FILE} beside {} or near it", own.display()))
}

/// Whether a file may be a shared library.
fn is_library(path: &Path) -> io::Result<bool> {
    const ELF: [u8; 4] = *b"\x7fELF";
    let mut magic = [0; ELF.len()];
    Ok(fs::metadata(path)?.is_file() && File::open(path)?.read(&mut magic)? == ELF.len() && magic == ELF)
}

/// The private directory; removed when dropped, and when a signal ends the process.
#[derive(Debug)]
pub(crate) struct ProviderDirectory {
    path: PathBuf,
    /// Held as long as the run lives, however it ends: what is not locked belongs to nobody.
    _lock: Flock<File>,
}

impl ProviderDirectory {
    /// Makes the directory, mode 0700, with a link to `library` in it.
    pub(crate) fn new(library: &Path) -> io::Result<Self> {
        let base = std::env::temp_dir();
        if base.as_os_str().as_bytes().contains(&b':') {
            return Err(io::Error::other("a colon in its name would end the directory in FI_PROVIDER_PATH"));
        }
        remove_stale(&base);
        let path = make_private(&base)?;
        // From here on an error leaves an empty directory, which a later run removes.
        let directory = Self { _lock: lock(&path)?, path };
        symlink(library, directory.path.join(PROVIDER))?;
        directory.remove_on_signals()?;
        Ok(directory)
    }

    /// The value of FI_PROVIDER_PATH: this directory, before any that is set.
    pub(crate) fn provider_path(&self) -> OsString {
        let mut value = self.path.clone().into_os_string();
        if let Some(set) = std::env::var_os("FI_PROVIDER_PATH").filter(|set| !set.is_empty()) {
            value.push(":");
            // An order of providers asked for there would be a part of a directory's name here.
            let bytes = set.as_bytes();
            value.push(OsStr::from_bytes(bytes.strip_prefix(b"@").unwrap_or(bytes)));
        }
        value
    }

    /// Takes the signals that end a process into a thread that removes the directory first. Threads
    /// made later inherit the mask; a child takes it off itself.
    fn remove_on_signals(&self) -> io::Result<()> {
        let mut ending = SigSet::empty();
        let watched = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        // What this process was started to ignore (nohup, a shell's background) it goes on to ignore.
        watched.into_iter().filter(|one| !is_ignored(*one)).for_each(|one| ending.add(one));
        ending.thread_block()?;
        let path = self.path.clone();
        let watch = move || {
            let Ok(which) = ending.wait() else { return };
            remove(&path);
            // SAFETY: sets the default action; no handler of ours runs.
            if unsafe { signal(which, SigHandler::SigDfl) }.is_ok() {
                let _ = ending.thread_unblock();
                let _ = raise(which);
            }
        };
        std::thread::Builder::new().spawn(watch).map(drop)
    }
}

impl Drop for ProviderDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn is_ignored(which: Signal) -> bool {
    // SAFETY: sigaction is a plain C struct for which all zeroes is a value; nothing is set, and what
    // is in force can be written.
    unsafe {
        let mut in_force: libc::sigaction = std::mem::zeroed();
        libc::sigaction(which as libc::c_int, std::ptr::null(), &mut in_force) == 0
            && in_force.sa_sigaction == libc::SIG_IGN
    }
}

fn lock(path: &Path) -> io::Result<Flock<File>> {
    Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
}

/// Removes directories of this user's runs that no longer live: what SIGKILL leaves.
fn remove_stale(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let ours = nix::unistd::geteuid().as_raw();
    for path in entries.flatten().map(|entry| entry.path()) {
        let named = path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()));
        let stale = |found: &fs::Metadata| {
            let age = found.modified().ok().and_then(|modified| modified.elapsed().ok());
            found.is_dir() && found.uid() == ours && age.is_some_and(|age| age > SETTLED)
        };
        // Of the name itself, not of what a link of that name leads to.
        if named && fs::symlink_metadata(&path).is_ok_and(|found| stale(&found)) && lock(&path).is_ok() {
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
        // Fails where something of that name is already there, whoever put it.
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("no free name in {}", base.display())))
}

fn remove(path: &Path) {
    // What a run makes and nothing else: a link, which may not be there yet, and the directory.
    let _ = fs::remove_file(path.join(PROVIDER));
    if let Err(error) = fs::remove_dir(path) {
        tracing::debug!(path = %path.display(), %error, "the provider directory is not removed");
    }
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

    /// A directory as a run leaves it that is killed, `age` ago.
    fn left_behind(base: &Path, name: &str, age: Duration) -> PathBuf {
        let path = base.join(name);
        fs::create_dir(&path).unwrap();
        symlink("/dev/null", path.join(PROVIDER)).unwrap();
        let then = std::time::SystemTime::now() - age;
        File::open(&path).unwrap().set_modified(then).unwrap();
        path
    }

    #[test]
    fn what_killed_runs_left_goes_and_what_lives_stays() {
        const OLD: Duration = Duration::from_secs(3600);
        let base = std::env::temp_dir().join(format!("stale-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let killed = left_behind(&base, "gda-probe-1-00000000", OLD);
        let empty = base.join("gda-probe-2-00000000");
        fs::create_dir(&empty).unwrap();
        File::open(&empty).unwrap().set_modified(std::time::SystemTime::now() - OLD).unwrap();
        let young = left_behind(&base, "gda-probe-3-00000000", Duration::ZERO);
        let living = left_behind(&base, "gda-probe-4-00000000", OLD);
        let other = left_behind(&base, "another-program", OLD);
        let held = lock(&living).unwrap();
        symlink(&other, base.join("gda-probe-5-00000000")).unwrap();
        remove_stale(&base);
        drop(held);
        assert_eq!(
            [killed, empty, young, living, other].map(|path| path.exists()),
            [false, false, true, true, true]
        );
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn the_directory_goes_when_dropped() {
        let directory = ProviderDirectory::new(Path::new("/dev/null")).unwrap();
        let path = directory.path.clone();
        drop(directory);
        assert!(!path.exists());
    }
}
