//! Bytes moved through the queues by the device code, in the host executor: from the first store to
//! the send queue to every byte compared.

use std::time::{Duration, Instant};

use efa_gda::executor::host;
use efa_gda::fabric::{Access, Buffer, Error, MemoryRegion, RemoteRegion};
use efa_gda::queue::{CloseError, MappedQueue, Put as QueuePut, PutError};
use efa_gda::wire::{Peer, RemoteKey};

use super::pattern::Pattern;
use super::{Session, missing, plant, refused};
use crate::check::{Answers, Check, Nature, Outcome, SOFTWARE_ADAPTER, Trouble, Unit};
use crate::part::PutRequest;
use crate::report::{Kind, Put, Who};
use crate::softefa_checker::Checker;

/// Bytes moved between two comparisons.
const ROUND_BYTES: u64 = 64 << 20;
/// Operations between two comparisons: past this the parent hears nothing for too long.
const ROUND_OPERATIONS: u64 = 1 << 16;
/// Bytes behind the target that must stay as they are.
const GUARD: usize = 64;
/// The slowest rate at which bytes are taken to move, for the bound of a wait.
const SLOWEST_BYTES_PER_MS: u64 = 100_000;
/// The slowest rate at which operations are taken to complete.
const SLOWEST_OPERATIONS_PER_MS: u64 = 20;
/// Bits of an rkey that are turned over to get one that names no region.
const WRONG: u32 = 0x00ff_0000;

/// The checks of this category.
pub(crate) static CHECKS: &[Unit<Session>] = &[
    unit("QUE-005", "The queues map for the host", &["QUE-001", "QUE-002", "QUE-003", "GDA-005"], maps),
    unit("QUE-006", "The host can write to the send queue", &["QUE-005"], writes),
    unit("QUE-007", "The host can write to the doorbell", &["QUE-005"], rings),
    unit("PUT-001", "A doorbell brings a completion", &["QUE-006", "QUE-007", "GDA-006"], completes),
    unit("PUT-002", "Every byte of the put arrives", &["PUT-001"], arrives),
    unit("PUT-003", "The adapter saw no rule broken", &["QUE-005"], no_violation),
    unit("PUT-004", "A wrong rkey comes back as an error completion", &["PUT-001"], wrong_key),
    unit("PUT-005", "Everything closes", &["FAB-004"], closes),
];

const fn unit(
    code: &'static str,
    title: &'static str,
    needs: &'static [&'static str],
    run: fn(&mut Session) -> Answers,
) -> Unit<Session> {
    Unit { check: Check { code, title, kind: Kind::Proven, nature: Nature::Any, needs }, run }
}

fn failed(observed: String, required: &str, why: &str, fix: &str, who: Who) -> Answers {
    Outcome::Fail(Trouble {
        observed,
        required: required.to_owned(),
        why: why.to_owned(),
        fix: fix.to_owned(),
        who,
    })
    .into()
}

fn maps(session: &mut Session) -> Answers {
    let rig = &mut session.rig;
    let (Some(endpoint), Some(ops)) = (rig.endpoint.take(), &rig.ops) else { return missing("the endpoint") };
    match MappedQueue::new(endpoint, ops) {
        Ok(queue) => {
            let observed = format!("queue pair {}", queue.number().get());
            rig.queue = Some(queue);
            Outcome::pass(observed).into()
        }
        Err(error) => failed(
            error.to_string(),
            "a queue that the host's device code can use",
            "what libfabric mapped for itself is what the host's device code works on",
            "report it with the provider's version",
            Who::Image,
        ),
    }
}

fn writes(session: &mut Session) -> Answers {
    let Some(queue) = &session.rig.queue else { return missing("the queue") };
    // Of the second lap's phase, so that no adapter takes it for an entry of this lap; no doorbell
    // follows, and the first request writes all of the slot again.
    let entry = host::encode_entry(&host::EntrySpec { phase: true, ..host::EntrySpec::default() });
    // SAFETY: the queue's struct, rings and doorbell live as long as `queue`, which nobody else uses.
    unsafe { host::write_raw(queue.as_ptr().as_ptr(), 0, &entry) };
    Outcome::pass("slot 0 took an entry").into()
}

fn rings(session: &mut Session) -> Answers {
    let Some(queue) = &session.rig.queue else { return missing("the queue") };
    // The producer counter of a queue that has posted nothing: moves nothing.
    // SAFETY: the queue's doorbell lives as long as `queue`, which nobody else uses.
    unsafe { host::ring_raw(queue.as_ptr().as_ptr(), 0) };
    Outcome::pass("the doorbell took the value 0").into()
}

/// Two regions, a source and a target, of one length.
#[derive(Debug)]
struct Memory {
    source: MemoryRegion,
    target: MemoryRegion,
}

impl Memory {
    fn register(session: &Session, length: usize) -> Result<Self, Answers> {
        let domain = session.rig.domain.as_ref().ok_or_else(|| missing("the domain"))?;
        let buffer = |length: usize| Buffer::zeroed(length).ok_or_else(|| too_large(length as u64, 0));
        let register = |length: usize, access: Access| {
            domain.register(buffer(length)?, access).map_err(|error| {
                refused(&error, "memory that registers", "the bytes lie in registered memory", Who::Pod)
            })
        };
        Ok(Self {
            source: register(length, Access::WRITE)?,
            target: register(length + GUARD, Access::REMOTE_WRITE)?,
        })
    }

    fn buffers(&self) -> Option<(&Buffer, &Buffer)> {
        Some((self.source.buffer()?, self.target.buffer()?))
    }
}

fn too_large(bytes: u64, available: u64) -> Answers {
    failed(
        format!("{bytes} bytes are needed, {available} are free"),
        "memory for the source and the target of one operation",
        "every byte is written from one buffer and compared in another",
        "give fewer --bytes, or run where more memory is free",
        Who::Code,
    )
}

/// Free memory, in bytes; None where the kernel does not say.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A bound for waits on `operations` of `bytes` in all, above the one for anything.
fn bound(session: &Session, bytes: u64, operations: u64) -> Duration {
    let size = bytes / SLOWEST_BYTES_PER_MS + operations / SLOWEST_OPERATIONS_PER_MS;
    Duration::from_millis(session.request.wait.saturating_add(size))
}

fn completes(session: &mut Session) -> Answers {
    let Some(peer) = session.rig.peer else { return missing("the peer") };
    let memory = match Memory::register(session, 64) {
        Ok(memory) => memory,
        Err(answers) => return answers,
    };
    let timeout = bound(session, 64, 1);
    let Some(queue) = &mut session.rig.queue else { return missing("the queue") };
    let put = QueuePut::write(peer, &memory.source, memory.target.remote()).bytes(64).timeout(timeout);
    match queue.put(&put) {
        Ok(report) => Outcome::pass(format!("{} rung, {} completed", report.posted, report.completed)).into(),
        Err(error) => put_failed(&error),
    }
}

/// What a put's error means to whoever runs the probe.
fn put_failed(error: &PutError) -> Answers {
    let (why, fix) = match error {
        PutError::Completion { .. } => (
            "the adapter refused the request, or its target did",
            "look the status up with gda-probe explain PUT-001; on EC2, check that the security group lets \
             all traffic within itself pass, outbound too",
        ),
        PutError::Device { .. } => (
            "the adapter did not answer in time: a doorbell that does not arrive, a port that is down, or \
             traffic that is dropped",
            "check the port's state and the security group (all traffic within itself, both ways); a slow \
             machine may want --time-limit",
        ),
        _ => ("nothing was posted", "report it with the provider's version"),
    };
    failed(error.to_string(), "a completion with status 0", why, fix, Who::Host)
}

/// How a put ended, apart from errors.
struct Moved {
    completed: u64,
    took: Duration,
    wrong: Option<String>,
}

fn arrives(session: &mut Session) -> Answers {
    let request = session.request.put;
    let Some(peer) = session.rig.peer else { return missing("the peer") };
    let moved = move_bytes(session, request, peer);
    let checker = checker(session);
    if let (Some(plant), Ok(checker), Some(queue)) = (request.plant, &checker, &session.rig.queue) {
        plant::plant(plant, queue, peer);
        plant::wait_until(|| checker.count() > 0, Duration::from_millis(session.request.wait));
    }
    let violations = checker.map(|checker| checker.violations()).unwrap_or_default();
    let (moved, answers) = match moved {
        Ok(moved) => match &moved.wrong {
            None => {
                let observed = format!("{} × {} bytes compared", moved.completed, request.bytes);
                (moved, Outcome::pass(observed).into())
            }
            Some(wrong) => {
                let answers = corrupted(wrong.clone());
                (moved, answers)
            }
        },
        Err((moved, answers)) => (moved, answers),
    };
    let verified = moved.wrong.is_none() && moved.completed == request.count && violations.is_empty();
    session.rig.put = Some(Put {
        op: "write".to_owned(),
        bytes: request.bytes,
        count: request.count,
        completed: moved.completed,
        verified,
        doorbell: "direct".to_owned(),
        executor: "host".to_owned(),
        adapter: session.rig.info.as_ref().map(|info| info.domain_name().into_owned()).unwrap_or_default(),
        microseconds: u64::try_from(moved.took.as_micros()).ok(),
        violations,
    });
    answers
}

fn corrupted(observed: String) -> Answers {
    failed(
        observed,
        "every byte of the source, in its place, and nothing else changed",
        "a completion came with status 0 before the bytes were there, or they went elsewhere",
        "run again with -v; report it with the adapter's and the driver's version",
        Who::Host,
    )
}

type MoveResult = Result<Moved, (Moved, Answers)>;

/// Moves everything in rounds, and compares after each.
fn move_bytes(session: &mut Session, request: PutRequest, peer: Peer) -> MoveResult {
    let mut moved = Moved { completed: 0, took: Duration::ZERO, wrong: None };
    let by_bytes = ROUND_BYTES.checked_div(request.bytes).unwrap_or(u64::MAX).max(1);
    let per_round = by_bytes.min(ROUND_OPERATIONS).min(request.count);
    let length = per_round.saturating_mul(request.bytes);
    let free = available().unwrap_or(u64::MAX);
    if length.saturating_mul(2) > free {
        return Err((moved, too_large(length.saturating_mul(2), free)));
    }
    // Registering touches every page.
    session.progress.needs(bound(session, length.saturating_mul(2), 0));
    let memory = usize::try_from(length).map_err(|_| too_large(length, free));
    let memory = match memory.and_then(|length| Memory::register(session, length)) {
        Ok(memory) => memory,
        Err(answers) => return Err((moved, answers)),
    };
    let mut round = 0;
    while moved.completed < request.count && moved.wrong.is_none() {
        let operations = per_round.min(request.count - moved.completed);
        let put = QueuePut::write(peer, &memory.source, memory.target.remote())
            .bytes(request.bytes)
            .stride(request.bytes)
            .count(operations);
        if let Err(answers) =
            one_round(session, &memory, put, Round { number: round, operations }, &mut moved)
        {
            return Err((moved, answers));
        }
        round += 1;
    }
    Ok(moved)
}

/// One round: its number, which seeds its bytes, and its operations.
#[derive(Clone, Copy)]
struct Round {
    number: u64,
    operations: u64,
}

fn one_round(
    session: &mut Session,
    memory: &Memory,
    put: QueuePut,
    round: Round,
    moved: &mut Moved,
) -> Result<(), Answers> {
    let bytes = session.request.put.bytes;
    let total = round.operations * bytes;
    let timeout = bound(session, total, round.operations);
    // Filling, the wait, and comparing: three times the bound covers them.
    session.progress.needs(timeout * 3);
    let Some((source, target)) = memory.buffers() else { return Err(missing("the memory")) };
    let internal = |error: Error| {
        refused(&error, "memory that is as long as it was", "it is the probe's own", Who::Code)
    };
    let pattern = Pattern::new(round.number);
    // `total` is at most the length that was allocated, which is a usize.
    let length = total as usize;
    pattern.prepare(source, target, length).map_err(internal)?;
    let Some(queue) = &mut session.rig.queue else { return Err(missing("the queue")) };
    let begin = Instant::now();
    let result = queue.put(&put.timeout(timeout));
    moved.took += begin.elapsed();
    if let Err(error) = &result {
        return Err(put_failed(error));
    }
    let difference = pattern.compare(target, length).map_err(internal)?;
    moved.wrong = difference.map(|difference| {
        let place = (difference.offset as u64).checked_div(bytes);
        let place = place.filter(|operation| *operation < round.operations).map_or_else(
            || format!("byte {} behind the target", difference.offset - length),
            |operation| {
                let operation = moved.completed + operation;
                format!("byte {} of operation {operation}", difference.offset as u64 % bytes)
            },
        );
        format!("{place} is {:#04x}, not {:#04x}", difference.found, difference.expected)
    });
    moved.completed += round.operations;
    Ok(())
}

/// The software adapter's checker; the reason where there is none.
fn checker(session: &Session) -> Result<Checker, String> {
    let provider = session.request.provider.as_ref().ok_or("only the software adapter tells")?;
    Checker::of(provider)
}

fn no_violation(session: &mut Session) -> Answers {
    if !session.request.soft {
        return Outcome::Skip(SOFTWARE_ADAPTER.to_owned(), "only the software adapter tells".to_owned())
            .into();
    }
    let violations = match checker(session) {
        Ok(checker) => checker.violations(),
        Err(error) => return Outcome::unknown(error).into(),
    };
    if violations.is_empty() {
        return Outcome::pass("none").into();
    }
    failed(
        violations.join("; "),
        "entries and doorbells that keep every rule of the rings",
        "a real adapter answers a broken rule with wrong data or silence",
        "report it: the device code wrote these entries",
        Who::Code,
    )
}

fn wrong_key(session: &mut Session) -> Answers {
    if session.request.put.plant.is_some() {
        return Outcome::unknown("the queue was broken on purpose").into();
    }
    let Some(peer) = session.rig.peer else { return missing("the peer") };
    let memory = match Memory::register(session, 64) {
        Ok(memory) => memory,
        Err(answers) => return answers,
    };
    let right = memory.target.remote();
    let wrong = RemoteRegion { key: RemoteKey::new(right.key.get() ^ WRONG), ..right };
    let timeout = bound(session, 64, 1);
    let Some(queue) = &mut session.rig.queue else { return missing("the queue") };
    match queue.put(&QueuePut::write(peer, &memory.source, wrong).bytes(64).timeout(timeout)) {
        Err(PutError::Completion { status, .. }) => {
            Outcome::pass(format!("status {}: {status}", status.code())).into()
        }
        Err(error) => put_failed(&error),
        Ok(_) => failed(
            format!("a write with rkey {:#x} completed with status 0", wrong.key.get()),
            "an error completion",
            "an error that does not surface becomes a hang or wrong data in a program",
            "report it with the adapter's and the driver's version",
            Who::Host,
        ),
    }
}

fn closes(session: &mut Session) -> Answers {
    let rig = &mut session.rig;
    rig.ops = None;
    let mut answers: Vec<String> = Vec::new();
    let mut note = |what: &str, result: Option<Result<(), Error>>| {
        if let Some(Err(error)) = result {
            answers.push(format!("{what}: {error}"));
        }
    };
    let queue = rig.queue.take().map(|queue| match queue.close() {
        Ok(()) => Ok(()),
        Err(CloseError::Fabric(error)) => Err(error),
        // What is in flight is flushed with the endpoint.
        Err(CloseError::Busy { queue, .. }) => queue.destroy(),
        Err(_) => Ok(()),
    });
    note("queue", queue);
    note("endpoint", rig.endpoint.take().map(|endpoint| endpoint.close()));
    note("memory region", rig.region.take().map(MemoryRegion::close));
    note("completion queue", rig.completions.take().map(|one| one.close()));
    note("address vector", rig.addresses.take().map(|one| one.close()));
    note("domain", rig.domain.take().map(|one| one.close()));
    note("fabric", rig.fabric.take().map(|one| one.close()));
    if answers.is_empty() {
        return Outcome::pass("queue, memory, domain and fabric").into();
    }
    failed(
        answers.join("; "),
        "fi_close succeeds on everything, children first",
        "what does not close leaks queues and locked memory in a program that runs long",
        "report it with the provider's version",
        Who::Image,
    )
}
