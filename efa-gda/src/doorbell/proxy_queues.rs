//! The queues of one proxy, which are accessed under its lock, and what each shares with its registration.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use efa_gda_sys::device::{EFA_GDA_BAD_RECORD, EFA_GDA_PROXY_STOPPED};

use super::handoff::{Handoff, RecordFault};
use super::memory::Record;
use super::port::Words;
use super::store::order_stores;
use crate::memory::Buffer;
use crate::status::{DeviceError, outcome};

/// See [`Registration::add_alarm`](super::Registration::add_alarm).
pub(super) type Alarm = Box<dyn Fn(End) + Send + Sync>;

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

/// State that the proxy and a [`Registration`](super::Registration) share. Each reference to it keeps the memory of `record` and `copy`
/// allocated.
pub(super) struct Shared {
    /// The doorbell record, or the device's consumer index.
    pub(super) record: Record,
    /// The staging ring, or the copy of a completion queue.
    pub(super) copy: Option<Buffer>,
    /// How the registration ended, with the last doorbell's producer index or the number of the next
    /// completion. The proxy sets it once, while it holds the lock of `alarms`; so each alarm is raised once, whether
    /// it was added before or after the end.
    pub(super) end: OnceLock<(End, u32)>,
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

    pub(super) fn alarms(&self) -> MutexGuard<'_, Vec<Alarm>> {
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

/// All queues of a proxy. Those that are dropped with it were not detached; they end as [`End::Stopped`].
#[derive(Default)]
pub(super) struct ProxyQueues {
    visited: Vec<Handoff<Words>>,
    /// `owners[i]` belongs to `visited[i]`; it is apart because a round reads only `visited`.
    owners: Vec<Arc<Shared>>,
    stopped: bool,
    /// Entries that doorbells covered, without those of a detach or a stop.
    pub(super) rung: u64,
    /// Completions that were copied, without those of a detach or a stop.
    pub(super) relayed: u64,
}

impl Drop for ProxyQueues {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl ProxyQueues {
    /// Visits every queue once. Returns the number of entries that doorbells covered, and of completions copied.
    #[inline]
    pub(super) fn round(&mut self) -> u64 {
        let before = self.rung + self.relayed;
        let mut at = 0;
        while let Some(one) = self.visited.get_mut(at) {
            match one.visit() {
                Ok(0) => at += 1,
                Ok(count) => {
                    let done = if one.is_relay() { &mut self.relayed } else { &mut self.rung };
                    *done += u64::from(count);
                    at += 1;
                }
                // `take` moves another queue to this index.
                Err(fault) => {
                    let (one, owner) = self.take(at);
                    owner.end(End::Fault(fault), one.index());
                }
            }
        }
        self.rung + self.relayed - before
    }

    pub(super) fn len(&self) -> usize {
        self.visited.len()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn add(&mut self, one: Handoff<Words>, owner: Arc<Shared>) {
        self.visited.push(one);
        self.owners.push(owner);
    }

    fn take(&mut self, index: usize) -> (Handoff<Words>, Arc<Shared>) {
        (self.visited.swap_remove(index), self.owners.swap_remove(index))
    }

    /// Visits one queue a last time and removes it. Does nothing for a queue that was removed before.
    pub(super) fn detach(&mut self, owner: &Arc<Shared>) {
        if let Some(index) = self.owners.iter().position(|other| Arc::ptr_eq(other, owner)) {
            let (one, owner) = self.take(index);
            finish(one, &owner, End::Detached);
        }
    }

    /// Visits every queue a last time, removes all, and refuses new ones.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        for (one, owner) in self.visited.drain(..).zip(self.owners.drain(..)) {
            finish(one, &owner, End::Stopped);
        }
    }

    /// Removes all queues without a last visit, and refuses new ones.
    pub(super) fn abandon(&mut self) {
        self.stopped = true;
        for (one, owner) in self.visited.drain(..).zip(self.owners.drain(..)) {
            owner.end(End::Stopped, one.index());
        }
    }
}

fn finish(mut one: Handoff<Words>, owner: &Shared, end: End) {
    let end = one.last_visit().map_or_else(End::Fault, |()| end);
    // The host executor may post to this queue next, in mode `direct`: up to `max_batch` entries past the last
    // doorbell, which must reach the adapter after it.
    order_stores();
    owner.end(end, one.index());
}
