//! The error of this library: what kind it is, for callers that match; its parts; and its text.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use efa_gda_wire::{CompletionStatus, RequestId};

use crate::status::DeviceError;

/// The result of a call of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value that the caller passed is wrong. Nothing was done.
    Argument,
    /// A request or a receive is longer than a limit. Nothing was posted.
    TooLong {
        /// The limit.
        limit: Limit,
        /// Bytes of the request.
        bytes: u64,
        /// Bytes that the limit allows.
        most: u64,
    },
    /// libfabric or rdma-core cannot be loaded.
    NoLibrary,
    /// No adapter was found, or none of the requested name.
    NoAdapter,
    /// An adapter was found, and libfabric does not offer the fabric `efa-direct` on it.
    NoDirectFabric,
    /// The fabric `efa-direct` is available, but not with this option of the query.
    WithoutOption(QueryOption),
    /// The provider's table does not have the operation ([`crate::fabric::GdaOps::available`] states why).
    Unavailable,
    /// The adapter, its driver, a library or this build lacks what was asked for.
    Unsupported,
    /// What the provider exposes breaks a rule. The queue must not be rung.
    Exposure,
    /// Other handles, requests in flight or launches use the object.
    Busy,
    /// Memory cannot be allocated.
    OutOfMemory,
    /// A bound of the caller passed, and nothing else happened: the queue is usable.
    TimedOut,
    /// Completions of receives were lost.
    Lost,
    /// A request completed with an error status. The queue stays usable, except after status 1 or 2.
    FailedRequest {
        /// The first failed request's id: a queue numbers its entries from 0, and the id is that number cut to the
        /// width of the queue's ids. It is not the index within the work request.
        request: RequestId,
        /// Its status.
        status: CompletionStatus,
    },
    /// The device library stopped: a wait ended at its bound, or was aborted. After a wait that timed out, the queue is
    /// poisoned, and keeps the regions of its requests until it is destroyed.
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

/// An option of [`crate::fabric::Query`] that some adapters lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueryOption {
    /// 128-byte send queue entries with inline RDMA write.
    WideEntries,
    /// GPU memory (FI_HMEM).
    GpuMemory,
    /// Objects that are exported to a device (FI_XPU).
    Xpu,
    /// Completions that the host reads through libfabric, without FI_CONTEXT2.
    HostCompletions,
}

impl QueryOption {
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::WideEntries => "query 64-byte entries: this adapter, or rdma-core before 63, has no others",
            Self::GpuMemory => {
                "run where libcuda.so.1 can be loaded with a libfabric built with CUDA, unset \
                 FI_HMEM_DISABLE_P2P, or query host memory only"
            }
            Self::Xpu => {
                "use a libfabric (2.7 or newer) whose efa provider offers FI_XPU, or query without it"
            }
            Self::HostCompletions => {
                "use libfabric 2.7 or newer, or let the GPU or this library poll the completion queue in memory"
            }
        }
    }
}

impl fmt::Display for QueryOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WideEntries => "128-byte entries",
            Self::GpuMemory => "GPU memory (FI_HMEM)",
            Self::Xpu => "objects that are exported to a device (FI_XPU)",
            Self::HostCompletions => "completions that the host reads (without FI_CONTEXT2)",
        })
    }
}

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

/// Why a call of this library failed. Its text states what happened and what to do; match [`Self::kind`].
pub struct Error(Box<Parts>);

struct Parts {
    kind: ErrorKind,
    what: Cow<'static, str>,
    hint: Cow<'static, str>,
    operation: Option<&'static str>,
    code: Option<i32>,
    progress: Option<Progress>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

/// How far a work request came that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Entries posted (`efa_gda_put_result::posted`).
    pub posted: u64,
    /// Completions read, including those of earlier requests.
    pub completed: u64,
    /// Transfers of which not all entries were posted.
    pub unposted: u64,
    /// Transfers asked for.
    pub count: u64,
    /// Requests of the queue in flight.
    pub in_flight: u32,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Parts {
            kind,
            what: what.into(),
            hint: Cow::Borrowed(""),
            operation: None,
            code: None,
            progress: None,
            cause: None,
        }))
    }

    pub(crate) fn argument(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Argument, what)
    }

    pub(crate) fn unsupported(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, what)
    }

    pub(crate) fn busy(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Busy, what)
    }

    pub(crate) fn out_of_memory(bytes: usize) -> Self {
        Self::new(ErrorKind::OutOfMemory, format!("host memory of length {bytes} could not be allocated"))
            .with_hint("free memory, or raise the memory limit of the process")
    }

    /// Sets what to do about the error, where `what` does not state it.
    pub(crate) fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = hint.into();
        self
    }

    /// Sets the call that failed or was not made.
    pub(crate) fn in_call(mut self, operation: &'static str) -> Self {
        self.0.operation = Some(operation);
        self
    }

    pub(crate) fn with_code(mut self, code: i32) -> Self {
        self.0.code = Some(code);
        self
    }

    pub(crate) fn with_progress(mut self, progress: Progress) -> Self {
        self.0.progress = Some(progress);
        self
    }

    /// Sets the cause, whose text `what` contains.
    pub(crate) fn caused_by(mut self, cause: impl StdError + Send + Sync + 'static) -> Self {
        self.0.cause = Some(Box::new(cause));
        self
    }

    /// The same error, as that of another object or step: `text` comes first.
    pub(crate) fn within(mut self, text: impl fmt::Display) -> Self {
        self.0.what = format!("{text}: {}", self.0.what).into();
        self
    }

    /// The same failed call, as an error of another kind, with other texts.
    #[cfg(feature = "verbs")]
    pub(crate) fn with_text(&self, kind: ErrorKind, what: String, hint: &'static str) -> Self {
        let mut error = Self::new(kind, what).with_hint(hint);
        (error.0.operation, error.0.code) = (self.operation(), self.code());
        error
    }

    /// The same error, of another kind.
    pub(crate) fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// This error of libfabric, with that of rdma-core.
    pub(crate) fn and_rdma_core(&self, other: &Self) -> Self {
        Self::new(self.kind(), format!("with libfabric, {self}; with rdma-core, {other}"))
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns what happened, on which object: the text without the hint.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Returns what to do about it. Empty where [`Self::what`] states it.
    pub fn hint(&self) -> &str {
        &self.0.hint
    }

    /// Returns the call that failed or was not made, in the terms of its library: `fi_domain`, `fi_close(endpoint)`,
    /// `ibv_modify_qp(RTR)`, `cuMemAlloc_v2`. None where no call is concerned.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// Returns the number with which [`Self::operation`] failed: for libfabric a negative errno, or one of its own errors
    /// from -256 down; for rdma-core an errno; for CUDA a `CUresult`. None where no call returned one.
    pub fn code(&self) -> Option<i32> {
        self.0.code
    }

    /// Returns how far a work request came. None where none was posted.
    pub fn progress(&self) -> Option<Progress> {
        self.0.progress
    }

    /// Returns the cause, if it is a `T` of another library. The text of the error contains the cause's.
    pub fn cause<T: StdError + 'static>(&self) -> Option<&T> {
        self.0.cause.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)?;
        if self.0.hint.is_empty() { Ok(()) } else { write!(f, "; {}", self.0.hint) }
    }
}

/// Its text contains that of its cause, so it has no source.
impl StdError for Error {}

/// A call that takes a queue, and did not do what was asked. The queue is handed back, unless it is gone.
#[derive(Debug)]
#[non_exhaustive]
pub struct Refused<Q> {
    /// Why.
    pub error: Error,
    /// The queue as it was. None where a part of it could not be destroyed: what it refers to then stays allocated.
    pub queue: Option<Box<Q>>,
}

impl<Q> Refused<Q> {
    pub(crate) fn new(error: Error, queue: impl Into<Box<Q>>) -> Self {
        Self { error, queue: Some(queue.into()) }
    }

    pub(crate) fn gone(error: Error) -> Self {
        Self { error, queue: None }
    }
}

impl<Q> fmt::Display for Refused<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<Q: fmt::Debug> StdError for Refused<Q> {}

impl<Q> From<Refused<Q>> for Error {
    fn from(refused: Refused<Q>) -> Self {
        refused.error
    }
}
