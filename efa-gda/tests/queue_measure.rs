//! Loads that benchmarks time, on the software adapter: every request of a load arrives and completes, and a load that
//! cannot be measured is refused. No test asserts on a time.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use efa_gda::ErrorKind;
use efa_gda::fabric::{Query, Region, RemoteRegion};
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::measure::{Load, Producer};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::wire::{CompletionStatus, Peer};
use efa_gda_test_support::assert_error;
use support::side::{Side, bytes_of, pattern, with_wrong_key};
use support::{assert_no_violations, with_gpu, with_soft_adapter};

/// Queues that write to themselves.
fn queues(side: &Side, count: usize) -> (Vec<MappedQueue>, Vec<Peer>) {
    let queues: Vec<MappedQueue> = (0..count).map(|_| side.queue()).collect();
    let itself = |queue: &MappedQueue| queue.insert_peer(&queue.address().unwrap()).unwrap();
    let peers = queues.iter().map(itself).collect();
    (queues, peers)
}

/// Source and target of 128 blocks of 64 bytes; each lap writes every block once.
fn memory(side: &Side) -> (Region, Region) {
    (side.region(&pattern(64 * 128)), side.region(&[0; 64 * 128]))
}

fn puts(peers: &[Peer], source: &Region, target: RemoteRegion) -> Vec<WorkRequest> {
    let put = |peer: &Peer| WorkRequest::write(*peer, source, target).bytes(64).stride(64).count(128);
    peers.iter().map(put).collect()
}

const OWNED: Load =
    Load { producer: Producer::Warp, shared: false, blocks: 3, threads: 32, calls: 40, per_call: 32 };
const SHARED: Load = Load { shared: true, ..OWNED };

/// Runs the load on the host, or on the GPU. Every block arrives, and every request completes.
fn run(load: &Load, gpu: Option<&Gpu>) {
    let side = Side::open(&Query::new());
    let (mut queues, peers) = queues(&side, if load.shared { 1 } else { 3 });
    let (source, target) = memory(&side);
    let puts = puts(&peers, &source, target.remote());
    let rate = match gpu {
        None => MappedQueue::measure_rate(&mut queues, &puts, load).unwrap(),
        Some(gpu) => {
            let map = |queue| GpuQueue::new(queue, gpu).unwrap();
            let mut on_gpu: Vec<_> = queues.drain(..).map(map).collect();
            let rate = GpuQueue::measure_rate(&mut on_gpu, &puts, load).unwrap();
            let samples = on_gpu[0].measure_latency(&puts[0], Producer::Warp, 100).unwrap();
            assert!(samples.iter().all(|sample| sample.post > 0.0 && sample.completion > 0.0));
            on_gpu.into_iter().for_each(|queue| queue.close().unwrap());
            rate
        }
    };
    assert_eq!(rate.requests, 3 * 40 * 32);
    assert!(bytes_of(&target) == bytes_of(&source), "{load:?}");
    assert!(queues.iter().all(|queue| queue.in_flight() == 0));
}

#[test]
fn producers_that_own_their_queues_write_every_block_and_all_requests_complete() {
    with_soft_adapter(&[], |adapter| {
        run(&OWNED, None);
        assert_no_violations(adapter);
    });
}

#[test]
fn producers_that_share_a_queue_write_every_block_and_all_requests_complete() {
    with_soft_adapter(&[], |adapter| {
        run(&SHARED, None);
        assert_no_violations(adapter);
    });
}

#[test]
fn producers_on_a_gpu_write_every_block_and_all_requests_complete() {
    with_gpu(&[], |adapter, gpu| {
        for load in [OWNED, SHARED, Load { producer: Producer::Block, threads: 128, ..OWNED }] {
            run(&load, Some(gpu));
        }
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
        let wrong = with_wrong_key(target.remote());
        let error =
            MappedQueue::measure_rate(&mut queues, &puts(&peers, &source, wrong), &SHARED).unwrap_err();
        let ErrorKind::FailedRequest { status, .. } = error.kind() else { panic!("{error:?}") };
        assert_eq!(status, CompletionStatus::RemoteBadAddress);
    });
}

#[test]
fn loads_that_cannot_be_measured_are_refused() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (mut two, peers) = queues(&side, 2);
        let (source, target) = memory(&side);
        let both = puts(&peers, &source, target.remote());
        let read = WorkRequest::read(peers[0], &target, source.remote());
        let odd = both[0].clone().count(3);
        // The number of producers wraps to 0.
        let many = Load { producer: Producer::Thread, blocks: 1 << 31, threads: 2, ..SHARED };
        let cases: [(usize, &[WorkRequest], Load, &str); 8] = [
            (1, &[read], SHARED, "a read"),
            (1, &[odd], SHARED, "three blocks of memory"),
            (1, &both[..1], OWNED, "three thread blocks, one queue"),
            (2, &both[..1], SHARED, "two queues, one work request"),
            (1, &both, SHARED, "one queue, two work requests"),
            (1, &both[..1], many, "too many producers to count"),
            (1, &both[..1], Load { blocks: 0, ..SHARED }, "no blocks"),
            (1, &both[..1], Load { threads: 0, ..SHARED }, "no threads"),
        ];
        for (queues, puts, load, case) in cases {
            let measured = MappedQueue::measure_rate(&mut two[..queues], puts, &load);
            let error = measured.expect_err(case);
            assert_error!(error, ErrorKind::Unsupported, "is not possible on this queue");
        }
    });
}
