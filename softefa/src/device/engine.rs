//! The thread that works for an adapter: rounds over its queue pairs, and less often when there is
//! nothing to do.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use efa_gda_wire::{CompletionStatus, RequestId};

use super::attr::QueuePairState;
use super::config::AdapterConfig;
use super::network::Network;
use super::shared::{Shared, add};
use super::tables::{Port, Ports};
use super::violation::Warning;

/// Rounds under one read lock, while there is work.
const ROUNDS_PER_LOCK: u32 = 16;
/// Empty rounds before the engine yields its core, sleeps, and sleeps long. Tests share two cores
/// with it.
const SPINS: u32 = 128;
const YIELDS: u32 = 1024;
const SHORT_SLEEPS: u32 = 2048;
const SHORT_SLEEP: Duration = Duration::from_micros(50);
const LONG_SLEEP: Duration = Duration::from_millis(1);

/// What an engine sees during a round, under the network's read lock.
pub(crate) struct World<'a> {
    pub(crate) ports: &'a Ports,
    pub(crate) me: &'a Port,
    pub(crate) index: u16,
}

impl World<'_> {
    pub(crate) fn config(&self) -> &AdapterConfig {
        &self.me.shared.config
    }
}

/// What an engine keeps from round to round.
pub(crate) struct Engine {
    /// Requests are executed as they are fetched: no faults, not held.
    pub(crate) direct: bool,
    pub(crate) held: bool,
    /// Requests wait, so that the engine must look again soon though nobody rings.
    pub(crate) waiting: bool,
    pub(crate) reorder_window: usize,
    pub(crate) delay: Option<Duration>,
    /// The request that is being executed, by id and operation code.
    pub(crate) current: Option<(RequestId, u8)>,
    /// Counts since the last round ended.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) rnr_retries: u64,
    pub(crate) scratch: Vec<u8>,
    random: u64,
    requests: u64,
    injections: HashMap<u64, CompletionStatus>,
    faultless: bool,
}

impl Engine {
    fn new(config: &AdapterConfig) -> Self {
        let faults = &config.faults;
        Self {
            direct: false,
            held: false,
            waiting: false,
            reorder_window: faults.reorder_window as usize,
            delay: Some(faults.delay).filter(|delay| !delay.is_zero()),
            current: None,
            entries: 0,
            bytes: 0,
            rnr_retries: 0,
            scratch: Vec::new(),
            random: config.seed,
            requests: 0,
            injections: faults.injections.iter().map(|injection| (injection.nth, injection.status)).collect(),
            faultless: faults.none(),
        }
    }

    /// Counts a request; the status that is injected for it, if one is.
    pub(crate) fn count_request(&mut self) -> Option<CompletionStatus> {
        self.requests += 1;
        if self.injections.is_empty() { None } else { self.injections.get(&self.requests).copied() }
    }

    /// A number below `bound`, random where there is a choice.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        if bound <= 1 { 0 } else { (random(&mut self.random) % bound as u64) as usize }
    }

    fn round(&mut self, world: &World<'_>) -> bool {
        let shared = &world.me.shared;
        self.held = shared.held.load(Ordering::Acquire);
        self.direct = self.faultless && !self.held;
        self.waiting = false;
        let mut progress = false;
        for number in &world.me.live {
            let Some(queue_pair) = world.me.queue_pairs.get(*number) else { continue };
            // What may panic is a face's `Memory`. Counters and rings are whole at every call into
            // it, so the queue pair can be flushed.
            match catch_unwind(AssertUnwindSafe(|| queue_pair.poll(world, self))) {
                Ok(moved) => progress |= moved,
                Err(_) => {
                    queue_pair.set_state(QueuePairState::Error);
                    queue_pair.answer_panicked(self.current.take());
                    shared.warn(Warning::MemoryPanicked { queue_pair: queue_pair.number });
                }
            }
        }
        if shared.backlogged.load(Ordering::Relaxed) > 0 {
            for (_, queue) in world.me.completions.iter() {
                queue.retry_backlog();
            }
        }
        self.count(shared);
        progress
    }

    fn count(&mut self, shared: &Shared) {
        // Entries last: who sees them counted finds their bytes counted, as far as people care.
        for (from, to) in [
            (&mut self.bytes, &shared.counts.bytes),
            (&mut self.rnr_retries, &shared.counts.rnr_retries),
            (&mut self.entries, &shared.counts.entries),
        ] {
            if *from > 0 {
                add(to, std::mem::take(from));
            }
        }
    }
}

/// The next number of SplitMix64.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = *state;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Works for the adapter at `index` until it is told to stop.
pub(crate) fn run(network: Arc<Network>, index: u16, shared: Arc<Shared>) {
    let mut engine = Engine::new(&shared.config);
    let mut empty = 0;
    while !shared.stop.load(Ordering::Acquire) {
        let progress = {
            let ports = network.read();
            let Some(me) = ports.port(index) else { return };
            let world = World { ports: &ports, me, index };
            let mut rounds = 0;
            while rounds < ROUNDS_PER_LOCK && engine.round(&world) {
                rounds += 1;
            }
            rounds > 0
        };
        empty = if progress { 0 } else { empty + 1 };
        rest(&mut empty, engine.waiting);
    }
}

fn rest(empty: &mut u32, waiting: bool) {
    match *empty {
        0 => {}
        1..SPINS => std::hint::spin_loop(),
        SPINS..YIELDS => thread::yield_now(),
        YIELDS..SHORT_SLEEPS => thread::park_timeout(SHORT_SLEEP),
        _ => {
            *empty = SHORT_SLEEPS;
            thread::park_timeout(if waiting { SHORT_SLEEP } else { LONG_SLEEP });
        }
    }
}
