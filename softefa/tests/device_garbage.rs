//! A hostile client: random entries, descriptors and doorbells. The adapter completes every entry, reports
//! broken rules, and continues to work for other clients.

#![allow(clippy::unwrap_used)]

mod device_support;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// The next random number of `state` (xorshift).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn random_bytes(state: &mut u64, length: usize) -> Vec<u8> {
    (0..length).map(|_| random(state) as u8).collect()
}

#[test]
fn every_random_entry_completes() {
    let (honest, b, to_b, _) = pair_with(|_| {}, |attr| attr.rnr_retry = RnrRetry::Times(0));
    let mut state = 0x1234_5678_9abc_def0;
    for round in 0..2000 {
        let size = if round % 2 == 0 { EntrySize::B64 } else { EntrySize::B128 };
        let mut side = Side::with(&honest.adapter, |attr| {
            attr.entry_size = size;
            attr.sq_depth = 8;
            attr.rq_depth = 8;
            attr.rnr_retry = RnrRetry::Times(0);
        });
        let entry = random_bytes(&mut state, size.bytes());
        side.run_bytes(&entry);
        assert!(side.adapter.queue_pair_state(side.qp.number).is_ok());
        destroy(side);
    }
    let mut honest = honest;
    assert_eq!(
        honest.run(&write(1, to_b, RemoteMemory::default(), Segment::default())),
        CompletionStatus::Ok
    );
    drop(b);
}

#[test]
fn every_correct_entry_with_one_random_byte_completes() {
    let (mut a, b, _, _) = pair();
    let (from, to) = (Buffer::new(&a, 4096, Access::ALL), Buffer::new(&b, 4096, Access::ALL));
    let mut state = 0xfeed_beef_0bad_cafe;
    for _ in 0..3000 {
        let mut side = Side::on(&a.adapter, a.pd, a.cq.clone(), |attr| {
            attr.sq_depth = 2;
            attr.rq_depth = 0;
            attr.rnr_retry = RnrRetry::Times(0);
        });
        side.cursor = a.cursor;
        let to_b = side.handle(&b);
        let mut entry = side.encode(&write(1, to_b, to.remote(0), from.segment(0, 64)));
        let at = random(&mut state) as usize % 64;
        entry[at] = random(&mut state) as u8;
        side.run_bytes(&entry);
        side.adapter.destroy_queue_pair(side.qp.number).unwrap();
        side.adapter.destroy_address_handle(to_b.address_handle).unwrap();
        // All queue pairs complete into one queue.
        a.cursor = side.cursor;
    }
}

#[test]
fn the_adapter_works_after_random_doorbells_and_descriptors() {
    let (mut a, b, to_b, _) = pair();
    let mut state = 0x0dd_ba11;
    for _ in 0..2000 {
        let side = Side::with(&b.adapter, |attr| {
            attr.sq_depth = 8;
            attr.rq_depth = 8;
        });
        let rq = side.qp.rq.clone().unwrap();
        rq.memory.store(0, &random_bytes(&mut state, 8 * RX_DESCRIPTOR_BYTES));
        side.qp.sq.memory.store(0, &random_bytes(&mut state, 8 * 64));
        rq.doorbell.ring(random(&mut state) as u32 % 32);
        side.qp.sq.doorbell.ring(random(&mut state) as u32);
        rq.doorbell.ring(random(&mut state) as u32);
        side.qp.sq.doorbell.ring(random(&mut state) as u32);
        destroy(side);
    }
    assert_eq!(a.run(&write(1, to_b, RemoteMemory::default(), Segment::default())), CompletionStatus::Ok);
}

fn destroy(side: Side) {
    side.adapter.destroy_queue_pair(side.qp.number).unwrap();
    side.adapter.destroy_completion_queue(side.cq.number).unwrap();
    side.adapter.free_domain(side.pd).unwrap();
}
