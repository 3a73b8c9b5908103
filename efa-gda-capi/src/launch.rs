//! Launches of the caller's kernels, and observing a queue.

use std::ffi::{c_char, c_int};

use efa_gda::queue::{doorbell_index, outstanding, reserved};
use efa_gda_sys::device::efa_gda_queue;

use crate::queue::{QUEUES, begin_launch};
use crate::{Handle, Out, call, call_for};

/// `struct efa_gda_progress`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub(crate) size: usize,
    pub(crate) reserved: u32,
    pub(crate) completed: u32,
    pub(crate) in_flight: u32,
    pub(crate) poison: u32,
    pub(crate) errors: u32,
    pub(crate) first_status: u32,
    pub(crate) first_request: u64,
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_begin_launch(queue: Handle, device: Out<*mut efa_gda_queue>) -> c_int {
    call_for(device, "the pointer to the queue's address", || {
        QUEUES.with(queue, |open, queue| {
            open.launches().push(begin_launch(queue));
            Ok(queue.device_address())
        })
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_end_launch(queue: Handle) -> c_int {
    call(|| QUEUES.get(queue)?.shared.end_launch())
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_poll(
    queue: Handle,
    progress: Out<Progress>,
    snapshot: Out<*const c_char>,
) -> c_int {
    call(|| {
        let (state, text) = QUEUES.with(queue, |_, queue| match snapshot.is_null() {
            true => Ok((queue.state()?, String::new())),
            false => {
                let seen = queue.snapshot()?;
                let text = seen.to_string();
                Ok((seen.state, text))
            }
        })?;
        let completed = state.completion.completed;
        let value = Progress {
            size: 0,
            reserved: reserved(&state),
            completed,
            in_flight: outstanding(doorbell_index(state.turn.word), completed),
            poison: state.error.poison,
            errors: state.error.count,
            first_status: state.error.completion_status,
            first_request: state.error.request_id,
        };
        progress.fill("the progress", value)?;
        snapshot.set_text(&text);
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_abort(queue: Handle, raise: c_int) -> c_int {
    call(|| {
        // Without the queue's lock, which a wait holds.
        (QUEUES.get(queue)?.shared.abort)(raise != 0);
        Ok(())
    })
}
