//! A queue registered with a proxy: what the caller supplies, what it gets, and how the registration ends.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use efa_gda_sys::device::{EFA_GDA_SQ_RECORD, efa_gda_sq};

use super::handoff::Handoff;
use super::mode::DoorbellMode;
use super::port::{Copying, Words};
use super::proxy::DoorbellProxy;
use super::proxy_queues::{End, Shared};
use super::store::{BLOCK, BlockCopy};
#[cfg(doc)]
use crate::ErrorKind;
use crate::memory::{Buffer, page_size};
use crate::{Error, Result};

/// The most entries, or completions, that one visit copies, so that a busy queue does not delay the others. A detach
/// makes as many visits as it needs.
const COPIED_AT_ONCE: u32 = 256;

/// A ring as the adapter exposes it, at addresses of this process, and what the host does for it.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// The first entry.
    pub buffer: NonNull<u8>,
    /// The adapter's doorbell, which takes the low 16 bits of the producer index, or of the consumer index. Only a
    /// completion queue may have none.
    pub doorbell: Option<NonNull<u32>>,
    /// Bytes of an entry: 64 or 128; of a completion a multiple of 8.
    pub entry_size: u32,
    /// Entries of the ring: a power of two, at most 32768; of a completion queue at most 65536.
    pub num_entries: u32,
    /// What the host does.
    pub service: Service,
}

/// What a doorbell proxy does for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Rings for a send queue ([`DoorbellMode::Record`]).
    Record {
        /// Entries that may be written past the last doorbell that the adapter received; at least 1.
        max_batch: u32,
    },
    /// Copies entries to a send queue and rings ([`DoorbellMode::Staged`]).
    Staged {
        /// As in [`Service::Record`].
        max_batch: u32,
        /// Bytes of the widest store; at least 8.
        store_bytes: u32,
    },
    /// Copies the completions of a completion queue.
    Relay,
}

impl Ring {
    /// Checks what no adapter exposes.
    pub(super) fn check(&self) -> Result<()> {
        let Self { buffer, doorbell, entry_size, num_entries, service } = *self;
        let (deepest, entries, alignment) = match service {
            Service::Relay => {
                // Those of a send and of a receive queue together.
                let deepest = 2 * efa_gda_wire::DEEPEST_WORK_QUEUE;
                (deepest, entry_size != 0 && entry_size.is_multiple_of(8), 8)
            }
            Service::Record { max_batch } | Service::Staged { max_batch, .. } => {
                let right = matches!(entry_size, 64 | 128) && max_batch > 0 && doorbell.is_some();
                (efa_gda_wire::DEEPEST_WORK_QUEUE, right, BLOCK)
            }
        };
        let stores = !matches!(service, Service::Staged { store_bytes: ..8, .. });
        let right = entries
            && stores
            && num_entries.is_power_of_two()
            && num_entries <= deepest
            && buffer.as_ptr().addr().is_multiple_of(alignment)
            && doorbell.is_none_or(NonNull::is_aligned);
        if right {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "a ring with num_entries {num_entries} and entry_size {entry_size} cannot be registered for {service:?}; \
             expected: for a send queue a power of two of at most 32768 entries of 64 or 128 bytes, a max_batch of at \
             least 1, stores of at least 8 bytes, a buffer at a multiple of 64 and a doorbell at a multiple of 4; for a \
             completion queue a power of two of at most 65536 entries of a multiple of 8 bytes and a buffer at a multiple \
             of 8"
        )))
    }

    /// Bytes of all entries.
    pub(super) fn bytes(&self) -> usize {
        self.num_entries as usize * self.entry_size as usize
    }
}

impl DoorbellProxy {
    /// Registers a queue, which the proxy serves from now on.
    ///
    /// No request of a send queue may be in flight. `index` is the producer index that its last doorbell carried; for
    /// [`Service::Staged`] no entry past it may be posted yet.
    ///
    /// For [`Service::Relay`], `index` is the consumer index, modulo 2^32: every earlier completion was read, and the
    /// adapter's doorbell, if it has one, holds its low 16 bits. Device code must count completions only from the copy,
    /// not by completion counters ("No overrun" in the module's documentation).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a ring that no adapter has, or a proxy that was stopped;
    /// [`ErrorKind::OutOfMemory`].
    ///
    /// # Safety
    /// `ring` must state the size of the ring that is at its address. The caller must keep the ring readable, and the
    /// doorbell mapped and writable, until the result is dropped or [`Registration::detach`] returns, and must let no
    /// other thread or device store to the doorbell; for [`Service::Staged`] the ring must be writable, and no other
    /// may store to it. A device that uses [`Registration::record`] and [`Registration::buffer`] must reuse slots as
    /// the module's documentation states ("Reuse of slots"), and must stop before the result is dropped.
    pub unsafe fn register(&self, ring: Ring, index: u32) -> Result<Registration> {
        ring.check()?;
        let Ring { num_entries, entry_size, .. } = ring;
        let first = if ring.service == Service::Relay { index & 0xffff } else { index };
        let record = self.record(first);
        let record = record.ok_or_else(|| no_memory(page_size()))?;
        let (copying, limit, batch) = match ring.service {
            Service::Record { max_batch } => {
                let limit = num_entries.min(max_batch);
                (Copying::Nothing, limit, limit)
            }
            Service::Staged { max_batch, store_bytes } => {
                let copying = Copying::Staged(BlockCopy::of_at_most(store_bytes));
                (copying, num_entries, max_batch.min(COPIED_AT_ONCE))
            }
            Service::Relay => (Copying::Completions, num_entries, COPIED_AT_ONCE),
        };
        let bytes = ring.bytes();
        let copy = match copying {
            Copying::Nothing => None,
            _ => Some(Buffer::zeroed(bytes).ok_or_else(|| no_memory(bytes))?),
        };
        let words = Words {
            copying,
            record: record.as_ptr(),
            doorbell: ring.doorbell.map(NonNull::cast),
            adapter: ring.buffer,
            host: copy.as_ref().map_or(ring.buffer, Buffer::start),
            num_entries,
            entry_size,
        };
        if copy.is_some() {
            words.prepare(index);
        }
        let handoff = match ring.service {
            Service::Relay => Handoff::relay(words, index, limit, batch),
            _ => Handoff::new(words, index, limit, batch),
        };
        let shared = Arc::new(Shared::new(record, copy));
        self.add(handoff, shared.clone())?;
        Ok(Registration::new(shared, self.clone(), ring))
    }
}

fn no_memory(bytes: usize) -> Error {
    Error::out_of_memory(bytes).within("a doorbell record, staging ring or copy of a completion queue")
}

/// A queue registered with a proxy. A drop detaches it ([`Self::detach`]).
#[derive(Debug)]
pub struct Registration {
    shared: Arc<Shared>,
    proxy: DoorbellProxy,
    ring: Ring,
}

// SAFETY: this type only returns the ring's pointers and never dereferences them; the proxy dereferences its own copies
// under its lock.
unsafe impl Send for Registration {}
// SAFETY: as for Send.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(shared: Arc<Shared>, proxy: DoorbellProxy, ring: Ring) -> Self {
        Self { shared, proxy, ring }
    }

    /// The doorbell mode of a send queue.
    pub(crate) fn mode(&self) -> DoorbellMode {
        match self.ring.service {
            Service::Record { .. } => DoorbellMode::Record,
            Service::Staged { .. } => DoorbellMode::Staged,
            Service::Relay => DoorbellMode::Direct,
        }
    }

    /// The ring that the device uses: the staging ring, the copy of the completion queue, or the adapter's.
    pub fn buffer(&self) -> NonNull<u8> {
        self.shared.copy.as_ref().map_or(self.ring.buffer, Buffer::start)
    }

    /// Where the device stores its producer index, all 32 bits, or the low 16 bits of its consumer index.
    pub fn record(&self) -> &AtomicU32 {
        self.shared.record.word()
    }

    /// Redirects a queue struct to this registration's ring and record, at addresses of this process. `sq` must be the
    /// struct of mode `direct`, because mode `record` keeps its `max_batch`, which is the adapter's.
    pub(crate) fn redirect(&self, sq: &mut efa_gda_sq) {
        sq.buffer = self.buffer().as_ptr();
        sq.doorbell = self.record().as_ptr();
        sq.flags |= EFA_GDA_SQ_RECORD;
        if self.mode() == DoorbellMode::Staged {
            // Ordinary memory has no batch window; the proxy keeps the batch window of the adapter.
            sq.max_batch = self.ring.num_entries;
        }
    }

    /// Adds an alarm, which ends the waits of the queue's kernels: the proxy calls it when it stops serving this queue,
    /// or this method does at once if that has happened.
    ///
    /// An alarm stores [`End::status`] in the word that the waits read, unless another registration stored a status
    /// there. It may ignore [`End::Detached`] if the queue may then be rung in another mode. The proxy calls it under
    /// its lock and that of the registration, and takes no status back. It must neither call nor drop the proxy or a
    /// registration. The proxy logs a panic, and raises the other alarms; one in this call passes to the caller.
    pub fn add_alarm(&self, alarm: impl Fn(End) + Send + Sync + 'static) {
        let mut alarms = self.shared.alarms();
        if let Some(end) = self.ended() {
            alarm(end);
        }
        alarms.push(Box::new(alarm));
    }

    /// How the registration ended; `None` while the proxy serves the queue.
    pub fn ended(&self) -> Option<End> {
        self.shared.end.get().map(|(end, _)| *end)
    }

    /// Entries of a send queue before the device's record, as it is now, for which the proxy never rang; 0 while the
    /// proxy rings. The number grows if the device stores the record after the end. After [`End::Fault`] the record is
    /// invalid, and so is this number.
    pub fn unrung(&self) -> u32 {
        // The end is loaded first: a record loaded before it could be behind the last doorbell.
        let Some((_, doorbell_index)) = self.shared.end.get() else { return 0 };
        self.record().load(Ordering::Acquire).wrapping_sub(*doorbell_index)
    }

    /// Takes the queue from the proxy. The proxy rings for every record stored before this call, or copies every
    /// completion written before it, and raises the alarms. Afterwards it does not touch the ring, its doorbell, the
    /// record or the copy; entries posted later may stay unrung. Returns how the registration ended, by this call or
    /// earlier.
    pub fn detach(&self) -> End {
        self.proxy.detach(&self.shared);
        // `detach` ends every registration that had not ended.
        self.ended().unwrap_or(End::Detached)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.detach();
    }
}
