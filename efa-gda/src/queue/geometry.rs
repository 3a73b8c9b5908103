//! Converts what an endpoint exposes to the struct that a kernel receives.

use std::ptr::null_mut;

use efa_gda_sys::device::{self, efa_gda_cq, efa_gda_queue, efa_gda_rq, efa_gda_sq};
use efa_gda_wire::{EntrySize, ProcessingHints, QueuePairNumber, RequestIdWidth};

use crate::exposure::Exposure;
use crate::fabric::Limits;

/// The inputs of [`geometry`]: rings, limits, and the rest of what a kernel must know of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// The rings and doorbells, at addresses of the processor that runs the kernel.
    pub exposure: Exposure,
    /// The limits of one request.
    pub limits: Limits,
    /// The number of the endpoint's queue pair.
    pub number: QueuePairNumber,
    /// Processing hints for every entry.
    pub hints: ProcessingHints,
    /// Whether receives complete on the completion queue that is polled. If not, the struct has no receive queue.
    pub receives: bool,
    /// A word that ends every wait that has a bound when it is not 0; null for none.
    pub abort: *const u32,
}

/// Returns the struct for a kernel, with its geometry filled in. The words of the device library are zero.
///
/// An adapter that supports 128-byte entries also supports inline RDMA writes, which they carry.
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
        abort: of.abort,
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
