//! From what an endpoint exposes to the struct that a kernel receives.

use std::ptr::{null, null_mut};

use efa_gda_sys::device::{self, efa_gda_cq, efa_gda_queue, efa_gda_rq, efa_gda_sq};
use efa_gda_wire::{EntrySize, ProcessingHints, QueuePairNumber, RequestIdWidth};

use crate::exposure::Exposure;
use crate::fabric::Limits;

/// What a kernel must know of a queue beside its rings.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// The rings and doorbells, at the addresses that the kernel's executor sees.
    pub exposure: Exposure,
    /// How much one request carries.
    pub limits: Limits,
    /// The endpoint's own queue pair.
    pub number: QueuePairNumber,
    /// Hints for every entry.
    pub hints: ProcessingHints,
    /// Whether receives complete on the queue that is polled; without that the kernel gets no
    /// receive queue.
    pub receives: bool,
    /// A word that stops every wait when it is not 0; null for none.
    pub abort: *const u32,
}

/// The struct for a kernel: geometry filled in, all that belongs to the engine zero.
///
/// Entries of 128 bytes carry inline RDMA writes: an adapter that has them has both.
pub fn geometry(of: &Geometry) -> efa_gda_queue {
    let Exposure { sq, rq, cq } = of.exposure;
    let mut flags = 0;
    if sq.request_ids == RequestIdWidth::Bits64 {
        flags |= device::EFA_GDA_SQ_REQ_ID_64;
    }
    if sq.entry_size == EntrySize::B128 {
        flags |= device::EFA_GDA_SQ_INLINE_WRITE;
    }
    let mut queue = efa_gda_queue {
        sq: efa_gda_sq {
            buffer: sq.buffer.as_ptr(),
            doorbell: sq.doorbell.as_ptr(),
            entry_size: sq.entry_size.bytes() as u32,
            num_entries: sq.num_entries,
            max_batch: sq.max_batch,
            flags,
        },
        cq: efa_gda_cq {
            buffer: cq.buffer.as_ptr(),
            doorbell: cq.doorbell.map_or(null_mut(), |doorbell| doorbell.as_ptr()),
            entry_size: cq.entry_size,
            num_entries: cq.num_entries,
        },
        abort: if of.abort.is_null() { null() } else { of.abort },
        max_rdma_size: of.limits.rdma as u64,
        max_msg_size: of.limits.message.try_into().unwrap_or(u32::MAX),
        max_inline: sq.entry_size.inline_limit() as u32,
        qpn: of.number.get().into(),
        hints: u32::from(of.hints.bits()),
        ..Default::default()
    };
    if of.receives {
        queue.rq = efa_gda_rq {
            buffer: rq.buffer.as_ptr(),
            doorbell: rq.doorbell.as_ptr(),
            entry_size: efa_gda_wire::RX_DESCRIPTOR_BYTES as u32,
            num_entries: rq.num_entries,
            max_batch: rq.max_batch,
            flags: 0,
        };
    }
    queue
}
