//! Completion counters: two words, of successes and of errors, that the adapter adds to as requests
//! of a queue pair complete. They say how many, not which, and count whether or not anybody reads the
//! completion queue.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use efa_gda_wire::{CompletionStatus, OperationCode};

use super::memory::Memory;

/// What a counter counts of a queue pair (`enum ibv_qp_attach_comp_cntr_op`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counted(u8);

impl Counted {
    /// Sends.
    pub const SEND: Self = Self(1);
    /// Receives that complete.
    pub const RECEIVE: Self = Self(2);
    /// RDMA reads that this side started.
    pub const READ: Self = Self(4);
    /// RDMA writes that this side started.
    pub const WRITE: Self = Self(8);
    /// RDMA reads by peers.
    pub const REMOTE_READ: Self = Self(16);
    /// RDMA writes by peers.
    pub const REMOTE_WRITE: Self = Self(32);
    /// Everything that this side starts.
    pub const TRANSMIT: Self = Self(1 | 4 | 8);

    /// Whether everything in `wanted` is counted.
    pub const fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Whether anything in `other` is counted.
    pub const fn meets(self, other: Self) -> bool {
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

/// A counter, in memory of its own or of the client's. The adapter adds; anybody may read.
pub struct CompletionCounter {
    success: Word,
    error: Word,
}

/// One of a counter's words.
struct Word {
    value: NonNull<AtomicU64>,
    /// What holds `value`.
    _memory: Arc<dyn Any + Send + Sync>,
    /// Where each new value is written as well, in turn.
    through: Option<Through>,
}

struct Through {
    memory: Arc<dyn Memory>,
    address: u64,
    writing: Mutex<()>,
}

// SAFETY: the value is an atomic that lives as long as `_memory`.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// A zero of the adapter's own.
    fn own(through: Option<Through>) -> Self {
        let value = Arc::new(AtomicU64::new(0));
        Self { value: NonNull::from(&*value), _memory: value, through }
    }

    fn value(&self) -> &AtomicU64 {
        // SAFETY: alive with `_memory`, aligned, and reached atomically: by construction in `own`, by
        // the caller's promise in `CompletionCounter::given`.
        unsafe { self.value.as_ref() }
    }

    fn change(&self, change: impl FnOnce(&AtomicU64)) {
        let Some(through) = &self.through else { return change(self.value()) };
        // Values arrive in the order in which they were reached.
        let _turn = through.writing.lock().unwrap_or_else(PoisonError::into_inner);
        change(self.value());
        let bytes = self.value().load(Ordering::Relaxed).to_le_bytes();
        // Nobody can be told that the place for telling is gone.
        let _ = through.memory.write(through.address, &bytes);
    }
}

impl Default for CompletionCounter {
    fn default() -> Self {
        Self { success: Word::own(None), error: Word::own(None) }
    }
}

impl CompletionCounter {
    /// A counter of zeroes in memory of the adapter's.
    pub fn new() -> Self {
        Self::default()
    }

    /// A counter in memory that the client gives, with the values that stand there. `memory` is kept
    /// as long as the counter.
    ///
    /// # Safety
    /// Both words are aligned, mapped as long as `memory` lives, and reached only by atomic accesses
    /// of 64 bits.
    pub unsafe fn given(
        success: NonNull<u64>,
        error: NonNull<u64>,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let word = |value: NonNull<u64>| Word { value: value.cast(), _memory: memory.clone(), through: None };
        Self { success: word(success), error: word(error) }
    }

    /// A counter of zeroes, each of whose values is written to the client's memory when it is
    /// reached, and not before: 8 bytes at each address.
    pub fn through(success: (Arc<dyn Memory>, u64), error: (Arc<dyn Memory>, u64)) -> Self {
        let word = |(memory, address): (Arc<dyn Memory>, u64)| {
            Word::own(Some(Through { memory, address, writing: Mutex::new(()) }))
        };
        Self { success: word(success), error: word(error) }
    }

    /// The word of successes, for clients that poll it. Stores to it are for counters that are not
    /// written [`Self::through`].
    pub fn success(&self) -> &AtomicU64 {
        self.success.value()
    }

    /// The word of errors; likewise.
    pub fn error(&self) -> &AtomicU64 {
        self.error.value()
    }

    /// Sets a word.
    pub fn set(&self, errors: bool, value: u64) {
        self.word(errors).change(|word| word.store(value, Ordering::Release));
    }

    /// Adds to a word, modulo 2^64.
    pub fn add(&self, errors: bool, value: u64) {
        self.word(errors).change(|word| {
            word.fetch_add(value, Ordering::Release);
        });
    }

    fn word(&self, errors: bool) -> &Word {
        if errors { &self.error } else { &self.success }
    }

    /// Counts a completion. Release: who reads the count sees what the request moved.
    pub(crate) fn count(&self, status: CompletionStatus) {
        self.add(status != CompletionStatus::Ok, 1);
    }
}

/// The counters of one queue pair. One may be attached later, which costs a queue pair without any
/// one load.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    any: AtomicBool,
    counters: RwLock<Vec<(Counted, Arc<CompletionCounter>)>>,
}

impl Attached {
    pub(crate) fn new(counters: Vec<(Counted, Arc<CompletionCounter>)>) -> Self {
        Self { any: AtomicBool::new(!counters.is_empty()), counters: RwLock::new(counters) }
    }

    /// Attaches one more; false where something of `counted` is counted already.
    pub(crate) fn attach(&self, counted: Counted, counter: Arc<CompletionCounter>) -> bool {
        let mut counters = self.counters.write().unwrap_or_else(PoisonError::into_inner);
        if counters.iter().any(|(other, _)| other.meets(counted)) {
            return false;
        }
        counters.push((counted, counter));
        self.any.store(true, Ordering::Release);
        true
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Counts a completion where something counts its kind.
    pub(crate) fn count(&self, what: Counted, status: CompletionStatus) {
        if !self.any() {
            return;
        }
        let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        for (_, counter) in counters.iter().filter(|(counted, _)| counted.contains(what)) {
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
