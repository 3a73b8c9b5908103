//! The result of a work request, and why one is not posted.

use std::fmt;

use efa_gda_wire::{CompletionStatus, RequestId};

use crate::executor::host::{KernelOutcome, LaunchError};
use crate::fabric::{self, Access};
use crate::status::DeviceError;

/// A limit on a request's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// The port's `max_msg_sz`, for sends.
    Message,
    /// The device's `max_rdma_size`, for one entry of an RDMA read or write.
    Rdma,
    /// The inline bytes of an entry: 32 in a 64-byte entry, 80 in a 128-byte entry.
    Inline,
    /// The length field of a receive descriptor: 65535.
    Receive,
}

impl Limit {
    /// Returns what to do about a request that exceeds the limit.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Message => "split it into several sends, or use an RDMA write",
            Self::Rdma => "split it, or do not call WorkRequest::whole",
            Self::Inline => "use registered memory; 128-byte entries carry more than 64-byte ones",
            Self::Receive => "post several receives",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Message => "max_msg_size",
            Self::Rdma => "max_rdma_size",
            Self::Inline => "the inline limit of the queue's entries",
            Self::Receive => "the length of a receive descriptor",
        })
    }
}

/// The result of a work request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkReport {
    /// Requests rung for. An RDMA transfer that is longer than `max_rdma_size` is several.
    pub posted: u64,
    /// Completed requests that the call counted, including those of earlier calls.
    pub completed: u64,
}

/// Why a work request was not posted, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The bytes are outside of the region, or the region has no key. Nothing was posted.
    #[error("the {side} memory cannot be used for this work request")]
    Region {
        /// `local` or `remote`.
        side: &'static str,
        /// The cause.
        source: fabric::Error,
    },
    /// The region was not registered for this access. Nothing was posted.
    #[error(
        "the local region was registered for access {:#x}, and this request needs {:#x}: register it with that access",
        .has.bits(), .needs.bits()
    )]
    Access {
        /// The region's access.
        has: Access,
        /// The access that the request needs.
        needs: Access,
    },
    /// The request is longer than a limit. Nothing was posted.
    #[error("a length of {bytes} exceeds the {most} bytes that {limit} allows; {}", .limit.hint())]
    TooLong {
        /// The limit.
        limit: Limit,
        /// Bytes of the request.
        bytes: u64,
        /// Bytes that the limit allows.
        most: u64,
    },
    /// The queue or the adapter does not support the operation. Nothing was posted.
    #[error("{operation} is not possible on this queue: {why}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// This CPU cannot read the bytes of an inline request. Nothing was posted.
    #[error(
        "an inline request carries its bytes, and this CPU cannot read the memory of the local region: use a request \
         that is not inline, or post from the GPU that has the memory"
    )]
    Unreadable,
    /// The work request has more entries than 64 bits can count. Nothing was posted.
    #[error(
        "{count} transfers of {each} entries each are more entries than can be counted; ask for fewer transfers at once"
    )]
    TooMany {
        /// Transfers.
        count: u64,
        /// Entries of each.
        each: u64,
    },
    /// The host executor did not start. Nothing was posted.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A request completed with an error. Requests that were not posted by then are not posted. The queue stays usable.
    #[error(
        "request id {request} completed with status {code}: {status} ({}); run gda-probe explain \
         STATUS-{code} for the causes; the queue stays usable, except after status 1 or 2: open a new endpoint then",
        progress(*posted, *completed, *unposted, *count), code = .status.code()
    )]
    Completion {
        /// Status of the completion.
        status: CompletionStatus,
        /// The first failed request's id: a queue numbers its entries from 0, and the id is that number cut to the
        /// width of the queue's ids. It is not the index within this work request.
        request: RequestId,
        /// Entries posted (`efa_gda_put_result::posted`).
        posted: u64,
        /// Completions read, including those of earlier requests.
        completed: u64,
        /// Transfers of which not all entries were posted.
        unposted: u64,
        /// Transfers asked for.
        count: u64,
    },
    /// The device library stopped for another reason. After a wait that timed out, the queue is poisoned and retains
    /// the region until its endpoint is destroyed.
    #[error(
        "{error} (entries posted: {posted}, completions read: {completed}, requests in flight: {in_flight})"
    )]
    Device {
        /// The status of the device library.
        error: DeviceError,
        /// Entries posted (`efa_gda_put_result::posted`).
        posted: u64,
        /// Completions read.
        completed: u64,
        /// Requests of the queue in flight.
        in_flight: u32,
    },
}

/// The progress of a work request when one of its requests failed. One without requests (`quiet`) posts nothing.
fn progress(posted: u64, completed: u64, unposted: u64, count: u64) -> String {
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
pub(crate) fn report(
    outcome: KernelOutcome,
    in_flight: u32,
    requested: Requested,
) -> Result<WorkReport, WorkError> {
    let (posted, completed) = (outcome.posted, outcome.completed);
    let whole = posted.checked_div(requested.each).unwrap_or(0);
    match outcome.status {
        Ok(()) => Ok(WorkReport { posted, completed }),
        Err(DeviceError::Completion) => Err(WorkError::Completion {
            // The kernel widened the completion's status byte to 32 bits.
            status: CompletionStatus::from_code(outcome.completion_status as u8),
            request: RequestId::new(outcome.request_id),
            posted,
            completed,
            unposted: requested.count.saturating_sub(whole),
            count: requested.count,
        }),
        Err(error) => Err(WorkError::Device { error, posted, completed, in_flight }),
    }
}

impl From<WorkError> for crate::Error {
    fn from(error: WorkError) -> Self {
        let kind = match &error {
            WorkError::Completion { status, request, .. } => {
                crate::ErrorKind::FailedRequest { request: *request, status: *status }
            }
            WorkError::Device { error, .. } => crate::ErrorKind::Device(*error),
            WorkError::Unsupported { .. } => crate::ErrorKind::Unsupported,
            WorkError::Launch(_) => crate::ErrorKind::Internal,
            _ => crate::ErrorKind::Argument,
        };
        Self::new(kind, error)
    }
}
