//! A queue in a proxy's care: what it brings, what it gets, and how that ends.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use efa_gda_sys::device::{EFA_GDA_BAD_RECORD, EFA_GDA_PROXY_STOPPED, EFA_GDA_SQ_RECORD, efa_gda_sq};

use super::handoff::Fault;
use super::memory::{Pages, Record};
use super::mode::DoorbellMode;
use super::proxy::DoorbellProxy;
use crate::status::{DeviceError, outcome};

/// A send queue as the adapter exposes it, at addresses of this process.
#[derive(Clone, Copy, Debug)]
pub struct SendQueue {
    /// Its first entry.
    pub buffer: NonNull<u8>,
    /// Takes the producer counter, 16 bits of it.
    pub doorbell: NonNull<u32>,
    /// 64 or 128.
    pub entry_size: u32,
    /// A power of two, at most 32768.
    pub num_entries: u32,
    /// Entries that may be written between two doorbells; at least 1.
    pub max_batch: u32,
}

/// Why a proxy does not take a queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Under `direct` nobody rings but the device.
    #[error("a queue that rings directly needs no proxy; serve it as record or staged")]
    Direct,
    /// A geometry that no send queue has.
    #[error(
        "a send queue of {num_entries} entries of {entry_size} bytes, {max_batch} between two doorbells; a power \
         of two up to 32768, of 64 or 128 bytes, aligned to its entries, at least one between two doorbells, was \
         expected"
    )]
    Geometry {
        /// Entries.
        num_entries: u32,
        /// Bytes of one.
        entry_size: u32,
        /// Entries between two doorbells.
        max_batch: u32,
    },
    /// The proxy was stopped.
    #[error("the proxy was stopped; start another")]
    Stopped,
    /// No memory for a record or a staging ring.
    #[error("{bytes} bytes for a record or a staging ring cannot be allocated")]
    NoMemory {
        /// Bytes needed.
        bytes: usize,
    },
}

/// Ends the waits of a queue's kernels with a status.
pub trait Alarm: Send + Sync {
    /// Stores `status` (`enum efa_gda_status`) where the queue's waits look, for good. Called under
    /// the proxy's lock: it must not call the proxy.
    fn raise(&self, status: u32);
}

/// Why a proxy let go of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// It was detached; everything posted before is rung.
    Detached,
    /// The proxy was stopped, or died.
    Stopped,
    /// The record broke a rule.
    Fault(Fault),
}

impl End {
    /// What waits on the queue end with.
    pub fn error(&self) -> DeviceError {
        outcome(self.status()).err().unwrap_or(DeviceError::ProxyStopped)
    }

    fn status(&self) -> u32 {
        match self {
            Self::Fault(_) => EFA_GDA_BAD_RECORD,
            Self::Detached | Self::Stopped => EFA_GDA_PROXY_STOPPED,
        }
    }
}

/// What proxy and owner share of a queue.
pub(super) struct Shared {
    pub(super) record: Record,
    pub(super) staging: Option<Pages>,
    end: OnceLock<(End, u32)>,
    alarms: Mutex<Vec<Arc<dyn Alarm>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("record", &self.record.word()).field("end", &self.end).finish()
    }
}

impl Shared {
    pub(super) fn new(record: Record, staging: Option<Pages>, alarm: Arc<dyn Alarm>) -> Self {
        Self { record, staging, end: OnceLock::new(), alarms: Mutex::new(vec![alarm]) }
    }

    fn alarms(&self) -> MutexGuard<'_, Vec<Arc<dyn Alarm>>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how it ended, with the last doorbell; the first end stays.
    pub(super) fn end(&self, end: End, rung: u32) {
        let alarms = self.alarms();
        if self.end.set((end, rung)).is_ok() {
            alarms.iter().for_each(|alarm| alarm.raise(end.status()));
        }
    }
}

/// A queue in a proxy's care. Dropped, it is detached: everything posted before is rung, and the
/// proxy touches its memory no more.
#[derive(Debug)]
pub struct Registration {
    shared: Arc<Shared>,
    proxy: DoorbellProxy,
    rung: DoorbellMode,
    queue: SendQueue,
}

// SAFETY: the pointers of the send queue are only handed out as numbers here; the proxy's accesses
// are under its lock.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(
        shared: Arc<Shared>,
        proxy: DoorbellProxy,
        rung: DoorbellMode,
        queue: SendQueue,
    ) -> Self {
        Self { shared, proxy, rung, queue }
    }

    /// How the queue is rung.
    pub fn rung(&self) -> DoorbellMode {
        self.rung
    }

    /// Where the device writes entries.
    pub fn buffer(&self) -> NonNull<u8> {
        self.shared.staging.as_ref().map_or(self.queue.buffer, Pages::start)
    }

    /// Where the device stores its producer counter, all 32 bits.
    pub fn record(&self) -> &AtomicU32 {
        self.shared.record.word()
    }

    /// Points a queue struct's send queue here, for code on this host's CPU.
    pub fn point(&self, sq: &mut efa_gda_sq) {
        sq.buffer = self.buffer().as_ptr();
        sq.doorbell = self.record().as_ptr();
        sq.flags |= EFA_GDA_SQ_RECORD;
        if self.rung == DoorbellMode::Staged {
            // Ordinary memory has no batch; the proxy keeps the adapter's.
            sq.max_batch = self.queue.num_entries;
        }
    }

    /// Raises `alarm` too when the proxy will not ring any more; now, where that is so already.
    pub fn alarm(&self, alarm: Arc<dyn Alarm>) {
        let mut alarms = self.shared.alarms();
        if let Some((end, _)) = self.shared.end.get() {
            alarm.raise(end.status());
        }
        alarms.push(alarm);
    }

    /// Whether, and why, nobody rings for the queue any more.
    pub fn ended(&self) -> Option<End> {
        self.shared.end.get().map(|(end, _)| *end)
    }

    /// Entries that the device posted and that were not rung when the proxy let go; 0 while it
    /// serves.
    pub fn left(&self) -> u32 {
        let record = self.record().load(Ordering::Acquire);
        self.shared.end.get().map_or(0, |(_, rung)| record.wrapping_sub(*rung))
    }

    /// Takes the queue from the proxy: rings what was posted before this call, and raises the alarms
    /// for what comes later.
    pub fn detach(&self) -> End {
        self.proxy.release(&self.shared);
        // `release` ends what was not ended.
        self.ended().unwrap_or(End::Detached)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.detach();
    }
}
