//! Files that a command writes: whole or not at all, so that a reader never sees half a file and a full disk
//! leaves the old one.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

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
    draft(&target(file)?).map(drop).map_err(|source| failed(file, source))
}

/// Replaces a file by `content`.
pub(crate) fn replace(file: &Path, content: &[u8]) -> Result<(), CommandError> {
    let target = target(file)?;
    let written = draft(&target).and_then(|mut draft| {
        draft.write_all(content)?;
        draft.persist(&target).map_err(|error| error.error)
    });
    written.map(drop).map_err(|source| failed(file, source))
}

/// The file that `file` or its link names. A pipe or a device is refused, because writing to it could wait for ever.
fn target(file: &Path) -> Result<PathBuf, CommandError> {
    match fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => Err(failed(file, io::ErrorKind::IsADirectory.into())),
        Ok(metadata) if metadata.is_file() => file.canonicalize().map_err(|source| failed(file, source)),
        Ok(_) => Err(failed(file, io::Error::other("it is a pipe, a socket or a device, not a file"))),
        Err(_) => Ok(file.to_owned()),
    }
}

/// The file that is written first: beside the target, because a rename works within one file system only, and created
/// anew under a random name, because other users may plant links in the folder.
fn draft(target: &Path) -> io::Result<NamedTempFile> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    let permissions = fs::Permissions::from_mode(0o666);
    Builder::new()
        .prefix(".gda-probe-")
        .permissions(permissions)
        .tempfile_in(folder.unwrap_or(Path::new(".")))
}

fn failed(file: &Path, source: io::Error) -> CommandError {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let source = match folder {
        Some(folder) if source.kind() == io::ErrorKind::NotFound => {
            io::Error::other(format!("the folder {} does not exist; create it", folder.display()))
        }
        _ => {
            let why =
                format!("{source}; name a file that this user can write, on a file system with free space");
            io::Error::new(source.kind(), why)
        }
    };
    CommandError::File { file: file.to_owned(), source }
}
