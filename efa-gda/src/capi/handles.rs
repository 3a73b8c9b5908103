//! Handles: numbers that C holds, and what they stand for. Numbers are never used twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Handle;
use super::error::Fault;

/// What handles of one kind stand for.
pub(super) struct Table<T> {
    what: &'static str,
    live: Mutex<(usize, BTreeMap<usize, Arc<T>>)>,
}

/// From one number to the next: what pointers to aligned objects look like.
const STEP: usize = 64;

impl<T> Table<T> {
    /// A table whose numbers begin above `first`, apart from other tables'.
    pub(super) const fn new(what: &'static str, first: usize) -> Self {
        Self { what, live: Mutex::new((first, BTreeMap::new())) }
    }

    pub(super) fn insert(&self, value: T) -> Handle {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.0 += STEP;
        let number = live.0;
        live.1.insert(number, Arc::new(value));
        std::ptr::without_provenance_mut(number)
    }

    pub(super) fn get(&self, handle: Handle) -> Result<Arc<T>, Fault> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.1.get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    pub(super) fn remove(&self, handle: Handle) -> Result<Arc<T>, Fault> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.1.remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    fn unknown(&self, handle: Handle) -> Fault {
        match handle.is_null() {
            true => Fault::null(self.what),
            false => Fault::argument(format_args!("{handle:p} is no open {}", self.what)),
        }
    }
}
