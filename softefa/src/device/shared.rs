//! State of one adapter that its control path and the engines access without the network's lock: reports,
//! counts, and the flags that stop or hold the engine.
//!
//! # Protocol
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | `stop` | a control thread (`Adapter::stop`, drop): release | the engine, under `working` and before it acquires the network's lock, and the watch thread: acquire | no other word depends on it; it is never cleared |
//! | `held` | a control thread (`Adapter::hold`): release | the engine, once a round: acquire | no other word depends on it; a round that has begun may still execute requests |
//! | `backlogged` | a thread that holds a completion queue's lock: relaxed | the engine, once a round: relaxed | a hint to retry; the completion queue's lock orders the backlog |
//! | `counts` | engines, control threads: relaxed | any thread: relaxed | none; a reader may see some counts of a request before others |
//! | `requests` | engines: relaxed | the same | none |
//! | `turns` | engines and the watch thread | the same | `turns.rs` |
//! | `threads` | the thread that starts an engine or the watch thread, drop | any thread that wakes the engine, drop | its mutex |
//! | `violations`, `warnings`, `captured` | engines of any adapter, control threads | control threads | their mutexes, under which no other lock of the device core is acquired |
//!
//! `working` is a lock without data: an engine holds it for reading while it works, and `Adapter::stop` acquires it for
//! writing to wait for that.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use efa_gda_wire::QueuePairNumber;

use super::config::AdapterConfig;
use super::statistics::{Captured, Statistics};
use super::stderr::say;
use super::turns::Turns;
use super::violation::{Violation, Warning};

/// Most violations, and most warnings, that are stored. Later violations are only counted.
const MAX_REPORTS: usize = 1024;
/// The interval at which [`wait_until`] tries.
const WAIT_INTERVAL: Duration = Duration::from_micros(50);

/// Locks `mutex`, also after a thread panicked while it held the lock: what these mutexes protect is
/// consistent at every call that can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], unless another thread holds the lock.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits, without a bound of its own, until `is_over` returns true. Control calls use it to wait for engines' accesses
/// (`engine.rs`, "Waits and their bounds").
pub(crate) fn wait_until(mut is_over: impl FnMut() -> bool) {
    while !is_over() {
        thread::sleep(WAIT_INTERVAL);
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: AdapterConfig,
    pub(crate) counts: Counts,
    /// Completion queues with a backlog.
    pub(crate) backlogged: AtomicUsize,
    pub(crate) held: AtomicBool,
    pub(crate) stop: AtomicBool,
    pub(crate) turns: Turns,
    /// Requests that `Engine::count_request` has counted, which numbers them for [`super::Injection::nth`].
    pub(crate) requests: AtomicU64,
    /// The engine's threads, also replaced ones, and the watch thread.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// An engine holds it for reading while it works, with or without the network's lock.
    pub(crate) working: RwLock<()>,
    violations: Mutex<Vec<Violation>>,
    warnings: Mutex<Vec<Warning>>,
    captured: Mutex<Vec<Captured>>,
}

/// The counts of [`Statistics`], which several threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) doorbells: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) completions: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) flushed: AtomicU64,
    pub(crate) receives: AtomicU64,
    pub(crate) rnr_retries: AtomicU64,
    pub(crate) violations: AtomicU64,
    pub(crate) overruns: AtomicU64,
}

/// Adds to a count. Relaxed: no other word depends on it.
pub(crate) fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

impl Shared {
    pub(crate) fn new(config: AdapterConfig) -> Self {
        Self {
            config,
            counts: Counts::default(),
            backlogged: AtomicUsize::new(0),
            held: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            turns: Turns::default(),
            requests: AtomicU64::new(0),
            threads: Mutex::default(),
            working: RwLock::new(()),
            violations: Mutex::default(),
            warnings: Mutex::default(),
            captured: Mutex::default(),
        }
    }

    /// Counts a violation, and stores it unless [`MAX_REPORTS`] are stored. Before it stores a violation, it logs it if
    /// the configuration asks for that, so that a thread that finds the violation finds its line too.
    pub(crate) fn report(&self, violation: Violation) {
        let mut stored = lock(&self.violations);
        if stored.len() < MAX_REPORTS {
            if self.config.log_violations {
                say(format_args!("VIOLATION: {violation}"));
            }
            stored.push(violation);
        }
        drop(stored);
        add(&self.counts.violations, 1);
    }

    /// Stores a warning unless [`MAX_REPORTS`] are stored.
    pub(crate) fn warn(&self, warning: Warning) {
        let mut stored = lock(&self.warnings);
        if stored.len() < MAX_REPORTS {
            stored.push(warning);
        }
    }

    pub(crate) fn violations(&self) -> Vec<Violation> {
        lock(&self.violations).clone()
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        lock(&self.warnings).clone()
    }

    /// Stores a fetched entry unless [`AdapterConfig::capture`] entries are stored.
    #[inline]
    pub(crate) fn capture(&self, queue_pair: QueuePairNumber, counter: u64, bytes: &[u8]) {
        if self.config.capture > 0 {
            let mut stored = lock(&self.captured);
            if stored.len() < self.config.capture {
                stored.push(Captured { queue_pair, counter, bytes: bytes.to_vec() });
            }
        }
    }

    pub(crate) fn captured(&self) -> Vec<Captured> {
        lock(&self.captured).clone()
    }

    /// Wakes the engine, and the watch thread, if they sleep.
    pub(crate) fn wake(&self) {
        lock(&self.threads).iter().for_each(|thread| thread.thread().unpark());
    }

    /// Starts a thread, and forgets those that have ended.
    pub(crate) fn start_thread(
        &self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let thread = thread::Builder::new().name(name).spawn(work)?;
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Whether every thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.threads).iter().all(JoinHandle::is_finished)
    }

    /// Waits until every thread has ended.
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // The panic hook has printed a panic of the thread.
            let _ = thread.join();
        }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Statistics {
            doorbells: value(&self.counts.doorbells),
            entries: value(&self.counts.entries),
            bytes: value(&self.counts.bytes),
            completions: value(&self.counts.completions),
            errors: value(&self.counts.errors),
            flushed: value(&self.counts.flushed),
            receives: value(&self.counts.receives),
            rnr_retries: value(&self.counts.rnr_retries),
            violations: value(&self.counts.violations),
            overruns: value(&self.counts.overruns),
        }
    }
}
