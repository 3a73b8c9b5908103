//! What must outlive everything, because somebody else may still use it: kept until the process ends,
//! and where a leak checker sees that it is held.

use std::sync::{Mutex, PoisonError};

static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Keeps `value`, which is never dropped.
pub(crate) fn keep<T>(value: T) {
    let address = Box::into_raw(Box::new(value)).expose_provenance();
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(address);
}
