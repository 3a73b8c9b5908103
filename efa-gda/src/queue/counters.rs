//! Free slots and quiet from completion counters: which counters a queue can use, and where their words are.
//!
//! Device code adds up the words of successes and of errors. It reads the completion queue only after the word of
//! errors has moved, to find which request failed and how (`kernels/include/efa_gda/cq.h`). The counters and the
//! completion queue must therefore agree: a counter must count every send, read and write of one endpoint, nothing
//! else, from 0. Nothing else may complete on the completion queue, because otherwise nothing reads it, and the adapter
//! overwrites it.

use efa_gda_sys::device::efa_gda_counters;

use super::MappedQueue;
use crate::fabric::{CompletionCounter, CountedOperations, CounterWords};
use crate::polling::Unclaimable;
use crate::{Error, Result};

/// A wrap that every adapter's counters support: they restart at this count, or at a multiple of it.
const WRAP: u64 = 1 << 31;

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

fn require_zero(counter: &CompletionCounter) -> Result<()> {
    let words = counter.read_words().map_err(|why| {
        let text = format!("the words of the counter cannot be read: {why}");
        Error::unsupported(text).with_hint("open it with Gpu::completion_counter")
    })?;
    match words {
        [0, 0] => Ok(()),
        [successes, errors] => Err(Error::unsupported(format!(
            "the counter's successes are at {successes} and its errors at {errors}, and a queue needs a counter with \
             both at 0: open a new one"
        ))),
    }
}

/// Returns the modulus by which device code counts, for counters whose largest values are `most` (None: not known).
fn wrap(most: Option<[u64; 2]>, requests: u32) -> Result<u64> {
    most.into_iter().flatten().try_fold(WRAP, |wrap, most| {
        // Adapters may report the largest value, or the number of values.
        let values = if most.is_power_of_two() { Some(most) } else { most.checked_add(1) };
        match values {
            // 2^64.
            None => Ok(wrap),
            Some(values) if values.is_power_of_two() && values >= 4 * u64::from(requests) => {
                Ok(wrap.min(values))
            }
            Some(_) => Err(Error::unsupported(format!(
                "the adapter's counters restart after {most}; a queue of {requests} requests needs counters that restart \
                 at a power of two of at least {}: use the completion queue without counters",
                4 * u64::from(requests)
            ))),
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
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), or `Argument` for a completion queue that is too small; the endpoint is then closed.
    pub fn with_counters(mut self) -> Result<Self> {
        let Some(endpoint) = self.endpoint() else {
            return Err(Error::unsupported(
                "a queue of rdma-core cannot use completion counters: open it with libfabric",
            ));
        };
        if endpoint.send_completions().as_ptr() == endpoint.receive_completions().as_ptr() {
            return Err(Error::unsupported(
                "receives complete on the completion queue of the requests, which is not polled if the queue uses \
                 counters: bind the endpoint's receive side to another completion queue",
            ));
        }
        if self.request_table.is_some() {
            return Err(Error::unsupported(
                "the queue has a request table, which needs the completion queue: use either a request table or \
                 counters",
            ));
        }
        let (completions, requests) = (self.exposure().cq.num_entries, self.exposure().sq.num_entries);
        if u64::from(completions) < 2 * u64::from(requests) {
            return Err(Error::argument(format!(
                "the completion queue has {completions} entries and the send queue {requests}; with counters it needs \
                 twice as many, because the adapter could overwrite the completion of a failed request: open a \
                 completion queue of at least {} entries",
                2 * u64::from(requests)
            )));
        }
        let counters = endpoint.counters();
        let counter = counters.iter().find(|(_, counted)| *counted == CountedOperations::TRANSMIT);
        let (counter, _) = counter.ok_or_else(|| {
            Error::unsupported(
                "the endpoint has no counter that counts exactly its sends, reads and writes: bind one for \
                 CountedOperations::TRANSMIT in the Bindings of the endpoint",
            )
        })?;
        let words = counter.words().ok_or_else(|| {
            Error::unsupported(
                "the counter does not own its words, so the address at which a device reads them is not known: open it \
                 with Gpu::completion_counter or GdaOps::cntr_open_host",
            )
        })?;
        let most = endpoint.domain().info().and_then(|info| info.max_counter_values());
        let wrap = wrap(most, requests)?;
        if self.state().reserve.word != 0 {
            return Err(Error::unsupported(
                "the queue has already posted requests: call with_counters before its first request",
            ));
        }
        require_zero(counter)?;
        counter.claim().map_err(|why| match why {
            Unclaimable::Shared(endpoints) => Error::unsupported(format!(
                "the counter counts for {endpoints} endpoints: open one for this endpoint alone"
            )),
            Unclaimable::Taken | Unclaimable::Used => Error::unsupported(
                "another mapped queue uses or used the counter: open a new counter for this queue",
            ),
        })?;
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
    use super::{WRAP, wrap};
    use crate::ErrorKind;

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
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported, "{most}");
        }
    }
}
