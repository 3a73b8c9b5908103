//! The three doorbell modes on the software adapter: the same work request and the same device code, with a doorbell
//! proxy in the modes `record` and `staged`. `EFA_GDA_SOAK=1` raises the counts for a run of a night;
//! `EFA_GDA_TEST_SECONDS` must then raise the time limit of a test.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::ErrorKind;
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::fabric::Query;
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::status::DeviceError;
use efa_gda_sys::device::{EFA_GDA_TURN_BITS, efa_gda_queue};
use efa_gda_test_support::assert_error;
use support::load::{endless, stopped_during_traffic};
use support::side::{Side, bytes_of, introduce, pattern};
use support::{assert_no_violations, with_pair, with_soft_adapter};

/// Entries that each doorbell mode moves.
fn entries() -> u64 {
    match std::env::var("EFA_GDA_SOAK").as_deref() {
        Ok("1") => 100_000_000,
        _ => 150_000,
    }
}

/// Writes `count` different blocks of 64 bytes, lap after lap, and compares the target with the source.
fn move_blocks(queue: &mut MappedQueue, side: &Side, peer: &MappedQueue, count: u64) {
    let per_lap = count.min(50_000);
    let peer = introduce(queue, peer);
    let source = side.region(&vec![0; 64 * per_lap as usize]);
    let target = side.region(&vec![0; source.len()]);
    let mut bytes = pattern(source.len());
    for lap in 0..count.div_ceil(per_lap) {
        // Each lap has other bytes, so that bytes of the previous lap are not mistaken for new ones.
        bytes.rotate_left(8 * 7919 % (lap as usize * 64 + 64));
        bytes[..8].copy_from_slice(&lap.to_le_bytes());
        source.buffer().unwrap().write(0, &bytes).unwrap();
        let put = WorkRequest::write(peer, &source, target.remote()).bytes(64).count(per_lap).stride(64);
        let report = queue.execute(&put.timeout(Duration::from_secs(60))).unwrap();
        assert_eq!((report.posted, report.completed), (per_lap, per_lap));
        assert!(bytes_of(&target) == bytes, "lap {lap}");
    }
}

/// Moves the whole count in one doorbell mode, on an adapter with these variables.
fn through(mode: DoorbellMode, wide: bool, variables: &[(&str, &str)]) {
    some_through(entries(), mode, wide, variables);
}

fn some_through(count: u64, mode: DoorbellMode, wide: bool, variables: &[(&str, &str)]) {
    with_soft_adapter(variables, |adapter| {
        let proxy = DoorbellProxy::start().unwrap();
        let side = Side::open(&Query::new().wide_entries(wide));
        let (mut first, second) = (side.queue(), side.queue());
        first.set_doorbell(mode, &proxy).unwrap();
        assert_eq!(first.doorbell_mode(), mode);
        move_blocks(&mut first, &side, &second, count);
        assert_no_violations(adapter);
        let rung_by_proxy = if mode == DoorbellMode::Direct { 0 } else { count };
        assert_eq!(proxy.rung(), rung_by_proxy);
        first.close().unwrap();
    });
}

/// The adapter accepts any number of entries between two doorbells.
const NO_BATCH: &[(&str, &str)] = &[("SOFTEFA_MAX_BATCH", "0")];

#[test]
fn direct_moves_every_entry_once() {
    through(DoorbellMode::Direct, false, &[]);
}

#[test]
fn record_moves_every_entry_once() {
    through(DoorbellMode::Record, false, &[]);
}

#[test]
fn staged_moves_every_entry_once() {
    through(DoorbellMode::Staged, false, &[]);
}

#[test]
fn staged_stays_within_an_odd_batch() {
    through(DoorbellMode::Staged, false, &[("SOFTEFA_MAX_BATCH", "11")]);
}

#[test]
fn staged_stays_within_a_batch_of_one() {
    through(DoorbellMode::Staged, false, &[("SOFTEFA_MAX_BATCH", "1")]);
}

#[test]
fn staged_copies_entries_of_128_bytes() {
    through(DoorbellMode::Staged, true, &[]);
}

#[test]
fn record_rings_for_entries_of_128_bytes() {
    through(DoorbellMode::Record, true, &[]);
}

#[test]
fn record_stays_within_a_batch_of_sixteen() {
    through(DoorbellMode::Record, false, &[("SOFTEFA_MAX_BATCH", "16")]);
}

#[test]
fn record_stays_within_an_odd_batch() {
    through(DoorbellMode::Record, false, &[("SOFTEFA_MAX_BATCH", "11")]);
}

#[test]
fn record_stays_within_a_batch_of_one() {
    // Each entry waits for the completion of the previous entry.
    let set = [("SOFTEFA_MAX_BATCH", "1")];
    some_through(entries() / 10, DoorbellMode::Record, false, &set);
}

#[test]
fn record_stays_within_its_batch_when_completions_arrive_out_of_order() {
    let set = [("SOFTEFA_MAX_BATCH", "16"), ("SOFTEFA_REORDER", "8")];
    through(DoorbellMode::Record, false, &set);
}

#[test]
fn without_a_batch_limit_only_the_ring_bounds_record() {
    through(DoorbellMode::Record, false, NO_BATCH);
}

#[test]
fn a_queue_changes_its_doorbell_mode_between_work_requests() {
    with_pair(&[], |mut pair, _| {
        let proxy = DoorbellProxy::start().unwrap();
        let blocks = pair.blocks(5000);
        for mode in [
            DoorbellMode::Staged,
            DoorbellMode::Direct,
            DoorbellMode::Record,
            DoorbellMode::Staged,
            DoorbellMode::Record,
            DoorbellMode::Direct,
        ] {
            // The target must not hold the bytes that the previous mode wrote.
            blocks.target.buffer().unwrap().write(0, &[0; 64 * 5000]).unwrap();
            pair.first.set_doorbell(mode, &proxy).unwrap();
            pair.first.execute(&blocks.put).unwrap();
            blocks.assert_arrived();
        }
    });
}

#[test]
fn one_proxy_rings_for_queues_in_both_host_modes_at_once() {
    with_soft_adapter(&[], |adapter| {
        let proxy = DoorbellProxy::start().unwrap();
        let side = Side::open(&Query::new());
        std::thread::scope(|scope| {
            for index in 0..8 {
                let (proxy, side) = (&proxy, &side);
                scope.spawn(move || {
                    let (mut first, second) = (side.queue(), side.queue());
                    first
                        .set_doorbell([DoorbellMode::Record, DoorbellMode::Staged][index % 2], proxy)
                        .unwrap();
                    move_blocks(&mut first, side, &second, 50_000);
                });
            }
        });
        assert_eq!(proxy.rung(), 8 * 50_000);
        assert_no_violations(adapter);
    });
}

fn store_record(queue: &efa_gda_queue, change: fn(u32) -> u32) {
    // SAFETY: the record is a word that `Registration` owns and that is accessed only as an atomic.
    let record = unsafe { std::sync::atomic::AtomicU32::from_ptr(queue.sq.doorbell) };
    record.store(change((queue.turn.word >> EFA_GDA_TURN_BITS) as u32), std::sync::atomic::Ordering::Release);
}

#[test]
fn a_record_that_moves_backwards_ends_the_work_request_with_bad_record() {
    for mode in [DoorbellMode::Record, DoorbellMode::Staged] {
        with_pair(&[], |mut pair, _| {
            let proxy = DoorbellProxy::start().unwrap();
            pair.first.set_doorbell(mode, &proxy).unwrap();
            let blocks = pair.blocks(100);
            pair.first.execute(&blocks.put).unwrap();
            // SAFETY: the queue lives, and no kernel runs.
            store_record(unsafe { pair.first.as_ptr().as_ref() }, |index| index.wrapping_sub(1));
            while pair.first.poison().is_none() {
                efa_gda_test_support::rest();
            }
            let error = pair.first.execute(&blocks.put).unwrap_err();
            assert_error!(error, ErrorKind::Device(DeviceError::BadRecord));
            assert_eq!(pair.first.poison(), Some(DeviceError::BadRecord));
            assert_error!(
                pair.first.set_doorbell(DoorbellMode::Direct, &proxy).unwrap_err(),
                ErrorKind::Device(_),
                "its doorbell mode cannot change"
            );
            assert_eq!(proxy.rung(), 100, "the proxy rang for a refused record");
            pair.first.destroy().unwrap();
        });
    }
}

#[test]
fn a_bad_record_that_a_change_of_mode_finds_puts_the_queue_out_of_service() {
    with_soft_adapter(&[], |adapter| {
        for mode in [DoorbellMode::Direct, DoorbellMode::Record] {
            let proxy = DoorbellProxy::without_thread();
            let mut queue = Side::open(&Query::new()).queue();
            queue.set_doorbell(DoorbellMode::Record, &proxy).unwrap();
            // SAFETY: the queue lives, and no kernel runs.
            store_record(unsafe { queue.as_ptr().as_ref() }, |index| index.wrapping_sub(1));
            let error = queue.set_doorbell(mode, &proxy).unwrap_err();
            assert_error!(
                error,
                ErrorKind::Device(DeviceError::BadRecord),
                "its doorbell mode cannot change"
            );
            assert_eq!(
                (queue.doorbell_mode(), queue.poison()),
                (DoorbellMode::Record, Some(DeviceError::BadRecord))
            );
        }
        assert_no_violations(adapter);
    });
}

#[test]
fn a_proxy_stopped_during_traffic_ends_the_work_request_with_proxy_stopped() {
    for mode in [DoorbellMode::Record, DoorbellMode::Staged] {
        with_pair(&[], |mut pair, _| {
            let proxy = DoorbellProxy::start().unwrap();
            pair.first.set_doorbell(mode, &proxy).unwrap();
            let [source, target] = pair.regions(64);
            let put = endless(pair.peer, &source, target.remote());
            let error = stopped_during_traffic(&proxy, || pair.first.execute(&put)).unwrap_err();
            assert_error!(error, ErrorKind::Device(DeviceError::ProxyStopped));
            pair.first.destroy().unwrap();
        });
    }
}
