//! Launches of the caller's kernels, and observing a queue.

use std::ffi::{c_char, c_int};

use efa_gda::queue::{doorbell_index, outstanding, reserved};
use efa_gda_sys::device::efa_gda_queue;

use crate::queue::{QUEUES, begin_launch, with};
use crate::{Handle, call, call_for, write_struct};

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

/// See `efa_gda.h`.
///
/// # Safety
/// `device` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_begin_launch(
    queue: Handle,
    device: *mut *mut efa_gda_queue,
) -> c_int {
    let body = || {
        with(queue, |open, queue| {
            open.launches().push(begin_launch(queue));
            Ok(queue.device_address())
        })
    };
    // SAFETY: the caller guarantees that it is null or writable.
    unsafe { call_for(device, "the pointer to the queue's address", body) }
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_end_launch(queue: Handle) -> c_int {
    call(|| QUEUES.get(queue)?.shared.end_launch())
}

/// See `efa_gda.h`.
///
/// # Safety
/// `progress` must be null or a struct of the header with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_poll(queue: Handle, progress: *mut Progress) -> c_int {
    call(|| {
        let value = with(queue, |open, queue| {
            let state = queue.state()?;
            let (doorbell_index, completed) = (doorbell_index(state.turn.word), state.completion.completed);
            Ok(Progress {
                size: 0,
                reserved: reserved(&state),
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
        let snapshot = with(queue, |_, queue| Ok(queue.snapshot()?))?;
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
        (QUEUES.get(queue)?.shared.abort)(raise != 0);
        Ok(())
    })
}
