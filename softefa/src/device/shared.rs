//! State of one adapter that threads access without the network's lock: reports, counts, and the flags by which
//! [`super::Adapter::stop`] and [`super::Adapter::hold`] keep the engine from working for the adapter.
//!
//! # Protocol
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | `stop`, `held` | a control thread: release | the engine, each time after it acquired the network's lock: acquire | no other word depends on it |
//! | `notifying` | control threads: relaxed | the engine: relaxed | the network's lock orders it with the queues |
//! | `counts` | the engine, control threads: relaxed | any thread: relaxed | none; a reader may see some counts of a request before others |
//! | `counts.traffic` | the engine alone: relaxed | any thread: relaxed | as `counts` |
//! | `violations`, `warnings`, `captured` | the engine, control threads | control threads | their mutexes, under which no other lock of the device core is acquired |

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use efa_gda_wire::{CompletionStatus, QueuePairNumber};

use super::config::AdapterConfig;
use super::statistics::{Captured, Statistics};
use super::stderr::say;
use super::traffic::TrafficCounts;
use super::violation::{Violation, Warning};

/// Most violations, and most warnings, that are stored. Later violations are only counted.
const MAX_REPORTS: usize = 1024;

/// Locks `mutex`, also after a thread panicked while it held the lock: what these mutexes protect is
/// consistent at every call that can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: AdapterConfig,
    pub(crate) counts: Counts,
    /// Completion queues that send events.
    pub(crate) notifying: AtomicUsize,
    pub(crate) held: AtomicBool,
    pub(crate) stop: AtomicBool,
    violations: Mutex<Vec<Violation>>,
    warnings: Mutex<Vec<Warning>>,
    captured: Mutex<Vec<Captured>>,
}

/// Stores warnings with those of an adapter, for a frontend's [`Memory`](super::Memory). Such code must not hold the
/// adapter: the engine would drop the last reference to it, and the drop waits for the engine.
#[derive(Clone, Debug)]
pub struct WarningLog(pub(super) Arc<Shared>);

impl WarningLog {
    /// Stores a warning unless 1,024 are stored.
    pub fn warn(&self, warning: Warning) {
        self.0.warn(warning);
    }
}

/// The counts of [`Statistics`], which several threads add to, except `traffic`.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) doorbells: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) completions: AtomicU64,
    /// Errors by the code of their status.
    errors: [AtomicU64; ERROR_CODES],
    pub(crate) flushed: AtomicU64,
    pub(crate) receives: AtomicU64,
    pub(crate) rnr_retries: AtomicU64,
    pub(crate) violations: AtomicU64,
    pub(crate) overruns: AtomicU64,
    pub(crate) traffic: TrafficCounts,
}

/// Codes of completion statuses (`enum efa_io_comp_status`, `efa_io_defs.h`), and some more.
const ERROR_CODES: usize = 32;

/// Adds to a count. Relaxed: no other word depends on it.
pub(crate) fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

impl Shared {
    pub(crate) fn new(config: AdapterConfig) -> Self {
        Self {
            config,
            counts: Counts::default(),
            notifying: AtomicUsize::new(0),
            held: AtomicBool::new(false),
            stop: AtomicBool::new(false),
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

    /// Counts a completion with the status of an error.
    pub(crate) fn count_error(&self, status: CompletionStatus) {
        let code = usize::from(status.code()).min(ERROR_CODES - 1);
        add(&self.counts.errors[code], 1);
    }

    /// The number of errors of each status that occurred.
    pub(crate) fn errors(&self) -> Vec<(CompletionStatus, u64)> {
        let counts = self.counts.errors.iter().map(|count| count.load(Ordering::Relaxed));
        (0..).map(CompletionStatus::from_code).zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Statistics {
            doorbells: value(&self.counts.doorbells),
            entries: value(&self.counts.entries),
            bytes: value(&self.counts.bytes),
            completions: value(&self.counts.completions),
            errors: self.counts.errors.iter().map(value).sum(),
            flushed: value(&self.counts.flushed),
            receives: value(&self.counts.receives),
            rnr_retries: value(&self.counts.rnr_retries),
            violations: value(&self.counts.violations),
            overruns: value(&self.counts.overruns),
            traffic: self.counts.traffic.traffic(),
        }
    }
}
