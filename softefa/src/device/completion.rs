//! Completion queues: writing completions, and seeing overruns where the consumer is known.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use efa_gda_wire::{Completion, CompletionKind, CompletionStatus, RequestIdWidth, Ring, doorbell_advance};

use super::attr::CompletionQueueNumber;
use super::config::Gid;
use super::memory::Memory;
use super::ring_memory::{Doorbell, RingMemory};
use super::shared::{Shared, add, lock};
use super::violation::{Queue, StrictRule, Violation};

/// Bytes of a completion.
pub(crate) const COMPLETION_BYTES: usize = 32;
const CACHE_LINE: usize = 64;
/// Where the sender's GID lies in the receive completion of an unknown sender
/// (`efa_io_rx_cdesc_ex::src_addr`).
const SOURCE_GID: usize = 16;
/// Backwards, as [`doorbell_advance`] shows it.
const BACKWARDS: u16 = 1 << 15;

/// A completion queue. Its lock is the last that is taken.
pub(crate) struct CompletionRing {
    pub(crate) number: CompletionQueueNumber,
    pub(crate) ring: Ring,
    pub(crate) place: Place,
    pub(crate) doorbell: Option<Doorbell>,
    /// Queue pairs that complete here, counted once for each of their queues.
    pub(crate) users: AtomicUsize,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

/// Where completions go.
pub(crate) enum Place {
    Ring(Arc<RingMemory>),
    Through { memory: Arc<dyn Memory>, address: u64 },
}

#[derive(Debug, Default)]
struct State {
    produced: u64,
    /// The consumer's count, once anybody told it.
    consumed: Option<u64>,
    doorbell_seen: u16,
    /// Completions that found the queue full, in order.
    backlog: VecDeque<[u8; COMPLETION_BYTES]>,
}

/// A completion with what does not fit [`Completion`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) completion: Completion,
    pub(crate) ids: RequestIdWidth,
    /// The sender, where the receiver has no address handle for it.
    pub(crate) source: Option<Gid>,
}

impl CompletionRing {
    pub(crate) fn new(
        number: CompletionQueueNumber,
        ring: Ring,
        place: Place,
        doorbell: Option<Doorbell>,
        shared: Arc<Shared>,
    ) -> Self {
        let users = AtomicUsize::new(0);
        Self { number, ring, place, doorbell, users, shared, state: Mutex::default() }
    }

    /// Whether anybody tells how far the completions are consumed.
    pub(crate) fn consumer_known(&self) -> bool {
        self.doorbell.is_some() || lock(&self.state).consumed.is_some()
    }

    pub(crate) fn set_consumer(&self, consumed: u64) {
        let mut state = self.synchronized();
        if consumed > state.produced {
            self.report_consumer(&state, consumed);
        } else {
            state.consumed = Some(consumed);
            self.drain(&mut state);
        }
    }

    /// Writes completions, in order.
    pub(crate) fn push(&self, finished: impl ExactSizeIterator<Item = Finished>) {
        let mut state = self.synchronized();
        if let Place::Ring(memory) = &self.place {
            let slots = (0..finished.len() as u64).step_by(CACHE_LINE / COMPLETION_BYTES);
            slots.for_each(|ahead| memory.prefetch(self.offset(state.produced + ahead)));
        }
        let (mut count, mut errors) = (0, 0);
        for one in finished {
            count += 1;
            errors += u64::from(one.completion.status != CompletionStatus::Ok);
            self.push_one(&mut state, one);
        }
        add(&self.shared.counts.completions, count);
        add(&self.shared.counts.errors, errors);
    }

    fn push_one(&self, state: &mut State, mut finished: Finished) {
        let full = self.is_full(state);
        if full || !state.backlog.is_empty() {
            // The poster must not hang on a completion that is lost: it is kept until there is room,
            // as an error, since on hardware it would be gone.
            if full && state.backlog.is_empty() {
                self.report_overrun(state);
                self.shared.backlogged.fetch_add(1, Ordering::Relaxed);
            }
            finished.completion.status = CompletionStatus::QueuePairInternal;
            add(&self.shared.counts.overruns, 1);
            state.backlog.push_back(Self::bytes(&finished));
            return;
        }
        self.write(state, Self::bytes(&finished));
    }

    /// Forgets what was kept back, when the queue goes.
    pub(crate) fn abandon_backlog(&self) {
        let mut state = lock(&self.state);
        if !state.backlog.is_empty() {
            state.backlog.clear();
            self.shared.backlogged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Writes what was kept back and has room now.
    pub(crate) fn retry_backlog(&self) {
        drop(self.synchronized());
    }

    fn is_full(&self, state: &State) -> bool {
        state.consumed.is_some_and(|consumed| state.produced - consumed >= u64::from(self.ring.entries()))
    }

    fn drain(&self, state: &mut State) {
        if state.backlog.is_empty() {
            return;
        }
        while !self.is_full(state) {
            let Some(bytes) = state.backlog.pop_front() else {
                self.shared.backlogged.fetch_sub(1, Ordering::Relaxed);
                return;
            };
            self.write(state, bytes);
        }
    }

    /// Takes the lock and brings the consumer's count up to its doorbell.
    fn synchronized(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if let Some(doorbell) = &self.doorbell {
            let value = doorbell.value();
            let advance = doorbell_advance(state.doorbell_seen, value);
            if advance != 0 {
                state.doorbell_seen = value as u16;
                let consumed = state.consumed.unwrap_or(0) + u64::from(advance);
                if advance > BACKWARDS || consumed > state.produced {
                    self.report_consumer(&state, consumed);
                } else {
                    state.consumed = Some(consumed);
                }
            }
        }
        self.drain(&mut state);
        state
    }

    fn offset(&self, counter: u64) -> usize {
        self.ring.slot(counter as u32) as usize * COMPLETION_BYTES
    }

    fn bytes(finished: &Finished) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        // The phase is set where the slot is known.
        finished.completion.encode(&mut bytes, false, finished.ids);
        if let (Some(gid), CompletionKind::Receive(_)) = (finished.source, finished.completion.kind) {
            bytes[SOURCE_GID..SOURCE_GID + 16].copy_from_slice(&gid.0);
        }
        bytes
    }

    /// Body first, then the word with the flags: see the protocol in [`super::ring_memory`].
    fn write(&self, state: &mut State, mut bytes: [u8; COMPLETION_BYTES]) {
        let counter = state.produced as u32;
        bytes[Completion::FLAGS_OFFSET] |= u8::from(!self.ring.phase(counter));
        let offset = self.offset(state.produced);
        let (first, body) = bytes.split_at(8);
        let mut word = [0; 8];
        word.copy_from_slice(first);
        match &self.place {
            Place::Ring(memory) => {
                memory.store(offset + 8, body);
                memory.store_word_release(offset, word);
            }
            Place::Through { memory, address } => {
                let at = address + offset as u64;
                // Nobody can be told that the place for telling is gone.
                let _ = memory.write(at + 8, body).and_then(|()| memory.write(at, &word));
            }
        }
        state.produced += 1;
    }

    fn report_overrun(&self, state: &State) {
        let unread = state.produced - state.consumed.unwrap_or(0);
        let rule = StrictRule::CompletionQueueOverrun { unread, entries: self.ring.entries() };
        self.report(rule, state.produced);
    }

    fn report_consumer(&self, state: &State, consumer: u64) {
        self.report(StrictRule::ConsumerAhead { consumer, producer: state.produced }, consumer);
    }

    fn report(&self, rule: StrictRule, counter: u64) {
        let slot = Some(self.ring.slot(counter as u32));
        let queue = Queue::Completion(self.number);
        self.shared.report(Violation { queue, slot, counter, entry: None, raw: Vec::new(), rule });
    }
}
