//! How a call of device code ended: the statuses of `enum efa_gda_status` in
//! `kernels/include/efa_gda/queue.h`, which are the same on a GPU and on the host.

use efa_gda_sys::device;
use thiserror::Error;

/// A status of device code other than success (`enum efa_gda_status`).
#[derive(Clone, Copy, Debug, Error, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum DeviceError {
    /// For as long as the bound, no request completed. A wait of the send side then poisons the queue.
    #[error(
        "EFA_GDA_TIMEOUT_COMPLETION: no request completed within the bound; check the peer and the network, or wait \
         longer; if requests are in flight, the queue is poisoned: destroy its endpoint before you free its buffers"
    )]
    TimeoutCompletion,
    /// The send or receive queue stayed full for longer than the bound. A wait of the send side then poisons the queue.
    #[error(
        "EFA_GDA_TIMEOUT_SLOTS: the queue stayed full past the bound because too few requests completed; if it is the send queue, it is \
         poisoned: destroy its endpoint before you free its buffers"
    )]
    TimeoutSlots,
    /// For as long as the bound, the ticket lock was not passed on and no request completed; or another thread owned
    /// the receive lock, and posted and took nothing. A wait for the ticket lock then poisons the queue.
    #[error(
        "EFA_GDA_TIMEOUT_LOCK: the lock of the send or receive queue was not passed on within the bound; if it is the send queue, it is \
         poisoned: destroy it, and check that every kernel closes its Sender"
    )]
    TimeoutLock,
    /// A request failed. The result holds the completion's status byte and the request id.
    #[error(
        "EFA_GDA_COMPLETION_ERROR: a request completed with an error; read the completion status and the request id in \
         the result, and run gda-probe explain STATUS-N for the causes of status N"
    )]
    Completion,
    /// An earlier call poisoned the queue. `MappedQueue::poison` returns the reason.
    #[error(
        "EFA_GDA_POISONED: an earlier call poisoned the queue, and the adapter may still access its buffers; read the \
         reason (MappedQueue::poison; in C, poison of efa_gda_mapped_poll), and destroy the queue"
    )]
    Poisoned,
    /// The host raised the queue's abort flag.
    #[error(
        "EFA_GDA_ABORTED: the host raised the queue's abort flag, which ended the wait; if requests are in flight, the queue is \
         poisoned: destroy it"
    )]
    Aborted,
    /// An argument that no entry can express, or that the queue's geometry does not allow.
    #[error(
        "EFA_GDA_BAD_ARGUMENT: an argument of the call cannot be expressed by an entry or exceeds a limit of the queue, \
         or the Sender is closed; compare the arguments with the limits (MappedQueue::limits; in C, \
         efa_gda_mapped_describe)"
    )]
    BadArgument,
    /// The queue lacks what the call needs.
    #[error(
        "EFA_GDA_UNSUPPORTED: the queue lacks a feature that the call needs, such as RDMA, 128-byte entries, a receive queue or a request \
         table; open the queue with this feature"
    )]
    Unsupported,
    /// A completion of another queue pair, or of an unexpected kind.
    #[error(
        "EFA_GDA_BAD_COMPLETION: the completion queue holds a completion that does not belong to this queue pair; destroy the queue, and open \
         one whose completion queue nothing else uses"
    )]
    BadCompletion,
    /// The doorbell proxy refused a doorbell record that correct device code never writes.
    #[error(
        "EFA_GDA_BAD_RECORD: the doorbell record moved backwards, past the ring, or over an entry that was not written; the doorbell proxy \
         no longer rings for the queue: destroy it"
    )]
    BadRecord,
    /// The doorbell proxy no longer rings for the queue, because it was stopped or the queue was detached.
    #[error(
        "EFA_GDA_PROXY_STOPPED: the doorbell proxy of this queue has stopped or has detached it; destroy the queue, and open one with a proxy \
         that runs"
    )]
    ProxyStopped,
    /// A kernel posts to the queue, or an owner did not close its `Sender`. As a poison: other groups posted while
    /// one group owned the queue.
    #[error(
        "EFA_GDA_IN_USE: the queue is in use: a kernel is posting to it, or a kernel that owned it returned without closing its \
         Sender, or other groups posted while one group owned it; wait for the kernel, and in the other cases destroy \
         the queue"
    )]
    InUse,
    /// Not all requests of the call are done. Only calls that do not wait (`Sender::test`) return it.
    #[error("EFA_GDA_IN_FLIGHT: requests of the call are still in flight; test again, or wait for them")]
    InFlight,
    /// A peer's signal did not arrive within the bound.
    #[error(
        "EFA_GDA_TIMEOUT_SIGNAL: the peer's signal did not arrive within the bound; check the status of the peer's call \
         and the signal's address"
    )]
    TimeoutSignal,
    /// The kernel did not write a result.
    #[error(
        "EFA_GDA_NOT_RUN: the kernel stored no result: it was not launched, or it ended early; check the launch's CUDA error"
    )]
    NotRun,
    /// A status that this version does not know.
    #[error(
        "status {0} of the kernel is no value of enum efa_gda_status in this version; compile the kernel with this \
         version's headers"
    )]
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
        device::EFA_GDA_IN_FLIGHT => DeviceError::InFlight,
        device::EFA_GDA_TIMEOUT_SIGNAL => DeviceError::TimeoutSignal,
        device::EFA_GDA_NOT_RUN => DeviceError::NotRun,
        other => DeviceError::Unknown(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names and numbers of `enum efa_gda_status` in the header.
    fn of_header() -> Vec<(&'static str, u32)> {
        let header = include_str!("../kernels/include/efa_gda/queue.h");
        let body = header.split("enum efa_gda_status {").nth(1).and_then(|rest| rest.split('}').next());
        let value = |line: &'static str| {
            let (name, number) = line.trim().split_once(" = ")?;
            Some((name, number.split(',').next()?.trim().parse().ok()?))
        };
        body.expect("the enum").lines().filter_map(value).collect()
    }

    #[test]
    fn a_message_begins_with_the_name_that_device_code_uses() {
        let statuses = of_header();
        assert!(statuses.len() > 10, "{statuses:?}");
        for (name, number) in statuses.into_iter().filter(|(_, number)| *number != device::EFA_GDA_OK) {
            let text = outcome(number).expect_err("an error").to_string();
            assert!(text.starts_with(&format!("{name}: ")) && text.contains("; "), "{number}: {text}");
        }
    }
}
