//! Completion counters: a word of successes and a word of errors that the adapter adds to.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda::fabric;
use efa_gda::memory::{Buffer, CountedOperations, CounterMemory};
use efa_gda::verbs;

use crate::domain::{Opened, Parts};
use crate::error::{Code, Fault};
use crate::handles::Table;
use crate::processor::{self, HOST};
use crate::{Handle, call, call_for, refuse_null, write_struct};

static COUNTERS: Table<OpenCounter> = Table::new("counter", 4 << 32);

/// Distance of the word of errors from that of successes, so that they lie on different cache lines of a GPU.
const STRIDE: usize = 128;

struct OpenCounter {
    counter: Counter,
    /// Counts the queues that the counter counts for.
    users: Arc<()>,
    _parts: Parts,
}

/// A counter of the layer of its domain. Clones are handles of one counter.
#[derive(Clone, Debug)]
pub(crate) enum Counter {
    Fabric(fabric::CompletionCounter),
    Verbs { counter: verbs::CompletionCounter, words: Arc<Buffer> },
}

/// A counter that counts for a queue, which holds this value.
pub(crate) struct CounterOfQueue {
    counter: Counter,
    pub(crate) counted: CountedOperations,
    _user: Arc<()>,
}

/// `struct efa_gda_counter_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CounterInfo {
    pub(crate) size: usize,
    pub(crate) success: u64,
    pub(crate) error: u64,
    pub(crate) gpu: i32,
    pub(crate) reserved: u32,
}

impl CounterOfQueue {
    /// Returns the counter for the options of a queue.
    pub(crate) fn counter(&self) -> efa_gda::Counter {
        match &self.counter {
            Counter::Fabric(counter) => efa_gda::Counter::Libfabric(counter.clone()),
            Counter::Verbs { counter, .. } => efa_gda::Counter::RdmaCore(counter.clone()),
        }
    }

    /// Returns the counter of the caller's attributes; None if they have none.
    pub(crate) fn of(handle: Handle, bits: u64) -> Result<Option<Self>, Fault> {
        if handle.is_null() {
            return match bits {
                0 => Ok(None),
                _ => Err(Fault::argument(format_args!(
                    "counted is {bits:#x}, and the counter is null; pass a counter, or set counted to 0"
                ))),
            };
        }
        let counted = operations(bits)?;
        COUNTERS.with(handle, |open, _| {
            Ok(Some(Self { counter: open.counter.clone(), counted, _user: open.users.clone() }))
        })
    }
}

/// Converts a set of `enum efa_gda_access`, which here says whose completions are counted.
fn operations(bits: u64) -> Result<CountedOperations, Fault> {
    use CountedOperations as Counted;
    let all = [
        Counted::SEND,
        Counted::RECEIVE,
        Counted::READ,
        Counted::WRITE,
        Counted::REMOTE_READ,
        Counted::REMOTE_WRITE,
    ];
    let set = all.into_iter().filter(|one| bits & one.bits() != 0).reduce(|set, one| set | one);
    set.filter(|set| set.bits() == bits).ok_or_else(|| {
        Fault::argument(format_args!(
            "counted {bits:#x}: expected one or more values of enum efa_gda_access, and no other bits"
        ))
    })
}

/// Opens a counter for a processor.
fn open(parts: &Parts, gpu: i32) -> Result<Counter, Fault> {
    match (&parts.layer, processor::ordinal(gpu)?) {
        (Opened::Fabric { ops, .. }, _) => Ok(Counter::Fabric(processor::counter(ops, gpu)?)),
        (Opened::Verbs { domain, .. }, None) => {
            let bytes = STRIDE + size_of::<u64>();
            let words = Buffer::zeroed(bytes).ok_or_else(|| {
                Fault::new(
                    Code::Internal,
                    format_args!(
                        "{bytes} bytes for a counter cannot be allocated; free memory and open it again"
                    ),
                )
            })?;
            let start = NonNull::new(words.as_ptr().cast::<u64>()).ok_or_else(|| Fault::null("the words"))?;
            let error = words.as_ptr().wrapping_add(STRIDE).cast::<u64>();
            let error = NonNull::new(error).ok_or_else(|| Fault::null("the words"))?;
            let [success, error] = [start, error].map(CounterMemory::host);
            // SAFETY: the value below owns the words, and drops the counter before them.
            let counter =
                unsafe { verbs::CompletionCounter::create_external(domain.context(), success, error) }?;
            Ok(Counter::Verbs { counter, words: Arc::new(words) })
        }
        (Opened::Verbs { .. }, Some(_)) => Err(Fault::new(
            Code::Unsupported,
            "the domain is of rdma-core, and a counter in a GPU's memory needs a domain of libfabric; open the counter \
             with gpu = -1 (host memory), or on a domain of libfabric",
        )),
    }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `counter` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_counter_open(domain: Handle, gpu: c_int, counter: *mut Handle) -> c_int {
    let body = || {
        let parts = Parts::of(domain)?;
        let counter = open(&parts, gpu)?;
        Ok(COUNTERS.insert(OpenCounter { counter, users: Arc::new(()), _parts: parts }, ()))
    };
    // SAFETY: the caller guarantees that it is null or writable.
    unsafe { call_for(counter, "the pointer to the counter", body) }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `info` must be null or a struct of the header with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_counter_describe(counter: Handle, info: *mut CounterInfo) -> c_int {
    call(|| {
        let (success, error, gpu) = COUNTERS.with(counter, |open, _| match &open.counter {
            Counter::Fabric(counter) => {
                let words = counter.words();
                let words = words.ok_or_else(|| Fault::new(Code::Internal, "the counter owns no words"))?;
                Ok((words.success, words.error, words.device.unwrap_or(HOST)))
            }
            Counter::Verbs { words, .. } => {
                let success = words.as_ptr() as u64;
                Ok((success, success + STRIDE as u64, HOST))
            }
        })?;
        let value = CounterInfo { size: 0, success, error, gpu, reserved: 0 };
        // SAFETY: the caller guarantees a struct with its size.
        unsafe { write_struct(info, "the counter's info", value) }
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `successes` and `errors` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_counter_read(
    counter: Handle,
    successes: *mut u64,
    errors: *mut u64,
) -> c_int {
    call(|| {
        refuse_null(successes, "the pointer to the successes")?;
        refuse_null(errors, "the pointer to the errors")?;
        let (seen, failed) = COUNTERS.with(counter, |open, _| match &open.counter {
            Counter::Fabric(counter) => {
                let both = counter.successes()?.zip(counter.errors()?);
                both.ok_or_else(|| {
                    Fault::new(
                        Code::Unsupported,
                        "the counter's words are in a GPU's memory, which the host does not read; a kernel can",
                    )
                })
            }
            Counter::Verbs { counter, .. } => Ok(counter.read()?),
        })?;
        // SAFETY: neither is null, and the caller guarantees that they are writable.
        unsafe {
            successes.write(seen);
            errors.write(failed);
        }
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_counter_close(counter: Handle) -> c_int {
    call(|| {
        COUNTERS.close(counter, |open, _| {
            // The table's own is no user.
            let users = Arc::strong_count(&open.users).saturating_sub(1);
            if users != 0 {
                let text = format!("the counter counts for {users} queue(s); close or destroy them first");
                return (Some(open), Err(Fault::new(Code::Busy, text)));
            }
            let closed = match open.counter {
                Counter::Fabric(counter) => counter.close().map_err(Fault::from),
                Counter::Verbs { counter, words } => counter.close().map_err(|error| {
                    // The adapter may still write to them.
                    std::mem::forget(words);
                    error.into()
                }),
            };
            (None, closed)
        })
    })
}
