//! Room and quiet from completion counters: which counters a queue can go by, and where their words lie.
//!
//! Device code adds the words of successes and of errors, and leaves the completion queue alone until the
//! word of errors moves; then it looks there for what failed and how (`kernels/include/efa_gda/cq.h`). So
//! that the two agree, a counter counts all that one endpoint sends, reads and writes, nothing else, from 0;
//! nothing else completes on the completion queue, which nobody reads otherwise and the adapter overwrites.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda_sys::device::efa_gda_counters;

use super::mapped::QueueError;
use super::{Backing, MappedQueue};
use crate::fabric::{CompletionCounter, CountedOperations, CounterWords};
use crate::gpu::{self, GpuMemory};
use crate::polling::Unclaimable;

/// A wrap that every adapter's counters have: they begin again at this count, or at a multiple of it.
const WRAP: u64 = 1 << 31;

/// Why a queue cannot go by the counters of its endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CountersError {
    /// The endpoint has no counter that counts all that it starts, and that alone.
    #[error(
        "no counter counts all that the endpoint sends, reads and writes, and that alone: bind one for \
         CountedOperations::TRANSMIT with Endpoint::bind_counter before the endpoint is enabled"
    )]
    None,
    /// The words are the provider's, or the caller's.
    #[error(
        "the counter does not own its words, so that nobody knows where a device reads them: open it with \
         Gpu::completion_counter or GdaOps::cntr_open_host"
    )]
    NotItsWords,
    /// It counts for other endpoints too.
    #[error("the counter counts for {endpoints} endpoints: open one for this endpoint alone")]
    Shared {
        /// Endpoints.
        endpoints: usize,
    },
    /// Another queue goes, or went, by it.
    #[error("another mapped queue goes by the counter, or did: open one more")]
    Taken,
    /// It does not begin at 0.
    #[error(
        "the counter stands at {successes} successes and {errors} errors, and a queue begins at 0 of both: open a \
         new one, or set this one to 0 (CompletionCounter::set)"
    )]
    NotZero {
        /// The word of successes.
        successes: u64,
        /// The word of errors.
        errors: u64,
    },
    /// The queue counted otherwise before.
    #[error("the queue has posted already: let it go by its counter before its first request")]
    Posted,
    /// What the words hold in the GPU's memory could not be seen.
    #[error("what the counter holds cannot be seen: {0}; open it with Gpu::completion_counter")]
    Unseen(String),
    /// It begins again at a count that is no power of two, or too soon.
    #[error(
        "the adapter's counters reach {most} and begin again; a queue of {requests} requests needs a power of two \
         of at least {}: leave its completions to the completion queue", 4 * u64::from(*requests)
    )]
    Wrap {
        /// The largest value that the adapter reports.
        most: u64,
        /// Requests that may be in flight.
        requests: u32,
    },
    /// Receives complete where requests do.
    #[error(
        "receives complete on the completion queue of the requests, which nobody reads beside counters: bind the \
         endpoint's receive side to another completion queue"
    )]
    Receives,
    /// What failed could be overwritten before it is looked for.
    #[error(
        "the completion queue holds {completions} completions and the send queue {requests} requests; beside \
         counters it needs twice as many: open a completion queue of at least {}", 2 * u64::from(*requests)
    )]
    ShallowCompletionQueue {
        /// Completions that it holds.
        completions: u32,
        /// Requests that may be in flight.
        requests: u32,
    },
}

impl From<Unclaimable> for CountersError {
    fn from(why: Unclaimable) -> Self {
        match why {
            Unclaimable::Taken => Self::Taken,
            Unclaimable::Shared(endpoints) => Self::Shared { endpoints },
        }
    }
}

/// The counter that a queue goes by. Gone after the endpoint.
#[derive(Debug)]
pub(super) struct Counters {
    _counter: CompletionCounter,
    pub(super) words: CounterWords,
}

impl Counters {
    /// Where in this process the words lie; None where they lie in a GPU's memory.
    pub(super) fn on_host(&self) -> Option<Range<usize>> {
        let end = self.words.error as usize + size_of::<u64>();
        self.words.device.is_none().then_some(self.words.success as usize..end)
    }

    /// What the words hold, read from the host's memory.
    pub(super) fn seen(&self) -> Option<[u64; 2]> {
        // SAFETY: the counter that goes along keeps the words.
        self.words.device.is_none().then(|| unsafe { host_words(self.words) })
    }
}

/// # Safety
/// The words are the host's, and their counter is open.
unsafe fn host_words(words: CounterWords) -> [u64; 2] {
    [words.success, words.error].map(|word| {
        let word = std::ptr::with_exposed_provenance_mut(word as usize);
        // SAFETY: the caller's contract; aligned, and written atomically alone.
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire)
    })
}

/// What a counter's words hold before anything is counted.
fn begins_at(counter: &CompletionCounter, words: CounterWords) -> Result<[u64; 2], CountersError> {
    if words.device.is_none() {
        // SAFETY: the counter is open, and the words are its own.
        return Ok(unsafe { host_words(words) });
    }
    let memory: Option<&GpuMemory> = counter.owner();
    let memory = memory.ok_or_else(|| CountersError::Unseen("its memory is not a GpuMemory".into()))?;
    let read = |word: u64| {
        let mut bytes = [0; size_of::<u64>()];
        memory.read((word - memory.device_address()) as usize, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let both = read(words.success).and_then(|success| Ok([success, read(words.error)?]));
    both.map_err(|error: gpu::Error| CountersError::Unseen(error.to_string()))
}

fn at_zero(counter: &CompletionCounter, words: CounterWords) -> Result<(), CountersError> {
    match begins_at(counter, words)? {
        [0, 0] => Ok(()),
        [successes, errors] => Err(CountersError::NotZero { successes, errors }),
    }
}

/// The count at which device code begins again, for counters whose largest values are `most`, or unknown.
fn wrap(most: Option<[u64; 2]>, requests: u32) -> Result<u64, CountersError> {
    most.into_iter().flatten().try_fold(WRAP, |wrap, most| {
        // Adapters may report the largest value, or the number of values.
        let values = if most.is_power_of_two() { Some(most) } else { most.checked_add(1) };
        match values {
            // 2^64.
            None => Ok(wrap),
            Some(values) if values.is_power_of_two() && values >= 4 * u64::from(requests) => {
                Ok(wrap.min(values))
            }
            Some(_) => Err(CountersError::Wrap { most, requests }),
        }
    })
}

impl MappedQueue {
    /// The queue, whose kernels take room and quiet from the completion counter that its endpoint has for
    /// [`CountedOperations::TRANSMIT`], instead of polling its completion queue. They look at the completion queue when an
    /// error was counted, for its status; until then nobody does, and the adapter overwrites what it holds. A GPU
    /// that cannot map the completion queue goes by the counters all the same
    /// ([`GpuQueue::registered`](super::GpuQueue::registered) shows which); a counted error then ends its
    /// waits by their bound, without a status.
    ///
    /// ```no_run
    /// # use efa_gda::{fabric::*, gpu::Gpu, queue::*};
    /// # fn f(gpu: &Gpu, ops: &GdaOps, endpoint: Endpoint<Building>, addresses: &AddressVector)
    /// # -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let (counter, placement) = gpu.completion_counter(ops)?;
    /// let (requests, _) = gpu.completion_queue(ops, 8192)?;
    /// let receives = ops.domain().completion_queue(64)?;
    /// let mut endpoint = endpoint.bind(Bindings { address_vector: addresses, send_completions: &requests, receive_completions: &receives })?;
    /// endpoint.bind_counter(&counter, CountedOperations::TRANSMIT)?;
    /// let queue = MappedQueue::new(endpoint.enable()?, ops)?.with_counters()?;
    /// let queue = GpuQueue::new(queue, gpu)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Counters`]; the endpoint is then closed.
    pub fn with_counters(mut self) -> Result<Self, QueueError> {
        let endpoint = self.endpoint();
        if endpoint.send_completions().as_ptr() == endpoint.receive_completions().as_ptr() {
            return Err(CountersError::Receives.into());
        }
        let (completions, requests) = (self.exposure().cq.num_entries, self.exposure().sq.num_entries);
        if u64::from(completions) < 2 * u64::from(requests) {
            return Err(CountersError::ShallowCompletionQueue { completions, requests }.into());
        }
        let counters = endpoint.counters();
        let counter = counters.iter().find(|(_, counted)| *counted == CountedOperations::TRANSMIT);
        let (counter, _) = counter.ok_or(CountersError::None)?;
        let words = counter.words().ok_or(CountersError::NotItsWords)?;
        let most = endpoint.domain().info().and_then(|info| info.max_counter_values());
        let wrap = wrap(most, requests)?;
        at_zero(counter, words)?;
        if self.state().reserve.word != 0 {
            return Err(CountersError::Posted.into());
        }
        counter.claim().map_err(CountersError::from)?;
        // Until it was claimed, another thread could set it.
        at_zero(counter, words)?;
        let counters = Counters { _counter: (*counter).clone(), words };
        self.set_counters(counters, wrap);
        Ok(self)
    }
}

impl<B: Backing> MappedQueue<B> {
    /// The GPU in whose memory the words lie that the queue goes by, as CUDA counts.
    pub(super) fn counters_on(&self) -> Option<i32> {
        self.counters.as_ref()?.words.device
    }
}

/// As device code addresses the words.
pub(super) fn device_counters(words: CounterWords, wrap: u64) -> efa_gda_counters {
    efa_gda_counters { success: words.success as *const u64, error: words.error as *const u64, wrap }
}

#[cfg(test)]
mod tests {
    use super::{CountersError, WRAP, wrap};

    #[test]
    fn a_wrap_that_counters_have_is_taken_and_another_refused() {
        assert_eq!(wrap(None, 4096).unwrap(), WRAP);
        assert_eq!(wrap(Some([u64::MAX; 2]), 4096).unwrap(), WRAP);
        for most in [WRAP, WRAP - 1, u64::from(u32::MAX)] {
            assert_eq!(wrap(Some([most, u64::MAX]), 4096).unwrap(), WRAP, "{most}");
        }
        assert_eq!(wrap(Some([u64::MAX, (1 << 20) - 1]), 4096).unwrap(), 1 << 20);
        for most in [0, WRAP - 2, (1 << 13) - 1] {
            let refused = wrap(Some([u64::MAX, most]), 4096);
            assert!(matches!(refused, Err(CountersError::Wrap { .. })), "{most}: {refused:?}");
        }
    }
}
