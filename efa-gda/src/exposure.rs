//! The queues that a provider exposes of an endpoint: send queue, receive queue and completion queue, checked before
//! anything writes to their addresses.
//!
//! The raw numbers may come from any source (libfabric's GDA operations, rdma-core's efadv queries); this module knows
//! neither. It checks the rules of the rings. It does not check whether the memory is mapped.

use std::fmt;
use std::ptr::NonNull;

use efa_gda_sys::fi;
use efa_gda_wire::{COMPLETION_BYTES, DEEPEST_WORK_QUEUE, EntrySize, RequestIdWidth};

use crate::{Error, ErrorKind, Result};

/// Alignment of a ring's first byte, in bytes: that of the widest access to a ring, a store of 16 bytes.
const BUFFER_ALIGNMENT: usize = 16;

/// A send or receive queue as a provider exposes it: unchecked. Fields that the provider does not report are null or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawWorkQueue {
    /// The first entry.
    pub buffer: *mut u8,
    /// Bytes of an entry.
    pub entry_size: u32,
    /// Number of entries.
    pub num_entries: u32,
    /// The doorbell, which takes the producer index.
    pub doorbell: *mut u32,
    /// Batch window: entries that may be written past the last doorbell that the adapter has received.
    pub max_batch: u32,
    /// Bits of `enum fi_efa_wq_caps`; 0 from providers that do not know the field.
    pub caps: u16,
}

impl From<fi::fi_efa_wq_attr> for RawWorkQueue {
    fn from(attr: fi::fi_efa_wq_attr) -> Self {
        Self {
            buffer: attr.buffer,
            entry_size: attr.entry_size,
            num_entries: attr.num_entries,
            doorbell: attr.doorbell,
            max_batch: attr.max_batch,
            caps: attr.caps,
        }
    }
}

/// A completion queue as a provider exposes it: unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCompletionQueue {
    /// The first entry.
    pub buffer: *mut u8,
    /// Bytes of an entry.
    pub entry_size: u32,
    /// Number of entries.
    pub num_entries: u32,
    /// The doorbell, which takes the consumer index; null if there is none. libfabric does not expose it, rdma-core 60
    /// does.
    pub doorbell: *mut u32,
}

impl From<fi::fi_efa_cq_attr> for RawCompletionQueue {
    fn from(attr: fi::fi_efa_cq_attr) -> Self {
        Self {
            buffer: attr.buffer,
            entry_size: attr.entry_size,
            num_entries: attr.num_entries,
            doorbell: std::ptr::null_mut(),
        }
    }
}

/// The queue that an error is about.
#[derive(Clone, Copy)]
enum Queue {
    Send,
    Receive,
    Completion,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send queue",
            Self::Receive => "receive queue",
            Self::Completion => "completion queue",
        })
    }
}

/// The error of a rule that the exposed numbers break. The queue must not be mapped or rung, because the provider or the
/// adapter contradicts what this library knows of EFA.
fn broken(text: String, hint: &'static str) -> Error {
    Error::new(ErrorKind::Exposure, text).with_hint(hint)
}

/// Entries of a size that this version cannot write or read.
fn entry_size(queue: Queue, bytes: u32, expected: &str) -> Error {
    Error::unsupported(format!("entries of the {queue} have {bytes} bytes; {expected} were expected"))
        .with_hint("use a newer efa-gda")
}

const REPORT: &str = "report it with the provider's version";

/// A checked send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendQueue {
    /// The first entry; write-only memory.
    pub buffer: NonNull<u8>,
    /// The doorbell.
    pub doorbell: NonNull<u32>,
    /// Size of an entry.
    pub entry_size: EntrySize,
    /// Number of entries, a power of two.
    pub num_entries: u32,
    /// Batch window: entries that may be written past the last doorbell that the adapter has received; at least 1,
    /// possibly more than the queue has.
    pub max_batch: u32,
    /// Width of request ids, in entries and completions.
    pub request_ids: RequestIdWidth,
}

/// A checked receive queue. Its entries have 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveQueue {
    /// The first entry.
    pub buffer: NonNull<u8>,
    /// The doorbell.
    pub doorbell: NonNull<u32>,
    /// Number of entries, a power of two.
    pub num_entries: u32,
    /// Batch window: entries that may be written past the last doorbell that the adapter has received.
    pub max_batch: u32,
}

/// A checked completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionRing {
    /// The first entry; read-only memory.
    pub buffer: NonNull<u8>,
    /// The doorbell, which takes the consumer index, if there is one.
    pub doorbell: Option<NonNull<u32>>,
    /// Bytes of an entry: 16 or 32.
    pub entry_size: u32,
    /// Number of entries, a power of two.
    pub num_entries: u32,
}

/// The queues that an endpoint exposes, checked. Addresses are those of the provider's mappings, which are valid while
/// the endpoint and its completion queue are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exposure {
    /// The send queue.
    pub sq: SendQueue,
    /// The receive queue.
    pub rq: ReceiveQueue,
    /// The completion queue.
    pub cq: CompletionRing,
}

// SAFETY: the pointers are addresses of shared mappings, and are not dereferenced here.
unsafe impl Send for Exposure {}
// SAFETY: as above.
unsafe impl Sync for Exposure {}

impl Exposure {
    /// Checks raw numbers, those of the send queue first.
    ///
    /// # Errors
    /// [`ErrorKind::Exposure`], or [`ErrorKind::Unsupported`] for the size of entries, with the first rule that they break.
    pub fn new(send: RawWorkQueue, receive: RawWorkQueue, completion: RawCompletionQueue) -> Result<Self> {
        Ok(Self {
            sq: SendQueue::new(send)?,
            rq: ReceiveQueue::new(receive)?,
            cq: CompletionRing::new(completion)?,
        })
    }
}

impl SendQueue {
    /// Checks raw numbers.
    ///
    /// # Errors
    /// [`ErrorKind::Exposure`], or [`ErrorKind::Unsupported`] for the size of entries, with the first rule that they break.
    pub fn new(raw: RawWorkQueue) -> Result<Self> {
        let queue = Queue::Send;
        let bytes = EntrySize::try_from(raw.entry_size);
        let entry_size = bytes.map_err(|_| entry_size(queue, raw.entry_size, "64 or 128"))?;
        let wide_ids = u32::from(raw.caps) & fi::FI_EFA_WQ_CAPS_64_BIT_REQ_ID != 0;
        Ok(Self {
            num_entries: work_depth(queue, raw.num_entries)?,
            max_batch: batch(queue, raw.max_batch)?,
            buffer: buffer(queue, raw.buffer)?,
            doorbell: doorbell(queue, raw.doorbell)?,
            entry_size,
            request_ids: if wide_ids { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 },
        })
    }

    /// Returns the bytes of the whole ring.
    pub fn bytes(&self) -> usize {
        self.num_entries as usize * self.entry_size.bytes()
    }
}

impl ReceiveQueue {
    /// Checks raw numbers.
    ///
    /// # Errors
    /// [`ErrorKind::Exposure`], or [`ErrorKind::Unsupported`] for the size of entries, with the first rule that they break.
    pub fn new(raw: RawWorkQueue) -> Result<Self> {
        let queue = Queue::Receive;
        if raw.entry_size as usize != efa_gda_wire::RX_DESCRIPTOR_BYTES {
            return Err(entry_size(queue, raw.entry_size, "16"));
        }
        Ok(Self {
            num_entries: work_depth(queue, raw.num_entries)?,
            max_batch: batch(queue, raw.max_batch)?,
            buffer: buffer(queue, raw.buffer)?,
            doorbell: doorbell(queue, raw.doorbell)?,
        })
    }
}

impl CompletionRing {
    /// Checks raw numbers. The adapter chooses the entry size. A queue of send completions alone needs only 16 bytes
    /// for each; adapters use 32 in practice.
    ///
    /// # Errors
    /// [`ErrorKind::Exposure`], or [`ErrorKind::Unsupported`] for the size of entries, with the first rule that they break.
    pub fn new(raw: RawCompletionQueue) -> Result<Self> {
        let queue = Queue::Completion;
        let fits = (16..=COMPLETION_BYTES as u32).contains(&raw.entry_size);
        if !fits || !raw.entry_size.is_power_of_two() {
            return Err(entry_size(queue, raw.entry_size, "16 or 32"));
        }
        let bell = (!raw.doorbell.is_null()).then(|| doorbell(queue, raw.doorbell)).transpose()?;
        Ok(Self {
            num_entries: depth(queue, raw.num_entries)?,
            buffer: buffer(queue, raw.buffer)?,
            doorbell: bell,
            entry_size: raw.entry_size,
        })
    }

    /// Returns the bytes of the whole ring.
    pub(crate) fn bytes(&self) -> usize {
        self.num_entries as usize * self.entry_size as usize
    }
}

fn depth(queue: Queue, num_entries: u32) -> Result<u32> {
    match num_entries {
        0 => Err(broken(
            format!("the {queue} has 0 entries; a power of two was expected"),
            "set its depth when the endpoint is opened",
        )),
        // Slots and phases need a power of two.
        depth if !depth.is_power_of_two() => Err(broken(
            format!(
                "the {queue} has {depth} entries; a power of two was expected, because the provider rounds up"
            ),
            REPORT,
        )),
        depth => Ok(depth),
    }
}

fn work_depth(queue: Queue, num_entries: u32) -> Result<u32> {
    match depth(queue, num_entries)? {
        depth if depth > DEEPEST_WORK_QUEUE => Err(broken(
            format!(
                "the {queue} has {depth} entries; at most {DEEPEST_WORK_QUEUE} were expected, because doorbells \
                 have 16 bits"
            ),
            "ask for fewer",
        )),
        depth => Ok(depth),
    }
}

fn batch(queue: Queue, max_batch: u32) -> Result<u32> {
    match max_batch {
        0 => Err(broken(
            format!("the {queue}'s max_batch is 0; at least 1 entry between two doorbells was expected"),
            "use a provider that sets the field",
        )),
        window => Ok(window),
    }
}

fn buffer(queue: Queue, address: *mut u8) -> Result<NonNull<u8>> {
    let buffer = NonNull::new(address).ok_or_else(|| {
        let text = format!("the {queue}'s buffer is null; an address was expected");
        broken(text, "query an enabled endpoint, and give a completion queue in external memory an address")
    })?;
    match address.addr() {
        aligned if aligned.is_multiple_of(BUFFER_ALIGNMENT) => Ok(buffer),
        address => Err(broken(
            format!("the {queue}'s buffer is at {address:#x}; a multiple of {BUFFER_ALIGNMENT} was expected"),
            REPORT,
        )),
    }
}

fn doorbell(queue: Queue, address: *mut u32) -> Result<NonNull<u32>> {
    let doorbell = NonNull::new(address).ok_or_else(|| {
        broken(
            format!(
                "the {queue}'s doorbell is null; an address was expected, because an enabled endpoint has one"
            ),
            "report it with the provider's version (if your code made the query: query after fi_enable)",
        )
    })?;
    match address.addr() {
        aligned if aligned.is_multiple_of(4) => Ok(doorbell),
        address => Err(broken(
            format!("the {queue}'s doorbell is at {address:#x}; a multiple of 4 was expected"),
            REPORT,
        )),
    }
}
