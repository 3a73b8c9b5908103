//! Groups that share a send queue, on the host executor and against a strict ring. Blocks run on separate threads, and the
//! lanes of one block run in thousands of orders of their accesses.

mod kernels_support;

use efa_gda::executor::host;
use efa_gda::executor::host::LoadOptions;
use efa_gda::status::DeviceError;
use efa_gda_sys::device::*;
use kernels_support::{AdapterRecord, Bench, Shape, load, remotes, shared};

/// Loads a queue and checks that each request arrived exactly once, and each call's requests in order.
fn load_and_check(shape: Shape, args: efa_gda_load_args, blocks: u32, lanes: u32) -> AdapterRecord {
    let mut bench = Bench::new(shape);
    let status = load(&mut bench, args, blocks, lanes);
    let groups = status.len() as u64;
    assert!(status.iter().all(Result::is_ok), "{status:?}");
    let record = bench.finish();
    assert_eq!(record.violations, Vec::<String>::new());
    let got = remotes(&record);
    for pair in got.windows(2).filter(|pair| pair[0] >> 16 == pair[1] >> 16) {
        assert_eq!(pair[1], pair[0] + 1, "the entries of one call must be contiguous");
    }
    let mut sorted = got;
    sorted.sort_unstable();
    let call = |group: u64, call: u64| group << 48 | call << 16;
    let expected: Vec<u64> = (0..groups)
        .flat_map(|g| (0..u64::from(args.calls)).map(move |c| call(g, c)))
        .flat_map(|base| (0..u64::from(args.per_call)).map(move |i| base | i))
        .collect();
    assert_eq!(sorted, expected);
    record
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

/// Runs one block in an order of its lanes' accesses and of the adapter's that follows from `seed`.
fn interleave(
    bench: &mut Bench,
    args: efa_gda_load_args,
    lanes: u32,
    seed: u64,
) -> (Vec<Result<(), DeviceError>>, AdapterRecord) {
    let mut adapter = bench.stepped();
    let args = efa_gda_load_args { queues: &mut *bench.queue, ..args };
    let step = || {
        adapter.step();
    };
    // SAFETY: as in `load`.
    let status = unsafe { host::load_beside(&args, lanes, seed, step) };
    (status.expect("the block starts"), adapter.finish())
}

/// [`load_and_check`] for one block, with another order for each seed.
fn interleave_and_check(shape: Shape, args: efa_gda_load_args, lanes: u32, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut bench = Bench::silent(shape);
        let (status, record) = interleave(&mut bench, args, lanes, seed);
        assert!(status.iter().all(Result::is_ok), "seed {seed}: {status:?}");
        let queue = &*bench.queue;
        assert_eq!(
            queue.turn.word,
            queue.reserve.word << EFA_GDA_TURN_BITS,
            "seed {seed}: all turns must have ended, and all entries be rung for"
        );
        assert_eq!(record.violations.first(), None, "seed {seed}, of {}", record.violations.len());
        let mut got = remotes(&record);
        for pair in got.windows(2).filter(|pair| pair[0] >> 16 == pair[1] >> 16) {
            assert_eq!(pair[1], pair[0] + 1, "seed {seed}: the entries of one call must be contiguous");
        }
        let all = got.len();
        got.sort_unstable();
        got.dedup();
        let expected = status.len() as u64 * u64::from(args.calls * args.per_call);
        assert_eq!(
            (got.len() as u64, all as u64),
            (expected, expected),
            "seed {seed}: each request must arrive once"
        );
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    let run = |seed| {
        let mut bench = Bench::silent(Shape { depth: 64, max_batch: 5, ..Shape::default() });
        let (_, record) = interleave(&mut bench, shared(1, 12, 3), 7, seed);
        (remotes(&record), record.doorbells)
    };
    for seed in 1..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
        assert_ne!(run(seed).0, run(seed + 1).0, "seeds {seed} and the next give different runs");
    }
}

#[test]
fn threads_share_a_queue_in_many_orders() {
    let tight = Shape { depth: 64, max_batch: 5, ..Shape::default() };
    interleave_and_check(tight, shared(1, 12, 1), 4, 1..1500);
    interleave_and_check(tight, shared(1, 6, 3), 7, 1..1000);
    interleave_and_check(Shape::default(), shared(1, 60, 2), 5, 1..300);
    // The smallest loads in which a doorbell can be left to another call.
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

#[test]
fn groups_share_wide_request_ids_in_many_orders() {
    let wide = Shape { start: 0x1_2345, wide_ids: true, ..Shape::default() };
    interleave_and_check(wide, shared(1, 12, 1), 4, 1..300);
    interleave_and_check(wide, shared(32, 6, 13), 96, 1..8);
}

/// Each call has several chunks.
#[test]
fn long_calls_share_a_queue_in_many_orders() {
    let shape = Shape { depth: 256, max_batch: 60, ..Shape::default() };
    interleave_and_check(shape, shared(1, 4, 33), 5, 1..40);
    interleave_and_check(shape, shared(1, 3, 100), 4, 1..40);
    interleave_and_check(Shape { depth: 64, max_batch: 64, ..shape }, shared(1, 3, 100), 4, 1..40);
    interleave_and_check(Shape { depth: 2048, ..shape }, shared(32, 2, 600), 64, 1..3);
}

/// The window is at most 4,096 entries, whatever the adapter takes.
#[test]
fn a_window_longer_than_a_turn_can_count_is_shared() {
    let shape = Shape { depth: 16384, max_batch: 65_535, ..Shape::default() };
    load_and_check(shape, efa_gda_load_args { ring_every: 9, ..shared(32, 9, 1500) }, 2, 64);
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
fn quiet_returns_while_other_groups_keep_posting() {
    // So many calls that no group's quiet can depend on the end of all calls.
    load_and_check(Shape::default(), efa_gda_load_args { quiet_every: 7, ..shared(1, 400, 3) }, 4, 1);
    load_and_check(Shape::default(), efa_gda_load_args { quiet_every: 5, ..shared(32, 60, 32) }, 3, 64);
    mix_and_check(
        Shape { depth: 128, ..Shape::default() },
        efa_gda_load_args { quiet_every: 2, ..shared(0, 6, 7) },
        0..2,
    );
}

#[test]
fn quiet_on_a_shared_queue_without_completions_times_out() {
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
    const LANES: u32 = 64;
    for seed in seeds {
        let mut bench = Bench::new(shape);
        let args = efa_gda_load_args { queues: &mut *bench.queue, ..args };
        // SAFETY: as in `load`.
        let status = unsafe { host::load(&args, 4, LANES, LoadOptions { mixed: true, seed }) };
        let status = status.expect("the blocks start");
        let ended: Vec<_> = status.iter().filter(|status| **status != Err(DeviceError::NotRun)).collect();
        assert!(ended.iter().all(|status| status.is_ok()), "seed {seed}: {ended:?}");
        assert_eq!(ended.len(), 1 + 2 + 64 + 1, "a block, two warps, threads, a block");
        let record = bench.finish();
        assert_eq!(record.violations.first(), None, "seed {seed}, of {}", record.violations.len());
        let mut got = remotes(&record);
        let all = got.len();
        got.sort_unstable();
        got.dedup();
        let expected = ended.len() * (args.calls * args.per_call) as usize;
        assert_eq!((got.len(), all), (expected, expected), "seed {seed}: each request must arrive once");
    }
}

#[test]
fn blocks_warps_and_threads_share_a_queue() {
    let shape = Shape { depth: 128, max_batch: 30, ..Shape::default() };
    mix_and_check(shape, shared(0, 8, 7), 0..3);
    mix_and_check(shape, efa_gda_load_args { ring_every: 3, ..shared(0, 8, 7) }, 0..2);
    mix_and_check(Shape { depth: 1024, ..shape }, shared(0, 6, 40), 0..3);
    mix_and_check(Shape { depth: 1024, ..shape }, shared(0, 3, 70), 0..2);
}

#[test]
fn a_call_with_too_many_entries_to_count_is_refused_and_posts_nothing() {
    let mut bench = Bench::new(Shape::default());
    for sharing in [EFA_GDA_LOAD_SHARED, EFA_GDA_LOAD_OWNED] {
        let status = load(&mut bench, efa_gda_load_args { sharing, ..shared(32, 1, 65537) }, 1, 32);
        assert_eq!(status, [Err(DeviceError::BadArgument)]);
    }
    let record = bench.finish();
    assert_eq!((record.requests.len(), record.violations.len()), (0, 0));
}

#[test]
fn a_last_warp_of_fewer_than_32_threads_is_refused_and_posts_nothing() {
    let mut bench = Bench::new(Shape::default());
    let status = load(&mut bench, shared(32, 2, 5), 1, 40);
    assert_eq!(status, [Ok(()), Err(DeviceError::BadArgument)]);
    let record = bench.finish();
    assert_eq!((record.requests.len(), record.violations.len()), (10, 0));
    // A block may have such a warp.
    load_and_check(Shape::default(), shared(0, 2, 50), 1, 40);
}

#[test]
fn sharing_works_with_a_batch_of_the_whole_ring() {
    load_and_check(Shape { depth: 512, max_batch: 512, ..Shape::default() }, shared(32, 60, 32), 3, 64);
}

#[test]
fn sharing_works_with_a_batch_of_one() {
    load_and_check(Shape { max_batch: 1, ..Shape::default() }, shared(32, 20, 13), 3, 64);
}

#[test]
fn sharing_continues_past_the_32_bit_wrap() {
    load_and_check(Shape { start: u32::MAX - 500, ..Shape::default() }, shared(32, 40, 13), 3, 32);
}

#[test]
fn wide_entries_are_shared() {
    load_and_check(Shape { entry_size: 128, wide_ids: true, ..Shape::default() }, shared(32, 20, 32), 3, 64);
}

#[test]
fn deferred_calls_of_many_warps_are_rung_at_the_end() {
    load_and_check(Shape::default(), efa_gda_load_args { ring_every: 5, ..shared(32, 43, 8) }, 3, 32);
}

#[test]
fn an_owner_defers_doorbells_until_it_rings() {
    let args = efa_gda_load_args { sharing: EFA_GDA_LOAD_OWNED, ring_every: 4, ..shared(32, 16, 4) };
    load_and_check(Shape { depth: 64, max_batch: 64, ..Shape::default() }, args, 1, 32);
}

#[test]
fn a_thread_owns_a_queue() {
    let args = efa_gda_load_args { sharing: EFA_GDA_LOAD_OWNED, ..shared(1, 200, 1) };
    load_and_check(Shape::default(), args, 1, 1);
}
