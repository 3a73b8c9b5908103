//! Work requests that the library posts: `struct efa_gda_work`.

use std::ffi::c_int;

use efa_gda::fabric::RemoteRegion;
use efa_gda::queue::{Region, WorkRequest};
use efa_gda::wire::{AddressHandle, Peer, QueueKey, QueuePairNumber, RemoteKey};
use efa_gda_sys::device::{self, efa_gda_peer};

use crate::error::Fault;
use crate::queue::QUEUES;
use crate::region;
use crate::{Handle, In, bound, call};

/// `struct efa_gda_work`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub(crate) size: usize,
    pub(crate) peer: efa_gda_peer,
    pub(crate) remote_address: u64,
    pub(crate) rkey: u32,
    pub(crate) op: u32,
    pub(crate) local: Handle,
    pub(crate) local_offset: u64,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) timeout_ns: u64,
    pub(crate) immediate: u32,
}

impl Work {
    /// Returns the work request, with its region.
    fn request(&self, local: &Region) -> Result<WorkRequest, Fault> {
        if self.op > device::EFA_GDA_OP_INLINE_SEND {
            return Err(Fault::argument(format_args!(
                "op {} is unknown; expected a value of enum efa_gda_op, which are 0 to {}",
                self.op,
                device::EFA_GDA_OP_INLINE_SEND
            )));
        }
        let length = self.count.checked_mul(self.bytes);
        let length = length.ok_or_else(|| {
            Fault::argument(format_args!(
                "{} transfers of {} bytes are 2^64 bytes or more; lower count or bytes",
                self.count, self.bytes
            ))
        })?;
        let peer = Peer {
            address_handle: AddressHandle::new(self.peer.ah),
            queue_pair: QueuePairNumber::new(self.peer.qpn),
            queue_key: QueueKey::new(self.peer.qkey),
        };
        let remote = RemoteRegion { address: self.remote_address, length, key: RemoteKey::new(self.rkey) };
        let request = match self.op {
            device::EFA_GDA_OP_READ => WorkRequest::read(peer, local, remote),
            device::EFA_GDA_OP_SEND => WorkRequest::send(peer, local),
            device::EFA_GDA_OP_SEND_IMM => WorkRequest::send(peer, local).immediate(self.immediate),
            device::EFA_GDA_OP_INLINE_SEND => WorkRequest::inline_send(peer, local),
            device::EFA_GDA_OP_INLINE_WRITE => WorkRequest::inline_write(peer, local, remote),
            device::EFA_GDA_OP_WRITE_IMM => WorkRequest::write(peer, local, remote).immediate(self.immediate),
            _ => WorkRequest::write(peer, local, remote),
        };
        Ok(request
            .offsets(self.local_offset, 0)
            .bytes(self.bytes)
            .count(self.count)
            .stride(self.bytes)
            .timeout(bound(self.timeout_ns)))
    }
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_execute(queue: Handle, work: In<Work>) -> c_int {
    call(|| {
        let work = work.require("the work")?;
        let work = work.request(&region::region(work.local)?)?;
        QUEUES.with(queue, |open, queue| {
            open.refuse_in_launch()?;
            queue.execute(&work)?;
            Ok(())
        })
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_wait(queue: Handle, timeout_ns: u64) -> c_int {
    call(|| {
        QUEUES.with(queue, |open, queue| {
            open.refuse_in_launch()?;
            queue.quiet(bound(timeout_ns))?;
            Ok(())
        })
    })
}
