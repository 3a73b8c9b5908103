//! Leaks a value on purpose, because the adapter, a kernel or a foreign library may still use what it owns.
//!
//! A leaked value stays reachable from a static, so that leak checkers do not report it.

use std::sync::{Mutex, PoisonError};

static LEAKED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Keeps `value` until the process ends; its destructor never runs.
pub(crate) fn leak<T>(value: T) {
    let address = Box::into_raw(Box::new(value)).expose_provenance();
    LEAKED.lock().unwrap_or_else(PoisonError::into_inner).push(address);
}
