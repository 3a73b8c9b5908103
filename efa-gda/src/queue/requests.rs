//! The request table: with it, a group of device code waits for its own requests and receives their errors
//! (`kernels/include/efa_gda/requests.h`). Without it, requests are only counted.

use efa_gda_sys::device::efa_gda_requests;

use super::{MappedQueue, QueueError};
use crate::memory::Buffer;

/// The longest table. A request id of 16 bits then determines the slot and one more bit: the parity of the lap.
const LONGEST: u32 = 32768;
/// The shortest table.
const SHORTEST: u32 = 256;
/// Entries of the table for each entry of the send queue. While the oldest request is in flight, about this many times
/// the send queue's entries can be posted after it; then posts wait for it.
const FACTOR: u32 = 4;

/// Why a queue cannot have a request table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestTableError {
    /// The queue uses completion counters, which say how many requests completed, not which.
    #[error(
        "the queue uses completion counters, and with them the completion queue is not read: use either counters or a \
         request table"
    )]
    Counters,
    /// The send queue is too deep.
    #[error(
        "the send queue has {requests} entries, and a request table serves at most {}: open the endpoint with a \
         smaller send queue", LONGEST / 2
    )]
    TooDeep {
        /// Entries of the send queue.
        requests: u32,
    },
    /// The queue has posted requests that a new table would not know.
    #[error("the queue has already posted requests: call with_request_table before its first request")]
    Posted,
    /// The table cannot be allocated.
    #[error("a request table of {bytes} bytes cannot be allocated: free memory")]
    NoMemory {
        /// Bytes needed.
        bytes: usize,
    },
}

/// The number of entries of the table of a send queue of `requests` entries.
fn entries(requests: u32) -> Result<u32, RequestTableError> {
    if requests > LONGEST / 2 {
        return Err(RequestTableError::TooDeep { requests });
    }
    Ok((FACTOR * requests).clamp(SHORTEST, LONGEST))
}

impl MappedQueue {
    /// Gives the queue a request table, so that a group of a kernel can wait for its own requests, and receive their
    /// errors, while others continue to post (`Sender::wait`, `wait_own` and `test`). The table costs a store for each
    /// entry posted and for each completion, in memory that kernels poll. The queue cannot use completion counters as
    /// well.
    ///
    /// # Errors
    /// [`QueueError::RequestTable`]; the endpoint is then closed.
    pub fn with_request_table(mut self) -> Result<Self, QueueError> {
        let state = self.state();
        if self.counters.is_some() {
            return Err(RequestTableError::Counters.into());
        }
        if state.reserve.word != 0 {
            return Err(RequestTableError::Posted.into());
        }
        let num_entries = entries(state.sq.num_entries)?;
        let words = num_entries as usize * size_of::<u16>();
        let bytes = 2 * words;
        let table = Buffer::zeroed(bytes).ok_or(RequestTableError::NoMemory { bytes })?;
        let requests = efa_gda_requests {
            done: table.as_ptr().cast(),
            posters: table.as_ptr().wrapping_add(words).cast(),
            num_entries,
            reserved: 0,
        };
        self.set_request_table(table, requests);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestTableError, entries};

    #[test]
    fn a_table_holds_more_than_the_ring() {
        for requests in (0..=14).map(|shift| 1 << shift) {
            let table = entries(requests).unwrap();
            assert!(table.is_power_of_two() && table <= 32768, "{requests}: {table}");
            assert!(table >= requests + requests.max(64), "{requests}: {table}");
        }
        assert!(matches!(entries(32768), Err(RequestTableError::TooDeep { requests: 32768 })));
    }
}
