//! Events of completion queues: when a queue that its program armed sends one.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod device_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use device_support::*;
use efa_gda_test_support::until;
use efa_gda_wire::*;
use softefa::device::*;

/// A side with a write to itself, and the events of its completion queue.
struct Sleeper {
    side: Side,
    write: Request,
    _buffer: Buffer,
    sent: Arc<AtomicU32>,
    is_full: Arc<AtomicBool>,
    consumed: u32,
    /// The number of events that the program has read.
    sequence: u32,
}

impl Sleeper {
    fn new() -> Self {
        let network = Network::new();
        let adapter = adapter(&network, 1);
        let pd = adapter.allocate_domain().unwrap();
        let (sent, is_full) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, full) = (sent.clone(), is_full.clone());
        let send = move || {
            let is_sent = !full.load(Ordering::Relaxed);
            count.fetch_add(is_sent.into(), Ordering::Relaxed);
            is_sent
        };
        let events: Option<SendEvent> = Some(Arc::new(send));
        let attr = CompletionQueueAttr { entries: 1024, doorbell: true, events, ..Default::default() };
        let cq = adapter.create_completion_queue(attr).unwrap();
        let side = Side::on(&adapter, pd, cq, |_| {});
        let itself = side.handle(&side);
        let buffer = Buffer::new(&side, 128, Access::ALL);
        let write = write(3, itself, buffer.remote(64), buffer.segment(0, 64));
        Self { side, write, _buffer: buffer, sent, is_full, consumed: 0, sequence: 0 }
    }

    fn ring(&self, arm: bool) {
        let bits = self.consumed & 0xffff | (self.sequence & 3) << 29 | u32::from(arm) << 31;
        self.side.cq.doorbell.as_ref().unwrap().ring(bits);
    }

    /// Makes a completion, which the program has not consumed yet.
    fn complete(&mut self) {
        assert_eq!(self.side.run(&self.write), CompletionStatus::Ok);
    }

    fn consume(&mut self) {
        self.consumed += 1;
        self.ring(false);
    }

    /// The number of events after the round of the queue pair that the engine was in.
    fn sent(&self) -> u32 {
        let domain = self.side.adapter.allocate_domain().unwrap();
        self.side.adapter.free_domain(domain).unwrap();
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits for this number of events.
    fn await_sent(&self, count: u32) {
        let is_sent = || (self.sent() >= count).then_some(());
        until(Duration::from_secs(60), "an event", is_sent);
        assert_eq!(self.sent(), count);
    }
}

#[test]
fn a_queue_whose_doorbell_was_never_written_sends_no_event() {
    let mut a = Sleeper::new();
    a.complete();
    a.complete();
    assert_eq!(a.sent(), 0);
}

#[test]
fn an_armed_queue_sends_one_event_until_the_program_has_read_it_and_arms_again() {
    let mut a = Sleeper::new();
    a.ring(true);
    a.complete();
    assert_eq!(a.sent(), 1);
    a.complete();
    a.ring(true);
    a.complete();
    assert_eq!(a.sent(), 1, "the event of this number was sent");
    a.consumed = 3;
    a.sequence = 1;
    a.ring(true);
    assert_eq!(a.sent(), 1, "nothing is unread");
    a.complete();
    assert_eq!(a.sent(), 2);
}

#[test]
fn arming_sends_an_event_at_once_if_completions_are_past_the_consumer_index() {
    let mut a = Sleeper::new();
    a.complete();
    assert_eq!(a.sent(), 0);
    a.ring(true);
    a.await_sent(1);
}

#[test]
fn an_arming_that_a_poll_overwrote_counts() {
    let mut a = Sleeper::new();
    a.ring(true);
    a.complete();
    a.sequence = 1;
    a.ring(true);
    a.consume();
    assert_eq!(a.sent(), 1);
    a.complete();
    assert_eq!(a.sent(), 2);
}

#[test]
fn an_event_without_room_is_sent_once_there_is_room() {
    let mut a = Sleeper::new();
    a.is_full.store(true, Ordering::Relaxed);
    a.ring(true);
    a.complete();
    a.consume();
    assert_eq!(a.sent(), 0);
    a.is_full.store(false, Ordering::Relaxed);
    a.await_sent(1);
}

#[test]
fn an_empty_queue_pair_in_error_sends_no_event() {
    let mut a = Sleeper::new();
    a.complete();
    a.consume();
    a.side.adapter.set_queue_pair_state(a.side.qp.number, QueuePairState::Error).unwrap();
    for sequence in 1..4 {
        a.sequence = sequence;
        a.ring(true);
        // Rounds of the queue pair, each of which flushes.
        for _ in 0..10 {
            assert_eq!(a.sent(), 0);
        }
    }
}

#[test]
fn a_doorbell_that_is_0_again_can_arm() {
    let mut a = Sleeper::new();
    for sequence in 0..4 {
        a.sequence = sequence;
        a.ring(true);
        a.complete();
        a.consume();
    }
    while a.consumed < 65_536 {
        a.complete();
        a.consume();
    }
    assert_eq!(a.sent(), 4);
    // A poll overwrote the bit that arms. Consumer index and sequence number are 0 modulo what the doorbell holds.
    a.sequence = 4;
    a.ring(false);
    a.complete();
    assert_eq!(a.sent(), 5);
}
