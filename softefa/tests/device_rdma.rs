//! RDMA writes and reads through the rings: bytes, wraps, entry sizes and immediates.

#![allow(clippy::unwrap_used)]

mod device_support;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

#[test]
fn a_write_moves_bytes_between_two_adapters() {
    let (mut a, b, to_b, _) = pair();
    let from = Buffer::new(&a, 8192, Access::LOCAL_READ);
    let to = Buffer::new(&b, 8192, Access::REMOTE_WRITE);
    from.fill(pattern);

    assert_eq!(a.run(&write(9, to_b, to.remote(100), from.segment(0, 5000))), CompletionStatus::Ok);

    let mut expected = vec![0; 8192];
    expected[100..5100].copy_from_slice(&from.bytes()[..5000]);
    assert_eq!(to.bytes(), expected);
    assert_eq!(a.rules(), []);
}

#[test]
fn a_write_moves_bytes_between_two_queue_pairs_of_one_adapter() {
    let network = Network::new();
    let adapter = adapter(&network, 1);
    let mut a = Side::new(&adapter);
    let b = Side::new(&adapter);
    let (to_b, _known) = (a.handle(&b), b.handle(&a));
    let (from, to) = (Buffer::new(&a, 64, Access::LOCAL_READ), Buffer::new(&b, 64, Access::REMOTE_WRITE));
    from.fill(pattern);

    assert_eq!(a.run(&write(1, to_b, to.remote(0), from.segment(0, 64))), CompletionStatus::Ok);
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn overlapping_source_and_destination_copy_as_if_through_a_third_buffer() {
    let network = Network::new();
    let mut a = Side::new(&adapter(&network, 1));
    let itself = a.handle(&a);
    let buffer = Buffer::new(&a, 4096, Access::ALL);
    buffer.fill(pattern);
    let before = buffer.bytes();

    assert_eq!(a.run(&write(1, itself, buffer.remote(8), buffer.segment(0, 4000))), CompletionStatus::Ok);
    assert_eq!(buffer.bytes()[8..4008], before[..4000]);
}

#[test]
fn a_read_moves_bytes_from_the_target() {
    let (mut a, b, to_b, _) = pair();
    let to = Buffer::new(&a, 4096, Access::LOCAL_WRITE);
    let from = Buffer::new(&b, 4096, Access::REMOTE_READ);
    from.fill(pattern);

    assert_eq!(a.run(&read(1, to_b, from.remote(1), to.segment(2, 4000))), CompletionStatus::Ok);
    assert_eq!(to.bytes()[2..4002], from.bytes()[1..4001]);
}

#[test]
fn an_inline_write_carries_80_bytes_in_128_byte_entries() {
    let (mut a, b, to_b, _) = pair_with(|_| {}, |attr| attr.entry_size = EntrySize::B128);
    let to = Buffer::new(&b, 80, Access::REMOTE_WRITE);
    let data: Vec<u8> = (0..80).map(pattern).collect();

    let inline = Operation::WriteInline { remote: to.remote(0), data: InlineData::new(&data).unwrap() };
    assert_eq!(a.run(&request(1, to_b, inline)), CompletionStatus::Ok);
    assert_eq!(to.bytes(), data);
}

#[test]
fn a_write_with_immediate_consumes_a_receive_and_reports_its_length() {
    let (mut a, mut b, to_b, to_a) = pair();
    let length = 70_000;
    let from = Buffer::new(&a, length, Access::LOCAL_READ);
    let to = Buffer::new(&b, length, Access::REMOTE_WRITE);
    from.fill(pattern);
    b.post_receive(77, Segment::default());

    let mut write_request = write(1, to_b, to.remote(0), from.segment(0, length as u32));
    write_request.immediate = Some(0xdead_beef);
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);

    let completion = b.completion();
    assert_eq!((completion.id.get(), completion.status), (77, CompletionStatus::Ok));
    let expected = ReceiveInfo {
        length: length as u32,
        address_handle: to_a.address_handle,
        source_queue_pair: a.qp.number,
        immediate: Some(0xdead_beef),
        unsolicited: false,
    };
    assert_eq!(received(&completion), expected);
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn an_unsolicited_write_with_immediate_consumes_no_receive() {
    let (mut a, mut b, to_b, _) = pair_with(|_| {}, |attr| attr.unsolicited_write_receive = true);
    let from = Buffer::new(&a, 64, Access::LOCAL_READ);
    let to = Buffer::new(&b, 64, Access::REMOTE_WRITE);

    let mut write_request = write(1, to_b, to.remote(0), from.segment(0, 64));
    write_request.immediate = Some(5);
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    assert!(received(&b.completion()).unsolicited);
}

#[test]
fn a_completion_has_all_64_bits_of_the_request_id() {
    let (mut a, b, to_b, _) = pair_with(|_| {}, |attr| attr.request_ids = RequestIdWidth::Bits64);
    let from = Buffer::new(&a, 64, Access::LOCAL_READ);
    let to = Buffer::new(&b, 64, Access::REMOTE_WRITE);

    a.post(&write(0xfedc_ba98_7654_3210, to_b, to.remote(0), from.segment(0, 64)));
    assert_eq!(a.completion().id.get(), 0xfedc_ba98_7654_3210);
}

/// Posts `count` writes of 8 bytes in batches, each to a different offset of a window, and verifies all
/// bytes.
fn write_many(a: &mut Side, b: &Side, to_b: Peer, count: u32) {
    const WINDOW: u32 = 4096;
    let from = Buffer::new(a, 8 * WINDOW as usize, Access::LOCAL_READ);
    let to = Buffer::new(b, 8 * WINDOW as usize, Access::REMOTE_WRITE);
    let batch = a.qp.sq.max_batch.min(a.qp.sq.num_entries);
    let (mut posted, mut completed) = (0, 0);
    while completed < count {
        // More than one batch is in flight, so that the engine and the poster overlap.
        while posted < count && posted - completed + batch <= a.qp.sq.num_entries {
            for _ in 0..batch.min(count - posted) {
                let at = u64::from(posted % WINDOW) * 8;
                if posted % WINDOW == 0 {
                    a.ring_doorbell();
                    while completed < posted {
                        assert_eq!(a.completion().status, CompletionStatus::Ok);
                        completed += 1;
                    }
                    assert!(posted == 0 || to.bytes() == from.bytes(), "at {posted}");
                    from.fill(|at| pattern(at + posted as usize));
                }
                let entry =
                    a.encode(&write(u64::from(posted & 0xffff), to_b, to.remote(at), from.segment(at, 8)));
                a.place(&entry);
                posted += 1;
            }
            a.ring_doorbell();
        }
        assert_eq!(a.completion().status, CompletionStatus::Ok);
        completed += 1;
    }
    let end = 8 * (count % WINDOW) as usize;
    assert_eq!(to.bytes()[..end], from.bytes()[..end]);
    assert_eq!(a.rules(), []);
}

#[test]
fn writes_complete_past_the_wraps_of_ring_and_doorbell() {
    let (mut a, b, to_b, _) = pair();
    write_many(&mut a, &b, to_b, 150_000);
}

#[test]
fn writes_complete_past_an_index_of_2_to_the_32() {
    let (mut a, b, to_b, _) = pair_with(|_| {}, |attr| attr.first_counter = (1 << 32) - 1000);
    write_many(&mut a, &b, to_b, 5000);
}

#[test]
fn a_ring_of_one_entry_works() {
    let (mut a, b, to_b, _) = pair_with(|_| {}, |attr| attr.sq_depth = 1);
    write_many(&mut a, &b, to_b, 1000);
}

#[test]
fn the_deepest_ring_works_with_an_unlimited_batch() {
    let config = |config: &mut AdapterConfig| {
        config.limits.max_sq_depth = 32_768;
        config.limits.llq_bytes = 32_768 * 64;
        config.limits.max_tx_batch = 0;
    };
    let network = Network::new();
    let make = |number| {
        let mut adapter_config = AdapterConfig::new(Gid::link_local(number));
        config(&mut adapter_config);
        let adapter = Adapter::new(&network, adapter_config).unwrap();
        let pd = adapter.allocate_domain().unwrap();
        let attr = CompletionQueueAttr { entries: 65_536, ..CompletionQueueAttr::default() };
        let cq = adapter.create_completion_queue(attr).unwrap();
        Side::on(&adapter, pd, cq, |attr| attr.sq_depth = 32_768)
    };
    let (mut a, b) = (make(1), make(2));
    let (to_b, _known) = (a.handle(&b), b.handle(&a));
    write_many(&mut a, &b, to_b, 100_000);
}

#[test]
fn only_the_low_16_bits_of_a_doorbell_count() {
    let (mut a, b, to_b, _) = pair_with(|_| {}, |attr| attr.first_counter = 0x1_0000 - 2);
    let from = Buffer::new(&a, 64, Access::LOCAL_READ);
    let to = Buffer::new(&b, 64, Access::REMOTE_WRITE);
    for id in 0..4 {
        let entry = a.encode(&write(id, to_b, to.remote(0), from.segment(0, 64)));
        a.place(&entry);
        a.qp.sq.doorbell.ring(a.produced);
        assert_eq!(a.completion().status, CompletionStatus::Ok);
    }
    assert!(a.produced > 0x1_0000);
    assert_eq!(a.rules(), []);
}

#[test]
fn requests_are_counted_by_operation_and_direction() {
    let (mut a, mut b, to_b, _) = pair();
    let near = Buffer::new(&a, 20_000, Access::ALL);
    let far = Buffer::new(&b, 20_000, Access::ALL);
    let ok = CompletionStatus::Ok;
    b.post_receive(1, far.segment(0, 8928));
    assert_eq!(a.run(&send(1, to_b, &[near.segment(0, 100)])), ok);
    assert_eq!(a.run(&write(2, to_b, far.remote(0), near.segment(0, 8929))), ok);
    assert_eq!(a.run(&write(3, to_b, far.remote(0), near.segment(0, 0))), ok);
    assert_eq!(a.run(&read(4, to_b, far.remote(0), near.segment(0, 3 * 5000))), ok);
    for request in [
        write(5, to_b, far.remote(19_999), near.segment(0, 2)),
        read(6, to_b, far.remote(19_999), near.segment(0, 2)),
    ] {
        assert_eq!(a.run(&request), CompletionStatus::RemoteBadAddress);
    }

    let [a, b] = [&a, &b].map(|side| side.adapter.statistics().traffic);
    let numbers = |moved: Moved| [moved.requests, moved.bytes, moved.packets];
    for (own, of_peer, expected) in [
        (a.sent, b.received, [1, 100, 1]),
        (a.written, b.written_by_peers, [2, 8929, 3]),
        (a.read, b.read_by_peers, [1, 15_000, 2]),
        (b.sent, a.received, [0; 3]),
        (b.written, a.written_by_peers, [0; 3]),
        (b.read, a.read_by_peers, [0; 3]),
    ] {
        assert_eq!([numbers(own), numbers(of_peer)], [expected; 2]);
    }
    assert_eq!([a.write_errors, a.read_errors, b.write_errors, b.read_errors], [1, 1, 0, 0]);
}
