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
use crate::memory::Buffer;
use crate::status::{DeviceError, outcome};

/// A send queue as the adapter exposes it, at addresses of this process.
#[derive(Clone, Copy, Debug)]
pub struct SendQueue {
    /// The first entry.
    pub buffer: NonNull<u8>,
    /// The adapter's doorbell, which takes the low 16 bits of the producer index.
    pub doorbell: NonNull<u32>,
    /// Bytes of an entry: 64 or 128.
    pub entry_size: u32,
    /// Entries of the ring: a power of two, at most 32768.
    pub num_entries: u32,
    /// Entries that may be written past the last doorbell that the adapter received; at least 1.
    pub max_batch: u32,
    /// Bytes of the widest store by which the proxy writes staged entries; at least 8.
    pub store_bytes: u32,
}

/// Why a proxy refuses a queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// In mode `direct` the device rings.
    #[error("doorbell mode direct needs no proxy; register the queue as record or staged")]
    Direct,
    /// A geometry, or an address, that no send queue has.
    #[error(
        "a send queue with num_entries {num_entries}, entry_size {entry_size}, max_batch {max_batch} and store_bytes \
         {store_bytes} cannot be registered; expected: a power of two of at most 32768 entries, entries of 64 or 128 \
         bytes, a max_batch of at least 1, stores of at least 8 bytes, a buffer at a multiple of 64 and a doorbell at a \
         multiple of 4"
    )]
    Geometry {
        /// Entries.
        num_entries: u32,
        /// Bytes of one.
        entry_size: u32,
        /// The batch window.
        max_batch: u32,
        /// Bytes of the widest store.
        store_bytes: u32,
    },
    /// A geometry, or an address, that no completion queue has.
    #[error(
        "a completion queue with num_entries {num_entries} and entry_size {entry_size} cannot be relayed; expected: a \
         power of two of at most 65536 entries, entries of a multiple of 8 bytes, a buffer at a multiple of 8 and a \
         doorbell at a multiple of 4"
    )]
    CompletionGeometry {
        /// Entries.
        num_entries: u32,
        /// Bytes of one.
        entry_size: u32,
    },
    /// The proxy was stopped.
    #[error("the doorbell proxy was stopped; start another")]
    Stopped,
    /// No memory for a record, a staging ring or the copy of a completion queue.
    #[error(
        "no memory for {bytes} bytes of a doorbell record, staging ring or copy of a completion queue; free memory and \
         register again"
    )]
    NoMemory {
        /// Bytes needed.
        bytes: usize,
    },
}

/// Ends the waits of a queue's kernels with a status.
pub trait Alarm: Send + Sync {
    /// Stores [`End::status`] in the word that the queue's waits read. A status that another registration or relay
    /// stored there must stay. An implementation may ignore [`End::Detached`], as
    /// [`AbortFlag`](crate::queue::AbortFlag) does, if the queue may then be rung in another mode. The proxy takes no
    /// status back. The proxy calls this under its lock and that of the registration; adding an alarm after the end
    /// calls it under the latter. An implementation must neither call nor drop the proxy, a registration or a relay.
    /// The proxy logs a panic, and raises the other alarms; a panic passes to the caller that adds an alarm after the
    /// end.
    fn raise(&self, end: End);
}

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

/// State that the proxy and a [`Registration`] or [`super::CompletionRelay`] share. Each reference to it keeps the
/// memory of `record` and `staging` allocated.
pub(super) struct Shared {
    /// The doorbell record, or the device's consumer index.
    pub(super) record: Record,
    /// The staging ring, or the copy of a completion queue.
    pub(super) staging: Option<Buffer>,
    /// How the registration or relay ended, with the last doorbell's producer index or the number of the next
    /// completion. The proxy sets it once, while it holds the lock of `alarms`; so each alarm is raised once, whether
    /// it was added before or after the end.
    end: OnceLock<(End, u32)>,
    alarms: Mutex<Vec<Arc<dyn Alarm>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("record", &self.record.word()).field("end", &self.end).finish()
    }
}

impl Shared {
    pub(super) fn new(record: Record, staging: Option<Buffer>, alarms: Vec<Arc<dyn Alarm>>) -> Self {
        Self { record, staging, end: OnceLock::new(), alarms: Mutex::new(alarms) }
    }

    fn alarms(&self) -> MutexGuard<'_, Vec<Arc<dyn Alarm>>> {
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
            if !contain_panic(|| alarm.raise(end)) {
                contain_panic(|| {
                    tracing::error!(
                        ?end,
                        "doorbell proxy: an alarm of a queue panicked, so the queue's waits may end only by their \
                         bounds; mend its Alarm::raise"
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

    /// Adds an alarm, and raises it at once if an end is recorded.
    pub(super) fn add_alarm(&self, alarm: Arc<dyn Alarm>) {
        let mut alarms = self.alarms();
        if let Some(end) = self.ended() {
            alarm.raise(end);
        }
        alarms.push(alarm);
    }

    pub(super) fn ended(&self) -> Option<End> {
        self.end.get().map(|(end, _)| *end)
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
    mode: DoorbellMode,
    queue: SendQueue,
}

// SAFETY: this type only returns the send queue's pointers and never dereferences them; the proxy dereferences its
// own copies under its lock.
unsafe impl Send for Registration {}
// SAFETY: as for Send.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(
        shared: Arc<Shared>,
        proxy: DoorbellProxy,
        mode: DoorbellMode,
        queue: SendQueue,
    ) -> Self {
        Self { shared, proxy, mode, queue }
    }

    /// The doorbell mode.
    pub(crate) fn mode(&self) -> DoorbellMode {
        self.mode
    }

    /// Where the device writes entries: the staging ring, or the send queue.
    pub fn buffer(&self) -> NonNull<u8> {
        self.shared.staging.as_ref().map_or(self.queue.buffer, Buffer::start)
    }

    /// Where the device stores its producer index, all 32 bits.
    pub fn record(&self) -> &AtomicU32 {
        self.shared.record.word()
    }

    /// Redirects a queue struct to this registration's ring and record, at addresses of this process. `sq` must be the
    /// struct of mode `direct`, because mode `record` keeps its `max_batch`, which is the adapter's.
    pub(crate) fn redirect(&self, sq: &mut efa_gda_sq) {
        sq.buffer = self.buffer().as_ptr();
        sq.doorbell = self.record().as_ptr();
        sq.flags |= EFA_GDA_SQ_RECORD;
        if self.mode == DoorbellMode::Staged {
            // Ordinary memory has no batch window; the proxy keeps the batch window of the adapter.
            sq.max_batch = self.queue.num_entries;
        }
    }

    /// Adds an alarm that is raised when the proxy stops ringing for this queue, or at once if it has stopped.
    pub fn add_alarm(&self, alarm: Arc<dyn Alarm>) {
        self.shared.add_alarm(alarm);
    }

    /// How the registration ended; `None` while the proxy rings.
    pub fn ended(&self) -> Option<End> {
        self.shared.ended()
    }

    /// Entries before the device's record, as it is now, for which the proxy never rang; 0 while the proxy rings. The
    /// number grows if the device stores the record after the end. After [`End::Fault`] the record is invalid, and so is
    /// this number.
    pub fn unrung(&self) -> u32 {
        // The end is loaded first: a record loaded before it could be behind the last doorbell.
        let Some((_, doorbell_index)) = self.shared.end.get() else { return 0 };
        self.record().load(Ordering::Acquire).wrapping_sub(*doorbell_index)
    }

    /// Takes the queue from the proxy, which rings for every record stored before this call, raises the alarms, and
    /// does not touch the send queue, its doorbell, the record or the staging ring afterwards; entries posted later may
    /// stay unrung. Returns how the registration ended, by this call or earlier.
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

impl From<RegisterError> for crate::Error {
    fn from(error: RegisterError) -> Self {
        let kind = match error {
            RegisterError::NoMemory { .. } => crate::ErrorKind::OutOfMemory,
            _ => crate::ErrorKind::Unsupported,
        };
        Self::new(kind, error.to_string())
    }
}
