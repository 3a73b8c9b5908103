//! Records: words that a device and the proxy share, a doorbell record for each queue that the proxy rings, and a
//! consumer index for each relay. The records of one proxy share pages that hold nothing else, so that the pages can be
//! registered with a GPU.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::memory::{Buffer, page_size};

/// Bytes from one record to the next: a cache line, so that a device's store invalidates no other queue's record.
const RECORD_BYTES: usize = 64;

/// A word into which a device stores its producer index or, for a relay, its consumer index. A record is not reused
/// while its page lives, so a late store of a device whose queue was detached, but whose registration still exists,
/// reaches no other queue.
#[derive(Clone, Debug)]
pub(super) struct Record {
    word: NonNull<AtomicU32>,
    /// Keeps the word's page allocated.
    _page: Arc<Buffer>,
}

// SAFETY: the word is an atomic on a page that the value keeps allocated.
unsafe impl Send for Record {}
// SAFETY: as for Send.
unsafe impl Sync for Record {}

impl Record {
    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: the word is on a zeroed page that lives as long as `self`, at a multiple of 64; devices store whole
        // words to it.
        unsafe { self.word.as_ref() }
    }

    pub(super) fn as_ptr(&self) -> NonNull<AtomicU32> {
        self.word
    }
}

/// Allocates records side by side, so that a round over many queues touches few pages.
#[derive(Debug, Default)]
pub(super) struct Records {
    page: Mutex<Option<(Arc<Buffer>, usize)>>,
}

impl Records {
    /// Allocates a record that holds `index`; `None` if memory is short.
    pub(super) fn take(&self, index: u32) -> Option<Record> {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        let full = page.as_ref().is_none_or(|(page, used)| used + RECORD_BYTES > page.len());
        if full {
            *page = Some((Arc::new(Buffer::zeroed(page_size())?), 0));
        }
        let (memory, used) = page.as_mut()?;
        // SAFETY: `used + RECORD_BYTES` is at most the page's size, checked above.
        let word = unsafe { memory.start().add(*used) }.cast();
        *used += RECORD_BYTES;
        let record = Record { word, _page: memory.clone() };
        record.word().store(index, Ordering::Release);
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_has_a_cache_line_of_its_own_and_is_never_reused() {
        let records = Records::default();
        let all: Vec<_> = (0..1000).map(|counter| records.take(counter).unwrap()).collect();
        let mut addresses: Vec<_> = all.iter().map(|record| record.as_ptr().as_ptr() as usize).collect();
        assert!(addresses.iter().all(|address| address.is_multiple_of(RECORD_BYTES)));
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 1000);
        assert!(
            all.iter().zip(0..).all(|(record, counter)| record.word().load(Ordering::Relaxed) == counter)
        );
    }

    #[test]
    fn a_record_outlives_its_allocator() {
        let records = Records::default();
        let record = records.take(5).unwrap();
        drop(records);
        assert_eq!(record.word().load(Ordering::Relaxed), 5);
    }
}
