//! The end of the process by a signal: removes the private directory first, and ends the process also where it is the
//! first of a container, for which the kernel ignores signals without a handler.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SigHandler, SigSet, Signal, raise, signal};

/// The directory and its only file, which may not exist yet.
static PRIVATE: Mutex<Option<(PathBuf, &'static str)>> = Mutex::new(None);
/// Whether the thread that waits for signals was started.
static WATCHES: Mutex<bool> = Mutex::new(false);

/// Starts the thread that waits for the signals that end a process, once. The calling thread and the threads and
/// processes that it starts later block these signals; worker processes unblock them.
pub(crate) fn watch() -> io::Result<()> {
    let mut watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
    if *watches {
        return Ok(());
    }
    let mut ending = SigSet::empty();
    let watched = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    // A signal that the parent set to be ignored (nohup, a shell's background job) stays ignored.
    watched.into_iter().filter(|one| !is_ignored(*one)).for_each(|one| ending.add(one));
    ending.thread_block()?;
    std::thread::Builder::new().spawn(move || wait(ending))?;
    *watches = true;
    Ok(())
}

fn wait(ending: SigSet) {
    let Ok(which) = ending.wait() else { return };
    remove();
    // SAFETY: installs the default action, so that no handler runs.
    if unsafe { signal(which, SigHandler::SigDfl) }.is_ok() {
        let _ = ending.thread_unblock();
        let _ = raise(which);
    }
    // The first process of a PID namespace reaches this line.
    // SAFETY: ends the process; no destructor runs, and none is needed.
    unsafe { libc::_exit(128 + which as libc::c_int) }
}

/// Removes the directory `path` and `file`, its only file, when a signal ends the process.
pub(crate) fn removes(path: &Path, file: &'static str) {
    *PRIVATE.lock().unwrap_or_else(PoisonError::into_inner) = Some((path.to_owned(), file));
}

fn remove() {
    let private = PRIVATE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((path, file)) = private {
        remove_directory(&path, file);
    }
}

/// Removes a directory and its only file.
pub(crate) fn remove_directory(path: &Path, file: &str) {
    let _ = fs::remove_file(path.join(file));
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(path = %path.display(), %error, "the provider directory cannot be removed");
        }
        _ => {}
    }
}

/// Lets the kernel kill the process that `command` starts when the thread that starts it ends, however that ends: a
/// process without the one that bounds its time would run on. The main thread must start it. The kernel forgets this only
/// when a program gets other rights (setuid), which none of the probe's has.
pub(crate) fn ends_with_this_process(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let bind = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have ended before the call.
        if nix::unistd::getppid() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: between fork and exec the closure makes two calls that are safe there, on integers, and allocates nothing.
    unsafe { command.pre_exec(bind) };
}

/// Unblocks all signals, for a program that replaces this one.
pub(crate) fn unblock() {
    let _ = SigSet::all().thread_unblock();
}

fn is_ignored(which: Signal) -> bool {
    // SAFETY: sigaction is a C struct for which all zeroes is a valid value. The null pointer sets no action,
    // and `in_force` is writable.
    unsafe {
        let mut in_force: libc::sigaction = std::mem::zeroed();
        libc::sigaction(which as libc::c_int, std::ptr::null(), &mut in_force) == 0
            && in_force.sa_sigaction == libc::SIG_IGN
    }
}
