//! Code that all rdma-core objects share: functions that may be missing, a destruction that may fail, and
//! parents that must outlive the object.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::verbs::{self, RdmaCore};

use super::Library;
use super::error::{Error, FailedCall, Result};
use crate::ownership::into_sole_owner;

/// Reads a function of rdma-core, or returns [`Error::FunctionMissing`]: `function!(library, ibv,
/// ibv_open_device)`.
macro_rules! function {
    ($library:expr, $table:ident, $name:ident) => {
        $library.core().$table().$name.ok_or_else(|| $crate::verbs::object::absent(stringify!($name)))
    };
}
pub(super) use function;

/// The error for a function that the loaded release lacks.
pub(super) fn absent(name: &'static str) -> Error {
    Error::FunctionMissing(verbs::call(name).expect("every function of the tables is among the calls"))
}

/// The errno of this thread's last call.
fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Checks a returned code: 0 is success, any other an errno of either sign, or -1 with errno set. -EPERM is
/// also -1, so errno is read for it.
pub(super) fn check(operation: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(Error::Call(FailedCall { operation, errno: errno() })),
        code => Err(Error::Call(FailedCall { operation, errno: code.saturating_abs() })),
    }
}

/// Checks a returned pointer: null is a failure with errno set.
pub(super) fn pointer<T>(operation: &'static str, pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| Error::Call(FailedCall { operation, errno: errno() }))
}

/// A structure of rdma-core that a call destroys.
pub(super) trait Resource {
    /// Name of the object in errors.
    const WHAT: &'static str;
    /// The call that destroys it.
    const DESTROY: &'static str;

    /// Destroys the object.
    ///
    /// # Safety
    /// `raw` must be a live object of `core`. The caller must not use it after a result of 0.
    unsafe fn destroy(core: &RdmaCore, raw: *mut Self) -> Option<c_int>;
}

macro_rules! resources {
    ($($type:ident $what:literal $destroy:ident;)*) => {
        $(
            impl Resource for verbs::$type {
                const WHAT: &'static str = $what;
                const DESTROY: &'static str = stringify!($destroy);

                unsafe fn destroy(core: &RdmaCore, raw: *mut Self) -> Option<c_int> {
                    // SAFETY: the caller guarantees it, as this function requires.
                    core.ibv().$destroy.map(|destroy| unsafe { destroy(raw) })
                }
            }
        )*
    };
}

resources! {
    ibv_context "context" ibv_close_device;
    ibv_pd "protection domain" ibv_dealloc_pd;
    ibv_mr "memory region" ibv_dereg_mr;
    ibv_ah "address handle" ibv_destroy_ah;
    ibv_cq "completion queue" ibv_destroy_cq;
    ibv_qp "queue pair" ibv_destroy_qp;
    ibv_comp_cntr "completion counter" ibv_destroy_comp_cntr;
}

/// Finds the library of an object's calls through its parents.
pub(super) trait InLibrary {
    fn library(&self) -> &Library;
}

/// An object that this library created, with the parents that must outlive it.
///
/// A drop destroys the object, then drops `parents`. Where destruction fails, rdma-core still has the object,
/// which still refers to its parents; the parents are then leaked.
pub(super) struct Object<T: Resource, P: InLibrary> {
    pointer: NonNull<T>,
    /// None after destruction, which consumes the object.
    parents: Option<P>,
}

// SAFETY: libibverbs allows its calls from any thread, and this library does not write to these structures.
unsafe impl<T: Resource, P: InLibrary + Send> Send for Object<T, P> {}
// SAFETY: as above.
unsafe impl<T: Resource, P: InLibrary + Sync> Sync for Object<T, P> {}

impl<T: Resource, P: InLibrary> Object<T, P> {
    /// Takes ownership of an object that a call created.
    ///
    /// # Safety
    /// `pointer` must be a live object of the parents' library that no other code destroys.
    pub(super) unsafe fn adopt(pointer: NonNull<T>, parents: P) -> Self {
        Self { pointer, parents: Some(parents) }
    }

    pub(super) fn raw(&self) -> *mut T {
        self.pointer.as_ptr()
    }

    pub(super) fn parents(&self) -> &P {
        self.parents.as_ref().expect("only destruction takes the parents, and it consumes the object")
    }

    pub(super) fn parents_mut(&mut self) -> &mut P {
        self.parents.as_mut().expect("only destruction takes the parents, and it consumes the object")
    }

    /// Destroys the object and reports the result.
    pub(super) fn close(mut self) -> Result<()> {
        self.close_once()
    }

    /// Destroys an object that has no other owner.
    pub(super) fn close_shared(this: Arc<Self>) -> Result<()> {
        match into_sole_owner(this) {
            Ok(object) => object.close(),
            Err(holders) => Err(Error::Busy { what: T::WHAT, holders }),
        }
    }

    /// Destroys the object on the first call and does nothing on later calls.
    fn close_once(&mut self) -> Result<()> {
        let Some(parents) = self.parents.take() else { return Ok(()) };
        // SAFETY: the object is live, because its parents were still present, and this value owns it.
        let code = unsafe { T::destroy(parents.library().core(), self.pointer.as_ptr()) };
        let destroyed = code.ok_or_else(|| absent(T::DESTROY)).and_then(|code| check(T::DESTROY, code));
        if destroyed.is_err() {
            crate::leak::leak(parents);
        }
        destroyed
    }
}

impl<T: Resource, P: InLibrary> Drop for Object<T, P> {
    fn drop(&mut self) {
        if let Err(error) = self.close_once() {
            tracing::error!(
                %error,
                what = T::WHAT,
                "a dropped object could not be destroyed; the objects that it refers to stay allocated"
            );
        }
    }
}

impl<T: Resource, P: InLibrary> std::fmt::Debug for Object<T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}", self.pointer)
    }
}

/// The size of a structure, as efadv calls take it.
pub(super) const fn inlen<T>(_: &T) -> u32 {
    size_of::<T>() as u32
}
