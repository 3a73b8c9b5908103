//! The engine: the thread that executes the requests of one adapter.
//!
//! # Protocol
//!
//! ## Threads
//! - A **client thread** (a CPU thread of this or another process, or a GPU thread) writes work-queue
//!   entries, rings doorbells and polls completions. On the data path it only accesses memory.
//! - An **engine** (thread `softefa-N`, one for each adapter) polls the doorbells of its adapter's queue
//!   pairs, fetches and checks entries, copies the bytes, and writes completions. The engine of the
//!   *sender* also takes the receive from the target's receive queue and writes the target's receive
//!   completion. The target's engine takes no part in this. If [`super::Adapter::isolate_clients`] was called, another
//!   thread replaces an engine that waits long for a client's memory (`turns.rs`).
//! - A **control thread** calls methods of [`super::Adapter`]. It initializes a queue when it creates it,
//!   and flushes a queue when it destroys it or sets the error state.
//!
//! ## Locks
//! An engine holds the network's lock for reading while it works, for at most `ROUNDS_PER_LOCK` rounds and about
//! `COST_PER_LOCK` bytes for all clients together, and releases it before it rests. In a round each client has one
//! share, however many queue pairs it has. A share ends with these bytes, or after accesses to memory that took
//! `TIME_PER_CLIENT`. An RDMA request of more than `PIECE_BYTES`, or of more than 64 KiB from or to memory that may
//! block, is cut into pieces, whose keys are checked again each time. A control call that changes objects holds the
//! lock for writing, so no engine holds it during the change; one may be in an access without the lock (below).
//! `queue_pair_state`, `set_consumer_index` and `abandon_completion_queue` hold the lock for reading; `stop` waits until
//! no engine works (`Shared::working`, which an engine acquires before the network's lock); `hold` and the calls that
//! return reports acquire neither.
//!
//! **No thread accesses memory that may block while it holds the network's lock**: registered memory, completion queues
//! and mirrors of counters that only the methods of a [`super::Memory`] reach. An engine releases the lock for such an
//! access ([`NetworkView::unlocked`]). A control call that removes an object first changes the objects under the lock,
//! then waits without it for these accesses alone, then flushes. So once it has returned, no engine uses what it
//! removed. Registered memory of this process with strict ordering is accessed under the network's lock only.
//!
//! | during | the engine holds | the control call that waits for it |
//! |---|---|---|
//! | a read or write of a region | an `Arc` of the region | the call that deregisters it |
//! | a delivery that is not a read | the count of the target's queue pair (`begin_delivery`) | the call that ends the target's queue pair |
//! | writing completions and counters of its queue pair | its send state, an `Arc` of the queue pair | the call that ends that queue pair |
//! | writing a backlog | the completion queue's lock, an `Arc` of it | the call that destroys the completion queue |
//!
//! Control calls that change objects acquire the lock one after another (`Network::changing`). Then at most one waits
//! for it, and where many are made, engines acquire it between two of them.
//!
//! Locks are acquired in this order: `Network::changing`, network, send state, receive state, completion queue. The
//! locks of counters, of late writes (`relaxed.rs`) and of the lists in `shared.rs` come last; a thread that holds one
//! of those acquires none of the first five. The send state of a queue pair is locked by an engine of its adapter and by
//! control calls that flush it. Its holder may release and acquire the network's lock, so no thread waits for a send
//! state while it holds the network's lock: an engine passes over a queue pair whose send state is locked. Receive
//! states and completion queues are locked by every engine that delivers to them, and by control calls. The lock of a
//! completion queue in memory that may block is acquired without the network's lock. No engine waits for the send state
//! of another adapter, so two engines that deliver to each other cannot deadlock.
//!
//! ## Words that several threads access
//! A control thread that initializes or flushes a queue accesses slots and doorbells as an engine does.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | send- and receive-queue slot | the client: an entry; the engine: the unwritten pattern, after it copied the entry | the engine | the doorbell orders the entry before the engine's copy; the completion orders the pattern before the client's next entry: `ring_memory.rs` |
//! | work-queue doorbell | the client: release (`Doorbell::ring`); a control thread: the initial value | the engine: acquire (`Doorbell::value`) | the release and the acquire pair: the covered entries are visible after the load |
//! | completion slot, bytes 8 to 31 | the holder of the completion queue's lock: relaxed | the client: relaxed | bytes 0 to 7 order it |
//! | completion slot, bytes 0 to 7, with the phase bit | the same: release (`store_word_release`) | the client: acquire (`load_word_acquire`) | the release and the acquire pair: payload and bytes 8 to 31 are visible after the load |
//! | completion-queue doorbell | the client: release (`Doorbell::ring`) | the holder of the completion queue's lock: acquire (`Doorbell::value`) | the release and the acquire pair: the client has read the consumed slots, so they may be overwritten |
//! | completion counter | engines and control threads: release | the client: acquire | the release and the acquire pair: payload is visible after the load: `counter.rs` |
//! | mirror of a completion counter | the holder of its lock | the client | no value is written before the data that it counts: `counter.rs` |
//! | `Shared::stop` | a control thread: release (`Adapter::stop`, drop) | the engine: acquire (`run`) | orders no other word |
//! | `Shared::working` | an engine, for reading, while it works; `Adapter::stop`, for writing | the same | the lock |
//! | `Shared::turns` | engines, the thread that watches them | the same | `turns.rs` |
//! | `Shared::held` | a control thread: release (`Adapter::hold`) | the engine: acquire (`Engine::round`) | orders no other word |
//! | `Shared::backlogged` | the holder of a completion queue's lock: relaxed | the engine: relaxed | a hint; the completion queue's lock orders the backlog |
//! | `Shared::counts` | engines and control threads: relaxed | any thread: relaxed | none |
//! | `QueuePairCore::state` | a control thread; any engine after a violation or a panic: release (`set_state`) | engines and control threads: acquire (`state`) | orders no other word: `queue_pair.rs` |
//! | `QueuePairCore::queue_key`, `rnr_retry` | a control thread: relaxed | engines: relaxed | the network's lock |
//! | `AttachedCounters::any` | a control thread: release (`attach`) | engines: acquire (`any`) | the network's lock |
//! | `Handle::target_reached` | engines of the adapter that has the handle: relaxed | the same | orders no other word |
//!
//! ## Order of one request
//! 1. The engine loads the doorbell (acquire) and copies each covered entry out of its slot once.
//! 2. It writes the unwritten pattern of the next lap (bytes that no valid entry has, `pattern.rs`) into the
//!    slot, checks its copy of the entry, and executes that copy as in step 3. Before it completes the
//!    request, it compares the slot with the pattern, unless the client may already write the next entry there
//!    (`SendRing::entry_unchanged`). A difference is a violation: the client wrote the slot too early.
//! 3. It copies the payload to or from the target's memory. If the request consumes a receive or is an
//!    unsolicited write with immediate, the engine then writes the target's receive completion; for a SEND it
//!    first adds to the target's counter of receives. For an RDMA request the last part of
//!    this step is to add to the target's counter of remote writes or remote reads.
//! 4. It gathers the request's completion with those of other requests. It adds to the sender's counters,
//!    writes the mirrors of all counters that it added to, then writes the gathered completions. So a client
//!    that reads a request's completion finds it counted, and the target's receive completion is visible
//!    before the sender's completion, unless the target's completion queue is full or abandoned.
//!
//! ## Waits and their bounds
//! The engine waits for no client, except for a client's memory that blocks. A client that waits for a completion must
//! have its own time limit.
//!
//! | wait | ends | when the bound is reached |
//! |---|---|---|
//! | the engine, without progress | after a spin, a yield, or a sleep of at most 1 ms (50 µs while requests or late writes are pending); a control call can wake it, a doorbell cannot | it polls again |
//! | a request whose receiver has no receive posted, with [`super::RnrRetry::Forever`] | when a receive is posted, or the queue pair leaves the ready state | no bound |
//! | the same, with [`super::RnrRetry::Times`] | after that many retries, at least 100 µs apart | it completes as [`CompletionStatus::ReceiverNotReady`] |
//! | a request on a held adapter | when the adapter is released, or the queue pair leaves the ready state | no bound |
//! | a delayed request | when its delay is over | it is executed |
//! | a request within [`super::Faults::interval`] of the last one of its queue pair | when the interval is over | it is executed |
//! | a write to a region with relaxed ordering, after its completion | after at most [`AdapterConfig::latest_write`], or at a read of the region, or when it is deregistered | it lands |
//! | a gathered completion | at the end of the queue pair's round, or earlier ([`COMPLETION_BATCH`](super::run)) | it is written |
//! | fewer pending requests than the reorder window | after 64 consecutive rounds of the engine in which the queue pair got no new entry | they are executed |
//! | a completion for a full completion queue | when the consumer index moves; until then it waits in the backlog, and the overrun is recorded as a violation; if the backlog is full, it is lost | no bound; destroying or abandoning the queue discards it |
//! | a control call, for the network's lock | when every engine that holds it has spent its `COST_PER_LOCK` or finished its rounds | no bound |
//! | a control call that deregisters memory, ends a queue pair or destroys a completion queue, for accesses of engines | when the accesses to the memory of its own client, and of the peers to which its queue pair sends, have returned | no bound; a [`super::Memory`] that blocks delays it |
//! | `Adapter::stop`, for engines that work | when their rounds are finished and their accesses to memory of clients have returned | no bound |
//! | an engine, for memory of a client | when the access returns | after [`super::Adapter::isolate_clients`]: after 10 to 15 ms another thread becomes the engine, and passes over the queue pairs of the client for which the first one worked (the sender, if the memory is a peer's). Otherwise no bound |
//! | a dropped adapter, for its engine's threads | when the thread ends | after 10 s the thread and the adapter's objects are leaked |

use std::collections::HashMap;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};

use efa_gda_wire::{CompletionStatus, RequestId};

use super::attr::QueuePairState;
use super::config::AdapterConfig;
use super::counter::UnwrittenCounters;
use super::network::Network;
use super::rest::Rest;
use super::shared::{Shared, add};
use super::tables::{Port, Ports};
use super::violation::Warning;

/// Most rounds under one acquisition of the network's lock. A round without progress releases it as well.
const ROUNDS_PER_LOCK: u32 = 16;
/// Work of the engine under one acquisition, in bytes moved, after which it releases the lock. It limits how long one
/// acquisition delays a control call of any adapter: some milliseconds.
const COST_PER_LOCK: u64 = 4 << 20;
/// Time of accesses to memory for one client after which its share of a round ends. It limits how long a client whose memory is slow
/// delays the requests of another: by this, and by one access more.
const TIME_PER_CLIENT: Duration = Duration::from_millis(2);
/// How often the thread that watches the engine looks for an access that takes too long.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);

/// The network's objects, for an engine. It holds the network's read lock, except during [`Self::unlocked`].
pub(crate) struct NetworkView<'a> {
    network: &'a Arc<Network>,
    /// `None` during [`Self::unlocked`].
    ports: Option<RwLockReadGuard<'a, Ports>>,
    shared: &'a Arc<Shared>,
    /// The index of the engine's adapter.
    pub(crate) local_index: u16,
    /// The engine's turn (`turns.rs`), and the client for which it works; 0: no client.
    turn: u64,
    client: u64,
    /// How long it has accessed memory for this client.
    waited: Duration,
}

impl<'a> NetworkView<'a> {
    fn new(network: &'a Arc<Network>, shared: &'a Arc<Shared>, local_index: u16, turn: u64) -> Self {
        let (ports, waited) = (Some(network.read()), Duration::ZERO);
        Self { network, ports, shared, local_index, turn, client: 0, waited }
    }

    /// Makes `client` the one for which the engine works. Returns false if another thread waits for its memory, if it
    /// has had its time, or if this thread is not the engine any more: no thread would replace it while it waits.
    fn begin_work_for(&mut self, client: u64) -> bool {
        if self.client != client {
            (self.client, self.waited) = (client, Duration::ZERO);
        }
        !self.is_over() && !self.shared.turns.is_blocked(client)
    }

    /// Whether the engine must not continue its work for this client.
    fn is_over(&self) -> bool {
        self.is_replaced() || self.waited >= TIME_PER_CLIENT
    }

    /// Whether another thread is the engine now.
    pub(crate) fn is_replaced(&self) -> bool {
        self.shared.turns.is_replaced(self.turn)
    }

    pub(crate) fn ports(&self) -> &Ports {
        match &self.ports {
            Some(ports) => ports,
            None => unreachable!("`unlocked` holds the only reference"),
        }
    }

    /// The objects of the engine's adapter.
    pub(crate) fn local(&self) -> &Port {
        match self.ports().port(self.local_index) {
            Some(port) => port,
            None => unreachable!("an adapter leaves its network after its engine ended"),
        }
    }

    pub(crate) fn config(&self) -> &AdapterConfig {
        &self.shared.config
    }

    /// Runs `work`, which may block, without the network's lock. It must not use the view. What the caller found before
    /// may be gone afterwards.
    pub(crate) fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        /// Acquires the lock again, also if `work` panics.
        struct Relock<'v, 'a>(&'v mut NetworkView<'a>, Instant);
        impl Drop for Relock<'_, '_> {
            fn drop(&mut self) {
                self.0.waited += self.1.elapsed();
                self.0.shared.turns.end_access(self.0.turn);
                self.0.ports = Some(self.0.network.read());
            }
        }
        self.ports = None;
        if self.client != 0 {
            self.shared.turns.begin_access(self.turn, self.client);
        }
        let _relock = Relock(self, Instant::now());
        work()
    }
}

/// State of the engine that lasts from round to round. Only the engine's thread accesses it.
pub(crate) struct Engine {
    /// Requests are executed as soon as they are fetched: there are no faults but [`super::Faults::drop_loopback`], and
    /// the adapter is not held.
    pub(crate) immediate: bool,
    pub(crate) held: bool,
    /// Requests or late writes are pending, so that the engine must run again soon even if no doorbell is rung.
    pub(crate) has_pending: bool,
    pub(crate) reorder_window: usize,
    pub(crate) delay: Option<Duration>,
    pub(crate) interval: Option<Duration>,
    /// The request that is being executed: its id and operation code.
    pub(crate) current_request: Option<(RequestId, u8)>,
    /// Counters that were added to and whose mirrors were not written yet; empty between rounds.
    pub(crate) unwritten: UnwrittenCounters,
    /// Counts since the last round ended.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) rnr_retries: u64,
    pub(crate) scratch: Vec<u8>,
    /// What was spent since `run` last acquired the network's lock, in bytes moved.
    spent: u64,
    /// The index among a client's live queue pairs at which its next share begins, if its last one ended early.
    next: HashMap<u64, usize>,
    random_state: u64,
    injections: HashMap<u64, CompletionStatus>,
    faultless: bool,
}

impl Engine {
    fn new(config: &AdapterConfig) -> Self {
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
            next: HashMap::new(),
            random_state: config.seed,
            injections: faults.injections.iter().map(|injection| (injection.nth, injection.status)).collect(),
            faultless: faults.none(),
        }
    }

    /// Counts a request and returns the status that is injected for it, if any.
    pub(crate) fn count_request(&mut self, shared: &Shared) -> Option<CompletionStatus> {
        if self.injections.is_empty() {
            return None;
        }
        let number = shared.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.injections.get(&number).copied()
    }

    /// Records work that costs as much as moving `bytes` bytes.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.spent += bytes;
    }

    /// Whether the share of the client for which the engine works is over.
    pub(crate) fn is_spent(&self, network: &NetworkView<'_>) -> bool {
        self.spent >= COST_PER_LOCK || network.is_over()
    }

    /// A random number below `bound`; 0 if `bound` is 0 or 1.
    pub(crate) fn random_below(&mut self, bound: usize) -> usize {
        if bound <= 1 { 0 } else { (next_random(&mut self.random_state) % bound as u64) as usize }
    }

    /// Gives every client of the adapter a share. Stops early when half of the work for one acquisition of the lock is
    /// done; the next round begins with the client after the last one. Returns whether there was progress.
    fn round(&mut self, network: &mut NetworkView<'_>) -> bool {
        let shared = network.shared;
        self.held = shared.held.load(Ordering::Acquire);
        self.immediate = self.faultless && !self.held;
        self.has_pending = false;
        let mut progress = false;
        for _ in 0..network.local().live.len() {
            // At least half of it is left to each share.
            if self.spent >= COST_PER_LOCK / 2 || network.is_replaced() {
                break;
            }
            let (live, last) = (&network.local().live, shared.turns.last_client.load(Ordering::Relaxed));
            let next = live.range((Bound::Excluded(last), Bound::Unbounded)).next();
            let Some((client, _)) = next.or_else(|| live.first_key_value()) else { break };
            let client = *client;
            shared.turns.last_client.store(client, Ordering::Relaxed);
            if network.begin_work_for(client) {
                progress |= self.serve(network, client);
            }
        }
        if shared.backlogged.load(Ordering::Relaxed) > 0 {
            retry_backlogs(network);
        }
        self.land_late_writes(network);
        self.add_counts(shared);
        progress
    }

    /// Polls every queue pair of a client once. Stops early when its share is over; its next share begins at the queue
    /// pair after the last one polled. Returns whether there was progress.
    fn serve(&mut self, network: &mut NetworkView<'_>, client: u64) -> bool {
        let shared = network.shared;
        let queue_pairs = |network: &NetworkView<'_>| network.local().live.get(&client).map_or(0, Vec::len);
        // An engine that replaces another does not know where that one was: by its turn, each begins elsewhere.
        let begin = network.turn as usize;
        let first = if self.next.is_empty() { begin } else { self.next.remove(&client).unwrap_or(begin) };
        let mut progress = false;
        for at in 0..queue_pairs(network) {
            if self.is_spent(network) {
                self.next.retain(|client, _| network.local().live.contains_key(client));
                self.next.insert(client, first.wrapping_add(at));
                break;
            }
            let local = network.local();
            let Some(live) = local.live.get(&client) else { break };
            let Some(queue_pair) = local.queue_pairs.get(live[first.wrapping_add(at) % live.len()]).cloned()
            else {
                continue;
            };
            // A frontend's `Memory` may panic. Indexes and rings are consistent at every call to it, so
            // the queue pair can be flushed afterwards. If it panicked while completions were written, the flush counts
            // and writes them again.
            match catch_unwind(AssertUnwindSafe(|| queue_pair.run_round(network, self))) {
                Ok(moved) => progress |= moved,
                Err(_) => {
                    queue_pair.set_state(QueuePairState::Error);
                    let request = self.current_request.take();
                    // A control call that holds the send state may wait for the network's lock.
                    network.unlocked(|| queue_pair.complete_panicked_request(request));
                    shared.warn(Warning::MemoryPanicked { queue_pair: queue_pair.number });
                }
            }
        }
        progress
    }

    /// Lands late writes to the adapter's regions with relaxed ordering.
    fn land_late_writes(&mut self, network: &mut NetworkView<'_>) {
        let regions = &network.local().relaxed;
        if regions.is_empty() {
            return;
        }
        let regions = regions.iter().map(|(number, region)| (region.memory.client(), *number)).collect();
        let last = &network.shared.turns.last_late;
        for_each_client(network, last, regions, |network, client, number| {
            // Found again for each: a control call of its client waits while the engine holds it.
            let mut regions = network.local().relaxed.iter();
            let Some((_, region)) = regions.find(|(other, _)| *other == number).cloned() else { return };
            if let Some(memory) = region.relaxed.as_ref().filter(|_| region.memory.client() == client) {
                // As above: a frontend's `Memory` may panic. Its region then has lost a write.
                let land = || catch_unwind(AssertUnwindSafe(|| memory.land_due())).unwrap_or(false);
                self.has_pending |= network.unlocked(land);
            }
        });
    }

    fn add_counts(&mut self, shared: &Shared) {
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

/// Calls `serve` for each object of a client for which the engine may work now, in the order of the clients. Begins
/// behind `last`, the client that was served last, so that clients whose memory blocks do not keep others from being
/// served. An engine that was replaced serves no client, and leaves `last` to the one that replaced it.
fn for_each_client<T: Ord>(
    network: &mut NetworkView<'_>,
    last: &AtomicU64,
    mut objects: Vec<(u64, T)>,
    mut serve: impl FnMut(&mut NetworkView<'_>, u64, T),
) {
    objects.sort_unstable();
    let first = objects.partition_point(|(client, _)| *client <= last.load(Ordering::Relaxed));
    objects.rotate_left(first);
    network.waited = Duration::ZERO;
    for (client, object) in objects {
        if network.begin_work_for(client) {
            last.store(client, Ordering::Relaxed);
            serve(network, client, object);
        }
    }
}

/// Writes completions of backlogs that fit now.
fn retry_backlogs(network: &mut NetworkView<'_>) {
    let mut blocking = Vec::new();
    for (number, queue) in network.local().completions.iter() {
        if queue.may_block() {
            blocking.push((queue.client(), number));
        } else {
            queue.retry_backlog();
        }
    }
    let last = &network.shared.turns.last_backlog;
    for_each_client(network, last, blocking, |network, client, number| {
        // Found again for each: a control call of its client waits while the engine holds it.
        let queue = network.local().completions.get(number).cloned();
        if let Some(queue) = queue.filter(|queue| queue.client() == client) {
            network.unlocked(|| queue.retry_backlog());
        }
    });
}

/// The next number of SplitMix64.
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = *state;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Starts a thread that is the engine of the adapter at `index` in this turn.
pub(crate) fn start(network: &Arc<Network>, index: u16, shared: &Arc<Shared>, turn: u64) -> io::Result<()> {
    let (network, own) = (network.clone(), shared.clone());
    shared.start_thread(format!("softefa-{index}"), move || run(&network, index, &own, turn))
}

/// Starts the thread that replaces the engine when it waits for a client's memory.
pub(crate) fn watch(network: &Arc<Network>, index: u16, shared: &Arc<Shared>) -> io::Result<()> {
    let (network, own) = (network.clone(), shared.clone());
    shared.start_thread(format!("softefa-{index}-watch"), move || {
        while !own.stop.load(Ordering::Acquire) {
            own.turns.replace_if_blocked(|turn| start(&network, index, &own, turn));
            thread::park_timeout(WATCH_INTERVAL);
        }
    })
}

/// Runs the engine of the adapter at `index` in a turn: until another thread replaces it or `Shared::stop` is set.
fn run(network: &Arc<Network>, index: u16, shared: &Arc<Shared>, turn: u64) {
    let mut engine = Engine::new(&shared.config);
    let mut rest = Rest::default();
    while !(shared.turns.is_replaced(turn) && shared.turns.end(turn)) {
        let progress = {
            // Held while requests are executed: when `Adapter::stop` has returned, no further one is.
            let _working = shared.working.read().unwrap_or_else(PoisonError::into_inner);
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            let mut view = NetworkView::new(network, shared, index, turn);
            let mut rounds = 0;
            engine.spent = 0;
            while rounds < ROUNDS_PER_LOCK && !engine.is_spent(&view) && engine.round(&mut view) {
                rounds += 1;
            }
            // Half of the work ends a round early, also without progress.
            rounds > 0 || engine.spent >= COST_PER_LOCK / 2
        };
        rest.after(progress, engine.has_pending);
    }
}
