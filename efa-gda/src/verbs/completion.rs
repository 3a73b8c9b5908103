//! Completion queues. The owner of a queue pair's exposure, such as a mapped queue, polls their entries in memory. They
//! are never polled through libibverbs, because two readers would each get a part of the completions.

use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use efa_gda_sys::verbs::{self, efadv_cq_attr, efadv_cq_init_attr, ibv_cq_init_attr_ex};

use super::Context;
use super::context::Capability;
use super::error;
use super::object::{Object, check, function, inlen, pointer};
#[cfg(doc)]
use crate::ErrorKind;
use crate::exposure::RawCompletionQueue;
use crate::memory::ExternalMemory;
use crate::polling::{Completing, Polling, Unclaimable};
use crate::{Error, Result};

/// A completion queue. Clones are handles of one queue, which is destroyed when the last clone and the last
/// queue pair that completes on it are dropped.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Object<verbs::ibv_cq, Parents>>);

#[derive(Debug)]
struct Parents {
    /// Counts the queue pairs that complete on the queue, and records whether a reader claimed it.
    polling: Polling,
    context: Context,
}

impl CompletionQueue {
    /// Creates a queue of at least `entries` entries in host memory.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`], or [`ErrorKind::Other`] where `ibv_create_cq` fails.
    pub fn create(context: &Context, entries: u32) -> Result<Self> {
        let create = function!(context.library(), ibv, ibv_create_cq)?;
        let entries = entry_count(context, entries)?;
        // SAFETY: the context is open. No channel and no user context are passed, and vector 0 exists on every
        // adapter.
        let raw = unsafe { create(context.raw(), entries, null_mut(), null_mut(), 0) };
        let raw = pointer("ibv_create_cq", raw)?;
        // SAFETY: the object was just created, and no other handle to it exists.
        Ok(unsafe { Self::adopt(raw, context) })
    }

    /// Creates a queue of at least `entries` entries in memory of the caller, such as GPU memory.
    ///
    /// # Safety
    /// The memory must hold zeroes, because the phase bit of the first lap is 1. It must stay allocated until the queue
    /// is destroyed, because the adapter writes to it. The buffer must be null, or an address at which the host can
    /// read all of the memory, because a mapped queue polls it there.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] without the capability; [`ErrorKind::Argument`]; [`ErrorKind::Other`] where
    /// `efadv_create_cq` fails.
    pub unsafe fn create_external(
        context: &Context,
        memory: &ExternalMemory<'_>,
        entries: u32,
    ) -> Result<Self> {
        context.require(Capability::ExternalCompletionQueue)?;
        let create = function!(context.library(), efadv, efadv_create_cq)?;
        let entries = entry_count(context, entries)?;
        let mut attr = ibv_cq_init_attr_ex { cqe: entries.unsigned_abs(), ..Default::default() };
        let mut efa = efadv_cq_init_attr {
            flags: verbs::EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF.into(),
            ..Default::default()
        };
        efa.ext_mem_dmabuf.buffer = memory.buffer;
        efa.ext_mem_dmabuf.length = memory.length;
        efa.ext_mem_dmabuf.offset = memory.offset;
        efa.ext_mem_dmabuf.fd = memory.dmabuf.as_raw_fd();
        let size = inlen(&efa);
        // SAFETY: the context is open; both structures are complete; the descriptor is open.
        let raw = unsafe { create(context.raw(), &mut attr, &mut efa, size) };
        // An extended completion queue begins with a plain one (ibv_cq_ex_to_cq is that cast).
        let raw: NonNull<verbs::ibv_cq> = pointer("efadv_create_cq", raw)?.cast();
        // SAFETY: the object was just created, and no other handle to it exists.
        Ok(unsafe { Self::adopt(raw, context) })
    }

    /// # Safety
    /// `raw` must be a live queue of the context that no other code destroys.
    unsafe fn adopt(raw: NonNull<verbs::ibv_cq>, context: &Context) -> Self {
        let parents = Parents { polling: Polling::default(), context: context.clone() };
        // SAFETY: the caller guarantees it, as this function requires.
        Self(Arc::new(unsafe { Object::adopt(raw, context.library().clone(), parents) }))
    }

    /// Returns the address and size of the entries. For a queue in external memory, the buffer is the address
    /// in [`ExternalMemory`]. The values are not checked.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] before rdma-core 59; [`ErrorKind::Other`] where `efadv_query_cq` fails.
    pub fn query(&self) -> Result<RawCompletionQueue> {
        let query = function!(self.0.library(), efadv, efadv_query_cq)?;
        // Zeroed: a release that knows fewer fields leaves the rest unchanged.
        let mut attr = efadv_cq_attr::default();
        let size = inlen(&attr);
        // SAFETY: the queue is live; `size` bytes can be written.
        check("efadv_query_cq", unsafe { query(self.raw(), &mut attr, size) })?;
        Ok(RawCompletionQueue {
            buffer: attr.buffer,
            entry_size: attr.entry_size,
            num_entries: attr.num_entries,
            doorbell: attr.doorbell,
        })
    }

    /// Makes the caller the only reader of the entries. A claim is permanent: only its reader knows the position and phase
    /// of the next entry.
    pub(crate) fn claim(&self) -> std::result::Result<(), Unclaimable> {
        self.0.parents().polling.claim()
    }

    /// Registers another queue pair that completes on the queue.
    pub(super) fn register_queue_pair(&self) -> Result<Completing> {
        self.0.parents().polling.begin().ok_or_else(|| {
            let why = "another reader polls the completion queue, so no other queue pair may complete on it";
            Error::busy(why).with_hint("create another completion queue for this queue pair")
        })
    }

    /// The adapter of the queue.
    pub(crate) fn context(&self) -> &Context {
        &self.0.parents().context
    }

    /// Destroys the queue and reports the result.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or a queue pair uses it; [`ErrorKind::Other`] where `ibv_destroy_cq` fails.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    pub(super) fn raw(&self) -> *mut verbs::ibv_cq {
        self.0.raw()
    }
}

/// The number of entries as the calls take it. Refuses more entries than the adapter allows.
fn entry_count(context: &Context, entries: u32) -> Result<i32> {
    let limit = context.attributes().max_completions;
    match i32::try_from(entries) {
        Ok(number) if entries <= limit => Ok(number.max(1)),
        _ => Err(error::exceeds("completion queue entries", entries.into(), limit.into())),
    }
}
