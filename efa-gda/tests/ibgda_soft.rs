//! The functions of `ibgda_compat.cuh` on the software adapter, which executes requests in random order. The kernels run on
//! the host executor, in the shapes of DeepEP's kernels.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;
mod support;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use efa_gda::fabric::{Query, Region};
use efa_gda::queue::MappedQueue;
use efa_gda_sys::device::{
    EFA_GDA_ABORTED, EFA_GDA_BAD_ARGUMENT, EFA_GDA_COMPLETION_ERROR, EFA_GDA_OK, EFA_GDA_TIMEOUT_COMPLETION,
    EFA_GDA_TURN_BITS, EFA_GDA_UNSUPPORTED, efa_gda_queue,
};
use efa_gda_test_support::soft::with_soft_adapter_for;
use kernels_support::{SECOND, kernels};
use libloading::Library;
use support::ibgda::{self, Arguments, CHANNEL, Load, Peer, Queue, REORDERED, State, Words, peers};
use support::side::{Side, bytes_of};
use support::{assert_no_violations, with_soft_adapter};

/// `kKernels` of kernels_own/ibgda.cu.
#[derive(Clone, Copy)]
enum Kernel {
    Stream = 0,
    LowLatency = 1,
    Quiet = 2,
    QuietAll = 3,
    TooManyWords = 4,
    Refused = 5,
}

/// Ranks on one domain, each with queues, a heap and channels.
struct Ranks {
    load: Load,
    queues: Vec<Vec<MappedQueue>>,
    heaps: Vec<Region>,
    channels: Vec<Region>,
    words: Vec<Words>,
    /// `queues`, as device code sees them.
    posts: Vec<Vec<Queue>>,
    peers: Vec<Vec<Peer>>,
    wrong: AtomicU32,
    gave_up: AtomicU32,
    /// Heap keys of the ranks' own.
    keys: Vec<[u32; 2]>,
}

impl Ranks {
    fn open(count: usize, load: Load) -> Self {
        Self::with_queues(count, load, |side| side.queue().with_request_table().unwrap())
    }

    fn with_queues(count: usize, load: Load, queue: impl Fn(&Side) -> MappedQueue) -> Self {
        let side = Side::open(&Query::new());
        let mut queues: Vec<Vec<_>> =
            (0..count).map(|_| (0..load.queues).map(|_| queue(&side)).collect()).collect();
        let zeroes = |bytes: usize| (0..count).map(|_| side.region(&vec![0; bytes])).collect::<Vec<_>>();
        let heaps = zeroes((load.warps * load.stride()) as usize);
        let channels = zeroes(count * load.channels as usize * CHANNEL);
        let mut retain = |rank: usize, region| {
            // The same key for each: the queues are of one domain.
            let keys: Vec<_> =
                queues[rank].iter_mut().map(|queue| queue.retain(region).unwrap().get()).collect();
            keys[0]
        };
        let keys = (0..count)
            .map(|rank| [&heaps[rank], &channels[rank]].map(|region| retain(rank, region)))
            .collect();
        let peers = queues.iter().map(|own| peers(own, &queues, &heaps)).collect();
        let posts = |own: &Vec<MappedQueue>| {
            own.iter().map(|queue| ibgda::post(queue, queue.as_ptr().as_ptr())).collect()
        };
        let posts = queues.iter().map(posts).collect();
        let words = (0..count).map(|_| Words::default()).collect();
        let (wrong, gave_up) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { load, queues, heaps, channels, words, posts, peers, wrong, gave_up, keys }
    }

    fn state(&self, rank: usize) -> State {
        State {
            num_rc_per_pe: self.load.channels,
            num_devices_initialized: 1,
            num_pes: self.queues.len() as u32,
            lkey: self.keys[rank][0],
            queues: self.posts[rank].as_ptr(),
            heap: self.heaps[rank].address(),
            heap_bytes: self.heaps[rank].len() as u64,
            heap_address: self.heaps[rank].address(),
            peers: self.peers[rank].as_ptr(),
            channels: self.channels[rank].address(),
            channels_address: self.channels[rank].address(),
            shared: &raw const self.words[rank].failed,
            report: &raw const self.words[rank].status,
            timeout_ns: self.load.timeout_ns,
            channels_lkey: self.keys[rank][1],
            rank: rank as u32,
            num_queues: self.load.queues,
            reserved: 0,
        }
    }

    /// Runs a kernel on the first `count` ranks. Returns the statuses that they report.
    fn launch_on(&self, count: usize, kernel: u32) -> Vec<u32> {
        type Run = unsafe extern "C" fn(*const Arguments, u32, u32, u64) -> bool;
        // SAFETY: the type is the function's in ibgda.cu.
        let run = unsafe { library().get::<Run>(b"ibgda_on_host") }.unwrap();
        let states: Vec<_> = (0..count).map(|rank| self.state(rank)).collect();
        let arguments = |rank: usize| Arguments {
            state: &raw const states[rank],
            rank: rank as u32,
            rounds: self.load.rounds,
            messages: self.load.messages,
            bytes: self.load.bytes,
            warps: self.load.warps,
            reserved: 0,
            warp_stride: u64::from(self.load.stride()),
            limit_ns: 120 * SECOND,
            wrong: &raw const self.wrong,
            gave_up: &raw const self.gave_up,
        };
        let arguments: Vec<_> = (0..count).map(arguments).collect();
        std::thread::scope(|scope| {
            for arguments in &arguments {
                let (run, lanes, seed) = (*run, 32 * self.load.warps, self.load.seed);
                // SAFETY: the ranks' queues and memory outlive the scope.
                scope.spawn(move || assert!(unsafe { run(arguments, kernel, lanes, seed) }));
            }
        });
        self.words[..count].iter().map(|words| words.status.load(Relaxed)).collect()
    }

    /// Runs a kernel on all ranks, in which nothing may fail.
    fn launch(&self, kernel: Kernel) {
        let statuses = self.launch_on(self.queues.len(), kernel as u32);
        assert_eq!(statuses, vec![EFA_GDA_OK; self.queues.len()]);
        assert_eq!(self.gave_up.load(Relaxed), 0, "warps that waited in vain");
        assert_eq!(self.wrong.load(Relaxed), 0, "bytes that were missing behind their flag");
    }

    /// The words of a warp: tail, head, count and last.
    fn words_of(&self, rank: usize, warp: u32) -> [u64; 4] {
        self.load.words_in(&bytes_of(&self.heaps[rank]), warp)
    }

    /// As DeepEP's kernels zero them between two dispatches.
    fn zero_words(&self) {
        for heap in &self.heaps {
            for warp in 0..self.load.warps {
                heap.buffer().unwrap().write(self.load.words(warp), &[0; 32]).unwrap();
            }
        }
    }

    fn close(self) {
        for mut queue in self.queues.into_iter().flatten() {
            queue.quiet(Duration::from_secs(60)).unwrap();
            queue.close().unwrap();
        }
    }

    /// After a failure.
    fn destroy(self) {
        self.queues.into_iter().flatten().for_each(|queue| queue.destroy().unwrap());
    }
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| kernels(&["tests/kernels_own/ibgda.cu"]))
}

fn stream_is_exact(ranks: &Ranks) {
    ranks.launch(Kernel::Stream);
    let sum = u64::from(ranks.load.rounds) * u64::from(ranks.load.messages);
    for rank in 0..ranks.queues.len() {
        for warp in 0..ranks.load.warps {
            let [tail, head, ..] = ranks.words_of(rank, warp);
            assert_eq!((tail, head), (sum, sum), "rank {rank}, warp {warp}");
        }
    }
}

/// Two ranks of 16 warps. `EFA_GDA_IBGDA_PUTS` is the number of puts, 20,000 by default. A thousand more may take a
/// second more.
#[test]
fn a_receiver_that_sees_the_flag_sees_all_the_data_and_adds_end_at_the_exact_sum() {
    let puts = ibgda::puts();
    let more = Duration::from_secs(u64::from(puts / 1000));
    with_soft_adapter_for(more, REORDERED, |adapter| {
        let ranks = Ranks::open(2, Load::new(16, puts.div_ceil(2 * 16 * 8), 8, 64));
        stream_is_exact(&ranks);
        ranks.close();
        assert_no_violations(adapter);
    });
}

#[test]
fn flags_land_after_their_data_in_many_orders() {
    with_soft_adapter(REORDERED, |adapter| {
        for seed in 1..5 {
            // Tails and heads share channels.
            let ranks = Ranks::open(3, Load { seed, channels: 2, ..Load::new(2, 3, 5, 64) });
            stream_is_exact(&ranks);
            ranks.close();
        }
        assert_no_violations(adapter);
    });
}

#[test]
fn a_put_of_several_entries_lands_before_its_flag() {
    with_soft_adapter(&[REORDERED, &[("SOFTEFA_MAX_RDMA_SIZE", "48")]].concat(), |adapter| {
        let ranks = Ranks::open(2, Load::new(4, 20, 3, 200));
        stream_is_exact(&ranks);
        ranks.close();
        assert_no_violations(adapter);
    });
}

#[test]
fn two_dispatches_in_a_row_are_exact_after_a_quiet_and_zeroed_words() {
    with_soft_adapter(REORDERED, |adapter| {
        let ranks = Ranks::open(2, Load::new(4, 10, 4, 64));
        for _ in 0..3 {
            stream_is_exact(&ranks);
            ranks.launch(Kernel::QuietAll);
            ranks.zero_words();
        }
        ranks.close();
        assert_no_violations(adapter);
    });
}

#[test]
fn low_latency_counts_are_set_again_without_a_quiet() {
    with_soft_adapter(REORDERED, |adapter| {
        let ranks = Ranks::open(2, Load::new(16, 1, 6, 64));
        for _ in 0..5 {
            ranks.launch(Kernel::LowLatency);
            ranks.zero_words();
        }
        ranks.close();
        assert_no_violations(adapter);
    });
}

#[test]
fn quiet_returns_when_everything_before_it_is_done() {
    with_soft_adapter(REORDERED, |adapter| {
        let ranks = Ranks::open(2, Load::new(4, 10, 5, 64));
        ranks.launch(Kernel::Quiet);
        ranks.close();
        assert_no_violations(adapter);
    });
}

/// The doorbell and 16-bit request ids carry the low 16 bits of producer indices.
#[test]
fn flags_are_right_where_the_doorbell_wraps() {
    with_soft_adapter(REORDERED, |adapter| {
        let ranks = Ranks::open(2, Load { queues: 1, ..Load::new(8, 600, 16, 8) });
        stream_is_exact(&ranks);
        let posted = |queue: &MappedQueue| queue.state().reserve.word as u32;
        assert!(ranks.queues.iter().flatten().all(|queue| posted(queue) > 1 << 16));
        ranks.close();
        assert_no_violations(adapter);
    });
}

/// Producer indices, and `done` of a queue with them, pass 2^32.
#[test]
fn flags_are_right_where_producer_indices_wrap() {
    const FIRST: u32 = u32::MAX - 200;
    with_soft_adapter(REORDERED, |adapter| {
        assert_eq!(adapter.preset_counter(FIRST.into()), 0);
        let ranks = Ranks::with_queues(2, Load { queues: 1, ..Load::new(4, 20, 4, 64) }, |side| {
            let queue = side.queue().with_request_table().unwrap();
            // SAFETY: the queue is open, and nothing uses it yet.
            unsafe { begin_at(queue.as_ptr().as_ptr(), FIRST) };
            queue
        });
        assert!(ranks.posts.iter().flatten().all(|queue| queue.done.load(Relaxed) == FIRST));
        stream_is_exact(&ranks);
        ranks.launch(Kernel::QuietAll);
        assert!(ranks.posts.iter().flatten().all(|queue| (1..1 << 16).contains(&queue.done.load(Relaxed))));
        ranks.close();
        assert_no_violations(adapter);
    });
}

/// Lets a queue's first request have the index `first`, as the adapter expects after `preset_counter`.
///
/// # Safety
/// `queue` must be open with a request table, and nothing else may use it.
unsafe fn begin_at(queue: *mut efa_gda_queue, first: u32) {
    // SAFETY: the caller guarantees that only this function uses the queue and the table, which has so many words.
    unsafe {
        let queue = &mut *queue;
        queue.reserve.word = first.into();
        queue.turn.word = u64::from(first) << EFA_GDA_TURN_BITS;
        (queue.completion.completed, queue.tracking.oldest) = (first, first);
        let table = &queue.requests;
        for index in first & (table.num_entries - 1)..table.num_entries {
            // Bit 15 is the phase. The last lap before the wrap has phase 0, and these words are of the lap before it.
            table.done.add(index as usize).write(0x8000);
            table.posters.add(index as usize).write(0x8000);
        }
    }
}

#[test]
fn an_unreachable_peer_ends_in_an_error_that_the_host_reads_and_no_flag_is_sent() {
    with_soft_adapter(REORDERED, |_| {
        let mut ranks = Ranks::open(2, Load::new(4, 10, 4, 64));
        // PE 1, as each queue of PE 0 reaches it.
        ranks.peers[0].iter_mut().skip(1).step_by(2).for_each(|peer| peer.peer.qpn = 4000);
        let statuses = ranks.launch_on(1, Kernel::Stream as u32);
        assert_eq!(statuses, [EFA_GDA_COMPLETION_ERROR]);
        assert_eq!(ranks.words[0].pe.load(Relaxed), 1);
        assert!((0..4).all(|warp| ranks.words_of(1, warp)[0] == 0));
        // Later launches end at once.
        assert_eq!(ranks.launch_on(1, Kernel::LowLatency as u32), [EFA_GDA_COMPLETION_ERROR]);
        ranks.destroy();
    });
}

#[test]
fn a_peer_that_does_not_answer_ends_at_the_bound() {
    with_soft_adapter(&[("SOFTEFA_DELAY_US", "3600000000")], |_| {
        let ranks = Ranks::open(2, Load { timeout_ns: SECOND / 2, ..Load::new(2, 1, 4, 64) });
        assert_eq!(ranks.launch_on(1, Kernel::LowLatency as u32), [EFA_GDA_TIMEOUT_COMPLETION]);
        ranks.destroy();
    });
}

#[test]
fn the_host_ends_all_waits_by_the_abort_flag() {
    with_soft_adapter(&[("SOFTEFA_DELAY_US", "3600000000")], |_| {
        let ranks = Ranks::open(2, Load::new(2, 1, 4, 64));
        ranks.queues[0].iter().for_each(|queue| queue.abort_flag().raise());
        assert_eq!(ranks.launch_on(1, Kernel::LowLatency as u32), [EFA_GDA_ABORTED]);
        ranks.destroy();
    });
}

#[test]
fn calls_that_cannot_work_are_refused() {
    with_soft_adapter(&[], |adapter| {
        let refused = Kernel::Refused as u32;
        let cases = [
            (Kernel::TooManyWords as u32, EFA_GDA_BAD_ARGUMENT),
            (refused, EFA_GDA_BAD_ARGUMENT),
            (refused + 1, EFA_GDA_BAD_ARGUMENT),
            (refused + 2, EFA_GDA_BAD_ARGUMENT),
            (refused + 3, EFA_GDA_UNSUPPORTED),
        ];
        for (kernel, status) in cases {
            let ranks = Ranks::open(2, Load::new(1, 1, 4, 64));
            assert_eq!(ranks.launch_on(1, kernel), [status], "kernel {kernel}");
        }
        // A queue without RDMA cannot put: this was a division by zero.
        let ranks = Ranks::with_queues(2, Load::new(1, 1, 4, 64), |side| {
            let queue = side.queue().with_request_table().unwrap();
            // SAFETY: the queue is open, and nothing uses it yet.
            unsafe { (*queue.as_ptr().as_ptr()).max_rdma_size = 0 };
            queue
        });
        assert_eq!(ranks.launch_on(1, Kernel::LowLatency as u32), [EFA_GDA_UNSUPPORTED]);
        // A queue without a request table cannot drain.
        let ranks = Ranks::with_queues(2, Load::new(1, 1, 4, 64), Side::queue);
        assert_eq!(ranks.launch_on(1, Kernel::LowLatency as u32), [EFA_GDA_UNSUPPORTED]);
        assert_no_violations(adapter);
    });
}
