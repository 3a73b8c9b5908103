//! `--soft --via verbs`: the software adapter under rdma-core has to be there before this program
//! is, so that the program starts itself again on one (`softefa run`).

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a program on software adapters under rdma-core has in its environment.
const SOCKET: &str = "SOFTEFA_SOCKET";
/// The program that gives it that.
const FILE: &str = "softefa";

/// Whether this program runs on one.
pub(crate) fn is_active() -> bool {
    std::env::var_os(SOCKET).is_some() && std::env::var_os("SYSFS_PATH").is_some()
}

/// Becomes `softefa run` with this program and its arguments. Returns only where that fails, with
/// why and what to do.
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
        "--soft --via verbs needs the program softefa beside this one, which puts a software adapter under \
         rdma-core: {error}; build it (cargo build{release} -p softefa-uverbs -p softefa-preload), or start \
         softefa run -- gda-probe with the same arguments"
    )
}

fn find() -> io::Result<PathBuf> {
    let own = crate::executable::path()?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let found = ["", ".."].iter().find_map(|place| beside.join(place).join(FILE).canonicalize().ok());
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("none beside {}", own.display())))
}
