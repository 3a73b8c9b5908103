//! Clients that ask for too much: long requests, completions that nobody reads, and keys that somebody guesses.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// Memory of a client whose reads are slow until `is_free` is set, and whose bytes nobody keeps.
#[derive(Default)]
struct SlowMemory {
    read: AtomicU64,
    is_free: AtomicBool,
    client: u64,
}

impl Memory for SlowMemory {
    fn read(&self, _address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        if !self.is_free.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.read.fetch_add(into.len() as u64, Ordering::AcqRel);
        Ok(())
    }

    fn write(&self, _address: u64, _from: &[u8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn client(&self) -> u64 {
        self.client
    }
}

#[test]
fn no_control_call_waits_for_the_end_of_a_long_request() {
    const BYTES: u64 = 1 << 30;
    let (mut a, b, to_b, _) = pair();
    let memory = Arc::new(SlowMemory::default());
    let region = |side: &Side| {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let attr =
            MemoryRegionAttr { pd: side.pd, address: 0, length: BYTES, access, memory: memory.clone() };
        side.adapter.register_memory(attr).unwrap()
    };
    let (from, to) = (region(&a), region(&b));
    let remote = RemoteMemory { address: 0, key: to.remote };
    a.post(&write(1, to_b, remote, Segment { address: 0, length: BYTES as u32, key: from.local }));
    until("the first bytes", || (memory.read.load(Ordering::Acquire) > 0).then_some(()));
    // The adapter that executes the request, and another.
    for side in [&a, &b] {
        side.adapter.allocate_domain().unwrap();
        let other = region(side);
        side.adapter.deregister_memory(other.local).unwrap();
        assert!(memory.read.load(Ordering::Acquire) < BYTES, "a call waited for the request's end");
    }
    memory.is_free.store(true, Ordering::Release);
    assert_eq!(a.completion().status, CompletionStatus::Ok);
    assert_eq!(memory.read.load(Ordering::Acquire), BYTES);
    assert_eq!(a.adapter.statistics().bytes, BYTES);
}

#[test]
fn a_long_request_fails_when_its_memory_is_deregistered_and_flushes_when_its_queue_pair_ends() {
    const BYTES: u64 = 1 << 30;
    for deregister in [true, false] {
        let (mut a, b, to_b, _) = pair();
        let memory = Arc::new(SlowMemory::default());
        let attr = |side: &Side| MemoryRegionAttr {
            pd: side.pd,
            address: 0,
            length: BYTES,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            memory: memory.clone(),
        };
        let from = a.adapter.register_memory(attr(&a)).unwrap();
        let to = b.adapter.register_memory(attr(&b)).unwrap();
        let remote = RemoteMemory { address: 0, key: to.remote };
        let request = write(1, to_b, remote, Segment { address: 0, length: BYTES as u32, key: from.local });
        a.post(&request);
        until("the first bytes", || (memory.read.load(Ordering::Acquire) > 0).then_some(()));
        let expected = if deregister {
            b.adapter.deregister_memory(to.local).unwrap();
            CompletionStatus::RemoteBadAddress
        } else {
            a.adapter.destroy_queue_pair(a.qp.number).unwrap();
            CompletionStatus::Flushed
        };
        assert_eq!(a.completion().status, expected);
        assert!(memory.read.load(Ordering::Acquire) < BYTES);
    }
}

#[test]
fn a_long_write_with_immediate_completes_the_receive_after_its_last_byte() {
    const BYTES: usize = (2 << 20) + 64;
    let (mut a, mut b, to_b, _) = pair_with(|_| {}, |attr| attr.rq_depth = 4);
    let from = Buffer::new(&a, BYTES, Access::LOCAL_READ);
    let to = Buffer::new(&b, BYTES, Access::REMOTE_WRITE);
    from.fill(|at| (at * 7 + at / 251) as u8);
    let mut request = write(1, to_b, to.remote(0), from.segment(0, BYTES as u32));
    request.immediate = Some(9);
    a.post(&request);
    // Without a receive, the request waits.
    until("a retry", || (a.adapter.statistics().rnr_retries > 0).then_some(()));
    b.post_receive(3, to.segment(0, 0));
    let receive = b.completion();
    assert_eq!((receive.status, received(&receive).length), (CompletionStatus::Ok, BYTES as u32));
    assert_eq!(to.bytes(), from.bytes());
    assert_eq!(a.completion().status, CompletionStatus::Ok);
    assert_eq!(a.adapter.statistics().bytes, BYTES as u64);
}

#[test]
fn completions_that_nobody_reads_are_kept_up_to_a_bound() {
    let network = Network::new();
    let adapter = adapter(&network, 1);
    let pd = adapter.allocate_domain().unwrap();
    let attr = CompletionQueueAttr { entries: 1, ..CompletionQueueAttr::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    adapter.set_consumer_index(cq.number, 0).unwrap();
    let mut a = Side::on(&adapter, pd, cq.clone(), |attr| attr.sq_depth = 1024);
    let to_itself = a.handle(&a);
    let (from, to) = (Buffer::new(&a, 8, Access::LOCAL_READ), Buffer::new(&a, 8, Access::REMOTE_WRITE));
    for id in 0..1000 {
        a.post(&write(id, to_itself, to.remote(0), from.segment(0, 8)));
    }
    until("the completions", || (adapter.statistics().completions == 1000).then_some(()));
    let mut read = 0;
    while a.poll().is_some() {
        read += 1;
        adapter.set_consumer_index(cq.number, read).unwrap();
    }
    assert_eq!(read, 1 + 256);
}

#[test]
fn keys_are_random_unless_a_seed_is_given() {
    let key = |config: AdapterConfig| {
        let adapter = Adapter::new(&Network::new(), config).unwrap();
        let pd = adapter.allocate_domain().unwrap();
        let memory = Arc::new(SlowMemory::default());
        let attr = MemoryRegionAttr { pd, address: 0, length: 8, access: Access::REMOTE_READ, memory };
        adapter.register_memory(attr).unwrap().remote
    };
    let new = || AdapterConfig::new(Gid::link_local(1));
    let seeded = || new().with_variables(|name| (name == "SOFTEFA_SEED").then(|| "7".to_owned())).unwrap();
    assert_eq!(key(seeded()), key(seeded()));
    let random: Vec<_> = (0..4).map(|_| key(new().with_environment().unwrap())).collect();
    assert!(random.iter().any(|other| *other != random[0]), "{random:?}");
}

/// Queue pairs of other clients on both adapters: creates them, moves bytes in both directions, and destroys them.
fn work_beside(adapters: [&Arc<Adapter>; 2]) {
    for (adapter, other) in [(adapters[0], adapters[1]), (adapters[1], adapters[0])] {
        let client = |adapter| Side::with(adapter, |attr| attr.client = 8);
        let (mut own, to_other) = (client(adapter), client(other));
        let (peer, _back) = (own.handle(&to_other), to_other.handle(&own));
        let from = Buffer::new(&own, 8, Access::LOCAL_READ);
        let to = Buffer::new(&to_other, 8, Access::REMOTE_WRITE);
        from.fill(|at| at as u8 + 1);
        assert_eq!(own.run(&write(1, peer, to.remote(0), from.segment(0, 8))), CompletionStatus::Ok);
        assert_eq!(to.bytes(), from.bytes());
        adapter.set_queue_pair_state(own.qp.number, QueuePairState::Error).unwrap();
        adapter.deregister_memory(from.keys.local).unwrap();
        for side in [own, to_other] {
            side.adapter.destroy_queue_pair(side.qp.number).unwrap();
            side.adapter.destroy_completion_queue(side.cq.number).unwrap();
        }
    }
}

/// Two clients' queue pairs, of which `a` is the one whose memory may block, and that memory registered on both sides.
fn pair_with_blocked(
    change: impl Fn(&mut QueuePairAttr),
) -> (Side, Side, [Peer; 2], Arc<BlockedMemory>, [MemoryKeys; 2]) {
    let network = Network::new();
    let adapters = [adapter(&network, 1), adapter(&network, 2)];
    adapters.iter().for_each(|adapter| adapter.isolate_clients().unwrap());
    let side = |index: usize, client| {
        Side::with(&adapters[index], |attr| {
            attr.client = client;
            change(attr);
        })
    };
    let (a, b) = (side(0, BLOCKED), side(1, 9));
    let peers = [a.handle(&b), b.handle(&a)];
    let memory = Arc::new(BlockedMemory::default());
    let keys = [&a, &b].map(|side| {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let attr = MemoryRegionAttr { pd: side.pd, address: 0, length: 64, access, memory: memory.clone() };
        side.adapter.register_memory(attr).unwrap()
    });
    (a, b, peers, memory, keys)
}

#[test]
fn no_other_client_waits_for_memory_that_blocks() {
    let remote = |key: RemoteKey| RemoteMemory { address: 0, key };
    let local = |key| Segment { address: 0, length: 64, key };
    type Post = fn(&Segment, &RemoteMemory, Peer) -> Request;
    let ways: [(Post, bool, bool); 4] = [
        (|blocked, own, peer| write(1, peer, *own, *blocked), true, false),
        // The bytes were read before the peer ended.
        (|blocked, own, peer| read(1, peer, *own, *blocked), true, true),
        (|blocked, _, peer| send(1, peer, &[*blocked]), true, false),
        // The blocked memory is the target's.
        (|own, blocked, peer| write(1, peer, *blocked, *own), false, true),
    ];
    for (index, (request, is_own, succeeds)) in ways.into_iter().enumerate() {
        let (mut a, mut b, [to_b, _], memory, [keys_a, keys_b]) = pair_with_blocked(|_| {});
        let on_a = Buffer::new(&a, 64, Access::LOCAL_READ | Access::LOCAL_WRITE);
        let on_b = Buffer::new(&b, 64, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
        b.post_receive(3, on_b.segment(0, 64));
        a.post(&match is_own {
            true => request(&local(keys_a.local), &on_b.remote(0), to_b),
            false => request(&on_a.segment(0, 64), &remote(keys_b.remote), to_b),
        });
        until("an access", || (memory.accesses.load(Ordering::Acquire) > 0).then_some(()));
        work_beside([&a.adapter, &b.adapter]);
        if is_own {
            // A peer's calls do not wait either.
            b.adapter.deregister_memory(on_b.keys.local).unwrap();
            b.adapter.set_queue_pair_state(b.qp.number, QueuePairState::Error).unwrap();
            b.adapter.destroy_queue_pair(b.qp.number).unwrap();
        }
        assert_eq!(a.poll(), None, "request {index} ended before its memory was accessed");
        memory.is_free.store(true, Ordering::Release);
        let status = a.completion().status;
        assert_eq!(status == CompletionStatus::Ok, succeeds, "request {index}: {status:?}");
    }
}

#[test]
fn calls_of_the_client_itself_return_after_the_last_access_to_its_memory() {
    for deregister in [true, false] {
        let (mut a, b, [to_b, _], memory, [keys, _]) = pair_with_blocked(|_| {});
        let to = Buffer::new(&b, 64, Access::REMOTE_WRITE);
        a.post(&write(1, to_b, to.remote(0), Segment { address: 0, length: 64, key: keys.local }));
        until("an access", || (memory.accesses.load(Ordering::Acquire) > 0).then_some(()));
        let (adapter, number) = (a.adapter.clone(), a.qp.number);
        let call = std::thread::spawn(move || match deregister {
            true => adapter.deregister_memory(keys.local).unwrap(),
            false => adapter.destroy_queue_pair(number).unwrap(),
        });
        work_beside([&a.adapter, &b.adapter]);
        assert!(!call.is_finished());
        memory.is_free.store(true, Ordering::Release);
        call.join().unwrap();
        let accesses = memory.accesses.load(Ordering::Acquire);
        a.completion();
        work_beside([&a.adapter, &b.adapter]);
        assert_eq!(memory.accesses.load(Ordering::Acquire), accesses);
    }
}

#[test]
fn the_error_state_is_set_after_the_flush_of_receives_that_an_engine_began() {
    let adapter = adapter(&Network::new(), 1);
    let mut side = Side::new(&adapter);
    // A flush writes the counter's mirror after it took the receive, and before it writes the receive's completion.
    let memory = Arc::new(BlockedMemory::default());
    let counter = CompletionCounter::mirrored((memory.clone(), 0), (memory.clone(), 8));
    adapter.attach_counter(side.qp.number, Counted::RECEIVE, Arc::new(counter)).unwrap();
    side.post_receive(3, Segment::default());
    // The doorbell covers an entry that is not written. For that violation the engine flushes the queue pair.
    side.qp.sq.doorbell.ring(1);
    until("the flush", || (memory.accesses.load(Ordering::Acquire) > 0).then_some(()));
    let (number, is_free) = (side.qp.number, memory.clone());
    let call = std::thread::spawn(move || {
        adapter.set_queue_pair_state(number, QueuePairState::Error).unwrap();
        is_free.is_free.load(Ordering::Acquire)
    });
    // A call that does not wait ends here, usually.
    (0..1000).take_while(|_| !call.is_finished()).for_each(|_| efa_gda_test_support::rest());
    memory.is_free.store(true, Ordering::Release);
    assert!(call.join().unwrap(), "the call returned before the receive was flushed");
}

/// A client's number, the highest of all.
const HONEST: u64 = 100;

#[test]
fn no_other_client_waits_for_a_late_write_to_memory_that_blocks() {
    let mut config = AdapterConfig::new(Gid::link_local(1));
    config.latest_write = Duration::from_secs(5);
    let adapter = Adapter::new(&Network::new(), config).unwrap();
    adapter.isolate_clients().unwrap();
    let mut own = Side::with(&adapter, |attr| attr.client = BLOCKED);
    let honest = Side::with(&adapter, |attr| attr.client = HONEST);
    let peer = own.handle(&own);
    let memory = Arc::new(BlockedMemory::default());
    memory.is_free.store(true, Ordering::Release);
    let register = |side: &Side, memory: Arc<dyn Memory>| {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let attr = MemoryRegionAttr { pd: side.pd, address: 0, length: 64, access, memory };
        adapter.register_memory(attr).unwrap()
    };
    let to = register(&own, memory.clone());
    let (client, is_free) = (HONEST, AtomicBool::new(true));
    let kept = register(&honest, Arc::new(SlowMemory { client, is_free, ..SlowMemory::default() }));
    let from = Buffer::new(&own, 8, Access::LOCAL_READ);
    let remote = RemoteMemory { address: 0, key: to.remote };
    for id in 0..16 {
        assert_eq!(own.run(&write(id, peer, remote, from.segment(0, 8))), CompletionStatus::Ok);
    }
    let accesses = memory.accesses.load(Ordering::Acquire);
    memory.is_free.store(false, Ordering::Release);
    until("a late write", || (memory.accesses.load(Ordering::Acquire) > accesses).then_some(()));
    adapter.deregister_memory(kept.local).unwrap();
    assert!(!memory.has_given_up.load(Ordering::Acquire), "the call waited for the late write");
    memory.is_free.store(true, Ordering::Release);
}

#[test]
fn a_receiver_does_not_wait_for_a_counter_of_another_target_of_its_sender() {
    let adapter = adapter(&Network::new(), 1);
    adapter.isolate_clients().unwrap();
    let side = |client| Side::with(&adapter, |attr| (attr.client, attr.rq_depth) = (client, 4));
    let (mut sender, counted, mut honest) = (side(8), side(BLOCKED), side(HONEST));
    let [to_counted, to_honest] = [&counted, &honest].map(|target| sender.handle(target));
    let memory = Arc::new(BlockedMemory::default());
    let counter = CompletionCounter::mirrored((memory.clone(), 0), (memory.clone(), 8));
    adapter.attach_counter(counted.qp.number, Counted::REMOTE_WRITE, Arc::new(counter)).unwrap();
    let _back = counted.handle(&sender);
    let from = Buffer::new(&sender, 8, Access::LOCAL_READ);
    let written = Buffer::new(&counted, 8, Access::REMOTE_WRITE);
    let received = Buffer::new(&honest, 8, Access::LOCAL_WRITE);
    honest.post_receive(3, received.segment(0, 8));
    // Both are executed in one turn of the sender.
    adapter.hold(true);
    sender.post(&write(1, to_counted, written.remote(0), from.segment(0, 8)));
    sender.post(&send(2, to_honest, &[from.segment(0, 8)]));
    sender.await_fetched(2);
    adapter.hold(false);
    assert_eq!(honest.completion().status, CompletionStatus::Ok);
    adapter.destroy_queue_pair(honest.qp.number).unwrap();
    assert!(!memory.has_given_up.load(Ordering::Acquire), "the receiver waited for another's counter");
    memory.is_free.store(true, Ordering::Release);
    assert_eq!(sender.completion().status, CompletionStatus::Ok);
}

/// Memory whose first read does not return until it is released. Then it rings a doorbell first.
struct RingingMemory {
    is_read: AtomicBool,
    is_free: AtomicBool,
    doorbell: Doorbell,
}

impl Memory for RingingMemory {
    fn read(&self, _address: u64, _into: &mut [u8]) -> Result<(), MemoryFault> {
        self.is_read.store(true, Ordering::Release);
        until("the release", || self.is_free.load(Ordering::Acquire).then_some(()));
        self.doorbell.ring(1);
        Ok(())
    }

    fn write(&self, _address: u64, _from: &[u8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn client(&self) -> u64 {
        HONEST
    }
}

#[test]
fn a_client_whose_access_took_long_does_not_wait_for_the_memory_of_another() {
    let adapter = adapter(&Network::new(), 1);
    adapter.isolate_clients().unwrap();
    let memory = Arc::new(BlockedMemory::default());
    memory.is_free.store(true, Ordering::Release);
    // A completion of the other client waits for the doorbell.
    let pd = adapter.allocate_domain().unwrap();
    let backing = CompletionBacking::Indirect { memory: memory.clone(), address: 0 };
    let attr = CompletionQueueAttr { entries: 1, backing, doorbell: true, ..CompletionQueueAttr::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    adapter.set_consumer_index(cq.number, 0).unwrap();
    let mut other = Side::on(&adapter, pd, cq.clone(), |attr| attr.client = BLOCKED);
    let to_other = other.handle(&other);
    let bytes = Buffer::new(&other, 8, Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    for id in 0..2 {
        other.post(&write(id, to_other, bytes.remote(0), bytes.segment(0, 8)));
    }
    // Completions are counted when those with room were written, and overruns before.
    let waits = || (adapter.statistics().completions == 2).then_some(());
    until("a completion to wait", waits);
    assert_eq!(adapter.statistics().overruns, 1);
    memory.is_free.store(false, Ordering::Release);
    let mut honest = Side::with(&adapter, |attr| attr.client = HONEST);
    let to_honest = honest.handle(&honest);
    let ringing = Arc::new(RingingMemory {
        is_read: AtomicBool::new(false),
        is_free: AtomicBool::new(false),
        doorbell: cq.doorbell.unwrap(),
    });
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (pd, address, length) = (honest.pd, 0, 8);
    let attr = MemoryRegionAttr { pd, address, length, access, memory: ringing.clone() };
    let keys = adapter.register_memory(attr).unwrap();
    let to = Buffer::new(&honest, 8, Access::REMOTE_WRITE | Access::LOCAL_READ | Access::LOCAL_WRITE);
    honest.post(&write(1, to_honest, to.remote(0), Segment { address: 0, length: 8, key: keys.local }));
    until("a read", || ringing.is_read.load(Ordering::Acquire).then_some(()));
    // Another thread becomes the engine.
    work_beside([&adapter, &adapter]);
    let accesses = memory.accesses.load(Ordering::Acquire);
    ringing.is_free.store(true, Ordering::Release);
    assert_eq!(honest.completion().status, CompletionStatus::Ok);
    until("the other's access", || (memory.accesses.load(Ordering::Acquire) > accesses).then_some(()));
    assert_eq!(honest.run(&write(2, to_honest, to.remote(0), to.segment(0, 8))), CompletionStatus::Ok);
    assert!(!memory.has_given_up.load(Ordering::Acquire));
    memory.is_free.store(true, Ordering::Release);
}
