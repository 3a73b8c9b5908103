//! Objects that are dropped instead of destroyed: an adapter with registered memory, and the attributes of calls that
//! fail.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

#[test]
fn a_dropped_adapter_waits_for_the_access_to_its_memory() {
    let (mut a, b, to_b, _) = pair();
    let from = Buffer::new(&a, 8, Access::LOCAL_READ);
    let memory = Arc::new(BlockedMemory::default());
    let (pd, access) = (b.pd, Access::REMOTE_WRITE);
    let attr = MemoryRegionAttr { pd, address: 0, length: 8, access, memory: memory.clone() };
    let key = b.adapter.register_memory(attr).unwrap().remote;
    a.post(&write(1, to_b, RemoteMemory { address: 0, key }, from.segment(0, 8)));
    until("the access", || (memory.accesses.load(Ordering::Acquire) > 0).then_some(()));
    let accessed = memory.clone();
    let dropped = thread::spawn(move || {
        drop(b);
        accessed.is_free.load(Ordering::Acquire)
    });
    // A drop that does not wait ends here, usually.
    (0..1000).take_while(|_| !dropped.is_finished()).for_each(|_| efa_gda_test_support::rest());
    memory.is_free.store(true, Ordering::Release);
    assert!(dropped.join().unwrap(), "the drop returned during an access");
    assert_eq!(a.completion().status, CompletionStatus::Ok);
}

/// Memory of a frontend that calls the adapter when it is dropped.
struct CallsBack(Arc<Adapter>);

impl Memory for CallsBack {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
        Ok(())
    }
}

impl Drop for CallsBack {
    fn drop(&mut self) {
        self.0.allocate_domain().unwrap();
    }
}

type Call = fn(&Adapter, ProtectionDomain, Arc<dyn Memory>) -> DeviceError;

fn register(adapter: &Adapter, pd: ProtectionDomain, memory: Arc<dyn Memory>) -> DeviceError {
    adapter.free_domain(pd).unwrap();
    let attr = MemoryRegionAttr { pd, address: 0, length: 8, access: Access::ALL, memory };
    adapter.register_memory(attr).unwrap_err()
}

fn create_completion_queue(adapter: &Adapter, _: ProtectionDomain, memory: Arc<dyn Memory>) -> DeviceError {
    let backing = CompletionBacking::Indirect { memory, address: 0 };
    let attr = CompletionQueueAttr { entries: 0, backing, ..CompletionQueueAttr::default() };
    adapter.create_completion_queue(attr).unwrap_err()
}

fn create_queue_pair(adapter: &Adapter, pd: ProtectionDomain, memory: Arc<dyn Memory>) -> DeviceError {
    let attr = CompletionQueueAttr { entries: 4, ..CompletionQueueAttr::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    let counter = CompletionCounter::mirrored((memory.clone(), 0), (memory, 8));
    let counters = vec![(Counted::SEND, Arc::new(counter))];
    let attr = QueuePairAttr { sq_depth: 0, counters, ..QueuePairAttr::new(pd, cq.number) };
    adapter.create_queue_pair(attr).unwrap_err()
}

fn attach_counter(adapter: &Adapter, _: ProtectionDomain, memory: Arc<dyn Memory>) -> DeviceError {
    let counter = CompletionCounter::mirrored((memory.clone(), 0), (memory, 8));
    adapter.attach_counter(QueuePairNumber::new(9), Counted::SEND, Arc::new(counter)).unwrap_err()
}

#[test]
fn a_call_that_fails_drops_the_memory_that_it_was_given_without_a_lock() {
    let calls: [(Call, &str); 4] = [
        (register, "register_memory"),
        (create_completion_queue, "create_completion_queue"),
        (create_queue_pair, "create_queue_pair"),
        (attach_counter, "attach_counter"),
    ];
    for (call, name) in calls {
        let adapter = adapter(&Network::new(), 1);
        let pd = adapter.allocate_domain().unwrap();
        // A call that drops the memory under the network's lock never returns, because the memory calls the adapter.
        let call = thread::spawn(move || call(&adapter, pd, Arc::new(CallsBack(adapter.clone()))));
        until(name, || call.is_finished().then_some(()));
        call.join().unwrap();
    }
}
