//! Errors of [`crate::fabric`].
//!
//! [`Error`] names the operation, what happened and what to do next. [`FailedCall`] holds the error code and
//! libfabric's text for it.

use std::fmt;

use efa_gda_sys::LoadError;

use super::Version;
use crate::memory::OutOfBounds;

mod text;

/// The result of an operation of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// A call into libfabric that returned an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedCall {
    /// The call: `fi_domain`, `fi_close(endpoint)`, `query_cq`.
    pub operation: &'static str,
    /// The code that it returned: a negative errno, or a libfabric error of -256 and below.
    pub code: i32,
    /// libfabric's text for the code, or the system's where no libfabric is loaded.
    pub text: String,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {} ({})", self.operation, self.text, self.code)
    }
}

/// Why an operation of the GDA table is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnavailableReason {
    /// The table has a null pointer for the operation.
    NullPointer,
    /// The table of this provider release ends before the operation.
    ProviderTooOld {
        /// The provider's version (`fi_fabric_attr::prov_version`).
        has: Version,
        /// The first version that has the operation.
        needs: Version,
    },
    /// The table ends before the operation, although its provider's release has it: the memory after the table
    /// cannot be read, or holds no address of code.
    TableEndsEarly {
        /// The provider's release.
        has: Version,
    },
    /// The domain was borrowed without its `fi_info`, so the length of the table is not known.
    NoInfo,
}

impl fmt::Display for UnavailableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NullPointer => f.write_str("the provider's table has a null pointer for it"),
            Self::ProviderTooOld { has, needs } => {
                write!(f, "efa provider {has} does not have it; provider {needs} is the first that has")
            }
            Self::TableEndsEarly { has } => {
                write!(f, "the provider's table ends before it, although efa provider {has} should have it")
            }
            Self::NoInfo => f.write_str(
                "the domain was borrowed without its fi_info, so the length of the table is not known",
            ),
        }
    }
}

/// Why an operation of this module failed. Its text states what happened and what to do; [`Error::operation`],
/// [`Error::code`] and [`Error::hint`] return the parts. The text contains the cause, so `source` returns none.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// libfabric could not be loaded.
    Load(LoadError),
    /// libfabric has no efa provider with an adapter.
    NoAdapter(FailedCall),
    /// There is an efa provider, but it does not offer the fabric `efa-direct`.
    NoDirectFabric {
        /// The failed query.
        failure: FailedCall,
        /// The fabrics that the efa provider offers.
        fabrics: Vec<String>,
    },
    /// `efa-direct` is available, but not with an option of the query.
    OptionNotAvailable {
        /// The failed query. It succeeds without the option.
        failure: FailedCall,
        /// The option.
        option: QueryOption,
    },
    /// No adapter has the requested name.
    NoSuchAdapter {
        /// The requested name.
        wanted: String,
        /// The adapters that were found.
        found: Vec<String>,
    },
    /// The domain's fabric is not `efa-direct` (`fi_open_ops` returned EOPNOTSUPP).
    GdaNotOnThisFabric(FailedCall),
    /// The provider does not have the GDA operations (`fi_open_ops` returned EINVAL or ENOSYS).
    GdaUnknown {
        /// The failed call.
        failure: FailedCall,
        /// The provider's version, where the domain has its `fi_info`.
        provider: Option<Version>,
    },
    /// The provider is of libfabric 2.2, which has these operations in another table.
    GdaInDomainOps(FailedCall),
    /// The provider returned the table, although its release is not known to have one.
    GdaTableUnknown {
        /// The provider's release.
        provider: Version,
    },
    /// The operation of the GDA table is unavailable.
    OperationUnavailable {
        /// The operation.
        operation: &'static str,
        /// Why it is unavailable.
        reason: UnavailableReason,
    },
    /// libfabric was built without support for the operation (ENOSYS from a GDA operation).
    NotBuiltIn(FailedCall),
    /// The adapter or its driver lacks the capability (EOPNOTSUPP from a GDA operation).
    AdapterLacks(FailedCall),
    /// The address is not in the endpoint's address vector (EINVAL from `query_addr`).
    UnknownAddress(FailedCall),
    /// The address has a different length than addresses of efa endpoints.
    AddressLength {
        /// Bytes of the address that was passed.
        length: usize,
        /// Bytes of an efa endpoint's address.
        expected: usize,
    },
    /// The address vector did not accept the address.
    AddressRefused {
        /// The failed call, where `fi_av_insert` returned a negative code.
        failure: Option<FailedCall>,
        /// Length of the address, in bytes.
        length: usize,
    },
    /// The memory region has no such key (FI_KEY_NOTAVAIL).
    KeyNotAvailable {
        /// The call that returned it.
        operation: &'static str,
    },
    /// The memory region's key has more bits than an entry carries.
    KeyTooWide {
        /// The call that returned it.
        operation: &'static str,
        /// The key.
        key: u64,
        /// Bits that an entry has for it.
        bits: u32,
    },
    /// The object's operation table is null, too short, or has a null pointer for the operation.
    FunctionMissing {
        /// The call.
        operation: &'static str,
        /// The table's `size` in bytes; 0 where there is no table.
        table_bytes: usize,
    },
    /// The call reported success and returned no object.
    NoObject {
        /// The call.
        operation: &'static str,
    },
    /// An address of one address vector was passed to another one.
    OtherAddressVector {
        /// The call, which was not made.
        operation: &'static str,
    },
    /// An info of one libfabric was passed to another one, whose structures may be longer.
    OtherLibrary {
        /// The call, which was not made.
        operation: &'static str,
    },
    /// A mapped queue polls the completion queue. It would take completions of another endpoint for its own.
    CompletionQueuePolled,
    /// A mapped queue relies on the completion counter, so no other endpoint may use it.
    CounterInUse,
    /// Host memory is short.
    OutOfMemory {
        /// Bytes needed.
        bytes: usize,
    },
    /// Objects that a call needs belong to different domains.
    OtherDomain {
        /// The call, which was not made.
        operation: &'static str,
    },
    /// Other handles use the object. `close` dropped its handle; the last handle closes the object.
    Busy {
        /// The object that was not closed.
        what: &'static str,
        /// The number of other handles.
        holders: usize,
    },
    /// A byte range does not lie in its memory region or buffer.
    OutOfBounds(OutOfBounds),
    /// The operation takes GPU memory as a dmabuf only, and the memory has none.
    NoDmabuf {
        /// The call, which was not made.
        operation: &'static str,
        /// Why it has none.
        why: String,
    },
    /// GPU memory could not be registered in either way.
    DeviceMemory {
        /// Why it was not registered as a dmabuf.
        dmabuf: String,
        /// Why it was not registered by address.
        address: String,
    },
    /// Another call failed.
    Call(FailedCall),
}

/// An option of [`super::Query`] that some adapters lack.
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

impl Error {
    /// The call that failed or was not made, in libfabric's terms. None where no call is concerned.
    pub fn operation(&self) -> Option<&'static str> {
        match self {
            Self::OperationUnavailable { operation, .. }
            | Self::KeyNotAvailable { operation }
            | Self::KeyTooWide { operation, .. }
            | Self::FunctionMissing { operation, .. }
            | Self::OtherDomain { operation }
            | Self::OtherAddressVector { operation }
            | Self::OtherLibrary { operation }
            | Self::NoDmabuf { operation, .. }
            | Self::NoObject { operation } => Some(operation),
            Self::GdaTableUnknown { .. } => Some("fi_open_ops(efa gda ops)"),
            _ => self.failure().map(|failure| failure.operation),
        }
    }

    /// The code that the call returned. None where no call returned a code.
    pub fn code(&self) -> Option<i32> {
        self.failure().map(|failure| failure.code)
    }

    fn failure(&self) -> Option<&FailedCall> {
        match self {
            Self::NoAdapter(failure)
            | Self::NoDirectFabric { failure, .. }
            | Self::OptionNotAvailable { failure, .. }
            | Self::GdaNotOnThisFabric(failure)
            | Self::GdaUnknown { failure, .. }
            | Self::GdaInDomainOps(failure)
            | Self::NotBuiltIn(failure)
            | Self::AdapterLacks(failure)
            | Self::UnknownAddress(failure)
            | Self::AddressRefused { failure: Some(failure), .. }
            | Self::Call(failure) => Some(failure),
            _ => None,
        }
    }
}

// No source: the text contains the cause.
impl std::error::Error for Error {}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<OutOfBounds> for Error {
    fn from(range: OutOfBounds) -> Self {
        Self::OutOfBounds(range)
    }
}

impl From<Error> for crate::Error {
    fn from(error: Error) -> Self {
        use Error::*;
        let kind = match &error {
            Load(_) | NoAdapter(_) | NoDirectFabric { .. } | NoSuchAdapter { .. } => {
                crate::ErrorKind::NoAdapter
            }
            OptionNotAvailable { .. }
            | GdaNotOnThisFabric(_)
            | GdaUnknown { .. }
            | GdaInDomainOps(_)
            | GdaTableUnknown { .. }
            | OperationUnavailable { .. }
            | NotBuiltIn(_)
            | AdapterLacks(_)
            | NoDmabuf { .. }
            | DeviceMemory { .. } => crate::ErrorKind::Unsupported,
            OutOfMemory { .. } => crate::ErrorKind::OutOfMemory,
            Busy { .. } => crate::ErrorKind::Busy,
            OutOfBounds { .. } | AddressLength { .. } | AddressRefused { .. } | OtherDomain { .. } => {
                crate::ErrorKind::Argument
            }
            _ => crate::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
