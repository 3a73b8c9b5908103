//! Completion-queue entries.
//!
//! An adapter encodes them ([`Completion::encode`]), and a poller decodes them ([`Completion::decode`]). Entries have
//! 32 bytes in practice. The fields in use are in the first 18; a queue with shorter entries omits the fields that do
//! not fit.

use std::mem::offset_of;

use efa_gda_sys::io::{self, efa_io_cdesc_common, efa_io_rx_cdesc, efa_io_rx_cdesc_ex, efa_io_tx_cdesc};

use crate::bytes::{extract, field, get_u16, get_u32, put_u16, put_u32};
use crate::ids::{AddressHandle, QueuePairNumber, RequestId, RequestIdWidth};
use crate::request::OperationCode;
use crate::status::CompletionStatus;

/// The address handle in a receive completion whose sender has no handle on this adapter.
pub const UNKNOWN_ADDRESS_HANDLE: AddressHandle = AddressHandle::new(u16::MAX);

/// Bytes of one completion, unless a queue reports shorter entries.
pub const COMPLETION_BYTES: usize = size_of::<efa_io_rx_cdesc_ex>();

const LENGTH_HI: usize =
    offset_of!(efa_io_rx_cdesc_ex, u) + offset_of!(io::efa_io_rx_cdesc_rdma_write, length_hi);
/// The fewest bytes of a completion of either kind.
const SHORTEST: usize = size_of::<efa_io_tx_cdesc>();

/// One entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id of the request that completed; 0 for an unsolicited receive.
    pub id: RequestId,
    /// How the request ended.
    pub status: CompletionStatus,
    /// The number in `op_type`.
    pub operation_code: u8,
    /// The local queue pair.
    pub queue_pair: QueuePairNumber,
    /// Which queue of the queue pair completed, and that side's fields.
    pub kind: CompletionKind,
}

/// The queue of a queue pair to which a completion belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// The send queue: a request completed.
    Send,
    /// The receive queue: a message, or an RDMA write with immediate, arrived.
    Receive(ReceiveInfo),
}

/// The fields of a receive completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveInfo {
    /// Bytes that arrived.
    pub length: u32,
    /// This adapter's handle for the sender, or [`UNKNOWN_ADDRESS_HANDLE`].
    pub address_handle: AddressHandle,
    /// The sender's queue pair.
    pub source_queue_pair: QueuePairNumber,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Whether the completion consumed no posted receive (RDMA write with immediate).
    pub unsolicited: bool,
}

/// Why bytes cannot be decoded as a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionDecodeError {
    /// Too few bytes.
    #[error("a completion has at least {SHORTEST} bytes, not {0}")]
    TooShort(usize),
    /// `q_type` is neither send nor receive.
    #[error("the completion's q_type (flags bits 2:1) is {0}; expected 1 (send queue) or 2 (receive queue)")]
    UnknownQueue(u8),
}

impl Completion {
    /// Encodes the completion into `bytes` with the phase bit `phase`, and zeroes the remaining bytes.
    ///
    /// # Panics
    /// If `bytes` has fewer than 16 bytes, the size of the smallest completion.
    #[inline]
    pub fn encode(&self, bytes: &mut [u8], phase: bool, ids: RequestIdWidth) {
        bytes.fill(0);
        let (queue, has_imm, unsolicited) = match &self.kind {
            CompletionKind::Send => (io::EFA_IO_SEND_QUEUE, false, false),
            CompletionKind::Receive(info) => {
                (io::EFA_IO_RECV_QUEUE, info.immediate.is_some(), info.unsolicited)
            }
        };
        let flags = field(io::EFA_IO_CDESC_COMMON_PHASE_MASK, phase.into())
            | field(io::EFA_IO_CDESC_COMMON_Q_TYPE_MASK, queue)
            | field(io::EFA_IO_CDESC_COMMON_HAS_IMM_MASK, has_imm.into())
            | field(io::EFA_IO_CDESC_COMMON_OP_TYPE_MASK, self.operation_code.into())
            | field(io::EFA_IO_CDESC_COMMON_UNSOLICITED_MASK, unsolicited.into());
        put_u16(bytes, offset_of!(efa_io_cdesc_common, req_id), self.id.get() as u16);
        bytes[offset_of!(efa_io_cdesc_common, status)] = self.status.code();
        bytes[offset_of!(efa_io_cdesc_common, flags)] = flags as u8;
        put_u16(bytes, offset_of!(efa_io_cdesc_common, qp_num), self.queue_pair.get());
        match &self.kind {
            CompletionKind::Send if ids == RequestIdWidth::Bits64 => {
                for (word, shift) in [16, 32, 48].into_iter().enumerate() {
                    let at = offset_of!(efa_io_tx_cdesc, req_id_ex) + 2 * word;
                    put_u16(bytes, at, (self.id.get() >> shift) as u16);
                }
            }
            CompletionKind::Send => {}
            CompletionKind::Receive(info) => {
                put_u16(bytes, offset_of!(efa_io_rx_cdesc, length), info.length as u16);
                put_u16(bytes, offset_of!(efa_io_rx_cdesc, ah), info.address_handle.get());
                put_u16(bytes, offset_of!(efa_io_rx_cdesc, src_qp_num), info.source_queue_pair.get());
                put_u32(bytes, offset_of!(efa_io_rx_cdesc, imm), info.immediate.unwrap_or(0));
                if self.is_write() && bytes.len() >= LENGTH_HI + 2 {
                    put_u16(bytes, LENGTH_HI, (info.length >> 16) as u16);
                }
            }
        }
    }

    /// Decodes an entry. The caller must have checked its phase bit with [`Completion::phase`].
    ///
    /// # Errors
    /// [`CompletionDecodeError`] for too few bytes or an unknown queue.
    #[inline]
    pub fn decode(bytes: &[u8], ids: RequestIdWidth) -> Result<Self, CompletionDecodeError> {
        if bytes.len() < SHORTEST {
            return Err(CompletionDecodeError::TooShort(bytes.len()));
        }
        let flags = u32::from(bytes[offset_of!(efa_io_cdesc_common, flags)]);
        let low = u64::from(get_u16(bytes, offset_of!(efa_io_cdesc_common, req_id)));
        let mut completion = Self {
            id: RequestId::new(low),
            status: CompletionStatus::from_code(bytes[offset_of!(efa_io_cdesc_common, status)]),
            operation_code: extract(io::EFA_IO_CDESC_COMMON_OP_TYPE_MASK, flags) as u8,
            queue_pair: QueuePairNumber::new(get_u16(bytes, offset_of!(efa_io_cdesc_common, qp_num))),
            kind: CompletionKind::Send,
        };
        match extract(io::EFA_IO_CDESC_COMMON_Q_TYPE_MASK, flags) {
            io::EFA_IO_SEND_QUEUE if ids == RequestIdWidth::Bits64 => {
                let at = offset_of!(efa_io_tx_cdesc, req_id_ex);
                let id = (0..3)
                    .fold(low, |id, word| id | u64::from(get_u16(bytes, at + 2 * word)) << (16 * (word + 1)));
                completion.id = RequestId::new(id);
            }
            io::EFA_IO_SEND_QUEUE => {}
            io::EFA_IO_RECV_QUEUE => {
                let high = match bytes.len() >= LENGTH_HI + 2 && completion.is_write() {
                    true => u32::from(get_u16(bytes, LENGTH_HI)) << 16,
                    false => 0,
                };
                completion.kind = CompletionKind::Receive(ReceiveInfo {
                    length: u32::from(get_u16(bytes, offset_of!(efa_io_rx_cdesc, length))) | high,
                    address_handle: AddressHandle::new(get_u16(bytes, offset_of!(efa_io_rx_cdesc, ah))),
                    source_queue_pair: QueuePairNumber::new(get_u16(
                        bytes,
                        offset_of!(efa_io_rx_cdesc, src_qp_num),
                    )),
                    immediate: (flags & io::EFA_IO_CDESC_COMMON_HAS_IMM_MASK != 0)
                        .then(|| get_u32(bytes, offset_of!(efa_io_rx_cdesc, imm))),
                    unsolicited: flags & io::EFA_IO_CDESC_COMMON_UNSOLICITED_MASK != 0,
                });
            }
            other => return Err(CompletionDecodeError::UnknownQueue(other as u8)),
        }
        Ok(completion)
    }

    /// Offset of the byte with the phase bit. The adapter writes it last, and a poller reads it first.
    pub const FLAGS_OFFSET: usize = offset_of!(efa_io_cdesc_common, flags);

    /// The phase bit in a completion's flags byte.
    pub const fn phase(flags: u8) -> bool {
        flags as u32 & io::EFA_IO_CDESC_COMMON_PHASE_MASK != 0
    }

    #[inline]
    fn is_write(&self) -> bool {
        u32::from(self.operation_code) == OperationCode::Write.get()
    }
}
