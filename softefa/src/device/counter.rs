//! Completion counters: two words, of successes and of errors, that the adapter adds to as requests
//! of a queue pair complete. They say how many, not which, and count whether or not anybody reads the
//! completion queue.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda_wire::{CompletionStatus, OperationCode};

/// What a counter counts of a queue pair (`enum ibv_qp_attach_comp_cntr_op`, what this side starts and
/// what it receives).
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
    /// Everything that this side starts.
    pub const TRANSMIT: Self = Self(1 | 4 | 8);

    /// Whether everything in `wanted` is counted.
    pub const fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
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

/// A counter, in memory of its own or of the client's. The adapter adds; anybody may read or store.
pub struct CompletionCounter {
    success: NonNull<AtomicU64>,
    error: NonNull<AtomicU64>,
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the words are atomics that live as long as `_memory`.
unsafe impl Send for CompletionCounter {}
// SAFETY: as above.
unsafe impl Sync for CompletionCounter {}

impl Default for CompletionCounter {
    fn default() -> Self {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (success, error) = (NonNull::from(&words[0]), NonNull::from(&words[1]));
        Self { success, error, _memory: words }
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
        Self { success: success.cast(), error: error.cast(), _memory: memory }
    }

    /// The word of successes, for clients that poll it.
    pub fn success(&self) -> &AtomicU64 {
        // SAFETY: alive with `_memory`, aligned, and reached atomically: by construction in `new`, by
        // the caller's promise in `given`.
        unsafe { self.success.as_ref() }
    }

    /// The word of errors.
    pub fn error(&self) -> &AtomicU64 {
        // SAFETY: as in `success`.
        unsafe { self.error.as_ref() }
    }

    /// Counts a completion. Release: who reads the count sees what the request moved.
    pub(crate) fn count(&self, status: CompletionStatus) {
        let word = if status == CompletionStatus::Ok { self.success() } else { self.error() };
        word.fetch_add(1, Ordering::Release);
    }
}

impl std::fmt::Debug for CompletionCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values = (self.success().load(Ordering::Relaxed), self.error().load(Ordering::Relaxed));
        f.debug_tuple("CompletionCounter").field(&values.0).field(&values.1).finish()
    }
}
