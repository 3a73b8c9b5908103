//! Kernels outside the library, compiled for the host as docs/kernels.md describes: the statuses that a `Sender` returns
//! for correct and incorrect use.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use efa_gda_sys::device::{
    EFA_GDA_BAD_ARGUMENT, EFA_GDA_COMPLETION_ERROR, EFA_GDA_IN_USE, EFA_GDA_NO_ROOM, EFA_GDA_NOT_RUN,
    EFA_GDA_OK, EFA_GDA_OP_WRITE, EFA_GDA_POISONED, EFA_GDA_TIMEOUT_LOCK, efa_gda_peer, efa_gda_put_args,
    efa_gda_put_result, efa_gda_queue,
};
use kernels_support::{Bench, PEER, SECOND, Shape, kernels, remotes};
use libloading::Library;

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| kernels(&["tests/kernels_own/handles.cu"]))
}

/// `struct handles_args` (kernels_own/handles.cu).
#[repr(C)]
struct Handles {
    queue: *mut efa_gda_queue,
    peer: efa_gda_peer,
    scenario: u32,
    timeout_ns: u64,
    status: *mut u32,
}

const CALLS: usize = 8;

/// Runs a scenario and returns the statuses of each warp's calls. `seed` has the meaning of host_executor.h.
fn handles(bench: &mut Bench, scenario: u32, warps: usize, seed: u64) -> Vec<Vec<u32>> {
    handles_within(bench, scenario, warps, seed, 20 * SECOND)
}

fn handles_within(
    bench: &mut Bench,
    scenario: u32,
    warps: usize,
    seed: u64,
    timeout_ns: u64,
) -> Vec<Vec<u32>> {
    let status: Vec<AtomicU32> = (0..warps * CALLS).map(|_| AtomicU32::new(EFA_GDA_NOT_RUN)).collect();
    let args = Handles {
        queue: &raw mut *bench.queue,
        peer: PEER,
        scenario,
        timeout_ns,
        status: status.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the type is the function's in handles.cu, and queue and statuses outlive the call.
    unsafe {
        let run = library()
            .get::<unsafe extern "C" fn(*const Handles, u32, u64) -> bool>(b"handles_on_host")
            .unwrap();
        assert!(run(&args, warps as u32 * 32, seed));
    }
    let statuses = |warp: &[AtomicU32]| {
        warp.iter()
            .map(|word| word.load(Ordering::Relaxed))
            .filter(|status| *status != EFA_GDA_NOT_RUN)
            .collect()
    };
    status.chunks(CALLS).map(statuses).collect()
}

fn requests(bench: Bench) -> usize {
    let record = bench.finish();
    assert_eq!(record.violations, [""; 0]);
    record.requests.len()
}

#[test]
fn close_rings_for_deferred_entries() {
    let mut bench = Bench::new(Shape::default());
    assert_eq!(handles(&mut bench, 0, 3, 0), [[EFA_GDA_OK; 4]; 3]);
    assert_eq!(bench.doorbell_index(), 24);
    assert_eq!(requests(bench), 24);
}

#[test]
fn a_queue_that_its_owner_did_not_close_is_refused() {
    let mut bench = Bench::new(Shape::default());
    assert_eq!(handles(&mut bench, 1, 1, 0), [[EFA_GDA_OK; 2]]);
    assert_eq!(handles(&mut bench, 1, 1, 0), [[EFA_GDA_IN_USE; 2]]);
    assert_eq!(requests(bench), 4);
}

#[test]
fn a_queue_refuses_a_second_owner() {
    let mut bench = Bench::new(Shape::default());
    let mut statuses = handles(&mut bench, 2, 2, 0);
    statuses.sort();
    assert_eq!(statuses[0], [EFA_GDA_OK, EFA_GDA_OK, EFA_GDA_OK, EFA_GDA_BAD_ARGUMENT]);
    assert_eq!(statuses[1], [EFA_GDA_IN_USE; 4]);
    assert_eq!(requests(bench), 4);
}

#[test]
fn an_owner_detects_posts_of_other_groups() {
    let mut bench = Bench::new(Shape::default());
    let statuses = handles(&mut bench, 3, 2, 0);
    assert_eq!(statuses, [vec![EFA_GDA_OK, EFA_GDA_OK, EFA_GDA_IN_USE], vec![EFA_GDA_POISONED]]);
    assert_eq!(bench.queue.error.poison, EFA_GDA_IN_USE);
    assert_eq!(remotes(&bench.finish()), [0, 1, 2, 3], "the owner's entries, not the other group's");
}

#[test]
fn an_owner_and_a_sharing_group_never_write_at_the_same_time() {
    let (mut refused, mut detected) = (0, 0);
    for seed in 1..400 {
        let mut bench = Bench::new(Shape { max_batch: 4, ..Shape::default() });
        let statuses = handles(&mut bench, 4, 2, seed);
        let (owner, sharer) = (&statuses[0], &statuses[1]);
        let poisoned = owner[0] == EFA_GDA_OK && owner[2] == EFA_GDA_IN_USE;
        refused += u32::from(owner[0] == EFA_GDA_IN_USE);
        detected += u32::from(poisoned);
        assert_eq!(owner[0], owner[1], "seed {seed}: {statuses:?}");
        assert!(owner[2] == owner[0] || poisoned, "seed {seed}: {statuses:?}");
        // The sharing group of a poisoned queue may have posted before the owner opened the queue.
        let sharing_status = if poisoned { EFA_GDA_POISONED } else { EFA_GDA_OK };
        assert_eq!(sharer[1..], [sharing_status; 2], "seed {seed}: {statuses:?}");
        assert!([EFA_GDA_OK, sharing_status].contains(&sharer[0]), "seed {seed}: {statuses:?}");
        let posted = [owner[0], sharer[0]].iter().filter(|status| **status == EFA_GDA_OK).count();
        assert_eq!(requests(bench), 4 * posted, "seed {seed}: {statuses:?}");
    }
    assert!(refused > 10 && detected > 10, "{refused} owners refused, {detected} conflicts detected");
}

#[test]
fn a_request_of_an_owner_is_not_mistaken_for_one_of_a_sharing_group() {
    let mut bench = Bench::silent(Shape::default());
    // The first request never completes, so the wait for it times out.
    let statuses = handles_within(&mut bench, 6, 2, 0, SECOND);
    assert_eq!(statuses, [[EFA_GDA_OK, EFA_GDA_TIMEOUT_LOCK], [EFA_GDA_OK, EFA_GDA_IN_USE]]);
    assert_eq!((bench.queue.completion.completed, bench.queue.error.poison), (1, EFA_GDA_TIMEOUT_LOCK));
}

#[test]
fn a_group_writes_its_entries_before_its_turn_and_makes_each_once() {
    for seed in 1..20 {
        let mut bench = Bench::new(Shape { depth: 64, ..Shape::default() });
        assert_eq!(
            handles(&mut bench, 7, 2, seed),
            [[EFA_GDA_OK, 16].to_vec(), [0].to_vec()],
            "seed {seed}: status and entries made; the doorbell meanwhile"
        );
        let record = bench.finish();
        assert_eq!(record.violations, [""; 0], "seed {seed}");
        assert_eq!(remotes(&record), (0..16).collect::<Vec<u64>>(), "seed {seed}");
    }
}

#[test]
fn a_group_with_lanes_that_have_left_is_refused_and_posts_nothing() {
    let mut bench = Bench::new(Shape::default());
    let refused = EFA_GDA_BAD_ARGUMENT;
    assert_eq!(handles(&mut bench, 8, 2, 0), [vec![refused; 4], vec![refused; 2]]);
    assert_eq!(requests(bench), 0);
}

#[test]
fn a_group_waits_for_a_turn_that_moves_however_long_that_takes() {
    let mut bench = Bench::silent(Shape::default());
    let statuses = handles_within(&mut bench, 9, 2, 0, SECOND / 4);
    assert_eq!(statuses, [[EFA_GDA_OK], [EFA_GDA_OK]]);
    assert_eq!(bench.queue.error.poison, EFA_GDA_OK);
}

/// The next call rings for deferred entries. The bench counts fences of the order that fence_system() has.
#[test]
fn deferred_entries_are_passed_on_after_a_system_fence() {
    let fences = kernels(&["tests/kernels_own/fences.cu"]);
    let mut bench = Bench::silent(Shape::default());
    // SAFETY: the type is the function's in fences.cu, and the queue outlives the call.
    unsafe {
        let run = fences.get::<unsafe extern "C" fn(*mut efa_gda_queue) -> u32>(b"fences_of_a_deferred_post");
        assert_eq!(run.unwrap()(&raw mut *bench.queue), 1, "the leader's");
    }
    // The end of the handle's scope rings.
    assert_eq!((bench.doorbell(), bench.doorbell_index()), (2, 2));
}

#[test]
fn a_post_that_does_not_wait_finds_no_room_and_harms_nothing() {
    for scenario in [10, 11] {
        let mut bench = Bench::silent(Shape::default());
        let (good, full) = (EFA_GDA_OK, EFA_GDA_NO_ROOM);
        assert_eq!(handles(&mut bench, scenario, 1, 0), [[good, good, good, good, full, full]]);
        assert_eq!((bench.queue.error.poison, bench.doorbell()), (EFA_GDA_OK, 64));
        // The adapter completes them, so that the next posts have room.
        let mut adapter = bench.stepped();
        while adapter.step() {}
        assert_eq!(handles(&mut bench, scenario, 1, 0), [[good, good, good, good, full, full]]);
        assert_eq!((bench.queue.error.poison, bench.doorbell()), (EFA_GDA_OK, 128));
    }
}

#[test]
fn each_group_that_shares_a_queue_gets_an_error_once() {
    let mut bench = Bench::new(Shape { fail: Some((2, 7)), ..Shape::default() });
    let (good, failed) = (EFA_GDA_OK, EFA_GDA_COMPLETION_ERROR);
    let statuses = handles(&mut bench, 5, 2, 0);
    assert_eq!(statuses, [vec![good, failed, good, good, good, good], vec![failed, good, good, good, good]]);
    assert_eq!((bench.queue.error.completion_status, bench.queue.error.request_id), (7, 2));
    assert_eq!(requests(bench), 12);
}

#[test]
fn the_result_of_a_put_is_of_the_time_in_which_it_owned_the_queue() {
    let library = kernels(&["tests/kernels_own/put.cu"]);
    for seed in 1..200 {
        let mut bench = Bench::silent(Shape::default());
        let mut result = efa_gda_put_result::default();
        let args = efa_gda_put_args {
            queue: &raw mut *bench.queue,
            result: &raw mut result,
            peer: PEER,
            op: EFA_GDA_OP_WRITE,
            bytes: 8,
            count: 1,
            timeout_ns: 20 * SECOND,
            ..Default::default()
        };
        // SAFETY: the type is the function's in put.cu, and queue and result outlive the call.
        unsafe {
            let put = library
                .get::<unsafe extern "C" fn(*const efa_gda_put_args, u64) -> bool>(b"put_beside_another")
                .unwrap();
            assert!(put(&args, seed));
        }
        let of_this_put = (EFA_GDA_COMPLETION_ERROR, 7, 0, 1, 1);
        let found =
            (result.status, result.completion_status, result.request_id, result.posted, result.completed);
        assert_eq!(found, of_this_put, "seed {seed}");
    }
}
