//! Every SM of a GPU posts to shared queues of strict software adapters. Each entry is executed once, and no entry is
//! torn, early or past the batch. `EFA_GDA_SOAK_SECONDS` sets how long the rounds repeat, and `EFA_GDA_SOAK_ENTRIES` after
//! how many entries they end. `EFA_GDA_TEST_SECONDS`, the time limit of a test in a child process, must exceed
//! `EFA_GDA_SOAK_SECONDS`.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg, sys};
use efa_gda::fabric::{Library, Query, Region};
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{MappedQueue, device_peer};
use efa_gda_sys::device::{EFA_GDA_COMPLETION_ERROR, EFA_GDA_OK, efa_gda_peer, efa_gda_queue};
use support::kernel::Kernel;
use support::side::{Side, bytes_of, introduce};
use support::{SoftAdapter, assert_no_violations, with_gpu};

const ADAPTERS: usize = 8;
/// Queues, each shared by an equal number of blocks. Polls of one queue's completions are serialized, so that fewer queues
/// would limit the rate of all blocks.
const LANES: usize = 32;
const THREADS: u32 = 128;

/// The number of entries that each block posts in a round, and the number of a warp's threads that post alone.
#[derive(Clone, Copy)]
struct Load {
    /// A multiple of the block's threads.
    entries: u32,
    posters: u32,
}

/// One thread of a warp posts, as in applications.
const USUAL: Load = Load { entries: 16384, posters: 1 };
/// Every thread of a warp posts alone and takes turns with the other threads of its warp.
const DIVERGENT: Load = Load { entries: 1024, posters: 32 };

/// `soak::Path` of soak.cu.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Lane {
    queue: u64,
    peer: efa_gda_peer,
    lkey: u32,
    rkey: u32,
    local: u64,
    remote: u64,
}

/// `soak::Args` of soak.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    lanes: [Lane; LANES],
    status: u64,
    timeout_ns: u64,
    entries: u32,
    posters: u32,
}

// SAFETY: plain C structs with the same layout for the device's compiler.
unsafe impl DeviceRepr for Args {}

/// A queue, and the source and target of its writes.
struct Shared {
    queue: GpuQueue,
    lane: Lane,
    source: Region,
    target: Region,
    _peer: MappedQueue,
}

impl Shared {
    /// A queue with a request table if `tracked`.
    fn open(side: &Side, gpu: &Gpu, words: usize, tracked: bool) -> Self {
        let (queue, other) = (side.queue(), side.queue());
        let mut queue = if tracked { queue.with_request_table().unwrap() } else { queue };
        let peer = introduce(&queue, &other);
        let (source, target) = (side.region(&vec![0; words * 8]), side.region(&vec![0; words * 8]));
        let lkey = queue.retain(&source).unwrap().get();
        let queue = GpuQueue::new(queue, gpu).unwrap();
        let lane = Lane {
            queue: queue.device_address().cast::<efa_gda_queue>() as u64,
            peer: device_peer(peer),
            lkey,
            rkey: target.remote_key().get(),
            local: source.address(),
            remote: target.address(),
        };
        Self { queue, lane, source, target, _peer: other }
    }

    /// Fills the source with words that differ for each round, lane and position.
    fn fill(&self, round: u64, lane: u64, words: usize) {
        let number = |word| (round << 37 | lane << 32 | word) + 1;
        let bytes: Vec<u8> = (0..words as u64)
            .flat_map(|word| number(word).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
            .collect();
        self.source.buffer().unwrap().write(0, &bytes).unwrap();
    }

    /// The number of words that differ between source and target.
    fn missing(&self) -> usize {
        let (source, target) = (bytes_of(&self.source), bytes_of(&self.target));
        source.chunks(8).zip(target.chunks(8)).filter(|(from, to)| from != to).count()
    }
}

/// Runs rounds until the time is over. The entries that the adapters fetched must be those that were posted, and the
/// requests that they failed on purpose must be those missing at the targets.
fn soak(adapter: &SoftAdapter, gpu: &Gpu, load: Load) {
    let context = CudaContext::new(0).unwrap();
    let processors = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let blocks = (processors.unwrap() as usize).next_multiple_of(LANES);
    let words = blocks / LANES * load.entries as usize;
    let library = Library::load().unwrap();
    let infos = Query::new().find(&library).unwrap();
    assert_eq!(infos.len(), ADAPTERS);
    let sides: Vec<_> = infos.into_iter().map(|info| Side::on(&library, info)).collect();
    let open = |lane: usize| Shared::open(&sides[lane % ADAPTERS], gpu, words, lane / ADAPTERS % 2 == 1);
    let shared: Vec<_> = (0..LANES).map(open).collect();
    let Kernel { function, stream } = Kernel::compile(include_str!("gpu_soak/soak.cu"), "soak_kernel");
    let mut lanes = [Lane::default(); LANES];
    lanes.iter_mut().zip(&shared).for_each(|(lane, shared)| *lane = shared.lane);

    let asked = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let end = Instant::now() + Duration::from_secs(asked("EFA_GDA_SOAK_SECONDS").unwrap_or(0));
    let enough = asked("EFA_GDA_SOAK_ENTRIES").unwrap_or(u64::MAX);
    let (mut posted, mut missing, mut failed, mut round) = (0_u64, 0_u64, 0, 0);
    loop {
        std::thread::scope(|scope| {
            shared
                .iter()
                .zip(0..)
                .for_each(|(shared, lane)| drop(scope.spawn(move || shared.fill(round, lane, words))));
        });
        let status = stream.alloc_zeros::<u32>(1).unwrap();
        let args = Args {
            lanes,
            status: status.device_ptr(&stream).0,
            timeout_ns: 60_000_000_000,
            entries: load.entries,
            posters: load.posters,
        };
        let grid =
            LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        let mut launch = stream.launch_builder(&function);
        launch.arg(&args);
        // SAFETY: the kernel takes one `Args` by value. Queues and memory outlive it.
        unsafe { launch.launch(grid) }.unwrap();
        let worst = stream.clone_dtoh(&status).unwrap()[0];
        stream.synchronize().unwrap();
        // `quiet` reports a failed request to the group that posted it.
        let errors = adapter.statistics().errors;
        let expected = if errors == failed { EFA_GDA_OK } else { EFA_GDA_COMPLETION_ERROR };
        assert_eq!(worst, expected, "the worst status of round {round}, {} errors", errors - failed);
        failed = errors;
        posted += (blocks * load.entries as usize) as u64;
        missing += std::thread::scope(|scope| {
            let counts: Vec<_> =
                shared.iter().map(|shared| scope.spawn(|| shared.missing() as u64)).collect();
            counts.into_iter().map(|count| count.join().unwrap()).sum::<u64>()
        });
        round += 1;
        if Instant::now() >= end || posted >= enough {
            break;
        }
    }
    let counted = adapter.statistics();
    println!(
        "{posted} entries by {blocks} blocks to {LANES} shared queues in {round} rounds: {} doorbells, {} errors",
        counted.doorbells, counted.errors
    );
    assert_no_violations(adapter);
    assert_eq!(
        (counted.entries, counted.completions),
        (posted, posted),
        "each entry must be fetched and completed once"
    );
    assert_eq!(counted.errors, missing, "the missing words must be those of failed requests");
    shared.into_iter().for_each(|shared| shared.queue.destroy().unwrap());
}

/// Runs `body` with the first GPU and all adapters, with these variables.
fn with_adapters(variables: &[(&str, &str)], body: impl FnOnce(&SoftAdapter, &Gpu)) {
    let adapters = ADAPTERS.to_string();
    with_gpu(&[&[("SOFTEFA_ADAPTERS", adapters.as_str())], variables].concat(), body);
}

#[test]
fn every_entry_of_many_blocks_is_executed_once() {
    with_adapters(&[], |adapter, gpu| soak(adapter, gpu, USUAL));
}

#[test]
fn every_entry_of_threads_that_post_alone_is_executed_once() {
    with_adapters(&[], |adapter, gpu| soak(adapter, gpu, DIVERGENT));
}

#[test]
fn many_blocks_stay_within_a_batch_of_eleven() {
    // A ring of 256 entries, so that the 16-bit doorbell wraps often.
    let small = [("SOFTEFA_MAX_BATCH", "11"), ("SOFTEFA_LLQ_BYTES", "16384")];
    with_adapters(&small, |adapter, gpu| soak(adapter, gpu, USUAL));
}

#[test]
fn every_entry_is_executed_once_out_of_order_and_among_errors() {
    // Statuses that requests cannot cause here, spread over the first rounds.
    let injected: Vec<String> =
        (1..500_u64).map(|index| format!("{}:{}", index * 997, [7, 8, 13, 15][index as usize % 4])).collect();
    let injected = injected.join(",");
    let faults = [("SOFTEFA_REORDER", "48"), ("SOFTEFA_INJECT", injected.as_str())];
    with_adapters(&faults, |adapter, gpu| {
        soak(adapter, gpu, USUAL);
        assert_ne!(adapter.statistics().errors, 0, "no error was injected");
    });
}
