//! Waits for a group's own requests, put with signal, and the low-latency dispatch on a GPU, with the memory and the signal
//! words in the GPU's memory, on the software adapter, which executes requests in random order.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod kernels_support;
mod support;

use std::time::Instant;

use cudarc::driver::{DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::device_peer;
use efa_gda_sys::device::{EFA_GDA_NOT_RUN, EFA_GDA_OK};
use kernels_support::dispatch::{self, Dispatch, RANKS};
use kernels_support::put_signal::{AwaitSignal, PutSignal};
use kernels_support::waits::{
    DEFER, EACH_CALL, Ended, GOOD, OWN_EVERY_THIRD, TEST_EACH, WHILE_OTHERS_POST, Waits, calls,
};
use support::kernel::Kernel;
use support::side::{Side, gpu_bytes, gpu_region, introduce};
use support::{SoftAdapter, assert_no_violations, with_gpu};

const UNORDERED: [(&str, &str); 3] =
    [("SOFTEFA_HMEM", "1"), ("SOFTEFA_MR_DMABUF", "1"), ("SOFTEFA_REORDER", "48")];

/// Arguments of a kernel, passed by value.
#[repr(transparent)]
struct Argument<T>(T);

// SAFETY: used with plain C structs, which have the same layout for the device's compiler.
unsafe impl<T> DeviceRepr for Argument<T> {}

fn side(wide: bool) -> Side {
    Side::open(&Query::new().gpu_memory(true).wide_entries(wide))
}

/// Starts a kernel that takes one struct.
fn launch<T>(Kernel { function, stream }: &Kernel, blocks: u32, threads: u32, argument: T) {
    let config = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
    let argument = Argument(argument);
    // SAFETY: the callers pass the struct that the kernel takes, and keep what it leads to alive until the kernel ends.
    unsafe { stream.launch_builder(function).arg(&argument).launch(config) }.unwrap();
}

/// Returns how each group ended, and the groups with words that did not arrive.
fn run_waits(
    (adapter, gpu, kernel): (&SoftAdapter, &Gpu, &Kernel),
    load: Waits,
    blocks: u32,
    threads: u32,
) -> (Vec<Ended>, Vec<u64>) {
    let side = side(false);
    let (mut queue, other) = (side.queue().with_request_table().unwrap(), side.queue());
    let peer = introduce(&queue, &other);
    let groups = load.groups(blocks, threads);
    let words_of_group = u64::from(load.calls * load.per_call);
    let bytes = load.bytes(groups);
    let (source, _) = gpu_region(&side, gpu, &bytes);
    let (target, _) = gpu_region(&side, gpu, &vec![0; bytes.len()]);
    let lkey = queue.retain(&source).unwrap().get();
    let queue = GpuQueue::new(queue, gpu).unwrap();
    let none = vec![[EFA_GDA_NOT_RUN, 0, 0, 0]; groups as usize].concat();
    let results = kernel.stream.clone_htod(&none).unwrap();
    let (from, to) = ((source.address(), lkey), (target.address(), target.remote_key().get()));
    let load = load.between(queue.device_address(), device_peer(peer), from, to);
    let load = Waits { results: results.device_ptr(&kernel.stream).0 as *mut Ended, ..load };
    let begin = Instant::now();
    launch(kernel, blocks, threads, load);
    let words = kernel.stream.clone_dtoh(&results).unwrap();
    kernel.stream.synchronize().unwrap();
    println!("mode {}, {groups} groups of {}: {:?}", load.mode, load.group, begin.elapsed());
    let results = words
        .chunks(4)
        .map(|of| Ended { status: of[0], errors: of[1], failed_index: of[2], failed_status: of[3] })
        .collect();
    let arrived = gpu_bytes(&target);
    let words = bytes.chunks(8).zip(arrived.chunks(8)).enumerate();
    let missing = words.filter(|(_, (from, to))| from != to).map(|(word, _)| word as u64 / words_of_group);
    let missing = missing.collect();
    queue.destroy().unwrap();
    assert_no_violations(adapter);
    (results, missing)
}

fn waits_kernel() -> Kernel {
    Kernel::compile(include_str!("kernels_own/waits.cu"), "waits")
}

#[test]
fn groups_of_a_gpu_wait_for_their_own_requests() {
    with_gpu(&UNORDERED, |adapter, gpu| {
        let kernel = waits_kernel();
        for mode in [EACH_CALL, OWN_EVERY_THIRD, TEST_EACH, DEFER] {
            for (group, threads) in [(1, 4), (32, 128), (0, 128)] {
                let (results, missing) =
                    run_waits((adapter, gpu, &kernel), calls(group, 24, 9, mode), 8, threads);
                assert!(results.iter().all(|result| *result == GOOD), "mode {mode}, {group}: {results:?}");
                assert_eq!(missing, [], "mode {mode}, {group}");
            }
        }
    });
}

#[test]
fn a_warp_of_a_gpu_waits_for_its_calls_while_others_post_on() {
    with_gpu(&UNORDERED, |adapter, gpu| {
        let load = calls(32, 10, 13, WHILE_OTHERS_POST);
        let (results, _) = run_waits((adapter, gpu, &waits_kernel()), load, 4, 128);
        assert!(results.iter().all(|result| *result == GOOD), "{results:?}");
    });
}

#[test]
fn an_error_reaches_only_the_warp_of_a_gpu_whose_request_failed() {
    let faults = [&UNORDERED[..], &[("SOFTEFA_INJECT", "100:13")]].concat();
    with_gpu(&faults, |adapter, gpu| {
        let (results, missing) =
            run_waits((adapter, gpu, &waits_kernel()), calls(32, 12, 7, EACH_CALL), 4, 128);
        let [poster] = missing[..] else { panic!("one word must be missing: {missing:?}") };
        for (group, result) in results.iter().enumerate() {
            let expected = if group as u64 == poster { (EFA_GDA_OK, 1, 13) } else { (EFA_GDA_OK, 0, 0) };
            assert_eq!((result.status, result.errors, result.failed_status), expected, "{results:?}");
        }
    });
}

#[test]
fn a_kernel_that_waits_for_signals_finds_the_data_in_its_memory() {
    const WARPS: usize = 16;
    const PIECES: usize = 40;
    const PIECE: usize = 256;
    with_gpu(&UNORDERED, |adapter, gpu| {
        let source = include_str!("../../kernels/examples/put_signal.cu");
        let image = Kernel::image(source, "put_signal");
        let (put, wait) = (Kernel::load(image.clone(), "put_signal"), Kernel::load(image, "await_signal"));
        for (wide, table) in [(false, true), (true, true), (false, false)] {
            let side = side(wide);
            let (queue, other) = (side.queue(), side.queue());
            let mut queue = if table { queue.with_request_table().unwrap() } else { queue };
            let peer = introduce(&queue, &other);
            let part = PIECES * PIECE;
            let mut bytes: Vec<u8> = (0..WARPS * part).map(|at| 100 + (at / part) as u8).collect();
            bytes.resize(WARPS * (part + 8), 0);
            let signals = (WARPS * part) as u64;
            let (from, _) = gpu_region(&side, gpu, &bytes);
            let (to, _) = gpu_region(&side, gpu, &vec![0; bytes.len()]);
            let lkey = queue.retain(&from).unwrap().get();
            let (queue, other) = (GpuQueue::new(queue, gpu).unwrap(), GpuQueue::new(other, gpu).unwrap());
            let status = put.stream.clone_htod(&[EFA_GDA_NOT_RUN; 2 * WARPS]).unwrap();
            put.stream.synchronize().unwrap();
            let status_address = status.device_ptr(&put.stream).0;
            let (received, sent) = (
                AwaitSignal {
                    queue: other.device_address() as u64,
                    signals: to.address() + signals,
                    buffer: to.address(),
                    part_bytes: part as u32,
                    pattern: 100,
                    timeout_ns: 20_000_000_000,
                    status: status_address + 4 * WARPS as u64,
                },
                PutSignal {
                    queue: queue.device_address() as u64,
                    peer: device_peer(peer),
                    local: from.address(),
                    remote: to.address(),
                    signal_words: from.address() + signals,
                    local_signals: from.address() + signals,
                    remote_signals: to.address() + signals,
                    lkey,
                    rkey: to.remote_key().get(),
                    pieces: PIECES as u32,
                    piece_bytes: PIECE as u32,
                    timeout_ns: 20_000_000_000,
                    status: status_address,
                },
            );
            launch(&wait, 4, 128, received);
            launch(&put, 4, 128, sent);
            wait.stream.synchronize().unwrap();
            let ended = put.stream.clone_dtoh(&status).unwrap();
            put.stream.synchronize().unwrap();
            assert_eq!(ended, [EFA_GDA_OK; 2 * WARPS], "wide {wide}, table {table}");
            drop((queue, other));
            assert_no_violations(adapter);
        }
    });
}

#[test]
fn nine_ranks_of_a_gpu_dispatch_their_tokens() {
    with_gpu(&UNORDERED, |adapter, gpu| {
        let source = include_str!("../../kernels/examples/low_latency_dispatch.cu");
        let image = Kernel::image(source, "low_latency_dispatch");
        let kernels: Vec<_> =
            (0..RANKS).map(|_| Kernel::load(image.clone(), "low_latency_dispatch")).collect();
        for wide in [false, true] {
            let side = side(wide);
            let mut queues: Vec<_> = (0..RANKS).map(|_| side.queue().with_request_table().unwrap()).collect();
            let regions: Vec<_> =
                (0..RANKS).map(|rank| gpu_region(&side, gpu, &dispatch::image(rank)).0).collect();
            let memory = dispatch::memory(&mut queues, &regions);
            let peers: Vec<_> = (0..RANKS).map(|rank| dispatch::peers(&queues, rank, introduce)).collect();
            let queues: Vec<_> = queues.into_iter().map(|queue| GpuQueue::new(queue, gpu).unwrap()).collect();
            let begin = Instant::now();
            for rank in 0..RANKS {
                let argument: Dispatch =
                    dispatch::arguments(rank, queues[rank].device_address(), &memory, peers[rank]);
                launch(&kernels[rank], 1, dispatch::THREADS, argument);
            }
            kernels.iter().for_each(|kernel| kernel.stream.synchronize().unwrap());
            println!("dispatch, wide {wide}: {:?}", begin.elapsed());
            for (rank, region) in regions.iter().enumerate() {
                dispatch::check(rank, &gpu_bytes(region));
            }
            drop(queues);
            assert_no_violations(adapter);
        }
    });
}
