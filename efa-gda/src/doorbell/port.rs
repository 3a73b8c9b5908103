//! Access to a queue's record, doorbell and entries in this process's memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::handoff::{Port, RecordFault};
use super::store::{BLOCK, BlockCopy, order_after_device_load, order_stores};

/// Bit 0 of an entry's byte 3, ctrl2 (`EFA_IO_TX_META_DESC_PHASE`), in the entry's first word.
const PHASE: u32 = 1 << 24;

/// Pointers to a record and a doorbell. The caller of `DoorbellProxy::register` keeps the doorbell mapped until the
/// queue is detached. The queue's `Shared`, which the proxy holds beside this port, keeps the record allocated.
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub(super) record: NonNull<AtomicU32>,
    pub(super) doorbell: NonNull<AtomicU32>,
}

// SAFETY: the caller of `DoorbellProxy::register` guarantees that the memory is valid for every thread, and the proxy's
// lock gives one thread at a time access.
unsafe impl Send for Words {}

impl Port for Words {
    const PLACES: bool = false;

    #[inline]
    fn record(&self) -> u32 {
        // SAFETY: the queue's `Shared`, which the proxy holds beside this port, keeps the record allocated. Acquire,
        // with the `order_after_device_load` of `place` and `ring`, pairs with the device's system fence before its
        // store of the record.
        unsafe { self.record.as_ref() }.load(Ordering::Acquire)
    }

    fn place(&self, _: u32, _: u32) -> Result<(), RecordFault> {
        Ok(())
    }

    #[inline]
    fn ring(&self, index: u32) {
        // The device stored the entries before the record that this thread loaded; the doorbell follows both.
        order_after_device_load();
        // SAFETY: the caller of `DoorbellProxy::register` keeps the adapter's doorbell mapped until the queue is
        // detached, and lets only the proxy store to it. Release pairs with the acquire load of a software adapter's
        // thread, which then sees the entries. The store is one 4-byte instruction on every platform.
        unsafe { self.doorbell.as_ref() }.store((index & 0xffff).to_le(), Ordering::Release);
    }
}

/// The words of a staged queue, its staging ring and its send queue.
pub(super) struct Staging {
    pub(super) words: Words,
    pub(super) from: NonNull<u8>,
    pub(super) to: NonNull<u8>,
    /// A power of two.
    pub(super) num_entries: u32,
    pub(super) entry_size: usize,
    pub(super) copy: BlockCopy,
}

// SAFETY: as for `Words`; the queue's `Shared` keeps the staging ring allocated too.
unsafe impl Send for Staging {}

impl Port for Staging {
    const PLACES: bool = true;

    #[inline]
    fn record(&self) -> u32 {
        self.words.record()
    }

    fn place(&self, first: u32, count: u32) -> Result<(), RecordFault> {
        // Entries are loaded after the record that covers them.
        order_after_device_load();
        self.check_written(first, count)?;
        let blocks = |entries: u32| entries as usize * self.entry_size / BLOCK;
        let before_wrap = count.min(self.num_entries - (first & (self.num_entries - 1)));
        let (at, again) = (self.offset(first), blocks(count - before_wrap));
        // SAFETY: both ranges lie in both rings, at multiples of 64: `place` is called for at most `num_entries`
        // entries, the caller of `DoorbellProxy::register` guarantees the send queue's size, and `register` checked its
        // start; the staging ring begins at a page. Only the proxy writes the send queue. The device rewrites a staged
        // entry only after completions that show that the proxy has copied it ("Reuse of slots" in the module's
        // documentation).
        unsafe {
            self.copy.run(self.from.as_ptr().add(at), self.to.as_ptr().add(at), blocks(before_wrap));
            self.copy.run(self.from.as_ptr(), self.to.as_ptr(), again);
        }
        // The entries reach the adapter before the doorbell that covers them.
        order_stores();
        Ok(())
    }

    #[inline]
    fn ring(&self, index: u32) {
        self.words.ring(index);
        // Entries placed later follow this doorbell, which opens the next batch window.
        order_stores();
    }
}

impl Staging {
    /// Marks every slot of the staging ring as not written for producer indices from `counter` on. `register` calls
    /// this before a device has the ring's address.
    pub(super) fn prepare(&self, counter: u32) {
        for next in (0..self.num_entries).map(|ahead| counter.wrapping_add(ahead)) {
            let unwritten = if self.phase(next) { 0 } else { PHASE };
            self.head(next).store(unwritten.to_le(), Ordering::Relaxed);
        }
    }

    fn phase(&self, counter: u32) -> bool {
        counter & self.num_entries != 0
    }

    fn offset(&self, counter: u32) -> usize {
        (counter & (self.num_entries - 1)) as usize * self.entry_size
    }

    fn head(&self, counter: u32) -> &AtomicU32 {
        // SAFETY: the word is inside the staging ring, which lives as long as the port, at a multiple of 64. Device
        // code stores these bytes as parts of wider words, after the completion that frees the slot and before the
        // record that covers them, so never while the proxy reads them.
        unsafe { self.from.add(self.offset(counter)).cast().as_ref() }
    }

    fn check_written(&self, first: u32, count: u32) -> Result<(), RecordFault> {
        for counter in (0..count).map(|index| first.wrapping_add(index)) {
            let head = u32::from_le(self.head(counter).load(Ordering::Relaxed));
            if (head & PHASE != 0) != self.phase(counter) {
                return Err(RecordFault::Unwritten { index: counter });
            }
        }
        Ok(())
    }
}
