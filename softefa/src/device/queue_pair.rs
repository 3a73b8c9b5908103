//! A queue pair: one round of its queues, its error state, and its flush. `run.rs` has the requests of a round; the
//! rings are in `send_queue.rs`, `receive_queue.rs` and `completion.rs`.
//!
//! # Protocol
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | `state` | a control thread, under the network's write lock; the engine, after a violation or a panic, under the read lock: release (`set_state`) | any thread: acquire (`state`) | the network's lock makes a control call's check and store one step |
//! | `queue_key`, `rnr_retry` | a control thread, under the network's write lock: relaxed | the engine: relaxed | the network's lock |
//! | `send.state`, `receive.state` | the engine; a control thread that flushes, under the network's write lock | the same | the network's lock; the mutexes are never waited for |
//!
//! The state advances from idle to ready to error, and a reset makes it idle again. The engine sets the error state if
//! it reports a violation of the send or receive queue; a violation of a completion queue changes no state. It then
//! flushes: at the end of the queue pair's round if the violation was found in that round, else in the queue pair's next
//! round. In the error state, the engine also flushes what is posted later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Instant;

use efa_gda_wire::{
    Completion, CompletionKind, CompletionStatus, DecodedRequest, QueueKey, QueuePairNumber, ReceiveInfo,
    RequestId, RequestIdWidth, UNKNOWN_ADDRESS_HANDLE,
};

use super::attr::{ProtectionDomain, QueuePairState, RnrRetry, Transport};
use super::completion::{CompletionRecord, CompletionRing};
use super::counter::{AttachedCounters, Counted, UnwrittenCounters};
use super::engine::{COMPLETION_COST, Engine, NetworkView};
use super::receive_queue::{ReceiveRing, ReceiveState};
use super::ring_memory::Doorbell;
use super::send_queue::{SendRing, SendState};
use super::shared::{Shared, lock};
use super::violation::{Queue, StrictRule, Violation, Warning};

/// A queue pair.
///
/// Its locks are acquired in the order send state, receive state, completion queue (`engine.rs`).
pub(crate) struct QueuePairCore {
    pub(crate) number: QueuePairNumber,
    pub(crate) transport: Transport,
    pub(crate) pd: ProtectionDomain,
    pub(crate) queue_key: AtomicU32,
    /// [`RnrRetry`] as a number.
    pub(crate) rnr_retry: AtomicU32,
    pub(crate) unsolicited_write_receive: bool,
    pub(crate) send: SendRing,
    pub(crate) receive: Option<ReceiveRing>,
    pub(crate) send_cq: Arc<CompletionRing>,
    pub(crate) receive_cq: Arc<CompletionRing>,
    pub(crate) counters: AttachedCounters,
    /// Index of the first entry of both queues.
    pub(crate) first_counter: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: AtomicU8,
}

/// A rule that an entry or a doorbell of one ring breaks, with the evidence: a [`Violation`] without its
/// queue.
pub(crate) struct BrokenRule {
    pub(crate) slot: Option<u32>,
    pub(crate) counter: u64,
    pub(crate) entry: Option<DecodedRequest>,
    pub(crate) raw: Vec<u8>,
    pub(crate) rule: StrictRule,
}

impl BrokenRule {
    /// A rule that the doorbell of a ring breaks. `counter` is the doorbell producer index before it.
    pub(crate) const fn of_doorbell(counter: u64, rule: StrictRule) -> Self {
        Self { slot: None, counter, entry: None, raw: Vec::new(), rule }
    }
}

/// The number for [`RnrRetry::Forever`] in [`QueuePairCore::rnr_retry`].
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

    /// The doorbells of both queues.
    pub(crate) fn doorbells(&self) -> impl Iterator<Item = &Doorbell> {
        std::iter::once(&self.send.doorbell).chain(self.receive.as_ref().map(|receive| &receive.doorbell))
    }

    /// Runs one round: polls the doorbells, executes pending requests, then new ones, and writes their completions.
    /// Flushes at the end if the queue pair left the ready state. In the error state it only flushes. Returns whether
    /// there was progress.
    pub(crate) fn run_round(&self, network: NetworkView<'_>, engine: &mut Engine) -> bool {
        let state = self.state();
        if state == QueuePairState::Idle {
            return false;
        }
        if state == QueuePairState::Error {
            return self.flush_in_round(engine);
        }
        let mut guard = lock(&self.send.state);
        let send = &mut *guard;
        if let Some(Err(broken)) = self.receive.as_ref().map(ReceiveRing::poll_doorbell) {
            self.fail(Queue::Receive(self.number), *broken);
        }
        if let Err(broken) = self.send.poll_doorbell(send, &self.shared) {
            send.next_flush_status = CompletionStatus::QueuePairInternal;
            self.fail(Queue::Send(self.number), *broken);
        }
        // A frontend's `Memory` may panic: here in an access to a region, because completion queues and counters catch
        // panics of theirs. Indexes and rings are consistent at every such access, so the queue pair can be flushed.
        let executed = catch_unwind(AssertUnwindSafe(|| {
            let progress = self.execute_pending(send, network, engine);
            self.execute_new(send, network, engine) | progress
        }));
        let mut progress = executed.unwrap_or_else(|_| {
            self.set_state(QueuePairState::Error);
            self.shared.warn(Warning::MemoryPanicked { queue_pair: self.number });
            if let Some((id, code)) = engine.current_request.take() {
                send.gathered.push(self.send_completion(id, code, CompletionStatus::QueuePairInternal));
            }
            true
        });
        progress |= self.write_in_round(send, engine);
        engine.has_pending |= !send.pending.is_empty();
        drop(guard);
        if !self.is_ready() {
            progress |= self.flush_in_round(engine);
        }
        progress
    }

    /// As [`Self::flush`]. Returns whether it flushed any request or took any receive slot.
    fn flush_in_round(&self, engine: &mut Engine) -> bool {
        let flushed = self.flush(&mut engine.unwritten);
        engine.spend(flushed * COMPLETION_COST);
        flushed > 0
    }

    /// As [`Self::write_completions`].
    pub(crate) fn write_in_round(&self, send: &mut SendState, engine: &mut Engine) -> bool {
        // First, so that a client that reads a completion finds its request in the statistics.
        engine.add_counts(&self.shared);
        self.write_completions(send, &mut engine.unwritten)
    }

    /// Writes the mirrors of the counters in `unwritten`.
    pub(crate) fn write_mirrors(&self, unwritten: &mut UnwrittenCounters) {
        if unwritten.write() {
            self.shared.warn(Warning::CounterMemoryPanicked { queue_pair: self.number });
        }
    }

    /// Reports a violation and sets the error state.
    pub(crate) fn fail(&self, queue: Queue, broken: BrokenRule) {
        let BrokenRule { slot, counter, entry, raw, rule } = broken;
        self.shared.report(Violation { queue, slot, counter, entry, raw, rule });
        self.set_state(QueuePairState::Error);
    }

    /// Counts the gathered completions, writes the mirrors of the counters in `unwritten`, then passes the completions
    /// to the completion queue. Returns whether there were completions.
    pub(crate) fn write_completions(&self, send: &mut SendState, unwritten: &mut UnwrittenCounters) -> bool {
        if send.gathered.is_empty() {
            self.write_mirrors(unwritten);
            return false;
        }
        let begin = Instant::now();
        // Counted first, so that a client that reads a completion finds it counted.
        if self.counters.any() {
            for completion in &send.gathered {
                if let Some(kind) = Counted::of_code(completion.operation_code) {
                    self.counters.count(kind, completion.status, unwritten);
                }
            }
        }
        self.write_mirrors(unwritten);
        let ids = self.send.ids;
        self.send_cq.push(send.gathered.iter().map(|completion| CompletionRecord {
            completion: *completion,
            ids,
            source: None,
        }));
        send.completed += send.gathered.len() as u64;
        send.gathered.clear();
        send.last_write = Instant::now();
        send.write_time = send.last_write - begin;
        true
    }

    /// The completion of a request.
    pub(crate) fn send_completion(
        &self,
        id: RequestId,
        operation_code: u8,
        status: CompletionStatus,
    ) -> Completion {
        Completion { id, status, operation_code, queue_pair: self.number, kind: CompletionKind::Send }
    }

    /// Makes the queue pair idle and its queues empty, with the indexes that a new one has. Posted requests and receives
    /// get no completion.
    pub(crate) fn reset(&self) {
        self.set_state(QueuePairState::Idle);
        let mut send = lock(&self.send.state);
        *send = SendState::new(self.first_counter);
        self.send.prepare(self.first_counter);
        drop(send);
        if let Some(receive) = &self.receive {
            let mut state = lock(&receive.state);
            *state = ReceiveState::new(self.first_counter);
            receive.prepare(self.first_counter);
        }
    }

    /// Completes every posted request and receive as flushed. After a violation of the send queue's doorbell or batch,
    /// the first request that it flushes, which may be an older pending one, completes as an internal error. Writes
    /// gathered completions first. Returns the number of requests plus that of the receives' slots.
    pub(crate) fn flush(&self, unwritten: &mut UnwrittenCounters) -> u64 {
        let mut send = lock(&self.send.state);
        for (id, code) in self.send.take_all(&mut send) {
            let status = std::mem::replace(&mut send.next_flush_status, CompletionStatus::Flushed);
            send.gathered.push(self.send_completion(id, code, status));
        }
        let requests = send.gathered.len() as u64;
        self.write_completions(&mut send, unwritten);
        requests + self.flush_receives(unwritten)
    }

    /// Completes as flushed every posted receive whose last descriptor is written. Returns the number of slots that it
    /// took, also of incomplete receives.
    fn flush_receives(&self, unwritten: &mut UnwrittenCounters) -> u64 {
        let Some(receive) = &self.receive else { return 0 };
        let (ids, slots) = receive.take_all();
        ids.iter().for_each(|_| self.counters.count(Counted::RECEIVE, CompletionStatus::Flushed, unwritten));
        self.write_mirrors(unwritten);
        // Without completions the queue must not send the event for which it is armed.
        if ids.is_empty() {
            return slots;
        }
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
            CompletionRecord { completion, ids: RequestIdWidth::Bits16, source: None }
        }));
        slots
    }
}
