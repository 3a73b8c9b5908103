//! Completion counters whose words a GPU reads, in host memory and in GPU memory. With the pretended CUDA driver, the
//! tests check the words; with a real GPU, queues use them.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use efa_gda::fabric::{CompletionCounter, CountedOperations, DeviceMemory, Dmabuf, GdaOps, Query};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::wire::{CompletionStatus, Peer};
use efa_gda::{ErrorKind, Result};
use efa_gda_test_support::assert_error;
use efa_gda_test_support::cuda::{self, Driver};
use efa_gda_test_support::skip;
use support::side::{Blocks, Side, bytes_of, gpu_region, introduce, pattern, with_wrong_key};
use support::{assert_no_violations, with_gpu, with_soft_adapter};

const ON: [(&str, &str); 4] = [
    ("FI_EFA_USE_HW_CNTR", "1"),
    ("SOFTEFA_HW_CNTR", "1"),
    ("SOFTEFA_HMEM", "1"),
    ("SOFTEFA_MR_DMABUF", "1"),
];
const WAIT: Duration = Duration::from_secs(60);

fn side() -> Side {
    Side::open(&Query::new().gpu_memory(true))
}

fn ops(side: &Side) -> GdaOps {
    side.domain.gda_ops().unwrap()
}

/// A queue whose endpoint is bound to `counter`, but which does not use the counter yet.
fn counted(side: &Side, counter: &CompletionCounter) -> MappedQueue {
    side.counted_queue(counter, CountedOperations::TRANSMIT)
}

fn refused_for_its_key(put: Result<impl std::fmt::Debug>) {
    let error = put.unwrap_err();
    assert_error!(error, ErrorKind::FailedRequest { status: CompletionStatus::RemoteBadAddress, .. });
}

#[test]
fn the_adapter_writes_counters_into_a_gpus_memory() {
    let variables = [&ON[..], &[("SOFTEFA_LIBCUDA", cuda::LIBRARY)]].concat();
    with_soft_adapter(&variables, |_| {
        let (gpu, side) = (Driver::loaded(), side());
        let address = gpu.memory(&[0; 4096]);
        // SAFETY: the descriptor is new and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(cuda::unmappable()) };
        let dmabuf = Ok(Dmabuf { file, offset: 0 });
        // SAFETY: the pretended driver keeps its memory until the process ends.
        let memory = unsafe { DeviceMemory::new(address, 4096, 0, dmabuf, Arc::new(())) }.unwrap();
        let counter = ops(&side).cntr_open_device(memory).unwrap();
        let words = counter.words().unwrap();
        assert_eq!((words.success, words.error, words.device), (address, address + 128, Some(0)));
        let (mut first, second) = (counted(&side, &counter), side.queue());
        let (peer, region) = (introduce(&first, &second), side.region(&[7; 64]));
        first.execute(&WorkRequest::write(peer, &region, region.remote()).count(3)).unwrap();
        refused_for_its_key(first.execute(&WorkRequest::write(
            peer,
            &region,
            with_wrong_key(region.remote()),
        )));
        let word = |at| u64::from_ne_bytes(gpu.read(at, 8).try_into().unwrap());
        assert_eq!((word(words.success), word(words.error)), (3, 1));
        // Neither libfabric nor a queue on the host reads words that are not mapped into this process.
        assert_eq!((counter.successes().unwrap(), counter.errors().unwrap()), (None, None));
        let error = counted(&side, &counter).with_counters().unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "words of the counter cannot be read");
        let short = gpu.memory(&[0; 64]);
        // SAFETY: as above.
        let memory = unsafe { DeviceMemory::new(short, 64, 0, Err("short".into()), Arc::new(())) }.unwrap();
        assert!(ops(&side).cntr_open_device(memory).unwrap_err().to_string().contains("length 136 "));
    });
}

/// Executes `count` writes of 64 bytes, more than the ring holds, and one write with a wrong key; then both again.
fn write_twice_with_an_error(queue: &mut GpuQueue, side: &Side, peer: Peer, count: u64) {
    let entries = u64::from(queue.mapped().exposure().sq.num_entries);
    assert!(entries < count, "the ring must have fewer entries than the work request");
    for round in 1..=2 {
        let Blocks { source, target, put } = Blocks::new(side, peer, count);
        assert_eq!(queue.execute(&put.timeout(WAIT)).unwrap().completed, count);
        assert!(bytes_of(&target) == bytes_of(&source), "round {round}");
        refused_for_its_key(
            queue.execute(&WorkRequest::write(peer, &source, with_wrong_key(target.remote())).bytes(64)),
        );
        assert_eq!(queue.quiet(WAIT).unwrap().posted, 0);
        let snapshot = queue.snapshot().unwrap();
        println!("{snapshot}");
        assert_eq!(snapshot.counters, Some(Ok([round * count, round])));
        assert_eq!((snapshot.in_flight(), snapshot.state.error.count), (0, round as u32));
    }
}

#[test]
fn a_gpu_uses_counters_in_host_memory() {
    with_gpu(&ON, |adapter, gpu| {
        let side = side();
        let counter = ops(&side).cntr_open_host().unwrap();
        let (first, second) = (counted(&side, &counter).with_counters().unwrap(), side.queue());
        let peer = introduce(&first, &second);
        let mut first = GpuQueue::new(first, gpu).unwrap();
        println!("{:?}", first.registered());
        assert!(first.registered().iter().any(|part| part.part == "completion counter"));
        write_twice_with_an_error(&mut first, &side, peer, 50_000);
        assert_no_violations(adapter);
        first.close().unwrap();
        counter.close().unwrap();
    });
}

#[test]
fn a_gpu_uses_counters_in_its_memory() {
    with_gpu(&ON, |adapter, gpu| {
        let side = side();
        let (counter, why) = gpu.completion_counter(&ops(&side)).unwrap();
        if let Some(why) = why {
            return skip(format!("this machine's GPU memory takes no counters: {why}"));
        }
        let (first, second) = (counted(&side, &counter).with_counters().unwrap(), side.queue());
        let (peer, mut first) = (introduce(&first, &second), first);
        let (source, target) = (side.region(&[1; 64]), side.region(&[0; 64]));
        let error = first.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap_err();
        assert!(error.to_string().contains("its counters are in a GPU's memory"), "{error}");
        let mut first = GpuQueue::new(first, gpu).unwrap();
        assert!(first.registered().iter().all(|part| part.part != "completion counter"));
        write_twice_with_an_error(&mut first, &side, peer, 6_000);
        let (source, target) = (gpu_region(&side, gpu, &pattern(5000)).0, side.region(&[0; 5000]));
        first.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap();
        assert!(bytes_of(&target) == pattern(5000), "bytes from the GPU's memory");
        assert_no_violations(adapter);
        first.close().unwrap();
        counter.close().unwrap();
    });
}
