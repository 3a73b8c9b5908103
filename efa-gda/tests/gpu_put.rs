//! Queues that a GPU drives; the software adapter executes the kernels' requests. Without a GPU, each test is skipped
//! with the reason.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::fabric::{Buffer, Query};
use efa_gda::queue::WorkRequest;
use efa_gda::smaps::MemoryKind;
use efa_gda::status::DeviceError;
use efa_gda::wire::CompletionStatus;
use efa_gda::{ErrorKind, Progress};
use efa_gda_test_support::assert_error;
use support::side::{Blocks, bytes_of, with_wrong_key};
use support::{with_gpu, with_gpu_pair};

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
    with_gpu_pair(&Query::new(), &[], |mut pair, _, _| {
        assert!(pair.first.registered().iter().all(|part| part.kind == MemoryKind::Ordinary));
        for length in [0, 1, 63, 64, 4096, (1 << 20) + 1] {
            let [source, target] = pair.regions(length);
            let put = WorkRequest::write(pair.peer, &source, target.remote());
            let report = pair.first.execute(&put).unwrap();
            assert_eq!((report.posted, report.completed), (1, 1));
            assert!(bytes_of(&target) == bytes_of(&source), "{length} bytes");
        }
        pair.first.close().unwrap();
    });
}

#[test]
fn two_hundred_thousand_writes_from_the_gpu_arrive_past_every_wrap() {
    with_gpu_pair(&Query::new(), &[], |mut pair, _, _| {
        const COUNT: u64 = 200_000;
        let Blocks { put, source, target } = pair.blocks(COUNT);
        let report = pair.first.execute(&put.timeout(Duration::from_secs(30))).unwrap();
        assert_eq!((report.posted, report.completed), (COUNT, COUNT));
        assert!(bytes_of(&target) == bytes_of(&source));
    });
}

#[test]
fn the_kernel_reads_inline_bytes() {
    with_gpu_pair(&Query::new().wide_entries(true), &[], |mut pair, _, _| {
        let [source, target] = pair.regions(80);
        pair.first.execute(&WorkRequest::inline_write(pair.peer, &source, target.remote())).unwrap();
        assert!(bytes_of(&target) == bytes_of(&source));
    });
}

#[test]
fn an_error_completion_reaches_the_poster_with_its_status() {
    with_gpu_pair(&Query::new(), &[], |mut pair, _, _| {
        let [source, target] = pair.regions(64);
        let wrong = WorkRequest::write(pair.peer, &source, with_wrong_key(target.remote()));
        let error = pair.first.execute(&wrong).unwrap_err();
        let ErrorKind::FailedRequest { status, .. } = error.kind() else { panic!("{error:?}") };
        assert_eq!(status, CompletionStatus::RemoteBadAddress);
    });
}

#[test]
fn a_wait_for_a_stalled_adapter_times_out_and_poisons_the_queue() {
    with_gpu_pair(&Query::new(), &[], |mut pair, adapter, _| {
        let [source, target] = pair.regions(64);
        adapter.hold(true);
        let put = WorkRequest::write(pair.peer, &source, target.remote());
        let error = pair.first.execute(&put.timeout(Duration::from_millis(50))).unwrap_err();
        assert_error!(error, ErrorKind::Device(_));
        let Progress { in_flight, .. } = error.progress().unwrap();
        let ErrorKind::Device(error) = error.kind() else { panic!("{error:?}") };
        assert_eq!((error, in_flight), (DeviceError::TimeoutCompletion, 1));
        assert_eq!(pair.first.mapped().poison(), Some(DeviceError::TimeoutCompletion));
        adapter.hold(false);
        pair.first.destroy().unwrap();
    });
}
