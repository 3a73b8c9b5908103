//! Converts what an endpoint exposes to the struct that a kernel receives.

use std::ptr::null_mut;

use efa_gda_sys::device::{self, efa_gda_cq, efa_gda_queue, efa_gda_rq, efa_gda_sq};
use efa_gda_wire::{EntrySize, QueuePairNumber, RequestIdWidth};

use crate::exposure::Exposure;
use crate::fabric::Limits;

/// Returns the struct for a kernel, with its geometry filled in. The words of the device library are zero.
///
/// An adapter that supports 128-byte entries also supports inline RDMA writes, which they carry.
///
/// The addresses of `exposure` are those of the processor that runs the kernel. Without `receives`, which says whether
/// receives complete on the completion queue that is polled, the struct has no receive queue. `abort` is a word that ends
/// every wait that has a bound when it is not 0.
pub(super) fn geometry(
    exposure: Exposure,
    limits: Limits,
    number: QueuePairNumber,
    receives: bool,
    abort: *const u32,
) -> efa_gda_queue {
    let Exposure { sq, rq, cq } = exposure;
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
        abort,
        max_rdma_size: limits.rdma as u64,
        max_msg_size: limits.message.try_into().unwrap_or(u32::MAX),
        max_inline: sq.entry_size.inline_limit() as u32,
        qpn: number.get().into(),
        ..Default::default()
    };
    if receives {
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
