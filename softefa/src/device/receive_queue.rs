//! Receive queues: taking posted receives, and checking descriptors and doorbells.
//!
//! # Protocol
//! The shared words are the slots and the doorbell; `engine.rs` has their owners and orders.
//! A client may write the slots of a receive again when the completion of that receive is visible. That completion is
//! written after the slots were reset: by the same thread, or by one that has since acquired the network's lock (a flush)
//! or the lock of the completion queue (a backlog).

use std::sync::{Arc, Mutex};

use efa_gda_wire::{RX_DESCRIPTOR_BYTES, Receive, ReceiveDescriptor, RequestId, Ring, doorbell_advance};

use super::pattern::Unwritten;
use super::queue_pair::BrokenRule;
use super::ring_memory::{Doorbell, MAX_DOORBELL_ADVANCE, RingMemory};
use super::shared::lock;
use super::violation::StrictRule;

/// Most descriptors of one receive. An adapter's limit may be lower.
pub(crate) const MAX_SEGMENTS: usize = 8;
/// Receive descriptors have no phase bit, so the unwritten pattern is the same on every lap.
const NO_PHASE: bool = false;

/// A receive queue's ring.
pub(crate) struct ReceiveRing {
    pub(crate) memory: Arc<RingMemory>,
    pub(crate) ring: Ring,
    pub(crate) doorbell: Doorbell,
    pub(crate) unwritten: Unwritten,
    pub(crate) max_segments: usize,
    pub(crate) state: Mutex<ReceiveState>,
}

/// The indexes of a receive queue. They count descriptors, have 64 bits and never wrap:
/// `taken <= doorbell_index`.
#[derive(Debug)]
pub(crate) struct ReceiveState {
    /// Low 16 bits of the doorbell value that [`ReceiveRing::cover`] recorded last.
    last_doorbell: u16,
    /// Descriptors that doorbells covered.
    doorbell_index: u64,
    /// Descriptors taken. They count as free at once: their completion may become visible, and the client
    /// may post again, before the next access to this state.
    taken: u64,
}

impl ReceiveState {
    pub(crate) fn new(counter: u64) -> Self {
        Self { last_doorbell: counter as u16, doorbell_index: counter, taken: counter }
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedReceive {
    pub(crate) id: RequestId,
    segments: [Receive; MAX_SEGMENTS],
    count: usize,
}

impl PostedReceive {
    pub(crate) fn segments(&self) -> &[Receive] {
        &self.segments[..self.count]
    }
}

const EMPTY: Receive = Receive {
    id: 0,
    address: 0,
    length: 0,
    key: match efa_gda_wire::LocalKey::new(0) {
        Ok(key) => key,
        Err(_) => panic!("0 fits 24 bits"),
    },
};

impl ReceiveRing {
    /// Fills every slot with the unwritten pattern and sets the doorbell to its initial value.
    pub(crate) fn prepare(&self, counter: u64) {
        for slot in 0..self.ring.entries() {
            self.reset_slot(slot as usize * RX_DESCRIPTOR_BYTES);
        }
        self.doorbell.ring(self.ring.doorbell(counter as u32));
    }

    fn offset(&self, counter: u64) -> usize {
        self.ring.slot(counter as u32) as usize * RX_DESCRIPTOR_BYTES
    }

    fn reset_slot(&self, offset: usize) {
        self.unwritten.fill(&self.memory, offset, RX_DESCRIPTOR_BYTES, NO_PHASE);
    }

    /// Polls the doorbell and checks its value. After an error the caller must set the queue pair's error state.
    pub(crate) fn poll_doorbell(&self) -> Result<(), Box<BrokenRule>> {
        self.advance(&mut lock(&self.state))
    }

    fn advance(&self, state: &mut ReceiveState) -> Result<(), Box<BrokenRule>> {
        let value = self.doorbell.value();
        let advance = doorbell_advance(state.last_doorbell, value);
        if advance == 0 {
            return Ok(());
        }
        let (from, before) = (state.last_doorbell, state.doorbell_index);
        let in_flight = before + u64::from(advance) - state.taken;
        let entries = self.ring.entries();
        self.cover(state, value);
        if in_flight <= u64::from(entries) {
            return Ok(());
        }
        let rule = if advance > MAX_DOORBELL_ADVANCE {
            StrictRule::DoorbellBackwards { from, to: value as u16 }
        } else {
            StrictRule::DoorbellPastRing { in_flight, entries }
        };
        Err(Box::new(BrokenRule::of_doorbell(before, rule)))
    }

    /// Records a doorbell value. One past the ring covers the free slots, so that their receives are flushed; one that
    /// moved backwards covers none.
    fn cover(&self, state: &mut ReceiveState, value: u32) {
        let advance = doorbell_advance(state.last_doorbell, value);
        state.last_doorbell = value as u16;
        if advance <= MAX_DOORBELL_ADVANCE {
            let free = u64::from(self.ring.entries()) - (state.doorbell_index - state.taken);
            state.doorbell_index += u64::from(advance).min(free);
        }
    }

    /// Whether [`Self::take`] would return a receive or a broken rule.
    pub(crate) fn may_have_receive(&self) -> bool {
        let state = lock(&self.state);
        state.taken != state.doorbell_index
            || doorbell_advance(state.last_doorbell, self.doorbell.value()) != 0
    }

    /// Takes the oldest receive, if one is posted. After an error the caller must set the error state: descriptors
    /// before a broken one stay taken, and a doorbell that broke a rule is not reported again.
    pub(crate) fn take(&self) -> Result<Option<PostedReceive>, Box<BrokenRule>> {
        let mut state = lock(&self.state);
        if state.taken == state.doorbell_index {
            self.advance(&mut state)?;
        }
        if state.taken == state.doorbell_index { Ok(None) } else { self.take_posted(&mut state).map(Some) }
    }

    fn take_posted(&self, state: &mut ReceiveState) -> Result<PostedReceive, Box<BrokenRule>> {
        let mut posted = PostedReceive { id: RequestId::new(0), segments: [EMPTY; MAX_SEGMENTS], count: 0 };
        loop {
            let counter = state.taken;
            let mut raw = [0; RX_DESCRIPTOR_BYTES];
            self.memory.load(self.offset(counter), &mut raw);
            let descriptor = ReceiveDescriptor::decode(&raw);
            let unwritten = self.unwritten.first_unwritten_word(&raw, NO_PHASE, |_| true);
            let grouped = descriptor.first == (posted.count == 0) && posted.count < self.max_segments;
            let has_next = descriptor.last || counter + 1 < state.doorbell_index;
            let rule = match unwritten {
                Some(offset) => Some(StrictRule::HalfWritten { offset: offset as u8 }),
                None if !descriptor.reserved_zero => Some(StrictRule::ReceiveReservedBits),
                None if !grouped || !has_next => Some(StrictRule::ReceiveGrouping),
                None => None,
            };
            if let Some(rule) = rule {
                let slot = Some(self.ring.slot(counter as u32));
                return Err(Box::new(BrokenRule { slot, counter, entry: None, raw: raw.to_vec(), rule }));
            }
            self.reset_slot(self.offset(counter));
            state.taken += 1;
            if posted.count == 0 {
                posted.id = descriptor.request_id();
            }
            posted.segments[posted.count] = descriptor.receive;
            posted.count += 1;
            if descriptor.last {
                return Ok(posted);
            }
        }
    }

    /// Takes all posted descriptors, to flush them. Returns the request ids of the receives whose last descriptor is
    /// written, and the number of slots taken.
    pub(crate) fn take_all(&self) -> (Vec<RequestId>, u64) {
        let mut state = lock(&self.state);
        self.cover(&mut state, self.doorbell.value());
        let (mut ids, first) = (Vec::new(), state.taken);
        while state.taken < state.doorbell_index {
            let mut raw = [0; RX_DESCRIPTOR_BYTES];
            self.memory.load(self.offset(state.taken), &mut raw);
            let descriptor = ReceiveDescriptor::decode(&raw);
            let written = self.unwritten.first_unwritten_word(&raw, NO_PHASE, |_| true).is_none();
            if written && descriptor.last {
                ids.push(descriptor.request_id());
            }
            self.reset_slot(self.offset(state.taken));
            state.taken += 1;
        }
        (ids, state.taken - first)
    }
}
