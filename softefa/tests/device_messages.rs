//! Messages: SEND in all its forms, posted receives, and messages that wait for a receive.

#![allow(clippy::unwrap_used)]

mod device_support;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

fn pattern(at: usize) -> u8 {
    (at * 13 + at / 256) as u8
}

/// A buffer of the sender, filled with a pattern, and a buffer of the receiver.
fn buffers(a: &Side, b: &Side, length: usize) -> (Buffer, Buffer) {
    let from = Buffer::new(a, length, Access::LOCAL_READ);
    let to = Buffer::new(b, length, Access::LOCAL_WRITE);
    from.fill(pattern);
    (from, to)
}

#[test]
fn a_message_arrives_with_the_address_of_its_sender() {
    let (mut a, mut b, to_b, to_a) = pair();
    let (from, to) = buffers(&a, &b, 8928);
    b.post_receive(11, to.segment(0, 8928));

    assert_eq!(a.run(&send(1, to_b, &[from.segment(0, 8928)])), CompletionStatus::Ok);

    let completion = b.completion();
    assert_eq!((completion.id.get(), completion.status), (11, CompletionStatus::Ok));
    assert_eq!(completion.queue_pair, b.qp.number);
    let expected = ReceiveInfo {
        length: 8928,
        address_handle: to_a.address_handle,
        source_queue_pair: a.qp.number,
        immediate: None,
        unsolicited: false,
    };
    assert_eq!(received(&completion), expected);
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn two_segments_are_gathered() {
    let (mut a, mut b, to_b, _) = pair();
    let (from, to) = buffers(&a, &b, 300);
    b.post_receive(1, to.segment(0, 300));

    let segments = [from.segment(200, 100), from.segment(0, 50)];
    assert_eq!(a.run(&send(1, to_b, &segments)), CompletionStatus::Ok);

    let sent = from.bytes();
    assert_eq!(to.bytes()[..150], [&sent[200..300], &sent[..50]].concat());
    assert_eq!(received(&b.completion()).length, 150);
}

#[test]
fn a_receive_of_two_descriptors_is_filled_in_order() {
    let (mut a, mut b, to_b, _) = pair();
    let (from, to) = buffers(&a, &b, 200);
    for (part, first) in [(to.segment(100, 60), true), (to.segment(0, 60), false)] {
        let Segment { address, length, key } = part;
        let receive = Receive { id: 4, address, length: length as u16, key };
        let descriptor = ReceiveDescriptor { receive, first, last: !first, reserved_zero: true };
        b.place_descriptor(&descriptor.encode());
    }
    b.ring_receive_doorbell();

    assert_eq!(a.run(&send(1, to_b, &[from.segment(0, 100)])), CompletionStatus::Ok);

    let (sent, got) = (from.bytes(), to.bytes());
    assert_eq!((&got[100..160], &got[..40]), (&sent[..60], &sent[60..100]));
    assert_eq!(b.completion().id.get(), 4);
}

#[test]
fn an_inline_message_with_immediate_arrives() {
    for (size, length) in [(EntrySize::B64, 32), (EntrySize::B128, 80)] {
        let (mut a, mut b, to_b, _) = pair_with(|_| {}, |attr| attr.entry_size = size);
        let to = Buffer::new(&b, length, Access::LOCAL_WRITE);
        b.post_receive(1, to.segment(0, length as u32));
        let data: Vec<u8> = (0..length).map(pattern).collect();

        let mut message = send_inline(1, to_b, &data);
        message.immediate = Some(42);
        assert_eq!(a.run(&message), CompletionStatus::Ok);

        assert_eq!(to.bytes(), data);
        assert_eq!(received(&b.completion()).immediate, Some(42));
    }
}

#[test]
fn a_message_of_an_unknown_sender_carries_its_gid() {
    let network = Network::new();
    let (mut a, b) = (Side::new(&adapter(&network, 1)), Side::new(&adapter(&network, 2)));
    let mut b = b;
    let to_b = a.handle(&b);
    b.post_receive(1, Segment::default());

    assert_eq!(a.run(&send_inline(1, to_b, b"")), CompletionStatus::Ok);

    until("the message", || Completion::phase(b.peek()[Completion::FLAGS_OFFSET]).then_some(()));
    assert_eq!(b.peek()[16..], a.adapter.gid().0);
    assert_eq!(received(&b.completion()).address_handle, UNKNOWN_ADDRESS_HANDLE);
}

#[test]
fn a_message_waits_for_its_receive() {
    let (mut a, mut b, to_b, _) = pair();
    let (from, to) = buffers(&a, &b, 64);
    a.post(&send(1, to_b, &[from.segment(0, 64)]));
    until("a retry", || (a.adapter.statistics().rnr_retries > 0).then_some(()));
    assert_eq!(a.poll(), None);

    b.post_receive(1, to.segment(0, 64));
    assert_eq!(a.completion().status, CompletionStatus::Ok);
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn pending_messages_do_not_delay_a_write() {
    for messages in [1, 512] {
        let (mut a, b, to_b, _) = pair_with(|_| {}, |attr| attr.sq_depth = 1024);
        let from = Buffer::new(&a, 64, Access::LOCAL_READ);
        let to = Buffer::new(&b, 64, Access::REMOTE_WRITE);
        (0..messages).for_each(|id| a.post(&send_inline(id, to_b, b"")));
        a.await_fetched(messages);
        let write = write(messages, to_b, to.remote(0), from.segment(0, 64));
        assert_eq!(a.run(&write), CompletionStatus::Ok);
    }
}

#[test]
fn receives_past_the_wrap_of_their_doorbell_arrive_in_order() {
    let (mut a, mut b, to_b, _) = pair_with(|_| {}, |attr| attr.first_counter = 0xffff_fff0);
    let to = Buffer::new(&b, 8, Access::LOCAL_WRITE);
    for count in 0..70_000_u64 {
        b.post_receive(count as u16, to.segment(0, 8));
        assert_eq!(a.run(&send_inline(count & 0xffff, to_b, &count.to_le_bytes())), CompletionStatus::Ok);
        assert_eq!(b.completion().id.get(), count & 0xffff);
        assert_eq!(to.bytes(), count.to_le_bytes());
    }
    assert_eq!((a.rules(), b.rules()), (vec![], vec![]));
}

#[test]
fn many_messages_in_both_directions_arrive_once_each() {
    let (mut a, mut b, to_b, to_a) = pair();
    let (into_a, into_b) =
        (Buffer::new(&a, 64 * 8, Access::LOCAL_WRITE), Buffer::new(&b, 64 * 8, Access::LOCAL_WRITE));
    let mut seen = vec![(0, 0); 64];
    for round in 0..200_u64 {
        for slot in 0..64_u16 {
            a.post_receive(slot, into_a.segment(u64::from(slot) * 8, 8));
            b.post_receive(slot, into_b.segment(u64::from(slot) * 8, 8));
        }
        for id in 0..64_u64 {
            a.post(&send_inline(id, to_b, &(round << 8 | id).to_le_bytes()));
            b.post(&send_inline(id, to_a, &(round << 8 | id).to_le_bytes()));
        }
        for _ in 0..128 {
            for side in [&mut a, &mut b] {
                assert_eq!(side.completion().status, CompletionStatus::Ok);
            }
        }
        for (slot, seen) in seen.iter_mut().enumerate() {
            let at = slot * 8;
            let value = |bytes: &[u8]| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            *seen = (value(&into_a.bytes()), value(&into_b.bytes()));
        }
        let sorted = |pick: fn(&(u64, u64)) -> u64| {
            let mut values: Vec<_> = seen.iter().map(pick).collect();
            values.sort_unstable();
            values
        };
        let expected: Vec<_> = (0..64).map(|id| round << 8 | id).collect();
        assert_eq!((sorted(|pair| pair.0), sorted(|pair| pair.1)), (expected.clone(), expected));
    }
}

/// Two sides on UD queue pairs, and the address of the second.
fn datagram_pair() -> (Side, Side, Peer) {
    let (a, b, to_b, _) = pair_with(|_| {}, |attr| attr.transport = Transport::Ud);
    (a, b, to_b)
}

#[test]
fn a_datagram_arrives_after_40_bytes_that_its_length_counts() {
    let (mut a, mut b, to_b) = datagram_pair();
    let (from, to) = buffers(&a, &b, 200);
    // The 40 bytes fill the first segment and a part of the second.
    for (part, first) in [(to.segment(0, 30), true), (to.segment(100, 90), false)] {
        let Segment { address, length, key } = part;
        let receive = Receive { id: 5, address, length: length as u16, key };
        let descriptor = ReceiveDescriptor { receive, first, last: !first, reserved_zero: true };
        b.place_descriptor(&descriptor.encode());
    }
    b.ring_receive_doorbell();

    assert_eq!(a.run(&send(1, to_b, &[from.segment(0, 80)])), CompletionStatus::Ok);

    assert_eq!(received(&b.completion()).length, 120);
    assert_eq!(to.bytes()[110..190], from.bytes()[..80]);
    assert_eq!((&to.bytes()[..110], &to.bytes()[190..]), (&[0; 110][..], &[0; 10][..]));
}

#[test]
fn a_datagram_that_does_not_fit_its_receive_after_40_bytes_is_refused() {
    let (mut a, mut b, to_b) = datagram_pair();
    let (from, to) = buffers(&a, &b, 100);
    b.post_receive(1, to.segment(0, 100));

    assert_eq!(a.run(&send(1, to_b, &[from.segment(0, 61)])), CompletionStatus::RemoteBadLength);

    assert_eq!(b.completion().status, CompletionStatus::BadLength);
    assert_eq!(to.bytes(), [0; 100]);
}

#[test]
fn a_datagram_is_refused_if_no_region_has_the_40_bytes_before_it() {
    let (mut a, mut b, to_b) = datagram_pair();
    let (from, to) = buffers(&a, &b, 100);
    let Segment { address, key, .. } = to.segment(0, 40);
    let none = Segment { key: LocalKey::new(key.get() ^ 1).unwrap(), ..to.segment(0, 40) };
    for before in [none, Segment { address: address - 1, ..to.segment(0, 40) }] {
        for (part, first) in [(before, true), (to.segment(40, 60), false)] {
            let receive = Receive { id: 5, address: part.address, length: part.length as u16, key: part.key };
            let descriptor = ReceiveDescriptor { receive, first, last: !first, reserved_zero: true };
            b.place_descriptor(&descriptor.encode());
        }
        b.ring_receive_doorbell();

        let status = a.run(&send(1, to_b, &[from.segment(0, 60)]));

        assert_eq!(status, CompletionStatus::RemoteAbort);
        assert_eq!(b.completion().status, CompletionStatus::InvalidLocalKey);
        assert_eq!(to.bytes(), [0; 100]);
    }
}

#[test]
fn a_datagram_queue_pair_has_no_rdma_and_no_peer_of_another_transport() {
    let (mut a, b, to_b) = datagram_pair();
    let (from, _) = buffers(&a, &b, 64);
    let remote = Buffer::new(&b, 64, Access::ALL).remote(0);
    let local = from.segment(0, 64);
    assert_eq!(a.run(&write(1, to_b, remote, local)), CompletionStatus::UnsupportedOperation);
    assert_eq!(a.run(&read(2, to_b, remote, local)), CompletionStatus::UnsupportedOperation);
    let mut other = Side::new(&a.adapter);
    let to_b = other.handle(&b);
    assert_eq!(other.run(&send_inline(3, to_b, b"x")), CompletionStatus::RemoteBadQueuePair);
}
