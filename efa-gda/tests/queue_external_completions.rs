//! Completion queues in memory of the caller, on the software adapter.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use efa_gda::ErrorKind;
use efa_gda::fabric::{DeviceMemory, Dmabuf, ExternalMemory, Query};
use efa_gda::queue::measure::{Load, Producer};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda_sys::device::EFA_GDA_TURN_BITS;
use efa_gda_test_support::assert_error;
use support::side::{Blocks, Side, introduce};
use support::{assert_no_violations, with_soft_adapter};

/// Zeroed memory with a file descriptor, as memory of a GPU has a dmabuf. The mapping is never removed.
fn shared_memory(length: usize) -> (OwnedFd, *mut u8) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the descriptor is new and has no other owner, and the mapping is new.
    unsafe {
        let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"completions".as_ptr(), libc::MFD_CLOEXEC));
        let raw = std::os::fd::AsRawFd::as_raw_fd(&fd);
        assert_eq!(libc::ftruncate(raw, length as libc::off_t), 0);
        let start = libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, raw, 0);
        assert_ne!(start, libc::MAP_FAILED);
        (fd, start.cast())
    }
}

#[test]
fn completions_arrive_in_memory_of_the_caller() {
    with_soft_adapter(&[], |adapter| {
        let side = Side::open(&Query::new());
        let (fd, start) = shared_memory(8192 * 32 + 4096);
        let memory = ExternalMemory {
            dmabuf: fd.as_fd(),
            offset: 4096,
            length: 8192 * 32,
            buffer: start.wrapping_add(4096),
        };
        // SAFETY: the memory stays mapped until the process ends.
        let completions = unsafe { side.domain.gda_ops().unwrap().cq_open_ext(&memory, 8192) }.unwrap();
        drop(fd);
        let mut first = side.queue_on(completions);
        let second = side.queue();
        assert_eq!(first.exposure().cq.buffer.as_ptr(), start.wrapping_add(4096));
        let blocks = Blocks::new(&side, introduce(&first, &second), 20_000);
        assert_eq!(first.execute(&blocks.put).unwrap().completed, 20_000, "two laps of the completion queue");
        blocks.assert_arrived();
        assert_no_violations(adapter);
    });
}

/// A queue whose completions are in memory that stands for a GPU's.
fn with_completions_in_gpu_memory(side: &Side) -> MappedQueue {
    let (file, start) = shared_memory(8192 * 32);
    let dmabuf = Ok(Dmabuf { file, offset: 0 });
    // SAFETY: the memory stays mapped until the process ends, and no GPU accesses it.
    let memory = unsafe { DeviceMemory::new(start as u64, 8192 * 32, 0, dmabuf, Arc::new(())) };
    // SAFETY: a new file holds zeroes.
    let completions = unsafe { side.domain.gda_ops().unwrap().cq_open_device(memory.unwrap(), 8192) };
    side.queue_on(completions.unwrap())
}

#[test]
fn a_busy_queue_that_the_host_cannot_poll_is_handed_back_and_quiet_names_the_gpu() {
    with_soft_adapter(&[], |_| {
        let queue = with_completions_in_gpu_memory(&Side::open(&Query::new()));
        // SAFETY: no kernel uses the queue; the word says that one request was rung for.
        unsafe {
            let words = &mut *queue.as_ptr().as_ptr();
            (words.reserve.word, words.turn.word) = (1, 1 << EFA_GDA_TURN_BITS);
        }
        let refused = queue.close().unwrap_err();
        assert_error!(
            refused.error,
            ErrorKind::Busy,
            "1 request(s) of it were rung",
            "wait for them with quiet"
        );
        let mut queue = refused.queue.unwrap();
        let error = queue.quiet(Duration::from_secs(1)).unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "map it into that GPU");
        queue.destroy().unwrap();
    });
}

#[test]
fn the_host_refuses_to_poll_completions_in_gpu_memory() {
    with_soft_adapter(&[], |adapter| {
        let side = Side::open(&Query::new());
        let (mut first, second) = (with_completions_in_gpu_memory(&side), side.queue());
        let put = WorkRequest::write(
            introduce(&first, &second),
            side.region(&[1; 64]),
            side.region(&[0; 64]).remote(),
        );
        let load =
            Load { producer: Producer::Thread, shared: false, blocks: 1, threads: 1, calls: 1, per_call: 1 };
        let (queues, puts) = (std::slice::from_mut(&mut first), std::slice::from_ref(&put));
        for refused in [
            MappedQueue::measure_rate(queues, puts, &load).map(drop),
            queues[0].measure_latency(&put, Producer::Thread, 1).map(drop),
            queues[0].execute(&put).map(drop),
            queues[0].quiet(Duration::from_secs(1)).map(drop),
        ] {
            assert_error!(refused.unwrap_err(), ErrorKind::Unsupported, "is not possible on this queue");
        }
        assert_eq!(adapter.statistics().doorbells, 0);
    });
}
