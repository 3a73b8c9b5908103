//! A queue that a GPU drives unregisters and frees the memory that its kernels use only after they have ended, and
//! leaks it otherwise. It waits for no other kernel. The tests run on the pretended CUDA driver.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cudarc::driver::{LaunchConfig, PushKernelArg};
use efa_gda::ErrorKind;
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::measure::{Load, Producer};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::status::DeviceError;
use efa_gda_sys::device::{EFA_GDA_BAD_RECORD, EFA_GDA_PROXY_STOPPED};
use efa_gda_test_support::assert_error;
use efa_gda_test_support::cuda::{self, Driver};
use support::kernel::Kernel;
use support::side::{Side, bytes_of, introduce, pattern, post_without_doorbell};
use support::{assert_no_violations, with_pretended_gpu};

/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: i32 = 999;

fn pretended(body: impl FnOnce(&Gpu, &Side, &Driver)) {
    with_pretended_gpu(&[], |adapter, gpu| {
        body(gpu, &Side::open(&Query::new()), &Driver::loaded());
        assert_no_violations(adapter);
    });
}

fn queue(gpu: &Gpu, side: &Side) -> GpuQueue {
    GpuQueue::new(side.queue(), gpu).unwrap()
}

/// Runs a kernel that ends when `body` returns or panics.
fn under_a_kernel(body: impl FnOnce(&AtomicU32)) {
    let Kernel { function, stream } = Kernel::load(cuda::IMAGE.to_vec(), "pretend_gpu_hold_kernel");
    // A kernel whose end is not observed may read this word until the process ends. Each test is a process, so each
    // test has its own word.
    static ENDED: AtomicU32 = AtomicU32::new(0);
    let address = ENDED.as_ptr() as u64;
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes one address, that of a static word.
    unsafe { stream.launch_builder(&function).arg(&address).launch(config) }.unwrap();
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            ENDED.store(1, Ordering::Release);
        }
    }
    let _end = End;
    body(&ENDED);
}

#[test]
fn no_end_of_a_queue_waits_for_other_kernels() {
    pretended(|gpu, side, driver| {
        /// A way to end a queue, with its name.
        type End = (&'static str, fn(GpuQueue));
        let ends: [End; 4] = [
            ("close", |queue| queue.close().unwrap()),
            ("destroy", |queue| queue.destroy().unwrap()),
            ("unmap", |queue| drop(queue.unmap().unwrap())),
            ("drop", drop),
        ];
        let queues = ends.map(|(name, end)| (name, end, queue(gpu, side)));
        // The kernel ends after this scope, so an end that waited for it would wait for ever; each kernel of a queue of
        // this library has ended.
        under_a_kernel(|word| {
            for (name, end, queue) in queues {
                end(queue);
                assert_eq!(word.load(Ordering::Acquire), 0, "{name}");
            }
            assert_eq!(driver.registered(), 0);
        });
    });
}

#[test]
fn a_queue_is_made_while_another_thread_captures_a_graph() {
    pretended(|gpu, side, driver| {
        driver.capture(true);
        let mut queue = queue(gpu, side);
        assert_eq!(driver.capture_mode(), 0, "the thread's mode is restored");
        driver.capture(false);
        queue.quiet(Duration::from_secs(30)).unwrap();
        queue.close().unwrap();
    });
}

#[test]
fn after_an_old_cuda_error_a_dropped_queue_still_unregisters_its_pages() {
    pretended(|gpu, side, driver| {
        let (first, second) = (queue(gpu, side), queue(gpu, side));
        driver.set_result(c"cuStreamDestroy", UNKNOWN);
        // The streams are destroyed before the pages are unregistered, and the context keeps their error.
        drop(first);
        driver.set_result(c"cuStreamDestroy", 0);
        drop(second);
        assert_eq!(driver.registered(), 0);
    });
}

#[test]
fn a_queue_is_unmapped_while_another_thread_captures_a_graph() {
    pretended(|gpu, side, driver| {
        let queue = queue(gpu, side);
        driver.capture(true);
        queue.unmap().unwrap();
        assert_eq!(driver.registered(), 0);
    });
}

#[test]
fn a_queue_of_a_lost_context_is_unmapped() {
    pretended(|gpu, side, driver| {
        let queue = queue(gpu, side);
        // CUDA_ERROR_LAUNCH_FAILED
        driver.set_result(c"cuStreamQuery", 719);
        queue.unmap().unwrap();
        assert_eq!(driver.registered(), 0);
    });
}

#[test]
fn a_queue_whose_kernels_may_run_is_returned_by_close_and_leaked_by_drop() {
    pretended(|gpu, side, driver| {
        let queue = queue(gpu, side);
        driver.set_result(c"cuStreamQuery", UNKNOWN);
        let registered = driver.registered();
        let refused = queue.unmap().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "may still use the queue");
        let queue = refused.queue.unwrap();
        let refused = queue.destroy().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "may still use the queue");
        let queue = refused.queue.unwrap();
        drop(queue);
        assert_eq!(driver.registered(), registered);
    });
}

/// The word that the waits of a queue's device code read on the host.
fn abort_word(queue: &MappedQueue) -> u32 {
    // SAFETY: the word is an atomic that the queue owns.
    unsafe { queue.state().abort.read_volatile() }
}

#[test]
fn a_queue_detached_before_its_kernels_ended_aborts_the_waits_of_the_host_too() {
    pretended(|gpu, side, driver| {
        let proxy = DoorbellProxy::without_thread();
        let (queue, _) =
            GpuQueue::with_doorbell(side.queue(), gpu, DoorbellMode::Record.into(), &proxy).unwrap();
        driver.set_result(c"cuStreamQuery", UNKNOWN);
        let refused = queue.unmap().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "may still use the queue");
        let queue = refused.queue.unwrap();
        driver.set_result(c"cuStreamQuery", 0);
        let queue = queue.unmap().unwrap();
        assert_eq!(
            (queue.poison(), abort_word(&queue)),
            (Some(DeviceError::ProxyStopped), EFA_GDA_PROXY_STOPPED)
        );
    });
}

#[test]
fn a_bad_record_that_is_found_while_a_queue_is_unmapped_puts_it_out_of_service() {
    pretended(|gpu, side, _| {
        let proxy = DoorbellProxy::without_thread();
        let mut queue = side.queue();
        queue.set_doorbell(DoorbellMode::Record, &proxy).unwrap();
        // SAFETY: the record is an atomic word that the queue's registration owns.
        unsafe { AtomicU32::from_ptr(queue.state().sq.doorbell) }.store(u32::MAX, Ordering::Release);
        let queue = GpuQueue::new(queue, gpu).unwrap().unmap().unwrap();
        assert_eq!((queue.poison(), abort_word(&queue)), (Some(DeviceError::BadRecord), EFA_GDA_BAD_RECORD));
    });
}

#[test]
fn a_queue_in_a_launch_refuses_host_calls() {
    pretended(|gpu, side, _| {
        let (mut first, second) = (queue(gpu, side), side.queue());
        let peer = introduce(first.mapped(), &second);
        let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
        let put = WorkRequest::write(peer, &source, target.remote());
        let launch = first.begin_launch();
        assert_error!(first.execute(&put).unwrap_err(), ErrorKind::Busy, "launch(es) use the queue", "1");
        assert_error!(
            first.quiet(Duration::from_secs(1)).unwrap_err(),
            ErrorKind::Busy,
            "launch(es) use the queue",
            "1"
        );
        let measured = first.measure_latency(&put, Producer::Warp, 1);
        assert_error!(measured.unwrap_err(), ErrorKind::Busy, "launch(es) use the queue", "1");
        drop(launch);
        assert_eq!(first.execute(&put).unwrap().completed, 1);
    });
}

#[test]
fn a_queue_with_unrung_entries_stays_mapped() {
    pretended(|gpu, side, driver| {
        let (first, second) = (queue(gpu, side), side.queue());
        let peer = introduce(first.mapped(), &second);
        let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
        let args = WorkRequest::write(peer, &source, target.remote()).arguments(first.mapped()).unwrap();
        // SAFETY: the arguments are for this queue, and no kernel uses it. The pretended GPU's memory is the host's.
        unsafe { post_without_doorbell(first.device_address(), &args) };
        let registered = driver.registered();
        let refused = first.close().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "never rung for (1)");
        let mut queue = refused.queue.unwrap();
        assert_eq!(driver.registered(), registered);
        assert_eq!(queue.quiet(Duration::from_secs(30)).unwrap().completed, 1);
        queue.close().unwrap();
        assert_eq!((driver.registered(), bytes_of(&target)), (0, pattern(64)));
    });
}

#[test]
fn a_queue_in_a_launch_is_not_destroyed_and_is_leaked_by_drop() {
    pretended(|gpu, side, driver| {
        let queue = queue(gpu, side);
        let (launch, registered) = (queue.begin_launch(), driver.registered());
        let refused = queue.destroy().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "1 launch(es)");
        let queue = refused.queue.unwrap();
        drop(queue);
        drop(launch);
        assert_eq!(driver.registered(), registered);
    });
}

#[test]
fn a_load_with_an_incomplete_warp_is_refused_on_a_gpu() {
    pretended(|gpu, side, _| {
        let (first, second) = (queue(gpu, side), side.queue());
        let peer = introduce(first.mapped(), &second);
        let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
        let put = WorkRequest::write(peer, &source, target.remote());
        let load =
            Load { producer: Producer::Warp, shared: true, blocks: 1, threads: 33, calls: 1, per_call: 1 };
        let measured = GpuQueue::measure_rate(&mut [first], &[put], &load);
        assert_error!(measured.unwrap_err(), ErrorKind::Unsupported, "is not possible on this queue");
    });
}
