//! Loading libfabric and finding adapters: the checks without a subject.

use std::time::Instant;

use efa_gda::fabric::{EFA_DIRECT, Error, Info, Library, Query, Version};

use super::{Session, refused};
use crate::check::{Check, Nature, Outcome, Outcomes, Problem, Unit};
use crate::checks::session::{failed, missing, without_hint};
use crate::model::{Kind, Op, Who};

/// The first release that knows an order of providers other than by version.
const FIRST_WITH_ORDER: Version = Version::new(2, 0);

/// The checks of this category. The first two are of libraries, the rest of libfabric's objects.
pub(crate) static CHECKS: &[Unit<Session>] = &[
    unit("LIB-001", "libfabric loads", Kind::Proven, &["ENV-000", "ENV-005"], loads),
    unit("LIB-002", "libfabric's version is one that is known", Kind::Declared, &["LIB-001"], version),
    unit("FAB-001", "libfabric has an efa provider with an adapter", Kind::Proven, &["LIB-001"], provider),
    unit("FAB-002", "The provider offers the fabric efa-direct", Kind::Proven, &["FAB-001"], direct),
    unit("FAB-003", "The adapter asked for is there", Kind::Declared, &["FAB-002"], chosen),
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
            let path = library.path().display().to_string();
            if session.request.soft && library.version() >= FIRST_WITH_ORDER {
                prefer_software_adapter();
            }
            session.start.library = Some(library);
            Outcome::pass(path).into()
        }
        Err(error) => refused(
            &error,
            "libfabric.so.1 of release 1.17 or newer",
            "queues of an adapter are exposed through libfabric",
            Who::Image,
        ),
    }
}

/// Puts `@` before the directories of FI_PROVIDER_PATH: providers in them come before built-in ones
/// of the same name, whatever their versions.
fn prefer_software_adapter() {
    let name = "FI_PROVIDER_PATH";
    let Some(path) = std::env::var_os(name) else { return };
    let mut preferred = std::ffi::OsString::from("@");
    preferred.push(path);
    // SAFETY: this process has one thread: libfabric was loaded and has not been called yet.
    unsafe { std::env::set_var(name, preferred) };
}

fn version(session: &mut Session) -> Outcomes {
    let Some(library) = &session.start.library else { return missing("libfabric") };
    let (version, api) = (library.version(), library.api_version());
    Outcome::pass(format!("libfabric {version}, used at API {api}")).into()
}

fn provider(session: &mut Session) -> Outcomes {
    let Some(library) = &session.start.library else { return missing("libfabric") };
    let begin = Instant::now();
    // Bytes inside RDMA writes need 128-byte entries; everything else goes by the default.
    let found = Query::new().wide_entries(session.request.put.op == Op::InlineWrite).find(library);
    session.start.took = Some(begin.elapsed());
    let outcome = match &found {
        Ok(infos) => {
            let first = infos.first().map(Info::provider_version);
            let version = first.map(|version| version.to_string()).unwrap_or_default();
            Outcome::pass(format!("efa provider {version}")).into()
        }
        Err(Error::NoDirectFabric { fabrics, .. }) => {
            Outcome::pass(format!("efa provider with the fabrics {}", fabrics.join(", "))).into()
        }
        Err(error) if session.request.soft => no_software_adapter(error),
        Err(error) => refused(
            error,
            "a provider named efa that finds an adapter",
            "without it libfabric reaches no EFA adapter; it is built in by the EFA installer, and finds \
             adapters through libefa and /dev/infiniband",
            Who::Image,
        ),
    };
    session.start.lookup = Some(found);
    outcome
}

/// Hardware has no part in it: the software adapter was loaded, or should have been.
fn no_software_adapter(error: &Error) -> Outcomes {
    let mut set: Vec<String> = std::env::vars_os()
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
        .filter(|one| one.starts_with("SOFTEFA_") && !one.starts_with(crate::soft::SOFTEFA_LIBRARY))
        .collect();
    set.sort();
    let set = if set.is_empty() { String::new() } else { format!("; set: {}", set.join(", ")) };
    failed(
        format!("{}{set}", without_hint(error, error.hint())),
        "the software adapter, as a provider named efa",
        "softefa's provider refused to start, or this libfabric did not take it",
        "read what softefa says on stderr (SOFTEFA_LOG=1 for more); check the SOFTEFA_* values that are set \
         (docs/softefa.md lists them), and that FI_PROVIDER does not leave efa out",
        Who::Pod,
    )
}

fn direct(session: &mut Session) -> Outcomes {
    match session.start.lookup.take() {
        Some(Ok(infos)) => {
            session.start.infos = infos;
            Outcome::pass(format!("{EFA_DIRECT} on {}", names(&session.start.infos).join(", "))).into()
        }
        Some(Err(error)) => refused(
            &error,
            "the fabric efa-direct (libfabric 2.1)",
            "on the plain efa fabric libfabric drives the queues itself and hands none out",
            Who::Image,
        ),
        None => missing("the list of adapters"),
    }
}

fn names(infos: &[Info]) -> Vec<String> {
    infos.iter().map(|info| info.domain_name().into_owned()).collect()
}

fn chosen(session: &mut Session) -> Outcomes {
    let found = names(&session.start.infos);
    let Some(wanted) = session.request.device.clone() else {
        return Outcome::pass(format!("all {} of them", found.len())).into();
    };
    session.start.infos.retain(|info| info.matches_name(&wanted));
    if !session.start.infos.is_empty() {
        return Outcome::pass(names(&session.start.infos).join(", ")).into();
    }
    Outcome::Fail(Problem {
        observed: format!("no adapter is called {wanted}; found: {}", found.join(", ")),
        required: format!("an adapter called {wanted}"),
        why: "--device names a domain of libfabric, or its RDMA device".to_owned(),
        fix: "name one of those found".to_owned(),
        who: Who::Code,
    })
    .into()
}
