//! Counter values and completions that the adapter gathers before it writes them to memory that only calls reach,
//! like a GPU's.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::sync::{Arc, Mutex};

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// Memory from address 0 that records the writes to it.
#[derive(Default)]
struct RecordedWrites(Mutex<Vec<(u64, Vec<u8>)>>);

impl RecordedWrites {
    fn so_far(&self) -> Vec<(u64, Vec<u8>)> {
        self.0.lock().unwrap().clone()
    }
}

impl Memory for RecordedWrites {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault { address, length: into.len() as u64 })
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        self.0.lock().unwrap().push((address, from.to_vec()));
        Ok(())
    }
}

/// The addresses of a counter's words in recorded memory, and of the data.
const SUCCESS: u64 = 8;
const ERROR: u64 = 16;
const DATA: u64 = 1024;

fn word(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// Two sides. One counts requests in a counter that is mirrored to `memory`, and the target has that memory registered.
struct Mirrored {
    a: Side,
    memory: Arc<RecordedWrites>,
    counter: Arc<CompletionCounter>,
    /// A write of 8 bytes of `_source` to [`DATA`].
    request: Request,
    _source: Buffer,
    _b: Side,
}

fn mirrored(kinds: Counted, at_target: bool) -> Mirrored {
    let memory = Arc::new(RecordedWrites::default());
    let counter = Arc::new(CompletionCounter::mirrored((memory.clone(), SUCCESS), (memory.clone(), ERROR)));
    let (a, b, to_b, _) = pair();
    let counting = if at_target { &b } else { &a };
    counting.adapter.attach_counter(counting.qp.number, kinds, counter.clone()).unwrap();
    let attr = MemoryRegionAttr {
        pd: b.pd,
        address: DATA,
        length: 4096,
        access: Access::ALL,
        memory: memory.clone(),
    };
    let key = b.adapter.register_memory(attr).unwrap().remote;
    let source = Buffer::new(&a, 8, Access::ALL);
    let request = write(1, to_b, RemoteMemory { address: DATA, key }, source.segment(0, 8));
    Mirrored { a, memory, counter, request, _source: source, _b: b }
}

/// Holds the adapter. No round of its engine that began before still runs when this returns.
fn hold(side: &Side) {
    side.adapter.hold(true);
    // A call that changes objects waits for the engine.
    side.adapter.allocate_domain().unwrap();
}

fn elsewhere(request: Request) -> Request {
    let Operation::Write { local, .. } = request.operation else { unreachable!() };
    Request { operation: Operation::Write { remote: RemoteMemory::default(), local }, ..request }
}

#[test]
fn a_mirrored_counter_is_written_before_the_completion_that_it_counts() {
    let Mirrored { mut a, memory, counter, request, _source, _b } = mirrored(Counted::WRITE, false);
    counter.set(false, 6);
    assert_eq!(a.run(&request), CompletionStatus::Ok);
    assert_eq!(memory.so_far(), [(SUCCESS, word(6)), (DATA, word(0)), (SUCCESS, word(7))]);
    assert_eq!(a.run(&elsewhere(request)), CompletionStatus::RemoteBadAddress);
    assert_eq!(memory.so_far()[3..], [(ERROR, word(1))]);
}

#[test]
fn a_value_that_the_client_sets_is_written_even_if_it_is_the_same() {
    let memory = Arc::new(RecordedWrites::default());
    let counter = CompletionCounter::mirrored((memory.clone(), SUCCESS), (memory.clone(), ERROR));
    counter.set(false, 0);
    counter.set(false, 0);
    assert_eq!(memory.so_far(), [(SUCCESS, word(0)), (SUCCESS, word(0))]);
}

#[test]
fn one_write_of_a_mirrored_counter_counts_many_requests_after_their_data() {
    for (kinds, at_target) in [(Counted::WRITE, false), (Counted::REMOTE_WRITE, true)] {
        let Mirrored { mut a, memory, request, _source, _b, .. } = mirrored(kinds, at_target);
        hold(&a);
        (0..100).for_each(|_| a.post(&request));
        a.await_fetched(100);
        a.adapter.hold(false);
        (0..100).for_each(|_| assert_eq!(a.completion().status, CompletionStatus::Ok));
        let mut expected = vec![(DATA, word(0)); 100];
        expected.push((SUCCESS, word(100)));
        assert_eq!(memory.so_far(), expected, "at the target: {at_target}");
    }
}

#[test]
fn no_value_of_a_mirrored_counter_is_written_before_the_data_that_it_counts() {
    const REQUESTS: u64 = 5000;
    let Mirrored { mut a, memory, request, _source, _b, .. } = mirrored(Counted::REMOTE_WRITE, true);
    let depth = u64::from(a.qp.sq.num_entries);
    for number in 0..REQUESTS {
        if number >= depth {
            assert_eq!(a.completion().status, CompletionStatus::Ok);
        }
        a.post(&request);
    }
    (0..depth).for_each(|_| assert_eq!(a.completion().status, CompletionStatus::Ok));
    let (mut data, mut last) = (0, 0);
    for (address, bytes) in memory.so_far() {
        if address == DATA {
            data += 1;
            continue;
        }
        let value = u64::from_le_bytes(bytes.try_into().unwrap());
        assert!(last < value && value <= data, "value {value} after {last}, with the data of {data}");
        last = value;
    }
    assert_eq!((data, last), (REQUESTS, REQUESTS));
}

#[test]
fn an_error_is_written_before_the_successes_counted_with_it() {
    let Mirrored { mut a, memory, request, _source, _b, .. } = mirrored(Counted::WRITE, false);
    hold(&a);
    for request in [request, elsewhere(request), request] {
        a.post(&request);
    }
    a.await_fetched(3);
    a.adapter.hold(false);
    (0..3).for_each(|_| assert_eq!(a.completion().kind, CompletionKind::Send));
    assert_eq!(memory.so_far()[2..], [(ERROR, word(1)), (SUCCESS, word(2))]);
}

/// A completion queue. Asserts that no write changes a phase bit together with another byte of the completion.
struct PhaseLast {
    bytes: Mutex<Vec<u8>>,
    writes: Mutex<Vec<usize>>,
}

impl Memory for PhaseLast {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let at = address as usize;
        into.copy_from_slice(&self.bytes.lock().unwrap()[at..at + into.len()]);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let at = address as usize;
        let mut bytes = self.bytes.lock().unwrap();
        let mut after = bytes.clone();
        after[at..at + from.len()].copy_from_slice(from);
        for (before, after) in bytes.chunks(32).zip(after.chunks(32)) {
            let [old, new] = [before, after].map(|entry| entry[Completion::FLAGS_OFFSET]);
            let others = before[..Completion::FLAGS_OFFSET] != after[..Completion::FLAGS_OFFSET]
                || before[Completion::FLAGS_OFFSET + 1..] != after[Completion::FLAGS_OFFSET + 1..]
                || (old ^ new) & !1 != 0;
            assert!(
                !(others && Completion::phase(old) != Completion::phase(new)),
                "{before:x?} to {after:x?}"
            );
        }
        *bytes = after;
        self.writes.lock().unwrap().push(from.len() / 32);
        Ok(())
    }
}

#[test]
fn gathered_completions_are_written_together_with_their_phase_bits_last() {
    let network = Network::new();
    let adapter = adapter(&network, 1);
    let pd = adapter.allocate_domain().unwrap();
    let memory = Arc::new(PhaseLast { bytes: Mutex::new(vec![0; 8 * 32]), writes: Mutex::default() });
    let backing = CompletionBacking::Indirect { memory: memory.clone(), address: 0 };
    let attr = CompletionQueueAttr { entries: 8, backing, ..Default::default() };
    let cq = adapter.create_completion_queue(attr).unwrap();
    let mut side = Side::on(&adapter, pd, cq, |_| {});
    let itself = side.handle(&side);
    for first in [0, 5, 10] {
        hold(&side);
        for id in first..first + 5 {
            side.post(&write(id, itself, RemoteMemory::default(), Segment::default()));
        }
        side.await_fetched(first + 5);
        side.adapter.hold(false);
        until("the completions", || (side.adapter.statistics().completions == first + 5).then_some(()));
    }
    let bytes = memory.bytes.lock().unwrap();
    let entries = bytes.chunks(32).map(|entry| {
        let id = Completion::decode(entry, RequestIdWidth::Bits16).unwrap().id.get();
        (id, Completion::phase(entry[Completion::FLAGS_OFFSET]))
    });
    let second = (8..15).map(|id| (id, false));
    assert_eq!(entries.collect::<Vec<_>>(), second.chain([(7, true)]).collect::<Vec<_>>());
    assert_eq!(*memory.writes.lock().unwrap(), [5, 5, 3, 3, 2, 2, 5, 5], "completions in each write");
    assert_eq!(side.rules(), []);
}
