//! The request table: with it, a group of device code waits for its own requests and receives their errors
//! (`kernels/include/efa_gda/requests.h`). Without it, requests are only counted.

use efa_gda_sys::device::efa_gda_requests;

use super::MappedQueue;
use crate::memory::Buffer;
use crate::{Error, Result};

/// The longest table. A request id of 16 bits then determines the slot and one more bit: the parity of the lap.
const LONGEST: u32 = 32768;
/// The shortest table.
const SHORTEST: u32 = 256;
/// Entries of the table for each entry of the send queue. While the oldest request is in flight, about this many times
/// the send queue's entries can be posted after it; then posts wait for it.
const FACTOR: u32 = 4;

/// The number of entries of the table of a send queue of `requests` entries.
fn entries(requests: u32) -> Result<u32> {
    if requests > LONGEST / 2 {
        let most = LONGEST / 2;
        return Err(Error::unsupported(format!(
            "the send queue has {requests} entries, and a request table serves at most {most}: open the endpoint with a \
             smaller send queue"
        )));
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
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), or `OutOfMemory`; the endpoint is then closed.
    pub fn with_request_table(mut self) -> Result<Self> {
        let state = self.state();
        if self.counters.is_some() {
            return Err(Error::unsupported(
                "the queue uses completion counters, and with them the completion queue is not read: use either \
                 counters or a request table",
            ));
        }
        if state.reserve.word != 0 {
            return Err(Error::unsupported(
                "the queue has already posted requests: call with_request_table before its first request",
            ));
        }
        let num_entries = entries(state.sq.num_entries)?;
        let words = num_entries as usize * size_of::<u16>();
        let bytes = 2 * words;
        let table =
            Buffer::zeroed(bytes).ok_or_else(|| Error::out_of_memory(bytes).within("the request table"))?;
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
    use super::entries;
    use crate::ErrorKind;

    #[test]
    fn a_table_holds_more_than_the_ring() {
        for requests in (0..=14).map(|shift| 1 << shift) {
            let table = entries(requests).unwrap();
            assert!(table.is_power_of_two() && table <= 32768, "{requests}: {table}");
            assert!(table >= requests + requests.max(64), "{requests}: {table}");
        }
        assert_eq!(entries(32768).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
