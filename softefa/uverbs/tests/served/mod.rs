//! Processes of the command `softefa`, which end with their test.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)] // each test program uses a part

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use efa_gda_test_support::{output, until};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process that is killed when the value is dropped, so that a failed test leaves none.
#[derive(Debug)]
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    pub fn id(&self) -> i32 {
        self.0.id() as i32
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.id()), signal).unwrap();
    }

    /// Ends a broker. Returns its exit status, and its report.
    pub fn end(mut self) -> (Option<i32>, String) {
        self.signal(Signal::SIGTERM);
        let mut report = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut report).unwrap();
        (self.0.wait().unwrap().code(), report)
    }
}

/// Stops a process, and waits until each of its threads has stopped, for at most ten seconds.
pub fn stop(process: i32) {
    kill(Pid::from_raw(process), Signal::SIGSTOP).unwrap();
    let is_stopped = |thread: PathBuf| {
        let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:\tT"))
    };
    let threads = || fs::read_dir(format!("/proc/{process}/task")).unwrap();
    until(Duration::from_secs(10), &format!("the stop of process {process}"), || {
        threads().all(|thread| is_stopped(thread.unwrap().path())).then_some(())
    });
}

/// Starts `softefa serve` with `adapters` adapters at `socket`, and waits until it serves.
pub fn serve(socket: &Path, adapters: u32) -> Process {
    start(&mut broker(socket, adapters))
}

/// As [`serve`], for a broker that may have `descriptors` descriptors.
pub fn serve_limited(socket: &Path, adapters: u32, descriptors: u64) -> Process {
    start(limit_descriptors(&mut broker(socket, adapters), descriptors, descriptors))
}

/// Sets the limits of descriptors of a program.
pub fn limit_descriptors(command: &mut Command, soft: u64, hard: u64) -> &mut Command {
    // SAFETY: between fork and exec the closure makes one call, on integers.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?)) }
}

/// The command that starts a broker.
pub fn broker(socket: &Path, adapters: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softefa"));
    command.args(["serve", "--adapters", &adapters.to_string(), "--socket"]).arg(socket);
    command.env_remove("SOFTEFA_SOCKET").stderr(Stdio::piped());
    command
}

/// Starts a broker, and waits until it serves.
pub fn start(command: &mut Command) -> Process {
    let mut broker = Process(command.spawn().unwrap());
    let mut line = Vec::new();
    // The first line, and no byte of the report, which is read later.
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        broker.0.stderr.as_mut().unwrap().read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    assert!(line.starts_with(b"softefa: serving "), "{}", line.escape_ascii());
    broker
}

/// The library to preload.
pub fn library() -> PathBuf {
    let library = Path::new(env!("CARGO_BIN_EXE_softefa")).with_file_name("libsoftefa_preload.so");
    assert!(library.exists(), "build it first: cargo build -p softefa-preload");
    library
}

/// Opens adapter 0 of the broker at `socket` in another process, by the preloaded library. Returns whether that
/// succeeded, and what the process printed as errors.
pub fn open_by_the_library(socket: &Path) -> (bool, String) {
    let mut command = Command::new("cat");
    command.arg("/dev/infiniband/uverbs0").env("LD_PRELOAD", library()).env("SOFTEFA_SOCKET", socket);
    let output = output(&mut command);
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}
