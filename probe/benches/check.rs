//! Compares the time of `gda-probe check` with that of `fi_info`, in turns: the difference is what the probe adds to
//! the time of loading libfabric. It runs with `--soft`, and without, where libfabric takes the software adapter for
//! hardware and the checks of the machine run as well. Prints medians, quartiles, and how many processes of the probe
//! load libfabric. Has no limits to fail by.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use efa_gda_test_support::soft::provider_folder;

const PROBE: &str = env!("CARGO_BIN_EXE_gda-probe");
const SOFT: &[&str] = &["check", "--gpu", "none", "--soft"];
const HARDWARE: &[&str] = &["check", "--gpu", "none"];
const ROUNDS: usize = 41;

fn main() {
    // Without --bench, cargo tests only that the bench runs.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    let providers = provider_folder();
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("FI_PROVIDER_PATH", providers.path()) };
    for arguments in [SOFT, HARDWARE] {
        compare(arguments, rounds);
    }
}

fn compare(arguments: &[&str], rounds: usize) {
    let count = match loads_of_libfabric(arguments) {
        Ok(count) => format!("{count}"),
        Err(error) => format!("not counted ({error})"),
    };
    println!("gda-probe {}; processes that load libfabric: {count}", arguments.join(" "));
    let (mut probe, mut peer, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (Ok(one), Ok(other)) = (time(PROBE, arguments), time("fi_info", &[])) else {
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

fn print_line(name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    let [median, lowest, first, third, highest] =
        [0.5, 0.0, 0.25, 0.75, 1.0].map(|fraction| values[(fraction * last as f64).round() as usize]);
    println!("{name:<12} {median:>8.1} {lowest:>8.1} {first:>8.1} {third:>8.1} {highest:>8.1}");
}
