//! Reports of the strict checker: the rule that was broken, the queue and slot, and the entry.

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

/// A rule that a client broke, with the values that broke it. Indexes are those of the adapter, not modulo
/// 2^16, unless the field says otherwise. The text of a rule names the header and field that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrictRule {
    /// A field of the entry breaks a rule of the descriptor format.
    Descriptor(Rule),
    /// The phase bit of the entry is not the one of its lap.
    Phase {
        /// The bit of the entry.
        seen: bool,
        /// The bit of this lap.
        expected: bool,
    },
    /// More than `max_batch` entries were written past the last doorbell.
    BatchExceeded {
        /// Entries written past the doorbell. At least this many; more may follow.
        written: u32,
        /// The limit of the queue.
        max_batch: u32,
    },
    /// The doorbell moved backwards.
    DoorbellBackwards {
        /// The previous doorbell, low 16 bits.
        from: u16,
        /// The doorbell now, low 16 bits.
        to: u16,
    },
    /// The doorbell moved past the ring: more entries would be in flight than the ring has.
    DoorbellPastRing {
        /// Entries that would be in flight.
        in_flight: u64,
        /// Entries of the ring.
        entries: u32,
    },
    /// The doorbell covers an entry that was not written completely on this lap.
    HalfWritten {
        /// Offset of the first 8 bytes that were not written.
        offset: u8,
    },
    /// The slot changed after its entry was fetched and before the client might write it again.
    EntryChanged,
    /// A receive descriptor's reserved bits are set.
    ReceiveReservedBits,
    /// Receive descriptors do not form receives: `first` and `last` do not match, one receive has more descriptors than
    /// the adapter supports, or a doorbell covers only some descriptors of a receive that is taken then.
    ReceiveGrouping,
    /// A completion arrived while its queue was full.
    CompletionQueueOverrun {
        /// Completions that were written and not consumed.
        unread: u64,
        /// Entries of the queue.
        entries: u32,
    },
    /// The consumer index moved backwards.
    ConsumerBackwards {
        /// The consumer index before.
        consumer: u64,
        /// By how many completions it moved back.
        back: u64,
    },
    /// The consumer index is ahead of the completions.
    ConsumerAhead {
        /// The consumer index.
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
            Self::ConsumerBackwards { .. } => "consumer-backwards",
            Self::ConsumerAhead { .. } => "consumer-ahead",
        }
    }
}

impl fmt::Display for StrictRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor(rule) => {
                write!(f, "a field of the entry breaks the descriptor format (efa_io_defs.h): {rule}")
            }
            Self::Phase { seen, expected } => write!(
                f,
                "the phase bit of the entry must be {} on this lap of the ring and is {} \
                 (efa_io_tx_meta_desc::ctrl2 bit 0, efa_io_defs.h)",
                u8::from(*expected),
                u8::from(*seen)
            ),
            Self::BatchExceeded { written, max_batch } => write!(
                f,
                "at least {written} entries were written past the last doorbell; the limit is {max_batch}: ring \
                 before writing more (efadv_wq_attr::max_batch, efadv.h)"
            ),
            Self::DoorbellBackwards { from, to } => write!(
                f,
                "the doorbell moved backwards from {from} to {to}; it must only advance, modulo 2^16 \
                 (efadv_wq_attr::doorbell, efadv.h)"
            ),
            Self::DoorbellPastRing { in_flight, entries } => write!(
                f,
                "the doorbell moved past the ring: {in_flight} entries would be in flight, and the ring has \
                 {entries}; wait for completions before posting (efadv_wq_attr::num_entries, efadv.h)"
            ),
            Self::HalfWritten { offset } => write!(
                f,
                "the doorbell covers an entry whose 8 bytes at offset {offset} were not written on this lap; \
                 the whole entry must be written before its doorbell (efadv_wq_attr::doorbell, efadv.h)"
            ),
            Self::EntryChanged => f.write_str(
                "the entry changed after its doorbell and before its completion; the adapter owns the slot \
                 until then (efadv_wq_attr::buffer, efadv.h)",
            ),
            Self::ReceiveReservedBits => f.write_str(
                "reserved bits of the receive descriptor are set; bits 29:24 must be zero \
                 (efa_io_rx_desc::lkey_ctrl, efa_io_defs.h)",
            ),
            Self::ReceiveGrouping => f.write_str(
                "the receive descriptors do not form a receive: the first one alone must have bit 30 set, the \
                 last one alone bit 31, and their number is limited (efa_io_rx_desc::lkey_ctrl, efa_io_defs.h)",
            ),
            Self::CompletionQueueOverrun { unread, entries } => write!(
                f,
                "the completion queue overran: a completion arrived while {unread} were unread, and the queue has \
                 {entries} entries; read completions sooner, or create a deeper queue (efadv_cq_attr::num_entries, \
                 efadv.h)"
            ),
            Self::ConsumerBackwards { consumer, back } => write!(
                f,
                "the consumer index moved backwards by {back} from {consumer}; it must only advance \
                 (efadv_cq_attr::doorbell, efadv.h)"
            ),
            Self::ConsumerAhead { consumer, producer } => write!(
                f,
                "the consumer index is {consumer}, but only {producer} completions were written; it must count the \
                 completions that were read (efadv_cq_attr::doorbell, efadv.h)"
            ),
        }
    }
}

/// A rule that a client broke, with the queue, the slot and the bytes of the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The queue.
    pub queue: Queue,
    /// The slot, if the rule is about one.
    pub slot: Option<u32>,
    /// The index of the entry, descriptor or completion; for a rule about a work-queue doorbell, the doorbell producer
    /// index before it; for a rule about a consumer index, the rule's `consumer`. Counted from 0 since the
    /// queue was created or reset.
    pub counter: u64,
    /// The decoded entry, if the rule is about a send-queue entry.
    pub entry: Option<DecodedRequest>,
    /// The bytes of the entry or descriptor, for `EntryChanged` the new bytes in the slot; empty if the rule is not
    /// about one.
    pub raw: Vec<u8>,
    /// The rule.
    pub rule: StrictRule,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}, index {}", self.rule.name(), self.rule, self.queue, self.counter)?;
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

/// A condition that breaks no rule but can cause failures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A completion queue has fewer entries than the rings that complete into it. Without a consumer index,
    /// its overruns cannot be found.
    ShallowCompletionQueue {
        /// The queue.
        queue: CompletionQueueNumber,
        /// Its entries.
        entries: u32,
        /// Entries of the rings bound to it.
        rings: u64,
    },
    /// The client's memory for a completion queue has phase bits set, so that stale bytes look like
    /// completions. The client must zero the memory before it creates the queue.
    CompletionMemoryNotZeroed {
        /// The queue.
        queue: CompletionQueueNumber,
        /// The first slot whose phase bit is set.
        slot: u32,
    },
    /// A [`super::Memory`] panicked. Its request completes as an internal error, and the queue pair is in the
    /// error state.
    MemoryPanicked {
        /// The queue pair of the request.
        queue_pair: QueuePairNumber,
    },
    /// A [`super::Memory`] panicked while completions were written to a completion queue. The queue discards these and
    /// all later completions.
    CompletionMemoryPanicked {
        /// The queue.
        queue: CompletionQueueNumber,
    },
    /// A [`super::Memory`] panicked while the values of a completion counter were written to it. Later values are not
    /// written to it.
    CounterMemoryPanicked {
        /// The queue pair whose completions were to be written next: for a counter of receives the one that has it,
        /// else the sender, also if the counter is that of a target.
        queue_pair: QueuePairNumber,
    },
    /// Registered memory cannot be reached any more. Requests that access it complete with the status of a
    /// bad key.
    MemoryUnreachable(
        /// A sentence with the address, the length and the reason.
        String,
    ),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShallowCompletionQueue { queue, entries, rings } => write!(
                f,
                "completion queue {} has {entries} entries, and the rings that complete into it have {rings}: it can \
                 overrun; make it deeper",
                queue.get()
            ),
            Self::CompletionMemoryNotZeroed { queue, slot } => write!(
                f,
                "the client's memory for completion queue {} is not zeroed: the phase bit of slot {slot} is set; zero \
                 the memory before the queue is created",
                queue.get()
            ),
            Self::MemoryPanicked { queue_pair } => write!(
                f,
                "access to registered memory panicked during a request of QP {queue_pair}, which is now in the \
                 error state; see the panic's message on stderr, and destroy the queue pair"
            ),
            Self::CompletionMemoryPanicked { queue } => write!(
                f,
                "access to the memory of completion queue {} panicked, and the queue discards its completions from now \
                 on; see the panic's message on stderr, and destroy the queue",
                queue.get()
            ),
            Self::CounterMemoryPanicked { queue_pair } => write!(
                f,
                "access to the memory of a completion counter panicked during the work for QP {queue_pair}, and the \
                 memory is not updated from now on; see the panic's message on stderr, and replace the counter"
            ),
            Self::MemoryUnreachable(reason) => f.write_str(reason),
        }
    }
}
