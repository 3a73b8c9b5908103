//! Memory of a GPU as source and target of writes, reads, sends and completions. With the pretended CUDA driver, the host
//! executor drives the queue; with a real GPU, the GPU does.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use efa_gda::ErrorKind;
use efa_gda::fabric::{Access, DeviceMemory, Dmabuf, Query, Region};
use efa_gda::gpu::{Gpu, GpuMemory};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{Receives, WorkRequest};
use efa_gda_test_support::assert_error;
use efa_gda_test_support::cuda::{self, Driver};
use efa_gda_test_support::{Need, missing, skip};
use support::side::{Blocks, Side, arrived, bytes_of, gpu_bytes, gpu_region, introduce, pattern};
use support::{SoftAdapter, assert_no_violations, with_gpu, with_gpu_pair, with_soft_adapter};

/// More bytes than the adapter moves in one copy.
const BYTES: usize = (512 << 10) + 24;
const WAIT: Duration = Duration::from_secs(20);

/// Variables with which the software adapter can access memory of the pretended GPU, and of a real one.
const PRETENDED: [(&str, &str); 2] = [("SOFTEFA_HMEM", "1"), ("SOFTEFA_LIBCUDA", cuda::LIBRARY)];
const REAL: [(&str, &str); 2] = [("SOFTEFA_HMEM", "1"), ("SOFTEFA_MR_DMABUF", "1")];

/// Runs `body` with the pretended CUDA driver behind the software adapter.
fn with_driver(body: impl FnOnce(&SoftAdapter, &Driver)) {
    with_soft_adapter(&PRETENDED, |adapter| body(adapter, &Driver::loaded()));
}

fn gpu_memory() -> Query {
    Query::new().gpu_memory(true)
}

fn side() -> Side {
    Side::open(&gpu_memory())
}

/// Sets its flag when it is dropped.
struct FlagOnDrop(Arc<AtomicBool>);

impl Drop for FlagOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn no_dmabuf() -> Result<Dmabuf, String> {
    Err("a fake".into())
}

fn pretended_memory(gpu: &Driver, bytes: &[u8]) -> DeviceMemory {
    // SAFETY: the pretended driver keeps its memory until the process ends.
    unsafe { DeviceMemory::new(gpu.memory(bytes), bytes.len(), 0, no_dmabuf(), Arc::new(())) }.unwrap()
}

fn pretended_region(side: &Side, gpu: &Driver, bytes: &[u8]) -> Region {
    side.domain.register_device(pretended_memory(gpu, bytes), Access::ALL).unwrap().0
}

#[test]
fn writes_reads_and_sends_between_gpu_memories_move_the_bytes() {
    with_driver(|adapter, gpu| {
        let side = side();
        let (mut first, mut second, peer) = side.pair();
        let source = pretended_region(&side, gpu, &pattern(BYTES));
        let (written, read) =
            (pretended_region(&side, gpu, &[0; BYTES]), pretended_region(&side, gpu, &[0; BYTES]));
        first.execute(&WorkRequest::write(peer, &source, written.remote())).unwrap();
        assert!(gpu.read(written.address(), BYTES) == pattern(BYTES), "written");
        first.execute(&WorkRequest::read(peer, &read, source.remote())).unwrap();
        assert!(gpu.read(read.address(), BYTES) == pattern(BYTES), "read");
        let inbox = pretended_region(&side, gpu, &[0; 8192]);
        second.post_receives(&Receives::new(&inbox).bytes(8192)).unwrap();
        first.execute(&WorkRequest::send(peer, &source).bytes(8000)).unwrap();
        assert_eq!(arrived(second.receive_many(1, WAIT)).length, 8000);
        assert!(gpu.read(inbox.address(), 8000) == pattern(8000), "sent");
        assert_no_violations(adapter);
    });
}

#[test]
fn a_write_between_host_and_gpu_memory_moves_the_bytes() {
    with_driver(|_, gpu| {
        let side = side();
        let (mut first, _second, peer) = side.pair();
        let (host, back) = (side.region(&pattern(5000)), side.region(&[0; 5000]));
        let on_gpu = pretended_region(&side, gpu, &[0; 5000]);
        first.execute(&WorkRequest::write(peer, &host, on_gpu.remote())).unwrap();
        assert!(gpu.read(on_gpu.address(), 5000) == pattern(5000), "to the GPU");
        first.execute(&WorkRequest::write(peer, &on_gpu, back.remote())).unwrap();
        assert!(bytes_of(&back) == pattern(5000), "from the GPU");
    });
}

#[test]
fn an_inline_put_from_the_host_does_not_read_gpu_memory() {
    with_driver(|_, gpu| {
        let side = Side::open(&Query::new().gpu_memory(true).wide_entries(true));
        let (mut first, _second, peer) = side.pair();
        let (source, target) = (pretended_region(&side, gpu, &[1; 64]), side.region(&[0; 64]));
        let error = first.execute(&WorkRequest::inline_write(peer, &source, target.remote())).unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "is not possible on this queue");
    });
}

#[test]
fn a_region_retains_gpu_memory_until_its_last_use() {
    with_driver(|_, gpu| {
        let side = side();
        let (_first, _second, peer) = side.pair();
        let freed = Arc::new(AtomicBool::new(false));
        let owner = Arc::new(FlagOnDrop(freed.clone()));
        // SAFETY: as in `pretended_memory`.
        let memory = unsafe { DeviceMemory::new(gpu.memory(&[0; 64]), 64, 0, no_dmabuf(), owner) }.unwrap();
        let (region, _) = side.domain.register_device(memory, Access::ALL).unwrap();
        let put = WorkRequest::write(peer, &region, region.remote());
        assert_error!(region.clone().close().unwrap_err(), ErrorKind::Busy);
        drop(region);
        assert!(!freed.load(Ordering::Relaxed), "a work request still refers to the memory");
        drop(put);
        assert!(freed.load(Ordering::Relaxed));
    });
}

#[test]
fn an_error_of_registration_names_the_reason_of_both_attempts() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let owner = Arc::new(());
        // SAFETY: the domain refuses the memory, so nothing accesses it.
        let memory = unsafe { DeviceMemory::new(0x7000_0000, 64, 0, no_dmabuf(), owner) }.unwrap();
        let error = side.domain.register_device(memory, Access::ALL).unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "as a dmabuf: a fake; by address: ", "without FI_HMEM");
    });
}

#[test]
fn gpu_memory_is_zeroed_and_copies_past_its_end_are_refused() {
    with_gpu(&REAL, |_, gpu| {
        let memory = GpuMemory::zeroed(gpu, 1000).unwrap();
        let mut bytes = [1; 1000];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 1000]);
        memory.write(990, &[7; 10]).unwrap();
        assert!(memory.write(991, &[7; 10]).is_err() && memory.read(usize::MAX, &mut [0]).is_err());
        memory.read(985, &mut bytes[..15]).unwrap();
        assert_eq!(bytes[..15], [0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    });
}

#[test]
fn the_gpu_writes_reads_and_sends_its_memory() {
    with_gpu_pair(&gpu_memory(), &REAL, |mut pair, _, gpu| {
        let on_gpu = |bytes: &[u8]| gpu_region(&pair.side, gpu, bytes).0;
        for length in [1, 64, 4096, BYTES] {
            let (source, target) = (on_gpu(&pattern(length)), on_gpu(&vec![0; length]));
            pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote())).unwrap();
            assert!(gpu_bytes(&target) == pattern(length), "{length} bytes written");
            let read = on_gpu(&vec![0; length]);
            pair.first.execute(&WorkRequest::read(pair.peer, &read, source.remote())).unwrap();
            assert!(gpu_bytes(&read) == pattern(length), "{length} bytes read");
        }
        let (source, inbox) = (on_gpu(&pattern(8000)), on_gpu(&[0; 8000]));
        pair.second.post_receives(&Receives::new(&inbox).bytes(8000)).unwrap();
        pair.first.execute(&WorkRequest::send(pair.peer, &source)).unwrap();
        assert_eq!(arrived(pair.second.receive_many(1, WAIT)).length, 8000);
        assert!(gpu_bytes(&inbox) == pattern(8000), "sent");
        pair.first.close().unwrap();
    });
}

#[test]
fn many_writes_from_gpu_memory_arrive_whole() {
    with_gpu_pair(&gpu_memory(), &REAL, |mut pair, _, gpu| {
        const COUNT: u64 = 20_000;
        let (source, _) = gpu_region(&pair.side, gpu, &pattern(64 * COUNT as usize));
        let (target, _) = gpu_region(&pair.side, gpu, &vec![0; source.len()]);
        let put = WorkRequest::write(pair.peer, &source, target.remote()).bytes(64).count(COUNT).stride(64);
        assert_eq!(pair.first.execute(&put.timeout(WAIT)).unwrap().completed, COUNT);
        assert!(gpu_bytes(&target) == gpu_bytes(&source));
    });
}

#[test]
fn a_kernel_reads_inline_bytes_from_gpu_memory() {
    with_gpu_pair(&gpu_memory().wide_entries(true), &REAL, |mut pair, _, gpu| {
        let (source, target) = (gpu_region(&pair.side, gpu, &pattern(80)).0, pair.zeroes(80));
        pair.first.execute(&WorkRequest::inline_write(pair.peer, &source, target.remote())).unwrap();
        assert!(bytes_of(&target) == pattern(80));
    });
}

#[test]
fn the_gpu_polls_completions_in_its_memory() {
    with_gpu(&REAL, |adapter, gpu| {
        let side = side();
        let ops = side.domain.gda_ops().unwrap();
        let (completions, why) = gpu.completion_queue(&ops, 8192).unwrap();
        if let Some(why) = why {
            return skip(format!("this machine's GPU memory takes no completions: {why}"));
        }
        let (first, second) = (side.queue_on(completions), side.queue());
        let (blocks, mut first) = (Blocks::new(&side, introduce(&first, &second), 500), first);
        let error = first.execute(&blocks.put).unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "is not possible on this queue");
        let mut first = GpuQueue::new(first, gpu).unwrap();
        assert!(first.registered().iter().all(|part| part.part != "completion queue"));
        assert_eq!(first.execute(&blocks.put).unwrap().completed, 500);
        blocks.assert_arrived();
        assert_no_violations(adapter);
    });
}

/// The doorbells of both queues are on one page, which a process can register with CUDA only once.
#[test]
fn two_gpus_post_to_one_adapter() {
    with_gpu(&REAL, |adapter, first| {
        const COUNT: u64 = 20_000;
        if Gpu::count().unwrap() < 2 {
            return missing(Need::SecondGpu, "no second GPU");
        }
        let second = Gpu::open(1).unwrap();
        let side = side();
        let (one, two) = (side.queue(), side.queue());
        let (to_two, to_one) = (introduce(&one, &two), introduce(&two, &one));
        let queues = [(one, first, to_two), (two, &second, to_one)]
            .map(|(queue, gpu, peer)| (GpuQueue::new(queue, gpu).unwrap(), gpu, peer));
        // Each GPU writes from its memory into the other GPU's.
        let memory = |gpu: &Gpu, bytes: &[u8]| gpu_region(&side, gpu, bytes).0;
        let sources = [first, &second].map(|gpu| memory(gpu, &pattern(64 * COUNT as usize)));
        let targets = [&second, first].map(|gpu| memory(gpu, &vec![0; 64 * COUNT as usize]));
        // A queue closes after both have ended: until then the other one writes to it.
        let queues = std::thread::scope(|scope| {
            let sides = queues.into_iter().zip(sources.iter().zip(&targets));
            let threads = sides.map(|((mut queue, _, peer), (source, target))| {
                scope.spawn(move || {
                    let put =
                        WorkRequest::write(peer, source, target.remote()).bytes(64).count(COUNT).stride(64);
                    assert_eq!(queue.execute(&put.timeout(WAIT)).unwrap().completed, COUNT);
                    queue
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        for queue in queues {
            queue.close().unwrap();
        }
        for target in &targets {
            assert!(gpu_bytes(target) == pattern(64 * COUNT as usize));
        }
        assert_no_violations(adapter);
    });
}
