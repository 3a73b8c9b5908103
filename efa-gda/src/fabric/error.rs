//! Errors of [`crate::fabric`].
//!
//! [`Error`] names the operation, what happened and what to do next. [`FailedCall`] holds the error code and
//! libfabric's text for it.

use std::fmt;

use efa_gda_sys::LoadError;

use super::Version;
use super::gda::CNTR_OPEN_EXT;
use crate::memory::{OutOfBounds, REGION_IN_USE_HINT};

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
/// [`Error::code`] and [`Error::hint`] return the parts. An error that another one caused is part of the text,
/// and not its source.
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
    /// A mapped queue relies on the completion counter, so no other endpoint may use it and it may not be set.
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
    /// Other handles use the object.
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
}

impl fmt::Display for QueryOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WideEntries => "128-byte entries",
            Self::GpuMemory => "GPU memory (FI_HMEM)",
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

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Load(_) => "install libfabric, or set LIBFABRIC_PATH to its file",
            Self::NoAdapter(_) => {
                "check that /dev/infiniband is visible to this process, that the efa driver is loaded, and \
                 that FI_PROVIDER and FI_EFA_IFACE do not exclude the adapter; for softefa, set FI_PROVIDER_PATH \
                 to the directory of softefa-fi.so"
            }
            Self::NoDirectFabric { .. } => {
                "use libfabric 2.3 or newer: efa-direct needs 2.1, and queues for a GPU need 2.3"
            }
            Self::OptionNotAvailable { option: QueryOption::WideEntries, .. } => {
                "query 64-byte entries: this adapter, or rdma-core before 63, has no others"
            }
            Self::OptionNotAvailable { option: QueryOption::GpuMemory, .. } => {
                "run where libcuda.so.1 can be loaded with a libfabric built with CUDA, unset \
                 FI_HMEM_P2P_DISABLED, or query host memory only"
            }
            Self::NoSuchAdapter { .. } => "name one of the adapters found",
            Self::GdaNotOnThisFabric(_) => {
                "open the domain on the fabric efa-direct; on the fabric efa, libfabric drives the queues"
            }
            Self::GdaUnknown { .. } | Self::GdaTableUnknown { .. } => "use libfabric 2.3 or newer",
            Self::GdaInDomainOps(_) => {
                "use libfabric 2.3 or newer; 2.2 has these operations in a table that no other release has"
            }
            Self::OperationUnavailable { reason: UnavailableReason::NoInfo, .. } => {
                "pass the domain's fi_info when borrowing it"
            }
            Self::OperationUnavailable { reason: UnavailableReason::TableEndsEarly { .. }, .. } => {
                "the provider is defective: use the efa provider of libfabric"
            }
            Self::OperationUnavailable { .. } => "use a newer libfabric",
            Self::NotBuiltIn(failure) if failure.operation == CNTR_OPEN_EXT => {
                "use a libfabric newer than 2.6.0 that was built with rdma-core 65 or newer"
            }
            Self::AdapterLacks(failure) if failure.operation == CNTR_OPEN_EXT => {
                "set FI_EFA_USE_HW_CNTR=1 before libfabric is loaded, open the domain at API 2.5 or newer, and use an \
                 adapter and a kernel driver (newer than 3.1.0) that have counters"
            }
            Self::NotBuiltIn(_) => {
                "use a libfabric that was built with rdma-core 59 or newer (60 for external completion queues, which take \
                 FI_WAIT_NONE only)"
            }
            Self::AdapterLacks(_) => {
                "use an adapter and kernel driver with the capability; external completion queues need driver 2.17"
            }
            Self::UnknownAddress(_) => "insert the address into the endpoint's address vector first",
            Self::AddressLength { .. } | Self::AddressRefused { .. } => {
                "pass the complete address that the endpoint of a peer in the same network reports"
            }
            Self::KeyNotAvailable { .. } => {
                "register the memory on this domain, with FI_MR_PROV_KEY, before asking for its keys"
            }
            Self::KeyTooWide { .. } => {
                "register the memory on a domain of the fabric efa-direct, whose keys the adapter chooses"
            }
            Self::FunctionMissing { .. } => {
                "use libfabric 1.17 or newer with the efa provider that it contains"
            }
            Self::NoObject { .. } => "the provider is defective: use the efa provider of libfabric",
            Self::OtherDomain { .. } => "open all of them on one domain",
            Self::OtherAddressVector { .. } => "insert the peer's address into this vector too",
            Self::OtherLibrary { .. } => "query the library that the fabric was opened with",
            Self::CompletionQueuePolled => "open another completion queue for this endpoint",
            Self::CounterInUse => "open another completion counter",
            Self::OutOfMemory { .. } => "free memory, or raise the memory limit of the process",
            Self::Busy { what, .. } => busy_hint(what),
            Self::OutOfBounds(range) => range.hint(),
            Self::NoDmabuf { .. } => {
                "use a GPU and driver that export dmabufs (CUDA 11.7, open kernel modules)"
            }
            Self::DeviceMemory { .. } => {
                "load the kernel driver of the adapter with dmabuf support (efa 2.x, Linux 5.12) or nvidia-peermem, \
                 and open the domain with FI_HMEM at API 1.20 or newer"
            }
            Self::Call(failure) => hint_for(failure),
        }
    }
}

/// What may hold an object of this kind, and how to release it.
fn busy_hint(what: &str) -> &'static str {
    match what {
        "memory region" => REGION_IN_USE_HINT,
        "completion queue" | "address vector" | "completion counter" => {
            "clones, bound endpoints and mapped queues made of those hold it: close those first"
        }
        "domain" => {
            "clones and all objects opened on it (operations, vectors, queues, counters, regions, endpoints) hold \
             it: close those first"
        }
        "fabric" => "clones and domains on it hold it: close those first",
        _ => "drop or close what still uses it, then close it again",
    }
}

/// Hints for calls whose failure has a common cause.
fn hint_for(failure: &FailedCall) -> &'static str {
    match (failure.operation, -failure.code) {
        ("fi_mr_reg", libc::ENOMEM) => "raise the memlock limit (ulimit -l), or register less memory",
        ("fi_mr_reg", libc::EFAULT) => "register memory that is mapped over its whole length",
        ("fi_close(completion queue)" | "fi_close(address vector)" | "fi_close(domain)", libc::EBUSY) => {
            "an object that other code opened still refers to it: close that first"
        }
        ("fi_setopt(RNR retry)", libc::ENOSYS) => {
            "do not set the option: this adapter always retries without limit"
        }
        (_, libc::ENOMEM) => {
            "free memory or adapter resources: an adapter has a limit for each kind of object"
        }
        (_, libc::EACCES | libc::EPERM) => "check the permissions of /dev/infiniband/uverbs*",
        (_, libc::ENODATA) => "change the query: no provider matches it",
        _ => "set FI_LOG_LEVEL=warn to see libfabric's messages",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => return write!(f, "{error}"),
            Self::NoAdapter(failure) => {
                write!(f, "libfabric has no efa provider with an adapter: {failure}")?
            }
            Self::NoDirectFabric { failure, fabrics } => {
                write!(
                    f,
                    "the efa provider offers the fabrics {}, not efa-direct: {failure}",
                    listed(fabrics)
                )?;
            }
            Self::OptionNotAvailable { failure, option } => {
                write!(f, "efa-direct is not available with {option}: {failure}")?;
            }
            Self::NoSuchAdapter { wanted, found } => {
                write!(f, "no adapter has the name {wanted}; adapters found: {}", listed(found))?;
            }
            Self::GdaUnknown { failure, provider: Some(version) } => {
                write!(f, "{failure}: efa provider {version} does not know these operations")?;
            }
            Self::GdaTableUnknown { provider } => {
                write!(
                    f,
                    "efa provider {provider} returned a GDA table; 203.0 is the first provider with a known table"
                )?;
            }
            Self::OperationUnavailable { operation, reason } => {
                write!(f, "{operation} cannot be called: {reason}")?
            }
            Self::AddressLength { length, expected } => {
                write!(f, "the address has {length} bytes; the address of an efa endpoint has {expected}")?;
            }
            Self::AddressRefused { failure: None, length } => {
                write!(f, "fi_av_insert did not accept an address of {length} bytes")?;
            }
            Self::KeyNotAvailable { operation } => {
                write!(f, "{operation} returned FI_KEY_NOTAVAIL: the region has no such key")?
            }
            Self::KeyTooWide { operation, key, bits } => {
                write!(f, "{operation} returned the key {key:#x}; an entry has {bits} bits for it")?;
            }
            Self::FunctionMissing { operation, table_bytes } => {
                write!(f, "{operation} is not in the object's operation table of {table_bytes} bytes")?;
            }
            Self::NoObject { operation } => write!(f, "{operation} reported success and returned no object")?,
            Self::CompletionQueuePolled => f.write_str(
                "a mapped queue polls the completion queue, so no other endpoint may complete on it",
            )?,
            Self::CounterInUse => f.write_str(
                "a mapped queue relies on the completion counter, so it may not be set or count for others",
            )?,
            Self::OutOfMemory { bytes } => write!(f, "{bytes} bytes of host memory could not be allocated")?,
            Self::OtherDomain { operation } => {
                write!(f, "{operation} was not called: its objects belong to different domains")?
            }
            Self::OtherAddressVector { operation } => {
                write!(f, "{operation} was not called: the address belongs to another address vector")?;
            }
            Self::OtherLibrary { operation } => {
                write!(f, "{operation} was not called: the info came from another libfabric")?;
            }
            Self::Busy { what, holders } => {
                write!(f, "the {what} was not closed: {holders} other handle(s) use it")?
            }
            Self::OutOfBounds(range) => return write!(f, "{range}"),
            Self::NoDmabuf { operation, why } => {
                write!(f, "{operation} was not called: the GPU memory has no dmabuf: {why}")?
            }
            Self::DeviceMemory { dmabuf, address } => {
                write!(f, "the GPU memory was not registered: as a dmabuf: {dmabuf}; by address: {address}")?;
            }
            Self::GdaNotOnThisFabric(failure)
            | Self::GdaUnknown { failure, .. }
            | Self::GdaInDomainOps(failure)
            | Self::NotBuiltIn(failure)
            | Self::AdapterLacks(failure)
            | Self::UnknownAddress(failure)
            | Self::AddressRefused { failure: Some(failure), .. }
            | Self::Call(failure) => write!(f, "{failure}")?,
        }
        write!(f, "; {}", self.hint())
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

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
