//! The parts of a queue that kernels access, as a GPU accesses them.

use std::ops::Range;

use super::memory::require_same_gpu;
use crate::doorbell::{DoorbellProxy, Registration, Ring, Service};
use crate::gpu::error::REGISTER;
use crate::gpu::{Gpu, HostRange};
use crate::queue::MappedQueue;
use crate::smaps::MemoryKind;
use crate::{Error, Result};

const SEND_QUEUE: &str = "send queue";
const DOORBELL: &str = "doorbell";
const COMPLETION_DOORBELL: &str = "completion doorbell";
/// The parts that kernels only read.
const COMPLETION_QUEUE: &str = "completion queue";
const COUNTER: &str = "completion counter";
/// The parts that kernels post receives with.
const RECEIVE_QUEUE: &str = "receive queue";
const RECEIVE_DOORBELL: &str = "receive doorbell";

/// One part of a queue, as a GPU accesses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedPart {
    /// `send queue`, `doorbell`, …
    pub part: &'static str,
    /// The kind of its pages.
    pub kind: MemoryKind,
    /// `registered as …` with the flags in words, or how the GPU accesses pages that are not registered.
    pub how: String,
}

impl MappedPart {
    fn of(part: &'static str, range: &HostRange) -> Self {
        Self { part, kind: range.mapping().kind, how: range.how() }
    }
}

/// The adapter's memory, registered with CUDA.
#[derive(Debug)]
pub(super) struct MappedParts {
    pub(super) sq: HostRange,
    pub(super) sq_doorbell: HostRange,
    /// The completion queue, or its copy if completions are relayed. None if the completion queue is in the GPU's
    /// memory, or if the GPU cannot map it and the queue uses counters.
    pub(super) cq: Option<HostRange>,
    /// The word that takes the consumer index: the adapter's, or the relay's.
    pub(super) cq_doorbell: Option<HostRange>,
    /// Owns the copy, so it is dropped after `cq` and `cq_doorbell`.
    pub(super) relay: Option<Relayed>,
    /// From the word of successes to that of errors. None if they are in the GPU's memory, or there are none.
    pub(super) counters: Option<HostRange>,
    /// Receive queue and doorbell, or why the GPU cannot access them. None if the queue takes no receives.
    pub(super) receives: Option<Result<(HostRange, HostRange), String>>,
}

/// A doorbell proxy that relays completions to a GPU that cannot map the completion queue.
#[derive(Debug)]
pub(super) struct Relayed {
    pub(super) relay: Registration,
    /// Why the GPU cannot map the completion queue.
    pub(super) why: String,
}

impl MappedParts {
    /// Registers the parts of `queue`, in its doorbell mode. If CUDA refuses the completion queue, `proxy` relays the
    /// completions.
    pub(super) fn map(queue: &MappedQueue, gpu: &Gpu, proxy: Option<&DoorbellProxy>) -> Result<Self> {
        require_same_gpu(gpu, "the completion queue", queue.backing.completions_on())?;
        require_same_gpu(gpu, "the completion counter", queue.counters_on())?;
        let reach = |range: Range<usize>| {
            // SAFETY: the provider keeps rings and doorbells mapped while the endpoint and the completion queue are
            // open, a `Registration` its record and staging ring, and a counter its words. `GpuQueue` drops its parts
            // before the `MappedQueue`, which owns all of these.
            unsafe { gpu.reach(range) }
        };
        // SAFETY: as above.
        let reach_to_read = |range: Range<usize>| unsafe { gpu.reach_to_read(range) };
        let addresses = PartAddresses::of(queue);
        let (sq, sq_doorbell) = (reach(addresses.sq)?, reach(addresses.sq_doorbell)?);
        let on_host = addresses.cq.is_some();
        let mut relay = None;
        let refused = |error: &Error| error.operation() == Some(REGISTER);
        let cq = match (addresses.cq.map(reach_to_read).transpose(), proxy) {
            // The counters suffice until an error is counted; then every wait ends at its bound.
            (Err(error), _) if refused(&error) && queue.counters.is_some() => {
                tracing::warn!(%error, "the GPU uses counters alone, and cannot read the status of an error");
                None
            }
            (Err(error), Some(proxy)) if refused(&error) => {
                let why = error.to_string();
                tracing::info!(%why, "the doorbell proxy relays completions to the GPU");
                let relayed = Relayed { relay: start_relay(queue, proxy)?, why };
                let (start, cq) = (relayed.relay.buffer().as_ptr() as usize, &queue.exposure().cq);
                relay = Some(relayed);
                Some(reach_to_read(ring(start, cq.num_entries, cq.entry_size))?)
            }
            (Err(error), None) if refused(&error) => {
                return Err(error.within(
                    "the GPU cannot read the completion queue; map the queue with GpuQueue::with_doorbell, whose doorbell \
                     proxy then relays completions, or use completion counters (MappedQueue::with_counters)",
                ));
            }
            (reached, _) => reached?,
        };
        // A poller rings it after it read completions, so a GPU that cannot map the completion queue does not need it.
        let mut cq_doorbell = addresses.cq_doorbell.filter(|_| cq.is_some() || !on_host);
        if let Some(Relayed { relay, .. }) = &relay {
            cq_doorbell = cq_doorbell.map(|_| word(relay.record().as_ptr() as usize));
        }
        Ok(Self {
            sq,
            sq_doorbell,
            cq,
            cq_doorbell: cq_doorbell.map(reach).transpose()?,
            relay,
            counters: addresses.counters.map(reach_to_read).transpose()?,
            receives: addresses.receives.map(|(ring, doorbell)| {
                let both = reach(ring).and_then(|ring| Ok((ring, reach(doorbell)?)));
                // Sends work without them.
                both.map_err(|error| error.to_string())
            }),
        })
    }

    /// Returns how each part was registered.
    pub(super) fn registered(&self) -> Vec<MappedPart> {
        let receives = self.receives.as_ref().and_then(|both| both.as_ref().ok());
        let all = [
            (SEND_QUEUE, Some(&self.sq)),
            (DOORBELL, Some(&self.sq_doorbell)),
            (COMPLETION_QUEUE, self.cq.as_ref()),
            (COMPLETION_DOORBELL, self.cq_doorbell.as_ref()),
            (COUNTER, self.counters.as_ref()),
            (RECEIVE_QUEUE, receives.map(|(ring, _)| ring)),
            (RECEIVE_DOORBELL, receives.map(|(_, doorbell)| doorbell)),
        ];
        let relayed = |part| self.relay.is_some() && [COMPLETION_QUEUE, COMPLETION_DOORBELL].contains(&part);
        let described = |(part, range): (_, Option<_>)| {
            let mapped = MappedPart::of(part, range?);
            let how = if relayed(part) { format!("relayed; the copy is {}", mapped.how) } else { mapped.how };
            Some(MappedPart { how, ..mapped })
        };
        all.into_iter().filter_map(described).collect()
    }
}

/// Makes `proxy` relay the completions that the host has not read.
fn start_relay(queue: &MappedQueue, proxy: &DoorbellProxy) -> Result<Registration> {
    let cq = &queue.exposure().cq;
    let ring = Ring {
        buffer: cq.buffer,
        doorbell: cq.doorbell,
        entry_size: cq.entry_size,
        num_entries: cq.num_entries,
        service: Service::Relay,
    };
    // SAFETY: the provider keeps ring and doorbell mapped while the completion queue is open. `GpuQueue` drops its
    // parts, which own the relay, before the `MappedQueue`, and after its kernels ended. Until then neither the host
    // nor the GPU rings the completion doorbell: the GPU's struct names the relay's word.
    unsafe { proxy.register(ring, queue.state().completion.consumed) }
}

/// Registers each part of `queue` alone, and unregisters it again.
pub(super) fn try_each(queue: &MappedQueue, gpu: &Gpu) -> Vec<(&'static str, Result<MappedPart>)> {
    let addresses = PartAddresses::of(queue);
    let mut parts = vec![(SEND_QUEUE, addresses.sq), (DOORBELL, addresses.sq_doorbell)];
    parts.extend(addresses.cq.map(|range| (COMPLETION_QUEUE, range)));
    parts.extend(addresses.cq_doorbell.map(|range| (COMPLETION_DOORBELL, range)));
    parts.extend(addresses.counters.map(|range| (COUNTER, range)));
    if let Some((ring, doorbell)) = addresses.receives {
        parts.extend([(RECEIVE_QUEUE, ring), (RECEIVE_DOORBELL, doorbell)]);
    }
    let attempt = |(part, range)| {
        // SAFETY: the endpoint and completion queue that `queue` owns keep it mapped, and the range is dropped before
        // this function returns.
        let reached = unsafe {
            match part {
                COMPLETION_QUEUE | COUNTER => gpu.reach_to_read(range),
                _ => gpu.reach(range),
            }
        };
        (part, reached.map(|range| MappedPart::of(part, &range)))
    };
    parts.into_iter().map(attempt).collect()
}

/// Addresses in this process of the parts that kernels access: the adapter's memory, or memory of the doorbell proxy.
struct PartAddresses {
    sq: Range<usize>,
    sq_doorbell: Range<usize>,
    /// None if it is in the GPU's memory.
    cq: Option<Range<usize>>,
    cq_doorbell: Option<Range<usize>>,
    /// None if they are in the GPU's memory, or there are none.
    counters: Option<Range<usize>>,
    /// Ring and doorbell; None if the queue takes no receives.
    receives: Option<(Range<usize>, Range<usize>)>,
}

impl PartAddresses {
    fn of(queue: &MappedQueue) -> Self {
        let (sq, rq, cq) = (queue.state().sq, queue.state().rq, &queue.exposure().cq);
        let posted = || (ring(rq.buffer as usize, rq.num_entries, rq.entry_size), word(rq.doorbell as usize));
        let completions = || ring(cq.buffer.as_ptr() as usize, cq.num_entries, cq.entry_size);
        Self {
            sq: ring(sq.buffer as usize, sq.num_entries, sq.entry_size),
            sq_doorbell: word(sq.doorbell as usize),
            cq: queue.backing.completions_on().is_none().then(completions),
            cq_doorbell: cq.doorbell.map(|doorbell| word(doorbell.as_ptr() as usize)),
            counters: queue.counters.as_ref().and_then(|counters| counters.on_host()),
            receives: (rq.num_entries != 0).then(posted),
        }
    }
}

fn ring(start: usize, entries: u32, size: u32) -> Range<usize> {
    start..start + entries as usize * size as usize
}

fn word(start: usize) -> Range<usize> {
    start..start + size_of::<u32>()
}
