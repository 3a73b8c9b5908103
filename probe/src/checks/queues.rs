//! Queue geometry: whether the exposed queues comply with the rules of the rings.

use efa_gda::exposure::{CompletionRing, RawCompletionQueue, RawWorkQueue, ReceiveQueue, SendQueue};
use efa_gda::{Error, ErrorKind};

use super::session::{Layer, Session, missing};
use crate::check::{Checked, Outcome, Outcomes};
use crate::model::{Geometry, Party};
use crate::worker::Event;

fn broken<L: Layer>(session: &Session<L>, error: &Error) -> Outcomes {
    let (fix, who) = match error.kind() {
        _ if session.request.soft => (
            "unset SOFTEFA_BREAK if it is set, which makes the software adapter report this; \
             otherwise report it (gda-probe report)",
            Party::Caller,
        ),
        ErrorKind::Unsupported => (
            "install the newest gda-probe and efa-gda: this adapter's entries are of a kind that \
             they do not know yet",
            Party::Image,
        ),
        _ => (
            "install the current EFA installer's libfabric and rdma-core in the image; if they \
             are current, report it to AWS with their versions and the kernel driver's \
             (gda-probe report)",
            Party::Image,
        ),
    };
    Outcome::fail(error.what())
        .expects(
            "numbers that follow the rules of the rings",
            "the provider reported this, not the program: device code that used these numbers \
             would write outside the ring, or its doorbells would have no effect",
        )
        .fix(fix, who)
        .into()
}

/// The result for a work queue that was exposed, judged by the rules of its ring.
fn judge_work<T, L: Layer>(session: &Session<L>, raw: &RawWorkQueue, judged: Result<T, Error>) -> Checked {
    judged.map_err(|error| broken(session, &error))?;
    let RawWorkQueue { num_entries, entry_size, max_batch, .. } = raw;
    let batch = format!("at most {max_batch} between two doorbells");
    Outcome::pass(format!("{num_entries} entries of {entry_size} bytes, {batch}")).into()
}

fn work_geometry(raw: &RawWorkQueue, phase: Option<u8>) -> Geometry {
    let RawWorkQueue { num_entries, entry_size, max_batch, .. } = *raw;
    Geometry { entry_size, num_entries, max_batch: Some(max_batch), phase }
}

pub(crate) fn send<L: Layer>(session: &mut Session<L>) -> Checked {
    let raw = session.rig.send.ok_or_else(|| missing("the send queue"))?;
    session.rig.queues.sq = Some(work_geometry(&raw, Some(0)));
    judge_work(session, &raw, SendQueue::new(raw))
}

pub(crate) fn receive<L: Layer>(session: &mut Session<L>) -> Checked {
    let raw = session.rig.receive.ok_or_else(|| missing("the receive queue"))?;
    session.rig.queues.rq = Some(work_geometry(&raw, None));
    judge_work(session, &raw, ReceiveQueue::new(raw))
}

pub(crate) fn completion<L: Layer>(session: &mut Session<L>) -> Checked {
    let raw = session.rig.completion.ok_or_else(|| missing("the completion queue"))?;
    let RawCompletionQueue { num_entries, entry_size, .. } = raw;
    session.rig.queues.cq = Some(Geometry { entry_size, num_entries, max_batch: None, phase: Some(1) });
    session.reports.push(Event::Queues(session.rig.queues.clone()));
    CompletionRing::new(raw).map_err(|error| broken(session, &error))?;
    Outcome::pass(format!("{num_entries} entries of {entry_size} bytes")).into()
}

pub(crate) fn deep_enough<L: Layer>(session: &mut Session<L>) -> Checked {
    let (Some(send), Some(completion)) = (session.rig.send, session.rig.completion) else {
        return Err(missing("the queues"));
    };
    let observed =
        format!("{} completion entries for {} send entries", completion.num_entries, send.num_entries);
    if completion.num_entries >= send.num_entries {
        return Outcome::pass(observed).into();
    }
    Outcome::warn(observed)
        .expects(
            format!("at least {} completion entries", send.num_entries),
            "a full send queue can overrun a completion queue that is not read in time",
        )
        .into()
}
