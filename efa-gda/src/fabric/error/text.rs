//! The texts of [`Error`]: what happened, and what to do about it.

use std::fmt;

use efa_gda_sys::{LoadError, fi};

use super::{Error, FailedCall, QueryOption, UnavailableReason};
use crate::fabric::gda::CNTR_OPEN_EXT;
use crate::memory::REGION_IN_USE_HINT;

impl Error {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Load(LoadError::Named { .. }) => {
                "set it to the file of libfabric 1.17 or newer (libfabric.so.1), or unset it to load the one that the \
                 loader finds"
            }
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
                 FI_HMEM_DISABLE_P2P, or query host memory only"
            }
            Self::OptionNotAvailable { option: QueryOption::Xpu, .. } => {
                "use a libfabric (2.7 or newer) whose efa provider offers FI_XPU, or query without it"
            }
            Self::OptionNotAvailable { option: QueryOption::HostCompletions, .. } => {
                "use libfabric 2.7 or newer, or let the GPU or this library poll the completion queue in memory"
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
                "use a libfabric newer than 2.6.0 that was built with rdma-core 65, or the EFA installer's 64.0amzn0, \
                 or newer, and kernel driver 3.3.0 or newer (EFA installer 1.50.0 contains all three)"
            }
            Self::AdapterLacks(failure) if failure.operation == CNTR_OPEN_EXT => {
                "before libfabric is loaded, set FI_EFA_USE_HW_CNTR=1 (from 2.7 on it may be unset, but not 0 or text \
                 such as yes), open the domain at API 2.5 or newer, and use kernel driver 3.3.0 or newer and an \
                 adapter that has counters"
            }
            Self::NotBuiltIn(_) => {
                "use a libfabric that was built with rdma-core 59 or newer (60 for external completion queues, which \
                 take FI_WAIT_NONE only)"
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
                write!(f, "the address has length {length}; that of an efa endpoint has length {expected}")?;
            }
            Self::AddressRefused { failure: None, length } => {
                write!(f, "fi_av_insert did not accept an address of length {length}")?;
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
                "a mapped queue relies on the completion counter, so it may not count for others",
            )?,
            Self::OutOfMemory { bytes } => write!(f, "host memory of length {bytes} could not be allocated")?,
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

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
