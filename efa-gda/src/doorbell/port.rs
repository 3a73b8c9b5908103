//! Access to a queue's record, doorbell and entries in this process's memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::handoff::{PHASE, Port, RecordFault, copy_new};
use super::store::{BLOCK, BlockCopy, order_after_device_load, order_stores};

/// What [`Port::place`] copies.
#[derive(Clone, Copy)]
pub(super) enum Copying {
    /// Nothing: the device writes the send queue.
    Nothing,
    /// Entries of a staging ring, to the send queue.
    Staged(&'static BlockCopy),
    /// Completions, to the copy of a completion queue.
    Completions,
}

/// The words of a queue. The caller of `DoorbellProxy::register` keeps the adapter's mapped until the queue is detached.
/// The queue's `Shared`, which the proxy holds beside this port, keeps the host's allocated.
pub(super) struct Words {
    pub(super) copying: Copying,
    pub(super) record: NonNull<AtomicU32>,
    /// None if the adapter takes no consumer index.
    pub(super) doorbell: Option<NonNull<AtomicU32>>,
    /// The adapter's ring.
    pub(super) adapter: NonNull<u8>,
    /// The staging ring, or the copy of the completion queue; the adapter's ring if nothing is copied.
    pub(super) host: NonNull<u8>,
    /// A power of two.
    pub(super) num_entries: u32,
    /// Bytes: 64 or 128, or a multiple of 8 for completions.
    pub(super) entry_size: u32,
}

// SAFETY: the caller of `DoorbellProxy::register` guarantees that the memory is valid for every thread, and the proxy's
// lock gives one thread at a time access.
unsafe impl Send for Words {}

impl Port for Words {
    #[inline]
    fn record(&self) -> u32 {
        // SAFETY: the queue's `Shared`, which the proxy holds beside this port, keeps the record allocated. Acquire,
        // with the `order_after_device_load` of `place` and `ring`, pairs with the device's system fence before its
        // store of the record.
        unsafe { self.record.as_ref() }.load(Ordering::Acquire)
    }

    #[inline]
    fn place(&self, first: u32, count: u32) -> Result<u32, RecordFault> {
        match self.copying {
            Copying::Nothing => Ok(count),
            Copying::Staged(copy) => self.place_staged(copy, first, count),
            Copying::Completions => Ok(self.copy_completions(first, count)),
        }
    }

    #[inline]
    fn ring(&self, index: u32) {
        // The device stored the entries before the record that this thread loaded; the doorbell follows both.
        order_after_device_load();
        if let Some(doorbell) = self.doorbell {
            // SAFETY: the caller of `DoorbellProxy::register` keeps the adapter's doorbell mapped until the queue is
            // detached, and lets only the proxy store to it. Release pairs with the acquire load of a software adapter's
            // thread, which then sees the entries. The store is one 4-byte instruction on every platform.
            unsafe { doorbell.as_ref() }.store((index & 0xffff).to_le(), Ordering::Release);
        }
        if let Copying::Staged(_) = self.copying {
            // Entries placed later follow this doorbell, which opens the next batch window.
            order_stores();
        }
    }
}

impl Words {
    /// Marks every slot of the host's ring as not written from `index` on. `register` calls this before a device has the
    /// ring's address, and only if something is copied.
    pub(super) fn prepare(&self, index: u32) {
        for next in (0..self.num_entries).map(|ahead| index.wrapping_add(ahead)) {
            let unwritten = if self.phase(next) { 0 } else { PHASE };
            self.word(self.host, next, 0).store(unwritten.to_le(), Ordering::Relaxed);
        }
    }

    // Not inlined, so that a visit in mode `record`, which copies nothing, stays short.
    #[inline(never)]
    fn place_staged(&self, copy: &BlockCopy, first: u32, count: u32) -> Result<u32, RecordFault> {
        // Entries are loaded after the record that covers them.
        order_after_device_load();
        self.check_written(first, count)?;
        let blocks = |entries: u32| entries as usize * self.entry_size as usize / BLOCK;
        let before_wrap = count.min(self.num_entries - (first & (self.num_entries - 1)));
        let (at, again) = (self.offset(first), blocks(count - before_wrap));
        // SAFETY: both ranges lie in both rings, at multiples of 64: `place` is called for at most `num_entries`
        // entries, the caller of `DoorbellProxy::register` guarantees the send queue's size, and `register` checked its
        // start; the staging ring begins at a page. Only the proxy writes the send queue. The device rewrites a staged
        // entry only after completions that show that the proxy has copied it ("Reuse of slots" in the module's
        // documentation).
        unsafe {
            copy.run(self.host.as_ptr().add(at), self.adapter.as_ptr().add(at), blocks(before_wrap));
            copy.run(self.host.as_ptr(), self.adapter.as_ptr(), again);
        }
        // The entries reach the adapter before the doorbell that covers them.
        order_stores();
        Ok(count)
    }

    fn check_written(&self, first: u32, count: u32) -> Result<(), RecordFault> {
        for index in (0..count).map(|ahead| first.wrapping_add(ahead)) {
            let head = u64::from_le(self.word(self.host, index, 0).load(Ordering::Relaxed));
            if (head & PHASE != 0) != self.phase(index) {
                return Err(RecordFault::Unwritten { index });
            }
        }
        Ok(())
    }

    // As `place_staged`.
    #[inline(never)]
    fn copy_completions(&self, first: u32, count: u32) -> u32 {
        let head = |index| u64::from_le(self.word(self.adapter, index, 0).load(Ordering::Acquire));
        let copy = |index, head: u64| {
            order_after_device_load();
            for offset in (8..self.entry_size as usize).step_by(8) {
                let word = self.word(self.adapter, index, offset).load(Ordering::Relaxed);
                self.word(self.host, index, offset).store(word, Ordering::Relaxed);
            }
            order_stores();
            self.word(self.host, index, 0).store(head.to_le(), Ordering::Release);
        };
        copy_new(self.num_entries, (first, count), head, copy)
    }

    /// The phase bit of an entry: that of the first lap is 0 in a send queue, and 1 in a completion queue.
    fn phase(&self, index: u32) -> bool {
        (index & self.num_entries != 0) != matches!(self.copying, Copying::Completions)
    }

    fn offset(&self, index: u32) -> usize {
        (index & (self.num_entries - 1)) as usize * self.entry_size as usize
    }

    /// The 8 bytes at `offset` of an entry of one of the rings.
    fn word(&self, ring: NonNull<u8>, index: u32, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the ring, which lives as long as the port, at a multiple of 8. The adapter stores words of its
        // completion queue whole. Device code stores these bytes of a staging ring as parts of wider words, after the
        // completion that frees the slot and before the record that covers them, so never while the proxy reads them.
        unsafe { ring.add(self.offset(index) + offset).cast().as_ref() }
    }
}
