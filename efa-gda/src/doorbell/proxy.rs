//! The proxy: one thread, many queues, and when it rests. What a visit to a queue does is
//! `handoff`'s.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::handoff::Handoff;
use super::memory::{Pages, Records};
use super::mode::DoorbellMode;
use super::port::{Staging, Words};
use super::proxy_queues::{Counts, ProxyQueues};
use super::registration::{Alarm, RegisterError, Registration, SendQueue, Shared};
use super::store::BlockCopy;

/// Entries that one visit copies at most, so that a busy queue does not keep the others waiting.
const COPIED_AT_ONCE: u32 = 256;
/// Rounds under one lock, while there is work.
const ROUNDS_PER_LOCK: u32 = 16;
/// Empty rounds between two looks at the clock.
const ROUNDS_PER_LOOK: u32 = 64;
/// How often the thread makes way for those who wait for the lock.
const YIELDS: u32 = 1000;

/// How a proxy works.
#[derive(Clone, Debug)]
#[must_use = "does nothing before DoorbellProxy::start"]
pub struct ProxyOptions {
    period: Duration,
    spin: Duration,
    cpu: Option<usize>,
    stop_bound: Duration,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self {
            period: Duration::from_millis(1),
            spin: Duration::from_micros(100),
            cpu: None,
            stop_bound: Duration::from_secs(10),
        }
    }
}

impl ProxyOptions {
    /// The defaults: it looks for 100 µs after the last record, then once a millisecond.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long it sleeps between two looks when idle: a device's store wakes nobody, so this bounds
    /// the latency of the first record after a pause.
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// How long it looks on without a pause after the last record.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Runs on this CPU alone.
    pub fn cpu(mut self, cpu: usize) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// How long stopping waits for the thread.
    pub fn stop_bound(mut self, bound: Duration) -> Self {
        self.stop_bound = bound;
        self
    }
}

/// Why there is no proxy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The system gave no thread.
    #[error("the proxy's thread cannot be started: {0}; raise the limit of threads")]
    Thread(#[source] io::Error),
    /// The thread may not run there.
    #[error(
        "the proxy cannot be pinned to CPU {cpu}: {source}; name one of this process's CPUs (taskset -p)"
    )]
    Pin {
        /// The CPU asked for.
        cpu: usize,
        /// The system's answer.
        source: io::Error,
    },
}

/// The thread did not end in time. It touches no queue's memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxy's thread did not end within {0:?}; its queues are let go all the same")]
pub struct StopError(pub Duration);

/// Rings for queues whose devices leave records. Clones are handles to the same one; it stops when
/// the last handle and the last [`Registration`] are gone.
#[derive(Clone, Debug)]
pub struct DoorbellProxy(Arc<Owner>);

/// Ends the thread.
#[derive(Debug)]
struct Owner {
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stop_bound: Duration,
}

/// What the thread and those who attach and detach share.
#[derive(Default)]
struct Core {
    lanes: Mutex<ProxyQueues>,
    /// Who waits for `lanes` beside the thread.
    waiting: AtomicUsize,
    stop: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
    records: Records,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queues = self.lanes.try_lock().map(|lanes| lanes.len()).ok();
        f.debug_struct("Core").field("stop", &self.stop).field("queues", &queues).finish_non_exhaustive()
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, ProxyQueues> {
        match self.lanes.try_lock() {
            Ok(lanes) => return lanes,
            Err(TryLockError::Poisoned(lanes)) => return lanes.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        lanes
    }

    /// A few rounds; whether any rang.
    fn rounds(&self) -> bool {
        // Locks are not fair, and this thread takes this one again and again.
        let mut yields = 0;
        while self.waiting.load(Ordering::Relaxed) > 0 && yields < YIELDS {
            thread::yield_now();
            yields += 1;
        }
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for done in 0..ROUNDS_PER_LOCK {
            let rang = lanes.round() > 0;
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

/// Says that the thread ended, whatever ended it, and lets go of the queues if it was a panic.
struct Ending(Arc<Core>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().abandon();
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.end.notify_all();
    }
}

/// When to look again.
struct Rest {
    spin: Duration,
    period: Duration,
    empty: u32,
    since: Option<Instant>,
    spinning: bool,
}

impl Rest {
    fn after(&mut self, busy: bool) {
        if busy {
            (self.spinning, self.empty, self.since) = (true, 0, None);
        } else if self.spinning {
            self.look();
        } else {
            thread::park_timeout(self.period);
        }
    }

    fn look(&mut self) {
        self.empty += 1;
        if !self.empty.is_multiple_of(ROUNDS_PER_LOOK) {
            return std::hint::spin_loop();
        }
        let now = Instant::now();
        self.spinning = now.duration_since(*self.since.get_or_insert(now)) < self.spin;
        thread::yield_now();
    }
}

impl DoorbellProxy {
    /// Starts a proxy's thread.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub fn start(options: &ProxyOptions) -> Result<Self, ProxyError> {
        let shared = Arc::new(Core::default());
        let core = shared.clone();
        let rest =
            Rest { spin: options.spin, period: options.period, empty: 0, since: None, spinning: false };
        let cpu = options.cpu;
        let (say, said) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let ending = Ending(core);
            let pinned = cpu.map_or(Ok(()), |cpu| pin(cpu).map_err(|source| ProxyError::Pin { cpu, source }));
            let go = pinned.is_ok();
            // The starter waits for this word.
            let _ = say.send(pinned);
            if go {
                ending.0.run(rest);
            }
        };
        let thread = thread::Builder::new().name("efa-gda-proxy".into()).spawn(body);
        let thread = thread.map_err(ProxyError::Thread)?;
        let lost = |_| Err(ProxyError::Thread(io::Error::other("it ended at once")));
        said.recv().unwrap_or_else(lost)?;
        Ok(Self(Arc::new(Owner {
            core: shared,
            thread: Mutex::new(Some(thread)),
            stop_bound: options.stop_bound,
        })))
    }

    /// A proxy that rings when its caller calls [`DoorbellProxy::round`], for programs with a progress
    /// thread of their own.
    pub fn without_thread() -> Self {
        let stop_bound = ProxyOptions::default().stop_bound;
        Self(Arc::new(Owner { core: Arc::default(), thread: Mutex::new(None), stop_bound }))
    }

    /// Visits every queue once, on this thread. Returns how many entries were rung for.
    pub fn round(&self) -> u64 {
        self.0.core.lock().round()
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        self.0.core.lock().counts()
    }

    /// Takes a queue into care. Nothing may be in flight on it; `counter` is its producer counter.
    /// `alarm` is raised when nobody will ring any more.
    ///
    /// # Errors
    /// [`RegisterError`].
    ///
    /// # Safety
    /// Until the result is dropped or [`Registration::detach`] returns, the doorbell, and under
    /// [`DoorbellMode::Staged`] the ring, stay mapped and writable, and nobody else stores to them. A device
    /// that was given [`Registration::record`] and [`Registration::buffer`] stores to them no longer than the
    /// result lives.
    pub unsafe fn serve(
        &self,
        rung: DoorbellMode,
        queue: SendQueue,
        counter: u32,
        alarm: Arc<dyn Alarm>,
    ) -> Result<Registration, RegisterError> {
        check(rung, &queue)?;
        let bytes = queue.num_entries as usize * queue.entry_size as usize;
        let record = self.0.core.records.take(counter).ok_or(RegisterError::NoMemory { bytes: 1 })?;
        let staging = match rung {
            DoorbellMode::Staged => Some(Pages::zeroed(bytes).ok_or(RegisterError::NoMemory { bytes })?),
            _ => None,
        };
        let words = Words { record: record.as_ptr(), doorbell: queue.doorbell.cast() };
        let staged = staging.as_ref().map(|pages| {
            let (num_entries, entry_size) = (queue.num_entries, queue.entry_size as usize);
            let (from, copy) = (pages.start(), BlockCopy::widest());
            let staging = Staging { words, from, to: queue.buffer, num_entries, entry_size, copy };
            staging.prepare(counter);
            staging
        });
        let shared = Arc::new(Shared::new(record, staging, alarm));
        let mut lanes = self.0.core.lock();
        if lanes.stopped() {
            return Err(RegisterError::Stopped);
        }
        match staged {
            None => {
                let most = queue.num_entries.min(queue.max_batch);
                lanes.record.add(Handoff::new(words, counter, most, most), shared.clone());
            }
            Some(staging) => {
                let batch = queue.max_batch.min(COPIED_AT_ONCE);
                lanes.staged.add(Handoff::new(staging, counter, queue.num_entries, batch), shared.clone());
            }
        }
        drop(lanes);
        self.0.wake();
        Ok(Registration::new(shared, self.clone(), rung, queue))
    }

    /// Lets go of a queue; one that ended already is let go already.
    pub(super) fn release(&self, shared: &Arc<Shared>) {
        self.0.core.lock().release(shared);
    }

    /// Stops now: serves each queue a last time, lets go of all, raises their alarms, and waits for
    /// the thread. Queues that come later are refused.
    ///
    /// # Errors
    /// [`StopError`] where the thread does not end within the bound.
    pub fn stop(&self) -> Result<(), StopError> {
        self.0.stop()
    }
}

impl Owner {
    fn wake(&self) {
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            thread.thread().unpark();
        }
    }

    fn stop(&self) -> Result<(), StopError> {
        self.core.stop();
        self.wake();
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        let ended = self.core.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.core.end.wait_timeout_while(ended, self.stop_bound, |ended| !*ended);
        if !*waited.unwrap_or_else(PoisonError::into_inner).0 {
            return Err(StopError(self.stop_bound));
        }
        if thread.join().is_err() {
            tracing::error!("the proxy's thread panicked; its queues were told");
        }
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "a thread is left behind");
        }
    }
}

fn check(rung: DoorbellMode, queue: &SendQueue) -> Result<(), RegisterError> {
    let SendQueue { buffer, doorbell, entry_size, num_entries, max_batch } = *queue;
    let shape = num_entries.is_power_of_two()
        && num_entries <= efa_gda_wire::DEEPEST_WORK_QUEUE
        && matches!(entry_size, 64 | 128)
        && max_batch > 0
        && buffer.as_ptr().addr().is_multiple_of(64)
        && doorbell.is_aligned();
    match rung {
        _ if !shape => Err(RegisterError::Geometry { num_entries, entry_size, max_batch }),
        DoorbellMode::Direct => Err(RegisterError::Direct),
        DoorbellMode::Record | DoorbellMode::Staged => Ok(()),
    }
}

fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: an all-zero set is an empty one, and `cpu` is one that it has room for.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    // SAFETY: the set lives until the call returns; 0 is this thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    struct NoAlarm;

    impl Alarm for NoAlarm {
        fn raise(&self, _: u32) {}
    }

    /// A queue of an adapter's that is pages of memory: ring and doorbell.
    fn serve(proxy: &DoorbellProxy, ring: &Pages, doorbell: &Pages) -> Registration {
        let queue = SendQueue {
            buffer: ring.start(),
            doorbell: NonNull::new(doorbell.start().as_ptr().cast()).unwrap(),
            entry_size: 64,
            num_entries: 64,
            max_batch: 64,
        };
        // SAFETY: callers drop the pages after what is served, and nobody else stores there.
        unsafe { proxy.serve(DoorbellMode::Record, queue, 0, Arc::new(NoAlarm)) }.unwrap()
    }

    #[test]
    fn a_look_that_rang_is_busy_though_its_last_round_found_nothing() {
        let (ring, doorbell) = (Pages::zeroed(4096).unwrap(), Pages::zeroed(4).unwrap());
        let proxy = DoorbellProxy::without_thread();
        let served = serve(&proxy, &ring, &doorbell);
        served.record().store(1, Ordering::Release);
        assert_eq!((proxy.0.core.rounds(), proxy.0.core.rounds()), (true, false));
    }

    #[test]
    fn the_thread_ends_with_the_last_queue_after_ringing_for_it() {
        let (ring, doorbell) = (Pages::zeroed(4096).unwrap(), Pages::zeroed(4).unwrap());
        // It sleeps through the post.
        let proxy = DoorbellProxy::start(&ProxyOptions::new().period(Duration::from_secs(3600))).unwrap();
        let served = serve(&proxy, &ring, &doorbell);
        let core = Arc::downgrade(&proxy.0.core);
        drop(proxy);
        served.record().store(7, Ordering::Release);
        drop(served);
        // SAFETY: the page lives; the doorbell is a word at its start.
        let rung = unsafe { doorbell.start().cast::<u32>().read_volatile() };
        assert_eq!((rung, core.strong_count()), (7, 0), "the thread holds it while it runs");
    }
}
