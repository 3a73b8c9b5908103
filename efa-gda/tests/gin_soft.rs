//! NCCL's GIN (`gin.h`) on the software adapter, on handles in the shape that aws-ofi-nccl makes: the bytes and counts
//! of each operation, beside a model of NCCL's own post path, and failures. The kernels run on the host executor.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;
mod support;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use efa_gda::fabric::{CompletionCounter, CountedOperations, Query, Region};
use efa_gda::queue::{MappedQueue, device_peer};
use efa_gda_sys::device::{
    EFA_GDA_NOT_RUN, EFA_GDA_OK, EFA_GDA_POISONED, EFA_GDA_TIMEOUT_COMPLETION, EFA_GDA_TIMEOUT_SLOTS,
    efa_gda_peer, efa_gda_queue,
};
use efa_gda_test_support::pattern;
use kernels_support::{SECOND, kernels};
use libloading::Library;
use support::side::{Side, bytes_of, introduce};
use support::{assert_no_violations, with_soft_adapter};

/// The library of kernels, and the prefix of its functions, for each layout.
fn library(layout: usize) -> (&'static Library, &'static str) {
    static LIBRARIES: [OnceLock<Library>; 2] = [OnceLock::new(), OnceLock::new()];
    let (file, prefix) =
        [("tests/kernels_own/gin_layout_0.cu", "gin_layout_0"), ("tests/kernels_own/gin.cu", "gin")][layout];
    (LIBRARIES[layout].get_or_init(|| kernels(&[file])), prefix)
}

/// `struct gin_poster` (kernels_own/gin.cu).
#[repr(C)]
struct Poster {
    queue: *mut efa_gda_queue,
    counter: u64,
    targets: [efa_gda_peer; 2],
}

/// `struct gin_args`.
#[repr(C)]
struct Args {
    posters: [Poster; 3],
    local: u64,
    remote: u64,
    lkey: u32,
    rkey: u32,
    big: u64,
    big_at: u64,
    calls: u32,
    group: u32,
    with_nccl: u32,
    check_gets: u32,
    timeout_ns: u64,
    flush_timeout_ns: u64,
    status: *const AtomicU32,
}

/// Why requests fail.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Puts name a key that belongs to no region.
    WrongKey,
    /// The peer's endpoint of data is gone.
    DeadPeer,
}

/// A launch, and what differs between tests.
#[derive(Clone, Copy)]
struct Launch {
    layout: usize,
    wide: bool,
    group: u32,
    blocks: u32,
    lanes: u32,
    calls: u32,
    with_nccl: bool,
    seed: u64,
    big: usize,
    fault: Fault,
    timeout_ns: u64,
    flush_timeout_ns: u64,
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            layout: 1,
            wide: true,
            group: 1,
            blocks: 4,
            lanes: 7,
            calls: 96,
            with_nccl: false,
            seed: 0,
            big: 0,
            fault: Fault::None,
            timeout_ns: 60 * SECOND,
            flush_timeout_ns: 60 * SECOND,
        }
    }
}

/// `pc`, `wqes_completed`, `wqes_posted`, `submitted_count` and `sq_lock` of an endpoint.
type Words = [u64; 5];

struct Outcome {
    statuses: Vec<u32>,
    /// Of the endpoints of data, values and the counter, with the number of requests that the adapter completed.
    endpoints: Vec<(Words, u64)>,
    signals: u64,
    source: Vec<u8>,
    target: Vec<u8>,
}

fn counted(side: &Side, operations: CountedOperations) -> (MappedQueue, CompletionCounter) {
    let counter = side.domain.gda_ops().unwrap().cntr_open_host().unwrap();
    (side.counted_queue(&counter, operations), counter)
}

/// Where the target's values begin.
fn values_at(entries: usize) -> usize {
    128 * entries
}

/// The bytes of both sides: `shift` makes them different.
fn image(len: usize, shift: usize) -> Vec<u8> {
    pattern(len + shift).split_off(shift)
}

fn run(launch: Launch) -> Outcome {
    let side = Side::open(&Query::new().wide_entries(launch.wide));
    let mut posters: Vec<_> = (0..3).map(|_| counted(&side, CountedOperations::TRANSMIT)).collect();
    let (data, (signal, signals)) = (side.queue(), counted(&side, CountedOperations::REMOTE_WRITE));
    let threads = (launch.blocks * launch.lanes) as usize;
    let entries = threads * launch.calls as usize;
    let pool = 8 * posters[1].0.exposure().sq.num_entries as usize;
    let big_at = values_at(entries) + (8 * entries).max(pool);
    let len = big_at + launch.big.max(64);
    let small = image(len.min(big_at + 64), 0);
    let region = |image: &[u8]| -> Region {
        let region = side.region(&vec![0; len]);
        region.buffer().unwrap().write(0, image).unwrap();
        region
    };
    let (source, target) = (region(&small), region(&image(values_at(entries), 3)));
    if launch.big != 0 {
        source.buffer().unwrap().write(len - 64, &small[..64]).unwrap();
    }
    let keys: Vec<u32> = posters.iter_mut().map(|(queue, _)| queue.retain(&source).unwrap().get()).collect();
    let rkey = target.remote_key().get();
    let statuses: Vec<_> = (0..threads).map(|_| AtomicU32::new(EFA_GDA_NOT_RUN)).collect();
    let of = |(queue, counter): &(MappedQueue, CompletionCounter)| Poster {
        queue: queue.as_ptr().as_ptr(),
        counter: counter.words().unwrap().success,
        targets: [&data, &signal].map(|to| device_peer(introduce(queue, to))),
    };
    let args = Args {
        posters: [of(&posters[0]), of(&posters[1]), of(&posters[2])],
        local: source.address(),
        remote: target.address(),
        lkey: keys[0],
        rkey: if launch.fault == Fault::WrongKey { !rkey } else { rkey },
        big: launch.big as u64,
        big_at: big_at as u64,
        calls: launch.calls,
        group: launch.group,
        with_nccl: u32::from(launch.with_nccl),
        check_gets: u32::from(launch.fault == Fault::None),
        timeout_ns: launch.timeout_ns,
        flush_timeout_ns: launch.flush_timeout_ns,
        status: statuses.as_ptr(),
    };
    if launch.fault == Fault::DeadPeer {
        data.destroy().unwrap();
    }
    let endpoints = execute(launch, &args);
    let completed = |(_, counter): &(MappedQueue, CompletionCounter)| counter.successes().unwrap().unwrap();
    let outcome = Outcome {
        statuses: statuses.iter().map(|status| status.load(Ordering::Relaxed)).collect(),
        endpoints: endpoints.into_iter().zip(posters.iter().map(completed)).collect(),
        signals: signals.successes().unwrap().unwrap(),
        source: bytes_of(&source),
        target: bytes_of(&target),
    };
    posters.into_iter().for_each(|(queue, _)| queue.destroy().unwrap());
    outcome
}

/// Runs the blocks, and returns the words of the three endpoints.
fn execute(launch: Launch, args: &Args) -> Vec<Words> {
    struct Handles(*mut std::ffi::c_void);
    // SAFETY: blocks share the handles as device code does.
    unsafe impl Sync for Handles {}
    let (library, prefix) = library(launch.layout);
    type Open = unsafe extern "C" fn(*const Args, u32) -> *mut std::ffi::c_void;
    type Block = unsafe extern "C" fn(*mut std::ffi::c_void, u32, u32, u32, u64) -> bool;
    type Read = unsafe extern "C" fn(*mut std::ffi::c_void, u32, *mut u64);
    type Close = unsafe extern "C" fn(*mut std::ffi::c_void);
    // SAFETY: the types are those of the functions in gin.cu.
    let (open, block, read, close) = unsafe {
        (
            *library.get::<Open>(format!("{prefix}_open").as_bytes()).unwrap(),
            *library.get::<Block>(format!("{prefix}_block").as_bytes()).unwrap(),
            *library.get::<Read>(format!("{prefix}_words").as_bytes()).unwrap(),
            *library.get::<Close>(format!("{prefix}_close").as_bytes()).unwrap(),
        )
    };
    // SAFETY: queues, counters and memory outlive the handles, and only these blocks post to the queues.
    let handles = Handles(unsafe { open(args, launch.blocks * launch.lanes) });
    std::thread::scope(|scope| {
        for number in 0..launch.blocks {
            let handles = &handles;
            let seed = if launch.seed == 0 { 0 } else { launch.seed * 1000 + u64::from(number) };
            // SAFETY: each block runs once, on a thread of its own.
            let run = move || unsafe { block(handles.0, number, launch.blocks, launch.lanes, seed) };
            scope.spawn(move || assert!(run()));
        }
    });
    let words = (0..3).map(|endpoint| {
        let mut words = Words::default();
        // SAFETY: the blocks have ended, and the function writes five words.
        unsafe { read(handles.0, endpoint, words.as_mut_ptr()) };
        words
    });
    let words = words.collect();
    // SAFETY: nothing uses the handles any more.
    unsafe { close(handles.0) };
    words
}

/// Checks the bytes and counts of a launch of calls in multiples of eight, without failures.
fn check(launch: Launch) {
    let outcome = run(launch);
    assert!(outcome.statuses.iter().all(|status| *status == EFA_GDA_OK), "{:?}", outcome.statuses);
    let entries = outcome.statuses.len() * launch.calls as usize;
    let eighths = (entries / 8) as u64;
    let (put, got) = (64 * entries, values_at(entries));
    let (from, to) = (image(got, 0), image(got, 3));
    for entry in 0..entries {
        let (at, operation) = (64 * entry, entry % launch.calls as usize % 8);
        let written = matches!(operation, 0..=3 | 6);
        let expected = if written { &from } else { &to };
        assert_eq!(outcome.target[at..at + 64], expected[at..at + 64], "put {entry}");
        let at = put + at;
        let expected = if operation == 5 { &to } else { &from };
        assert_eq!(outcome.source[at..at + 64], expected[at..at + 64], "get {entry}");
        let value = if operation == 4 { (entry as u64 + 1) * 0x01_0101_0101 } else { 0 };
        let at = values_at(entries) + 8 * entry;
        assert_eq!(outcome.target[at..at + 8], value.to_le_bytes(), "value {entry}");
    }
    assert_eq!(outcome.signals, 8 * eighths);
    let threads = outcome.statuses.len() as u64;
    // Calls 0 to 2, 5 and 7, two more signals of call 6, and the last put; values with three signals; calls 3 and 6,
    // and the last put.
    let posted = [7 * eighths + threads, 3 * eighths, 2 * eighths + threads];
    for ((words, completed), posted) in outcome.endpoints.iter().zip(posted) {
        assert_eq!(*words, [posted, posted, posted, posted, 0], "pc, turn, doorbell, submitted, service");
        assert_eq!(*completed, posted);
    }
}

const ON: [(&str, &str); 2] = [("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")];
/// Random order, and a batch window that splits a warp's entries.
const REORDERED: [(&str, &str); 4] = [ON[0], ON[1], ("SOFTEFA_REORDER", "48"), ("SOFTEFA_MAX_BATCH", "8")];

fn in_both_orders(body: impl Fn()) {
    for variables in [&ON[..], &REORDERED] {
        with_soft_adapter(variables, |adapter| {
            body();
            assert_no_violations(adapter);
        });
    }
}

#[test]
fn threads_put_get_and_signal() {
    in_both_orders(|| {
        for (layout, wide) in [(0, false), (1, false), (1, true)] {
            check(Launch { layout, wide, ..Launch::default() });
        }
    });
}

#[test]
fn warps_reserve_together() {
    in_both_orders(|| {
        for wide in [false, true] {
            check(Launch { wide, group: 32, blocks: 3, lanes: 64, ..Launch::default() });
        }
    });
}

/// Every second block posts as NCCL's code does, to the same endpoint at the same time.
#[test]
fn kernels_with_code_of_nccl_post_beside() {
    in_both_orders(|| {
        for seed in 0..6 {
            let group = if seed % 2 == 0 { 1 } else { 32 };
            let (blocks, lanes) = if group == 1 { (4, 5) } else { (4, 32) };
            check(Launch { with_nccl: true, seed, group, blocks, lanes, calls: 16, ..Launch::default() });
        }
    });
}

/// The memory of values has a slot for each slot of the ring; nine laps use it. The adapter executes requests in
/// random order.
#[test]
fn values_in_flight_keep_their_slots() {
    let variables = [ON[0], ON[1], ("SOFTEFA_REORDER", "48"), ("SOFTEFA_LLQ_BYTES", "4096")];
    with_soft_adapter(&variables, |adapter| {
        for (layout, group, lanes) in [(0, 1, 4), (1, 32, 32)] {
            check(Launch {
                layout,
                wide: false,
                group,
                lanes,
                blocks: 2,
                calls: 768 / lanes,
                ..Launch::default()
            });
        }
        assert_no_violations(adapter);
    });
}

/// A flush that ran beside other groups' posts.
fn drain(seed: u64, sq_lock: u32) -> u32 {
    type Drain = unsafe extern "C" fn(u64, u32) -> u32;
    let (library, prefix) = library(1);
    // SAFETY: the type is that of the function in gin.cu, which has no preconditions.
    unsafe { library.get::<Drain>(format!("{prefix}_drain").as_bytes()).unwrap()(seed, sq_lock) }
}

#[test]
fn a_flush_counts_no_later_request_in_place_of_an_earlier_one() {
    for seed in 1..64 {
        assert_eq!(drain(seed, 0), EFA_GDA_OK, "seed {seed}");
    }
}

#[test]
fn a_post_with_a_slot_is_rung_for_although_a_later_one_waits_for_slots() {
    type Held = unsafe extern "C" fn(u64) -> u32;
    let (library, prefix) = library(1);
    // SAFETY: the type is that of the function in gin.cu, which has no preconditions.
    let held = unsafe { *library.get::<Held>(format!("{prefix}_held").as_bytes()).unwrap() };
    for seed in 1..64 {
        // SAFETY: as above.
        assert!(unsafe { held(seed) } >= 41, "seed {seed}");
    }
}

#[test]
fn a_flush_of_an_endpoint_out_of_service_fails_although_nothing_is_in_flight() {
    assert_eq!(drain(1, EFA_GDA_TIMEOUT_SLOTS), EFA_GDA_POISONED);
}

/// A put of more than 1 GiB: its parts, and a signal after all of them.
#[test]
fn a_put_above_the_limit_of_one_operation_arrives_in_parts() {
    with_soft_adapter(&ON, |adapter| {
        let big = (1 << 30) + 4096;
        let outcome = run(Launch { blocks: 1, lanes: 1, calls: 0, big, ..Launch::default() });
        assert_eq!(outcome.statuses, [EFA_GDA_OK]);
        let (at, len) = (outcome.target.len() - big, outcome.target.len());
        assert!(outcome.target[at..] == outcome.source[at..] && outcome.signals == 1);
        assert_eq!(outcome.target[len - 64..], image(64, 0), "the last part is not empty");
        assert_eq!(outcome.endpoints[0].0, [3, 3, 3, 3, 0], "two parts, and the last put");
        assert_no_violations(adapter);
    });
}

/// The adapter refuses requests. A flush ends at its caller's bound, and one without ends at gin.h's and takes the
/// endpoint out of service.
#[test]
fn a_failed_request_ends_a_flush_at_its_bound() {
    with_soft_adapter(&ON, |_| {
        // The last of two puts has no bytes and needs no key.
        for (fault, completed) in [(Fault::WrongKey, 1), (Fault::DeadPeer, 0)] {
            let fails = Launch { fault, blocks: 1, lanes: 1, calls: 1, ..Launch::default() };
            let begin = Instant::now();
            let outcome = run(Launch { flush_timeout_ns: SECOND, ..fails });
            assert!(begin.elapsed() >= Duration::from_secs(1));
            assert_eq!(outcome.statuses, [EFA_GDA_TIMEOUT_COMPLETION]);
            assert_eq!(outcome.endpoints[0], ([2, 2, 2, 2, 0], completed));
            let outcome = run(Launch { flush_timeout_ns: 0, timeout_ns: SECOND, ..fails });
            assert_eq!(outcome.statuses, [EFA_GDA_TIMEOUT_COMPLETION]);
            assert_eq!(
                outcome.endpoints[0],
                ([2, 2, 2, 2, u64::from(EFA_GDA_TIMEOUT_COMPLETION)], completed)
            );
        }
    });
}

/// Requests that fail keep their slots, so posts end when the ring is full.
#[test]
fn a_full_ring_ends_posts_at_their_bound() {
    with_soft_adapter(&ON, |_| {
        let calls = 8 * 4096;
        let outcome = run(Launch {
            fault: Fault::WrongKey,
            blocks: 2,
            lanes: 1,
            calls,
            timeout_ns: SECOND,
            ..Launch::default()
        });
        let ended = |status: &u32| [EFA_GDA_TIMEOUT_SLOTS, EFA_GDA_POISONED].contains(status);
        assert!(outcome.statuses.iter().all(ended), "{:?}", outcome.statuses);
        assert!(outcome.statuses.contains(&EFA_GDA_TIMEOUT_SLOTS));
        assert!(outcome.endpoints.iter().any(|(words, _)| words[4] == u64::from(EFA_GDA_TIMEOUT_SLOTS)));
    });
}
