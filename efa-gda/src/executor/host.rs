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

use efa_gda_sys::device::{efa_gda_put_args, efa_gda_put_result, efa_gda_queue};

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

/// Receives to post: `count` receives of `length` bytes, the i-th at `address + i * stride`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Receives {
    /// First byte of the first receive.
    pub(crate) address: u64,
    /// Distance from one receive to the next, in bytes.
    pub(crate) stride: u64,
    /// Bound of the wait for free slots, in nanoseconds.
    pub(crate) timeout_ns: u64,
    /// Key of the memory.
    pub(crate) lkey: u32,
    /// Bytes of each receive, at most 65535.
    pub(crate) length: u32,
    /// Number of receives.
    pub(crate) count: u32,
    /// Unused.
    pub(crate) reserved: u32,
}

/// How posting [`Receives`] ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PostedReceives {
    /// Status of the call.
    pub(crate) status: Result<(), DeviceError>,
    /// Request id of the first receive. The others follow it; completions carry the low 16 bits.
    pub(crate) first: u32,
    /// Number of receives whose doorbell was rung.
    pub(crate) count: u32,
}

/// Posts receives with the device library.
///
/// # Safety
/// As [`put`], for `queue`.
pub(crate) unsafe fn post_receives(queue: *mut efa_gda_queue, receives: &Receives) -> PostedReceives {
    let (mut first, mut count) = (0, 0);
    // SAFETY: the caller vouches for the queue. The three other pointers are to values that outlive the call.
    let status = unsafe { efa_gda_host_post_receives(queue, receives, &raw mut first, &raw mut count) };
    PostedReceives { status: outcome(status), first, count }
}

/// Takes at most `into.len()` completions of receives from the queue's inbox, polling for them. Waits for the first, up
/// to the bound. Returns their number, and the status of the call.
///
/// # Safety
/// As [`put`], for `queue`.
pub(crate) unsafe fn take_received(
    queue: *mut efa_gda_queue,
    into: &mut [InboxEntry],
    timeout_ns: u64,
) -> (usize, Result<(), DeviceError>) {
    let most = into.len().try_into().unwrap_or(u32::MAX);
    let mut taken = 0;
    // SAFETY: the caller vouches for the queue. `into` has room for `most` entries, each aligned for the 8-byte words
    // that the device code stores.
    let status = unsafe {
        efa_gda_host_take_received(queue, into.as_mut_ptr().cast(), most, &raw mut taken, timeout_ns)
    };
    (taken as usize, outcome(status))
}

/// A completion in a queue's inbox, as the adapter wrote it (`EFA_GDA_INBOX_ENTRY`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct InboxEntry(pub(crate) [u8; efa_gda_sys::device::EFA_GDA_INBOX_ENTRY as usize]);

fn not_run() -> efa_gda_put_result {
    efa_gda_put_result { status: efa_gda_sys::device::EFA_GDA_NOT_RUN, ..Default::default() }
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
    fn efa_gda_host_post_receives(
        queue: *mut efa_gda_queue,
        receives: *const Receives,
        first: *mut u32,
        posted: *mut u32,
    ) -> u32;
    fn efa_gda_host_take_received(
        queue: *mut efa_gda_queue,
        out: *mut u8,
        most: u32,
        taken: *mut u32,
        timeout_ns: u64,
    ) -> u32;
}
