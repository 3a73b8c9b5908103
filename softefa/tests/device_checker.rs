//! The strict checker: each test breaks one rule and expects its report and an error completion.

#![allow(clippy::unwrap_used)]

mod device_support;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// Offset of the byte that holds the phase bit (`efa_io_tx_meta_desc::ctrl2`).
const CTRL2: usize = 3;

/// A pair, and a write that would succeed.
fn valid_write() -> (Side, Side, Request, Buffers) {
    valid_write_with(|_| {}, |_| {})
}

struct Buffers {
    _from: Buffer,
    to: Buffer,
}

fn valid_write_with(
    config: impl Fn(&mut AdapterConfig),
    change: impl Fn(&mut QueuePairAttr),
) -> (Side, Side, Request, Buffers) {
    let (a, b, to_b, _) = pair_with(config, change);
    let from = Buffer::new(&a, 64, Access::LOCAL_READ);
    let to = Buffer::new(&b, 64, Access::REMOTE_WRITE);
    from.fill(|at| at as u8 + 1);
    let write_request = write(7, to_b, to.remote(0), from.segment(0, 64));
    (a, b, write_request, Buffers { _from: from, to })
}

/// Posts a valid write whose entry `change` changes. Returns the rules that the checker reports.
fn rules_after_change(change: impl Fn(&mut Entry)) -> Vec<StrictRule> {
    let (mut a, _b, write_request, buffers) = valid_write();
    let mut entry = a.encode(&write_request);
    change(&mut entry);
    a.post_bytes(&entry);
    let completion = a.completion();
    assert_eq!((completion.id, completion.status), (write_request.id, CompletionStatus::QueuePairInternal));
    assert_eq!(buffers.to.bytes(), [0; 64], "a rejected entry moved bytes");
    let violation = a.violation();
    assert_eq!((violation.slot, violation.counter), (Some(0), 0));
    assert_eq!(violation.queue, Queue::Send(a.qp.number));
    assert_eq!(violation.raw, entry.to_vec());
    a.rules()
}

#[test]
fn a_wrong_phase_is_reported() {
    let rules = rules_after_change(|entry| entry[CTRL2] ^= 1);
    assert_eq!(rules, [StrictRule::Phase { seen: true, expected: false }]);
}

#[test]
fn a_wrong_phase_on_the_second_lap_is_reported() {
    let (mut a, _b, write_request, _buffers) = valid_write_with(|_| {}, |attr| attr.sq_depth = 4);
    for _ in 0..4 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    }
    let mut entry = a.encode(&write_request);
    entry[CTRL2] ^= 1;
    assert_eq!(a.run_bytes(&entry), CompletionStatus::QueuePairInternal);
    assert_eq!(a.rules(), [StrictRule::Phase { seen: false, expected: true }]);
    assert_eq!((a.violation().slot, a.violation().counter), (Some(0), 4));
}

#[test]
fn every_rule_that_an_entry_breaks_is_reported() {
    let rules = rules_after_change(|entry| {
        entry[2] &= !0x80;
        entry[CTRL2] &= !0x0c;
        entry[15] = 1;
    });
    let expected = [Rule::MetaDescSet, Rule::FirstSet, Rule::LastSet, Rule::ReservedZero];
    assert_eq!(rules, expected.map(StrictRule::Descriptor));
}

#[test]
fn a_half_written_entry_is_reported() {
    let (mut a, _b, write_request, buffers) = valid_write();
    let entry = a.encode(&write_request);
    // The first half only, as if the poster rang the doorbell between its stores.
    a.qp.sq.memory.store(0, &entry[..32]);
    a.produced += 1;
    a.ring_doorbell();
    let completion = a.completion();
    assert_eq!((completion.id, completion.status), (write_request.id, CompletionStatus::QueuePairInternal));
    assert_eq!(a.rules(), [StrictRule::HalfWritten { offset: 32 }]);
    assert_eq!(buffers.to.bytes(), [0; 64]);
}

#[test]
fn a_doorbell_for_an_unwritten_entry_is_reported() {
    let (mut a, _b, write_request, _buffers) = valid_write_with(|_| {}, |attr| attr.sq_depth = 4);
    // The same entry was in the slot on the last lap.
    for _ in 0..4 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    }
    a.produced += 1;
    a.ring_doorbell();
    assert_eq!(a.completion().status, CompletionStatus::QueuePairInternal);
    assert_eq!(a.rules(), [StrictRule::HalfWritten { offset: 0 }]);
}

#[test]
fn bytes_that_the_operation_does_not_use_may_be_unwritten() {
    let (mut a, mut b, to_b, _) = pair();
    b.post_receive(1, Segment::default());
    let entry = a.encode(&send_inline(1, to_b, b""));
    a.qp.sq.memory.store(0, &entry[..32]);
    a.produced += 1;
    a.ring_doorbell();
    assert_eq!(a.completion().status, CompletionStatus::Ok);
    assert_eq!(a.rules(), []);
}

#[test]
fn an_entry_that_changes_while_in_flight_is_reported() {
    let (mut a, _b, write_request, _buffers) = valid_write();
    a.adapter.hold(true);
    a.post(&write_request);
    a.await_fetched(1);
    let mut other = write_request;
    other.id = RequestId::new(8);
    let entry = other.encode(EntrySize::B64, false, RequestIdWidth::Bits16).unwrap();
    a.qp.sq.memory.store(0, &entry);
    a.adapter.hold(false);
    let completion = a.completion();
    assert_eq!((completion.id, completion.status), (write_request.id, CompletionStatus::QueuePairInternal));
    assert_eq!(a.rules(), [StrictRule::EntryChanged]);
    assert_eq!(a.violation().raw, entry.to_vec());
}

#[test]
fn a_slot_is_free_after_as_many_completions_in_any_order() {
    let (mut a, mut b, write_request, buffers) = valid_write_with(|_| {}, |attr| attr.sq_depth = 2);
    // The first request waits for a receive. The second completes, which frees the first slot.
    a.post(&send(1, write_request.peer, &[]));
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    b.post_receive(5, Segment::default());
    assert_eq!(a.completion().id.get(), 1);
    assert_eq!(a.rules(), []);
    drop(buffers);
}

#[test]
fn an_exceeded_batch_is_reported_before_its_doorbell() {
    let (mut a, _b, write_request, _buffers) =
        valid_write_with(|config| config.limits.max_tx_batch = 16, |_| {});
    assert_eq!(a.qp.sq.max_batch, 16);
    for _ in 0..17 {
        let entry = a.encode(&write_request);
        a.place(&entry);
    }
    let violation = a.violation();
    assert_eq!(violation.rule, StrictRule::BatchExceeded { written: 17, max_batch: 16 });
    assert_eq!((violation.slot, violation.counter), (Some(16), 16));

    a.ring_doorbell();
    assert_eq!(a.completion().status, CompletionStatus::QueuePairInternal);
    assert_eq!(a.completion().status, CompletionStatus::Flushed);
    assert_eq!(a.rules().len(), 1);
}

#[test]
fn a_batch_of_max_batch_entries_breaks_no_rule() {
    let (mut a, _b, write_request, _buffers) = valid_write_with(
        |config| {
            config.limits.max_tx_batch = 16;
            config.every_doorbell_seen = true;
        },
        |_| {},
    );
    for _ in 0..20 {
        for _ in 0..16 {
            let entry = a.encode(&write_request);
            a.place(&entry);
        }
        a.ring_doorbell();
        for _ in 0..16 {
            assert_eq!(a.completion().status, CompletionStatus::Ok);
        }
    }
    assert_eq!(a.rules(), []);
}

#[test]
fn a_doorbell_for_more_than_a_batch_is_reported_if_every_doorbell_is_seen() {
    let (mut a, _b, write_request, _buffers) = valid_write_with(
        |config| {
            config.limits.max_tx_batch = 4;
            config.every_doorbell_seen = true;
        },
        |_| {},
    );
    for _ in 0..5 {
        let entry = a.encode(&write_request);
        a.place(&entry);
    }
    a.ring_doorbell();
    assert_eq!(a.completion().status, CompletionStatus::QueuePairInternal);
    assert_eq!(a.rules(), [StrictRule::BatchExceeded { written: 5, max_batch: 4 }]);
}

#[test]
fn max_batch_counts_128_byte_entries_twice() {
    let (a, _b, _, _) =
        pair_with(|config| config.limits.max_tx_batch = 16, |attr| attr.entry_size = EntrySize::B128);
    assert_eq!(a.qp.sq.max_batch, 8);
}

#[test]
fn max_batch_is_below_the_depth_if_the_device_has_a_minimum_depth() {
    let (a, _b, _, _) = pair_with(
        |config| {
            config.limits.min_sq_depth = 16;
            config.limits.max_tx_batch = 64;
        },
        |attr| attr.sq_depth = 4,
    );
    assert_eq!((a.qp.sq.num_entries, a.qp.sq.max_batch), (16, 15));
}

#[test]
fn a_doorbell_that_moves_backwards_is_reported() {
    let (mut a, _b, write_request, _buffers) = valid_write();
    for _ in 0..3 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    }
    a.qp.sq.doorbell.ring(2);
    assert_eq!(a.violation().rule, StrictRule::DoorbellBackwards { from: 3, to: 2 });
}

#[test]
fn an_entry_with_a_backward_doorbell_completes_with_an_error() {
    let (mut a, _b, write_request, _buffers) = valid_write();
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    let entry = a.encode(&write_request);
    a.place(&entry);
    a.qp.sq.doorbell.ring(0);
    let completion = a.completion();
    assert_eq!((completion.id, completion.status), (write_request.id, CompletionStatus::QueuePairInternal));
    assert_eq!(a.rules(), [StrictRule::DoorbellBackwards { from: 1, to: 0 }]);
}

#[test]
fn a_doorbell_past_the_ring_is_reported_and_its_entries_complete() {
    let (mut a, _b, write_request, _buffers) = valid_write_with(|_| {}, |attr| attr.sq_depth = 4);
    for _ in 0..4 {
        let entry = a.encode(&write_request);
        a.place(&entry);
    }
    a.qp.sq.doorbell.ring(5);
    let statuses: Vec<_> = (0..4).map(|_| a.completion().status).collect();
    assert_eq!(statuses[0], CompletionStatus::QueuePairInternal);
    assert_eq!(statuses[1..], [CompletionStatus::Flushed; 3]);
    assert_eq!(a.rules(), [StrictRule::DoorbellPastRing { in_flight: 5, entries: 4 }]);
}

#[test]
fn more_requests_in_flight_than_the_ring_has_entries_are_reported() {
    let (mut a, _b, write_request, _buffers) = valid_write_with(|_| {}, |attr| attr.sq_depth = 4);
    a.adapter.hold(true);
    for _ in 0..4 {
        a.post(&write_request);
    }
    a.await_fetched(4);
    a.post(&write_request);
    assert_eq!(a.violation().rule, StrictRule::DoorbellPastRing { in_flight: 5, entries: 4 });
    for _ in 0..5 {
        assert_ne!(a.completion().status, CompletionStatus::Ok);
    }
}

#[test]
fn requests_after_a_violation_are_flushed() {
    let (mut a, _b, write_request, _buffers) = valid_write();
    let mut entry = a.encode(&write_request);
    entry[CTRL2] ^= 1;
    assert_eq!(a.run_bytes(&entry), CompletionStatus::QueuePairInternal);
    for _ in 0..300 {
        assert_eq!(a.run(&write_request), CompletionStatus::Flushed);
    }
    assert_eq!(a.adapter.queue_pair_state(a.qp.number), Ok(QueuePairState::Error));
    assert_eq!(a.rules().len(), 1);
}

#[test]
fn a_violation_on_one_queue_pair_does_not_affect_others() {
    let (mut a, b, write_request, buffers) = valid_write();
    let mut other = Side::on(&a.adapter, a.pd, another_completion_queue(&a.adapter), |_| {});
    let mut entry = a.encode(&write_request);
    entry[CTRL2] ^= 1;
    assert_eq!(a.run_bytes(&entry), CompletionStatus::QueuePairInternal);
    assert_eq!(other.run(&write_request), CompletionStatus::Ok);
    drop((b, buffers));
}

fn another_completion_queue(adapter: &Adapter) -> CompletionQueue {
    let attr = CompletionQueueAttr { entries: 1024, ..CompletionQueueAttr::default() };
    adapter.create_completion_queue(attr).unwrap()
}

#[test]
fn the_text_of_a_violation_states_the_rule_and_its_source() {
    let (mut a, _b, write_request, _buffers) = valid_write();
    let mut entry = a.encode(&write_request);
    entry[CTRL2] ^= 1;
    a.run_bytes(&entry);
    let text = a.violation().to_string();
    let start = "phase: the phase bit of the entry must be 0 on this lap of the ring and is 1 (efa_io_tx_meta_desc::ctrl2 \
         bit 0, efa_io_defs.h) [send queue of QP";
    assert!(text.starts_with(start), "{text}");
}

// Receive queues.

#[test]
fn a_receive_doorbell_that_moves_backwards_is_reported() {
    let (_a, b, _, _) = pair();
    let rq = b.qp.rq.as_ref().unwrap();
    rq.doorbell.ring(0xffff);
    assert_eq!(b.violation().rule, StrictRule::DoorbellBackwards { from: 0, to: 0xffff });
    assert_eq!(b.violation().queue, Queue::Receive(b.qp.number));
}

#[test]
fn a_receive_doorbell_past_the_ring_is_reported() {
    let (_a, b, _, _) = pair();
    b.qp.rq.as_ref().unwrap().doorbell.ring(257);
    assert_eq!(b.violation().rule, StrictRule::DoorbellPastRing { in_flight: 257, entries: 256 });
}

#[test]
fn the_receives_before_a_doorbell_past_the_ring_are_flushed() {
    let (_a, mut b, _, _) = pair_with(|_| {}, |attr| attr.rq_depth = 4);
    for id in 0..4 {
        b.place_descriptor(&Receive { id, address: 0, length: 0, key: LocalKey::default() }.encode());
    }
    b.qp.rq.as_ref().unwrap().doorbell.ring(5);
    for id in 0..4 {
        let completion = b.completion();
        assert_eq!((completion.id, completion.status), (RequestId::new(id), CompletionStatus::Flushed));
    }
    assert_eq!(b.rules(), [StrictRule::DoorbellPastRing { in_flight: 5, entries: 4 }]);
}

/// Sends to a receiver that posted `descriptors`. Returns the rules that the receiver broke.
fn rules_of_receiver(descriptors: &[[u8; RX_DESCRIPTOR_BYTES]]) -> Vec<StrictRule> {
    let (mut a, mut b, to_b, _) = pair();
    descriptors.iter().for_each(|descriptor| b.place_descriptor(descriptor));
    b.ring_receive_doorbell();
    assert_eq!(a.run(&send_inline(1, to_b, b"x")), CompletionStatus::RemoteBadQueuePair);
    b.rules()
}

fn descriptor(first: bool, last: bool) -> ReceiveDescriptor {
    let receive = Receive { id: 3, address: 0, length: 0, key: LocalKey::default() };
    ReceiveDescriptor { receive, first, last, reserved_zero: true }
}

#[test]
fn set_reserved_bits_of_a_receive_are_reported() {
    let mut bytes = descriptor(true, true).encode();
    bytes[15] |= 0x20;
    assert_eq!(rules_of_receiver(&[bytes]), [StrictRule::ReceiveReservedBits]);
}

#[test]
fn a_receive_without_a_first_descriptor_is_reported() {
    assert_eq!(rules_of_receiver(&[descriptor(false, true).encode()]), [StrictRule::ReceiveGrouping]);
}

#[test]
fn a_receive_without_a_last_descriptor_is_reported() {
    assert_eq!(rules_of_receiver(&[descriptor(true, false).encode()]), [StrictRule::ReceiveGrouping]);
}

#[test]
fn a_receive_of_too_many_descriptors_is_reported() {
    let mut descriptors = vec![descriptor(true, false).encode()];
    descriptors.extend([descriptor(false, false).encode(); 3]);
    descriptors.push(descriptor(false, true).encode());
    assert_eq!(rules_of_receiver(&descriptors), [StrictRule::ReceiveGrouping]);
}

#[test]
fn a_doorbell_for_an_unwritten_receive_is_reported() {
    let (mut a, b, to_b, _) = pair();
    b.qp.rq.as_ref().unwrap().doorbell.ring(1);
    assert_eq!(a.run(&send_inline(1, to_b, b"x")), CompletionStatus::RemoteBadQueuePair);
    assert_eq!(b.rules(), [StrictRule::HalfWritten { offset: 0 }]);
}
