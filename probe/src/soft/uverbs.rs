//! `--soft --via verbs`: the software adapter's uverbs frontend must exist before the program that uses it
//! starts, so the probe restarts itself under `softefa run`.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Replaces this process by `softefa run` with this program and its arguments. Returns only on failure,
/// with the reason and what to do.
pub(crate) fn restart() -> String {
    let error = match find().and_then(|softefa| Ok((softefa, crate::executable::restart_command()?))) {
        Ok((softefa, again)) => Command::new(softefa)
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
