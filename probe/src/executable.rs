//! This program's own file, and how to start it again. Usually that is `/proc/self/exe`; a program
//! that was started through a dynamic loader (`ld.so --library-path DIR gda-probe …`) is started
//! again through the same one.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

/// What cargo needs to be told to build something beside this program.
pub(crate) const CARGO_RELEASE_FLAG: &str = if cfg!(debug_assertions) { "" } else { " --release" };

/// The arguments with which this process was started, up to the program's own name: one, or a
/// loader, its options, and the program.
fn beginning() -> io::Result<Vec<OsString>> {
    let line = std::fs::read("/proc/self/cmdline")?;
    Ok(before_arguments(&line, std::env::args_os().count()))
}

/// Of a command line, as the kernel keeps it, all but the program's arguments; `count` includes the
/// program's own name.
fn before_arguments(line: &[u8], count: usize) -> Vec<OsString> {
    let line = line.strip_suffix(b"\0").unwrap_or(line);
    let all: Vec<OsString> =
        line.split(|byte| *byte == 0).map(|one| OsStr::from_bytes(one).to_owned()).collect();
    let keep = (all.len() + 1).saturating_sub(count).max(1);
    all.into_iter().take(keep).collect()
}

/// The program's file.
pub(crate) fn path() -> io::Result<PathBuf> {
    match beginning()?.as_slice() {
        [_loader, .., program] => PathBuf::from(program).canonicalize(),
        _ => std::env::current_exe(),
    }
}

/// The directories that a loader was told to look in (`ld.so --library-path DIR:DIR gda-probe …`).
pub(crate) fn loader_library_path() -> Vec<PathBuf> {
    beginning().map(|line| library_path_of(&line)).unwrap_or_default()
}

fn library_path_of(beginning: &[OsString]) -> Vec<PathBuf> {
    let option = beginning.iter().position(|argument| argument == "--library-path");
    let list = option.and_then(|at| beginning.get(at + 1));
    list.map(|list| std::env::split_paths(list).collect()).unwrap_or_default()
}

/// A command that starts this program again.
pub(crate) fn restart_command() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(beginning()?.into_iter().skip(1));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{before_arguments, library_path_of};

    #[test]
    fn a_program_started_by_itself_has_only_its_name_before_its_arguments() {
        assert_eq!(before_arguments(b"gda-probe\0check\0--soft\0", 3), ["gda-probe"]);
    }

    #[test]
    fn a_loader_and_its_options_come_before_the_program() {
        let line = b"/lib/ld.so\0--library-path\0/x\0./gda-probe\0--soft\0";
        assert_eq!(before_arguments(line, 2), ["/lib/ld.so", "--library-path", "/x", "./gda-probe"]);
    }

    #[test]
    fn the_loaders_directories_are_those_of_its_option() {
        let line = before_arguments(b"/lib/ld.so\0--library-path\0/x:/y\0./gda-probe\0check\0", 2);
        assert_eq!(library_path_of(&line), [Path::new("/x"), Path::new("/y")]);
        assert!(library_path_of(&before_arguments(b"gda-probe\0check\0", 2)).is_empty());
    }

    #[test]
    fn an_empty_argument_counts() {
        assert_eq!(before_arguments(b"gda-probe\0\0", 2), ["gda-probe"]);
    }
}
