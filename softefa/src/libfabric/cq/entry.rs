//! Completions in the form in which libfabric returns them.

use std::ffi::c_int;
use std::ptr;

use efa_gda_sys::fi;
use efa_gda_wire::{Completion, CompletionKind, CompletionStatus, OperationCode};

/// The number of 8-byte words of an entry. A queue without a format has the shortest, as in the real
/// provider.
pub(super) fn entry_words(format: fi::fi_cq_format) -> usize {
    match format {
        fi::FI_CQ_FORMAT_MSG => 3,
        fi::FI_CQ_FORMAT_DATA => 5,
        fi::FI_CQ_FORMAT_TAGGED => 6,
        _ => 1,
    }
}

/// A completion as libfabric's entry. A request that the client posted itself has no context, so `op_context`
/// holds its request id.
pub(super) fn data_entry(completion: &Completion) -> fi::fi_cq_data_entry {
    let code = u32::from(completion.operation_code);
    let (mut flags, mut len, mut data) = match completion.kind {
        CompletionKind::Send if code == OperationCode::Write.get() => (fi::FI_RMA | fi::FI_WRITE, 0, None),
        CompletionKind::Send if code == OperationCode::Read.get() => (fi::FI_RMA | fi::FI_READ, 0, None),
        CompletionKind::Send => (fi::FI_MSG | fi::FI_SEND, 0, None),
        CompletionKind::Receive(info) if code == OperationCode::Write.get() => {
            (fi::FI_RMA | fi::FI_REMOTE_WRITE, info.length, info.immediate)
        }
        CompletionKind::Receive(info) => (fi::FI_MSG | fi::FI_RECV, info.length, info.immediate),
    };
    if data.is_some() {
        flags |= fi::FI_REMOTE_CQ_DATA;
    }
    if completion.status != CompletionStatus::Ok {
        (len, data) = (0, None);
    }
    fi::fi_cq_data_entry {
        op_context: ptr::without_provenance_mut(completion.id.get() as usize),
        flags,
        len: len as usize,
        buf: ptr::null_mut(),
        data: data.unwrap_or(0).into(),
    }
}

/// libfabric's error code for a status, as the real provider translates it (`efa_errno.h`).
pub(super) fn errno(status: CompletionStatus) -> c_int {
    use CompletionStatus as S;
    match status {
        S::Ok => 0,
        S::Flushed => libc::ECANCELED,
        S::QueuePairInternal
        | S::InvalidAddressHandle
        | S::InvalidLocalKey
        | S::UnsupportedOperation
        | S::RemoteBadAddress
        | S::FeatureMismatch => libc::EINVAL,
        S::UnreachableRemote => libc::EHOSTUNREACH,
        S::BadLength | S::RemoteBadLength => libc::EMSGSIZE,
        S::RemoteAbort | S::UnresponsiveRemote => libc::ECONNABORTED,
        S::RemoteBadQueuePair | S::UnknownPeer => libc::ENOTCONN,
        S::ReceiverNotReady => fi::FI_ENORX as c_int,
        S::RemoteBadStatus => libc::EREMOTEIO,
        _ => fi::FI_EOTHER as c_int,
    }
}
