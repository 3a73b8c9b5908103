//! The control path: limits, numbers, the order of destruction, and all kinds of memory.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::sync::{Arc, Mutex};

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

fn one_adapter() -> (Arc<Network>, Arc<Adapter>) {
    let network = Network::new();
    let adapter = adapter(&network, 1);
    (network, adapter)
}

fn completion_queue(adapter: &Adapter, entries: u32) -> CompletionQueue {
    adapter.create_completion_queue(CompletionQueueAttr { entries, ..Default::default() }).unwrap()
}

#[test]
fn a_gid_can_be_used_once_at_a_time() {
    let (network, first) = one_adapter();
    let create = || Adapter::new(&network, AdapterConfig::new(first.gid()));
    assert_eq!(create().unwrap_err(), DeviceError::GidTaken(first.gid()));
    let gid = first.gid();
    drop(first);
    assert_eq!(Adapter::new(&network, AdapterConfig::new(gid)).unwrap().gid(), gid);
}

#[test]
fn impossible_limits_are_refused() {
    let network = Network::new();
    let mut config = AdapterConfig::new(Gid::link_local(1));
    config.limits.max_sq_depth = 65_536;
    let error = Adapter::new(&network, config).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange { attribute: "max_sq_depth", .. }), "{error}");
}

#[test]
fn a_variable_that_is_not_set_changes_no_setting() {
    let mut config = AdapterConfig::new(Gid::link_local(1));
    config.latest_write = std::time::Duration::from_nanos(1);
    assert_eq!(config.clone().with_variables(|_| None), Ok(config));
}

#[test]
fn an_adapter_registers_as_many_regions_as_its_limit_states() {
    let (_network, adapter) = one_adapter();
    let (pd, limit) = (adapter.allocate_domain().unwrap(), adapter.config().limits.max_mr);
    let regions: Vec<_> =
        (0..limit).map(|_| Buffer::in_domain(&adapter, pd, 1, Access::LOCAL_READ)).collect();
    assert_eq!(regions.len(), limit as usize);
}

#[test]
fn depths_are_rounded_up_to_powers_of_two() {
    let (_network, adapter) = one_adapter();
    let side = Side::with(&adapter, |attr| {
        attr.sq_depth = 100;
        attr.rq_depth = 65;
    });
    assert_eq!((side.qp.sq.num_entries, side.qp.rq.map(|rq| rq.num_entries)), (128, Some(128)));
}

#[test]
fn a_send_queue_larger_than_the_device_memory_is_refused() {
    let (_network, adapter) = one_adapter();
    let pd = adapter.allocate_domain().unwrap();
    let cq = completion_queue(&adapter, 1);
    let create = |sq_depth, entry_size| {
        let attr = QueuePairAttr { sq_depth, entry_size, ..QueuePairAttr::new(pd, cq.number) };
        adapter.create_queue_pair(attr)
    };
    assert_eq!(create(4096, EntrySize::B64).unwrap().sq.num_entries, 4096);
    assert_eq!(create(2048, EntrySize::B128).unwrap().sq.num_entries, 2048);
    let error = DeviceError::OutOfRange { attribute: "send-queue depth", value: 2049, min: 1, max: 2048 };
    assert_eq!(create(2049, EntrySize::B128).unwrap_err(), error);
    assert!(create(0, EntrySize::B64).is_err());
}

#[test]
fn the_error_for_a_missing_capability_names_it() {
    let network = Network::new();
    let mut config = AdapterConfig::new(Gid::link_local(1));
    config.capabilities.entries_128 = false;
    let adapter = Adapter::new(&network, config).unwrap();
    let pd = adapter.allocate_domain().unwrap();
    let cq = completion_queue(&adapter, 1);
    let attr = QueuePairAttr { entry_size: EntrySize::B128, ..QueuePairAttr::new(pd, cq.number) };
    let error = adapter.create_queue_pair(attr).unwrap_err();
    assert_eq!(error, DeviceError::Unsupported("128-byte send-queue entries"));
}

#[test]
fn rings_are_page_aligned_and_doorbells_share_a_page() {
    let (_network, adapter) = one_adapter();
    let (first, second) = (Side::new(&adapter), Side::new(&adapter));
    assert!(first.qp.sq.memory.as_ptr().addr().is_multiple_of(PAGE_BYTES));
    assert!(first.cq.memory.as_ref().unwrap().as_ptr().addr().is_multiple_of(PAGE_BYTES));
    let doorbells = [&first.qp.sq.doorbell, &second.qp.sq.doorbell, &first.qp.rq.as_ref().unwrap().doorbell];
    let pages = doorbells.map(|doorbell| doorbell.page().as_ptr());
    assert_eq!(pages, [pages[0]; 3], "doorbells do not share a page");
    let offsets: std::collections::HashSet<_> = doorbells.map(Doorbell::offset).into();
    assert_eq!(offsets.len(), 3);
}

#[test]
fn the_doorbell_of_a_destroyed_queue_pair_is_reused() {
    let (_network, adapter) = one_adapter();
    let pd = adapter.allocate_domain().unwrap();
    let cq = completion_queue(&adapter, 1024);
    let mut pages = std::collections::HashSet::new();
    for _ in 0..1000 {
        let side = Side::on(&adapter, pd, cq.clone(), |_| {});
        pages.insert(side.qp.sq.doorbell.page().as_ptr());
        adapter.destroy_queue_pair(side.qp.number).unwrap();
    }
    assert_eq!(pages.len(), 1);
}

#[test]
fn one_domain_has_one_handle_for_a_gid() {
    let (_network, adapter) = one_adapter();
    let (pd, other) = (adapter.allocate_domain().unwrap(), adapter.allocate_domain().unwrap());
    let gid = Gid::link_local(5);
    let first = adapter.create_address_handle(pd, gid).unwrap();
    assert_eq!(adapter.create_address_handle(pd, gid), Ok(first));
    assert_ne!(adapter.create_address_handle(other, gid), Ok(first));
    adapter.destroy_address_handle(first).unwrap();
    adapter.destroy_address_handle(first).unwrap();
    assert_eq!(adapter.destroy_address_handle(first), Err(DeviceError::NoSuchAddressHandle(first)));
}

#[test]
fn an_object_in_use_cannot_be_destroyed() {
    let (_network, adapter) = one_adapter();
    let side = Side::new(&adapter);
    let handle = side.handle(&side);
    let buffer = Buffer::new(&side, 64, Access::ALL);
    assert!(matches!(adapter.free_domain(side.pd), Err(DeviceError::Busy { users: 3, .. })));
    assert!(matches!(
        adapter.destroy_completion_queue(side.cq.number),
        Err(DeviceError::Busy { users: 2, .. })
    ));

    adapter.destroy_queue_pair(side.qp.number).unwrap();
    adapter.destroy_address_handle(handle.address_handle).unwrap();
    adapter.deregister_memory(buffer.keys.local).unwrap();
    adapter.free_domain(side.pd).unwrap();
    adapter.destroy_completion_queue(side.cq.number).unwrap();
}

#[test]
fn the_error_for_a_missing_object_names_it() {
    let (_network, adapter) = one_adapter();
    let (pd, cq) = (ProtectionDomain::new(9), CompletionQueueNumber::new(9));
    let (qp, key) = (QueuePairNumber::new(9), LocalKey::new(9).unwrap());
    assert_eq!(adapter.free_domain(pd), Err(DeviceError::NoSuchDomain(pd)));
    assert_eq!(adapter.destroy_completion_queue(cq), Err(DeviceError::NoSuchCompletionQueue(cq)));
    assert_eq!(adapter.destroy_queue_pair(qp), Err(DeviceError::NoSuchQueuePair(qp)));
    assert_eq!(adapter.deregister_memory(key), Err(DeviceError::NoSuchMemoryRegion(key)));
}

#[test]
fn a_full_table_refuses_another_object() {
    let network = Network::new();
    let mut config = AdapterConfig::new(Gid::link_local(1));
    config.limits.max_pd = 2;
    let adapter = Adapter::new(&network, config).unwrap();
    let first = adapter.allocate_domain().unwrap();
    adapter.allocate_domain().unwrap();
    let full = DeviceError::Exhausted { objects: "protection domains", limit: 2 };
    assert_eq!(adapter.allocate_domain(), Err(full));
    adapter.free_domain(first).unwrap();
    adapter.allocate_domain().unwrap();
}

#[test]
fn ten_thousand_cycles_of_every_object_leak_nothing() {
    let (_network, adapter) = one_adapter();
    for _ in 0..10_000 {
        let side = Side::with(&adapter, |attr| {
            attr.sq_depth = 4;
            attr.rq_depth = 4;
        });
        let handle = side.handle(&side);
        let buffer = Buffer::new(&side, 8, Access::ALL);
        adapter.destroy_queue_pair(side.qp.number).unwrap();
        adapter.destroy_address_handle(handle.address_handle).unwrap();
        adapter.deregister_memory(buffer.keys.local).unwrap();
        adapter.free_domain(side.pd).unwrap();
        adapter.destroy_completion_queue(side.cq.number).unwrap();
    }
}

#[test]
fn an_idle_queue_pair_accepts_no_requests() {
    let (mut a, b, to_b, _) = pair_with(|_| {}, |attr| attr.state = QueuePairState::Idle);
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    let write_request = write(1, to_b, to.remote(0), from.segment(0, 64));
    a.adapter.set_queue_pair_state(a.qp.number, QueuePairState::Ready).unwrap();
    assert_eq!(a.run(&write_request), CompletionStatus::RemoteBadQueuePair);
    b.adapter.set_queue_pair_state(b.qp.number, QueuePairState::Ready).unwrap();
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
}

#[test]
fn a_queue_pair_leaves_the_error_state_through_the_idle_state_only_and_starts_from_its_first_index() {
    let (mut a, mut b, to_b, _) = pair_with(|_| {}, |attr| (attr.sq_depth, attr.rq_depth) = (4, 4));
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    let write_request = write(1, to_b, to.remote(0), from.segment(0, 64));
    // An odd number of laps, after which the phase is not that of a new queue.
    for _ in 0..6 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
        b.post_receive(9, to.segment(0, 64));
        assert_eq!(a.run(&send(2, to_b, &[from.segment(0, 8)])), CompletionStatus::Ok);
        b.completion();
    }
    b.post_receive(9, to.segment(0, 64));
    for side in [&mut a, &mut b] {
        let set = |state| side.adapter.set_queue_pair_state(side.qp.number, state);
        set(QueuePairState::Error).unwrap();
        assert!(set(QueuePairState::Ready).is_err());
        set(QueuePairState::Idle).unwrap();
        set(QueuePairState::Ready).unwrap();
        (side.produced, side.received) = (0, 0);
    }
    assert_eq!(b.completion().status, CompletionStatus::Flushed);
    for _ in 0..6 {
        assert_eq!(a.run(&write_request), CompletionStatus::Ok);
        b.post_receive(7, to.segment(0, 64));
        assert_eq!(a.run(&send(2, to_b, &[from.segment(0, 8)])), CompletionStatus::Ok);
        assert_eq!(b.completion().id.get(), 7);
    }
    assert_eq!((a.rules(), b.rules()), (vec![], vec![]));
}

// Memory that only calls reach.

/// Bytes that only calls reach, like those of another process or a GPU.
struct IndirectMemory {
    start: u64,
    bytes: Mutex<Vec<u8>>,
}

impl IndirectMemory {
    fn new(start: u64, length: usize) -> Arc<Self> {
        Arc::new(Self { start, bytes: Mutex::new(vec![0; length]) })
    }
}

impl Memory for IndirectMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let at = (address - self.start) as usize;
        into.copy_from_slice(&self.bytes.lock().unwrap()[at..at + into.len()]);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let at = (address - self.start) as usize;
        self.bytes.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
}

#[test]
fn a_write_between_indirect_memories_moves_every_byte() {
    let (mut a, b, to_b, _) = pair();
    let length = 200_001;
    let (near, far) = (IndirectMemory::new(0x1000, length), IndirectMemory::new(0x7000_0000, length));
    near.bytes.lock().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    let register = |side: &Side, memory: &Arc<IndirectMemory>| {
        let (address, length) = (memory.start, length as u64);
        let attr =
            MemoryRegionAttr { pd: side.pd, address, length, access: Access::ALL, memory: memory.clone() };
        side.adapter.register_memory(attr).unwrap()
    };
    let (here, there) = (register(&a, &near), register(&b, &far));
    let remote = RemoteMemory { address: far.start, key: there.remote };
    let local = Segment { address: near.start, length: length as u32, key: here.local };

    assert_eq!(a.run(&write(1, to_b, remote, local)), CompletionStatus::Ok);
    assert!(*near.bytes.lock().unwrap() == *far.bytes.lock().unwrap());
}

#[test]
fn completions_are_written_to_memory_of_the_client() {
    let (_network, adapter) = one_adapter();
    let pd = adapter.allocate_domain().unwrap();
    let memory = RingMemory::allocate(1024 * 32).unwrap();
    let backing = CompletionBacking::External(memory.clone());
    let attr = CompletionQueueAttr { entries: 1024, backing, ..Default::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    assert_eq!(cq.memory.as_ref().unwrap().as_ptr(), memory.as_ptr());
    let mut side = Side::on(&adapter, pd, cq, |_| {});
    let itself = side.handle(&side);
    for _ in 0..3000 {
        assert_eq!(
            side.run(&write(1, itself, RemoteMemory::default(), Segment::default())),
            CompletionStatus::Ok
        );
    }
}

#[test]
fn completions_are_written_to_indirect_memory() {
    let (_network, adapter) = one_adapter();
    let pd = adapter.allocate_domain().unwrap();
    let memory = IndirectMemory::new(0x1000, 4 * 32);
    let backing = CompletionBacking::Indirect { memory: memory.clone(), address: 0x1000 };
    let cq = adapter
        .create_completion_queue(CompletionQueueAttr { entries: 4, backing, ..Default::default() })
        .unwrap();
    let mut side = Side::on(&adapter, pd, cq, |_| {});
    let itself = side.handle(&side);
    for (slot, phase) in [(0, true), (1, true), (2, true), (3, true), (0, false)] {
        side.post(&write(6, itself, RemoteMemory::default(), Segment::default()));
        let bytes = until("the completion", || {
            let mut bytes = [0; 32];
            memory.read(0x1000 + slot * 32, &mut bytes).unwrap();
            let decodes = Completion::decode(&bytes, RequestIdWidth::Bits16).is_ok();
            (decodes && Completion::phase(bytes[Completion::FLAGS_OFFSET]) == phase).then_some(bytes)
        });
        assert_eq!(Completion::decode(&bytes, RequestIdWidth::Bits16).unwrap().id.get(), 6);
    }
}

#[test]
fn client_completion_memory_that_is_not_zeroed_is_a_warning() {
    let (_network, adapter) = one_adapter();
    let memory = RingMemory::allocate(4 * 32).unwrap();
    memory.store(64, &[0xff; 8]);
    let backing = CompletionBacking::External(memory);
    let cq = adapter
        .create_completion_queue(CompletionQueueAttr { entries: 4, backing, ..Default::default() })
        .unwrap();
    assert_eq!(adapter.warnings(), [Warning::CompletionMemoryNotZeroed { queue: cq.number, slot: 2 }]);
}

#[test]
fn client_ring_memory_that_is_too_small_is_refused() {
    let (_network, adapter) = one_adapter();
    let pd = adapter.allocate_domain().unwrap();
    let cq = completion_queue(&adapter, 4);
    let mut attr = QueuePairAttr::new(pd, cq.number);
    attr.sq_memory = Some(RingMemory::allocate(4096).unwrap());
    let error = adapter.create_queue_pair(attr).unwrap_err().to_string();
    assert_eq!(
        error,
        "the client's memory for the send queue cannot be used: it has 4096 bytes and the ring needs 16384"
    );
}

#[test]
fn queues_and_doorbells_can_be_in_client_memory() {
    let (_network, adapter) = one_adapter();
    let (ring, page) = (RingMemory::allocate(256 * 64).unwrap(), RingMemory::allocate(4096).unwrap());
    let mut side = Side::with(&adapter, |attr| {
        attr.sq_memory = Some(ring.clone());
        attr.sq_doorbell = Some(Doorbell::new(page.clone(), 0x40).unwrap());
    });
    assert_eq!(side.qp.sq.doorbell.as_ptr() as usize, page.as_ptr() as usize + 0x40);
    let itself = side.handle(&side);
    assert_eq!(
        side.run(&write(1, itself, RemoteMemory::default(), Segment::default())),
        CompletionStatus::Ok
    );
}

#[test]
fn statistics_count_operations_and_bytes() {
    let (mut a, mut b, to_b, _) = pair();
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    b.post_receive(1, to.segment(0, 64));
    assert_eq!(a.run(&write(1, to_b, to.remote(0), from.segment(0, 64))), CompletionStatus::Ok);
    assert_eq!(a.run(&send_inline(2, to_b, b"four")), CompletionStatus::Ok);
    let bad = RemoteMemory { key: RemoteKey::new(0), ..to.remote(0) };
    assert_eq!(a.run(&write(3, to_b, bad, from.segment(0, 64))), CompletionStatus::RemoteBadAddress);

    until("the counts", || (a.adapter.statistics().entries == 3).then_some(()));
    let counted = a.adapter.statistics();
    assert_eq!((counted.bytes, counted.completions, counted.errors, counted.doorbells), (68, 3, 1, 3));
    assert_eq!(b.adapter.statistics().receives, 1);
}

#[test]
fn captured_entries_are_the_posted_entries() {
    let (mut a, _b, to_b, _) = pair_with(|config| config.capture = 2, |_| {});
    let requests = [1, 2, 3].map(|id| write(id, to_b, RemoteMemory::default(), Segment::default()));
    let posted = requests.map(|request| {
        let entry = a.encode(&request).to_vec();
        assert_eq!(a.run(&request), CompletionStatus::Ok);
        entry
    });
    let captured = a.adapter.captured();
    let expected: Vec<_> = (0..2_u64)
        .map(|counter| Captured { queue_pair: a.qp.number, counter, bytes: posted[counter as usize].clone() })
        .collect();
    assert_eq!(captured, expected);
}
