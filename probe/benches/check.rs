//! Compares the time of `gda-probe check --soft --gpu none` with that of `fi_info`, in turns: the difference
//! is what the probe adds to the time of loading libfabric. Prints medians, quartiles, and how many
//! processes of the probe load libfabric. Has no limits to fail by.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROBE: &str = env!("CARGO_BIN_EXE_gda-probe");
const CHECK: [&str; 4] = ["check", "--soft", "--gpu", "none"];
const ROUNDS: usize = 41;

fn main() {
    // Without --bench, cargo tests only that the bench runs.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    match loads_of_libfabric() {
        Ok(count) => println!("processes of gda-probe that load libfabric: {count}"),
        Err(error) => println!("processes of gda-probe that load libfabric: not counted, {error}"),
    }
    let (mut probe, mut peer, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (Ok(one), Ok(other)) = (time(PROBE, &CHECK), time("fi_info", &[])) else {
            println!("skipped: gda-probe or fi_info cannot be started");
            return;
        };
        probe.push(one);
        peer.push(other);
        more.push(one - other);
    }
    println!("{:<12} {:>8} {:>8} {:>8} {:>8} {:>8}", "ms", "median", "lowest", "1/4", "3/4", "highest");
    print_line("gda-probe", probe);
    print_line("fi_info", peer);
    print_line("difference", more);
}

/// Milliseconds from the start to the end of a process.
fn time(program: &str, arguments: &[&str]) -> io::Result<f64> {
    let begin = Instant::now();
    Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    Ok(begin.elapsed().as_secs_f64() / Duration::from_millis(1).as_secs_f64())
}

/// Counts processes that load libfabric. The dynamic loader writes a file for each process that names the
/// libraries which it initialises.
fn loads_of_libfabric() -> io::Result<usize> {
    let directory = std::env::temp_dir().join(format!("gda-probe-loads-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let counted = count_in(&directory);
    std::fs::remove_dir_all(&directory)?;
    counted
}

fn count_in(directory: &Path) -> io::Result<usize> {
    let mut command = Command::new(PROBE);
    command.args(CHECK).stdout(Stdio::null()).stderr(Stdio::null());
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

fn print_line(name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    let [median, lowest, first, third, highest] =
        [0.5, 0.0, 0.25, 0.75, 1.0].map(|fraction| values[(fraction * last as f64).round() as usize]);
    println!("{name:<12} {median:>8.1} {lowest:>8.1} {first:>8.1} {third:>8.1} {highest:>8.1}");
}
