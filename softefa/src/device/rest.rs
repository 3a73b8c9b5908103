//! How the engine rests between rounds without progress. It does not hold the network's lock meanwhile.

use std::thread;
use std::time::{Duration, Instant};

/// Rounds without progress after which the engine begins to yield its core; before that it spins. After
/// [`YIELD_ROUNDS`] it begins to sleep for [`SHORT_SLEEP`], and after [`SHORT_SLEEP_ROUNDS`] for [`LONG_SLEEP`] (still
/// [`SHORT_SLEEP`] while requests or late writes are pending). The engine must leave its core soon, because tests run
/// clients and the engine on two cores.
const SPIN_ROUNDS: u32 = 128;
const YIELD_ROUNDS: u32 = 1024;
const SHORT_SLEEP_ROUNDS: u32 = 2048;
const SHORT_SLEEP: Duration = Duration::from_micros(50);
const LONG_SLEEP: Duration = Duration::from_millis(1);
/// If more threads than cores can run, a yield takes tens of milliseconds, because the thread gives up its time on the
/// core, and a short sleep takes about a millisecond. After a yield of at least `SLOW_YIELD` the engine does not
/// yield until it has made `SLEEPS_AFTER_SLOW_YIELD` short sleeps; those after `SHORT_SLEEP_ROUNDS` do not count.
const SLOW_YIELD: Duration = Duration::from_millis(1);
const SLEEPS_AFTER_SLOW_YIELD: u32 = 1024;

/// The state of the engine's rest.
#[derive(Default)]
pub(super) struct Rest {
    idle_rounds: u32,
    /// Short sleeps to make before the engine yields again.
    sleeps: u32,
}

impl Rest {
    /// Spins, yields or sleeps, depending on how many rounds in a row had no progress. Returns at once after progress.
    pub(super) fn after(&mut self, progress: bool, has_pending: bool) {
        self.idle_rounds = if progress { 0 } else { (self.idle_rounds + 1).min(SHORT_SLEEP_ROUNDS) };
        match self.idle_rounds {
            0 => {}
            1..SPIN_ROUNDS => std::hint::spin_loop(),
            SPIN_ROUNDS..YIELD_ROUNDS if self.sleeps == 0 => {
                let begin = Instant::now();
                thread::yield_now();
                if begin.elapsed() >= SLOW_YIELD {
                    self.sleeps = SLEEPS_AFTER_SLOW_YIELD;
                }
            }
            SPIN_ROUNDS..SHORT_SLEEP_ROUNDS => {
                self.sleeps = self.sleeps.saturating_sub(1);
                thread::park_timeout(SHORT_SLEEP);
            }
            _ => thread::park_timeout(if has_pending { SHORT_SLEEP } else { LONG_SLEEP }),
        }
    }
}
