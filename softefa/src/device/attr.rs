//! Arguments and results of the control path: attributes of objects to create, and descriptions of created
//! objects. These are numbers and plain data; the objects themselves are in the adapter's tables.

use std::sync::Arc;

use efa_gda_wire::{EntrySize, LocalKey, QueueKey, QueuePairNumber, RemoteKey, RequestIdWidth};

use super::counter::{CompletionCounter, Counted};
use super::events::SendEvent;
use super::memory::Memory;
use super::ring_memory::{Doorbell, RingMemory};

/// A protection domain of one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProtectionDomain(pub(crate) u16);

impl ProtectionDomain {
    /// Wraps the adapter's number, which a frontend stores for its client.
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
    /// Wraps the adapter's number, which a frontend stores for its client.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The adapter's number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The access that a memory region allows. The adapter may always read for its local client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// The adapter reads for the local client: sends, and the local side of RDMA writes.
    pub const LOCAL_READ: Self = Self(0);
    /// The adapter writes for the local client: receives, and the local side of RDMA reads.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may RDMA-read.
    pub const REMOTE_READ: Self = Self(2);
    /// Peers may RDMA-write.
    pub const REMOTE_WRITE: Self = Self(4);
    /// All of them.
    pub const ALL: Self = Self(7);
    /// Not a right: writes to the region may land after their completions at the peer
    /// ([`AdapterConfig::latest_write`](super::AdapterConfig::latest_write)), and in any order.
    pub const RELAXED_ORDERING: Self = Self(8);

    /// Whether it allows everything in `wanted`.
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
    /// Address of the first byte, as work-queue entries use it.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The access that it allows.
    pub access: Access,
    /// The access path of the engine.
    pub memory: Arc<dyn Memory>,
}

/// The keys of a registered region. They contain its number, which later regions reuse, and a generation, which
/// differs from one of them to the next. So a key is invalid after deregistration until the 256th (lkey) or
/// 32,768th (rkey) later region with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryKeys {
    /// The lkey, for the local side of work-queue entries; 24 bits.
    pub local: LocalKey,
    /// The rkey, for requests of peers.
    pub remote: RemoteKey,
}

/// The memory of a completion queue.
#[derive(Clone, Default)]
pub enum CompletionBacking {
    /// Memory that the adapter allocates, zeroed and page-aligned.
    #[default]
    Allocate,
    /// Memory of the client that the adapter can store to: at least 32 bytes for each entry of the rounded
    /// number. The client must zero it.
    External(Arc<RingMemory>),
    /// Memory that only copies reach, such as a GPU's. It must be as long as [`Self::External`], which the
    /// adapter does not check, and the client must zero it.
    Indirect {
        /// The access path of the engine.
        memory: Arc<dyn Memory>,
        /// Address of slot 0.
        address: u64,
    },
}

/// A completion queue to create.
#[derive(Clone, Default)]
pub struct CompletionQueueAttr {
    /// Requested entries; rounded up to a power of two.
    pub entries: u32,
    /// Its memory.
    pub backing: CompletionBacking,
    /// Whether it has a doorbell for the consumer index. Overruns are found after
    /// [`super::Adapter::set_consumer_index`] was called; a doorbell proves one only if it is rung after the overrun.
    pub doorbell: bool,
    /// Doorbell in memory of the client; then the queue has a doorbell even if `doorbell` is false. If `None`
    /// and `doorbell` is true, the adapter allocates one on a page that other doorbells share.
    pub doorbell_at: Option<Doorbell>,
    /// Sends the queue's events. Ignored if the queue has no doorbell, through which a program arms it.
    pub events: Option<SendEvent>,
}

/// A created completion queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    /// Its number.
    pub number: CompletionQueueNumber,
    /// Its memory; slot 0 starts at the first byte. `None` for [`CompletionBacking::Indirect`].
    pub memory: Option<Arc<RingMemory>>,
    /// Bytes of an entry: 32.
    pub entry_size: u32,
    /// Depth, a power of two.
    pub num_entries: u32,
    /// The doorbell for the low 16 bits of the consumer index (`EFA_IO_REGS_CQ_DB_CONSUMER_INDEX_MASK`).
    pub doorbell: Option<Doorbell>,
}

/// How often a request is retried if the receiver has no receive posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RnrRetry {
    /// Until a receive is posted, or the queue pair leaves the ready state. The default of efa-direct.
    #[default]
    Forever,
    /// This many times after the first try, then the request fails.
    Times(u8),
}

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Scalable reliable datagram.
    #[default]
    Srd,
    /// Unreliable datagram: SEND only, between queue pairs of this transport.
    Ud,
}

impl Transport {
    /// Bytes of a receive before the data, which the completion's length counts: those of a global routing header for UD
    /// (`ibv_create_qp(3)`; libfabric's efa provider states them as `msg_prefix_size`). The adapter does not write them.
    pub(crate) const fn prefix(self) -> u64 {
        match self {
            Self::Srd => 0,
            Self::Ud => 40,
        }
    }
}

/// States of a queue pair that the data path distinguishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Created. It executes no requests and accepts none from peers.
    Idle,
    /// It executes requests and accepts them from peers.
    #[default]
    Ready,
    /// It flushes everything that is posted and accepts no requests from peers.
    Error,
}

/// The highest allowed [`QueuePairAttr::first_counter`].
pub const MAX_FIRST_COUNTER: u64 = 1 << 63;

/// A queue pair to create.
#[derive(Clone)]
pub struct QueuePairAttr {
    /// Its transport.
    pub transport: Transport,
    /// Its protection domain; keys and address handles must belong to it.
    pub pd: ProtectionDomain,
    /// The completion queue of its requests.
    pub send_cq: CompletionQueueNumber,
    /// The completion queue of its receives.
    pub receive_cq: CompletionQueueNumber,
    /// Requested entries of the send queue; rounded up to a power of two.
    pub sq_depth: u32,
    /// Bytes of a send-queue entry.
    pub entry_size: EntrySize,
    /// Requested descriptors of the receive queue; rounded up to a power of two. 0 for no receive queue.
    pub rq_depth: u32,
    /// Width of request ids.
    pub request_ids: RequestIdWidth,
    /// The queue key that requests to this queue pair must have.
    pub queue_key: QueueKey,
    /// Retries of its requests if a peer has no receive posted.
    pub rnr_retry: RnrRetry,
    /// Whether RDMA writes with immediate to it consume no posted receive.
    pub unsolicited_write_receive: bool,
    /// Its initial state.
    pub state: QueuePairState,
    /// Index of the first entry of both queues, so that tests reach the wraps of indexes: that many entries
    /// count as posted and completed, and the doorbell starts at its low 16 bits. 0 as on hardware. At most
    /// [`MAX_FIRST_COUNTER`], so that 64-bit indexes never wrap.
    pub first_counter: u64,
    /// Memory for the send queue's ring, at least the rounded depth × entry size. If `None`, the adapter allocates it.
    pub sq_memory: Option<Arc<RingMemory>>,
    /// Memory for the receive queue's ring, at least the rounded depth × 16 bytes. If `None`, the adapter allocates it.
    pub rq_memory: Option<Arc<RingMemory>>,
    /// The send queue's doorbell. If `None`, the adapter allocates one on a page that other doorbells share.
    pub sq_doorbell: Option<Doorbell>,
    /// The receive queue's doorbell. As `sq_doorbell`.
    pub rq_doorbell: Option<Doorbell>,
    /// Its counters, each with the kinds of completion that it counts. No kind may have two.
    pub counters: Vec<(Counted, Arc<CompletionCounter>)>,
}

impl QueuePairAttr {
    /// Defaults: SRD, 64-byte entries, 16-bit request ids, 256 entries in both queues, endless RNR retries,
    /// ready, and memory that the adapter allocates.
    pub fn new(pd: ProtectionDomain, cq: CompletionQueueNumber) -> Self {
        Self {
            transport: Transport::Srd,
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

/// A created send queue.
#[derive(Clone, Debug)]
pub struct SendQueue {
    /// Its memory; slot 0 starts at the first byte. Clients must write it and never read it.
    pub memory: Arc<RingMemory>,
    /// Bytes of an entry.
    pub entry_size: EntrySize,
    /// Depth, a power of two.
    pub num_entries: u32,
    /// Entries that may be written between two doorbells.
    pub max_batch: u32,
    /// The doorbell for the producer index: 16 bits, zero-extended.
    pub doorbell: Doorbell,
}

/// A created receive queue.
#[derive(Clone, Debug)]
pub struct ReceiveQueue {
    /// Its memory; slot 0 starts at the first byte. Clients must write it and never read it.
    pub memory: Arc<RingMemory>,
    /// Bytes of a descriptor: 16.
    pub entry_size: u32,
    /// Depth in descriptors, a power of two.
    pub num_entries: u32,
    /// Descriptors that may be written between two doorbells: all of them.
    pub max_batch: u32,
    /// The doorbell for the producer index: 16 bits, zero-extended.
    pub doorbell: Doorbell,
}

/// A created queue pair.
#[derive(Clone, Debug)]
pub struct QueuePair {
    /// Its number.
    pub number: QueuePairNumber,
    /// The queue key that requests to it must have.
    pub queue_key: QueueKey,
    /// Its send queue.
    pub sq: SendQueue,
    /// Its receive queue, if it has one.
    pub rq: Option<ReceiveQueue>,
}
