//! Rings and doorbells: memory that clients, including GPUs, share with the engine. This file has every
//! access of the device core to it. Each is atomic, and no Rust reference to the bytes exists except to
//! atomics.
//!
//! # Protocol
//! The table of `engine.rs` has the words, their owners and orders. Why they suffice (a control thread that initializes
//! or flushes a queue counts as the engine):
//!
//! - *Entry before doorbell.* The client's release store of the doorbell ([`Doorbell::ring`], or a fence on
//!   a GPU) pairs with the engine's acquire load ([`Doorbell::value`]). So the engine loads whole entries. It
//!   loads them as relaxed words of 8 bytes. A client that changes a covered entry breaks a rule, but causes no
//!   undefined behaviour, because all accesses are atomic. The checker finds only changes in a send queue that
//!   come after the unwritten pattern (`SendRing::entry_unchanged`).
//! - *Slot reuse in a send queue.* The client may write the entry with index `i + entries` into the slot of
//!   entry `i` when `i + 1` completions of this queue's requests are visible to it, whichever requests they are
//!   for. One of them is for entry `i` or a later one, and the engine fetches entries in order, so it has stored
//!   the unwritten pattern into the slot before the release store of that completion. The client stores its
//!   next entry after its acquire load of that completion. So the pattern never overwrites the client's
//!   next entry.
//! - *Slot reuse in a receive queue.* The client may write the slots of a receive again when the completion
//!   of that receive is visible to it. The engine stored the pattern before the release store of that
//!   completion.
//! - *Reading ahead.* To find batches that are too long, the engine loads the first word of a slot past the
//!   batch (acquire), then the doorbell (acquire). A client that obeys `max_batch` rings the doorbell before
//!   it writes that slot, with a fence between the two stores ([`Doorbell::ring`] has one). The fence pairs
//!   with the acquire load of the slot. So if the engine loads a written slot and the old doorbell, the client
//!   wrote the entry first and broke the rule.
//! - *Completions.* The engine writes the payload, then bytes 8 to 31 of the completion (relaxed), then bytes
//!   0 to 7 (release). They hold the phase bit, the request id (of 64 bits the low 32), the status and the
//!   queue pair, so these are always visible together. A client that loads bytes 0 to 7 with acquire and finds
//!   the phase of its lap sees the rest of the completion and the payload, except late writes (`relaxed.rs`).
//! - *Consumer index.* The client's store of the completion-queue doorbell (release, or after a fence) comes
//!   after its loads of the completions; it pairs with the engine's acquire load. So the engine overwrites a slot
//!   only after the client has read it. Until the client has reported an index, the engine overwrites slots
//!   regardless.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::error::DeviceError;

/// Bytes of a page, the unit in which clients map and register memory.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;
/// Largest advance of a work-queue doorbell. A larger one ([`efa_gda_wire::doorbell_advance`] is modulo 2^16)
/// means that the doorbell moved backwards.
pub(crate) const MAX_DOORBELL_ADVANCE: u16 = 1 << 15;

/// Memory of a ring, or of a page of doorbells, that the engine shares with clients.
pub struct RingMemory {
    start: NonNull<u8>,
    length: usize,
    backing: Backing,
}

enum Backing {
    Owned(Layout),
    External { _owner: Option<Arc<dyn Any + Send + Sync>> },
}

// SAFETY: the memory is owned, or the caller of `from_raw` guarantees that every thread may access it for
// the life of this value; this type accesses it through atomics only.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingMemory({:p}, {} bytes)", self.start, self.length)
    }
}

impl RingMemory {
    /// Allocates zeroed pages that hold at least `bytes`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if the allocator has no such memory.
    pub fn allocate(bytes: usize) -> Result<Arc<Self>, DeviceError> {
        let length =
            bytes.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or(DeviceError::OutOfMemory(bytes))?;
        let layout =
            Layout::from_size_align(length, PAGE_BYTES).map_err(|_| DeviceError::OutOfMemory(bytes))?;
        // SAFETY: the layout's size is at least a page.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(DeviceError::OutOfMemory(bytes))?;
        Ok(Arc::new(Self { start, length, backing: Backing::Owned(layout) }))
    }

    /// Wraps memory of a frontend or client. The result holds `owner`, which may keep the memory alive.
    ///
    /// # Safety
    /// The `length` bytes at `start` must stay mapped, readable and writable for the life of the result. Rust
    /// code must access them only through atomics; code in C, on a GPU or in another process may access them
    /// as shared memory.
    ///
    /// # Errors
    /// [`DeviceError::RingMemory`] unless `start` is a multiple of 8.
    pub unsafe fn from_raw(
        start: NonNull<u8>,
        length: usize,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Arc<Self>, DeviceError> {
        if !start.as_ptr().addr().is_multiple_of(8) {
            let reason = format!("its address {start:p} is not a multiple of 8");
            return Err(DeviceError::RingMemory { queue: "ring", reason });
        }
        Ok(Arc::new(Self { start, length, backing: Backing::External { _owner: owner } }))
    }

    /// The first byte, for clients that store through pointers.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Stores `bytes` at `offset` in relaxed words of 8, as a client does that writes an entry.
    ///
    /// # Panics
    /// If `offset` or the length is not a multiple of 8, or the range is not inside the memory.
    pub fn store(&self, offset: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "entries are stored in words of 8 bytes");
        for (index, word) in words.iter().enumerate() {
            self.word(offset + 8 * index).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    /// Loads `into.len()` bytes from `offset` in relaxed words of 8. A client that polls completions must
    /// first load the word with the phase bit by [`RingMemory::load_word_acquire`].
    ///
    /// # Panics
    /// If `offset` or the length is not a multiple of 8, or the range is not inside the memory.
    #[inline]
    pub fn load(&self, offset: usize, into: &mut [u8]) {
        let (words, rest) = into.as_chunks_mut::<8>();
        assert!(rest.is_empty(), "entries are loaded in words of 8 bytes");
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.word(offset + 8 * index).load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    /// Loads the 8 bytes at `offset` with acquire: everything that was stored before their release store is
    /// visible to later loads.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8, or the word is not inside the memory.
    #[inline]
    pub fn load_word_acquire(&self, offset: usize) -> [u8; 8] {
        self.word(offset).load(Ordering::Acquire).to_ne_bytes()
    }

    /// Stores 8 bytes at `offset` with release: after everything that this thread stored before.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8, or the word is not inside the memory.
    #[inline]
    pub(crate) fn store_word_release(&self, offset: usize, word: [u8; 8]) {
        self.word(offset).store(u64::from_ne_bytes(word), Ordering::Release);
    }

    /// Prefetches the cache line at `offset` for writing, because another core has it. Does nothing if
    /// `offset` is outside the memory.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.length {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: a prefetch has no effect that a program can observe, and the address is inside the
            // memory.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.start.as_ptr().add(offset).cast()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Fills `length` bytes from `offset` with `word`, relaxed.
    #[inline]
    pub(crate) fn fill(&self, offset: usize, length: usize, word: [u8; 8]) {
        for at in (offset..offset + length).step_by(8) {
            self.word(at).store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// Whether the `length` bytes from `offset` consist of `word` alone.
    #[inline]
    pub(crate) fn is_filled(&self, offset: usize, length: usize, word: [u8; 8]) -> bool {
        let word = u64::from_ne_bytes(word);
        (offset..offset + length).step_by(8).all(|at| self.word(at).load(Ordering::Relaxed) == word)
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.length));
        // SAFETY: the word is inside the memory, which lives as long as self, and aligned: `start` and
        // `offset` are multiples of 8. This type accesses it through atomics only, and the caller of
        // `from_raw` guarantees the same for other Rust code.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset.checked_add(4).is_some_and(|end| end <= self.length));
        // SAFETY: as in `word`, for 4 bytes.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        if let Backing::Owned(layout) = self.backing {
            // SAFETY: `allocate` allocated the memory with this layout, and only this drop frees it.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

/// A doorbell: 4 bytes on a page, which may hold other doorbells too.
#[derive(Clone)]
pub struct Doorbell {
    page: Arc<RingMemory>,
    offset: usize,
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Doorbell({:p})", self.as_ptr())
    }
}

impl Doorbell {
    /// The doorbell at `offset` of `page`.
    ///
    /// # Errors
    /// [`DeviceError::RingMemory`] if `offset` is not a multiple of 4, or the doorbell is not inside the
    /// page.
    pub fn new(page: Arc<RingMemory>, offset: usize) -> Result<Self, DeviceError> {
        if !offset.is_multiple_of(4) || offset.checked_add(4).is_none_or(|end| end > page.len()) {
            let reason = format!(
                "its offset {offset} must be a multiple of 4 inside the page of {} bytes",
                page.len()
            );
            return Err(DeviceError::RingMemory { queue: "doorbell", reason });
        }
        Ok(Self { page, offset })
    }

    /// The page that holds it.
    pub fn page(&self) -> &Arc<RingMemory> {
        &self.page
    }

    /// Its offset in the page, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its address, for clients that store through pointers.
    pub fn as_ptr(&self) -> *mut u32 {
        // `new` checked that the offset is inside the page.
        self.page.as_ptr().wrapping_add(self.offset).cast()
    }

    /// Rings the doorbell. The release store pairs with the load in `Doorbell::value`: everything that this
    /// thread stored before is visible to the engine that loads `value`. The fence orders the doorbell
    /// before every later store of this thread, which the check for long batches needs ("Reading ahead"
    /// above).
    pub fn ring(&self, value: u32) {
        self.page.half_word(self.offset).store(value.to_le(), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Loads the value with acquire: the entries that it covers are visible afterwards. Pairs with
    /// [`Doorbell::ring`].
    #[inline]
    pub(crate) fn value(&self) -> u32 {
        u32::from_le(self.page.half_word(self.offset).load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bytes_than_an_address_space_has_are_refused() {
        let refused = RingMemory::allocate(usize::MAX);
        assert!(matches!(refused, Err(DeviceError::OutOfMemory(usize::MAX))), "{refused:?}");
    }
}
