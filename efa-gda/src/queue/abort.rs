//! The word that ends the waits on a queue.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::doorbell::End;
#[cfg(doc)]
use crate::status::DeviceError;

/// Ends every wait on a queue, from any thread: a word that kernels read, of the host or, for a queue in a GPU, shared
/// with it.
#[derive(Clone)]
pub struct AbortFlag(Arc<dyn Deref<Target = AtomicU32> + Send + Sync>);

impl fmt::Debug for AbortFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AbortFlag").field(self.word()).finish()
    }
}

impl AbortFlag {
    /// Ends waits with [`DeviceError::Aborted`], now and until [`Self::lower`]. An aborted wait of the send side (to
    /// post, or for requests) poisons the queue, because requests may still complete.
    pub fn raise(&self) {
        self.swap(0, 1);
    }

    /// Allows waits again. A queue whose doorbell proxy has stopped stays aborted.
    pub fn lower(&self) {
        self.swap(1, 0);
    }

    pub(crate) fn new(word: impl Deref<Target = AtomicU32> + Send + Sync + 'static) -> Self {
        Self(Arc::new(word))
    }

    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Replaces `from` by `to`. Any other value, such as a proxy's alarm, stays.
    fn swap(&self, from: u32, to: u32) {
        // A failure means that the word holds another value, which stays.
        let _ = self.word().compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Stores a proxy's status, over 0 or 1. Several registrations can raise one flag; the first status stays, because
    /// it states the cause.
    pub(crate) fn end_waits(&self, end: End) {
        let over = |value| (value <= 1).then_some(end.status());
        // A failure means that the word holds a status, which stays.
        let _ = self.word().fetch_update(Ordering::Release, Ordering::Relaxed, over);
    }
}
