//! Every operation of a mapped queue on the software adapter: the bytes arrive at their target, and the receiver gets
//! the completion that the operation causes.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::fabric::{Access, Buffer, Query};
use efa_gda::queue::{Arrival, Limit, Receives, WorkRequest};
use efa_gda::wire::{EntrySize, RequestIdWidth};
use efa_gda::{Error, ErrorKind};
use efa_gda_test_support::assert_error;
use support::side::{Side, arrived, bytes_of, pattern};
use support::{with_pair, with_pair_of, with_soft_adapter};

/// Longer than any wait that succeeds.
const PATIENT: Duration = Duration::from_secs(30);

fn wide() -> Query {
    Query::new().wide_entries(true)
}

#[test]
fn a_read_copies_remote_bytes_to_local_memory() {
    with_pair(&[], |mut pair, _| {
        let remote = pair.side.region(&pattern((1 << 20) + 1));
        let local = pair.zeroes(remote.len());
        pair.first.execute(&WorkRequest::read(pair.peer, &local, remote.remote())).unwrap();
        assert!(bytes_of(&local) == bytes_of(&remote));
    });
}

#[test]
fn an_inline_write_of_80_bytes_travels_in_its_entry() {
    with_pair_of(&wide(), &[], |mut pair, _| {
        let [source, target] = pair.regions(80 * 3000);
        let put =
            WorkRequest::inline_write(pair.peer, &source, target.remote()).bytes(80).stride(80).count(3000);
        pair.first.execute(&put).unwrap();
        assert!(bytes_of(&target) == bytes_of(&source));
    });
}

#[test]
fn an_inline_write_needs_no_access_rights_to_its_source() {
    with_pair_of(&wide(), &[], |mut pair, _| {
        let source = pair.side.domain.register(Buffer::zeroed(8).unwrap(), Access::RECEIVE).unwrap();
        let target = pair.side.region(&[7; 8]);
        pair.first.execute(&WorkRequest::inline_write(pair.peer, &source, target.remote())).unwrap();
        assert_eq!(bytes_of(&target), [0; 8]);
    });
}

#[test]
fn an_inline_write_in_64_byte_entries_is_refused() {
    with_pair(&[], |mut pair, _| {
        let region = pair.zeroes(8);
        let error =
            pair.first.execute(&WorkRequest::inline_write(pair.peer, &region, region.remote())).unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "is not possible on this queue");
        assert_eq!(pair.first.limits().inline_write, 0);
    });
}

#[test]
fn a_send_completes_the_posted_receive_and_names_its_sender() {
    with_pair(&[], |mut pair, _| {
        let [source, target] = pair.regions(8928);
        let posted = pair.second.post_receives(&Receives::new(&target)).unwrap();
        pair.first.execute(&WorkRequest::send(pair.peer, &source)).unwrap();
        let got = arrived(pair.second.receive_many(1, PATIENT));
        assert_eq!((got.receive, got.length, got.immediate), (Some(posted.first), 8928, None));
        assert_eq!((got.arrival, got.source.queue_pair), (Arrival::Message, pair.first.number()));
        assert!(got.source.address_handle.is_some());
        assert!(bytes_of(&target) == bytes_of(&source));
    });
}

#[test]
fn an_inline_send_carries_its_immediate() {
    with_pair(&[], |mut pair, _| {
        let [source, target] = pair.regions(32);
        pair.second.post_receives(&Receives::new(&target)).unwrap();
        pair.first.execute(&WorkRequest::inline_send(pair.peer, &source).immediate(0xfeed_beef)).unwrap();
        let got = arrived(pair.second.receive_many(1, PATIENT));
        assert_eq!((got.length, got.immediate), (32, Some(0xfeed_beef)));
        assert_eq!(bytes_of(&target), pattern(32));
    });
}

#[test]
fn messages_out_of_order_are_identified_by_their_immediates() {
    with_pair(&[("SOFTEFA_REORDER", "16")], |mut pair, _| {
        const COUNT: usize = 1000;
        let [source, target] = pair.regions(64 * COUNT);
        let receives = Receives::new(&target).bytes(64).stride(64).count(COUNT as u32);
        let posted = pair.second.post_receives(&receives).unwrap();
        let put = WorkRequest::send(pair.peer, &source).bytes(64).stride(64).count(COUNT as u64);
        pair.first.execute(&put.immediate(0).counting()).unwrap();
        let (sent, arrived) = (bytes_of(&source), bytes_of(&target));
        let mut seen = [false; COUNT];
        while seen.contains(&false) {
            for got in pair.second.receive_many(usize::MAX, PATIENT).unwrap() {
                let message = got.immediate.unwrap() as usize;
                let slot = got.receive.unwrap().after(posted.first) as usize;
                assert!(!std::mem::replace(&mut seen[message], true), "message {message} arrived twice");
                assert_eq!(arrived[slot * 64..][..64], sent[message * 64..][..64]);
            }
        }
    });
}

#[test]
fn receives_wrap_around_their_ring_many_times() {
    with_pair(&[], |mut pair, _| {
        let (source, target) = (pair.zeroes(8), pair.zeroes(8));
        let rounds = 3 * pair.second.limits().receives / 4096 + 1;
        for _ in 0..rounds {
            pair.second.post_receives(&Receives::new(&target).count(4096)).unwrap();
            pair.first.execute(&WorkRequest::send(pair.peer, &source).count(4096)).unwrap();
            let mut remaining = 4096;
            while remaining > 0 {
                remaining -= pair.second.receive_many(usize::MAX, PATIENT).unwrap().len();
            }
        }
    });
}

#[test]
fn unsolicited_writes_do_not_consume_posted_receives() {
    with_pair(&[], |mut pair, _| {
        assert!(!pair.second.writes_use_receives());
        let [source, target] = pair.regions(8);
        let unused = pair.zeroes(8);
        let posted = pair.second.post_receives(&Receives::new(&unused)).unwrap();
        pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote()).immediate(42)).unwrap();
        pair.first.execute(&WorkRequest::send(pair.peer, &source)).unwrap();
        let write = arrived(pair.second.receive_many(1, PATIENT));
        assert_eq!((write.receive, write.arrival), (None, Arrival::Write));
        assert_eq!((write.length, write.immediate), (8, Some(42)));
        assert_eq!(write.source.queue_pair, pair.first.number());
        assert_eq!(bytes_of(&target), bytes_of(&source));
        assert_eq!(arrived(pair.second.receive_many(1, PATIENT)).receive, Some(posted.first));
    });
}

#[test]
fn a_write_with_immediate_uses_a_receive_if_the_adapter_lacks_unsolicited_writes() {
    with_pair(&[("SOFTEFA_UNSOLICITED_WRITE", "0")], |mut pair, _| {
        assert!(pair.second.writes_use_receives());
        let (source, target, unused) = (pair.side.region(&[3; 8]), pair.zeroes(8), pair.zeroes(8));
        let posted = pair.second.post_receives(&Receives::new(&unused)).unwrap();
        pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote()).immediate(9)).unwrap();
        let got = arrived(pair.second.receive_many(1, PATIENT));
        assert_eq!((got.receive, got.immediate, got.arrival), (Some(posted.first), Some(9), Arrival::Write));
        assert_eq!((bytes_of(&target), bytes_of(&unused)), (vec![3; 8], vec![0; 8]));
    });
}

#[test]
fn request_ids_have_64_bits_if_the_provider_release_reports_them() {
    let set = [("SOFTEFA_PROV_VERSION", "207.0"), ("SOFTEFA_INJECT", "70000:13")];
    with_pair(&set, |mut pair, _| {
        assert_eq!(pair.first.exposure().sq.request_ids, RequestIdWidth::Bits64);
        let (source, target) = (pair.zeroes(8), pair.zeroes(8));
        let error = pair
            .first
            .execute(&WorkRequest::write(pair.peer, &source, target.remote()).count(70_000))
            .unwrap_err();
        let ErrorKind::FailedRequest { request, .. } = error.kind() else { panic!("{error:?}") };
        assert_eq!(request.get(), 69_999, "more than 16 bits can hold");
    });
}

/// Limit, length and maximum of a `TooLong` error.
fn too_long(error: Error) -> (Limit, u64, u64) {
    let ErrorKind::TooLong { limit, bytes, most } = error.kind() else { panic!("{error}") };
    (limit, bytes, most)
}

#[test]
fn one_byte_past_a_limit_is_refused_with_the_limit_and_nothing_is_posted() {
    with_pair_of(&wide(), &[("SOFTEFA_MAX_RDMA_SIZE", "10000")], |mut pair, _| {
        let region = pair.zeroes(10_001);
        let (peer, remote) = (pair.peer, region.remote());
        let send = pair.first.execute(&WorkRequest::send(peer, &region).bytes(8929)).unwrap_err();
        let inline = pair.first.execute(&WorkRequest::inline_send(peer, &region).bytes(81)).unwrap_err();
        let write =
            pair.first.execute(&WorkRequest::inline_write(peer, &region, remote).bytes(81)).unwrap_err();
        let rdma = pair.first.execute(&WorkRequest::write(peer, &region, remote).whole()).unwrap_err();
        assert_eq!(too_long(send), (Limit::Message, 8929, 8928));
        assert_eq!(too_long(inline), (Limit::Inline, 81, 80));
        assert_eq!(too_long(write), (Limit::Inline, 81, 80));
        assert_eq!(too_long(rdma), (Limit::Rdma, 10_001, 10_000));
        assert_eq!(pair.first.in_flight(), 0);
    });
}

#[test]
fn a_write_past_max_rdma_size_is_split_and_its_immediate_arrives_once() {
    with_pair(&[("SOFTEFA_MAX_RDMA_SIZE", "4096")], |mut pair, _| {
        let [source, target] = pair.regions(10_000);
        let report = pair
            .first
            .execute(&WorkRequest::write(pair.peer, &source, target.remote()).immediate(5))
            .unwrap();
        assert_eq!(report.posted, 3);
        assert_eq!(arrived(pair.second.receive_many(1, PATIENT)).immediate, Some(5));
        assert_error!(pair.second.receive_many(1, Duration::ZERO).unwrap_err(), ErrorKind::TimedOut);
        assert!(bytes_of(&target) == bytes_of(&source));
    });
}

#[test]
fn a_read_with_immediate_is_refused() {
    with_pair(&[], |mut pair, _| {
        let region = pair.zeroes(8);
        let error = pair
            .first
            .execute(&WorkRequest::read(pair.peer, &region, region.remote()).immediate(1))
            .unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "is not possible on this queue");
    });
}

#[test]
fn a_receive_longer_than_a_descriptor_can_hold_is_refused() {
    with_pair(&[], |mut pair, _| {
        let region = pair.zeroes(65_536);
        let error = pair.second.post_receives(&Receives::new(&region).bytes(65_536)).unwrap_err();
        let ErrorKind::TooLong { limit, most, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((limit, most), (Limit::Receive, 65_535));
    });
}

#[test]
fn a_receive_into_memory_without_receive_access_is_refused() {
    with_pair(&[], |mut pair, _| {
        let region = pair.side.domain.register(Buffer::zeroed(8).unwrap(), Access::SEND).unwrap();
        let error = pair.second.post_receives(&Receives::new(&region)).unwrap_err();
        assert_error!(error, ErrorKind::Argument, "was registered for access");
    });
}

#[test]
fn a_posted_receive_retains_its_memory_until_it_completes() {
    with_pair(&[], |mut pair, _| {
        let (source, target) = (pair.zeroes(8), pair.zeroes(8));
        pair.second.post_receives(&Receives::new(&target)).unwrap();
        assert!(target.clone().close().is_err(), "the adapter may write to it");
        pair.first.execute(&WorkRequest::send(pair.peer, &source)).unwrap();
        arrived(pair.second.receive_many(1, PATIENT));
        target.close().unwrap();
    });
}

#[test]
fn receives_past_the_ring_are_refused_with_the_number_posted() {
    with_pair(&[], |mut pair, _| {
        let (region, ring) = (pair.zeroes(8), pair.second.limits().receives);
        let receives = Receives::new(&region).count(ring + 1).timeout(Duration::ZERO);
        let error = pair.second.post_receives(&receives).unwrap_err();
        assert_error!(error, ErrorKind::TimedOut, &format!("receives posted: {ring} of {}", ring + 1));
    });
}

#[test]
fn unread_completions_past_the_inbox_are_counted_as_lost() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let mut queue = side.queue();
        let itself = queue.insert_peer(&queue.address().unwrap()).unwrap();
        let region = side.region(&[0; 8]);
        let many = u64::from(queue.limits().inbox) + 7;
        queue
            .execute(&WorkRequest::write(itself, &region, region.remote()).bytes(0).count(many).immediate(0))
            .unwrap();
        let error = queue.receive_many(1, PATIENT).unwrap_err();
        assert_error!(error, ErrorKind::Lost, "were lost (7)");
        arrived(queue.receive_many(1, PATIENT));
    });
}

#[test]
fn every_operation_moves_its_bytes_at_the_sizes_around_entry_and_inline_limits() {
    with_pair_of(&wide(), &[("SOFTEFA_REORDER", "8")], |mut pair, _| {
        assert_eq!(pair.first.exposure().sq.entry_size, EntrySize::B128);
        for size in [0, 1, 31, 32, 33, 63, 64, 80, 81, 4096] {
            let [source, target] = pair.regions(size);
            let (peer, remote) = (pair.peer, target.remote());
            let mut puts = vec![
                WorkRequest::write(peer, &source, remote),
                WorkRequest::write(peer, &source, remote).immediate(1),
            ];
            if size <= 80 {
                puts.push(WorkRequest::inline_write(peer, &source, remote));
            }
            for put in puts {
                target.buffer().unwrap().write(0, &vec![0; size]).unwrap();
                pair.first.execute(&put).unwrap();
                assert_eq!(bytes_of(&target), bytes_of(&source), "{put:?}");
            }
            target.buffer().unwrap().write(0, &vec![0; size]).unwrap();
            pair.first.execute(&WorkRequest::read(peer, &target, source.remote())).unwrap();
            assert_eq!(bytes_of(&target), bytes_of(&source), "read of {size}");
        }
    });
}

/// An id has 16 bits, and a completion may stay unread for more than 2^16 receives.
#[test]
fn an_old_completion_does_not_release_the_memory_of_a_later_receive() {
    with_pair(&[], |mut pair, _| {
        let [old, new] = [(); 2].map(|()| pair.zeroes(64));
        let source = pair.side.region(&pattern(64));
        // Use every id once and read no message, so that the inbox is full of the first messages.
        for _ in 0..32 {
            pair.second.post_receives(&Receives::new(&old).count(2048)).unwrap();
            pair.first.execute(&WorkRequest::send(pair.peer, &source).count(2048)).unwrap();
            for _ in 0..40 {
                pair.second.quiet(PATIENT).unwrap();
            }
        }
        assert_eq!(pair.second.post_receives(&Receives::new(&new)).unwrap().first.get(), 0);
        assert_error!(pair.second.receive_many(1, PATIENT).unwrap_err(), ErrorKind::Lost);
        let first = arrived(pair.second.receive_many(1, PATIENT));
        assert_eq!(first.receive.unwrap().get(), 0, "the first receive");
        // The adapter may still write to it.
        let closed = new.close();
        assert_error!(closed.unwrap_err(), ErrorKind::Busy);
    });
}
