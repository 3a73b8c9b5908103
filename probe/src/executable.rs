//! The program's file, and how to start it again. Usually the file is `/proc/self/exe`. A program that was
//! started through a dynamic loader (`ld.so --library-path DIR gda-probe …`) is started again through
//! the same loader.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

/// The option with which cargo builds into the directory of this program.
pub(crate) const CARGO_RELEASE_FLAG: &str = if cfg!(debug_assertions) { "" } else { " --release" };

/// The command line of this process up to the program: the program, or a loader, its options and the
/// program.
fn command_prefix() -> io::Result<Vec<OsString>> {
    let line = std::fs::read("/proc/self/cmdline")?;
    Ok(before_arguments(&line, std::env::args_os().count()))
}

/// The part of `line` (`/proc/self/cmdline`) before the program's arguments. `count` is the number of
/// arguments including the program's name.
fn before_arguments(line: &[u8], count: usize) -> Vec<OsString> {
    let line = line.strip_suffix(b"\0").unwrap_or(line);
    let all: Vec<OsString> =
        line.split(|byte| *byte == 0).map(|one| OsStr::from_bytes(one).to_owned()).collect();
    let length = (all.len() + 1).saturating_sub(count).max(1);
    all.into_iter().take(length).collect()
}

/// The program's file.
pub(crate) fn path() -> io::Result<PathBuf> {
    match command_prefix()?.as_slice() {
        [_loader, .., program] => PathBuf::from(program).canonicalize(),
        _ => std::env::current_exe(),
    }
}

/// The directories of the loader's option (`ld.so --library-path DIR:DIR gda-probe …`).
pub(crate) fn loader_library_path() -> Vec<PathBuf> {
    command_prefix().map(|line| library_path_of(&line)).unwrap_or_default()
}

fn library_path_of(prefix: &[OsString]) -> Vec<PathBuf> {
    let option = prefix.iter().position(|argument| argument == "--library-path");
    let list = option.and_then(|at| prefix.get(at + 1));
    list.map(|list| std::env::split_paths(list).collect()).unwrap_or_default()
}

/// A command that starts this program again, without arguments.
pub(crate) fn restart_command() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(command_prefix()?.into_iter().skip(1));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{before_arguments, library_path_of};

    #[test]
    fn without_a_loader_the_prefix_is_the_program() {
        assert_eq!(before_arguments(b"gda-probe\0check\0--soft\0", 3), ["gda-probe"]);
    }

    #[test]
    fn the_prefix_contains_a_loader_and_its_options() {
        let line = b"/lib/ld.so\0--library-path\0/x\0./gda-probe\0--soft\0";
        assert_eq!(before_arguments(line, 2), ["/lib/ld.so", "--library-path", "/x", "./gda-probe"]);
    }

    #[test]
    fn the_loaders_directories_are_parsed_from_its_option() {
        let line = before_arguments(b"/lib/ld.so\0--library-path\0/x:/y\0./gda-probe\0check\0", 2);
        assert_eq!(library_path_of(&line), [Path::new("/x"), Path::new("/y")]);
        assert!(library_path_of(&before_arguments(b"gda-probe\0check\0", 2)).is_empty());
    }

    #[test]
    fn an_empty_argument_is_counted() {
        assert_eq!(before_arguments(b"gda-probe\0\0", 2), ["gda-probe"]);
    }
}
