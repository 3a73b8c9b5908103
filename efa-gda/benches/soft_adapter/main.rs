//! What kernels of the first GPU measure against the software adapter in this process. It prints lines for
//! `scripts/bench_gpu.sh`. It fails if a request failed, a byte is wrong or a rule of the adapter is broken, and
//! judges no times.
//!
//! `cargo bench -p efa-gda --bench soft_adapter`, or `scripts/bench_gpu.sh softefa`, which also sets
//! `EFA_GDA_BENCH_NCCL` and `EFA_GDA_BENCH_DROP_IN` to the kernels of `kernels/bench/soft_adapter_nccl.cu`, compiled
//! with NCCL's post path and with `efa_gda/nccl_gin.h`. Without a GPU the same code
//! runs on the pretended CUDA driver and the host executor, with fewer calls, and prints no figures.

#![allow(missing_docs, reason = "a program")]

#[path = "../../tests/kernels_support/mod.rs"]
#[allow(clippy::unwrap_used, reason = "a module of tests")]
mod kernels_support;
mod rig;

use std::process::ExitCode;

use efa_gda::gpu::Gpu;
use efa_gda_test_support::cuda;
use efa_gda_test_support::soft::{SoftAdapter, again_with_soft_adapter};
use rig::{During, Link, Outcome, Rig, WARP};

/// Counters in GPU memory, with any installed libfabric.
const VARIABLES: [(&str, &str); 4] = [
    ("FI_EFA_USE_HW_CNTR", "1"),
    ("SOFTEFA_HW_CNTR", "1"),
    ("SOFTEFA_HMEM", "1"),
    ("SOFTEFA_MR_DMABUF", "1"),
];
/// One is set in the process that measures.
const ON_GPU: &str = "EFA_GDA_BENCH_ON_GPU";
const ON_HOST: &str = "EFA_GDA_BENCH_ON_HOST";

/// Warps that share a queue, each a block of its own.
const BLOCKS: u32 = 16;
/// The lanes' parts of a call of 32 writes, of 64 bytes each.
const CALL_BYTES: usize = 64 * WARP as usize;
/// Bytes of a put with signal, and of the words behind it: `kWordsBetweenSignals` of soft_adapter.cu.
const PUT_BYTES: u32 = 4096;
const SIGNAL_BYTES: usize = 256;
/// Time between the calls of each of the other warps, in nanoseconds: 15 warps then post a write in about 1.1 us. Without
/// pauses the ring would always be full, so that a call waits for all writes in the ring, whatever the wait costs.
const PAUSE_NS: u64 = 16_000;

/// What is measured, and how much of it.
struct Bench {
    rig: Rig,
    /// Measured runs, after one that is not counted.
    runs: usize,
    /// Calls of each thread that only posts, and of a warp that waits for each call.
    posts: u32,
    waits: u32,
    prints: bool,
}

fn main() -> ExitCode {
    let [on_gpu, on_host] = [ON_GPU, ON_HOST].map(|mark| std::env::var_os(mark).is_some());
    if !on_gpu && !on_host {
        match Gpu::open(0) {
            Ok(_) => again_with_soft_adapter(ON_GPU, &VARIABLES),
            Err(error) => {
                println!("no GPU: {error}; the kernels run on the host executor, and nothing is measured");
                again_with_soft_adapter(ON_HOST, &[&VARIABLES[..], &cuda::VARIABLES].concat());
            }
        }
    }
    match measure(on_host) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soft_adapter: {error}");
            ExitCode::FAILURE
        }
    }
}

type Measurement = fn(&Bench) -> Outcome<()>;

fn measure(host_executor: bool) -> Outcome<()> {
    let rig = Rig::open(host_executor)?;
    let name = rig.gpu.name().during("read the GPU's name")?;
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{name}, CPUs: {cpus}, softefa");
    let bench = if host_executor {
        Bench { rig, runs: 1, posts: 4, waits: 4, prints: false }
    } else {
        Bench { rig, runs: 11, posts: 1024, waits: 512, prints: true }
    };
    let adapter = SoftAdapter::loaded();
    let measurements: [(&str, Measurement); 7] = [
        ("put with signal", measure_signal),
        ("waiting for one's own call", measure_own_call),
        ("64-byte writes", measure_counted_writes),
        ("NCCL's 64-byte writes", measure_nccl),
        ("NCCL's kernels beside the drop-in's", compare_drop_in),
        ("their signals, counters and values", compare_announcements),
        ("their waits for a request that fails", compare_failures),
    ];
    let mut failures = Vec::new();
    for (name, measurement) in measurements {
        let outcomes = [measurement(&bench), check(&adapter)];
        failures.extend(outcomes.into_iter().filter_map(Result::err).map(|error| format!("{name}: {error}")));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\nsoft_adapter: ")) }
}

/// Fails if the adapter completed a request with an error, or found a broken rule.
fn check(adapter: &SoftAdapter) -> Outcome<()> {
    let (errors, violations) = (adapter.statistics().errors, adapter.violations());
    adapter.reset();
    if errors == 0 && violations.is_empty() {
        return Ok(());
    }
    Err(format!("the adapter failed {errors} requests, and found broken rules: [{}]", violations.join("; ")))
}

/// One warp writes 4 KiB and a signal to host memory. A warp of another block waits for the signal, and compares the
/// data.
fn measure_signal(bench: &Bench) -> Outcome<()> {
    let kernel = bench.rig.kernel("soft_adapter_signal")?;
    let mut link = bench.rig.tracked(PUT_BYTES as usize + SIGNAL_BYTES)?;
    (link.args.calls, link.args.bytes) = (bench.waits, PUT_BYTES);
    let (mut signals, mut completions) = (Vec::new(), Vec::new());
    for run in 0..=bench.runs {
        link.clear()?;
        link.launch(&kernel, 2)?;
        // `struct SignalWords`: two words, and three of each round.
        let words = link.words(2 + 3 * bench.waits as usize)?;
        let rounds = words[2..].as_chunks::<3>().0;
        let signal = median(rounds.iter().map(|[begin, seen, _]| us(seen.saturating_sub(*begin))));
        let two = median(rounds.iter().map(|[.., two]| us(*two)));
        eprintln!("put with signal, run {run}: seen after {signal:.2} us, two completions {two:.2} us");
        if run > 0 {
            signals.push(signal);
            completions.push(two);
        }
    }
    let case = "softefa, put with signal, 4 KiB";
    bench.print(case, "signal", signals);
    bench.print(case, "two completions", completions);
    link.close()
}

/// One warp writes 64 bytes, waits for this call, and repeats: alone, and while 15 other warps post to the queue.
fn measure_own_call(bench: &Bench) -> Outcome<()> {
    let kernel = bench.rig.kernel("soft_adapter_own")?;
    let mut link = bench.rig.tracked(CALL_BYTES)?;
    link.fill_source()?;
    link.args.calls = bench.waits;
    link.args.pause_ns = PAUSE_NS;
    let mut kinds = [("idle", 1), ("busy", BLOCKS)].map(|kind| (kind, Vec::new()));
    for run in 0..=bench.runs {
        for ((name, blocks), times) in &mut kinds {
            link.clear()?;
            link.launch(&kernel, *blocks)?;
            // `struct OwnWords`: four words, and one of each call.
            let words = link.words(4 + bench.waits as usize)?;
            let time = median(words[4..].iter().map(|time| us(*time)));
            let rate = words[2] as f64 / us(words[3]).max(f64::MIN_POSITIVE);
            eprintln!("own call, {name}, run {run}: {time:.2} us, the others posted {rate:.3} M/s");
            if run > 0 {
                times.push(time);
            }
        }
    }
    link.compare(64)?;
    for ((name, _), times) in kinds {
        bench.print("softefa, waiting for one's own call", name, times);
    }
    link.close()
}

/// The rate of writes of 64 bytes between host memories, which 16 warps post to a shared queue. The kernels wait for
/// free slots and for the end by counters in GPU memory, which softefa writes by copies.
fn measure_counted_writes(bench: &Bench) -> Outcome<()> {
    let kernel = bench.rig.kernel("soft_adapter_writes")?;
    let mut link = bench.rig.counted(CALL_BYTES)?;
    write(bench, &mut link, &kernel, "after")?;
    link.close()
}

/// Names of the functions of `kernels/bench/soft_adapter_nccl.cu`.
const NCCL_KERNELS: [&str; 8] = [
    "soft_adapter_nccl_open",
    "soft_adapter_nccl_writes",
    "soft_adapter_nccl_puts",
    "soft_adapter_nccl_gets",
    "soft_adapter_nccl_signals",
    "soft_adapter_nccl_counts",
    "soft_adapter_nccl_fails",
    "soft_adapter_nccl_hangs",
];

/// These functions in the image that an environment variable names; None without one, or without a GPU.
fn nccl_kernels(bench: &Bench, variable: &str) -> Outcome<Option<[rig::Kernel; 8]>> {
    let Some(file) = std::env::var_os(variable) else {
        println!("{variable} is not set: its kernels are left out");
        return Ok(None);
    };
    let image = std::fs::read(&file).during(&format!("read {}", file.display()))?;
    bench.rig.kernels_of(image, NCCL_KERNELS)
}

/// The same with NCCL's kernels, and with the drop-in's.
fn measure_nccl(bench: &Bench) -> Outcome<()> {
    for (variable, name) in [("EFA_GDA_BENCH_NCCL", "nccl"), ("EFA_GDA_BENCH_DROP_IN", "nccl drop-in")] {
        let Some([open, writes, ..]) = nccl_kernels(bench, variable)? else { continue };
        let mut link = bench.rig.counted(CALL_BYTES)?;
        link.launch(&open, 0)?;
        write(bench, &mut link, &writes, name)?;
        // The queue did not see these requests, so it cannot be closed in order.
        link.destroy()?;
    }
    Ok(())
}

/// Warps of [`compare_drop_in`], one of them a block: one for each multiprocessor of an H200.
const SHARING_BLOCKS: u32 = 132;
/// Calls of each thread of a launch, and rounds of launches.
const SHARING_CALLS: u32 = 128;
const SHARING_ROUNDS: usize = 8;

/// NCCL's kernels and the drop-in's post to one endpoint, in turns and at the same time. Each call of a thread moves 64
/// bytes of its own, and all bytes are compared after each launch.
fn compare_drop_in(bench: &Bench) -> Outcome<()> {
    let Some([open, _, nccl_puts, nccl_gets, ..]) = nccl_kernels(bench, "EFA_GDA_BENCH_NCCL")? else {
        return Ok(());
    };
    let Some([_, _, puts, gets, ..]) = nccl_kernels(bench, "EFA_GDA_BENCH_DROP_IN")? else { return Ok(()) };
    let launch_bytes = 64 * (SHARING_BLOCKS * WARP * SHARING_CALLS) as usize;
    let mut link = bench.rig.counted(launch_bytes)?;
    link.args.calls = SHARING_CALLS;
    link.launch(&open, 0)?;
    let (mut operations, mut seed) = (0, 0);
    for round in 0..SHARING_ROUNDS {
        let kinds: [(&str, &[&rig::Kernel]); 6] = [
            ("NCCL's puts", &[&nccl_puts]),
            ("the drop-in's puts", &[&puts]),
            ("puts of both", &[&nccl_puts, &puts]),
            ("NCCL's gets", &[&nccl_gets]),
            ("the drop-in's gets", &[&gets]),
            ("gets of both", &[&gets, &nccl_gets]),
        ];
        for (name, kernels) in kinds {
            seed = (seed + 1) % 125;
            link.fill_both(seed)?;
            let (blocks, part) = (SHARING_BLOCKS / kernels.len() as u32, launch_bytes / kernels.len());
            link.launch_together(kernels, blocks, part)
                .and_then(|()| link.compare(launch_bytes))
                .map_err(|error| format!("round {round}, {name}: {error}"))?;
            operations += launch_bytes / 64;
        }
    }
    println!(
        "NCCL's kernels and the drop-in's moved {operations} times 64 bytes on one endpoint, in turns and together"
    );
    link.destroy()
}

/// The same with signals, a counter and values, on a whole context: all bytes and counts are compared after each launch.
fn compare_announcements(bench: &Bench) -> Outcome<()> {
    let Some([open, _, _, _, nccl, counts, ..]) = nccl_kernels(bench, "EFA_GDA_BENCH_NCCL")? else {
        return Ok(());
    };
    let Some([_, _, _, _, drop_in, drop_in_counts, ..]) = nccl_kernels(bench, "EFA_GDA_BENCH_DROP_IN")?
    else {
        return Ok(());
    };
    let launch_bytes = 64 * (SHARING_BLOCKS * WARP * SHARING_CALLS) as usize;
    let mut link = bench.rig.context(launch_bytes)?;
    link.args.calls = SHARING_CALLS;
    link.launch(&open, 0)?;
    // Of four calls of a thread: three signals, one, eight and one; one request of the counter; 14 requests.
    let fours = u64::from(SHARING_BLOCKS * WARP * SHARING_CALLS / 4);
    let (mut launches, mut reset_at) = (0, 0);
    for round in 0..SHARING_ROUNDS / 2 {
        let kinds: [(&str, &[&rig::Kernel], &rig::Kernel); 3] = [
            ("NCCL's", &[&nccl], &drop_in_counts),
            ("the drop-in's", &[&drop_in], &counts),
            ("both", &[&nccl, &drop_in], &drop_in_counts),
        ];
        for (name, kernels, counts) in kinds {
            launches += 1;
            link.fill_both(launches)?;
            let (blocks, part) = (SHARING_BLOCKS / kernels.len() as u32, launch_bytes / kernels.len());
            let all = launches as u64 * fours;
            link.launch_together(kernels, blocks, part)
                .and_then(|()| link.compare(launch_bytes))
                .and_then(|()| link.launch(counts, 0).map(drop))
                .and_then(|()| match link.last_words()? {
                    words if words == [13 * (all - reset_at), all - reset_at, 0, 0] => Ok(()),
                    words => Err(format!("the device read {words:?} signals and counts, then after a reset")),
                })
                .map_err(|error| format!("round {round}, {name}: {error}"))?;
            reset_at = all;
        }
    }
    println!(
        "NCCL's kernels and the drop-in's moved {} requests with signals, a counter and values on one context",
        14 * fours * launches as u64
    );
    link.destroy()
}

/// What Flush and Wait return for a put that fails, and that NCCL's Flush without a timeout does not end.
fn compare_failures(bench: &Bench) -> Outcome<()> {
    const SUCCESS: u64 = 0;
    const TIMEOUT: u64 = 8;
    const CYCLES: u64 = 1_000_000_000;
    let adapter = SoftAdapter::loaded();
    let faults = ["a wrong key", "an endpoint that is gone"];
    // NCCL's Wait does nothing.
    let cases = [
        ("EFA_GDA_BENCH_NCCL", "NCCL's", SUCCESS, true),
        ("EFA_GDA_BENCH_DROP_IN", "the drop-in's", TIMEOUT, false),
    ];
    for (variable, name, of_wait, hangs) in cases {
        let Some([open, .., fails, without_timeout]) = nccl_kernels(bench, variable)? else { continue };
        for (number, fault) in (0..).zip(faults) {
            let mut link = bench.rig.counted(CALL_BYTES)?;
            (link.args.calls, link.args.pause_ns) = (number, CYCLES);
            link.launch(&open, 0)?;
            link.launch(&fails, 0)?;
            let [flush, flush_ns, wait, wait_ns] = link.last_words()?;
            println!(
                "a put, {fault}: {name} flush {flush} after {} ms, wait {wait} after {} ms",
                flush_ns / 1_000_000,
                wait_ns / 1_000_000
            );
            if (flush, wait) != (TIMEOUT, of_wait) {
                return Err(format!(
                    "{name} results are {flush} and {wait}, expected {TIMEOUT} and {of_wait}"
                ));
            }
            if hangs && link.launch_until(&without_timeout, std::time::Duration::from_secs(3))? {
                return Err(format!("{name} flush without a timeout ended before it was aborted"));
            }
            link.destroy()?;
            let errors = adapter.statistics().errors;
            if errors != 1 + u64::from(hangs) {
                return Err(format!("the adapter failed {errors} requests"));
            }
            adapter.reset();
        }
    }
    Ok(())
}

/// Runs a kernel in which each thread of 16 warps writes again and again. Prints million writes a second.
fn write(bench: &Bench, link: &mut Link, kernel: &rig::Kernel, name: &str) -> Outcome<()> {
    link.fill_source()?;
    link.args.calls = bench.posts;
    let writes = f64::from(BLOCKS * WARP * bench.posts);
    let mut rates = Vec::new();
    for run in 0..=bench.runs {
        let rate = writes / link.launch(kernel, BLOCKS)?.as_secs_f64() / 1e6;
        eprintln!("64-byte writes, {name}, run {run}: {rate:.3} M/s");
        if run > 0 {
            rates.push(rate);
        }
    }
    link.compare(CALL_BYTES)?;
    bench.print("softefa, counters in GPU memory", name, rates);
    Ok(())
}

/// Nanoseconds in microseconds.
fn us(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = sorted(values);
    values[values.len() / 2]
}

impl Bench {
    /// Prints the median and the range of the runs.
    fn print(&self, case: &str, what: &str, values: Vec<f64>) {
        let values = sorted(values);
        if let (true, [low, .., high]) = (self.prints, &values[..]) {
            println!("row\t{case}\t-\t{what}\t{:.4}\t{low:.4}\t{high:.4}", values[values.len() / 2]);
        }
    }
}
