//! The signals that end a run: forwarded to the program, so that the report is printed after it. SIGKILL, which no
//! process receives, ends the program too.

use std::io;
use std::mem::replace;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpid, getppid};

use crate::command::Failure;

/// SIGINT, SIGTERM and SIGHUP, received by a thread, so that the report is printed however the program ends.
pub(crate) struct Signals {
    set: SigSet,
    /// The process that receives them; 0 for none. Locked while a signal is sent, so that it is sent to no process that
    /// has the number later.
    child: Arc<Mutex<i32>>,
}

impl Signals {
    /// Blocks the signals in this thread and in threads and processes that it starts. A thread that exists already
    /// would receive them, and end the process.
    pub(crate) fn block() -> Result<Self, Failure> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        set.thread_block().map_err(|error| {
            Failure::Other(format!("SIGINT, SIGTERM and SIGHUP cannot be blocked: {error}"))
        })?;
        Ok(Self { set, child: Arc::default() })
    }

    /// Unblocks the signals in the program, which would otherwise inherit the mask of this thread, and lets the kernel
    /// kill the program when this thread ends, also by SIGKILL: without the broker its adapters are gone. The main
    /// thread must start it. The kernel forgets the latter for a program that gets other rights (setuid).
    pub(crate) fn bind(&self, command: &mut Command) {
        let (set, parent) = (self.set, getpid());
        let bind = move || {
            set.thread_unblock()?;
            set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have ended before the call.
            if getppid() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
        };
        // SAFETY: between fork and exec the closure makes calls that are safe there (pthread_sigmask, prctl, getppid) on
        // memory that it owns, and allocates nothing.
        unsafe { command.pre_exec(bind) };
    }

    /// Waits for one of the signals.
    pub(crate) fn wait(&self) -> nix::Result<Signal> {
        self.set.wait()
    }

    /// Forwards later signals to the process `child`; 0: to none. The caller must call this with 0 before it reaps the
    /// process.
    pub(crate) fn forward_to(&self, child: i32) {
        if replace(&mut *self.lock(), child) != 0 || child == 0 {
            return;
        }
        let receiver = Self { set: self.set, child: self.child.clone() };
        // If the thread cannot be started, the signals stay blocked, and the program ends by other means.
        let _ = thread::Builder::new().name("softefa-signals".into()).spawn(move || {
            while let Ok(signal) = receiver.wait() {
                let child = receiver.lock();
                if *child > 0 {
                    let _ = kill(Pid::from_raw(*child), signal);
                }
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, i32> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
