//! What the strict checker found: the rule, where, and the evidence.

use std::fmt;

use efa_gda_wire::{DecodedRequest, QueuePairNumber, Rule};

use super::attr::CompletionQueueNumber;

/// A ring of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// A send queue.
    Send(QueuePairNumber),
    /// A receive queue.
    Receive(QueuePairNumber),
    /// A completion queue.
    Completion(CompletionQueueNumber),
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(number) => write!(f, "send queue of QP {number}"),
            Self::Receive(number) => write!(f, "receive queue of QP {number}"),
            Self::Completion(number) => write!(f, "completion queue {}", number.get()),
        }
    }
}

/// A rule that was broken, with what was seen. Doorbell values and counters are given as the adapter
/// counts them, not modulo 2^16, unless a text says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrictRule {
    /// A field of the entry breaks a rule of the descriptor format.
    Descriptor(Rule),
    /// The entry's phase bit is not the one of its lap.
    Phase {
        /// The bit seen.
        seen: bool,
        /// The bit of this lap.
        expected: bool,
    },
    /// More than `max_batch` entries were written past the last doorbell.
    BatchExceeded {
        /// Entries written past the doorbell, as far as seen.
        written: u32,
        /// The most that may be.
        max_batch: u32,
    },
    /// The doorbell moved backwards.
    DoorbellBackwards {
        /// The doorbell seen before, low 16 bits.
        from: u16,
        /// The doorbell now, low 16 bits.
        to: u16,
    },
    /// The doorbell moved past the ring: more entries would be in flight than it has.
    DoorbellPastRing {
        /// Entries that would be in flight.
        in_flight: u64,
        /// Entries of the ring.
        entries: u32,
    },
    /// The doorbell covers an entry of which some bytes were never written.
    HalfWritten {
        /// Offset of the first 8 bytes that were not written.
        offset: u8,
    },
    /// The entry changed after its doorbell, before it completed.
    EntryChanged,
    /// A receive descriptor's reserved bits are set.
    ReceiveReservedBits,
    /// Receive descriptors do not group into receives: `first` and `last` do not match, or one
    /// receive has more of them than the adapter takes.
    ReceiveGrouping,
    /// A completion found its queue full.
    CompletionQueueOverrun {
        /// Completions that are there and not consumed.
        unread: u64,
        /// Entries of the queue.
        entries: u32,
    },
    /// The consumer index ran ahead of what was completed.
    ConsumerAhead {
        /// The consumer's counter.
        consumer: u64,
        /// Completions written.
        producer: u64,
    },
}

impl StrictRule {
    /// A short name that does not change between versions.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Descriptor(Rule::CompletionRequested) => "comp-req",
            Self::Descriptor(Rule::LocalKeyWidth) => "lkey-width",
            Self::Descriptor(_) => "descriptor",
            Self::Phase { .. } => "phase",
            Self::BatchExceeded { .. } => "max-batch",
            Self::DoorbellBackwards { .. } => "doorbell-backwards",
            Self::DoorbellPastRing { .. } => "doorbell-past-ring",
            Self::HalfWritten { .. } => "half-written",
            Self::EntryChanged => "entry-changed",
            Self::ReceiveReservedBits => "receive-reserved",
            Self::ReceiveGrouping => "receive-grouping",
            Self::CompletionQueueOverrun { .. } => "cq-overrun",
            Self::ConsumerAhead { .. } => "consumer-ahead",
        }
    }
}

impl fmt::Display for StrictRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor(rule) => rule.fmt(f),
            Self::Phase { seen, expected } => write!(
                f,
                "the phase bit (ctrl2 bit 0) must be {} on this lap of the ring and is {}",
                u8::from(*expected),
                u8::from(*seen)
            ),
            Self::BatchExceeded { written, max_batch } => write!(
                f,
                "at most {max_batch} entries (max_batch) may be written past the last doorbell; at least \
                 {written} were"
            ),
            Self::DoorbellBackwards { from, to } => {
                write!(f, "the doorbell must only move forward (modulo 2^16); it went from {from} to {to}")
            }
            Self::DoorbellPastRing { in_flight, entries } => write!(
                f,
                "the doorbell must not pass the ring of {entries} entries; with this one {in_flight} would \
                 be in flight"
            ),
            Self::HalfWritten { offset } => write!(
                f,
                "an entry must be written whole before its doorbell; the 8 bytes at offset {offset} were \
                 never written"
            ),
            Self::EntryChanged => {
                f.write_str("an entry must not change between its doorbell and its completion")
            }
            Self::ReceiveReservedBits => f.write_str("lkey_ctrl bits 29:24 must be zero"),
            Self::ReceiveGrouping => {
                f.write_str("receive descriptors must group into receives, the first and the last marked")
            }
            Self::CompletionQueueOverrun { unread, entries } => write!(
                f,
                "completions must be consumed in time: {unread} are unread in a queue of {entries}, and \
                 another came"
            ),
            Self::ConsumerAhead { consumer, producer } => write!(
                f,
                "the consumer index must not pass the completions: it says {consumer} of {producer}"
            ),
        }
    }
}

/// A rule that was broken, where, and the bytes that broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The ring.
    pub queue: Queue,
    /// The slot, where the rule is about one.
    pub slot: Option<u32>,
    /// The count of the entry (or of the doorbell), from 0, never reset.
    pub counter: u64,
    /// What the entry says, where there is a send-queue entry.
    pub entry: Option<DecodedRequest>,
    /// The entry's bytes, where there is one.
    pub raw: Vec<u8>,
    /// The rule, with the values seen and expected.
    pub rule: StrictRule,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}, count {}", self.rule.name(), self.rule, self.queue, self.counter)?;
        if let Some(slot) = self.slot {
            write!(f, ", slot {slot}")?;
        }
        if !self.raw.is_empty() {
            f.write_str(", bytes ")?;
            for byte in &self.raw {
                write!(f, "{byte:02x}")?;
            }
        }
        f.write_str("]")
    }
}

/// Something that may go wrong, and is no broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A completion queue is shallower than the rings that complete into it; where nobody tells the
    /// consumer index, an overrun cannot be seen.
    ShallowCompletionQueue {
        /// The queue.
        queue: CompletionQueueNumber,
        /// Its entries.
        entries: u32,
        /// Entries of the rings bound to it.
        rings: u64,
    },
    /// Memory given for a completion queue has phase bits set, so that stale bytes look like
    /// completions: zero it first.
    CompletionMemoryNotZeroed {
        /// The queue.
        queue: CompletionQueueNumber,
        /// The first slot that looks completed.
        slot: u32,
    },
    /// A [`super::Memory`] panicked. The request completes as an internal error; the queue pair is in
    /// the error state.
    MemoryPanicked {
        /// The queue pair whose request it was.
        queue_pair: QueuePairNumber,
    },
    /// Registered memory cannot be reached any more. Requests that touch it complete with the status
    /// of a bad key.
    MemoryUnreachable(
        /// Where, and why.
        String,
    ),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShallowCompletionQueue { queue, entries, rings } => write!(
                f,
                "completion queue {} has {entries} entries for rings of {rings}: it can overrun",
                queue.get()
            ),
            Self::CompletionMemoryNotZeroed { queue, slot } => write!(
                f,
                "the memory given for completion queue {} is not zeroed: slot {slot} looks completed",
                queue.get()
            ),
            Self::MemoryPanicked { queue_pair } => write!(
                f,
                "access to registered memory panicked for a request of QP {queue_pair}, which is in the error \
                 state now"
            ),
            Self::MemoryUnreachable(why) => f.write_str(why),
        }
    }
}
