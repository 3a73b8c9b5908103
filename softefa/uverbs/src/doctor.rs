//! `softefa doctor`: whether `softefa run` can work here, one line for each thing that it needs, and last a program that
//! opens an adapter.

use std::ffi::{CStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use softefa_abi::protocol::DEVICE_PREFIX;

use crate::command::{self, Failure};
use crate::scratch::Scratch;

/// The hidden command of the program that opens an adapter.
pub(crate) const OPEN: &str = "__open";
/// The exit status if softefa cannot run here.
const CANNOT_RUN: u8 = 1;
/// Descriptors that a broker and one program need.
const LEAST_DESCRIPTORS: u64 = 64;

/// What is there, or what is wrong and what to do.
type Result = std::result::Result<String, String>;
/// A name, and the check of it.
type Check = (&'static str, fn() -> Result);

/// Checks each thing, and prints a line for each.
pub(crate) fn run() -> std::result::Result<u8, Failure> {
    let checks: [Check; 8] = [
        ("C library", c_library),
        ("seccomp", seccomp),
        ("memory files", memory_files),
        ("own memory", own_memory),
        ("descriptors", descriptors),
        ("directory", directory),
        ("preloaded library", || preloaded().map_err(|failure| text_of(&failure))),
        ("a program", program),
    ];
    let mut works = true;
    for (name, check) in checks {
        let result = check();
        works &= result.is_ok();
        print(if result.is_ok() { "ok" } else { "FAIL" }, name, &result.unwrap_or_else(|text| text));
    }
    // Programs bring their own; softefa works without.
    match rdma_core() {
        Ok(text) => print("ok", "rdma-core", &text),
        Err(text) => print("note", "rdma-core", &text),
    }
    let verdict =
        if works { "softefa run works here" } else { "softefa run does not work here; the reason is above" };
    let _ = writeln!(io::stdout(), "{verdict}");
    Ok(if works { 0 } else { CANNOT_RUN })
}

fn print(state: &str, name: &str, text: &str) {
    let _ = writeln!(io::stdout(), "{state:<4}  {name:<17}  {text}");
}

fn text_of(failure: &Failure) -> String {
    match failure {
        Failure::Usage(text) | Failure::Other(text) => text.clone(),
    }
}

fn c_library() -> Result {
    // SAFETY: the function takes no argument and returns a static C string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    Ok(format!("glibc {}", version.to_string_lossy()))
}

/// A filter alone is no fault: the next checks make the calls.
fn seccomp() -> Result {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    Ok(match mode {
        Some("0") => "no filter",
        Some("2") => "a filter; a call that it forbids fails below",
        _ => "/proc/self/status does not state it",
    }
    .to_owned())
}

fn memory_files() -> Result {
    const FIX: &str = "allow memfd_create and fcntl in the seccomp profile of the container";
    let file = memfd_create(c"softefa-doctor", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
        .map_err(|error| format!("memfd_create: {error}; {FIX}"))?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))
        .map_err(|error| format!("F_ADD_SEALS: {error}; {FIX}"))?;
    Ok("can be created and sealed".to_owned())
}

fn own_memory() -> Result {
    let path = "/proc/thread-self/mem";
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Ok(format!("{path} opens for writing; no ptrace is used, and no memory is locked")),
        Err(error) => Err(format!(
            "{path}: {error}; a program passes its memory to the adapter this way: mount /proc, and run the program \
             dumpable (not set-uid)"
        )),
    }
}

fn descriptors() -> Result {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| format!("RLIMIT_NOFILE: {error}"))?;
    if hard < LEAST_DESCRIPTORS {
        return Err(format!("at most {hard}; raise the limit (ulimit -Hn, docker --ulimit nofile=N)"));
    }
    Ok(format!("at most {hard}"))
}

fn directory() -> Result {
    let scratch = Scratch::new().map_err(|failure| {
        format!("{}; set TMPDIR to a directory that can be written (docker --tmpfs /tmp)", text_of(&failure))
    })?;
    Ok(format!("{} can be written", scratch.path().parent().unwrap_or(Path::new("/")).display()))
}

fn preloaded() -> std::result::Result<String, Failure> {
    command::preload().map(|path| path.display().to_string())
}

/// Runs this program as a client, so that the loader, the preloaded library, the broker and their socket take part.
fn program() -> Result {
    let program = ["/proc/self/exe", OPEN].map(OsString::from).to_vec();
    match command::run_quietly(program) {
        Ok(0) => Ok("opened an adapter through the preloaded library and the broker".to_owned()),
        Ok(status) => Err(format!("ended with status {status}; its message is above on stderr")),
        Err(failure) => Err(text_of(&failure)),
    }
}

/// The client: opens an adapter.
pub(crate) fn open() -> std::result::Result<u8, Failure> {
    let path = format!("{DEVICE_PREFIX}0");
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.map(|_| 0).map_err(|error| {
        Failure::Other(format!(
            "{path}: {error}; the loader did not preload the library, or the broker refused this program: compare \
             LD_PRELOAD with the loader's messages on stderr"
        ))
    })
}

fn rdma_core() -> Result {
    // SAFETY: the name is a C string. The file is the system's own library, whose initialisers are sound; it stays loaded.
    let load = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    let (verbs, efa) = (load(c"libibverbs.so.1"), load(c"libefa.so.1"));
    let missing: Vec<&str> = [("libibverbs.so.1", verbs), ("libefa.so.1", efa)]
        .into_iter()
        .filter(|(_, library)| library.is_null())
        .map(|(name, _)| name)
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "{} cannot be loaded; programs need it (Debian packages libibverbs1 and ibverbs-providers)",
            missing.join(" and ")
        ));
    }
    // SAFETY: the handle is that of a loaded library, and the name a C string; the symbol is not called.
    let exposes = !unsafe { libc::dlsym(efa, c"efadv_query_qp_wqs".as_ptr()) }.is_null();
    match exposes {
        true => Ok("libibverbs.so.1 and libefa.so.1 load, and expose queues".to_owned()),
        false => Err("libefa.so.1 has no efadv_query_qp_wqs, so it is older than rdma-core 59: programs of verbs run, but \
                      queues for a GPU, and gda-probe --via verbs, need 59 or newer"
            .to_owned()),
    }
}
