//! The host executor: the device library and its kernels, compiled as C++17, on the CPU.
//!
//! A block is a host thread. Its lanes are fibers of that thread (`kernels/include/efa_gda/host_executor.h`), so warp-
//! and block-collective code runs line for line. The host executor serves machines without a GPU, and tests. It makes
//! no promise about speed.
//!
//! A queue struct holds host pointers here. `kernels/include/efa_gda/queue.h` states what it must contain;
//! [`zeroed_queue`] returns one to fill in.
//!
//! With the feature `test-utils` this module also exports what tests and benches need: loads, encoders of single
//! entries, and stores that bypass the device library's rules. `crate::queue::measure` exports the benches.

use efa_gda_sys::device::{
    EFA_GDA_NOT_RUN, efa_gda_put_args, efa_gda_put_result, efa_gda_queue, efa_gda_receive_args,
    efa_gda_receive_result,
};

use crate::error::{Error, ErrorKind, Result};
use crate::status::{DeviceError, outcome};

#[cfg(feature = "test-utils")]
#[path = "test_utils.rs"]
mod test_utils;

#[cfg(feature = "test-utils")]
pub(crate) use test_utils::{BenchArgs, bench};
#[cfg(feature = "test-utils")]
pub use test_utils::{
    EntrySpec, LoadOptions, TestPutTarget, encode_entry, encode_inline_entry, encode_receive, load,
    load_beside, ring_raw, test_put, write_raw,
};

/// Most lanes of one block.
pub(crate) const MAX_LANES: u32 = 1024;

/// How a put kernel ended, with or without an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KernelOutcome {
    /// Its status.
    pub status: Result<(), DeviceError>,
    /// Status byte of the first error completion (`enum efa_io_comp_status`), 0 without one.
    pub completion_status: u32,
    /// Request id of the first error completion.
    pub request_id: u64,
    /// Requests that the kernel posted; after a failure up to 256 more may have been posted (`efa_gda_put_result`).
    pub posted: u64,
    /// Completed requests that the kernel counted, including those of earlier calls.
    pub completed: u64,
}

impl From<efa_gda_put_result> for KernelOutcome {
    fn from(result: efa_gda_put_result) -> Self {
        Self {
            status: outcome(result.status),
            completion_status: result.completion_status,
            request_id: result.request_id,
            posted: result.posted,
            completed: result.completed,
        }
    }
}

/// Returns a queue struct of zeroes, at its alignment.
pub fn zeroed_queue() -> Box<efa_gda_queue> {
    Box::new(efa_gda_queue::default())
}

/// Runs `efa_gda_put_kernel` as one block of `lanes` lanes and waits for it. The kernel's result is returned;
/// `args.result` is ignored.
///
/// # Errors
/// [`ErrorKind::Internal`] when the block could not start. Nothing was posted then.
///
/// # Safety
/// `args.queue` must point to a queue struct that obeys the rules in `queue.h`. Its rings, doorbells and counters must
/// stay mapped during the call, and nothing else may use the queue meanwhile. The adapter checks the addresses and keys
/// in `args`, except for inline requests: this function reads their bytes, so they must be readable.
pub unsafe fn put(args: &efa_gda_put_args, lanes: u32) -> Result<KernelOutcome> {
    let mut result = not_run();
    let args = efa_gda_put_args { result: &raw mut result, ..*args };
    // SAFETY: the caller vouches for the queue and the inline bytes. `result` outlives the call, which returns only
    // after all lanes have ended.
    launched(unsafe { efa_gda_host_put(&raw const args, lanes) }, lanes)?;
    Ok(result.into())
}

/// Runs `efa_gda_receive_kernel` and waits for it. The kernel's result is returned; `args.result` is ignored.
///
/// # Safety
/// As [`put`], for `args.queue`; `args.into` must be null or have room for `args.count` of [`InboxEntry`].
pub(crate) unsafe fn receive(args: &efa_gda_receive_args) -> efa_gda_receive_result {
    let mut result = efa_gda_receive_result { status: EFA_GDA_NOT_RUN, ..Default::default() };
    let args = efa_gda_receive_args { result: &raw mut result, ..*args };
    // SAFETY: the caller vouches for the queue and for `into`. `result` outlives the call, which returns only after the
    // lane has ended. If the lane could not start, the result says so.
    unsafe { efa_gda_host_receive(&raw const args) };
    result
}

/// A completion in a queue's inbox, as the adapter wrote it (`EFA_GDA_INBOX_ENTRY`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct InboxEntry(pub(crate) [u8; efa_gda_sys::device::EFA_GDA_INBOX_ENTRY as usize]);

fn not_run() -> efa_gda_put_result {
    efa_gda_put_result { status: EFA_GDA_NOT_RUN, ..Default::default() }
}

fn launched(started: bool, lanes: u32) -> Result<()> {
    match started {
        true => Ok(()),
        false if lanes == 0 || lanes > MAX_LANES => {
            Err(Error::argument(format!("a block of {lanes} lanes cannot run"))
                .with_hint("ask for 1 to 1024 lanes"))
        }
        false => Err(Error::new(
            ErrorKind::Internal,
            format!("the stacks of the lanes ({lanes}) cannot be allocated"),
        )
        .with_hint("free memory, or ask for fewer lanes")),
    }
}

// kernels/host/executor.cpp, kernels/test/load_host.cpp
unsafe extern "C" {
    fn efa_gda_host_put(args: *const efa_gda_put_args, lanes: u32) -> bool;
    fn efa_gda_host_receive(args: *const efa_gda_receive_args) -> bool;
}
