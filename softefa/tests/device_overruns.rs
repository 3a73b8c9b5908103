//! The strict checker of completion queues: overruns, and consumer indices that cannot be right.

#![allow(clippy::unwrap_used)]

mod device_support;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// A side whose completion queue has `entries`, and a write from it to itself.
fn side_with_completions(entries: u32, doorbell: bool) -> (Side, Request, Buffer) {
    let network = Network::new();
    let adapter = adapter(&network, 1);
    let pd = adapter.allocate_domain().unwrap();
    let attr = CompletionQueueAttr { entries, doorbell, ..CompletionQueueAttr::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    let side = Side::on(&adapter, pd, cq, |attr| attr.rq_depth = 0);
    let itself = side.handle(&side);
    let buffer = Buffer::new(&side, 128, Access::ALL);
    let write_request = write(3, itself, buffer.remote(64), buffer.segment(0, 64));
    (side, write_request, buffer)
}

#[test]
fn an_overrun_is_reported_if_the_consumer_index_is_set_and_no_completion_is_lost() {
    let (mut a, write_request, _buffer) = side_with_completions(4, false);
    a.adapter.set_consumer_index(a.cq.number, 0).unwrap();
    for _ in 0..5 {
        a.post(&write_request);
    }
    let violation = a.violation();
    assert_eq!(violation.rule, StrictRule::CompletionQueueOverrun { unread: 4, entries: 4 });
    assert_eq!(violation.queue, Queue::Completion(a.cq.number));
    for _ in 0..4 {
        assert_eq!(a.completion().status, CompletionStatus::Ok);
    }
    a.adapter.set_consumer_index(a.cq.number, 4).unwrap();
    assert_eq!(a.completion().status, CompletionStatus::QueuePairInternal);
}

#[test]
fn a_consumer_that_reads_every_completion_and_rings_once_is_not_accused() {
    // As libefa and libfabric: a poll rings only if it ends on a current completion.
    let (mut a, write_request, _buffer) = side_with_completions(4, true);
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    a.cq.doorbell.clone().unwrap().ring(1);
    for _ in 0..70_000 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    }
    assert_eq!(a.rules(), []);
}

#[test]
fn a_doorbell_that_is_rung_after_more_completions_than_the_queue_holds_proves_an_overrun() {
    let (mut a, write_request, _buffer) = side_with_completions(4, true);
    let doorbell = a.cq.doorbell.clone().unwrap();
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    let await_completions = |a: &Side, count| {
        until("a completion", || (a.adapter.statistics().completions == count).then_some(()));
    };
    // The adapter reads the doorbell before it writes a completion: of the last one here, it knows only then.
    for count in 2..=7 {
        a.post(&write_request);
        await_completions(&a, count);
    }
    doorbell.ring(1);
    a.post(&write_request);
    await_completions(&a, 8);
    assert_eq!(a.rules(), [StrictRule::CompletionQueueOverrun { unread: 5, entries: 4 }]);
}

#[test]
fn a_prompt_consumer_causes_no_overrun_past_the_wrap_of_its_index() {
    let (mut a, write_request, _buffer) = side_with_completions(4, true);
    let doorbell = a.cq.doorbell.clone().unwrap();
    for consumed in 1..70_000_u32 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
        doorbell.ring(consumed & 0xffff);
    }
    assert_eq!(a.rules(), []);
}

#[test]
fn a_correct_consumer_index_is_accepted_after_one_that_moved_backwards() {
    let (mut a, write_request, _buffer) = side_with_completions(4, true);
    let doorbell = a.cq.doorbell.clone().unwrap();
    // The adapter reads the doorbell before it writes a completion.
    for consumer in [1, 2, 1, 4, 5] {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
        doorbell.ring(consumer);
    }
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    assert_eq!(a.rules(), [StrictRule::ConsumerBackwards { consumer: 2, back: 1 }]);
}

#[test]
fn a_correct_consumer_index_is_accepted_after_one_that_was_ahead() {
    let (mut a, write_request, _buffer) = side_with_completions(4, true);
    let doorbell = a.cq.doorbell.clone().unwrap();
    doorbell.ring(2);
    for consumer in 1..7 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
        doorbell.ring(consumer);
    }
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    assert_eq!(a.rules(), [StrictRule::ConsumerAhead { consumer: 2, producer: 0 }]);
}

#[test]
fn a_consumer_index_that_was_ahead_is_accepted_when_it_is_correct() {
    let (mut a, write_request, _buffer) = side_with_completions(4, true);
    let doorbell = a.cq.doorbell.clone().unwrap();
    doorbell.ring(4);
    for _ in 0..4 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    }
    doorbell.ring(4);
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    assert_eq!(a.rules(), [StrictRule::ConsumerAhead { consumer: 4, producer: 0 }]);
}

#[test]
fn a_queue_shallower_than_its_rings_and_without_a_consumer_index_is_a_warning() {
    let (a, _, _) = side_with_completions(4, false);
    let expected = Warning::ShallowCompletionQueue { queue: a.cq.number, entries: 4, rings: 256 };
    assert_eq!(a.adapter.warnings(), [expected]);
}

#[test]
fn a_queue_as_deep_as_its_rings_is_no_warning() {
    let (a, _, _) = side_with_completions(256, false);
    assert_eq!(a.adapter.warnings(), []);
}
