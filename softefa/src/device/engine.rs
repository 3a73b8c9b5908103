//! The engine: the thread that executes the requests of all adapters of a network.
//!
//! # Protocol
//!
//! ## Threads
//! - A **client thread** (a CPU thread of this or another process, or a GPU thread) writes work-queue entries, rings
//!   doorbells and polls completions. On the data path it only accesses memory.
//! - The **engine** (thread `softefa-engine`, one for each [`Network`]) polls the doorbells, copies and checks entries,
//!   moves bytes, and writes completions. It runs while the network has adapters.
//! - A **control thread** calls methods of [`super::Adapter`]: it creates, changes and destroys objects.
//!
//! ## Terms
//! A **round** of a queue pair (`run_round`) polls its doorbells and executes its requests. That of an adapter
//! ([`serve`]) is one of each of its queue pairs; then events of completion queues that were armed late are sent, and late
//! writes that are due land. That of the engine is one of each adapter. A **pending** request has been fetched and must
//! be tried later; on a **held** adapter ([`super::Adapter::hold`]) all are pending. A **lap** is one pass over a ring.
//! The **unwritten pattern** is the content of a slot that the client has not written on this lap (`pattern.rs`).
//!
//! ## Locks
//! The network's lock protects the objects of its adapters. The engine holds it for reading while it serves an adapter,
//! and releases it between two adapters and as [`COST_PER_LOCK`] states. A control call that changes objects holds it
//! for writing, so the engine is then between two rounds of queue pairs. Flushing a queue pair is part of the call that
//! ends it. So when a call has returned, the engine uses no object that the call removed. The call locks
//! `Network::changing` first, for which the engine waits each time before it acquires the network's lock.
//!
//! A thread acquires its locks in this order: `Network::engine`, `Network::changing`, the network's, [`Port::engine`],
//! send state, the list of counters, receive state, completion queue, that of a counter or of a region's late writes
//! (`relaxed.rs`), events (`events.rs`) and what a frontend's [`super::SendEvent`] locks, reports
//! (`shared.rs`). Of those after the network's, the engine finds only these held by another thread: that of a completion
//! queue or counter, by a call that changes nothing else, and reports.
//!
//! ## Words that several threads access
//! A control thread that initializes or flushes a queue counts as the engine. `ring_memory.rs` states why the orders
//! suffice. Further words: `shared.rs`, `queue_pair.rs`, `completion.rs`, `events.rs` and `counter.rs`.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | send- and receive-queue slot | the client: an entry; the engine: the unwritten pattern, after it copied the entry; both relaxed | the engine: relaxed; acquire for the first 8 bytes in `Unwritten::is_written` | the doorbell orders the entry before the engine's copy; the completion orders the pattern before the client's next entry |
//! | work-queue doorbell | the client: release (`Doorbell::ring`), or relaxed after a fence (a GPU); a control thread: the initial value | the engine: acquire (`Doorbell::value`) | the covered entries are visible after the load |
//! | completion slot in a ring, bytes 8 to 31 | the holder of the completion queue's lock: relaxed | the client: relaxed | bytes 0 to 7 order it |
//! | completion slot in a ring, bytes 0 to 7, with the phase bit | the same: release (`store_word_release`) | the client, and before the queue exists a control thread: acquire (`load_word_acquire`) | payload, except late writes that the completion does not land (`relaxed.rs`), and bytes 8 to 31 are visible after the load |
//! | completion-queue doorbell | as a work-queue doorbell | the holder of the completion queue's lock: acquire (`Doorbell::value`) | the client has read the consumed slots, so they may be overwritten |
//!
//! ## Order of one request
//! Example: queue pair 1 of adapter A writes 8 bytes with immediate to queue pair 2 of adapter B, which has no
//! unsolicited writes and one receive posted. The client of A has written entry 0 and stored 1 to the doorbell.
//! 1. In the round of queue pair 1, the engine loads the doorbell (acquire) and finds that it covers entry 0. It copies
//!    the entry out of its slot, once, and writes the unwritten pattern of the next lap there. From now on it uses only
//!    its copy, and checks that against the strict rules.
//! 2. It checks the request: operation and length, A's lkey, the address handle, whether B has a handle for A, queue
//!    pair 2 and its queue key, B's rkey. The first check that fails decides the request's status, and step 3 is left
//!    out. It takes the receive of queue pair 2. Without one the request is pending, and tried again from this step on.
//! 3. It copies the 8 bytes, writes the receive completion of queue pair 2, then adds to its counter of remote writes.
//! 4. It compares the slot of entry 0 with the pattern. A difference is a violation: the client wrote the slot before a
//!    completion allowed that. It gathers the request's completion with others of queue pair 1.
//! 5. At the end of the round, or once many completions are gathered (`write_if_due`), it adds to the counters of queue
//!    pair 1, writes the mirrors of counters, then the completions. So a client that reads a completion finds it
//!    counted, and the target's receive completion is visible before the sender's, unless the target's completion queue
//!    is full.
//!
//! ## Waits and their bounds
//! A client that waits for a completion must have its own time limit. A request whose queue pair leaves the ready state
//! is flushed, whatever the table states.
//!
//! | wait | ends |
//! |---|---|
//! | the engine, without progress | after a spin, a yield, or a sleep of at most 1 ms (50 µs while requests or late writes are pending); a control call can wake it, a doorbell cannot |
//! | the engine, for `Network::changing` | when no control call has it: no bound while such calls follow each other |
//! | the engine, for an access to memory that only calls of a [`super::Memory`] reach | when the access returns: no bound. All adapters of the network and all control calls wait for it |
//! | a request whose receiver has no receive posted | when a receive is posted, or a later try fails another check; with [`super::RnrRetry::Times`] after that many retries, at least 100 µs apart, as [`CompletionStatus::ReceiverNotReady`], else no bound |
//! | a request on a held adapter | when the adapter is released: no bound |
//! | a request, for [`super::Faults::delay`], or for [`super::Faults::interval`] after the last one of its queue pair | when that time is over |
//! | fewer pending requests than the reorder window | after 64 rounds of the queue pair without a new entry |
//! | a late write | in the adapter's first round after it is due, at most [`AdapterConfig::latest_write`] after its completion; earlier at a read of the region, at the completion of a receive or a read of its adapter, or when the region is deregistered |
//! | an event of a completion queue | with the completion that makes it due, or in the adapter's next round if the queue is armed later or the channel was full |
//! | a completion for a full completion queue, in the backlog (`completion.rs`) | when the client reports its consumer index, or the queue is destroyed or abandoned: no bound |
//! | a control call, for the network's lock | when the calls before it are over and the engine has released the lock: after [`COST_PER_LOCK`] and what that does not count, which are one flush, late writes and the rest of a SEND |
//! | a thread that finds a violation, for stderr, with [`AdapterConfig::log_violations`] | after 1 s, when the line is lost; later if another process takes the room (`stderr.rs`) |

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use efa_gda_wire::{CompletionStatus, RequestId};

use super::config::AdapterConfig;
use super::counter::UnwrittenCounters;
use super::network::Network;
use super::rest::Rest;
use super::shared::{Shared, add, lock};
use super::tables::{Port, Ports};

/// Work of the engine, in bytes moved, under one acquisition of the network's lock: the round of a queue pair ends when
/// this is spent, and the engine releases the lock before the next one if half of it is spent. It limits how long the
/// engine delays a control call: some milliseconds, besides the work that is not counted (the table above).
pub(super) const COST_PER_LOCK: u64 = 4 << 20;
/// Cost of a completion that is flushed, in bytes ([`Engine::spend`]): its entry's slot is read and reset, and it is
/// written, about 100 ns in all.
pub(super) const COMPLETION_COST: u64 = 1 << 10;

/// The objects of a network as the engine sees them while it serves one adapter. It holds the network's lock.
#[derive(Clone, Copy)]
pub(crate) struct NetworkView<'a> {
    pub(crate) ports: &'a Ports,
    /// The adapter that it serves.
    pub(crate) local: &'a Port,
    /// The index of that adapter.
    pub(crate) local_index: u16,
}

impl<'a> NetworkView<'a> {
    pub(crate) fn config(self) -> &'a AdapterConfig {
        &self.local.shared.config
    }
}

/// What the engine keeps of one adapter from round to round. No other thread accesses it.
pub(crate) struct Engine {
    /// Requests are executed as soon as they are fetched: there are no faults but [`super::Faults::drop_loopback`], and
    /// the adapter is not held.
    pub(crate) immediate: bool,
    pub(crate) held: bool,
    /// The adapter's round left pending requests or late writes, so the next one must come soon without a doorbell.
    pub(crate) has_pending: bool,
    pub(crate) reorder_window: usize,
    pub(crate) delay: Option<Duration>,
    pub(crate) interval: Option<Duration>,
    /// The request that is being executed: its id and operation code.
    pub(crate) current_request: Option<(RequestId, u8)>,
    /// Counters to which the engine added and whose mirrors it has not written yet; empty between rounds of queue
    /// pairs.
    pub(crate) unwritten: UnwrittenCounters,
    /// Counts that [`Self::add_counts`] has not added to `Shared::counts` yet.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) rnr_retries: u64,
    pub(crate) scratch: Vec<u8>,
    /// Work since the engine acquired the network's lock, in bytes moved: what `COST_PER_LOCK` limits.
    spent: u64,
    random_state: u64,
    /// Requests that [`Self::count_request`] has counted, which numbers them for [`super::Injection::nth`].
    requests: u64,
    injections: HashMap<u64, CompletionStatus>,
    faultless: bool,
}

impl Engine {
    pub(crate) fn new(config: &AdapterConfig) -> Self {
        let faults = &config.faults;
        Self {
            immediate: false,
            held: false,
            has_pending: false,
            reorder_window: faults.reorder_window as usize,
            delay: Some(faults.delay).filter(|delay| !delay.is_zero()),
            interval: Some(faults.interval).filter(|interval| !interval.is_zero()),
            current_request: None,
            unwritten: UnwrittenCounters::default(),
            entries: 0,
            bytes: 0,
            rnr_retries: 0,
            scratch: Vec::new(),
            spent: 0,
            random_state: config.seed,
            requests: 0,
            injections: faults.injections.iter().map(|injection| (injection.nth, injection.status)).collect(),
            faultless: faults.none(),
        }
    }

    /// Returns the status that is injected for the next request, if any. Counts the request.
    pub(crate) fn count_request(&mut self) -> Option<CompletionStatus> {
        self.requests += 1;
        self.injections.get(&self.requests).copied()
    }

    /// Records work that costs as much as moving `bytes` bytes.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.spent += bytes;
    }

    /// Whether the queue pair's round must end.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent >= COST_PER_LOCK
    }

    /// A random number below `bound`; 0 if `bound` is 0 or 1.
    pub(crate) fn random_below(&mut self, bound: usize) -> usize {
        if bound <= 1 { 0 } else { (next_random(&mut self.random_state) % bound as u64) as usize }
    }

    /// Adds what the engine has counted to the adapter's statistics.
    pub(crate) fn add_counts(&mut self, shared: &Shared) {
        // Entries last, so that readers rarely see entries whose bytes are not counted. All counts are
        // relaxed: nothing may depend on this order.
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
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = *state;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// What the engine's round found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Round {
    progress: bool,
    /// Requests or late writes are pending in an adapter.
    has_pending: bool,
}

/// Starts the engine of a network. It runs until the network has no adapter.
pub(crate) fn start(network: &Arc<Network>) -> io::Result<JoinHandle<()>> {
    let network = network.clone();
    thread::Builder::new().name("softefa-engine".into()).spawn(move || {
        let mut rest = Rest::default();
        loop {
            let adapters = network.read_in_turn().used();
            if adapters == 0 {
                return;
            }
            let mut round = Round::default();
            (0..adapters).for_each(|index| serve(&network, index as u16, &mut round));
            rest.after(round.progress, round.has_pending);
        }
    })
}

/// One round of the adapter at `index`: polls each of its queue pairs once, then lands late writes.
fn serve(network: &Network, index: u16, round: &mut Round) {
    let (mut first, mut has_pending) = (0, false);
    // Once for each acquisition of the network's lock.
    loop {
        let ports = network.read_in_turn();
        let local = ports.port(index).filter(|port| !port.shared.stop.load(Ordering::Acquire));
        let Some(local) = local else { return };
        let view = NetworkView { ports: &ports, local, local_index: index };
        let mut engine = lock(&local.engine);
        engine.held = local.shared.held.load(Ordering::Acquire);
        engine.immediate = engine.faultless && !engine.held;
        (engine.spent, engine.has_pending) = (0, has_pending);
        let mut queue_pairs = local.queue_pairs.iter_from(first);
        let interrupted = queue_pairs.find(|(_, queue_pair)| {
            round.progress |= queue_pair.run_round(view, &mut engine);
            engine.spent >= COST_PER_LOCK / 2
        });
        if let Some((number, _)) = interrupted
            && let Some(next) = number.checked_add(1)
        {
            (first, has_pending) = (next, engine.has_pending);
            continue;
        }
        if local.shared.notifying.load(Ordering::Relaxed) > 0 {
            local.completions.iter().for_each(|(_, queue)| queue.send_due_event());
        }
        if !local.relaxed.is_empty() {
            engine.has_pending |= local.land_late_writes(Some(Instant::now()));
        }
        engine.add_counts(&local.shared);
        round.has_pending |= engine.has_pending;
        return;
    }
}

#[cfg(test)]
mod tests;
