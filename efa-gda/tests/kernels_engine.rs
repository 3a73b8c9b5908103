//! The posting engine on the host executor, against a strict ring. The host executor runs the same device code as GPUs.

mod kernels_support;

use efa_gda::ErrorKind;
use efa_gda::executor::host;
use efa_gda::status::DeviceError;
use efa_gda::wire::Operation;
use efa_gda_sys::device::*;
use efa_gda_test_support::assert_error;
use kernels_support::{AdapterRecord, Bench, PEER, SECOND, Shape, load, remotes, shared};

fn writes(count: u64) -> efa_gda_put_args {
    efa_gda_put_args {
        peer: PEER,
        op: EFA_GDA_OP_WRITE,
        local_address: 0x10_0000,
        remote_address: 0x7000_0000,
        lkey: 5,
        rkey: 0xabc,
        bytes: 64,
        count,
        local_stride: 64,
        remote_stride: 64,
        timeout_ns: 20 * SECOND,
        ..Default::default()
    }
}

fn put(bench: &mut Bench, args: efa_gda_put_args, lanes: u32) -> host::KernelOutcome {
    let args = efa_gda_put_args { queue: &mut *bench.queue, ..args };
    // SAFETY: the bench keeps the queue's memory alive, and nothing else posts.
    unsafe { host::put(&args, lanes) }.expect("the block starts")
}

/// Runs `count` writes and checks that each arrived once, in order, and without a violation.
fn put_and_check(shape: Shape, count: u64, lanes: u32) -> AdapterRecord {
    let mut bench = Bench::new(shape);
    let outcome = put(&mut bench, writes(count), lanes);
    assert_eq!(outcome.status, Ok(()));
    assert_eq!((outcome.posted, outcome.completed), (count, count));
    let record = bench.finish();
    assert_eq!(record.violations, Vec::<String>::new());
    let expected: Vec<u64> = (0..count).map(|i| 0x7000_0000 + i * 64).collect();
    assert_eq!(remotes(&record), expected);
    record
}

#[test]
fn one_lane_posts_past_many_wraps() {
    put_and_check(Shape { depth: 16, max_batch: 4, ..Shape::default() }, 3000, 1);
}

#[test]
fn a_warp_posts_past_many_wraps() {
    put_and_check(Shape { depth: 16, max_batch: 4, ..Shape::default() }, 3000, 32);
}

#[test]
fn a_block_of_odd_size_posts_past_many_wraps() {
    put_and_check(Shape::default(), 3000, 77);
}

#[test]
fn posts_stay_within_a_batch_of_one() {
    let record = put_and_check(Shape { max_batch: 1, ..Shape::default() }, 300, 32);
    assert_eq!(record.requests.len(), 300);
}

#[test]
fn posts_stay_within_an_odd_batch() {
    put_and_check(Shape { max_batch: 11, ..Shape::default() }, 2000, 32);
}

#[test]
fn with_a_batch_larger_than_the_ring_only_the_ring_bounds_posts() {
    put_and_check(Shape { depth: 16, max_batch: 65_535, ..Shape::default() }, 2000, 32);
}

#[test]
fn posts_continue_past_the_16_bit_wrap_of_the_doorbell() {
    put_and_check(Shape { start: 65_000, ..Shape::default() }, 2000, 32);
}

#[test]
fn posts_continue_past_the_32_bit_wrap_of_the_producer_index() {
    put_and_check(Shape { start: u32::MAX - 1000, wide_ids: false, ..Shape::default() }, 2000, 32);
}

#[test]
fn wide_request_ids_carry_the_whole_producer_index() {
    put_and_check(Shape { start: 0x1_2345, wide_ids: true, ..Shape::default() }, 500, 32);
}

#[test]
fn entries_of_128_bytes_fill_their_slots() {
    put_and_check(Shape { entry_size: 128, ..Shape::default() }, 500, 32);
}

#[test]
fn a_request_longer_than_the_limit_is_split() {
    let mut bench = Bench::new(Shape::default());
    bench.queue.max_rdma_size = 1000;
    let outcome = put(&mut bench, efa_gda_put_args { bytes: 2500, ..writes(1) }, 4);
    assert_eq!((outcome.status, outcome.posted), (Ok(()), 3));
    let record = bench.finish();
    let pieces: Vec<_> = record
        .requests
        .iter()
        .map(|request| match request.operation {
            Operation::Write { remote, local } => (remote.address, local.address, local.length),
            other => panic!("not a write: {other:?}"),
        })
        .collect();
    let piece = |offset: u64, length| (0x7000_0000 + offset, 0x10_0000 + offset, length);
    assert_eq!(pieces, [piece(0, 1000), piece(1000, 1000), piece(2000, 500)]);
}

#[test]
fn inline_bytes_travel_in_the_entry() {
    let mut bench = Bench::new(Shape { entry_size: 128, ..Shape::default() });
    let bytes: Vec<u8> = (0..77).collect();
    let local_address = bytes.as_ptr() as u64;
    let args = efa_gda_put_args { op: EFA_GDA_OP_INLINE_WRITE, bytes: 77, local_address, ..writes(1) };
    assert_eq!(put(&mut bench, args, 32).status, Ok(()));
    match bench.finish().requests[0].operation {
        Operation::WriteInline { data, .. } => assert_eq!(*data, *bytes),
        other => panic!("not an inline write: {other:?}"),
    }
}

#[test]
fn the_test_put_kernel_writes_once_and_waits() {
    let mut bench = Bench::new(Shape::default());
    let target = host::TestPutTarget {
        queue: &mut *bench.queue,
        result: std::ptr::null_mut(),
        peer: PEER,
        timeout_ns: 20 * SECOND,
    };
    // SAFETY: the bench keeps the queue's memory alive, and nothing else posts.
    let outcome =
        unsafe { host::test_put(&target, 0x9000, 0x8000, 321, 5, 6, 32) }.expect("the block starts");
    assert_eq!((outcome.status, outcome.posted, outcome.completed), (Ok(()), 1, 1));
    match bench.finish().requests[0].operation {
        Operation::Write { remote, local } => {
            assert_eq!((remote.address, remote.key.get()), (0x9000, 6));
            assert_eq!((local.address, local.length, local.key.get()), (0x8000, 321, 5));
        }
        other => panic!("not a write: {other:?}"),
    }
}

#[test]
fn a_failed_request_is_reported_with_status_and_id() {
    let mut bench = Bench::new(Shape { fail: Some((5, 7)), ..Shape::default() });
    let outcome = put(&mut bench, writes(20), 32);
    assert_eq!(outcome.status, Err(DeviceError::Completion));
    assert_eq!((outcome.completion_status, outcome.request_id), (7, 5));
    let error = bench.queue.error;
    assert_eq!((error.count, error.reported, error.completion_status, error.request_id), (1, 1, 7, 5));
}

#[test]
fn a_wide_request_id_is_reported_whole() {
    let shape = Shape { start: 0x7_0000, wide_ids: true, fail: Some((2, 9)), ..Shape::default() };
    let mut bench = Bench::new(shape);
    assert_eq!(put(&mut bench, writes(4), 32).request_id, 0x7_0002);
}

#[test]
fn a_work_request_stops_early_when_requests_fail() {
    let mut bench = Bench::new(Shape { fail: Some((0, 7)), ..Shape::default() });
    let outcome = put(&mut bench, writes(100_000), 32);
    assert_eq!(outcome.status, Err(DeviceError::Completion));
    assert!(outcome.posted < 100_000, "posted {}", outcome.posted);
    assert_eq!(outcome.posted, outcome.completed);
}

#[test]
fn a_completion_of_another_queue_pair_is_refused() {
    let mut bench = Bench::new(Shape { qpn: 78, ..Shape::default() });
    let outcome = put(&mut bench, writes(1), 1);
    assert_eq!((outcome.status, outcome.completed), (Err(DeviceError::BadCompletion), 0));
    assert_eq!(bench.queue.error.poison, EFA_GDA_BAD_COMPLETION);
    assert_eq!(put(&mut bench, writes(1), 1).status, Err(DeviceError::Poisoned));
}

#[test]
fn a_put_that_cannot_open_its_queue_reports_nothing_of_the_put_before() {
    let mut bench = Bench::new(Shape { fail: Some((0, 7)), ..Shape::default() });
    assert_eq!(put(&mut bench, writes(1), 1).completion_status, 7);
    bench.queue.error.poison = EFA_GDA_ABORTED;
    let outcome = put(&mut bench, writes(1), 1);
    let nothing = host::KernelOutcome {
        status: Err(DeviceError::Poisoned),
        completion_status: 0,
        request_id: 0,
        posted: 0,
        completed: 0,
    };
    assert_eq!(outcome, nothing);
}

#[test]
fn a_wait_for_a_missing_completion_times_out_and_poisons_the_queue() {
    let mut bench = Bench::silent(Shape::default());
    let args = efa_gda_put_args { timeout_ns: 1_000_000, ..writes(3) };
    let outcome = put(&mut bench, args, 32);
    assert_eq!(outcome.status, Err(DeviceError::TimeoutCompletion));
    assert_eq!((outcome.posted, outcome.completed), (3, 0));
    assert_eq!(bench.queue.error.poison, EFA_GDA_TIMEOUT_COMPLETION);
}

#[test]
fn a_wait_for_free_slots_times_out() {
    let mut bench = Bench::silent(Shape::default());
    let args = efa_gda_put_args { timeout_ns: 1_000_000, ..writes(128) };
    assert_eq!(put(&mut bench, args, 32).status, Err(DeviceError::TimeoutSlots));
    assert_eq!(bench.doorbell(), 64, "entries written before the wait must be rung");
    assert_eq!(bench.doorbell_index(), 64, "the host learns from close() how many requests are in flight");
}

/// A sender must read the counters before it assumes free slots, whatever their values are.
#[test]
fn a_full_ring_next_to_the_32_bit_wrap_is_full() {
    for lanes in [1, 32] {
        let mut bench = Bench::silent(Shape { start: u32::MAX - 15, ..Shape::default() });
        bench.queue.completion.completed = bench.queue.completion.completed.wrapping_sub(64);
        let args = efa_gda_put_args { timeout_ns: 1_000_000, ..writes(8) };
        assert_eq!(
            put(&mut bench, args, lanes).status,
            Err(DeviceError::TimeoutSlots),
            "{lanes} lanes that own the queue"
        );

        let mut bench = Bench::silent(Shape { start: u32::MAX - 15, ..Shape::default() });
        bench.queue.completion.completed = bench.queue.completion.completed.wrapping_sub(64);
        let args = efa_gda_load_args { timeout_ns: 1_000_000, ..shared(lanes, 1, 8) };
        assert_eq!(
            load(&mut bench, args, 1, lanes),
            [Err(DeviceError::TimeoutSlots)],
            "{lanes} lanes that share the queue"
        );
    }
}

#[test]
fn in_record_mode_requests_in_flight_stay_within_the_batch() {
    let mut bench = Bench::silent(Shape { max_batch: 16, ..Shape::default() });
    bench.queue.sq.flags |= EFA_GDA_SQ_RECORD;
    let args = efa_gda_put_args { timeout_ns: 1_000_000, ..writes(64) };
    assert_eq!(put(&mut bench, args, 32).status, Err(DeviceError::TimeoutSlots));
    assert_eq!(bench.doorbell(), 16, "no request completed, so only one batch may be written");
}

#[test]
fn a_poisoned_queue_refuses_posts() {
    let mut bench = Bench::new(Shape::default());
    bench.queue.error.poison = EFA_GDA_TIMEOUT_SLOTS;
    let outcome = put(&mut bench, writes(1), 1);
    assert_eq!((outcome.status, outcome.posted), (Err(DeviceError::Poisoned), 0));
    assert_eq!(bench.finish().requests.len(), 0);
}

#[test]
fn the_abort_flag_ends_a_wait() {
    // A value that is a status's ends it with that status. All others count as 1, also those that are a call's own marks.
    let ends = [1, EFA_GDA_TIMEOUT_SIGNAL, EFA_GDA_TIMEOUT_SIGNAL + 1, 253, u32::MAX].map(|value| {
        let mut bench = Bench::silent(Shape::default());
        bench.abort(value);
        put(&mut bench, writes(1), 1).status
    });
    let aborted = Err(DeviceError::Aborted);
    assert_eq!(ends, [aborted, Err(DeviceError::TimeoutSignal), aborted, aborted, aborted]);
}

#[test]
fn a_wait_for_an_abandoned_turn_times_out_and_poisons_the_queue() {
    let mut bench = Bench::silent(Shape::default());
    // The state after a call that took a ticket and died.
    bench.queue.reserve.word += 1 << 32;
    let status = load(&mut bench, efa_gda_load_args { timeout_ns: 1_000_000, ..shared(1, 1, 1) }, 1, 1);
    assert_eq!(status, [Err(DeviceError::TimeoutLock)]);
    assert_eq!(bench.queue.error.poison, EFA_GDA_TIMEOUT_LOCK);
}

#[test]
fn a_queue_in_use_refuses_an_owner() {
    let mut bench = Bench::silent(Shape::default());
    bench.queue.reserve.word += 1 << 32 | 1;
    assert_eq!(put(&mut bench, writes(1), 1).status, Err(DeviceError::InUse));
}

#[test]
fn inline_bytes_that_do_not_fit_are_refused() {
    let mut bench = Bench::silent(Shape::default());
    let args = efa_gda_put_args { op: EFA_GDA_OP_INLINE_SEND, bytes: 33, ..writes(1) };
    assert_eq!(put(&mut bench, args, 1).status, Err(DeviceError::BadArgument));
}

#[test]
fn an_inline_write_needs_128_byte_entries() {
    let mut bench = Bench::silent(Shape::default());
    let args = efa_gda_put_args { op: EFA_GDA_OP_INLINE_WRITE, bytes: 8, ..writes(1) };
    assert_eq!(put(&mut bench, args, 1).status, Err(DeviceError::Unsupported));
}

#[test]
fn a_launch_without_lanes_is_refused() {
    let mut queue = host::zeroed_queue();
    let args = efa_gda_put_args { queue: &mut *queue, ..writes(1) };
    // SAFETY: the launch is refused, so no code uses the queue.
    let error = unsafe { host::put(&args, 0) }.unwrap_err();
    assert_error!(error, ErrorKind::Argument, "a block of 0 lanes");
}

/// An adapter completed more requests than were posted, or fewer than would leave the rest in the ring.
#[test]
fn counts_of_completions_that_cannot_be_are_not_taken_for_free_slots() {
    for (ahead, capacity) in [(10, 64), (u32::MAX - 64, 64), (10, 16)] {
        let mut bench = Bench::silent(Shape { max_batch: capacity, ..Shape::default() });
        bench.queue.sq.flags |= EFA_GDA_SQ_RECORD;
        bench.queue.completion.completed = bench.queue.completion.completed.wrapping_add(ahead);
        let outcome = put(&mut bench, efa_gda_put_args { timeout_ns: 1_000_000, ..writes(8) }, 32);
        assert_eq!(outcome.status, Err(DeviceError::BadCompletion), "completed is {ahead} ahead");
        assert_eq!((bench.queue.error.poison, bench.doorbell()), (EFA_GDA_BAD_COMPLETION, 0));
    }
}

/// More requests are in flight than the doorbell record's limit: they were posted when the adapter was rung directly.
#[test]
fn no_slot_is_free_while_more_requests_are_in_flight_than_may_be() {
    let mut bench = Bench::silent(Shape { max_batch: 16, ..Shape::default() });
    bench.queue.sq.flags |= EFA_GDA_SQ_RECORD;
    bench.queue.completion.completed = bench.queue.completion.completed.wrapping_sub(20);
    let outcome = put(&mut bench, efa_gda_put_args { timeout_ns: 1_000_000, ..writes(8) }, 32);
    assert_eq!((outcome.status, bench.doorbell()), (Err(DeviceError::TimeoutSlots), 0));
}

#[test]
fn a_queue_without_a_batch_window_is_refused() {
    let mut bench = Bench::silent(Shape { max_batch: 0, ..Shape::default() });
    assert_eq!(put(&mut bench, writes(1), 32).status, Err(DeviceError::BadArgument));
    assert_eq!(load(&mut bench, shared(32, 1, 1), 1, 32), [Err(DeviceError::BadArgument)]);
}

/// Entries of kernels of the caller, which do not set hints.
#[test]
fn every_entry_carries_the_hints_of_the_queue() {
    for entry_size in [64, 128] {
        let mut bench = Bench::new(Shape { entry_size, ..Shape::default() });
        bench.queue.hints = 2;
        let status = load(&mut bench, shared(32, 30, 7), 3, 64);
        assert!(status.iter().all(Result::is_ok), "{status:?}");
        let record = bench.finish();
        assert_eq!(record.violations, [""; 0]);
        assert!(
            record.requests.iter().all(|request| request.hints.bits() == 2),
            "entries of {entry_size} bytes"
        );
    }
}

#[test]
fn inline_bytes_of_any_alignment_and_length_are_posted() {
    let bytes: Vec<u8> = (1..=100).collect();
    let mut bench = Bench::new(Shape { entry_size: 128, ..Shape::default() });
    let mut expected = Vec::new();
    for (from, length) in (0..9).flat_map(|from| [0, 1, 3, 8, 13, 16, 79, 80].map(|length| (from, length))) {
        expected.push(&bytes[from..from + length]);
        let local_address = bytes[from..].as_ptr() as u64;
        let op = EFA_GDA_OP_INLINE_WRITE;
        let args = efa_gda_put_args { op, bytes: length as u64, local_address, ..writes(1) };
        assert_eq!(put(&mut bench, args, 1).status, Ok(()));
    }
    let record = bench.finish();
    let posted = record.requests.iter().map(|request| match &request.operation {
        Operation::WriteInline { data, .. } => &**data,
        other => panic!("not an inline write: {other:?}"),
    });
    assert_eq!(posted.collect::<Vec<_>>(), expected);
}
