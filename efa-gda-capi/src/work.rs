//! Work requests that the library posts: `struct efa_gda_work`.

use std::ffi::c_int;

use efa_gda::fabric::RemoteRegion;
use efa_gda::queue::{self, WorkRequest};
use efa_gda::wire::{AddressHandle, Peer, QueueKey, QueuePairNumber, RemoteKey};
use efa_gda_sys::device::{self, efa_gda_peer};

use crate::error::Fault;
use crate::queue::with;
use crate::region::{self, Region};
use crate::{Handle, bound, call, read_struct};

/// `struct efa_gda_work`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub(crate) size: usize,
    pub(crate) peer: efa_gda_peer,
    pub(crate) local: Handle,
    pub(crate) local_offset: u64,
    pub(crate) remote_address: u64,
    pub(crate) rkey: u32,
    pub(crate) op: u32,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) timeout_ns: u64,
    pub(crate) immediate: u32,
    pub(crate) reserved: u32,
}

/// A work request of the caller, checked, with its region.
pub(crate) struct WorkOf<'a> {
    pub(crate) local: &'a Region,
    work: Work,
    /// Bytes of all transfers together.
    length: u64,
}

impl<'a> WorkOf<'a> {
    fn new(work: Work, local: &'a Region) -> Result<Self, Fault> {
        if work.op > device::EFA_GDA_OP_INLINE_SEND {
            return Err(Fault::argument(format_args!(
                "op {} is unknown; expected a value of enum efa_gda_op, which are 0 to {}",
                work.op,
                device::EFA_GDA_OP_INLINE_SEND
            )));
        }
        let length = work.count.checked_mul(work.bytes);
        let length = length.ok_or_else(|| {
            Fault::argument(format_args!(
                "{} transfers of {} bytes are 2^64 bytes or more; lower count or bytes",
                work.count, work.bytes
            ))
        })?;
        Ok(Self { local, work, length })
    }

    /// Returns the work request for a region of one layer.
    pub(crate) fn request<R: queue::Region>(&self, local: &R) -> WorkRequest<R> {
        let Self { work, length, .. } = *self;
        let peer = Peer {
            address_handle: AddressHandle::new(work.peer.ah),
            queue_pair: QueuePairNumber::new(work.peer.qpn),
            queue_key: QueueKey::new(work.peer.qkey),
        };
        let remote = RemoteRegion { address: work.remote_address, length, key: RemoteKey::new(work.rkey) };
        let request = match work.op {
            device::EFA_GDA_OP_READ => WorkRequest::read(peer, local, remote),
            device::EFA_GDA_OP_SEND => WorkRequest::send(peer, local),
            device::EFA_GDA_OP_SEND_IMM => WorkRequest::send(peer, local).immediate(work.immediate),
            device::EFA_GDA_OP_INLINE_SEND => WorkRequest::inline_send(peer, local),
            device::EFA_GDA_OP_INLINE_WRITE => WorkRequest::inline_write(peer, local, remote),
            device::EFA_GDA_OP_WRITE_IMM => WorkRequest::write(peer, local, remote).immediate(work.immediate),
            _ => WorkRequest::write(peer, local, remote),
        };
        request
            .offsets(work.local_offset, 0)
            .bytes(work.bytes)
            .count(work.count)
            .stride(work.bytes)
            .timeout(bound(work.timeout_ns))
    }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `work` must be null or a struct of the header with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_execute(queue: Handle, work: *const Work) -> c_int {
    call(|| {
        // SAFETY: the caller guarantees a struct with its size.
        let work = unsafe { read_struct(work, "the work") }?;
        let local = region::region(work.local)?;
        let work = WorkOf::new(work, &local)?;
        with(queue, |open, driven| {
            open.refuse_in_launch()?;
            driven.execute(&work)
        })
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_wait(queue: Handle, timeout_ns: u64) -> c_int {
    call(|| {
        with(queue, |open, driven| {
            open.refuse_in_launch()?;
            driven.quiet(bound(timeout_ns))
        })
    })
}
