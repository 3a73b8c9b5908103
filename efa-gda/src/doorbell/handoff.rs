//! One visit of the proxy to one queue, without memory: what the record asks for, what of it is
//! done, and what is refused. The words behind it are a [`Port`]'s, so that a model checker can give
//! its own.

/// A record that no device code leaves, so that nothing was rung for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The record is behind the last doorbell.
    #[error("the doorbell record ran backwards, from {rung} to {record}")]
    Backwards {
        /// The last doorbell.
        rung: u32,
        /// The record.
        record: u32,
    },
    /// The record is further past the last doorbell than requests can be in flight.
    #[error("the doorbell record is {record}, past the last doorbell {rung} by more than {most} entries")]
    PastRing {
        /// The last doorbell.
        rung: u32,
        /// The record.
        record: u32,
        /// How far it may be ahead.
        most: u32,
    },
    /// The record covers a staged slot that holds the last lap's entry.
    #[error("the doorbell record covers entry {counter}, which was not written")]
    Unwritten {
        /// The entry's producer counter.
        counter: u32,
    },
}

/// The words of one queue, as the proxy reaches them.
pub(super) trait Port {
    /// Whether entries have to be placed, batch by batch.
    const PLACES: bool;

    /// Loads the record. Entries below it are visible afterwards.
    fn record(&self) -> u32;

    /// Puts entries `[first, first + count)` where the adapter fetches them, so that they are there
    /// before a later [`Port::ring`].
    fn place(&self, first: u32, count: u32) -> Result<(), Fault>;

    /// Stores the doorbell, after all entries below `counter`.
    fn ring(&self, counter: u32);
}

/// How far one queue's record was followed.
pub(super) struct Handoff<P> {
    port: P,
    rung: u32,
    /// The record's greatest distance from `rung`.
    most: u32,
    /// Entries for one doorbell.
    batch: u32,
}

impl<P: Port> Handoff<P> {
    /// A queue whose last doorbell was `rung`.
    pub(super) fn new(port: P, rung: u32, most: u32, batch: u32) -> Self {
        Self { port, rung, most, batch: batch.max(1) }
    }

    pub(super) fn rung(&self) -> u32 {
        self.rung
    }

    /// Follows the record by at most one doorbell. Returns how many entries that covered.
    #[inline]
    pub(super) fn visit(&mut self) -> Result<u32, Fault> {
        let record = self.port.record();
        let ahead = record.wrapping_sub(self.rung);
        if ahead == 0 {
            return Ok(0);
        }
        if ahead > self.most {
            return Err(self.refused(record));
        }
        let mut count = ahead;
        if P::PLACES {
            count = ahead.min(self.batch);
            self.port.place(self.rung, count)?;
        }
        self.rung = self.rung.wrapping_add(count);
        self.port.ring(self.rung);
        Ok(count)
    }

    /// Follows the record to its end: at most as many visits as its greatest distance has batches,
    /// and one that finds nothing. What a device posts meanwhile may be left.
    pub(super) fn last_visit(&mut self) -> Result<(), Fault> {
        let batch = if P::PLACES { self.batch } else { self.most };
        for _ in 0..=self.most.div_ceil(batch) {
            if self.visit()? == 0 {
                break;
            }
        }
        Ok(())
    }

    #[cold]
    fn refused(&self, record: u32) -> Fault {
        let (rung, most) = (self.rung, self.most);
        // In the order of a counter that wraps, the nearer half lies ahead.
        match record.wrapping_sub(rung) as i32 {
            ..0 => Fault::Backwards { rung, record },
            _ => Fault::PastRing { rung, record, most },
        }
    }
}
