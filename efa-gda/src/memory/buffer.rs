//! Host memory that this library allocates.

use std::alloc::Layout;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::region::in_bounds;
use crate::Result;

/// Zeroed host memory on pages that hold nothing else, so that the adapter reaches no other data.
///
/// The adapter may read and write the memory at any time. A buffer is therefore never lent as a slice:
/// bytes are copied in and out.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    layout: Layout,
}

// SAFETY: the buffer owns the memory, and accesses it through raw pointers only.
unsafe impl Send for Buffer {}
// SAFETY: as above. All accesses are relaxed atomics, so copies that race with each other, or with an
// adapter that is a thread of this process, mix bytes but are no data race.
unsafe impl Sync for Buffer {}

/// Returns the bytes of a page of the host.
pub(crate) fn page_size() -> usize {
    // SAFETY: `sysconf` takes and returns a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).ok().filter(|page| page.is_power_of_two()).unwrap_or(4096)
}

/// Bytes of the words that a buffer is copied in.
const WORD: usize = size_of::<u64>();

impl Buffer {
    /// Allocates `length` zeroed bytes. None where memory is short or the length is not possible.
    ///
    /// Buffers of 64 KiB and more are aligned to 64 KiB, the largest page in use on hosts with EFA;
    /// shorter ones to the host's pages.
    pub fn zeroed(length: usize) -> Option<Self> {
        const LARGE: usize = 64 << 10;
        let page = if length >= LARGE { LARGE } else { page_size() };
        let rounded = length.max(1).checked_next_multiple_of(page)?;
        let layout = Layout::from_size_align(rounded, page).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self { start, length, layout })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) where they do not fit; nothing is copied then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let range = in_bounds(offset as u64, bytes.len() as u64, self.length as u64)?;
        let (head, words, tail) = self.parts(range);
        let (first, rest) = bytes.split_at(head.len());
        let (middle, last) = rest.split_at(words.len() * WORD);
        for (to, from) in head.iter().zip(first).chain(tail.iter().zip(last)) {
            to.store(*from, Ordering::Relaxed);
        }
        for (to, from) in words.iter().zip(middle.as_chunks::<WORD>().0) {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies from `offset` until `bytes` is full.
    ///
    /// Bytes that the adapter writes during the copy may be old, new or mixed. After a completion with
    /// status 0 they are new, unless the region has [`RegionOrdering::Relaxed`](super::RegionOrdering::Relaxed).
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) where the buffer has fewer bytes; nothing is copied then.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let range = in_bounds(offset as u64, bytes.len() as u64, self.length as u64)?;
        let (head, words, tail) = self.parts(range);
        let (first, rest) = bytes.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(words.len() * WORD);
        for (from, to) in head.iter().zip(first).chain(tail.iter().zip(last)) {
            *to = from.load(Ordering::Relaxed);
        }
        for (from, to) in words.iter().zip(middle.as_chunks_mut::<WORD>().0) {
            *to = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    /// Splits a range of the buffer into bytes up to a word boundary, aligned words, and the bytes after
    /// them. The range must lie in the buffer.
    fn parts(&self, range: Range<usize>) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        let head = range.start.next_multiple_of(WORD).min(range.end) - range.start;
        let words = (range.len() - head) / WORD;
        let tail = range.len() - head - words * WORD;
        // SAFETY: the three parts follow each other in the allocation, which lives as long as the borrow.
        // Words, where there are any, are aligned: the buffer begins on a page, and the bytes before the
        // words end on a word boundary. Atomics may be shared.
        unsafe {
            let start = self.start.as_ptr().add(range.start);
            (
                std::slice::from_raw_parts(start.cast(), head),
                if words == 0 { &[] } else { std::slice::from_raw_parts(start.add(head).cast(), words) },
                std::slice::from_raw_parts(start.add(head + words * WORD).cast(), tail),
            )
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `zeroed` allocated the memory with this layout. A region that owns the buffer is
        // deregistered before it drops the buffer.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}
