//! Loads that benchmarks time, on the software adapter: every request of a load arrives and completes, and a load that
//! cannot be measured is refused. No test asserts on a time.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use efa_gda::fabric::{MemoryRegion, Query, RemoteRegion};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::measure::{Load, Producer};
use efa_gda::queue::{MappedQueue, WorkError, WorkRequest};
use efa_gda::wire::{CompletionStatus, Peer, RemoteKey};
use support::side::{Side, bytes_of, pattern};
use support::{assert_no_violations, with_gpu, with_soft_adapter};

/// Queues that write to themselves.
fn queues(side: &Side, count: usize) -> (Vec<MappedQueue>, Vec<Peer>) {
    let queues: Vec<MappedQueue> = (0..count).map(|_| side.queue()).collect();
    let itself = |queue: &MappedQueue| queue.insert_peer(&queue.endpoint().address().unwrap()).unwrap();
    let peers = queues.iter().map(itself).collect();
    (queues, peers)
}

/// Source and target of 128 blocks of 64 bytes; each lap writes every block once.
fn memory(side: &Side) -> (MemoryRegion, MemoryRegion) {
    (side.region(&pattern(64 * 128)), side.region(&[0; 64 * 128]))
}

fn puts(peers: &[Peer], source: &MemoryRegion, target: RemoteRegion) -> Vec<WorkRequest> {
    let put = |peer: &Peer| WorkRequest::write(*peer, source, target).bytes(64).stride(64).count(128);
    peers.iter().map(put).collect()
}

const OWNED: Load =
    Load { producer: Producer::Warp, shared: false, blocks: 3, threads: 32, calls: 40, per_call: 32 };
const SHARED: Load = Load { shared: true, ..OWNED };

#[test]
fn producers_that_own_their_queues_write_every_block_and_all_requests_complete() {
    with_soft_adapter(&[], |adapter| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 3);
        let (source, target) = memory(&side);
        let puts = puts(&peers, &source, target.remote());
        let rate = MappedQueue::measure_rate(&mut queues, &puts, &OWNED).unwrap();
        assert_eq!(rate.requests, 3 * 40 * 32);
        assert!(bytes_of(&target) == bytes_of(&source));
        assert!(queues.iter().all(|queue| queue.in_flight() == 0));
        assert_no_violations(adapter);
    });
}

#[test]
fn producers_that_share_a_queue_write_every_block_and_all_requests_complete() {
    with_soft_adapter(&[], |adapter| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 1);
        let (source, target) = memory(&side);
        let puts = puts(&peers, &source, target.remote());
        let rate = MappedQueue::measure_rate(&mut queues, &puts, &SHARED).unwrap();
        assert_eq!(rate.requests, 3 * 40 * 32);
        assert!(bytes_of(&target) == bytes_of(&source));
        assert_no_violations(adapter);
    });
}

#[test]
fn every_call_of_a_producer_has_a_latency_sample() {
    with_soft_adapter(&[], |adapter| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 1);
        let (source, target) = memory(&side);
        let put = puts(&peers, &source, target.remote()).remove(0);
        for producer in [Producer::Thread, Producer::Warp, Producer::Block] {
            let samples = queues[0].measure_latency(&put, producer, 200).unwrap();
            assert_eq!(samples.len(), 200);
            assert!(
                samples.iter().all(|sample| sample.post > 0.0 && sample.completion > 0.0),
                "{producer:?}"
            );
        }
        assert!(bytes_of(&target) == bytes_of(&source));
        assert_no_violations(adapter);
    });
}

#[test]
fn a_load_whose_writes_fail_returns_their_status() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 1);
        let (source, target) = memory(&side);
        let right = target.remote();
        let wrong = RemoteRegion { key: RemoteKey::new(right.key.get() ^ 0x5555), ..right };
        let error =
            MappedQueue::measure_rate(&mut queues, &puts(&peers, &source, wrong), &SHARED).unwrap_err();
        let WorkError::Completion { status, .. } = error else { panic!("{error:?}") };
        assert_eq!(status, CompletionStatus::RemoteBadAddress);
    });
}

#[test]
fn reads_odd_counts_and_blocks_without_a_queue_are_refused() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 1);
        let (source, target) = memory(&side);
        let read = [WorkRequest::read(peers[0], &target, source.remote())];
        let refused = |result: Result<_, WorkError>| matches!(result, Err(WorkError::Unsupported { .. }));
        assert!(refused(MappedQueue::measure_rate(&mut queues, &read, &SHARED)));
        let puts = puts(&peers, &source, target.remote());
        let odd = [puts[0].clone().count(3)];
        assert!(refused(MappedQueue::measure_rate(&mut queues, &odd, &SHARED)), "three blocks of memory");
        assert!(
            refused(MappedQueue::measure_rate(&mut queues, &puts, &OWNED)),
            "three thread blocks, one queue"
        );
    });
}

#[test]
fn queues_without_work_requests_and_work_requests_without_queues_are_refused() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 2);
        let (source, target) = memory(&side);
        let puts = puts(&peers, &source, target.remote());
        let refused = |result: Result<_, WorkError>| matches!(result, Err(WorkError::Unsupported { .. }));
        assert!(
            refused(MappedQueue::measure_rate(&mut queues, &puts[..1], &SHARED)),
            "two queues, one work request"
        );
        assert!(
            refused(MappedQueue::measure_rate(&mut queues[..1], &puts, &SHARED)),
            "one queue, two work requests"
        );
    });
}

#[test]
fn loads_with_no_producers_or_with_too_many_to_count_are_refused() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 1);
        let (source, target) = memory(&side);
        let puts = puts(&peers, &source, target.remote());
        // The number of producers wraps to 0.
        let many = Load { producer: Producer::Thread, blocks: 1 << 31, threads: 2, ..SHARED };
        for load in [many, Load { blocks: 0, ..SHARED }, Load { threads: 0, ..SHARED }] {
            let measured = MappedQueue::measure_rate(&mut queues, &puts, &load);
            assert!(matches!(measured, Err(WorkError::Unsupported { .. })), "{load:?}");
        }
    });
}

#[test]
fn producers_on_a_gpu_write_every_block_and_all_requests_complete() {
    with_gpu(&[], |adapter, gpu| {
        let side = Side::open(&Query::new());
        for load in [OWNED, SHARED, Load { producer: Producer::Block, threads: 128, ..OWNED }] {
            let (queues, peers) = queues(&side, if load.shared { 1 } else { 3 });
            let (source, target) = memory(&side);
            let mut queues: Vec<GpuQueue> =
                queues.into_iter().map(|queue| GpuQueue::new(queue, gpu).unwrap()).collect();
            let puts = puts(&peers, &source, target.remote());
            let rate = GpuQueue::measure_rate(&mut queues, &puts, &load).unwrap();
            assert_eq!(rate.requests, 3 * 40 * 32);
            assert!(bytes_of(&target) == bytes_of(&source), "{load:?}");
            let samples = queues[0].measure_latency(&puts[0], Producer::Warp, 100).unwrap();
            assert!(samples.iter().all(|sample| sample.post > 0.0 && sample.completion > 0.0));
            queues.into_iter().for_each(|queue| queue.close().unwrap());
        }
        assert_no_violations(adapter);
    });
}
