//! The command `softefa`: runs a program on a broker, or a broker alone, and prints the report. `softefa compare` is in
//! `compare`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use efa_gda_wire::CompletionStatus;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use softefa::device::{Adapter, say};
use softefa_abi::protocol::SOCKET_VARIABLE;

use crate::broker::{self, Broker};
use crate::scratch::Scratch;
use crate::signals::Signals;
use crate::{compare, doctor, sysfs};

/// The exit status if a rule was broken and it would otherwise be 0.
const VIOLATIONS: u8 = 3;
/// The exit status for an invalid command line.
const USAGE: u8 = 2;
/// The library to preload, in the directory of this program.
const PRELOAD: &str = "libsoftefa_preload.so";
/// The longest wait for open devices after the program ended. On a busy machine, the broker notices its end late.
const LAST_CLOSE: Duration = Duration::from_secs(10);

const HELP: &str = "\
softefa run [--adapters N] [--quiet] -- PROGRAM [ARGUMENT…]
    Runs PROGRAM and the processes that it starts on N software EFA adapters
    (1 to 16; 1 by default), then prints each adapter's counts, warnings and
    violations. --quiet prints violations only. If SOFTEFA_SOCKET is set, the
    program uses the broker at that path, which then prints the report.
    Exit status: the program's, or 3 if that is 0 and a rule was broken.
softefa serve --socket PATH [--adapters N] [--quiet]
    Runs a broker for several runs until SIGINT, SIGTERM or SIGHUP, then
    prints the report. It serves programs of its own user only.
    Exit status: 0, or 3 if a rule was broken.
softefa doctor
    Reports whether softefa run works here: the C library, seccomp, memory
    files, limits, the preloaded library, and a program that opens an adapter.
    Exit status: 0, or 1 if it does not work.
softefa compare CAPTURE REQUESTS
    Compares work-queue entries, captured with SOFTEFA_CAPTURE=FILE, with this
    project's encoding of the same requests.
    Exit status: 0, or 3 if an entry differs.

Other exit statuses: 1 an error, 2 a wrong command line.
docs/softefa.md describes what is modelled, and the variables SOFTEFA_*.
";

/// The option by which cargo builds the library in this program's directory.
const RELEASE: &str = if cfg!(debug_assertions) { "" } else { " --release" };

/// The options of `run` and `serve`.
struct Options {
    adapters: usize,
    quiet: bool,
    socket: Option<PathBuf>,
    program: Vec<OsString>,
}

/// Executes the command that the arguments state.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let result = match arguments.next().as_deref().and_then(OsStr::to_str) {
        Some("run") => with_options(arguments, run),
        Some("serve") => with_options(arguments, serve),
        Some("doctor") => match arguments.next() {
            None => doctor::run(),
            Some(extra) => Err(Failure::Usage(format!("doctor: unknown argument {}", extra.display()))),
        },
        Some(doctor::OPEN) => doctor::open(),
        Some("compare") => compare::main(arguments.collect()),
        Some("-h" | "--help" | "help") => help(),
        Some("-V" | "--version") => version(),
        _ => Err(Failure::Usage("the first argument must be run, serve, doctor or compare".into())),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(Failure::Usage(text)) => {
            say(format_args!("{text}\n\n{HELP}"));
            ExitCode::from(USAGE)
        }
        Err(Failure::Other(text)) => {
            say(format_args!("{text}"));
            ExitCode::from(1)
        }
    }
}

/// Why the command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is invalid.
    Usage(String),
    /// Another failure, with the text to print.
    Other(String),
}

impl Failure {
    /// An I/O error at `path`. `failure` states what failed, as "cannot read".
    pub(crate) fn io(failure: &str, path: &Path, error: &io::Error) -> Self {
        Self::Other(format!("{failure} {}: {error}", path.display()))
    }
}

fn help() -> Result<u8, Failure> {
    let _ = io::stdout().write_all(HELP.as_bytes());
    Ok(0)
}

fn version() -> Result<u8, Failure> {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let target = format!("{}, {}", std::env::consts::ARCH, std::env::consts::OS);
    let commit = option_env!("EFA_GDA_COMMIT").filter(|commit| !commit.is_empty()).unwrap_or("not recorded");
    let version = env!("CARGO_PKG_VERSION");
    let text = format!("softefa {version}\ncommit:  {commit}\nprofile: {profile}\ntarget:  {target}\n");
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(0)
}

fn with_options(
    arguments: impl Iterator<Item = OsString>,
    command: fn(&Options) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    match options(arguments)? {
        Some(options) => command(&options),
        None => help(),
    }
}

/// The path, unless it is empty: for a socket with an empty address the system chooses one.
fn not_empty(path: OsString) -> Option<PathBuf> {
    Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty())
}

/// Parses the options. `None`: the user requested help.
fn options(mut arguments: impl Iterator<Item = OsString>) -> Result<Option<Options>, Failure> {
    let mut options = Options {
        adapters: 1,
        quiet: false,
        socket: std::env::var_os(SOCKET_VARIABLE).and_then(not_empty),
        program: Vec::new(),
    };
    while let Some(argument) = arguments.next() {
        let mut value =
            |name: &str| arguments.next().ok_or_else(|| Failure::Usage(format!("{name} needs a value")));
        match argument.to_str() {
            Some("--adapters") => {
                let text = value("--adapters")?;
                let number = text.to_str().and_then(|text| text.parse().ok());
                options.adapters = number.filter(|number| (1..=16).contains(number)).ok_or_else(|| {
                    Failure::Usage(format!("--adapters {}: expected a number from 1 to 16", text.display()))
                })?;
            }
            Some("--socket") => options.socket = not_empty(value("--socket")?),
            Some("--quiet") => options.quiet = true,
            Some("-h" | "--help") => return Ok(None),
            Some("--") => {
                options.program.extend(arguments);
                break;
            }
            Some(text) if text.starts_with('-') => {
                return Err(Failure::Usage(format!(
                    "{text}: unknown option; put the program's own options after --"
                )));
            }
            _ => {
                options.program.push(argument);
                options.program.extend(arguments);
                break;
            }
        }
    }
    Ok(Some(options))
}

/// The path of the library to preload: `SOFTEFA_PRELOAD`, or the file in this program's directory.
pub(crate) fn preload() -> Result<PathBuf, Failure> {
    let path = match std::env::var_os("SOFTEFA_PRELOAD") {
        Some(path) => PathBuf::from(path),
        None => {
            let program = std::env::current_exe().map_err(|error| {
                Failure::Other(format!(
                    "the path of this program cannot be read: {error}; name {PRELOAD} in SOFTEFA_PRELOAD"
                ))
            })?;
            program.with_file_name(PRELOAD)
        }
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::Other(format!(
        "the library to preload, {}, does not exist; build it (cargo build{RELEASE} -p softefa-preload) or name it in \
         SOFTEFA_PRELOAD",
        path.display()
    )))
}

/// A path of `library` for LD_PRELOAD, whose paths end at spaces and colons: a link in `folder` if its own path has one.
fn one_word(library: PathBuf, folder: &Path) -> Result<OsString, Failure> {
    let splits = |path: &Path| path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':'));
    if !splits(&library) {
        return Ok(library.into_os_string());
    }
    if splits(folder) {
        return Err(Failure::Other(format!(
            "LD_PRELOAD cannot hold {}, nor a link to it in {}: both have a space or a colon; set TMPDIR to a directory \
             without",
            library.display(),
            folder.display()
        )));
    }
    let link = folder.join(PRELOAD);
    let library = library.canonicalize().map_err(|error| Failure::io("cannot find", &library, &error))?;
    symlink(library, &link).map_err(|error| Failure::io("cannot create the link", &link, &error))?;
    Ok(link.into_os_string())
}

/// Runs a program on an adapter of its own, and prints violations only. Returns its exit status.
pub(crate) fn run_quietly(program: Vec<OsString>) -> Result<u8, Failure> {
    run(&Options { adapters: 1, quiet: true, socket: None, program })
}

fn run(options: &Options) -> Result<u8, Failure> {
    let Some((program, arguments)) = options.program.split_first() else {
        return Err(Failure::Usage(
            "run: no program is stated; expected softefa run -- PROGRAM [ARGUMENT…]".into(),
        ));
    };
    let preload = preload()?;
    let scratch = Scratch::new()?;
    // Before the threads of the broker start.
    let signals = Signals::block()?;
    let descriptors = raise_descriptors();
    let (socket, broker) = match options.socket.clone() {
        Some(socket) => {
            if let Err(error) = broker::try_connect(&socket) {
                let socket = socket.display();
                return Err(Failure::Other(format!(
                    "no broker listens at {socket}: {error}; start one (softefa serve --socket {socket}), or unset \
                     {SOCKET_VARIABLE}"
                )));
            }
            (socket, None)
        }
        None => {
            let socket = scratch.path().join("socket");
            let broker = start(&socket, options)?;
            (socket, Some(broker))
        }
    };
    sysfs::create(scratch.path(), options.adapters)
        .map_err(|error| Failure::io("cannot create files in", scratch.path(), &error))?;
    let mut libraries = one_word(preload, scratch.path())?;
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", libraries)
        .env("SYSFS_PATH", scratch.path().join("sys"))
        .env(SOCKET_VARIABLE, &socket);
    signals.bind(&mut command);
    if let Some((soft, hard)) = descriptors {
        // SAFETY: between fork and exec the closure makes one call that is safe there (setrlimit), on integers.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?)) };
    }
    let mut child =
        command.spawn().map_err(|error| Failure::io("cannot start", Path::new(program), &error))?;
    signals.forward_to(child.id() as i32);
    let failed = |error| Failure::Other(format!("cannot wait for {}: {error}", program.display()));
    // The process keeps its number until `wait`.
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while let Err(error) = waitid(Id::Pid(Pid::from_raw(child.id() as i32)), ended) {
        if error != nix::Error::EINTR {
            return Err(failed(error.into()));
        }
    }
    signals.forward_to(0);
    let status = child.wait().map_err(failed)?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) as u8;
    let Some(broker) = broker else { return Ok(code) };
    // The broker's threads notice later that devices were closed. The wait is bounded, because processes that the
    // program started may still run.
    let limit = Instant::now() + LAST_CLOSE;
    while broker.open_devices() > 0 && Instant::now() < limit {
        thread::sleep(Duration::from_millis(1));
    }
    let violations = finish(&broker, options.quiet)?;
    Ok(if code == 0 && violations { VIOLATIONS } else { code })
}

fn start(socket: &Path, options: &Options) -> Result<Broker, Failure> {
    Broker::start(socket, options.adapters).map_err(|error| Failure::Other(error.to_string()))
}

/// Raises the limit of descriptors as far as it goes, because programs share the broker's. Returns the limits before,
/// if they changed; programs that use `select` need the lower one.
fn raise_descriptors() -> Option<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok()?;
    Some((soft, hard))
}

fn serve(options: &Options) -> Result<u8, Failure> {
    let socket = options.socket.as_ref();
    let socket =
        socket.ok_or_else(|| Failure::Usage("serve: no socket is stated; expected --socket PATH".into()))?;
    if !options.program.is_empty() {
        return Err(Failure::Usage("serve: it runs no program; use softefa run".into()));
    }
    let signals = Signals::block()?;
    raise_descriptors();
    let broker = start(socket, options)?;
    say(format_args!("serving {} adapters at {}", options.adapters, socket.display()));
    signals
        .wait()
        .map_err(|error| Failure::Other(format!("the broker cannot wait for SIGINT or SIGTERM: {error}")))?;
    Ok(if finish(&broker, options.quiet)? { VIOLATIONS } else { 0 })
}

/// Prints the report and writes the capture. Returns whether a rule was broken.
fn finish(broker: &Broker, quiet: bool) -> Result<bool, Failure> {
    let mut violations = false;
    for (index, adapter) in broker.adapters().iter().enumerate() {
        violations |= report(index, adapter, quiet);
    }
    if let Some(path) = std::env::var_os("SOFTEFA_CAPTURE").map(PathBuf::from) {
        capture(broker.adapters(), &path).map_err(|error| Failure::io("cannot write", &path, &error))?;
    }
    Ok(violations)
}

/// Prints one adapter's report. Returns whether a rule was broken.
fn report(index: usize, adapter: &Adapter, quiet: bool) -> bool {
    let name = sysfs::device_name(index);
    let counts = adapter.statistics();
    if !quiet {
        let warnings = adapter.warnings();
        say(format_args!(
            "{name}: {} doorbells, {} entries, {} bytes, {} receives, {} completions ({} errors, {} flushed), {} warnings, \
             {} violations",
            counts.doorbells,
            counts.entries,
            counts.bytes,
            counts.receives,
            counts.completions,
            counts.errors,
            counts.flushed,
            warnings.len(),
            counts.violations
        ));
        for (status, count) in adapter.errors() {
            // Senders such as libfabric's wait and post the request again.
            let note = if status == CompletionStatus::ReceiverNotReady {
                "; no fault if the sender backs off"
            } else {
                ""
            };
            let (code, completions) = (status.code(), if count == 1 { "completion" } else { "completions" });
            say(format_args!("{name}: {count} {completions} with status {code}: {status}{note}"));
        }
        for warning in warnings {
            say(format_args!("{name}: warning: {warning}"));
        }
    }
    for violation in adapter.violations() {
        say(format_args!("{name}: VIOLATION: {violation}"));
    }
    counts.violations > 0
}

/// Writes a line for each captured entry: adapter, queue pair, producer index, bytes.
fn capture(adapters: &[Arc<Adapter>], path: &Path) -> io::Result<()> {
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    for (index, adapter) in adapters.iter().enumerate() {
        for entry in adapter.captured() {
            write!(file, "{index} {} {} ", entry.queue_pair.get(), entry.counter)?;
            for byte in entry.bytes {
                write!(file, "{byte:02x}")?;
            }
            writeln!(file)?;
        }
    }
    file.flush()
}
