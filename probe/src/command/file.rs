//! Files that a command writes: whole or not at all, so that a reader never sees half a file and a full disk
//! leaves the old one.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::CommandError;
use crate::cli::Common;

/// Whether a file is the name that stands for stdout.
pub(crate) fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Refuses a file of `option` that cannot be written, before the work whose result it shall hold, and a second report on
/// stdout.
pub(crate) fn check(file: Option<&Path>, option: &str, common: &Common) -> Result<(), CommandError> {
    match file {
        Some(file) if is_stdout(file) && (common.json || common.npd) => {
            let other = if common.json { "--json" } else { "--npd" };
            let why = format!("{option} - and {other} both print to stdout; name a file for {option}");
            Err(CommandError::Input(why))
        }
        Some(file) if !is_stdout(file) => check_file(file),
        _ => Ok(()),
    }
}

fn check_file(file: &Path) -> Result<(), CommandError> {
    let (target, special) = target(file)?;
    if special {
        return Ok(());
    }
    let draft = draft(&target);
    let made = File::options().write(true).create(true).truncate(true).open(&draft);
    made.and_then(|_| fs::remove_file(&draft)).map_err(|source| failed(file, source))
}

/// Replaces a file by `content`. A device or a pipe is written to.
pub(crate) fn replace(file: &Path, content: &[u8]) -> Result<(), CommandError> {
    let (target, special) = target(file)?;
    if special {
        let mut opened = File::options().write(true).open(&target).map_err(|source| failed(file, source))?;
        return opened.write_all(content).map_err(|source| failed(file, source));
    }
    let draft = draft(&target);
    let written = fs::write(&draft, content).and_then(|()| fs::rename(&draft, &target));
    written.map_err(|source| {
        // The draft may not exist, and its error is not the one to report.
        let _ = fs::remove_file(&draft);
        failed(file, source)
    })
}

/// The file that a link names, and whether it is a device or a pipe.
fn target(file: &Path) -> Result<(PathBuf, bool), CommandError> {
    match fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => Err(failed(file, std::io::ErrorKind::IsADirectory.into())),
        Ok(metadata) => {
            let target = file.canonicalize().map_err(|source| failed(file, source))?;
            Ok((target, !metadata.is_file()))
        }
        Err(_) => Ok((file.to_owned(), false)),
    }
}

/// The name under which a file is written first: beside it, because a rename works within one file system only.
fn draft(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    target.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

fn failed(file: &Path, source: std::io::Error) -> CommandError {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let source = match folder {
        Some(folder) if source.kind() == std::io::ErrorKind::NotFound => {
            std::io::Error::other(format!("the folder {} does not exist; create it", folder.display()))
        }
        _ => {
            let why =
                format!("{source}; name a file that this user can write, on a file system with free space");
            std::io::Error::new(source.kind(), why)
        }
    };
    CommandError::File { file: file.to_owned(), source }
}
