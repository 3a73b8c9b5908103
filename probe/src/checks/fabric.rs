//! libfabric, from loading it to a verified completion. These checks run in a child process, on one
//! [`Session`]: each opens what the next one needs.

pub(crate) mod data;
pub(crate) mod gda;
mod moving;
pub(crate) mod objects;
mod pattern;
mod plant;
pub(crate) mod queues;
pub(crate) mod start;

use std::time::Duration;

use efa_gda::doorbell::Ringer;
use efa_gda::exposure::{RawCompletionQueue, RawWorkQueue};
use efa_gda::fabric::{
    AddressVector, CompletionQueue, Domain, Enabled, Endpoint, Error, Fabric, FabricAddress, GdaOps, Info,
    Library, MemoryRegion,
};
use efa_gda::queue::MappedQueue;
use efa_gda::wire::Peer;

use crate::check::{Answers, Outcome, Trouble, Unit};
use crate::part::child::{Progress, Stream};
use crate::part::{Event, Request};
use crate::report::{Put, Queues, Who};

/// What the checks of one process share.
#[derive(Debug)]
pub(crate) struct Session {
    /// What the parent asked for.
    pub(crate) request: Request,
    /// Tells the parent that a long check goes on.
    pub(crate) progress: Progress,
    /// libfabric.
    pub(crate) library: Option<Library>,
    /// How long its first query took.
    pub(crate) started: Option<Duration>,
    /// What the query for adapters came to.
    pub(crate) lookup: Option<Result<Vec<Info>, Error>>,
    /// The adapters that will be looked at.
    pub(crate) infos: Vec<Info>,
    /// What is open on the adapter that is being looked at.
    pub(crate) rig: Rig,
}

/// Objects open on one adapter.
#[derive(Debug, Default)]
pub(crate) struct Rig {
    pub(crate) info: Option<Info>,
    pub(crate) fabric: Option<Fabric>,
    pub(crate) domain: Option<Domain>,
    pub(crate) addresses: Option<AddressVector>,
    pub(crate) completions: Option<CompletionQueue>,
    pub(crate) region: Option<MemoryRegion>,
    pub(crate) endpoint: Option<Endpoint<Enabled>>,
    pub(crate) own_address: Option<FabricAddress>,
    pub(crate) ops: Option<GdaOps>,
    pub(crate) send: Option<RawWorkQueue>,
    pub(crate) receive: Option<RawWorkQueue>,
    pub(crate) completion: Option<RawCompletionQueue>,
    pub(crate) peer: Option<Peer>,
    pub(crate) queues: Queues,
    pub(crate) put: Option<Put>,
    pub(crate) queue: Option<MappedQueue>,
    /// Rings for the queue where its device code does not.
    pub(crate) ringer: Option<Ringer>,
}

/// The checks that repeat for each adapter, in their order.
pub(crate) fn adapter_checks() -> impl Iterator<Item = &'static Unit<Session>> {
    objects::CHECKS.iter().chain(gda::CHECKS).chain(queues::CHECKS).chain(data::CHECKS)
}

/// Runs all of it.
pub(crate) fn run(stream: &mut Stream, request: Request) {
    let mut session = Session {
        request,
        progress: stream.progress(),
        library: None,
        started: None,
        lookup: None,
        infos: Vec::new(),
        rig: Rig::default(),
    };
    for unit in start::CHECKS {
        stream.run(unit, None, &mut session);
        if let (Some(library), "LIB-001") = (&session.library, unit.check.code) {
            stream.send(&Event::Loaded { path: library.path().display().to_string() });
        }
        if let (Some(took), "FAB-001") = (session.started, unit.check.code) {
            let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            stream.send(&Event::Started { milliseconds });
        }
    }
    let mut infos = session.infos.clone();
    if session.request.put.one_adapter {
        infos.truncate(1);
    }
    let names: Vec<String> = infos.iter().map(|info| info.domain_name().into_owned()).collect();
    stream.send(&Event::Adapters { names: names.clone() });
    if infos.is_empty() {
        adapter_checks().for_each(|unit| stream.run(unit, None, &mut session));
    }
    for (info, name) in infos.into_iter().zip(names) {
        if session.request.avoid.contains(&name) {
            continue;
        }
        one_adapter(stream, &mut session, info, &name);
    }
}

fn one_adapter(stream: &mut Stream, session: &mut Session, info: Info, name: &str) {
    session.rig = Rig { info: Some(info), ..Rig::default() };
    for unit in adapter_checks() {
        stream.run(unit, Some(name), session);
        if unit.check.code == queues::LAST_GEOMETRY && !session.rig.queues.is_empty() {
            stream.send(&Event::Queues { queues: session.rig.queues.clone() });
        }
        if let Some(put) = session.rig.put.take() {
            stream.send(&Event::Moved { put });
        }
    }
}

/// A failure that libfabric's answer explains: observed and fix come from it.
pub(crate) fn refused(error: &Error, required: &str, why: &str, who: Who) -> Answers {
    Outcome::Fail(Trouble {
        observed: seen(error, error.hint()),
        required: required.to_owned(),
        why: why.to_owned(),
        fix: error.hint().to_owned(),
        who,
    })
    .into()
}

/// An error's words without the hint at their end.
pub(crate) fn seen(error: &impl std::fmt::Display, hint: &str) -> String {
    let text = error.to_string();
    text.strip_suffix(&format!("; {hint}")).unwrap_or(&text).to_owned()
}

/// A failure that the probe itself explains.
pub(crate) fn failed(observed: String, required: &str, why: &str, fix: &str, who: Who) -> Answers {
    Outcome::Fail(Trouble {
        observed,
        required: required.to_owned(),
        why: why.to_owned(),
        fix: fix.to_owned(),
        who,
    })
    .into()
}

/// For a check whose need was not met by this process, which the needs it declares rule out.
pub(crate) fn missing(what: &str) -> Answers {
    Outcome::unknown(format!("{what} is not open in this process")).into()
}
