//! Receives that the library posts, and what arrives: `struct efa_gda_received`.

use std::ffi::c_int;

use efa_gda::queue::{Arrival, Received, Receives};
use efa_gda::wire::UNKNOWN_ADDRESS_HANDLE;

use crate::error::Fault;
use crate::queue::with;
use crate::region;
use crate::work::Work;
use crate::{Handle, bound, call, read_struct, refuse_null};

const CONSUMED: u32 = 1 << 0;
const IMMEDIATE: u32 = 1 << 1;
const WRITE: u32 = 1 << 2;
const OTHER: u32 = 1 << 3;

/// `struct efa_gda_received`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReceivedOne {
    pub(crate) flags: u32,
    pub(crate) receive: u32,
    pub(crate) status: u32,
    pub(crate) length: u32,
    pub(crate) immediate: u32,
    pub(crate) source_ah: u32,
    pub(crate) source_qpn: u32,
}

impl From<Received> for ReceivedOne {
    fn from(received: Received) -> Self {
        let consumed = received.receive.map_or(0, |_| CONSUMED);
        let immediate = received.immediate.map_or(0, |_| IMMEDIATE);
        let arrival = match received.arrival {
            Arrival::Message => 0,
            Arrival::Write => WRITE,
            _ => OTHER,
        };
        let handle = received.source.address_handle.unwrap_or(UNKNOWN_ADDRESS_HANDLE);
        Self {
            flags: consumed | immediate | arrival,
            receive: received.receive.map_or(0, |id| id.get().into()),
            status: received.status.code().into(),
            length: received.length,
            immediate: received.immediate.unwrap_or(0),
            source_ah: handle.get().into(),
            source_qpn: received.source.queue_pair.get().into(),
        }
    }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `work` must be null or a struct of the header with its size set. `posted` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_queue_post_receives(
    queue: Handle,
    work: *const Work,
    posted: *mut u32,
) -> c_int {
    let set_posted = |count| {
        if !posted.is_null() {
            // SAFETY: `posted` is writable, as the caller guarantees.
            unsafe { posted.write(count) };
        }
    };
    set_posted(0);
    call(|| {
        // SAFETY: the caller guarantees a struct with its size.
        let work = unsafe { read_struct(work, "the receives") }?;
        let count = u32::try_from(work.count)
            .map_err(|_| Fault::argument(format_args!("count {}: expected less than 2^32", work.count)))?;
        let receives = Receives::new(&region::region(work.local)?)
            .offset(work.local_offset)
            .bytes(work.bytes)
            .stride(work.bytes)
            .count(count)
            .timeout(bound(work.timeout_ns));
        with(queue, |open, queue| {
            open.refuse_in_launch()?;
            let before = queue.state()?.receive.posted;
            let result = queue.post_receives(&receives);
            // A call that found too few free slots has posted some.
            let after = queue.state().map_or(before, |state| state.receive.posted);
            set_posted(result.as_ref().map_or(after.wrapping_sub(before), |posted| posted.count));
            Ok(result.map(drop)?)
        })
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `received` must be null or have `capacity` writable elements. `count` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_queue_receive(
    queue: Handle,
    received: *mut ReceivedOne,
    capacity: u32,
    count: *mut u32,
    timeout_ns: u64,
) -> c_int {
    call(|| {
        refuse_null(received, "the array for what was received")?;
        refuse_null(count, "the pointer to the count")?;
        // SAFETY: it is not null, and the caller guarantees that it is writable.
        unsafe { count.write(0) };
        if capacity == 0 {
            return Err(Fault::argument("capacity is 0: expected an array of 1 element or more"));
        }
        let taken = with(queue, |open, queue| {
            open.refuse_in_launch()?;
            Ok(queue.receive_many(capacity as usize, bound(timeout_ns))?)
        })?;
        // SAFETY: at most `capacity` were taken, and the caller guarantees as many elements.
        unsafe {
            for (index, one) in taken.iter().enumerate() {
                received.add(index).write_unaligned((*one).into());
            }
            count.write(taken.len() as u32);
        }
        Ok(())
    })
}
