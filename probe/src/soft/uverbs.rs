//! `--soft --via verbs`: the software adapter's uverbs frontend must exist before the program that uses it
//! starts, so the probe restarts itself under `softefa run`.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::embedded;

/// An environment variable that `softefa run` sets.
const SOCKET: &str = "SOFTEFA_SOCKET";
/// The program that runs others on software adapters.
const SOFTEFA: &str = "softefa";

/// Whether this program runs under `softefa run`.
pub(crate) fn is_active() -> bool {
    std::env::var_os(SOCKET).is_some() && std::env::var_os("SYSFS_PATH").is_some()
}

/// Whether the environment names a broker that several processes share.
pub(crate) fn has_broker() -> bool {
    std::env::var_os(SOCKET).is_some()
}

/// The variable that names the library which `softefa` preloads, and that library.
const PRELOAD: (&str, &str) = ("SOFTEFA_PRELOAD", "libsoftefa_preload.so");

/// The command `softefa`: the embedded program with the embedded library, or the file beside this program.
fn command() -> io::Result<Command> {
    let (Some(program), Some(library)) = (embedded::file(SOFTEFA), embedded::file(PRELOAD.1)) else {
        return find().map(Command::new);
    };
    let mut command = Command::new(program?);
    let library = library?;
    if std::env::var_os(PRELOAD.0).is_none() {
        command.env(PRELOAD.0, library);
    }
    crate::ending::unblock();
    Ok(command)
}

/// Replaces this process by the embedded `softefa` if this program was started by that name (a link to it). Returns
/// only if it was started by another name or contains no `softefa`, or with the reason of a failure.
pub(crate) fn run_by_name() -> Option<String> {
    let mut arguments = std::env::args_os();
    let name = PathBuf::from(arguments.next()?);
    if name.file_name()? != SOFTEFA {
        return None;
    }
    let error = match command() {
        Ok(mut command) => command.args(arguments).exec(),
        Err(error) => error,
    };
    Some(format!("the program {SOFTEFA} cannot be started: {error}"))
}

/// Replaces this process by `softefa run` with this program and its arguments. Returns only on failure,
/// with the reason and what to do.
pub(crate) fn restart() -> String {
    let error = match command().and_then(|softefa| Ok((softefa, crate::executable::restart_command()?))) {
        Ok((mut softefa, again)) => softefa
            .args(["run", "--quiet", "--"])
            .arg(again.get_program())
            .args(again.get_args())
            .args(std::env::args_os().skip(1))
            .exec(),
        Err(error) => error,
    };
    let release = crate::executable::CARGO_RELEASE_FLAG;
    format!(
        "--soft --via verbs needs the program softefa beside gda-probe to run a software adapter under rdma-core: \
         {error}; build it (cargo build{release} -p softefa-uverbs -p softefa-preload), or run softefa run -- \
         gda-probe with the same arguments"
    )
}

fn find() -> io::Result<PathBuf> {
    let program = crate::executable::path()?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let softefa =
        ["", ".."].iter().find_map(|directory| beside.join(directory).join(SOFTEFA).canonicalize().ok());
    softefa.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("no file {SOFTEFA} beside {}", program.display()))
    })
}
