//! C and C++ files that tests compile.

use std::process::Command;

use crate::process::output;
use crate::skip::{Need, missing};

/// The C compiler: `CC`, or cc.
pub fn c() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// The C++ compiler: `CXX`, or c++.
pub fn cxx() -> Command {
    Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()))
}

/// Runs a compiler. Returns false, with the skip recorded, if there is no compiler; the calling test must return then.
///
/// # Panics
/// If the compiler rejects the sources.
pub fn compile(command: &mut Command) -> bool {
    let mut asks = Command::new(command.get_program());
    if let Err(error) = asks.arg("--version").output() {
        missing(Need::Compiler, format!("{} does not start: {error}", command.get_program().display()));
        return false;
    }
    let compiled = output(command);
    assert!(compiled.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&compiled.stderr));
    true
}
