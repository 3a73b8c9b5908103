//! A count of the references to an object that C may close. A parent's close returns -FI_EBUSY while a child
//! or a binding of it is open. The count does not own the object: see [`super::ffi`] for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ffi::Code;

/// The number of references to an object.
#[derive(Debug, Default)]
pub(crate) struct ReferenceCount(Arc<AtomicUsize>);

/// One reference. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Reference(Arc<AtomicUsize>);

impl ReferenceCount {
    /// Adds a reference. Relaxed is enough: the caller's object is open during the call, so no close reads
    /// the count.
    pub(crate) fn add(&self) -> Reference {
        self.0.fetch_add(1, Ordering::Relaxed);
        Reference(Arc::clone(&self.0))
    }

    /// Checks that the object can be closed.
    ///
    /// # Errors
    /// [`Code::BUSY`] while there is a reference.
    pub(crate) fn require_none(&self) -> Result<(), Code> {
        // Acquire, paired with the release in `Reference::drop`: the last holder's accesses to the object
        // happen before the close that follows.
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
