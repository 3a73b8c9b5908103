//! The checks without a subject: loading rdma-core and finding adapters.

use efa_gda::verbs::{Device, Error, Library};

use super::{Session, refused};
use crate::check::{Check, Nature, Outcome, Outcomes, Problem, Unit};
use crate::checks::session::{failed, missing, without_hint};
use crate::model::{Kind, Who};

/// The checks of this category.
pub(crate) static CHECKS: &[Unit<Session>] = &[
    unit("VRB-001", "rdma-core loads", Kind::Proven, &["ENV-000"], loads),
    unit("VRB-002", "rdma-core can expose queues", Kind::Declared, &["VRB-001"], exposes),
    unit("VRB-003", "libibverbs finds an EFA adapter", Kind::Proven, &["VRB-001"], finds),
    unit("VRB-004", "The requested adapter exists", Kind::Declared, &["VRB-003"], chosen),
];

const fn unit(
    code: &'static str,
    title: &'static str,
    kind: Kind,
    needs: &'static [&'static str],
    run: fn(&mut Session) -> Outcomes,
) -> Unit<Session> {
    Unit { check: Check { code, title, kind, nature: Nature::Any, needs }, run }
}

fn loads(session: &mut Session) -> Outcomes {
    match Library::load() {
        Ok(library) => {
            let path = |loaded: &efa_gda::verbs::Loaded| loaded.path.display().to_string();
            let observed = library.libraries().map(|(verbs, efa)| format!("{}, {}", path(verbs), path(efa)));
            session.start.library = Some(library);
            Outcome::pass(observed.unwrap_or_default()).into()
        }
        Err(error) => refused(
            &error,
            "libibverbs.so.1 and libefa.so.1",
            "without libfabric, libefa exposes the adapter's queues",
            Who::Image,
        ),
    }
}

fn exposes(session: &mut Session) -> Outcomes {
    let Some(library) = &session.start.library else { return missing("rdma-core") };
    let release = library.libraries().map(|(_, efa)| efa.release.to_string()).unwrap_or_default();
    match library.exposes_queues() {
        Ok(()) => {
            let missing: Vec<&str> = library.missing().iter().map(|call| call.name).collect();
            let without =
                if missing.is_empty() { String::new() } else { format!(", without {}", missing.join(", ")) };
            Outcome::pass(format!("rdma-core {release}{without}")).into()
        }
        Err(error) => refused(
            &error,
            "efadv_query_qp_wqs and efadv_query_cq, which rdma-core 59 added",
            "older releases do not expose the addresses of a queue",
            Who::Image,
        ),
    }
}

/// Whether a device can be an EFA adapter: libefa accepts it, or it does not open.
fn may_be_efa(device: &Device) -> bool {
    !matches!(device.open(), Err(Error::NotEfa { .. }))
}

fn finds(session: &mut Session) -> Outcomes {
    let Some(library) = &session.start.library else { return missing("rdma-core") };
    const WHY: &str = "libibverbs reads the list of adapters from /sys/class/infiniband_verbs and opens their nodes in \
                       /dev/infiniband";
    let devices = match library.devices() {
        Ok(devices) => devices,
        // Its usual cause, and the fix in the error, is a missing kernel module.
        Err(error) => return refused(&error, "ibv_get_device_list succeeds", WHY, Who::Host),
    };
    let names = names(&devices);
    session.start.devices = devices.into_iter().filter(may_be_efa).collect();
    if session.start.devices.is_empty() {
        let error = Error::NoAdapter { devices: names };
        return failed(
            without_hint(&error, error.hint()),
            "at least one EFA adapter",
            WHY,
            "add the EFA devices to the container (docker --device /dev/infiniband/uverbsN; Kubernetes: the \
             resource vpc.amazonaws.com/efa); if DEV-002 or DEV-003 fails, the operator of the host must fix \
             that first",
            Who::Pod,
        );
    }
    Outcome::pass(self::names(&session.start.devices).join(", ")).into()
}

fn names(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| device.name().to_owned()).collect()
}

fn chosen(session: &mut Session) -> Outcomes {
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
    Outcome::Fail(Problem {
        observed: format!("no adapter is named {wanted}; found: {}", found.join(", ")),
        required: format!("an adapter named {wanted}"),
        why: "--device must name an RDMA device or its libfabric domain".to_owned(),
        fix: "set --device to the name of an adapter that was found, or omit it to use all".to_owned(),
        who: Who::Code,
    })
    .into()
}
