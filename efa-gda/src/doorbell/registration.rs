//! A queue registered with a proxy: what the caller supplies, what it gets, and how the registration ends.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use efa_gda_sys::device::{EFA_GDA_BAD_RECORD, EFA_GDA_PROXY_STOPPED, EFA_GDA_SQ_RECORD, efa_gda_sq};

use super::handoff::RecordFault;
use super::memory::Record;
use super::mode::DoorbellMode;
use super::proxy::DoorbellProxy;
use super::store::BLOCK;
use crate::memory::Buffer;
use crate::status::{DeviceError, outcome};
use crate::{Error, Result};

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

/// See [`Registration::add_alarm`].
type Alarm = Box<dyn Fn(End) + Send + Sync>;

/// How a registration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The registration was detached or dropped. The proxy rang for every record stored before that, and relayed every
    /// completion written before.
    Detached,
    /// The proxy was stopped, with the same last visits, or its thread panicked, without them.
    Stopped,
    /// The doorbell record was bad.
    Fault(RecordFault),
}

impl End {
    /// The error with which waits on the queue end.
    pub fn error(&self) -> DeviceError {
        outcome(self.status()).err().unwrap_or(DeviceError::ProxyStopped)
    }

    /// The status with which waits on the queue end (`enum efa_gda_status`).
    pub fn status(&self) -> u32 {
        match self {
            Self::Fault(_) => EFA_GDA_BAD_RECORD,
            Self::Detached | Self::Stopped => EFA_GDA_PROXY_STOPPED,
        }
    }
}

/// State that the proxy and a [`Registration`] share. Each reference to it keeps the memory of `record` and `copy`
/// allocated.
pub(super) struct Shared {
    /// The doorbell record, or the device's consumer index.
    record: Record,
    /// The staging ring, or the copy of a completion queue.
    copy: Option<Buffer>,
    /// How the registration ended, with the last doorbell's producer index or the number of the next
    /// completion. The proxy sets it once, while it holds the lock of `alarms`; so each alarm is raised once, whether
    /// it was added before or after the end.
    end: OnceLock<(End, u32)>,
    alarms: Mutex<Vec<Alarm>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("record", &self.record.word()).field("end", &self.end).finish()
    }
}

impl Shared {
    pub(super) fn new(record: Record, copy: Option<Buffer>) -> Self {
        Self { record, copy, end: OnceLock::new(), alarms: Mutex::default() }
    }

    fn alarms(&self) -> MutexGuard<'_, Vec<Alarm>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the end and the last index, raises the alarms, and logs a bad record. Does nothing if an end is
    /// recorded.
    pub(super) fn end(&self, end: End, index: u32) {
        let alarms = self.alarms();
        if self.end.set((end, index)).is_err() {
            return;
        }
        for alarm in alarms.iter() {
            if !contain_panic(|| alarm(end)) {
                contain_panic(|| {
                    tracing::error!(
                        ?end,
                        "doorbell proxy: an alarm of a queue panicked, so the queue's waits may end only by their \
                         bounds; mend the alarm"
                    );
                });
            }
        }
        if let End::Fault(fault) = end {
            contain_panic(|| {
                tracing::error!(
                    %fault,
                    doorbell_index = index,
                    record = ?self.record.as_ptr(),
                    "doorbell proxy: the queue with this doorbell record (sq.doorbell of its struct) was removed \
                     because of the fault; its waits end with EFA_GDA_BAD_RECORD; destroy the queue"
                );
            });
        }
    }
}

/// Calls an alarm or logs. Returns whether that did not panic: a panic must not keep the caller from other alarms, of
/// this queue and of others. The proxy reads nothing that the panic may have left half changed.
fn contain_panic(call: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_ok()
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
