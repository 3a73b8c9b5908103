//! Bytes that the device code moves through the queues, in the host executor or on a GPU: from the first store
//! to the send queue to the comparison of every byte.

mod fault;
mod loopback;
mod moving;
pub(crate) mod pattern;

use std::time::Duration;

use efa_gda::ErrorKind;
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::executor::host;
use efa_gda::fabric::RemoteRegion;
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::wire::RemoteKey;

pub(crate) use self::loopback::is_unanswered;
use self::moving::{Memory, corrupted, move_bytes};
pub(crate) use self::moving::{bound, put_failed};
use super::session::{Layer, Session, close_queue, missing, open, text};
use crate::check::{Checked, Outcome, Outcomes};
use crate::model::{Op, Party, Put, Qualification, SOFTWARE_ADAPTER};
use crate::soft::checker::Checker;
use crate::worker::Event;

/// The bits to flip in a valid rkey for an rkey that names no region.
pub(super) const WRONG: u32 = 0x00ff_0000;

pub(crate) fn maps<L: Layer>(session: &mut Session<L>) -> Checked {
    let queue = L::map(&mut session.rig)?;
    let observed = format!("queue pair {}", queue.number().get());
    session.rig.queue = Some(queue);
    Outcome::pass(observed).into()
}

pub(crate) fn writes<L: Layer>(session: &mut Session<L>) -> Checked {
    let queue = open(&session.rig.queue, "the queue")?;
    // The phase is the second lap's, so an adapter does not take the entry for one of this lap. No doorbell
    // follows, and the first request overwrites the whole slot.
    let entry = host::encode_entry(&host::EntrySpec { phase: true, ..host::EntrySpec::default() });
    // SAFETY: the queue's struct, rings and doorbell live as long as `queue`, and nothing else uses `queue`.
    unsafe { host::write_raw(queue.as_ptr().as_ptr(), 0, &entry) };
    Outcome::pass("an entry was written into slot 0").into()
}

pub(crate) fn rings<L: Layer>(session: &mut Session<L>) -> Checked {
    let queue = open(&session.rig.queue, "the queue")?;
    // 0 is the producer index of a queue without entries, so the doorbell starts no request.
    // SAFETY: the queue's doorbell lives as long as `queue`, and nothing else uses `queue`.
    unsafe { host::ring_raw(queue.as_ptr().as_ptr(), 0) };
    Outcome::pass("0 was written to the doorbell").into()
}

pub(crate) fn takes_doorbell_mode<L: Layer>(session: &mut Session<L>) -> Checked {
    let only = session.request.doorbell.only();
    let queue = session.rig.queue.as_mut().ok_or_else(|| missing("the queue"))?;
    // The host reaches all memory that it mapped, so the first mode works.
    let mode = only.unwrap_or(DoorbellMode::Direct);
    if mode == DoorbellMode::Direct {
        return Outcome::pass("direct: the device code rings").into();
    }
    let registered = DoorbellProxy::start().map_err(text).and_then(|proxy| {
        queue.set_doorbell(mode, &proxy).map_err(text)?;
        Ok(proxy)
    });
    session.rig.proxy = Some(registered.map_err(|observed| -> Outcomes {
        Outcome::fail(observed)
            .fix(
                "use --doorbell direct, or --doorbell staged, which needs the least from the adapter",
                Party::Caller,
            )
            .into()
    })?);
    Outcome::pass(format!("{mode}: {}", mode.cost().unwrap_or_default())).into()
}

pub(crate) fn completes<L: Layer>(session: &mut Session<L>) -> Checked {
    let peer = session.rig.peer.ok_or_else(|| missing("the peer"))?;
    let memory = Memory::register(session, Op::Write, 64)?;
    let timeout = bound(session, 64, 1);
    let request = WorkRequest::write(peer, &memory.source, memory.target.remote()).bytes(64).timeout(timeout);
    match session.rig.execute(&request) {
        Ok(report) => {
            Outcome::pass(format!("{} posted, {} completed", report.posted, report.completed)).into()
        }
        Err(error) if session.rig.objects.neighbour().is_none() && loopback::is_unanswered(&error) => {
            let outcomes = loopback::to_neighbour(session, &error);
            Err(if session.request.soft { loopback::without_network(outcomes) } else { outcomes })
        }
        Err(error) => Err(put_failed(&error, session.request.wait)),
    }
}

pub(crate) fn arrives<L: Layer>(session: &mut Session<L>) -> Checked {
    let mut request = session.request.put;
    let peer = session.rig.peer.ok_or_else(|| missing("the peer"))?;
    if let (Some(laps), Some(queue)) = (request.qualify_laps, session.rig.sender()) {
        // Each operation is one entry.
        request.count = laps.saturating_mul(queue.exposure().sq.num_entries.into());
    }
    let moved = move_bytes(session, request, peer);
    let checker = checker(session);
    if let (Some(fault), Ok(checker), Some(queue)) = (request.fault, &checker, &session.rig.queue) {
        fault::inject(fault, queue, peer);
        fault::wait_until(|| checker.count() > 0, Duration::from_millis(session.request.wait));
    }
    let violations = checker.map(|checker| checker.violations()).unwrap_or_default();
    let (moved, outcomes) = match moved {
        Ok(moved) => match &moved.wrong {
            None => {
                let observed = format!("{} × {} bytes are equal", moved.completed, request.bytes);
                (moved, Outcome::pass(observed).into())
            }
            Some(wrong) => {
                let outcomes = corrupted(wrong.clone());
                (moved, Err(outcomes))
            }
        },
        Err((moved, outcomes)) => (moved, Err(outcomes)),
    };
    let mode = session.rig.sender().map_or(DoorbellMode::Direct, MappedQueue::doorbell_mode);
    let verified = moved.wrong.is_none() && moved.completed == request.count && violations.is_empty();
    let put = Put {
        op: request.op.name(),
        bytes: request.bytes,
        count: request.count,
        completed: moved.completed,
        verified,
        doorbell: mode.name().to_owned(),
        lost: mode.cost().map(str::to_owned),
        executor: if session.gpu.is_some() { "cuda" } else { "host" }.to_owned(),
        gpu: session.gpu.map(|number| number.to_string()),
        adapter: session.rig.objects.adapter(),
        target: session.rig.objects.neighbour().map(Layer::adapter),
        store_bytes: (mode != DoorbellMode::Staged)
            .then(|| session.rig.poster.as_ref().map_or(8, |queue| queue.store_bytes())),
        qualification: request.qualify_laps.map(|laps| qualification(laps, verified, session.request.soft)),
        // The time is zero if nothing was posted.
        microseconds: u64::try_from(moved.took.as_micros()).ok().filter(|_| !moved.took.is_zero()),
        violations,
    };
    session.reports.push(Event::Put(put));
    outcomes
}

/// The result of puts whose entries a GPU wrote by stores of 16 bytes.
fn qualification(laps: u64, passed: bool, soft: bool) -> Qualification {
    let next = match (passed, soft) {
        (false, _) => "programs keep StoreWidth::Auto or StoreWidth::Eight",
        (true, true) => {
            "the software adapter takes any width; run this on the adapter that programs will use"
        }
        (true, false) => {
            "for adapters of this kind, programs may set StoreWidth::Sixteen (MappedQueue::with_store_width), in C \
             EFA_GDA_QUEUE_WIDE_STORES (efa_gda_options::flags)"
        }
    };
    Qualification { laps, passed, next: next.to_owned() }
}

/// The software adapter's checker, or why it cannot be read.
fn checker<L: Layer>(session: &Session<L>) -> Result<Checker, String> {
    let provider = session
        .request
        .provider
        .as_ref()
        .ok_or("softefa run reports violations at its end, on stderr and by its exit status")?;
    Checker::of(provider)
}

pub(crate) fn no_violation<L: Layer>(session: &mut Session<L>) -> Checked {
    if !session.request.soft {
        return Outcome::Skip(
            SOFTWARE_ADAPTER.to_owned(),
            "only the software adapter reports violations".to_owned(),
        )
        .into();
    }
    let violations = match checker(session) {
        Ok(checker) => checker.violations(),
        Err(error) => return Outcome::unknown(error).into(),
    };
    if violations.is_empty() {
        return Outcome::pass("no violation").into();
    }
    Outcome::fail(violations.join("; ")).into()
}

pub(crate) fn wrong_key<L: Layer>(session: &mut Session<L>) -> Checked {
    if session.request.put.fault.is_some() {
        return Outcome::unknown("an injected fault has broken the queue").into();
    }
    let peer = session.rig.peer.ok_or_else(|| missing("the peer"))?;
    let memory = Memory::register(session, Op::Write, 64)?;
    let right = memory.target.remote();
    let wrong = RemoteRegion { key: RemoteKey::new(right.key.get() ^ WRONG), ..right };
    let timeout = bound(session, 64, 1);
    match session.rig.execute(&WorkRequest::write(peer, &memory.source, wrong).bytes(64).timeout(timeout)) {
        Err(error) => match error.kind() {
            ErrorKind::FailedRequest { status, .. } => {
                Outcome::pass(format!("status {}: {status}", status.code())).into()
            }
            _ => Err(put_failed(&error, session.request.wait)),
        },
        Ok(_) => {
            Outcome::fail(format!("a write with rkey {:#x} completed with status 0", wrong.key.get())).into()
        }
    }
}

pub(crate) fn closes<L: Layer>(session: &mut Session<L>) -> Checked {
    let rig = &mut session.rig;
    let mut failures: Vec<String> = Vec::new();
    if let Some(why) = rig.poster.take().and_then(|queue| queue.close()) {
        failures.push(format!("posting queue: {why}"));
    }
    if let Some(why) = rig.queue.take().and_then(close_queue) {
        failures.push(format!("queue: {why}"));
    }
    rig.proxy = None;
    failures.extend(rig.objects.close());
    if failures.is_empty() {
        return Outcome::pass(L::CLOSES).into();
    }
    Outcome::fail(failures.join("; ")).into()
}
