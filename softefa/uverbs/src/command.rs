//! The command `softefa`: runs a program on a broker, or a broker alone, and prints the report. `softefa compare` is in
//! `compare`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use softefa::device::Adapter;
use softefa_abi::protocol::SOCKET_VARIABLE;

use crate::broker::{self, Broker};
use crate::{compare, sysfs};

/// The exit status if a rule was broken and it would otherwise be 0.
const VIOLATIONS: u8 = 3;
/// The exit status for an invalid command line.
const USAGE: u8 = 2;
/// The library to preload, in the directory of this program.
const PRELOAD: &str = "libsoftefa_preload.so";
/// The longest wait for open devices after the program ended.
const LAST_CLOSE: Duration = Duration::from_secs(2);

const HELP: &str = "\
softefa run [--adapters N] [--quiet] -- PROGRAM [ARGUMENT…]
    Runs PROGRAM and the processes that it starts on N software EFA adapters
    (1 to 16; 1 by default), then prints each adapter's counts, warnings and
    violations. --quiet prints violations only. If SOFTEFA_SOCKET is set, the
    program uses the broker at that path, which then prints the report.
    Exit status: the program's, or 3 if that is 0 and a rule was broken.
softefa serve --socket PATH [--adapters N] [--quiet]
    Runs a broker for several runs until SIGINT, SIGTERM or SIGHUP, then
    prints the report. Exit status: 0, or 3 if a rule was broken.
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
        Some("compare") => compare::main(arguments.collect()),
        Some("-h" | "--help" | "help") => help(),
        _ => Err(Failure::Usage("the first argument must be run, serve or compare".into())),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(Failure::Usage(text)) => {
            eprintln!("softefa: {text}\n\n{HELP}");
            ExitCode::from(USAGE)
        }
        Err(Failure::Other(text)) => {
            eprintln!("softefa: {text}");
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
    print!("{HELP}");
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

/// Parses the options. `None`: the user requested help.
fn options(mut arguments: impl Iterator<Item = OsString>) -> Result<Option<Options>, Failure> {
    let mut options = Options { adapters: 1, quiet: false, socket: None, program: Vec::new() };
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
            Some("--socket") => options.socket = Some(value("--socket")?.into()),
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

/// A private directory, which is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let base = std::env::temp_dir();
        for attempt in 0..100_u32 {
            let path = base.join(format!("softefa.{}.{attempt}", std::process::id()));
            let created =
                std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(&path);
            match created {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Failure::io("cannot create the directory", &path, &error)),
            }
        }
        Err(Failure::Other(format!(
            "no directory can be created in {}, because 100 directories softefa.* exist there; remove them",
            base.display()
        )))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the directory remains.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The path of the library to preload: `SOFTEFA_PRELOAD`, or the file in this program's directory.
fn preload() -> Result<PathBuf, Failure> {
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

fn run(options: &Options) -> Result<u8, Failure> {
    let Some((program, arguments)) = options.program.split_first() else {
        return Err(Failure::Usage(
            "run: no program is stated; expected softefa run -- PROGRAM [ARGUMENT…]".into(),
        ));
    };
    let preload = preload()?;
    let scratch = Scratch::new()?;
    let existing = options.socket.clone().or_else(|| std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from));
    let (socket, broker) = match existing {
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
            let socket = scratch.0.join("socket");
            let broker =
                Broker::start(&socket, options.adapters).map_err(|e| Failure::Other(e.to_string()))?;
            (socket, Some(broker))
        }
    };
    let sys = scratch.0.join("sys");
    sysfs::create(&sys, options.adapters)
        .map_err(|error| Failure::io("cannot create files in", &sys, &error))?;
    let mut libraries = preload.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    let signals = Signals::block()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", libraries)
        .env("SYSFS_PATH", &sys)
        .env(SOCKET_VARIABLE, &socket);
    signals.unblock_in(&mut command);
    let mut child =
        command.spawn().map_err(|error| Failure::io("cannot start", Path::new(program), &error))?;
    signals.forward_to(child.id() as i32);
    let status = child
        .wait()
        .map_err(|error| Failure::Other(format!("cannot wait for {}: {error}", program.display())))?;
    signals.forward_to(0);
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

fn serve(options: &Options) -> Result<u8, Failure> {
    let socket = options.socket.clone().or_else(|| std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from));
    let socket =
        socket.ok_or_else(|| Failure::Usage("serve: no socket is stated; expected --socket PATH".into()))?;
    if !options.program.is_empty() {
        return Err(Failure::Usage("serve: it runs no program; use softefa run".into()));
    }
    let signals = Signals::block()?;
    let broker =
        Broker::start(&socket, options.adapters).map_err(|error| Failure::Other(error.to_string()))?;
    eprintln!("softefa: serving {} adapters at {}", options.adapters, socket.display());
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
        eprintln!(
            "softefa: {name}: {} doorbells, {} entries, {} bytes, {} receives, {} completions ({} errors), {} violations",
            counts.doorbells,
            counts.entries,
            counts.bytes,
            counts.receives,
            counts.completions,
            counts.errors,
            counts.violations
        );
        for warning in adapter.warnings() {
            eprintln!("softefa: {name}: warning: {warning}");
        }
    }
    for violation in adapter.violations() {
        eprintln!("softefa: {name}: VIOLATION: {violation}");
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

/// SIGINT, SIGTERM and SIGHUP, received by a thread, so that the report is printed however the program ends.
struct Signals {
    set: SigSet,
    child: Arc<AtomicI32>,
}

impl Signals {
    /// Blocks the signals in this thread and in threads and processes that it starts.
    fn block() -> Result<Self, Failure> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        set.thread_block().map_err(|error| {
            Failure::Other(format!("SIGINT, SIGTERM and SIGHUP cannot be blocked: {error}"))
        })?;
        Ok(Self { set, child: Arc::new(AtomicI32::new(0)) })
    }

    /// Unblocks the signals in the program, which would otherwise inherit the mask of this thread.
    fn unblock_in(&self, command: &mut Command) {
        let set = self.set;
        // SAFETY: between fork and exec the closure makes one call that is safe there (pthread_sigmask), on
        // memory that it owns.
        unsafe { command.pre_exec(move || Ok(set.thread_unblock()?)) };
    }

    /// Waits for one of the signals.
    fn wait(&self) -> nix::Result<Signal> {
        self.set.wait()
    }

    /// Forwards later signals to the process `child`; 0 for none.
    fn forward_to(&self, child: i32) {
        if self.child.swap(child, Ordering::AcqRel) != 0 || child == 0 {
            return;
        }
        let receiver = Self { set: self.set, child: self.child.clone() };
        // If the thread cannot be started, the signals stay blocked, and the program ends by other means.
        let _ = thread::Builder::new().name("softefa-signals".into()).spawn(move || {
            while let Ok(signal) = receiver.wait() {
                let child = receiver.child.load(Ordering::Acquire);
                if child > 0 {
                    let _ = kill(Pid::from_raw(child), signal);
                }
            }
        });
    }
}
