//! One visit of the proxy to one queue: reads the record, places and rings, refuses a bad record.
//!
//! The words of the queue are behind [`Port`], so that the model checker (`model.rs`) can supply its own.

/// A doorbell record that correct device code never stores. The visit that found it stored no doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// The record is behind the last doorbell.
    #[error(
        "the doorbell record ran backwards, from {doorbell} to {record}; store producer indices in ascending order"
    )]
    Backwards {
        /// The last doorbell's producer index.
        doorbell: u32,
        /// The record.
        record: u32,
    },
    /// The record is further ahead of the last doorbell than the number of requests that may be in flight.
    #[error(
        "the doorbell record holds producer index {record}, and the last doorbell carried {doorbell}: the difference \
         may be at most {limit}; wait for free slots before posting"
    )]
    PastRing {
        /// The last doorbell's producer index.
        doorbell: u32,
        /// The record.
        record: u32,
        /// The most entries by which a record may be ahead.
        limit: u32,
    },
    /// The record covers a staged slot that still holds the previous lap's entry.
    #[error(
        "the doorbell record covers entry {index}, which was not written; write and fence entries before the record"
    )]
    Unwritten {
        /// The entry's producer index.
        index: u32,
    },
}

/// Access to the words of one queue.
pub(super) trait Port {
    /// Whether the proxy copies entries, in batches with a doorbell each. If not, one doorbell covers all entries
    /// before the record.
    const PLACES: bool;

    /// Loads the record with acquire. [`Port::place`] and [`Port::ring`] execute `order_after_device_load` before they
    /// read the entries below it or ring for them.
    fn record(&self) -> u32;

    /// Copies entries `[first, first + count)` to the send queue. They reach the adapter before a doorbell that a
    /// later [`Port::ring`] stores.
    fn place(&self, first: u32, count: u32) -> Result<(), RecordFault>;

    /// Stores the doorbell, after all entries below `index`. What a later [`Port::place`] copies reaches the adapter
    /// after this doorbell.
    fn ring(&self, index: u32);
}

/// One queue as the proxy rings for it: its words, and the producer index that its last doorbell carried.
pub(super) struct Handoff<P> {
    port: P,
    doorbell_index: u32,
    /// The most entries by which the record may be ahead of `doorbell_index`.
    limit: u32,
    /// The most entries for one doorbell, if the port places entries; not used otherwise.
    batch: u32,
}

impl<P: Port> Handoff<P> {
    /// A queue whose last doorbell carried `doorbell_index`.
    pub(super) fn new(port: P, doorbell_index: u32, limit: u32, batch: u32) -> Self {
        Self { port, doorbell_index, limit, batch: batch.max(1) }
    }

    pub(super) fn doorbell_index(&self) -> u32 {
        self.doorbell_index
    }

    /// Rings at most once for entries before the record. Returns how many entries this doorbell covers that the
    /// previous doorbell did not. A visit that returns an error stored no doorbell.
    #[inline]
    pub(super) fn visit(&mut self) -> Result<u32, RecordFault> {
        let record = self.port.record();
        let ahead = record.wrapping_sub(self.doorbell_index);
        if ahead == 0 {
            return Ok(0);
        }
        if ahead > self.limit {
            return Err(self.fault(record));
        }
        let mut count = ahead;
        if P::PLACES {
            count = ahead.min(self.batch);
            self.port.place(self.doorbell_index, count)?;
        }
        self.doorbell_index = self.doorbell_index.wrapping_add(count);
        self.port.ring(self.doorbell_index);
        Ok(count)
    }

    /// Rings for every entry before the record as the call finds it. Makes at most `limit.div_ceil(batch) + 1` visits,
    /// so entries that a device posts during the call may stay unrung.
    pub(super) fn last_visit(&mut self) -> Result<(), RecordFault> {
        let batch = if P::PLACES { self.batch } else { self.limit };
        for _ in 0..=self.limit.div_ceil(batch) {
            if self.visit()? == 0 {
                break;
            }
        }
        Ok(())
    }

    #[cold]
    fn fault(&self, record: u32) -> RecordFault {
        let (doorbell, limit) = (self.doorbell_index, self.limit);
        // Indices wrap: a difference below 2^31 is ahead, any other is behind.
        match record.wrapping_sub(doorbell) as i32 {
            ..0 => RecordFault::Backwards { doorbell, record },
            _ => RecordFault::PastRing { doorbell, record, limit },
        }
    }
}
