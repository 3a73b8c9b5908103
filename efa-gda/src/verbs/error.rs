//! Errors of [`crate::verbs`].
//!
//! [`Error`] names the operation, what happened and what to do next. [`FailedCall`] holds the errno.

use std::fmt;

use efa_gda_sys::verbs::{Call, LoadError};

use super::Capability;
use crate::exposure::ExposureError;

/// The result of an operation of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// A call into rdma-core that returned an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedCall {
    /// The function, with the step in parentheses where it has several: `efadv_query_cq`, `ibv_modify_qp(RTR)`.
    pub operation: &'static str,
    /// The errno, as a positive number.
    pub errno: i32,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.operation, std::io::Error::from_raw_os_error(self.errno))
    }
}

/// Why an operation of this module failed. Its text states what happened and what to do; [`Error::operation`],
/// [`Error::errno`] and [`Error::hint`] return the parts. The text contains the cause, so `source` returns none.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// rdma-core could not be loaded.
    Load(LoadError),
    /// The loaded rdma-core does not have the function.
    FunctionMissing(Call),
    /// None of the devices is an EFA adapter.
    NoAdapter {
        /// The devices that libibverbs found.
        devices: Vec<String>,
    },
    /// No device has the requested name.
    NoSuchDevice {
        /// The requested name.
        wanted: String,
        /// The devices that were found.
        found: Vec<String>,
    },
    /// libefa does not drive the device (EOPNOTSUPP from `efadv_query_device`).
    NotEfa {
        /// The device.
        device: String,
        /// The failed call.
        failure: FailedCall,
    },
    /// The adapter, its driver or the loaded rdma-core lacks the capability.
    AdapterLacks {
        /// The capability.
        capability: Capability,
        /// The device.
        device: String,
    },
    /// The request exceeds a limit of the adapter.
    Exceeds {
        /// The limited quantity.
        what: &'static str,
        /// The requested number.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// A number has more bits than an entry carries.
    TooWide {
        /// The kind of number.
        what: &'static str,
        /// The number.
        number: u64,
        /// Bits that an entry has for it.
        bits: u32,
    },
    /// The objects belong to different contexts.
    OtherContext {
        /// The object of the other context.
        what: &'static str,
    },
    /// Another reader polls the completion queue. It would take completions of another queue pair for its own.
    CompletionQueuePolled,
    /// Other handles use the object. `close` dropped its handle; the last handle closes the object.
    Busy {
        /// The object that was not closed.
        what: &'static str,
        /// The number of other handles.
        holders: usize,
    },
    /// GPU memory has no dmabuf, as which alone rdma-core takes it.
    NoDmabuf {
        /// Why it has none.
        why: String,
    },
    /// The rings that the queue pair exposes break a rule.
    Exposure(ExposureError),
    /// Another call failed.
    Call(FailedCall),
}

impl Error {
    /// The function that failed or is missing. None where no function is concerned.
    pub fn operation(&self) -> Option<&'static str> {
        match self {
            Self::FunctionMissing(call) => Some(call.name),
            Self::NotEfa { failure, .. } | Self::Call(failure) => Some(failure.operation),
            _ => None,
        }
    }

    /// The errno of the failed call. None where no call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NotEfa { failure, .. } | Self::Call(failure) => Some(failure.errno),
            _ => None,
        }
    }

    /// What to do about it. Empty for an error of another module, whose text states it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Load(_) | Self::Exposure(_) => "",
            Self::FunctionMissing(_) => {
                "install an rdma-core that has it, such as the current EFA installer's"
            }
            Self::NoAdapter { .. } => {
                "check that /dev/infiniband and /sys/class/infiniband are visible to this process and that the \
                 efa and ib_uverbs kernel modules are loaded"
            }
            Self::NoSuchDevice { .. } => "name one of the devices found",
            Self::NotEfa { .. } => {
                "name an EFA adapter; if it is one, another copy of libefa.so.1 drives it: keep one rdma-core in the \
                 image"
            }
            Self::AdapterLacks { capability, .. } => capability.hint(),
            Self::Exceeds { .. } => "request fewer",
            Self::TooWide { .. } => "report it with the versions of rdma-core and the kernel driver",
            Self::OtherContext { .. } => "create all objects of a queue pair on one context",
            Self::CompletionQueuePolled => "create another completion queue for this queue pair",
            Self::Busy { .. } => {
                "clones and objects created on it (queue pairs, and mapped queues of those) hold it: close those first"
            }
            Self::NoDmabuf { .. } => "open the queue with libfabric, or use memory of the host",
            Self::Call(failure) => hint_for(failure),
        }
    }
}

/// Hints for calls whose failure has a common cause.
fn hint_for(failure: &FailedCall) -> &'static str {
    match (failure.operation, failure.errno) {
        ("ibv_get_device_list", libc::ENOSYS) => "load the ib_uverbs kernel module",
        ("ibv_open_device", libc::EACCES | libc::EPERM | libc::ENOENT) => {
            "make /dev/infiniband/uverbs* visible to this process, with permission to open it"
        }
        ("ibv_reg_mr", libc::ENOMEM) => "raise the memlock limit (ulimit -l), or register less memory",
        ("ibv_reg_mr", libc::EFAULT) => "register memory that is mapped over its whole length",
        ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP) => {
            "use a newer kernel and driver: these cannot register a dmabuf"
        }
        ("ibv_reg_mr", libc::EOPNOTSUPP) => {
            "request only remote access that the adapter has (Context::attributes)"
        }
        // The driver refuses access with EOPNOTSUPP.
        ("ibv_reg_mr" | "ibv_reg_dmabuf_mr", libc::EINVAL) => {
            "register a length of at least 1 byte that ends within the memory or the dmabuf, and within the adapter's \
             limit (max_mr_size of ibv_devinfo -v)"
        }
        ("ibv_create_ah", _) => "pass the GID that the adapter of a peer in the same network reports",
        ("efadv_create_cq" | "ibv_create_cq", libc::EINVAL) => {
            "request at most Attributes::max_completions entries; external memory must hold all of them"
        }
        ("efadv_create_qp_ex", libc::EINVAL) => {
            "request at most Attributes::max_send_entries and Attributes::max_receive_entries entries, and fewer 128-byte \
             entries"
        }
        (_, libc::EOPNOTSUPP) => "use an adapter, kernel driver and rdma-core that support it",
        (_, libc::ENOMEM) => {
            "free memory or adapter resources: an adapter has a limit for each kind of object"
        }
        (_, libc::EMFILE) => "raise the limit of descriptors (RLIMIT_NOFILE: ulimit -n)",
        (_, libc::EBUSY) => "an object that other code created still refers to it: destroy that first",
        (_, libc::EIO | libc::ENODEV) => "open the adapter again: it was removed or reset",
        _ => "see the kernel log for messages of the efa driver",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => return write!(f, "{error}"),
            Self::Exposure(error) => return write!(f, "{error}"),
            Self::FunctionMissing(call) => {
                write!(f, "the loaded {} has no {call}, which rdma-core {} added", call.library, call.since)?;
            }
            Self::NoAdapter { devices } => {
                write!(f, "no device is an EFA adapter; devices found: {}", listed(devices))?;
            }
            Self::NoSuchDevice { wanted, found } => {
                write!(f, "no device has the name {wanted}; devices found: {}", listed(found))?;
            }
            Self::NotEfa { device, failure } => {
                write!(f, "the loaded libefa does not accept {device} as an EFA adapter: {failure}")?;
            }
            Self::AdapterLacks { capability, device } => {
                write!(f, "{device} does not have the capability: {capability}")?
            }
            Self::Exceeds { what, asked, limit } => {
                write!(f, "{asked} {what} were requested; the adapter allows at most {limit}")?;
            }
            Self::TooWide { what, number, bits } => {
                write!(f, "rdma-core returned the {what} {number:#x}; an entry has {bits} bits for it")?;
            }
            Self::OtherContext { what } => {
                write!(f, "the {what} belongs to another context (opening of an adapter)")?
            }
            Self::CompletionQueuePolled => f.write_str(
                "another reader polls the completion queue, so no other queue pair may complete on it",
            )?,
            Self::Busy { what, holders } => {
                write!(f, "the {what} was not closed: {holders} other handle(s) use it")?
            }
            Self::NoDmabuf { why } => write!(
                f,
                "GPU memory cannot be registered: {why}, and a domain of rdma-core takes GPU memory only as a dmabuf"
            )?,
            Self::Call(failure) => write!(f, "{failure}")?,
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

impl From<ExposureError> for Error {
    fn from(error: ExposureError) -> Self {
        Self::Exposure(error)
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl From<Error> for crate::Error {
    fn from(error: Error) -> Self {
        use Error::*;
        let kind = match &error {
            Load(_) | NoAdapter { .. } | NoSuchDevice { .. } | NotEfa { .. } => crate::ErrorKind::NoAdapter,
            FunctionMissing(_) | AdapterLacks { .. } | NoDmabuf { .. } => crate::ErrorKind::Unsupported,
            Exceeds { .. } | OtherContext { .. } => crate::ErrorKind::Argument,
            Exposure(_) => crate::ErrorKind::Exposure,
            Busy { .. } => crate::ErrorKind::Busy,
            _ => crate::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
