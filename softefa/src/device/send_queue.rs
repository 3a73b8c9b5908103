//! Send queues: polling the doorbell, fetching each entry once, and the checks that hardware omits.
//!
//! # Protocol
//! The shared words are the slots and the doorbell; `engine.rs` has their owners and orders. Clients do not access
//! [`SendState`]: only the engine and control calls that flush do.
//!
//! Two checks and a flush read slots outside that order. [`SendRing::poll_doorbell`] reads slots that perhaps no
//! doorbell covers yet, to find batches that are too long. [`SendRing::entry_unchanged`] reads a slot whose entry the
//! engine has fetched, to find entries that changed. If the engine found that the doorbell moved backwards,
//! [`SendRing::take_all`] reads the first slot that no doorbell covered, to complete the entry there. No such read
//! blocks the client.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use efa_gda_wire::{
    Completion, CompletionStatus, DecodedRequest, EntrySize, Operation, RequestId, RequestIdWidth, Ring,
    Rule, doorbell_advance,
};

use super::pattern::Unwritten;
use super::queue_pair::BrokenRule;
use super::ring_memory::{CACHE_LINE, Doorbell, MAX_DOORBELL_ADVANCE, RingMemory};
use super::shared::Shared;
use super::violation::StrictRule;

/// Bytes of the meta descriptor, which every entry has (`struct efa_io_tx_meta_desc`).
const META_BYTES: usize = 32;
/// Bytes of one segment, and of the remote address of an RDMA request.
const SEGMENT_BYTES: usize = 16;
/// Entries that are prefetched while one is executed.
const PREFETCHED_ENTRIES: u64 = 8;

/// A send queue's ring.
pub(crate) struct SendRing {
    pub(crate) memory: Arc<RingMemory>,
    pub(crate) ring: Ring,
    pub(crate) entry: EntrySize,
    pub(crate) max_batch: u32,
    pub(crate) doorbell: Doorbell,
    pub(crate) ids: RequestIdWidth,
    pub(crate) unwritten: Unwritten,
    pub(crate) state: Mutex<SendState>,
}

/// The indexes and requests of a send queue. Indexes count entries, have 64 bits and never wrap:
/// `completed <= fetched <= doorbell_index`.
pub(crate) struct SendState {
    /// Low 16 bits of the last doorbell value that broke no rule, or that a flush read.
    last_doorbell: u16,
    /// Entries that doorbells covered, or that a flush took: the doorbell producer index.
    pub(crate) doorbell_index: u64,
    /// Entries copied out of the ring.
    pub(crate) fetched: u64,
    /// Completions passed to the completion queue, which may keep them in its backlog, lose them or discard them.
    pub(crate) completed: u64,
    /// Requests that are fetched and not executed: held, delayed, partly moved, or waiting for a receive, an interval
    /// or a reorder window.
    pub(crate) pending: VecDeque<PendingRequest>,
    /// The last try of a long request (`run.rs`) left bytes to move. While this is set, no request is fetched. It may
    /// be unset although a partly moved request is pending.
    pub(crate) is_moving: bool,
    /// Rounds since an entry was fetched in which requests waited for the reorder window to fill.
    pub(crate) settled_rounds: u32,
    /// Completions that are not passed to the completion queue yet.
    pub(crate) gathered: Vec<Completion>,
    /// When completions were last passed to the completion queue.
    pub(crate) last_write: Instant,
    /// How long that took, including mirrors of counters.
    pub(crate) write_time: Duration,
    /// The time before which no pending request is tried (`Faults::interval`), unless `is_moving`.
    pub(crate) idle_until: Option<Instant>,
    /// Status of the next request that is flushed.
    pub(crate) next_flush_status: CompletionStatus,
}

/// A request that is fetched and not executed.
#[derive(Clone, Debug)]
pub(crate) struct PendingRequest {
    pub(crate) counter: u64,
    pub(crate) decoded: DecodedRequest,
    pub(crate) not_before: Option<Instant>,
    /// Retries because the receiver had no receive posted, if their number is limited.
    pub(crate) tries: u8,
    /// Bytes that earlier tries moved.
    pub(crate) moved: u64,
    pub(crate) injected: Option<CompletionStatus>,
}

/// The bytes of an entry, copied out of the ring once.
pub(crate) struct Fetched {
    pub(crate) counter: u64,
    bytes: [u8; EntrySize::B128.bytes()],
    size: EntrySize,
}

impl Fetched {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.size.bytes()]
    }
}

impl SendState {
    /// The state of an empty queue whose first entry has the index `counter`.
    pub(crate) fn new(counter: u64) -> Self {
        Self {
            last_doorbell: counter as u16,
            doorbell_index: counter,
            fetched: counter,
            completed: counter,
            pending: VecDeque::new(),
            is_moving: false,
            settled_rounds: 0,
            gathered: Vec::new(),
            last_write: Instant::now(),
            write_time: Duration::ZERO,
            idle_until: None,
            next_flush_status: CompletionStatus::Flushed,
        }
    }
}

impl SendRing {
    /// Fills every slot with the unwritten pattern and sets the doorbell to its initial value.
    pub(crate) fn prepare(&self, counter: u64) {
        for ahead in 0..self.ring.entries() {
            self.reset_slot(counter + u64::from(ahead));
        }
        self.doorbell.ring(self.ring.doorbell(counter as u32));
    }

    fn offset(&self, counter: u64) -> usize {
        self.ring.slot(counter as u32) as usize * self.entry.bytes()
    }

    fn phase(&self, counter: u64) -> bool {
        self.ring.phase(counter as u32)
    }

    /// Writes the unwritten pattern into the slot of the entry with index `next`.
    fn reset_slot(&self, next: u64) {
        self.unwritten.fill(&self.memory, self.offset(next), self.entry.bytes(), self.phase(next));
    }

    fn is_written(&self, counter: u64) -> bool {
        self.unwritten.is_written(&self.memory, self.offset(counter), self.phase(counter))
    }

    /// Returns whether the slot of a fetched entry still holds the unwritten pattern. Also true if the
    /// client may already have written the next entry there, since that is not a change.
    pub(crate) fn entry_unchanged(&self, send: &SendState, counter: u64) -> bool {
        let next = counter + u64::from(self.ring.entries());
        send.completed > counter
            || self.unwritten.is_intact(&self.memory, self.offset(next), self.entry.bytes(), self.phase(next))
    }

    /// Polls the doorbell and checks its value. If it did not move, checks that no entry is written past the batch.
    pub(crate) fn poll_doorbell(&self, send: &mut SendState, shared: &Shared) -> Result<(), Box<BrokenRule>> {
        // The slot is read before the doorbell: see "Reading ahead" in ring_memory.rs. A doorbell that moved may cover
        // it.
        let past_batch = self.written_past_batch(send);
        let value = self.doorbell.value();
        let advance = doorbell_advance(send.last_doorbell, value);
        if advance == 0 {
            return match past_batch {
                Some(counter) => Err(Box::new(self.batch_exceeded(send, counter))),
                None => Ok(()),
            };
        }
        shared.counts.doorbells.fetch_add(1, Ordering::Relaxed);
        let in_flight = send.doorbell_index + u64::from(advance) - send.completed;
        let entries = self.ring.entries();
        let rule = if in_flight <= u64::from(entries) {
            let exceeded = u32::from(advance) > self.max_batch && shared.config.every_doorbell_seen;
            exceeded
                .then_some(StrictRule::BatchExceeded { written: advance.into(), max_batch: self.max_batch })
        } else if advance > MAX_DOORBELL_ADVANCE {
            Some(StrictRule::DoorbellBackwards { from: send.last_doorbell, to: value as u16 })
        } else {
            Some(StrictRule::DoorbellPastRing { in_flight, entries })
        };
        if let Some(rule) = rule {
            return Err(Box::new(BrokenRule::of_doorbell(send.doorbell_index, rule)));
        }
        send.doorbell_index += u64::from(advance);
        send.last_doorbell = value as u16;
        Ok(())
    }

    /// The index of the entry `max_batch` past the doorbell producer index, if that entry is written. Only a slot
    /// whose entry of the previous lap was fetched holds the unwritten pattern, and can show this. If `max_batch` is at
    /// least the ring's entries, there is no such slot.
    fn written_past_batch(&self, send: &SendState) -> Option<u64> {
        let first = send.doorbell_index + u64::from(self.max_batch);
        let fetched_before = first - send.fetched < u64::from(self.ring.entries());
        (fetched_before && self.is_written(first)).then_some(first)
    }

    fn batch_exceeded(&self, send: &SendState, counter: u64) -> BrokenRule {
        let end = send.fetched + u64::from(self.ring.entries());
        let more = (counter + 1..end).take_while(|next| self.is_written(*next)).count() as u64;
        let written = (counter + 1 + more - send.doorbell_index) as u32;
        let fetched = self.read(counter);
        BrokenRule {
            slot: Some(self.ring.slot(counter as u32)),
            counter,
            entry: DecodedRequest::decode(fetched.bytes(), self.ids).ok(),
            raw: fetched.bytes().to_vec(),
            rule: StrictRule::BatchExceeded { written, max_batch: self.max_batch },
        }
    }

    #[inline]
    fn read(&self, counter: u64) -> Fetched {
        let mut fetched = Fetched { counter, bytes: [0; EntrySize::B128.bytes()], size: self.entry };
        self.memory.load(self.offset(counter), &mut fetched.bytes[..self.entry.bytes()]);
        fetched
    }

    /// Prefetches the first entries of this round.
    pub(crate) fn prefetch(&self, send: &SendState) {
        let end = send.doorbell_index.min(send.fetched + PREFETCHED_ENTRIES);
        (send.fetched..end).for_each(|counter| self.prefetch_entry(counter));
    }

    #[inline]
    fn prefetch_entry(&self, counter: u64) {
        let offset = self.offset(counter);
        (offset..offset + self.entry.bytes()).step_by(CACHE_LINE).for_each(|at| self.memory.prefetch(at));
    }

    /// Copies the next entry out of the ring and resets its slot.
    #[inline]
    pub(crate) fn fetch(&self, send: &mut SendState) -> Fetched {
        let ahead = send.fetched + PREFETCHED_ENTRIES;
        if ahead < send.doorbell_index {
            self.prefetch_entry(ahead);
        }
        let fetched = self.read(send.fetched);
        self.reset_slot(send.fetched + u64::from(self.ring.entries()));
        send.fetched += 1;
        fetched
    }

    #[inline]
    pub(crate) fn decode(&self, fetched: &Fetched) -> DecodedRequest {
        match DecodedRequest::decode(fetched.bytes(), self.ids) {
            Ok(decoded) => decoded,
            // decode fails only for other sizes than 64 and 128 bytes.
            Err(_) => unreachable!("a ring's entries are 64 or 128 bytes"),
        }
    }

    /// Returns the strict rules that an entry breaks. `decoded` is borrowed because moving it costs the
    /// engine more than reading it.
    #[inline]
    pub(crate) fn check(&self, fetched: &Fetched, decoded: &DecodedRequest) -> Vec<StrictRule> {
        let expected = self.phase(fetched.counter);
        let is_used = |offset| offset < used_bytes(decoded);
        if let Some(offset) = self.unwritten.first_unwritten_word(fetched.bytes(), expected, is_used) {
            return vec![StrictRule::HalfWritten { offset: offset as u8 }];
        }
        let mut broken = Vec::new();
        if decoded.phase != expected {
            broken.push(StrictRule::Phase { seen: decoded.phase, expected });
        }
        if !decoded.broken.is_empty() {
            let strict = decoded.broken.iter().filter(|rule| status_of(*rule).is_none());
            broken.extend(strict.map(StrictRule::Descriptor));
        }
        broken
    }

    pub(crate) fn broken_rule(
        &self,
        counter: u64,
        decoded: &DecodedRequest,
        raw: &[u8],
        rule: StrictRule,
    ) -> BrokenRule {
        let slot = Some(self.ring.slot(counter as u32));
        BrokenRule { slot, counter, entry: Some(*decoded), raw: raw.to_vec(), rule }
    }

    /// The bytes that are in the slot of a fetched entry now.
    pub(crate) fn slot_bytes(&self, counter: u64) -> Vec<u8> {
        self.read(counter).bytes().to_vec()
    }

    /// Takes all requests that are pending or posted, to flush them. Returns their request ids and operation codes;
    /// both are 0 for an entry that was not written, and for one whose slot this call already fetched for an earlier
    /// entry. A doorbell past the ring advances the doorbell producer index by at most the entries of the ring.
    pub(crate) fn take_all(&self, send: &mut SendState) -> Vec<(RequestId, u8)> {
        let value = self.doorbell.value();
        let advance = doorbell_advance(send.last_doorbell, value);
        send.last_doorbell = value as u16;
        if advance <= MAX_DOORBELL_ADVANCE {
            send.doorbell_index += u64::from(advance).min(self.ring.entries().into());
        } else if send.next_flush_status != CompletionStatus::Flushed && self.is_written(send.doorbell_index)
        {
            // The poster wrote an entry and moved the doorbell backwards. It waits for that entry's
            // completion.
            send.doorbell_index += 1;
        }
        let mut ids: Vec<_> = send
            .pending
            .drain(..)
            .map(|request| (request.decoded.id, request.decoded.operation_code))
            .collect();
        while send.fetched < send.doorbell_index {
            let written = self.is_written(send.fetched);
            let fetched = self.fetch(send);
            let decoded = DecodedRequest::decode(fetched.bytes(), self.ids).ok().filter(|_| written);
            ids.push(decoded.map_or((RequestId::new(0), 0), |decoded| (decoded.id, decoded.operation_code)));
        }
        ids
    }
}

/// Bytes of an entry that its operation uses. The other bytes may hold anything.
fn used_bytes(decoded: &DecodedRequest) -> usize {
    META_BYTES
        + match decoded.request.as_ref().map(|request| &request.operation) {
            Some(Operation::Send(segments)) => SEGMENT_BYTES * segments.len(),
            Some(Operation::SendInline(data)) => data.len(),
            Some(Operation::Write { .. } | Operation::Read { .. }) => 2 * SEGMENT_BYTES,
            Some(Operation::WriteInline { data, .. }) => SEGMENT_BYTES + data.len(),
            None => 0,
        }
}

/// The status with which hardware completes an entry that breaks `rule`. `None` if hardware accepts the
/// entry silently or its behaviour is unknown; the strict checker reports those rules.
pub(crate) fn status_of(rule: Rule) -> Option<CompletionStatus> {
    match rule {
        Rule::KnownOperation | Rule::InlineSupported | Rule::ImmediateSupported => {
            Some(CompletionStatus::UnsupportedOperation)
        }
        Rule::SegmentCount | Rule::InlineLength => Some(CompletionStatus::BadLength),
        _ => None,
    }
}
