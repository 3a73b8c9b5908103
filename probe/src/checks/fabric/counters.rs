//! Completion counters: opens one, binds it to a separate endpoint, and compares its values with the requests of
//! that endpoint. The requests go to another adapter of the node if the platform drops what an adapter sends to itself.

use std::time::{Duration, Instant};

use efa_gda::fabric::{
    Access, Bindings, Buffer, CompletionCounter, CountedOperations, FIRST_WITH_COUNTERS, Library,
    RemoteRegion,
};
use efa_gda::queue::{MappedQueue, Region, WorkRequest};
use efa_gda::wire::RemoteKey;
use efa_gda::{Error, ErrorKind};

use super::counter_cause::{self, Cause, Facts, SWITCH};
use super::objects::COMPLETIONS;
use super::{Libfabric, Session, neighbour};
use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::data::{WRONG, is_unanswered};
use crate::checks::session::{Layer, close_queue, introduce, missing, text};
use crate::model::Party;
use crate::releases::COUNTERS_BY_DEFAULT;
use crate::system::System;

/// Bytes of each write.
const BYTES: usize = 64;

/// Successes and errors that a counter has counted; None where libfabric does not report them.
type Values = (Option<u64>, Option<u64>);

/// Why there are no values to compare.
enum Uncompared {
    NotOpened(Error),
    Refused(Error),
    NotRegistered(Outcomes),
    /// The target did not answer the write that must succeed.
    Unanswered(String),
    Unexpected(String),
}

impl From<Error> for Uncompared {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// GDA-010.
pub(crate) fn count(session: &mut Session) -> Checked {
    let wait = Duration::from_millis(session.request.wait);
    let mut of = String::new();
    let mut counted = one_success_and_one_error(&session.rig.objects, None, wait);
    if let Err(Uncompared::Unanswered(lost)) = &counted {
        let lost = format!("of this adapter to itself: {lost}");
        (counted, of) = match to_neighbour(session, wait) {
            Ok((counted, name)) => (counted, format!("; the writes went to {name} ({lost})")),
            Err(why) => {
                let why = format!("{lost}; no write to another adapter was tried: {why}");
                (Err(Uncompared::Unexpected(why)), String::new())
            }
        };
    }
    let describe = |value: Option<u64>| value.map_or("unknown".to_owned(), |value| value.to_string());
    match counted {
        Ok((Some(1), Some(1))) => Outcome::pass(format!("one success and one error{of}")).into(),
        Ok((successes, errors)) => Ok(uncounted(
            format!(
                "after one write that succeeded and one that failed, the counter has successes: {}, errors: {}{of}",
                describe(successes),
                describe(errors)
            ),
            "report it with the versions of the adapter and its kernel driver; until then, read completions from the \
             queue"
                .to_owned(),
            Party::Operator,
        )),
        Err(Uncompared::NotOpened(error)) if error.kind() == ErrorKind::Unsupported => {
            Ok(not_opened(session, &error))
        }
        // The adapter has 512.
        Err(Uncompared::NotOpened(error)) if error.code() == Some(-libc::ENOMEM) => Ok(uncounted(
            format!("{}: the adapter's counters are used up", error.what()),
            "end the processes that hold the adapter (DEV-012) and whose job has ended: ranks that a job left behind \
             keep its counters"
                .to_owned(),
            Party::Job,
        )),
        Err(Uncompared::NotOpened(error) | Uncompared::Refused(error)) => {
            Err(uncounted(error.what().to_owned(), error.hint().to_owned(), Party::Operator))
        }
        Err(Uncompared::NotRegistered(outcomes)) => Ok(outcomes),
        Err(Uncompared::Unanswered(why) | Uncompared::Unexpected(why)) => Outcome::unknown(format!(
            "the writes to count did not end as expected, see the QUE and PUT checks: {why}{of}"
        ))
        .into(),
    }
}

/// Counts writes to another adapter of the node, because some platforms drop what an adapter sends to itself. Returns
/// the other adapter's name, or why there is none.
fn to_neighbour(
    session: &mut Session,
    wait: Duration,
) -> Result<(Result<Values, Uncompared>, String), String> {
    // For opening the other adapter, for two writes, and for the counter.
    session.progress.request_time(wait * 4);
    let receiver = neighbour::receiver(session)?;
    // PUT-001 decides later whether the puts go to another adapter.
    let mut other = session.rig.objects.neighbour.take().ok_or("it has no objects")?;
    let counted = one_success_and_one_error(&session.rig.objects, Some((&*other, &receiver)), wait);
    let name = other.adapter();
    let unclosed = close_queue(receiver).into_iter().chain(other.close());
    unclosed.for_each(|why| tracing::warn!("{name}, to which GDA-010 wrote, does not close: {why}"));
    Ok((counted, name))
}

/// The outcome for a counter that libfabric does not open, with the fix of its cause.
fn not_opened(session: &Session, error: &Error) -> Outcomes {
    let Some(info) = &session.rig.objects.info else { return missing("the domain") };
    let soft = session.request.soft;
    let system = System { root: session.request.root.clone(), ..System::default() };
    let (driver, rdma_core) = if soft { (None, None) } else { counter_cause::machine(&system) };
    let api = session.start.library.as_ref().map(Library::api_version);
    let facts = Facts {
        code: error.code().unwrap_or_default(),
        switch: std::env::var(SWITCH).ok(),
        provider: counter_cause::libfabric_release(info.provider_version()),
        api: api.unwrap_or(FIRST_WITH_COUNTERS),
        driver,
        rdma_core,
    };
    let set = facts.switch.as_ref().map(|value| format!("{SWITCH}={value} is set; ")).unwrap_or_default();
    let observed = format!("{set}{}", error.what().to_owned());
    match counter_cause::of(&facts) {
        Cause::OffByDefault => {
            let soft = if soft { " and SOFTEFA_HW_CNTR=1" } else { "" };
            let why = format!(
                "counters are off by default before {}; to check them, set {SWITCH}=1{soft} and run again",
                COUNTERS_BY_DEFAULT.describe()
            );
            Outcome::Unknown(Some(observed), why).into()
        }
        Cause::Fix(fix, who) => uncounted(observed, fix, who),
    }
}

/// Opens a counter, binds it to a separate endpoint, and posts there a write that succeeds and one whose key names no
/// region: to the queue of another adapter if `other` has one, otherwise to the endpoint itself. Returns what the counter
/// counted.
fn one_success_and_one_error(
    objects: &Libfabric,
    other: Option<(&Libfabric, &MappedQueue)>,
    wait: Duration,
) -> Result<Values, Uncompared> {
    let (Some(ops), Some(domain), Some(info), Some(addresses)) =
        (&objects.ops, &objects.domain, &objects.info, &objects.addresses)
    else {
        return Err(Uncompared::Unexpected("the domain is not open".to_owned()));
    };
    let counter = ops.cntr_open().map_err(Uncompared::NotOpened)?;
    let completions = domain.completion_queue(COMPLETIONS)?;
    let counters = &[(counter.clone(), CountedOperations::WRITE)];
    let bindings = Bindings { counters, ..Bindings::shared(addresses, &completions) };
    let queue = MappedQueue::new(domain.endpoint(info, bindings)?, ops);
    let mut queue = queue.map_err(|error| Uncompared::Unexpected(text(error)))?;
    let source = registered(objects)?;
    let (target, peer) = match other {
        Some((other, receiver)) => (Some(registered(other)?), introduce(&queue, receiver)),
        None => (None, queue.address().and_then(|address| queue.insert_peer(&address))),
    };
    let peer = peer.map_err(Uncompared::Refused)?;
    let right = target.as_ref().unwrap_or(&source).remote();
    let wrong = RemoteRegion { key: RemoteKey::new(right.key.get() ^ WRONG), ..right };
    let write = |to| WorkRequest::write(peer, &source, to).timeout(wait);
    let first = queue.execute(&write(right));
    let ended = match first {
        Err(error) if is_unanswered(&error) => Err(Uncompared::Unanswered(text(error))),
        Err(error) => Err(Uncompared::Unexpected(text(error))),
        Ok(_) => match queue.execute(&write(wrong)) {
            Err(error) if matches!(error.kind(), ErrorKind::FailedRequest { .. }) => Ok(()),
            Err(error) => Err(Uncompared::Unexpected(text(error))),
            Ok(_) => {
                Err(Uncompared::Unexpected("a write with a wrong rkey completed with status 0".to_owned()))
            }
        },
    };
    let unclosed = close_queue(queue);
    ended?;
    match unclosed {
        None => Ok(counted_within(&counter, wait)?),
        Some(why) => Err(Uncompared::Unexpected(why)),
    }
}

fn registered(objects: &Libfabric) -> Result<Region, Uncompared> {
    let buffer = Buffer::zeroed(BYTES).ok_or(Uncompared::NotRegistered(missing("memory")))?;
    objects.register(buffer, Access::ALL).map_err(Uncompared::NotRegistered)
}

/// The final values of the counter. The adapter may count after it has written the completion.
fn counted_within(counter: &CompletionCounter, limit: Duration) -> Result<Values, Error> {
    let deadline = Instant::now() + limit;
    loop {
        let values = (counter.successes()?, counter.errors()?);
        if values == (Some(1), Some(1)) || Instant::now() >= deadline {
            return Ok(values);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A warning, because queues work without counters. NCCL's EFA-GDA does not: its verdict needs a pass.
fn uncounted(observed: String, fix: String, who: Party) -> Outcomes {
    Outcome::warn(observed)
        .expects(
            "a counter that opens, binds, and counts successes and errors separately",
            "without counters, a GPU reads completions one by one from the completion queue; NCCL's \
         EFA-GDA cannot do that and does not start",
        )
        .fix(fix, who)
        .into()
}
