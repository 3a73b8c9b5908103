//! Put with signal on the software adapter, which executes requests in random order: a group that has waited for the signal
//! finds all of the data. The kernels run on the host executor.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;
mod support;

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64};

use efa_gda::fabric::{CompletionCounter, CountedOperations, CounterMemory, Query, Region};
use efa_gda::queue::{MappedQueue, device_peer};
use efa_gda_sys::device::{
    EFA_GDA_ABORTED, EFA_GDA_COMPLETION_ERROR, EFA_GDA_NOT_RUN, EFA_GDA_OK, EFA_GDA_POISONED,
    EFA_GDA_TIMEOUT_SIGNAL, EFA_GDA_TIMEOUT_SLOTS, efa_gda_peer, efa_gda_queue,
};
use kernels_support::put_signal::{AwaitSignal, PutSignal};
use kernels_support::{Bench, SECOND, Shape, kernels};
use libloading::Library;
use support::side::{Side, bytes_of, introduce};
use support::{assert_no_violations, with_soft_adapter};

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| kernels(&["tests/kernels_own/signals.cu", "../kernels/examples/put_signal.cu"]))
}

/// Requests overtake each other, with so much time between them that a receiver finds what is missing, and completion
/// counters can be had.
const UNORDERED: &[(&str, &str)] = &[
    ("SOFTEFA_REORDER", "48"),
    ("SOFTEFA_INTERVAL_US", "200"),
    ("FI_EFA_USE_HW_CNTR", "1"),
    ("SOFTEFA_HW_CNTR", "1"),
];

/// Memory of a region, for kernels on the host executor.
fn pointer<T>(region: &Region) -> *mut T {
    region.address() as *mut T
}

/// `struct signals_args` (kernels_own/signals.cu).
#[repr(C)]
struct Signals {
    queue: *mut efa_gda_queue,
    peer: efa_gda_peer,
    counted: efa_gda_peer,
    group: u32,
    form: u32,
    rounds: u32,
    words: u32,
    lkey: u32,
    rkey: u32,
    source: *mut u64,
    target: *mut u64,
    local: u64,
    remote: u64,
    awaited: *const u64,
    finished: *const AtomicU32,
    timeout_ns: u64,
    status: *const AtomicU32,
}

// SAFETY: blocks share the queue as device code does.
unsafe impl Sync for Signals {}

const FORMS: [&str; 7] =
    ["value", "tick", "tick of 8 bytes", "read-back", "own", "own, read-back", "signal only"];

/// The queue under test.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Tracked,
    /// With 128-byte entries, which carry the value.
    TrackedWide,
    /// Without a request table: the kernel waits for the whole queue.
    Untracked,
    /// With completion counters instead.
    Counted,
}

/// A queue whose completion counter counts `counted`, and the words of that counter.
fn counting(
    side: &Side,
    counted: CountedOperations,
) -> (MappedQueue, CompletionCounter, Box<[AtomicU64; 2]>) {
    let ops = side.domain.gda_ops().unwrap();
    let words = Box::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let [success, error] =
        [0, 1].map(|index: usize| Some(CounterMemory::host(NonNull::new(words[index].as_ptr()).unwrap())));
    // SAFETY: the caller closes the counter before it drops the words.
    let counter = unsafe { ops.cntr_open_ext(success, error) }.unwrap();
    (side.counted_queue(&counter, counted), counter, words)
}

fn queue(side: &Side, kind: Kind) -> MappedQueue {
    match kind {
        Kind::Tracked | Kind::TrackedWide => side.queue().with_request_table().unwrap(),
        Kind::Untracked => side.queue(),
        Kind::Counted => {
            let counter = side.domain.gda_ops().unwrap().cntr_open_host().unwrap();
            side.counted_queue(&counter, CountedOperations::TRANSMIT).with_counters().unwrap()
        }
    }
}

/// Sends `rounds` rounds in one form. Returns the statuses of sender and receiver.
fn exchange(kind: Kind, group: u32, lanes: u32, form: u32, rounds: u32) -> [u32; 2] {
    exchange_in_order(kind, group, lanes, form, rounds, 0)
}

/// The same with lanes that are switched at each access, in an order that follows from `seed` (host_executor.h).
fn exchange_in_order(kind: Kind, group: u32, lanes: u32, form: u32, rounds: u32, seed: u64) -> [u32; 2] {
    let side = Side::open(&Query::new().wide_entries(kind == Kind::TrackedWide));
    let (mut queue, other) = (queue(&side, kind), side.queue());
    let (counted, counter, ticks) = counting(&side, CountedOperations::REMOTE_WRITE);
    let (peer, counted_peer) = (introduce(&queue, &other), introduce(&queue, &counted));
    let words = 75_usize;
    let (source, target) = (side.region(&vec![0; 8 * words + 8]), side.region(&vec![0; 8 * words + 8]));
    let lkey = queue.retain(&source).unwrap().get();
    let finished = AtomicU32::new(0);
    let status = [EFA_GDA_NOT_RUN, EFA_GDA_NOT_RUN, 0].map(AtomicU32::new);
    let is_tick = FORMS[form as usize].starts_with("tick");
    let args = Signals {
        queue: queue.as_ptr().as_ptr(),
        peer: device_peer(peer),
        counted: device_peer(counted_peer),
        group,
        form,
        rounds,
        words: words as u32,
        lkey,
        rkey: target.remote_key().get(),
        source: pointer(&source),
        target: pointer(&target),
        local: source.address(),
        remote: target.address(),
        awaited: if is_tick { ticks[0].as_ptr() } else { pointer::<u64>(&target).wrapping_add(words) },
        finished: &raw const finished,
        timeout_ns: 20 * SECOND,
        status: status.as_ptr(),
    };
    type Run = unsafe extern "C" fn(*const Signals, u32, u32, u64) -> bool;
    // SAFETY: the type is the function's in signals.cu.
    let run = unsafe { library().get::<Run>(b"signals_on_host") }.unwrap();
    std::thread::scope(|scope| {
        for block in 0..2 {
            let (run, args) = (*run, &args);
            // SAFETY: queue, memory and statuses outlive the scope.
            scope.spawn(move || assert!(unsafe { run(args, block, lanes, seed) }));
        }
    });
    queue.close().unwrap();
    counted.close().unwrap();
    counter.close().unwrap();
    drop(ticks);
    [0, 1].map(|index: usize| status[index].load(std::sync::atomic::Ordering::Relaxed))
}

#[test]
fn a_signal_of_each_form_lands_after_its_data() {
    with_soft_adapter(UNORDERED, |adapter| {
        for kind in [Kind::Tracked, Kind::TrackedWide, Kind::Untracked, Kind::Counted] {
            for (form, name) in FORMS.iter().enumerate() {
                let both = exchange(kind, 32, 32, form as u32, 6);
                assert_eq!(both, [EFA_GDA_OK; 2], "{name}, kind {}", kind as u32);
            }
        }
        for (group, lanes) in [(1, 1), (0, 64)] {
            for (form, name) in FORMS.iter().enumerate() {
                let both = exchange(Kind::Tracked, group, lanes, form as u32, 3);
                assert_eq!(both, [EFA_GDA_OK; 2], "{name}, groups of {group}");
            }
        }
        assert_no_violations(adapter);
    });
}

#[test]
fn signals_land_after_their_data_in_many_orders() {
    with_soft_adapter(UNORDERED, |adapter| {
        for seed in 1..8 {
            for (form, name) in FORMS.iter().enumerate() {
                let both = exchange_in_order(Kind::Tracked, 32, 32, form as u32, 2, seed);
                assert_eq!(both, [EFA_GDA_OK; 2], "{name}, seed {seed}");
            }
        }
        assert_no_violations(adapter);
    });
}

const BLOCKS: u32 = 3;
const THREADS: u32 = 64;
const WARPS: usize = (BLOCKS * THREADS / 32) as usize;
const PIECES: usize = 40;
const PIECE: usize = 256;

/// Runs the example's two kernels. Returns the statuses of each, and whether each part arrived.
fn put_signal(kind: Kind, receiver_bound: u64) -> ([u32; WARPS], [u32; WARPS], [bool; WARPS]) {
    let side = Side::open(&Query::new().wide_entries(kind == Kind::TrackedWide));
    let (mut queue, other) = (queue(&side, kind), side.queue());
    let peer = introduce(&queue, &other);
    let part = PIECES * PIECE;
    let mut bytes: Vec<u8> = (0..WARPS * part).map(|at| 100 + (at / part) as u8).collect();
    bytes.resize(WARPS * (part + 8), 0);
    let (source, target) = (side.region(&bytes), side.region(&vec![0; bytes.len()]));
    let signals = WARPS * part;
    let words = || [EFA_GDA_NOT_RUN; WARPS].map(AtomicU32::new);
    let (sent, received) = (words(), words());
    let put = PutSignal {
        queue: queue.as_ptr().as_ptr() as u64,
        peer: device_peer(peer),
        local: source.address(),
        remote: target.address(),
        signal_words: source.address() + signals as u64,
        local_signals: source.address() + signals as u64,
        remote_signals: target.address() + signals as u64,
        lkey: queue.retain(&source).unwrap().get(),
        rkey: target.remote_key().get(),
        pieces: PIECES as u32,
        piece_bytes: PIECE as u32,
        timeout_ns: 20 * SECOND,
        status: sent.as_ptr() as u64,
    };
    let wait = AwaitSignal {
        queue: other.as_ptr().as_ptr() as u64,
        signals: target.address() + signals as u64,
        buffer: target.address(),
        part_bytes: part as u32,
        pattern: 100,
        timeout_ns: receiver_bound,
        status: received.as_ptr() as u64,
    };
    type Run<T> = unsafe extern "C" fn(*const T, u32, u32, u32) -> bool;
    // SAFETY: the types are the functions' in put_signal.cu.
    let (run_put, run_wait) = unsafe {
        (
            library().get::<Run<PutSignal>>(b"put_signal_on_host").unwrap(),
            library().get::<Run<AwaitSignal>>(b"await_signal_on_host").unwrap(),
        )
    };
    std::thread::scope(|scope| {
        for block in 0..BLOCKS {
            let (run_put, run_wait, put, wait) = (*run_put, *run_wait, &put, &wait);
            // SAFETY: queues, memory and statuses outlive the scope.
            scope.spawn(move || assert!(unsafe { run_put(put, block, BLOCKS, THREADS) }));
            // SAFETY: as above.
            scope.spawn(move || assert!(unsafe { run_wait(wait, block, BLOCKS, THREADS) }));
        }
    });
    let (from, to) = (bytes_of(&source), bytes_of(&target));
    let signalled = to[signals..].iter().filter(|byte| **byte == 1).count();
    let posted = queue.snapshot().doorbell_index() as usize;
    assert_eq!(posted, WARPS * PIECES + signalled, "each piece and each signal must be posted once");
    let arrived = std::array::from_fn(|warp| from[warp * part..][..part] == to[warp * part..][..part]);
    let values = |words: [AtomicU32; WARPS]| words.map(AtomicU32::into_inner);
    (values(sent), values(received), arrived)
}

#[test]
fn the_receiver_of_the_example_finds_its_part_when_it_sees_the_signal() {
    with_soft_adapter(UNORDERED, |adapter| {
        for kind in [Kind::Tracked, Kind::TrackedWide, Kind::Untracked, Kind::Counted] {
            let (sent, received, arrived) = put_signal(kind, 20 * SECOND);
            assert_eq!((sent, received, arrived), ([EFA_GDA_OK; WARPS], [EFA_GDA_OK; WARPS], [true; WARPS]));
        }
        assert_no_violations(adapter);
    });
}

#[test]
fn only_the_warp_whose_data_failed_sends_no_signal() {
    let faults = [UNORDERED, &[("SOFTEFA_INJECT", "60:13")]].concat();
    with_soft_adapter(&faults, |_| {
        let (sent, received, arrived) = put_signal(Kind::Tracked, 10 * SECOND);
        assert_eq!(arrived.iter().filter(|arrived| !**arrived).count(), 1, "one request failed");
        for warp in 0..WARPS {
            let expected = if arrived[warp] {
                (EFA_GDA_OK, EFA_GDA_OK)
            } else {
                (EFA_GDA_COMPLETION_ERROR, EFA_GDA_TIMEOUT_SIGNAL)
            };
            assert_eq!((sent[warp], received[warp]), expected, "warp {warp}: {sent:?}, {received:?}");
        }
    });
}

/// Without a request table a warp waits for the whole queue, and gets the error of another warp's request, too.
#[test]
fn no_warp_that_got_an_error_sends_a_signal() {
    let faults = [UNORDERED, &[("SOFTEFA_INJECT", "7:13")]].concat();
    with_soft_adapter(&faults, |_| {
        let (sent, received, arrived) = put_signal(Kind::Untracked, 10 * SECOND);
        assert_eq!(arrived.iter().filter(|arrived| !**arrived).count(), 1, "one request failed");
        for warp in 0..WARPS {
            let expected = match sent[warp] {
                EFA_GDA_OK if arrived[warp] => EFA_GDA_OK,
                status => {
                    assert_eq!(status, EFA_GDA_COMPLETION_ERROR, "warp {warp}: {sent:?}");
                    EFA_GDA_TIMEOUT_SIGNAL
                }
            };
            assert_eq!(received[warp], expected, "warp {warp}: {sent:?}, {received:?}");
        }
    });
}

/// `enum Until` of signal.h.
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const AT_LEAST: u32 = 2;

fn wait_until(queue: &efa_gda_queue, word: u32, until: u32, value: u32, wrap: u32) -> u32 {
    type Run = unsafe extern "C" fn(*const efa_gda_queue, *const u32, u32, u32, u32, u64) -> u32;
    // SAFETY: the type is the function's in signals.cu; queue and word outlive the call.
    unsafe {
        let run = library().get::<Run>(b"wait_until_on_host").unwrap();
        run(queue, &raw const word, until, value, wrap, SECOND / 1000)
    }
}

#[test]
fn a_wait_for_a_signal_compares_the_word() {
    let bench = Bench::silent(Shape::default());
    let satisfied = |word, until, value, wrap| match wait_until(&bench.queue, word, until, value, wrap) {
        EFA_GDA_OK => true,
        status => {
            assert_eq!(status, EFA_GDA_TIMEOUT_SIGNAL);
            false
        }
    };
    assert!(satisfied(7, EQUAL, 7, 0) && !satisfied(8, EQUAL, 7, 0));
    assert!(satisfied(8, NOT_EQUAL, 7, 0) && !satisfied(7, NOT_EQUAL, 7, 0));
    assert!(satisfied(8, AT_LEAST, 7, 0) && satisfied(7, AT_LEAST, 7, 0) && !satisfied(6, AT_LEAST, 7, 0));
    // Across the wrap of the word, and of a counter that wraps at 256.
    assert!(satisfied(3, AT_LEAST, u32::MAX, 0) && !satisfied(u32::MAX, AT_LEAST, 3, 0));
    assert!(satisfied(1, AT_LEAST, 255, 256) && !satisfied(255, AT_LEAST, 1, 256));
    assert_eq!(bench.queue.error.poison, EFA_GDA_OK, "a signal that does not arrive poisons nothing");
}

#[test]
fn threads_of_one_wait_may_differ_in_whether_they_want_the_word() {
    let bench = Bench::silent(Shape::default());
    type Run = unsafe extern "C" fn(*const efa_gda_queue) -> u32;
    // SAFETY: the type is the function's in signals.cu; the queue outlives the call.
    let succeeded = unsafe { library().get::<Run>(b"waits_of_one_observer_on_host").unwrap()(&*bench.queue) };
    assert_eq!(succeeded, 64);
}

#[test]
fn abort_flag_and_poison_end_a_wait_for_a_signal() {
    let mut bench = Bench::silent(Shape::default());
    bench.abort(1);
    assert_eq!(wait_until(&bench.queue, 0, EQUAL, 1, 0), EFA_GDA_ABORTED);
    bench.queue.error.poison = EFA_GDA_TIMEOUT_SLOTS;
    assert_eq!(wait_until(&bench.queue, 0, EQUAL, 1, 0), EFA_GDA_POISONED);
    assert_eq!(wait_until(&bench.queue, 1, EQUAL, 1, 0), EFA_GDA_OK);
}
