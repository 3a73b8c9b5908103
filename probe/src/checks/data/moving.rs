//! Moves bytes in rounds of operations: the memory, the requests, the completions at the receiver, and the
//! comparison of every byte. `data` makes check results of the outcome.

use std::time::{Duration, Instant};

use efa_gda::memory::{Access, Buffer};
use efa_gda::queue::{
    Arrival, Limit, MappedQueue, QueueLimits, ReceiveId, Received, Receives, Region, WorkRequest,
};
use efa_gda::wire::{CompletionStatus, Peer, QueuePairNumber};
use efa_gda::{Error, ErrorKind};

use super::super::session::{Layer, Session, missing};
use super::pattern::Pattern;
use crate::check::{Outcome, Outcomes};
use crate::exchange::Deadline;
use crate::model::{Op, Party};
use crate::worker::PutRequest;
use crate::worker::short_limit;

/// Bytes moved between two comparisons.
const ROUND_BYTES: u64 = 64 << 20;
/// The most operations between two comparisons: more would exceed the probe's time limit for an event.
const ROUND_OPERATIONS: u64 = 1 << 16;
/// Guard bytes after the target, which must not change.
const GUARD: usize = 64;
/// The lowest expected rate of bytes, for the bound of a wait.
const SLOWEST_BYTES_PER_MS: u64 = 100_000;
/// The lowest expected rate of operations, for the bound of a wait.
const SLOWEST_OPERATIONS_PER_MS: u64 = 20;
/// The largest length of a receive descriptor.
const LONGEST_RECEIVE: u64 = u16::MAX as u64;

/// Two regions, a source and a target, of one length.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) source: Region,
    pub(super) target: Region,
}

impl Memory {
    /// Registers both with exactly the access that `op` needs.
    pub(super) fn register<L: Layer>(session: &Session<L>, op: Op, length: usize) -> Result<Self, Outcomes> {
        let here = &session.rig.objects;
        let there = here.neighbour().unwrap_or(here);
        let register = |adapter: &L, length: usize, access: Access| {
            let buffer = Buffer::zeroed(length).ok_or_else(|| too_large(length as u64, 0))?;
            adapter.register(buffer, access)
        };
        // The adapter that posts reads into its own memory.
        let (of_source, of_target) = if op == Op::Read { (there, here) } else { (here, there) };
        let (source, target) = match op {
            Op::Write | Op::InlineWrite => (Access::WRITE, Access::REMOTE_WRITE),
            // The target also holds the receives, if the adapter consumes receives for immediates.
            Op::WriteImm => (Access::WRITE, Access::REMOTE_WRITE | Access::RECEIVE),
            Op::Read => (Access::REMOTE_READ, Access::READ),
            Op::Send => (Access::SEND, Access::RECEIVE),
        };
        Ok(Self {
            source: register(of_source, length, source)?,
            target: register(of_target, length + GUARD, target)?,
        })
    }

    fn buffers(&self) -> Option<(&Buffer, &Buffer)> {
        Some((self.source.buffer()?, self.target.buffer()?))
    }
}

fn too_large(bytes: u64, available: u64) -> Outcomes {
    Outcome::fail(format!("{bytes} bytes are needed, {available} are free"))
        .expects(
            "memory for the source and the target of one operation",
            "the probe writes every byte from one buffer and compares it in another",
        )
        .fix("use a smaller --bytes, or run on a machine with more free memory", Party::Caller)
        .into()
}

/// Free memory, in bytes; None if the kernel does not report it.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The bound of a wait for `operations` that move `bytes` in all: the wait of any request, and time for their
/// number and size.
pub(crate) fn bound<L: Layer>(session: &Session<L>, bytes: u64, operations: u64) -> Duration {
    let size = bytes / SLOWEST_BYTES_PER_MS + operations / SLOWEST_OPERATIONS_PER_MS;
    Duration::from_millis(session.request.wait.saturating_add(size))
}

/// The progress of a put.
pub(super) struct Moved {
    pub(super) completed: u64,
    pub(super) took: Duration,
    /// The first wrong byte.
    pub(super) wrong: Option<String>,
}

pub(super) fn corrupted(observed: String) -> Outcomes {
    Outcome::fail(observed)
        .expects(
            "every byte of the source at its offset in the target, and no other byte changed",
            "a request completed with status 0 before its bytes arrived, or they went to another address",
        )
        .fix(
            "run again with -v, and report it with the versions of the adapter and its kernel driver",
            Party::Operator,
        )
        .into()
}

/// Where the causes of a status are listed.
fn page(status: CompletionStatus) -> String {
    match status {
        CompletionStatus::Unknown(code) => {
            format!("search a newer efa_io_defs.h (enum efa_io_comp_status) for status {code}")
        }
        known => format!("run gda-probe explain STATUS-{} for the causes of this status", known.code()),
    }
}

/// The failed outcome for the error of a put; `wait` is the bound of the waits, in milliseconds.
pub(crate) fn put_failed(error: &Error, wait: u64) -> Outcomes {
    let (why, fix, who) = match error.kind() {
        ErrorKind::FailedRequest { status, .. } => {
            let fix = format!(
                "{}; on EC2, check that the security group allows all traffic within itself, inbound and outbound",
                page(status)
            );
            ("the adapter or the target refused the request", fix, Party::Account)
        }
        ErrorKind::Device(_) => (
            "the adapter did not complete the request in time: the doorbell did not arrive, the port is down, or the \
             network drops the traffic",
            // The wait is half of the limit.
            short_limit(Duration::from_millis(wait.saturating_mul(2))).unwrap_or_default()
                + "check the port's state, and that the security group allows all traffic within itself, inbound \
                   and outbound; some platforms drop what an adapter sends to itself: run fi_pingpong -p efa on \
                   another host and fi_pingpong -p efa HOST here, and if that works, the adapter is sound",
            Party::Account,
        ),
        ErrorKind::TooLong { limit, bytes, most } => return too_long(limit, bytes, most),
        ErrorKind::Unsupported => {
            ("nothing was posted", "use another --op or another adapter (--device)".to_owned(), Party::Caller)
        }
        ErrorKind::Gpu | ErrorKind::GpuLost => (
            "CUDA failed before or while the kernel ran; the observed text has its result",
            "on the host: run nvidia-smi and search dmesg for Xid; start the program again, because a lost \
             context cannot be used in its process"
                .to_owned(),
            Party::Operator,
        ),
        _ => ("nothing was posted", "report it with the provider's version".to_owned(), Party::Operator),
    };
    Outcome::fail(error.to_string()).expects("a completion with status 0", why).fix(fix, who).into()
}

/// The failed outcome for operations of `bytes` that exceed a limit. The library's hint is for callers of its API.
fn too_long(limit: Limit, bytes: u64, most: u64) -> Outcomes {
    let fix = match limit {
        Limit::Rdma => format!("use --bytes {most} or less; to move more, raise --count"),
        _ => format!("use --bytes {most} or less, or --op write, which moves more"),
    };
    Outcome::fail(format!("a length of {bytes} exceeds the {most} bytes that {limit} allows"))
        .expects(
            format!("at most {most} bytes: {limit}"),
            "an adapter refuses a longer request or moves only a part of it; nothing was posted",
        )
        .fix(fix, Party::Caller)
        .into()
}

pub(super) type MoveResult = Result<Moved, (Moved, Outcomes)>;

/// The failed outcome if requests of `bytes` exceed a limit.
fn past_limit(op: Op, bytes: u64, limits: QueueLimits) -> Option<Outcomes> {
    let (limit, most) = match op {
        Op::Send if limits.message > LONGEST_RECEIVE => (Limit::Receive, LONGEST_RECEIVE),
        Op::Send => (Limit::Message, limits.message),
        Op::InlineWrite => (Limit::Inline, limits.inline_write),
        Op::Write | Op::WriteImm | Op::Read => (Limit::Rdma, limits.rdma),
    };
    (bytes > most).then(|| too_long(limit, bytes, most))
}

/// Operations between two comparisons.
fn per_round(request: PutRequest, queue: &MappedQueue) -> u64 {
    let limits = queue.limits();
    let by_bytes = ROUND_BYTES.checked_div(request.bytes).unwrap_or(u64::MAX).max(1);
    let most = match request.op {
        // Each takes two entries of one completion queue, which is not read continuously.
        Op::WriteImm | Op::Send => {
            let half = u64::from(queue.exposure().cq.num_entries / 2);
            half.min(limits.receives.into()).min(limits.inbox.into()).max(1)
        }
        _ => ROUND_OPERATIONS,
    };
    by_bytes.min(most).min(request.count)
}

/// Moves all bytes in rounds and compares them after each.
pub(super) fn move_bytes<L: Layer>(session: &mut Session<L>, request: PutRequest, peer: Peer) -> MoveResult {
    let moved = Moved { completed: 0, took: Duration::ZERO, wrong: None };
    let Some(queue) = &session.rig.queue else { return Err((moved, missing("the queue"))) };
    if let Some(outcomes) = past_limit(request.op, request.bytes, queue.limits()) {
        return Err((moved, outcomes));
    }
    let per_round = per_round(request, queue);
    let length = per_round.saturating_mul(request.bytes);
    let free = available().unwrap_or(u64::MAX);
    if length.saturating_mul(2) > free {
        return Err((moved, too_large(length.saturating_mul(2), free)));
    }
    // Registering touches every page.
    session.progress.request_time(bound(session, length.saturating_mul(2), 0));
    let memory = usize::try_from(length).map_err(|_| too_large(length, free));
    let memory = match memory.and_then(|length| Memory::register(session, request.op, length)) {
        Ok(memory) => memory,
        Err(outcomes) => return Err((moved, outcomes)),
    };
    let sender = session.rig.sender().map_or(peer.queue_pair, MappedQueue::number);
    let mut moving = Moving { request, peer, sender, memory, moved };
    let deadline = Deadline::after(Duration::from_secs(request.max_seconds));
    let (mut round, begin, mut reported) = (0, Instant::now(), Instant::now());
    while moving.moved.completed < request.count && moving.moved.wrong.is_none() {
        let completed = moving.moved.completed;
        if deadline.left().is_none() {
            return Err((moving.moved, stopped(request, completed, begin.elapsed())));
        }
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
            tracing::info!(completed, count = request.count, "operations completed and compared");
        }
        let operations = per_round.min(request.count - moving.moved.completed);
        if let Err(outcomes) = moving.round(session, Round { number: round, operations, deadline }) {
            return Err((moving.moved, outcomes));
        }
        round += 1;
    }
    Ok(moving.moved)
}

/// The outcome of a put that exceeded `--max-seconds`. All completed operations were compared.
fn stopped(request: PutRequest, completed: u64, took: Duration) -> Outcomes {
    let whole = took.as_secs_f64() * request.count as f64 / completed.max(1) as f64;
    Outcome::fail(format!(
        "stopped after {} s: {completed} of {} operations are done, and all their bytes are right",
        took.as_secs(),
        request.count
    ))
    .expects(
        "all operations within --max-seconds",
        "so many operations take longer than --max-seconds allows",
    )
    .fix(
        format!("use --count {} or less, or --max-seconds {whole:.0} or more", completed.max(1)),
        Party::Caller,
    )
    .into()
}

/// One round: its number, which is the seed of its bytes, its count of operations, and its bound.
#[derive(Clone, Copy)]
struct Round {
    number: u64,
    operations: u64,
    /// When the put stops.
    deadline: Deadline,
}

/// The state that all rounds share.
struct Moving {
    request: PutRequest,
    peer: Peer,
    sender: QueuePairNumber,
    memory: Memory,
    moved: Moved,
}

impl Moving {
    fn round<L: Layer>(&mut self, session: &mut Session<L>, round: Round) -> Result<(), Outcomes> {
        let total = round.operations * self.request.bytes;
        let timeout = round.deadline.bounds(bound(session, total, round.operations));
        // For filling, waiting and comparing.
        session.progress.request_time(timeout * 3);
        let Some((source, target)) = self.memory.buffers() else { return Err(missing("the memory")) };
        let pattern = Pattern::new(round.number);
        // `total` is at most the length that was allocated, which is a usize.
        let length = total as usize;
        pattern.prepare(source, target, length).map_err(internal)?;
        let wait = session.request.wait;
        let Some(queue) = &mut session.rig.queue else { return Err(missing("the queue")) };
        let receives = match self.request.op {
            Op::Send => true,
            Op::WriteImm => queue.writes_use_receives(),
            _ => false,
        };
        let first = if receives { Some(self.post_receives(queue, round, timeout)?) } else { None };
        let begin = Instant::now();
        let result = session.rig.execute(&self.requests(round).timeout(timeout));
        self.moved.took += begin.elapsed();
        result.map_err(|error| put_failed(&error, wait))?;
        let Some(queue) = &mut session.rig.queue else { return Err(missing("the queue")) };
        let sorted = match self.request.op {
            Op::Write | Op::InlineWrite | Op::Read => None,
            Op::WriteImm => {
                self.arrivals(queue, round, timeout)?;
                None
            }
            Op::Send => {
                let arrivals = self.arrivals(queue, round, timeout)?;
                Some(self.sorted(&arrivals, first, round)?)
            }
        };
        let difference = pattern.compare(sorted.as_ref().unwrap_or(target), length).map_err(internal)?;
        if let Some(difference) = difference {
            let at = (difference.offset as u64).checked_div(self.request.bytes);
            let at = at.filter(|operation| *operation < round.operations).map_or_else(
                || format!("guard byte {} after the target", difference.offset - length),
                |operation| {
                    let operation = self.moved.completed + operation;
                    format!("byte {} of operation {operation}", difference.offset as u64 % self.request.bytes)
                },
            );
            self.moved.wrong =
                Some(format!("{at} is {:#04x}, not {:#04x}", difference.actual, difference.expected));
        }
        self.moved.completed += round.operations;
        Ok(())
    }

    /// The requests of a round. Immediates count operations over all rounds.
    fn requests(&self, round: Round) -> WorkRequest {
        let (source, target) = (&self.memory.source, &self.memory.target);
        let requests = match self.request.op {
            Op::Write => WorkRequest::write(self.peer, source, target.remote()),
            Op::InlineWrite => WorkRequest::inline_write(self.peer, source, target.remote()),
            Op::Read => WorkRequest::read(self.peer, target, source.remote()),
            Op::WriteImm => WorkRequest::write(self.peer, source, target.remote())
                .immediate(self.first_immediate())
                .counting(),
            Op::Send => WorkRequest::send(self.peer, source).immediate(self.first_immediate()).counting(),
        };
        requests.bytes(self.request.bytes).stride(self.request.bytes).count(round.operations).whole()
    }

    /// The low 32 bits of the number of the round's first operation.
    fn first_immediate(&self) -> u32 {
        self.moved.completed as u32
    }

    /// Posts a receive for each operation: of its length for sends, of 0 bytes for writes.
    fn post_receives(
        &self,
        queue: &mut MappedQueue,
        round: Round,
        timeout: Duration,
    ) -> Result<ReceiveId, Outcomes> {
        let bytes = if self.request.op == Op::Send { self.request.bytes } else { 0 };
        // A round has at most as many operations as the receive queue has entries.
        let count = round.operations as u32;
        let receives = Receives::new(&self.memory.target).bytes(bytes).stride(bytes).count(count);
        let posted = queue.post_receives(&receives.timeout(timeout));
        posted.map(|posted| posted.first).map_err(|error| receive_failed(&error))
    }

    /// Receives each operation's arrival, ordered by operation. Each must arrive once, whole, and from the
    /// sender's queue pair.
    fn arrivals(
        &self,
        queue: &mut MappedQueue,
        round: Round,
        timeout: Duration,
    ) -> Result<Vec<Received>, Outcomes> {
        let mut arrivals: Vec<Option<Received>> = vec![None; round.operations as usize];
        let mut missing = arrivals.len();
        while missing > 0 {
            for received in queue.receive_many(missing, timeout).map_err(|error| receive_failed(&error))? {
                if received.status != CompletionStatus::Ok {
                    let (code, status) = (received.status.code(), received.status);
                    return Err(Outcome::fail(format!("a receive completed with status {code}: {status}"))
                        .expects(
                            "receives that complete with status 0",
                            "the adapter delivered a message or an immediate to this side with an error",
                        )
                        .fix(page(status), Party::Operator)
                        .into());
                }
                let operation = self.operation_of(&received).map_err(corrupted)?;
                let arrival = arrivals.get_mut(operation).ok_or_else(|| {
                    corrupted(format!(
                        "a receive completed with immediate {:?}, but this round's operations have {} to {}",
                        received.immediate,
                        self.first_immediate(),
                        self.first_immediate().wrapping_add(round.operations as u32 - 1)
                    ))
                })?;
                if arrival.replace(received).is_some() {
                    let operation = self.moved.completed + operation as u64;
                    return Err(corrupted(format!("operation {operation} arrived twice")));
                }
                missing -= 1;
            }
        }
        Ok(arrivals.into_iter().flatten().collect())
    }

    /// The operation of the round to which an arrival belongs, or what is wrong with the arrival.
    fn operation_of(&self, received: &Received) -> Result<usize, String> {
        let expected = if self.request.op == Op::Send { Arrival::Message } else { Arrival::Write };
        if received.arrival != expected || u64::from(received.length) != self.request.bytes {
            return Err(format!(
                "a {:?} of {} bytes arrived, expected a {expected:?} of {} bytes",
                received.arrival, received.length, self.request.bytes
            ));
        }
        if received.source.queue_pair != self.sender {
            return Err(format!(
                "an arrival from queue pair {}, expected from {}",
                received.source.queue_pair, self.sender
            ));
        }
        let immediate = received.immediate.ok_or("an arrival without an immediate")?;
        Ok(immediate.wrapping_sub(self.first_immediate()) as usize)
    }

    /// The target's bytes in the order of the operations: messages use receives in any order.
    fn sorted(
        &self,
        arrivals: &[Received],
        first: Option<ReceiveId>,
        round: Round,
    ) -> Result<Buffer, Outcomes> {
        let Some((_, target)) = self.memory.buffers() else { return Err(missing("the memory")) };
        let size = self.request.bytes as usize;
        let length = size * round.operations as usize;
        let sorted = Buffer::zeroed(target.len()).ok_or_else(|| too_large(target.len() as u64, 0))?;
        let mut message = vec![0; size.max(target.len() - length)];
        for (operation, received) in arrivals.iter().enumerate() {
            let index = received.receive.zip(first).map(|(receive, first)| usize::from(receive.after(first)));
            let index = index.filter(|index| *index < arrivals.len());
            let index = index
                .ok_or_else(|| corrupted("a message arrived in a receive of another round".to_owned()))?;
            target.read(index * size, &mut message[..size]).map_err(internal)?;
            sorted.write(operation * size, &message[..size]).map_err(internal)?;
        }
        let guard = target.len() - length;
        target.read(length, &mut message[..guard]).map_err(internal)?;
        sorted.write(length, &message[..guard]).map_err(internal)?;
        Ok(sorted)
    }
}

fn internal(error: impl ToString) -> Outcomes {
    Outcome::fail(error.to_string())
        .expects("accesses within the probe's buffers", "this is a bug of gda-probe")
        .fix("report it with the version of gda-probe", Party::Program)
        .into()
}

/// The failed outcome for the error of a receive.
fn receive_failed(error: &Error) -> Outcomes {
    Outcome::fail(error.to_string())
        .expects(
            "a completion at the receiver for every operation",
            "the sender's requests completed with status 0, so each must complete at the receiver too",
        )
        .fix(
            "run again with -v, and report it with the versions of the adapter and its kernel driver",
            Party::Operator,
        )
        .into()
}
