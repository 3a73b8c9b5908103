//! Encodes and decodes send-queue entries.

use std::mem::offset_of;

use efa_gda_sys::io::{self, efa_io_remote_mem_addr, efa_io_tx_buf_desc, efa_io_tx_meta_desc, efa_io_tx_wqe};

use crate::bytes::{extract, field, get_address, get_u16, get_u32, put_address, put_u16, put_u32};
use crate::ids::{AddressHandle, LocalKey, QueueKey, QueuePairNumber, RemoteKey, RequestId, RequestIdWidth};
use crate::request::{
    EntrySize, InlineData, Operation, OperationCode, Peer, ProcessingHints, RemoteMemory, Request, Segment,
    Segments, UnsupportedEntrySize,
};
use crate::rules::{Rule, Rules};

/// Offset of the data after the meta descriptor, equal in both entry sizes.
const DATA: usize = offset_of!(efa_io_tx_wqe, data);
const _: () = assert!(DATA == offset_of!(io::efa_io_tx_wqe_128, data));
/// Offset of an RDMA request's local segment or inline bytes.
const RDMA_LOCAL: usize = DATA + offset_of!(io::efa_io_rdma_req, local_mem);
const SEGMENT_BYTES: usize = size_of::<efa_io_tx_buf_desc>();
const MAX_SEGMENTS: usize = io::EFA_IO_TX_DESC_NUM_BUFS as usize;

const META_DESC: u32 = io::EFA_IO_TX_META_DESC_META_DESC_MASK;
const META_EXTENSION: u32 = io::EFA_IO_TX_META_DESC_META_EXTENSION_MASK;
const INLINE: u32 = io::EFA_IO_TX_META_DESC_INLINE_MSG_MASK;
const HAS_IMM: u32 = io::EFA_IO_TX_META_DESC_HAS_IMM_MASK;
const OP_TYPE: u32 = io::EFA_IO_TX_META_DESC_OP_TYPE_MASK;
const PHASE: u32 = io::EFA_IO_TX_META_DESC_PHASE_MASK;
const FIRST: u32 = io::EFA_IO_TX_META_DESC_FIRST_MASK;
const LAST: u32 = io::EFA_IO_TX_META_DESC_LAST_MASK;
const COMP_REQ: u32 = io::EFA_IO_TX_META_DESC_COMP_REQ_MASK;
const HINTS: u32 = io::EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK;

/// The bytes of one send-queue entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    bytes: [u8; 128],
    size: EntrySize,
}

impl Entry {
    #[inline]
    fn zeroed(size: EntrySize) -> Self {
        Self { bytes: [0; 128], size }
    }
}

impl std::ops::Deref for Entry {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.size.bytes()]
    }
}

impl std::ops::DerefMut for Entry {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.size.bytes()]
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.iter() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Why a request cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The inline bytes do not fit this size of entry.
    #[error(
        "{length} inline bytes do not fit an entry, which holds at most {limit}; use 128-byte entries or a segment"
    )]
    InlineTooLong {
        /// Bytes passed.
        length: usize,
        /// The most bytes that fit.
        limit: usize,
    },
    /// RDMA WRITE is inline in 128-byte entries only.
    #[error(
        "an inline RDMA write needs 128-byte entries, and this queue has 64-byte entries; open a queue with inline \
         writes"
    )]
    InlineWriteNeeds128,
    /// RDMA READ carries no immediate.
    #[error("an RDMA read cannot carry immediate data; remove the immediate")]
    ImmediateOnRead,
    /// The id needs more bits than the queue carries.
    #[error("request id {id} does not fit the 16 bits that this queue carries; use an id up to 65535")]
    RequestIdTooWide {
        /// The id.
        id: RequestId,
    },
}

/// Why bytes cannot be decoded as an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Neither 64 nor 128 bytes.
    #[error(transparent)]
    Size(#[from] UnsupportedEntrySize),
}

impl Request {
    /// Encodes the request as a send-queue entry. `phase` is the send queue's phase bit for the entry's slot
    /// ([`crate::Ring::phase`]). Bytes that the request does not use are zero.
    ///
    /// # Errors
    /// [`EncodeError`] if entries of this size and id width cannot express the request.
    #[inline]
    pub fn encode(&self, size: EntrySize, phase: bool, ids: RequestIdWidth) -> Result<Entry, EncodeError> {
        if self.id > ids.largest() {
            return Err(EncodeError::RequestIdTooWide { id: self.id });
        }
        let mut entry = Entry::zeroed(size);
        let (inline, length) = encode_data(&mut entry, &self.operation)?;
        let code = self.operation.code();
        if self.immediate.is_some() && code == OperationCode::Read {
            return Err(EncodeError::ImmediateOnRead);
        }

        let ctrl1 = META_DESC
            | field(OP_TYPE, code.get())
            | field(INLINE, u32::from(inline))
            | field(HAS_IMM, u32::from(self.immediate.is_some()));
        let ctrl2 = FIRST | LAST | COMP_REQ | field(PHASE, u32::from(phase));
        let bytes = &mut entry.bytes;
        put_u16(bytes, offset_of!(efa_io_tx_meta_desc, req_id), self.id.get() as u16);
        bytes[offset_of!(efa_io_tx_meta_desc, ctrl1)] = ctrl1 as u8;
        bytes[offset_of!(efa_io_tx_meta_desc, ctrl2)] = ctrl2 as u8;
        put_u16(bytes, offset_of!(efa_io_tx_meta_desc, dest_qp_num), self.peer.queue_pair.get());
        put_u16(bytes, offset_of!(efa_io_tx_meta_desc, length), length);
        put_u32(bytes, offset_of!(efa_io_tx_meta_desc, immediate_data), self.immediate.unwrap_or(0));
        put_u16(bytes, offset_of!(efa_io_tx_meta_desc, ah), self.peer.address_handle.get());
        bytes[offset_of!(efa_io_tx_meta_desc, ctrl3)] = self.hints.bits();
        put_u32(bytes, offset_of!(efa_io_tx_meta_desc, qkey), self.peer.queue_key.get());
        for (word, shift) in [16, 32, 48].into_iter().enumerate() {
            let at = offset_of!(efa_io_tx_meta_desc, req_id_ex) + 2 * word;
            put_u16(bytes, at, (self.id.get() >> shift) as u16);
        }
        Ok(entry)
    }
}

/// Writes the data after the meta descriptor. Returns the inline bit and the `length` field.
#[inline]
fn encode_data(entry: &mut Entry, operation: &Operation) -> Result<(bool, u16), EncodeError> {
    match operation {
        Operation::Send(segments) => {
            for (index, segment) in segments.iter().enumerate() {
                put_segment(&mut entry.bytes, DATA + index * SEGMENT_BYTES, segment);
            }
            Ok((false, segments.len() as u16))
        }
        Operation::SendInline(data) => put_inline(entry, DATA, data),
        Operation::Write { remote, local } | Operation::Read { remote, local } => {
            put_remote(&mut entry.bytes, remote, local.length);
            put_segment(&mut entry.bytes, RDMA_LOCAL, local);
            Ok((false, io::EFA_IO_TX_DESC_NUM_RDMA_BUFS as u16))
        }
        Operation::WriteInline { remote, data } => {
            if entry.size != EntrySize::B128 {
                return Err(EncodeError::InlineWriteNeeds128);
            }
            put_remote(&mut entry.bytes, remote, data.len() as u32);
            put_inline(entry, RDMA_LOCAL, data)
        }
    }
}

#[inline]
fn put_inline(entry: &mut Entry, at: usize, data: &InlineData) -> Result<(bool, u16), EncodeError> {
    let limit = entry.size.inline_limit();
    if data.len() > limit {
        return Err(EncodeError::InlineTooLong { length: data.len(), limit });
    }
    entry.bytes[at..at + data.len()].copy_from_slice(data);
    Ok((true, data.len() as u16))
}

#[inline]
fn put_segment(bytes: &mut [u8], at: usize, segment: &Segment) {
    put_u32(bytes, at + offset_of!(efa_io_tx_buf_desc, length), segment.length);
    put_u32(bytes, at + offset_of!(efa_io_tx_buf_desc, lkey), segment.key.get());
    let lo = at + offset_of!(efa_io_tx_buf_desc, buf_addr_lo);
    put_address(bytes, lo, at + offset_of!(efa_io_tx_buf_desc, buf_addr_hi), segment.address);
}

#[inline]
fn put_remote(bytes: &mut [u8], remote: &RemoteMemory, length: u32) {
    put_u32(bytes, DATA + offset_of!(efa_io_remote_mem_addr, length), length);
    put_u32(bytes, DATA + offset_of!(efa_io_remote_mem_addr, rkey), remote.key.get());
    let lo = DATA + offset_of!(efa_io_remote_mem_addr, buf_addr_lo);
    put_address(bytes, lo, DATA + offset_of!(efa_io_remote_mem_addr, buf_addr_hi), remote.address);
}

/// A decoded send-queue entry, and the rules that its bytes break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedRequest {
    /// The request; `None` if the operation is unknown, has no inline form but the inline bit, or has more inline bytes
    /// than the entry holds.
    pub request: Option<Request>,
    /// The request id, which every entry has.
    pub id: RequestId,
    /// The number in `op_type`.
    pub operation_code: u8,
    /// The phase bit.
    pub phase: bool,
    /// The size of the entry.
    pub size: EntrySize,
    /// The rules that the bytes break; an adapter may refuse such an entry.
    pub broken: Rules,
}

impl DecodedRequest {
    /// Decodes an entry of 64 or 128 bytes.
    ///
    /// # Errors
    /// [`DecodeError`] for any other length. A broken rule is not an error: see
    /// [`DecodedRequest::broken`].
    #[inline]
    pub fn decode(bytes: &[u8], ids: RequestIdWidth) -> Result<Self, DecodeError> {
        let size = EntrySize::try_from(u32::try_from(bytes.len()).unwrap_or(u32::MAX))?;
        let meta = Meta::read(bytes);
        let mut broken = meta.check(bytes, ids);
        let operation = decode_operation(bytes, size, &meta, &mut broken);
        let id = meta.id(bytes, ids);
        let request = operation.map(|operation| Request {
            id,
            peer: Peer {
                address_handle: AddressHandle::new(get_u16(bytes, offset_of!(efa_io_tx_meta_desc, ah))),
                queue_pair: QueuePairNumber::new(get_u16(
                    bytes,
                    offset_of!(efa_io_tx_meta_desc, dest_qp_num),
                )),
                queue_key: QueueKey::new(get_u32(bytes, offset_of!(efa_io_tx_meta_desc, qkey))),
            },
            immediate: (meta.ctrl1 & HAS_IMM != 0)
                .then(|| get_u32(bytes, offset_of!(efa_io_tx_meta_desc, immediate_data))),
            hints: ProcessingHints::from_bits(meta.ctrl3 as u8),
            operation,
        });
        Ok(Self {
            request,
            id,
            operation_code: extract(OP_TYPE, meta.ctrl1) as u8,
            phase: meta.ctrl2 & PHASE != 0,
            size,
            broken,
        })
    }
}

/// The control bytes and the length field.
struct Meta {
    ctrl1: u32,
    ctrl2: u32,
    ctrl3: u32,
    length: usize,
}

impl Meta {
    #[inline]
    fn read(bytes: &[u8]) -> Self {
        Self {
            ctrl1: bytes[offset_of!(efa_io_tx_meta_desc, ctrl1)].into(),
            ctrl2: bytes[offset_of!(efa_io_tx_meta_desc, ctrl2)].into(),
            ctrl3: bytes[offset_of!(efa_io_tx_meta_desc, ctrl3)].into(),
            length: get_u16(bytes, offset_of!(efa_io_tx_meta_desc, length)).into(),
        }
    }

    #[inline]
    fn extended_id(bytes: &[u8]) -> u64 {
        let at = offset_of!(efa_io_tx_meta_desc, req_id_ex);
        (0..3).fold(0, |id, word| id | u64::from(get_u16(bytes, at + 2 * word)) << (16 * word))
    }

    #[inline]
    fn id(&self, bytes: &[u8], ids: RequestIdWidth) -> RequestId {
        let low = u64::from(get_u16(bytes, offset_of!(efa_io_tx_meta_desc, req_id)));
        match ids {
            RequestIdWidth::Bits16 => RequestId::new(low),
            RequestIdWidth::Bits64 => RequestId::new(low | Self::extended_id(bytes) << 16),
        }
    }

    /// The rules of the meta descriptor alone.
    #[inline]
    fn check(&self, bytes: &[u8], ids: RequestIdWidth) -> Rules {
        let reserved = offset_of!(efa_io_tx_meta_desc, reserved);
        let reserved2 =
            offset_of!(efa_io_tx_meta_desc, reserved2)..offset_of!(efa_io_tx_meta_desc, req_id_ex);
        let mut broken = Rules::NONE;
        broken.require(self.ctrl1 & META_DESC != 0, Rule::MetaDescSet);
        broken.require(self.ctrl1 & META_EXTENSION == 0, Rule::MetaExtensionZero);
        broken.require(self.ctrl2 & FIRST != 0, Rule::FirstSet);
        broken.require(self.ctrl2 & LAST != 0, Rule::LastSet);
        broken.require(self.ctrl2 & COMP_REQ != 0, Rule::CompletionRequested);
        broken.require(self.ctrl2 & !(PHASE | FIRST | LAST | COMP_REQ) == 0, Rule::Ctrl2ReservedZero);
        broken.require(self.ctrl3 & !HINTS == 0, Rule::Ctrl3ReservedZero);
        broken.require(
            bytes[reserved] == 0 && bytes[reserved2].iter().all(|byte| *byte == 0),
            Rule::ReservedZero,
        );
        broken.require(ids == RequestIdWidth::Bits64 || Self::extended_id(bytes) == 0, Rule::ExtendedIdZero);
        broken
    }
}

/// Decodes the operation; `None` if the bytes do not determine one.
#[inline]
fn decode_operation(bytes: &[u8], size: EntrySize, meta: &Meta, broken: &mut Rules) -> Option<Operation> {
    let code = OperationCode::from_number(extract(OP_TYPE, meta.ctrl1));
    broken.require(code.is_some(), Rule::KnownOperation);
    let code = code?;
    broken.require(code != OperationCode::Read || meta.ctrl1 & HAS_IMM == 0, Rule::ImmediateSupported);

    if meta.ctrl1 & INLINE != 0 {
        let supported = match code {
            OperationCode::Send => true,
            OperationCode::Write => size == EntrySize::B128,
            OperationCode::Read => false,
        };
        broken.require(supported, Rule::InlineSupported);
        broken.require(meta.length <= size.inline_limit(), Rule::InlineLength);
        if !supported || meta.length > size.inline_limit() {
            return None;
        }
        let at = if code == OperationCode::Send { DATA } else { RDMA_LOCAL };
        let data = InlineData::new(&bytes[at..at + meta.length]).ok()?;
        if code == OperationCode::Send {
            return Some(Operation::SendInline(data));
        }
        let (remote, remote_length) = get_remote(bytes);
        broken.require(remote_length as usize == meta.length, Rule::RemoteLength);
        return Some(Operation::WriteInline { remote, data });
    }

    if code == OperationCode::Send {
        broken.require(meta.length <= MAX_SEGMENTS, Rule::SegmentCount);
        let count = meta.length.min(MAX_SEGMENTS);
        let mut segments = [Segment::default(); MAX_SEGMENTS];
        for (index, segment) in segments[..count].iter_mut().enumerate() {
            *segment = get_segment(bytes, DATA + index * SEGMENT_BYTES, broken);
        }
        return Segments::new(&segments[..count]).ok().map(Operation::Send);
    }

    broken.require(meta.length == io::EFA_IO_TX_DESC_NUM_RDMA_BUFS as usize, Rule::SegmentCount);
    let local = get_segment(bytes, RDMA_LOCAL, broken);
    let (remote, remote_length) = get_remote(bytes);
    broken.require(remote_length == local.length, Rule::RemoteLength);
    Some(match code {
        OperationCode::Write => Operation::Write { remote, local },
        _ => Operation::Read { remote, local },
    })
}

// Always inline: a result that is stored field by field and loaded as a whole stalls the load.
#[inline(always)]
fn get_segment(bytes: &[u8], at: usize, broken: &mut Rules) -> Segment {
    let lkey = get_u32(bytes, at + offset_of!(efa_io_tx_buf_desc, lkey));
    broken.require(LocalKey::new(lkey).is_ok(), Rule::LocalKeyWidth);
    let lo = at + offset_of!(efa_io_tx_buf_desc, buf_addr_lo);
    Segment {
        address: get_address(bytes, lo, at + offset_of!(efa_io_tx_buf_desc, buf_addr_hi)),
        length: get_u32(bytes, at + offset_of!(efa_io_tx_buf_desc, length)),
        key: LocalKey::from_word(lkey),
    }
}

#[inline(always)]
fn get_remote(bytes: &[u8]) -> (RemoteMemory, u32) {
    let lo = DATA + offset_of!(efa_io_remote_mem_addr, buf_addr_lo);
    let remote = RemoteMemory {
        address: get_address(bytes, lo, DATA + offset_of!(efa_io_remote_mem_addr, buf_addr_hi)),
        key: RemoteKey::new(get_u32(bytes, DATA + offset_of!(efa_io_remote_mem_addr, rkey))),
    };
    (remote, get_u32(bytes, DATA + offset_of!(efa_io_remote_mem_addr, length)))
}
