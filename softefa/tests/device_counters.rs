//! Completion counters: successes and errors, in memory of the adapter and of the client.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

fn values(counter: &CompletionCounter) -> (u64, u64) {
    (counter.success().load(Ordering::Acquire), counter.error().load(Ordering::Acquire))
}

/// Two sides whose queue pairs count the completions of `kinds`, with a buffer of 64 bytes each.
fn counting(kinds: Counted, counter: &Arc<CompletionCounter>) -> (Side, Side, Peer, Buffer, Buffer) {
    let (a, b, to_b, _) = pair_with(|_| {}, |attr| attr.counters.push((kinds, counter.clone())));
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    (a, b, to_b, from, to)
}

/// As `counting`, but only the second side counts.
fn counting_at_the_target(
    kinds: Counted,
    counter: &Arc<CompletionCounter>,
) -> (Side, Side, Peer, Buffer, Buffer) {
    let (a, b, to_b, _) = pair();
    b.adapter.attach_counter(b.qp.number, kinds, counter.clone()).unwrap();
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    (a, b, to_b, from, to)
}

#[test]
fn successes_and_errors_are_counted_separately() {
    let counter = Arc::new(CompletionCounter::new());
    let (mut a, _b, to_b, from, to) = counting(Counted::TRANSMIT, &counter);
    let good = write(1, to_b, to.remote(0), from.segment(0, 64));
    let bad = write(1, to_b, to.remote(1), from.segment(0, 64));
    assert_eq!(a.run(&good), CompletionStatus::Ok);
    assert_eq!(a.run(&bad), CompletionStatus::RemoteBadAddress);
    assert_eq!(a.run(&good), CompletionStatus::Ok);
    assert_eq!(values(&counter), (2, 1));
}

#[test]
fn a_counter_counts_only_the_kinds_it_is_attached_for() {
    let counter = Arc::new(CompletionCounter::new());
    let (mut a, _b, to_b, from, to) = counting(Counted::READ, &counter);
    assert_eq!(a.run(&write(1, to_b, to.remote(0), from.segment(0, 64))), CompletionStatus::Ok);
    assert_eq!(values(&counter), (0, 0));
    assert_eq!(a.run(&read(2, to_b, to.remote(0), from.segment(0, 64))), CompletionStatus::Ok);
    assert_eq!(values(&counter), (1, 0));
}

#[test]
fn remote_writes_and_reads_are_counted_at_the_target() {
    for (kind, expected) in [(Counted::REMOTE_WRITE, (2, 0)), (Counted::REMOTE_READ, (1, 0))] {
        let counter = Arc::new(CompletionCounter::new());
        let (mut a, _b, to_b, from, to) = counting_at_the_target(kind, &counter);
        for request in [
            write(1, to_b, to.remote(0), from.segment(0, 64)),
            write(2, to_b, to.remote(0), from.segment(0, 0)),
            read(3, to_b, to.remote(0), from.segment(0, 64)),
        ] {
            assert_eq!(a.run(&request), CompletionStatus::Ok);
        }
        assert_eq!(
            a.run(&write(4, to_b, to.remote(1), from.segment(0, 64))),
            CompletionStatus::RemoteBadAddress
        );
        assert_eq!(values(&counter), expected);
    }
}

#[test]
fn messages_are_counted_at_the_receiver() {
    let counter = Arc::new(CompletionCounter::new());
    let (mut a, mut b, to_b, from, to) = counting_at_the_target(Counted::RECEIVE, &counter);
    b.post_receive(1, to.segment(0, 64));
    assert_eq!(a.run(&send(1, to_b, &[from.segment(0, 64)])), CompletionStatus::Ok);
    b.completion();
    assert_eq!(values(&counter), (1, 0));
}

#[test]
fn a_counter_in_client_memory_continues_from_the_values_there() {
    let words = Arc::new([AtomicU64::new(100), AtomicU64::new(7)]);
    let [success, error] = [0, 1].map(|index| NonNull::from(&words[index]).cast::<u64>());
    // SAFETY: both words are atomics of the array, and the counter holds a reference to the array.
    let counter = Arc::new(unsafe { CompletionCounter::from_raw(success, error, words.clone()) });
    let (mut a, _b, to_b, from, to) = counting(Counted::TRANSMIT, &counter);
    assert_eq!(a.run(&write(1, to_b, to.remote(0), from.segment(0, 64))), CompletionStatus::Ok);
    assert_eq!(a.run(&write(2, to_b, to.remote(1), from.segment(0, 64))), CompletionStatus::RemoteBadAddress);
    assert_eq!((words[0].load(Ordering::Acquire), words[1].load(Ordering::Acquire)), (101, 8));
}

#[test]
fn flushed_requests_count_as_errors() {
    let counter = Arc::new(CompletionCounter::new());
    let (mut a, _b, to_b, from, to) = counting(Counted::TRANSMIT, &counter);
    a.adapter.hold(true);
    a.post(&write(1, to_b, to.remote(0), from.segment(0, 64)));
    a.await_fetched(1);
    a.adapter.set_queue_pair_state(a.qp.number, QueuePairState::Error).unwrap();
    assert_eq!(a.completion().status, CompletionStatus::Flushed);
    assert_eq!(values(&counter), (0, 1));
}

#[test]
fn a_kind_of_completion_has_at_most_one_counter() {
    let (_, b, _, _) = pair();
    let attach = |kinds| b.adapter.attach_counter(b.qp.number, kinds, Arc::new(CompletionCounter::new()));
    attach(Counted::READ).unwrap();
    attach(Counted::WRITE).unwrap();
    assert!(matches!(attach(Counted::TRANSMIT), Err(DeviceError::Busy { .. })));
}

#[test]
fn counters_of_a_queue_pair_that_share_a_kind_are_refused() {
    let adapter = adapter(&Network::new(), 1);
    let side = Side::new(&adapter);
    let mut attr = QueuePairAttr::new(side.pd, side.cq.number);
    attr.counters =
        [Counted::WRITE, Counted::TRANSMIT].map(|kinds| (kinds, Arc::new(CompletionCounter::new()))).into();
    let refused = adapter.create_queue_pair(attr).map(|_| ());
    assert!(matches!(refused, Err(DeviceError::Unsupported(_))), "{refused:?}");
}
