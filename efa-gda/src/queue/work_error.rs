//! What comes of a put, and why one is not posted.

use std::fmt;

use efa_gda_wire::{CompletionStatus, RequestId};

use crate::executor::DeviceError;
use crate::executor::host::{KernelOutcome, LaunchError};
use crate::fabric::{self, Access};

/// A limit that a request's length has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// The port's `max_msg_sz`: a send.
    Message,
    /// The device's `max_rdma_size`: one entry of an RDMA read or write.
    Rdma,
    /// What an entry carries inline: 32 bytes of a 64-byte one, 80 of a 128-byte one.
    Inline,
    /// What a receive descriptor can say: 65535.
    Receive,
}

impl Limit {
    /// What to do about it.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Message => "send it in parts, or write it",
            Self::Rdma => "split it, or let the engine",
            Self::Inline => "give it as registered memory; 128-byte entries carry more than 64-byte ones",
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

/// What a put that went well did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkReport {
    /// Entries rung; more than requests where one is longer than the adapter moves at once.
    pub posted: u64,
    /// Completions read.
    pub completed: u64,
}

/// Why a put was not posted, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The bytes do not lie in the region, or its key could not be had. Nothing was posted.
    #[error("{side} memory: {source}")]
    Region {
        /// `local` or `remote`.
        side: &'static str,
        /// What is wrong.
        source: fabric::Error,
    },
    /// The region was not registered for this. Nothing was posted.
    #[error("the local region was registered for {:#x}, and this needs {:#x}: register it with that access", .has.bits(), .needs.bits())]
    Access {
        /// What the region allows.
        has: Access,
        /// What the request needs.
        needs: Access,
    },
    /// More bytes than one request of this kind carries. Nothing was posted.
    #[error("{bytes} bytes are more than {limit} allows, which is {most}; {}", .limit.hint())]
    TooLong {
        /// The limit.
        limit: Limit,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that it allows.
        most: u64,
    },
    /// The queue or the adapter has no such operation. Nothing was posted.
    #[error("{operation} is not possible on this queue: {why}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// What is missing.
        why: &'static str,
    },
    /// The bytes of an inline request lie where this CPU cannot read them. Nothing was posted.
    #[error(
        "the local region is not memory that this CPU can read, and an inline request carries its bytes: name the \
         memory with a put that is not inline, or post from the GPU that has it"
    )]
    Unreadable,
    /// The queue is lent, and those whom it is lent to post to it. Nothing was posted.
    #[error("the queue is lent to {launches} launch(es); wait for them and drop what was lent")]
    LaunchGuard {
        /// Values of [`super::LaunchGuard`] that live.
        launches: usize,
    },
    /// More entries than can be counted. Nothing was posted.
    #[error("{count} requests of {each} entries each are more than can be counted; put fewer at once")]
    TooMany {
        /// Requests.
        count: u64,
        /// Entries that each takes.
        each: u64,
    },
    /// The GPU failed, or could not start the kernel.
    #[error(transparent)]
    Gpu(#[from] crate::gpu::Error),
    /// The executor did not start. Nothing was posted.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A request completed with an error, which ends a put that is not all posted. The queue can be used on.
    #[error("request id {request} completed with status {}: {status} ({})", .status.code(), got(*posted, *completed, *unposted, *count))]
    Completion {
        /// How it ended.
        status: CompletionStatus,
        /// The first one's request id: a queue numbers its entries from 0 on, and the id is that number, cut to
        /// as many bits as the queue's ids have. Not the number of the put's request.
        request: RequestId,
        /// Entries rung.
        posted: u64,
        /// Completions read, those of earlier requests among them.
        completed: u64,
        /// Requests of the put that were not posted, or not all of their entries.
        unposted: u64,
        /// Requests of the put.
        count: u64,
    },
    /// The device library stopped for another reason. After a wait that ran out the queue is
    /// poisoned and keeps the region until its endpoint is destroyed.
    #[error("{error} ({completed} of {posted} entries completed, {in_flight} in flight)")]
    Device {
        /// What it said.
        error: DeviceError,
        /// Entries rung.
        posted: u64,
        /// Completions read.
        completed: u64,
        /// Requests of the queue that the adapter has not completed.
        in_flight: u32,
    },
}

/// How far a put got whose request failed; one of nothing posts nothing.
fn got(posted: u64, completed: u64, unposted: u64, count: u64) -> String {
    let mut words = format!("{completed} completions read");
    if posted != 0 {
        words += &format!(", {posted} entries posted");
    }
    if unposted != 0 {
        words += &format!(", {unposted} of {count} requests not posted");
    }
    words
}

/// What a put asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// Requests.
    pub(super) count: u64,
    /// Entries of each.
    pub(super) each: u64,
}

/// What a put's outcome means; `in_flight` requests are left on the queue.
pub(super) fn report(outcome: KernelOutcome, in_flight: u32, asked: Asked) -> Result<WorkReport, WorkError> {
    let (posted, completed) = (outcome.posted, outcome.completed);
    let whole = posted.checked_div(asked.each).unwrap_or(0);
    match outcome.status {
        Ok(()) => Ok(WorkReport { posted, completed }),
        Err(DeviceError::Completion) => Err(WorkError::Completion {
            // The status is one byte of the completion, widened for the report.
            status: CompletionStatus::from_code(outcome.completion_status as u8),
            request: RequestId::new(outcome.request_id),
            posted,
            completed,
            unposted: asked.count.saturating_sub(whole),
            count: asked.count,
        }),
        Err(error) => Err(WorkError::Device { error, posted, completed, in_flight }),
    }
}
