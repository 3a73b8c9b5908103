//! How an engine shares its work among the clients of an adapter: no client keeps another from its share. Tests count
//! accesses and completions, not time.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// Memory that records how often another memory had been accessed when it was first read.
struct Witness {
    accesses: Arc<AtomicU64>,
    seen: AtomicU64,
    client: u64,
}

impl Memory for Witness {
    fn read(&self, _address: u64, _into: &mut [u8]) -> Result<(), MemoryFault> {
        let seen = self.accesses.load(Ordering::Acquire);
        let _ = self.seen.compare_exchange(u64::MAX, seen, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, _address: u64, _from: &[u8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn client(&self) -> u64 {
        self.client
    }
}

/// Memory of which each read takes a time.
struct TediousMemory {
    accesses: Arc<AtomicU64>,
    time: Duration,
    client: u64,
}

impl Memory for TediousMemory {
    fn read(&self, _address: u64, _into: &mut [u8]) -> Result<(), MemoryFault> {
        self.accesses.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(self.time);
        Ok(())
    }

    fn write(&self, _address: u64, _from: &[u8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn client(&self) -> u64 {
        self.client
    }
}

/// A client's number, the highest of all.
const HONEST: u64 = 100;

/// Executes `requests` requests of `bytes` bytes on each of `queue_pairs` queue pairs of each of `clients`, whose reads
/// take `time`, and one on a queue pair of `client` that was created among theirs. Returns how many of their reads came
/// before its own.
fn reads_before_one_of(
    client: u64,
    clients: &[u64],
    queue_pairs: usize,
    requests: u64,
    bytes: u32,
    time: Duration,
) -> u64 {
    let adapter = adapter(&Network::new(), 1);
    adapter.isolate_clients().unwrap();
    adapter.hold(true);
    let accesses = Arc::new(AtomicU64::new(0));
    let witness = Arc::new(Witness { accesses: accesses.clone(), seen: AtomicU64::new(u64::MAX), client });
    let post = |client, memory: Arc<dyn Memory>, requests| {
        let mut side = Side::with(&adapter, |attr| attr.client = client);
        let own = side.handle(&side);
        let attr = MemoryRegionAttr {
            pd: side.pd,
            address: 0,
            length: bytes.into(),
            access: Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
            memory,
        };
        let keys = adapter.register_memory(attr).unwrap();
        let remote = RemoteMemory { address: 0, key: keys.remote };
        for id in 0..requests {
            side.post(&write(id, own, remote, Segment { address: 0, length: bytes, key: keys.local }));
        }
        side
    };
    let others: Vec<u64> = clients.iter().flat_map(|client| vec![*client; queue_pairs]).collect();
    let post_all = |clients: &[u64]| -> Vec<Side> {
        let memory = |client| TediousMemory { accesses: accesses.clone(), time, client };
        clients.iter().map(|client| post(*client, Arc::new(memory(*client)), requests)).collect()
    };
    let (before, after) = others.split_at(others.len() / 2 + 1);
    let mut sides = post_all(before);
    let mut honest = post(client, witness.clone(), 1);
    sides.extend(post_all(after));
    honest.await_fetched(others.len() as u64 * requests + 1);
    adapter.hold(false);
    assert_eq!(honest.completion().status, CompletionStatus::Ok);
    for side in sides {
        adapter.set_queue_pair_state(side.qp.number, QueuePairState::Error).unwrap();
    }
    witness.seen.load(Ordering::Acquire)
}

#[test]
fn a_client_whose_accesses_are_slow_delays_others_by_one_or_two_at_a_time() {
    let reads = reads_before_one_of(HONEST, &[7], 2, 32, 8, Duration::from_millis(3));
    assert!(reads <= 2, "{reads} accesses came before another client's");
}

#[test]
fn a_client_with_many_queue_pairs_has_one_share_as_others() {
    // A share is at most 4 MiB, and each request of 64 KiB costs somewhat more.
    let reads = reads_before_one_of(HONEST, &[7], 32, 16, 64 << 10, Duration::ZERO);
    assert!(reads <= 64, "{reads} accesses came before another client's");
}

#[test]
fn clients_that_block_by_turns_do_not_keep_another_from_its_share() {
    let reads = reads_before_one_of(HONEST, &[7, 8, 9], 1, 16, 8, Duration::from_millis(15));
    assert!(reads <= 3, "{reads} accesses came before another client's");
}

#[test]
fn queue_pairs_behind_one_whose_memory_blocks_are_polled() {
    // An access makes the engine go on with the next queue pair, or the engine that replaces it begin with that. Each
    // of the five may come twice before the third.
    let reads = reads_before_one_of(7, &[7], 4, 16, 8, Duration::from_millis(40));
    assert!(reads <= 8, "{reads} accesses of other queue pairs came before those of the third");
}

#[test]
fn a_client_that_leaves_little_of_the_work_does_not_shorten_the_share_of_the_next() {
    const BYTES: u32 = 64 << 10;
    // An engine does work of 4 MiB before it releases the lock, and a request of 64 KiB costs 72 KiB.
    const ALMOST_ALL: u64 = 56;
    const HONEST_REQUESTS: u64 = 20;
    let adapter = adapter(&Network::new(), 1);
    let pd = adapter.allocate_domain().unwrap();
    let attr = CompletionQueueAttr { entries: 1024, ..CompletionQueueAttr::default() };
    // One completion queue for all, so that the completions' order is that of the shares.
    let cq = adapter.create_completion_queue(attr).unwrap();
    let buffer = |access| Buffer::in_domain(&adapter, pd, BYTES as usize, access);
    let (from, to) = (buffer(Access::LOCAL_READ), buffer(Access::REMOTE_WRITE));
    adapter.hold(true);
    let mut sides = [(7, ALMOST_ALL), (50, HONEST_REQUESTS), (90, ALMOST_ALL)].map(|(client, requests)| {
        let mut side = Side::on(&adapter, pd, cq.clone(), |attr| attr.client = client);
        let itself = side.handle(&side);
        (0..requests).for_each(|id| side.post(&write(id, itself, to.remote(0), from.segment(0, BYTES))));
        side
    });
    sides[0].await_fetched(2 * ALMOST_ALL + HONEST_REQUESTS);
    adapter.hold(false);
    let order: Vec<_> =
        (0..2 * ALMOST_ALL + HONEST_REQUESTS).map(|_| sides[0].completion().queue_pair).collect();
    let is_honest = |number: &QueuePairNumber| *number == sides[1].qp.number;
    let (first, last) = (order.iter().position(is_honest), order.iter().rposition(is_honest));
    let apart = last.unwrap() - first.unwrap() + 1 - HONEST_REQUESTS as usize;
    assert_eq!(apart, 0, "requests of other clients between those of one share");
}
