//! Memory of a frontend that panics: what it fails, and what goes on.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// Memory of a frontend with a defect.
struct Panics;

impl Memory for Panics {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
        panic!("an injected panic")
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
        panic!("an injected panic")
    }
}

#[test]
fn memory_that_panics_fails_only_its_queue_pair() {
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
    let itself = other.handle(&other);
    assert_eq!(
        other.run(&write(4, itself, RemoteMemory::default(), Segment::default())),
        CompletionStatus::Ok
    );
}

#[test]
fn a_receive_whose_memory_panics_completes() {
    let (mut a, mut b, to_b, _) = pair();
    let attr =
        MemoryRegionAttr { pd: b.pd, address: 0, length: 64, access: Access::ALL, memory: Arc::new(Panics) };
    let key = b.adapter.register_memory(attr).unwrap().local;
    b.post_receive(5, Segment { address: 0, length: 64, key });
    let from = Buffer::new(&a, 64, Access::LOCAL_READ);
    assert_eq!(a.run(&send(1, to_b, &[from.segment(0, 64)])), CompletionStatus::QueuePairInternal);
    let completion = b.completion();
    assert_eq!((completion.id, completion.status), (RequestId::new(5), CompletionStatus::InvalidLocalKey));
    assert_eq!(b.adapter.queue_pair_state(b.qp.number), Ok(QueuePairState::Ready));
}

/// Memory that counts its accesses and always panics.
#[derive(Default)]
struct CountedPanics(AtomicU64);

impl Memory for CountedPanics {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
        self.0.fetch_add(1, Ordering::AcqRel);
        panic!("an injected panic")
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
        self.read(0, &mut [])
    }
}

#[test]
fn memory_of_a_completion_queue_that_panics_is_written_once_and_fails_no_queue_pair() {
    let adapter = adapter(&Network::new(), 1);
    let memory = Arc::new(CountedPanics::default());
    let backing = CompletionBacking::Indirect { memory: memory.clone(), address: 0 };
    let attr = CompletionQueueAttr { entries: 1024, backing, ..CompletionQueueAttr::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    let pd = adapter.allocate_domain().unwrap();
    let mut broken = Side::on(&adapter, pd, cq.clone(), |_| {});
    let mut sender = Side::new(&adapter);
    let (itself, to_broken) = (broken.handle(&broken), sender.handle(&broken));
    for id in 0..3 {
        broken.post_receive(id, Segment::default());
    }
    // The engine writes the receive completion for the sender, and then the completions of the queue pair itself.
    for id in 0..2 {
        assert_eq!(sender.run(&send_inline(id, to_broken, b"")), CompletionStatus::Ok);
    }
    broken.post(&write(3, itself, RemoteMemory::default(), Segment::default()));
    until("the request", || (adapter.statistics().entries == 3).then_some(()));
    assert_eq!(adapter.queue_pair_state(broken.qp.number), Ok(QueuePairState::Ready));
    assert_eq!(adapter.warnings(), [Warning::CompletionMemoryPanicked { queue: cq.number }]);

    // The receive that is still posted is flushed.
    adapter.destroy_queue_pair(broken.qp.number).unwrap();
    adapter.destroy_completion_queue(cq.number).unwrap();
    assert_eq!(memory.0.load(Ordering::Acquire), 1);
}

#[test]
fn memory_of_a_counter_that_panics_is_written_once_and_fails_no_queue_pair() {
    let (mut a, b, to_b, _) = pair();
    let memory = Arc::new(CountedPanics::default());
    let counter = Arc::new(CompletionCounter::mirrored((memory.clone(), 0), (memory.clone(), 8)));
    a.adapter.attach_counter(a.qp.number, Counted::WRITE, counter.clone()).unwrap();
    for id in 0..3 {
        let empty = write(id, to_b, RemoteMemory::default(), Segment::default());
        assert_eq!(a.run(&empty), CompletionStatus::Ok);
    }
    assert_eq!(a.adapter.warnings(), [Warning::CounterMemoryPanicked { queue_pair: a.qp.number }]);
    counter.add(true, 1);
    a.adapter.destroy_queue_pair(a.qp.number).unwrap();
    assert_eq!((counter.value(false), counter.value(true), counter.is_attached()), (3, 1, false));
    assert_eq!(memory.0.load(Ordering::Acquire), 1);
    drop(b);
}

/// Memory that panics from some time on.
#[derive(Default)]
struct Fragile {
    is_broken: AtomicBool,
}

impl Memory for Fragile {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
        assert!(!self.is_broken.load(Ordering::Acquire), "an injected panic");
        Ok(())
    }
}

#[test]
fn memory_that_panics_while_a_backlog_is_written_ends_only_its_completion_queue() {
    let adapter = adapter(&Network::new(), 1);
    let pd = adapter.allocate_domain().unwrap();
    let memory = Arc::new(Fragile::default());
    let backing = CompletionBacking::Indirect { memory: memory.clone(), address: 0 };
    let attr = CompletionQueueAttr { entries: 1, backing, ..CompletionQueueAttr::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    adapter.set_consumer_index(cq.number, 0).unwrap();
    let mut side = Side::on(&adapter, pd, cq.clone(), |_| {});
    let itself = side.handle(&side);
    for id in 0..2 {
        side.post(&write(id, itself, RemoteMemory::default(), Segment::default()));
    }
    until("a completion to wait", || (adapter.statistics().completions == 2).then_some(()));
    assert_eq!(adapter.statistics().overruns, 1);
    memory.is_broken.store(true, Ordering::Release);
    adapter.set_consumer_index(cq.number, 1).unwrap();
    assert_eq!(adapter.warnings().last(), Some(&Warning::CompletionMemoryPanicked { queue: cq.number }));

    let mut other = Side::new(&adapter);
    let itself = other.handle(&other);
    assert_eq!(
        other.run(&write(4, itself, RemoteMemory::default(), Segment::default())),
        CompletionStatus::Ok
    );
    adapter.destroy_queue_pair(side.qp.number).unwrap();
    adapter.destroy_completion_queue(cq.number).unwrap();
}
