//! Snapshots of a queue's state, for jobs that hang: a copy of its struct, the requests that await a doorbell, and the
//! last completions. A snapshot may be taken while kernels run; its parts are then of different moments.
//!
//! A snapshot only reads. An adapter's ring is write-only memory, so entries can be shown only if the ring is ordinary
//! memory: the software adapter's ring, or a staging ring.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda_sys::device::{EFA_GDA_SQ_RECORD, EFA_GDA_SQ_REQ_ID_64, efa_gda_queue};
use efa_gda_wire::{
    Completion, CompletionKind, CompletionStatus, DecodedRequest, Operation, RequestId, RequestIdWidth, Ring,
};

use super::words::{doorbell_index, is_in_use, reserved, unrung_entries};
use super::{MappedQueue, outstanding};
use crate::exposure::Exposure;
use crate::smaps;
use crate::status::{DeviceError, outcome};

/// Completions that are shown of those that were already read.
const LAST_COMPLETIONS: u32 = 8;
/// Entries and completions that `Display` lists; it counts the rest.
const SHOWN: usize = 16;

/// The state of a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// A copy of the struct that kernels work on.
    pub state: efa_gda_queue,
    /// Requests that have slots and await a doorbell, as far as [`Snapshot::doorbell_index`] shows. Some of the slots
    /// may not be written yet.
    pub pending: Contents<PendingRequest>,
    /// The last completions that were read, and those that await a poller.
    pub completions: Contents<CompletionEntry>,
    /// The words of the queue's completion counters; none if the queue does not use counters.
    pub counters: Option<Counts>,
}

/// Counted successes and errors, or why they cannot be read.
pub type Counts = Result<[u64; 2], String>;

/// Entries of a ring, or why the ring cannot be read.
#[derive(Clone, Debug)]
pub enum Contents<T> {
    /// The entries, oldest first.
    Entries(Vec<T>),
    /// The ring cannot be read, for this reason.
    Unreadable(String),
}

/// A request that awaits a doorbell.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingRequest {
    /// The request's number, modulo 2^32.
    pub counter: u32,
    /// Its slot.
    pub slot: u32,
    /// The entry in the slot, of 64 or 128 bytes; none if the slot holds an entry of an earlier lap.
    pub entry: Option<DecodedRequest>,
}

/// A slot of the completion queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompletionEntry {
    /// Its number in the ring.
    pub slot: u32,
    /// Whether a poller has read it, or the queue's counters have counted it.
    pub read: bool,
    /// The decoded completion; none if the bytes are not one.
    pub completion: Option<Completion>,
}

impl Snapshot {
    /// Returns the producer index of reserved slots, modulo 2^32. A group that owns the queue adds its entries when it
    /// closes its `Sender`.
    pub fn reserved(&self) -> u32 {
        reserved(&self.state)
    }

    /// Returns the producer index of the last doorbell before the last turn ended, modulo 2^32. The group whose turn it
    /// is, or that owns the queue ([`Snapshot::is_in_use`]), has perhaps rung since; it stores the index when its turn
    /// ends. The doorbell itself carries the low 16 bits.
    pub fn doorbell_index(&self) -> u32 {
        doorbell_index(self.state.turn.word)
    }

    /// Returns the number of completed requests, modulo 2^32.
    pub fn completed(&self) -> u32 {
        self.state.completion.completed
    }

    /// Returns the number of entries that were posted and whose doorbell was not rung. The queue must not be in use.
    pub fn unrung(&self) -> u32 {
        unrung_entries(&self.state)
    }

    /// Returns the number of requests in flight at [`Snapshot::doorbell_index`]. It is too low while a group that has
    /// rung has not ended its turn, and 0 if more completed than that index shows as rung.
    pub fn in_flight(&self) -> u32 {
        outstanding(self.doorbell_index(), self.completed())
    }

    /// Whether a group is posting, or owns the queue.
    pub fn is_in_use(&self) -> bool {
        is_in_use(&self.state)
    }

    /// Returns the error that poisoned the queue.
    pub fn poison(&self) -> Option<DeviceError> {
        outcome(self.state.error.poison).err()
    }

    /// Returns the first request that failed, and its status. If kernels ran during the copy, the copied id and status
    /// may be older than the flag that reports them; take another snapshot in this case.
    pub fn first_error(&self) -> Option<(RequestId, CompletionStatus)> {
        let error = &self.state.error;
        // The device library widened the completion's status byte to 32 bits.
        (error.reported == 1).then(|| {
            (RequestId::new(error.request_id), CompletionStatus::from_code(error.completion_status as u8))
        })
    }

    /// Builds a snapshot from a copy of the struct. Kernels may have overwritten all of it, so its geometry is checked,
    /// and otherwise only its cursors are used.
    fn of(
        state: efa_gda_queue,
        exposure: &Exposure,
        sends: Bytes,
        completions: Bytes,
        counters: Option<Counts>,
    ) -> Self {
        let intact = check_geometry(&state, exposure);
        let pending = match intact.clone().and(sends) {
            Ok(ring) => pending_requests(&state, exposure, &ring),
            Err(why) => Contents::Unreadable(why),
        };
        let completions = match intact.and(completions) {
            Ok(ring) => completion_entries(&state, exposure, &ring, counters.is_some()),
            Err(why) => Contents::Unreadable(why),
        };
        Self { state, pending, completions, counters }
    }
}

/// A ring's bytes, or why they cannot be read.
pub(crate) type Bytes = Result<RingBytes, String>;

/// A ring's bytes.
pub(crate) enum RingBytes {
    /// Memory of this process, which the adapter and device code may be writing.
    Mapped(*const u8),
    /// A copy of a GPU's memory.
    #[cfg(feature = "cuda")]
    Copied(Vec<u8>),
}

impl RingBytes {
    /// Refers to a ring of this process, if the flags of its mapping allow the CPU to read it.
    fn mapped(start: *const u8, length: usize) -> Bytes {
        match smaps::mapping_of(start as usize..start as usize + length) {
            Ok(mapping) if mapping.readable && mapping.kind == smaps::MemoryKind::Ordinary => {
                Ok(Self::Mapped(start))
            }
            Ok(_) => Err("it is the adapter's memory, which is write-only".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads entry `slot` of `size` bytes, word by word.
    fn entry(&self, slot: u32, size: u32) -> Vec<u8> {
        let (at, size) = (slot as usize * size as usize, size as usize);
        match self {
            #[cfg(feature = "cuda")]
            Self::Copied(bytes) => bytes[at..at + size].to_vec(),
            Self::Mapped(start) => {
                let words = (at..at + size).step_by(size_of::<u64>()).map(|at| {
                    // SAFETY: callers ask for slots of the ring, which `mapped` found readable and the borrowed queue
                    // keeps mapped. Rings are aligned to words. Words are read atomically, because others write them.
                    unsafe { AtomicU64::from_ptr(start.add(at).cast_mut().cast()) }.load(Ordering::Relaxed)
                });
                words.flat_map(u64::to_ne_bytes).collect()
            }
        }
    }
}

/// Checks that the struct holds the queue's geometry, which is constant.
fn check_geometry(state: &efa_gda_queue, exposure: &Exposure) -> Result<(), String> {
    let Exposure { sq, cq, .. } = exposure;
    let wide = sq.request_ids == RequestIdWidth::Bits64;
    let copied = (state.sq.num_entries, state.sq.entry_size, state.cq.num_entries, state.cq.entry_size);
    let expected = (sq.num_entries, sq.entry_size.bytes() as u32, cq.num_entries, cq.entry_size);
    if copied == expected && (state.sq.flags & EFA_GDA_SQ_REQ_ID_64 != 0) == wide {
        return Ok(());
    }
    Err("the struct is damaged: its geometry is not the queue's, so something overwrote it".into())
}

fn pending_requests(
    state: &efa_gda_queue,
    exposure: &Exposure,
    sends: &RingBytes,
) -> Contents<PendingRequest> {
    let (sq, ids) = (&exposure.sq, exposure.sq.request_ids);
    let entry_size = sq.entry_size.bytes() as u32;
    let Ok(ring) = Ring::new(sq.num_entries) else {
        return Contents::Unreadable("the number of its entries is not a power of two".into());
    };
    let (doorbell_index, reserved) = (doorbell_index(state.turn.word), reserved(state));
    // Calls that wait for free slots may have reserved more slots than the ring has.
    let count = reserved.wrapping_sub(doorbell_index).min(sq.num_entries);
    let one = |index| {
        let counter = doorbell_index.wrapping_add(index);
        let slot = ring.slot(counter);
        let entry = DecodedRequest::decode(&sends.entry(slot, entry_size), ids).ok();
        // Request ids count entries, so an entry of an earlier lap has another id.
        let entry = entry
            .filter(|entry| entry.phase == ring.phase(counter) && entry.id.get() as u16 == counter as u16);
        PendingRequest { counter, slot, entry }
    };
    Contents::Entries((0..count).map(one).collect())
}

fn completion_entries(
    state: &efa_gda_queue,
    exposure: &Exposure,
    completions: &RingBytes,
    counted: bool,
) -> Contents<CompletionEntry> {
    let (cq, ids) = (&exposure.cq, exposure.sq.request_ids);
    let Ok(ring) = Ring::new(cq.num_entries) else {
        return Contents::Unreadable("the number of its entries is not a power of two".into());
    };
    // With counters, successful completions are not read, and each is at the position of the request's number.
    let consumed = if counted { state.completion.completed } else { state.completion.consumed };
    let before = LAST_COMPLETIONS.min(cq.num_entries);
    let mut entries = Vec::new();
    for index in 0..before + cq.num_entries {
        let counter = consumed.wrapping_sub(before).wrapping_add(index);
        let slot = ring.slot(counter);
        let bytes = completions.entry(slot, cq.entry_size);
        // A queue on its first lap has no earlier completions.
        let present = Completion::phase(bytes[Completion::FLAGS_OFFSET]) != ring.phase(counter);
        let completion = Completion::decode(&bytes, ids).ok();
        match index < before {
            true if present && completion.is_some() => {
                entries.push(CompletionEntry { slot, read: true, completion })
            }
            true => {}
            false if present => entries.push(CompletionEntry { slot, read: false, completion }),
            false => break,
        }
    }
    Contents::Entries(entries)
}

impl MappedQueue {
    /// Takes a snapshot of what the host's CPU can read of the queue.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_with(self.state(), None, None)
    }

    /// Takes a snapshot from a copy of the struct that a GPU works on, with copies of the completions and counters if
    /// they are in its memory.
    pub(crate) fn snapshot_with(
        &self,
        state: efa_gda_queue,
        completions: Option<Bytes>,
        counters: Option<Counts>,
    ) -> Snapshot {
        let (sq, cq) = (self.exposure().sq, self.exposure().cq);
        // In mode `staged`, the staging ring holds the entries.
        let buffer = self.registration.as_ref().map_or(sq.buffer, |registration| registration.buffer());
        let sends = RingBytes::mapped(buffer.as_ptr(), sq.bytes());
        let completions = completions.unwrap_or_else(|| match self.backing.completions_on() {
            Some(_) => Err("they are in a GPU's memory".into()),
            None => RingBytes::mapped(cq.buffer.as_ptr(), cq.bytes()),
        });
        let counters = self.counters.as_ref().map(|used| {
            counters.unwrap_or_else(|| used.read_on_host().ok_or_else(|| "they are in a GPU's memory".into()))
        });
        Snapshot::of(state, self.exposure(), sends, completions, counters)
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, .. } = self;
        let (sq, completion) = (&state.sq, &state.completion);
        let rung_by = if sq.flags & EFA_GDA_SQ_RECORD == 0 { "" } else { ", rung by the host" };
        writeln!(
            f,
            "queue pair {}: {} entries of {} bytes, batch {}{rung_by}",
            state.qpn, sq.num_entries, sq.entry_size, sq.max_batch,
        )?;
        writeln!(
            f,
            "requests: {} reserved, {} rung (doorbell {}), {} completed, {} in flight",
            self.reserved(),
            self.doorbell_index(),
            self.doorbell_index() & 0xffff,
            self.completed(),
            self.in_flight()
        )?;
        let turn = if self.is_in_use() { "of a group that posts, and may have rung since" } else { "free" };
        let poller = if completion.lock != 0 { "a thread polls" } else { "no thread polls" };
        writeln!(f, "turn: {turn}; completions: {} read, {poller}", completion.consumed)?;
        match &self.counters {
            Some(Ok([successes, errors])) => writeln!(f, "counters: successes {successes}, errors {errors}")?,
            Some(Err(why)) => writeln!(f, "counters: not readable: {why}")?,
            None => {}
        }
        if state.rq.num_entries != 0 {
            let receive = &state.receive;
            writeln!(
                f,
                "receives: {} posted, {} rung, {} completed, {} put into the inbox, {} taken, {} lost",
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

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, title: &str, contents: &Contents<T>) -> fmt::Result {
    match contents {
        Contents::Unreadable(why) => writeln!(f, "{title}: not readable: {why}"),
        Contents::Entries(all) if all.is_empty() => writeln!(f, "{title}: none"),
        Contents::Entries(all) => {
            writeln!(f, "{title}: {}", all.len())?;
            all.iter().take(SHOWN).try_for_each(|one| writeln!(f, "  {one}"))?;
            match all.len().saturating_sub(SHOWN) {
                0 => Ok(()),
                more => writeln!(f, "  and {more} more"),
            }
        }
    }
}

impl fmt::Display for PendingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} (request {}): ", self.slot, self.counter)?;
        let Some(entry) = &self.entry else { return f.write_str("not written yet") };
        let Some(request) = &entry.request else {
            return write!(f, "not a request: {}", entry.broken);
        };
        let bytes = request.operation.length();
        let peer = request.peer;
        write!(f, "{} of length {bytes} to queue pair {}", request.operation.code(), peer.queue_pair)?;
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

impl fmt::Display for CompletionEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.read { "read" } else { "not read" };
        write!(f, "slot {} ({how}): ", self.slot)?;
        let Some(completion) = &self.completion else { return f.write_str("not a completion") };
        let side = match completion.kind {
            CompletionKind::Send => "request",
            CompletionKind::Receive(_) => "receive",
        };
        write!(f, "{side} {}: {}", completion.id, completion.status)
    }
}
