//! The puts of one rank: memory with the least access, rounds of puts, the value that follows them, and the comparison
//! of every byte.
//!
//! A round puts the bytes, waits for their completions, and then writes a value of 8 bytes to the receiver's signal
//! word: an adapter may write two requests in any order, and a completed write is in the receiver's memory. The
//! receiver waits for the value and compares. The exchange separates rounds, so that no byte of the next one arrives
//! early.

use std::time::{Duration, Instant};

use efa_gda::Error;
use efa_gda::gpu::{Gpu, GpuMemory};
use efa_gda::memory::{Access, Buffer, RemoteRegion};
use efa_gda::queue::{MappedQueue, Region, WorkRequest};
use efa_gda::wire::{Peer, RemoteKey};
use serde::{Deserialize, Serialize};

use super::nvlink::{Mapped, Shared};
use super::reach::first_failure;
use crate::check::Outcomes;
use crate::checks::data;
use crate::checks::data::pattern::{Bytes, Pattern};
use crate::checks::measure::{self, Bed, Case, REGION};
use crate::checks::rows::row;
use crate::checks::session::{Layer, Session, text};
use crate::exchange::Deadline;
use crate::model::CLOSES;
use crate::model::bench::Figure;
use crate::model::ranks::Pe;
use crate::worker::PutRequest;

/// The most bytes of one round.
const ROUND_BYTES: u64 = 64 << 20;
/// The most puts of one round.
const ROUND_PUTS: u64 = 1 << 16;
/// Guard bytes after the target, which must not change.
const GUARD: usize = 64;
/// Bytes of the value that follows a round.
const VALUE: usize = 8;
/// The signal word before a value arrives.
const NONE: u64 = u64::MAX;
/// Added to the bound of a wait for another rank, which the scheduler may hold up.
const GRACE: Duration = Duration::from_secs(1);
/// The pause between two looks at the signal word.
const PAUSE: Duration = Duration::from_micros(50);
/// The least bound of a measured write.
const LEAST_WAIT: Duration = Duration::from_secs(2);

/// A registered region, as a rank describes it to the one that puts to it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Remote {
    address: u64,
    length: u64,
    key: u32,
}

impl From<RemoteRegion> for Remote {
    fn from(region: RemoteRegion) -> Self {
        Self { address: region.address, length: region.length, key: region.key.get() }
    }
}

impl From<Remote> for RemoteRegion {
    fn from(region: Remote) -> Self {
        Self { address: region.address, length: region.length, key: RemoteKey::new(region.key) }
    }
}

/// The peer's memory for the bytes and for the signal.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Landing {
    bytes: Remote,
    signal: Remote,
}

/// Where a rank puts.
#[derive(Debug)]
pub(super) enum Target {
    /// To memory of a peer, over EFA.
    Efa(Peer, Landing),
    /// To memory of another GPU, which this process has mapped.
    Mapped(Mapped),
}

/// Puts of one round.
pub(crate) fn per_round(put: PutRequest) -> u64 {
    let by_bytes = ROUND_BYTES.checked_div(put.bytes).unwrap_or(ROUND_PUTS).clamp(1, ROUND_PUTS);
    by_bytes.min(put.count)
}

/// The value that `rank` writes after a round; the last round's is 100 × the rank, as in NVSHMEM's ring tests.
fn value(rank: u32, rounds_left: u64) -> u64 {
    u64::from(rank) * 100 + (rounds_left << 32)
}

/// The memory of a rank, and its neighbours.
pub(super) struct Transfer {
    put: PutRequest,
    /// Bytes of a whole round.
    length: usize,
    rounds: u64,
    rank: u32,
    target: Option<u32>,
    source: Option<u32>,
    /// The bytes to put, and the value after them. Only its own adapter reads it.
    sends: Option<Region>,
    /// The target of `source`, and the signal word. Peers may write to them, and to nothing else.
    receives: Option<(Region, Region)>,
}

impl Transfer {
    /// Registers the memory of `rank`, which puts to the first of `neighbours` and receives from the second: memory of
    /// `gpu`, or of the host.
    pub(super) fn new<L: Layer>(
        session: &Session<L>,
        rank: u32,
        neighbours: [Option<u32>; 2],
        gpu: Option<&Gpu>,
    ) -> Result<Self, String> {
        let put = session.request.put;
        let puts = per_round(put);
        let bytes = puts.checked_mul(put.bytes).and_then(|bytes| usize::try_from(bytes).ok());
        let length = bytes.ok_or("a round of puts exceeds the address space")?;
        let register = |length: usize, access: Access| {
            let short = |why: &str| {
                format!(
                    "{length} bytes of memory for a round of puts cannot be allocated{why}; use a smaller --bytes or \
                     --count"
                )
            };
            let objects = &session.rig.objects;
            let region = match gpu {
                None => objects.register(Buffer::zeroed(length).ok_or_else(|| short(""))?, access),
                Some(gpu) => {
                    let memory = GpuMemory::zeroed_to_share(gpu, length);
                    let memory = memory.map_err(|error| short(&format!(": {}", text(error))))?;
                    objects.register_gpu(memory, access)
                }
            };
            region.map_err(|outcomes| sentence("a region", outcomes))
        };
        let [target, source] = neighbours;
        // The writes that a bench measures go to the same memory, after the puts were compared.
        let room = if session.request.bench.is_some() { length.max(REGION as usize) } else { length };
        let sends = target.map(|_| register(room + VALUE, Access::WRITE)).transpose()?;
        let receives = source.map(|_| {
            Ok::<_, String>((
                register(room + GUARD, Access::REMOTE_WRITE)?,
                register(VALUE, Access::REMOTE_WRITE)?,
            ))
        });
        let rounds = put.count.div_ceil(puts.max(1));
        Ok(Self { put, length, rounds, rank, target, source, sends, receives: receives.transpose()? })
    }

    /// The number of rounds.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Where this rank's source writes.
    pub(super) fn landing(&self) -> Option<Landing> {
        let (bytes, signal) = self.receives.as_ref()?;
        Some(Landing { bytes: bytes.remote().into(), signal: signal.remote().into() })
    }

    /// Exports the memory to which this rank's source puts, for another process of the host.
    pub(super) fn share(&self, gpu: &Gpu) -> Result<Shared, String> {
        let (bytes, signal) = self.receives.as_ref().ok_or("no rank puts to this one")?;
        let memory = bytes.gpu_memory().zip(signal.gpu_memory());
        let (bytes, signal) = memory.ok_or("no memory of a GPU is registered")?;
        Shared::of(gpu, bytes, signal)
    }

    /// Measures a case with writes to the peer's memory, whose bytes nobody reads then.
    pub(super) fn measure<L: Layer>(
        &self,
        session: &mut Session<L>,
        (peer, landing): (Peer, Landing),
        case: Case,
        share: Duration,
    ) -> Result<Figure, String> {
        let wait = session.request.wait;
        let mode = session.rig.sender().map(MappedQueue::doorbell_mode);
        let parts = self.sends.as_ref().zip(mode).zip(session.rig.meter());
        let ((sends, mode), meter) = parts.ok_or("no queue is open")?;
        let timeout = Duration::from_millis(wait).max(LEAST_WAIT);
        let requests = |bytes, _| vec![measure::request(peer, sends, landing.bytes.into(), bytes, timeout)];
        let measured = Bed { meter, mode, queues: 1, requests: &requests }.measure(case, share);
        measured.map_err(|error| sentence(&case.describe(), data::put_failed(&error, wait)))
    }

    /// Puts of a round, and their bytes.
    fn size(&self, round: u64) -> (u64, usize) {
        let before = round * per_round(self.put);
        let puts = per_round(self.put).min(self.put.count - before);
        // At most `length`.
        (puts, (puts * self.put.bytes) as usize)
    }

    /// Why this rank begins no further round after `rounds` of them: `--max-seconds` is over.
    pub(super) fn stopped(&self, rounds: u64) -> String {
        let (PutRequest { count, max_seconds, .. }, done) = (self.put, rounds * per_round(self.put));
        format!(
            "stopped at --max-seconds {max_seconds}: {done} of {count} puts are done, and all their bytes are right; \
             use --count {} or less, or a longer --max-seconds",
            done.max(1)
        )
    }

    /// Fills the source, and makes every byte of the target wrong. No other rank may be putting.
    pub(super) fn prepare(&self, round: u64) -> Result<(), String> {
        let (_, length) = self.size(round);
        if let Some(buffer) = self.sends.as_ref().and_then(bytes) {
            seed(self.rank, round).fill(buffer, length)?;
            let value = value(self.rank, self.rounds - 1 - round);
            buffer.put(self.length, &value.to_ne_bytes())?;
        }
        if let (Some(source), Some((bytes, signal))) = (self.source, self.buffers()) {
            seed(source, round).spoil(bytes, length)?;
            signal.put(0, &NONE.to_ne_bytes())?;
        }
        Ok(())
    }

    fn buffers(&self) -> Option<(&dyn Bytes, &dyn Bytes)> {
        let (target, signal) = self.receives.as_ref()?;
        Some((bytes(target)?, bytes(signal)?))
    }

    /// Puts a round, waits for that of the source, and compares. Adds to `pe`.
    pub(super) fn round<L: Layer>(
        &self,
        session: &mut Session<L>,
        (round, deadline): (u64, Deadline),
        target: Option<&Target>,
        pe: &mut Pe,
    ) -> Result<(), String> {
        let (puts, length) = self.size(round);
        let timeout = deadline.bounds(data::bound(session, length as u64, puts));
        let begun = Instant::now();
        let completed = match target {
            None => None,
            Some(Target::Efa(peer, landing)) => Some(self.send(session, puts, (*peer, *landing), timeout)?),
            Some(Target::Mapped(mapped)) => Some(self.copy(mapped, puts, timeout)?),
        };
        if let Some((completed, ended)) = completed {
            let took = u64::try_from((ended - begun).as_micros()).unwrap_or(u64::MAX);
            pe.microseconds = Some(pe.microseconds.unwrap_or_default().saturating_add(took));
            pe.completed += completed;
        }
        self.receive(session, (round, deadline), pe)
    }

    /// Copies a round to memory of another GPU, and the value after that. Returns the completed puts, and when the
    /// bytes were there.
    fn copy(&self, mapped: &Mapped, puts: u64, timeout: Duration) -> Result<(u64, Instant), String> {
        let to = self.target.unwrap_or_default();
        let failed = |why: String| format!("the put to rank {to} over NVLink failed: {why}");
        let source =
            self.sends.as_ref().and_then(Region::gpu_memory).ok_or("no memory of a GPU is registered")?;
        // The bytes of a round fit a usize.
        mapped.put(source, (self.put.bytes as usize, puts as usize), timeout).map_err(failed)?;
        let ended = Instant::now();
        mapped.signal(source, self.length, timeout).map_err(failed)?;
        Ok((puts, ended))
    }

    /// Puts a round over EFA, and the value after that. Returns as [`Self::copy`].
    fn send<L: Layer>(
        &self,
        session: &mut Session<L>,
        puts: u64,
        (peer, landing): (Peer, Landing),
        timeout: Duration,
    ) -> Result<(u64, Instant), String> {
        let sends = self.sends.as_ref().ok_or("no memory is registered")?;
        let bytes = WorkRequest::write(peer, sends, landing.bytes.into())
            .bytes(self.put.bytes)
            .count(puts)
            .stride(self.put.bytes)
            .timeout(timeout);
        let value = WorkRequest::write(peer, sends, landing.signal.into())
            .bytes(VALUE as u64)
            .offsets(self.length as u64, 0)
            .timeout(timeout);
        let to = self.target.unwrap_or_default();
        let failed = |error: Error, wait: u64| {
            sentence(&format!("the put to rank {to}"), data::put_failed(&error, wait))
        };
        let wait = session.request.wait;
        let done = session.rig.execute(&bytes).map_err(|error| failed(error, wait))?;
        let ended = Instant::now();
        session.rig.execute(&value).map_err(|error| failed(error, wait))?;
        // A long put is several requests.
        Ok((if done.completed == done.posted { puts } else { 0 }, ended))
    }

    fn receive<L: Layer>(
        &self,
        session: &Session<L>,
        (round, deadline): (u64, Deadline),
        pe: &mut Pe,
    ) -> Result<(), String> {
        let (Some(source), Some((bytes, signal))) = (self.source, self.buffers()) else { return Ok(()) };
        let (puts, length) = self.size(round);
        let expected = value(source, self.rounds - 1 - round);
        let bound = deadline.bounds(data::bound(session, length as u64, puts) * 2) + GRACE;
        let begun = Instant::now();
        loop {
            let mut word = [0; VALUE];
            signal.get(0, &mut word)?;
            let got = u64::from_ne_bytes(word);
            // The value that people read is the last round's.
            pe.expected = Some(value(source, 0));
            pe.got = (got != NONE).then_some(got & u64::from(u32::MAX));
            if got == expected {
                break;
            }
            if begun.elapsed() > bound {
                return Err(match pe.got {
                    Some(got) => format!("value {got} arrived from rank {source}, not {expected}"),
                    None => format!(
                        "no value arrived from rank {source} within {} ms; see that rank's result, or raise \
                         --time-limit (milliseconds)",
                        bound.as_millis()
                    ),
                });
            }
            std::thread::sleep(PAUSE);
        }
        match seed(source, round).compare(bytes, length)? {
            None => Ok(()),
            Some(wrong) => Err(format!(
                "byte {} of round {round} from rank {source} is {:#04x}, not {:#04x}",
                wrong.offset, wrong.actual, wrong.expected
            )),
        }
    }
}

/// The bytes of a region that owns its memory.
fn bytes(region: &Region) -> Option<&dyn Bytes> {
    match region.gpu_memory() {
        Some(memory) => Some(memory),
        None => region.buffer().map(|buffer| buffer as &dyn Bytes),
    }
}

/// The bytes that `rank` puts in a round.
fn seed(rank: u32, round: u64) -> Pattern {
    Pattern::new(u64::from(rank) << 40 ^ round)
}

/// The failure among `outcomes`, as a sentence about `what`.
fn sentence(what: &str, outcomes: Outcomes) -> String {
    let of = outcomes.0.into_iter().find_map(|(_, outcome)| match outcome {
        crate::check::Outcome::Fail(problem) => {
            Some(format!("{what} failed: {}; {}", problem.observed, problem.fix.unwrap_or_default()))
        }
        crate::check::Outcome::Unknown(_, why) => Some(format!("{what} failed: {why}")),
        _ => None,
    });
    of.unwrap_or_else(|| format!("{what} failed"))
}

/// Closes every object of the session.
pub(super) fn close<L: Layer>(session: &mut Session<L>) -> Result<(), String> {
    row(CLOSES).map_or(Ok(()), |row| first_failure(&row.check, row.outcomes(session)))
}
