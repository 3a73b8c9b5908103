//! The errors of libfabric's calls, with what to do about those that have a usual cause.

use std::fmt;

use efa_gda_sys::{LoadError, fi};

use super::Version;
use crate::error::{Error, ErrorKind, QueryOption};
use crate::memory::REGION_IN_USE_HINT;

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

/// Operations of the GDA table that open objects.
pub(super) const CQ_OPEN_EXT: &str = "cq_open_ext";
pub(super) const CNTR_OPEN_EXT: &str = "cntr_open_ext";

/// A call into libfabric that returned an error.
pub(super) struct FailedCall {
    pub(super) operation: &'static str,
    /// The code that it returned: a negative errno, or a libfabric error of -256 and below.
    pub(super) code: i32,
    /// libfabric's text for the code, or the system's where no libfabric is loaded.
    pub(super) text: String,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {} ({})", self.operation, self.text, self.code)
    }
}

impl FailedCall {
    /// The error of this kind, with `text` in place of the call's.
    fn error(&self, kind: ErrorKind, text: String, hint: &'static str) -> Error {
        Error::new(kind, text).with_hint(hint).in_call(self.operation).with_code(self.code)
    }

    /// The provider does not have the GDA operations (`fi_open_ops` returned EINVAL or ENOSYS).
    pub(super) fn no_gda(&self, provider: Option<Version>) -> Error {
        let text = match provider {
            Some(version) => format!("{self}: efa provider {version} does not know these operations"),
            None => self.to_string(),
        };
        self.error(ErrorKind::Unsupported, text, NEWER_THAN_2_2)
    }

    /// The provider is of libfabric 2.2, which has these operations in another table.
    pub(super) fn gda_in_domain_ops(&self) -> Error {
        let hint =
            "use libfabric 2.3 or newer; 2.2 has these operations in a table that no other release has";
        self.error(ErrorKind::Unsupported, self.to_string(), hint)
    }

    /// The domain's fabric is not `efa-direct` (`fi_open_ops` returned EOPNOTSUPP).
    pub(super) fn gda_not_on_this_fabric(&self) -> Error {
        let hint = "open the domain on the fabric efa-direct; on the fabric efa, libfabric drives the queues";
        self.error(ErrorKind::Unsupported, self.to_string(), hint)
    }

    /// libfabric was built without support for the operation (ENOSYS from a GDA operation).
    fn not_built_in(&self) -> Error {
        let hint = match self.operation {
            CNTR_OPEN_EXT => {
                "use a libfabric newer than 2.6.0 that was built with rdma-core 65, or the EFA installer's 64.0amzn0, \
                 or newer, and kernel driver 3.3.0 or newer (EFA installer 1.50.0 contains all three)"
            }
            _ => {
                "use a libfabric that was built with rdma-core 59 or newer (60 for external completion queues, which \
                 take FI_WAIT_NONE only)"
            }
        };
        self.error(ErrorKind::Unsupported, self.to_string(), hint)
    }

    /// The adapter or its driver lacks the capability (EOPNOTSUPP from a GDA operation).
    fn adapter_lacks(&self) -> Error {
        let hint = match self.operation {
            CNTR_OPEN_EXT => {
                "before libfabric is loaded, set FI_EFA_USE_HW_CNTR=1 (from 2.7 on it may be unset, but not 0 or text \
                 such as yes), open the domain at API 2.5 or newer, and use kernel driver 3.3.0 or newer and an \
                 adapter that has counters"
            }
            _ => {
                "use an adapter and kernel driver with the capability; external completion queues need driver 2.17"
            }
        };
        self.error(ErrorKind::Unsupported, self.to_string(), hint)
    }

    /// An operation of the GDA table returned the code.
    pub(super) fn of_gda(self) -> Error {
        match -self.code {
            libc::ENOSYS => self.not_built_in(),
            libc::EOPNOTSUPP => self.adapter_lacks(),
            _ => self.into(),
        }
    }

    /// The address is not in the endpoint's address vector (EINVAL from `query_addr`).
    pub(super) fn unknown_address(&self) -> Error {
        let hint = "insert the address into the endpoint's address vector first";
        self.error(ErrorKind::Argument, self.to_string(), hint)
    }

    /// The address vector did not accept the address.
    pub(super) fn address_refused(&self) -> Error {
        self.error(ErrorKind::Argument, self.to_string(), WHOLE_ADDRESS)
    }

    /// libfabric has no efa provider with an adapter.
    pub(super) fn no_adapter(&self) -> Error {
        let hint = "check that /dev/infiniband is visible to this process, that the efa driver is loaded, and \
                    that FI_PROVIDER and FI_EFA_IFACE do not exclude the adapter; for softefa, set FI_PROVIDER_PATH \
                    to the directory of softefa-fi.so";
        let text = format!("libfabric has no efa provider with an adapter: {self}");
        self.error(ErrorKind::NoAdapter, text, hint)
    }

    /// There is an efa provider, which offers other fabrics than `efa-direct`.
    pub(super) fn no_direct_fabric(&self, fabrics: &[String]) -> Error {
        let hint = "use libfabric 2.3 or newer: efa-direct needs 2.1, and queues for a GPU need 2.3";
        let text =
            format!("the efa provider offers the fabrics {}, not efa-direct: {self}", fabrics.join(", "));
        self.error(ErrorKind::NoDirectFabric, text, hint)
    }

    /// The failed query succeeds without `option`.
    pub(super) fn without_option(&self, option: QueryOption) -> Error {
        let text = format!("efa-direct is not available with {option}: {self}");
        self.error(ErrorKind::WithoutOption(option), text, option.hint())
    }
}

/// Any other failed call.
impl From<FailedCall> for Error {
    fn from(failure: FailedCall) -> Self {
        failure.error(ErrorKind::Other, failure.to_string(), hint_for(&failure))
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        Error::new(ErrorKind::NoLibrary, error.to_string()).with_hint(error.hint()).caused_by(error)
    }
}

const NEWER_THAN_2_2: &str = "use libfabric 2.3 or newer";
const WHOLE_ADDRESS: &str =
    "pass the complete address that the endpoint of a peer in the same network reports";

/// No adapter has the name `wanted`.
pub(super) fn no_such_adapter(wanted: &str, found: &[String]) -> Error {
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    Error::new(ErrorKind::NoAdapter, format!("no adapter has the name {wanted}; adapters found: {found}"))
        .with_hint("name one of the adapters found")
}

/// A provider that is not known to have the table returned one.
pub(super) fn gda_table_unknown(operation: &'static str, provider: Version) -> Error {
    Error::unsupported(format!(
        "efa provider {provider} returned a GDA table; 203.0 is the first provider with a known table"
    ))
    .with_hint(NEWER_THAN_2_2)
    .in_call(operation)
}

/// The operation of the GDA table is unavailable.
pub(super) fn unavailable(operation: &'static str, reason: UnavailableReason) -> Error {
    let hint = match reason {
        UnavailableReason::NoInfo => "pass the domain's fi_info when borrowing it",
        UnavailableReason::TableEndsEarly { .. } => {
            "the provider is defective: use the efa provider of libfabric"
        }
        _ => "use a newer libfabric",
    };
    Error::new(ErrorKind::Unavailable, format!("{operation} cannot be called: {reason}"))
        .with_hint(hint)
        .in_call(operation)
}

/// The address has a different length than addresses of efa endpoints.
pub(crate) fn address_length(length: usize, expected: usize) -> Error {
    let text = format!("the address has length {length}; that of an efa endpoint has length {expected}");
    Error::argument(text).with_hint(WHOLE_ADDRESS)
}

/// The provider inserted no address, and returned no error.
pub(super) fn address_not_accepted(length: usize) -> Error {
    Error::argument(format!("fi_av_insert did not accept an address of length {length}"))
        .with_hint(WHOLE_ADDRESS)
}

/// The memory region has no such key (FI_KEY_NOTAVAIL).
pub(super) fn no_key(operation: &'static str) -> Error {
    Error::new(ErrorKind::Other, format!("{operation} returned FI_KEY_NOTAVAIL: the region has no such key"))
        .with_hint("register the memory on this domain, with FI_MR_PROV_KEY, before asking for its keys")
        .in_call(operation)
}

/// The memory region's key has more bits than an entry carries.
pub(super) fn key_too_wide(operation: &'static str, key: u64, bits: u32) -> Error {
    let text = format!("{operation} returned the key {key:#x}; an entry has {bits} bits for it");
    Error::new(ErrorKind::Other, text)
        .with_hint("register the memory on a domain of the fabric efa-direct, whose keys the adapter chooses")
        .in_call(operation)
}

/// The object's operation table is null, too short (of `table_bytes`), or has a null pointer for the operation.
pub(super) fn function_missing(operation: &'static str, table_bytes: usize) -> Error {
    let text = format!("{operation} is not in the object's operation table of {table_bytes} bytes");
    Error::new(ErrorKind::Other, text)
        .with_hint("use libfabric 1.17 or newer with the efa provider that it contains")
        .in_call(operation)
}

/// The call reported success and returned no object.
pub(super) fn no_object(operation: &'static str) -> Error {
    Error::new(ErrorKind::Other, format!("{operation} reported success and returned no object"))
        .with_hint("the provider is defective: use the efa provider of libfabric")
        .in_call(operation)
}

/// The call was not made, because its objects do not belong together.
fn not_called(operation: &'static str, why: &str, hint: &'static str) -> Error {
    Error::argument(format!("{operation} was not called: {why}")).with_hint(hint).in_call(operation)
}

pub(crate) fn other_domain(operation: &'static str) -> Error {
    not_called(operation, "its objects belong to different domains", "open all of them on one domain")
}

pub(super) fn other_address_vector(operation: &'static str) -> Error {
    let why = "the address belongs to another address vector";
    not_called(operation, why, "insert the peer's address into this vector too")
}

pub(super) fn other_library(operation: &'static str) -> Error {
    let why = "the info came from another libfabric";
    not_called(operation, why, "query the library that the fabric was opened with")
}

/// The operation takes GPU memory as a dmabuf only, and the memory has none.
pub(super) fn no_dmabuf(operation: &'static str, why: &str) -> Error {
    Error::unsupported(format!("{operation} was not called: the GPU memory has no dmabuf: {why}"))
        .with_hint("use a GPU and driver that export dmabufs (CUDA 11.7, open kernel modules)")
        .in_call(operation)
}

/// GPU memory could be registered neither as a dmabuf nor by address.
pub(super) fn device_memory(dmabuf: &str, address: &str) -> Error {
    Error::unsupported(format!(
        "the GPU memory was not registered: as a dmabuf: {dmabuf}; by address: {address}"
    ))
    .with_hint(
        "load the kernel driver of the adapter with dmabuf support (efa 2.x, Linux 5.12) or nvidia-peermem, \
         and open the domain with FI_HMEM at API 1.20 or newer",
    )
}

/// Other handles use the object. `close` dropped its handle; the last handle closes the object.
pub(super) fn busy(what: &str, holders: usize) -> Error {
    let hint = match what {
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
    };
    Error::busy(format!("the {what} was not closed: {holders} other handle(s) use it")).with_hint(hint)
}

/// Hints for calls whose failure has a common cause.
fn hint_for(failure: &FailedCall) -> &'static str {
    const FLAGS: i32 = fi::FI_EBADFLAGS as i32;
    match (failure.operation, -failure.code) {
        ("fi_mr_reg", libc::ENOMEM) => "raise the memlock limit (ulimit -l), or register less memory",
        ("fi_mr_reg", FLAGS) => {
            "register the region without relaxed ordering, which needs libfabric 2.7 or newer"
        }
        ("fi_mr_reg", libc::EFAULT) => "register memory that is mapped over its whole length",
        ("fi_close(completion queue)" | "fi_close(address vector)" | "fi_close(domain)", libc::EBUSY) => {
            "an object that other code opened still refers to it: close that first"
        }
        (_, libc::ENOMEM) => {
            "free memory or adapter resources: an adapter has a limit for each kind of object"
        }
        (_, libc::EMFILE) => "raise the limit of descriptors (RLIMIT_NOFILE: ulimit -n)",
        (_, libc::EACCES | libc::EPERM) => "check the permissions of /dev/infiniband/uverbs*",
        (_, libc::ENODATA) => "change the query: no provider matches it",
        _ => "set FI_LOG_LEVEL=warn to see libfabric's messages",
    }
}
