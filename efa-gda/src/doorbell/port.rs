//! A queue's words in this process's memory, as the proxy reaches them.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::handoff::{Fault, Port};
use super::store::{BLOCK, BlockCopy, order_stores};

/// Bit 0 of an entry's byte 3, ctrl2 (`EFA_IO_TX_META_DESC_PHASE`), in the entry's first word.
const PHASE: u32 = 1 << 24;

/// Pointers to a record and a doorbell. The memory is kept by whoever attached the queue, until it
/// detaches it.
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub(super) record: NonNull<AtomicU32>,
    pub(super) doorbell: NonNull<AtomicU32>,
}

// SAFETY: `DoorbellProxy::serve`'s caller vouches for the memory for every thread; the lock of the proxy
// gives the words to one at a time.
unsafe impl Send for Words {}

impl Port for Words {
    const PLACES: bool = false;

    #[inline]
    fn record(&self) -> u32 {
        // SAFETY: a record that the queue's `Registration` keeps. Acquire: entries below it are visible.
        unsafe { self.record.as_ref() }.load(Ordering::Acquire)
    }

    fn place(&self, _: u32, _: u32) -> Result<(), Fault> {
        Ok(())
    }

    #[inline]
    fn ring(&self, counter: u32) {
        // SAFETY: the adapter's doorbell, mapped until the queue is detached; only the proxy stores
        // to it. Release, so that an adapter that is another thread sees the entries. One instruction
        // of 4 bytes on every platform.
        unsafe { self.doorbell.as_ref() }.store((counter & 0xffff).to_le(), Ordering::Release);
    }
}

/// The words of a queue, and from where to where its entries are copied.
pub(super) struct Staging {
    pub(super) words: Words,
    pub(super) from: NonNull<u8>,
    pub(super) to: NonNull<u8>,
    /// A power of two.
    pub(super) num_entries: u32,
    pub(super) entry_size: usize,
    pub(super) copy: BlockCopy,
}

// SAFETY: as for `Words`.
unsafe impl Send for Staging {}

impl Port for Staging {
    const PLACES: bool = true;

    #[inline]
    fn record(&self) -> u32 {
        self.words.record()
    }

    fn place(&self, first: u32, count: u32) -> Result<(), Fault> {
        self.check_written(first, count)?;
        let blocks = |entries: u32| entries as usize * self.entry_size / BLOCK;
        let before_wrap = count.min(self.num_entries - (first & (self.num_entries - 1)));
        let (at, again) = (self.offset(first), blocks(count - before_wrap));
        // SAFETY: both ranges lie in both rings, which the caller of `DoorbellProxy::serve` vouches for; only
        // the proxy writes the send queue, and the device leaves staged entries alone until they
        // completed, after the doorbell that follows.
        unsafe {
            self.copy.run(self.from.as_ptr().add(at), self.to.as_ptr().add(at), blocks(before_wrap));
            self.copy.run(self.from.as_ptr(), self.to.as_ptr(), again);
        }
        // Before the doorbell that covers them.
        order_stores();
        Ok(())
    }

    #[inline]
    fn ring(&self, counter: u32) {
        self.words.ring(counter);
        // The next entries are written after this doorbell: it is what opens the batch.
        order_stores();
    }
}

impl Staging {
    /// Marks every slot of a staging ring as not written, for counters from `counter` on.
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
        // SAFETY: inside the staging ring, which lives as long as the port, at a multiple of 64.
        // Device code stores these bytes as parts of wider words, before the record that covers them
        // or after the completion that frees them.
        unsafe { self.from.add(self.offset(counter)).cast().as_ref() }
    }

    fn check_written(&self, first: u32, count: u32) -> Result<(), Fault> {
        for counter in (0..count).map(|index| first.wrapping_add(index)) {
            let head = u32::from_le(self.head(counter).load(Ordering::Relaxed));
            if (head & PHASE != 0) != self.phase(counter) {
                return Err(Fault::Unwritten { counter });
            }
        }
        Ok(())
    }
}
