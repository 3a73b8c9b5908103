//! Receives that the library posts, and what arrives: `struct efa_gda_received`.

use std::ffi::c_int;

use efa_gda::queue::{Arrival, Received, Receives};
use efa_gda::wire::UNKNOWN_ADDRESS_HANDLE;

use crate::error::Fault;
use crate::queue::QUEUES;
use crate::region;
use crate::work::Work;
use crate::{Handle, In, Out, bound, call, call_for};

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
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_post_receives(queue: Handle, work: In<Work>, posted: Out<u32>) -> c_int {
    posted.set(0);
    call(|| {
        let work = work.require("the receives")?;
        let count = u32::try_from(work.count)
            .map_err(|_| Fault::argument(format_args!("count {}: expected less than 2^32", work.count)))?;
        let receives = Receives::new(&region::region(work.local)?)
            .offset(work.local_offset)
            .bytes(work.bytes)
            .stride(work.bytes)
            .count(count)
            .timeout(bound(work.timeout_ns));
        QUEUES.with(queue, |open, queue| {
            open.refuse_in_launch()?;
            let before = queue.state()?.receive.posted;
            let result = queue.post_receives(&receives);
            // A call that found too few free slots has posted some.
            let after = queue.state().map_or(before, |state| state.receive.posted);
            posted.set(result.as_ref().map_or(after.wrapping_sub(before), |posted| posted.count));
            Ok(result.map(drop)?)
        })
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_receive(
    queue: Handle,
    received: Out<ReceivedOne>,
    capacity: u32,
    count: Out<u32>,
    timeout_ns: u64,
) -> c_int {
    count.set(0);
    call_for(count, "the pointer to the count", || {
        received.require("the array for what was received")?;
        if capacity == 0 {
            return Err(Fault::argument("capacity is 0: expected an array of 1 element or more"));
        }
        let taken = QUEUES.with(queue, |open, queue| {
            open.refuse_in_launch()?;
            Ok(queue.receive_many(capacity as usize, bound(timeout_ns))?)
        })?;
        // At most `capacity` were taken.
        received.set_all(taken.iter().map(|one| (*one).into()));
        Ok(taken.len() as u32)
    })
}
