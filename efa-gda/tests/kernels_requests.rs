//! Waits for a group's own requests, on the host executor and against a strict ring that completes requests in random
//! order. The kernels (kernels_own/waits.cu) report a wait that returned before the adapter had ended its requests.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;

use efa_gda_sys::device::{
    EFA_GDA_IN_FLIGHT, EFA_GDA_OK, EFA_GDA_POISONED, EFA_GDA_TIMEOUT_COMPLETION, EFA_GDA_TIMEOUT_SLOTS,
    EFA_GDA_UNSUPPORTED,
};
use kernels_support::waits::{
    DEFER, EACH_CALL, Ended, FOR_NONE, GOOD, LATE, MIXED, NEVER, OWN_EVERY_THIRD, POLL_OWN, TEST_ALL,
    TEST_EACH, WHILE_OTHERS_POST, Waits, calls,
};
use kernels_support::{AdapterRecord, Bench, SECOND, Shape, remotes, waits};

/// Runs a load on the bench's queue.
fn run(bench: &mut Bench, load: Waits, blocks: u32, lanes: u32, seed: u64) -> Vec<Ended> {
    waits::run(on(bench, load), blocks, lanes, seed, None)
}

fn on(bench: &mut Bench, load: Waits) -> Waits {
    Waits { queue: &raw mut *bench.queue, ended: bench.ended(), ..load }
}

/// Runs a load on a new queue; a single block with a seed runs in the same order every time. Returns how each group
/// ended, the number of failed requests, and the adapter's record.
fn run_new(
    shape: Shape,
    load: Waits,
    blocks: u32,
    lanes: u32,
    seed: u64,
) -> (Vec<Ended>, u32, AdapterRecord) {
    if blocks == 1 && seed != 0 {
        let mut bench = Bench::silent(shape);
        let mut adapter = bench.stepped();
        let results = waits::run(on(&mut bench, load), 1, lanes, seed, Some(&mut adapter));
        return (results, bench.queue.error.count, adapter.finish());
    }
    let mut bench = Bench::new(shape);
    let results = run(&mut bench, load, blocks, lanes, seed);
    (results, bench.queue.error.count, bench.finish())
}

/// The table of [`Shape::default`]'s queue, four times as long as its ring.
fn tracked() -> Shape {
    Shape { requests: 256, ..Shape::default() }
}

/// Runs a load in which no request fails, once for each seed.
fn run_and_check(shape: Shape, load: Waits, blocks: u32, lanes: u32, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let (results, _, record) = run_new(shape, load, blocks, lanes, seed);
        assert!(results.iter().all(|result| *result == GOOD), "seed {seed}: {results:?}");
        assert_eq!(record.violations.first(), None, "seed {seed}");
        if load.mode == WHILE_OTHERS_POST {
            continue;
        }
        let mut got = remotes(&record);
        got.sort_unstable();
        let all = results.len() as u64 * u64::from(load.calls * load.per_call);
        assert!(
            got.iter().copied().eq((0..all).map(|word| 8 * word)),
            "seed {seed}: each request must arrive once"
        );
    }
}

#[test]
fn each_kind_of_wait_returns_when_the_requests_are_done() {
    for mode in [EACH_CALL, OWN_EVERY_THIRD, TEST_EACH, DEFER, LATE, MIXED] {
        for (group, lanes) in [(1, 3), (32, 64), (0, 40), (0, 20)] {
            run_and_check(tracked(), calls(group, 30, 7, mode), 2, lanes, 0..1);
            run_and_check(tracked(), Waits { owned: 1, ..calls(group, 30, 7, mode) }, 1, group.max(1), 0..1);
        }
    }
}

#[test]
fn a_wait_that_returns_early_is_called_again_for_the_same_requests() {
    for (group, lanes) in [(1, 1), (32, 32), (0, 40), (0, 20)] {
        let load = Waits { owned: 1, timeout_ns: 0, ..calls(group, 1, 40, POLL_OWN) };
        run_and_check(tracked(), load, 1, lanes, 0..20);
    }
}

#[test]
fn waits_return_in_many_orders() {
    let tight = Shape { max_batch: 5, ..tracked() };
    for mode in [EACH_CALL, OWN_EVERY_THIRD, TEST_EACH, DEFER, LATE, MIXED] {
        run_and_check(tight, calls(1, 12, 3, mode), 1, 5, 1..150);
        run_and_check(tracked(), calls(32, 6, 13, mode), 1, 64, 1..4);
    }
}

#[test]
fn a_group_waits_for_its_call_while_others_post_on() {
    run_and_check(tracked(), calls(1, 3, 4, WHILE_OTHERS_POST), 1, 6, 1..100);
    run_and_check(tracked(), calls(32, 20, 32, WHILE_OTHERS_POST), 4, 96, 0..1);
    run_and_check(Shape { max_batch: 1, ..tracked() }, calls(32, 20, 5, WHILE_OTHERS_POST), 3, 32, 0..1);
}

#[test]
fn waits_continue_past_wraps_and_with_long_calls() {
    for start in [0xff80, u32::MAX - 700] {
        let shape = Shape { start, ..tracked() };
        run_and_check(shape, calls(32, 20, 32, EACH_CALL), 2, 64, 0..1);
        run_and_check(shape, calls(1, 60, 1, OWN_EVERY_THIRD), 1, 5, 1..20);
    }
    run_and_check(
        Shape { entry_size: 128, wide_ids: true, ..tracked() },
        calls(32, 9, 100, EACH_CALL),
        2,
        64,
        0..1,
    );
    run_and_check(tracked(), calls(0, 4, 700, OWN_EVERY_THIRD), 2, 64, 0..1);
    // The longest table: the id has one bit more than the index of a word.
    let longest = Shape { requests: 32768, start: 0x1_7fe0, ..Shape::default() };
    run_and_check(longest, calls(32, 20, 32, EACH_CALL), 2, 64, 0..1);
}

/// Request `number` fails with status 13. Returns how each group ended, and which group posted that request.
fn run_with_failure(shape: Shape, number: u32, load: Waits, lanes: u32, seed: u64) -> (Vec<Ended>, u64) {
    let shape = Shape { fail: Some((number, 13)), ..shape };
    let (results, errors, record) = run_new(shape, load, 1, lanes, seed);
    assert_eq!(errors, 1, "seed {seed}: {results:?}");
    assert_eq!(record.violations.first(), None, "seed {seed}");
    (results, remotes(&record)[number as usize] / 8 / u64::from(load.calls * load.per_call))
}

#[test]
fn an_error_reaches_only_the_group_whose_request_failed_and_names_the_request() {
    let named = |number| Ended { errors: 1, failed_index: number, failed_status: 13, ..GOOD };
    for mode in [EACH_CALL, OWN_EVERY_THIRD, TEST_EACH, DEFER] {
        for seed in 1..60 {
            let number = 11 + seed as u32;
            let (results, poster) = run_with_failure(tracked(), number, calls(1, 9, 3, mode), 6, seed);
            for (group, result) in results.iter().enumerate() {
                let expected = if group as u64 == poster { named(number) } else { GOOD };
                assert_eq!(*result, expected, "mode {mode}, seed {seed}: {results:?}");
            }
        }
        // A table so long that no status is overwritten before its group waits.
        let long = Shape { requests: 1024, ..tracked() };
        let (results, poster) = run_with_failure(long, 77, calls(32, 9, 13, mode), 96, 5);
        assert_eq!(results[poster as usize], named(77), "mode {mode}");
        assert_eq!(results.iter().filter(|result| **result == GOOD).count(), 2, "mode {mode}");
    }
}

#[test]
fn a_status_that_was_overwritten_is_reported_as_an_error_without_a_request() {
    // The first call has request 0, and is waited for after more requests than the table has entries.
    for (number, expected) in [(0, (1, 0)), (299, (2, 0))] {
        let (results, _) = run_with_failure(tracked(), number, calls(1, 300, 1, LATE), 1, 0);
        let last = results[0];
        assert_eq!(
            (last.status, (last.errors, last.failed_status)),
            (EFA_GDA_OK, expected),
            "request {number}"
        );
    }
    // No request failed, so the overwritten status was a good one.
    run_and_check(tracked(), calls(1, 300, 1, LATE), 1, 1, 0..1);
}

/// Request 520 fails and request 767 stays in flight. The done word of request 520 is that of request 8 too, two laps
/// before, with the same phase: a test of all requests must not name request 8.
#[test]
fn a_test_names_no_request_whose_status_a_later_one_overwrote() {
    let shape = Shape { fail: Some((520, 13)), withhold: Some(767), ..tracked() };
    let load = Waits { owned: 1, ..calls(1, 768, 1, TEST_ALL) };
    let (results, ..) = run_new(shape, load, 1, 1, 3);
    let expected = Ended { status: EFA_GDA_IN_FLIGHT, ..GOOD };
    assert_eq!(Ended { failed_index: 0, ..results[0] }, expected, "named {}", results[0].failed_index);
}

/// Also when statuses were overwritten, one of them an error.
#[test]
fn a_wait_for_no_requests_returns_no_error() {
    let (results, _) = run_with_failure(tracked(), 5, calls(1, 600, 1, FOR_NONE), 1, 0);
    assert_eq!(results, [GOOD]);
}

#[test]
fn requests_are_posted_only_as_far_ahead_of_the_oldest_as_the_table_remembers() {
    for (group, owned) in [(1, 0), (32, 0), (0, 0), (1, 1), (32, 1), (0, 1)] {
        // All but the first request complete.
        let mut bench = Bench::new(Shape { depth: 16, withhold: Some(0), ..tracked() });
        let load = Waits { owned, timeout_ns: 2 * SECOND, ..calls(group, 400, 1, NEVER) };
        let results = run(&mut bench, load, 1, group.max(1), 0);
        assert_eq!(results[0].status, EFA_GDA_TIMEOUT_SLOTS, "groups of {group}, owned {owned}");
        assert_eq!(bench.doorbell(), 256, "groups of {group}, owned {owned}");
    }
}

#[test]
fn a_wait_for_a_missing_completion_ends_at_its_bound_and_poisons_the_queue() {
    for group in [1, 32, 0] {
        let mut bench = Bench::silent(tracked());
        let load = Waits { timeout_ns: SECOND / 100, ..calls(group, 1, 3, EACH_CALL) };
        let results = run(&mut bench, load, 1, group.max(1), 0);
        assert_eq!(results, [Ended { status: EFA_GDA_TIMEOUT_COMPLETION, ..GOOD }], "groups of {group}");
        assert_eq!(bench.queue.error.poison, EFA_GDA_TIMEOUT_COMPLETION);
        let load = Waits { timeout_ns: SECOND / 100, ..calls(group, 1, 3, TEST_EACH) };
        assert_eq!(run(&mut bench, load, 1, group.max(1), 0)[0].status, EFA_GDA_POISONED);
    }
}

#[test]
fn waits_need_a_request_table() {
    let mut bench = Bench::new(Shape::default());
    let results = run(&mut bench, calls(32, 1, 1, EACH_CALL), 1, 32, 0);
    assert_eq!(results, [Ended { status: EFA_GDA_UNSUPPORTED, ..GOOD }]);
    assert_eq!(bench.finish().requests.len(), 1);
}
