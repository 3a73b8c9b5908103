//! The error of a [`Queue`](crate::Queue): what kind it is, for callers that match, and its text.

use std::error::Error as StdError;
use std::fmt;

use efa_gda_wire::{CompletionStatus, RequestId};

use crate::error_chain;
use crate::status::DeviceError;

/// The result of a call of a [`Queue`](crate::Queue).
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value that the caller passed is wrong. Nothing was done.
    Argument,
    /// No library or no adapter was found.
    NoAdapter,
    /// The adapter, its driver, a library or this build lacks what was asked for.
    Unsupported,
    /// What the provider exposes breaks a rule.
    Exposure,
    /// Other handles, requests in flight or launches use the object.
    Busy,
    /// Memory cannot be allocated.
    OutOfMemory,
    /// A bound of the caller passed, and nothing else happened: the queue is usable.
    TimedOut,
    /// Completions of receives were lost.
    Lost,
    /// A request completed with an error status.
    FailedRequest {
        /// The first failed request.
        request: RequestId,
        /// Its status.
        status: CompletionStatus,
    },
    /// The device library stopped: a wait ended at its bound, or was aborted. The queue is poisoned.
    Device(DeviceError),
    /// The GPU failed, or refused memory.
    Gpu,
    /// The GPU's context is lost with everything in it.
    GpuLost,
    /// This process could not start a thread, or lanes of the host executor.
    Internal,
    /// A call of libfabric or rdma-core failed otherwise.
    Other,
}

/// Why a call of a [`Queue`](crate::Queue) failed. Its text states what happened and what to do; match [`Self::kind`].
pub struct Error {
    kind: ErrorKind,
    cause: Box<dyn StdError + Send + Sync>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, cause: impl StdError + Send + Sync + 'static) -> Self {
        Self { kind, cause: Box::new(cause) }
    }

    pub(crate) fn unsupported(text: &str) -> Self {
        Self { kind: ErrorKind::Unsupported, cause: text.into() }
    }

    pub(crate) fn argument(text: &str) -> Self {
        Self { kind: ErrorKind::Argument, cause: text.into() }
    }

    pub(crate) fn busy(text: String) -> Self {
        Self { kind: ErrorKind::Busy, cause: text.into() }
    }

    pub(crate) fn out_of_memory(bytes: usize) -> Self {
        let text = format!("{bytes} bytes cannot be allocated: free memory, or ask for less");
        Self { kind: ErrorKind::OutOfMemory, cause: text.into() }
    }

    /// This error of libfabric, with that of rdma-core.
    pub(crate) fn and_rdma_core(&self, other: &Self) -> Self {
        Self { kind: self.kind, cause: format!("with libfabric, {self}; with rdma-core, {other}").into() }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        error_chain(&*self.cause).fmt(f)
    }
}

/// Its text contains those of its causes, so it has no source.
impl StdError for Error {}
