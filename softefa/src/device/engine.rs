//! The engine: the thread that executes the requests of one adapter.
//!
//! # Protocol
//!
//! ## Threads
//! - A **client thread** (a CPU thread of this or another process, or a GPU thread) writes work-queue
//!   entries, rings doorbells and polls completions. On the data path it only accesses memory. Queue pairs and memory
//!   have the number of their client ([`super::QueuePairAttr::client`], [`super::Memory::client`]). Number 0
//!   stands for all clients for which no engine is replaced.
//! - An **engine** (thread `softefa-N`, where N is the index of its adapter; one at a time for each adapter, but a
//!   replaced thread may still finish a try of a request) polls the doorbells of its adapter's queue pairs, fetches and
//!   checks entries, copies the bytes, and writes completions. The engine that executes a request is that of its
//!   *sender*, the queue pair to which it was posted. It also takes the receive from the receive queue of the *target*,
//!   the queue pair that the request names, and writes the target's receive completion. The engine of the target's
//!   adapter has no part in the request: it polls the target's doorbells, writes backlogs and lands late writes
//!   (`deferred.rs`), and flushes.
//! - The **watch thread** (`softefa-N-watch`) makes another thread the engine if the engine waits long for a client's
//!   memory (`turns.rs`). [`super::Adapter::isolate_clients`] starts it.
//! - A **control thread** calls methods of [`super::Adapter`]. It initializes a queue when it creates it, and flushes
//!   both queues of a queue pair when it *ends* the queue pair: destroys it or sets its error state.
//!
//! ## Locks
//! An engine holds the network's lock for reading while it works, except during accesses without the lock (below). It
//! holds the lock for at most `ROUNDS_PER_LOCK` rounds and about `COST_PER_LOCK` bytes for all clients together, and
//! releases it before it rests. Backlogs in rings add as much again. The engine completes a flush or a backlog that it
//! has begun, even if that exceeds these limits. In a round each client has at most one **share**, in which the engine
//! polls each of the client's queue pairs once, unless queue pairs are created or destroyed during the round. No share
//! begins once half of `COST_PER_LOCK` is spent. A share ends early when the total of all clients reaches
//! `COST_PER_LOCK`, when the client's accesses without the lock took `TIME_PER_CLIENT` (`NetworkView::waited`, which
//! adds up over rounds if the adapter has no other client), or when the engine is replaced. An RDMA request of more
//! than `PIECE_BYTES`, or of more than 64 KiB from or to memory that may block, moves in pieces, and the engine checks
//! the keys again for each piece.
//!
//! A control call that changes objects holds the lock for writing, so no engine holds it during the change; an engine
//! may be in an access without the lock. `queue_pair_state` and `Network::gids` hold the lock for reading;
//! `set_consumer_index` and `abandon_completion_queue` do so only while they find the queue. `hold` stores its flag,
//! then acquires the lock for writing once, so that each round that begins later finds the flag. `stop` waits until no
//! engine works: it acquires `Shared::working`, which an engine holds for reading while it works, with or without the
//! network's lock. The calls that return reports and statistics acquire neither `working` nor the network's lock.
//!
//! **No thread accesses memory that may block while it holds the network's lock.** Memory may block if only the methods
//! of a [`super::Memory`] reach it: that of some regions, completion queues and mirrors of counters. An engine releases
//! the lock for such an access ([`NetworkView::unlocked`]). A control call that ends or removes an object changes the
//! tables or the queue pair's state under the lock. It then waits, without the lock, until no engine accesses the
//! object, and if the object is a queue pair, flushes it. So no engine uses a removed object after the call has
//! returned. Registered memory for which [`super::Memory::host`] returns a range is accessed under the network's lock
//! only, unless its writes land late.
//!
//! A drop of the adapter waits for the same accesses as the calls that deregister its regions and destroy its queue
//! pairs, except writes of mirrors: its counters stay attached. It waits without a bound only for regions of memory
//! that does not block for long, because that may be memory of this process, which its owner may free after the drop
//! (`Network::remove_prompt_regions`, `Network::leave`).
//!
//! | during an access without the lock | the engine holds | the control call that waits for the access |
//! |---|---|---|
//! | a read or write of a region, or landing its late writes | an `Arc` of the memory of each region that the request still uses, or of that region | the call that deregisters the region |
//! | a delivery that is not an RDMA read | the target's count of deliveries (`begin_delivery`), an `Arc` of the target | the call that ends the target |
//! | writing completions and counters of a queue pair of its adapter, and flushing it | the send state, an `Arc` of the queue pair | the call that ends that queue pair |
//! | writing a backlog | the completion queue's lock, an `Arc` of it | the call that destroys the completion queue |
//! | writing the mirror of a target's counter | the mirror's lock | the call that destroys the target (`AttachedCounters::detach`) |
//!
//! Control calls that change objects acquire the lock one after another (`Network::changing`). So at most one waits for
//! it, and engines can acquire it between two such calls.
//!
//! Locks are acquired in this order: `Shared::working`, `Network::changing`, network, send state, receive state,
//! completion queue; except that [`NetworkView::unlocked`] acquires the network's lock again under a send state. The
//! locks of counters, of late writes (`relaxed.rs`), of turns (`turns.rs`) and of the lists in `shared.rs` come last; a
//! thread that holds one of those acquires none of the first six. The send state of a queue pair is locked by an engine
//! of its adapter and by control calls that flush it. The holder of a send state may release and acquire the network's
//! lock, so no thread waits for a send state while it holds the network's lock: an engine passes over a queue pair
//! whose send state is locked. Receive states and completion queues are locked by engines of their adapter, by every
//! engine that delivers to them, and by control calls. The lock of a completion queue in memory that may block is
//! acquired without the network's lock. No engine waits for the send state of another adapter, so two engines that
//! deliver to each other cannot deadlock.
//!
//! ## Words that several threads access
//! A control thread that initializes or flushes a queue accesses slots and doorbells as an engine does. In the first
//! two rows the engine is that of the queue pair's adapter; for a receive queue, also that of any sender. All of them
//! access a receive queue under `receive.state` (`queue_pair.rs`), except the control thread that initializes it, which
//! holds the network's lock for writing. The rows for completion slots are for rings; `completion.rs` has the order in
//! memory that only calls reach ("Indirect memory"). The tables of `shared.rs`, `turns.rs`, `queue_pair.rs`,
//! `completion.rs` and `counter.rs` have the further words.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | send- and receive-queue slot | the client: an entry; the engine: the unwritten pattern, after it copied the entry | the engine | the doorbell orders the entry before the engine's copy; the completion orders the pattern before the client's next entry: `ring_memory.rs` |
//! | work-queue doorbell | the client: release (`Doorbell::ring`); a control thread: the initial value | the engine: acquire (`Doorbell::value`) | the release and the acquire pair: the covered entries are visible after the load |
//! | completion slot, bytes 8 to 31 | the holder of the completion queue's lock: relaxed | the client: relaxed | bytes 0 to 7 order it |
//! | completion slot, bytes 0 to 7, with the phase bit | the same: release (`store_word_release`) | the client: acquire (`load_word_acquire`) | the release and the acquire pair: payload, except late writes, and bytes 8 to 31 are visible after the load |
//! | completion-queue doorbell | the client: release (`Doorbell::ring`); a control thread: the initial value | the holder of the completion queue's lock: acquire (`Doorbell::value`) | the release and the acquire pair: the client has read the consumed slots, so they may be overwritten |
//! | completion counter | engines, and control threads that flush: add; callers of `CompletionCounter::add` and `set`: add, store; all release | the client: acquire | the release and the acquire pair: payload is visible after the load, except late writes: `counter.rs` |
//! | mirror of a completion counter | the holder of the mirror's lock | the client | no value is written before the data that it counts: `counter.rs` |
//! | `Handle::target_reached` | engines of the adapter that has the handle: relaxed | the same | orders no other word |
//!
//! ## Order of one request
//! 1. The engine loads the doorbell (acquire) and copies each covered entry out of its slot once.
//! 2. It writes the unwritten pattern of the next lap (random bytes, which an entry holds only by accident:
//!    `pattern.rs`) into the slot and checks its copy of the entry. It executes that copy as in step 3. Before step 4
//!    it compares the slot with the pattern, unless the client may already write the next entry there
//!    (`SendRing::entry_unchanged`). A difference is a violation: the client wrote the slot too early.
//! 3. It copies the payload to or from the target's memory. If the request consumes a receive, or is an unsolicited
//!    write with immediate whose bytes were stored, the engine then writes the target's receive completion; for a SEND
//!    it first adds to the target's counter of receives and writes its mirror. Last, if an RDMA request succeeded, the
//!    engine adds to the target's counter of remote writes or remote reads.
//! 4. It gathers the request's completion with those of other requests of the queue pair. When it writes them, it adds
//!    to the sender's counters, writes the mirrors that are due, then writes the gathered completions. So a client that
//!    reads a request's completion finds it counted, and the target's receive completion is visible before the sender's
//!    completion, unless the target's completion queue is full, has a backlog or is abandoned, or its memory cannot be
//!    written.
//!
//! ## Waits and their bounds
//! The engine waits for no client, except for a client's memory that blocks. A client that waits for a completion must
//! have its own time limit. A request whose queue pair leaves the ready state is flushed, whatever the table states.
//!
//! | wait | ends | what follows, or that nothing bounds the wait |
//! |---|---|---|
//! | the engine, without progress | after a spin, a yield, or a sleep of at most 1 ms (50 µs while requests of a queue pair that it polled in its last round, or late writes, are pending); a control call can wake it, a doorbell cannot | it polls again |
//! | a request whose receiver has no receive posted, with [`super::RnrRetry::Forever`] | when a receive is posted, a later try fails another check (the target has left the ready state, a key was removed), or the sender leaves the ready state | no bound |
//! | the same, with [`super::RnrRetry::Times`] | as above, or after that many retries, at least 100 µs apart | after the last retry it completes as [`CompletionStatus::ReceiverNotReady`] |
//! | an entry that a doorbell covers, to be fetched | in one of its client's next shares, also if requests before it wait for receives (`Engine::serve`), but not while a long request of its queue pair moves (`run.rs`), another thread holds the send state, or a replaced thread works for its client | it is fetched |
//! | a request on a held adapter | when the adapter is released, or the sender leaves the ready state | no bound |
//! | a request, for [`super::Faults::delay`] | when its delay is over, or the sender leaves the ready state | it is executed |
//! | a request, for [`super::Faults::interval`] after the last request of its sender that completed, apart from requests whose retries were used up, unless a long request of the sender moves | when the interval is over, or the sender leaves the ready state | it is executed |
//! | a late write | it is due at most [`AdapterConfig::latest_write`] after its completion, and lands in the next round in which the engine serves the region (`deferred.rs`); earlier at a read of the region, when the region is deregistered, or if 64 writes to it are late | it lands |
//! | a gathered completion | at the end of the queue pair's round, or earlier ([`COMPLETION_BATCH`](super::run)) | it is written |
//! | fewer pending requests than the reorder window, unless a long request moves (`run.rs`) | after 64 rounds of the queue pair in which the adapter was not held, without a new entry, or when the queue pair leaves the ready state | they are executed |
//! | a completion for a full completion queue, in the backlog (`completion.rs`) | when the consumer index moves | it is written; no bound, but destroying or abandoning the queue discards it |
//! | a control call, for the network's lock | when the control calls before it have released `Network::changing`, and every engine has released the lock: for an access to memory that may block, after `COST_PER_LOCK`, or after its rounds | no bound |
//! | an engine, for the network's lock | when the control call that changes objects has changed them | no bound |
//! | a control call that deregisters memory, ends a queue pair, or destroys, abandons or sets the consumer index of a completion queue, and `CompletionCounter::set` and `add`: for accesses of engines | when the accesses to the memory of the caller's client, and of the peers to which the queue pair sends, have returned | no bound: a [`super::Memory`] that blocks delays the call |
//! | `Adapter::stop`, for engines that work | when their rounds are finished and their accesses to memory of clients have returned | no bound |
//! | an engine, for an access to a client's memory to return; in an access also for a lock (completion queue, mirror, late writes) that another thread holds during its own access | when the access returns | with [`super::Adapter::isolate_clients`], if the engine works for a client other than 0: after 10 to 15 ms another thread becomes the engine, and passes over that client (the sender's, if the memory is a peer's) |
//! | the same, without `isolate_clients` or for client 0 | when the access returns | no bound |
//! | the drop of an adapter, for its engines and its watch thread to end, then for engines of other adapters that use its objects | when all have ended, and none uses its objects | the late writes to memory of clients other than 0 are discarded; 10 s after the drop began, its remaining objects are leaked instead |
//! | the same, for engines that hold a region of memory that does not block for long | when the accesses of the requests that use the region have returned | no bound |
//! | a thread that finds a violation, for stderr, with [`AdapterConfig::log_violations`] | when stderr has room for the line | after 1 s the line is lost (`stderr.rs`); the thread holds its locks meanwhile |

use std::collections::HashMap;
use std::io;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};

use efa_gda_wire::{CompletionStatus, RequestId};

use super::config::AdapterConfig;
use super::counter::UnwrittenCounters;
use super::deferred::{land_late_writes, retry_backlogs};
use super::network::Network;
use super::rest::Rest;
use super::shared::{Shared, add};
use super::tables::{Port, Ports};

/// Most rounds under one acquisition of the network's lock. A round without progress releases it as well.
const ROUNDS_PER_LOCK: u32 = 16;
/// Work of the engine, in bytes moved, after which `run` releases the lock; backlogs in rings have the same limit again
/// (`deferred.rs`). It limits how long the engine delays a control call of any adapter: some milliseconds.
pub(super) const COST_PER_LOCK: u64 = 4 << 20;
/// Cost of a completion that is flushed, or written from a backlog, in bytes ([`Engine::spend`]): its entry's slot is
/// read and reset, and it is written, about 100 ns in all. Otherwise a client that posts to many queue pairs in the
/// error state could make the engine hold the lock for long.
pub(super) const COMPLETION_COST: u64 = 1 << 10;
/// Time of a client's accesses ([`NetworkView::waited`]) after which its share of a round ends. The same limit holds
/// for its backlogs, and again for its late writes. In a round, a client whose memory is slow delays the requests of
/// another by at most this time, the accesses of one more request (at most three), and those that write its queue
/// pair's completions. Its backlogs and its late writes each add at most this time and the access of one more object.
pub(super) const TIME_PER_CLIENT: Duration = Duration::from_millis(2);
/// How often the watch thread looks for an access that takes too long.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);

/// The network's objects, for an engine. It holds the network's read lock, except during [`Self::unlocked`].
pub(crate) struct NetworkView<'a> {
    network: &'a Arc<Network>,
    /// `None` during [`Self::unlocked`].
    ports: Option<RwLockReadGuard<'a, Ports>>,
    shared: &'a Arc<Shared>,
    /// The index of the engine's adapter.
    pub(crate) local_index: u16,
    /// The engine's turn (`turns.rs`).
    turn: u64,
    /// The client for which the engine works; 0: none yet, or client 0, for which no engine is replaced.
    client: u64,
    /// Time of accesses since `client` changed, or since [`Self::end_share`].
    waited: Duration,
}

impl<'a> NetworkView<'a> {
    pub(super) fn new(
        network: &'a Arc<Network>,
        shared: &'a Arc<Shared>,
        local_index: u16,
        turn: u64,
    ) -> Self {
        let (ports, waited) = (Some(network.read()), Duration::ZERO);
        Self { network, ports, shared, local_index, turn, client: 0, waited }
    }

    /// Makes `client` the one for which the engine works. Returns false if the engine must not work for it: a replaced
    /// thread has not ended its work for this client, the client's accesses took `TIME_PER_CLIENT`, or this thread is
    /// replaced itself. A replaced thread begins no work, because nothing would replace it again if that blocked.
    pub(super) fn begin_work_for(&mut self, client: u64) -> bool {
        if self.client != client {
            (self.client, self.waited) = (client, Duration::ZERO);
        }
        !self.is_over() && !self.shared.turns.is_blocked(client)
    }

    /// Sets the current client's time to zero. Called before backlogs and before late writes, so that the time of the
    /// client's share does not count for them. Their time does count for its next share if no other client is served
    /// before that.
    pub(super) fn end_share(&mut self) {
        self.waited = Duration::ZERO;
    }

    pub(super) fn shared(&self) -> &'a Shared {
        self.shared
    }

    /// Whether the engine must end its work for the current client.
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

    /// Runs `work`, which may block, without the network's lock: one access (`turns.rs`). When this returns, any object
    /// that the caller had found may have been removed from its table, and a queue pair may have left the ready state.
    /// Those that the engine holds (table in "Locks") still exist; the caller must look up all others again.
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

/// State of one engine thread that lasts from round to round. No other thread accesses it; a thread that replaces this
/// one begins with a new state.
pub(crate) struct Engine {
    /// Requests are executed as soon as they are fetched: there are no faults but [`super::Faults::drop_loopback`], and
    /// the adapter is not held.
    pub(crate) immediate: bool,
    pub(crate) held: bool,
    /// The last round left requests pending in a queue pair that it polled, or late writes, so the engine must run
    /// again soon even if no doorbell is rung.
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
    /// Work since `run` last created a view, in bytes moved: what `COST_PER_LOCK` limits.
    spent: u64,
    /// For each client whose last share was spent ([`Self::is_spent`]), the index among its live queue pairs (modulo
    /// their number) at which its next share begins.
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

    /// Returns the status that is injected for the next request, if any. Counts the request if there are injections.
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

    /// Runs rounds until one makes no progress or a limit of the network's lock is reached. Returns whether any made
    /// progress. If requests that found no receive cost so much that not every queue pair was polled, `has_pending` is
    /// set, so that the engine does not sleep for 1 ms before it polls the others.
    fn work(&mut self, network: &mut NetworkView<'_>) -> bool {
        let mut rounds = 0;
        self.spent = 0;
        while rounds < ROUNDS_PER_LOCK && !self.is_spent(network) && self.round(network) {
            rounds += 1;
        }
        rounds > 0
    }

    /// Gives every client of the adapter a share, then does the deferred work (`deferred.rs`). Gives no further shares
    /// when half of `COST_PER_LOCK` is spent or the engine is replaced. The next round begins with the client after the
    /// last one. Returns whether a share made progress.
    fn round(&mut self, network: &mut NetworkView<'_>) -> bool {
        let shared = network.shared;
        self.held = shared.held.load(Ordering::Acquire);
        self.immediate = self.faultless && !self.held;
        self.has_pending = false;
        let mut progress = false;
        for _ in 0..network.local().live.len() {
            // So each share begins with at least half of `COST_PER_LOCK`.
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
            self.spend(retry_backlogs(network));
        }
        self.has_pending |= land_late_writes(network);
        self.add_counts(shared);
        progress
    }

    /// Polls every queue pair of a client once, but stops when its share is spent. The client's next share then begins
    /// after the queue pair that was polled last; or with that one if it made no progress and was not the first,
    /// because requests that wait for receives may have kept it from fetching entries. They never keep the first queue
    /// pair of a share from that by their number (`ROUND_RETRIES` in `run.rs`). Returns whether there was progress.
    fn serve(&mut self, network: &mut NetworkView<'_>, client: u64) -> bool {
        let queue_pairs = |network: &NetworkView<'_>| network.local().live.get(&client).map_or(0, Vec::len);
        // A new engine does not know where the replaced one was. It begins at its turn, so that each begins elsewhere.
        let begin = network.turn as usize;
        let first = if self.next.is_empty() { begin } else { self.next.remove(&client).unwrap_or(begin) };
        let mut progress = false;
        for at in 0..queue_pairs(network) {
            let local = network.local();
            let Some(live) = local.live.get(&client) else { break };
            let Some(queue_pair) = local.queue_pairs.get(live[first.wrapping_add(at) % live.len()]).cloned()
            else {
                continue;
            };
            let progressed = queue_pair.run_round(network, self);
            progress |= progressed;
            if self.is_spent(network) {
                let next = if progressed || at == 0 { at + 1 } else { at };
                self.next.retain(|client, _| network.local().live.contains_key(client));
                self.next.insert(client, first.wrapping_add(next));
                break;
            }
        }
        progress
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

/// Starts a thread that is the engine of the adapter at `index` in this turn.
pub(crate) fn start(network: &Arc<Network>, index: u16, shared: &Arc<Shared>, turn: u64) -> io::Result<()> {
    let (network, own) = (network.clone(), shared.clone());
    shared.start_thread(format!("softefa-{index}"), move || run(&network, index, &own, turn))
}

/// Starts the watch thread of the adapter at `index`.
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
            // Held while requests are executed. So no request is executed after `Adapter::stop` has returned.
            let _working = shared.working.read().unwrap_or_else(PoisonError::into_inner);
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            engine.work(&mut NetworkView::new(network, shared, index, turn))
        };
        rest.after(progress, engine.has_pending);
    }
}

#[cfg(test)]
mod tests;
