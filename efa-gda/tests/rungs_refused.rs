//! Which rung a queue takes where a GPU's driver refuses to map some of it: the library's whole way to a
//! GPU, over a CUDA driver that pretends and refuses on purpose. What real GPUs do is `gpu_rungs.rs`'s.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod fabric_soft_support;
mod pretend_gpu;

use efa_gda::doorbell::{Ringer, RingerOptions, Rung, RungChoice};
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::queue::{GpuQueue, Put};
use fabric_soft_support::side::{Side, bytes_of, introduce, pattern};
use fabric_soft_support::{assert_no_violations, with_soft_adapter};

/// The places of a queue in the order in which they are mapped.
const SEND_QUEUE: &str = "1";
const DOORBELL: &str = "2";
const COMPLETION_QUEUE: &str = "3";

/// Runs `body` where the driver refuses one place.
fn refusing(test: &str, place: &str, body: impl FnOnce(&Gpu, &Side, &Ringer)) {
    let child = std::env::var_os("EFA_GDA_TEST_CHILD").is_some();
    let Some(folder) = (if child { Some("") } else { pretend_gpu::folder() }) else { return };
    let variables = [("LD_LIBRARY_PATH", folder), ("PRETEND_GPU_REFUSES", place), ("XDG_CACHE_HOME", folder)];
    with_soft_adapter(test, &variables, |adapter| {
        let gpu = Gpu::open(0).unwrap();
        assert_eq!(gpu.name().unwrap(), "pretended GPU");
        let ringer = Ringer::start(&RingerOptions::new()).unwrap();
        body(&gpu, &Side::open(&Query::new()), &ringer);
        assert_no_violations(adapter);
    });
}

/// What `auto` takes, after it moved bytes, and what was refused before.
fn taken(gpu: &Gpu, side: &Side, ringer: &Ringer) -> (Rung, Vec<Rung>) {
    let (first, second) = (side.queue(), side.queue());
    let peer = introduce(&first, &second);
    let (mut first, refused) = GpuQueue::on_rung(first, gpu, RungChoice::Auto, ringer).unwrap();
    let (source, target) = (side.region(&pattern(64 * 10_000)), side.region(&[0; 64 * 10_000]));
    let put = Put::write(peer, &source, target.remote()).bytes(64).count(10_000).stride(64);
    first.put(&put).unwrap();
    assert!(bytes_of(&target) == bytes_of(&source));
    let rung = first.rung();
    first.close().unwrap();
    (rung, refused.into_iter().map(|refused| refused.rung).collect())
}

#[test]
fn where_everything_maps_the_device_rings() {
    refusing("where_everything_maps_the_device_rings", "", |gpu, side, ringer| {
        assert_eq!(taken(gpu, side, ringer), (Rung::Direct, vec![]));
        assert_eq!(ringer.counts().entries, 0);
    });
}

#[test]
fn without_the_doorbell_the_host_rings_from_a_record() {
    refusing("without_the_doorbell_the_host_rings_from_a_record", DOORBELL, |gpu, side, ringer| {
        assert_eq!(taken(gpu, side, ringer), (Rung::Record, vec![Rung::Direct]));
        assert_eq!(ringer.counts().entries, 10_000);
    });
}

#[test]
fn without_the_send_queue_the_host_copies_and_rings() {
    refusing("without_the_send_queue_the_host_copies_and_rings", SEND_QUEUE, |gpu, side, ringer| {
        assert_eq!(taken(gpu, side, ringer), (Rung::Staged, vec![Rung::Direct, Rung::Record]));
    });
}

#[test]
fn without_the_completion_queue_there_is_no_rung_and_the_queue_comes_back() {
    let test = "without_the_completion_queue_there_is_no_rung_and_the_queue_comes_back";
    refusing(test, COMPLETION_QUEUE, |gpu, side, ringer| {
        let error = GpuQueue::on_rung(side.queue(), gpu, RungChoice::Auto, ringer).unwrap_err();
        assert!(error.error.to_string().contains("cuMemHostRegister"), "{error}");
        error.queue.close().unwrap();
    });
}

#[test]
fn a_rung_that_was_forced_is_taken_or_refused_and_no_other() {
    let test = "a_rung_that_was_forced_is_taken_or_refused_and_no_other";
    refusing(test, DOORBELL, |gpu, side, ringer| {
        assert!(GpuQueue::on_rung(side.queue(), gpu, Rung::Direct.into(), ringer).is_err());
        let (queue, refused) = GpuQueue::on_rung(side.queue(), gpu, Rung::Staged.into(), ringer).unwrap();
        assert_eq!((queue.rung(), refused), (Rung::Staged, vec![]));
    });
}
