//! The C interface, declared and documented in `include/efa_gda.h`; this is what stands behind it.
//!
//! Every function runs inside `entry`, through which no panic passes. A handle is a number that looks
//! like a pointer and is looked up, never followed, so that a stale or foreign one is an error.

mod domain;
mod error;
mod handles;
mod launch;
mod queue;
mod region;

pub use domain::{efa_gda_domain_borrow, efa_gda_domain_close, efa_gda_domain_open};
pub use error::efa_gda_last_error;
pub use launch::{
    Progress, Write, efa_gda_mapped_abort, efa_gda_mapped_begin_launch, efa_gda_mapped_end_launch,
    efa_gda_mapped_poll, efa_gda_mapped_snapshot, efa_gda_mapped_wait, efa_gda_mapped_write,
};
pub use queue::{
    MappedAttr, MappedInfo, efa_gda_mapped_address, efa_gda_mapped_close, efa_gda_mapped_describe,
    efa_gda_mapped_destroy, efa_gda_mapped_insert_peer, efa_gda_mapped_open, efa_gda_mapped_retain,
};
pub use region::{
    RegionInfo, efa_gda_region_close, efa_gda_region_describe, efa_gda_region_register,
    efa_gda_region_register_gpu,
};

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use error::{Code, Fault};

/// The version of this interface (`EFA_GDA_API_VERSION`); it grows with every change.
const API_VERSION: u32 = 2;

/// A handle of C's.
pub type Handle = *mut c_void;

/// The version of this interface (`EFA_GDA_API_VERSION`); it grows with every change.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_api_version() -> u32 {
    API_VERSION
}

/// Runs the body of a function: 0, or the error's number with its words kept for this thread.
fn entry(body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    // What the body captured is not used after a panic: every function returns at once. Objects keep
    // their own rules whatever happened, so that they can still be closed.
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(fault)) => fault,
        Err(_) => Fault::new(Code::Internal, "a defect of libefa_gda: the call panicked, see stderr"),
    };
    fault.keep()
}

/// Refuses null before anything is made that would be lost.
fn given<T>(place: *mut T, what: &str) -> Result<(), Fault> {
    if place.is_null() { Err(Fault::null(what)) } else { Ok(()) }
}

/// A struct of C's that begins with its size, or a refusal of one that is shorter than `T`.
///
/// # Safety
/// `place` is null, or a struct whose first field is its size in bytes, all of which can be read.
unsafe fn sized<T: Copy>(place: *const T, what: &str) -> Result<T, Fault> {
    if place.is_null() {
        return Err(Fault::null(what));
    }
    // SAFETY: not null; the first field is there by the caller's promise.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if size < size_of::<T>() {
        return Err(Fault::short(what, size, size_of::<T>()));
    }
    // SAFETY: as many bytes can be read as the size says.
    Ok(unsafe { place.read_unaligned() })
}

/// Fills in a struct of C's that begins with its size.
///
/// # Safety
/// As for [`sized`], and it can be written.
unsafe fn fill<T: Copy>(place: *mut T, what: &str, value: T) -> Result<(), Fault> {
    // SAFETY: passed on to the caller. C's own size stays: it may be larger.
    unsafe {
        sized(place, what)?;
        let size = place.cast::<usize>().read_unaligned();
        place.write_unaligned(value);
        place.cast::<usize>().write_unaligned(size);
    }
    Ok(())
}
