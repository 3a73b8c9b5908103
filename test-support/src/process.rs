//! Commands with a time limit.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// None if the time limit ended the command.
    pub status: Option<ExitStatus>,
    /// The command's standard output.
    pub stdout: String,
    /// The command's standard error.
    pub stderr: String,
}

/// Runs `command` without input for at most `limit`; then its whole process group is killed. The command is killed as
/// well when the thread that started it ends.
///
/// Output goes to memory files, so that a process which outlives the command cannot delay the test.
pub fn run(command: &mut Command, limit: Duration) -> Outcome {
    let (status, stdout, stderr) = run_raw(command, limit);
    let text = |file| String::from_utf8_lossy(&content(file)).into_owned();
    Outcome { status, stdout: text(stdout), stderr: text(stderr) }
}

/// [`run`] for fifteen minutes, as [`Command::output`] returns it.
///
/// # Panics
/// If the limit ended the command.
pub fn output(command: &mut Command) -> Output {
    let limit = Duration::from_secs(900);
    let (status, stdout, stderr) = run_raw(command, limit);
    let (stdout, stderr) = (content(stdout), content(stderr));
    let Some(status) = status else {
        let text = String::from_utf8_lossy(&stderr);
        panic!("{command:?} did not end within {limit:?} and was killed: {text}");
    };
    Output { status, stdout, stderr }
}

fn run_raw(command: &mut Command, limit: Duration) -> (Option<ExitStatus>, File, File) {
    let [stdout, stderr] = [memory_file(), memory_file()];
    command.stdin(Stdio::null());
    command.stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    command.process_group(0);
    // SAFETY: the closure calls one system call and no allocator, as a closure between fork and exec must.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let deadline = Instant::now() + limit;
    let status = loop {
        match process.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            None => {
                let group = i32::try_from(process.id()).unwrap();
                // SAFETY: signals the group of a child that was not waited for, so that its number is not reused.
                unsafe { libc::kill(-group, libc::SIGKILL) };
                process.wait().unwrap();
                break None;
            }
        }
    };
    (status, stdout, stderr)
}

fn content(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Copies the file `from` to `to`, for a test to execute. Another process writes the copy: while this one did, another
/// test could fork, and the kernel executes no file that a process has open for writing, as that child would.
///
/// # Panics
/// If the file cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = output(Command::new("cp").arg("--").args([from, to]));
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
}

/// A file in memory, empty.
fn memory_file() -> File {
    // SAFETY: a new descriptor, which nothing else owns.
    unsafe {
        let descriptor = libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC);
        assert!(descriptor >= 0, "{}", std::io::Error::last_os_error());
        File::from_raw_fd(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_past_its_limit_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        // On a busy machine the shell may not have started within the shorter limits.
        let limits = [1, 2, 4, 8, 16, 32, 64].map(Duration::from_secs);
        let ended = limits.into_iter().map(|limit| run(&mut command, limit));
        let ended =
            ended.inspect(|ended| assert!(ended.status.is_none())).find(|ended| ended.stdout.ends_with('\n'));
        let grandchild = ended.expect("the shell does not start").stdout;
        // A process that ended and was not waited for is a zombie.
        let runs = || {
            let status = std::fs::read_to_string(format!("/proc/{}/stat", grandchild.trim()));
            status.is_ok_and(|status| !status.contains(") Z "))
        };
        crate::until(Duration::from_secs(60), "the end of the grandchild", || (!runs()).then_some(()));
    }
}
