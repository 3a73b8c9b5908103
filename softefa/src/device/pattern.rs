//! The pattern of a slot that nobody has written on this lap. The adapter puts it into every slot of
//! a work queue, at first and again once it has fetched an entry, so that an entry that was not
//! written, or only half, or changed afterwards is seen for sure and not by luck.
//!
//! Clients never read work queues (hardware maps them write-only), and by the time they may write a
//! slot again the pattern is there; the protocol is in [`super::ring_memory`].

use super::ring_memory::RingMemory;

/// Byte of an entry that holds the phase bit (`efa_io_tx_meta_desc::ctrl2`), bit 0.
const PHASE_BYTE: usize = 3;

/// 8 bytes that a client writes by chance once in 2^63 words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwritten([u8; 8]);

impl Unwritten {
    pub(crate) fn new(random: u64) -> Self {
        Self(random.to_ne_bytes())
    }

    /// The word of a slot whose next entry will have the phase bit `phase`: it has the other one.
    #[inline]
    fn word(self, phase: bool) -> [u8; 8] {
        let mut word = self.0;
        word[PHASE_BYTE] = (word[PHASE_BYTE] & !1) | u8::from(!phase);
        word
    }

    /// Fills the `length` bytes of a slot at `offset` before its next entry, of phase `phase`.
    #[inline]
    pub(crate) fn fill(self, memory: &RingMemory, offset: usize, length: usize, phase: bool) {
        memory.fill(offset, length, self.word(phase));
    }

    /// Whether anything but the pattern stands in the first 8 bytes of the slot; what was stored
    /// before them is visible afterwards.
    #[inline]
    pub(crate) fn begun(self, memory: &RingMemory, offset: usize, phase: bool) -> bool {
        memory.load_word_acquire(offset) != self.word(phase)
    }

    /// Whether the slot is as [`Unwritten::fill`] left it.
    #[inline]
    pub(crate) fn untouched(self, memory: &RingMemory, offset: usize, length: usize, phase: bool) -> bool {
        memory.is_filled(offset, length, self.word(phase))
    }

    /// Offset of the first word, among those that `used` names, that was not written.
    #[inline]
    pub(crate) fn first_in(self, entry: &[u8], phase: bool, used: impl Fn(usize) -> bool) -> Option<usize> {
        let word = self.word(phase);
        let words = entry.as_chunks::<8>().0.iter().enumerate();
        words.filter(|(_, seen)| **seen == word).map(|(index, _)| 8 * index).find(|offset| used(*offset))
    }
}
