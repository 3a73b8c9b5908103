//! How long the threads of a worker process waited for a CPU. The time limit of a check does not count this time, so
//! that a library is not reported as hung because the machine is busy.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The most time without a CPU that a time limit leaves out, in limits.
const MOST: u32 = 10;

/// The times that the threads of a process have waited for a CPU since they started, by their numbers; None if the
/// kernel does not report them.
pub(super) type Waits = Option<BTreeMap<u32, Duration>>;

/// Reads the times of the process `pid` from procfs.
pub(super) fn waits(pid: u32) -> Waits {
    let of_thread = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let text = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, parse(&text)?))
    };
    let all: BTreeMap<_, _> =
        std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.filter_map(of_thread).collect();
    (!all.is_empty()).then_some(all)
}

/// The second number of `schedstat`: nanoseconds for which the thread could have run and did not.
fn parse(text: &str) -> Option<Duration> {
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// A wait with a limit that does not count time without a CPU.
pub(super) struct Limit<W> {
    waits: W,
    before: Waits,
    begun: Instant,
    limit: Duration,
    /// The time without a CPU that was found so far.
    pub(super) without_cpu: Duration,
}

impl<W: FnMut() -> Waits> Limit<W> {
    /// Begins a wait of `limit`. `waits` reads the times of the process.
    pub(super) fn new(limit: Duration, mut waits: W) -> Self {
        let before = waits();
        Self { waits, before, begun: Instant::now(), limit, without_cpu: Duration::ZERO }
    }

    /// The time that is left; None at the end of the wait.
    pub(super) fn left(&mut self) -> Option<Duration> {
        let left = |limit: &Self| {
            let end = limit.limit.saturating_add(limit.without_cpu.min(limit.limit.saturating_mul(MOST)));
            Some(end.saturating_sub(limit.begun.elapsed())).filter(|left| !left.is_zero())
        };
        left(self).or_else(|| {
            self.without_cpu = since(&(self.waits)(), &self.before);
            left(self)
        })
    }

    /// Whether the wait ended because the process got no CPU for most of it.
    pub(super) fn starved(&self) -> bool {
        self.without_cpu >= self.limit.saturating_mul(MOST)
    }
}

/// The longest time for which one thread waited between two readings.
fn since(now: &Waits, before: &Waits) -> Duration {
    let (Some(now), Some(before)) = (now, before) else { return Duration::ZERO };
    let waited = |(thread, time): (&u32, &Duration)| {
        time.saturating_sub(before.get(thread).copied().unwrap_or_default())
    };
    now.iter().map(waited).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(millis: u64) -> Waits {
        Some(BTreeMap::from([(1, Duration::from_millis(millis))]))
    }

    const LIMIT: Duration = Duration::from_millis(1);

    /// Whether the wait has time left after its limit, if the process then has waited so long for a CPU.
    fn goes_on(waited: Waits) -> (bool, Duration) {
        let mut readings = [of(1000), waited].into_iter();
        let mut limit = Limit::new(LIMIT, move || readings.next().flatten());
        std::thread::sleep(LIMIT);
        (limit.left().is_some(), limit.without_cpu)
    }

    #[test]
    fn the_time_for_which_a_thread_waited_for_a_cpu_does_not_count() {
        assert_eq!(goes_on(of(1000)), (false, Duration::ZERO));
        assert_eq!(goes_on(None), (false, Duration::ZERO));
        assert_eq!(goes_on(of(1000 + 3_600_000)).1, Duration::from_secs(3600));
    }

    #[test]
    fn a_process_that_gets_no_cpu_ends_its_wait_at_ten_limits_as_starved() {
        let begun = Instant::now();
        let mut limit = Limit::new(LIMIT, || Some(BTreeMap::from([(1, begun.elapsed().saturating_mul(2))])));
        let mut rounds = 0_u64;
        while let Some(left) = limit.left() {
            std::thread::sleep(left);
            rounds += 1;
        }
        assert!(limit.starved() && begun.elapsed() >= LIMIT * (MOST + 1), "{rounds} rounds");
        // Time in which a process did not ask for a CPU is its own.
        let mut idle = Limit::new(LIMIT, || of(1000));
        while let Some(left) = idle.left() {
            std::thread::sleep(left);
        }
        assert!(!idle.starved());
    }

    #[test]
    fn the_kernel_reports_the_times_of_this_process() {
        let Some(all) = waits(std::process::id()) else {
            // A kernel without scheduler statistics.
            return assert!(!std::path::Path::new("/proc/self/schedstat").exists());
        };
        assert!(all.contains_key(&std::process::id()), "{all:?}");
        assert_eq!(parse("12 345 6\n"), Some(Duration::from_nanos(345)));
    }
}
