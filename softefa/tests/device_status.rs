//! Every status by its real cause.

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
    fn put(&self) -> Request {
        write(1, self.to_b, self.to.remote(0), self.from.segment(0, 64))
    }

    /// A write whose parts `change` changes: how it ends, and that it moved and broke nothing.
    #[track_caller]
    fn fails(&mut self, change: impl Fn(&mut Peer, &mut RemoteMemory, &mut Segment)) -> CompletionStatus {
        let (mut peer, mut remote, mut local) = (self.to_b, self.to.remote(0), self.from.segment(0, 64));
        change(&mut peer, &mut remote, &mut local);
        let status = self.a.run(&write(1, peer, remote, local));
        assert_eq!(self.to.bytes(), [0; 4096]);
        assert_eq!(self.a.rules(), []);
        status
    }
}

#[test]
fn an_error_leaves_the_queue_pair_usable() {
    let mut scene = scene();
    scene.fails(|_, _, local| local.key = LocalKey::new(0xff_ffff).unwrap());
    assert_eq!(scene.a.run(&scene.put()), CompletionStatus::Ok);
}

// Local memory.

#[test]
fn an_unknown_lkey() {
    let status = scene().fails(|_, _, local| local.key = LocalKey::new(0xff_ffff).unwrap());
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn an_rkey_as_lkey() {
    let mut scene = scene();
    let wrong = LocalKey::new(scene.from.keys.remote.get() & 0xff_ffff).unwrap();
    assert_eq!(scene.fails(|_, _, local| local.key = wrong), CompletionStatus::InvalidLocalKey);
}

#[test]
fn an_lkey_after_deregistration_also_once_its_slot_is_used_again() {
    let mut scene = scene_with(|config| config.limits.max_mr = 1, |_| {});
    let put = scene.put();
    scene.a.adapter.deregister_memory(scene.from.keys.local).unwrap();
    assert_eq!(scene.a.run(&put), CompletionStatus::InvalidLocalKey);
    let again = Buffer::new(&scene.a, 4096, Access::ALL);
    assert_eq!(again.keys.local.get() & 0xffff, scene.from.keys.local.get() & 0xffff);
    assert_eq!(scene.a.run(&put), CompletionStatus::InvalidLocalKey);
}

#[test]
fn local_memory_that_begins_before_its_region() {
    let status = scene().fails(|_, _, local| local.address -= 1);
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn local_memory_that_ends_after_its_region() {
    let status = scene().fails(|_, _, local| local.address += 4096 - 63);
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn local_memory_whose_end_wraps() {
    let status = scene().fails(|_, _, local| local.address = u64::MAX - 8);
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn an_lkey_of_another_domain() {
    let mut scene = scene();
    let pd = scene.a.adapter.allocate_domain().unwrap();
    let other = Buffer::in_domain(&scene.a.adapter, pd, 64, Access::ALL);
    let status = scene.fails(|_, _, local| *local = other.segment(0, 64));
    assert_eq!(status, CompletionStatus::InvalidLocalKey);
}

#[test]
fn a_read_into_memory_that_is_not_writable() {
    let mut scene = scene();
    let fixed = Buffer::new(&scene.a, 64, Access::LOCAL_READ);
    let get = read(1, scene.to_b, scene.to.remote(0), fixed.segment(0, 64));
    assert_eq!(scene.a.run(&get), CompletionStatus::InvalidLocalKey);
}

#[test]
fn a_bad_lkey_in_the_second_segment_of_a_message() {
    let mut scene = scene();
    let bad = Segment { key: LocalKey::new(0xff_ffff).unwrap(), ..scene.from.segment(0, 8) };
    let message = send(1, scene.to_b, &[scene.from.segment(0, 8), bad]);
    assert_eq!(scene.a.run(&message), CompletionStatus::InvalidLocalKey);
}

// Lengths.

#[test]
fn a_message_one_byte_too_long() {
    let mut scene = scene();
    let from = Buffer::new(&scene.a, 8929, Access::LOCAL_READ);
    let message = send(1, scene.to_b, &[from.segment(0, 8929)]);
    assert_eq!(scene.a.run(&message), CompletionStatus::BadLength);
}

#[test]
fn a_write_one_byte_too_long() {
    let mut scene = scene_with(|config| config.limits.max_rdma_size = 64, |_| {});
    assert_eq!(scene.fails(|_, _, local| local.length = 65), CompletionStatus::BadLength);
}

#[test]
fn inline_bytes_that_the_entry_cannot_hold() {
    let mut scene = scene();
    let mut entry = scene.a.encode(&send_inline(1, scene.to_b, &[7; 32]));
    entry[6] = 33;
    assert_eq!(scene.a.run_bytes(&entry), CompletionStatus::BadLength);
}

#[test]
fn a_message_of_three_segments() {
    let mut scene = scene();
    let mut entry = scene.a.encode(&send(1, scene.to_b, &[scene.from.segment(0, 8); 2]));
    entry[6] = 3;
    assert_eq!(scene.a.run_bytes(&entry), CompletionStatus::BadLength);
}

// Operations.

#[test]
fn an_operation_that_does_not_exist() {
    let mut scene = scene();
    let mut entry = scene.a.encode(&scene.put());
    entry[2] = (entry[2] & !0xf) | 7;
    assert_eq!(scene.a.run_bytes(&entry), CompletionStatus::UnsupportedOperation);
}

#[test]
fn an_inline_write_in_a_64_byte_entry() {
    let mut scene = scene();
    let mut entry = scene.a.encode(&scene.put());
    entry[2] |= 0x20;
    assert_eq!(scene.a.run_bytes(&entry), CompletionStatus::UnsupportedOperation);
}

#[test]
fn an_operation_that_the_adapter_lacks() {
    let mut scene = scene_with(
        |config| {
            config.capabilities.rdma_read = false;
            config.capabilities.rdma_write = false;
        },
        |_| {},
    );
    let get = read(1, scene.to_b, scene.to.remote(0), scene.from.segment(0, 64));
    assert_eq!(scene.a.run(&get), CompletionStatus::UnsupportedOperation);
    assert_eq!(scene.fails(|_, _, _| {}), CompletionStatus::UnsupportedOperation);
}

// The peer.

#[test]
fn an_address_handle_that_does_not_exist() {
    let status = scene().fails(|peer, _, _| peer.address_handle = AddressHandle::new(999));
    assert_eq!(status, CompletionStatus::InvalidAddressHandle);
}

#[test]
fn an_address_handle_that_was_destroyed() {
    let mut scene = scene();
    scene.a.adapter.destroy_address_handle(scene.to_b.address_handle).unwrap();
    assert_eq!(scene.fails(|_, _, _| {}), CompletionStatus::InvalidAddressHandle);
}

#[test]
fn an_address_handle_of_another_domain() {
    let mut scene = scene();
    let pd = scene.a.adapter.allocate_domain().unwrap();
    let other = scene.a.adapter.create_address_handle(pd, scene.b.adapter.gid()).unwrap();
    let status = scene.fails(|peer, _, _| peer.address_handle = other);
    assert_eq!(status, CompletionStatus::InvalidAddressHandle);
}

#[test]
fn an_adapter_that_never_was() {
    let mut scene = scene();
    let nobody = scene.a.adapter.create_address_handle(scene.a.pd, Gid::link_local(77)).unwrap();
    let status = scene.fails(|peer, _, _| peer.address_handle = nobody);
    assert_eq!(status, CompletionStatus::UnreachableRemote);
}

#[test]
fn an_adapter_that_answered_and_is_gone() {
    let Scene { mut a, b, to_b, from, to } = scene();
    let put = write(1, to_b, to.remote(0), from.segment(0, 64));
    assert_eq!(a.run(&put), CompletionStatus::Ok);
    drop(b);
    assert_eq!(a.run(&put), CompletionStatus::UnresponsiveRemote);
}

#[test]
fn an_adapter_that_came_after_its_handle_was_made() {
    let network = Network::new();
    let mut a = Side::new(&adapter(&network, 1));
    let early = a.adapter.create_address_handle(a.pd, Gid::link_local(2)).unwrap();
    let mut b = Side::new(&adapter(&network, 2));
    b.post_receive(1, Segment::default());
    let peer = Peer { address_handle: early, queue_pair: b.qp.number, queue_key: b.qp.queue_key };
    assert_eq!(a.run(&send_inline(1, peer, b"")), CompletionStatus::Ok);
}

#[test]
fn a_target_without_a_handle_for_the_writer() {
    let network = Network::new();
    let (mut a, b) = (Side::new(&adapter(&network, 1)), Side::new(&adapter(&network, 2)));
    let to_b = a.handle(&b);
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    let put = write(1, to_b, to.remote(0), from.segment(0, 64));
    assert_eq!(a.run(&put), CompletionStatus::UnknownPeer);

    let known = b.handle(&a).address_handle;
    assert_eq!(a.run(&put), CompletionStatus::Ok);
    b.adapter.destroy_address_handle(known).unwrap();
    assert_eq!(a.run(&put), CompletionStatus::UnknownPeer);
}

#[test]
fn a_queue_pair_that_does_not_exist() {
    let status = scene().fails(|peer, _, _| peer.queue_pair = QueuePairNumber::new(999));
    assert_eq!(status, CompletionStatus::RemoteBadQueuePair);
}

#[test]
fn a_queue_key_that_is_not_the_targets() {
    let status = scene().fails(|peer, _, _| peer.queue_key = QueueKey::new(1));
    assert_eq!(status, CompletionStatus::RemoteBadQueuePair);
}

#[test]
fn a_queue_pair_in_the_error_state() {
    let mut scene = scene();
    scene.b.adapter.set_queue_pair_state(scene.b.qp.number, QueuePairState::Error).unwrap();
    assert_eq!(scene.fails(|_, _, _| {}), CompletionStatus::RemoteBadQueuePair);
}

// Remote memory.

#[test]
fn an_unknown_rkey() {
    let status = scene().fails(|_, remote, _| remote.key = RemoteKey::new(0xffff_fff0));
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

#[test]
fn an_lkey_as_rkey() {
    let mut scene = scene();
    let wrong = RemoteKey::new(scene.to.keys.local.get());
    assert_eq!(scene.fails(|_, remote, _| remote.key = wrong), CompletionStatus::RemoteBadAddress);
}

#[test]
fn an_rkey_after_deregistration() {
    let mut scene = scene();
    scene.b.adapter.deregister_memory(scene.to.keys.local).unwrap();
    assert_eq!(scene.fails(|_, _, _| {}), CompletionStatus::RemoteBadAddress);
}

#[test]
fn remote_memory_that_ends_after_its_region() {
    let status = scene().fails(|_, remote, _| remote.address += 4096 - 63);
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

#[test]
fn remote_memory_that_may_not_be_written() {
    let mut scene = scene();
    let fixed = Buffer::new(&scene.b, 64, Access::REMOTE_READ | Access::LOCAL_WRITE);
    let status = scene.fails(|_, remote, _| *remote = fixed.remote(0));
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

#[test]
fn remote_memory_that_may_not_be_read() {
    let mut scene = scene();
    let hidden = Buffer::new(&scene.b, 64, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let get = read(1, scene.to_b, hidden.remote(0), scene.from.segment(0, 64));
    assert_eq!(scene.a.run(&get), CompletionStatus::RemoteBadAddress);
}

#[test]
fn remote_memory_of_another_domain_than_the_targets() {
    let mut scene = scene();
    let pd = scene.b.adapter.allocate_domain().unwrap();
    let other = Buffer::in_domain(&scene.b.adapter, pd, 64, Access::ALL);
    let status = scene.fails(|_, remote, _| *remote = other.remote(0));
    assert_eq!(status, CompletionStatus::RemoteBadAddress);
}

// Receives.

#[test]
fn no_receive_and_no_retry() {
    let mut scene = scene_with(|_| {}, |attr| attr.rnr_retry = RnrRetry::Times(0));
    let message = send_inline(1, scene.to_b, b"x");
    assert_eq!(scene.a.run(&message), CompletionStatus::ReceiverNotReady);
}

#[test]
fn no_receive_and_three_retries() {
    let mut scene = scene_with(|_| {}, |attr| attr.rnr_retry = RnrRetry::Times(3));
    let message = send_inline(1, scene.to_b, b"x");
    assert_eq!(scene.a.run(&message), CompletionStatus::ReceiverNotReady);
    until("the count", || (scene.a.adapter.statistics().rnr_retries == 4).then_some(()));
}

#[test]
fn no_receive_for_a_write_with_immediate() {
    let mut scene = scene_with(|_| {}, |attr| attr.rnr_retry = RnrRetry::Times(0));
    let mut put = scene.put();
    put.immediate = Some(1);
    assert_eq!(scene.a.run(&put), CompletionStatus::ReceiverNotReady);
    assert_eq!(scene.to.bytes(), [0; 4096]);
}

#[test]
fn a_receive_that_is_too_short() {
    let mut scene = scene();
    scene.b.post_receive(6, scene.to.segment(0, 7));
    let message = send_inline(1, scene.to_b, b"8 bytes!");
    assert_eq!(scene.a.run(&message), CompletionStatus::RemoteBadLength);
    let completion = scene.b.completion();
    assert_eq!((completion.id.get(), completion.status), (6, CompletionStatus::BadLength));
    assert_eq!(scene.to.bytes(), [0; 4096]);
}

#[test]
fn a_receive_whose_own_lkey_is_bad() {
    let mut scene = scene();
    let bad = Segment { key: LocalKey::new(0xff_ffff).unwrap(), ..scene.to.segment(0, 64) };
    scene.b.post_receive(6, bad);
    assert_eq!(scene.a.run(&send_inline(1, scene.to_b, b"x")), CompletionStatus::RemoteAbort);
    assert_eq!(scene.b.completion().status, CompletionStatus::InvalidLocalKey);
}

// Memory that is registered and cannot be reached.

struct Gone;

impl Memory for Gone {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault { address, length: into.len() as u64 })
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault { address, length: from.len() as u64 })
    }
}

fn gone(side: &Side) -> MemoryKeys {
    let memory = std::sync::Arc::new(Gone);
    let attr = MemoryRegionAttr { pd: side.pd, address: 0, length: 4096, access: Access::ALL, memory };
    side.adapter.register_memory(attr).unwrap()
}

#[test]
fn memory_that_is_gone_gives_what_a_bad_key_gives() {
    let mut scene = scene();
    let (near, far) = (gone(&scene.a), gone(&scene.b));
    let local = Segment { address: 0, length: 64, key: near.local };
    let remote = RemoteMemory { address: 0, key: far.remote };
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
fn requests_in_flight_are_flushed_when_their_queue_pair_goes() {
    let mut scene = scene();
    let put = scene.put();
    scene.a.adapter.hold(true);
    for _ in 0..3 {
        scene.a.post(&put);
    }
    scene.a.await_fetched(3);
    // And one whose doorbell nobody may have seen yet.
    scene.a.post(&put);
    scene.a.adapter.destroy_queue_pair(scene.a.qp.number).unwrap();
    for _ in 0..4 {
        let completion = scene.a.poll().expect("flushed before destroy returned");
        assert_eq!((completion.id, completion.status), (put.id, CompletionStatus::Flushed));
    }
    assert_eq!(scene.a.poll(), None);
    assert_eq!(scene.to.bytes(), [0; 4096]);
}

#[test]
fn a_message_that_waits_for_a_receive_is_flushed() {
    let mut scene = scene();
    scene.a.post(&send_inline(1, scene.to_b, b""));
    until("a retry", || (scene.a.adapter.statistics().rnr_retries > 0).then_some(()));
    scene.a.adapter.destroy_queue_pair(scene.a.qp.number).unwrap();
    assert_eq!(scene.a.poll().map(|completion| completion.status), Some(CompletionStatus::Flushed));
}

#[test]
fn receives_are_flushed_when_their_queue_pair_goes() {
    let mut scene = scene();
    scene.b.post_receive(1, Segment::default());
    scene.b.post_receive(2, Segment::default());
    scene.b.adapter.destroy_queue_pair(scene.b.qp.number).unwrap();
    for id in 1..3 {
        let completion = scene.b.poll().expect("flushed before destroy returned");
        assert_eq!((completion.id.get(), completion.status), (id, CompletionStatus::Flushed));
        assert!(matches!(completion.kind, CompletionKind::Receive(_)));
    }
}

#[test]
fn requests_posted_in_the_error_state_are_flushed() {
    let mut scene = scene();
    scene.a.adapter.set_queue_pair_state(scene.a.qp.number, QueuePairState::Error).unwrap();
    let put = scene.put();
    assert_eq!(scene.a.run(&put), CompletionStatus::Flushed);
    assert_eq!(scene.a.rules(), []);
}
