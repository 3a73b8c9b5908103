//! The signals that end a run: forwarded to the program, so that the report is printed after it.

use std::mem::replace;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

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

    /// Unblocks the signals in the program, which would otherwise inherit the mask of this thread.
    pub(crate) fn unblock_in(&self, command: &mut Command) {
        let set = self.set;
        // SAFETY: between fork and exec the closure makes one call that is safe there (pthread_sigmask), on
        // memory that it owns.
        unsafe { command.pre_exec(move || Ok(set.thread_unblock()?)) };
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
