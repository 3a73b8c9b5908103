//! Commands: an ioctl's object and method with their attributes, decoded into one value.
//!
//! `decode` has the attributes of each method. The header and the rules for single attributes are in `attributes`; the
//! older commands, which travel inside the method INVOKE_WRITE, are in `invoke_write`. The broker checks whether a
//! command can be executed.

/// A decoded ioctl.
///
/// Handles are those of objects of the same open device. Sizes and addresses are as the program stated them; only
/// their form has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // names of variants and fields state their meaning
pub enum Command {
    /// Requests the limits. `extended`: in the newer structure, with the driver's part.
    QueryDevice {
        extended: bool,
    },
    /// Requests the state of a port.
    QueryPort {
        port: u64,
    },
    /// Requests the speed of a port, in units of 100 Mb/s.
    QueryPortSpeed {
        port: u64,
    },
    /// Opens the context; a program's first command. `supported` are `EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_*`.
    GetContext {
        supported: u32,
    },
    /// Requests the response of [`Command::GetContext`], in a program that received the device from another program.
    QueryContext,
    /// Requests all GIDs, in entries of `entry_size` bytes, at most `capacity` bytes.
    QueryGidTable {
        entry_size: u64,
        capacity: usize,
    },
    /// Requests one GID.
    QueryGidEntry {
        port: u64,
        index: u64,
    },
    /// Requests the limits of completion counters.
    QueryCounterLimits,
    AllocateDomain,
    DestroyDomain {
        handle: u32,
    },
    RegisterMemory(RegisterMemory),
    QueryMemory {
        handle: u32,
    },
    /// The driver's query: the interconnects through which the device reaches a region.
    QueryMemoryPaths {
        handle: u32,
    },
    DestroyMemory {
        handle: u32,
    },
    CreateAddressHandle {
        domain: u32,
        gid: [u8; 16],
    },
    DestroyAddressHandle {
        handle: u32,
    },
    CreateCompletionChannel,
    CreateCompletionQueue(CreateCompletionQueue),
    DestroyCompletionQueue {
        handle: u32,
    },
    CreateQueuePair(CreateQueuePair),
    ModifyQueuePair(ModifyQueuePair),
    QueryQueuePair {
        handle: u32,
    },
    DestroyQueuePair {
        handle: u32,
    },
    /// `operations` are `IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_*`.
    AttachCounter {
        queue_pair: u32,
        counter: u32,
        operations: u32,
    },
    /// Requests a descriptor for asynchronous events.
    AllocateEvents,
    CreateCounter {
        completions: BufferDescription,
        errors: BufferDescription,
    },
    ModifyCounter {
        handle: u32,
        entry: CounterEntry,
        operation: CounterOperation,
        value: u64,
    },
    ReadCounter {
        handle: u32,
        entry: CounterEntry,
    },
    DestroyCounter {
        handle: u32,
    },
}

/// A memory region to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterMemory {
    /// Handle of the protection domain.
    pub domain: u32,
    /// The memory.
    pub memory: MemorySource,
    /// Bytes.
    pub length: u64,
    /// Address of the first byte in work-queue entries.
    pub address: u64,
    /// `IB_UVERBS_ACCESS_*`.
    pub access: u32,
    /// Whether the program used the newer method, whose response is in attributes.
    pub extended: bool,
}

/// Memory that a program supplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// Memory of the process, from this address on.
    Process(u64),
    /// Memory of a descriptor: its index in [`crate::protocol::descriptor_sources`], and the offset of the first byte.
    Descriptor(usize, u64),
}

/// A completion queue to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateCompletionQueue {
    /// The least number of entries.
    pub entries: u32,
    /// A value that events of the queue carry.
    pub user_handle: u64,
    /// Whether a completion channel is named. Its descriptor is beside the message (`protocol`).
    pub channel: bool,
    /// The completion vector, which would choose the interrupt.
    pub vector: u32,
    /// Bytes of an entry.
    pub entry_size: u32,
    /// The number of sub-queues that the queue consists of.
    pub sub_queues: u16,
    /// `EFA_CREATE_CQ_*`.
    pub flags: u8,
    /// The program's memory for the entries, and its bytes. `None`: the device allocates it.
    pub memory: Option<(MemorySource, u64)>,
}

/// Depths and widths of a queue pair, as `struct ib_uverbs_qp_cap` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QueuePairCapabilities {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// A queue pair to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateQueuePair {
    /// Handle of the protection domain.
    pub domain: u32,
    /// Handle of the completion queue for sends.
    pub send_cq: u32,
    /// Handle of the completion queue for receives.
    pub receive_cq: u32,
    /// A value that events of the queue pair carry.
    pub user_handle: u64,
    /// Depths and widths.
    pub capabilities: QueuePairCapabilities,
    /// `IB_UVERBS_QPT_*`.
    pub kind: u64,
    /// `EFA_QP_DRIVER_TYPE_*`.
    pub driver_kind: u32,
    /// Bytes of the send queue's ring.
    pub sq_bytes: u32,
    /// Bytes of the receive queue's ring.
    pub rq_bytes: u32,
    /// `EFA_CREATE_QP_*`.
    pub flags: u16,
}

/// A change of a queue pair. Fields that are `None` do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModifyQueuePair {
    /// Handle of the queue pair.
    pub handle: u32,
    /// The new state, `IB_QPS_*`.
    pub state: Option<u8>,
    /// The state that the program takes for the present one, `IB_QPS_*`.
    pub current_state: Option<u8>,
    /// The new queue key.
    pub queue_key: Option<u32>,
    /// The new packet sequence number of the send queue. The adapter only stores it.
    pub send_psn: Option<u32>,
    /// The number of retries while the receiver is not ready; 7 means no limit.
    pub rnr_retry: Option<u8>,
    /// Every attribute that the program changes, `IB_QP_*`.
    pub mask: u32,
}

/// Memory for one value of a completion counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferDescription {
    /// The memory.
    pub memory: MemorySource,
    /// Bytes.
    pub length: u64,
}

/// One of the two values of a completion counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterEntry {
    /// The number of successes.
    Completions,
    /// The number of completions in error.
    Errors,
}

/// A change of a counter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterOperation {
    /// Sets the counter to the value.
    Set,
    /// Adds the value to the counter.
    Add,
}
