//! The software adapter: finds softefa's provider library, and makes the directory through which
//! libfabric loads it (`FI_PROVIDER_PATH`). The directory belongs to this run alone and goes with it.

pub(crate) mod under_verbs;

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigHandler, SigSet, Signal, raise, signal};

/// Names the provider library.
pub(crate) const SOFTEFA_LIBRARY: &str = "SOFTEFA_LIBRARY";
/// The library's file.
const FILE: &str = "libsoftefa.so";
/// The name that libfabric looks for: `*-fi.so`.
const PROVIDER: &str = "softefa-fi.so";

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
        return path.canonicalize().map_err(|error| format!("{SOFTEFA_LIBRARY}={}: {error}", path.display()));
    }
    let own = crate::own::file().map_err(|error| format!("this executable's place is not known: {error}"))?;
    let places = ["", "..", "../lib", "../target/release", "../target/debug"];
    let beside = own.parent().unwrap_or(Path::new("/"));
    let found = places.iter().find_map(|place| beside.join(place).join(FILE).canonicalize().ok());
    found.ok_or_else(|| format!("no {FILE} beside {} or near it", own.display()))
}

/// The private directory; removed when dropped, and when a signal ends the process.
#[derive(Debug)]
pub(crate) struct ProviderDirectory(PathBuf);

impl ProviderDirectory {
    /// Makes the directory, mode 0700, with a link to `library` in it.
    pub(crate) fn new(library: &Path) -> io::Result<Self> {
        let directory = Self(make_private()?);
        symlink(library, directory.0.join(PROVIDER))?;
        directory.remove_on_signals()?;
        Ok(directory)
    }

    /// The value of FI_PROVIDER_PATH: this directory, before any that is set.
    pub(crate) fn provider_path(&self) -> OsString {
        let mut value = self.0.clone().into_os_string();
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
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|one| ending.add(one));
        ending.thread_block()?;
        let path = self.0.clone();
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
        remove(&self.0);
    }
}

fn make_private() -> io::Result<PathBuf> {
    let base = std::env::temp_dir();
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    for attempt in 0..16_u32 {
        let name =
            format!("gda-probe-{}-{:08x}", std::process::id(), clock.subsec_nanos().wrapping_add(attempt));
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
    // What this run made and nothing else: a link and the directory that holds it.
    if let Err(error) = fs::remove_file(path.join(PROVIDER)).and_then(|()| fs::remove_dir(path)) {
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
        assert_eq!(fs::metadata(&directory.0).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_link(directory.0.join(PROVIDER)).unwrap(), Path::new("/dev/null"));
    }

    #[test]
    fn the_directory_goes_when_dropped() {
        let directory = ProviderDirectory::new(Path::new("/dev/null")).unwrap();
        let path = directory.0.clone();
        drop(directory);
        assert!(!path.exists());
    }
}
