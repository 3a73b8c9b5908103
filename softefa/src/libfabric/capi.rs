//! softefa's C interface, which the provider's file exports for tests and tools that load it beside
//! libfabric: the checker's violations, statistics and test hooks. `softefa/include/softefa.h` declares it.
//! It is not for applications: the real provider does not have it.
//!
//! Unless its documentation says otherwise, a function covers all adapters that the process has created. An adapter's
//! index is its place in the order of creation.

use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};

use efa_gda_sys::fi;

use crate::device::{MAX_FIRST_COUNTER, Queue, Statistics, Violation};

use super::adapters;
use super::cq::CompletionQueue;
use super::ffi;

/// The version of this interface. It grows with each change of a function or struct.
const VERSION: u32 = 2;

/// One violation, without its text (`struct softefa_violation`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftefaViolation {
    /// Index of the adapter, from 0.
    pub adapter: u32,
    /// 0 send queue, 1 receive queue, 2 completion queue.
    pub queue_kind: u32,
    /// The queue pair's number, or the completion queue's.
    pub queue: u32,
    /// The slot, or `UINT32_MAX` if the rule is not about a slot.
    pub slot: u32,
    /// Of a send or receive queue: the index of the entry, or, if the rule is about a doorbell, the doorbell producer
    /// index before it. Of a completion queue: the index of the completion that found the queue full, or the consumer
    /// index. It does not wrap.
    pub counter: u64,
    /// The rule's short name, terminated by a zero byte.
    pub rule: [u8; 32],
}

/// Counts of all adapters since the last reset (`struct softefa_statistics`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftefaStatistics {
    /// Doorbell changes that the engine observed on send queues.
    pub doorbells: u64,
    /// Send-queue entries fetched.
    pub entries: u64,
    /// Bytes moved by requests.
    pub bytes: u64,
    /// Completions of requests and receives, also for full queues.
    pub completions: u64,
    /// Requests and receives that failed or were flushed.
    pub errors: u64,
    /// Messages and writes with immediate received, also failed ones.
    pub receives: u64,
    /// Attempts that found no posted receive.
    pub rnr_retries: u64,
    /// All violations, also those that were not stored.
    pub violations: u64,
    /// Completions that found their queue full.
    pub overruns: u64,
}

/// One adapter's counts at the last reset.
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
            errors: from.errors + from.flushed,
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
        // The last byte stays zero, as the terminator.
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

/// The number of adapters created so far. An adapter is created when its first domain is opened.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_adapter_count() -> usize {
    ffi::count_entry(|| Ok(adapters::created().len())).max(0) as usize
}

/// The number of violations that were stored since the last reset. An adapter stores its first 1,024.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_violation_count() -> usize {
    ffi::count_entry(|| Ok(violations().len())).max(0) as usize
}

/// Writes violation `index` to `violation`; violations are ordered by adapter, then by age, oldest first.
/// Returns 0, or -EINVAL if there is no such violation or `violation` is null.
///
/// # Safety
/// `violation` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_violation(index: usize, violation: *mut SoftefaViolation) -> c_int {
    ffi::entry(|| {
        let violations = violations();
        let (adapter, stored) = violations.get(index).ok_or(ffi::Code::INVALID)?;
        // SAFETY: the caller's contract.
        unsafe { ffi::store(violation, SoftefaViolation::new(*adapter, stored)) }
    })
}

/// Writes the text of violation `index` to `text`, truncated to `size` bytes including the terminating zero.
/// Returns the length of the whole text without the zero, as `snprintf` does; 0 if there is no such
/// violation.
///
/// # Safety
/// `text` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_violation_text(index: usize, text: *mut c_char, size: usize) -> usize {
    let message = || violations().get(index).map(|(_, violation)| violation.to_string());
    // SAFETY: the caller's contract.
    unsafe { copy_text(message, text, size) }
}

/// The number of warnings since the last reset.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_warning_count() -> usize {
    ffi::count_entry(|| Ok(warnings().len())).max(0) as usize
}

/// Like [`softefa_violation_text`], for warnings.
///
/// # Safety
/// `text` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_warning_text(index: usize, text: *mut c_char, size: usize) -> usize {
    // SAFETY: the caller's contract.
    unsafe { copy_text(|| warnings().get(index).cloned(), text, size) }
}

/// Copies `message` to `text` as `snprintf` does, and returns its length.
///
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

/// Writes the sum of all adapters' counts since the last reset to `statistics`. Returns 0, or -EINVAL for
/// null.
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

/// Discards the violations, warnings and statistics so far. An adapter that has stored 1,024 violations
/// stores no more, also after a reset.
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

/// Sets the producer index of both queues of queue pairs that are enabled from now on, as if `counter` entries
/// had been posted and completed. Tests reach the wraps of producer indexes and doorbells this way; hardware
/// starts at 0. Returns 0, or -EINVAL and changes nothing if `counter` is above 2^63.
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

/// Holds the adapters created so far if `held` is not 0: they fetch and check requests but do not execute them
/// until released. Releases them if `held` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_hold(held: c_int) {
    ffi::entry(|| {
        adapters::created().iter().for_each(|adapter| adapter.hold(held != 0));
        Ok(())
    });
}

/// Stops all adapters created so far, for good: posted requests do not complete. Objects can still be closed; closing an
/// endpoint flushes its requests and receives.
#[unsafe(no_mangle)]
pub extern "C" fn softefa_stop() {
    ffi::entry(|| {
        adapters::created().iter().for_each(|adapter| adapter.stop());
        Ok(())
    });
}

/// Sets the consumer index of one queue: the number of completions that a client has consumed by polling the
/// queue's memory itself. From the first call on, the checker finds overruns of that queue. Returns 0 or a
/// negative error.
///
/// # Safety
/// `cq` is null or an open completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softefa_set_consumer_index(cq: *mut fi::fid_cq, consumed: u64) -> c_int {
    // SAFETY: the caller's contract.
    ffi::entry(|| unsafe { ffi::object::<CompletionQueue>(cq.cast()) }?.set_consumer_index(consumed))
}
