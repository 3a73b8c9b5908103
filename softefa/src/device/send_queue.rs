//! Send queues: watching the doorbell, fetching entries once, and checking what hardware would let
//! pass.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use efa_gda_wire::{
    Completion, CompletionStatus, DecodedRequest, EntrySize, Operation, RequestId, RequestIdWidth, Ring,
    Rule, doorbell_advance,
};

use super::pattern::Unwritten;
use super::queue_pair::Finding;
use super::ring_memory::{Doorbell, RingMemory};
use super::shared::Shared;
use super::violation::StrictRule;

/// Bytes of the meta descriptor, which every entry has.
const META_BYTES: usize = 32;
/// Bytes of one segment, and of the remote address of an RDMA request.
const PART_BYTES: usize = 16;
/// Entries on their way here while one is executed.
const PREFETCHED: u64 = 8;
const CACHE_LINE: usize = 64;
/// A larger advance means that the doorbell moved backwards.
pub(crate) const BACKWARDS: u16 = 1 << 15;

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

/// Where a send queue stands. Counters never wrap: `completed <= fetched <= rung`.
pub(crate) struct SendState {
    /// The doorbell as last seen, low 16 bits.
    doorbell_seen: u16,
    /// Entries that doorbells covered.
    pub(crate) rung: u64,
    /// Entries copied out of the ring.
    pub(crate) fetched: u64,
    /// Completions made visible.
    pub(crate) completed: u64,
    /// Fetched and not executed: held, delayed, waiting for a receive.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Rounds since something was fetched, while requests gather to be reordered.
    pub(crate) settled: u32,
    /// Completions that are not visible yet.
    pub(crate) staged: Vec<Completion>,
    /// Status of the next request that is flushed.
    pub(crate) next_flushed: CompletionStatus,
}

/// A request that was fetched and not executed.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) counter: u64,
    pub(crate) decoded: DecodedRequest,
    pub(crate) not_before: Option<Instant>,
    pub(crate) tries: u8,
    pub(crate) injected: Option<CompletionStatus>,
}

/// An entry's bytes, copied out of the ring once.
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
    /// At the start of a queue, `counter` entries along.
    pub(crate) fn new(counter: u64) -> Self {
        Self {
            doorbell_seen: counter as u16,
            rung: counter,
            fetched: counter,
            completed: counter,
            waiting: VecDeque::new(),
            settled: 0,
            staged: Vec::new(),
            next_flushed: CompletionStatus::Flushed,
        }
    }
}

impl SendRing {
    /// Puts the unwritten pattern everywhere and the doorbell where it starts.
    pub(crate) fn prepare(&self, counter: u64) {
        for ahead in 0..self.ring.entries() {
            self.erase(counter + u64::from(ahead));
        }
        self.doorbell.ring(self.ring.doorbell(counter as u32));
    }

    fn offset(&self, counter: u64) -> usize {
        self.ring.slot(counter as u32) as usize * self.entry.bytes()
    }

    fn phase(&self, counter: u64) -> bool {
        self.ring.phase(counter as u32)
    }

    fn erase(&self, next: u64) {
        self.unwritten.fill(&self.memory, self.offset(next), self.entry.bytes(), self.phase(next));
    }

    fn begun(&self, counter: u64) -> bool {
        self.unwritten.begun(&self.memory, self.offset(counter), self.phase(counter))
    }

    /// Whether the slot of a fetched entry still is as the engine left it. True also where the client
    /// may have written the next entry there.
    pub(crate) fn unchanged(&self, send: &SendState, counter: u64) -> bool {
        let next = counter + u64::from(self.ring.entries());
        send.completed > counter
            || self.unwritten.untouched(&self.memory, self.offset(next), self.entry.bytes(), self.phase(next))
    }

    /// Looks at the doorbell, and whether anything is written that it does not allow.
    pub(crate) fn watch(&self, send: &mut SendState, shared: &Shared) -> Result<(), Box<Finding>> {
        // First the slot, then the doorbell: the protocol says why.
        let ahead = self.written_past_batch(send);
        let value = self.doorbell.value();
        let advance = doorbell_advance(send.doorbell_seen, value);
        if advance == 0 {
            return match ahead {
                Some(counter) => Err(Box::new(self.batch_exceeded(send, counter))),
                None => Ok(()),
            };
        }
        shared.counts.doorbells.fetch_add(1, Ordering::Relaxed);
        let in_flight = send.rung + u64::from(advance) - send.completed;
        let entries = self.ring.entries();
        let rule = if in_flight <= u64::from(entries) {
            let exceeded = u32::from(advance) > self.max_batch && shared.config.every_doorbell_seen;
            exceeded
                .then_some(StrictRule::BatchExceeded { written: advance.into(), max_batch: self.max_batch })
        } else if advance > BACKWARDS {
            Some(StrictRule::DoorbellBackwards { from: send.doorbell_seen, to: value as u16 })
        } else {
            Some(StrictRule::DoorbellPastRing { in_flight, entries })
        };
        if let Some(rule) = rule {
            return Err(Box::new(Finding {
                slot: None,
                counter: send.rung,
                entry: None,
                raw: Vec::new(),
                rule,
            }));
        }
        send.rung += u64::from(advance);
        send.doorbell_seen = value as u16;
        Ok(())
    }

    /// The first entry past the batch, if it is written. Only a slot whose last entry was fetched
    /// tells; where the batch is the ring or more, none does.
    fn written_past_batch(&self, send: &SendState) -> Option<u64> {
        let first = send.rung + u64::from(self.max_batch);
        let free = first - send.fetched < u64::from(self.ring.entries());
        (free && self.begun(first)).then_some(first)
    }

    fn batch_exceeded(&self, send: &SendState, counter: u64) -> Finding {
        let end = send.fetched + u64::from(self.ring.entries());
        let more = (counter + 1..end).take_while(|next| self.begun(*next)).count() as u64;
        let written = (counter + 1 + more - send.rung) as u32;
        let (entry, raw) = self.evidence(&self.read(counter));
        let rule = StrictRule::BatchExceeded { written, max_batch: self.max_batch };
        Finding { slot: Some(self.ring.slot(counter as u32)), counter, entry, raw, rule }
    }

    #[inline]
    fn read(&self, counter: u64) -> Fetched {
        let mut fetched = Fetched { counter, bytes: [0; EntrySize::B128.bytes()], size: self.entry };
        self.memory.load(self.offset(counter), &mut fetched.bytes[..self.entry.bytes()]);
        fetched
    }

    /// Starts to bring the entries of this round here.
    pub(crate) fn prefetch(&self, send: &SendState) {
        let end = send.rung.min(send.fetched + PREFETCHED);
        (send.fetched..end).for_each(|counter| self.prefetch_one(counter));
    }

    #[inline]
    fn prefetch_one(&self, counter: u64) {
        let offset = self.offset(counter);
        (offset..offset + self.entry.bytes()).step_by(CACHE_LINE).for_each(|at| self.memory.prefetch(at));
    }

    /// Copies the next entry out of the ring.
    #[inline]
    pub(crate) fn fetch(&self, send: &mut SendState) -> Fetched {
        let ahead = send.fetched + PREFETCHED;
        if ahead < send.rung {
            self.prefetch_one(ahead);
        }
        let fetched = self.read(send.fetched);
        self.erase(send.fetched + u64::from(self.ring.entries()));
        send.fetched += 1;
        fetched
    }

    /// What an entry says.
    #[inline]
    pub(crate) fn decode(&self, fetched: &Fetched) -> DecodedRequest {
        match DecodedRequest::decode(fetched.bytes(), self.ids) {
            Ok(decoded) => decoded,
            // Entries have one of the two sizes that decode takes.
            Err(_) => unreachable!("a ring's entries are 64 or 128 bytes"),
        }
    }

    /// Which strict rules an entry breaks. The request is borrowed: moving it costs the engine more
    /// than reading it.
    #[inline]
    pub(crate) fn check(&self, fetched: &Fetched, decoded: &DecodedRequest) -> Vec<StrictRule> {
        let expected = self.phase(fetched.counter);
        let used = |offset| offset < used_bytes(decoded);
        if let Some(offset) = self.unwritten.first_in(fetched.bytes(), expected, used) {
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

    pub(crate) fn finding(
        &self,
        counter: u64,
        decoded: &DecodedRequest,
        raw: &[u8],
        rule: StrictRule,
    ) -> Finding {
        let slot = Some(self.ring.slot(counter as u32));
        Finding { slot, counter, entry: Some(*decoded), raw: raw.to_vec(), rule }
    }

    /// The bytes in the slot of an entry that was fetched before.
    pub(crate) fn slot_bytes(&self, counter: u64) -> Vec<u8> {
        self.read(counter).bytes().to_vec()
    }

    fn evidence(&self, fetched: &Fetched) -> (Option<DecodedRequest>, Vec<u8>) {
        (DecodedRequest::decode(fetched.bytes(), self.ids).ok(), fetched.bytes().to_vec())
    }

    /// Takes everything that is posted, as id and operation code, for flushing. A doorbell that
    /// makes no sense covers at most what the ring holds.
    pub(crate) fn drain(&self, send: &mut SendState) -> Vec<(RequestId, u8)> {
        let value = self.doorbell.value();
        let advance = doorbell_advance(send.doorbell_seen, value);
        send.doorbell_seen = value as u16;
        if advance <= BACKWARDS {
            send.rung += u64::from(advance).min(self.ring.entries().into());
        } else if send.next_flushed != CompletionStatus::Flushed && self.begun(send.rung) {
            // The poster of an entry with a doorbell that went backwards waits for that entry.
            send.rung += 1;
        }
        let mut ids: Vec<_> = send
            .waiting
            .drain(..)
            .map(|waiting| (waiting.decoded.id, waiting.decoded.operation_code))
            .collect();
        while send.fetched < send.rung {
            let written = self.begun(send.fetched);
            let fetched = self.fetch(send);
            let decoded = DecodedRequest::decode(fetched.bytes(), self.ids).ok().filter(|_| written);
            ids.push(decoded.map_or((RequestId::new(0), 0), |decoded| (decoded.id, decoded.operation_code)));
        }
        ids
    }
}

/// Bytes of an entry that its operation uses; the others may hold anything.
fn used_bytes(decoded: &DecodedRequest) -> usize {
    META_BYTES
        + match decoded.request.as_ref().map(|request| &request.operation) {
            Some(Operation::Send(segments)) => PART_BYTES * segments.len(),
            Some(Operation::SendInline(data)) => data.len(),
            Some(Operation::Write { .. } | Operation::Read { .. }) => 2 * PART_BYTES,
            Some(Operation::WriteInline { data, .. }) => PART_BYTES + data.len(),
            None => 0,
        }
}

/// The status that hardware has for an entry that breaks this rule; none where it would take the
/// entry in silence, or nobody knows, which is what the strict checker is for.
pub(crate) fn status_of(rule: Rule) -> Option<CompletionStatus> {
    match rule {
        Rule::KnownOperation | Rule::InlineSupported | Rule::ImmediateSupported => {
            Some(CompletionStatus::UnsupportedOperation)
        }
        Rule::SegmentCount | Rule::InlineLength => Some(CompletionStatus::BadLength),
        _ => None,
    }
}
