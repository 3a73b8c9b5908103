//! Protection domains: what memory regions, address handles and queue pairs must share.

use std::sync::Arc;

use efa_gda_sys::verbs;

use super::object::{InLibrary, Object, function, pointer};
use super::{Context, Library, Result};

/// A protection domain. Cheap to clone; freed with its last clone and the last object in it.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Object<verbs::ibv_pd, Context>>);

impl InLibrary for ProtectionDomain {
    fn library(&self) -> &Library {
        self.0.parents().library()
    }
}

impl ProtectionDomain {
    /// Allocates one.
    ///
    /// # Errors
    /// [`super::Error::Call`] with the answer of `ibv_alloc_pd`.
    pub fn allocate(context: &Context) -> Result<Self> {
        let allocate = function!(context.library(), ibv, ibv_alloc_pd)?;
        // SAFETY: the context is open.
        let raw = pointer("ibv_alloc_pd", unsafe { allocate(context.raw()) })?;
        // SAFETY: just made, and known to nobody else.
        Ok(Self(Arc::new(unsafe { Object::adopt(raw, context.clone()) })))
    }

    /// The adapter that it is of.
    pub fn context(&self) -> &Context {
        self.0.parents()
    }

    /// Frees it and says how that went.
    ///
    /// # Errors
    /// [`super::Error::Busy`] while an object in it or another clone lives; [`super::Error::Call`]
    /// with the answer of `ibv_dealloc_pd`.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    /// The domain itself, for calls that this library does not have.
    pub fn as_ptr(&self) -> *mut verbs::ibv_pd {
        self.raw()
    }

    pub(super) fn raw(&self) -> *mut verbs::ibv_pd {
        self.0.raw()
    }
}
