//! The puts of one rank: memory with the least access, rounds of puts, the value that follows them, and the comparison
//! of every byte.
//!
//! A round puts the bytes, waits for their completions, and then writes a value of 8 bytes to the receiver's signal
//! word: an adapter may write two requests in any order, and a completed write is in the receiver's memory. The
//! receiver waits for the value and compares. The exchange separates rounds, so that no byte of the next one arrives
//! early.

use std::time::{Duration, Instant};

use efa_gda::gpu_queue::GpuQueueError;
use efa_gda::memory::{Access, Buffer, RemoteRegion};
use efa_gda::queue::{Region as _, WorkRequest};
use efa_gda::wire::{Peer, RemoteKey};
use serde::{Deserialize, Serialize};

use super::reach::first_failure;
use crate::check::Outcomes;
use crate::checks::data::{self, pattern::Pattern};
use crate::checks::session::{Layer, Region, Session};
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
pub(super) struct Transfer<L: Layer> {
    put: PutRequest,
    /// Bytes of a whole round.
    length: usize,
    rounds: u64,
    rank: u32,
    target: Option<u32>,
    source: Option<u32>,
    /// The bytes to put, and the value after them. Only its own adapter reads it.
    sends: Option<Region<L>>,
    /// The target of `source`, and the signal word. Peers may write to them, and to nothing else.
    receives: Option<(Region<L>, Region<L>)>,
}

impl<L: Layer> Transfer<L> {
    /// Registers the memory of `rank`, which puts to the first of `neighbours` and receives from the second.
    pub(super) fn new(session: &Session<L>, rank: u32, neighbours: [Option<u32>; 2]) -> Result<Self, String> {
        let put = session.request.put;
        let puts = per_round(put);
        let bytes = puts.checked_mul(put.bytes).and_then(|bytes| usize::try_from(bytes).ok());
        let length = bytes.ok_or("a round of puts exceeds the address space")?;
        let register = |length: usize, access: Access| {
            let buffer = Buffer::zeroed(length).ok_or_else(|| {
                format!(
                    "{length} bytes of memory for a round of puts cannot be allocated; use a smaller --bytes"
                )
            })?;
            session.rig.objects.register(buffer, access).map_err(|outcomes| sentence("a region", outcomes))
        };
        let [target, source] = neighbours;
        let sends = target.map(|_| register(length + VALUE, Access::WRITE)).transpose()?;
        let receives = source.map(|_| {
            Ok::<_, String>((
                register(length + GUARD, Access::REMOTE_WRITE)?,
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

    /// Puts of a round, and their bytes.
    fn size(&self, round: u64) -> (u64, usize) {
        let before = round * per_round(self.put);
        let puts = per_round(self.put).min(self.put.count - before);
        // At most `length`.
        (puts, (puts * self.put.bytes) as usize)
    }

    /// Fills the source, and makes every byte of the target wrong. No other rank may be putting.
    pub(super) fn prepare(&self, round: u64) -> Result<(), String> {
        let (_, length) = self.size(round);
        let wrong = |error: efa_gda::memory::OutOfBounds| error.to_string();
        if let Some(buffer) = self.sends.as_ref().and_then(|region| region.buffer()) {
            seed(self.rank, round).fill(buffer, length).map_err(wrong)?;
            let value = value(self.rank, self.rounds - 1 - round);
            buffer.write(self.length, &value.to_ne_bytes()).map_err(wrong)?;
        }
        if let (Some(source), Some((bytes, signal))) = (self.source, self.buffers()) {
            seed(source, round).spoil(bytes, length).map_err(wrong)?;
            signal.write(0, &NONE.to_ne_bytes()).map_err(wrong)?;
        }
        Ok(())
    }

    fn buffers(&self) -> Option<(&Buffer, &Buffer)> {
        let (bytes, signal) = self.receives.as_ref()?;
        Some((bytes.buffer()?, signal.buffer()?))
    }

    /// Puts a round, waits for that of the source, and compares. Adds to `pe`.
    pub(super) fn round(
        &self,
        session: &mut Session<L>,
        round: u64,
        peer: Option<(Peer, Landing)>,
        pe: &mut Pe,
    ) -> Result<(), String> {
        if let Some((peer, landing)) = peer {
            self.send(session, round, peer, landing, pe)?;
        }
        self.receive(session, round, pe)
    }

    fn send(
        &self,
        session: &mut Session<L>,
        round: u64,
        peer: Peer,
        landing: Landing,
        pe: &mut Pe,
    ) -> Result<(), String> {
        let Some(sends) = &self.sends else { return Ok(()) };
        let (puts, length) = self.size(round);
        let timeout = data::bound(session, length as u64, puts);
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
        let failed = |error: GpuQueueError, wait: u64| {
            sentence(&format!("the put to rank {to}"), data::put_failed(&error, wait))
        };
        let wait = session.request.wait;
        let begun = Instant::now();
        let done = session.rig.execute(&bytes).map_err(|error| failed(error, wait))?;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        pe.microseconds = Some(pe.microseconds.unwrap_or_default().saturating_add(took));
        // A long put is several requests.
        pe.completed += if done.completed == done.posted { puts } else { 0 };
        session.rig.execute(&value).map_err(|error| failed(error, wait)).map(drop)
    }

    fn receive(&self, session: &Session<L>, round: u64, pe: &mut Pe) -> Result<(), String> {
        let (Some(source), Some((bytes, signal))) = (self.source, self.buffers()) else { return Ok(()) };
        let (puts, length) = self.size(round);
        let expected = value(source, self.rounds - 1 - round);
        let bound = data::bound(session, length as u64, puts) * 2 + GRACE;
        let begun = Instant::now();
        loop {
            let mut word = [0; VALUE];
            signal.read(0, &mut word).map_err(|error| error.to_string())?;
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
        match seed(source, round).compare(bytes, length).map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(wrong) => Err(format!(
                "byte {} of round {round} from rank {source} is {:#04x}, not {:#04x}",
                wrong.offset, wrong.actual, wrong.expected
            )),
        }
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
            Some(format!("{what} failed: {}; {}", problem.observed, problem.fix))
        }
        crate::check::Outcome::Unknown(_, why) => Some(format!("{what} failed: {why}")),
        _ => None,
    });
    of.unwrap_or_else(|| format!("{what} failed"))
}

/// Closes every object of the session.
pub(super) fn close<L: Layer>(session: &mut Session<L>) -> Result<(), String> {
    let last = data::checks::<L>().iter().find(|unit| unit.check.code == data::LAST);
    last.map_or(Ok(()), |unit| first_failure(&unit.check, unit.outcomes(session)))
}
