//! Files of the software adapter that are part of this program, if it was built as a self-contained one (`build.rs`).
//!
//! A file is used from memory, as `/proc/self/fd/N`: nothing is written to a file system, which may be read-only, full
//! or without execution, and nothing is left behind. Processes that this one starts inherit the descriptor, so the path
//! names the same file in them.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::PathBuf;

// static FILES: &[(&str, &[u8])]
include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The path of the embedded file `name`; None if this program contains no such file.
pub(super) fn file(name: &str) -> Option<io::Result<PathBuf>> {
    let (_, bytes) = FILES.iter().find(|(embedded, _)| *embedded == name)?;
    Some(in_memory(bytes))
}

fn in_memory(bytes: &[u8]) -> io::Result<PathBuf> {
    // SAFETY: the name is a C string.
    let made = unsafe { libc::memfd_create(c"gda-probe".as_ptr(), libc::MFD_CLOEXEC) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above created the descriptor, and nothing else owns it.
    let mut writer = File::from(unsafe { OwnedFd::from_raw_fd(made) });
    writer.write_all(bytes)?;
    let path = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    // The kernel refuses to execute a file that is open for writing. This descriptor is inherited.
    let reader = File::open(path(&writer))?;
    // SAFETY: the descriptor is open; the call changes its flags only.
    if unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFD, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let path = path(&reader);
    // Open until the process ends.
    let _ = reader.into_raw_fd();
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    #[test]
    fn a_file_in_memory_can_be_executed_by_a_child() {
        let path = super::in_memory(b"#!/bin/sh\nexit 7\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(Command::new(path).status().unwrap().code(), Some(7));
    }

    #[test]
    fn a_file_that_is_not_embedded_has_no_path() {
        assert!(super::file("nothing").is_none());
    }
}
