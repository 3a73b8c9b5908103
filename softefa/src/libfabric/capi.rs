//! The adapter's own C interface, exported by the provider's file for tests and tools that load it
//! beside libfabric: what the strict checker found, statistics, and hooks. Declared for C in
//! `softefa/include/softefa.h`. Not for applications: the real provider has none of it.
//!
//! Everything is about all adapters of the process together, in the order in which they were made.

use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};

use efa_gda_sys::fi;

use crate::device::{MAX_FIRST_COUNTER, Queue, Statistics, Violation};

use super::adapters;
use super::cq::CompletionQueue;
use super::ffi;

/// The version of this interface; it grows with every change.
const VERSION: u32 = 2;

/// One violation, without its words (`struct softefa_violation`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftefaViolation {
    /// Index of the adapter.
    pub adapter: u32,
    /// 0 send queue, 1 receive queue, 2 completion queue.
    pub queue_kind: u32,
    /// The queue pair's number, or the completion queue's.
    pub queue: u32,
    /// The slot, or `UINT32_MAX` where the rule is not about one.
    pub slot: u32,
    /// The count of the entry or doorbell, from 0, never reset.
    pub counter: u64,
    /// The rule's short name, ended by a zero byte.
    pub rule: [u8; 32],
}

/// What the adapters did since the last reset (`struct softefa_statistics`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftefaStatistics {
    /// Doorbell movements seen on send queues.
    pub doorbells: u64,
    /// Send-queue entries fetched.
    pub entries: u64,
    /// Bytes moved by requests.
    pub bytes: u64,
    /// Completions written.
    pub completions: u64,
    /// Of those, with a status other than ok.
    pub errors: u64,
    /// Messages and writes with immediate delivered.
    pub receives: u64,
    /// Tries that found no receive posted.
    pub rnr_retries: u64,
    /// Rules found broken, also those that were not kept because there were too many.
    pub violations: u64,
    /// Completions that found their queue full.
    pub overruns: u64,
}

/// Where the last reset stood, by adapter.
#[derive(Clone, Copy, Default)]
struct Baseline {
    violations: usize,
    warnings: usize,
    statistics: SoftefaStatistics,
}

static BASELINES: Mutex<Vec<Baseline>> = Mutex::new(Vec::new());

fn baseline(index: usize) -> Baseline {
    let baselines = BASELINES.lock().unwrap_or_else(PoisonError::into_inner);
    baselines.get(index).copied().unwrap_or_default()
}

fn violations() -> Vec<(usize, Violation)> {
    let adapters = adapters::created().into_iter().enumerate();
    let new = adapters.map(|(index, adapter)| {
        let since = adapter.violations().into_iter().skip(baseline(index).violations);
        since.map(|violation| (index, violation)).collect::<Vec<_>>()
    });
    new.flatten().collect()
}

fn warnings() -> Vec<String> {
    let adapters = adapters::created().into_iter().enumerate();
    let new = adapters.map(|(index, adapter)| {
        let since = adapter.warnings().into_iter().skip(baseline(index).warnings);
        since.map(|warning| warning.to_string()).collect::<Vec<_>>()
    });
    new.flatten().collect()
}

impl SoftefaStatistics {
    fn zip(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            doorbells: with(self.doorbells, other.doorbells),
            entries: with(self.entries, other.entries),
            bytes: with(self.bytes, other.bytes),
            completions: with(self.completions, other.completions),
            errors: with(self.errors, other.errors),
            receives: with(self.receives, other.receives),
            rnr_retries: with(self.rnr_retries, other.rnr_retries),
            violations: with(self.violations, other.violations),
            overruns: with(self.overruns, other.overruns),
        }
    }
}

impl From<Statistics> for SoftefaStatistics {
    fn from(from: Statistics) -> Self {
        Self {
            doorbells: from.doorbells,
            entries: from.entries,
            bytes: from.bytes,
            completions: from.completions,
            errors: from.errors,
            receives: from.receives,
            rnr_retries: from.rnr_retries,
            violations: from.violations,
            overruns: from.overruns,
        }
    }
}

impl SoftefaViolation {
    fn new(adapter: usize, violation: &Violation) -> Self {
        let (queue_kind, queue) = match violation.queue {
            Queue::Send(number) => (0, u32::from(number.get())),
            Queue::Receive(number) => (1, u32::from(number.get())),
            Queue::Completion(number) => (2, u32::from(number.get())),
        };
        let mut rule = [0; 32];
        let name = violation.rule.name().as_bytes();
        // One byte stays zero.
        let length = name.len().min(rule.len() - 1);
        rule[..length].copy_from_slice(&name[..length]);
        Self {
            adapter: adapter as u32,
            queue_kind,
            queue,
            slot: violation.slot.unwrap_or(u32::MAX),
            counter: violation.counter,
            rule,
        }
    }
}

/// The version of this interface.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_version() -> u32 {
    VERSION
}

/// Adapters made so far: those of which a domain was opened.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_adapter_count() -> usize {
    ffi::count_entry(|| Ok(adapters::created().len())).max(0) as usize
}

/// Violations kept since the last reset; an adapter keeps its first 1,024.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_violation_count() -> usize {
    ffi::count_entry(|| Ok(violations().len())).max(0) as usize
}

/// Writes violation `index`, oldest first by adapter, to `violation`. 0, or -EINVAL where there is
/// none.
///
/// # Safety
/// `violation` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_violation(index: usize, violation: *mut SoftefaViolation) -> c_int {
    ffi::entry(|| {
        let found = violations();
        let (adapter, found) = found.get(index).ok_or(ffi::Code::INVALID)?;
        // SAFETY: the caller's contract.
        unsafe { ffi::store(violation, SoftefaViolation::new(*adapter, found)) }
    })
}

/// Writes the words for violation `index` to `text`, cut to `size` bytes with the ending zero, and
/// returns their length without it, as `snprintf` does; 0 where there is no such violation.
///
/// # Safety
/// `text` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_violation_text(index: usize, text: *mut c_char, size: usize) -> usize {
    let message = || violations().get(index).map(|(_, violation)| violation.to_string());
    // SAFETY: the caller's contract.
    unsafe { copy_text(message, text, size) }
}

/// Warnings since the last reset.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_warning_count() -> usize {
    ffi::count_entry(|| Ok(warnings().len())).max(0) as usize
}

/// As [`softefa_violation_text`], for warnings.
///
/// # Safety
/// `text` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_warning_text(index: usize, text: *mut c_char, size: usize) -> usize {
    // SAFETY: the caller's contract.
    unsafe { copy_text(|| warnings().get(index).cloned(), text, size) }
}

/// # Safety
/// `text` is null or has `size` bytes.
unsafe fn copy_text(message: impl FnOnce() -> Option<String>, text: *mut c_char, size: usize) -> usize {
    let length = ffi::count_entry(|| {
        let message = message().unwrap_or_default();
        if !text.is_null() && size != 0 {
            let length = message.len().min(size - 1);
            // SAFETY: `length` and the zero byte fit into `size`.
            unsafe {
                text.cast::<u8>().copy_from_nonoverlapping(message.as_ptr(), length);
                text.add(length).write(0);
            }
        }
        Ok(message.len())
    });
    length.max(0) as usize
}

/// Writes what all adapters did since the last reset to `statistics`. 0, or -EINVAL for null.
///
/// # Safety
/// `statistics` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_statistics(statistics: *mut SoftefaStatistics) -> c_int {
    ffi::entry(|| {
        let adapters = adapters::created().into_iter().enumerate();
        let total = adapters.fold(SoftefaStatistics::default(), |total, (index, adapter)| {
            let done = SoftefaStatistics::from(adapter.statistics());
            total.zip(done.zip(baseline(index).statistics, u64::saturating_sub), u64::wrapping_add)
        });
        // SAFETY: the caller's contract.
        unsafe { ffi::store(statistics, total) }
    })
}

/// Forgets the violations, warnings and statistics so far. An adapter that has kept 1,024
/// violations keeps no more.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_reset() {
    ffi::entry(|| {
        let baselines = adapters::created().into_iter().map(|adapter| Baseline {
            violations: adapter.violations().len(),
            warnings: adapter.warnings().len(),
            statistics: adapter.statistics().into(),
        });
        let baselines = baselines.collect();
        *BASELINES.lock().unwrap_or_else(PoisonError::into_inner) = baselines;
        Ok(())
    });
}

/// Queue pairs enabled from now on count as if `counter` requests had been posted and completed
/// before, so that a test reaches the wraps of counters and doorbells. 0 is what hardware does. 0, or
/// -EINVAL, with nothing changed, past 2^63.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_preset_counter(counter: u64) -> c_int {
    ffi::entry(|| {
        if counter > MAX_FIRST_COUNTER {
            return Err(ffi::Code::INVALID);
        }
        adapters::set_first_counter(counter);
        Ok(())
    })
}

/// While held (not 0), requests are fetched and checked, and wait.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_hold(held: c_int) {
    ffi::entry(|| {
        adapters::created().iter().for_each(|adapter| adapter.hold(held != 0));
        Ok(())
    });
}

/// Ends the engines of all adapters made so far: they answer nothing any more, and are destroyed as
/// usual.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_stop() {
    ffi::entry(|| {
        adapters::created().iter().for_each(|adapter| adapter.stop());
        Ok(())
    });
}

/// Tells how many completions a client that polls memory itself has consumed, so that overruns of
/// that queue are found. 0, or a negative error.
///
/// # Safety
/// `cq` is null or an open completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_set_consumer_index(cq: *mut fi::fid_cq, consumed: u64) -> c_int {
    // SAFETY: the caller's contract.
    ffi::entry(|| unsafe { ffi::object::<CompletionQueue>(cq.cast()) }?.set_consumer_index(consumed))
}
