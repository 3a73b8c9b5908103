//! The provider's GPU-Direct Async operations on one adapter.

use std::os::fd::AsFd;

use efa_gda::Error;
use efa_gda::fabric::{
    ExternalMemory, FIRST_WITH_COUNTERS, FIRST_WITH_GDA_OPS, Info, UnavailableReason, Version,
};

use super::{Session, refused};
use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::external_memory;
use crate::checks::session::{describe_peer, missing, open};
use crate::model::{PROVIDER, Party};
use crate::releases::{CNTR_OPEN_EXT, GDA_OPS};

/// A provider version with its libfabric release: 206.0 is of 2.6.
fn describe(version: Version) -> String {
    format!("efa provider {version} (libfabric {}.{})", version.major() / 100, version.major() % 100)
}

pub(crate) fn release(session: &mut Session) -> Checked {
    let Some(info) = &session.rig.objects.info else { return release_of_library(session) };
    let mut has = describe(info.provider_version());
    if let Some(library) = &session.start.library {
        has = format!("{has}; loaded: libfabric {}, {}", library.version(), library.path().display());
    }
    if is_too_old(info) { Err(too_old(has)) } else { Outcome::pass(has).into() }
}

fn is_too_old(info: &Info) -> bool {
    info.provider_version() < FIRST_WITH_GDA_OPS
}

/// The outcome without an adapter, by the release of the library and so of its built-in provider.
fn release_of_library(session: &Session) -> Checked {
    let version = open(&session.start.library, "libfabric")?.version();
    if session.request.soft || GDA_OPS.is_in(&version.to_string()) {
        let why = "no adapter with efa-direct was found, so the provider's version is not known";
        return Outcome::unknown(format!("{why} (libfabric {version})")).into();
    }
    Err(too_old(format!("libfabric {version} with a built-in efa provider of the same release")))
}

fn too_old(observed: String) -> Outcomes {
    Outcome::fail(observed)
        .expects(
            format!(
                "{} or newer, because GDA operations need {}",
                describe(FIRST_WITH_GDA_OPS),
                GDA_OPS.describe()
            ),
            "older providers do not have the operations that expose a queue",
        )
        .fix(
            format!(
                "install {} or newer in the image (the current EFA installer has one), where every program \
             finds it first (LD_LIBRARY_PATH, ld.so.conf)",
                GDA_OPS.describe()
            ),
            Party::Image,
        )
        .into()
}

pub(crate) fn table(session: &mut Session) -> Checked {
    let ops = match open(&session.rig.objects.domain, "the domain")?.gda_ops() {
        Err(_) if session.rig.objects.info.as_ref().is_some_and(is_too_old) => {
            let why = "the provider is older than the GDA operations";
            return Outcome::Skip(PROVIDER.to_owned(), why.to_owned()).into();
        }
        opened => opened.map_err(refused)?,
    };
    let offered = ops.available();
    let available = offered.iter().filter(|(_, availability)| availability.is_ok()).map(|(name, _)| *name);
    let observed = available.collect::<Vec<_>>().join(", ");
    session.rig.objects.ops = Some(ops);
    Outcome::pass(observed).into()
}

pub(crate) fn work_queues(session: &mut Session) -> Checked {
    let objects = &session.rig.objects;
    let (ops, endpoint) = (open(&objects.ops, "the endpoint")?, open(&objects.endpoint, "the endpoint")?);
    let queues = ops.query_qp_wqs(endpoint).map_err(refused)?;
    (session.rig.send, session.rig.receive) = (Some(queues.send), Some(queues.receive));
    Outcome::pass("the GDA operations expose the send queue and the receive queue").into()
}

pub(crate) fn completion_queue(session: &mut Session) -> Checked {
    let ops = open(&session.rig.objects.ops, "the completion queue")?;
    let completions = open(&session.rig.objects.completions, "the completion queue")?;
    let queue = ops.query_cq(completions).map_err(refused)?;
    session.rig.completion = Some(queue);
    Outcome::pass("the GDA operations expose the completion queue").into()
}

pub(crate) fn address(session: &mut Session) -> Checked {
    let objects = &session.rig.objects;
    let (ops, endpoint) = (open(&objects.ops, "the endpoint")?, open(&objects.endpoint, "the endpoint")?);
    let address = *open(&objects.own_address, "the endpoint")?;
    let peer = ops.query_addr(endpoint, address).map_err(refused)?;
    session.rig.peer = Some(peer);
    Outcome::pass(describe_peer(&peer)).into()
}

pub(crate) fn local_key(session: &mut Session) -> Checked {
    let ops = open(&session.rig.objects.ops, "the memory region")?;
    let region = open(&session.rig.objects.region, "the memory region")?;
    let key = ops.get_mr_lkey(region).map_err(refused)?;
    Outcome::pass(format!("lkey {:#x}", key.get())).into()
}

/// Whether the table has an operation; None without a table.
fn offered(session: &Session, operation: &str) -> Option<Result<(), UnavailableReason>> {
    let ops = session.rig.objects.ops.as_ref()?;
    ops.available().into_iter().find(|(name, _)| *name == operation).map(|(_, availability)| availability)
}

/// A table of five operations is a failure even if its release has no more, because nothing in the table marks
/// its end.
pub(crate) fn counters(session: &mut Session) -> Checked {
    let availability = offered(session, "cntr_open_ext").ok_or_else(|| missing("the table of operations"))?;
    let Err(absence) = availability else { return Outcome::pass("offered").into() };
    let broken = "use libfabric's built-in efa provider, and report this one to its maintainer";
    let (observed, fix) = match absence {
        UnavailableReason::ProviderTooOld { has, .. } => (
            format!("a table of five operations: cntr_open_ext is not offered by {}", describe(has)),
            format!(
                "install {} or newer in the image (the current EFA installer has one); until then, do not call \
                 cntr_open_ext or any later operation",
                CNTR_OPEN_EXT.describe()
            ),
        ),
        UnavailableReason::TableEndsEarly { has } => {
            (format!("a table of five operations, although {} has six", describe(has)), broken.to_owned())
        }
        other => (format!("not offered: {other}"), broken.to_owned()),
    };
    Outcome::fail(observed)
        .expects(
            format!("a table of six operations, as in {}", describe(FIRST_WITH_COUNTERS)),
            "a program that is built for libfabric 2.6, or follows the manual page of 2.5, calls an invalid \
              address instead of the sixth operation; queues work without it, with completions read from the \
              completion queue",
        )
        .fix(fix, Party::Image)
        .into()
}

pub(crate) fn external(session: &mut Session) -> Checked {
    let availability = offered(session, "cq_open_ext").ok_or_else(|| missing("the table of operations"))?;
    let Err(absence) = availability else { return Outcome::pass("offered").into() };
    Outcome::warn(format!("not offered: {absence}")).into()
}

pub(crate) fn external_opens(session: &mut Session) -> Checked {
    let ops = open(&session.rig.objects.ops, "the table of operations")?;
    if ops.available().iter().any(|(name, offered)| *name == "cq_open_ext" && offered.is_err()) {
        return Outcome::unknown("the provider does not offer cq_open_ext (GDA-008)").into();
    }
    let memory = match external_memory::memory(session.request.soft) {
        Ok(memory) => memory,
        Err(why) => return Outcome::unknown(format!("no external memory for the test: {why}")).into(),
    };
    let external = ExternalMemory {
        dmabuf: memory.as_fd(),
        offset: 0,
        length: external_memory::BYTES,
        buffer: std::ptr::null_mut(),
    };
    // SAFETY: the descriptor keeps the memory alive. The queue is closed before the descriptor, which is leaked
    // if the queue does not close.
    let queue = match unsafe { ops.cq_open_ext(&external, external_memory::ENTRIES as usize) } {
        Ok(queue) => queue,
        Err(error) => return Err(not_opened(&error)),
    };
    let outcome = match ops.query_cq(&queue) {
        Ok(raw) if raw.num_entries >= external_memory::ENTRIES => {
            Outcome::pass(format!("{} entries of {} bytes", raw.num_entries, raw.entry_size)).into()
        }
        Ok(raw) => Outcome::warn(format!("{} entries", raw.num_entries))
            .expects(
                format!("at least the {} requested entries", external_memory::ENTRIES),
                "a completion queue with fewer entries than its program expects can overrun",
            )
            .fix(
                "read the depth with query_cq after opening, and report this with the provider's version",
                Party::Image,
            )
            .into(),
        Err(error) => Err(not_opened(&error)),
    };
    if let Err(error) = queue.close() {
        // The adapter may still write to the memory, so it is leaked.
        std::mem::forget(memory);
        return Err(not_opened(&error));
    }
    outcome
}

/// A warning, because queues work without it.
fn not_opened(error: &Error) -> Outcomes {
    Outcome::warn(error.what())
        .expects(
            "cq_open_ext, query_cq and fi_close succeed",
            "a GPU reads completions in its memory faster than across PCIe",
        )
        .fix(error.hint(), Party::Operator)
        .into()
}
