//! Completion statuses: each test provokes one by its real cause.

#![allow(clippy::unwrap_used)]

mod device_support;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

struct Scene {
    a: Side,
    b: Side,
    to_b: Peer,
    from: Buffer,
    to: Buffer,
}

fn scene() -> Scene {
    scene_with(|_| {}, |_| {})
}

fn scene_with(config: impl Fn(&mut AdapterConfig), change: impl Fn(&mut QueuePairAttr)) -> Scene {
    let (a, b, to_b, _) = pair_with(config, change);
    let from = Buffer::new(&a, 4096, Access::ALL);
    let to = Buffer::new(&b, 4096, Access::ALL);
    from.fill(|_| 0xaa);
    Scene { a, b, to_b, from, to }
}

impl Scene {
    fn write_request(&self) -> Request {
        write(1, self.to_b, self.to.remote(0), self.from.segment(0, 64))
    }

    /// Posts a write after `change` changed its parts. Returns its status. Asserts that it moved no bytes and
    /// broke no rule.
    #[track_caller]
    fn failed_write(
        &mut self,
        change: impl Fn(&mut Peer, &mut RemoteMemory, &mut Segment),
    ) -> CompletionStatus {
        let (mut peer, mut remote, mut local) = (self.to_b, self.to.remote(0), self.from.segment(0, 64));
        change(&mut peer, &mut remote, &mut local);
        let status = self.a.run(&write(1, peer, remote, local));
        assert_eq!(self.to.bytes(), [0; 4096]);
        assert_eq!(self.a.rules(), []);
        status
    }
}

// Local memory.

#[test]
fn an_unknown_lkey_is_an_invalid_local_key_and_the_queue_pair_stays_usable() {
    let mut scene = scene();
    let status = scene.failed_write(|_, _, local| local.key = LocalKey::new(0xff_ffff).unwrap());
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
    assert_eq!(scene.a.run(&scene.write_request()), CompletionStatus::Ok);
}

#[test]
fn an_rkey_used_as_lkey_is_an_invalid_local_key() {
    let mut scene = scene();
    let wrong = LocalKey::new(scene.from.keys.remote.get() & 0xff_ffff).unwrap();
    assert_eq!(scene.failed_write(|_, _, local| local.key = wrong), CompletionStatus::InvalidLocalKey);
}

#[test]
fn a_deregistered_lkey_stays_invalid_after_its_slot_is_reused() {
    let mut scene = scene_with(|config| config.limits.max_mr = 1, |_| {});
    let write_request = scene.write_request();
    scene.a.adapter.deregister_memory(scene.from.keys.local).unwrap();
    assert_eq!(scene.a.run(&write_request), CompletionStatus::InvalidLocalKey);
    let second = Buffer::new(&scene.a, 4096, Access::ALL);
    assert_eq!(second.keys.local.get() & 0xffff, scene.from.keys.local.get() & 0xffff);
    assert_eq!(scene.a.run(&write_request), CompletionStatus::InvalidLocalKey);
}

#[test]
fn local_memory_that_begins_before_its_region_is_an_invalid_local_key() {
    let status = scene().failed_write(|_, _, local| local.address -= 1);
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn local_memory_that_ends_after_its_region_is_an_invalid_local_key() {
    let status = scene().failed_write(|_, _, local| local.address += 4096 - 63);
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn local_memory_whose_end_wraps_is_an_invalid_local_key() {
    let status = scene().failed_write(|_, _, local| local.address = u64::MAX - 8);
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn an_lkey_of_another_domain_is_an_invalid_local_key() {
    let mut scene = scene();
    let pd = scene.a.adapter.allocate_domain().unwrap();
    let other = Buffer::in_domain(&scene.a.adapter, pd, 64, Access::ALL);
    let status = scene.failed_write(|_, _, local| *local = other.segment(0, 64));
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn a_read_into_memory_that_is_not_writable_is_an_invalid_local_key() {
    let mut scene = scene();
    let read_only = Buffer::new(&scene.a, 64, Access::LOCAL_READ);
    let get = read(1, scene.to_b, scene.to.remote(0), read_only.segment(0, 64));
    assert_eq!(scene.a.run(&get), CompletionStatus::InvalidLocalKey);
}

#[test]
fn a_bad_lkey_in_the_second_segment_of_a_message_is_an_invalid_local_key() {
    let mut scene = scene();
    let bad = Segment { key: LocalKey::new(0xff_ffff).unwrap(), ..scene.from.segment(0, 8) };
    let message = send(1, scene.to_b, &[scene.from.segment(0, 8), bad]);
    assert_eq!(scene.a.run(&message), CompletionStatus::InvalidLocalKey);
}

// Lengths.

#[test]
fn a_message_one_byte_too_long_is_a_bad_length() {
    let mut scene = scene();
    let from = Buffer::new(&scene.a, 8929, Access::LOCAL_READ);
    let message = send(1, scene.to_b, &[from.segment(0, 8929)]);
    assert_eq!(scene.a.run(&message), CompletionStatus::BadLength);
}

#[test]
fn an_inline_message_one_byte_too_long_is_a_bad_length() {
    let mut scene = scene_with(|config| config.limits.max_msg_size = 16, |_| {});
    scene.b.post_receive(1, scene.to.segment(0, 32));
    assert_eq!(scene.a.run(&send_inline(1, scene.to_b, &[7; 17])), CompletionStatus::BadLength);
}

#[test]
fn a_write_one_byte_too_long_is_a_bad_length() {
    let mut scene = scene_with(|config| config.limits.max_rdma_size = 64, |_| {});
    assert_eq!(scene.failed_write(|_, _, local| local.length = 65), CompletionStatus::BadLength);
}

#[test]
fn more_inline_bytes_than_the_entry_holds_are_a_bad_length() {
    let mut scene = scene();
    let mut entry = scene.a.encode(&send_inline(1, scene.to_b, &[7; 32]));
    entry[6] = 33;
    assert_eq!(scene.a.run_bytes(&entry), CompletionStatus::BadLength);
}

#[test]
fn a_message_of_three_segments_is_a_bad_length() {
    let mut scene = scene();
    let mut entry = scene.a.encode(&send(1, scene.to_b, &[scene.from.segment(0, 8); 2]));
    entry[6] = 3;
    assert_eq!(scene.a.run_bytes(&entry), CompletionStatus::BadLength);
}

// Operations.

#[test]
fn an_unknown_operation_is_unsupported() {
    let mut scene = scene();
    let mut entry = scene.a.encode(&scene.write_request());
    entry[2] = (entry[2] & !0xf) | 7;
    assert_eq!(scene.a.run_bytes(&entry), CompletionStatus::UnsupportedOperation);
}

#[test]
fn an_inline_write_in_a_64_byte_entry_is_unsupported() {
    let mut scene = scene();
    let mut entry = scene.a.encode(&scene.write_request());
    entry[2] |= 0x20;
    assert_eq!(scene.a.run_bytes(&entry), CompletionStatus::UnsupportedOperation);
}

#[test]
fn an_operation_without_its_capability_is_unsupported() {
    let mut scene = scene_with(
        |config| {
            config.capabilities.rdma_read = false;
            config.capabilities.rdma_write = false;
        },
        |_| {},
    );
    let get = read(1, scene.to_b, scene.to.remote(0), scene.from.segment(0, 64));
    assert_eq!(scene.a.run(&get), CompletionStatus::UnsupportedOperation);
    assert_eq!(scene.failed_write(|_, _, _| {}), CompletionStatus::UnsupportedOperation);
}

// The peer.

#[test]
fn an_unknown_address_handle_is_invalid() {
    let status = scene().failed_write(|peer, _, _| peer.address_handle = AddressHandle::new(999));
    assert_eq!(status, CompletionStatus::InvalidAddressHandle);
}

#[test]
fn a_destroyed_address_handle_is_invalid() {
    let mut scene = scene();
    scene.a.adapter.destroy_address_handle(scene.to_b.address_handle).unwrap();
    assert_eq!(scene.failed_write(|_, _, _| {}), CompletionStatus::InvalidAddressHandle);
}

#[test]
fn an_address_handle_of_another_domain_is_invalid() {
    let mut scene = scene();
    let pd = scene.a.adapter.allocate_domain().unwrap();
    let other = scene.a.adapter.create_address_handle(pd, scene.b.adapter.gid()).unwrap();
    let status = scene.failed_write(|peer, _, _| peer.address_handle = other);
    assert_eq!(status, CompletionStatus::InvalidAddressHandle);
}

#[test]
fn an_adapter_that_never_existed_is_unreachable() {
    let mut scene = scene();
    let unused = scene.a.adapter.create_address_handle(scene.a.pd, Gid::link_local(77)).unwrap();
    let status = scene.failed_write(|peer, _, _| peer.address_handle = unused);
    assert_eq!(status, CompletionStatus::UnreachableRemote);
}

#[test]
fn an_adapter_that_was_reached_and_left_is_unresponsive() {
    let Scene { mut a, b, to_b, from, to } = scene();
    let write_request = write(1, to_b, to.remote(0), from.segment(0, 64));
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    drop(b);
    assert_eq!(a.run(&write_request), CompletionStatus::UnresponsiveRemote);
}

#[test]
fn an_adapter_that_joins_after_its_handle_was_created_is_reached() {
    let network = Network::new();
    let mut a = Side::new(&adapter(&network, 1));
    let early = a.adapter.create_address_handle(a.pd, Gid::link_local(2)).unwrap();
    let mut b = Side::new(&adapter(&network, 2));
    b.post_receive(1, Segment::default());
    let peer = Peer { address_handle: early, queue_pair: b.qp.number, queue_key: b.qp.queue_key };
    assert_eq!(a.run(&send_inline(1, peer, b"")), CompletionStatus::Ok);
}

#[test]
fn a_target_without_a_handle_for_the_writer_reports_an_unknown_peer() {
    let network = Network::new();
    let (mut a, b) = (Side::new(&adapter(&network, 1)), Side::new(&adapter(&network, 2)));
    let to_b = a.handle(&b);
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    let write_request = write(1, to_b, to.remote(0), from.segment(0, 64));
    assert_eq!(a.run(&write_request), CompletionStatus::UnknownPeer);

    let known = b.handle(&a).address_handle;
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    b.adapter.destroy_address_handle(known).unwrap();
    assert_eq!(a.run(&write_request), CompletionStatus::UnknownPeer);
}

#[test]
fn an_unknown_queue_pair_is_a_bad_remote_queue_pair() {
    let status = scene().failed_write(|peer, _, _| peer.queue_pair = QueuePairNumber::new(999));
    assert_eq!(status, CompletionStatus::RemoteBadQueuePair);
}

#[test]
fn a_wrong_queue_key_is_a_bad_remote_queue_pair() {
    let status = scene().failed_write(|peer, _, _| peer.queue_key = QueueKey::new(1));
    assert_eq!(status, CompletionStatus::RemoteBadQueuePair);
}

#[test]
fn a_queue_pair_in_the_error_state_is_a_bad_remote_queue_pair() {
    let mut scene = scene();
    scene.b.adapter.set_queue_pair_state(scene.b.qp.number, QueuePairState::Error).unwrap();
    assert_eq!(scene.failed_write(|_, _, _| {}), CompletionStatus::RemoteBadQueuePair);
}

// Remote memory.

#[test]
fn an_unknown_rkey_is_a_bad_remote_address() {
    let status = scene().failed_write(|_, remote, _| remote.key = RemoteKey::new(0xffff_fff0));
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

#[test]
fn an_lkey_used_as_rkey_is_a_bad_remote_address() {
    let mut scene = scene();
    let wrong = RemoteKey::new(scene.to.keys.local.get());
    assert_eq!(scene.failed_write(|_, remote, _| remote.key = wrong), CompletionStatus::RemoteBadAddress);
}

#[test]
fn a_deregistered_rkey_is_a_bad_remote_address() {
    let mut scene = scene();
    scene.b.adapter.deregister_memory(scene.to.keys.local).unwrap();
    assert_eq!(scene.failed_write(|_, _, _| {}), CompletionStatus::RemoteBadAddress);
}

#[test]
fn remote_memory_that_ends_after_its_region_is_a_bad_remote_address() {
    let status = scene().failed_write(|_, remote, _| remote.address += 4096 - 63);
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

#[test]
fn remote_memory_that_may_not_be_written_is_a_bad_remote_address() {
    let mut scene = scene();
    let read_only = Buffer::new(&scene.b, 64, Access::REMOTE_READ | Access::LOCAL_WRITE);
    let status = scene.failed_write(|_, remote, _| *remote = read_only.remote(0));
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

#[test]
fn remote_memory_that_may_not_be_read_is_a_bad_remote_address() {
    let mut scene = scene();
    let write_only = Buffer::new(&scene.b, 64, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let get = read(1, scene.to_b, write_only.remote(0), scene.from.segment(0, 64));
    assert_eq!(scene.a.run(&get), CompletionStatus::RemoteBadAddress);
}

#[test]
fn remote_memory_of_another_domain_is_a_bad_remote_address() {
    let mut scene = scene();
    let pd = scene.b.adapter.allocate_domain().unwrap();
    let other = Buffer::in_domain(&scene.b.adapter, pd, 64, Access::ALL);
    let status = scene.failed_write(|_, remote, _| *remote = other.remote(0));
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

// Receives.

#[test]
fn a_message_without_retries_fails_if_no_receive_is_posted() {
    let mut scene = scene_with(|_| {}, |attr| attr.rnr_retry = RnrRetry::Times(0));
    let message = send_inline(1, scene.to_b, b"x");
    assert_eq!(scene.a.run(&message), CompletionStatus::ReceiverNotReady);
}

#[test]
fn a_message_with_three_retries_is_tried_four_times() {
    let mut scene = scene_with(|_| {}, |attr| attr.rnr_retry = RnrRetry::Times(3));
    let message = send_inline(1, scene.to_b, b"x");
    assert_eq!(scene.a.run(&message), CompletionStatus::ReceiverNotReady);
    until("the count", || (scene.a.adapter.statistics().rnr_retries == 4).then_some(()));
}

#[test]
fn a_write_with_immediate_moves_nothing_if_no_receive_is_posted() {
    let mut scene = scene_with(|_| {}, |attr| attr.rnr_retry = RnrRetry::Times(0));
    let mut write_request = scene.write_request();
    write_request.immediate = Some(1);
    assert_eq!(scene.a.run(&write_request), CompletionStatus::ReceiverNotReady);
    assert_eq!(scene.to.bytes(), [0; 4096]);
}

#[test]
fn a_receive_that_is_too_short_is_an_error_on_both_sides() {
    let mut scene = scene();
    scene.b.post_receive(6, scene.to.segment(0, 7));
    let message = send_inline(1, scene.to_b, b"8 bytes!");
    assert_eq!(scene.a.run(&message), CompletionStatus::RemoteBadLength);
    let completion = scene.b.completion();
    assert_eq!((completion.id.get(), completion.status), (6, CompletionStatus::BadLength));
    assert_eq!(scene.to.bytes(), [0; 4096]);
}

#[test]
fn a_receive_with_a_bad_lkey_is_an_error_on_both_sides() {
    let mut scene = scene();
    let bad = Segment { key: LocalKey::new(0xff_ffff).unwrap(), ..scene.to.segment(0, 64) };
    scene.b.post_receive(6, bad);
    assert_eq!(scene.a.run(&send_inline(1, scene.to_b, b"x")), CompletionStatus::RemoteAbort);
    assert_eq!(scene.b.completion().status, CompletionStatus::InvalidLocalKey);
}

// Memory that is registered and cannot be reached.

struct Unreachable;

impl Memory for Unreachable {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault { address, length: into.len() as u64 })
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault { address, length: from.len() as u64 })
    }
}

fn register_unreachable(side: &Side) -> MemoryKeys {
    let memory = std::sync::Arc::new(Unreachable);
    let attr = MemoryRegionAttr { pd: side.pd, address: 0, length: 4096, access: Access::ALL, memory };
    side.adapter.register_memory(attr).unwrap()
}

#[test]
fn unreachable_memory_has_the_status_of_a_bad_key() {
    let mut scene = scene();
    let (local_keys, remote_keys) = (register_unreachable(&scene.a), register_unreachable(&scene.b));
    let local = Segment { address: 0, length: 64, key: local_keys.local };
    let remote = RemoteMemory { address: 0, key: remote_keys.remote };
    let status = |scene: &mut Scene, remote, local| {
        (scene.a.run(&write(1, scene.to_b, remote, local)), scene.a.run(&read(2, scene.to_b, remote, local)))
    };
    let (here, there) = (scene.from.segment(0, 64), scene.to.remote(0));
    let bad_key = CompletionStatus::InvalidLocalKey;
    let bad_address = CompletionStatus::RemoteBadAddress;
    assert_eq!(status(&mut scene, there, local), (bad_key, bad_key));
    assert_eq!(status(&mut scene, remote, here), (bad_address, bad_address));
}

// Closing.

#[test]
fn destroying_a_queue_pair_flushes_requests_in_flight() {
    let mut scene = scene();
    let write_request = scene.write_request();
    scene.a.adapter.hold(true);
    for _ in 0..3 {
        scene.a.post(&write_request);
    }
    scene.a.await_fetched(3);
    // The engine may not have polled the doorbell of this one.
    scene.a.post(&write_request);
    scene.a.adapter.destroy_queue_pair(scene.a.qp.number).unwrap();
    for _ in 0..4 {
        let completion = scene.a.poll().expect("flushed before destroy returned");
        assert_eq!((completion.id, completion.status), (write_request.id, CompletionStatus::Flushed));
    }
    assert_eq!(scene.a.poll(), None);
    assert_eq!(scene.to.bytes(), [0; 4096]);
}

#[test]
fn destroying_a_queue_pair_flushes_a_message_that_waits_for_a_receive() {
    let mut scene = scene();
    scene.a.post(&send_inline(1, scene.to_b, b""));
    until("a retry", || (scene.a.adapter.statistics().rnr_retries > 0).then_some(()));
    scene.a.adapter.destroy_queue_pair(scene.a.qp.number).unwrap();
    assert_eq!(scene.a.poll().map(|completion| completion.status), Some(CompletionStatus::Flushed));
}

#[test]
fn destroying_a_queue_pair_flushes_its_receives() {
    let mut scene = scene();
    scene.b.post_receive(1, Segment::default());
    scene.b.post_receive(2, Segment::default());
    scene.b.adapter.destroy_queue_pair(scene.b.qp.number).unwrap();
    for id in 1..3 {
        let completion = scene.b.poll().expect("flushed before destroy returned");
        assert_eq!((completion.id.get(), completion.status), (id, CompletionStatus::Flushed));
        assert!(matches!(completion.kind, CompletionKind::Receive(_)));
    }
    // Receives that a program posts ahead and never uses are no errors.
    let statistics = scene.b.adapter.statistics();
    assert_eq!((statistics.flushed, statistics.errors), (2, 0), "{statistics:?}");
}

#[test]
fn requests_posted_in_the_error_state_are_flushed() {
    let mut scene = scene();
    scene.a.adapter.set_queue_pair_state(scene.a.qp.number, QueuePairState::Error).unwrap();
    let write_request = scene.write_request();
    assert_eq!(scene.a.run(&write_request), CompletionStatus::Flushed);
    assert_eq!(scene.a.rules(), []);
}
