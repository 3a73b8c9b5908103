//! The library's whole way to a GPU, over a CUDA driver that pretends: which rung a queue takes where the
//! driver refuses to map some of it, and what a queue that is dropped does to a kernel that posts. What real
//! GPUs do is `gpu_rungs.rs`'s.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::doorbell::{DoorbellChoice, DoorbellMode, DoorbellProxy, ProxyOptions};
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::{GpuCloseError, GpuQueue, RefusedMode};
use efa_gda::queue::{ReceiveError, WorkRequest};
use efa_gda_test_support::cuda::{self, Driver};
use support::kernel::Kernel;
use support::load::drop_under_a_load;
use support::side::{Side, bytes_of, introduce, pattern, post_without_doorbell};
use support::{assert_no_violations, with_pretended_gpu};

/// The places of a queue in the order in which they are mapped.
const SEND_QUEUE: &str = "1";
const DOORBELL: &str = "2";
const COMPLETION_QUEUE: &str = "3";

/// `CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS` of cuda.h.
const UNREGISTERED: &str = "88";

/// Runs `body` where the driver refuses one place.
fn refusing(place: &str, body: impl FnOnce(&Gpu, &Side, &DoorbellProxy)) {
    pretending(&[("PRETEND_GPU_REFUSES", place)], body);
}

/// Runs `body` on the pretended driver with these variables.
fn pretending(variables: &[(&str, &str)], body: impl FnOnce(&Gpu, &Side, &DoorbellProxy)) {
    with_pretended_gpu(variables, |adapter, gpu| {
        let proxy = DoorbellProxy::start(&ProxyOptions::new()).unwrap();
        body(gpu, &Side::open(&Query::new()), &proxy);
        assert_no_violations(adapter);
    });
}

/// What `auto` takes, and what was refused before.
fn taken(gpu: &Gpu, side: &Side, proxy: &DoorbellProxy) -> (DoorbellMode, Vec<DoorbellMode>) {
    let (queue, refused) = moving(gpu, side, proxy);
    let rung = queue.doorbell_mode();
    queue.close().unwrap();
    (rung, refused.into_iter().map(|refused| refused.mode).collect())
}

/// A queue on the rung that `auto` takes, after it moved bytes.
fn moving(gpu: &Gpu, side: &Side, proxy: &DoorbellProxy) -> (GpuQueue, Vec<RefusedMode>) {
    let (first, second) = (side.queue(), side.queue());
    let peer = introduce(&first, &second);
    let (mut first, refused) = GpuQueue::with_doorbell(first, gpu, DoorbellChoice::Auto, proxy).unwrap();
    let (source, target) = (side.region(&pattern(64 * 10_000)), side.region(&[0; 64 * 10_000]));
    let put = WorkRequest::write(peer, &source, target.remote()).bytes(64).count(10_000).stride(64);
    first.execute(&put).unwrap();
    assert!(bytes_of(&target) == bytes_of(&source));
    (first, refused)
}

#[test]
fn where_everything_maps_the_device_rings() {
    refusing("", |gpu, side, proxy| {
        assert_eq!(taken(gpu, side, proxy), (DoorbellMode::Direct, vec![]));
        assert_eq!(proxy.counts().entries, 0);
    });
}

#[test]
fn without_the_doorbell_the_host_rings_from_a_record() {
    refusing(DOORBELL, |gpu, side, proxy| {
        assert_eq!(taken(gpu, side, proxy), (DoorbellMode::Record, vec![DoorbellMode::Direct]));
        assert_eq!(proxy.counts().entries, 10_000);
    });
}

#[test]
fn without_the_send_queue_the_host_copies_and_rings() {
    refusing(SEND_QUEUE, |gpu, side, proxy| {
        assert_eq!(
            taken(gpu, side, proxy),
            (DoorbellMode::Staged, vec![DoorbellMode::Direct, DoorbellMode::Record])
        );
    });
}

#[test]
fn without_the_completion_queue_there_is_no_rung_and_the_queue_comes_back() {
    refusing(COMPLETION_QUEUE, |gpu, side, proxy| {
        let error = GpuQueue::with_doorbell(side.queue(), gpu, DoorbellChoice::Auto, proxy).unwrap_err();
        assert!(error.error.to_string().contains("cuMemHostRegister"), "{error}");
        error.queue.close().unwrap();
    });
}

#[test]
fn a_completion_queue_that_is_not_registered_is_read_where_the_gpu_can() {
    let variables = [("PRETEND_GPU_REFUSES", COMPLETION_QUEUE), ("PRETEND_GPU_ATTRIBUTES", UNREGISTERED)];
    pretending(&variables, |gpu, side, proxy| {
        let (queue, _) = moving(gpu, side, proxy);
        let how = |name| queue.registered().into_iter().find(|part| part.part == name).unwrap().how;
        assert_eq!(how("send queue"), "registered as device map, portable");
        assert!(how("completion queue").starts_with("not registered"), "{:?}", queue.registered());
        assert_eq!(queue.doorbell_mode(), DoorbellMode::Direct);
        queue.close().unwrap();
    });
}

#[test]
fn what_kernels_write_is_registered_or_does_not_map() {
    let variables = [("PRETEND_GPU_REFUSES", DOORBELL), ("PRETEND_GPU_ATTRIBUTES", UNREGISTERED)];
    pretending(&variables, |gpu, side, proxy| {
        assert_eq!(taken(gpu, side, proxy), (DoorbellMode::Record, vec![DoorbellMode::Direct]));
    });
}

#[test]
fn a_rung_that_was_forced_is_taken_or_refused_and_no_other() {
    refusing(DOORBELL, |gpu, side, proxy| {
        assert!(GpuQueue::with_doorbell(side.queue(), gpu, DoorbellMode::Direct.into(), proxy).is_err());
        let (queue, refused) =
            GpuQueue::with_doorbell(side.queue(), gpu, DoorbellMode::Staged.into(), proxy).unwrap();
        assert_eq!((queue.doorbell_mode(), refused), (DoorbellMode::Staged, vec![]));
    });
}

#[test]
fn after_a_copy_whose_end_was_not_told_no_other_writes_to_its_memory() {
    refusing("", |gpu, side, proxy| {
        let (queue, _) = GpuQueue::with_doorbell(side.queue(), gpu, DoorbellChoice::Auto, proxy).unwrap();
        // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and then no longer.
        for (look, answer) in [("the copy's own", 900), ("the next", 0)] {
            Driver::loaded().set_result(c"cuStreamQuery", answer);
            assert_eq!(queue.snapshot().unwrap_err().cuda_result(), Some(900), "{look}");
        }
        queue.destroy().unwrap();
    });
}

#[test]
fn a_snapshot_beside_a_captured_graph_is_taken() {
    refusing("", |gpu, side, proxy| {
        let (queue, _) = GpuQueue::with_doorbell(side.queue(), gpu, DoorbellChoice::Auto, proxy).unwrap();
        Driver::loaded().capture(true);
        assert_eq!(queue.snapshot().unwrap().in_flight(), 0);
        queue.close().unwrap();
    });
}

#[test]
fn a_queue_dropped_while_a_kernel_posts_ends_the_kernel_and_rings_nothing_stray() {
    refusing("", |gpu, side, proxy| {
        let kernel = Kernel::load(cuda::IMAGE.to_vec(), "efa_gda_load_kernel");
        for rung in [DoorbellMode::Record, DoorbellMode::Staged] {
            drop_under_a_load(&kernel, (gpu, side, proxy), rung);
        }
    });
}

#[test]
fn a_queue_that_comes_back_from_a_gpu_waits_as_before() {
    pretending(&[], |gpu, side, proxy| {
        for rung in [DoorbellMode::Direct, DoorbellMode::Record, DoorbellMode::Staged] {
            let (mut first, second) = (side.queue(), side.queue());
            let peer = introduce(&first, &second);
            let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
            // More than the ring holds, so that there is something to wait for.
            let put = WorkRequest::write(peer, &source, target.remote()).count(9000);
            for _ in 0..3 {
                first.set_doorbell(rung, proxy).unwrap();
                let mut on_gpu = GpuQueue::new(first, gpu).unwrap();
                assert_eq!(on_gpu.execute(&put).unwrap().completed, 9000, "{rung}");
                first = on_gpu.unmap().unwrap();
                assert_eq!(first.execute(&put).unwrap().completed, 9000, "{rung}");
                assert!(
                    matches!(first.receive(Duration::from_millis(1)), Err(ReceiveError::Timeout)),
                    "{rung}"
                );
            }
            first.close().unwrap();
        }
    });
}

#[test]
fn queues_of_one_adapter_map_into_two_gpus() {
    pretending(&[("PRETEND_GPU_TWO", "1")], |gpu, side, proxy| {
        let other = Gpu::open(1).unwrap();
        let (queue, _) = moving(gpu, side, proxy);
        let (second, refused) = moving(&other, side, proxy);
        assert!(refused.is_empty(), "their doorbells lie on one page: {refused:?}");
        queue.close().unwrap();
        assert_ne!(Driver::loaded().registered(), 0, "the second GPU's queue is there");
        second.close().unwrap();
        assert_eq!(Driver::loaded().registered(), 0);
    });
}

#[test]
fn a_staging_ring_with_entries_never_rung_for_is_not_unmapped() {
    pretending(&[], |gpu, side, proxy| {
        let (first, second) = (side.queue(), side.queue());
        let peer = introduce(&first, &second);
        let (queue, _) =
            GpuQueue::with_doorbell(first, gpu, DoorbellChoice::Only(DoorbellMode::Staged), proxy).unwrap();
        let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
        let args = WorkRequest::write(peer, &source, target.remote()).arguments(queue.mapped()).unwrap();
        // SAFETY: arguments of this queue, which no kernel uses; the pretended GPU's memory is the host's.
        unsafe { post_without_doorbell(queue.device_address(), &args) };
        let GpuCloseError::Unrung { mut queue, entries: 1 } = queue.unmap().unwrap_err() else {
            panic!("unmapped")
        };
        assert_eq!(queue.quiet(Duration::from_secs(30)).unwrap().completed, 1);
        queue.unmap().unwrap().close().unwrap();
        assert_eq!(bytes_of(&target), pattern(64));
    });
}
