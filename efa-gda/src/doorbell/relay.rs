//! Completions that the proxy relays: it copies each new entry of an adapter's completion queue to a ring in ordinary
//! memory, for a device that cannot map the completion queue.
//!
//! The copy has the depth, the entry size and the phases of the original, and entry `i` of one is entry `i` of the
//! other. So device code polls the copy as it polls a completion queue, and everything that a completion carries
//! reaches it: receives, errors, and their request ids.
//!
//! | word | written by | read by | ordered by |
//! |---|---|---|---|
//! | entries of the completion queue | the adapter: the body, then the 8 bytes that hold the phase | the proxy: those 8 bytes with acquire, then the body | [`order_after_device_load`] between the two |
//! | entries of the copy | the proxy: the body, then the 8 bytes that hold the phase, with release | the device: those 8 bytes, then the body (`cq.h`, B1) | [`order_stores`] between the two |
//! | consumer index | the device, after it read completions (`cq.h`, `cq.doorbell`) | the proxy, with acquire | `cq.h`, B2 |
//! | the adapter's completion doorbell, if it has one | the proxy: the consumer index | the adapter | the acquire load of the consumer index |
//!
//! **No overrun.** The proxy does not wait for free entries of the copy. It overwrites entry `i` with entry `i + depth`
//! only after the adapter did the same, and device code keeps the adapter from that: it counts a request as completed
//! only after it read the completion in the copy. A proxy that lags delays these counts, so it does not fall behind by
//! more than the depth. Completions that no count bounds (of writes with immediate that use no posted receive) can
//! overrun the copy as they can overrun the completion queue. On a queue with completion counters, device code counts
//! requests whose completions it has not read. Such a queue is therefore never relayed.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::handoff::RecordFault;
use super::proxy::{COPIED_AT_ONCE, DoorbellProxy};
use super::proxy_queues::Visited;
use super::registration::{Alarm, End, RegisterError, Shared};
use super::store::{order_after_device_load, order_stores};
use crate::memory::Buffer;

/// Bit 0 of a completion's byte 3, its flags (`EFA_IO_CDESC_COMMON_PHASE`), in the completion's first word.
const PHASE: u64 = 1 << 24;
/// The most entries of a completion queue: those of a send and of a receive queue together.
const DEEPEST: u32 = 2 * efa_gda_wire::DEEPEST_WORK_QUEUE;

/// A completion queue as the adapter exposes it, at addresses of this process.
#[derive(Clone, Copy, Debug)]
pub struct CompletionRing {
    /// The first entry.
    pub buffer: NonNull<u8>,
    /// The adapter's word for the consumer index, if it has one.
    pub doorbell: Option<NonNull<u32>>,
    /// Bytes of an entry: a multiple of 8.
    pub entry_size: u32,
    /// Entries of the ring: a power of two, at most 65536.
    pub num_entries: u32,
}

/// A completion queue that a proxy relays. A drop ends that: the proxy does not touch the queue's memory afterwards.
pub struct CompletionRelay {
    shared: Arc<Shared>,
    proxy: DoorbellProxy,
    ring: CompletionRing,
}

// SAFETY: this type never dereferences the ring's pointers; the proxy dereferences its own copies under its lock.
unsafe impl Send for CompletionRelay {}
// SAFETY: as for Send.
unsafe impl Sync for CompletionRelay {}

impl fmt::Debug for CompletionRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionRelay").field("ring", &self.ring).field("shared", &self.shared).finish()
    }
}

impl DoorbellProxy {
    /// Relays the completions of `ring` from now on, beginning with the completion of number `index` (modulo 2^32).
    ///
    /// # Errors
    /// [`RegisterError`].
    ///
    /// # Safety
    /// The caller must keep the ring readable and its doorbell writable until the result is dropped, and must let no
    /// other thread or device store to the doorbell. A device that reads [`CompletionRelay::buffer`] or stores to
    /// [`CompletionRelay::consumed`] must stop before the result is dropped.
    pub unsafe fn relay(&self, ring: CompletionRing, index: u32) -> Result<CompletionRelay, RegisterError> {
        let CompletionRing { buffer, doorbell, entry_size, num_entries } = ring;
        if !num_entries.is_power_of_two()
            || num_entries > DEEPEST
            || entry_size == 0
            || !entry_size.is_multiple_of(8)
            || !buffer.as_ptr().addr().is_multiple_of(8)
            || doorbell.is_some_and(|doorbell| !doorbell.is_aligned())
        {
            return Err(RegisterError::CompletionGeometry { num_entries, entry_size });
        }
        let bytes = num_entries as usize * entry_size as usize;
        let record = self.record(index & 0xffff)?;
        let copy = Buffer::zeroed(bytes).ok_or(RegisterError::NoMemory { bytes })?;
        let relay = Relay {
            from: buffer,
            to: copy.start(),
            entry_size: entry_size as usize,
            num_entries,
            index,
            consumed: record.as_ptr(),
            doorbell: doorbell.map(NonNull::cast),
            last_doorbell: index & 0xffff,
        };
        relay.prepare();
        let shared = Arc::new(Shared::new(record, Some(copy), Vec::new()));
        self.add(|queues| queues.relayed.add(relay, shared.clone()))?;
        Ok(CompletionRelay { shared, proxy: self.clone(), ring })
    }
}

impl CompletionRelay {
    /// The first entry of the copy, which the device polls.
    pub fn buffer(&self) -> NonNull<u8> {
        self.shared.staging.as_ref().map_or(self.ring.buffer, Buffer::start)
    }

    /// Where the device stores its consumer index, which the proxy passes on to the adapter.
    pub fn consumed(&self) -> &AtomicU32 {
        self.shared.record.word()
    }

    /// Adds an alarm that is raised when the proxy stops relaying, or at once if it has stopped.
    pub fn add_alarm(&self, alarm: Arc<dyn Alarm>) {
        self.shared.add_alarm(alarm);
    }

    /// How the relay ended; `None` while the proxy relays.
    pub fn ended(&self) -> Option<End> {
        self.shared.ended()
    }
}

impl Drop for CompletionRelay {
    fn drop(&mut self) {
        self.proxy.detach(&self.shared);
    }
}

/// How far the proxy has copied one completion queue.
pub(super) struct Relay {
    from: NonNull<u8>,
    to: NonNull<u8>,
    entry_size: usize,
    /// A power of two.
    num_entries: u32,
    /// Number of the next completion, modulo 2^32.
    index: u32,
    /// The device's consumer index.
    consumed: NonNull<AtomicU32>,
    doorbell: Option<NonNull<AtomicU32>>,
    /// The last value of the adapter's doorbell.
    last_doorbell: u32,
}

// SAFETY: the caller of `DoorbellProxy::relay` guarantees that the memory is valid for every thread, and the proxy's
// lock gives one thread at a time access.
unsafe impl Send for Relay {}

impl Visited for Relay {
    #[inline]
    fn visit(&mut self) -> Result<u32, RecordFault> {
        let mut count = 0;
        while count < COPIED_AT_ONCE && self.copy_next() {
            count += 1;
        }
        self.pass_on_consumed();
        Ok(count)
    }

    fn last_visit(&mut self) -> Result<(), RecordFault> {
        for _ in 0..=self.num_entries / COPIED_AT_ONCE {
            if self.visit()? == 0 {
                break;
            }
        }
        Ok(())
    }

    fn index(&self) -> u32 {
        self.index
    }
}

impl Relay {
    /// Marks every entry of the copy as not written.
    fn prepare(&self) {
        for index in (0..self.num_entries).map(|ahead| self.index.wrapping_add(ahead)) {
            let unwritten = if self.phase(index) { 0 } else { PHASE };
            self.word(self.to, index, 0).store(unwritten.to_le(), Ordering::Relaxed);
        }
    }

    fn phase(&self, index: u32) -> bool {
        index & self.num_entries == 0
    }

    /// The 8 bytes at `offset` of a completion, in the original or in the copy.
    fn word(&self, ring: NonNull<u8>, index: u32, offset: usize) -> &AtomicU64 {
        let entry = (index & (self.num_entries - 1)) as usize * self.entry_size;
        // SAFETY: inside the ring, at a multiple of 8. The caller of `DoorbellProxy::relay` keeps the original mapped,
        // and its `Shared` the copy. The original is only loaded; the adapter stores its words whole.
        unsafe { ring.add(entry + offset).cast().as_ref() }
    }

    /// Copies the next completion. Returns false if the adapter has not written it.
    #[inline]
    fn copy_next(&mut self) -> bool {
        let head = self.word(self.from, self.index, 0).load(Ordering::Acquire);
        if (u64::from_le(head) & PHASE != 0) != self.phase(self.index) {
            return false;
        }
        order_after_device_load();
        for offset in (8..self.entry_size).step_by(8) {
            let word = self.word(self.from, self.index, offset).load(Ordering::Relaxed);
            self.word(self.to, self.index, offset).store(word, Ordering::Relaxed);
        }
        order_stores();
        self.word(self.to, self.index, 0).store(head, Ordering::Release);
        self.index = self.index.wrapping_add(1);
        true
    }

    /// Passes the device's consumer index on to the adapter.
    #[inline]
    fn pass_on_consumed(&mut self) {
        let Some(doorbell) = self.doorbell else { return };
        // SAFETY: `Shared` keeps the word allocated.
        let consumed = unsafe { self.consumed.as_ref() }.load(Ordering::Acquire);
        if consumed != self.last_doorbell {
            self.last_doorbell = consumed;
            // SAFETY: the caller of `DoorbellProxy::relay` keeps the adapter's doorbell mapped until the relay ends,
            // and lets only the proxy store to it.
            unsafe { doorbell.as_ref() }.store((consumed & 0xffff).to_le(), Ordering::Release);
        }
    }
}
