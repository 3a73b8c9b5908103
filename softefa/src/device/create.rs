//! Creating queues: checks the attributes against the adapter's limits, rounds depths as the driver does, and
//! allocates rings and doorbells.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use efa_gda_wire::{
    COMPLETION_BYTES, Completion, DEEPEST_WORK_QUEUE, EntrySize, QueuePairNumber, RX_DESCRIPTOR_BYTES,
    RequestIdWidth, Ring,
};

use super::attr::{
    CompletionBacking, CompletionQueue, CompletionQueueAttr, CompletionQueueNumber, MAX_FIRST_COUNTER,
    QueuePair, QueuePairAttr, ReceiveQueue, SendQueue,
};
use super::completion::{CompletionRing, Storage};
use super::config::Limits;
use super::counter::{AttachedCounters, Counted};
use super::doorbells::Doorbells;
use super::engine::next_random;
use super::error::DeviceError;
use super::events::Events;
use super::pattern::Unwritten;
use super::queue_pair::QueuePairCore;
use super::receive_queue::{MAX_SEGMENTS, ReceiveRing, ReceiveState};
use super::ring_memory::{Doorbell, RingMemory};
use super::send_queue::{SendRing, SendState};
use super::tables::Port;
use super::violation::Warning;

/// Refuses limits that the device core cannot implement.
pub(crate) fn check_limits(limits: &Limits) -> Result<(), DeviceError> {
    let deepest = u64::from(DEEPEST_WORK_QUEUE);
    in_range("max_sq_depth", limits.max_sq_depth.into(), 1, deepest)?;
    in_range("min_sq_depth", limits.min_sq_depth.into(), 0, limits.max_sq_depth.into())?;
    in_range("max_rq_depth", limits.max_rq_depth.into(), 1, deepest)?;
    in_range("max_cq_depth", limits.max_cq_depth.into(), 1, 1 << 16)?;
    in_range("llq_bytes", limits.llq_bytes.into(), EntrySize::B128.bytes() as u64, u32::MAX.into())?;
    in_range("max_receive_segments", limits.max_receive_segments.into(), 1, MAX_SEGMENTS as u64)?;
    in_range("max_mr", limits.max_mr.into(), 0, u16::MAX.into())
}

fn in_range(attribute: &'static str, value: u64, min: u64, max: u64) -> Result<(), DeviceError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(DeviceError::OutOfRange { attribute, value, min, max })
    }
}

/// A ring of at least `depth` entries, rounded up to a power of two, and at most `max`.
fn ring(attribute: &'static str, depth: u32, max: u32) -> Result<Ring, DeviceError> {
    in_range(attribute, depth.into(), 1, max.into())?;
    // Checked again, because `max` need not be a power of two.
    let entries = depth.next_power_of_two();
    in_range(attribute, entries.into(), 1, max.into())?;
    let (value, max) = (depth.into(), max.into());
    Ring::new(entries).map_err(|_| DeviceError::OutOfRange { attribute, value, min: 1, max })
}

/// The client's memory for a ring of `bytes`, or allocated memory if the client has none.
fn ring_memory(
    queue: &'static str,
    external: Option<Arc<RingMemory>>,
    bytes: usize,
) -> Result<Arc<RingMemory>, DeviceError> {
    match external {
        None => RingMemory::allocate(bytes),
        Some(memory) if memory.len() >= bytes => Ok(memory),
        Some(memory) => {
            let reason = format!("it has {} bytes and the ring needs {bytes}", memory.len());
            Err(DeviceError::RingMemory { queue, reason })
        }
    }
}

/// Creates a completion queue. `set_phase` is [`first_set_phase`] of its attributes.
pub(crate) fn completion_queue(
    port: &mut Port,
    attr: CompletionQueueAttr,
    set_phase: Option<u32>,
) -> Result<CompletionQueue, DeviceError> {
    let config = &port.shared.config;
    let ring = ring("completion-queue depth", attr.entries, config.limits.max_cq_depth)?;
    let external = !matches!(attr.backing, CompletionBacking::Allocate);
    if external && !config.capabilities.external_cq {
        return Err(DeviceError::Unsupported("completion queues in memory of the client"));
    }
    let bytes = ring.entries() as usize * COMPLETION_BYTES;
    let storage = match attr.backing {
        CompletionBacking::Allocate => Storage::Ring(RingMemory::allocate(bytes)?),
        CompletionBacking::External(memory) => {
            Storage::Ring(ring_memory("completion queue", Some(memory), bytes)?)
        }
        CompletionBacking::Indirect { memory, address } => Storage::Indirect { memory, address },
    };
    let limit = port.completions.limit();
    let doorbell = match attr.doorbell_at {
        None if attr.doorbell => Some(port.doorbells.allocate()?),
        external => external,
    };
    if let Some(doorbell) = &doorbell {
        doorbell.ring(0);
    }
    let memory = match &storage {
        Storage::Ring(memory) => Some(memory.clone()),
        Storage::Indirect { .. } => None,
    };
    let (shared, ring_doorbell) = (port.shared.clone(), doorbell.clone());
    let events = attr.events.zip(doorbell.clone());
    let created = port.completions.insert_with(|number, _| {
        let number = CompletionQueueNumber(number);
        let events = events.map(|(send, doorbell)| Events::new(send, doorbell, shared.clone()));
        Arc::new(CompletionRing::new(number, ring, storage, ring_doorbell, events, shared))
    });
    let Some(number) = created.map(CompletionQueueNumber) else {
        doorbell.iter().for_each(|doorbell| port.doorbells.release(doorbell));
        return Err(DeviceError::Exhausted { objects: "completion queues", limit });
    };
    if let Some(slot) = set_phase {
        port.shared.warn(Warning::CompletionMemoryNotZeroed { queue: number, slot });
    }
    let entry_size = COMPLETION_BYTES as u32;
    Ok(CompletionQueue { number, memory, entry_size, num_entries: ring.entries(), doorbell })
}

/// The first slot of a new completion queue in memory of the client whose phase bit is set, which the client would take
/// for a completion.
pub(crate) fn first_set_phase(attr: &CompletionQueueAttr) -> Option<u32> {
    let CompletionBacking::External(memory) = &attr.backing else { return None };
    let entries = attr.entries.checked_next_power_of_two()?.min((memory.len() / COMPLETION_BYTES) as u32);
    (0..entries).find(|slot| {
        let word = memory.load_word_acquire(*slot as usize * COMPLETION_BYTES);
        Completion::phase(word[Completion::FLAGS_OFFSET])
    })
}

pub(crate) fn queue_pair(port: &mut Port, attr: QueuePairAttr) -> Result<QueuePair, DeviceError> {
    let parts = Parts::new(port, &attr)?;
    let shared = port.shared.clone();
    let limit = port.queue_pairs.limit();
    let created = port.queue_pairs.insert_with(|number, _| {
        Arc::new(QueuePairCore {
            number: QueuePairNumber::new(number),
            transport: attr.transport,
            pd: attr.pd,
            queue_key: AtomicU32::new(attr.queue_key.get()),
            rnr_retry: AtomicU32::new(QueuePairCore::retry_number(attr.rnr_retry)),
            unsolicited_write_receive: attr.unsolicited_write_receive,
            send: parts.send,
            receive: parts.receive,
            send_cq: parts.send_cq,
            receive_cq: parts.receive_cq,
            counters: AttachedCounters::new(attr.counters),
            first_counter: attr.first_counter,
            shared,
            state: AtomicU8::new(QueuePairCore::state_number(attr.state)),
        })
    });
    let Some(core) = created.and_then(|number| port.queue_pairs.get(number)).cloned() else {
        parts.doorbells.iter().for_each(|doorbell| port.doorbells.release(doorbell));
        return Err(DeviceError::Exhausted { objects: "queue pairs", limit });
    };
    core.send.prepare(attr.first_counter);
    if let Some(receive) = &core.receive {
        receive.prepare(attr.first_counter);
    }
    core.send_cq.users.fetch_add(1, Ordering::Relaxed);
    core.receive_cq.users.fetch_add(1, Ordering::Relaxed);
    port.retain_domain(attr.pd);
    warn_if_shallow(port, &core.send_cq);
    if core.receive_cq.number != core.send_cq.number {
        warn_if_shallow(port, &core.receive_cq);
    }
    Ok(describe(&core))
}

/// The parts of a queue pair whose creation can fail.
struct Parts {
    send: SendRing,
    receive: Option<ReceiveRing>,
    send_cq: Arc<CompletionRing>,
    receive_cq: Arc<CompletionRing>,
    /// The doorbells that the adapter allocated.
    doorbells: Vec<Doorbell>,
}

impl Parts {
    fn new(port: &mut Port, attr: &QueuePairAttr) -> Result<Self, DeviceError> {
        let config = &port.shared.config;
        let (limits, capabilities) = (config.limits, config.capabilities);
        port.domains.get(attr.pd.0).ok_or(DeviceError::NoSuchDomain(attr.pd))?;
        let find = |number: CompletionQueueNumber| {
            let queue = port.completions.get(number.0).cloned();
            queue.ok_or(DeviceError::NoSuchCompletionQueue(number))
        };
        let (send_cq, receive_cq) = (find(attr.send_cq)?, find(attr.receive_cq)?);
        for (requested, supported, feature) in [
            (attr.entry_size == EntrySize::B128, capabilities.entries_128, "128-byte send-queue entries"),
            (attr.request_ids == RequestIdWidth::Bits64, capabilities.request_ids_64, "64-bit request ids"),
            (
                attr.unsolicited_write_receive,
                capabilities.unsolicited_write_receive,
                "RDMA writes with immediate that consume no receive",
            ),
        ] {
            if requested && !supported {
                return Err(DeviceError::Unsupported(feature));
            }
        }
        let counts_twice = |at: usize, counted: Counted| {
            attr.counters[..at].iter().any(|(other, _)| other.overlaps(counted))
        };
        if attr.counters.iter().enumerate().any(|(at, (counted, _))| counts_twice(at, *counted)) {
            return Err(DeviceError::Unsupported("two counters for one kind of completion of a queue pair"));
        }
        in_range("first counter", attr.first_counter, 0, MAX_FIRST_COUNTER)?;
        // All checks come before the doorbells are allocated, so that an invalid attribute leaves none
        // allocated.
        let send_ring = send_ring(&limits, attr)?;
        let send_bytes = send_ring.entries() as usize * attr.entry_size.bytes();
        let send_memory = ring_memory("send queue", attr.sq_memory.clone(), send_bytes)?;
        let receive_part = match attr.rq_depth {
            0 => None,
            depth => {
                let ring = ring("receive-queue depth", depth, limits.max_rq_depth)?;
                let bytes = ring.entries() as usize * RX_DESCRIPTOR_BYTES;
                Some((ring, ring_memory("receive queue", attr.rq_memory.clone(), bytes)?))
            }
        };
        let (send_doorbell, receive_doorbell, doorbells) =
            queue_doorbells(&mut port.doorbells, attr, receive_part.is_some())?;
        let mut seed = config.seed ^ u64::from(port.queue_pairs.live() as u32) << 32 ^ attr.first_counter;
        let send = SendRing {
            memory: send_memory,
            ring: send_ring,
            entry: attr.entry_size,
            max_batch: max_batch(&limits, attr.entry_size, send_ring),
            doorbell: send_doorbell,
            ids: attr.request_ids,
            unwritten: Unwritten::new(next_random(&mut seed)),
            state: Mutex::new(SendState::new(attr.first_counter)),
        };
        let receive = receive_part.zip(receive_doorbell).map(|((ring, memory), doorbell)| ReceiveRing {
            memory,
            ring,
            doorbell,
            unwritten: Unwritten::new(next_random(&mut seed)),
            max_segments: limits.max_receive_segments.into(),
            state: Mutex::new(ReceiveState::new(attr.first_counter)),
        });
        Ok(Self { send, receive, send_cq, receive_cq, doorbells })
    }
}

/// The doorbells of the send queue and, if the queue pair has one, of the receive queue: the client's, or
/// allocated ones. The list contains the allocated doorbells, which the caller must release if it creates no
/// queue pair. If an allocation fails, none stays allocated.
fn queue_doorbells(
    doorbells: &mut Doorbells,
    attr: &QueuePairAttr,
    receives: bool,
) -> Result<(Doorbell, Option<Doorbell>, Vec<Doorbell>), DeviceError> {
    let mut allocated = Vec::new();
    let mut doorbell = |external: &Option<Doorbell>| match external {
        Some(external) => Ok(external.clone()),
        None => doorbells.allocate().inspect(|new| allocated.push(new.clone())),
    };
    let send = doorbell(&attr.sq_doorbell)?;
    match receives.then(|| doorbell(&attr.rq_doorbell)).transpose() {
        Ok(receive) => Ok((send, receive, allocated)),
        Err(error) => {
            allocated.iter().for_each(|doorbell| doorbells.release(doorbell));
            Err(error)
        }
    }
}

fn send_ring(limits: &Limits, attr: &QueuePairAttr) -> Result<Ring, DeviceError> {
    let fits = limits.llq_bytes / attr.entry_size.bytes() as u32;
    // The driver's deepest queue is a power of two.
    let max = 1 << limits.max_sq_depth.min(fits).ilog2();
    in_range("send-queue depth", attr.sq_depth.into(), 1, max.into())?;
    ring("send-queue depth", attr.sq_depth.max(limits.min_sq_depth), max)
}

/// Computes `max_batch` from `max_tx_batch` as rdma-core does (providers/efa/verbs.c, `max_batch_wr`).
fn max_batch(limits: &Limits, entry: EntrySize, ring: Ring) -> u32 {
    let batch = match limits.max_tx_batch {
        0 => u16::MAX.into(),
        batch => u32::from(batch) * EntrySize::B64.bytes() as u32 / entry.bytes() as u32,
    };
    let max = if limits.min_sq_depth > 0 { ring.entries() - 1 } else { batch };
    batch.min(max).max(1)
}

/// Stores a warning if `queue` has fewer entries than the rings that complete into it, and no consumer index.
fn warn_if_shallow(port: &Port, queue: &CompletionRing) {
    let mut rings = 0;
    for (_, other) in port.queue_pairs.iter() {
        if other.send_cq.number == queue.number {
            rings += u64::from(other.send.ring.entries());
        }
        if let Some(receive) = other.receive.as_ref().filter(|_| other.receive_cq.number == queue.number) {
            rings += u64::from(receive.ring.entries());
        }
    }
    let entries = queue.ring.entries();
    if rings > entries.into() && !queue.has_consumer_index() {
        port.shared.warn(Warning::ShallowCompletionQueue { queue: queue.number, entries, rings });
    }
}

fn describe(core: &QueuePairCore) -> QueuePair {
    let send = &core.send;
    QueuePair {
        number: core.number,
        queue_key: core.queue_key(),
        sq: SendQueue {
            memory: send.memory.clone(),
            entry_size: send.entry,
            num_entries: send.ring.entries(),
            max_batch: send.max_batch,
            doorbell: send.doorbell.clone(),
        },
        rq: core.receive.as_ref().map(|receive| ReceiveQueue {
            memory: receive.memory.clone(),
            entry_size: RX_DESCRIPTOR_BYTES as u32,
            num_entries: receive.ring.entries(),
            max_batch: receive.ring.entries(),
            doorbell: receive.doorbell.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::attr::ProtectionDomain;
    use super::super::doorbells::PER_PAGE;
    use super::*;

    #[test]
    fn a_failed_receive_doorbell_frees_the_send_doorbell() {
        let mut doorbells = Doorbells::default();
        for _ in 1..PER_PAGE {
            doorbells.allocate().expect("the first page can be allocated");
        }
        doorbells.fail_new_pages();
        let attr = QueuePairAttr::new(ProtectionDomain(0), CompletionQueueNumber(0));
        let both = queue_doorbells(&mut doorbells, &attr, true).map(|_| ());
        assert!(matches!(both, Err(DeviceError::OutOfMemory(_))), "{both:?}");
        let send = queue_doorbells(&mut doorbells, &attr, false).map(|_| ());
        assert_eq!(send, Ok(()), "the page's last doorbell is free again");
    }
}
