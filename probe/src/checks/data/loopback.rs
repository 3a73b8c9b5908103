//! A write to itself that nothing answers: whether another adapter of the node answers tells a platform that drops
//! loopback from a network that drops everything.

use efa_gda::queue::WorkRequest;
use efa_gda::wire::CompletionStatus;
use efa_gda::{Error, ErrorKind};

use super::moving::{Memory, bound, put_failed};
use crate::check::{Outcome, Outcomes, Problem};
use crate::checks::session::{Layer, Session, close_queue, introduce, text};
use crate::model::{Op, Party};

/// Whether the target did not answer: no completion, or one that says so.
pub(crate) fn is_unanswered(error: &Error) -> bool {
    use CompletionStatus::{UnreachableRemote, UnresponsiveRemote};
    match error.kind() {
        ErrorKind::Device(_) => true,
        ErrorKind::FailedRequest { status, .. } => {
            matches!(status, UnresponsiveRemote | UnreachableRemote)
        }
        _ => false,
    }
}

/// The result of PUT-001 after `error`: a write to another adapter of the node decides it, and later puts go there.
pub(super) fn to_neighbour<L: Layer>(session: &mut Session<L>, error: &Error) -> Outcomes {
    let wait = session.request.wait;
    let timeout = bound(session, 64, 1);
    // For opening the other adapter, and for the second wait.
    session.progress.request_time(timeout * 2);
    let name = match turn_to_neighbour(session) {
        Ok(name) => name,
        Err(why) => return not_compared(put_failed(error, wait), &why),
    };
    let memory = match Memory::register(session, Op::Write, 64) {
        Ok(memory) => memory,
        Err(outcomes) => return outcomes,
    };
    let Some(peer) = session.rig.peer else {
        return not_compared(put_failed(error, wait), "it has no address");
    };
    let request = WorkRequest::write(peer, &memory.source, memory.target.remote()).bytes(64).timeout(timeout);
    match session.rig.execute(&request) {
        Ok(_) => Outcome::Warn(
            Problem::new(format!(
                "a write to {name} completed; a write of this adapter to itself did not: {}",
                error
            ))
            .expects(
                "a completion with status 0 of both",
                "the adapter is sound: the platform drops what an adapter sends to itself, so a \
             program whose ranks share an adapter hangs; the puts below go to the other adapter",
            )
            .fix(
                "let ranks of one node use different adapters, or shared memory and NVLink (NCCL and \
             libfabric's fabric efa do by default); to see a peer answer, run fi_pingpong -p efa \
             on another host and fi_pingpong -p efa HOST here",
                Party::Program,
            ),
        )
        .into(),
        Err(second) if is_unanswered(&second) => Outcome::fail(format!(
            "no write completed within {} ms, neither to this adapter nor to {name}: nothing \
             arrives, as if the network dropped it",
            timeout.as_millis()
        ))
        .expects(
            "a completion with status 0",
            "most likely a security group drops the traffic between this node's adapters; \
             otherwise the adapter did not get the doorbell",
        )
        .fix(
            "on EC2, let the security group allow all traffic within itself, inbound and \
             outbound, on every EFA interface; then check the port's state (DEV-004); to see a \
             peer answer, run fi_pingpong -p efa on another host and fi_pingpong -p efa HOST here",
            Party::Account,
        )
        .into(),
        Err(second) => put_failed(&second, wait),
    }
}

/// The failure under `--soft`, where there is no network.
pub(super) fn without_network(mut outcomes: Outcomes) -> Outcomes {
    for (_, outcome) in &mut outcomes.0 {
        if let Outcome::Fail(problem) = outcome {
            problem.why = Some(
                "the software adapter did not execute the request: it was told to lose requests, or \
             its thread got no CPU time"
                    .to_owned(),
            );
            problem.fix = Some(
                "unset SOFTEFA_BREAK and SOFTEFA_DROP_LOOPBACK if they are set; otherwise raise --time-limit \
                 (milliseconds), and if that does not help, report it (gda-probe report)"
                    .to_owned(),
            );
            problem.who = Some(Party::Caller);
        }
    }
    outcomes
}

/// Replaces the queues of this adapter by two: one that posts, and one of another adapter that is its target. Returns the
/// other adapter's name, or why there is none.
fn turn_to_neighbour<L: Layer>(session: &mut Session<L>) -> Result<String, String> {
    let receiver = L::neighbour_queue(session)?;
    let name = session.rig.objects.neighbour().map(Layer::adapter).unwrap_or_default();
    let sender = session.rig.sender().ok_or("no queue is open")?;
    let (mode, width) = (sender.doorbell_mode(), sender.store_width());
    // Their requests are lost, so that they can only be destroyed.
    let poster = session.rig.poster.take().and_then(|queue| queue.close());
    if let Some(why) = poster.or(session.rig.queue.take().and_then(close_queue)) {
        return Err(format!("the first queue does not close: {why}"));
    }
    let sender = session.rig.objects.another_queue(session.request.put.op)?.with_store_width(width);
    session.rig.peer = Some(introduce(&sender, &receiver).map_err(text)?);
    session.rig.poster = Some(L::drive(session, sender, mode)?);
    session.rig.queue = Some(receiver);
    Ok(name)
}

/// The failure without another adapter to compare with.
fn not_compared(mut outcomes: Outcomes, why: &str) -> Outcomes {
    for (_, outcome) in &mut outcomes.0 {
        if let Outcome::Fail(problem) = outcome {
            problem.observed.push_str(&format!("; no write to another adapter was tried: {why}"));
        }
    }
    outcomes
}
