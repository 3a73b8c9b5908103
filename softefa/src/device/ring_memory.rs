//! Rings and doorbells: memory that client threads, or a GPU, share with the engine. No reference
//! is ever made over its bytes; every access is atomic, and all of it is in this file.
//!
//! # Protocol
//! | word | who stores | who loads |
//! |---|---|---|
//! | send- and receive-queue slots | the client, before the doorbell that covers them; the engine, over a slot that it has fetched (`unwritten` pattern) | the engine |
//! | work-queue doorbells | the client | the engine |
//! | completion slots | the engine | the client |
//! | completion doorbell | the client | the engine |
//!
//! - *Entry before doorbell.* The client makes its entries visible before the doorbell (a release
//!   store, or a fence on a GPU). The engine loads the doorbell with acquire, then the entries, so it
//!   sees them whole. Loads of an entry are relaxed words of 8 bytes: an entry that changes meanwhile
//!   is the client's mistake, which the checker names, and a data race on atomics is no undefined
//!   behaviour.
//! - *Slot reuse.* A slot is the client's again once as many completions are visible as there were
//!   requests up to it. The engine's store of the unwritten pattern comes before the release store
//!   that makes the completion visible; the client's store to the slot comes after its acquire load
//!   of that completion. So the client's entry is never overwritten.
//! - *Looking ahead.* The engine loads a slot past the batch with acquire, then the doorbell. Where
//!   the slot is written and the doorbell that would allow it is not there, the client stored the
//!   entry first: a client that keeps the rule makes the doorbell visible before the entry.
//! - *Completions.* Payload, then the completion's body (relaxed), then the 8 bytes with the flags
//!   (release), phase bit among them. A client that loads the flags with acquire sees all of it.
//!   The word that holds the flags also holds the request id, status and queue pair, so these can
//!   never be seen without each other.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::error::DeviceError;

/// Bytes of a page, which is what clients map and register.
pub const PAGE_BYTES: usize = 4096;

/// Shared memory of a ring or of a page of doorbells.
pub struct RingMemory {
    start: NonNull<u8>,
    length: usize,
    backing: Backing,
}

enum Backing {
    Owned(Layout),
    Given { _keep: Option<Arc<dyn Any + Send + Sync>> },
}

// SAFETY: the memory is owned, or vouched for by `given`'s caller for every thread; all access is
// through atomics.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingMemory({:p}, {} bytes)", self.start, self.length)
    }
}

impl RingMemory {
    /// Zeroed pages that hold at least `bytes`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn allocate(bytes: usize) -> Result<Arc<Self>, DeviceError> {
        let length = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let layout =
            Layout::from_size_align(length, PAGE_BYTES).map_err(|_| DeviceError::OutOfMemory(bytes))?;
        // SAFETY: the layout's size is at least a page.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(DeviceError::OutOfMemory(bytes))?;
        Ok(Arc::new(Self { start, length, backing: Backing::Owned(layout) }))
    }

    /// Memory that a face or client gives. `keep` is held as long as this value, to keep the memory
    /// alive.
    ///
    /// # Safety
    /// The `length` bytes at `start` stay mapped, readable and writable for the life of the result,
    /// and every access of others is as to shared memory: from C, another process, or atomics.
    ///
    /// # Errors
    /// [`DeviceError::RingMemory`] unless `start` is a multiple of 8.
    pub unsafe fn given(
        start: NonNull<u8>,
        length: usize,
        keep: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Arc<Self>, DeviceError> {
        if !start.as_ptr().addr().is_multiple_of(8) {
            let why = format!("{start:p} is not a multiple of 8");
            return Err(DeviceError::RingMemory { queue: "ring", why });
        }
        Ok(Arc::new(Self { start, length, backing: Backing::Given { _keep: keep } }))
    }

    /// The first byte, for clients that store through pointers.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Stores `bytes` at `offset`, in words of 8, relaxed: what a client that writes an entry does.
    ///
    /// # Panics
    /// Unless both are multiples of 8 and inside.
    pub fn store(&self, offset: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "entries are stored in words of 8 bytes");
        for (index, word) in words.iter().enumerate() {
            self.word(offset + 8 * index).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    /// Loads `into.len()` bytes from `offset`, in words of 8, relaxed. A poller loads the word with
    /// the flags by [`RingMemory::load_word_acquire`] before.
    ///
    /// # Panics
    /// Unless both are multiples of 8 and inside.
    #[inline]
    pub fn load(&self, offset: usize, into: &mut [u8]) {
        let (words, rest) = into.as_chunks_mut::<8>();
        assert!(rest.is_empty(), "entries are loaded in words of 8 bytes");
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.word(offset + 8 * index).load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    /// The 8 bytes at `offset`; what was stored before them with release is visible afterwards.
    ///
    /// # Panics
    /// Unless `offset` is a multiple of 8 and inside.
    #[inline]
    pub fn load_word_acquire(&self, offset: usize) -> [u8; 8] {
        self.word(offset).load(Ordering::Acquire).to_ne_bytes()
    }

    /// Stores 8 bytes at `offset`, after everything that this thread stored before.
    ///
    /// # Panics
    /// Unless `offset` is a multiple of 8 and inside.
    #[inline]
    pub(crate) fn store_word_release(&self, offset: usize, word: [u8; 8]) {
        self.word(offset).store(u64::from_ne_bytes(word), Ordering::Release);
    }

    /// Starts to bring the cache line at `offset` here, to be written: the other side's core has it.
    /// Anything outside is left alone.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.length {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: a prefetch accesses nothing as far as the program can tell, and the address is
            // inside the memory anyway.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.start.as_ptr().add(offset).cast()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Stores `word` over `length` bytes from `offset`, relaxed.
    #[inline]
    pub(crate) fn fill(&self, offset: usize, length: usize, word: [u8; 8]) {
        for at in (offset..offset + length).step_by(8) {
            self.word(at).store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// Whether all of `length` bytes from `offset` are `word` again and again.
    #[inline]
    pub(crate) fn is_filled(&self, offset: usize, length: usize, word: [u8; 8]) -> bool {
        let word = u64::from_ne_bytes(word);
        (offset..offset + length).step_by(8).all(|at| self.word(at).load(Ordering::Relaxed) == word)
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.length));
        // SAFETY: inside the memory, which lives as long as self, and aligned (`start` is a multiple
        // of 8, `offset` too); all Rust access is atomic, and others' is theirs to make so.
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
            // SAFETY: allocated with this layout in `allocate`, freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

/// A doorbell: 4 bytes on a page that it shares with others.
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
    /// [`DeviceError::RingMemory`] unless `offset` is a multiple of 4 and inside.
    pub fn new(page: Arc<RingMemory>, offset: usize) -> Result<Self, DeviceError> {
        if !offset.is_multiple_of(4) || offset.checked_add(4).is_none_or(|end| end > page.len()) {
            let why = format!("offset {offset} must be a multiple of 4 inside {} bytes", page.len());
            return Err(DeviceError::RingMemory { queue: "doorbell", why });
        }
        Ok(Self { page, offset })
    }

    /// The page that it lies on.
    pub fn page(&self) -> &Arc<RingMemory> {
        &self.page
    }

    /// Bytes from the start of its page.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its address, for clients that store through pointers.
    pub fn as_ptr(&self) -> *mut u32 {
        // `new` checked that the offset is inside, so this stays in the page's memory.
        self.page.as_ptr().wrapping_add(self.offset).cast()
    }

    /// Rings it, with what this thread stored before visible to the engine; and, as the fence that a
    /// client needs between doorbell and next entry, before anything that it stores afterwards.
    pub fn ring(&self, value: u32) {
        self.page.half_word(self.offset).store(value.to_le(), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Its value, with the entries that it covers visible afterwards.
    #[inline]
    pub(crate) fn value(&self) -> u32 {
        u32::from_le(self.page.half_word(self.offset).load(Ordering::Acquire))
    }
}
