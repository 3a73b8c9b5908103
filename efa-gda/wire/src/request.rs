//! Requests: the meaning of a send-queue entry, independent of its bytes.

use std::fmt;

use efa_gda_sys::io;

use crate::ids::{AddressHandle, LocalKey, QueueKey, QueuePairNumber, RemoteKey, RequestId};

/// The request that one send-queue entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The request id, returned in the completion.
    pub id: RequestId,
    /// The destination.
    pub peer: Peer,
    /// Immediate data, delivered in the receiver's completion. SEND and RDMA WRITE only.
    pub immediate: Option<u32>,
    /// Processing hints for the adapter.
    pub hints: ProcessingHints,
    /// The operation.
    pub operation: Operation,
}

/// The destination of a request, as libfabric's `query_addr` returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The local adapter's handle for the remote one.
    pub address_handle: AddressHandle,
    /// The remote queue pair.
    pub queue_pair: QueuePairNumber,
    /// The key that the remote queue pair expects.
    pub queue_key: QueueKey,
}

/// An operation of an SRD queue pair, and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message gathered from local memory.
    Send(Segments),
    /// A message whose bytes are in the entry.
    SendInline(InlineData),
    /// Writes `local.length` bytes of local memory to remote memory.
    Write {
        /// The target.
        remote: RemoteMemory,
        /// The source.
        local: Segment,
    },
    /// Writes bytes of the entry (128-byte entries only) to remote memory.
    WriteInline {
        /// The target.
        remote: RemoteMemory,
        /// The bytes.
        data: InlineData,
    },
    /// Reads `local.length` bytes of remote memory into local memory.
    Read {
        /// The source.
        remote: RemoteMemory,
        /// The target.
        local: Segment,
    },
}

impl Operation {
    /// The code in the entry's `op_type`.
    pub const fn code(&self) -> OperationCode {
        match self {
            Self::Send(_) | Self::SendInline(_) => OperationCode::Send,
            Self::Write { .. } | Self::WriteInline { .. } => OperationCode::Write,
            Self::Read { .. } => OperationCode::Read,
        }
    }

    /// The number of bytes that the operation moves.
    #[inline]
    pub fn length(&self) -> u64 {
        match self {
            Self::Send(segments) => segments.iter().map(|segment| u64::from(segment.length)).sum(),
            Self::SendInline(data) | Self::WriteInline { data, .. } => data.len() as u64,
            Self::Write { local, .. } | Self::Read { local, .. } => u64::from(local.length),
        }
    }
}

/// An operation code (`enum efa_io_send_op_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationCode {
    /// A message.
    Send,
    /// RDMA read.
    Read,
    /// RDMA write.
    Write,
}

impl OperationCode {
    /// The code's number.
    pub const fn get(self) -> u32 {
        match self {
            Self::Send => io::EFA_IO_SEND,
            Self::Read => io::EFA_IO_RDMA_READ,
            Self::Write => io::EFA_IO_RDMA_WRITE,
        }
    }

    /// The operation with this number; `None` if there is none.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            io::EFA_IO_SEND => Some(Self::Send),
            io::EFA_IO_RDMA_READ => Some(Self::Read),
            io::EFA_IO_RDMA_WRITE => Some(Self::Write),
            _ => None,
        }
    }
}

impl fmt::Display for OperationCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::Read => "RDMA READ",
            Self::Write => "RDMA WRITE",
        })
    }
}

/// Local memory: `length` bytes at `address`, inside the region of `key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The region's key.
    pub key: LocalKey,
}

/// Remote memory at `address`, inside the region of `key`; the local segment determines the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// First byte.
    pub address: u64,
    /// The region's key.
    pub key: RemoteKey,
}

/// Up to two segments (`EFA_IO_TX_DESC_NUM_BUFS`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Segments {
    segments: [Segment; io::EFA_IO_TX_DESC_NUM_BUFS as usize],
    count: u8,
}

/// More segments than a send-queue entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a send-queue entry holds at most {max} segments, not {0}; split the request", max = io::EFA_IO_TX_DESC_NUM_BUFS)]
pub struct TooManySegments(pub usize);

impl Segments {
    /// Copies `segments`.
    ///
    /// # Errors
    /// [`TooManySegments`] for more than two.
    #[inline]
    pub fn new(segments: &[Segment]) -> Result<Self, TooManySegments> {
        let mut all = Self::default();
        all.segments
            .get_mut(..segments.len())
            .ok_or(TooManySegments(segments.len()))?
            .copy_from_slice(segments);
        all.count = segments.len() as u8;
        Ok(all)
    }
}

impl std::ops::Deref for Segments {
    type Target = [Segment];

    #[inline]
    fn deref(&self) -> &[Segment] {
        &self.segments[..usize::from(self.count)]
    }
}

impl PartialEq for Segments {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Segments {}

/// Bytes that travel inside an entry: at most 32 in 64-byte entries and 80 in 128-byte ones.
#[derive(Clone, Copy)]
pub struct InlineData {
    bytes: [u8; io::EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 as usize],
    length: u8,
}

/// More bytes than fit inside any entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{length} inline bytes do not fit an entry, which holds at most {limit}; register the memory and pass a segment"
)]
pub struct InlineTooLong {
    /// Bytes passed.
    pub length: usize,
    /// The most bytes that fit.
    pub limit: usize,
}

impl InlineData {
    /// Copies `bytes`.
    ///
    /// # Errors
    /// [`InlineTooLong`] above 80 bytes (`EFA_IO_TX_DESC_INLINE_MAX_SIZE_128`).
    #[inline]
    pub fn new(bytes: &[u8]) -> Result<Self, InlineTooLong> {
        let mut data = Self { bytes: [0; io::EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 as usize], length: 0 };
        let limit = data.bytes.len();
        data.bytes
            .get_mut(..bytes.len())
            .ok_or(InlineTooLong { length: bytes.len(), limit })?
            .copy_from_slice(bytes);
        data.length = bytes.len() as u8;
        Ok(data)
    }
}

impl std::ops::Deref for InlineData {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl PartialEq for InlineData {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for InlineData {}

impl fmt::Debug for InlineData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", &**self)
    }
}

/// Processing hints (`enum efa_io_processing_hint`): two bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProcessingHints(u8);

impl ProcessingHints {
    /// No hint.
    pub const NONE: Self = Self(0);
    /// Prefer message rate over latency.
    pub const BURST_PPS_SENSITIVE: Self = Self(io::EFA_IO_PROCESSING_HINT_BURST_PPS_SENSITIVE as u8);

    /// The hints in the low two bits of `bits`; the others are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & io::EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK as u8)
    }

    /// The two bits, as in the entry.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// The size of a send-queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntrySize {
    /// 64 bytes, which hold up to 32 inline bytes.
    B64,
    /// 128 bytes, which hold up to 80 inline bytes; RDMA WRITE may be inline.
    B128,
}

/// An entry size that no adapter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a send-queue entry of {0} bytes is not supported; adapters use 64 or 128")]
pub struct UnsupportedEntrySize(pub u32);

impl EntrySize {
    /// The number of bytes of an entry.
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Self::B64 => size_of::<io::efa_io_tx_wqe>(),
            Self::B128 => size_of::<io::efa_io_tx_wqe_128>(),
        }
    }

    /// The most inline bytes that an entry holds.
    pub const fn inline_limit(self) -> usize {
        match self {
            Self::B64 => io::EFA_IO_TX_DESC_INLINE_MAX_SIZE as usize,
            Self::B128 => io::EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 as usize,
        }
    }
}

impl TryFrom<u32> for EntrySize {
    type Error = UnsupportedEntrySize;

    #[inline]
    fn try_from(bytes: u32) -> Result<Self, UnsupportedEntrySize> {
        match bytes {
            64 => Ok(Self::B64),
            128 => Ok(Self::B128),
            other => Err(UnsupportedEntrySize(other)),
        }
    }
}
