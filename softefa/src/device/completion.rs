//! Completion queues: writing completions, and finding overruns if the consumer index is known.
//!
//! # Protocol
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | slot, bytes 8 to 31 | the holder of `state`: relaxed | the client: relaxed | written before bytes 0 to 7, read after them |
//! | slot, bytes 0 to 7 (request id, status, flags with the phase bit, queue pair) | the holder of `state`: release | the client: acquire | the release and the acquire pair: payload and bytes 8 to 31 are visible after the load |
//! | doorbell: low 16 bits of the consumer index | the client: release | the holder of `state`: acquire | the release and the acquire pair: the client has read the consumed slots, so they may be overwritten |
//! | `state` | engines of this adapter and of senders, control threads | the same | its mutex |
//! | `users` | control threads, under the network's write lock | the same | the network's lock |
//!
//! The client must not write slots. It must ring the doorbell, or report its index through
//! [`super::Adapter::set_consumer_index`], if it wants overruns to be found; until then the adapter
//! overwrites unread completions, as hardware does.
//!
//! A completion for a full queue goes to the backlog as an error, so that its poster does not wait for it
//! forever. It is written when the consumer index moves. [`Shared::backlogged`] makes the engine retry.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use efa_gda_wire::{Completion, CompletionKind, CompletionStatus, RequestIdWidth, Ring, doorbell_advance};

use super::attr::CompletionQueueNumber;
use super::config::Gid;
use super::memory::Memory;
use super::ring_memory::{CACHE_LINE, Doorbell, MAX_DOORBELL_ADVANCE, RingMemory};
use super::shared::{Shared, add, lock};
use super::violation::{Queue, StrictRule, Violation};

/// Bytes of a completion.
pub(crate) const COMPLETION_BYTES: usize = 32;
/// Offset of the sender's GID in the receive completion of an unknown sender
/// (`efa_io_rx_cdesc_ex::src_addr`, `efa_io_defs.h`).
const SOURCE_GID: usize = 16;

/// A completion queue. Its lock is acquired after the locks of queue pairs.
pub(crate) struct CompletionRing {
    pub(crate) number: CompletionQueueNumber,
    pub(crate) ring: Ring,
    pub(crate) storage: Storage,
    pub(crate) doorbell: Option<Doorbell>,
    /// Work queues that complete here. A queue pair counts twice if both of its queues do.
    pub(crate) users: AtomicUsize,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

/// The memory that completions are written to.
pub(crate) enum Storage {
    Ring(Arc<RingMemory>),
    Indirect { memory: Arc<dyn Memory>, address: u64 },
}

#[derive(Debug, Default)]
struct State {
    /// Completions written.
    produced: u64,
    /// The consumer index, once the client has reported one.
    consumed: Option<u64>,
    /// Low 16 bits of the doorbell when it was last read.
    last_doorbell: u16,
    /// Completions for which the queue had no free slot, in order.
    backlog: VecDeque<[u8; COMPLETION_BYTES]>,
}

/// A completion with the fields that [`Completion`] does not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionRecord {
    pub(crate) completion: Completion,
    pub(crate) ids: RequestIdWidth,
    /// The sender's GID, if the receiver has no address handle for the sender.
    pub(crate) source: Option<Gid>,
}

impl CompletionRing {
    pub(crate) fn new(
        number: CompletionQueueNumber,
        ring: Ring,
        storage: Storage,
        doorbell: Option<Doorbell>,
        shared: Arc<Shared>,
    ) -> Self {
        let users = AtomicUsize::new(0);
        Self { number, ring, storage, doorbell, users, shared, state: Mutex::default() }
    }

    /// Whether the client can report, or has reported, a consumer index.
    pub(crate) fn has_consumer_index(&self) -> bool {
        self.doorbell.is_some() || lock(&self.state).consumed.is_some()
    }

    pub(crate) fn set_consumer_index(&self, consumed: u64) {
        let mut state = self.lock_current();
        if consumed > state.produced {
            self.report_consumer_ahead(&state, consumed);
        } else {
            state.consumed = Some(consumed);
            self.write_backlog(&mut state);
        }
    }

    /// Writes completions, in order.
    pub(crate) fn push(&self, records: impl ExactSizeIterator<Item = CompletionRecord>) {
        let mut state = self.lock_current();
        if let Storage::Ring(memory) = &self.storage {
            let slots = (0..records.len() as u64).step_by(CACHE_LINE / COMPLETION_BYTES);
            slots.for_each(|ahead| memory.prefetch(self.offset(state.produced + ahead)));
        }
        let (mut count, mut errors) = (0, 0);
        for record in records {
            count += 1;
            errors += u64::from(record.completion.status != CompletionStatus::Ok);
            self.push_one(&mut state, record);
        }
        add(&self.shared.counts.completions, count);
        add(&self.shared.counts.errors, errors);
    }

    fn push_one(&self, state: &mut State, mut record: CompletionRecord) {
        let full = self.is_full(state);
        if full || !state.backlog.is_empty() {
            // Hardware would lose this completion. It goes to the backlog as an error, so that its poster
            // does not wait forever.
            if full && state.backlog.is_empty() {
                self.report_overrun(state);
                self.shared.backlogged.fetch_add(1, Ordering::Relaxed);
            }
            record.completion.status = CompletionStatus::QueuePairInternal;
            add(&self.shared.counts.overruns, 1);
            state.backlog.push_back(Self::bytes(&record));
            return;
        }
        self.write(state, Self::bytes(&record));
    }

    /// Discards the backlog of a queue that is being destroyed.
    pub(crate) fn discard_backlog(&self) {
        let mut state = lock(&self.state);
        if !state.backlog.is_empty() {
            state.backlog.clear();
            self.shared.backlogged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Writes completions of the backlog that fit now.
    pub(crate) fn retry_backlog(&self) {
        drop(self.lock_current());
    }

    fn is_full(&self, state: &State) -> bool {
        state.consumed.is_some_and(|consumed| state.produced - consumed >= u64::from(self.ring.entries()))
    }

    fn write_backlog(&self, state: &mut State) {
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

    /// Locks the state, reads the consumer index from the doorbell, and writes the backlog that fits.
    fn lock_current(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if let Some(doorbell) = &self.doorbell {
            let value = doorbell.value();
            let advance = doorbell_advance(state.last_doorbell, value);
            if advance != 0 {
                state.last_doorbell = value as u16;
                let consumed = state.consumed.unwrap_or(0) + u64::from(advance);
                if advance > MAX_DOORBELL_ADVANCE || consumed > state.produced {
                    self.report_consumer_ahead(&state, consumed);
                } else {
                    state.consumed = Some(consumed);
                }
            }
        }
        self.write_backlog(&mut state);
        state
    }

    fn offset(&self, counter: u64) -> usize {
        self.ring.slot(counter as u32) as usize * COMPLETION_BYTES
    }

    /// Encodes a completion with phase 0. [`Self::write`] sets the phase, because it knows the slot.
    fn bytes(record: &CompletionRecord) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        record.completion.encode(&mut bytes, false, record.ids);
        if let (Some(gid), CompletionKind::Receive(_)) = (record.source, record.completion.kind) {
            bytes[SOURCE_GID..SOURCE_GID + 16].copy_from_slice(&gid.0);
        }
        bytes
    }

    /// Writes bytes 8 to 31, then bytes 0 to 7, which hold the phase bit, with release.
    fn write(&self, state: &mut State, mut bytes: [u8; COMPLETION_BYTES]) {
        let counter = state.produced as u32;
        bytes[Completion::FLAGS_OFFSET] |= u8::from(!self.ring.phase(counter));
        let offset = self.offset(state.produced);
        let (first, body) = bytes.split_at(8);
        let mut word = [0; 8];
        word.copy_from_slice(first);
        match &self.storage {
            Storage::Ring(memory) => {
                memory.store(offset + 8, body);
                memory.store_word_release(offset, word);
            }
            Storage::Indirect { memory, address } => {
                let at = address + offset as u64;
                // An error is ignored: the memory that would report it is the memory that is unreachable.
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

    fn report_consumer_ahead(&self, state: &State, consumer: u64) {
        self.report(StrictRule::ConsumerAhead { consumer, producer: state.produced }, consumer);
    }

    fn report(&self, rule: StrictRule, counter: u64) {
        let slot = Some(self.ring.slot(counter as u32));
        let queue = Queue::Completion(self.number);
        self.shared.report(Violation { queue, slot, counter, entry: None, raw: Vec::new(), rule });
    }
}
