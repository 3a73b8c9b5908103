//! Completion counters: two words, one of successes and one of errors, that the adapter adds to when requests or
//! receives of a queue pair complete, or peers write or read there ([`Counted`]). They report how many completed, not
//! which, and count even if no client reads the completion queue.
//!
//! # Protocol
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | a counter's word | the engine, and control threads that flush: add; callers of [`CompletionCounter::add`] and [`CompletionCounter::set`]: add, store; all release | the client, and a thread that writes the mirror: acquire | a client that loads a count sees the data that the counted requests moved, except late writes (`relaxed.rs`) |
//! | its mirror in client memory | a thread that holds `Mirror::written` | the client | the thread loads the words under that lock, so no older value overwrites a newer one, and no value is in it before the data that it counts: "Mirrors" below |
//! | `CompletionCounter::users` | control threads: acquire and release | control threads: acquire | a thread that finds the counter not attached finds the mirror writes of `detach` done |
//! | `AttachedCounters::any` | a control thread, under the network's write lock: release | the engine, control threads: acquire | the lock of the list orders the counters; it is never cleared |
//! | `AttachedCounters::counters` | a control thread | the engine, control threads | its lock |
//!
//! The adapter adds to a counter before it makes the counted completion visible. It counts a remote write or read after
//! the target's receive completion, if there is one, and before the sender's completion is visible.
//!
//! # Mirrors
//! A write to a mirror may be a copy to a GPU, which takes as long as a hundred requests. Therefore the engine
//! only notes a mirrored counter that it added to ([`UnwrittenCounters`]), and writes the newest value before it
//! makes the next completions of the sender visible: one write for all requests in between. Values between two writes
//! do not appear in the mirror. The counter of receives is the exception: its mirror is written before the receive
//! completions that it counts.
//!
//! A write is never early, but may precede late writes. The engine moves a request's data before it counts the request,
//! and the release add and the acquire load of the word order that data before the write of the mirror. The word of
//! errors is loaded after the word of successes and written before it, so a client that loads the success mirror first
//! finds every error that was counted before those successes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use efa_gda_wire::{CompletionStatus, OperationCode};

use super::memory::Memory;
use super::shared::lock;

/// The kinds of completion of a queue pair that a counter counts (`enum ibv_qp_attach_comp_cntr_op`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counted(u8);

impl Counted {
    /// Sends.
    pub const SEND: Self = Self(1);
    /// Receives that a message consumes, or that are flushed; none that an RDMA write with immediate consumes.
    pub const RECEIVE: Self = Self(2);
    /// RDMA reads that this queue pair started.
    pub const READ: Self = Self(4);
    /// RDMA writes that this queue pair started.
    pub const WRITE: Self = Self(8);
    /// RDMA reads by peers. Only successes are counted.
    pub const REMOTE_READ: Self = Self(16);
    /// RDMA writes by peers. Only successes are counted.
    pub const REMOTE_WRITE: Self = Self(32);
    /// Everything that this queue pair starts.
    pub const TRANSMIT: Self = Self(1 | 4 | 8);

    /// Whether it has every kind in `wanted`.
    pub const fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Whether it has a kind in common with `other`.
    pub const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Some(match OperationCode::from_number(code.into())? {
            OperationCode::Send => Self::SEND,
            OperationCode::Read => Self::READ,
            OperationCode::Write => Self::WRITE,
        })
    }
}

impl std::ops::BitOr for Counted {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A counter, in memory of the adapter or of the client. The adapter adds to it; any thread may read it.
pub struct CompletionCounter {
    success: Word,
    error: Word,
    mirror: Option<Mirror>,
    /// The largest value that [`Self::value`] and the mirror show, one less than a power of two. The words themselves
    /// count modulo 2^64.
    most: u64,
    /// Attachments: pairs of a queue pair and a set of kinds.
    users: AtomicUsize,
}

/// One of a counter's words.
struct Word {
    value: NonNull<AtomicU64>,
    /// Keeps the memory of `value` alive.
    _memory: Arc<dyn Any + Send + Sync>,
}

/// Client memory to which the words' values are also written: successes and errors.
struct Mirror {
    words: [(Arc<dyn Memory>, u64); 2],
    /// The values that were written last, of successes and of errors. A word's `None` means that its next value is
    /// written even if it is the same. If the whole is `None`, the memory panicked, and nothing is written any more.
    written: Mutex<Option<[Option<u64>; 2]>>,
}

// SAFETY: `value` points to an atomic, which `_memory` keeps alive.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// A word of the adapter's memory, initially 0.
    fn new() -> Self {
        let value = Arc::new(AtomicU64::new(0));
        Self { value: NonNull::from(&*value), _memory: value }
    }

    fn value(&self) -> &AtomicU64 {
        // SAFETY: `_memory` keeps the word alive. It is aligned and only accessed atomically: by construction
        // in `new`, and as the caller of `CompletionCounter::from_raw` guarantees.
        unsafe { self.value.as_ref() }
    }
}

impl Default for CompletionCounter {
    fn default() -> Self {
        Self {
            success: Word::new(),
            error: Word::new(),
            mirror: None,
            most: u64::MAX,
            users: AtomicUsize::new(0),
        }
    }
}

impl CompletionCounter {
    /// A counter in memory of the adapter. Both words are 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// A counter in memory of the client. It continues from the values that are there. It holds `memory`,
    /// which must keep both words alive.
    ///
    /// # Safety
    /// Both words must be aligned and mapped as long as `memory` lives, and must be accessed only by atomic
    /// accesses of 64 bits.
    pub unsafe fn from_raw(
        success: NonNull<u64>,
        error: NonNull<u64>,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let word = |value: NonNull<u64>| Word { value: value.cast(), _memory: memory.clone() };
        Self {
            success: word(success),
            error: word(error),
            mirror: None,
            most: u64::MAX,
            users: AtomicUsize::new(0),
        }
    }

    /// A counter in memory of the adapter that is copied to client memory. Both words are 0. The newest value
    /// of a word is written as 8 bytes (little-endian) to its address soon after the word changed; values
    /// between two writes are not written, and neither is the initial 0.
    pub fn mirrored(success: (Arc<dyn Memory>, u64), error: (Arc<dyn Memory>, u64)) -> Self {
        let mirror = Mirror { words: [success, error], written: Mutex::new(Some([Some(0); 2])) };
        Self { mirror: Some(mirror), ..Self::default() }
    }

    /// Makes values appear modulo 2^`bits` in the mirror and in [`Self::value`]: the increment after the largest value
    /// wraps to zero. `bits` must be from 1 to 64.
    #[must_use]
    pub fn with_bits(self, bits: u32) -> Self {
        Self { most: u64::MAX >> (64 - bits), ..self }
    }

    /// Whether it is attached to a queue pair. The memory of its mirror must exist as long as it is attached, and
    /// during calls of [`Self::set`] and [`Self::add`].
    pub fn is_attached(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// The number of successes or of errors, as the client sees it.
    pub fn value(&self, errors: bool) -> u64 {
        self.word(errors).load(Ordering::Acquire) & self.most
    }

    /// The word of successes, for clients that poll it. A caller that stores to it bypasses the mirror of a
    /// [`Self::mirrored`] counter.
    pub fn success(&self) -> &AtomicU64 {
        self.success.value()
    }

    /// The word of errors. As [`Self::success`].
    pub fn error(&self) -> &AtomicU64 {
        self.error.value()
    }

    /// Sets the word of errors or of successes, and writes its mirror.
    pub fn set(&self, errors: bool, value: u64) {
        self.word(errors).store(value, Ordering::Release);
        if let Some(mirror) = &self.mirror
            && let Some(written) = lock(&mirror.written).as_mut()
        {
            written[usize::from(errors)] = None;
        }
        self.write_mirror();
    }

    /// Adds to the word of errors or of successes, modulo 2^64, and writes its mirror.
    pub fn add(&self, errors: bool, value: u64) {
        self.word(errors).fetch_add(value, Ordering::Release);
        self.write_mirror();
    }

    fn word(&self, errors: bool) -> &AtomicU64 {
        if errors { self.error() } else { self.success() }
    }

    /// Writes the words that changed since the last call to client memory ("Mirrors" above). Returns whether that
    /// memory panicked. [`Self::set`], [`Self::add`] and [`AttachedCounters::detach`] ignore the result: then only the
    /// panic's message on stderr reports it.
    fn write_mirror(&self) -> bool {
        let Some(mirror) = &self.mirror else { return false };
        let mut written = lock(&mirror.written);
        let Some(last) = written.as_mut() else { return false };
        let success = self.value(false);
        let error = self.value(true);
        for (index, value) in [(1, error), (0, success)] {
            if last[index] != Some(value) {
                last[index] = Some(value);
                let (memory, address) = &mirror.words[index];
                let write = || memory.write(*address, &value.to_le_bytes());
                // An error is ignored: a mirror that cannot be written cannot report it.
                if catch_unwind(AssertUnwindSafe(write)).is_err() {
                    *written = None;
                    return true;
                }
            }
        }
        false
    }
}

/// Mirrored counters to which a thread added, and whose mirrors it has not written yet.
#[derive(Debug, Default)]
pub(crate) struct UnwrittenCounters(Vec<Arc<CompletionCounter>>);

impl UnwrittenCounters {
    /// Counts a completion. The release add pairs with the acquire load of a client that reads the count.
    fn count(&mut self, counter: &Arc<CompletionCounter>, status: CompletionStatus) {
        counter.word(status != CompletionStatus::Ok).fetch_add(1, Ordering::Release);
        if counter.mirror.is_some() && !self.0.iter().any(|noted| Arc::ptr_eq(noted, counter)) {
            self.0.push(counter.clone());
        }
    }

    /// Writes the mirrors. The caller must do this before it makes a counted completion visible. Returns whether the
    /// memory of a mirror panicked.
    pub(crate) fn write(&mut self) -> bool {
        let mut has_panicked = false;
        while let Some(counter) = self.0.pop() {
            has_panicked |= counter.write_mirror();
        }
        has_panicked
    }
}

/// The counters of one queue pair. Counters can be attached at any time; a queue pair without counters pays
/// a few loads of flags for each completion.
#[derive(Debug, Default)]
pub(crate) struct AttachedCounters {
    any: AtomicBool,
    counters: RwLock<Vec<(Counted, Arc<CompletionCounter>)>>,
}

impl AttachedCounters {
    /// Attaches `counters`. No kind may have two of them.
    pub(crate) fn new(counters: Vec<(Counted, Arc<CompletionCounter>)>) -> Self {
        let attached = Self::default();
        {
            let mut list = attached.counters.write().unwrap_or_else(PoisonError::into_inner);
            for (counted, counter) in counters {
                attached.push(&mut list, counted, counter);
            }
        }
        attached
    }

    /// Attaches a counter. Returns false if one of the kinds in `counted` has a counter already.
    pub(crate) fn attach(&self, counted: Counted, counter: Arc<CompletionCounter>) -> bool {
        let mut counters = self.counters.write().unwrap_or_else(PoisonError::into_inner);
        if counters.iter().any(|(other, _)| other.overlaps(counted)) {
            return false;
        }
        self.push(&mut counters, counted, counter);
        true
    }

    fn push(
        &self,
        counters: &mut Vec<(Counted, Arc<CompletionCounter>)>,
        counted: Counted,
        counter: Arc<CompletionCounter>,
    ) {
        counter.users.fetch_add(1, Ordering::AcqRel);
        counters.push((counted, counter));
        self.any.store(true, Ordering::Release);
    }

    /// Detaches all counters of a queue pair that was removed, and writes their mirrors. The counters are dropped with
    /// the queue pair, outside the network's lock.
    pub(crate) fn detach(&self) {
        let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        for (_, counter) in counters.iter() {
            counter.write_mirror();
            counter.users.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Adds a completion to the counters that are attached for its kind, and notes their mirrors in `unwritten`.
    pub(crate) fn count(&self, kind: Counted, status: CompletionStatus, unwritten: &mut UnwrittenCounters) {
        if !self.any() {
            return;
        }
        let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        for (_, counter) in counters.iter().filter(|(counted, _)| counted.contains(kind)) {
            unwritten.count(counter, status);
        }
    }
}

impl std::fmt::Debug for CompletionCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values = (self.success().load(Ordering::Relaxed), self.error().load(Ordering::Relaxed));
        f.debug_tuple("CompletionCounter").field(&values.0).field(&values.1).finish()
    }
}
