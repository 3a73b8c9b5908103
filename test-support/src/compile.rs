//! C and C++ files that tests compile.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::output;
use crate::root;
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

/// Compiles files of kernels for the host, as docs/kernels.md describes, into one library, and returns the library's
/// file. Files that were compiled before, also by another process, are not compiled again: each of many
/// tests in a process of its own would otherwise wait for a compiler.
///
/// # Panics
/// If there is no compiler, or it rejects the sources.
pub fn host_kernels(sources: &[PathBuf]) -> PathBuf {
    static TEMPORARY: AtomicU32 = AtomicU32::new(0);
    let command = || {
        let mut command = cxx();
        command.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-x", "c++"]);
        for include in ["kernels/include", "third_party/efa_gda"] {
            command.arg("-I").arg(root().join(include));
        }
        command.args(sources).arg(root().join("kernels/host/lanes.cpp")).arg("-lpthread");
        command
    };
    let preprocessed = output(command().arg("-E"));
    assert!(
        preprocessed.status.success(),
        "{:?} failed: {}",
        command(),
        String::from_utf8_lossy(&preprocessed.stderr)
    );
    let mut hasher = DefaultHasher::new();
    (format!("{:?}", command()), preprocessed.stdout).hash(&mut hasher);
    let program = std::env::current_exe().expect("the test's program has a path");
    let folder = program.parent().map_or_else(std::env::temp_dir, Path::to_path_buf).join("host-kernels");
    fs::create_dir_all(&folder).expect("the folder of the test's program is writable");
    let file = folder.join(format!("{:016x}.so", hasher.finish()));
    if !file.exists() {
        let number = TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let temporary = file.with_extension(format!("{}-{number}", process::id()));
        assert!(compile(command().arg("-o").arg(&temporary)), "no C++ compiler was found; install one");
        fs::rename(&temporary, &file).expect("a file of the same folder");
    }
    file
}
