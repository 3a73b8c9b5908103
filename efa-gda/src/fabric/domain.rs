//! Fabrics and domains: opened by this library, or borrowed from a transport.

use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::fi;

use super::error;
use super::object::{Context, Object, table_op};
use super::{AddressVector, Bindings, CompletionQueue, Endpoint, GdaOps, Info, Library};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::object::into_sole_owner;

/// An open fabric. Clones are handles of one fabric, which is closed when the last clone and the last domain on
/// it are dropped.
// Retains the info as a precaution: `fi_fabric` keeps no reference to it.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<Object<fi::fid_fabric, Info>>);

impl Fabric {
    /// Opens the fabric of `info`, which must come from `library`.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] where `info` came from another library; [`ErrorKind::Other`] where `fi_fabric` fails;
    /// [`ErrorKind::Other`] for an info without fabric attributes.
    pub fn open(library: &Library, info: &Info) -> Result<Self> {
        const OPERATION: &str = "fi_fabric";
        if !info.came_from(library) {
            return Err(error::other_library(OPERATION));
        }
        let context = Context::new(Some(library.clone()));
        // SAFETY: the info is valid while `info` lives.
        let attr = unsafe { (*info.as_ptr()).fabric_attr };
        if attr.is_null() {
            return Err(error::no_object(OPERATION));
        }
        let call = |fabric: *mut _| {
            // SAFETY: `attr` is an attribute structure of an fi_info; `fabric` can be written.
            unsafe { library.raw().fabric(attr, fabric) }
        };
        // SAFETY: no other handle exists to the fabric that the call opens.
        Ok(Self(Arc::new(unsafe { Object::open(OPERATION, &context, info.clone(), call) }?)))
    }

    /// Opens the domain of `info`, which is one adapter.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for an info of another library; [`ErrorKind::Other`] where `fi_domain` fails.
    pub fn domain(&self, info: &Info) -> Result<Domain> {
        const OPERATION: &str = "fi_domain";
        self.0.library().require_same_library(info, OPERATION)?;
        let raw = self.0.raw();
        // SAFETY: an open fabric points to its operation table, or to null.
        let open = unsafe { table_op!((*raw).ops, fi_ops_fabric.domain, OPERATION) }?;
        let call = |domain: *mut _| {
            // SAFETY: the fabric is open, the info valid; `domain` can be written.
            unsafe { open(raw, info.as_ptr(), domain, std::ptr::null_mut()) }
        };
        // SAFETY: no other handle exists to the domain that the call opens.
        let object = unsafe { Object::open(OPERATION, self.0.library(), self.clone(), call) }?;
        Ok(Domain(Arc::new(DomainInner { origin: Origin::Owned(object), info: Some(info.clone()) })))
    }

    /// Closes the fabric and reports the result.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or a domain uses it; [`ErrorKind::Other`] where `fi_close` fails.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }
}

/// An adapter's domain: the scope of protection and addressing for all objects opened on it. Clones are handles
/// of one domain. It is closed when the last clone and the last object on it are dropped, unless it was
/// borrowed.
#[derive(Clone, Debug)]
pub struct Domain(Arc<DomainInner>);

#[derive(Debug)]
struct DomainInner {
    origin: Origin,
    /// The info that the domain was opened with. None for a domain that was borrowed without it.
    info: Option<Info>,
}

#[derive(Debug)]
enum Origin {
    Owned(Object<fi::fid_domain, Fabric>),
    Borrowed { raw: NonNull<fi::fid_domain>, context: Arc<Context> },
}

// SAFETY: a fid is not bound to a thread. Calls hold the context's guard. The caller of `borrow` guarantees
// that other code's calls on a borrowed domain do not run at the same time, or are allowed to.
unsafe impl Send for DomainInner {}
// SAFETY: as above.
unsafe impl Sync for DomainInner {}

impl Domain {
    /// Borrows a domain that a transport opened. This library never closes it. It owns the endpoints, queues
    /// and regions that it opens on the domain, and closes them.
    ///
    /// `info` is the `fi_info` that the domain was opened with. Without it, the length of the GDA table is not
    /// known, and only the five operations that every release since 2.3 has are used.
    ///
    /// # Safety
    /// `raw` must be an open domain that stays open until the last clone of the result and every object opened
    /// on it are dropped. The domain must allow calls from several threads (FI_THREAD_SAFE), or the caller must
    /// make no call while a call of this library runs.
    pub unsafe fn borrow(raw: NonNull<fi::fid_domain>, info: Option<Info>) -> Self {
        let library = info.as_ref().and_then(Info::library).cloned();
        let origin = Origin::Borrowed { raw, context: Context::new(library) };
        Self(Arc::new(DomainInner { origin, info }))
    }

    /// The context of calls on the domain and on its objects.
    pub(super) fn context(&self) -> &Arc<Context> {
        match &self.0.origin {
            Origin::Owned(object) => object.library(),
            Origin::Borrowed { context, .. } => context,
        }
    }

    /// The raw domain, for calls that this library does not wrap.
    pub fn as_ptr(&self) -> *mut fi::fid_domain {
        match &self.0.origin {
            Origin::Owned(object) => object.raw(),
            Origin::Borrowed { raw, .. } => raw.as_ptr(),
        }
    }

    /// The info that the domain was opened with. None for a domain that was borrowed without it.
    pub(crate) fn info(&self) -> Option<&Info> {
        self.0.info.as_ref()
    }

    /// Whether both are handles of the same domain.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.as_ptr() == other.as_ptr()
    }

    /// Opens the operations that expose queues to a GPU.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] on the fabric `efa`, with a libfabric before 2.3, and where a provider older than the
    /// table returns one.
    pub fn gda_ops(&self) -> Result<GdaOps> {
        GdaOps::open(self)
    }

    /// Opens an address vector for about `count` addresses.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `fi_av_open` fails.
    pub fn address_vector(&self, count: usize) -> Result<AddressVector> {
        AddressVector::open(self, count)
    }

    /// Opens a completion queue of at least `entries` entries in host memory.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `fi_cq_open` fails.
    pub fn completion_queue(&self, entries: usize) -> Result<CompletionQueue> {
        CompletionQueue::open(self, entries)
    }

    /// Opens an endpoint with the attributes of `info`, which must be of this domain, binds it, and enables it, which
    /// creates its queue pair.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for an info of another library, or objects of another domain; [`ErrorKind::Busy`] where a
    /// mapped queue polls a completion queue or relies on a counter; [`ErrorKind::Other`] where a call fails, with EINVAL
    /// for an operation that has two counters. The endpoint is then closed.
    pub fn endpoint(&self, info: &Info, bindings: Bindings<'_>) -> Result<Endpoint> {
        Endpoint::open(self, info, bindings)
    }

    /// Closes the domain and reports the result. A borrowed domain is not closed.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or an object on it uses it; [`ErrorKind::Other`] where `fi_close` fails.
    pub fn close(self) -> Result<()> {
        match into_sole_owner(self.0) {
            Ok(DomainInner { origin: Origin::Owned(object), .. }) => object.close(),
            Ok(_) => Ok(()),
            Err(holders) => Err(error::busy("domain", holders)),
        }
    }
}
