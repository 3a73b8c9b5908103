//! Running device code.
//!
//! [`host`] runs the kernels of `kernels/` on a CPU. Statuses are those of `enum efa_gda_status` in
//! `kernels/include/efa_gda/queue.h`, the same wherever a kernel runs.

pub mod host;

use efa_gda_sys::device;
use thiserror::Error;

/// How a kernel's call or wait ended, where it did not end well (`enum efa_gda_status`).
#[derive(Clone, Copy, Debug, Error, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum DeviceError {
    /// A completion did not come within the bound.
    #[error("no completion within the bound; the queue is poisoned, destroy its endpoint before its buffers")]
    TimeoutCompletion,
    /// The send queue stayed full for longer than the bound.
    #[error("the send queue stayed full past the bound: no completions; the queue is poisoned")]
    TimeoutSlots,
    /// Another producer held the turn for longer than the bound.
    #[error("the turn to ring did not come within the bound; the queue is poisoned")]
    TimeoutLock,
    /// A request failed; the result has the completion's status byte and the request id.
    #[error("a request completed with an error; the completion's status says which")]
    Completion,
    /// An earlier wait on this queue ran out.
    #[error(
        "the queue is poisoned: an earlier wait on it ran out or was aborted, and the adapter may still own its buffers"
    )]
    Poisoned,
    /// The host raised the queue's abort flag.
    #[error("aborted by the queue's abort flag")]
    Aborted,
    /// An argument that no entry can express, or that the queue's geometry rules out.
    #[error("an argument that the queue cannot take")]
    BadArgument,
    /// The queue lacks what was asked for.
    #[error("the queue does not support this request")]
    Unsupported,
    /// A completion of another queue pair, or of a kind not expected.
    #[error("a completion that does not belong to this queue pair")]
    BadCompletion,
    /// The host rang nothing for a doorbell record that no device code leaves.
    #[error(
        "the doorbell record ran backwards, past the ring, or over an entry that was not written; the host rang \
         nothing for it, and the queue is poisoned"
    )]
    BadRecord,
    /// Nobody rings for the queue.
    #[error(
        "the host thread that rings for this queue has stopped; destroy the queue, and start another proxy"
    )]
    ProxyStopped,
    /// A kernel posts to the queue, or one that owned it did not close it; as a poison, others posted while one
    /// group owned it.
    #[error(
        "the queue is in use: a kernel posts to it, which ends, or one that owned it returned without closing its \
         Sender, or others posted while one group owned it; after these, destroy the queue"
    )]
    InUse,
    /// The kernel never wrote a result.
    #[error("the kernel did not run to its end")]
    NotRun,
    /// A status that this version does not know.
    #[error("unknown device status {0}")]
    Unknown(u32),
}

/// The outcome that a kernel stored as a number.
///
/// # Errors
///
/// Every status but `EFA_GDA_OK`.
pub fn outcome(status: u32) -> Result<(), DeviceError> {
    Err(match status {
        device::EFA_GDA_OK => return Ok(()),
        device::EFA_GDA_TIMEOUT_COMPLETION => DeviceError::TimeoutCompletion,
        device::EFA_GDA_TIMEOUT_SLOTS => DeviceError::TimeoutSlots,
        device::EFA_GDA_TIMEOUT_LOCK => DeviceError::TimeoutLock,
        device::EFA_GDA_COMPLETION_ERROR => DeviceError::Completion,
        device::EFA_GDA_POISONED => DeviceError::Poisoned,
        device::EFA_GDA_ABORTED => DeviceError::Aborted,
        device::EFA_GDA_BAD_ARGUMENT => DeviceError::BadArgument,
        device::EFA_GDA_UNSUPPORTED => DeviceError::Unsupported,
        device::EFA_GDA_BAD_COMPLETION => DeviceError::BadCompletion,
        device::EFA_GDA_BAD_RECORD => DeviceError::BadRecord,
        device::EFA_GDA_PROXY_STOPPED => DeviceError::ProxyStopped,
        device::EFA_GDA_IN_USE => DeviceError::InUse,
        device::EFA_GDA_NOT_RUN => DeviceError::NotRun,
        other => DeviceError::Unknown(other),
    })
}
