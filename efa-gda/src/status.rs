//! How a call of device code ended: the statuses of `enum efa_gda_status` in
//! `kernels/include/efa_gda/queue.h`, which are the same on a GPU and on the host.

use efa_gda_sys::device;
use thiserror::Error;

/// A status of device code other than success (`enum efa_gda_status`).
#[derive(Clone, Copy, Debug, Error, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum DeviceError {
    /// A completion did not arrive within the bound.
    #[error(
        "no completion arrived within the bound; the queue is poisoned: destroy its endpoint before its buffers"
    )]
    TimeoutCompletion,
    /// The send queue stayed full for longer than the bound.
    #[error("the send queue stayed full past the bound because no request completed; the queue is poisoned")]
    TimeoutSlots,
    /// Another group owned the ticket lock for longer than the bound.
    #[error("the ticket lock of the send queue was not free within the bound; the queue is poisoned")]
    TimeoutLock,
    /// A request failed. The result holds the completion's status byte and the request id.
    #[error("a request completed with an error; see the status of its completion")]
    Completion,
    /// An earlier wait on this queue timed out or was aborted.
    #[error(
        "the queue is poisoned: an earlier wait on it timed out or was aborted, and the adapter may still own its \
         buffers"
    )]
    Poisoned,
    /// The host raised the queue's abort flag.
    #[error("the wait was aborted by the queue's abort flag")]
    Aborted,
    /// An argument that no entry can express, or that the queue's geometry does not allow.
    #[error("the queue cannot take an argument of this call")]
    BadArgument,
    /// The queue lacks what the call needs.
    #[error("the queue does not support this request")]
    Unsupported,
    /// A completion of another queue pair, or of an unexpected kind.
    #[error("the completion queue holds a completion that does not belong to this queue pair")]
    BadCompletion,
    /// The doorbell proxy refused a doorbell record that correct device code never writes.
    #[error(
        "the doorbell record moved backwards, past the ring, or over an entry that was not written; the host did not \
         ring for it, and the queue is poisoned"
    )]
    BadRecord,
    /// The doorbell proxy no longer rings for the queue.
    #[error("the doorbell proxy of this queue has stopped; destroy the queue, and start another proxy")]
    ProxyStopped,
    /// A kernel posts to the queue, or an owner did not close its `Sender`. As a poison: other groups posted while
    /// one group owned the queue.
    #[error(
        "the queue is in use: a kernel is posting to it, or a kernel that owned it returned without closing its Sender, \
         or other groups posted while one group owned it; wait for the kernel, and in the other cases destroy the queue"
    )]
    InUse,
    /// The kernel did not write a result.
    #[error(
        "the kernel stored no result: it was not launched, or it ended early; check the launch's CUDA error"
    )]
    NotRun,
    /// A status that this version does not know.
    #[error("unknown device status {0}")]
    Unknown(u32),
}

/// Converts the status that a kernel stored as a number.
///
/// # Errors
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
