//! Objects of a foreign library: a destruction that may fail, and parents that must outlive the object.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Error, Result};

/// A structure of a foreign library, which a call destroys.
///
/// # Safety
/// The structure must not be bound to a thread: calls on it must be allowed from any thread, as `Library` serializes
/// them.
pub(crate) unsafe trait Destroy {
    /// The loaded library, as calls need it.
    type Library;

    /// Destroys the object.
    ///
    /// # Safety
    /// `object` must be a live object of `library`. The caller must not use it after a success.
    unsafe fn destroy(library: &Self::Library, object: NonNull<Self>) -> Result<()>;

    /// The error for an object that `holders` other handles use.
    fn busy(holders: usize) -> Error;
}

const TAKEN: &str = "only destruction takes the parents, and it consumes the object";

/// An object that this library created, with the parents that must outlive it.
///
/// A drop destroys the object, then drops `parents`. Where destruction fails, the foreign library still has the object,
/// which still refers to its parents; the parents are then leaked.
pub(crate) struct Object<T: Destroy, P> {
    pointer: NonNull<T>,
    /// The library and the parents. None after destruction, which consumes the object.
    keeps: Option<(T::Library, P)>,
}

// SAFETY: `Destroy` requires a structure that is not bound to a thread.
unsafe impl<T: Destroy<Library: Send>, P: Send> Send for Object<T, P> {}
// SAFETY: as above.
unsafe impl<T: Destroy<Library: Sync>, P: Sync> Sync for Object<T, P> {}

impl<T: Destroy, P> Object<T, P> {
    /// Takes ownership of an object that a call created.
    ///
    /// # Safety
    /// `pointer` must be a live object of `library` that no other code destroys.
    pub(crate) unsafe fn adopt(pointer: NonNull<T>, library: T::Library, parents: P) -> Self {
        Self { pointer, keeps: Some((library, parents)) }
    }

    pub(crate) fn raw(&self) -> *mut T {
        self.pointer.as_ptr()
    }

    /// The library of the object's calls.
    pub(crate) fn library(&self) -> &T::Library {
        &self.keeps().0
    }

    pub(crate) fn parents(&self) -> &P {
        &self.keeps().1
    }

    pub(crate) fn parents_mut(&mut self) -> &mut P {
        &mut self.keeps.as_mut().expect(TAKEN).1
    }

    fn keeps(&self) -> &(T::Library, P) {
        self.keeps.as_ref().expect(TAKEN)
    }

    /// Destroys the object and reports the result.
    pub(crate) fn close(mut self) -> Result<()> {
        self.close_once()
    }

    /// Destroys an object that has no other owner.
    pub(crate) fn close_shared(this: Arc<Self>) -> Result<()> {
        into_sole_owner(this).map_err(T::busy)?.close()
    }

    /// Destroys the object on the first call and does nothing on later calls.
    fn close_once(&mut self) -> Result<()> {
        let Some(keeps) = self.keeps.take() else { return Ok(()) };
        // SAFETY: the object is live, because its parents were still present, and this value owns it.
        let destroyed = unsafe { T::destroy(&keeps.0, self.pointer) };
        if destroyed.is_err() {
            crate::leak::leak(keeps);
        }
        destroyed
    }
}

impl<T: Destroy, P> Drop for Object<T, P> {
    fn drop(&mut self) {
        if let Err(error) = self.close_once() {
            tracing::error!(%error, "a dropped object could not be closed; the objects it refers to stay allocated");
        }
    }
}

impl<T: Destroy, P> fmt::Debug for Object<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.pointer)
    }
}

/// Takes the value out of `shared`.
///
/// # Errors
/// The number of other owners, at least 1, if `shared` has any; `shared` is then dropped.
pub(crate) fn into_sole_owner<T>(shared: Arc<T>) -> std::result::Result<T, usize> {
    let others = Arc::strong_count(&shared) - 1;
    // Another owner may have dropped its handle since the count was read.
    Arc::try_unwrap(shared).map_err(|_| others.max(1))
}
