//! What an adapter's control path and its engine share beside the tables: findings, counts, and the
//! flags that stop or hold the engine.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use efa_gda_wire::QueuePairNumber;

use super::config::AdapterConfig;
use super::statistics::{Captured, Statistics};
use super::violation::{Violation, Warning};

/// Violations kept; later ones are only counted.
const KEPT_VIOLATIONS: usize = 1024;

/// Locks `mutex`; a thread that panicked while it held it left counters and queues that are whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: AdapterConfig,
    pub(crate) counts: Counts,
    /// Completion queues that keep completions back for want of room.
    pub(crate) backlogged: AtomicUsize,
    pub(crate) held: AtomicBool,
    pub(crate) stop: AtomicBool,
    pub(crate) engine: OnceLock<Thread>,
    violations: Mutex<Vec<Violation>>,
    warnings: Mutex<Vec<Warning>>,
    captured: Mutex<Vec<Captured>>,
}

/// [`Statistics`], counted by several threads.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) doorbells: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) completions: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) receives: AtomicU64,
    pub(crate) rnr_retries: AtomicU64,
    pub(crate) violations: AtomicU64,
    pub(crate) overruns: AtomicU64,
}

/// Adds to a count that nothing is ordered by.
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
            engine: OnceLock::new(),
            violations: Mutex::default(),
            warnings: Mutex::default(),
            captured: Mutex::default(),
        }
    }

    pub(crate) fn report(&self, violation: Violation) {
        let mut kept = lock(&self.violations);
        if kept.len() < KEPT_VIOLATIONS {
            if self.config.log_violations {
                // The engine goes on where nobody listens.
                let _ = writeln!(std::io::stderr(), "softefa: VIOLATION: {violation}");
            }
            kept.push(violation);
        }
        drop(kept);
        add(&self.counts.violations, 1);
    }

    pub(crate) fn warn(&self, warning: Warning) {
        let mut kept = lock(&self.warnings);
        if kept.len() < KEPT_VIOLATIONS {
            kept.push(warning);
        }
    }

    pub(crate) fn violations(&self) -> Vec<Violation> {
        lock(&self.violations).clone()
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        lock(&self.warnings).clone()
    }

    #[inline]
    pub(crate) fn capture(&self, queue_pair: QueuePairNumber, counter: u64, bytes: &[u8]) {
        if self.config.capture > 0 {
            let mut kept = lock(&self.captured);
            if kept.len() < self.config.capture {
                kept.push(Captured { queue_pair, counter, bytes: bytes.to_vec() });
            }
        }
    }

    pub(crate) fn captured(&self) -> Vec<Captured> {
        lock(&self.captured).clone()
    }

    /// Ends the engine's sleep, if it sleeps.
    pub(crate) fn wake(&self) {
        if let Some(engine) = self.engine.get() {
            engine.unpark();
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
            receives: value(&self.counts.receives),
            rnr_retries: value(&self.counts.rnr_retries),
            violations: value(&self.counts.violations),
            overruns: value(&self.counts.overruns),
        }
    }
}
