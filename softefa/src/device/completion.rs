//! Completion queues: writing completions, and finding overruns as far as the consumer index is known.
//!
//! # Protocol
//! `engine.rs` has the rows of a ring's slots and the doorbell (the low 16 bits of the consumer index). Further words:
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | `state` | the engine, control threads | the same | its mutex |
//! | `users` | control threads, under the network's write lock | the same | the network's lock |
//!
//! The client must not write slots.
//!
//! # Consumer index
//! A client reports it in one of two ways:
//!
//! - By [`super::Adapter::set_consumer_index`], after each read. The reported index is then the client's at all times,
//!   and the queue is full when as many completions beyond it are unread as the queue has entries.
//! - By the doorbell, in its low 16 bits, which are 0 at first. rdma-core and libfabric ring it only when a poll ends on
//!   a current completion: a client that reads every completion does not ring. So the doorbell is a lower bound of what
//!   the client has read, and no queue is full because of it: the adapter overwrites the oldest completion, as hardware
//!   does. The doorbell is exact only when it is rung. If more completions than the queue has entries had been written
//!   beyond the rung index before, then the client had not read the overwritten ones. This is an overrun.
//!
//! The adapter takes the doorbell for the newest index from `rung` to `produced` that has its bits; until one has them,
//! the doorbell is a violation, reported once. A first index that leaves more than 65,535 completions unread is taken for
//! a later one. Of later indexes, only one is ambiguous: with exactly 65,536 completions beyond `rung`, `rung` and
//! `produced` have the same bits. A doorbell that changes to them means `produced`; the adapter does not notice one that
//! had them already.
//!
//! # Indirect memory
//! Only calls of a [`Memory`] reach the memory of [`Storage::Indirect`], and a call may be a copy to a GPU. So a push
//! gathers its completions, and writes those whose slots lie next to each other in two calls. The first writes every
//! completion with the phase bit that the slot has from the previous lap. The second writes the same bytes with the
//! phase bit of this lap, and so changes phase bits only. The order in which the bytes of one call become visible
//! therefore does not matter: a client that reads the phase bit of this lap may read the rest of the completion.
//!
//! If the `Memory` panics, the queue is abandoned and a warning is stored. So the panic ends neither the queue pair
//! whose completions were written nor a control call, and no later write panics again.
//!
//! # Full queues
//! A queue is full if its client reports its index by calls and as many completions are unread as it has entries.
//! Hardware then overwrites one of them. The adapter adds the new completion to the backlog, with its status changed to
//! an error, so that the client does not wait for it forever. The backlog holds as many completions as the queue, but at
//! least 256; later ones are lost. The call that reports the index writes what fits of the backlog, in order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use efa_gda_wire::{COMPLETION_BYTES, Completion, CompletionKind, CompletionStatus, RequestIdWidth, Ring};

use super::attr::CompletionQueueNumber;
use super::config::Gid;
use super::events::{Armed, Events};
use super::memory::Memory;
use super::ring_memory::{CACHE_LINE, Doorbell, RingMemory};
use super::shared::{Shared, add, lock};
use super::violation::{Queue, StrictRule, Violation, Warning};

/// The phase bit in the byte at [`Completion::FLAGS_OFFSET`] (`EFA_IO_CDESC_COMMON_PHASE_MASK`,
/// `efa_io_defs.h`).
const PHASE: u8 = 1;
/// The smallest capacity of a backlog. A queue with more entries has a backlog of as many.
const MIN_BACKLOG: usize = 256;
/// Offset of the sender's GID in the receive completion of an unknown sender
/// (`efa_io_rx_cdesc_ex::src_addr`, `efa_io_defs.h`).
const SOURCE_GID: usize = 16;

/// A completion queue. Its lock is acquired after the locks of queue pairs.
pub(crate) struct CompletionRing {
    pub(crate) number: CompletionQueueNumber,
    pub(crate) ring: Ring,
    pub(crate) storage: Storage,
    pub(crate) doorbell: Option<Doorbell>,
    /// One for each queue pair that has it as `send_cq`, and one for each that has it as `receive_cq`.
    pub(crate) users: AtomicUsize,
    events: Option<Events>,
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
    /// The index of the next completion to write or gather, which counts from 0 and never wraps.
    produced: u64,
    /// The consumer index, also counted from 0, once the client has reported one by a call.
    consumed: Option<u64>,
    /// The newest consumer index of the doorbell.
    rung: u64,
    /// `produced` when the doorbell was last read.
    produced_before: u64,
    /// Low 16 bits of the doorbell when it was last read.
    last_doorbell: u16,
    /// The doorbell's bits were reported as a violation, and are not correct yet.
    is_violation: bool,
    /// Completions for which the queue had no free slot, in order.
    backlog: VecDeque<[u8; COMPLETION_BYTES]>,
    /// The last completions before `produced`, if they are not in indirect memory yet.
    gathered: Vec<[u8; COMPLETION_BYTES]>,
    /// Completions are discarded, because the client reads none any more or the memory panicked.
    is_abandoned: bool,
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
        events: Option<Events>,
        shared: Arc<Shared>,
    ) -> Self {
        let (users, state) = (AtomicUsize::new(0), Mutex::default());
        Self { number, ring, storage, doorbell, users, events, shared, state }
    }

    /// Whether the queue has a doorbell for the consumer index, or the client reports one by calls.
    pub(crate) fn has_consumer_index(&self) -> bool {
        self.doorbell.is_some() || lock(&self.state).consumed.is_some()
    }

    /// Stores the consumer index that the client reported, and writes what fits of the backlog.
    pub(crate) fn set_consumer_index(&self, consumed: u64) {
        let mut state = lock(&self.state);
        let before = state.consumed.unwrap_or(0);
        match before.checked_sub(consumed) {
            Some(back @ 1..) => self.report_consumer_backwards(before, back),
            _ if consumed > state.produced => self.report_consumer_ahead(&state, consumed),
            _ => state.consumed = Some(consumed),
        }
        self.write_backlog(&mut state);
    }

    /// Writes completions in order, or adds them to the backlog until that is full. Discards `records` if the queue was
    /// abandoned.
    pub(crate) fn push(&self, records: impl ExactSizeIterator<Item = CompletionRecord>) {
        let mut state = lock(&self.state);
        if state.is_abandoned {
            return;
        }
        self.read_doorbell(&mut state);
        if let Storage::Ring(memory) = &self.storage {
            let slots = (0..records.len() as u64).step_by(CACHE_LINE / COMPLETION_BYTES);
            slots.for_each(|ahead| memory.prefetch(self.offset(state.produced + ahead)));
        }
        let armed = self.events.as_ref().and_then(Events::armed);
        let (mut count, mut flushed) = (0, 0);
        for record in records {
            count += 1;
            match self.push_one(&mut state, record) {
                CompletionStatus::Ok => {}
                CompletionStatus::Flushed => flushed += 1,
                status => self.shared.count_error(status),
            }
        }
        self.write_gathered(&mut state);
        self.notify(armed, &state);
        add(&self.shared.counts.completions, count);
        add(&self.shared.counts.flushed, flushed);
    }

    /// Writes a completion, adds it to the backlog, or loses it if the backlog is full. Returns its status, which is an
    /// error if the queue is full.
    fn push_one(&self, state: &mut State, mut record: CompletionRecord) -> CompletionStatus {
        if self.is_full(state) {
            if state.backlog.is_empty() {
                self.report_overrun(state.produced, state.consumed.unwrap_or(0));
            }
            record.completion.status = CompletionStatus::QueuePairInternal;
            add(&self.shared.counts.overruns, 1);
            if state.backlog.len() < MIN_BACKLOG.max(self.ring.entries() as usize) {
                state.backlog.push_back(Self::bytes(&record));
            }
        } else {
            self.write(state, Self::bytes(&record));
        }
        record.completion.status
    }

    /// Discards the backlog and all later completions. For a queue that is not read any more or is being destroyed.
    pub(crate) fn abandon(&self) {
        self.discard(&mut lock(&self.state));
    }

    /// As [`Self::abandon`]. Discards the gathered completions too.
    fn discard(&self, state: &mut State) {
        state.is_abandoned = true;
        state.gathered.clear();
        state.backlog.clear();
    }

    /// Reads the doorbell, and sends an event that is due.
    pub(crate) fn send_due_event(&self) {
        let mut state = lock(&self.state);
        self.read_doorbell(&mut state);
        self.notify(None, &state);
    }

    /// Sends an event that is due ([`Events::notify`]).
    fn notify(&self, armed: Option<Armed>, state: &State) {
        if let Some(events) = self.events.as_ref().filter(|_| !state.is_abandoned) {
            events.notify(armed, state.produced);
        }
    }

    fn is_full(&self, state: &State) -> bool {
        state.consumed.is_some_and(|consumed| state.produced - consumed >= u64::from(self.ring.entries()))
    }

    /// Writes what fits of the backlog.
    fn write_backlog(&self, state: &mut State) {
        while !self.is_full(state)
            && let Some(bytes) = state.backlog.pop_front()
        {
            self.write(state, bytes);
        }
        self.write_gathered(state);
    }

    /// Reads the consumer index from the doorbell, and checks it.
    fn read_doorbell(&self, state: &mut State) {
        let Some(doorbell) = &self.doorbell else { return };
        let value = doorbell.value() as u16;
        let is_new = value != state.last_doorbell;
        // A violation is evaluated in each read, because the client may ring the same value when it is correct.
        if is_new || state.is_violation {
            state.last_doorbell = value;
            // Relative to the stored indexes, not to the last value, which may have been a violation.
            let rung = state.rung;
            let lag = (state.produced as u16).wrapping_sub(value);
            let newest = state.produced.checked_sub(lag.into()).filter(|consumer| *consumer >= rung);
            state.is_violation = newest.is_none();
            // A violation is reported as a step backwards from `rung`, to index 0 at most, or ahead of `produced`,
            // whichever is shorter.
            let ahead = u64::from(value.wrapping_sub(state.produced as u16));
            let back = u64::from((rung as u16).wrapping_sub(value));
            match newest {
                Some(consumer) => self.advance_rung(state, consumer),
                None if !is_new => {}
                None if back < ahead && back <= rung => self.report_consumer_backwards(rung, back),
                None => self.report_consumer_ahead(state, state.produced + ahead),
            }
        }
        state.produced_before = state.produced;
    }

    /// Stores the index that the client rang since the doorbell was last read, when at least `produced_before`
    /// completions were written.
    fn advance_rung(&self, state: &mut State, consumer: u64) {
        state.rung = consumer;
        let unread = state.produced_before.saturating_sub(consumer);
        if unread > u64::from(self.ring.entries()) {
            self.report_overrun(state.produced_before, consumer);
        }
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

    /// Sets the phase bit, which is 1 on the first lap. In a ring, writes bytes 8 to 31, then bytes 0 to 7, which hold
    /// the phase bit, with release. For indirect memory, gathers the bytes: the caller must call
    /// [`Self::write_gathered`] before it unlocks the state.
    fn write(&self, state: &mut State, mut bytes: [u8; COMPLETION_BYTES]) {
        let counter = state.produced as u32;
        bytes[Completion::FLAGS_OFFSET] |= u8::from(!self.ring.phase(counter));
        match &self.storage {
            Storage::Ring(memory) => {
                let offset = self.offset(state.produced);
                let (first, body) = bytes.split_at(8);
                let mut word = [0; 8];
                word.copy_from_slice(first);
                memory.store(offset + 8, body);
                memory.store_word_release(offset, word);
            }
            Storage::Indirect { .. } => state.gathered.push(bytes),
        }
        state.produced += 1;
    }

    /// Writes the gathered completions to indirect memory: see "Indirect memory" above.
    fn write_gathered(&self, state: &mut State) {
        let Storage::Indirect { memory, address } = &self.storage else { return };
        while !state.gathered.is_empty() {
            let first = state.produced - state.gathered.len() as u64;
            let to_end = self.ring.entries() - self.ring.slot(first as u32);
            let whole = &state.gathered[..state.gathered.len().min(to_end as usize)];
            let mut before = whole.to_vec();
            before.iter_mut().for_each(|bytes| bytes[Completion::FLAGS_OFFSET] ^= PHASE);
            let at = address + self.offset(first) as u64;
            let write = || {
                memory.write(at, before.as_flattened()).and_then(|()| memory.write(at, whole.as_flattened()))
            };
            // An error is ignored: the completion that would report it could not be written to this memory.
            if catch_unwind(AssertUnwindSafe(write)).is_err() {
                self.discard(state);
                self.shared.warn(Warning::CompletionMemoryPanicked { queue: self.number });
                return;
            }
            state.gathered.drain(..before.len());
        }
    }

    fn report_overrun(&self, produced: u64, consumed: u64) {
        let (unread, entries) = (produced - consumed, self.ring.entries());
        self.report(StrictRule::CompletionQueueOverrun { unread, entries }, produced);
    }

    fn report_consumer_ahead(&self, state: &State, consumer: u64) {
        self.report(StrictRule::ConsumerAhead { consumer, producer: state.produced }, consumer);
    }

    fn report_consumer_backwards(&self, consumer: u64, back: u64) {
        self.report(StrictRule::ConsumerBackwards { consumer, back }, consumer);
    }

    fn report(&self, rule: StrictRule, counter: u64) {
        let slot = Some(self.ring.slot(counter as u32));
        let queue = Queue::Completion(self.number);
        self.shared.report(Violation { queue, slot, counter, entry: None, raw: Vec::new(), rule });
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::sync::Barrier;
    use std::thread;

    use efa_gda_wire::{QueuePairNumber, RequestId};

    use super::super::config::AdapterConfig;
    use super::*;

    /// A completion queue of one entry.
    fn queue() -> (CompletionRing, Arc<Shared>, CompletionRecord) {
        queue_of(1, None)
    }

    fn queue_of(entries: u32, doorbell: Option<Doorbell>) -> (CompletionRing, Arc<Shared>, CompletionRecord) {
        let shared = Arc::new(Shared::new(AdapterConfig::new(Gid::link_local(1))));
        let storage = Storage::Ring(RingMemory::allocate(entries as usize * COMPLETION_BYTES).unwrap());
        let (number, ring) = (CompletionQueueNumber(0), Ring::new(entries).unwrap());
        let queue = CompletionRing::new(number, ring, storage, doorbell, None, shared.clone());
        let completion = Completion {
            id: RequestId::new(0),
            status: CompletionStatus::Ok,
            operation_code: 0,
            queue_pair: QueuePairNumber::new(0),
            kind: CompletionKind::Send,
        };
        (queue, shared, CompletionRecord { completion, ids: RequestIdWidth::Bits16, source: None })
    }

    /// Writes completions to a queue of 65,536 entries, then rings its doorbell with their number after `first`. Returns
    /// the consumer index and the rules that were broken.
    fn consume(first: u32, completions: u32, rung: u32) -> (u64, Vec<StrictRule>) {
        let doorbell = Doorbell::new(RingMemory::allocate(8).unwrap(), 0).unwrap();
        let (queue, shared, record) = queue_of(1 << 16, Some(doorbell.clone()));
        for (count, index) in [(first, first), (completions, rung)] {
            queue.push(iter::repeat_n(record, count as usize));
            doorbell.ring(queue.ring.doorbell(index));
            queue.push(iter::empty());
        }
        let rules = shared.violations().into_iter().map(|violation| violation.rule).collect();
        (lock(&queue.state).rung, rules)
    }

    #[test]
    fn a_consumer_index_may_advance_by_more_than_half_of_what_its_doorbell_counts() {
        assert_eq!(consume(1, 40_000, 40_001), (40_001, vec![]));
    }

    #[test]
    fn the_first_consumer_index_may_be_more_than_its_doorbell_counts() {
        assert_eq!(consume(0, 70_000, 70_000), (70_000, vec![]));
    }

    #[test]
    fn an_index_ahead_of_the_completions_of_a_deep_queue_is_not_taken_for_a_step_backwards() {
        let ahead = StrictRule::ConsumerAhead { consumer: 40_001, producer: 40_000 };
        assert_eq!(consume(0, 40_000, 40_001), (0, vec![ahead]));
    }

    #[test]
    fn the_call_that_reports_the_index_writes_the_backlog_in_order_before_later_completions() {
        let (queue, shared, mut record) = queue_of(4, None);
        queue.set_consumer_index(0);
        queue.push(iter::repeat_n(record, 6));
        queue.set_consumer_index(3);
        record.completion.id = RequestId::new(9);
        queue.push(iter::once(record));
        assert_eq!((lock(&queue.state).produced, shared.statistics().overruns), (7, 2));
        let Storage::Ring(memory) = &queue.storage else { unreachable!("made above") };
        let mut bytes = [0; COMPLETION_BYTES];
        let mut read = |index| {
            memory.load(queue.offset(index), &mut bytes);
            let completion = Completion::decode(&bytes, RequestIdWidth::Bits16).unwrap();
            (completion.id.get(), completion.status)
        };
        let lost = (0, CompletionStatus::QueuePairInternal);
        assert_eq!([4, 5, 6].map(&mut read), [lost, lost, (9, CompletionStatus::Ok)]);
    }

    #[test]
    fn a_completion_counts_with_the_status_that_it_was_given_also_if_its_queue_was_full() {
        let (queue, shared, mut record) = queue();
        queue.set_consumer_index(0);
        queue.push([record; 2].into_iter());
        record.completion.status = CompletionStatus::Flushed;
        queue.push(iter::once(record));
        let counted = shared.statistics();
        assert_eq!((counted.completions, counted.errors, counted.flushed, counted.overruns), (3, 2, 0, 2));
    }

    #[test]
    fn a_completion_that_waits_while_its_queue_is_abandoned_is_discarded() {
        let (queue, shared, record) = queue();
        let two = || [record; 2].into_iter();
        queue.set_consumer_index(0);
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            let mut state = lock(&queue.state);
            scope.spawn(|| {
                barrier.wait();
                queue.push(two());
            });
            barrier.wait();
            // The thread gets to the lock, usually. What it finds there decides.
            iter::repeat_n((), 100).for_each(|()| thread::yield_now());
            state.is_abandoned = true;
        });
        assert_eq!((lock(&queue.state).produced, shared.violations().len()), (0, 0));
        lock(&queue.state).is_abandoned = false;
        queue.push(two());
        assert_eq!((lock(&queue.state).produced, shared.violations().len()), (1, 1), "it had no room");
    }
}
