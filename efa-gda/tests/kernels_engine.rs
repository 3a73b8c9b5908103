//! The posting engine on the host executor, against a strict ring.
//!
//! Linked with `efa-gda`'s host executor: the device code that runs here is the one that GPUs run.

mod kernels_support;

use efa_gda::executor::host;
use efa_gda::status::DeviceError;
use efa_gda::wire::Operation;
use efa_gda_sys::device::*;
use kernels_support::{Bench, PEER, SECOND, Seen, Shape, load, remotes, shared};

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

/// Runs `count` writes and checks that each arrived once, in order, with no rule broken.
fn put_and_check(shape: Shape, count: u64, lanes: u32) -> Seen {
    let mut bench = Bench::new(shape);
    let outcome = put(&mut bench, writes(count), lanes);
    assert_eq!(outcome.status, Ok(()));
    assert_eq!((outcome.posted, outcome.completed), (count, count));
    let seen = bench.finish();
    assert_eq!(seen.violations, Vec::<String>::new());
    let expected: Vec<u64> = (0..count).map(|i| 0x7000_0000 + i * 64).collect();
    assert_eq!(remotes(&seen), expected);
    seen
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
fn a_batch_of_one_is_kept() {
    let seen = put_and_check(Shape { max_batch: 1, ..Shape::default() }, 300, 32);
    assert_eq!(seen.requests.len(), 300);
}

#[test]
fn an_odd_batch_is_kept() {
    put_and_check(Shape { max_batch: 11, ..Shape::default() }, 2000, 32);
}

#[test]
fn a_batch_larger_than_the_ring_leaves_the_ring_as_the_bound() {
    put_and_check(Shape { depth: 16, max_batch: 65_535, ..Shape::default() }, 2000, 32);
}

#[test]
fn doorbells_pass_the_16_bit_wrap() {
    put_and_check(Shape { start: 65_000, ..Shape::default() }, 2000, 32);
}

#[test]
fn counters_pass_the_32_bit_wrap() {
    put_and_check(Shape { start: u32::MAX - 1000, wide_ids: false, ..Shape::default() }, 2000, 32);
}

#[test]
fn wide_request_ids_carry_the_whole_counter() {
    put_and_check(Shape { start: 0x1_2345, wide_ids: true, ..Shape::default() }, 500, 32);
}

#[test]
fn entries_of_128_bytes_fill_their_slots() {
    put_and_check(Shape { entry_size: 128, ..Shape::default() }, 500, 32);
}

#[test]
fn aggregated_puts_ring_less_often() {
    let shape = Shape { depth: 256, max_batch: 256, ..Shape::default() };
    let mut bench = Bench::new(shape);
    let args = efa_gda_put_args { flags: EFA_GDA_PUT_AGGREGATE, ..writes(200) };
    assert_eq!(put(&mut bench, args, 32).status, Ok(()));
    let seen = bench.finish();
    assert_eq!((seen.violations.len(), seen.requests.len(), seen.doorbells), (0, 200, 1));
}

#[test]
fn a_request_longer_than_the_limit_is_split() {
    let mut bench = Bench::new(Shape::default());
    bench.queue.max_rdma_size = 1000;
    let outcome = put(&mut bench, efa_gda_put_args { bytes: 2500, ..writes(1) }, 4);
    assert_eq!((outcome.status, outcome.posted), (Ok(()), 3));
    let seen = bench.finish();
    let pieces: Vec<_> = seen
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
fn the_interface_kernel_writes_once_and_waits() {
    let mut bench = Bench::new(Shape::default());
    let target = host::TestPutTarget { queue: &mut *bench.queue, peer: PEER, timeout_ns: 20 * SECOND };
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
fn a_wide_request_id_comes_back_whole() {
    let shape = Shape { start: 0x7_0000, wide_ids: true, fail: Some((2, 9)), ..Shape::default() };
    let mut bench = Bench::new(shape);
    assert_eq!(put(&mut bench, writes(4), 32).request_id, 0x7_0002);
}

#[test]
fn a_put_stops_early_when_requests_fail() {
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
}

#[test]
fn a_completion_that_never_comes_ends_the_wait_and_poisons_the_queue() {
    let mut bench = Bench::silent(Shape::default());
    let args = efa_gda_put_args { timeout_ns: 1_000_000, ..writes(3) };
    let outcome = put(&mut bench, args, 32);
    assert_eq!(outcome.status, Err(DeviceError::TimeoutCompletion));
    assert_eq!((outcome.posted, outcome.completed), (3, 0));
    assert_eq!(bench.queue.error.poison, EFA_GDA_TIMEOUT_COMPLETION);
}

#[test]
fn room_that_never_comes_ends_the_wait() {
    let mut bench = Bench::silent(Shape::default());
    let args = efa_gda_put_args { timeout_ns: 1_000_000, ..writes(128) };
    assert_eq!(put(&mut bench, args, 32).status, Err(DeviceError::TimeoutSlots));
    assert_eq!(bench.doorbell(), 64, "what was written before the wait is rung");
}

/// A sender knows of no room before it has looked, whatever the counters' value is.
#[test]
fn a_full_ring_next_to_the_32_bit_wrap_is_full() {
    for lanes in [1, 32] {
        let mut bench = Bench::silent(Shape { start: u32::MAX - 15, ..Shape::default() });
        bench.queue.completion.completed = bench.queue.completion.completed.wrapping_sub(64);
        let args = efa_gda_put_args { timeout_ns: 1_000_000, ..writes(8) };
        assert_eq!(
            put(&mut bench, args, lanes).status,
            Err(DeviceError::TimeoutSlots),
            "{lanes} lanes own it"
        );

        let mut bench = Bench::silent(Shape { start: u32::MAX - 15, ..Shape::default() });
        bench.queue.completion.completed = bench.queue.completion.completed.wrapping_sub(64);
        let args = efa_gda_load_args { timeout_ns: 1_000_000, ..shared(lanes, 1, 8) };
        assert_eq!(
            load(&mut bench, args, 1, lanes),
            [Err(DeviceError::TimeoutSlots)],
            "{lanes} lanes share it"
        );
    }
}

#[test]
fn a_record_keeps_requests_in_flight_within_the_batch() {
    let mut bench = Bench::silent(Shape { max_batch: 16, ..Shape::default() });
    bench.queue.sq.flags |= EFA_GDA_SQ_RECORD;
    let args = efa_gda_put_args { timeout_ns: 1_000_000, ..writes(64) };
    assert_eq!(put(&mut bench, args, 32).status, Err(DeviceError::TimeoutSlots));
    assert_eq!(bench.doorbell(), 16, "no request completed, so no more than a batch is written");
}

#[test]
fn a_poisoned_queue_refuses() {
    let mut bench = Bench::new(Shape::default());
    bench.queue.error.poison = EFA_GDA_TIMEOUT_SLOTS;
    let outcome = put(&mut bench, writes(1), 1);
    assert_eq!((outcome.status, outcome.posted), (Err(DeviceError::Poisoned), 0));
    assert_eq!(bench.finish().requests.len(), 0);
}

#[test]
fn the_abort_flag_ends_a_wait() {
    let mut bench = Bench::silent(Shape::default());
    bench.abort();
    assert_eq!(put(&mut bench, writes(1), 1).status, Err(DeviceError::Aborted));
}

#[test]
fn a_ticket_that_nobody_serves_ends_the_wait_for_the_turn() {
    let mut bench = Bench::silent(Shape::default());
    // A call that took a ticket and died.
    bench.queue.reserve.word += 1 << 32;
    let status = load(&mut bench, efa_gda_load_args { timeout_ns: 1_000_000, ..shared(1, 1, 1) }, 1, 1);
    assert_eq!(status, [Err(DeviceError::TimeoutLock)]);
    assert_eq!(bench.queue.error.poison, EFA_GDA_TIMEOUT_LOCK);
}

#[test]
fn an_owner_is_refused_a_queue_in_use() {
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
fn no_lanes_are_no_launch() {
    let mut queue = host::zeroed_queue();
    let args = efa_gda_put_args { queue: &mut *queue, ..writes(1) };
    // SAFETY: nothing runs.
    assert_eq!(unsafe { host::put(&args, 0) }, Err(host::LaunchError::Lanes(0)));
}
