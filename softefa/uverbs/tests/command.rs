//! The command `softefa`: what the program that `run` starts inherits, exit statuses, and help.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod served;

use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use efa_gda_test_support::{TempDir, compile, output, skip};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use served::{Process, library, limit_descriptors, open_by_the_library, serve};

/// The command, with `folder` for its files and an empty file to preload: the loader warns and continues.
fn softefa(folder: &Path, arguments: &[&str]) -> Command {
    let empty = folder.join("empty");
    std::fs::write(&empty, b"").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_softefa"));
    command.args(arguments).env("SOFTEFA_PRELOAD", &empty).env("TMPDIR", folder);
    command.env_remove("SOFTEFA_SOCKET").env_remove("XDG_RUNTIME_DIR");
    command
}

/// Runs `softefa run -- program`.
fn run(name: &str, program: &[&str]) -> (Option<i32>, String) {
    let folder = TempDir::new(name);
    let output = output(softefa(folder.path(), &["run", "--quiet", "--"]).args(program));
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_broker_raises_its_limit_of_descriptors_and_the_program_has_its_own() {
    let folder = TempDir::new("descriptors");
    let limits = "ulimit -n; grep 'Max open files' /proc/$PPID/limits";
    let mut command = softefa(folder.path(), &["run", "--quiet", "--", "sh", "-c", limits]);
    let text = output(limit_descriptors(&mut command, 64, 256)).stdout;
    let text = String::from_utf8(text).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words, ["64", "Max", "open", "files", "256", "256", "files"]);
}

#[test]
fn a_run_uses_the_runtime_directory_if_only_the_user_can_write_there() {
    let folder = TempDir::new("runtime");
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    for (mode, is_used) in [(0o700, true), (0o770, false)] {
        std::fs::set_permissions(&runtime, Permissions::from_mode(mode)).unwrap();
        let mut command = softefa(folder.path(), &["run", "--quiet", "--", "printenv", "SOFTEFA_SOCKET"]);
        let path = output(command.env("XDG_RUNTIME_DIR", &runtime)).stdout;
        assert_eq!(path.starts_with(runtime.as_os_str().as_bytes()), is_used, "{}", path.escape_ascii());
    }
}

/// Starts a program that runs until it receives a signal, and waits until it runs.
fn run_until_signal(folder: &Path) -> Process {
    let mut command = softefa(folder, &["run", "--", "sh", "-c", "echo started; exec sleep 60"]);
    let mut run = Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    BufReader::new(run.0.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    run
}

#[test]
fn a_program_ends_with_a_run_that_is_killed() {
    let folder = TempDir::new("killed-run");
    let mut run = run_until_signal(folder.path());
    // The program holds the other end of the pipe.
    let mut output = run.0.stdout.take().unwrap();
    run.signal(Signal::SIGKILL);
    let (report, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || report.send(output.read_to_end(&mut Vec::new())));
    ended.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
}

#[test]
fn the_program_starts_with_no_signal_blocked() {
    let (_, text) = run("signals", &["grep", "SigBlk", "/proc/self/status"]);
    assert_eq!(text.split_whitespace().last(), Some("0000000000000000"), "{text}");
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    assert_eq!(run("status", &["sh", "-c", "exit 7"]).0, Some(7));
}

#[test]
fn a_missing_broker_is_reported_before_the_program_starts() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softefa"));
    command.args(["run", "--", "printf", "ran"]).env("SOFTEFA_PRELOAD", env!("CARGO_BIN_EXE_softefa"));
    let output = output(command.env("SOFTEFA_SOCKET", "/no/broker"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("no broker listens at /no/broker"), "{stderr}");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{stderr}");
}

#[test]
fn the_exit_status_after_a_signal_is_128_plus_its_number() {
    assert_eq!(run("killed", &["sh", "-c", "kill -TERM $$"]).0, Some(128 + 15));
}

#[test]
fn each_command_prints_help_and_the_programs_help_option_reaches_the_program() {
    for arguments in [&["--help"][..], &["run", "--help"], &["serve", "--adapters", "2", "-h"]] {
        let output = output(Command::new(env!("CARGO_BIN_EXE_softefa")).args(arguments));
        assert!(output.status.success(), "{arguments:?}");
        assert!(output.stdout.starts_with(b"softefa run "), "{arguments:?}");
    }
    assert_eq!(run("help", &["printf", "%s\\n", "--help"]).1, "--help\n");
}

#[test]
fn commands_and_options_are_those_of_the_list() {
    let output = output(Command::new(env!("CARGO_BIN_EXE_softefa")).arg("--help"));
    let text = String::from_utf8(output.stdout).unwrap();
    let named: Vec<&str> = text.lines().filter(|line| line.starts_with("softefa ")).collect();
    let expected = [
        "softefa run [--adapters N] [--quiet] -- PROGRAM [ARGUMENT…]",
        "softefa serve --socket PATH [--adapters N] [--quiet]",
        "softefa doctor",
        "softefa compare CAPTURE REQUESTS",
    ];
    assert_eq!(named, expected);
}

/// Outputs that take nothing: a full device, a pipe without a reader, and a full pipe.
fn useless() -> [(Stdio, Option<PipeReader>); 3] {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let closed = std::io::pipe().unwrap().1;
    [(full.into(), None), (closed.into(), None), (writer.into(), Some(reader))]
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = output(Command::new(env!("CARGO_BIN_EXE_softefa")).arg("--version"));
    let text = String::from_utf8(output.stdout).unwrap();
    let (version, facts) = text.split_once('\n').unwrap();
    assert_eq!((output.status.code(), version), (Some(0), concat!("softefa ", env!("CARGO_PKG_VERSION"))));
    assert!(facts.contains("commit:") && facts.contains("profile:"), "{facts}");
}

/// The output of `softefa doctor` with `library` to preload, and its exit status.
fn doctor(name: &str, library: &Path) -> (Option<i32>, String) {
    let folder = TempDir::new(name);
    let mut command = softefa(folder.path(), &["doctor"]);
    // An inherited broker is none of the doctor's business.
    command.env("SOFTEFA_PRELOAD", library).env("SOFTEFA_SOCKET", "/nonexistent/socket");
    let output = output(&mut command);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn doctor_opens_an_adapter_in_a_program() {
    let (status, text) = doctor("doctor", &library());
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("ok    a program") && text.ends_with("softefa run works here\n"), "{text}");
}

#[test]
fn doctor_reports_an_rdma_core_that_exposes_no_queues() {
    let folder = TempDir::new("old-rdma-core");
    for (name, symbol) in [("libibverbs.so.1", "ibv_get_device_list"), ("libefa.so.1", "efadv_query_ah")] {
        let source = folder.path().join("library.c");
        std::fs::write(&source, format!("int {symbol}(void) {{ return 0; }}\n")).unwrap();
        let mut compiler = compile::c();
        compiler.args(["-shared", "-fPIC", "-nostdlib", "-o"]).arg(folder.path().join(name)).arg(source);
        if !compile::compile(&mut compiler) {
            return;
        }
    }
    let mut command = softefa(folder.path(), &["doctor"]);
    command.env("SOFTEFA_PRELOAD", library()).env("SOFTEFA_SOCKET", "/nonexistent/socket");
    let text = output(command.env("LD_LIBRARY_PATH", folder.path())).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("note  rdma-core") && text.contains("older than rdma-core 59"), "{text}");
}

#[test]
fn doctor_reports_a_library_that_the_loader_does_not_preload() {
    let folder = TempDir::new("no-library");
    let empty = folder.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    let (status, text) = doctor("doctor-empty", &empty);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("ok    memory files") && text.contains("FAIL  a program"), "{text}");
}

#[test]
fn a_library_whose_path_has_spaces_is_preloaded_through_a_link() {
    let folder = TempDir::new("spaces");
    let library = folder.path().join("a b/library");
    std::fs::create_dir(library.parent().unwrap()).unwrap();
    std::fs::write(&library, b"").unwrap();
    let show = r#"test -e "$LD_PRELOAD" && printf %s "$LD_PRELOAD""#;
    let mut command = softefa(folder.path(), &["run", "--quiet", "--", "sh", "-c", show]);
    let output = output(command.env("SOFTEFA_PRELOAD", &library));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with('/') && !text.contains(' '), "{text:?}");
}

#[test]
fn a_stderr_that_takes_nothing_does_not_change_the_exit_status() {
    let folder = TempDir::new("full");
    for (stderr, _reader) in useless() {
        let mut command = softefa(folder.path(), &["run", "--", "sh", "-c", "exit 7"]);
        // The loader's warning of an empty library would end the program.
        command.env("SOFTEFA_PRELOAD", library());
        assert_eq!(command.stderr(stderr).status().unwrap().code(), Some(7));
    }
}

#[test]
fn a_run_that_is_ended_by_a_signal_reports_what_it_counted() {
    let folder = TempDir::new("report");
    for number in [Signal::SIGTERM, Signal::SIGINT] {
        let mut run = run_until_signal(folder.path());
        run.signal(number);
        let mut text = String::new();
        run.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains("softefa: rdmap0s6: 0 doorbells, 0 entries"), "{text}");
        assert_eq!(run.0.wait().unwrap().code(), Some(128 + number as i32));
    }
}

#[test]
fn the_folder_of_a_killed_run_is_removed_by_the_next_and_that_of_another_run_is_not() {
    let folder = TempDir::new("sweep");
    let folders = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
    };
    let mut killed = run_until_signal(folder.path());
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    assert_eq!(folders(), 1);
    let _running = run_until_signal(folder.path());
    assert_eq!(folders(), 1);
    assert!(output(&mut softefa(folder.path(), &["run", "--quiet", "--", "true"])).status.success());
    assert_eq!(folders(), 1);
}

/// A socket at `path` that does not listen: dropped, it is what a killed broker leaves. (A child that another test forks
/// may have it a while longer. Nobody reaches a program there.)
fn bound(path: &Path) -> OwnedFd {
    let socket =
        socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    socket
}

#[test]
fn a_socket_that_a_killed_broker_left_is_replaced_and_one_in_use_is_not() {
    let folder = TempDir::new("stale");
    let socket = folder.path().join("socket");
    drop(bound(&socket));
    let broker = serve(&socket, 1);
    let second = output(&mut softefa(folder.path(), &["serve", "--socket", socket.to_str().unwrap()]));
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(stderr.contains("it cannot be created"), "{stderr}");
    drop(broker);
    // A file that is no socket is left alone.
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, b"text").unwrap();
    let third = output(&mut softefa(folder.path(), &["serve", "--socket", socket.to_str().unwrap()]));
    assert_eq!((third.status.code(), std::fs::read(&socket).unwrap()), (Some(1), b"text".to_vec()));
}

#[test]
fn a_broker_that_stops_leaves_the_socket_of_a_newer_one() {
    let folder = TempDir::new("newer");
    let socket = folder.path().join("socket");
    let old = serve(&socket, 1);
    std::fs::remove_file(&socket).unwrap();
    let new = serve(&socket, 1);
    assert_eq!(old.end().0, Some(0));
    assert!(socket.exists());
    assert_eq!(new.end().0, Some(0));
    assert!(!socket.exists());
}

#[test]
fn an_empty_socket_counts_as_none() {
    let folder = TempDir::new("empty");
    let mut command = softefa(folder.path(), &["serve", "--socket", ""]);
    assert_eq!(output(&mut command).status.code(), Some(2));
    let mut command = softefa(folder.path(), &["run", "--quiet", "--", "printenv", "SOFTEFA_SOCKET"]);
    let output = output(command.env("SOFTEFA_SOCKET", ""));
    let path = String::from_utf8(output.stdout).unwrap();
    assert!(path.starts_with(folder.path().to_str().unwrap()), "{path}");
}

#[test]
fn the_library_uses_no_broker_of_another_user() {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can listen as another user");
    }
    let folder = TempDir::new("listener");
    let socket = folder.path().join("socket");
    let _broker = serve(&socket, 1);
    assert_eq!(open_by_the_library(&socket), (true, String::new()));
    let socket = folder.path().join("stranger");
    let stranger = bound(&socket);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the system call has integer arguments. Unlike the C library's function, it changes the user of
            // this thread only, which ends below.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) }, 0);
            socket::listen(&stranger, Backlog::new(1).unwrap()).unwrap();
        });
    });
    let (opened, stderr) = open_by_the_library(&socket);
    assert!(!opened && stderr.contains("Operation not permitted"), "{stderr}");
}
