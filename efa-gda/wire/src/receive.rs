//! Receive-queue entries. A posted receive has one descriptor for each of its segments; flags mark the first and the
//! last.

use std::mem::offset_of;

use efa_gda_sys::io::{self, efa_io_rx_desc};

use crate::bytes::{get_address, get_u16, get_u32, put_address, put_u16, put_u32};
use crate::ids::{LocalKey, RequestId};

/// Bytes of one receive descriptor.
pub const RX_DESCRIPTOR_BYTES: usize = size_of::<efa_io_rx_desc>();

/// A receive of one segment, the only kind that this project posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The request id, returned in the completion: 16 bits.
    pub id: u16,
    /// First byte of the buffer.
    pub address: u64,
    /// Bytes of the buffer: 16 bits.
    pub length: u16,
    /// The buffer's key.
    pub key: LocalKey,
}

impl Receive {
    /// Encodes this receive as one descriptor.
    pub fn encode(&self) -> [u8; RX_DESCRIPTOR_BYTES] {
        ReceiveDescriptor { receive: *self, first: true, last: true, reserved_zero: true }.encode()
    }
}

/// One receive descriptor in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveDescriptor {
    /// The segment and request id.
    pub receive: Receive,
    /// Whether the descriptor begins a receive.
    pub first: bool,
    /// Whether the descriptor ends a receive.
    pub last: bool,
    /// Whether bits 29:24 of `lkey_ctrl` are zero, as they must be.
    pub reserved_zero: bool,
}

impl ReceiveDescriptor {
    /// Encodes the descriptor; reserved bits are zero.
    pub fn encode(&self) -> [u8; RX_DESCRIPTOR_BYTES] {
        let mut bytes = [0; RX_DESCRIPTOR_BYTES];
        let lo = offset_of!(efa_io_rx_desc, buf_addr_lo);
        put_address(&mut bytes, lo, offset_of!(efa_io_rx_desc, buf_addr_hi), self.receive.address);
        put_u16(&mut bytes, offset_of!(efa_io_rx_desc, req_id), self.receive.id);
        put_u16(&mut bytes, offset_of!(efa_io_rx_desc, length), self.receive.length);
        let first = if self.first { io::EFA_IO_RX_DESC_FIRST_MASK } else { 0 };
        let last = if self.last { io::EFA_IO_RX_DESC_LAST_MASK } else { 0 };
        put_u32(&mut bytes, offset_of!(efa_io_rx_desc, lkey_ctrl), self.receive.key.get() | first | last);
        bytes
    }

    /// Decodes a descriptor.
    pub fn decode(bytes: &[u8; RX_DESCRIPTOR_BYTES]) -> Self {
        let control = get_u32(bytes, offset_of!(efa_io_rx_desc, lkey_ctrl));
        let known =
            io::EFA_IO_RX_DESC_LKEY_MASK | io::EFA_IO_RX_DESC_FIRST_MASK | io::EFA_IO_RX_DESC_LAST_MASK;
        let lo = offset_of!(efa_io_rx_desc, buf_addr_lo);
        Self {
            receive: Receive {
                id: get_u16(bytes, offset_of!(efa_io_rx_desc, req_id)),
                address: get_address(bytes, lo, offset_of!(efa_io_rx_desc, buf_addr_hi)),
                length: get_u16(bytes, offset_of!(efa_io_rx_desc, length)),
                key: LocalKey::from_word(control),
            },
            first: control & io::EFA_IO_RX_DESC_FIRST_MASK != 0,
            last: control & io::EFA_IO_RX_DESC_LAST_MASK != 0,
            reserved_zero: control & !known == 0,
        }
    }

    /// The request id, as its completion carries it.
    pub fn request_id(&self) -> RequestId {
        RequestId::new(self.receive.id.into())
    }
}
