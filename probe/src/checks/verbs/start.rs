//! The checks without a subject: loading rdma-core and finding adapters.

use efa_gda::ErrorKind;
use efa_gda::verbs::{Device, Library};

use super::{Session, failure, refused};
use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::session::{not_named, open};
use crate::model::Party;

pub(crate) fn loads(session: &mut Session) -> Checked {
    let library = Library::load().map_err(refused)?;
    let path = |loaded: &efa_gda::verbs::Loaded| loaded.path.display().to_string();
    let observed = library.libraries().map(|(verbs, efa)| format!("{}, {}", path(verbs), path(efa)));
    session.start.library = Some(library);
    Outcome::pass(observed.unwrap_or_default()).into()
}

pub(crate) fn exposes(session: &mut Session) -> Checked {
    let library = open(&session.start.library, "rdma-core")?;
    let release = library.libraries().map(|(_, efa)| efa.release.to_string()).unwrap_or_default();
    library.exposes_queues().map_err(refused)?;
    let missing: Vec<&str> = library.missing().iter().map(|call| call.name).collect();
    let without =
        if missing.is_empty() { String::new() } else { format!(", without {}", missing.join(", ")) };
    Outcome::pass(format!("rdma-core {release}{without}")).into()
}

/// Whether a device can be an EFA adapter: libefa accepts it, or it does not open.
fn may_be_efa(device: &Device) -> bool {
    !device.open().is_err_and(|error| error.kind() == ErrorKind::NoAdapter)
}

pub(crate) fn finds(session: &mut Session) -> Checked {
    session.start.devices = adapters(open(&session.start.library, "rdma-core")?)?;
    Outcome::pass(names(&session.start.devices).join(", ")).into()
}

/// The devices that may be EFA adapters, at least one.
fn adapters(library: &Library) -> Result<Vec<Device>, Outcomes> {
    const WHY: &str = "libibverbs reads the list of adapters from /sys/class/infiniband_verbs and opens \
             their nodes in /dev/infiniband";
    // The usual cause, and the fix in the error, is a missing kernel module.
    let devices = library.devices().map_err(|error| {
        failure(&error).expects("ibv_get_device_list succeeds", WHY).fix(error.hint(), Party::Operator)
    })?;
    let names = names(&devices);
    let adapters: Vec<_> = devices.into_iter().filter(may_be_efa).collect();
    if adapters.is_empty() {
        let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(Outcome::fail(format!("no device is an EFA adapter; devices found: {found}"))
            .expects("at least one EFA adapter", WHY)
            .fix(
                "add the EFA devices to the container (docker --device /dev/infiniband/uverbsN; \
             Kubernetes: the resource vpc.amazonaws.com/efa); if DEV-002 or DEV-003 fails, the \
             operator of the host must fix that first",
                Party::Pod,
            )
            .into());
    }
    Ok(adapters)
}

fn names(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| device.name().to_owned()).collect()
}

pub(crate) fn chosen(session: &mut Session) -> Checked {
    let found = names(&session.start.devices);
    let Some(wanted) = session.request.device.clone() else {
        return Outcome::pass(format!("all adapters ({})", found.len())).into();
    };
    // A libfabric domain has its device's name and a suffix.
    let matches =
        |name: &str| wanted == name || wanted.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    session.start.devices.retain(|device| matches(device.name()));
    if !session.start.devices.is_empty() {
        return Outcome::pass(names(&session.start.devices).join(", ")).into();
    }
    not_named(&wanted, &found, "an RDMA device or its libfabric domain").into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

    use std::ffi::{CStr, c_char, c_int};
    use std::ptr::null_mut;

    use efa_gda::verbs::RdmaCore;
    use efa_gda_sys::verbs::{efa_gda_efadv_calls, efa_gda_ibverbs_calls, ibv_context, ibv_device};

    use super::*;
    use crate::check::Problem;

    unsafe extern "C" fn no_module(_: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the address of this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        null_mut()
    }

    unsafe extern "C" fn no_device(count: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller passes a count to fill in. The list is freed by `free`.
        unsafe {
            *count = 0;
            Box::into_raw(Box::new(null_mut()))
        }
    }

    unsafe extern "C" fn free(list: *mut *mut ibv_device) {
        // SAFETY: `no_device` allocated it.
        drop(unsafe { Box::from_raw(list) });
    }

    unsafe extern "C" fn name(_: *mut ibv_device) -> *const c_char {
        const NAME: &CStr = c"none";
        NAME.as_ptr()
    }

    unsafe extern "C" fn guid(_: *mut ibv_device) -> u64 {
        0
    }

    unsafe extern "C" fn open(_: *mut ibv_device) -> *mut ibv_context {
        null_mut()
    }

    /// The failure of VRB-003 on an rdma-core that lists devices by `list`.
    fn failure(list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device) -> Problem {
        let ibv = efa_gda_ibverbs_calls {
            ibv_get_device_list: Some(list),
            ibv_free_device_list: Some(free),
            ibv_get_device_name: Some(name),
            ibv_get_device_guid: Some(guid),
            ibv_open_device: Some(open),
            ..Default::default()
        };
        // SAFETY: the functions above behave as those of rdma-core.
        let core = unsafe { RdmaCore::from_tables(ibv, efa_gda_efadv_calls::default()) };
        match adapters(&core.into()).unwrap_err().0.remove(0).1 {
            Outcome::Fail(problem) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_missing_kernel_module_is_the_hosts_and_a_missing_device_the_pods() {
        for (list, who, fix) in [
            (no_module as unsafe extern "C" fn(*mut c_int) -> _, Party::Operator, "kernel module"),
            (no_device, Party::Pod, "to the container"),
        ] {
            let problem = failure(list);
            assert_eq!(problem.who, Some(who), "{problem:?}");
            assert!(problem.fix.as_ref().is_some_and(|text| text.contains(fix)), "{problem:?}");
        }
    }
}
