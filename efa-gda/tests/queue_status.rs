//! The status of a completion reaches the caller as a value of its own. softefa's `device_status.rs` shows the cause of
//! each status; here are those whose cause involves the library.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::fabric::Query;
use efa_gda::queue::{MappedQueue, Receives, WorkRequest};
use efa_gda::wire::CompletionStatus;
use efa_gda::{ErrorKind, Progress};
use support::side::{Pair, arrived, bytes_of, introduce, with_wrong_key};
use support::{with_pair, with_soft_adapter};

/// Longer than any wait that succeeds.
const PATIENT: Duration = Duration::from_secs(30);

/// Posts a work request that must fail, and returns its status.
fn status_of(queue: &mut MappedQueue, put: &WorkRequest) -> CompletionStatus {
    let error = queue.execute(put).unwrap_err();
    let ErrorKind::FailedRequest { status, .. } = error.kind() else { panic!("{error:?}") };
    status
}

#[test]
fn a_wrong_rkey_is_a_bad_remote_address_and_the_queue_stays_usable() {
    with_pair(&[], |mut pair, _| {
        let [source, target] = pair.regions(64);
        let wrong = WorkRequest::write(pair.peer, &source, with_wrong_key(target.remote()));
        assert_eq!(status_of(&mut pair.first, &wrong), CompletionStatus::RemoteBadAddress);
        pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote())).unwrap();
        assert_eq!(bytes_of(&target), bytes_of(&source));
    });
}

#[test]
fn a_receive_that_is_too_short_is_an_error_on_both_sides() {
    with_pair(&[], |mut pair, _| {
        let [source, target] = pair.regions(64);
        let posted = pair.second.post_receives(&Receives::new(&target).bytes(63)).unwrap();
        let put = WorkRequest::send(pair.peer, &source);
        assert_eq!(status_of(&mut pair.first, &put), CompletionStatus::RemoteBadLength);
        let received = pair.second.receive_many(1, PATIENT).unwrap()[0];
        assert_eq!((received.status, received.receive), (CompletionStatus::BadLength, Some(posted.first)));
    });
}

#[test]
fn a_read_on_an_adapter_without_rdma_read_is_an_unsupported_operation() {
    with_pair(&[("SOFTEFA_RDMA_READ", "0")], |mut pair, _| {
        let [source, target] = pair.regions(64);
        let put = WorkRequest::read(pair.peer, &target, source.remote());
        assert_eq!(status_of(&mut pair.first, &put), CompletionStatus::UnsupportedOperation);
    });
}

#[test]
fn a_queue_pair_that_broke_a_rule_flushes_both_of_its_queues() {
    with_soft_adapter(&[], |adapter| {
        let mut pair = Pair::open(&Query::new());
        let [source, target] = pair.regions(64);
        pair.first.post_receives(&Receives::new(&target).count(2)).unwrap();
        // A message that uses the first receive shows that the adapter has read the doorbell for both.
        let back = introduce(&pair.second, &pair.first);
        pair.second.execute(&WorkRequest::send(back, &source)).unwrap();
        arrived(pair.first.receive_many(1, PATIENT));
        let doorbell = pair.first.exposure().rq.doorbell;
        // The doorbell moves backwards, which breaks a rule.
        // SAFETY: the doorbell is mapped while the queue lives.
        unsafe { doorbell.as_ptr().write_volatile(0xfff0) };
        while adapter.violations().is_empty() {
            efa_gda_test_support::rest();
        }
        let put = WorkRequest::write(pair.peer, &source, target.remote());
        assert_eq!(status_of(&mut pair.first, &put), CompletionStatus::Flushed);
        assert_eq!(pair.first.receive_many(1, PATIENT).unwrap()[0].status, CompletionStatus::Flushed);
    });
}

#[test]
fn the_error_of_one_of_several_requests_names_that_request() {
    with_pair(&[("SOFTEFA_INJECT", "2:8")], |mut pair, _| {
        let [source, target] = pair.regions(64);
        let put = WorkRequest::write(pair.peer, &source, target.remote()).count(3);
        let error = pair.first.execute(&put).unwrap_err();
        let ErrorKind::FailedRequest { status, request } = error.kind() else { panic!("{error:?}") };
        let Progress { completed, .. } = error.progress().unwrap();
        assert_eq!((status, request.get(), completed), (CompletionStatus::RemoteAbort, 1, 3));
    });
}

#[test]
fn every_injected_status_is_reported_as_itself() {
    let good = |status: &CompletionStatus| *status == CompletionStatus::Ok;
    let named = CompletionStatus::ALL.iter().copied().filter(|status| !good(status));
    let all: Vec<_> = named.chain([CompletionStatus::Unknown(77)]).collect();
    // Each status is injected into a separate request, so that no error hides another.
    let pairs: Vec<String> = (1..).zip(&all).map(|(nth, one)| format!("{nth}:{}", one.code())).collect();
    with_pair(&[("SOFTEFA_INJECT", &pairs.join(","))], |mut pair, _| {
        let [source, target] = pair.regions(64);
        let put = WorkRequest::write(pair.peer, &source, target.remote());
        for status in all {
            assert_eq!(status_of(&mut pair.first, &put), status);
        }
        pair.first.execute(&put).unwrap();
    });
}
