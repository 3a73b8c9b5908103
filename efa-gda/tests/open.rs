//! Queues that are opened in one call, on the software adapter: what is chosen at open is a value.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

#[cfg(feature = "cuda")]
mod support;

use std::time::Duration;

use efa_gda::doorbell::DoorbellMode;
use efa_gda::memory::{Access, CountedOperations, RemoteRegion};
use efa_gda::queue::{Receives, Region, WorkRequest};
use efa_gda::wire::{CompletionStatus, Peer, RemoteKey};
use efa_gda::{ErrorKind, Options, Queue, Source};
use efa_gda_test_support::assert_error;
use efa_gda_test_support::soft::{assert_no_violations, with_soft_adapter};

const BYTES: usize = 100_000;

/// A queue that is its own peer, and two regions of it.
fn opened(options: &Options) -> (Queue, Peer, Region, Region) {
    let queue = Queue::open(options).unwrap();
    let peer = queue.insert_peer(&queue.address().unwrap()).unwrap();
    let source = queue.allocate(BYTES, Access::WRITE | Access::SEND).unwrap();
    let target = queue.allocate(BYTES, Access::REMOTE_WRITE | Access::RECEIVE).unwrap();
    (queue, peer, source, target)
}

/// Puts `BYTES` bytes, and compares them.
fn puts(options: &Options) -> Queue {
    let (mut queue, peer, source, target) = opened(options);
    let bytes: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    source.write(0, &bytes).unwrap();
    assert_eq!(queue.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap().completed, 1);
    let mut arrived = vec![0; BYTES];
    target.read(0, &mut arrived).unwrap();
    assert_eq!(arrived, bytes);
    queue
}

#[test]
fn a_put_arrives_in_every_doorbell_mode() {
    with_soft_adapter(&[], |adapter| {
        for mode in [DoorbellMode::Direct, DoorbellMode::Record, DoorbellMode::Staged] {
            let queue = puts(&Options::new().doorbell(mode));
            assert_eq!((queue.doorbell_mode(), queue.source()), (mode, Source::Libfabric));
            assert!(queue.refused().is_empty(), "{:?}", queue.refused());
        }
        assert_eq!(puts(&Options::new().source(Source::Libfabric)).doorbell_mode(), DoorbellMode::Direct);
        assert_no_violations(adapter);
    });
}

#[cfg(feature = "cuda")]
#[test]
fn a_put_of_a_gpu_arrives_in_every_doorbell_mode() {
    support::with_gpu(&[], |adapter, _| {
        for mode in [DoorbellMode::Direct, DoorbellMode::Record, DoorbellMode::Staged] {
            let queue = puts(&Options::new().gpu(0).doorbell(mode));
            assert_eq!(queue.doorbell_mode(), mode, "{:?}", queue.refused());
        }
        assert_no_violations(adapter);
    });
    support::with_gpu(&[("SOFTEFA_HMEM", "1")], |adapter, _| {
        let mut queue = Queue::open(&Options::new().gpu(0)).unwrap();
        let peer = queue.insert_peer(&queue.address().unwrap()).unwrap();
        let source = queue.allocate_on_gpu(BYTES, Access::WRITE).unwrap();
        let target = queue.allocate_on_gpu(BYTES, Access::REMOTE_WRITE).unwrap();
        source.write(5, b"in the GPU's memory").unwrap();
        queue.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap();
        let mut arrived = [0; 19];
        target.read(5, &mut arrived).unwrap();
        assert_eq!(&arrived, b"in the GPU's memory");
        assert_no_violations(adapter);
    });
}

#[test]
fn a_wrong_key_is_one_kind_of_error_with_request_status_and_next_step() {
    with_soft_adapter(&[], |adapter| {
        let (mut queue, peer, source, target) = opened(&Options::new().wide_entries());
        let right = target.remote();
        let wrong = RemoteRegion { key: RemoteKey::new(right.key.get() ^ 1), ..right };
        let error = queue.execute(&WorkRequest::write(peer, &source, wrong)).unwrap_err();
        match error.kind() {
            ErrorKind::FailedRequest { request, status } => {
                assert_eq!((request.get(), status), (0, CompletionStatus::RemoteBadAddress));
            }
            other => panic!("{other:?}: {error}"),
        }
        let text = error.to_string();
        for part in ["request id 0", "status 7", "gda-probe explain STATUS-7"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The queue is usable.
        queue.execute(&WorkRequest::write(peer, &source, right)).unwrap();
        assert_no_violations(adapter);
    });
}

#[test]
fn kinds_tell_what_to_do_from_what_was_done() {
    with_soft_adapter(&[], |adapter| {
        let (mut queue, peer, source, target) = opened(&Options::new());
        let kind = |result: Result<(), efa_gda::Error>| result.unwrap_err().kind();
        assert_eq!(kind(queue.insert_peer(&[0; 7]).map(drop)), ErrorKind::Argument);
        assert_eq!(kind(source.write(BYTES, &[1])), ErrorKind::Argument);
        let read = WorkRequest::read(peer, &source, target.remote());
        assert_eq!(kind(queue.execute(&read).map(drop)), ErrorKind::Argument, "no access");
        assert_eq!(kind(queue.receive_many(1, Duration::ZERO).map(drop)), ErrorKind::TimedOut);
        assert_eq!(kind(Queue::open(&Options::new().adapter("none")).map(drop)), ErrorKind::NoAdapter);
        let other = Queue::open(&Options::new()).unwrap();
        let foreign = other.allocate(64, Access::WRITE).unwrap();
        let write = WorkRequest::write(peer, &foreign, target.remote());
        assert_eq!(kind(queue.execute(&write).map(drop)), ErrorKind::Argument, "another domain");
        assert_no_violations(adapter);
    });
}

#[test]
fn messages_arrive_and_parts_may_be_dropped_in_any_order() {
    with_soft_adapter(&[], |adapter| {
        let (mut queue, peer, source, target) = opened(&Options::new().request_table());
        source.write(0, b"message").unwrap();
        queue.post_receives(&Receives::new(&target).bytes(64)).unwrap();
        queue.execute(&WorkRequest::send(peer, &source).bytes(7)).unwrap();
        let received = queue.receive_many(1, Duration::from_secs(60)).unwrap();
        assert_eq!((received[0].length, received[0].status), (7, CompletionStatus::Ok));
        let mut bytes = [0; 7];
        drop(queue);
        target.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"message");
        assert_no_violations(adapter);
    });
}

#[test]
fn a_queue_with_requests_in_flight_is_handed_back_by_close_and_destroyed() {
    with_soft_adapter(&[], |adapter| {
        let (mut queue, peer, source, target) = opened(&Options::new().requests(0).completions(0).peers(0));
        adapter.hold(true);
        let write = WorkRequest::write(peer, &source, target.remote()).timeout(Duration::from_millis(50));
        let timed_out = queue.execute(&write).unwrap_err();
        assert!(matches!(timed_out.kind(), ErrorKind::Device(_)), "{timed_out}");
        let refused = queue.close().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "1 request(s) of it were rung and have not completed");
        let queue = refused.queue.unwrap();
        assert_eq!(queue.snapshot().unwrap().in_flight(), 1);
        queue.destroy().unwrap();
        adapter.hold(false);
        let idle = Queue::open(&Options::new()).unwrap();
        idle.close().unwrap();
    });
}

#[test]
fn a_queue_with_counters_puts_and_takes_no_receives() {
    with_soft_adapter(&[("SOFTEFA_HW_CNTR", "1"), ("SOFTEFA_PROV_VERSION", "207.0")], |_| {
        let mut queue = puts(&Options::new().counters());
        let receives = queue.allocate(64, Access::RECEIVE).unwrap();
        let refused = queue.post_receives(&Receives::new(&receives)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        queue.close().unwrap();
        let table = Queue::open(&Options::new().counters().request_table()).unwrap_err();
        assert_eq!(table.kind(), ErrorKind::Unsupported, "{table}");
        let depth = Queue::open(&Options::new().requests(64)).unwrap_err();
        assert_eq!(depth.kind(), ErrorKind::Argument, "{depth}");
    });
}

#[test]
fn a_queue_counts_what_arrives_and_another_queue_on_its_domain_takes_its_regions() {
    with_soft_adapter(&[("SOFTEFA_HW_CNTR", "1"), ("SOFTEFA_PROV_VERSION", "207.0")], |_| {
        let (target, _, source, region) = opened(&Options::new().count(CountedOperations::REMOTE_WRITE));
        let words = target.counter().unwrap();
        // SAFETY: the open queue owns the words, which only the adapter writes, atomically.
        let read = |word: u64| unsafe { (word as *const u64).read_volatile() };
        assert_eq!((words.device, read(words.success), read(words.error)), (None, 0, 0));
        let mut other = target.domain().open(&Options::new()).unwrap();
        assert_eq!(other.counter(), None);
        target.insert_peer(&other.address().unwrap()).unwrap();
        let peer = other.insert_peer(&target.address().unwrap()).unwrap();
        source.write(0, b"counted").unwrap();
        other.execute(&WorkRequest::write(peer, &source, region.remote()).bytes(7).count(3)).unwrap();
        assert_eq!((read(words.success), read(words.error)), (3, 0));
        let key = target.domain().local_key(&source).unwrap();
        assert_eq!(other.retain(&source).unwrap(), key);
        let mut bytes = [0; 7];
        drop(target);
        region.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"counted");
    });
}

#[test]
fn two_queues_reach_each_other_by_their_cards_and_other_bytes_are_no_card() {
    with_soft_adapter(&[], |adapter| {
        let (mut first, second) =
            (Queue::open(&Options::new()).unwrap(), Queue::open(&Options::new()).unwrap());
        let source = first.allocate(BYTES, Access::WRITE).unwrap();
        let targets = [0, 1].map(|_| second.allocate(BYTES, Access::REMOTE_WRITE).unwrap());
        let card = second.card(&[&targets[0], &targets[1]]).unwrap();
        assert_eq!(card.len(), 36 + 2 * 20);
        let (peer, regions) = first.insert_card(&card).unwrap();
        assert_eq!(regions, targets.each_ref().map(Region::remote));
        // An adapter refuses requests of a sender that it does not know.
        assert_eq!(second.insert_card(&first.card(&[]).unwrap()).unwrap().1, []);
        source.write(0, b"by card").unwrap();
        first.execute(&WorkRequest::write(peer, &source, regions[1]).bytes(7)).unwrap();
        let mut arrived = [0; 7];
        targets[1].read(0, &mut arrived).unwrap();
        assert_eq!(&arrived, b"by card");
        for cut in [0, 3, 35, 37, card.len() - 1] {
            let error = first.insert_card(&card[..cut]).unwrap_err();
            assert_error!(error, ErrorKind::Argument, "are no card of a queue");
        }
        let other = [b"EFG2", &card[4..]].concat();
        assert_error!(first.insert_card(&other).unwrap_err(), ErrorKind::Argument);
        assert_no_violations(adapter);
    });
}
