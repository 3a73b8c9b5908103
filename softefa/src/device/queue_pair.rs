//! A queue pair as the engine works on it: one round of its queues, failing it, and flushing it. The
//! rings have their own files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use efa_gda_wire::{
    Completion, CompletionKind, CompletionStatus, DecodedRequest, QueueKey, QueuePairNumber, ReceiveInfo,
    RequestId, RequestIdWidth, UNKNOWN_ADDRESS_HANDLE,
};

use super::attr::{ProtectionDomain, QueuePairState, RnrRetry};
use super::completion::{CompletionRing, Finished};
use super::counter::{Attached, Counted};
use super::engine::{Engine, World};
use super::receive_queue::ReceiveRing;
use super::ring_memory::Doorbell;
use super::send_queue::{SendRing, SendState};
use super::shared::{Shared, lock};
use super::violation::{Queue, StrictRule, Violation};

/// A queue pair.
///
/// Locks are taken in the order send state, receive state, completion queue. The send state is
/// locked by its own adapter's engine alone (and by control calls, while no engine runs); receive
/// state and completion queues by every engine that delivers here.
pub(crate) struct QueuePairCore {
    pub(crate) number: QueuePairNumber,
    pub(crate) pd: ProtectionDomain,
    pub(crate) queue_key: AtomicU32,
    /// [`RnrRetry`] as a number; changed by control calls, while no engine runs.
    pub(crate) rnr_retry: AtomicU32,
    pub(crate) unsolicited_write_receive: bool,
    pub(crate) send: SendRing,
    pub(crate) receive: Option<ReceiveRing>,
    pub(crate) send_cq: Arc<CompletionRing>,
    pub(crate) receive_cq: Arc<CompletionRing>,
    pub(crate) counters: Attached,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: AtomicU8,
}

/// A rule that an entry or a doorbell of one ring breaks.
pub(crate) struct Finding {
    pub(crate) slot: Option<u32>,
    pub(crate) counter: u64,
    pub(crate) entry: Option<DecodedRequest>,
    pub(crate) raw: Vec<u8>,
    pub(crate) rule: StrictRule,
}

/// How [`RnrRetry::Forever`] is kept.
const FOREVER: u32 = u32::MAX;

impl QueuePairCore {
    pub(crate) fn queue_key(&self) -> QueueKey {
        QueueKey::new(self.queue_key.load(Ordering::Relaxed))
    }

    pub(crate) fn set_queue_key(&self, key: QueueKey) {
        self.queue_key.store(key.get(), Ordering::Relaxed);
    }

    pub(crate) fn rnr_retry(&self) -> RnrRetry {
        match self.rnr_retry.load(Ordering::Relaxed) {
            FOREVER => RnrRetry::Forever,
            times => RnrRetry::Times(times as u8),
        }
    }

    pub(crate) fn set_rnr_retry(&self, retry: RnrRetry) {
        self.rnr_retry.store(Self::retry_number(retry), Ordering::Relaxed);
    }

    pub(crate) const fn retry_number(retry: RnrRetry) -> u32 {
        match retry {
            RnrRetry::Forever => FOREVER,
            RnrRetry::Times(times) => times as u32,
        }
    }

    pub(crate) fn state(&self) -> QueuePairState {
        match self.state.load(Ordering::Acquire) {
            0 => QueuePairState::Idle,
            1 => QueuePairState::Ready,
            _ => QueuePairState::Error,
        }
    }

    pub(crate) fn set_state(&self, state: QueuePairState) {
        self.state.store(Self::state_number(state), Ordering::Release);
    }

    pub(crate) const fn state_number(state: QueuePairState) -> u8 {
        match state {
            QueuePairState::Idle => 0,
            QueuePairState::Ready => 1,
            QueuePairState::Error => 2,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state() == QueuePairState::Ready
    }

    /// Doorbells of both queues.
    pub(crate) fn doorbells(&self) -> impl Iterator<Item = &Doorbell> {
        std::iter::once(&self.send.doorbell).chain(self.receive.as_ref().map(|receive| &receive.doorbell))
    }

    /// One round: doorbells, waiting requests, new requests. Whether anything moved.
    pub(crate) fn poll(&self, world: &World<'_>, engine: &mut Engine) -> bool {
        match self.state() {
            QueuePairState::Idle => return false,
            QueuePairState::Error => return self.flush(),
            QueuePairState::Ready => {}
        }
        if let Some(Err(finding)) = self.receive.as_ref().map(ReceiveRing::watch) {
            self.fail(Queue::Receive(self.number), *finding);
        }
        let mut send = lock(&self.send.state);
        if let Err(finding) = self.send.watch(&mut send, &self.shared) {
            send.next_flushed = CompletionStatus::QueuePairInternal;
            self.fail(Queue::Send(self.number), *finding);
        }
        let mut progress = self.run_waiting(&mut send, world, engine);
        progress |= self.run_new(&mut send, world, engine);
        progress |= self.publish(&mut send);
        engine.waiting |= !send.waiting.is_empty();
        drop(send);
        if !self.is_ready() {
            progress |= self.flush();
        }
        progress
    }

    /// Keeps a violation; from here on the queue pair flushes.
    pub(crate) fn fail(&self, queue: Queue, finding: Finding) {
        let Finding { slot, counter, entry, raw, rule } = finding;
        self.shared.report(Violation { queue, slot, counter, entry, raw, rule });
        self.set_state(QueuePairState::Error);
    }

    /// Makes the completions of requests visible that were gathered.
    pub(crate) fn publish(&self, send: &mut SendState) -> bool {
        if send.staged.is_empty() {
            return false;
        }
        // Before the completions: who read one finds it counted.
        if self.counters.any() {
            for completion in &send.staged {
                if let Some(what) = Counted::of_code(completion.operation_code) {
                    self.count(what, completion.status);
                }
            }
        }
        let ids = self.send.ids;
        self.send_cq.push(send.staged.iter().map(|completion| Finished {
            completion: *completion,
            ids,
            source: None,
        }));
        send.completed += send.staged.len() as u64;
        send.staged.clear();
        true
    }

    /// Counts a completion where something counts its kind.
    pub(crate) fn count(&self, what: Counted, status: CompletionStatus) {
        self.counters.count(what, status);
    }

    /// A request's completion.
    pub(crate) fn send_completion(
        &self,
        id: RequestId,
        operation_code: u8,
        status: CompletionStatus,
    ) -> Completion {
        Completion { id, status, operation_code, queue_pair: self.number, kind: CompletionKind::Send }
    }

    /// Stages the completion of the request that was executed when something panicked.
    pub(crate) fn answer_panicked(&self, current: Option<(RequestId, u8)>) {
        if let Some((id, code)) = current {
            let completion = self.send_completion(id, code, CompletionStatus::QueuePairInternal);
            lock(&self.send.state).staged.push(completion);
        }
    }

    /// Completes everything that is posted as flushed. Whether there was anything.
    pub(crate) fn flush(&self) -> bool {
        let mut send = lock(&self.send.state);
        for (id, code) in self.send.drain(&mut send) {
            let status = std::mem::replace(&mut send.next_flushed, CompletionStatus::Flushed);
            send.staged.push(self.send_completion(id, code, status));
        }
        let progress = self.publish(&mut send);
        drop(send);
        self.flush_receives() | progress
    }

    fn flush_receives(&self) -> bool {
        let Some(receive) = &self.receive else { return false };
        let ids = receive.drain();
        let any = !ids.is_empty();
        ids.iter().for_each(|_| self.count(Counted::RECEIVE, CompletionStatus::Flushed));
        self.receive_cq.push(ids.into_iter().map(|id| {
            let info = ReceiveInfo {
                length: 0,
                address_handle: UNKNOWN_ADDRESS_HANDLE,
                source_queue_pair: QueuePairNumber::new(0),
                immediate: None,
                unsolicited: false,
            };
            let completion = Completion {
                id,
                status: CompletionStatus::Flushed,
                operation_code: 0,
                queue_pair: self.number,
                kind: CompletionKind::Receive(info),
            };
            Finished { completion, ids: RequestIdWidth::Bits16, source: None }
        }));
        any
    }
}
