//! Operations on a mapped queue: launches, a write, waiting, and observing.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use efa_gda::fabric::RemoteRegion;
use efa_gda::queue::{WorkRequest, outstanding};
use efa_gda::wire::{AddressHandle, Peer, QueueKey, QueuePairNumber, RemoteKey};
use efa_gda_sys::device::{efa_gda_peer, efa_gda_queue};

use crate::error::Fault;
use crate::queue::{QUEUES, with};
use crate::region;
use crate::{Handle, call, read_struct, refuse_null, write_struct};

/// `struct efa_gda_write`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Write {
    pub(crate) size: usize,
    pub(crate) peer: efa_gda_peer,
    pub(crate) local: Handle,
    pub(crate) local_offset: u64,
    pub(crate) remote_address: u64,
    pub(crate) rkey: u32,
    pub(crate) reserved: u32,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) timeout_ns: u64,
}

/// `struct efa_gda_progress`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub(crate) size: usize,
    pub(crate) reserved: u32,
    pub(crate) doorbell_index: u32,
    pub(crate) completed: u32,
    pub(crate) in_flight: u32,
    pub(crate) errors: u32,
    pub(crate) first_status: u32,
    pub(crate) first_request: u64,
    pub(crate) poison: u32,
    pub(crate) launches: u32,
}

/// Converts the bound of a wait. 0 selects the default.
fn bound(timeout_ns: u64) -> Duration {
    match timeout_ns {
        0 => WorkRequest::TIMEOUT,
        some => Duration::from_nanos(some),
    }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `device` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_begin_launch(
    queue: Handle,
    device: *mut *mut efa_gda_queue,
) -> c_int {
    call(|| {
        refuse_null(device, "the pointer to the queue's address")?;
        let address = with(queue, |open, driven| {
            open.launches().push(driven.begin_launch());
            Ok(driven.device_address())
        })?;
        // SAFETY: it is not null, and the caller guarantees that it is writable.
        unsafe { device.write(address) };
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_end_launch(queue: Handle) -> c_int {
    call(|| {
        let open = QUEUES.get(queue)?;
        let ended = open.launches().pop();
        ended.map(drop).ok_or_else(|| {
            Fault::argument("no launch uses the queue: each efa_gda_mapped_begin_launch is ended once")
        })
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `write` must be null or a struct of the header with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_write(queue: Handle, write: *const Write) -> c_int {
    call(|| {
        // SAFETY: the caller guarantees a struct with its size.
        let write = unsafe { read_struct(write, "the write") }?;
        let local = region::region(write.local)?;
        let length = write.count.checked_mul(write.bytes);
        let length = length.ok_or_else(|| {
            Fault::argument(format_args!(
                "{} requests of {} bytes are 2^64 bytes or more; lower count or bytes",
                write.count, write.bytes
            ))
        })?;
        let peer = Peer {
            address_handle: AddressHandle::new(write.peer.ah),
            queue_pair: QueuePairNumber::new(write.peer.qpn),
            queue_key: QueueKey::new(write.peer.qkey),
        };
        let remote = RemoteRegion { address: write.remote_address, length, key: RemoteKey::new(write.rkey) };
        let request = WorkRequest::write(peer, &local, remote)
            .offsets(write.local_offset, 0)
            .bytes(write.bytes)
            .count(write.count)
            .stride(write.bytes)
            .timeout(bound(write.timeout_ns));
        with(queue, |open, driven| {
            open.refuse_in_launch()?;
            driven.execute(&request)
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

/// See `efa_gda.h`.
///
/// # Safety
/// `progress` must be null or a struct of the header with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_poll(queue: Handle, progress: *mut Progress) -> c_int {
    call(|| {
        let value = with(queue, |open, driven| {
            let state = driven.state()?;
            let (doorbell_index, completed) = (state.lock.doorbell_index, state.completion.completed);
            Ok(Progress {
                size: 0,
                reserved: state.reserve.word as u32,
                doorbell_index,
                completed,
                in_flight: outstanding(doorbell_index, completed),
                errors: state.error.count,
                first_status: state.error.completion_status,
                first_request: state.error.request_id,
                poison: state.error.poison,
                launches: open.launches().len() as u32,
            })
        })?;
        // SAFETY: the caller guarantees a struct with its size.
        unsafe { write_struct(progress, "the progress", value) }
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `text` must be null or have `size` writable bytes. `length` and `state` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_snapshot(
    queue: Handle,
    text: *mut c_char,
    size: usize,
    length: *mut usize,
    state: *mut efa_gda_queue,
) -> c_int {
    call(|| {
        let snapshot = with(queue, |_, driven| driven.snapshot())?;
        let report = snapshot.to_string();
        if !text.is_null() && size != 0 {
            let copied = report.len().min(size - 1);
            // SAFETY: `copied` bytes and the zero fit in the caller's `size` bytes.
            unsafe {
                text.cast::<u8>().copy_from_nonoverlapping(report.as_ptr(), copied);
                text.add(copied).write(0);
            }
        }
        // SAFETY: each is null or writable, as the caller guarantees. The caller's struct may have any alignment.
        unsafe {
            if !length.is_null() {
                length.write(report.len());
            }
            if !state.is_null() {
                state.write_unaligned(snapshot.state);
            }
        }
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_abort(queue: Handle, raise: c_int) -> c_int {
    call(|| {
        // Without the queue's lock, which a wait holds.
        QUEUES.get(queue)?.abort.set(raise != 0);
        Ok(())
    })
}
