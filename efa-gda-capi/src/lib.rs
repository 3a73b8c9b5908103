//! The C interface of efa-gda, which `include/efa_gda.h` declares and documents.
//!
//! Every function runs inside [`call`], which stops panics. A handle is a number that is looked up in a table and never
//! dereferenced, so that the use of a closed handle, or of a handle of another kind, is an error.

mod error;
mod foreign;
mod handles;
mod launch;
#[cfg(test)]
mod layout;
mod nvshmem;
mod options;
mod pointers;
mod queue;
mod receive;
mod region;
mod work;

pub use error::efa_gda_last_error;
pub use launch::{
    Progress, efa_gda_queue_abort, efa_gda_queue_begin_launch, efa_gda_queue_end_launch, efa_gda_queue_poll,
};
pub use nvshmem::{NvshmemState, nvshmemt_efa_gda_fini, nvshmemt_efa_gda_init_on_ep, nvshmemt_efa_gda_state};
pub use options::{QueueOptions, efa_gda_queue_open};
pub use pointers::{Bytes, In, Out, Text};
pub use queue::{
    QueueInfo, efa_gda_queue_close, efa_gda_queue_describe, efa_gda_queue_destroy, efa_gda_queue_insert_peer,
};
pub use receive::{ReceivedOne, efa_gda_queue_post_receives, efa_gda_queue_receive};
pub use region::{
    efa_gda_queue_retain, efa_gda_region_close, efa_gda_region_keys, efa_gda_region_register,
    efa_gda_region_register_gpu,
};
pub use work::{Work, efa_gda_queue_execute, efa_gda_queue_wait};

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use efa_gda::queue::WorkRequest;

use error::{Code, Fault};

/// The version of the interface (`EFA_GDA_API_VERSION`). Every change of the interface increments it.
const API_VERSION: u32 = 6;

/// A pointer to an opaque struct of `efa_gda.h`.
pub type Handle = *mut c_void;

/// Returns the version of the interface (`EFA_GDA_API_VERSION`).
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_api_version() -> u32 {
    API_VERSION
}

/// Runs the body of a function. Returns 0, or the error's number after its text was stored for this thread.
fn call(body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    // The body's captures are not used after a panic, because every function returns at once. Objects behind handles
    // recover their locks from a panic, so that they can still be closed.
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(fault)) => fault,
        Err(_) => {
            Fault::new(Code::Internal, "a defect of libefa_gda: the call panicked; stderr has the panic")
        }
    };
    fault.store()
}

/// As [`call`], for a body that returns a result: `name` is what messages call the pointer to it. A null pointer is
/// refused before the body creates an object that would be lost.
fn call_for<T: Copy>(result: Out<T>, name: &str, body: impl FnOnce() -> Result<T, Fault>) -> c_int {
    call(|| {
        result.require(name)?;
        result.set(body()?);
        Ok(())
    })
}

/// Converts the bound of a wait. 0 selects the default.
fn bound(timeout_ns: u64) -> Duration {
    match timeout_ns {
        0 => WorkRequest::TIMEOUT,
        some => Duration::from_nanos(some),
    }
}
