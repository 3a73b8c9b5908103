//! The three doorbell modes with kernels on a GPU; the software adapter executes their requests. Without a GPU, each test
//! is skipped with the reason.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::ErrorKind;
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::fabric::Query;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::status::DeviceError;
use efa_gda_test_support::assert_error;
use support::kernel::Kernel;
use support::load::{drop_under_a_load, endless, stopped_during_traffic};
use support::side::{Blocks, Pair, Side, bytes_of};
use support::{assert_no_violations, with_gpu};

const HOST_MODES: [DoorbellMode; 2] = [DoorbellMode::Record, DoorbellMode::Staged];

/// Writes `count` different blocks from the GPU in each doorbell mode.
fn blocks_arrive(variables: &[(&str, &str)], wide: bool, count: u64) {
    with_gpu(variables, |adapter, gpu| {
        for mode in DoorbellMode::ALL {
            let proxy = DoorbellProxy::start().unwrap();
            let pair = Pair::open(&Query::new().wide_entries(wide));
            let Blocks { put, source, target } = pair.blocks(count);
            let (mut first, refused) = GpuQueue::with_doorbell(pair.first, gpu, mode.into(), &proxy).unwrap();
            assert_eq!((first.doorbell_mode(), refused.len()), (mode, 0));
            let report = first.execute(&put.timeout(Duration::from_secs(30))).unwrap();
            assert_eq!((report.posted, report.completed), (count, count));
            assert!(bytes_of(&target) == bytes_of(&source), "{mode}");
            assert_eq!(proxy.rung(), if mode == DoorbellMode::Direct { 0 } else { count });
            first.close().unwrap();
        }
        assert_no_violations(adapter);
    });
}

#[test]
fn two_hundred_thousand_writes_arrive_past_every_wrap_in_every_mode() {
    blocks_arrive(&[], false, 200_000);
}

#[test]
fn wide_entries_arrive_in_every_mode() {
    blocks_arrive(&[], true, 50_000);
}

#[test]
fn every_mode_stays_within_an_odd_batch() {
    blocks_arrive(&[("SOFTEFA_MAX_BATCH", "11")], false, 50_000);
}

#[test]
fn a_proxy_stopped_during_traffic_ends_a_kernel_wait_with_proxy_stopped() {
    with_gpu(&[], |adapter, gpu| {
        for mode in HOST_MODES {
            let proxy = DoorbellProxy::start().unwrap();
            let pair = Pair::open(&Query::new());
            let [source, target] = pair.regions(64);
            let put = endless(pair.peer, &source, target.remote());
            let (mut first, _) = GpuQueue::with_doorbell(pair.first, gpu, mode.into(), &proxy).unwrap();
            let error = stopped_during_traffic(&proxy, || first.execute(&put)).unwrap_err();
            assert_error!(error, ErrorKind::Device(_));
            let ErrorKind::Device(error) = error.kind() else { panic!("{error:?}") };
            assert_eq!(error, DeviceError::ProxyStopped, "{mode}");
            first.destroy().unwrap();
        }
        assert_no_violations(adapter);
    });
}

#[test]
fn a_queue_dropped_while_a_kernel_posts_ends_the_kernel_and_rings_no_stray_doorbell() {
    with_gpu(&[], |adapter, gpu| {
        let kernel = Kernel::compile(include_str!("../../kernels/test/load.cu"), "efa_gda_load_kernel");
        for mode in HOST_MODES {
            let proxy = DoorbellProxy::start().unwrap();
            let side = Side::open(&Query::new());
            drop_under_a_load(&kernel, (gpu, &side, &proxy), mode);
        }
        assert_no_violations(adapter);
    });
}
