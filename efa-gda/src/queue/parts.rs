//! The parts of a queue that kernels post through, as a GPU reaches them.

use std::ops::Range;

use super::MappedQueue;
use super::backing::Backing;
use super::gpu_memory::on_same;
use crate::gpu::{self, Gpu, HostRange};

/// The parts that kernels only read.
const COMPLETION_QUEUE: &str = "completion queue";
const COUNTER: &str = "completion counter";
/// Those that they post receives through.
const RECEIVE_QUEUE: &str = "receive queue";
const RECEIVE_DOORBELL: &str = "receive doorbell";

/// One part of a queue, as a GPU reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// `send queue`, `doorbell`, …
    pub part: &'static str,
    /// What its pages are.
    pub kind: gpu::smaps::MemoryKind,
    /// `registered as …` with the flags in words, or how else the GPU reaches them.
    pub how: String,
}

impl Registered {
    fn of(part: &'static str, range: &HostRange) -> Self {
        Self { part, kind: range.mapping().kind, how: range.how() }
    }
}

/// The adapter's memory as the GPU reaches it.
#[derive(Debug)]
pub(super) struct Ranges {
    pub(super) sq: HostRange,
    pub(super) sq_doorbell: HostRange,
    /// None where it lies in the GPU's own memory, or does not map beside counters.
    pub(super) cq: Option<HostRange>,
    pub(super) cq_doorbell: Option<HostRange>,
    /// From the word of successes to that of errors; likewise.
    pub(super) counters: Option<HostRange>,
    /// None where the queue takes no receives, or why the GPU does not reach what it posts them through.
    pub(super) receives: Option<Result<(HostRange, HostRange), String>>,
}

impl Ranges {
    pub(super) fn reach(queue: &MappedQueue, gpu: &Gpu) -> gpu::Result<Self> {
        on_same(gpu, "the completion queue", queue.backing.completions_on())?;
        on_same(gpu, "the completion counter", queue.counters_on())?;
        let reach = |range: Range<usize>| {
            // SAFETY: the provider keeps rings and doorbells mapped while the endpoint and the
            // completion queue are open, a `Registration` its record and staging ring, a counter its words;
            // `GpuQueue` drops its ranges before the `MappedQueue`, which owns all of them.
            unsafe { gpu.reach(range) }
        };
        // SAFETY: as above.
        let reach_to_read = |range: Range<usize>| unsafe { gpu.reach_to_read(range) };
        let places = Places::of(queue);
        let (sq, sq_doorbell) = (reach(places.sq)?, reach(places.sq_doorbell)?);
        let on_host = places.cq.is_some();
        let cq = match places.cq.map(reach_to_read).transpose() {
            // Counters say what completed; an error that they count then ends waits by their bound.
            Err(error @ gpu::Error::Register { .. }) if queue.counters.is_some() => {
                tracing::warn!(%error, "the GPU goes by counters alone, and no status of an error reaches it");
                None
            }
            reached => reached?,
        };
        // DoorbellMode after completions were read, which nobody does where the queue was refused.
        let cq_doorbell = places.cq_doorbell.filter(|_| cq.is_some() || !on_host);
        Ok(Self {
            sq,
            sq_doorbell,
            cq,
            cq_doorbell: cq_doorbell.map(reach).transpose()?,
            counters: places.counters.map(reach_to_read).transpose()?,
            receives: places.receives.map(|(ring, doorbell)| {
                let both = reach(ring).and_then(|ring| Ok((ring, reach(doorbell)?)));
                // What is sent needs none of it.
                both.map_err(|error| error.to_string())
            }),
        })
    }

    /// How each was reached.
    pub(super) fn registered(&self) -> Vec<Registered> {
        let receives = self.receives.as_ref().and_then(|both| both.as_ref().ok());
        let all = [
            ("send queue", Some(&self.sq)),
            ("doorbell", Some(&self.sq_doorbell)),
            (COMPLETION_QUEUE, self.cq.as_ref()),
            ("completion doorbell", self.cq_doorbell.as_ref()),
            (COUNTER, self.counters.as_ref()),
            (RECEIVE_QUEUE, receives.map(|(ring, _)| ring)),
            (RECEIVE_DOORBELL, receives.map(|(_, doorbell)| doorbell)),
        ];
        all.into_iter().filter_map(|(part, range)| Some(Registered::of(part, range?))).collect()
    }
}

/// Reaches each part of `queue` alone, and lets go of it again.
pub(super) fn try_each(queue: &MappedQueue, gpu: &Gpu) -> Vec<(&'static str, gpu::Result<Registered>)> {
    let places = Places::of(queue);
    let mut parts = vec![("send queue", places.sq), ("doorbell", places.sq_doorbell)];
    parts.extend(places.cq.map(|range| (COMPLETION_QUEUE, range)));
    parts.extend(places.cq_doorbell.map(|range| ("completion doorbell", range)));
    parts.extend(places.counters.map(|range| (COUNTER, range)));
    if let Some((ring, doorbell)) = places.receives {
        parts.extend([(RECEIVE_QUEUE, ring), (RECEIVE_DOORBELL, doorbell)]);
    }
    let attempt = |(part, range)| {
        // SAFETY: the endpoint and completion queue that `queue` owns keep it mapped, and the range is
        // dropped before this returns.
        let reached = unsafe {
            match part {
                COMPLETION_QUEUE | COUNTER => gpu.reach_to_read(range),
                _ => gpu.reach(range),
            }
        };
        (part, reached.map(|range| Registered::of(part, &range)))
    };
    parts.into_iter().map(attempt).collect()
}

/// Where in this process the parts lie that kernels post through: the adapter's memory, or what the
/// proxy reads.
struct Places {
    sq: Range<usize>,
    sq_doorbell: Range<usize>,
    /// None where it lies in the GPU's own memory.
    cq: Option<Range<usize>>,
    cq_doorbell: Option<Range<usize>>,
    /// None where they lie in the GPU's own memory, or there are none.
    counters: Option<Range<usize>>,
    /// Ring and doorbell; None where the queue takes no receives.
    receives: Option<(Range<usize>, Range<usize>)>,
}

impl Places {
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
