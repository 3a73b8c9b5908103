//! Where a queue stands: a copy of its struct, the requests that nobody rang for, and the last
//! completions, in words. For a job that hangs: it may be taken while kernels run, and then parts of
//! it are of different moments.
//!
//! It only reads. An adapter's ring is write-only memory, so that entries can be shown where the ring
//! is ordinary memory: of the software adapter, or of a host thread that stages.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda_sys::device::{EFA_GDA_SQ_RECORD, EFA_GDA_SQ_REQ_ID_64, efa_gda_queue};
use efa_gda_wire::{
    Completion, CompletionKind, CompletionStatus, DecodedRequest, Operation, RequestId, RequestIdWidth, Ring,
};

use super::mapped::held;
use super::{Backing, GpuQueue, MappedQueue, outstanding};
use crate::executor::{DeviceError, outcome};
use crate::exposure::Exposure;
use crate::gpu::{self, smaps};

/// Completions that are shown of those that were read.
const LAST_COMPLETIONS: u32 = 8;
/// Entries and completions of each kind that are written out; the rest is counted.
const SHOWN: usize = 16;

/// Where a queue stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The struct that kernels work on, as it was.
    pub state: efa_gda_queue,
    /// Requests that were reserved and not rung; the slots of some may not be written yet.
    pub pending: Seen<Pending>,
    /// The last completions that were read, and those that wait to be.
    pub completions: Seen<SeenCompletion>,
    /// What the counters hold that the queue goes by, successes and errors; none where it goes by its
    /// completion queue.
    pub counters: Option<Counts>,
}

/// Successes and errors, or why they cannot be had.
pub type Counts = Result<[u64; 2], String>;

/// What was seen of a ring, or why nothing was.
#[derive(Clone, Debug)]
pub enum Seen<T> {
    /// These, oldest first.
    All(Vec<T>),
    /// It cannot be read, for this reason.
    Unreadable(String),
}

/// A request that nobody rang for yet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pending {
    /// The request's count, modulo 2^32.
    pub counter: u32,
    /// Its slot.
    pub slot: u32,
    /// What stands there, of 64 or 128 bytes; none where it is what an earlier lap left.
    pub entry: Option<DecodedRequest>,
}

/// A completion in the ring.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SeenCompletion {
    /// Its slot.
    pub slot: u32,
    /// Whether the queue's poller has read it, or the queue's counters have counted it.
    pub read: bool,
    /// What it says; none where that is no completion.
    pub completion: Option<Completion>,
}

impl Snapshot {
    /// Requests for which slots were taken, modulo 2^32.
    pub fn reserved(&self) -> u32 {
        self.state.reserve.word as u32
    }

    /// The last doorbell, before its bits were cut to 16.
    pub fn rung(&self) -> u32 {
        self.state.lock.doorbell_index
    }

    /// Completions of requests that were read, modulo 2^32.
    pub fn completed(&self) -> u32 {
        self.state.completion.completed
    }

    /// Requests that were rung and are not completed; none where the completions were seen later.
    pub fn in_flight(&self) -> u32 {
        outstanding(self.rung(), self.completed())
    }

    /// Whether somebody posts: a call has a ticket that is not passed on yet.
    pub fn is_held(&self) -> bool {
        held(&self.state)
    }

    /// What poisoned the queue.
    pub fn poison(&self) -> Option<DeviceError> {
        outcome(self.state.error.poison).err()
    }

    /// The first request that failed, and how.
    pub fn first_error(&self) -> Option<(RequestId, CompletionStatus)> {
        let error = &self.state.error;
        // The status is one byte of the completion, widened for the report.
        (error.reported != 0).then(|| {
            (RequestId::new(error.request_id), CompletionStatus::from_code(error.completion_status as u8))
        })
    }

    /// Of a copy of the struct, whose cursors alone are believed: kernels may have written over all of it.
    fn of(
        state: efa_gda_queue,
        exposure: &Exposure,
        sends: Bytes,
        completions: Bytes,
        counters: Option<Counts>,
    ) -> Self {
        let whole = whole(&state, exposure);
        let pending = match whole.clone().and(sends) {
            Ok(ring) => pending(&state, exposure, &ring),
            Err(why) => Seen::Unreadable(why),
        };
        let completions = match whole.and(completions) {
            Ok(ring) => seen_completions(&state, exposure, &ring, counters.is_some()),
            Err(why) => Seen::Unreadable(why),
        };
        Self { state, pending, completions, counters }
    }
}

/// A ring's bytes, or why they cannot be had.
pub(super) type Bytes = Result<RingBytes, String>;

/// Where a ring's bytes are.
pub(super) enum RingBytes {
    /// In memory that this process reads, and others may be writing.
    Here(*const u8),
    /// Copied out of a GPU.
    Copied(Vec<u8>),
}

impl RingBytes {
    /// A ring of this process, where the kernel says that the processor may read it.
    fn here(start: *const u8, length: usize) -> Bytes {
        match smaps::mapping_of(start as usize..start as usize + length) {
            Ok(mapping) if mapping.readable && mapping.kind == smaps::MemoryKind::Ordinary => {
                Ok(Self::Here(start))
            }
            Ok(_) => Err("it is the adapter's memory, which can be written only".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Entry `slot` of `size` bytes, word by word.
    fn entry(&self, slot: u32, size: u32) -> Vec<u8> {
        let (at, size) = (slot as usize * size as usize, size as usize);
        match self {
            Self::Copied(bytes) => bytes[at..at + size].to_vec(),
            Self::Here(start) => {
                let words = (at..at + size).step_by(size_of::<u64>()).map(|at| {
                    // SAFETY: only slots of the ring are asked for, which `here` found readable and whose
                    // queue, borrowed meanwhile, keeps it so; rings are aligned to words, and words are
                    // read atomically, for others write them.
                    unsafe { AtomicU64::from_ptr(start.add(at).cast_mut().cast()) }.load(Ordering::Relaxed)
                });
                words.flat_map(u64::to_ne_bytes).collect()
            }
        }
    }
}

/// Whether the geometry in the struct is the queue's, which nobody changes.
fn whole(state: &efa_gda_queue, exposure: &Exposure) -> Result<(), String> {
    let Exposure { sq, cq, .. } = exposure;
    let wide = sq.request_ids == RequestIdWidth::Bits64;
    let says = (state.sq.num_entries, state.sq.entry_size, state.cq.num_entries, state.cq.entry_size);
    let is = (sq.num_entries, sq.entry_size.bytes() as u32, cq.num_entries, cq.entry_size);
    if says == is && (state.sq.flags & EFA_GDA_SQ_REQ_ID_64 != 0) == wide {
        return Ok(());
    }
    Err("the struct is damaged, its geometry is not the queue's: something wrote over it".into())
}

fn pending(state: &efa_gda_queue, exposure: &Exposure, sends: &RingBytes) -> Seen<Pending> {
    let (sq, ids) = (&exposure.sq, exposure.sq.request_ids);
    let entry_size = sq.entry_size.bytes() as u32;
    let Ok(ring) = Ring::new(sq.num_entries) else {
        return Seen::Unreadable("the ring is not one: its entries are no power of two".into());
    };
    let (rung, reserved) = (state.lock.doorbell_index, state.reserve.word as u32);
    // More than a ring of calls may wait for room.
    let count = reserved.wrapping_sub(rung).min(sq.num_entries);
    let one = |index| {
        let counter = rung.wrapping_add(index);
        let slot = ring.slot(counter);
        let entry = DecodedRequest::decode(&sends.entry(slot, entry_size), ids).ok();
        // Request ids are counts, so that what an earlier lap or the adapter left shows.
        let entry = entry
            .filter(|entry| entry.phase == ring.phase(counter) && entry.id.get() as u16 == counter as u16);
        Pending { counter, slot, entry }
    };
    Seen::All((0..count).map(one).collect())
}

fn seen_completions(
    state: &efa_gda_queue,
    exposure: &Exposure,
    completions: &RingBytes,
    counted: bool,
) -> Seen<SeenCompletion> {
    let (cq, ids) = (&exposure.cq, exposure.sq.request_ids);
    let Ok(ring) = Ring::new(cq.num_entries) else {
        return Seen::Unreadable("the ring is not one: its entries are no power of two".into());
    };
    // Beside counters nobody reads what went well; the completions have the numbers of what completed.
    let consumed = if counted { state.completion.completed } else { state.completion.consumed };
    let before = LAST_COMPLETIONS.min(cq.num_entries);
    let mut seen = Vec::new();
    for index in 0..before + cq.num_entries {
        let counter = consumed.wrapping_sub(before).wrapping_add(index);
        let slot = ring.slot(counter);
        let bytes = completions.entry(slot, cq.entry_size);
        // On its first lap a queue has none before.
        let there = Completion::phase(bytes[Completion::FLAGS_OFFSET]) != ring.phase(counter);
        let completion = Completion::decode(&bytes, ids).ok();
        match index < before {
            true if there && completion.is_some() => {
                seen.push(SeenCompletion { slot, read: true, completion })
            }
            true => {}
            false if there => seen.push(SeenCompletion { slot, read: false, completion }),
            false => break,
        }
    }
    Seen::All(seen)
}

impl<B: Backing> MappedQueue<B> {
    /// Where the queue stands, as far as the host's processor can see.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_with(self.state(), None, None)
    }

    /// The same, of a copy of the struct that a GPU works on; `completions` and `counters`, where they lie
    /// there.
    fn snapshot_with(
        &self,
        state: efa_gda_queue,
        completions: Option<Bytes>,
        counters: Option<Counts>,
    ) -> Snapshot {
        let (sq, cq) = (self.exposure().sq, self.exposure().cq);
        // A staging ring has the entries of the send queue.
        let buffer = self.served.as_ref().map_or(sq.buffer, |served| served.buffer());
        let sends = RingBytes::here(buffer.as_ptr(), sq.bytes());
        let completions = completions.unwrap_or_else(|| match self.backing.completions_on() {
            Some(_) => Err("they lie in a GPU's memory".into()),
            None => RingBytes::here(cq.buffer.as_ptr(), cq.bytes()),
        });
        let counters = self.counters.as_ref().map(|counted| {
            counters.unwrap_or_else(|| counted.seen().ok_or_else(|| "they lie in a GPU's memory".into()))
        });
        Snapshot::of(state, self.exposure(), sends, completions, counters)
    }
}

impl GpuQueue {
    /// Where the queue stands, also while a kernel runs: what the GPU's memory holds of it is copied
    /// beside the kernel.
    ///
    /// # Errors
    /// The driver's, and [`gpu::Error::Unanswered`] where the copy does not end within a second.
    pub fn snapshot(&self) -> gpu::Result<Snapshot> {
        let (state, completions, counters) = self.watch()?;
        Ok(self.mapped().snapshot_with(state, completions, counters))
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, .. } = self;
        let (sq, completion) = (&state.sq, &state.completion);
        writeln!(
            f,
            "queue pair {}: {} entries of {} bytes, batch {}{}",
            state.qpn,
            sq.num_entries,
            sq.entry_size,
            sq.max_batch,
            if sq.flags & EFA_GDA_SQ_RECORD != 0 { ", rung by the host" } else { "" }
        )?;
        writeln!(
            f,
            "requests: {} reserved, {} rung (doorbell {}), {} known to the adapter, {} completed, {} in flight",
            self.reserved(),
            self.rung(),
            self.rung() & 0xffff,
            state.lock.confirmed_index,
            self.completed(),
            self.in_flight()
        )?;
        let holder = if self.is_held() { "a post is under way" } else { "nobody posts" };
        let polled = if completion.lock != 0 { "a thread polls" } else { "nobody polls" };
        writeln!(f, "turn: {holder}; completions: {} read, {polled}", completion.consumed)?;
        match &self.counters {
            Some(Ok([successes, errors])) => writeln!(f, "counters: {successes} successes, {errors} errors")?,
            Some(Err(why)) => writeln!(f, "counters: not readable: {why}")?,
            None => {}
        }
        if state.rq.num_entries != 0 {
            let receive = &state.receive;
            writeln!(
                f,
                "receives: {} posted, {} rung, {} completed, {} kept, {} taken, {} lost",
                receive.posted,
                receive.doorbell_index,
                completion.received,
                completion.inboxed,
                receive.taken,
                completion.lost
            )?;
        }
        if let Some((request, status)) = self.first_error() {
            writeln!(f, "errors: {}, the first of request id {request}: {status}", state.error.count)?;
        }
        if let Some(poison) = self.poison() {
            writeln!(f, "out of service: {poison}")?;
        }
        list(f, "not rung", &self.pending)?;
        list(f, "completions", &self.completions)
    }
}

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, what: &str, seen: &Seen<T>) -> fmt::Result {
    match seen {
        Seen::Unreadable(why) => writeln!(f, "{what}: not readable: {why}"),
        Seen::All(all) if all.is_empty() => writeln!(f, "{what}: none"),
        Seen::All(all) => {
            writeln!(f, "{what}: {}", all.len())?;
            all.iter().take(SHOWN).try_for_each(|one| writeln!(f, "  {one}"))?;
            match all.len().saturating_sub(SHOWN) {
                0 => Ok(()),
                more => writeln!(f, "  and {more} more"),
            }
        }
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} (request {}): ", self.slot, self.counter)?;
        let Some(entry) = &self.entry else { return f.write_str("not written yet") };
        let Some(request) = &entry.request else {
            return write!(f, "not a request: {}", entry.broken);
        };
        let bytes = request.operation.length();
        let peer = request.peer;
        write!(f, "{} of {bytes} bytes to queue pair {}", request.operation.code(), peer.queue_pair)?;
        match &request.operation {
            Operation::Write { remote, .. }
            | Operation::Read { remote, .. }
            | Operation::WriteInline { remote, .. } => {
                write!(f, " at {:#x}, key {}", remote.address, remote.key)?;
            }
            Operation::Send(_) | Operation::SendInline(_) => {}
        }
        if entry.broken.is_empty() { Ok(()) } else { write!(f, " (breaks {})", entry.broken) }
    }
}

impl fmt::Display for SeenCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.read { "read" } else { "waits to be read" };
        write!(f, "slot {} ({how}): ", self.slot)?;
        let Some(completion) = &self.completion else { return f.write_str("not a completion") };
        let side = match completion.kind {
            CompletionKind::Send => "request",
            CompletionKind::Receive(_) => "receive",
        };
        write!(f, "{side} {}: {}", completion.id, completion.status)
    }
}
