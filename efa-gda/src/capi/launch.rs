//! What is done with a mapped queue: lent to launches, written from, waited for, watched, stopped.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use efa_gda_sys::device::{efa_gda_peer, efa_gda_queue};
use efa_gda_wire::{AddressHandle, Peer, QueueKey, QueuePairNumber, RemoteKey};

use super::error::Fault;
use super::queue::{Abort, Driven, QUEUES, with};
use super::region;
use super::{Handle, entry, fill, given, sized};
use crate::fabric::RemoteRegion;
use crate::queue::{WorkRequest, outstanding};

/// `struct efa_gda_write`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Write {
    size: usize,
    peer: efa_gda_peer,
    local: Handle,
    local_offset: u64,
    remote_address: u64,
    rkey: u32,
    reserved: u32,
    bytes: u64,
    count: u64,
    timeout_ns: u64,
}

/// A bound of C's: 0 is the default.
fn bound(timeout_ns: u64) -> Duration {
    match timeout_ns {
        0 => WorkRequest::TIMEOUT,
        some => Duration::from_nanos(some),
    }
}

/// `struct efa_gda_progress`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    size: usize,
    reserved: u32,
    rung: u32,
    completed: u32,
    in_flight: u32,
    errors: u32,
    first_status: u32,
    first_request: u64,
    poison: u32,
    lent: u32,
}

/// See `efa_gda.h`.
///
/// # Safety
/// `device` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_begin_launch(
    queue: Handle,
    device: *mut *mut efa_gda_queue,
) -> c_int {
    entry(|| {
        given(device, "the place for the queue's address")?;
        let address = with(queue, |open, driven| {
            let (address, lent) = match driven {
                Driven::Host(queue) => (queue.as_ptr().as_ptr(), None),
                Driven::Gpu(queue) => (queue.device_address(), Some(queue.begin_launch())),
            };
            open.lent().push(lent);
            Ok(address)
        })?;
        // SAFETY: not null, and the caller's place.
        unsafe { device.write(address) };
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_end_launch(queue: Handle) -> c_int {
    entry(|| {
        let open = QUEUES.get(queue)?;
        let returned = open.lent().pop();
        returned.map(drop).ok_or_else(|| Fault::argument("the queue is not lent"))
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `write` is null or a struct of the header's, with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_write(queue: Handle, write: *const Write) -> c_int {
    entry(|| {
        // SAFETY: the caller's struct.
        let write = unsafe { sized(write, "the write") }?;
        let local = region::region(write.local)?;
        let extent = write.count.checked_mul(write.bytes);
        let length = extent.ok_or_else(|| Fault::argument("count times bytes is past 2^64"))?;
        let peer = Peer {
            address_handle: AddressHandle::new(write.peer.ah),
            queue_pair: QueuePairNumber::new(write.peer.qpn),
            queue_key: QueueKey::new(write.peer.qkey),
        };
        let remote = RemoteRegion { address: write.remote_address, length, key: RemoteKey::new(write.rkey) };
        let put = WorkRequest::write(peer, &local, remote).offsets(write.local_offset, 0);
        let put = put.bytes(write.bytes).count(write.count).stride(write.bytes);
        let put = put.timeout(bound(write.timeout_ns));
        with(queue, |open, driven| {
            open.refuse_in_launch()?;
            match driven {
                Driven::Host(queue) => queue.execute(&put)?,
                Driven::Gpu(queue) => queue.execute(&put)?,
            };
            Ok(())
        })
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_wait(queue: Handle, timeout_ns: u64) -> c_int {
    let timeout = bound(timeout_ns);
    entry(|| {
        with(queue, |open, driven| {
            open.refuse_in_launch()?;
            match driven {
                Driven::Host(queue) => queue.quiet(timeout)?,
                Driven::Gpu(queue) => queue.quiet(timeout)?,
            };
            Ok(())
        })
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `progress` is null or a struct of the header's, with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_poll(queue: Handle, progress: *mut Progress) -> c_int {
    entry(|| {
        let value = with(queue, |open, driven| {
            let state = match driven {
                Driven::Host(queue) => queue.state(),
                Driven::Gpu(queue) => queue.state()?,
            };
            let completed = state.completion.completed;
            Ok(Progress {
                size: 0,
                reserved: state.reserve.word as u32,
                rung: state.lock.doorbell_index,
                completed,
                in_flight: outstanding(state.lock.doorbell_index, completed),
                errors: state.error.count,
                first_status: state.error.completion_status,
                first_request: state.error.request_id,
                poison: state.error.poison,
                lent: open.lent().len() as u32,
            })
        })?;
        // SAFETY: the caller's struct.
        unsafe { fill(progress, "the progress", value) }
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `text` is null or has `size` bytes; `length` and `state` are null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_snapshot(
    queue: Handle,
    text: *mut c_char,
    size: usize,
    length: *mut usize,
    state: *mut efa_gda_queue,
) -> c_int {
    entry(|| {
        let seen = with(queue, |_, driven| {
            Ok(match driven {
                Driven::Host(queue) => queue.snapshot(),
                Driven::Gpu(queue) => queue.snapshot()?,
            })
        })?;
        let words = seen.to_string();
        if !text.is_null() && size != 0 {
            let fits = words.len().min(size - 1);
            // SAFETY: `fits` bytes and the zero have room in the caller's.
            unsafe {
                text.cast::<u8>().copy_from_nonoverlapping(words.as_ptr(), fits);
                text.add(fits).write(0);
            }
        }
        // SAFETY: null or the caller's places; C's copy may be aligned as it likes.
        unsafe {
            if !length.is_null() {
                length.write(words.len());
            }
            if !state.is_null() {
                state.write_unaligned(seen.state);
            }
        }
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_abort(queue: Handle, raise: c_int) -> c_int {
    // Not behind the queue's lock: a wait holds that.
    entry(|| {
        match (&QUEUES.get(queue)?.abort, raise != 0) {
            (Abort::Host(flag), true) => flag.raise(),
            (Abort::Host(flag), false) => flag.lower(),
            (Abort::Gpu(flag), true) => flag.raise(),
            (Abort::Gpu(flag), false) => flag.lower(),
        }
        Ok(())
    })
}
