//! From a fetched entry to its completion: what a queue pair does with its requests in one round.

use std::time::{Duration, Instant};

use efa_gda_wire::{CompletionStatus, DecodedRequest};

use super::attr::RnrRetry;
use super::engine::{Engine, World};
use super::execute::{Outcome, execute};
use super::queue_pair::QueuePairCore;
use super::send_queue::{SendState, Waiting, status_of};
use super::violation::{Queue, StrictRule};

/// Requests fetched in one round, so that other queue pairs get their turn.
const ROUND_ENTRIES: u32 = 256;
/// Bytes after which a round ends.
const ROUND_BYTES: u64 = 8 << 20;
/// Completions that are made visible together.
const STAGED: usize = 32;
/// Rounds without a new request after which fewer requests than the window are reordered.
const SETTLED_ROUNDS: u32 = 64;
/// Between two tries where the number of tries is limited.
const RNR_INTERVAL: Duration = Duration::from_micros(100);

impl QueuePairCore {
    /// Fetches, checks and executes what doorbells covered since.
    pub(crate) fn run_new(&self, send: &mut SendState, world: &World<'_>, engine: &mut Engine) -> bool {
        let mut entries = 0;
        let bytes = engine.bytes;
        self.send.prefetch(send);
        while send.fetched < send.rung
            && entries < ROUND_ENTRIES
            && engine.bytes - bytes < ROUND_BYTES
            && self.is_ready()
        {
            entries += 1;
            let fetched = self.send.fetch(send);
            self.shared.capture(self.number, fetched.counter, fetched.bytes());
            let decoded = self.send.decode(&fetched);
            let broken = self.send.check(&fetched, &decoded);
            if !broken.is_empty() {
                self.refuse(send, fetched.counter, &decoded, fetched.bytes(), &broken);
                break;
            }
            let injected = engine.count_request();
            if engine.direct {
                self.run_one(send, world, engine, &decoded, fetched.counter);
            } else {
                let not_before = engine.delay.map(|delay| Instant::now() + delay);
                send.waiting.push_back(Waiting {
                    counter: fetched.counter,
                    decoded,
                    not_before,
                    tries: 0,
                    injected,
                });
            }
            if send.staged.len() >= STAGED {
                self.publish(send);
            }
        }
        if entries > 0 {
            send.settled = 0;
        }
        engine.entries += u64::from(entries);
        entries > 0
    }

    fn run_one(
        &self,
        send: &mut SendState,
        world: &World<'_>,
        engine: &mut Engine,
        decoded: &DecodedRequest,
        counter: u64,
    ) {
        match self.try_request(world, engine, decoded) {
            Outcome::Done(status) => self.finish(send, counter, decoded, status),
            Outcome::NotReady => {
                let waiting =
                    Waiting { counter, decoded: *decoded, not_before: None, tries: 0, injected: None };
                self.wait_for_receive(send, engine, waiting);
            }
        }
    }

    fn try_request(&self, world: &World<'_>, engine: &mut Engine, decoded: &DecodedRequest) -> Outcome {
        let refused =
            if decoded.broken.is_empty() { None } else { decoded.broken.iter().find_map(status_of) };
        match (refused, &decoded.request) {
            (Some(status), _) => Outcome::Done(status),
            (None, Some(request)) => {
                engine.current = Some((decoded.id, decoded.operation_code));
                let outcome = execute(world, engine, self, request);
                engine.current = None;
                outcome
            }
            // An entry without a request breaks a rule that has a status.
            (None, None) => Outcome::Done(CompletionStatus::UnsupportedOperation),
        }
    }

    /// The receiver had nothing posted: try again later, or give up.
    fn wait_for_receive(&self, send: &mut SendState, engine: &mut Engine, mut waiting: Waiting) {
        engine.rnr_retries += 1;
        if let RnrRetry::Times(times) = self.rnr_retry() {
            if waiting.tries >= times {
                self.finish(send, waiting.counter, &waiting.decoded, CompletionStatus::ReceiverNotReady);
                return;
            }
            waiting.tries += 1;
            waiting.not_before = Some(Instant::now() + RNR_INTERVAL);
        }
        send.waiting.push_back(waiting);
    }

    /// Executes requests that waited and may go on. Whether any completed.
    pub(crate) fn run_waiting(&self, send: &mut SendState, world: &World<'_>, engine: &mut Engine) -> bool {
        if send.waiting.is_empty() || engine.held {
            return false;
        }
        if engine.reorder_window > 1
            && send.waiting.len() < engine.reorder_window
            && send.settled < SETTLED_ROUNDS
        {
            send.settled += 1;
            return false;
        }
        let mut progress = false;
        // One try for each that waits now; those that wait on go to the back, in order.
        for _ in 0..send.waiting.len() {
            if !self.is_ready() {
                break;
            }
            let window = send.waiting.len().min(engine.reorder_window.max(1));
            let Some(waiting) = send.waiting.remove(engine.below(window)) else { break };
            if waiting.not_before.is_some_and(|time| Instant::now() < time) {
                send.waiting.push_back(waiting);
                continue;
            }
            if let Some(status) = waiting.injected {
                self.finish(send, waiting.counter, &waiting.decoded, status);
                progress = true;
                continue;
            }
            match self.try_request(world, engine, &waiting.decoded) {
                Outcome::Done(status) => {
                    self.finish(send, waiting.counter, &waiting.decoded, status);
                    progress = true;
                }
                Outcome::NotReady => self.wait_for_receive(send, engine, waiting),
            }
        }
        progress
    }

    /// Stages the completion of a request, unless the entry changed since it was fetched.
    fn finish(
        &self,
        send: &mut SendState,
        counter: u64,
        decoded: &DecodedRequest,
        mut status: CompletionStatus,
    ) {
        if !self.send.unchanged(send, counter) {
            let raw = self.send.slot_bytes(counter);
            let finding = self.send.finding(counter, decoded, &raw, StrictRule::EntryChanged);
            self.fail(Queue::Send(self.number), finding);
            status = CompletionStatus::QueuePairInternal;
        }
        send.staged.push(self.send_completion(decoded.id, decoded.operation_code, status));
    }

    /// Answers an entry that breaks strict rules, and keeps each.
    fn refuse(
        &self,
        send: &mut SendState,
        counter: u64,
        decoded: &DecodedRequest,
        raw: &[u8],
        broken: &[StrictRule],
    ) {
        for rule in broken {
            self.fail(Queue::Send(self.number), self.send.finding(counter, decoded, raw, *rule));
        }
        let status = CompletionStatus::QueuePairInternal;
        send.staged.push(self.send_completion(decoded.id, decoded.operation_code, status));
    }
}
