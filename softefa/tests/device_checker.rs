//! The strict checker: each mistake planted once, found, named, and answered with an error.

#![allow(clippy::unwrap_used)]

mod device_support;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// Byte of an entry that holds the phase and the bits beside it.
const CTRL2: usize = 3;
/// Byte of an RDMA entry's local segment that holds the lkey's bits 31:24.
const LKEY_TOP: usize = 32 + 16 + 7;

/// A pair and a write that would succeed.
fn good_write() -> (Side, Side, Request, Buffers) {
    good_write_with(|_| {}, |_| {})
}

struct Buffers {
    _from: Buffer,
    to: Buffer,
}

fn good_write_with(
    config: impl Fn(&mut AdapterConfig),
    change: impl Fn(&mut QueuePairAttr),
) -> (Side, Side, Request, Buffers) {
    let (a, b, to_b, _) = pair_with(config, change);
    let from = Buffer::new(&a, 64, Access::LOCAL_READ);
    let to = Buffer::new(&b, 64, Access::REMOTE_WRITE);
    from.fill(|at| at as u8 + 1);
    let put = write(7, to_b, to.remote(0), from.segment(0, 64));
    (a, b, put, Buffers { _from: from, to })
}

/// Spoils the entry of a good write; the rules that the checker names.
fn spoiled(spoil: impl Fn(&mut Entry)) -> Vec<StrictRule> {
    let (mut a, _b, put, buffers) = good_write();
    let mut entry = a.encode(&put);
    spoil(&mut entry);
    a.post_bytes(&entry);
    let completion = a.completion();
    assert_eq!((completion.id, completion.status), (put.id, CompletionStatus::QueuePairInternal));
    assert_eq!(buffers.to.bytes(), [0; 64], "a refused entry moved bytes");
    let violation = a.violation();
    assert_eq!((violation.slot, violation.counter), (Some(0), 0));
    assert_eq!(violation.queue, Queue::Send(a.qp.number));
    assert_eq!(violation.raw, entry.to_vec());
    a.rules()
}

#[test]
fn a_good_entry_breaks_nothing() {
    let (mut a, _b, put, _buffers) = good_write();
    assert_eq!(a.run(&put), CompletionStatus::Ok);
    assert_eq!(a.rules(), []);
}

#[test]
fn a_wrong_phase_is_named() {
    let rules = spoiled(|entry| entry[CTRL2] ^= 1);
    assert_eq!(rules, [StrictRule::Phase { seen: true, expected: false }]);
}

#[test]
fn a_wrong_phase_on_the_second_lap_is_named() {
    let (mut a, _b, put, _buffers) = good_write_with(|_| {}, |attr| attr.sq_depth = 4);
    for _ in 0..4 {
        assert_eq!(a.run(&put), CompletionStatus::Ok);
    }
    let mut entry = a.encode(&put);
    entry[CTRL2] ^= 1;
    assert_eq!(a.run_bytes(&entry), CompletionStatus::QueuePairInternal);
    assert_eq!(a.rules(), [StrictRule::Phase { seen: false, expected: true }]);
    assert_eq!((a.violation().slot, a.violation().counter), (Some(0), 4));
}

#[test]
fn a_missing_comp_req_is_named() {
    let rules = spoiled(|entry| entry[CTRL2] &= !0x10);
    assert_eq!(rules, [StrictRule::Descriptor(Rule::CompletionRequested)]);
}

#[test]
fn a_reserved_bit_is_named() {
    let rules = spoiled(|entry| entry[CTRL2] |= 0x80);
    assert_eq!(rules, [StrictRule::Descriptor(Rule::Ctrl2ReservedZero)]);
}

#[test]
fn every_rule_that_an_entry_breaks_is_named() {
    let rules = spoiled(|entry| {
        entry[2] &= !0x80;
        entry[CTRL2] &= !0x0c;
        entry[15] = 1;
    });
    let expected = [Rule::MetaDescSet, Rule::FirstSet, Rule::LastSet, Rule::ReservedZero];
    assert_eq!(rules, expected.map(StrictRule::Descriptor));
}

#[test]
fn an_lkey_wider_than_24_bits_is_named() {
    let rules = spoiled(|entry| entry[LKEY_TOP] = 1);
    assert_eq!(rules, [StrictRule::Descriptor(Rule::LocalKeyWidth)]);
}

#[test]
fn a_remote_length_that_differs_is_named() {
    let rules = spoiled(|entry| entry[32] += 1);
    assert_eq!(rules, [StrictRule::Descriptor(Rule::RemoteLength)]);
}

#[test]
fn an_entry_of_which_a_part_was_never_written_is_named() {
    let (mut a, _b, put, buffers) = good_write();
    let entry = a.encode(&put);
    // The first half only, as from a poster that rings between its stores.
    a.qp.sq.memory.store(0, &entry[..32]);
    a.produced += 1;
    a.ring_doorbell();
    let completion = a.completion();
    assert_eq!((completion.id, completion.status), (put.id, CompletionStatus::QueuePairInternal));
    assert_eq!(a.rules(), [StrictRule::HalfWritten { offset: 32 }]);
    assert_eq!(buffers.to.bytes(), [0; 64]);
}

#[test]
fn a_doorbell_for_an_entry_that_was_not_written_is_named() {
    let (mut a, _b, put, _buffers) = good_write_with(|_| {}, |attr| attr.sq_depth = 4);
    // Also where the last lap's entry was the same.
    for _ in 0..4 {
        assert_eq!(a.run(&put), CompletionStatus::Ok);
    }
    a.produced += 1;
    a.ring_doorbell();
    assert_eq!(a.completion().status, CompletionStatus::QueuePairInternal);
    assert_eq!(a.rules(), [StrictRule::HalfWritten { offset: 0 }]);
}

#[test]
fn bytes_that_the_operation_does_not_use_may_stay_unwritten() {
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
fn an_entry_that_changes_while_in_flight_is_named() {
    let (mut a, _b, put, _buffers) = good_write();
    a.adapter.hold(true);
    a.post(&put);
    a.await_fetched(1);
    let mut other = put;
    other.id = RequestId::new(8);
    let entry = other.encode(EntrySize::B64, false, RequestIdWidth::Bits16).unwrap();
    a.qp.sq.memory.store(0, &entry);
    a.adapter.hold(false);
    let completion = a.completion();
    assert_eq!((completion.id, completion.status), (put.id, CompletionStatus::QueuePairInternal));
    assert_eq!(a.rules(), [StrictRule::EntryChanged]);
    assert_eq!(a.violation().raw, entry.to_vec());
}

#[test]
fn a_slot_may_be_written_again_once_that_many_requests_completed_in_any_order() {
    let (mut a, mut b, put, buffers) = good_write_with(|_| {}, |attr| attr.sq_depth = 2);
    // The first waits for a receive; the second completes and frees a slot, which is the first's.
    a.post(&send(1, put.peer, &[]));
    assert_eq!(a.run(&put), CompletionStatus::Ok);
    assert_eq!(a.run(&put), CompletionStatus::Ok);
    b.post_receive(5, Segment::default());
    assert_eq!(a.completion().id.get(), 1);
    assert_eq!(a.rules(), []);
    drop(buffers);
}

#[test]
fn a_batch_exceeded_is_named_before_its_doorbell() {
    let (mut a, _b, put, _buffers) = good_write_with(|config| config.limits.max_tx_batch = 16, |_| {});
    assert_eq!(a.qp.sq.max_batch, 16);
    for _ in 0..17 {
        let entry = a.encode(&put);
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
fn a_whole_batch_is_allowed() {
    let (mut a, _b, put, _buffers) = good_write_with(
        |config| {
            config.limits.max_tx_batch = 16;
            config.every_doorbell_seen = true;
        },
        |_| {},
    );
    for _ in 0..20 {
        for _ in 0..16 {
            let entry = a.encode(&put);
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
fn a_doorbell_for_more_than_a_batch_is_named_where_every_doorbell_is_seen() {
    let (mut a, _b, put, _buffers) = good_write_with(
        |config| {
            config.limits.max_tx_batch = 4;
            config.every_doorbell_seen = true;
        },
        |_| {},
    );
    for _ in 0..5 {
        let entry = a.encode(&put);
        a.place(&entry);
    }
    a.ring_doorbell();
    assert_eq!(a.completion().status, CompletionStatus::QueuePairInternal);
    assert_eq!(a.rules(), [StrictRule::BatchExceeded { written: 5, max_batch: 4 }]);
}

#[test]
fn a_batch_counts_128_byte_entries_twice() {
    let (a, _b, _, _) =
        pair_with(|config| config.limits.max_tx_batch = 16, |attr| attr.entry_size = EntrySize::B128);
    assert_eq!(a.qp.sq.max_batch, 8);
}

#[test]
fn a_device_with_a_shallowest_queue_takes_no_doorbell_for_a_whole_ring() {
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
fn a_doorbell_that_moves_backwards_is_named() {
    let (mut a, _b, put, _buffers) = good_write();
    for _ in 0..3 {
        assert_eq!(a.run(&put), CompletionStatus::Ok);
    }
    a.qp.sq.doorbell.ring(2);
    assert_eq!(a.violation().rule, StrictRule::DoorbellBackwards { from: 3, to: 2 });
}

#[test]
fn the_poster_of_an_entry_with_a_backward_doorbell_gets_an_error() {
    let (mut a, _b, put, _buffers) = good_write();
    assert_eq!(a.run(&put), CompletionStatus::Ok);
    let entry = a.encode(&put);
    a.place(&entry);
    a.qp.sq.doorbell.ring(0);
    let completion = a.completion();
    assert_eq!((completion.id, completion.status), (put.id, CompletionStatus::QueuePairInternal));
    assert_eq!(a.rules(), [StrictRule::DoorbellBackwards { from: 1, to: 0 }]);
}

#[test]
fn a_doorbell_past_the_ring_is_named_and_its_entries_are_answered() {
    let (mut a, _b, put, _buffers) = good_write_with(|_| {}, |attr| attr.sq_depth = 4);
    for _ in 0..4 {
        let entry = a.encode(&put);
        a.place(&entry);
    }
    a.qp.sq.doorbell.ring(5);
    let statuses: Vec<_> = (0..4).map(|_| a.completion().status).collect();
    assert_eq!(statuses[0], CompletionStatus::QueuePairInternal);
    assert_eq!(statuses[1..], [CompletionStatus::Flushed; 3]);
    assert_eq!(a.rules(), [StrictRule::DoorbellPastRing { in_flight: 5, entries: 4 }]);
}

#[test]
fn more_requests_in_flight_than_the_ring_has_are_named() {
    let (mut a, _b, put, _buffers) = good_write_with(|_| {}, |attr| attr.sq_depth = 4);
    a.adapter.hold(true);
    for _ in 0..4 {
        a.post(&put);
    }
    a.await_fetched(4);
    a.post(&put);
    assert_eq!(a.violation().rule, StrictRule::DoorbellPastRing { in_flight: 5, entries: 4 });
    for _ in 0..5 {
        assert_ne!(a.completion().status, CompletionStatus::Ok);
    }
}

#[test]
fn after_a_violation_requests_are_flushed_and_not_left_hanging() {
    let (mut a, _b, put, _buffers) = good_write();
    let mut entry = a.encode(&put);
    entry[CTRL2] ^= 1;
    assert_eq!(a.run_bytes(&entry), CompletionStatus::QueuePairInternal);
    for _ in 0..300 {
        assert_eq!(a.run(&put), CompletionStatus::Flushed);
    }
    assert_eq!(a.adapter.queue_pair_state(a.qp.number), Ok(QueuePairState::Error));
    assert_eq!(a.rules().len(), 1);
}

#[test]
fn a_violation_on_one_queue_pair_leaves_the_others_alone() {
    let (mut a, b, put, buffers) = good_write();
    let mut other = Side::on(&a.adapter, a.pd, another_queue(&a.adapter), |_| {});
    let mut entry = a.encode(&put);
    entry[CTRL2] ^= 1;
    assert_eq!(a.run_bytes(&entry), CompletionStatus::QueuePairInternal);
    assert_eq!(other.run(&put), CompletionStatus::Ok);
    drop((b, buffers));
}

fn another_queue(adapter: &Adapter) -> CompletionQueue {
    let attr = CompletionQueueAttr { entries: 1024, ..CompletionQueueAttr::default() };
    adapter.create_completion_queue(attr).unwrap()
}

#[test]
fn a_violation_names_its_rule_in_a_sentence() {
    let (mut a, _b, put, _buffers) = good_write();
    let mut entry = a.encode(&put);
    entry[CTRL2] ^= 1;
    a.run_bytes(&entry);
    let text = a.violation().to_string();
    let start =
        "phase: the phase bit (ctrl2 bit 0) must be 0 on this lap of the ring and is 1 [send queue of QP";
    assert!(text.starts_with(start), "{text}");
}

// Receive queues.

#[test]
fn a_receive_doorbell_that_moves_backwards_is_named() {
    let (_a, b, _, _) = pair();
    let rq = b.qp.rq.as_ref().unwrap();
    rq.doorbell.ring(0xffff);
    assert_eq!(b.violation().rule, StrictRule::DoorbellBackwards { from: 0, to: 0xffff });
    assert_eq!(b.violation().queue, Queue::Receive(b.qp.number));
}

#[test]
fn a_receive_doorbell_past_the_ring_is_named() {
    let (_a, b, _, _) = pair();
    b.qp.rq.as_ref().unwrap().doorbell.ring(257);
    assert_eq!(b.violation().rule, StrictRule::DoorbellPastRing { in_flight: 257, entries: 256 });
}

/// Sends to a receiver that posted `descriptors`; the rules that it broke.
fn receive_spoiled(descriptors: &[[u8; RX_DESCRIPTOR_BYTES]]) -> Vec<StrictRule> {
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
fn reserved_bits_of_a_receive_are_named() {
    let mut bytes = descriptor(true, true).encode();
    bytes[15] |= 0x20;
    assert_eq!(receive_spoiled(&[bytes]), [StrictRule::ReceiveReservedBits]);
}

#[test]
fn a_receive_without_a_first_descriptor_is_named() {
    assert_eq!(receive_spoiled(&[descriptor(false, true).encode()]), [StrictRule::ReceiveGrouping]);
}

#[test]
fn a_receive_without_a_last_descriptor_is_named() {
    assert_eq!(receive_spoiled(&[descriptor(true, false).encode()]), [StrictRule::ReceiveGrouping]);
}

#[test]
fn a_receive_of_too_many_descriptors_is_named() {
    let mut descriptors = vec![descriptor(true, false).encode()];
    descriptors.extend([descriptor(false, false).encode(); 3]);
    descriptors.push(descriptor(false, true).encode());
    assert_eq!(receive_spoiled(&descriptors), [StrictRule::ReceiveGrouping]);
}

#[test]
fn a_receive_that_was_not_written_is_named() {
    let (mut a, b, to_b, _) = pair();
    b.qp.rq.as_ref().unwrap().doorbell.ring(1);
    assert_eq!(a.run(&send_inline(1, to_b, b"x")), CompletionStatus::RemoteBadQueuePair);
    assert_eq!(b.rules(), [StrictRule::HalfWritten { offset: 0 }]);
}

// Completion queues.

/// A side whose completion queue has `entries`, and a write to itself.
fn narrow(entries: u32, doorbell: bool) -> (Side, Request, Buffer) {
    let network = Network::new();
    let adapter = adapter(&network, 1);
    let pd = adapter.allocate_domain().unwrap();
    let attr = CompletionQueueAttr { entries, doorbell, ..CompletionQueueAttr::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    let side = Side::on(&adapter, pd, cq, |attr| attr.rq_depth = 0);
    let me = side.handle(&side);
    let buffer = Buffer::new(&side, 128, Access::ALL);
    let put = write(3, me, buffer.remote(64), buffer.segment(0, 64));
    (side, put, buffer)
}

#[test]
fn an_overrun_is_named_where_the_consumer_is_told_and_no_completion_is_lost() {
    let (mut a, put, _buffer) = narrow(4, false);
    a.adapter.set_consumer_index(a.cq.number, 0).unwrap();
    for _ in 0..5 {
        a.post(&put);
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
fn an_overrun_is_named_where_the_consumer_rings_a_doorbell() {
    let (mut a, put, _buffer) = narrow(4, true);
    assert_eq!(a.run(&put), CompletionStatus::Ok);
    let doorbell = a.cq.doorbell.clone().unwrap();
    doorbell.ring(1);
    for _ in 0..5 {
        a.post(&put);
    }
    assert_eq!(a.violation().rule, StrictRule::CompletionQueueOverrun { unread: 4, entries: 4 });
    for consumed in 2..6 {
        assert_eq!(a.completion().status, CompletionStatus::Ok);
        doorbell.ring(consumed);
    }
    assert_eq!(a.completion().status, CompletionStatus::QueuePairInternal);
}

#[test]
fn a_consumer_in_time_is_no_overrun_past_the_wrap_of_its_index() {
    let (mut a, put, _buffer) = narrow(4, true);
    let doorbell = a.cq.doorbell.clone().unwrap();
    for consumed in 1..70_000_u32 {
        assert_eq!(a.run(&put), CompletionStatus::Ok);
        doorbell.ring(consumed & 0xffff);
    }
    assert_eq!(a.rules(), []);
}

#[test]
fn a_consumer_index_ahead_of_the_completions_is_named() {
    let (mut a, put, _buffer) = narrow(4, true);
    a.cq.doorbell.clone().unwrap().ring(2);
    assert_eq!(a.run(&put), CompletionStatus::Ok);
    assert_eq!(a.violation().rule, StrictRule::ConsumerAhead { consumer: 2, producer: 0 });
}

#[test]
fn a_queue_shallower_than_its_rings_is_a_warning_where_no_consumer_is_known() {
    let (a, _, _) = narrow(4, false);
    let expected = Warning::ShallowCompletionQueue { queue: a.cq.number, entries: 4, rings: 256 };
    assert_eq!(a.adapter.warnings(), [expected]);
}

#[test]
fn a_queue_as_deep_as_its_rings_is_no_warning() {
    let (a, _, _) = narrow(256, false);
    assert_eq!(a.adapter.warnings(), []);
}
