//! Who uses an object that C may close: a parent is busy while a child or a binding of it is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ffi::Code;

/// The count an object keeps of its users.
#[derive(Debug, Default)]
pub(crate) struct ReferenceCount(Arc<AtomicUsize>);

/// One use; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reference(Arc<AtomicUsize>);

impl ReferenceCount {
    /// Begins a use.
    pub(crate) fn add(&self) -> Reference {
        self.0.fetch_add(1, Ordering::Relaxed);
        Reference(Arc::clone(&self.0))
    }

    /// # Errors
    /// [`Code::BUSY`] while a use lasts.
    pub(crate) fn require_none(&self) -> Result<(), Code> {
        // Acquire: what the last user did to the object happened before the close that follows.
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Code::BUSY),
        }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
