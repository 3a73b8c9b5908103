//! The result of a work request, and why one is not posted.

use efa_gda_wire::{CompletionStatus, RequestId};

use crate::error::{Error, ErrorKind, Limit, Progress, Result};
use crate::executor::host::KernelOutcome;
use crate::memory::Access;
use crate::status::DeviceError;

/// The result of a work request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkReport {
    /// Requests rung for. An RDMA transfer that is longer than `max_rdma_size` is several.
    pub posted: u64,
    /// Completed requests that the call counted, including those of earlier calls.
    pub completed: u64,
}

/// The progress of a work request when one of its requests failed, in words. One without requests (`quiet`) posts nothing.
fn in_words(progress: &Progress) -> String {
    let Progress { posted, completed, unposted, count, .. } = *progress;
    let mut words = format!("completions read: {completed}");
    if posted != 0 {
        words += &format!(", entries posted: {posted}");
    }
    if unposted != 0 {
        words += &format!(", transfers not posted: {unposted} of {count}");
    }
    words
}

/// The size of a work request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requested {
    /// Transfers.
    pub(crate) count: u64,
    /// Entries of each.
    pub(crate) each: u64,
}

/// Converts the outcome of a put kernel, after which `in_flight` requests of the queue are in flight.
pub(crate) fn report(outcome: KernelOutcome, in_flight: u32, requested: Requested) -> Result<WorkReport> {
    let (posted, completed) = (outcome.posted, outcome.completed);
    let whole = posted.checked_div(requested.each).unwrap_or(0);
    match outcome.status {
        Ok(()) => Ok(WorkReport { posted, completed }),
        Err(error) => {
            let unposted = requested.count.saturating_sub(whole);
            let progress = Progress { posted, completed, unposted, count: requested.count, in_flight };
            Err(failed(error, outcome, &progress).with_progress(progress))
        }
    }
}

fn failed(error: DeviceError, outcome: KernelOutcome, progress: &Progress) -> Error {
    let Progress { posted, completed, in_flight, .. } = progress;
    if error != DeviceError::Completion {
        let text = format!(
            "{error} (entries posted: {posted}, completions read: {completed}, requests in flight: {in_flight})"
        );
        return Error::new(ErrorKind::Device(error), text);
    }
    // The kernel widened the completion's status byte to 32 bits.
    let status = CompletionStatus::from_code(outcome.completion_status as u8);
    let request = RequestId::new(outcome.request_id);
    let code = status.code();
    let text =
        format!("request id {request} completed with status {code}: {status} ({})", in_words(progress));
    Error::new(ErrorKind::FailedRequest { request, status }, text).with_hint(format!(
        "run gda-probe explain STATUS-{code} for the causes; the queue stays usable, except after status 1 or 2: open a \
         new endpoint then"
    ))
}

/// A queue or an adapter that does not support `operation`. Nothing was posted.
pub(crate) fn not_possible(operation: &str, why: &str) -> Error {
    Error::unsupported(format!("{operation} is not possible on this queue: {why}"))
}

/// A request or a receive that is longer than a limit. Nothing was posted.
pub(crate) fn too_long(limit: Limit, bytes: u64, most: u64) -> Error {
    let text = format!("a length of {bytes} exceeds the {most} bytes that {limit} allows");
    Error::new(ErrorKind::TooLong { limit, bytes, most }, text).with_hint(limit.hint())
}

/// A region that was not registered for this access. Nothing was posted.
pub(super) fn wrong_access(region: &str, has: Access, user: &str, needs: Access) -> Error {
    let (has, needs) = (has.bits(), needs.bits());
    Error::argument(format!("{region} was registered for access {has:#x}, and {user} {needs:#x}"))
        .with_hint("register it with that access")
}
