//! Queues that a GPU drives; the software adapter executes the kernels' requests. Without a GPU, each test is skipped
//! with the reason.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::fabric::{Buffer, Query, RemoteRegion};
use efa_gda::gpu_queue::{GpuQueue, GpuQueueError};
use efa_gda::queue::{WorkError, WorkRequest};
use efa_gda::smaps::MemoryKind;
use efa_gda::status::DeviceError;
use efa_gda::wire::{CompletionStatus, RemoteKey};
use support::side::{Side, bytes_of, pattern};
use support::{assert_no_violations, with_gpu};

#[test]
fn pages_of_the_host_are_mapped_as_ordinary_memory() {
    with_gpu(&[], |_, gpu| {
        let memory = Buffer::zeroed(1 << 16).unwrap();
        let start = memory.as_ptr() as usize;
        // SAFETY: the buffer outlives both ranges.
        let (whole, part) = unsafe {
            (gpu.reach(start..start + memory.len()).unwrap(), gpu.reach(start + 64..start + 68).unwrap())
        };
        assert_eq!(whole.mapping().kind, MemoryKind::Ordinary);
        assert_eq!(whole.how(), "registered as device map, portable");
        assert_eq!(part.device_address(), whole.device_address() + 64);
    });
}

#[test]
fn read_only_memory_is_mapped_for_reading() {
    with_gpu(&[], |_, gpu| {
        const LENGTH: usize = 1 << 16;
        // SAFETY: the mapping is new, anonymous, and used only by this test.
        let memory = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let memory =
                libc::mmap(std::ptr::null_mut(), LENGTH, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            // Allocate the pages before write access is removed.
            memory.cast::<u8>().write_bytes(7, LENGTH);
            assert_eq!(libc::mprotect(memory, LENGTH, libc::PROT_READ), 0);
            memory
        };
        let start = memory as usize;
        // SAFETY: the memory stays mapped until the process ends.
        let reached = unsafe { gpu.reach(start..start + LENGTH) }.unwrap();
        assert!(reached.how().contains("read only"), "{}", reached.how());
        assert_ne!(reached.device_address(), 0);
    });
}

#[test]
fn a_write_from_the_gpu_arrives_whole() {
    with_gpu(&[], |adapter, gpu| {
        let side = Side::open(&Query::new());
        let (first, _second, peer) = side.pair();
        let mut first = GpuQueue::new(first, gpu).unwrap();
        assert!(first.registered().iter().all(|part| part.kind == MemoryKind::Ordinary));
        for length in [0, 1, 63, 64, 4096, (1 << 20) + 1] {
            let (source, target) = (side.region(&pattern(length)), side.region(&vec![0; length]));
            let report = first.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap();
            assert_eq!((report.posted, report.completed), (1, 1));
            assert!(bytes_of(&target) == bytes_of(&source), "{length} bytes");
        }
        assert_no_violations(adapter);
        first.close().unwrap();
    });
}

#[test]
fn two_hundred_thousand_writes_from_the_gpu_arrive_past_every_wrap() {
    with_gpu(&[], |adapter, gpu| {
        const COUNT: u64 = 200_000;
        let side = Side::open(&Query::new());
        let (first, _second, peer) = side.pair();
        let mut first = GpuQueue::new(first, gpu).unwrap();
        let source = side.region(&pattern(64 * COUNT as usize));
        let target = side.region(&vec![0; source.len()]);
        let put = WorkRequest::write(peer, &source, target.remote()).bytes(64).count(COUNT).stride(64);
        let report = first.execute(&put.timeout(Duration::from_secs(30))).unwrap();
        assert_eq!((report.posted, report.completed), (COUNT, COUNT));
        assert!(bytes_of(&target) == bytes_of(&source));
        assert_no_violations(adapter);
    });
}

#[test]
fn the_kernel_reads_inline_bytes() {
    with_gpu(&[], |adapter, gpu| {
        let side = Side::open(&Query::new().wide_entries(true));
        let (first, _second, peer) = side.pair();
        let mut first = GpuQueue::new(first, gpu).unwrap();
        let (source, target) = (side.region(&pattern(80)), side.region(&[0; 80]));
        first.execute(&WorkRequest::inline_write(peer, &source, target.remote())).unwrap();
        assert!(bytes_of(&target) == bytes_of(&source));
        assert_no_violations(adapter);
    });
}

#[test]
fn an_error_completion_reaches_the_poster_with_its_status() {
    with_gpu(&[], |_, gpu| {
        let side = Side::open(&Query::new());
        let (first, _second, peer) = side.pair();
        let mut first = GpuQueue::new(first, gpu).unwrap();
        let (source, target) = (side.region(&[1; 64]), side.region(&[0; 64]));
        let remote = target.remote();
        let wrong = RemoteRegion { key: RemoteKey::new(remote.key.get() ^ 0x5555), ..remote };
        let error = first.execute(&WorkRequest::write(peer, &source, wrong)).unwrap_err();
        let GpuQueueError::Work(WorkError::Completion { status, .. }) = error else { panic!("{error:?}") };
        assert_eq!(status, CompletionStatus::RemoteBadAddress);
    });
}

#[test]
fn a_wait_for_a_stalled_adapter_times_out_and_poisons_the_queue() {
    with_gpu(&[], |adapter, gpu| {
        let side = Side::open(&Query::new());
        let (first, _second, peer) = side.pair();
        let mut first = GpuQueue::new(first, gpu).unwrap();
        let (source, target) = (side.region(&[1; 64]), side.region(&[0; 64]));
        adapter.hold(true);
        let put = WorkRequest::write(peer, &source, target.remote()).timeout(Duration::from_millis(50));
        let error = first.execute(&put).unwrap_err();
        let GpuQueueError::Work(WorkError::Device { error, in_flight, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!((error, in_flight), (DeviceError::TimeoutCompletion, 1));
        assert_eq!(first.mapped().poison(), Some(DeviceError::TimeoutCompletion));
        adapter.hold(false);
        first.destroy().unwrap();
    });
}
