//! The errors of rdma-core's calls, with what to do about those that have a usual cause.

use efa_gda_sys::verbs::{Call, LoadError};

use super::Capability;
use crate::memory::REGION_IN_USE_HINT;
use crate::{Error, ErrorKind};

/// rdma-core could not be loaded.
impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        Self::new(ErrorKind::NoLibrary, error.to_string()).caused_by(error)
    }
}

/// A call that returned `errno`, a positive number.
pub(super) fn failed(operation: &'static str, errno: i32) -> Error {
    let text = std::io::Error::from_raw_os_error(errno);
    Error::new(ErrorKind::Other, format!("{operation} failed: {text}"))
        .with_hint(hint_for(operation, errno))
        .in_call(operation)
        .with_code(errno)
}

/// The loaded rdma-core does not have the function.
pub(super) fn function_missing(call: &Call) -> Error {
    let text = format!("the loaded {} has no {call}, which rdma-core {} added", call.library, call.since);
    Error::unsupported(text)
        .with_hint("install an rdma-core that has it, such as the current EFA installer's")
        .in_call(call.name)
}

/// None of the devices is an EFA adapter.
pub(super) fn no_adapter(devices: &[String]) -> Error {
    let text = format!("no device is an EFA adapter; devices found: {}", listed(devices));
    Error::new(ErrorKind::NoAdapter, text).with_hint(
        "check that /dev/infiniband and /sys/class/infiniband are visible to this process and that the efa and \
         ib_uverbs kernel modules are loaded",
    )
}

/// No device has the name `wanted`.
pub(super) fn no_such_device(wanted: &str, found: &[String]) -> Error {
    let text = format!("no device has the name {wanted}; devices found: {}", listed(found));
    Error::new(ErrorKind::NoAdapter, text).with_hint("name one of the devices found")
}

/// libefa does not drive the device (EOPNOTSUPP from `efadv_query_device`).
pub(super) fn not_efa(device: &str, failure: &Error) -> Error {
    let what = failure.what();
    failure.with_text(
        ErrorKind::NoAdapter,
        format!("the loaded libefa does not accept {device} as an EFA adapter: {what}"),
        "name an EFA adapter; if it is one, another copy of libefa.so.1 drives it: keep one rdma-core in the image",
    )
}

/// The adapter, its driver or the loaded rdma-core lacks the capability.
pub(super) fn lacks(capability: Capability, device: &str) -> Error {
    Error::unsupported(format!("{device} does not have the capability: {capability}"))
        .with_hint(capability.hint())
}

/// The request exceeds a limit of the adapter.
pub(super) fn exceeds(what: &str, asked: u64, limit: u64) -> Error {
    Error::argument(format!("{asked} {what} were requested; the adapter allows at most {limit}"))
        .with_hint("request fewer")
}

/// A number has more bits than an entry carries.
pub(super) fn too_wide(what: &str, number: u64, bits: u32) -> Error {
    let text = format!("rdma-core returned the {what} {number:#x}; an entry has {bits} bits for it");
    Error::new(ErrorKind::Other, text)
        .with_hint("report it with the versions of rdma-core and the kernel driver")
}

/// The objects belong to different contexts.
pub(super) fn other_context(what: &str) -> Error {
    Error::argument(format!("the {what} belongs to another context (opening of an adapter)"))
        .with_hint("create all objects of a queue pair on one context")
}

/// Other handles use the object. `close` dropped its handle; the last handle closes the object.
pub(super) fn busy(what: &str, holders: usize) -> Error {
    Error::busy(format!("the {what} was not closed: {holders} other handle(s) use it")).with_hint(match what {
        "memory region" => REGION_IN_USE_HINT,
        _ => {
            "clones and objects created on it (queue pairs, and mapped queues of those) hold it: close those first"
        }
    })
}

/// Hints for calls whose failure has a common cause.
fn hint_for(operation: &str, errno: i32) -> &'static str {
    match (operation, errno) {
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

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
