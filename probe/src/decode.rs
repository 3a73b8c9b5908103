//! Decodes the bytes of a queue entry into fields, and lists the rules that they break. Fields have the names
//! of `efa_io_defs.h`. Entries that no adapter accepts are decoded as well.

use std::mem::offset_of;

use efa_gda_sys::io::{
    self, efa_io_cdesc_common, efa_io_remote_mem_addr, efa_io_rx_cdesc, efa_io_rx_cdesc_ex, efa_io_rx_desc,
    efa_io_tx_buf_desc, efa_io_tx_cdesc, efa_io_tx_meta_desc, efa_io_tx_wqe,
};
use efa_gda_wire::{
    Completion, CompletionStatus, DecodedRequest, EntrySize, OperationCode, RX_DESCRIPTOR_BYTES,
    ReceiveDescriptor, RequestIdWidth,
};
use serde::Serialize;

/// Why bytes are not an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EntryError {
    /// The length is not that of an entry.
    #[error(
        "an entry cannot have {0} bytes: a send-queue entry has 64 or 128 bytes, a receive descriptor 16"
    )]
    Entry(usize),
    /// The length is not that of a completion.
    #[error("a completion cannot have {0} bytes: it has 16 to 128 bytes, usually 32")]
    Completion(usize),
}

/// Bytes of the longest completion that is accepted.
const LONGEST_COMPLETION: usize = 128;

/// A decoded entry.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Decoded {
    /// `wqe`, `rx` (a receive descriptor) or `cqe`.
    pub(crate) kind: &'static str,
    /// Bytes of the entry.
    pub(crate) bytes: usize,
    /// Fields in the order of the entry.
    pub(crate) fields: Vec<Field>,
    /// The rules that the entry breaks.
    pub(crate) broken: Vec<String>,
}

/// A field.
#[derive(Debug, Serialize)]
pub(crate) struct Field {
    /// The offset of its first byte.
    pub(crate) offset: usize,
    /// Its bits, if it is a part of the byte or word at the offset: `3:0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bits: Option<String>,
    /// Its name in `efa_io_defs.h`.
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: String,
    /// Its meaning to the adapter.
    pub(crate) meaning: &'static str,
}

impl Decoded {
    fn of(kind: &'static str, bytes: &[u8]) -> Self {
        Self { kind, bytes: bytes.len(), ..Self::default() }
    }

    fn field(&mut self, offset: usize, name: impl Into<String>, value: impl ToString, meaning: &'static str) {
        self.fields.push(Field { offset, bits: None, name: name.into(), value: value.to_string(), meaning });
    }

    /// Adds a field of some bits of the byte or word at `offset`.
    fn bits(&mut self, offset: usize, mask: u32, name: &str, value: impl ToString, meaning: &'static str) {
        let (low, high) = (mask.trailing_zeros(), 31 - mask.leading_zeros());
        let bits = if low == high { low.to_string() } else { format!("{high}:{low}") };
        let (name, value) = (name.to_owned(), value.to_string());
        self.fields.push(Field { offset, bits: Some(bits), name, value, meaning });
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn address_at(bytes: &[u8], low: usize) -> String {
    format!("{:#x}", u64::from(u32_at(bytes, low)) | u64::from(u32_at(bytes, low + 4)) << 32)
}

fn masked(mask: u32, word: u32) -> u32 {
    (word & mask) >> mask.trailing_zeros()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn operation(code: u32) -> String {
    let name = OperationCode::from_number(code).map(|operation| operation.to_string());
    format!("{code} ({})", name.as_deref().unwrap_or("unknown"))
}

/// Decodes a work-queue entry: 64 or 128 bytes of a send queue, or 16 bytes of a receive queue.
pub(crate) fn work_entry(bytes: &[u8], ids: RequestIdWidth) -> Result<Decoded, EntryError> {
    if let Ok(descriptor) = <&[u8; RX_DESCRIPTOR_BYTES]>::try_from(bytes) {
        return Ok(receive_descriptor(descriptor));
    }
    let entry = DecodedRequest::decode(bytes, ids).map_err(|_| EntryError::Entry(bytes.len()))?;
    let mut decoded = Decoded::of("wqe", bytes);
    meta(&mut decoded, bytes, &entry);
    payload(&mut decoded, bytes, entry.size);
    decoded.broken = entry.broken.iter().map(|rule| rule.to_string()).collect();
    Ok(decoded)
}

fn meta(decoded: &mut Decoded, bytes: &[u8], entry: &DecodedRequest) {
    use io::*;
    let at = offset_of!(efa_io_tx_meta_desc, req_id);
    decoded.field(at, "req_id", entry.id.get(), "returned in the completion");
    let at = offset_of!(efa_io_tx_meta_desc, ctrl1);
    let ctrl = u32::from(bytes[at]);
    let code = masked(EFA_IO_TX_META_DESC_OP_TYPE_MASK, ctrl);
    decoded.bits(at, EFA_IO_TX_META_DESC_OP_TYPE_MASK, "op_type", operation(code), "the operation");
    for (mask, name, meaning) in [
        (EFA_IO_TX_META_DESC_HAS_IMM_MASK, "has_imm", "immediate_data is delivered to the receiver"),
        (EFA_IO_TX_META_DESC_INLINE_MSG_MASK, "inline_msg", "the data is in the entry"),
        (EFA_IO_TX_META_DESC_META_EXTENSION_MASK, "meta_extension", "must be zero"),
        (EFA_IO_TX_META_DESC_META_DESC_MASK, "meta_desc", "must be set"),
    ] {
        decoded.bits(at, mask, name, masked(mask, ctrl), meaning);
    }
    let at = offset_of!(efa_io_tx_meta_desc, ctrl2);
    let ctrl = u32::from(bytes[at]);
    for (mask, name, meaning) in [
        (EFA_IO_TX_META_DESC_PHASE_MASK, "phase", "0 in the first lap of the ring, then it alternates"),
        (EFA_IO_TX_META_DESC_FIRST_MASK, "first", "must be set"),
        (EFA_IO_TX_META_DESC_LAST_MASK, "last", "must be set"),
        (EFA_IO_TX_META_DESC_COMP_REQ_MASK, "comp_req", "must be set: every request completes"),
    ] {
        decoded.bits(at, mask, name, masked(mask, ctrl), meaning);
    }
    let inline =
        bytes[offset_of!(efa_io_tx_meta_desc, ctrl1)] & EFA_IO_TX_META_DESC_INLINE_MSG_MASK as u8 != 0;
    let length = if inline { "inline bytes" } else { "segments of local memory" };
    let word = |at: usize| u16_at(bytes, at);
    let number = offset_of!(efa_io_tx_meta_desc, dest_qp_num);
    decoded.field(number, "dest_qp_num", word(number), "the queue pair at the target");
    let at = offset_of!(efa_io_tx_meta_desc, length);
    decoded.field(at, "length", word(at), length);
    let at = offset_of!(efa_io_tx_meta_desc, immediate_data);
    decoded.field(at, "immediate_data", format!("{:#x}", u32_at(bytes, at)), "valid if has_imm is set");
    let at = offset_of!(efa_io_tx_meta_desc, ah);
    decoded.field(at, "ah", word(at), "the address handle of the target");
    let at = offset_of!(efa_io_tx_meta_desc, ctrl3);
    decoded.field(
        at,
        "ctrl3",
        format!("{:#x}", bytes[at]),
        "processing hints in bits 1:0; other bits must be zero",
    );
    let at = offset_of!(efa_io_tx_meta_desc, reserved);
    decoded.field(at, "reserved", format!("{:#x}", bytes[at]), "must be zero");
    let at = offset_of!(efa_io_tx_meta_desc, qkey);
    decoded.field(at, "qkey", format!("{:#x}", u32_at(bytes, at)), "the key of the target's queue pair");
    let (at, end) = (offset_of!(efa_io_tx_meta_desc, reserved2), offset_of!(efa_io_tx_meta_desc, req_id_ex));
    decoded.field(at, "reserved2", hex(&bytes[at..end]), "must be zero");
    let after = offset_of!(efa_io_tx_wqe, data);
    decoded.field(
        end,
        "req_id_ex",
        hex(&bytes[end..after]),
        "bits 16 to 63 of a 64-bit req_id, otherwise zero",
    );
}

/// Decodes the bytes after the meta descriptor, whose form depends on the operation and the inline bit.
fn payload(decoded: &mut Decoded, bytes: &[u8], size: EntrySize) {
    let data = offset_of!(efa_io_tx_wqe, data);
    let after_address = data + size_of::<efa_io_remote_mem_addr>();
    let ctrl = u32::from(bytes[offset_of!(efa_io_tx_meta_desc, ctrl1)]);
    let inline = ctrl & io::EFA_IO_TX_META_DESC_INLINE_MSG_MASK != 0;
    let length = usize::from(u16_at(bytes, offset_of!(efa_io_tx_meta_desc, length)));
    let code = masked(io::EFA_IO_TX_META_DESC_OP_TYPE_MASK, ctrl);
    let inline_data = |decoded: &mut Decoded, at: usize| {
        let end = (at + length.min(size.inline_limit())).min(bytes.len());
        decoded.field(at, "inline_data", hex(&bytes[at..end]), "the bytes to send");
    };
    match (OperationCode::from_number(code), inline) {
        (Some(OperationCode::Send), true) => inline_data(decoded, data),
        (Some(OperationCode::Send), false) => {
            for index in 0..length.min(io::EFA_IO_TX_DESC_NUM_BUFS as usize) {
                let at = data + index * size_of::<efa_io_tx_buf_desc>();
                segment(decoded, bytes, at, &format!("sgl[{index}]"));
            }
        }
        (Some(OperationCode::Write), true) if size == EntrySize::B128 => {
            remote(decoded, bytes, data);
            inline_data(decoded, after_address);
        }
        (Some(OperationCode::Write | OperationCode::Read), false) => {
            remote(decoded, bytes, data);
            segment(decoded, bytes, after_address, "local_mem");
        }
        _ => {
            decoded.field(
                data,
                "data",
                hex(&bytes[data..]),
                "not decoded: op_type and inline_msg define no form",
            );
        }
    }
}

fn segment(decoded: &mut Decoded, bytes: &[u8], start: usize, name: &str) {
    let at = start + offset_of!(efa_io_tx_buf_desc, length);
    decoded.field(at, format!("{name}.length"), u32_at(bytes, at), "bytes of local memory");
    let at = start + offset_of!(efa_io_tx_buf_desc, lkey);
    decoded.field(at, format!("{name}.lkey"), format!("{:#x}", u32_at(bytes, at)), "its 24-bit key");
    let at = start + offset_of!(efa_io_tx_buf_desc, buf_addr_lo);
    decoded.field(at, format!("{name}.buf_addr"), address_at(bytes, at), "its first byte");
}

fn remote(decoded: &mut Decoded, bytes: &[u8], start: usize) {
    let at = start + offset_of!(efa_io_remote_mem_addr, length);
    decoded.field(
        at,
        "remote_mem.length",
        u32_at(bytes, at),
        "bytes of remote memory; must equal the local length",
    );
    let at = start + offset_of!(efa_io_remote_mem_addr, rkey);
    decoded.field(at, "remote_mem.rkey", format!("{:#x}", u32_at(bytes, at)), "its key");
    let at = start + offset_of!(efa_io_remote_mem_addr, buf_addr_lo);
    decoded.field(at, "remote_mem.buf_addr", address_at(bytes, at), "its first byte");
}

fn receive_descriptor(bytes: &[u8; RX_DESCRIPTOR_BYTES]) -> Decoded {
    let mut decoded = Decoded::of("rx", bytes);
    let descriptor = ReceiveDescriptor::decode(bytes);
    let at = offset_of!(efa_io_rx_desc, buf_addr_lo);
    decoded.field(at, "buf_addr", address_at(bytes, at), "the buffer's first byte");
    let at = offset_of!(efa_io_rx_desc, req_id);
    decoded.field(at, "req_id", descriptor.receive.id, "returned in the completion");
    let at = offset_of!(efa_io_rx_desc, length);
    decoded.field(at, "length", descriptor.receive.length, "bytes of the buffer");
    let at = offset_of!(efa_io_rx_desc, lkey_ctrl);
    let key = format!("{:#x}", descriptor.receive.key.get());
    decoded.bits(at, io::EFA_IO_RX_DESC_LKEY_MASK, "lkey", key, "the buffer's key");
    let first = u8::from(descriptor.first);
    decoded.bits(at, io::EFA_IO_RX_DESC_FIRST_MASK, "first", first, "first descriptor of a receive");
    decoded.bits(
        at,
        io::EFA_IO_RX_DESC_LAST_MASK,
        "last",
        u8::from(descriptor.last),
        "last descriptor of a receive",
    );
    if !descriptor.reserved_zero {
        decoded.broken.push("bits 29:24 of lkey_ctrl must be zero".to_owned());
    }
    decoded
}

/// Decodes a completion of 16 to 128 bytes.
pub(crate) fn completion(bytes: &[u8], ids: RequestIdWidth) -> Result<Decoded, EntryError> {
    if !(size_of::<efa_io_tx_cdesc>()..=LONGEST_COMPLETION).contains(&bytes.len()) {
        return Err(EntryError::Completion(bytes.len()));
    }
    let mut decoded = Decoded::of("cqe", bytes);
    let completion = Completion::decode(bytes, ids);
    let low = u64::from(u16_at(bytes, offset_of!(efa_io_cdesc_common, req_id)));
    let id = completion.as_ref().map_or(low, |completion| completion.id.get());
    decoded.field(offset_of!(efa_io_cdesc_common, req_id), "req_id", id, "the request that completed");
    let at = offset_of!(efa_io_cdesc_common, status);
    let status = CompletionStatus::from_code(bytes[at]);
    decoded.field(at, "status", format!("{} ({status})", status.code()), "the result of the request");
    let queue = flags(&mut decoded, bytes);
    let at = offset_of!(efa_io_cdesc_common, qp_num);
    decoded.field(at, "qp_num", u16_at(bytes, at), "the local queue pair");
    match queue {
        io::EFA_IO_SEND_QUEUE => {
            let (at, end) = (offset_of!(efa_io_tx_cdesc, req_id_ex), offset_of!(efa_io_tx_cdesc, reserved));
            decoded.field(at, "req_id_ex", hex(&bytes[at..end]), "bits 16 to 63 of a 64-bit req_id");
        }
        io::EFA_IO_RECV_QUEUE => received(&mut decoded, bytes),
        _ => {}
    }
    if let Err(error) = completion {
        decoded.broken.push(error.to_string());
    }
    Ok(decoded)
}

/// Decodes the flags byte. Returns `q_type`.
fn flags(decoded: &mut Decoded, bytes: &[u8]) -> u32 {
    use io::*;
    let at = offset_of!(efa_io_cdesc_common, flags);
    let flags = u32::from(bytes[at]);
    let phase = masked(EFA_IO_CDESC_COMMON_PHASE_MASK, flags);
    let meaning = "1 in the first lap of the ring, then it alternates";
    decoded.bits(at, EFA_IO_CDESC_COMMON_PHASE_MASK, "phase", phase, meaning);
    let queue = masked(EFA_IO_CDESC_COMMON_Q_TYPE_MASK, flags);
    let name = match queue {
        EFA_IO_SEND_QUEUE => "send queue",
        EFA_IO_RECV_QUEUE => "receive queue",
        _ => "unknown",
    };
    let value = format!("{queue} ({name})");
    decoded.bits(at, EFA_IO_CDESC_COMMON_Q_TYPE_MASK, "q_type", value, "the queue of the request");
    let immediate = masked(EFA_IO_CDESC_COMMON_HAS_IMM_MASK, flags);
    decoded.bits(at, EFA_IO_CDESC_COMMON_HAS_IMM_MASK, "has_imm", immediate, "imm holds the immediate data");
    let code = masked(EFA_IO_CDESC_COMMON_OP_TYPE_MASK, flags);
    decoded.bits(at, EFA_IO_CDESC_COMMON_OP_TYPE_MASK, "op_type", operation(code), "the operation");
    let unsolicited = masked(EFA_IO_CDESC_COMMON_UNSOLICITED_MASK, flags);
    let meaning = "no posted receive was consumed";
    decoded.bits(at, EFA_IO_CDESC_COMMON_UNSOLICITED_MASK, "unsolicited", unsolicited, meaning);
    if OperationCode::from_number(code).is_none() {
        decoded.broken.push(format!("op_type (flags bits 6:4) is {code}, which is not an operation"));
    }
    queue
}

/// Decodes the part that only completions of receives have.
fn received(decoded: &mut Decoded, bytes: &[u8]) {
    let at = offset_of!(efa_io_rx_cdesc, length);
    let code = masked(
        io::EFA_IO_CDESC_COMMON_OP_TYPE_MASK,
        u32::from(bytes[offset_of!(efa_io_cdesc_common, flags)]),
    );
    let written = OperationCode::from_number(code) == Some(OperationCode::Write);
    let high_at = offset_of!(efa_io_rx_cdesc_ex, u);
    let high = if written && bytes.len() >= high_at + 2 { u32::from(u16_at(bytes, high_at)) } else { 0 };
    decoded.field(at, "length", u32::from(u16_at(bytes, at)) | high << 16, "bytes that arrived");
    let at = offset_of!(efa_io_rx_cdesc, ah);
    decoded.field(at, "ah", u16_at(bytes, at), "the local address handle of the sender; 65535: none");
    let at = offset_of!(efa_io_rx_cdesc, src_qp_num);
    decoded.field(at, "src_qp_num", u16_at(bytes, at), "the sender's queue pair");
    let at = offset_of!(efa_io_rx_cdesc, imm);
    decoded.field(at, "imm", format!("{:#x}", u32_at(bytes, at)), "valid if has_imm is set");
    if written && bytes.len() >= high_at + 2 {
        decoded.field(high_at, "length_hi", high, "bits 16 to 31 of the written length");
    } else if bytes.len() >= high_at + 16 {
        let source = hex(&bytes[high_at..high_at + 16]);
        decoded.field(high_at, "src_addr", source, "the sender's GID, if ah is 65535");
    }
}
