//! Memory between a device and the proxy: doorbell records and staging rings. Whole pages, which
//! belong to nobody else, so that they can be registered with a GPU.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes from one record to the next: a cache line, so that a device's store disturbs one queue.
const RECORD_BYTES: usize = 64;

/// Zeroed pages.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned, and reached through raw pointers and atomics only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `bytes`; None when memory is short.
    pub(super) fn zeroed(bytes: usize) -> Option<Self> {
        let page = page_bytes();
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(page)?, page).ok()?;
        // SAFETY: the layout's size is at least a page.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `zeroed`, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

fn page_bytes() -> usize {
    // SAFETY: takes a number and answers one.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).ok().filter(|page| page.is_power_of_two()).unwrap_or(4096)
}

/// A word into which a device stores its producer counter. Never handed out twice: what a device
/// that was forgotten still stores there troubles no other queue.
#[derive(Clone, Debug)]
pub(super) struct Record {
    word: NonNull<AtomicU32>,
    /// Keeps the word's page.
    _page: Arc<Pages>,
}

// SAFETY: the word is an atomic on a page that the value keeps.
unsafe impl Send for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}

impl Record {
    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: on a zeroed page that lives as long as `self`, at a multiple of 64; devices store
        // whole words to it.
        unsafe { self.word.as_ref() }
    }

    pub(super) fn as_ptr(&self) -> NonNull<AtomicU32> {
        self.word
    }
}

/// Hands out records, side by side, so that a round over many touches few pages.
#[derive(Debug, Default)]
pub(super) struct Records {
    page: Mutex<Option<(Arc<Pages>, usize)>>,
}

impl Records {
    /// A record that holds `counter`; None when memory is short.
    pub(super) fn take(&self, counter: u32) -> Option<Record> {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        let full = page.as_ref().is_none_or(|(page, used)| used + RECORD_BYTES > page.layout.size());
        if full {
            *page = Some((Arc::new(Pages::zeroed(1)?), 0));
        }
        let (memory, used) = page.as_mut()?;
        // SAFETY: the page has this many bytes, as was checked.
        let word = unsafe { memory.start.add(*used) }.cast();
        *used += RECORD_BYTES;
        let record = Record { word, _page: memory.clone() };
        record.word().store(counter, Ordering::Release);
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_lie_on_lines_of_their_own_and_are_never_the_same() {
        let records = Records::default();
        let all: Vec<_> = (0..1000).map(|counter| records.take(counter).unwrap()).collect();
        let mut places: Vec<_> = all.iter().map(|record| record.as_ptr().as_ptr() as usize).collect();
        assert!(places.iter().all(|place| place.is_multiple_of(RECORD_BYTES)));
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 1000);
        assert!(
            all.iter().zip(0..).all(|(record, counter)| record.word().load(Ordering::Relaxed) == counter)
        );
    }

    #[test]
    fn a_record_outlives_the_place_that_it_came_from() {
        let records = Records::default();
        let record = records.take(5).unwrap();
        drop(records);
        assert_eq!(record.word().load(Ordering::Relaxed), 5);
    }
}
