//! Loads that benches time, on the software adapter: what they come to is whole, and what cannot be
//! measured is refused. No test looks at how long anything took.

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

/// 128 places of 64 bytes, of which each is written once a lap.
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
fn producers_that_own_their_queues_write_every_place_and_all_completes() {
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
fn producers_that_share_a_queue_write_every_place_and_all_completes() {
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
fn every_call_of_a_producer_has_its_latency() {
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
fn a_load_whose_writes_are_refused_ends_with_the_status() {
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
fn what_is_no_rdma_write_or_has_no_queue_of_its_own_is_refused() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 1);
        let (source, target) = memory(&side);
        let read = [WorkRequest::read(peers[0], &target, source.remote())];
        let refused = |result: Result<_, WorkError>| matches!(result, Err(WorkError::Unsupported { .. }));
        assert!(refused(MappedQueue::measure_rate(&mut queues, &read, &SHARED)));
        let puts = puts(&peers, &source, target.remote());
        let odd = [puts[0].clone().count(3)];
        assert!(refused(MappedQueue::measure_rate(&mut queues, &odd, &SHARED)), "three places");
        assert!(refused(MappedQueue::measure_rate(&mut queues, &puts, &OWNED)), "three blocks, one queue");
    });
}

#[test]
fn queues_without_puts_and_puts_without_queues_are_refused() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 2);
        let (source, target) = memory(&side);
        let puts = puts(&peers, &source, target.remote());
        let refused = |result: Result<_, WorkError>| matches!(result, Err(WorkError::Unsupported { .. }));
        assert!(refused(MappedQueue::measure_rate(&mut queues, &puts[..1], &SHARED)), "two queues, one put");
        assert!(refused(MappedQueue::measure_rate(&mut queues[..1], &puts, &SHARED)), "one queue, two puts");
    });
}

#[test]
fn loads_of_no_producers_or_of_more_than_can_be_counted_are_refused() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (mut queues, peers) = queues(&side, 1);
        let (source, target) = memory(&side);
        let puts = puts(&peers, &source, target.remote());
        // As many as wrap to 0.
        let many = Load { producer: Producer::Thread, blocks: 1 << 31, threads: 2, ..SHARED };
        for load in [many, Load { blocks: 0, ..SHARED }, Load { threads: 0, ..SHARED }] {
            let measured = MappedQueue::measure_rate(&mut queues, &puts, &load);
            assert!(matches!(measured, Err(WorkError::Unsupported { .. })), "{load:?}");
        }
    });
}

#[test]
fn a_gpus_producers_write_every_place_and_all_completes() {
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
