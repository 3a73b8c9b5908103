//! What the control path takes and gives: attributes of objects to make, and what was made.
//! Numbers and plain data; the objects themselves live in the adapter's tables.

use std::sync::Arc;

use efa_gda_wire::{EntrySize, LocalKey, QueueKey, QueuePairNumber, RemoteKey, RequestIdWidth};

use super::counter::{CompletionCounter, Counted};
use super::memory::Memory;
use super::ring_memory::{Doorbell, RingMemory};

/// A protection domain of one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProtectionDomain(pub(crate) u16);

impl ProtectionDomain {
    /// Wraps the adapter's number, which a face carried for its client.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The adapter's number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A completion queue of one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompletionQueueNumber(pub(crate) u16);

impl CompletionQueueNumber {
    /// Wraps the adapter's number, which a face carried for its client.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The adapter's number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// What a memory region may be used for; reading by the adapter for its own client is always
/// allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// The adapter reads for its own client: sends and the local side of RDMA writes.
    pub const LOCAL_READ: Self = Self(0);
    /// The adapter writes for its own client: receives and the local side of RDMA reads.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may RDMA-read.
    pub const REMOTE_READ: Self = Self(2);
    /// Peers may RDMA-write.
    pub const REMOTE_WRITE: Self = Self(4);
    /// All of them.
    pub const ALL: Self = Self(7);

    /// Whether everything in `wanted` is allowed.
    pub const fn allows(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A memory region to register.
#[derive(Clone)]
pub struct MemoryRegionAttr {
    /// Its protection domain.
    pub pd: ProtectionDomain,
    /// First byte, as entries will name it.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What it may be used for.
    pub access: Access,
    /// How the engine reaches it.
    pub memory: Arc<dyn Memory>,
}

/// The keys of a registered region. They carry a generation: after deregistration they name
/// nothing, until 256 (lkey) or 32,768 (rkey) regions later in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryKeys {
    /// For the local side of entries; 24 bits.
    pub local: LocalKey,
    /// For peers.
    pub remote: RemoteKey,
}

/// Where completions go.
#[derive(Clone, Default)]
pub enum CompletionBacking {
    /// Memory that the adapter allocates, zeroed and page-aligned.
    #[default]
    Allocate,
    /// Memory of the client that can be stored to, at least entries × 32 bytes, zeroed by its owner.
    Given(Arc<RingMemory>),
    /// Memory that is reached by copies alone, such as a GPU's, zeroed by its owner.
    Through {
        /// How it is reached.
        memory: Arc<dyn Memory>,
        /// Address of slot 0.
        address: u64,
    },
}

/// A completion queue to create.
#[derive(Clone, Default)]
pub struct CompletionQueueAttr {
    /// Entries wanted; rounded up to a power of two.
    pub entries: u32,
    /// Where they lie.
    pub backing: CompletionBacking,
    /// Whether it has a doorbell for the consumer index. Once that was rung (or
    /// [`super::Adapter::set_consumer_index`] was called) overruns are detected.
    pub doorbell: bool,
    /// Where its doorbell lies, which then it has; allocated, on a page with others, where none is
    /// given.
    pub doorbell_at: Option<Doorbell>,
}

/// A completion queue, as a client sees it.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    /// Its number.
    pub number: CompletionQueueNumber,
    /// Slot 0 is its first byte; none where completions go through copies.
    pub memory: Option<Arc<RingMemory>>,
    /// Bytes of an entry: 32.
    pub entry_size: u32,
    /// Depth, a power of two.
    pub num_entries: u32,
    /// Takes the consumer counter, low 16 bits (`EFA_IO_REGS_CQ_DB_CONSUMER_INDEX_MASK`).
    pub doorbell: Option<Doorbell>,
}

/// How often a request is tried again where the receiver has nothing posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RnrRetry {
    /// Until a receive is posted or the queue pair goes: what efa-direct asks for by default.
    #[default]
    Forever,
    /// This many times after the first.
    Times(u8),
}

/// States of a queue pair, as far as the data path tells them apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Made, and not yet ready to send or be a destination.
    Idle,
    /// Executes and receives.
    #[default]
    Ready,
    /// Everything posted is flushed; no destination any more.
    Error,
}

/// The furthest along that a queue may start ([`QueuePairAttr::first_counter`]).
pub const MOST_FIRST_COUNTER: u64 = 1 << 63;

/// An SRD queue pair to create.
#[derive(Clone)]
pub struct QueuePairAttr {
    /// Its protection domain; keys and address handles must belong to it.
    pub pd: ProtectionDomain,
    /// Where its sends complete.
    pub send_cq: CompletionQueueNumber,
    /// Where its receives complete.
    pub receive_cq: CompletionQueueNumber,
    /// Entries wanted in the send queue; rounded up to a power of two.
    pub sq_depth: u32,
    /// Bytes of a send-queue entry.
    pub entry_size: EntrySize,
    /// Descriptors wanted in the receive queue; rounded up to a power of two. 0 makes none.
    pub rq_depth: u32,
    /// Width of request ids.
    pub request_ids: RequestIdWidth,
    /// What senders must give to reach this queue pair.
    pub queue_key: QueueKey,
    /// What happens where a peer has no receive posted.
    pub rnr_retry: RnrRetry,
    /// RDMA writes with immediate use no posted receive.
    pub unsolicited_write_receive: bool,
    /// Where it starts.
    pub state: QueuePairState,
    /// Entries that count as posted and completed before the first, so that tests reach counter
    /// wraps. 0 is what hardware does; the doorbell starts at its low 16 bits. At most
    /// [`MOST_FIRST_COUNTER`], so that counters of 64 bits never wrap.
    pub first_counter: u64,
    /// The send queue's ring, at least depth × entry size; allocated where none is given.
    pub sq_memory: Option<Arc<RingMemory>>,
    /// The receive queue's ring, at least depth × 16 bytes; allocated where none is given.
    pub rq_memory: Option<Arc<RingMemory>>,
    /// The send queue's doorbell; allocated, on a page with others, where none is given.
    pub sq_doorbell: Option<Doorbell>,
    /// The receive queue's doorbell; likewise.
    pub rq_doorbell: Option<Doorbell>,
    /// What counts its completions, and which of them.
    pub counters: Vec<(Counted, Arc<CompletionCounter>)>,
}

impl QueuePairAttr {
    /// 64-byte entries, 16-bit ids, both queues 256 deep, RNR retried forever, ready, in memory that
    /// the adapter allocates.
    pub fn new(pd: ProtectionDomain, cq: CompletionQueueNumber) -> Self {
        Self {
            pd,
            send_cq: cq,
            receive_cq: cq,
            sq_depth: 256,
            entry_size: EntrySize::B64,
            rq_depth: 256,
            request_ids: RequestIdWidth::Bits16,
            queue_key: QueueKey::new(0),
            rnr_retry: RnrRetry::Forever,
            unsolicited_write_receive: false,
            state: QueuePairState::Ready,
            first_counter: 0,
            sq_memory: None,
            rq_memory: None,
            sq_doorbell: None,
            rq_doorbell: None,
            counters: Vec::new(),
        }
    }
}

/// A send queue, as a client sees it.
#[derive(Clone, Debug)]
pub struct SendQueue {
    /// Slot 0 is its first byte. Clients write it and never read it.
    pub memory: Arc<RingMemory>,
    /// Bytes of an entry.
    pub entry_size: EntrySize,
    /// Depth, a power of two.
    pub num_entries: u32,
    /// Entries that may be written between two doorbells.
    pub max_batch: u32,
    /// Takes the producer counter, 16 bits zero-extended.
    pub doorbell: Doorbell,
}

/// A receive queue, as a client sees it.
#[derive(Clone, Debug)]
pub struct ReceiveQueue {
    /// Slot 0 is its first byte.
    pub memory: Arc<RingMemory>,
    /// Bytes of a descriptor: 16.
    pub entry_size: u32,
    /// Depth in descriptors, a power of two.
    pub num_entries: u32,
    /// Descriptors that may be written between two doorbells: all of them.
    pub max_batch: u32,
    /// Takes the producer counter, 16 bits zero-extended.
    pub doorbell: Doorbell,
}

/// A queue pair, as a client sees it.
#[derive(Clone, Debug)]
pub struct QueuePair {
    /// Its number.
    pub number: QueuePairNumber,
    /// What senders must give to reach it.
    pub queue_key: QueueKey,
    /// Its send queue.
    pub sq: SendQueue,
    /// Its receive queue, where it has one.
    pub rq: Option<ReceiveQueue>,
}
