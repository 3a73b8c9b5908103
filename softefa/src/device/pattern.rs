//! The unwritten pattern: the content of a work-queue slot that the client has not written on this lap.
//!
//! The adapter writes it into every slot when the queue is created, and again after it has fetched an
//! entry. So the checker finds entries that were not written, were half written, or changed
//! afterwards.
//!
//! Clients never read work queues, because hardware maps them write-only. The pattern is in a slot before
//! the client may write the slot again; `ring_memory.rs` has the ordering.

use super::ring_memory::RingMemory;

/// Offset of the byte whose bit 0 is the phase bit (`efa_io_tx_meta_desc::ctrl2`, `efa_io_defs.h`).
const PHASE_BYTE: usize = 3;

/// 8 random bytes of one queue. A client writes the same word by accident with a probability of 2^-63.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwritten([u8; 8]);

impl Unwritten {
    pub(crate) fn new(random: u64) -> Self {
        Self(random.to_ne_bytes())
    }

    /// The word for a slot whose next entry will have the phase bit `phase`. Its own phase bit is the
    /// opposite.
    #[inline]
    fn word(self, phase: bool) -> [u8; 8] {
        let mut word = self.0;
        word[PHASE_BYTE] = (word[PHASE_BYTE] & !1) | u8::from(!phase);
        word
    }

    /// Fills the slot of `length` bytes at `offset`. Its next entry will have the phase bit `phase`.
    #[inline]
    pub(crate) fn fill(self, memory: &RingMemory, offset: usize, length: usize, phase: bool) {
        memory.fill(offset, length, self.word(phase));
    }

    /// Whether the first 8 bytes of the slot hold anything but the pattern. The acquire load pairs with a
    /// fence of the client: what the client stored before that fence is visible afterwards.
    #[inline]
    pub(crate) fn is_written(self, memory: &RingMemory, offset: usize, phase: bool) -> bool {
        memory.load_word_acquire(offset) != self.word(phase)
    }

    /// Whether the slot holds the pattern alone, as [`Unwritten::fill`] wrote it.
    #[inline]
    pub(crate) fn is_intact(self, memory: &RingMemory, offset: usize, length: usize, phase: bool) -> bool {
        memory.is_filled(offset, length, self.word(phase))
    }

    /// Offset of the first word that the client did not write, among those for which `is_used` is true.
    #[inline]
    pub(crate) fn first_unwritten_word(
        self,
        entry: &[u8],
        phase: bool,
        is_used: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let word = self.word(phase);
        let words = entry.as_chunks::<8>().0.iter().enumerate();
        words.filter(|(_, found)| **found == word).map(|(index, _)| 8 * index).find(|offset| is_used(*offset))
    }
}
