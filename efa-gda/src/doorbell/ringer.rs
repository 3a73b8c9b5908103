//! The ringer: one thread, many queues, and when it rests. What a visit to a queue does is
//! `handoff`'s.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::handoff::Handoff;
use super::memory::{Pages, Record, Records};
use super::port::{HostPort, Staging};
use super::rung::Rung;
use super::served::{Alarm, End, SendQueue, ServeError, Served, Shared};
use super::store::BlockCopy;

/// Entries that one visit copies at most, so that a busy queue does not keep the others waiting.
const COPIED_AT_ONCE: u32 = 256;
/// Rounds under one lock, while there is work.
const ROUNDS_PER_LOCK: u32 = 16;
/// Empty rounds between two looks at the clock.
const ROUNDS_PER_LOOK: u32 = 64;
/// How often the thread makes way for those who wait for the lock.
const YIELDS: u32 = 1000;

/// How a ringer works.
#[derive(Clone, Debug)]
#[must_use = "does nothing before Ringer::start"]
pub struct RingerOptions {
    period: Duration,
    spin: Duration,
    cpu: Option<usize>,
    stop_bound: Duration,
}

impl Default for RingerOptions {
    fn default() -> Self {
        Self {
            period: Duration::from_millis(1),
            spin: Duration::from_micros(100),
            cpu: None,
            stop_bound: Duration::from_secs(10),
        }
    }
}

impl RingerOptions {
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

/// Why there is no ringer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingerError {
    /// The system gave no thread.
    #[error("the ringer's thread cannot be started: {0}; raise the limit of threads")]
    Thread(#[source] io::Error),
    /// The thread may not run there.
    #[error(
        "the ringer cannot be pinned to CPU {cpu}: {source}; name one of this process's CPUs (taskset -p)"
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
#[error("the ringer's thread did not end within {0:?}; its queues are let go all the same")]
pub struct StopError(pub Duration);

/// What a ringer did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Rounds over all queues.
    pub rounds: u64,
    /// Doorbells stored.
    pub doorbells: u64,
    /// Entries that they covered.
    pub entries: u64,
}

/// Rings for queues whose devices leave records. Clones are handles to the same one; it stops when
/// the last handle and the last [`Served`] are gone.
#[derive(Clone, Debug)]
pub struct Ringer(Arc<Owner>);

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
    lanes: Mutex<Lanes>,
    /// Who waits for `lanes` beside the thread.
    waiting: AtomicUsize,
    stop: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
    records: Records,
    /// Queues, for debug output.
    queues: AtomicU32,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("stop", &self.stop).field("queues", &self.queues).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Lanes {
    all: Vec<Lane>,
    stopped: bool,
    counts: Counts,
}

/// One queue. Dropped before it ended, it ends as stopped.
struct Lane {
    handoff: Handoff<HostPort>,
    shared: Arc<Shared>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.end(End::Stopped, self.handoff.rung());
    }
}

impl Lane {
    /// Serves the queue a last time, and lets go of it.
    fn finish(mut self, end: End) {
        let end = match self.handoff.last_visit() {
            Ok(()) => end,
            Err(fault) => End::Fault(fault),
        };
        self.shared.end(end, self.handoff.rung());
    }
}

impl Lanes {
    /// Visits every queue once. Returns how many doorbells that took.
    #[inline]
    fn round(&mut self) -> u64 {
        let (mut doorbells, mut entries, mut faulty) = (0, 0, None);
        for (index, lane) in self.all.iter_mut().enumerate() {
            match lane.handoff.visit() {
                Ok(0) => {}
                Ok(count) => {
                    doorbells += 1;
                    entries += u64::from(count);
                }
                Err(fault) => faulty = Some((index, fault)),
            }
        }
        // One a round; another is found in the next.
        if let Some((index, fault)) = faulty {
            let lane = self.all.swap_remove(index);
            tracing::error!(%fault, "a queue is not rung any more");
            lane.shared.end(End::Fault(fault), lane.handoff.rung());
        }
        self.counts.rounds += 1;
        self.counts.doorbells += doorbells;
        self.counts.entries += entries;
        doorbells
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        lanes
    }

    /// A few rounds; whether the last one rang.
    fn rounds(&self) -> bool {
        // Locks are not fair, and this thread takes this one again and again.
        let mut yields = 0;
        while self.waiting.load(Ordering::Relaxed) > 0 && yields < YIELDS {
            thread::yield_now();
            yields += 1;
        }
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ROUNDS_PER_LOCK {
            if lanes.round() == 0 {
                return false;
            }
            if self.waiting.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
        true
    }

    fn stop(&self) {
        let mut lanes = self.lock();
        lanes.stopped = true;
        std::mem::take(&mut lanes.all).into_iter().for_each(|lane| lane.finish(End::Stopped));
        drop(lanes);
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
        let mut lanes = self.0.lock();
        lanes.stopped = true;
        lanes.all.clear();
        drop(lanes);
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

impl Ringer {
    /// Starts a ringer's thread.
    ///
    /// # Errors
    /// [`RingerError`].
    pub fn start(options: &RingerOptions) -> Result<Self, RingerError> {
        let shared = Arc::new(Core::default());
        let core = shared.clone();
        let rest =
            Rest { spin: options.spin, period: options.period, empty: 0, since: None, spinning: false };
        let cpu = options.cpu;
        let (say, said) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let ending = Ending(core);
            let pinned =
                cpu.map_or(Ok(()), |cpu| pin(cpu).map_err(|source| RingerError::Pin { cpu, source }));
            let go = pinned.is_ok();
            // The starter waits for this word.
            let _ = say.send(pinned);
            if go {
                ending.0.run(rest);
            }
        };
        let thread = thread::Builder::new().name("efa-gda-ringer".into()).spawn(body);
        let thread = thread.map_err(RingerError::Thread)?;
        let lost = |_| Err(RingerError::Thread(io::Error::other("it ended at once")));
        said.recv().unwrap_or_else(lost)?;
        Ok(Self(Arc::new(Owner {
            core: shared,
            thread: Mutex::new(Some(thread)),
            stop_bound: options.stop_bound,
        })))
    }

    /// A ringer that rings when its caller calls [`Ringer::round`], for programs with a progress
    /// thread of their own.
    pub fn without_thread() -> Self {
        let stop_bound = RingerOptions::default().stop_bound;
        Self(Arc::new(Owner { core: Arc::default(), thread: Mutex::new(None), stop_bound }))
    }

    /// Visits every queue once, on this thread. Returns how many doorbells that took.
    pub fn round(&self) -> u64 {
        self.0.core.lock().round()
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        self.0.core.lock().counts
    }

    /// Takes a queue into care. Nothing may be in flight on it; `counter` is its producer counter.
    /// `alarm` is raised when nobody will ring any more.
    ///
    /// # Errors
    /// [`ServeError`].
    ///
    /// # Safety
    /// Until the result is dropped or [`Served::detach`] returns, the doorbell, and under
    /// [`Rung::Staged`] the ring, stay mapped and writable, and nobody else stores to them. A device
    /// that was given [`Served::record`] and [`Served::buffer`] stores to them no longer than the
    /// result lives.
    pub unsafe fn serve(
        &self,
        rung: Rung,
        queue: SendQueue,
        counter: u32,
        alarm: Arc<dyn Alarm>,
    ) -> Result<Served, ServeError> {
        check(rung, &queue)?;
        let bytes = queue.num_entries as usize * queue.entry_size as usize;
        let record = self.0.core.records.take(counter).ok_or(ServeError::NoMemory { bytes: 1 })?;
        let staging = match rung {
            Rung::Staged => Some(Pages::zeroed(bytes).ok_or(ServeError::NoMemory { bytes })?),
            _ => None,
        };
        let handoff = handoff(&queue, &record, staging.as_ref(), counter);
        let shared = Arc::new(Shared::new(record, staging, alarm));
        let lane = Lane { handoff, shared: shared.clone() };
        let mut lanes = self.0.core.lock();
        if lanes.stopped {
            return Err(ServeError::Stopped);
        }
        lanes.all.push(lane);
        self.0.core.queues.store(lanes.all.len() as u32, Ordering::Relaxed);
        drop(lanes);
        self.0.wake();
        Ok(Served::new(shared, self.clone(), rung, queue))
    }

    /// Lets go of a queue; one that ended already is let go already.
    pub(super) fn release(&self, shared: &Arc<Shared>) {
        let mut lanes = self.0.core.lock();
        if let Some(index) = lanes.all.iter().position(|lane| Arc::ptr_eq(&lane.shared, shared)) {
            let lane = lanes.all.swap_remove(index);
            self.0.core.queues.store(lanes.all.len() as u32, Ordering::Relaxed);
            // Under the lock, so that a caller who sees the queue gone sees it served.
            lane.finish(End::Detached);
        }
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
            tracing::error!("the ringer's thread panicked; its queues were told");
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

fn check(rung: Rung, queue: &SendQueue) -> Result<(), ServeError> {
    let SendQueue { buffer, doorbell, entry_size, num_entries, max_batch } = *queue;
    let shape = num_entries.is_power_of_two()
        && num_entries <= efa_gda_wire::DEEPEST_WORK_QUEUE
        && matches!(entry_size, 64 | 128)
        && buffer.as_ptr().addr().is_multiple_of(64)
        && doorbell.is_aligned();
    match rung {
        _ if !shape => Err(ServeError::Geometry { num_entries, entry_size }),
        Rung::Direct => Err(ServeError::Direct),
        Rung::Record if max_batch < num_entries => Err(ServeError::Batch { max_batch, num_entries }),
        Rung::Record | Rung::Staged => Ok(()),
    }
}

fn handoff(queue: &SendQueue, record: &Record, pages: Option<&Pages>, counter: u32) -> Handoff<HostPort> {
    let staging = pages.map(|pages| {
        let staging = Staging {
            from: pages.start(),
            to: queue.buffer,
            num_entries: queue.num_entries,
            entry_size: queue.entry_size as usize,
            copy: BlockCopy::widest(),
        };
        staging.prepare(counter);
        Box::new(staging)
    });
    let batch = match staging {
        Some(_) => queue.max_batch.min(COPIED_AT_ONCE),
        None => queue.num_entries,
    };
    let port = HostPort { record: record.as_ptr(), doorbell: queue.doorbell.cast(), staging };
    Handoff::new(port, counter, queue.num_entries, batch)
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
