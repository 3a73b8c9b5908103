//! Compares the time of `gda-probe check` with that of `fi_info`, in turns: the difference is what the probe adds to
//! the time of loading libfabric. It runs with `--soft`, and without, where libfabric takes the software adapter for
//! hardware and the checks of the machine run as well. Prints medians, quartiles, how many processes of the probe load
//! libfabric, and whether the median of the difference is within [`BOUND`] for each of them; a bench in which it is not
//! ends with status 1. The figures hold for a machine that does nothing else.

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use efa_gda_test_support::soft::{provider, provider_folder};

const PROBE: &str = env!("CARGO_BIN_EXE_gda-probe");
const SOFT: &[&str] = &["check", "--gpu", "none", "--soft"];
const HARDWARE: &[&str] = &["check", "--gpu", "none"];
const ROUNDS: usize = 41;
/// The milliseconds that the probe may add to those of `fi_info`, for each of its processes that loads libfabric.
const BOUND: f64 = 100.0;

fn main() -> ExitCode {
    // Without --bench, cargo tests only that the bench runs.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let rounds = if is_bench { ROUNDS } else { 1 };
    let providers = provider_folder();
    // SAFETY: this process has one thread.
    unsafe {
        std::env::set_var("FI_PROVIDER_PATH", providers.path());
        std::env::set_var("SOFTEFA_LIBRARY", provider());
    }
    let within = [SOFT, HARDWARE].map(|arguments| compare(arguments, rounds));
    if is_bench && within.contains(&Some(false)) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns whether the difference is within its bound; None if that is not known.
fn compare(arguments: &[&str], rounds: usize) -> Option<bool> {
    let count = loads_of_libfabric(arguments);
    let words = count.as_ref().map_or_else(|error| format!("not counted ({error})"), usize::to_string);
    println!("gda-probe {}; processes that load libfabric: {words}", arguments.join(" "));
    if matches!(count, Ok(0)) {
        println!("gda-probe loaded no libfabric, so its time is compared with nothing; run it to see why\n");
        return Some(false);
    }
    // Each process that loads libfabric takes the time of one fi_info.
    let processes = count.ok().unwrap_or(1) as f64;
    let (mut probe, mut peer, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (Ok(one), Ok(other)) = (time(PROBE, arguments), time("fi_info", &[])) else {
            println!("skipped: gda-probe or fi_info (Debian: libfabric-bin) cannot be started");
            return None;
        };
        probe.push(one);
        peer.push(other);
        more.push(one - processes * other);
    }
    println!("{:<12} {:>8} {:>8} {:>8} {:>8} {:>8}", "ms", "median", "lowest", "1/4", "3/4", "highest");
    print_line("gda-probe", probe);
    print_line("fi_info", peer);
    let (median, bound) = (print_line("difference", more), processes * BOUND);
    let within = median <= bound;
    let verdict = if within { "is within" } else { "exceeds" };
    println!(
        "the median difference, {median:.1} ms, {verdict} the bound of {bound:.0} ms over {processes} × fi_info\n"
    );
    Some(within)
}

/// Milliseconds from the start to the end of a process.
fn time(program: &str, arguments: &[&str]) -> io::Result<f64> {
    let begin = Instant::now();
    Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    Ok(begin.elapsed().as_secs_f64() / Duration::from_millis(1).as_secs_f64())
}

/// Counts processes that load libfabric. The dynamic loader writes a file for each process that names the
/// libraries which it initialises.
fn loads_of_libfabric(arguments: &[&str]) -> io::Result<usize> {
    let directory = std::env::temp_dir().join(format!("gda-probe-loads-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let counted = count_in(arguments, &directory);
    std::fs::remove_dir_all(&directory)?;
    counted
}

fn count_in(arguments: &[&str], directory: &Path) -> io::Result<usize> {
    let mut command = Command::new(PROBE);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("LD_DEBUG", "libs").env("LD_DEBUG_OUTPUT", directory.join("process")).status()?;
    let mut count = 0;
    for file in std::fs::read_dir(directory)? {
        let text = std::fs::read(file?.path())?;
        let text = String::from_utf8_lossy(&text);
        let loads = |line: &str| line.contains("calling init:") && line.contains("libfabric.so");
        count += usize::from(text.lines().any(loads));
    }
    Ok(count)
}

/// Prints the spread of the values, and returns their median.
fn print_line(name: &str, mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    let [median, lowest, first, third, highest] =
        [0.5, 0.0, 0.25, 0.75, 1.0].map(|fraction| values[(fraction * last as f64).round() as usize]);
    println!("{name:<12} {median:>8.1} {lowest:>8.1} {first:>8.1} {third:>8.1} {highest:>8.1}");
    median
}
