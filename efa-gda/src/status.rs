//! How a call of device code ended: the statuses of `enum efa_gda_status` in
//! `kernels/include/efa_gda/queue.h`, which are the same on a GPU and on the host.

use efa_gda_sys::device;
use thiserror::Error;

/// A status of device code other than success (`enum efa_gda_status`).
///
/// The bound of a wait begins again with each progress: for most waits, each request that completes. *Send side* means
/// waits of a `Sender`: for the turn, for free slots, and for requests. One whose bound runs out (`post.h` lists
/// two exceptions), or that is aborted, poisons the queue. A wait of the receive side poisons nothing, unless it reads
/// a completion of another queue pair.
#[derive(Clone, Copy, Debug, Error, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum DeviceError {
    /// The bound of a wait for completions ran out: no request completed or, on the receive side, nothing arrived.
    #[error(
        "EFA_GDA_TIMEOUT_COMPLETION: no request completed, or nothing arrived, within the bound; check the peer and the \
         network, or wait longer; after a wait for requests the queue is poisoned: destroy its endpoint before you free \
         its buffers"
    )]
    TimeoutCompletion,
    /// The bound of a wait for free slots of the send or receive queue ran out: too few requests or receives completed.
    #[error(
        "EFA_GDA_TIMEOUT_SLOTS: the send or receive queue stayed full past the bound, because too few requests or \
         receives completed; if it is the send queue, it is poisoned: destroy its endpoint before you free its buffers"
    )]
    TimeoutSlots,
    /// The bound of a wait for a lock or a turn ran out. For the turn of a shared queue: it was not passed on, and no
    /// request completed. For the lock of the receive side: the thread that holds it posted no receive and took no completion.
    #[error(
        "EFA_GDA_TIMEOUT_LOCK: the turn of the send queue, or the lock of the receive queue, was not passed on within the bound; if it is the \
         send queue, it is poisoned: destroy it, and check that every kernel closes its Sender"
    )]
    TimeoutLock,
    /// A request failed. The result holds the completion's status byte and the request id.
    #[error(
        "EFA_GDA_COMPLETION_ERROR: a request completed with an error; read the completion status and the request id in \
         the result, and run gda-probe explain STATUS-N for the causes of status N"
    )]
    Completion,
    /// The queue was poisoned by an earlier call, or because a completion of another queue pair was read.
    /// `MappedQueue::poison` returns the reason.
    #[error(
        "EFA_GDA_POISONED: the queue is out of service, and the adapter may still access its buffers; read the \
         reason (MappedQueue::poison; in C, poison of efa_gda_queue_poll), and destroy the queue"
    )]
    Poisoned,
    /// The host raised the queue's abort flag, which ended the wait.
    #[error(
        "EFA_GDA_ABORTED: the host raised the queue's abort flag, which ended the wait; if it was a wait to post or for \
         requests, the queue is poisoned: destroy it"
    )]
    Aborted,
    /// An argument that no entry can express, or that exceeds a limit of the queue; a `Sender` that is closed; or a
    /// group that cannot post.
    #[error(
        "EFA_GDA_BAD_ARGUMENT: an argument of the call cannot be expressed by an entry or exceeds a limit of the queue, \
         or the Sender is closed; compare the arguments with the limits (MappedQueue::limits; in C, \
         efa_gda_queue_describe)"
    )]
    BadArgument,
    /// The queue lacks what the call needs.
    #[error(
        "EFA_GDA_UNSUPPORTED: the queue lacks a feature that the call needs, such as RDMA, 128-byte entries, a receive \
         queue, a request table or stores of 16 bytes; open the queue with this feature"
    )]
    Unsupported,
    /// A completion of another queue pair, or of an unexpected kind; or the counts of requests are wrong, as after
    /// completions of another queue pair.
    #[error(
        "EFA_GDA_BAD_COMPLETION: the completion queue, or the completion counter, has a completion that does not belong \
         to this queue pair; destroy the queue, and open one whose completion queue and counter nothing else uses"
    )]
    BadCompletion,
    /// The doorbell proxy refused a doorbell record that correct device code never writes.
    #[error(
        "EFA_GDA_BAD_RECORD: the doorbell record moved backwards, too far ahead of the last doorbell, or over an entry \
         that was not written; the doorbell proxy no longer rings for the queue: destroy it"
    )]
    BadRecord,
    /// The doorbell proxy no longer rings for the queue, or no longer relays its completions, because the proxy was
    /// stopped or the queue was detached.
    #[error(
        "EFA_GDA_PROXY_STOPPED: the doorbell proxy of this queue has stopped or has detached it; destroy the queue, and \
         open one with a proxy that runs"
    )]
    ProxyStopped,
    /// A group cannot own the queue, because another group posts to it or owns it, or an owner did not close its
    /// `Sender`. As the reason of a poison: another group posted while a group owned the queue.
    #[error(
        "EFA_GDA_IN_USE: the queue is in use: a kernel is posting to it, or a kernel that owned it returned without \
         closing its Sender, or other groups posted while one group owned it; wait for the kernel, and in the other \
         cases destroy the queue"
    )]
    InUse,
    /// Not all requests of the call are done. Only calls that do not wait for them return it: `Sender::test`, and
    /// others with timeout 0.
    #[error("EFA_GDA_IN_FLIGHT: requests of the call are still in flight; test again, or wait for them")]
    InFlight,
    /// A peer's signal did not arrive within the bound. Poisons nothing.
    #[error(
        "EFA_GDA_TIMEOUT_SIGNAL: the peer's signal did not arrive within the bound; check the status of the peer's call \
         and the signal's address"
    )]
    TimeoutSignal,
    /// A post that does not wait found too few free slots (`kPostTry`). Poisons nothing.
    #[error(
        "EFA_GDA_NO_ROOM: the send queue has too few free slots and nothing was posted; post again later"
    )]
    NoRoom,
    /// The kernel did not store a result. As the reason of a poison: the queue's state in the GPU's memory was lost, or
    /// a kernel that the library launched may still run.
    #[error(
        "EFA_GDA_NOT_RUN: the kernel stored no result (it was not launched, or it ended early), or the queue's state in \
         the GPU's memory was lost; check the launch's CUDA error, and destroy a queue that is poisoned"
    )]
    NotRun,
    /// A status that this version does not know.
    #[error(
        "the kernel stored status {0}, which enum efa_gda_status of this version does not have; compile the kernel with \
         this version's headers"
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
        device::EFA_GDA_NO_ROOM => DeviceError::NoRoom,
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
