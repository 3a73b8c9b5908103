//! Each status of a completion reaches the caller as a distinct value. The tests provoke its real cause if the software
//! adapter has it, and inject the status if the cause needs another host or another firmware.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::fabric::{MemoryRegion, Query, RemoteRegion};
use efa_gda::queue::{MappedQueue, ReceiveError, Receives, WorkError, WorkRequest};
use efa_gda::wire::{AddressHandle, CompletionStatus, Peer, QueueKey, QueuePairNumber};
use support::side::{Side, bytes_of, introduce, pattern, two_adapters, with_wrong_key};
use support::{SoftAdapter, with_soft_adapter};

/// Longer than any wait that succeeds.
const PATIENT: Duration = Duration::from_secs(30);

/// Two queues of one adapter, and a source and a target of 64 bytes.
struct Scene {
    side: Side,
    first: MappedQueue,
    second: MappedQueue,
    peer: Peer,
    source: MemoryRegion,
    target: MemoryRegion,
}

impl Scene {
    fn new() -> Self {
        let side = Side::open(&Query::new());
        let (first, second, peer) = side.pair();
        let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
        Self { side, first, second, peer, source, target }
    }

    fn write(&self) -> WorkRequest {
        WorkRequest::write(self.peer, &self.source, self.target.remote())
    }

    /// Posts a work request that must fail, and returns its status.
    fn status(&mut self, put: &WorkRequest) -> CompletionStatus {
        status_of(&mut self.first, put)
    }
}

fn status_of(queue: &mut MappedQueue, put: &WorkRequest) -> CompletionStatus {
    let error = queue.execute(put).unwrap_err();
    let WorkError::Completion { status, .. } = error else { panic!("{error}") };
    status
}

/// Runs `body` with a scene in a separate process.
fn scene(variables: &[(&str, &str)], body: impl FnOnce(Scene, &SoftAdapter)) {
    with_soft_adapter(variables, |adapter| body(Scene::new(), adapter));
}

#[test]
fn a_wrong_rkey_is_a_bad_remote_address_and_the_queue_stays_usable() {
    scene(&[], |mut scene, _| {
        let wrong = with_wrong_key(scene.target.remote());
        let put = WorkRequest::write(scene.peer, &scene.source, wrong);
        assert_eq!(scene.status(&put), CompletionStatus::RemoteBadAddress);
        scene.first.execute(&scene.write()).unwrap();
        assert_eq!(bytes_of(&scene.target), bytes_of(&scene.source));
    });
}

#[test]
fn bytes_past_the_remote_region_are_a_bad_remote_address() {
    scene(&[], |mut scene, _| {
        let right = scene.target.remote();
        let past = RemoteRegion { address: right.address + 1, ..right };
        let put = WorkRequest::write(scene.peer, &scene.source, past);
        assert_eq!(scene.status(&put), CompletionStatus::RemoteBadAddress);
    });
}

#[test]
fn an_address_handle_that_was_never_created_is_invalid() {
    scene(&[], |mut scene, _| {
        scene.peer.address_handle = AddressHandle::new(scene.peer.address_handle.get() ^ 0x800);
        let put = scene.write();
        assert_eq!(scene.status(&put), CompletionStatus::InvalidAddressHandle);
    });
}

#[test]
fn an_lkey_of_another_region_is_invalid() {
    scene(&[], |mut scene, _| {
        let other = scene.first.local_key(&scene.target).unwrap();
        let put = scene.write().with_key(other);
        assert_eq!(scene.status(&put), CompletionStatus::InvalidLocalKey);
    });
}

#[test]
fn a_message_longer_than_the_adapter_supports_is_a_bad_length() {
    scene(&[], |mut scene, _| {
        // The library refuses such a message unless the queue's struct claims a larger limit.
        // SAFETY: the struct lives as long as the queue, and nothing else uses it now.
        unsafe { (*scene.first.as_ptr().as_ptr()).max_msg_size = 1 << 20 };
        let put = WorkRequest::send(scene.peer, &scene.side.region(&pattern(8929)));
        assert_eq!(scene.status(&put), CompletionStatus::BadLength);
    });
}

#[test]
fn a_queue_pair_that_does_not_exist_is_a_bad_destination() {
    scene(&[], |mut scene, _| {
        scene.peer.queue_pair = QueuePairNumber::new(scene.peer.queue_pair.get() ^ 0x4000);
        let put = scene.write();
        assert_eq!(scene.status(&put), CompletionStatus::RemoteBadQueuePair);
    });
}

#[test]
fn a_wrong_queue_key_is_a_bad_destination() {
    scene(&[], |mut scene, _| {
        scene.peer.queue_key = QueueKey::new(!scene.peer.queue_key.get());
        let put = scene.write();
        assert_eq!(scene.status(&put), CompletionStatus::RemoteBadQueuePair);
    });
}

#[test]
fn a_send_without_a_receive_is_receiver_not_ready_after_its_last_retry() {
    scene(&[], |scene, _| {
        let mut queue = scene.side.queue_that(|endpoint| endpoint.set_rnr_retry(2).unwrap());
        let peer = introduce(&queue, &scene.second);
        let put = WorkRequest::send(peer, &scene.source);
        assert_eq!(status_of(&mut queue, &put), CompletionStatus::ReceiverNotReady);
    });
}

#[test]
fn a_receive_that_is_too_short_is_an_error_on_both_sides() {
    scene(&[], |mut scene, _| {
        let posted = scene.second.post_receives(&Receives::new(&scene.target).bytes(63)).unwrap();
        let put = WorkRequest::send(scene.peer, &scene.source);
        assert_eq!(scene.status(&put), CompletionStatus::RemoteBadLength);
        let error = scene.second.receive(PATIENT).unwrap_err();
        let ReceiveError::Completion { status, receive } = error else { panic!("{error}") };
        assert_eq!((status, receive), (CompletionStatus::BadLength, Some(posted.first)));
    });
}

#[test]
fn a_read_on_an_adapter_without_rdma_read_is_an_unsupported_operation() {
    scene(&[("SOFTEFA_RDMA_READ", "0")], |mut scene, _| {
        let put = WorkRequest::read(scene.peer, &scene.source, scene.target.remote());
        assert_eq!(scene.status(&put), CompletionStatus::UnsupportedOperation);
    });
}

#[test]
fn a_write_to_an_adapter_that_did_not_insert_the_writer_is_an_unknown_peer() {
    with_soft_adapter(&[("SOFTEFA_ADAPTERS", "2")], |_| {
        let (here, there) = two_adapters();
        let (mut first, second) = (here.queue(), there.queue());
        let peer = first.insert_peer(&second.endpoint().address().unwrap()).unwrap();
        let (source, target) = (here.region(&pattern(64)), there.region(&[0; 64]));
        let put = WorkRequest::write(peer, &source, target.remote());
        assert_eq!(status_of(&mut first, &put), CompletionStatus::UnknownPeer);
    });
}

#[test]
fn an_address_without_an_adapter_is_unreachable() {
    scene(&[], |mut scene, _| {
        let mut address = scene.second.endpoint().address().unwrap();
        // The last byte of the GID.
        address[15] ^= 0x40;
        scene.peer = scene.first.insert_peer(&address).unwrap();
        let put = scene.write();
        assert_eq!(scene.status(&put), CompletionStatus::UnreachableRemote);
    });
}

#[test]
fn a_queue_pair_that_broke_a_rule_flushes_both_of_its_queues() {
    scene(&[], |mut scene, adapter| {
        scene.first.post_receives(&Receives::new(&scene.target).count(2)).unwrap();
        // A message that uses the first receive shows that the adapter has read the doorbell for both.
        let back = introduce(&scene.second, &scene.first);
        scene.second.execute(&WorkRequest::send(back, &scene.source)).unwrap();
        scene.first.receive(PATIENT).unwrap();
        let doorbell = scene.first.exposure().rq.doorbell;
        // The doorbell moves backwards, which breaks a rule.
        // SAFETY: the doorbell is mapped while the queue lives.
        unsafe { doorbell.as_ptr().write_volatile(0xfff0) };
        while adapter.violations().is_empty() {
            efa_gda_test_support::rest();
        }
        let put = scene.write();
        assert_eq!(scene.status(&put), CompletionStatus::Flushed);
        let error = scene.first.receive(PATIENT).unwrap_err();
        let ReceiveError::Completion { status, .. } = error else { panic!("{error}") };
        assert_eq!(status, CompletionStatus::Flushed);
    });
}

/// Injects `status` into the second of three requests.
fn injected(status: CompletionStatus) {
    let inject = format!("2:{}", status.code());
    scene(&[("SOFTEFA_INJECT", &inject)], |mut scene, _| {
        let error = scene.first.execute(&scene.write().count(3)).unwrap_err();
        let WorkError::Completion { status: actual, request, completed, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((actual, request.get(), completed), (status, 1, 3));
    });
}

#[test]
fn an_internal_error_of_a_queue_pair_is_reported() {
    injected(CompletionStatus::QueuePairInternal);
}

#[test]
fn an_abort_by_the_remote_side_is_reported() {
    injected(CompletionStatus::RemoteAbort);
}

#[test]
fn a_malformed_response_is_reported() {
    injected(CompletionStatus::RemoteBadStatus);
}

#[test]
fn an_unresponsive_remote_is_reported() {
    injected(CompletionStatus::UnresponsiveRemote);
}

#[test]
fn a_feature_mismatch_is_reported() {
    injected(CompletionStatus::FeatureMismatch);
}

#[test]
fn an_unknown_status_is_reported_as_its_number() {
    injected(CompletionStatus::Unknown(77));
}

#[test]
fn every_injected_status_is_reported_as_itself() {
    // Each status is injected into a separate request, so that no error hides another.
    let all = || CompletionStatus::ALL.iter().filter(|status| **status != CompletionStatus::Ok);
    let pairs: Vec<String> = (1..).zip(all()).map(|(nth, one)| format!("{nth}:{}", one.code())).collect();
    scene(&[("SOFTEFA_INJECT", &pairs.join(","))], |mut scene, _| {
        let put = scene.write();
        for status in all() {
            assert_eq!(scene.status(&put), *status);
        }
        scene.first.execute(&put).unwrap();
    });
}
