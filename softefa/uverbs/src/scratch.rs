//! The private directory of a run: its socket and the files that look like sysfs.
//!
//! A run locks its directory. A directory that is not locked belongs to a run that was killed; the next run removes it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::command::Failure;

/// The start of a directory's name. The process and a number follow.
const PREFIX: &str = "softefa.";

/// A private directory, which is removed when the value is dropped.
pub(crate) struct Scratch {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self, Failure> {
        let base = base();
        // Canonical paths below it must start with it.
        let base = base.canonicalize().unwrap_or(base);
        // The library passes patterns of `glob` on with the directory before them.
        if base.as_os_str().as_bytes().iter().any(|byte| b"*?[]{}\\".contains(byte)) {
            return Err(Failure::Other(format!(
                "the directory {} has one of *?[]{{}}\\ in its name, which glob would not take literally; set TMPDIR to \
                 another one, and unset XDG_RUNTIME_DIR",
                base.display()
            )));
        }
        sweep(&base);
        for attempt in 0..100_u32 {
            let path = base.join(format!("{PREFIX}{}.{attempt}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                // A run that starts at the same time may sweep the directory before it is locked.
                Ok(()) => match lock(&path) {
                    Some(lock) => return Ok(Self { path, _lock: lock }),
                    None => continue,
                },
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Failure::io("cannot create the directory", &path, &error)),
            }
        }
        Err(Failure::Other(format!(
            "no directory can be created in {}, because 100 directories {PREFIX}* exist there; remove them",
            base.display()
        )))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the next run removes it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// `XDG_RUNTIME_DIR` if only this user can write there, otherwise the directory of temporary files.
fn base() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let is_private = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|metadata| {
            metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0
        })
    };
    runtime.filter(is_private).unwrap_or_else(std::env::temp_dir)
}

/// Locks this user's directory at `path`. `None` if another process has locked or removed it.
fn lock(path: &Path) -> Option<Flock<File>> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
    let (locked, there) = (lock.metadata().ok()?, fs::symlink_metadata(path).ok()?);
    let is_same = (locked.dev(), locked.ino()) == (there.dev(), there.ino());
    (is_same && locked.uid() == geteuid().as_raw()).then_some(lock)
}

/// Removes the directories of runs that were killed.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let is_run = entry.file_name().to_str().is_some_and(|name| {
            let numbers = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.'));
            numbers.is_some_and(|(process, attempt)| {
                process.parse::<u32>().is_ok() && attempt.parse::<u32>().is_ok()
            })
        });
        if is_run && let Some(_lock) = lock(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
