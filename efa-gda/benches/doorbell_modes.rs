//! Time from a doorbell to its completion, measured by a kernel, in each of the three doorbell modes. One warp of the first
//! GPU posts, and the software adapter executes. The bench prints times and asserts nothing about them.
//!
//! `cargo bench -p efa-gda --bench doorbell_modes`. `EFA_GDA_CPU=N` pins the proxy to a CPU.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic if something is missing")]
#![allow(missing_docs, reason = "a program")]

#[path = "../tests/support/mod.rs"]
mod support;

use cudarc::driver::{DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy, ProxyOptions};
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::device_peer;
use efa_gda_sys::device::{efa_gda_peer, efa_gda_queue};
use efa_gda_test_support::soft::again_with_soft_adapter;
use support::kernel::Kernel;
use support::side::{Side, introduce};

/// Rounds over the doorbell modes.
const ROUNDS: usize = 9;
/// Entries of a doorbell, and doorbells of a round, which are a multiple of the kernel's 256 delays.
const LOADS: [(u32, u32); 2] = [(1, 20_480), (32, 2_560)];

/// One warp posts, and one thread of another warp polls for the completion.
const THREADS: u32 = 64;

/// `struct doorbell_modes_args` of the kernel's source.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    queue: *mut efa_gda_queue,
    peer: efa_gda_peer,
    lkey: u32,
    rkey: u32,
    local: u64,
    remote: u64,
    posts: u32,
    per_post: u32,
    samples: u64,
    whole: u64,
}

// SAFETY: a plain struct of C with the kernel's layout.
unsafe impl DeviceRepr for Args {}

/// The times of one run, in nanoseconds.
struct Run {
    samples: Vec<f64>,
    /// Time of one poll of the completion queue.
    poll: f64,
}

fn main() {
    if let Err(error) = Gpu::open(0) {
        return println!("SKIPPED: no GPU: {error}");
    }
    if std::env::var_os("EFA_GDA_BENCH_CHILD").is_none() {
        again_with_soft_adapter("EFA_GDA_BENCH_CHILD", &[]);
    }
    let gpu = Gpu::open(0).unwrap();
    let kernel =
        Kernel::compile(include_str!("../../kernels/bench/doorbell_modes.cu"), "doorbell_modes_kernel");
    println!("{}, CPUs: {}", gpu.name().unwrap(), std::thread::available_parallelism().unwrap());
    for (per_post, posts) in LOADS {
        measure(&gpu, &kernel, per_post, posts);
    }
}

fn measure(gpu: &Gpu, kernel: &Kernel, per_post: u32, posts: u32) {
    let mut medians = DoorbellMode::ALL.map(|_| Vec::new());
    let mut all = DoorbellMode::ALL.map(|_| Vec::new());
    let mut polls = Vec::new();
    for _ in 0..ROUNDS {
        for (index, mode) in DoorbellMode::ALL.into_iter().enumerate() {
            let run = one(gpu, kernel, mode, per_post, posts);
            medians[index].push(quantile(&run.samples, 0.5));
            all[index].extend(run.samples);
            polls.push(run.poll);
        }
    }
    println!(
        "\n{per_post} entries a doorbell, {ROUNDS} rounds of {posts} posts; ns from doorbell to last completion"
    );
    println!("one poll of the completion queue takes {:.0} ns", quantile(&polls, 0.5));
    println!("mode    median  quartiles     99 %   over direct, median of rounds (range)");
    for (index, mode) in DoorbellMode::ALL.into_iter().enumerate() {
        let over: Vec<f64> =
            medians[index].iter().zip(&medians[0]).map(|(this, direct)| this - direct).collect();
        let at = |part| quantile(&all[index], part);
        println!(
            "{:<7} {:>6.0}  {:>5.0}-{:<5.0} {:>6.0}   {:>+6.0} ({:+.0} to {:+.0})",
            mode.name(),
            at(0.5),
            at(0.25),
            at(0.75),
            at(0.99),
            quantile(&over, 0.5),
            quantile(&over, 0.0),
            quantile(&over, 1.0),
        );
    }
}

/// Measures one doorbell mode on a new queue: a warm-up, then the posts.
fn one(gpu: &Gpu, kernel: &Kernel, mode: DoorbellMode, per_post: u32, posts: u32) -> Run {
    let side = Side::open(&Query::new());
    let (first, second) = (side.queue(), side.queue());
    let peer = introduce(&first, &second);
    let (source, target) = (side.region(&[7; 64 * 32]), side.region(&[0; 64 * 32]));
    let mut options = ProxyOptions::new();
    if let Ok(cpu) = std::env::var("EFA_GDA_CPU") {
        options = options.cpu(cpu.parse().unwrap());
    }
    let proxy = DoorbellProxy::start(&options).unwrap();
    let mut first = first;
    let lkey = first.retain(&source).unwrap().get();
    let (queue, _) = GpuQueue::with_doorbell(first, gpu, mode.into(), &proxy).unwrap();
    let stream = &kernel.stream;
    let samples = stream.alloc_zeros::<u64>(posts as usize).unwrap();
    let whole = stream.alloc_zeros::<u64>(4).unwrap();
    let remote = target.remote();
    let mut args = Args {
        queue: queue.device_address(),
        peer: device_peer(peer),
        lkey,
        rkey: remote.key.get(),
        local: source.buffer().unwrap().as_ptr() as u64,
        remote: remote.address,
        posts: posts / 8,
        per_post,
        samples: samples.device_ptr(stream).0,
        whole: whole.device_ptr(stream).0,
    };
    let launch = |args: &Args| {
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel takes one such struct. The memory that it points to outlives the kernel, whose end is awaited
        // below.
        unsafe { stream.launch_builder(&kernel.function).arg(args).launch(config) }.unwrap();
        let whole = stream.clone_dtoh(&whole).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(whole[3], 0, "{mode}: the kernel ended with enum efa_gda_status {}", whole[3]);
        whole
    };
    launch(&args);
    args.posts = posts;
    let ran = launch(&args);
    let ns_per_cycle = ran[1] as f64 / ran[0] as f64;
    let samples = stream.clone_dtoh(&samples).unwrap();
    stream.synchronize().unwrap();
    Run {
        samples: samples.iter().map(|cycles| *cycles as f64 * ns_per_cycle).collect(),
        poll: ran[2] as f64 * ns_per_cycle,
    }
}

/// Returns the value below which this part of the values is.
fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}
