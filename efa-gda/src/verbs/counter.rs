//! Completion counters: words in which the adapter counts completions, added in rdma-core 65.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use efa_gda_sys::verbs::{
    self, efadv_comp_cntr_init_attr, efadv_memory_location, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr,
};

use super::Context;
use super::context::Capability;
use super::object::{Object, check, function, inlen, pointer};
#[cfg(doc)]
use crate::ErrorKind;
use crate::memory::{Buffer, CountedOperations, CounterMemory, CounterWords};
use crate::{Error, Result};

/// Each operation with its bit in `enum ibv_qp_attach_comp_cntr_op`.
const OPERATIONS: [(CountedOperations, u32); 6] = [
    (CountedOperations::SEND, verbs::IBV_QP_ATTACH_COMP_CNTR_OP_SEND),
    (CountedOperations::RECEIVE, verbs::IBV_QP_ATTACH_COMP_CNTR_OP_RECV),
    (CountedOperations::READ, verbs::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ),
    (CountedOperations::REMOTE_READ, verbs::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ),
    (CountedOperations::WRITE, verbs::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE),
    (CountedOperations::REMOTE_WRITE, verbs::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE),
];

/// The operations as rdma-core's bits.
pub(super) fn attach_bits(operations: CountedOperations) -> u32 {
    OPERATIONS.iter().filter(|(one, _)| operations.contains(*one)).fold(0, |bits, (_, bit)| bits | bit)
}

/// A word of a counter, as rdma-core takes it.
fn location(memory: CounterMemory<'_>) -> efadv_memory_location {
    let mut location = efadv_memory_location { ptr: memory.mapped.cast(), ..Default::default() };
    location.type_ = match memory.dmabuf {
        None => verbs::EFADV_MEMORY_LOCATION_VA as u8,
        Some((file, offset)) => {
            location.dmabuf.offset = offset;
            location.dmabuf.fd = file.as_raw_fd();
            verbs::EFADV_MEMORY_LOCATION_DMABUF as u8
        }
    };
    location
}

/// The attributes of a counter with words of its caller.
fn external(completions: CounterMemory<'_>, errors: CounterMemory<'_>) -> efadv_comp_cntr_init_attr {
    efadv_comp_cntr_init_attr {
        flags: verbs::EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM
            | verbs::EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM,
        comp_cntr_ext_mem: location(completions),
        err_cntr_ext_mem: location(errors),
        ..Default::default()
    }
}

/// Limits of an adapter's counters (`ibv_comp_cntr_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterLimits {
    /// The largest value of a counter. The next value is 0.
    pub max_value: u64,
    /// The largest number of counters.
    pub max_counters: u32,
}

/// A completion counter: a word of successes and a word of errors. The number of requests in flight is the
/// number posted minus both. Clones are handles of one counter, which is destroyed when the last clone and the
/// last queue pair that it is attached to are dropped.
#[derive(Clone, Debug)]
pub struct CompletionCounter(Arc<Object<verbs::ibv_comp_cntr, (Option<Buffer>, Context)>>);

/// Distance of the word of errors from that of successes, where the counter owns them: they are on different cache lines of
/// a GPU.
const STRIDE: usize = 128;

impl CompletionCounter {
    /// Returns the limits of the adapter's counters.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] before rdma-core 65 and the EFA installer's 64.0amzn0, and for an adapter without counters;
    /// [`ErrorKind::Other`] where `ibv_query_comp_cntr_caps` fails.
    pub fn limits(context: &Context) -> Result<CounterLimits> {
        let query = function!(context.library(), ibv, _ibv_query_comp_cntr_caps)?;
        context.require(Capability::CompletionCounters)?;
        let mut caps = ibv_comp_cntr_caps::default();
        // SAFETY: the context is open; the structure can be written.
        let code = unsafe { query(context.raw(), &mut caps, size_of::<ibv_comp_cntr_caps>()) };
        check("ibv_query_comp_cntr_caps", code)?;
        Ok(CounterLimits { max_value: caps.max_value, max_counters: caps.max_counters })
    }

    /// Creates a counter whose words rdma-core allocates. [`Self::read`] reads them.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] before rdma-core 65 and the EFA installer's 64.0amzn0, and for an adapter without counters;
    /// [`ErrorKind::Other`] where `efadv_create_comp_cntr` fails.
    pub fn create(context: &Context) -> Result<Self> {
        // SAFETY: the call passes no memory of the caller.
        unsafe { Self::make(context, efadv_comp_cntr_init_attr::default(), None) }
    }

    /// Creates a counter that owns its words, in host memory ([`Self::words`]).
    ///
    /// # Errors
    /// Those of [`Self::create`]; [`ErrorKind::OutOfMemory`].
    pub fn on_host(context: &Context) -> Result<Self> {
        const BYTES: usize = STRIDE + size_of::<u64>();
        let words = Buffer::zeroed(BYTES).ok_or_else(|| Error::out_of_memory(BYTES))?;
        let [success, error] = [0, STRIDE]
            .map(|offset| CounterMemory { mapped: words.as_ptr().wrapping_add(offset).cast(), dmabuf: None });
        // SAFETY: the counter owns the words, which are freed after it is destroyed.
        unsafe { Self::make(context, external(success, error), Some(words)) }
    }

    /// Returns the addresses of the words. None where the counter does not own them.
    pub fn words(&self) -> Option<CounterWords> {
        let success = self.0.parents().0.as_ref()?.as_ptr() as u64;
        Some(CounterWords { success, error: success + STRIDE as u64, device: None })
    }

    /// Creates a counter with words of the caller, for example in GPU memory.
    ///
    /// # Safety
    /// Both words must stay allocated until the counter is destroyed, because the adapter writes to them.
    ///
    /// # Errors
    /// Those of [`Self::create`].
    pub unsafe fn create_external(
        context: &Context,
        completions: CounterMemory<'_>,
        errors: CounterMemory<'_>,
    ) -> Result<Self> {
        // SAFETY: the caller guarantees it, as this function requires.
        unsafe { Self::make(context, external(completions, errors), None) }
    }

    /// # Safety
    /// Words that `efa` names must stay allocated until the counter is destroyed, unless they are in `words`.
    unsafe fn make(
        context: &Context,
        mut efa: efadv_comp_cntr_init_attr,
        words: Option<Buffer>,
    ) -> Result<Self> {
        let create = function!(context.library(), efadv, efadv_create_comp_cntr)?;
        // Checked before the counter is created, so that it can be destroyed.
        function!(context.library(), ibv, ibv_destroy_comp_cntr)?;
        context.require(Capability::CompletionCounters)?;
        let mut attr = ibv_comp_cntr_init_attr { type_: verbs::IBV_COMP_CNTR_TYPE_WRS, ..Default::default() };
        let size = inlen(&efa);
        // SAFETY: the context is open; both structures are complete; the caller guarantees the words.
        let raw =
            pointer("efadv_create_comp_cntr", unsafe { create(context.raw(), &mut attr, &mut efa, size) })?;
        let parents = (words, context.clone());
        // SAFETY: the object was just created, and no other handle to it exists.
        Ok(Self(Arc::new(unsafe { Object::adopt(raw, context.library().clone(), parents) })))
    }

    /// Returns the numbers of requests that completed successfully and with an error.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `ibv_read_comp_cntr` or `ibv_read_err_comp_cntr` fails, with EOPNOTSUPP for a word
    /// in a dmabuf that this process cannot read.
    pub fn read(&self) -> Result<(u64, u64)> {
        let (mut successes, mut errors) = (0, 0);
        let read = function!(self.0.library(), ibv, ibv_read_comp_cntr)?;
        // SAFETY: the counter is live; the value can be written.
        check("ibv_read_comp_cntr", unsafe { read(self.raw(), &mut successes) })?;
        let read = function!(self.0.library(), ibv, ibv_read_err_comp_cntr)?;
        // SAFETY: as above.
        check("ibv_read_err_comp_cntr", unsafe { read(self.raw(), &mut errors) })?;
        Ok((successes, errors))
    }

    /// The adapter of the counter.
    pub(crate) fn context(&self) -> &Context {
        &self.0.parents().1
    }

    /// Destroys the counter and reports the result.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or a queue pair uses it; [`ErrorKind::Other`] where
    /// `ibv_destroy_comp_cntr` fails.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    pub(super) fn raw(&self) -> *mut verbs::ibv_comp_cntr {
        self.0.raw()
    }
}
