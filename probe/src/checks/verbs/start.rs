//! Loading rdma-core and finding adapters: the checks without a subject.

use efa_gda::verbs::{Device, Error, Library};

use super::{Session, refused};
use crate::check::{Check, Nature, Outcome, Outcomes, Problem, Unit};
use crate::checks::session::missing;
use crate::model::{Kind, Who};

/// The checks of this category.
pub(crate) static CHECKS: &[Unit<Session>] = &[
    unit("VRB-001", "rdma-core loads", Kind::Proven, &["ENV-000"], loads),
    unit("VRB-002", "rdma-core can hand out queues", Kind::Declared, &["VRB-001"], exposes),
    unit("VRB-003", "libibverbs finds an EFA adapter", Kind::Proven, &["VRB-001"], finds),
    unit("VRB-004", "The adapter asked for is there", Kind::Declared, &["VRB-003"], chosen),
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
            "without libfabric, queues of an adapter are exposed through libefa",
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
            let less =
                if missing.is_empty() { String::new() } else { format!(", without {}", missing.join(", ")) };
            Outcome::pass(format!("rdma-core {release}{less}")).into()
        }
        Err(error) => refused(
            &error,
            "efadv_query_qp_wqs and efadv_query_cq, of rdma-core 59",
            "older releases do not say where a queue lies",
            Who::Image,
        ),
    }
}

/// Whether a device is an EFA adapter, as far as opening it tells: one that cannot be opened may be.
fn may_be_efa(device: &Device) -> bool {
    !matches!(device.open(), Err(Error::NotEfa { .. }))
}

fn finds(session: &mut Session) -> Outcomes {
    let Some(library) = &session.start.library else { return missing("rdma-core") };
    const WHY: &str = "libibverbs reads adapters from /sys/class/infiniband_verbs and opens them in \
                       /dev/infiniband";
    let devices = match library.devices() {
        Ok(devices) => devices,
        Err(error) => return refused(&error, "ibv_get_device_list succeeds", WHY, Who::Pod),
    };
    let names = names(&devices);
    session.start.devices = devices.into_iter().filter(may_be_efa).collect();
    if session.start.devices.is_empty() {
        return refused(&Error::NoAdapter { devices: names }, "an EFA adapter", WHY, Who::Pod);
    }
    Outcome::pass(self::names(&session.start.devices).join(", ")).into()
}

fn names(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| device.name().to_owned()).collect()
}

fn chosen(session: &mut Session) -> Outcomes {
    let found = names(&session.start.devices);
    let Some(wanted) = session.request.device.clone() else {
        return Outcome::pass(format!("all {} of them", found.len())).into();
    };
    // A libfabric domain is called after its device.
    let called =
        |name: &str| wanted == name || wanted.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    session.start.devices.retain(|device| called(device.name()));
    if !session.start.devices.is_empty() {
        return Outcome::pass(names(&session.start.devices).join(", ")).into();
    }
    Outcome::Fail(Problem {
        observed: format!("no adapter is called {wanted}; found: {}", found.join(", ")),
        required: format!("an adapter called {wanted}"),
        why: "--device names an RDMA device, or its domain of libfabric".to_owned(),
        fix: "name one of those found".to_owned(),
        who: Who::Code,
    })
    .into()
}
