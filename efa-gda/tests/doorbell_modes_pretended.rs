//! Queues on the pretended CUDA driver: the doorbell mode that a queue takes if the driver refuses to map part of it,
//! and the end of a kernel that posts while its queue is dropped. `gpu_doorbell_modes.rs` tests real GPUs.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use cudarc::driver::{DevicePtr, LaunchConfig, PushKernelArg};
use efa_gda::ErrorKind;
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::{GpuQueue, RefusedMode};
use efa_gda::queue::{StoreWidth, WorkRequest};
use efa_gda_sys::device::{EFA_GDA_LOAD_OWNED, EFA_GDA_NOT_RUN, EFA_GDA_OK, efa_gda_load_args};
use efa_gda_test_support::assert_error;
use efa_gda_test_support::cuda::{self, Driver};
use support::kernel::Kernel;
use support::load::{Load, drop_under_a_load};
use support::side::{Blocks, Side, bytes_of, pattern, post_without_doorbell};
use support::{assert_no_violations, with_pretended_gpu};

/// The ranges of a queue, numbered in the order in which they are mapped.
const SEND_QUEUE: &str = "1";
const DOORBELL: &str = "2";
const COMPLETION_QUEUE: &str = "3";

/// `CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS` of cuda.h.
const UNREGISTERED: &str = "88";

/// Runs `body` on a driver that refuses to map one range.
fn refusing(range: &str, body: impl FnOnce(&Gpu, &Side, &DoorbellProxy)) {
    pretending(&[("PRETEND_GPU_REFUSES", range)], body);
}

/// Runs `body` on the pretended driver with these variables.
fn pretending(variables: &[(&str, &str)], body: impl FnOnce(&Gpu, &Side, &DoorbellProxy)) {
    with_pretended_gpu(variables, |adapter, gpu| {
        let proxy = DoorbellProxy::start().unwrap();
        body(gpu, &Side::open(&Query::new()), &proxy);
        assert_no_violations(adapter);
    });
}

/// The doorbell mode that `auto` takes, and the modes that were refused before it.
fn taken(gpu: &Gpu, side: &Side, proxy: &DoorbellProxy) -> (DoorbellMode, Vec<DoorbellMode>) {
    let (queue, refused) = moving(gpu, side, proxy);
    let mode = queue.doorbell_mode();
    queue.close().unwrap();
    (mode, refused.into_iter().map(|refused| refused.mode).collect())
}

/// A queue in the doorbell mode that `auto` takes, after it has moved bytes.
fn moving(gpu: &Gpu, side: &Side, proxy: &DoorbellProxy) -> (GpuQueue, Vec<RefusedMode>) {
    let (first, _second, peer) = side.pair();
    let (mut first, refused) = GpuQueue::with_doorbell(first, gpu, None, proxy).unwrap();
    let blocks = Blocks::new(side, peer, 10_000);
    first.execute(&blocks.put).unwrap();
    blocks.assert_arrived();
    (first, refused)
}

#[test]
fn auto_takes_direct_if_everything_maps() {
    refusing("", |gpu, side, proxy| {
        assert_eq!(taken(gpu, side, proxy), (DoorbellMode::Direct, vec![]));
        assert_eq!(proxy.rung(), 0);
    });
}

#[test]
fn auto_takes_record_if_the_doorbell_does_not_map() {
    refusing(DOORBELL, |gpu, side, proxy| {
        assert_eq!(taken(gpu, side, proxy), (DoorbellMode::Record, vec![DoorbellMode::Direct]));
        assert_eq!(proxy.rung(), 10_000);
    });
}

#[test]
fn auto_takes_staged_if_the_send_queue_does_not_map() {
    refusing(SEND_QUEUE, |gpu, side, proxy| {
        assert_eq!(
            taken(gpu, side, proxy),
            (DoorbellMode::Staged, vec![DoorbellMode::Direct, DoorbellMode::Record])
        );
    });
}

#[test]
fn a_gpu_with_pageable_access_reads_an_unregistered_completion_queue() {
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
fn a_gpu_with_pageable_access_still_needs_a_registered_doorbell() {
    let variables = [("PRETEND_GPU_REFUSES", DOORBELL), ("PRETEND_GPU_ATTRIBUTES", UNREGISTERED)];
    pretending(&variables, |gpu, side, proxy| {
        assert_eq!(taken(gpu, side, proxy), (DoorbellMode::Record, vec![DoorbellMode::Direct]));
    });
}

#[test]
fn after_a_copy_whose_end_is_unknown_no_later_copy_uses_its_memory() {
    refusing("", |gpu, side, proxy| {
        let (queue, _) = GpuQueue::with_doorbell(side.queue(), gpu, None, proxy).unwrap();
        // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for the first copy, success for the second.
        for (copy, result) in [("the failed copy", 900), ("the next copy", 0)] {
            Driver::loaded().set_result(c"cuStreamQuery", result);
            assert_eq!(queue.snapshot().unwrap_err().code(), Some(900), "{copy}");
        }
        queue.destroy().unwrap();
    });
}

#[test]
fn a_snapshot_succeeds_while_a_graph_is_captured() {
    refusing("", |gpu, side, proxy| {
        let (queue, _) = GpuQueue::with_doorbell(side.queue(), gpu, None, proxy).unwrap();
        Driver::loaded().capture(true);
        assert_eq!(queue.snapshot().unwrap().in_flight(), 0);
        queue.close().unwrap();
    });
}

#[test]
fn a_queue_dropped_while_a_kernel_posts_ends_the_kernel_and_rings_no_stray_doorbell() {
    refusing("", |gpu, side, proxy| {
        let kernel = Kernel::load(cuda::IMAGE.to_vec(), "efa_gda_load_kernel");
        for mode in [DoorbellMode::Record, DoorbellMode::Staged] {
            drop_under_a_load(&kernel, (gpu, side, proxy), mode);
        }
    });
}

/// Runs `efa_gda_load_kernel` on `queue` without posting. Returns its status.
fn status_of_a_kernel(queue: &GpuQueue) -> u32 {
    let Kernel { function, stream } = Kernel::load(cuda::IMAGE.to_vec(), "efa_gda_load_kernel");
    let status = stream.clone_htod(&[EFA_GDA_NOT_RUN]).unwrap();
    let launch = queue.begin_launch();
    let args = efa_gda_load_args {
        queues: launch.device_address(),
        status: status.device_ptr(&stream).0 as *mut u32,
        queue_count: 1,
        sharing: EFA_GDA_LOAD_OWNED,
        group: 1,
        ..Default::default()
    };
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes one struct by value, and what it points to outlives the copy, which waits for the kernel.
    unsafe { stream.launch_builder(&function).arg(&Load(args)).launch(config) }.unwrap();
    let ended = stream.clone_dtoh(&status).unwrap();
    stream.synchronize().unwrap();
    ended[0]
}

#[test]
fn every_kernel_posts_to_a_queue_of_any_width_of_stores() {
    pretending(&[], |gpu, side, _| {
        for (width, bytes) in [(StoreWidth::Eight, 8), (StoreWidth::Sixteen, 16), (StoreWidth::Auto, 16)] {
            let (first, _second, peer) = side.pair();
            let mut queue = GpuQueue::new(first.with_store_width(width), gpu).unwrap();
            assert_eq!((queue.store_bytes(), status_of_a_kernel(&queue)), (bytes, EFA_GDA_OK), "{width:?}");
            let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
            queue.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap();
            assert_eq!(bytes_of(&target), pattern(64), "{width:?}");
        }
    });
}

#[test]
fn a_queue_unmapped_from_a_gpu_waits_for_completions_again() {
    pretending(&[], |gpu, side, proxy| {
        for mode in [DoorbellMode::Direct, DoorbellMode::Record, DoorbellMode::Staged] {
            let (mut first, _second, peer) = side.pair();
            let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
            // More requests than the ring holds, so that the poster must wait.
            let put = WorkRequest::write(peer, &source, target.remote()).count(9000);
            for _ in 0..3 {
                first.set_doorbell(mode, proxy).unwrap();
                let mut on_gpu = GpuQueue::new(first, gpu).unwrap();
                assert_eq!(on_gpu.execute(&put).unwrap().completed, 9000, "{mode}");
                first = on_gpu.unmap().unwrap();
                assert_eq!(first.execute(&put).unwrap().completed, 9000, "{mode}");
                assert_error!(
                    first.receive_many(1, Duration::from_millis(1)).unwrap_err(),
                    ErrorKind::TimedOut
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
        assert!(refused.is_empty(), "the second GPU must map the page of both doorbells: {refused:?}");
        queue.close().unwrap();
        assert_ne!(Driver::loaded().registered(), 0, "the second GPU's queue must stay registered");
        second.close().unwrap();
        assert_eq!(Driver::loaded().registered(), 0);
    });
}

#[test]
fn a_staging_ring_with_unrung_entries_is_not_unmapped_even_if_snapshots_fail() {
    pretending(&[], |gpu, side, proxy| {
        let (first, _second, peer) = side.pair();
        let (queue, _) = GpuQueue::with_doorbell(first, gpu, DoorbellMode::Staged.into(), proxy).unwrap();
        let blocks = Blocks::new(side, peer, 1);
        let args = blocks.put.arguments(queue.mapped()).unwrap();
        // SAFETY: the arguments are for this queue, and no kernel uses it. The pretended GPU's memory is the host's.
        unsafe { post_without_doorbell(queue.device_address(), &args) };
        // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the end of the copy stays unknown, so every later snapshot fails.
        Driver::loaded().set_result(c"cuStreamQuery", 900);
        let refused = queue.unmap().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "may still use the queue");
        let queue = refused.queue.unwrap();
        Driver::loaded().set_result(c"cuStreamQuery", 0);
        assert_eq!(queue.snapshot().unwrap_err().code(), Some(900));
        let refused = queue.unmap().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "never rung for (1)");
        let mut queue = refused.queue.unwrap();
        // The queue still rings for its entry.
        assert_eq!(queue.quiet(Duration::from_secs(30)).unwrap().completed, 1);
        queue.unmap().unwrap().close().unwrap();
        blocks.assert_arrived();
    });
}
