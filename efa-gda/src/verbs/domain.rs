//! Protection domains, which memory regions, address handles and queue pairs must share to be used together.

use std::sync::Arc;

use efa_gda_sys::verbs;

use super::object::{InLibrary, Object, function, pointer};
use super::{Context, Library, Result};

/// A protection domain. Clones are handles of one object, which is freed when the last clone and the last
/// object in it are dropped.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Object<verbs::ibv_pd, Context>>);

impl InLibrary for ProtectionDomain {
    fn library(&self) -> &Library {
        self.0.parents().library()
    }
}

impl ProtectionDomain {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`super::Error::Call`] where `ibv_alloc_pd` fails.
    pub fn allocate(context: &Context) -> Result<Self> {
        let allocate = function!(context.library(), ibv, ibv_alloc_pd)?;
        // SAFETY: the context is open.
        let raw = pointer("ibv_alloc_pd", unsafe { allocate(context.raw()) })?;
        // SAFETY: the object was just created, and no other handle to it exists.
        Ok(Self(Arc::new(unsafe { Object::adopt(raw, context.clone()) })))
    }

    /// The adapter of the domain.
    pub fn context(&self) -> &Context {
        self.0.parents()
    }

    /// Frees the domain and reports the result.
    ///
    /// # Errors
    /// [`super::Error::Busy`] while a clone or an object in it uses it; [`super::Error::Call`] where `ibv_dealloc_pd`
    /// fails.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    /// Whether both are handles of the same domain.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn raw(&self) -> *mut verbs::ibv_pd {
        self.0.raw()
    }
}
