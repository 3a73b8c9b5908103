//! Completion statuses: how a request ended.

use std::fmt;

use efa_gda_sys::io;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $text:literal;)*) => {
        /// A completion's status (`enum efa_io_comp_status`). An unknown code stays a number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CompletionStatus {
            $($(#[$doc])* $name,)*
            /// A code that `efa_io_defs.h` does not have.
            Unknown(u8),
        }

        impl CompletionStatus {
            /// Every known status.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The status with this code.
            pub const fn from_code(code: u8) -> Self {
                match code as u32 {
                    $(io::$code => Self::$name,)*
                    _ => Self::Unknown(code),
                }
            }

            /// The code in the completion's status byte.
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$name => io::$code as u8,)*
                    Self::Unknown(code) => code,
                }
            }

            /// The constant's name in `efa_io_defs.h`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($code),)*
                    Self::Unknown(_) => "unknown",
                }
            }
        }

        impl fmt::Display for CompletionStatus {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($text),)*
                    Self::Unknown(code) => write!(f, "status {code}, which this version does not know"),
                }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    Ok = EFA_IO_COMP_STATUS_OK, "ok";
    /// The queue pair failed or was destroyed before the request ran.
    Flushed = EFA_IO_COMP_STATUS_FLUSHED, "flushed: the queue pair failed or was destroyed before the request ran";
    /// The queue pair failed inside the adapter.
    QueuePairInternal = EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR, "the queue pair failed inside the adapter";
    /// The adapter does not support the operation.
    UnsupportedOperation = EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP, "the adapter does not support this operation";
    /// The address handle does not exist, or belongs to another domain.
    InvalidAddressHandle = EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH, "the address handle does not exist, or does not belong to the queue pair's domain";
    /// The lkey does not cover the local memory.
    InvalidLocalKey = EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY, "the lkey is unknown or its region does not contain the local memory";
    /// The request is too long.
    BadLength = EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH, "the request is longer than the adapter moves at once";
    /// The rkey does not cover the remote memory.
    RemoteBadAddress = EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS, "the rkey is unknown or its region does not contain the remote memory";
    /// The remote side aborted the request.
    RemoteAbort = EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT, "the remote side aborted the request: its queue pair was reset, or its memory could not be written";
    /// The destination has no such queue pair.
    RemoteBadQueuePair = EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN, "the destination has no such queue pair, or it is in an error state";
    /// The receiver had no receive posted.
    ReceiverNotReady = EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR, "the receiver had no receive posted";
    /// The posted receive is shorter than the message.
    RemoteBadLength = EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH, "the receive that was posted is shorter than the message";
    /// The responder returned an unexpected status.
    RemoteBadStatus = EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS, "the responder returned an unexpected status";
    /// The remote stopped responding.
    UnresponsiveRemote = EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE, "the remote stopped responding";
    /// The remote has no address handle for the sender.
    UnknownPeer = EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER, "the remote holds no address handle for this sender";
    /// The remote never responded.
    UnreachableRemote = EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE, "the remote never responded";
    /// The two sides differ in a feature.
    FeatureMismatch = EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH, "the remote lacks a feature that the request needs";
}
