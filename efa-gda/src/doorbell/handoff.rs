//! One visit of the proxy to one queue: reads the record, places and rings, refuses a bad record, or copies completions.
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

/// Bit 0 of an entry's byte 3, in the entry's first 8 bytes, its *head*: ctrl2 of a send entry
/// (`EFA_IO_TX_META_DESC_PHASE`), the flags of a completion (`EFA_IO_CDESC_COMMON_PHASE`).
pub(super) const PHASE: u64 = 1 << 24;

/// Access to the words of one queue.
pub(super) trait Port {
    /// Loads the device's word with acquire: its producer index, or the low 16 bits of its consumer index.
    /// [`Port::place`] and [`Port::ring`] execute `order_after_device_load` before they read the entries below a
    /// producer index or ring for them.
    fn record(&self) -> u32;

    /// Copies at most `count` entries from `first` on, and returns how many. Of a send queue all: they reach the adapter
    /// before a doorbell that a later [`Port::ring`] stores. Of a completion queue those that the adapter has written
    /// ([`copy_new`]).
    fn place(&self, first: u32, count: u32) -> Result<u32, RecordFault>;

    /// Stores the doorbell. That of a send queue follows all entries below `index`, and what a later [`Port::place`]
    /// copies reaches the adapter after it.
    fn ring(&self, index: u32);
}

/// One queue as the proxy serves it: its words, and how far they are handed over.
pub(super) struct Handoff<P> {
    port: P,
    /// The producer index that the last doorbell carried, or the number of the next completion to copy.
    index: u32,
    /// The consumer index that the last doorbell of a relayed completion queue carried; None for a send queue.
    consumed: Option<u32>,
    /// The most entries by which the record may be ahead of `index`, or the entries of the completion queue.
    limit: u32,
    /// The most entries of one visit.
    batch: u32,
}

impl<P: Port> Handoff<P> {
    /// A send queue whose last doorbell carried `index`.
    pub(super) fn new(port: P, index: u32, limit: u32, batch: u32) -> Self {
        Self { port, index, consumed: None, limit, batch: batch.max(1) }
    }

    /// A completion queue of `entries` entries whose next completion has the number `index`.
    pub(super) fn relay(port: P, index: u32, entries: u32, batch: u32) -> Self {
        Self { consumed: Some(index & 0xffff), ..Self::new(port, index, entries, batch) }
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn is_relay(&self) -> bool {
        self.consumed.is_some()
    }

    /// Rings at most once. Returns how many entries this doorbell covers that the previous doorbell did not, or how many
    /// completions were copied. A visit that returns an error stored no doorbell.
    #[inline(always)]
    pub(super) fn visit(&mut self) -> Result<u32, RecordFault> {
        let Some(consumed) = self.consumed else { return self.ring_for_record() };
        let count = self.port.place(self.index, self.batch)?;
        self.index = self.index.wrapping_add(count);
        let now = self.port.record();
        if now != consumed {
            self.consumed = Some(now);
            self.port.ring(now);
        }
        Ok(count)
    }

    #[inline(always)]
    fn ring_for_record(&mut self) -> Result<u32, RecordFault> {
        let record = self.port.record();
        let ahead = record.wrapping_sub(self.index);
        if ahead == 0 {
            return Ok(0);
        }
        if ahead > self.limit {
            return Err(self.fault(record));
        }
        let count = self.port.place(self.index, ahead.min(self.batch))?;
        self.index = self.index.wrapping_add(count);
        self.port.ring(self.index);
        Ok(count)
    }

    /// Hands over all that was there when the call began. Makes at most `limit.div_ceil(batch) + 1` visits, so entries
    /// that a device posts during the call may stay unrung.
    pub(super) fn last_visit(&mut self) -> Result<(), RecordFault> {
        for _ in 0..=self.limit.div_ceil(self.batch) {
            if self.visit()? == 0 {
                break;
            }
        }
        Ok(())
    }

    #[cold]
    fn fault(&self, record: u32) -> RecordFault {
        let (doorbell, limit) = (self.index, self.limit);
        // Indices wrap: a difference below 2^31 is ahead, any other is behind.
        match record.wrapping_sub(doorbell) as i32 {
            ..0 => RecordFault::Backwards { doorbell, record },
            _ => RecordFault::PastRing { doorbell, record, limit },
        }
    }
}

/// Copies the completions of a queue of `entries` entries that the adapter has written, from `first` on and at most
/// `count`. `head` loads the head of one with acquire, and `copy` copies one that is new: its body, then that head with
/// release. Returns how many.
#[inline]
pub(super) fn copy_new(
    entries: u32,
    (first, count): (u32, u32),
    head: impl Fn(u32) -> u64,
    copy: impl Fn(u32, u64),
) -> u32 {
    for done in 0..count {
        let index = first.wrapping_add(done);
        let head = head(index);
        // The phase of the first lap is 1.
        if (head & PHASE != 0) != (index & entries == 0) {
            return done;
        }
        copy(index, head);
    }
    count
}
