//! Completion queues. Their entries are polled in memory, by whoever a queue pair's exposure is
//! given to, and never through libibverbs: two readers would each see half of the completions.

use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use efa_gda_sys::verbs::{self, efadv_cq_attr, efadv_cq_init_attr, ibv_cq_init_attr_ex};

use super::context::Capability;
use super::error::{Error, Result};
use super::object::{InLibrary, Object, check, function, inlen, pointer};
use super::{Context, Library};
use crate::exposure::RawCompletionQueue;
use crate::memory::ExternalMemory;
use crate::polling::{Completing, Polling, Unclaimable};

/// A completion queue. Cheap to clone; destroyed with its last clone and the last queue pair that
/// completes on it.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Object<verbs::ibv_cq, Parents>>);

#[derive(Debug)]
struct Parents {
    /// Who completes on it, and who reads its entries in memory.
    polling: Polling,
    context: Context,
}

impl InLibrary for Parents {
    fn library(&self) -> &Library {
        self.context.library()
    }
}

impl CompletionQueue {
    /// Makes one of at least `entries` entries, in host memory.
    ///
    /// # Errors
    /// [`Error::Exceeds`], or [`Error::Call`] with the answer of `ibv_create_cq`.
    pub fn create(context: &Context, entries: u32) -> Result<Self> {
        let create = function!(context.library(), ibv, ibv_create_cq)?;
        let entries = fits(context, entries)?;
        // SAFETY: the context is open; no channel and no context of ours, and vector 0 always is.
        let raw = unsafe { create(context.raw(), entries, null_mut(), null_mut(), 0) };
        let raw = pointer("ibv_create_cq", raw)?;
        // SAFETY: just made, and known to nobody else.
        Ok(unsafe { Self::adopt(raw, context) })
    }

    /// Makes one of at least `entries` entries in memory of the caller's, such as a GPU's.
    ///
    /// # Safety
    /// The memory stays allocated until the queue is destroyed: the adapter writes to it.
    ///
    /// # Errors
    /// [`Error::AdapterLacks`] without the capability, [`Error::Exceeds`], or [`Error::Call`] with the
    /// answer of `efadv_create_cq`.
    pub unsafe fn create_external(
        context: &Context,
        memory: &ExternalMemory<'_>,
        entries: u32,
    ) -> Result<Self> {
        context.require(Capability::ExternalCompletionQueue)?;
        let create = function!(context.library(), efadv, efadv_create_cq)?;
        let entries = fits(context, entries)?;
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
        // SAFETY: the context is open; both structures are whole; the descriptor is open.
        let raw = unsafe { create(context.raw(), &mut attr, &mut efa, size) };
        // An extended completion queue begins with a plain one (ibv_cq_ex_to_cq is that cast).
        let raw: NonNull<verbs::ibv_cq> = pointer("efadv_create_cq", raw)?.cast();
        // SAFETY: just made, and known to nobody else.
        Ok(unsafe { Self::adopt(raw, context) })
    }

    /// # Safety
    /// `raw` is a live queue of the context's that nobody else destroys.
    unsafe fn adopt(raw: NonNull<verbs::ibv_cq>, context: &Context) -> Self {
        let parents = Parents { polling: Polling::default(), context: context.clone() };
        // SAFETY: passed on to the caller.
        Self(Arc::new(unsafe { Object::adopt(raw, parents) }))
    }

    /// Where its entries are: unchecked. For one in external memory, the buffer is what its maker
    /// gave.
    ///
    /// # Errors
    /// [`Error::FunctionMissing`] before rdma-core 59; [`Error::Call`] with the answer of `efadv_query_cq`.
    pub fn query(&self) -> Result<RawCompletionQueue> {
        let query = function!(self.context().library(), efadv, efadv_query_cq)?;
        // Zeroed: a release that knows fewer fields leaves the rest alone.
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

    /// Makes the caller the one who polls the entries; false where someone did before, or where several
    /// queue pairs complete here. Never given back: the position and phase of the next entry are known
    /// to that one alone.
    pub fn claim(&self) -> bool {
        self.claimed().is_ok()
    }

    /// [`Self::claim`], with the reason.
    pub(crate) fn claimed(&self) -> std::result::Result<(), Unclaimable> {
        self.0.parents().polling.claim()
    }

    /// Another queue pair completes here.
    pub(super) fn register_queue_pair(&self) -> Result<Completing> {
        self.0.parents().polling.begin().ok_or(Error::CompletionQueuePolled)
    }

    /// The adapter that it is of.
    pub fn context(&self) -> &Context {
        &self.0.parents().context
    }

    /// Destroys it and says how that went.
    ///
    /// # Errors
    /// [`Error::Busy`] while a queue pair or another clone uses it; [`Error::Call`] with the answer
    /// of `ibv_destroy_cq`.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    /// Whether both are the same queue.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn raw(&self) -> *mut verbs::ibv_cq {
        self.0.raw()
    }
}

/// The number of entries as the calls take it.
fn fits(context: &Context, entries: u32) -> Result<i32> {
    let limit = context.attributes().max_completions;
    let exceeds =
        Error::Exceeds { what: "completion queue entries", asked: entries.into(), limit: limit.into() };
    match i32::try_from(entries) {
        Ok(number) if entries <= limit => Ok(number.max(1)),
        _ => Err(exceeds),
    }
}
