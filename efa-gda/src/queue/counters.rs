//! Free slots and quiet from completion counters: which counters a queue can use, and where their words are.
//!
//! Device code adds up the words of successes and of errors. It reads the completion queue only after the word of
//! errors has moved, to find which request failed and how (`kernels/include/efa_gda/cq.h`). The counters and the
//! completion queue must therefore agree: a counter must count every send, read and write of one endpoint, nothing
//! else, from 0. Nothing else may complete on the completion queue, because otherwise nothing reads it, and the adapter
//! overwrites it.

use efa_gda_sys::device::efa_gda_counters;

use super::{MappedQueue, QueueError};
use crate::fabric::{CompletionCounter, CountedOperations, CounterWords};
use crate::polling::Unclaimable;

/// A wrap that every adapter's counters support: they restart at this count, or at a multiple of it.
const WRAP: u64 = 1 << 31;

/// Why a queue cannot use the completion counters of its endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CountersError {
    /// The queue is one of rdma-core, whose counters this library does not use.
    #[error("a queue of rdma-core cannot use completion counters: open it with libfabric")]
    RdmaCore,
    /// The endpoint has no counter that counts exactly what it starts.
    #[error(
        "the endpoint has no counter that counts exactly its sends, reads and writes: bind one for \
         CountedOperations::TRANSMIT in the Bindings of the endpoint"
    )]
    None,
    /// The provider, or the caller, owns the words.
    #[error(
        "the counter does not own its words, so the address at which a device reads them is not known: open it with \
         Gpu::completion_counter or GdaOps::cntr_open_host"
    )]
    ForeignWords,
    /// The counter counts for other endpoints too.
    #[error("the counter counts for {endpoints} endpoints: open one for this endpoint alone")]
    Shared {
        /// Endpoints that the counter counts for.
        endpoints: usize,
    },
    /// Another mapped queue uses the counter, or used it.
    #[error("another mapped queue uses or used the counter: open a new counter for this queue")]
    Taken,
    /// The counter does not hold 0.
    #[error(
        "the counter's successes are at {successes} and its errors at {errors}, and a queue needs a counter with both \
         at 0: open a new one"
    )]
    NotZero {
        /// The word of successes.
        successes: u64,
        /// The word of errors.
        errors: u64,
    },
    /// The queue has posted requests that its completion queue counts.
    #[error("the queue has already posted requests: call with_counters before its first request")]
    Posted,
    /// The words are in a GPU's memory, and cannot be read.
    #[error("the words of the counter cannot be read: {0}; open it with Gpu::completion_counter")]
    Unreadable(String),
    /// The counter restarts at a count that is not a power of two, or too early.
    #[error(
        "the adapter's counters restart after {most}; a queue of {requests} requests needs counters that restart at a \
         power of two of at least {}: use the completion queue without counters", 4 * u64::from(*requests)
    )]
    Wrap {
        /// The largest value that the adapter reports.
        most: u64,
        /// Requests that may be in flight.
        requests: u32,
    },
    /// The queue has a request table, which needs the completion queue.
    #[error(
        "the queue has a request table, which needs the completion queue: use either a request table or counters"
    )]
    RequestTable,
    /// Receives complete on the completion queue of the requests.
    #[error(
        "receives complete on the completion queue of the requests, which is not polled if the queue uses counters: \
         bind the endpoint's receive side to another completion queue"
    )]
    Receives,
    /// The adapter could overwrite the completion of a failed request before device code reads it.
    #[error(
        "the completion queue has {completions} entries and the send queue {requests}; with counters it needs twice as \
         many: open a completion queue of at least {} entries", 2 * u64::from(*requests)
    )]
    ShallowCompletionQueue {
        /// Entries of the completion queue.
        completions: u32,
        /// Entries of the send queue, which all may be in flight.
        requests: u32,
    },
}

impl From<Unclaimable> for CountersError {
    fn from(why: Unclaimable) -> Self {
        match why {
            Unclaimable::Shared(endpoints) => Self::Shared { endpoints },
            Unclaimable::Taken | Unclaimable::Used => Self::Taken,
        }
    }
}

/// The counter that a queue uses. It must be dropped after the endpoint.
#[derive(Debug)]
pub(crate) struct Counters {
    counter: CompletionCounter,
    pub(crate) words: CounterWords,
}

impl Counters {
    /// Returns the addresses of the words in this process, from that of successes to that of errors; None if they are
    /// in a GPU's memory.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_host(&self) -> Option<std::ops::Range<usize>> {
        let end = self.words.error as usize + size_of::<u64>();
        self.words.device.is_none().then_some(self.words.success as usize..end)
    }

    /// Reads both words, if they are in the host's memory.
    pub(crate) fn read_on_host(&self) -> Option<[u64; 2]> {
        self.words.device.is_none().then(|| self.counter.read_words().ok()).flatten()
    }
}

fn require_zero(counter: &CompletionCounter) -> Result<(), CountersError> {
    match counter.read_words().map_err(CountersError::Unreadable)? {
        [0, 0] => Ok(()),
        [successes, errors] => Err(CountersError::NotZero { successes, errors }),
    }
}

/// Returns the modulus by which device code counts, for counters whose largest values are `most` (None: not known).
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
    /// Makes kernels compute free slots, and whether the queue is quiet, from the completion counter that the endpoint
    /// has for [`CountedOperations::TRANSMIT`], instead of polling the completion queue. They read the completion queue
    /// only after an error was counted, for its status; until then nothing reads it, and the adapter overwrites its
    /// entries. A GPU that cannot map the completion queue can use the counters all the same (`GpuQueue::registered`
    /// shows which parts are mapped). On such a GPU, after a counted error, every wait of a kernel ends at its bound,
    /// and the error's status is not known.
    ///
    // Not run: completion counters in GPU memory need a GPU and an adapter that has them; `gpu_counters.rs` tests both.
    #[cfg_attr(feature = "cuda", doc = "```no_run")]
    #[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
    /// # use efa_gda::{fabric::*, gpu::Gpu, gpu_queue::*, queue::*};
    /// # fn f(gpu: &Gpu, ops: &GdaOps, info: &Info, address_vector: &AddressVector)
    /// # -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let (counter, placement) = gpu.completion_counter(ops)?;
    /// let (requests, _) = gpu.completion_queue(ops, 8192)?;
    /// let receives = ops.domain().completion_queue(64)?;
    /// let (send_completions, receive_completions) = (&requests, &receives);
    /// let counters = &[(counter, CountedOperations::TRANSMIT)];
    /// let bindings = Bindings { address_vector, send_completions, receive_completions, counters };
    /// let queue = MappedQueue::new(ops.domain().endpoint(info, bindings)?, ops)?.with_counters()?;
    /// let queue = GpuQueue::new(queue, gpu)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Counters`]; the endpoint is then closed.
    pub fn with_counters(mut self) -> Result<Self, QueueError> {
        let Some(endpoint) = self.endpoint() else { return Err(CountersError::RdmaCore.into()) };
        if endpoint.send_completions().as_ptr() == endpoint.receive_completions().as_ptr() {
            return Err(CountersError::Receives.into());
        }
        if self.request_table.is_some() {
            return Err(CountersError::RequestTable.into());
        }
        let (completions, requests) = (self.exposure().cq.num_entries, self.exposure().sq.num_entries);
        if u64::from(completions) < 2 * u64::from(requests) {
            return Err(CountersError::ShallowCompletionQueue { completions, requests }.into());
        }
        let counters = endpoint.counters();
        let counter = counters.iter().find(|(_, counted)| *counted == CountedOperations::TRANSMIT);
        let (counter, _) = counter.ok_or(CountersError::None)?;
        let words = counter.words().ok_or(CountersError::ForeignWords)?;
        let most = endpoint.domain().info().and_then(|info| info.max_counter_values());
        let wrap = wrap(most, requests)?;
        if self.state().reserve.word != 0 {
            return Err(CountersError::Posted.into());
        }
        require_zero(counter)?;
        counter.claim().map_err(CountersError::from)?;
        // Another endpoint could use the counter until it was claimed.
        require_zero(counter)?;
        let counters = Counters { counter: (*counter).clone(), words };
        self.set_counters(counters, wrap);
        Ok(self)
    }
}

impl MappedQueue {
    /// Returns the CUDA ordinal of the GPU whose memory holds the words of the queue's counters.
    pub(crate) fn counters_on(&self) -> Option<i32> {
        self.counters.as_ref()?.words.device
    }
}

/// Converts the words' addresses for device code.
pub(super) fn device_counters(words: CounterWords, wrap: u64) -> efa_gda_counters {
    efa_gda_counters { success: words.success as *const u64, error: words.error as *const u64, wrap }
}

#[cfg(test)]
mod tests {
    use super::{CountersError, WRAP, wrap};

    #[test]
    fn a_wrap_is_accepted_if_it_is_a_power_of_two_that_covers_the_queue() {
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
