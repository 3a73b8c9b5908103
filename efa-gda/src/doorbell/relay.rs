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
//! | entries of the copy | the proxy: the body, then the 8 bytes that hold the phase, with release; before it, `relay` marks every entry as not written | the device: those 8 bytes, then the body (`cq.h`, B1) | [`order_stores`] between the two |
//! | consumer index, 16 bits of it | the device, after it read completions (`cq.h`, `cq.doorbell`); before it, `relay` | the proxy, with acquire | `cq.h`, B2 |
//! | the adapter's completion doorbell, if it has one | the proxy: the consumer index, with release | the adapter | that release; the proxy loaded these entries before the store, because the device had already read their copies |
//!
//! **No overrun.** The proxy does not wait for free entries of the copy. It overwrites entry `i` with entry `i + depth`
//! only after the adapter did the same, and device code keeps the adapter from that: it counts a request, or a
//! posted receive, only after it read the completion in the copy. A proxy that lags delays these counts, so it does not
//! fall behind by more than the depth. Completions that no count bounds (of writes with immediate that use no posted
//! receive) can overrun the copy as they can overrun the completion queue (`cq.h`, NO OVERRUN). On a queue with
//! completion counters, device code counts requests whose completions it has not read. `GpuQueue` therefore relays no
//! such queue.
//!
//! The words are behind [`RelayPort`], so that the model checker (`model.rs`) can supply its own.

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
pub(super) const PHASE: u64 = 1 << 24;
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

/// A completion queue that a proxy relays. A drop ends the relay; the proxy then no longer touches the queue's memory.
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
    /// That must be the consumer index: every earlier completion was read, and the adapter's doorbell, if it has one,
    /// holds the low 16 bits of `index`. Device code must count completions only from the copy, not by completion
    /// counters (`relay.rs`, "No overrun").
    ///
    /// # Errors
    /// [`RegisterError`].
    ///
    /// # Safety
    /// `ring` must state the size of the completion queue that is at its address. The caller must keep the ring
    /// readable and its doorbell writable until the result is dropped, and must let no other thread or device store to
    /// the doorbell. A device that reads [`CompletionRelay::buffer`] or stores to
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
        let words = CompletionWords {
            from: buffer,
            to: copy.start(),
            entry_size: entry_size as usize,
            num_entries,
            consumed: record.as_ptr(),
            doorbell: doorbell.map(NonNull::cast),
        };
        words.prepare(index);
        let shared = Arc::new(Shared::new(record, Some(copy), Vec::new()));
        self.add(|queues| queues.relayed.add(Relay::new(words, num_entries, index), shared.clone()))?;
        Ok(CompletionRelay { shared, proxy: self.clone(), ring })
    }
}

impl CompletionRelay {
    /// The first entry of the copy, which the device polls.
    pub fn buffer(&self) -> NonNull<u8> {
        self.shared.staging.as_ref().map_or(self.ring.buffer, Buffer::start)
    }

    /// Where the device stores the low 16 bits of its consumer index, which the proxy passes on to the adapter.
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

/// Access to the words of one completion queue and its copy. An entry is its *head*, the 8 bytes that hold the phase,
/// and its body.
pub(super) trait RelayPort {
    /// Loads the head of entry `index` of the completion queue, with acquire.
    fn head(&self, index: u32) -> u64;

    /// Copies entry `index`, whose head is `head` and new: the body, then the head with release.
    fn copy(&self, index: u32, head: u64);

    /// Loads the low 16 bits of the device's consumer index, with acquire; `None` if the adapter has no doorbell for
    /// it.
    fn consumed(&self) -> Option<u32>;

    /// Stores a consumer index into the adapter's doorbell, with release.
    fn ring(&self, consumed: u32);
}

/// One completion queue as the proxy relays it: its words, and the number of the next completion to copy.
pub(super) struct Relay<P> {
    port: P,
    /// A power of two.
    num_entries: u32,
    /// Number of the next completion, modulo 2^32.
    index: u32,
    /// The last value of the adapter's doorbell.
    last_doorbell: u32,
}

impl<P: RelayPort> Visited for Relay<P> {
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

impl<P: RelayPort> Relay<P> {
    /// A completion queue of `num_entries` entries whose next completion has the number `index`.
    pub(super) fn new(port: P, num_entries: u32, index: u32) -> Self {
        Self { port, num_entries, index, last_doorbell: index & 0xffff }
    }

    /// Copies the next completion. Returns false if the adapter has not written it.
    #[inline]
    fn copy_next(&mut self) -> bool {
        let head = self.port.head(self.index);
        if (head & PHASE != 0) != phase(self.num_entries, self.index) {
            return false;
        }
        self.port.copy(self.index, head);
        self.index = self.index.wrapping_add(1);
        true
    }

    /// Passes the device's consumer index on to the adapter.
    #[inline]
    fn pass_on_consumed(&mut self) {
        let Some(consumed) = self.port.consumed() else { return };
        if consumed != self.last_doorbell {
            self.last_doorbell = consumed;
            self.port.ring(consumed);
        }
    }
}

/// The phase bit of completion `index`.
fn phase(num_entries: u32, index: u32) -> bool {
    index & num_entries == 0
}

/// A completion queue, its copy, the device's consumer index and the adapter's doorbell.
pub(super) struct CompletionWords {
    from: NonNull<u8>,
    to: NonNull<u8>,
    entry_size: usize,
    /// A power of two.
    num_entries: u32,
    consumed: NonNull<AtomicU32>,
    doorbell: Option<NonNull<AtomicU32>>,
}

// SAFETY: the caller of `DoorbellProxy::relay` guarantees that the memory is valid for every thread, and the proxy's
// lock gives one thread at a time access.
unsafe impl Send for CompletionWords {}

impl CompletionWords {
    /// Marks every entry of the copy, from number `index` on, as not written.
    fn prepare(&self, index: u32) {
        for next in (0..self.num_entries).map(|ahead| index.wrapping_add(ahead)) {
            let unwritten = if phase(self.num_entries, next) { 0 } else { PHASE };
            self.word(self.to, next, 0).store(unwritten.to_le(), Ordering::Relaxed);
        }
    }

    /// The 8 bytes at `offset` of a completion, in the original or in the copy.
    fn word(&self, ring: NonNull<u8>, index: u32, offset: usize) -> &AtomicU64 {
        let entry = (index & (self.num_entries - 1)) as usize * self.entry_size;
        // SAFETY: inside the ring, at a multiple of 8. The caller of `DoorbellProxy::relay` keeps the original mapped,
        // and its `Shared` the copy. The original is only loaded; the adapter stores its words whole.
        unsafe { ring.add(entry + offset).cast().as_ref() }
    }
}

impl RelayPort for CompletionWords {
    #[inline]
    fn head(&self, index: u32) -> u64 {
        u64::from_le(self.word(self.from, index, 0).load(Ordering::Acquire))
    }

    #[inline]
    fn copy(&self, index: u32, head: u64) {
        order_after_device_load();
        for offset in (8..self.entry_size).step_by(8) {
            let word = self.word(self.from, index, offset).load(Ordering::Relaxed);
            self.word(self.to, index, offset).store(word, Ordering::Relaxed);
        }
        order_stores();
        self.word(self.to, index, 0).store(head.to_le(), Ordering::Release);
    }

    #[inline]
    fn consumed(&self) -> Option<u32> {
        self.doorbell?;
        // SAFETY: the relay's `Shared`, which the proxy holds beside this port, keeps the word allocated.
        Some(unsafe { self.consumed.as_ref() }.load(Ordering::Acquire))
    }

    #[inline]
    fn ring(&self, consumed: u32) {
        if let Some(doorbell) = self.doorbell {
            // SAFETY: the caller of `DoorbellProxy::relay` keeps the adapter's doorbell mapped until the relay ends,
            // and lets only the proxy store to it.
            unsafe { doorbell.as_ref() }.store((consumed & 0xffff).to_le(), Ordering::Release);
        }
    }
}
