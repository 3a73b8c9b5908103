//! What can go wrong between this library and rdma-core: one error type for all of
//! [`crate::verbs`].

use std::fmt;

use efa_gda_sys::verbs::{Call, LoadError};

use super::Capability;
use crate::exposure::ExposureError;
use crate::memory::{OutOfBounds, REGION_IN_USE_HINT};

/// Says that an operation of the verbs layer has a result or an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A call into rdma-core that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedCall {
    /// The function, with the step in parentheses where it has several:
    /// `efadv_query_cq`, `ibv_modify_qp(RTR)`.
    pub operation: &'static str,
    /// The errno, positive.
    pub errno: i32,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.operation, std::io::Error::from_raw_os_error(self.errno))
    }
}

/// Why the verbs layer could not do what was asked. Its text says what was wrong and what to do;
/// [`Error::operation`], [`Error::errno`] and [`Error::hint`] give the parts.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// rdma-core could not be loaded.
    Load(LoadError),
    /// The loaded rdma-core has no such function.
    FunctionMissing(Call),
    /// There is no EFA adapter among the devices.
    NoAdapter {
        /// The devices that libibverbs found.
        devices: Vec<String>,
    },
    /// No device has the name asked for.
    NoSuchDevice {
        /// The name asked for.
        wanted: String,
        /// The devices that are there.
        found: Vec<String>,
    },
    /// libefa says that the device is not its own (EOPNOTSUPP from `efadv_query_device`).
    NotEfa {
        /// The device.
        device: String,
        /// The answer.
        failure: FailedCall,
    },
    /// The adapter, its driver or the loaded rdma-core does not have the capability.
    AdapterLacks {
        /// The capability.
        capability: Capability,
        /// The device.
        device: String,
    },
    /// More was asked for than the adapter has.
    Exceeds {
        /// Of what.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// The most that can be had.
        limit: u64,
    },
    /// A number is wider than an entry has room for.
    TooWide {
        /// What it is.
        what: &'static str,
        /// The number.
        number: u64,
        /// Bits for it.
        bits: u32,
    },
    /// The objects do not belong to one context.
    OtherContext {
        /// The object of the other context.
        what: &'static str,
    },
    /// Somebody reads the completion queue in memory, and would take the completions of another queue
    /// pair for its own.
    CompletionQueuePolled,
    /// Others still use the object.
    Busy {
        /// What was to be closed.
        what: &'static str,
        /// How many others hold it.
        holders: usize,
    },
    /// A byte range does not lie in its memory region.
    OutOfBounds(OutOfBounds),
    /// What the queue pair exposes breaks a rule of the rings.
    Exposure(ExposureError),
    /// Any other call that failed.
    Call(FailedCall),
}

impl Error {
    /// The function that failed, or that is missing. None where nothing was called.
    pub fn operation(&self) -> Option<&'static str> {
        match self {
            Self::FunctionMissing(call) => Some(call.name),
            Self::NotEfa { failure, .. } | Self::Call(failure) => Some(failure.operation),
            _ => None,
        }
    }

    /// The errno that the call failed with. None where no call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NotEfa { failure, .. } | Self::Call(failure) => Some(failure.errno),
            _ => None,
        }
    }

    /// What to do about it; empty where the text says it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Load(_) | Self::Exposure(_) => "",
            Self::FunctionMissing(_) => "use a newer rdma-core",
            Self::NoAdapter { .. } => {
                "check that /dev/infiniband and /sys/class/infiniband are visible to this process and that the \
                 efa and ib_uverbs kernel modules are loaded"
            }
            Self::NoSuchDevice { .. } => "name one of those found",
            Self::NotEfa { .. } => {
                "name an EFA adapter; if it is one, a second copy of libefa.so.1 drives it: leave one rdma-core \
                 in the image"
            }
            Self::AdapterLacks { capability, .. } => capability.hint(),
            Self::Exceeds { .. } => "ask for less",
            Self::TooWide { .. } => "report it with the versions of rdma-core and of the kernel driver",
            Self::OtherContext { .. } => "make all of a queue pair's objects on one context",
            Self::CompletionQueuePolled => "create another completion queue for this queue pair",
            Self::Busy { what: "memory region", .. } => REGION_IN_USE_HINT,
            Self::Busy { .. } => {
                "clones, and what was made of it (queue pairs, and mapped queues of them), hold it: close those first"
            }
            Self::OutOfBounds(range) => range.hint(),
            Self::Call(failure) => hint_for(failure),
        }
    }
}

/// Hints for calls whose failure has a usual cause.
fn hint_for(failure: &FailedCall) -> &'static str {
    match (failure.operation, failure.errno) {
        ("ibv_get_device_list", libc::ENOSYS) => "load the ib_uverbs kernel module",
        ("ibv_open_device", libc::EACCES | libc::EPERM | libc::ENOENT) => {
            "make /dev/infiniband/uverbs* visible to this process, with permission to open it"
        }
        ("ibv_reg_mr", libc::ENOMEM) => "raise the memlock limit (ulimit -l), or register less memory",
        ("ibv_reg_mr", libc::EFAULT) => "register memory that is mapped for the whole length",
        ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP) => {
            "the kernel or its driver cannot register a dmabuf; use a newer one"
        }
        ("ibv_reg_mr" | "ibv_reg_dmabuf_mr", libc::EOPNOTSUPP | libc::EINVAL) => {
            "ask only for remote access that the adapter has (Context::attributes)"
        }
        ("ibv_create_ah", _) => "give the GID that the peer's adapter reports, of the same network",
        ("efadv_create_cq" | "ibv_create_cq", libc::EINVAL) => {
            "ask for at most Attributes::max_completions entries; external memory must hold them all"
        }
        ("efadv_create_qp_ex", libc::EINVAL) => {
            "ask for no deeper queue than Context::max_send_entries and Attributes::max_receive_entries"
        }
        (_, libc::EOPNOTSUPP) => "this adapter, its kernel driver or this rdma-core does not have it",
        (_, libc::ENOMEM) => {
            "free memory or adapter resources; an adapter has a limit for each kind of object"
        }
        (_, libc::EBUSY) => "something made outside this library still refers to it; destroy that first",
        (_, libc::EIO | libc::ENODEV) => "the adapter was removed or reset; open it again",
        _ => "look into the kernel log for what the efa driver says about it",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => return write!(f, "{error}"),
            Self::Exposure(error) => return write!(f, "{error}"),
            Self::FunctionMissing(call) => {
                write!(
                    f,
                    "the loaded {} has no {call}, which came with rdma-core {}",
                    call.library, call.since
                )?;
            }
            Self::NoAdapter { devices } => {
                write!(f, "no EFA adapter; libibverbs found {}", listed(devices))?;
            }
            Self::NoSuchDevice { wanted, found } => {
                write!(f, "no device is called {wanted}; found: {}", listed(found))?;
            }
            Self::NotEfa { device, failure } => {
                write!(f, "{device} is not an EFA adapter to the loaded libefa: {failure}")?;
            }
            Self::AdapterLacks { capability, device } => write!(f, "{device} has no {capability}")?,
            Self::Exceeds { what, asked, limit } => {
                write!(f, "{asked} {what} were asked for; the adapter has at most {limit}")?;
            }
            Self::TooWide { what, number, bits } => {
                write!(f, "{what} {number:#x} was given out; an entry has {bits} bits for it")?;
            }
            Self::OtherContext { what } => write!(f, "the {what} belongs to another context")?,
            Self::CompletionQueuePolled => f.write_str("the completion queue is polled by somebody else")?,
            Self::Busy { what, holders } => write!(f, "the {what} is in use by {holders} other(s)")?,
            Self::OutOfBounds(range) => return write!(f, "{range}"),
            Self::Call(failure) => write!(f, "{failure}")?,
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

impl From<ExposureError> for Error {
    fn from(error: ExposureError) -> Self {
        Self::Exposure(error)
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
