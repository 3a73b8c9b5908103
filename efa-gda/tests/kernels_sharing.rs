//! Groups that share a send queue, on the host executor and against a strict ring: blocks on threads of their
//! own, and the lanes of one block in thousands of orders of their accesses.

mod kernels_support;

use efa_gda::executor::host;
use efa_gda::executor::host::LoadOptions;
use efa_gda::status::DeviceError;
use efa_gda_sys::device::*;
use kernels_support::{Bench, Seen, Shape, load, remotes, shared};

/// Loads a queue and checks that each request arrived exactly once, each call's in order.
fn load_and_check(shape: Shape, args: efa_gda_load_args, blocks: u32, lanes: u32) -> Seen {
    let mut bench = Bench::new(shape);
    let status = load(&mut bench, args, blocks, lanes);
    let groups = status.len() as u64;
    assert!(status.iter().all(Result::is_ok), "{status:?}");
    let seen = bench.finish();
    assert_eq!(seen.violations, Vec::<String>::new());
    let got = remotes(&seen);
    for pair in got.windows(2).filter(|pair| pair[0] >> 16 == pair[1] >> 16) {
        assert_eq!(pair[1], pair[0] + 1, "one call's entries follow each other");
    }
    let mut sorted = got;
    sorted.sort_unstable();
    let call = |group: u64, call: u64| group << 48 | call << 16;
    let expected: Vec<u64> = (0..groups)
        .flat_map(|g| (0..u64::from(args.calls)).map(move |c| call(g, c)))
        .flat_map(|base| (0..u64::from(args.per_call)).map(move |i| base | i))
        .collect();
    assert_eq!(sorted, expected);
    seen
}

#[test]
fn threads_of_several_blocks_share_a_queue() {
    load_and_check(Shape::default(), shared(1, 300, 1), 4, 1);
}

#[test]
fn diverged_threads_of_one_block_share_a_queue() {
    load_and_check(Shape::default(), shared(1, 50, 1), 2, 32);
}

#[test]
fn warps_of_several_blocks_share_a_queue() {
    load_and_check(Shape::default(), shared(32, 40, 32), 3, 64);
}

#[test]
fn calls_of_odd_size_share_a_queue() {
    load_and_check(Shape { max_batch: 7, ..Shape::default() }, shared(32, 60, 13), 3, 64);
}

#[test]
fn blocks_share_a_queue() {
    load_and_check(Shape::default(), shared(0, 40, 50), 3, 64);
}

/// [`load_and_check`] for one block, under another order of its lanes' accesses for each seed.
fn interleave_and_check(shape: Shape, args: efa_gda_load_args, lanes: u32, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut bench = Bench::new(shape);
        let args = efa_gda_load_args { queues: &mut *bench.queue, ..args };
        // SAFETY: as in `load`.
        let status =
            unsafe { host::load(&args, 1, lanes, LoadOptions::new().seed(seed)) }.expect("the block starts");
        assert!(status.iter().all(Result::is_ok), "seed {seed}: {status:?}");
        let queue = &*bench.queue;
        assert_eq!(
            queue.lock.serving,
            queue.reserve.word << EFA_GDA_LOCK_STATE_BITS,
            "seed {seed}: nobody has the turn"
        );
        let seen = bench.finish();
        assert_eq!(seen.violations.first(), None, "seed {seed}, of {}", seen.violations.len());
        let mut got = remotes(&seen);
        for pair in got.windows(2).filter(|pair| pair[0] >> 16 == pair[1] >> 16) {
            assert_eq!(pair[1], pair[0] + 1, "seed {seed}: one call's entries follow each other");
        }
        let all = got.len();
        got.sort_unstable();
        got.dedup();
        let expected = status.len() as u64 * u64::from(args.calls * args.per_call);
        assert_eq!((got.len() as u64, all as u64), (expected, expected), "seed {seed}: each once");
    }
}

#[test]
fn threads_share_a_queue_in_many_orders() {
    let tight = Shape { depth: 64, max_batch: 5, ..Shape::default() };
    interleave_and_check(tight, shared(1, 12, 1), 4, 1..1500);
    interleave_and_check(tight, shared(1, 6, 3), 7, 1..1000);
    interleave_and_check(Shape::default(), shared(1, 60, 2), 5, 1..300);
    // The fewest that can get the order of closing wrong.
    interleave_and_check(tight, shared(1, 3, 1), 3, 1..8000);
}

#[test]
fn warps_share_a_queue_in_many_orders() {
    interleave_and_check(Shape::default(), shared(32, 6, 13), 96, 1..8);
    interleave_and_check(
        Shape { depth: 64, max_batch: 20, ..Shape::default() },
        shared(32, 5, 40),
        64,
        1..12,
    );
}

/// Calls of more entries than who holds the turn looks at.
#[test]
fn long_calls_share_a_queue_in_many_orders() {
    let shape = Shape { depth: 256, max_batch: 60, stage: 256, ..Shape::default() };
    interleave_and_check(shape, shared(1, 4, 33), 5, 1..40);
    interleave_and_check(shape, shared(1, 4, 40), 4, 1..40);
    interleave_and_check(Shape { stage: 64, ..shape }, shared(1, 3, 100), 4, 1..20);
    interleave_and_check(Shape { depth: 2048, stage: 2048, ..shape }, shared(32, 2, 600), 64, 1..3);
}

#[test]
fn quiet_waits_for_what_was_posted_before_in_many_orders() {
    let shape = Shape { depth: 64, max_batch: 9, ..Shape::default() };
    let args = efa_gda_load_args { ring_every: 2, quiet_every: 3, ..shared(1, 9, 2) };
    interleave_and_check(shape, args, 5, 1..150);
    interleave_and_check(
        Shape::default(),
        efa_gda_load_args { quiet_every: 2, ..shared(32, 4, 13) },
        64,
        1..6,
    );
}

#[test]
fn quiet_comes_while_others_post_on() {
    // So many calls that nobody's quiet can be the moment at which all have ended.
    load_and_check(Shape::default(), efa_gda_load_args { quiet_every: 7, ..shared(1, 400, 3) }, 4, 1);
    load_and_check(Shape::default(), efa_gda_load_args { quiet_every: 5, ..shared(32, 60, 32) }, 3, 64);
    mix_and_check(
        Shape { depth: 128, ..Shape::default() },
        efa_gda_load_args { quiet_every: 2, ..shared(0, 6, 7) },
        0..2,
    );
}

#[test]
fn quiet_on_a_shared_queue_that_completes_nothing_ends_by_its_bound() {
    let mut bench = Bench::silent(Shape::default());
    let args = efa_gda_load_args { quiet_every: 1, timeout_ns: 1_000_000, ..shared(1, 1, 1) };
    assert_eq!(load(&mut bench, args, 1, 1), [Err(DeviceError::TimeoutCompletion)]);
}

#[test]
fn deferred_calls_are_rung_in_many_orders() {
    let args = efa_gda_load_args { ring_every: 3, ..shared(1, 10, 2) };
    interleave_and_check(Shape { depth: 64, max_batch: 9, ..Shape::default() }, args, 5, 1..700);
}

/// A block, warps, threads and another block share a queue; each request arrives once.
fn mix_and_check(shape: Shape, args: efa_gda_load_args, seeds: std::ops::Range<u64>) {
    const LANES: u32 = 33;
    for seed in seeds {
        let mut bench = Bench::new(shape);
        let args = efa_gda_load_args { queues: &mut *bench.queue, ..args };
        // SAFETY: as in `load`.
        let status = unsafe { host::load(&args, 4, LANES, LoadOptions::new().mixed().seed(seed)) };
        let status = status.expect("the blocks start");
        let ended: Vec<_> = status.iter().filter(|status| **status != Err(DeviceError::NotRun)).collect();
        assert!(ended.iter().all(|status| status.is_ok()), "seed {seed}: {ended:?}");
        assert_eq!(ended.len(), 1 + 2 + 33 + 1, "a block, two warps, threads, a block");
        let seen = bench.finish();
        assert_eq!(seen.violations.first(), None, "seed {seed}, of {}", seen.violations.len());
        let mut got = remotes(&seen);
        let all = got.len();
        got.sort_unstable();
        got.dedup();
        let expected = ended.len() * (args.calls * args.per_call) as usize;
        assert_eq!((got.len(), all), (expected, expected), "seed {seed}: each once");
    }
}

#[test]
fn blocks_warps_and_threads_share_a_queue() {
    let shape = Shape { depth: 128, max_batch: 30, ..Shape::default() };
    mix_and_check(shape, shared(0, 8, 7), 0..5);
    mix_and_check(shape, efa_gda_load_args { ring_every: 3, ..shared(0, 8, 7) }, 0..4);
    mix_and_check(Shape { depth: 1024, stage: 1024, ..shape }, shared(0, 6, 40), 0..3);
    mix_and_check(Shape { depth: 1024, stage: 1024, ..shape }, shared(0, 3, 70), 0..2);
}

#[test]
fn a_call_of_more_than_can_be_counted_is_refused_and_posts_nothing() {
    let mut bench = Bench::new(Shape::default());
    for sharing in [EFA_GDA_LOAD_SHARED, EFA_GDA_LOAD_OWNED] {
        let status = load(&mut bench, efa_gda_load_args { sharing, ..shared(32, 1, 65537) }, 1, 32);
        assert_eq!(status, [Err(DeviceError::BadArgument)]);
    }
    let seen = bench.finish();
    assert_eq!((seen.requests.len(), seen.violations.len()), (0, 0));
}

#[test]
fn sharing_needs_no_stage() {
    load_and_check(Shape { stage: 0, ..Shape::default() }, shared(32, 40, 32), 3, 32);
}

#[test]
fn a_stage_smaller_than_the_ring_is_enough() {
    load_and_check(Shape { depth: 512, max_batch: 512, ..Shape::default() }, shared(32, 60, 32), 3, 64);
}

#[test]
fn sharing_passes_the_32_bit_wrap() {
    load_and_check(Shape { start: u32::MAX - 500, ..Shape::default() }, shared(32, 40, 13), 3, 32);
}

#[test]
fn wide_entries_are_shared() {
    load_and_check(Shape { entry_size: 128, wide_ids: true, ..Shape::default() }, shared(32, 20, 32), 3, 64);
}

#[test]
fn deferred_calls_of_many_are_rung_in_the_end() {
    load_and_check(Shape::default(), efa_gda_load_args { ring_every: 5, ..shared(32, 43, 8) }, 3, 32);
}

#[test]
fn an_owner_defers_until_it_rings() {
    let args = efa_gda_load_args { sharing: EFA_GDA_LOAD_OWNED, ring_every: 4, ..shared(32, 16, 4) };
    load_and_check(Shape { depth: 64, max_batch: 64, ..Shape::default() }, args, 1, 32);
}

#[test]
fn a_thread_owns_a_queue() {
    let args = efa_gda_load_args { sharing: EFA_GDA_LOAD_OWNED, ..shared(1, 200, 1) };
    load_and_check(Shape::default(), args, 1, 1);
}
