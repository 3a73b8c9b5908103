//! Regions with relaxed ordering: which writes are late, and what lands them.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::time::Duration;

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

/// Longer than any test: such a write lands only when something lands it.
const NEVER: Duration = Duration::from_secs(3600);
const WRITES: usize = 32;

/// Two sides whose late writes land within `latest`, with the random numbers of `seed`.
fn sides(latest: Duration, seed: u64) -> (Side, Side, Peer) {
    let configure = |config: &mut AdapterConfig| (config.latest_write, config.seed) = (latest, seed);
    let (a, b, to_b, _) = pair_with(configure, |_| {});
    (a, b, to_b)
}

/// Writes each byte of `from` to the same offset of `to`, one request each, and waits for their completions.
fn write_each(a: &mut Side, to_b: Peer, from: &Buffer, to: &Buffer) {
    from.fill(|_| 0xff);
    for at in 0..WRITES as u64 {
        assert_eq!(a.run(&write(at, to_b, to.remote(at), from.segment(at, 1))), CompletionStatus::Ok);
    }
}

/// Which of the writes have not landed, after all have completed.
fn late_writes(ordering: Access, seed: u64) -> Vec<bool> {
    let (mut a, b, to_b) = sides(NEVER, seed);
    let from = Buffer::new(&a, WRITES, Access::LOCAL_READ);
    let to = Buffer::new(&b, WRITES, Access::ALL | ordering);
    write_each(&mut a, to_b, &from, &to);
    let late = to.bytes().iter().map(|byte| *byte == 0).collect();
    b.adapter.deregister_memory(to.keys.local).unwrap();
    assert_eq!(to.bytes(), [0xff; WRITES], "deregistration lands every write");
    late
}

#[test]
fn some_writes_to_a_relaxed_region_land_after_their_completion() {
    let late = late_writes(Access::RELAXED_ORDERING, 1);
    assert!(late.contains(&true) && late.contains(&false), "{late:?}");
}

#[test]
fn every_write_to_a_strictly_ordered_region_lands_before_its_completion() {
    assert_eq!(late_writes(Access::default(), 1), [false; WRITES]);
}

#[test]
fn the_seed_decides_which_writes_are_late() {
    let late = |seed| late_writes(Access::RELAXED_ORDERING, seed);
    assert_eq!(late(7), late(7));
    assert_ne!(late(7), late(8));
}

#[test]
fn a_read_of_a_relaxed_region_returns_every_write_that_completed_before() {
    let (mut a, b, to_b) = sides(NEVER, 1);
    let from = Buffer::new(&a, 2 * WRITES, Access::ALL);
    let to = Buffer::new(&b, WRITES, Access::ALL | Access::RELAXED_ORDERING);
    write_each(&mut a, to_b, &from, &to);
    from.fill(|_| 0);
    let back = from.segment(WRITES as u64, WRITES as u32);
    assert_eq!(a.run(&read(99, to_b, to.remote(0), back)), CompletionStatus::Ok);
    assert_eq!(from.bytes()[WRITES..], [0xff; WRITES]);
    assert_eq!(to.bytes(), [0xff; WRITES]);
    b.adapter.deregister_memory(to.keys.local).unwrap();
}

#[test]
fn the_completion_of_a_receive_shows_every_write_before_it_and_the_message() {
    let (mut a, mut b, to_b) = sides(NEVER, 1);
    let from = Buffer::new(&a, WRITES, Access::LOCAL_READ);
    let [to, inbox] = [0; 2].map(|_| Buffer::new(&b, WRITES, Access::ALL | Access::RELAXED_ORDERING));
    for round in 0..8 {
        to.fill(|_| 0);
        inbox.fill(|_| 0);
        write_each(&mut a, to_b, &from, &to);
        b.post_receive(round, inbox.segment(0, WRITES as u32));
        assert_eq!(a.run(&send(100, to_b, &[from.segment(0, WRITES as u32)])), CompletionStatus::Ok);
        assert_eq!(b.completion().status, CompletionStatus::Ok);
        assert_eq!([to.bytes(), inbox.bytes()], [[0xff; WRITES]; 2].map(Vec::from));
    }
    [to, inbox].iter().for_each(|region| b.adapter.deregister_memory(region.keys.local).unwrap());
}

#[test]
fn the_completion_of_a_read_shows_its_bytes() {
    let (mut a, b, to_b) = sides(NEVER, 1);
    let to = Buffer::new(&a, WRITES, Access::ALL | Access::RELAXED_ORDERING);
    let from = Buffer::new(&b, WRITES, Access::ALL);
    from.fill(|_| 0xff);
    for at in 0..WRITES as u64 {
        assert_eq!(a.run(&read(at, to_b, from.remote(at), to.segment(at, 1))), CompletionStatus::Ok);
    }
    assert_eq!(to.bytes(), [0xff; WRITES]);
    a.adapter.deregister_memory(to.keys.local).unwrap();
}

#[test]
fn late_writes_land_without_another_request() {
    let (mut a, b, to_b) = sides(Duration::from_millis(1), 1);
    let from = Buffer::new(&a, WRITES, Access::LOCAL_READ);
    let to = Buffer::new(&b, WRITES, Access::ALL | Access::RELAXED_ORDERING);
    write_each(&mut a, to_b, &from, &to);
    until("the late writes to land", || (to.bytes() == [0xff; WRITES]).then_some(()));
    b.adapter.deregister_memory(to.keys.local).unwrap();
}

/// The engine looks at every region whose writes may be late, so one client must not register them by the thousand.
#[test]
fn writes_are_late_in_64_regions_of_an_adapter() {
    let (mut a, b, to_b) = sides(NEVER, 1);
    let from = Buffer::new(&a, WRITES, Access::LOCAL_READ);
    let regions: Vec<Buffer> =
        (0..65).map(|_| Buffer::new(&b, WRITES, Access::ALL | Access::RELAXED_ORDERING)).collect();
    write_each(&mut a, to_b, &from, &regions[63]);
    assert_ne!(regions[63].bytes(), [0xff; WRITES]);
    write_each(&mut a, to_b, &from, &regions[64]);
    assert_eq!(regions[64].bytes(), [0xff; WRITES]);
    for region in regions {
        b.adapter.deregister_memory(region.keys.local).unwrap();
    }
}

#[test]
fn regions_of_an_adapter_differ_in_which_writes_are_late_also_after_a_deregistration() {
    let (mut a, b, to_b) = sides(NEVER, 1);
    let from = Buffer::new(&a, WRITES, Access::LOCAL_READ);
    let region = || Buffer::new(&b, WRITES, Access::ALL | Access::RELAXED_ORDERING);
    let (first, second) = (region(), region());
    b.adapter.deregister_memory(first.keys.local).unwrap();
    let third = region();
    let [late_in_second, late_in_third] = [&second, &third].map(|to| {
        write_each(&mut a, to_b, &from, to);
        let landed = to.bytes();
        b.adapter.deregister_memory(to.keys.local).unwrap();
        landed
    });
    assert_ne!(late_in_second, late_in_third);
}
