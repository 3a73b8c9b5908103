//! What can go wrong between this library and libfabric: one error type for all of [`crate::fabric`].

use std::fmt;

use efa_gda_sys::LoadError;

use super::Version;
use super::gda::CNTR_OPEN_EXT;
use crate::memory::{OutOfBounds, REGION_IN_USE_HINT};

/// Says that an operation of the fabric layer has a result or an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A call into libfabric that answered with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedCall {
    /// The call, in libfabric's own words: `fi_domain`, `fi_close(endpoint)`, `query_cq`.
    pub operation: &'static str,
    /// What it returned: a negative errno, or a negative libfabric error from -256 on.
    pub code: i32,
    /// libfabric's text for the code, or the system's where no libfabric is at hand.
    pub text: String,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {} ({})", self.operation, self.text, self.code)
    }
}

/// Why an operation of the GDA table cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnavailableReason {
    /// The table has the place, and the place is empty.
    NullPointer,
    /// The table of this provider release ends before the operation.
    ProviderTooOld {
        /// The provider's release (`fi_fabric_attr::prov_version`).
        has: Version,
        /// The first release that has the operation.
        needs: Version,
    },
    /// The table ends before the operation, although its provider's release has it: behind the table
    /// lies what cannot be read, or what is no code.
    TableEndsEarly {
        /// The provider's release.
        has: Version,
    },
    /// The domain was borrowed without its `fi_info`, so that the table's length is not known.
    NoInfo,
}

impl fmt::Display for UnavailableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NullPointer => f.write_str("its place in the provider's table is empty"),
            Self::ProviderTooOld { has, needs } => {
                write!(f, "it came with efa provider {needs}, this one is {has}")
            }
            Self::TableEndsEarly { has } => {
                write!(f, "the table ends before it, although efa provider {has} has it")
            }
            Self::NoInfo => {
                f.write_str("the domain was borrowed without its fi_info, which says how long the table is")
            }
        }
    }
}

/// Why the fabric layer could not do what was asked. Its text says what was wrong and what to do;
/// [`Error::operation`], [`Error::code`] and [`Error::hint`] give the parts.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// libfabric could not be loaded.
    Load(LoadError),
    /// libfabric has no efa provider with an adapter.
    NoAdapter(FailedCall),
    /// There is an efa provider, but it does not offer the fabric `efa-direct`.
    NoDirectFabric {
        /// The query's answer.
        failure: FailedCall,
        /// The fabrics that the efa provider does offer.
        fabrics: Vec<String>,
    },
    /// `efa-direct` is there, but not with an option of the query.
    OptionNotAvailable {
        /// The query's answer with the option; without it, it succeeds.
        failure: FailedCall,
        /// The option.
        option: QueryOption,
    },
    /// No adapter has the name asked for.
    NoSuchAdapter {
        /// The name asked for.
        wanted: String,
        /// The adapters that are there.
        found: Vec<String>,
    },
    /// The domain's fabric is not `efa-direct` (`fi_open_ops` answered EOPNOTSUPP).
    GdaNotOnThisFabric(FailedCall),
    /// The provider does not know the GDA operations (`fi_open_ops` answered EINVAL).
    GdaUnknown {
        /// The answer.
        failure: FailedCall,
        /// The provider's release, where the domain came with its `fi_info`.
        provider: Option<Version>,
    },
    /// The provider is 2.2's, which has these operations in another table.
    GdaInDomainOps(FailedCall),
    /// The table was given out by a provider whose release is not known to have one.
    GdaTableUnknown {
        /// The provider's release.
        provider: Version,
    },
    /// The operation of the GDA table cannot be called.
    OperationUnavailable {
        /// The operation.
        operation: &'static str,
        /// Why not.
        reason: UnavailableReason,
    },
    /// libfabric was built without what the operation needs (ENOSYS from a GDA operation).
    NotBuiltIn(FailedCall),
    /// The adapter or its driver lacks the capability (EOPNOTSUPP from a GDA operation).
    AdapterLacks(FailedCall),
    /// The address is not in the endpoint's address vector (EINVAL from `query_addr`).
    UnknownAddress(FailedCall),
    /// The address has another length than those of the efa provider's endpoints.
    AddressLength {
        /// Bytes given.
        length: usize,
        /// Bytes of an address.
        expected: usize,
    },
    /// The address vector took none of the address given.
    AddressRefused {
        /// What `fi_av_insert` returned, as a failure where it was negative.
        failure: Option<FailedCall>,
        /// Length of the address, in bytes.
        length: usize,
    },
    /// The memory region has no such key (FI_KEY_NOTAVAIL).
    KeyNotAvailable {
        /// The call that gave it.
        operation: &'static str,
    },
    /// The memory region's key is wider than a descriptor can carry.
    KeyTooWide {
        /// The call that gave it.
        operation: &'static str,
        /// The key.
        key: u64,
        /// Bits that a descriptor has for it.
        bits: u32,
    },
    /// The object's operation table is null, too short, or empty at the operation's place.
    FunctionMissing {
        /// The call.
        operation: &'static str,
        /// The table's `size`, in bytes; 0 when there is no table.
        table_bytes: usize,
    },
    /// The call said that it succeeded, and gave no object.
    NoObject {
        /// The call.
        operation: &'static str,
    },
    /// An address of one address vector was given to another.
    OtherAddressVector {
        /// The call, which was not made.
        operation: &'static str,
    },
    /// An info of one libfabric was given to another, whose structures may be longer.
    OtherLibrary {
        /// The call, which was not made.
        operation: &'static str,
    },
    /// A mapped queue reads the completion queue in memory, and would take the completions of another
    /// endpoint for its own.
    CompletionQueuePolled,
    /// A mapped queue goes by the completion counter, which may then count for nothing else and not be set.
    CounterInUse,
    /// No memory of the host's.
    OutOfMemory {
        /// Bytes needed.
        bytes: usize,
    },
    /// Two objects that a call needs are of different domains.
    OtherDomain {
        /// The call, which was not made.
        operation: &'static str,
    },
    /// Others still use the object.
    Busy {
        /// What was to be closed.
        what: &'static str,
        /// How many others hold it.
        holders: usize,
    },
    /// A byte range does not lie in its memory region or buffer.
    OutOfBounds(OutOfBounds),
    /// The operation takes memory of a GPU as a dmabuf alone, and there is none.
    NoDmabuf {
        /// The call, which was not made.
        operation: &'static str,
        /// Why there is none.
        why: String,
    },
    /// Memory of a GPU could not be registered in either way.
    DeviceMemory {
        /// Why not as a dmabuf.
        dmabuf: String,
        /// Why not by its address.
        address: String,
    },
    /// Any other call that failed.
    Call(FailedCall),
}

/// An option of [`super::Query`] that not every adapter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueryOption {
    /// 128-byte send queue entries with inline RDMA write.
    WideEntries,
    /// Memory of a GPU (FI_HMEM).
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
    /// The call that failed, in libfabric's words. None where nothing was called.
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

    /// What the call returned. None where nothing was called, or the call did not fail by number.
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
            Self::Load(_) => "install libfabric, or name one in LIBFABRIC_PATH",
            Self::NoAdapter(_) => {
                "check that /dev/infiniband is visible to this process, that the efa driver is loaded, and \
                 that FI_PROVIDER and FI_EFA_IFACE do not exclude the adapter; softefa is found by \
                 FI_PROVIDER_PATH, the folder of softefa-fi.so"
            }
            Self::NoDirectFabric { .. } => {
                "the fabric efa-direct needs libfabric 2.1 or newer, and its queues for a GPU 2.3 or newer"
            }
            Self::OptionNotAvailable { option: QueryOption::WideEntries, .. } => {
                "ask for 64-byte entries: this adapter or its rdma-core (before 63) has no others"
            }
            Self::OptionNotAvailable { option: QueryOption::GpuMemory, .. } => {
                "run where libcuda.so.1 can be loaded with a libfabric built with CUDA, unset \
                 FI_HMEM_P2P_DISABLED, or ask for host memory alone"
            }
            Self::NoSuchAdapter { .. } => "name one of those found",
            Self::GdaNotOnThisFabric(_) => {
                "open the domain on the fabric efa-direct; the plain efa fabric drives its queues itself"
            }
            Self::GdaUnknown { .. } | Self::GdaTableUnknown { .. } => "use libfabric 2.3 or newer",
            Self::GdaInDomainOps(_) => {
                "libfabric 2.2 has these operations in a table that no other release has; use 2.3 or newer"
            }
            Self::OperationUnavailable { reason: UnavailableReason::NoInfo, .. } => {
                "lend the domain together with its fi_info"
            }
            Self::OperationUnavailable { reason: UnavailableReason::TableEndsEarly { .. }, .. } => {
                "the provider is broken: use libfabric's own efa provider"
            }
            Self::OperationUnavailable { .. } => "use a newer libfabric",
            Self::NotBuiltIn(failure) if failure.operation == CNTR_OPEN_EXT => {
                "use a libfabric after 2.6.0 built with rdma-core 65 or newer"
            }
            Self::AdapterLacks(failure) if failure.operation == CNTR_OPEN_EXT => {
                "counters need FI_EFA_USE_HW_CNTR=1 in the environment before libfabric is loaded, a domain of \
                 API 2.5 or newer, and an adapter and kernel driver (after 3.1.0) that have them"
            }
            Self::NotBuiltIn(_) => {
                "use a libfabric built with efadv of rdma-core 59 or newer (for queries) or 60 (external CQ); \
                 an external CQ takes FI_WAIT_NONE only"
            }
            Self::AdapterLacks(_) => {
                "this adapter or its kernel driver lacks the capability; external CQ memory needs driver 2.17"
            }
            Self::UnknownAddress(_) => "insert the address into the endpoint's address vector first",
            Self::AddressLength { .. } | Self::AddressRefused { .. } => {
                "give the whole address that the peer's endpoint reports, of an adapter of the same network"
            }
            Self::KeyNotAvailable { .. } => {
                "register the memory on this domain, with FI_MR_PROV_KEY, before asking for its keys"
            }
            Self::KeyTooWide { .. } => "register on the efa-direct fabric, whose keys the adapter gives out",
            Self::FunctionMissing { .. } => {
                "use a libfabric of release 1.17 or newer and its own efa provider"
            }
            Self::NoObject { .. } => "the provider is broken; use libfabric's own efa provider",
            Self::OtherDomain { .. } => "open both on one domain",
            Self::OtherAddressVector { .. } => "insert the peer's address into this vector too",
            Self::OtherLibrary { .. } => "query the library that the fabric was opened with",
            Self::CompletionQueuePolled => "open another completion queue for this endpoint",
            Self::CounterInUse => "open another counter",
            Self::OutOfMemory { .. } => "free memory, or raise the process's limit",
            Self::Busy { what, .. } => who_holds(what),
            Self::OutOfBounds(range) => range.hint(),
            Self::NoDmabuf { .. } => {
                "use a GPU and a driver that export dmabufs (CUDA 11.7, open kernel modules)"
            }
            Self::DeviceMemory { .. } => {
                "load the kernel driver of the adapter with dmabuf support (efa 2.x, Linux 5.12) or nvidia-peermem, \
                 and open the domain with FI_HMEM at API 1.20 or newer"
            }
            Self::Call(failure) => hint_for(failure),
        }
    }
}

/// What can hold an object of this kind, and how to make it let go.
fn who_holds(what: &str) -> &'static str {
    match what {
        "memory region" => REGION_IN_USE_HINT,
        "completion queue" | "address vector" | "completion counter" => {
            "clones, endpoints that are bound to it and mapped queues made of them hold it: close those first"
        }
        "domain" => {
            "clones, and everything opened on it (operations, vectors, queues, counters, regions, endpoints), hold \
             it: close those first"
        }
        "fabric" => "clones and domains on it hold it: close those first",
        _ => "drop or close what still uses it, then close it again",
    }
}

/// Hints for calls whose failure has a usual cause.
fn hint_for(failure: &FailedCall) -> &'static str {
    match (failure.operation, -failure.code) {
        ("fi_mr_reg", libc::ENOMEM) => "raise the memlock limit (ulimit -l), or register less memory",
        ("fi_mr_reg", libc::EFAULT) => "register memory that is mapped for the whole length",
        ("fi_close(completion queue)" | "fi_close(address vector)" | "fi_close(domain)", libc::EBUSY) => {
            "something opened outside this library still refers to it; close that first"
        }
        ("fi_setopt(RNR retry)", libc::ENOSYS) => "this adapter retries without end; leave the option alone",
        (_, libc::ENOMEM) => {
            "free memory or adapter resources; an adapter has a limit for each kind of object"
        }
        (_, libc::EACCES | libc::EPERM) => "check the permissions of /dev/infiniband/uverbs*",
        (_, libc::ENODATA) => "no provider matches the hints",
        _ => "set FI_LOG_LEVEL=warn to see what libfabric says about it",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => return write!(f, "{error}"),
            Self::NoAdapter(failure) => write!(f, "no efa provider with an adapter: {failure}")?,
            Self::NoDirectFabric { failure, fabrics } => {
                write!(f, "the efa provider offers {}, not efa-direct: {failure}", listed(fabrics))?;
            }
            Self::OptionNotAvailable { failure, option } => {
                write!(f, "efa-direct is not available with {option}: {failure}")?;
            }
            Self::NoSuchAdapter { wanted, found } => {
                write!(f, "no adapter is called {wanted}; found: {}", listed(found))?;
            }
            Self::GdaUnknown { failure, provider: Some(version) } => {
                write!(f, "{failure}: efa provider {version} does not know these operations")?;
            }
            Self::GdaTableUnknown { provider } => {
                write!(f, "efa provider {provider} gave out a GDA table, which came with 203.0")?;
            }
            Self::OperationUnavailable { operation, reason } => {
                write!(f, "{operation} cannot be called: {reason}")?
            }
            Self::AddressLength { length, expected } => {
                write!(f, "an address of {length} bytes was given; those of efa endpoints have {expected}")?;
            }
            Self::AddressRefused { failure: None, length } => {
                write!(f, "fi_av_insert took none of an address of {length} bytes")?;
            }
            Self::KeyNotAvailable { operation } => write!(f, "{operation} answered FI_KEY_NOTAVAIL")?,
            Self::KeyTooWide { operation, key, bits } => {
                write!(f, "{operation} gave {key:#x}; a descriptor has {bits} bits for it")?;
            }
            Self::FunctionMissing { operation, table_bytes } => {
                write!(f, "{operation} is not in the object's operation table of {table_bytes} bytes")?;
            }
            Self::NoObject { operation } => write!(f, "{operation} succeeded, and gave no object")?,
            Self::CompletionQueuePolled => f.write_str("the completion queue is polled by a mapped queue")?,
            Self::CounterInUse => f.write_str("a mapped queue goes by the completion counter")?,
            Self::OutOfMemory { bytes } => write!(f, "{bytes} bytes cannot be allocated")?,
            Self::OtherDomain { operation } => write!(f, "{operation} needs objects of one domain")?,
            Self::OtherAddressVector { operation } => {
                write!(f, "{operation} was given an address of another address vector")?;
            }
            Self::OtherLibrary { operation } => {
                write!(f, "{operation} was given an info of another libfabric")?;
            }
            Self::Busy { what, holders } => write!(f, "the {what} is in use by {holders} other(s)")?,
            Self::OutOfBounds(range) => return write!(f, "{range}"),
            Self::NoDmabuf { operation, why } => write!(f, "{operation} needs a dmabuf: {why}")?,
            Self::DeviceMemory { dmabuf, address } => {
                write!(
                    f,
                    "the GPU's memory cannot be registered: as a dmabuf: {dmabuf}; by address: {address}"
                )?;
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

// No source: the text contains the cause's.
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
