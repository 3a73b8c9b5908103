//! Bounds of what a client waits for and of what the adapter keeps: long requests, calls during an access, completions
//! that nobody reads, and keys.

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

#[test]
fn memory_is_deregistered_after_the_last_access_to_it() {
    let (mut a, b, to_b, _) = pair();
    let to = Buffer::new(&b, 64, Access::REMOTE_WRITE);
    let memory = Arc::new(BlockedMemory::default());
    let (pd, access) = (a.pd, Access::LOCAL_WRITE);
    let attr = MemoryRegionAttr { pd, address: 0, length: 64, access, memory: memory.clone() };
    let key = a.adapter.register_memory(attr).unwrap().local;
    a.post(&write(1, to_b, to.remote(0), Segment { address: 0, length: 64, key }));
    until("an access", || (memory.accesses.load(Ordering::Acquire) > 0).then_some(()));
    let (adapter, is_free) = (a.adapter.clone(), memory.clone());
    let call = std::thread::spawn(move || {
        adapter.deregister_memory(key).unwrap();
        is_free.is_free.load(Ordering::Acquire)
    });
    // A call that does not wait ends here, usually.
    (0..1000).take_while(|_| !call.is_finished()).for_each(|_| efa_gda_test_support::rest());
    memory.is_free.store(true, Ordering::Release);
    assert!(call.join().unwrap(), "the call returned during an access");
    assert_eq!(a.completion().status, CompletionStatus::Ok);
}
