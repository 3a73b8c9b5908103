//! The doorbell proxy: one thread that visits many queues (`mod.rs` defines a visit), and sleeps when they are idle. A
//! *round* visits every queue once.
//!
//! | word of `Core` | written by | read by | ordered by |
//! |---|---|---|---|
//! | `queues` | the thread that holds the mutex: the proxy's, or a caller of `register`, `detach`, `stop`, `round`, `rung` or `relayed` | the same, and `Debug` | the mutex |
//! | `waiting`: callers that wait for the lock | those callers | the proxy's thread | nothing; it is a hint that makes the thread release the lock |
//! | `records` | callers of `register` | the same | its own mutex |
//! | `stop` | `DoorbellProxy::stop`, with release, after it visited all queues a last time and removed them | the proxy's thread, with acquire | the release and the acquire pair. So a thread that ends by `stop` leaves no queue to `Ending` |
//! | `ended` | the proxy's thread, as the last thing it does | `DoorbellProxy::stop`, for at most the stop bound | the mutex of `ended`; `end` wakes the waiter |
//!
//! A caller waits for the mutex of `queues` without a bound of its own. Its holders do bounded work, which no device
//! can prolong (an alarm or a log subscriber that blocks can): the proxy's thread releases it after the round in
//! which it reads that a caller waits, and yields up to `YIELDS` times before it takes it again; another caller holds
//! it for one round, or for the last visits of one queue or of all. The stop bound covers only the wait for the
//! thread's end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::handoff::Handoff;
use super::memory::{Record, Records};
use super::port::Words;
use super::proxy_queues::{ProxyQueues, Shared};
use crate::error::{Error, ErrorKind, Result};

/// Rounds for one lock acquisition while there is work.
const ROUNDS_PER_LOCK: u32 = 16;
/// Rounds that found no work, between two reads of the clock.
const ROUNDS_PER_CLOCK_READ: u32 = 64;
/// How often the thread yields to callers that wait for the lock before it takes the lock again.
const YIELDS: u32 = 1000;
/// How long the proxy polls, yielding but not sleeping, after it last rang or relayed.
const SPIN: Duration = Duration::from_micros(100);
/// How long an idle proxy sleeps between two polls. A device's store cannot wake a thread, so this bounds the latency of
/// the first record, and of the first relayed completion, after a pause.
const PERIOD: Duration = Duration::from_millis(1);
/// How long [`DoorbellProxy::stop`] waits for the thread to end.
const STOP_BOUND: Duration = Duration::from_secs(10);

/// Rings for queues whose devices store doorbell records, and relays completions to devices that cannot map the
/// completion queue. Clones are handles to one proxy, which stops when the last handle is dropped. Each [`Registration`](super::Registration)
/// holds a handle.
#[derive(Clone, Debug)]
pub struct DoorbellProxy(Arc<Owner>);

/// Stops the proxy when the last handle is dropped.
#[derive(Debug)]
struct Owner {
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the thread and its callers share; the module's comment states who writes what.
#[derive(Default)]
struct Core {
    queues: Mutex<ProxyQueues>,
    /// Callers that wait for `queues`.
    waiting: AtomicUsize,
    stop: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
    records: Records,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.queues.try_lock().map(|queues| queues.len()).ok();
        f.debug_struct("Core").field("stop", &self.stop).field("queues", &count).finish_non_exhaustive()
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, ProxyQueues> {
        match self.queues.try_lock() {
            Ok(queues) => return queues,
            Err(TryLockError::Poisoned(queues)) => return queues.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        queues
    }

    /// Makes at most [`ROUNDS_PER_LOCK`] rounds. Returns whether any of them rang or relayed.
    fn rounds(&self) -> bool {
        // The mutex is not fair: without this, the thread could take it again before a caller that waits for it.
        let mut yields = 0;
        while self.waiting.load(Ordering::Relaxed) > 0 && yields < YIELDS {
            thread::yield_now();
            yields += 1;
        }
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for done in 0..ROUNDS_PER_LOCK {
            let rang = queues.round() > 0;
            if !rang || self.waiting.load(Ordering::Relaxed) > 0 {
                return rang || done > 0;
            }
        }
        true
    }

    fn stop(&self) {
        self.lock().stop();
        self.stop.store(true, Ordering::Release);
    }

    fn run(&self, mut rest: Rest) {
        while !self.stop.load(Ordering::Acquire) {
            let busy = self.rounds();
            rest.after(busy);
        }
    }
}

/// Reports the end of the thread. Removes, without a last visit, the queues that a panic left behind, and raises
/// their alarms with [`super::End::Stopped`].
struct Ending(Arc<Core>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().abandon();
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.end.notify_all();
    }
}

/// Decides when the thread polls again: at once, or after a sleep.
#[derive(Default)]
struct Rest {
    empty: u32,
    since: Option<Instant>,
    spinning: bool,
}

impl Rest {
    fn after(&mut self, busy: bool) {
        if busy {
            (self.spinning, self.empty, self.since) = (true, 0, None);
        } else if self.spinning {
            self.spin_once();
        } else {
            thread::park_timeout(PERIOD);
        }
    }

    fn spin_once(&mut self) {
        self.empty = self.empty.wrapping_add(1);
        if !self.empty.is_multiple_of(ROUNDS_PER_CLOCK_READ) {
            return std::hint::spin_loop();
        }
        let now = Instant::now();
        self.spinning = now.duration_since(*self.since.get_or_insert(now)) < SPIN;
        thread::yield_now();
    }
}

impl DoorbellProxy {
    /// Starts a proxy with a thread of its own. The thread polls, yielding but not sleeping, for about 100 µs after it
    /// last rang or relayed, then once a millisecond.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`]: the operating system started no thread.
    pub fn start() -> Result<Self> {
        let shared = Arc::new(Core::default());
        let core = shared.clone();
        let body = move || {
            let ending = Ending(core);
            ending.0.run(Rest::default());
        };
        let thread = thread::Builder::new().name("efa-gda-proxy".into()).spawn(body);
        let thread = thread.map_err(|error| {
            let text =
                "the doorbell proxy's thread could not be started; raise the limit of threads (ulimit -u)";
            Error::new(ErrorKind::Internal, format!("{text}: {error}"))
        })?;
        Ok(Self(Arc::new(Owner { core: shared, thread: Mutex::new(Some(thread)) })))
    }

    /// A proxy without a thread: it rings and relays when the caller calls [`DoorbellProxy::round`]. For programs that
    /// have a progress thread.
    pub fn without_thread() -> Self {
        Self(Arc::new(Owner { core: Arc::default(), thread: Mutex::new(None) }))
    }

    /// Visits every queue once, on the caller's thread. Returns the number of entries that doorbells covered, and of
    /// completions that were relayed.
    pub fn round(&self) -> u64 {
        self.0.core.lock().round()
    }

    /// Entries that doorbells covered so far, without those of a detach or a stop.
    pub fn rung(&self) -> u64 {
        self.0.core.lock().rung
    }

    /// Completions that were relayed so far, without those of a detach or a stop.
    pub fn relayed(&self) -> u64 {
        self.0.core.lock().relayed
    }

    /// Takes a record, whose word is `first`. None if memory is short.
    pub(super) fn record(&self, first: u32) -> Option<Record> {
        self.0.core.records.take(first)
    }

    /// Adds a queue.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the proxy was stopped.
    pub(super) fn add(&self, handoff: Handoff<Words>, shared: Arc<Shared>) -> Result<()> {
        let mut queues = self.0.core.lock();
        if queues.stopped() {
            return Err(Error::unsupported("the doorbell proxy was stopped; start another"));
        }
        queues.add(handoff, shared);
        drop(queues);
        self.0.wake();
        Ok(())
    }

    /// Detaches a queue; does nothing if the registration has ended.
    pub(super) fn detach(&self, shared: &Arc<Shared>) {
        self.0.core.lock().detach(shared);
    }

    /// Stops the proxy: visits each queue a last time, removes all, raises their alarms, and waits for the thread. The
    /// proxy refuses queues that are registered later. If the thread panicked before, its queues had no last visit;
    /// that is logged, and the result is `Ok`.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the thread does not end within 10 s. Only the first call waits for the thread. A later or
    /// concurrent call returns `Ok` after the queues are removed, even if the thread still runs.
    pub fn stop(&self) -> Result<()> {
        self.0.stop()
    }
}

impl Owner {
    fn wake(&self) {
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            thread.thread().unpark();
        }
    }

    fn stop(&self) -> Result<()> {
        self.core.stop();
        self.wake();
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        let ended = self.core.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.core.end.wait_timeout_while(ended, STOP_BOUND, |ended| !*ended);
        if !*waited.unwrap_or_else(PoisonError::into_inner).0 {
            return Err(Error::new(
                ErrorKind::Internal,
                format!(
                    "the doorbell proxy's thread did not end within {STOP_BOUND:?}; its queues are removed, and the thread \
                     ends by itself once it runs"
                ),
            ));
        }
        if thread.join().is_err() {
            tracing::error!(
                "doorbell proxy: the thread panicked; the waits of its queues end with EFA_GDA_PROXY_STOPPED; destroy \
                 the queues"
            );
        }
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "doorbell proxy: dropped before its thread ended");
        }
    }
}

#[cfg(test)]
mod tests {

    use super::super::{Registration, Ring, Service};
    use super::*;
    use crate::memory::Buffer;

    /// Registers a queue whose ring and doorbell are pages of memory.
    fn register(proxy: &DoorbellProxy, ring: &Buffer, doorbell: &Buffer) -> Registration {
        let queue = Ring {
            buffer: ring.start(),
            doorbell: Some(doorbell.start().cast()),
            entry_size: 64,
            num_entries: 64,
            service: Service::Record { max_batch: 64 },
        };
        // SAFETY: callers drop the pages after the registration, and no other thread stores there.
        unsafe { proxy.register(queue, 0) }.unwrap()
    }

    #[test]
    fn rounds_that_rang_report_work_although_the_last_round_found_nothing() {
        let (ring, doorbell) = (Buffer::zeroed(4096).unwrap(), Buffer::zeroed(4).unwrap());
        let proxy = DoorbellProxy::without_thread();
        let registration = register(&proxy, &ring, &doorbell);
        registration.record().store(1, Ordering::Release);
        assert_eq!((proxy.0.core.rounds(), proxy.0.core.rounds()), (true, false));
    }

    #[test]
    fn an_idle_proxy_may_spin_for_any_number_of_rounds() {
        Rest { empty: u32::MAX, since: None, spinning: true }.after(false);
    }

    #[test]
    fn the_thread_ends_with_the_last_registration_after_it_rang_for_it() {
        let (ring, doorbell) = (Buffer::zeroed(4096).unwrap(), Buffer::zeroed(4).unwrap());
        let proxy = DoorbellProxy::start().unwrap();
        let registration = register(&proxy, &ring, &doorbell);
        let core = Arc::downgrade(&proxy.0.core);
        drop(proxy);
        registration.record().store(7, Ordering::Release);
        drop(registration);
        // SAFETY: the page lives; the doorbell is a word at its start.
        let value = unsafe { doorbell.start().cast::<u32>().read_volatile() };
        assert_eq!((value, core.strong_count()), (7, 0), "the thread holds it while it runs");
    }
}
