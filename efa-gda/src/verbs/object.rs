//! What every object of rdma-core's has in common: a function that may be missing, a destruction
//! that can fail, and parents that must outlive it.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::verbs::{self, RdmaCore};

use super::Library;
use super::error::{Error, FailedCall, Result};
use crate::ownership::into_sole_owner;

/// A function of rdma-core, or [`Error::FunctionMissing`]: `function!(library, ibv, ibv_open_device)`.
macro_rules! function {
    ($library:expr, $table:ident, $name:ident) => {
        $library.core().$table().$name.ok_or_else(|| $crate::verbs::object::absent(stringify!($name)))
    };
}
pub(super) use function;

/// Says that the loaded release lacks a function of the tables.
pub(super) fn absent(name: &'static str) -> Error {
    Error::FunctionMissing(verbs::call(name).expect("every function of the tables is among the calls"))
}

/// The errno that the last call of this thread left.
fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// What an int that a call returned means: 0, or an errno of either sign, or -1 with errno set.
/// A -EPERM reads as -1, so that errno is asked for it.
pub(super) fn check(operation: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(Error::Call(FailedCall { operation, errno: errno() })),
        code => Err(Error::Call(FailedCall { operation, errno: code.saturating_abs() })),
    }
}

/// The pointer that a call returned, or the errno that it left.
pub(super) fn pointer<T>(operation: &'static str, pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| Error::Call(FailedCall { operation, errno: errno() }))
}

/// A structure of rdma-core's that is destroyed by a call.
pub(super) trait Resource {
    /// The object, as errors name it.
    const WHAT: &'static str;
    /// The call.
    const DESTROY: &'static str;

    /// Destroys the object.
    ///
    /// # Safety
    /// `raw` is a live object of `core`'s that is not used again when this returns 0.
    unsafe fn destroy(core: &RdmaCore, raw: *mut Self) -> Option<c_int>;
}

macro_rules! resources {
    ($($type:ident $what:literal $destroy:ident;)*) => {
        $(
            impl Resource for verbs::$type {
                const WHAT: &'static str = $what;
                const DESTROY: &'static str = stringify!($destroy);

                unsafe fn destroy(core: &RdmaCore, raw: *mut Self) -> Option<c_int> {
                    // SAFETY: passed on to the caller.
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

/// Leads from an object's parents to the library that its calls are made in.
pub(super) trait InLibrary {
    fn library(&self) -> &Library;
}

/// An object that this library made, with everything that must outlive it.
///
/// Dropping it destroys it and then drops `parents`. Where that fails, rdma-core still has the
/// object, which still refers to its parents: they are then kept for the life of the process.
pub(super) struct Object<T: Resource, P: InLibrary> {
    pointer: NonNull<T>,
    /// None once destroyed; that consumes the object, so others always see Some.
    parents: Option<P>,
}

// SAFETY: libibverbs allows its calls from any thread, and none of these structures is written here.
unsafe impl<T: Resource, P: InLibrary + Send> Send for Object<T, P> {}
// SAFETY: as above.
unsafe impl<T: Resource, P: InLibrary + Sync> Sync for Object<T, P> {}

impl<T: Resource, P: InLibrary> Object<T, P> {
    /// Takes over what a call has made.
    ///
    /// # Safety
    /// `pointer` is a live object of the parents' library that nobody else destroys.
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

    /// Destroys the object, and says how that went.
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

    /// Destroys once; a second call does nothing.
    fn close_once(&mut self) -> Result<()> {
        let Some(parents) = self.parents.take() else { return Ok(()) };
        // SAFETY: the object is live (its parents were still here) and ours to destroy.
        let answer = unsafe { T::destroy(parents.library().core(), self.pointer.as_ptr()) };
        let done = answer.ok_or_else(|| absent(T::DESTROY)).and_then(|code| check(T::DESTROY, code));
        if done.is_err() {
            crate::leak::leak(parents);
        }
        done
    }
}

impl<T: Resource, P: InLibrary> Drop for Object<T, P> {
    fn drop(&mut self) {
        if let Err(error) = self.close_once() {
            tracing::error!(%error, what = T::WHAT, "what a dropped object refers to stays allocated");
        }
    }
}

impl<T: Resource, P: InLibrary> std::fmt::Debug for Object<T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}", self.pointer)
    }
}

/// `size_of`, as efadv calls take it.
pub(super) const fn inlen<T>(_: &T) -> u32 {
    size_of::<T>() as u32
}
