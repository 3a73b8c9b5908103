//! Counters, slots, phases and doorbells.
//!
//! A queue counts its requests from 0 and never resets the count; slot, phase and doorbell follow
//! from it. Counters here are 32 bits and wrap, which is right for every ring: a ring's depth
//! divides 2^32.

/// The deepest send or receive queue whose doorbell is unambiguous: with 16-bit doorbells, an
/// advance by a whole ring must differ from no advance.
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
    /// The depth given.
    pub entries: u32,
}

impl Ring {
    /// A ring of `entries`.
    ///
    /// # Errors
    /// [`RingError`] unless `entries` is a power of two.
    pub const fn new(entries: u32) -> Result<Self, RingError> {
        if entries.is_power_of_two() { Ok(Self { entries }) } else { Err(RingError { entries }) }
    }

    /// Its depth.
    pub const fn entries(self) -> u32 {
        self.entries
    }

    /// The slot of the request with this count.
    pub const fn slot(self, counter: u32) -> u32 {
        counter & (self.entries - 1)
    }

    /// The send queue's phase for this count: 0 on the first lap, then alternating
    /// (`EFA_IO_TX_META_DESC_PHASE_MASK`).
    pub const fn phase(self, counter: u32) -> bool {
        counter & self.entries != 0
    }

    /// The doorbell value once requests up to (not including) `counter` are written: the low 16
    /// bits, zero-extended, whatever the depth.
    pub const fn doorbell(self, counter: u32) -> u32 {
        counter & 0xffff
    }
}

/// How far a doorbell moved: from the 16-bit value seen before to `value`, of which the low 16
/// bits count (some posters write a 32-bit counter). More than 32,768 means it moved backwards.
pub const fn doorbell_advance(previous: u16, value: u32) -> u16 {
    (value as u16).wrapping_sub(previous)
}

/// A consumer's place in a completion queue: the phase starts at 1 and flips with each lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionCursor {
    ring: Ring,
    consumed: u32,
}

impl CompletionCursor {
    /// At the start of a fresh queue.
    pub const fn new(ring: Ring) -> Self {
        Self { ring, consumed: 0 }
    }

    /// The slot to look at.
    pub const fn slot(self) -> u32 {
        self.ring.slot(self.consumed)
    }

    /// The phase that a new completion there has.
    pub const fn phase(self) -> bool {
        !self.ring.phase(self.consumed)
    }

    /// Completions consumed so far, modulo 2^32.
    pub const fn consumed(self) -> u32 {
        self.consumed
    }

    /// To the next slot.
    pub const fn advance(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }
}
