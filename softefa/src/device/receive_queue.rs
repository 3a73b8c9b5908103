//! Receive queues: taking posted receives, checking descriptors and doorbells.

use std::sync::{Arc, Mutex};

use efa_gda_wire::{RX_DESCRIPTOR_BYTES, Receive, ReceiveDescriptor, RequestId, Ring, doorbell_advance};

use super::pattern::Unwritten;
use super::queue_pair::Finding;
use super::ring_memory::{Doorbell, RingMemory};
use super::send_queue::BACKWARDS;
use super::shared::lock;
use super::violation::StrictRule;

/// The most descriptors that one receive may have, whatever an adapter's limits say.
pub(crate) const MOST_SEGMENTS: usize = 8;
/// Receive queues have no phase; the unwritten pattern is then the same on every lap.
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

/// Where a receive queue stands, in descriptors.
#[derive(Debug)]
pub(crate) struct ReceiveState {
    doorbell_seen: u16,
    rung: u64,
    /// Taken; the client has them back as soon as their completion is visible, which may be before
    /// anything else is done here, so they count as free at once.
    taken: u64,
}

impl ReceiveState {
    pub(crate) fn new(counter: u64) -> Self {
        Self { doorbell_seen: counter as u16, rung: counter, taken: counter }
    }
}

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) id: RequestId,
    segments: [Receive; MOST_SEGMENTS],
    count: usize,
}

impl Posted {
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
    /// Puts the unwritten pattern everywhere and the doorbell where it starts.
    pub(crate) fn prepare(&self, counter: u64) {
        for slot in 0..self.ring.entries() {
            self.erase(slot as usize * RX_DESCRIPTOR_BYTES);
        }
        self.doorbell.ring(self.ring.doorbell(counter as u32));
    }

    fn offset(&self, counter: u64) -> usize {
        self.ring.slot(counter as u32) as usize * RX_DESCRIPTOR_BYTES
    }

    fn erase(&self, offset: usize) {
        self.unwritten.fill(&self.memory, offset, RX_DESCRIPTOR_BYTES, NO_PHASE);
    }

    /// Looks at the doorbell.
    pub(crate) fn watch(&self) -> Result<(), Box<Finding>> {
        self.advance(&mut lock(&self.state))
    }

    fn advance(&self, state: &mut ReceiveState) -> Result<(), Box<Finding>> {
        let value = self.doorbell.value();
        let advance = doorbell_advance(state.doorbell_seen, value);
        if advance == 0 {
            return Ok(());
        }
        let in_flight = state.rung + u64::from(advance) - state.taken;
        let entries = self.ring.entries();
        if in_flight <= u64::from(entries) {
            state.rung += u64::from(advance);
            state.doorbell_seen = value as u16;
            return Ok(());
        }
        let rule = if advance > BACKWARDS {
            StrictRule::DoorbellBackwards { from: state.doorbell_seen, to: value as u16 }
        } else {
            StrictRule::DoorbellPastRing { in_flight, entries }
        };
        state.doorbell_seen = value as u16;
        Err(Box::new(Finding { slot: None, counter: state.rung, entry: None, raw: Vec::new(), rule }))
    }

    /// The oldest receive, if one is posted.
    pub(crate) fn take(&self) -> Result<Option<Posted>, Box<Finding>> {
        let mut state = lock(&self.state);
        if state.taken == state.rung {
            self.advance(&mut state)?;
        }
        if state.taken == state.rung { Ok(None) } else { self.take_posted(&mut state).map(Some) }
    }

    fn take_posted(&self, state: &mut ReceiveState) -> Result<Posted, Box<Finding>> {
        let mut posted = Posted { id: RequestId::new(0), segments: [EMPTY; MOST_SEGMENTS], count: 0 };
        loop {
            let counter = state.taken;
            let mut raw = [0; RX_DESCRIPTOR_BYTES];
            self.memory.load(self.offset(counter), &mut raw);
            let descriptor = ReceiveDescriptor::decode(&raw);
            let unwritten = self.unwritten.first_in(&raw, NO_PHASE, |_| true);
            let grouped = descriptor.first == (posted.count == 0) && posted.count < self.max_segments;
            let last_there = descriptor.last || counter + 1 < state.rung;
            let rule = match unwritten {
                Some(offset) => Some(StrictRule::HalfWritten { offset: offset as u8 }),
                None if !descriptor.reserved_zero => Some(StrictRule::ReceiveReservedBits),
                None if !grouped || !last_there => Some(StrictRule::ReceiveGrouping),
                None => None,
            };
            if let Some(rule) = rule {
                let slot = Some(self.ring.slot(counter as u32));
                return Err(Box::new(Finding { slot, counter, entry: None, raw: raw.to_vec(), rule }));
            }
            self.erase(self.offset(counter));
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

    /// Takes everything that is posted, for flushing: the ids of descriptors that end a receive.
    pub(crate) fn drain(&self) -> Vec<RequestId> {
        let mut state = lock(&self.state);
        let value = self.doorbell.value();
        let advance = doorbell_advance(state.doorbell_seen, value);
        state.doorbell_seen = value as u16;
        if advance <= BACKWARDS {
            let free = u64::from(self.ring.entries()) - (state.rung - state.taken);
            state.rung += u64::from(advance).min(free);
        }
        let mut ids = Vec::new();
        while state.taken < state.rung {
            let mut raw = [0; RX_DESCRIPTOR_BYTES];
            self.memory.load(self.offset(state.taken), &mut raw);
            let descriptor = ReceiveDescriptor::decode(&raw);
            let written = self.unwritten.first_in(&raw, NO_PHASE, |_| true).is_none();
            if written && descriptor.last {
                ids.push(descriptor.request_id());
            }
            self.erase(self.offset(state.taken));
            state.taken += 1;
        }
        ids
    }
}
