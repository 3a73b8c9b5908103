//! Handles: numbers that the caller holds in place of objects. A number is never used twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Handle;
use crate::error::Fault;

/// The objects of one kind, by their handles.
pub(crate) struct Table<T> {
    kind: &'static str,
    live: Mutex<Live<T>>,
}

struct Live<T> {
    /// The handle that was issued last.
    last: usize,
    objects: BTreeMap<usize, Arc<T>>,
}

/// The distance between two handles, so that they look like pointers to aligned objects.
const STEP: usize = 64;

impl<T> Table<T> {
    /// A table whose handles begin above `first`. Tables have different ranges, so that a handle of another kind is
    /// refused.
    pub(crate) const fn new(kind: &'static str, first: usize) -> Self {
        Self { kind, live: Mutex::new(Live { last: first, objects: BTreeMap::new() }) }
    }

    pub(crate) fn insert(&self, object: T) -> Handle {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.last += STEP;
        let number = live.last;
        live.objects.insert(number, Arc::new(object));
        std::ptr::without_provenance_mut(number)
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Fault> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.objects.get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Fault> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.objects.remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    fn unknown(&self, handle: Handle) -> Fault {
        match handle.is_null() {
            true => Fault::null(&format!("the {} handle", self.kind)),
            false => Fault::argument(format_args!(
                "{handle:p} is not an open {}: it was closed, or is a handle of another kind",
                self.kind
            )),
        }
    }
}
