//! The requests of a queue pair in one round: it fetches and checks entries, executes requests or makes them pending,
//! and gathers their completions. `queue_pair.rs` has the round itself.
//!
//! A request is in exactly one state: covered by a doorbell and not fetched, being tried (`Engine::current_request`),
//! fetched and pending, completed with its completion gathered, or completed with its completion passed to the
//! completion queue, unless `drop_loopback` lost it. Only the holder of the queue pair's send state changes it.
//!
//! A *long* request is an RDMA request that moves in more than one piece, one for each try. It is pending between two
//! pieces. Until its last piece no later request of its queue pair is fetched (`SendState::is_moving`), unless the long
//! request itself waits for a receive or, with a reorder window, another long request completes or finds no receive.
//!
//! | `SendState::is_moving` is | by | when |
//! |---|---|---|
//! | set | `execute_new`, `execute_pending` | a try moved a piece and left bytes |
//! | cleared | `execute_pending` | a further try completed a long request, or found no receive for it |
//! | not changed | a flush, a panic | the queue pair has left the ready state: nothing is fetched or tried any more |

use std::time::{Duration, Instant};

use efa_gda_wire::{CompletionStatus, DecodedRequest};

use super::attr::RnrRetry;
use super::engine::{COST_PER_LOCK, Engine, NetworkView};
use super::execute::{Outcome, execute};
use super::queue_pair::QueuePairCore;
use super::send_queue::{PendingRequest, SendState, status_of};
use super::violation::{Queue, StrictRule};

/// Most entries that a queue pair fetches in a round, so that the engine polls the other queue pairs.
const ROUND_ENTRIES: u32 = 256;
/// Cost of one try of a request besides its bytes, in bytes ([`Engine::spend`]): that of two system calls, which access
/// to memory of another process needs.
const REQUEST_COST: u64 = 8 << 10;
/// Most tries of pending requests in a round of a queue pair that find no receive. They cost half of what a round has at
/// least when it begins, so that the queue pair can fetch entries after them.
const ROUND_RETRIES: u64 = COST_PER_LOCK / 4 / REQUEST_COST;
/// While a round executes new entries, it writes the gathered completions when their number is a multiple of this
/// ([`QueuePairCore::write_if_due`]).
const COMPLETION_BATCH: usize = 32;
/// Rounds of a queue pair, while its adapter is not held, without a new entry after which requests are executed that do
/// not fill the reorder window.
const SETTLED_ROUNDS: u32 = 64;
/// Least time between two tries if the number of tries is limited.
const RNR_INTERVAL: Duration = Duration::from_micros(100);

impl QueuePairCore {
    /// Fetches and checks entries that doorbells covered, at most [`ROUND_ENTRIES`], up to the first one that breaks a
    /// strict rule or begins a long request, or until [`COST_PER_LOCK`] is spent. Executes them, or makes them pending if the
    /// adapter is held or has faults other than `drop_loopback`. Returns whether it fetched any.
    pub(crate) fn execute_new(
        &self,
        send: &mut SendState,
        network: NetworkView<'_>,
        engine: &mut Engine,
    ) -> bool {
        let mut entries = 0;
        self.send.prefetch(send);
        while send.fetched < send.doorbell_index
            && entries < ROUND_ENTRIES
            && self.is_ready()
            && !engine.is_spent()
            && !send.is_moving
        {
            entries += 1;
            engine.entries += 1;
            let fetched = self.send.fetch(send);
            self.shared.capture(self.number, fetched.counter, fetched.bytes());
            let decoded = self.send.decode(&fetched);
            let broken = self.send.check(&fetched, &decoded);
            if !broken.is_empty() {
                self.reject(send, fetched.counter, &decoded, fetched.bytes(), &broken);
                break;
            }
            let injected = engine.count_request();
            let counter = fetched.counter;
            if engine.immediate {
                let outcome = self.try_request(network, engine, &decoded, 0);
                let request = |moved| PendingRequest {
                    counter,
                    decoded,
                    not_before: None,
                    tries: 0,
                    moved,
                    injected: None,
                };
                match outcome {
                    Outcome::Done(status) => self.complete(send, counter, &decoded, status),
                    Outcome::ReceiverNotReady => self.defer_until_receive(send, engine, request(0)),
                    Outcome::Lost => {}
                    Outcome::Moved(bytes) => {
                        send.is_moving = true;
                        send.pending.push_front(request(bytes));
                    }
                }
            } else {
                let not_before = engine.delay.map(|delay| Instant::now() + delay);
                let (tries, moved) = (0, 0);
                let request = PendingRequest { counter, decoded, not_before, tries, moved, injected };
                send.pending.push_back(request);
            }
            self.write_if_due(send, engine);
        }
        if entries > 0 {
            send.settled_rounds = 0;
        }
        entries > 0
    }

    /// Writes the gathered completions if their number is a multiple of [`COMPLETION_BATCH`], unless writes would take
    /// more than a third of the queue pair's time: a write may be a copy to a GPU. What it does not write, a later call
    /// writes, or the end of the round.
    fn write_if_due(&self, send: &mut SendState, engine: &mut Engine) {
        let gathered = send.gathered.len();
        let batch = gathered >= COMPLETION_BATCH && gathered.is_multiple_of(COMPLETION_BATCH);
        if batch && send.last_write.elapsed() >= 2 * send.write_time {
            self.write_in_round(send, engine);
        }
    }

    /// Makes one try of a request whose earlier tries moved `moved` bytes. Gathers no completion.
    fn try_request(
        &self,
        network: NetworkView<'_>,
        engine: &mut Engine,
        decoded: &DecodedRequest,
        moved: u64,
    ) -> Outcome {
        engine.spend(REQUEST_COST);
        let refused =
            if decoded.broken.is_empty() { None } else { decoded.broken.iter().find_map(status_of) };
        match (refused, &decoded.request) {
            (Some(status), _) => Outcome::Done(status),
            (None, Some(request)) => {
                engine.current_request = Some((decoded.id, decoded.operation_code));
                let outcome = execute(network, engine, self, request, moved);
                engine.current_request = None;
                outcome
            }
            // Not reached: an entry without a request breaks a rule to which `status_of` gives a status.
            (None, None) => Outcome::Done(CompletionStatus::UnsupportedOperation),
        }
    }

    /// Makes a request pending because its receiver has no receive posted. If its retries are used up, completes it as
    /// [`CompletionStatus::ReceiverNotReady`] instead.
    fn defer_until_receive(&self, send: &mut SendState, engine: &mut Engine, mut request: PendingRequest) {
        engine.rnr_retries += 1;
        if let RnrRetry::Times(times) = self.rnr_retry() {
            if request.tries >= times {
                self.complete(send, request.counter, &request.decoded, CompletionStatus::ReceiverNotReady);
                return;
            }
            request.tries += 1;
            request.not_before = Some(Instant::now() + RNR_INTERVAL);
        }
        send.pending.push_back(request);
    }

    /// Tries pending requests, at most as many times as requests are pending, until [`ROUND_RETRIES`] tries found no
    /// receive. Makes no try while the adapter is held, nor while requests wait for the reorder window to fill
    /// ([`SETTLED_ROUNDS`]). Returns whether any request was completed, moved bytes or was lost, apart from requests
    /// whose retries were used up.
    pub(crate) fn execute_pending(
        &self,
        send: &mut SendState,
        network: NetworkView<'_>,
        engine: &mut Engine,
    ) -> bool {
        if send.pending.is_empty() || engine.held {
            return false;
        }
        if engine.reorder_window > 1
            && send.pending.len() < engine.reorder_window
            && send.settled_rounds < SETTLED_ROUNDS
            && !send.is_moving
        {
            send.settled_rounds += 1;
            return false;
        }
        let (mut progress, mut retries) = (false, 0);
        // A request that must wait goes to the back, and one that has moved a piece to the front. So without a reorder
        // window, all others are tried before one that must wait, and one that has moved a piece is tried next, in this
        // loop or in the next round.
        for _ in 0..send.pending.len() {
            let is_idle = send.idle_until.is_some_and(|time| Instant::now() < time) && !send.is_moving;
            if !self.is_ready() || is_idle || retries >= ROUND_RETRIES || engine.is_spent() {
                break;
            }
            let window = send.pending.len().min(engine.reorder_window.max(1));
            let Some(mut request) = send.pending.remove(engine.random_below(window)) else { break };
            if request.not_before.is_some_and(|time| Instant::now() < time) {
                send.pending.push_back(request);
                continue;
            }
            let outcome = match request.injected {
                Some(status) => Outcome::Done(status),
                None => self.try_request(network, engine, &request.decoded, request.moved),
            };
            if request.moved > 0 || matches!(outcome, Outcome::Moved(_)) {
                send.is_moving = matches!(outcome, Outcome::Moved(_));
            }
            match outcome {
                Outcome::Done(status) => {
                    self.complete(send, request.counter, &request.decoded, status);
                    send.idle_until = engine.interval.map(|interval| Instant::now() + interval);
                    progress = true;
                }
                Outcome::ReceiverNotReady => {
                    self.defer_until_receive(send, engine, request);
                    retries += 1;
                }
                Outcome::Lost => progress = true,
                Outcome::Moved(bytes) => {
                    request.moved += bytes;
                    send.pending.push_front(request);
                    progress = true;
                }
            }
        }
        progress
    }

    /// Gathers the completion of a request with `status`. If the client changed the slot since the entry was fetched,
    /// reports [`StrictRule::EntryChanged`] and completes the request as an internal error.
    fn complete(
        &self,
        send: &mut SendState,
        counter: u64,
        decoded: &DecodedRequest,
        mut status: CompletionStatus,
    ) {
        if !self.send.entry_unchanged(send, counter) {
            let raw = self.send.slot_bytes(counter);
            let broken = self.send.broken_rule(counter, decoded, &raw, StrictRule::EntryChanged);
            self.fail(Queue::Send(self.number), broken);
            status = CompletionStatus::QueuePairInternal;
        }
        if let Some(request) = decoded.request.as_ref().filter(|_| status != CompletionStatus::Ok) {
            self.shared.counts.traffic.count_error(&request.operation);
        }
        send.gathered.push(self.send_completion(decoded.id, decoded.operation_code, status));
    }

    /// Reports each strict rule that an entry breaks and completes the entry as an internal error.
    fn reject(
        &self,
        send: &mut SendState,
        counter: u64,
        decoded: &DecodedRequest,
        raw: &[u8],
        rules: &[StrictRule],
    ) {
        for rule in rules {
            self.fail(Queue::Send(self.number), self.send.broken_rule(counter, decoded, raw, *rule));
        }
        let status = CompletionStatus::QueuePairInternal;
        send.gathered.push(self.send_completion(decoded.id, decoded.operation_code, status));
    }
}
