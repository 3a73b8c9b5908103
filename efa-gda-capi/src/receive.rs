//! Receives that the library posts, and what arrives: `struct efa_gda_receives`, `struct efa_gda_received`.

use std::ffi::c_int;

use efa_gda::queue::{Arrival, PostedReceives, Received, Receives};
use efa_gda::wire::UNKNOWN_ADDRESS_HANDLE;

use crate::error::Fault;
use crate::queue::with;
use crate::region;
use crate::{Handle, bound, call, read_struct, refuse_null};

const CONSUMED: u32 = 1 << 0;
const IMMEDIATE: u32 = 1 << 1;

const MESSAGE: u32 = 0;
const WRITE: u32 = 1;
const OTHER: u32 = 2;

/// `struct efa_gda_receives`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReceivesToPost {
    pub(crate) size: usize,
    pub(crate) region: Handle,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) stride: u64,
    pub(crate) timeout_ns: u64,
    pub(crate) count: u32,
    pub(crate) reserved: u32,
}

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
    pub(crate) arrival: u32,
}

impl From<Received> for ReceivedOne {
    fn from(received: Received) -> Self {
        let consumed = received.receive.map_or(0, |_| CONSUMED);
        let immediate = received.immediate.map_or(0, |_| IMMEDIATE);
        let handle = received.source.address_handle.unwrap_or(UNKNOWN_ADDRESS_HANDLE);
        Self {
            flags: consumed | immediate,
            receive: received.receive.map_or(0, |id| id.get().into()),
            status: received.status.code().into(),
            length: received.length,
            immediate: received.immediate.unwrap_or(0),
            source_ah: handle.get().into(),
            source_qpn: received.source.queue_pair.get().into(),
            arrival: match received.arrival {
                Arrival::Message => MESSAGE,
                Arrival::Write => WRITE,
                _ => OTHER,
            },
        }
    }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `receives` must be null or a struct of the header with its size set. `first` and `posted` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_post_receives(
    queue: Handle,
    receives: *const ReceivesToPost,
    first: *mut u32,
    posted: *mut u32,
) -> c_int {
    if !posted.is_null() {
        // SAFETY: `posted` is writable, as the caller guarantees.
        unsafe { posted.write(0) };
    }
    call(|| {
        // SAFETY: the caller guarantees a struct with its size.
        let receives = unsafe { read_struct(receives, "the receives") }?;
        let receives = Receives::new(&region::region(receives.region)?)
            .offset(receives.offset)
            .bytes(receives.bytes)
            .stride(receives.stride)
            .count(receives.count)
            .timeout(bound(receives.timeout_ns));
        let (before, result) = with(queue, |open, queue| {
            open.refuse_in_launch()?;
            let before = queue.state()?.receive.posted;
            let result = queue.post_receives(&receives);
            // A call that found too few free slots has posted some.
            let after = queue.state().map_or(before, |state| state.receive.posted);
            Ok((before, result.map_err(|error| (error.into(), after.wrapping_sub(before)))))
        })?;
        let (count, result) = match result {
            Ok(PostedReceives { count, .. }) => (count, Ok(())),
            Err((fault, count)) => (count, Err(fault)),
        };
        // SAFETY: each is null or writable, as the caller guarantees.
        unsafe {
            if !first.is_null() {
                // A descriptor carries the low 16 bits of the count of receives.
                first.write(before & 0xffff);
            }
            if !posted.is_null() {
                posted.write(count);
            }
        }
        result
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `received` must be null or have `capacity` writable elements. `count` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_receive(
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
