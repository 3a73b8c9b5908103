//! Completion counters: two words, one of successes and one of errors, that the adapter adds to when requests
//! of a queue pair complete. They report how many completed, not which, and count even if no client reads the
//! completion queue.
//!
//! # Protocol
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | a counter's word | engines: add; control threads: add or set; release | the client: acquire | a client that loads a count sees the data that the counted requests moved |
//! | its mirror in client memory | a thread that holds `Mirror::write_order` | the client | values are written in the order in which the word reached them |
//! | `AttachedCounters::any` | a control thread, under the network's write lock: release | engines: acquire | the network's lock; it saves the lock of the list |
//! | `AttachedCounters::counters` | a control thread, under the network's write lock | engines | its lock |
//!
//! The adapter adds to a counter before it makes the counted completion visible. Remote writes and reads
//! have no completion at the target: their counter is added to after the target's receive completion, if
//! there is one, and before the sender's completion becomes visible.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use efa_gda_wire::{CompletionStatus, OperationCode};

use super::memory::Memory;

/// The kinds of completion of a queue pair that a counter counts (`enum ibv_qp_attach_comp_cntr_op`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counted(u8);

impl Counted {
    /// Sends.
    pub const SEND: Self = Self(1);
    /// Receives that complete.
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
}

/// One of a counter's words.
struct Word {
    value: NonNull<AtomicU64>,
    /// Keeps the memory of `value` alive.
    _memory: Arc<dyn Any + Send + Sync>,
    /// Client memory to which each new value is also written.
    mirror: Option<Mirror>,
}

struct Mirror {
    memory: Arc<dyn Memory>,
    address: u64,
    write_order: Mutex<()>,
}

// SAFETY: `value` points to an atomic, which `_memory` keeps alive.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// A word of the adapter's memory, initially 0.
    fn new(mirror: Option<Mirror>) -> Self {
        let value = Arc::new(AtomicU64::new(0));
        Self { value: NonNull::from(&*value), _memory: value, mirror }
    }

    fn value(&self) -> &AtomicU64 {
        // SAFETY: `_memory` keeps the word alive. It is aligned and only accessed atomically: by construction
        // in `new`, and as the caller of `CompletionCounter::from_raw` guarantees.
        unsafe { self.value.as_ref() }
    }

    fn change(&self, change: impl FnOnce(&AtomicU64)) {
        let Some(mirror) = &self.mirror else { return change(self.value()) };
        let _order = mirror.write_order.lock().unwrap_or_else(PoisonError::into_inner);
        change(self.value());
        let bytes = self.value().load(Ordering::Relaxed).to_le_bytes();
        // An error is ignored: the memory that would report it is the memory that is unreachable.
        let _ = mirror.memory.write(mirror.address, &bytes);
    }
}

impl Default for CompletionCounter {
    fn default() -> Self {
        Self { success: Word::new(None), error: Word::new(None) }
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
        let word = |value: NonNull<u64>| Word { value: value.cast(), _memory: memory.clone(), mirror: None };
        Self { success: word(success), error: word(error) }
    }

    /// A counter in memory of the adapter that is copied to client memory. Both words are 0. Each new value
    /// is written as 8 bytes (little-endian) to the word's address when the word reaches it; the initial 0
    /// is not written.
    pub fn mirrored(success: (Arc<dyn Memory>, u64), error: (Arc<dyn Memory>, u64)) -> Self {
        let word = |(memory, address): (Arc<dyn Memory>, u64)| {
            Word::new(Some(Mirror { memory, address, write_order: Mutex::new(()) }))
        };
        Self { success: word(success), error: word(error) }
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

    /// Sets the word of errors or of successes.
    pub fn set(&self, errors: bool, value: u64) {
        self.word(errors).change(|word| word.store(value, Ordering::Release));
    }

    /// Adds to the word of errors or of successes, modulo 2^64.
    pub fn add(&self, errors: bool, value: u64) {
        self.word(errors).change(|word| {
            word.fetch_add(value, Ordering::Release);
        });
    }

    fn word(&self, errors: bool) -> &Word {
        if errors { &self.error } else { &self.success }
    }

    /// Counts a completion. The release add pairs with the acquire load of a client that reads the count.
    pub(crate) fn count(&self, status: CompletionStatus) {
        self.add(status != CompletionStatus::Ok, 1);
    }
}

/// The counters of one queue pair. Counters can be attached at any time; a queue pair without counters pays
/// one load for each completion.
#[derive(Debug, Default)]
pub(crate) struct AttachedCounters {
    any: AtomicBool,
    counters: RwLock<Vec<(Counted, Arc<CompletionCounter>)>>,
}

impl AttachedCounters {
    pub(crate) fn new(counters: Vec<(Counted, Arc<CompletionCounter>)>) -> Self {
        Self { any: AtomicBool::new(!counters.is_empty()), counters: RwLock::new(counters) }
    }

    /// Attaches a counter. Returns false if one of the kinds in `counted` has a counter already.
    pub(crate) fn attach(&self, counted: Counted, counter: Arc<CompletionCounter>) -> bool {
        let mut counters = self.counters.write().unwrap_or_else(PoisonError::into_inner);
        if counters.iter().any(|(other, _)| other.overlaps(counted)) {
            return false;
        }
        counters.push((counted, counter));
        self.any.store(true, Ordering::Release);
        true
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Adds a completion to the counters that are attached for its kind.
    pub(crate) fn count(&self, kind: Counted, status: CompletionStatus) {
        if !self.any() {
            return;
        }
        let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        for (_, counter) in counters.iter().filter(|(counted, _)| counted.contains(kind)) {
            counter.count(status);
        }
    }
}

impl std::fmt::Debug for CompletionCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values = (self.success().load(Ordering::Relaxed), self.error().load(Ordering::Relaxed));
        f.debug_tuple("CompletionCounter").field(&values.0).field(&values.1).finish()
    }
}
