//! The control path: limits, numbers, what may be destroyed when, and memory of all kinds.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::sync::{Arc, Mutex};

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

fn one() -> (Arc<Network>, Arc<Adapter>) {
    let network = Network::new();
    let adapter = adapter(&network, 1);
    (network, adapter)
}

#[test]
fn a_gid_is_taken_once() {
    let (network, first) = one();
    let again = || Adapter::new(&network, AdapterConfig::new(first.gid()));
    assert_eq!(again().unwrap_err(), DeviceError::GidTaken(first.gid()));
    let gid = first.gid();
    drop(first);
    assert_eq!(Adapter::new(&network, AdapterConfig::new(gid)).unwrap().gid(), gid);
}

#[test]
fn adapters_on_different_networks_do_not_meet() {
    let (_network, first) = one();
    let (_other, second) = one();
    assert_eq!(first.gid(), second.gid());
}

#[test]
fn impossible_limits_are_refused() {
    let network = Network::new();
    let mut config = AdapterConfig::new(Gid::link_local(1));
    config.limits.max_sq_depth = 65_536;
    let error = Adapter::new(&network, config).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange { what: "max_sq_depth", .. }), "{error}");
}

#[test]
fn depths_are_rounded_up_to_powers_of_two() {
    let (_network, adapter) = one();
    let side = Side::with(&adapter, |attr| {
        attr.sq_depth = 100;
        attr.rq_depth = 65;
    });
    assert_eq!((side.qp.sq.num_entries, side.qp.rq.map(|rq| rq.num_entries)), (128, Some(128)));
}

#[test]
fn a_send_queue_must_fit_its_memory_on_the_device() {
    let (_network, adapter) = one();
    let pd = adapter.allocate_domain().unwrap();
    let cq =
        adapter.create_completion_queue(CompletionQueueAttr { entries: 1, ..Default::default() }).unwrap();
    let ask = |sq_depth, entry_size| {
        let attr = QueuePairAttr { sq_depth, entry_size, ..QueuePairAttr::new(pd, cq.number) };
        adapter.create_queue_pair(attr)
    };
    assert_eq!(ask(4096, EntrySize::B64).unwrap().sq.num_entries, 4096);
    assert_eq!(ask(2048, EntrySize::B128).unwrap().sq.num_entries, 2048);
    let error = DeviceError::OutOfRange { what: "send-queue depth", given: 2049, least: 1, most: 2048 };
    assert_eq!(ask(2049, EntrySize::B128).unwrap_err(), error);
    assert!(ask(0, EntrySize::B64).is_err());
}

#[test]
fn what_the_adapter_lacks_is_named() {
    let network = Network::new();
    let mut config = AdapterConfig::new(Gid::link_local(1));
    config.capabilities.entries_128 = false;
    let adapter = Adapter::new(&network, config).unwrap();
    let pd = adapter.allocate_domain().unwrap();
    let cq =
        adapter.create_completion_queue(CompletionQueueAttr { entries: 1, ..Default::default() }).unwrap();
    let attr = QueuePairAttr { entry_size: EntrySize::B128, ..QueuePairAttr::new(pd, cq.number) };
    let error = adapter.create_queue_pair(attr).unwrap_err();
    assert_eq!(error, DeviceError::Unsupported("128-byte send-queue entries"));
}

#[test]
fn rings_and_doorbells_lie_as_on_hardware() {
    let (_network, adapter) = one();
    let (first, second) = (Side::new(&adapter), Side::new(&adapter));
    assert!(first.qp.sq.memory.as_ptr().addr().is_multiple_of(PAGE_BYTES));
    assert!(first.cq.memory.as_ref().unwrap().as_ptr().addr().is_multiple_of(PAGE_BYTES));
    let doorbells = [&first.qp.sq.doorbell, &second.qp.sq.doorbell, &first.qp.rq.as_ref().unwrap().doorbell];
    let pages = doorbells.map(|doorbell| doorbell.page().as_ptr());
    assert_eq!(pages, [pages[0]; 3], "several doorbells share a page");
    let offsets: std::collections::HashSet<_> = doorbells.map(Doorbell::offset).into();
    assert_eq!(offsets.len(), 3);
}

#[test]
fn a_doorbell_is_used_again_once_its_queue_pair_is_gone() {
    let (_network, adapter) = one();
    let pd = adapter.allocate_domain().unwrap();
    let cq =
        adapter.create_completion_queue(CompletionQueueAttr { entries: 1024, ..Default::default() }).unwrap();
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
    let (_network, adapter) = one();
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
fn nothing_goes_while_others_use_it() {
    let (_network, adapter) = one();
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
fn what_does_not_exist_is_named() {
    let (_network, adapter) = one();
    let (pd, cq) = (ProtectionDomain::new(9), CompletionQueueNumber::new(9));
    let (qp, key) = (QueuePairNumber::new(9), LocalKey::new(9).unwrap());
    assert_eq!(adapter.free_domain(pd), Err(DeviceError::NoSuchDomain(pd)));
    assert_eq!(adapter.destroy_completion_queue(cq), Err(DeviceError::NoSuchCompletionQueue(cq)));
    assert_eq!(adapter.destroy_queue_pair(qp), Err(DeviceError::NoSuchQueuePair(qp)));
    assert_eq!(adapter.deregister_memory(key), Err(DeviceError::NoSuchMemoryRegion(key)));
}

#[test]
fn tables_have_their_limits() {
    let network = Network::new();
    let mut config = AdapterConfig::new(Gid::link_local(1));
    config.limits.max_pd = 2;
    let adapter = Adapter::new(&network, config).unwrap();
    let first = adapter.allocate_domain().unwrap();
    adapter.allocate_domain().unwrap();
    let full = DeviceError::Exhausted { what: "protection domains", limit: 2 };
    assert_eq!(adapter.allocate_domain(), Err(full));
    adapter.free_domain(first).unwrap();
    adapter.allocate_domain().unwrap();
}

#[test]
fn ten_thousand_cycles_of_every_object_leave_nothing_behind() {
    let (_network, adapter) = one();
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
fn an_idle_queue_pair_waits_and_is_no_destination() {
    let (mut a, b, to_b, _) = pair_with(|_| {}, |attr| attr.state = QueuePairState::Idle);
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    let put = write(1, to_b, to.remote(0), from.segment(0, 64));
    a.adapter.set_queue_pair_state(a.qp.number, QueuePairState::Ready).unwrap();
    assert_eq!(a.run(&put), CompletionStatus::RemoteBadQueuePair);
    b.adapter.set_queue_pair_state(b.qp.number, QueuePairState::Ready).unwrap();
    assert_eq!(a.run(&put), CompletionStatus::Ok);
}

#[test]
fn no_way_leads_out_of_the_error_state() {
    let (_network, adapter) = one();
    let side = Side::new(&adapter);
    adapter.set_queue_pair_state(side.qp.number, QueuePairState::Error).unwrap();
    assert!(adapter.set_queue_pair_state(side.qp.number, QueuePairState::Ready).is_err());
}

// Memory that is not of this process.

/// Bytes that are reached through calls alone, as another process's or a GPU's are.
struct Far {
    start: u64,
    bytes: Mutex<Vec<u8>>,
}

impl Far {
    fn new(start: u64, length: usize) -> Arc<Self> {
        Arc::new(Self { start, bytes: Mutex::new(vec![0; length]) })
    }
}

impl Memory for Far {
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
fn a_write_between_memories_that_are_reached_by_calls_moves_every_byte() {
    let (mut a, b, to_b, _) = pair();
    let length = 200_001;
    let (near, far) = (Far::new(0x1000, length), Far::new(0x7000_0000, length));
    near.bytes.lock().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    let register = |side: &Side, memory: &Arc<Far>| {
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
fn completions_go_into_memory_that_the_client_gives() {
    let (_network, adapter) = one();
    let pd = adapter.allocate_domain().unwrap();
    let memory = RingMemory::allocate(1024 * 32).unwrap();
    let backing = CompletionBacking::Given(memory.clone());
    let attr = CompletionQueueAttr { entries: 1024, backing, ..Default::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    assert_eq!(cq.memory.as_ref().unwrap().as_ptr(), memory.as_ptr());
    let mut side = Side::on(&adapter, pd, cq, |_| {});
    let me = side.handle(&side);
    for _ in 0..3000 {
        assert_eq!(
            side.run(&write(1, me, RemoteMemory::default(), Segment::default())),
            CompletionStatus::Ok
        );
    }
}

#[test]
fn completions_go_into_memory_that_is_reached_by_calls() {
    let (_network, adapter) = one();
    let pd = adapter.allocate_domain().unwrap();
    let memory = Far::new(0x1000, 4 * 32);
    let backing = CompletionBacking::Through { memory: memory.clone(), address: 0x1000 };
    let cq = adapter
        .create_completion_queue(CompletionQueueAttr { entries: 4, backing, ..Default::default() })
        .unwrap();
    let mut side = Side::on(&adapter, pd, cq, |_| {});
    let me = side.handle(&side);
    for (slot, phase) in [(0, true), (1, true), (2, true), (3, true), (0, false)] {
        side.post(&write(6, me, RemoteMemory::default(), Segment::default()));
        let bytes = until("the completion", || {
            let mut bytes = [0; 32];
            memory.read(0x1000 + slot * 32, &mut bytes).unwrap();
            let there = Completion::decode(&bytes, RequestIdWidth::Bits16).is_ok();
            (there && Completion::phase(bytes[Completion::FLAGS_OFFSET]) == phase).then_some(bytes)
        });
        assert_eq!(Completion::decode(&bytes, RequestIdWidth::Bits16).unwrap().id.get(), 6);
    }
}

#[test]
fn given_completion_memory_that_is_not_zeroed_is_a_warning() {
    let (_network, adapter) = one();
    let memory = RingMemory::allocate(4 * 32).unwrap();
    memory.store(64, &[0xff; 8]);
    let backing = CompletionBacking::Given(memory);
    let cq = adapter
        .create_completion_queue(CompletionQueueAttr { entries: 4, backing, ..Default::default() })
        .unwrap();
    assert_eq!(adapter.warnings(), [Warning::CompletionMemoryNotZeroed { queue: cq.number, slot: 2 }]);
}

#[test]
fn given_ring_memory_that_is_too_small_is_named() {
    let (_network, adapter) = one();
    let pd = adapter.allocate_domain().unwrap();
    let cq =
        adapter.create_completion_queue(CompletionQueueAttr { entries: 4, ..Default::default() }).unwrap();
    let mut attr = QueuePairAttr::new(pd, cq.number);
    attr.sq_memory = Some(RingMemory::allocate(4096).unwrap());
    let error = adapter.create_queue_pair(attr).unwrap_err().to_string();
    assert_eq!(
        error,
        "the memory given for the send queue does not serve: it has 4096 bytes and the ring needs 16384"
    );
}

#[test]
fn queues_and_doorbells_may_lie_in_given_memory() {
    let (_network, adapter) = one();
    let (ring, page) = (RingMemory::allocate(256 * 64).unwrap(), RingMemory::allocate(4096).unwrap());
    let mut side = Side::with(&adapter, |attr| {
        attr.sq_memory = Some(ring.clone());
        attr.sq_doorbell = Some(Doorbell::new(page.clone(), 0x40).unwrap());
    });
    assert_eq!(side.qp.sq.doorbell.as_ptr() as usize, page.as_ptr() as usize + 0x40);
    let me = side.handle(&side);
    assert_eq!(side.run(&write(1, me, RemoteMemory::default(), Segment::default())), CompletionStatus::Ok);
}

#[test]
fn statistics_count_what_was_done() {
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
fn captured_entries_are_those_that_were_posted() {
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

/// Memory of a face with a bug.
struct Panics;

impl Memory for Panics {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
        panic!("a planted panic")
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
        panic!("a planted panic")
    }
}

#[test]
fn memory_that_panics_costs_its_queue_pair_and_nothing_else() {
    let (mut a, mut b, to_b, to_a) = pair();
    let attr =
        MemoryRegionAttr { pd: a.pd, address: 0, length: 64, access: Access::ALL, memory: Arc::new(Panics) };
    let keys = a.adapter.register_memory(attr).unwrap();
    let to = Buffer::new(&b, 64, Access::ALL);
    a.post(&write(1, to_b, to.remote(0), Segment { address: 0, length: 64, key: keys.local }));
    let warning = until("the warning", || a.adapter.warnings().into_iter().next());
    assert_eq!(warning, Warning::MemoryPanicked { queue_pair: a.qp.number });
    assert_eq!(a.completion().status, CompletionStatus::QueuePairInternal);

    assert_eq!(a.run(&write(2, to_b, to.remote(0), Segment::default())), CompletionStatus::Flushed);
    assert_eq!(b.run(&send_inline(3, to_a, b"")), CompletionStatus::RemoteBadQueuePair);
    let mut other = Side::new(&a.adapter);
    let me = other.handle(&other);
    assert_eq!(other.run(&write(4, me, RemoteMemory::default(), Segment::default())), CompletionStatus::Ok);
}
