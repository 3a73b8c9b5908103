//! Producer and consumer indices, and the slots, phases and doorbell values that follow from them.
//!
//! A queue counts its requests from 0 and never resets the count. Counters are 32 bits and wrap; that suits every
//! ring, because a ring's depth divides 2^32.

/// The most entries of a send or receive queue. A doorbell carries 16 bits of the producer index, so only values that
/// are at most 2^15 apart can be ordered.
pub const DEEPEST_WORK_QUEUE: u32 = 1 << 15;

/// A ring of `2^n` entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    entries: u32,
}

/// A depth that no ring can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ring of {entries} entries cannot be driven: the depth must be a power of two")]
pub struct RingError {
    /// The depth that the caller passed.
    pub entries: u32,
}

impl Ring {
    /// A ring of `entries` entries.
    ///
    /// # Errors
    /// [`RingError`] unless `entries` is a power of two.
    pub const fn new(entries: u32) -> Result<Self, RingError> {
        if entries.is_power_of_two() { Ok(Self { entries }) } else { Err(RingError { entries }) }
    }

    /// The number of entries.
    pub const fn entries(self) -> u32 {
        self.entries
    }

    /// The slot of the request with this producer index.
    pub const fn slot(self, counter: u32) -> u32 {
        counter & (self.entries - 1)
    }

    /// The send queue's phase bit for this producer index: 0 on the first lap, then alternating
    /// (`EFA_IO_TX_META_DESC_PHASE_MASK`).
    pub const fn phase(self, counter: u32) -> bool {
        counter & self.entries != 0
    }

    /// The doorbell value after requests below `counter` were written: its low 16 bits, zero-extended, for every
    /// depth.
    pub const fn doorbell(self, counter: u32) -> u32 {
        counter & 0xffff
    }
}

/// Returns how far a doorbell advanced from `previous` to the low 16 bits of `value` (some posters write a 32-bit
/// counter). An advance of more than 32,768 means that the doorbell moved backwards.
pub const fn doorbell_advance(previous: u16, value: u32) -> u16 {
    (value as u16).wrapping_sub(previous)
}

/// A consumer's position in a completion queue. The expected phase starts at 1 and flips with each lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionCursor {
    ring: Ring,
    consumed: u32,
}

impl CompletionCursor {
    /// The position in a new queue.
    pub const fn new(ring: Ring) -> Self {
        Self { ring, consumed: 0 }
    }

    /// The slot to read next.
    pub const fn slot(self) -> u32 {
        self.ring.slot(self.consumed)
    }

    /// The phase bit of a new completion in that slot.
    pub const fn phase(self) -> bool {
        !self.ring.phase(self.consumed)
    }

    /// Moves to the next slot.
    pub const fn advance(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }
}
