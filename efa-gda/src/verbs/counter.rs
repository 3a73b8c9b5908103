//! Completion counters: words that the adapter counts completions in, of rdma-core 65.

use std::marker::PhantomData;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::verbs::{
    self, efadv_comp_cntr_init_attr, efadv_memory_location, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr,
};

use super::context::Capability;
use super::error::Result;
use super::object::{InLibrary, Object, check, function, inlen, pointer};
use super::{Context, Library};

/// Which completions a counter counts (`enum ibv_qp_attach_comp_cntr_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counted(u32);

impl Counted {
    /// Sends of the queue pair.
    pub const SEND: Self = Self(verbs::IBV_QP_ATTACH_COMP_CNTR_OP_SEND);
    /// What it receives.
    pub const RECEIVE: Self = Self(verbs::IBV_QP_ATTACH_COMP_CNTR_OP_RECV);
    /// RDMA reads of the queue pair.
    pub const READ: Self = Self(verbs::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ);
    /// RDMA reads by peers.
    pub const REMOTE_READ: Self = Self(verbs::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ);
    /// RDMA writes of the queue pair.
    pub const WRITE: Self = Self(verbs::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE);
    /// RDMA writes by peers.
    pub const REMOTE_WRITE: Self = Self(verbs::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE);

    /// Whether all of `other` is counted.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// rdma-core's bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Counted {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What an adapter's counters can do (`ibv_comp_cntr_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterLimits {
    /// A counter goes from this value to 0.
    pub max_value: u64,
    /// How many there can be.
    pub max_counters: u32,
    /// What they can count.
    pub counted: Counted,
}

/// A word of the caller's for a counter: 8 bytes, aligned to 8.
#[derive(Clone, Copy, Debug)]
pub struct CounterMemory<'a> {
    location: efadv_memory_location,
    dmabuf: PhantomData<BorrowedFd<'a>>,
}

impl<'a> CounterMemory<'a> {
    /// Host memory.
    pub fn host(word: NonNull<u64>) -> Self {
        let location = efadv_memory_location {
            ptr: word.as_ptr().cast(),
            type_: verbs::EFADV_MEMORY_LOCATION_VA as u8,
            ..Default::default()
        };
        Self { location, dmabuf: PhantomData }
    }

    /// A word of a dmabuf, at `offset`. `mapped` is where this process sees it, or null; only where
    /// it does can the counter be read through rdma-core.
    pub fn dmabuf(dmabuf: BorrowedFd<'a>, offset: u64, mapped: *mut u64) -> Self {
        let mut location = efadv_memory_location {
            ptr: mapped.cast(),
            type_: verbs::EFADV_MEMORY_LOCATION_DMABUF as u8,
            ..Default::default()
        };
        location.dmabuf.offset = offset;
        location.dmabuf.fd = dmabuf.as_raw_fd();
        Self { location, dmabuf: PhantomData }
    }
}

/// A completion counter: one word for successes and one for errors. In flight is what was posted
/// less both. Cheap to clone; destroyed with its last clone and the last queue pair it is attached
/// to.
#[derive(Clone, Debug)]
pub struct CompletionCounter(Arc<Object<verbs::ibv_comp_cntr, Context>>);

impl InLibrary for CompletionCounter {
    fn library(&self) -> &Library {
        self.context().library()
    }
}

impl CompletionCounter {
    /// What the adapter's counters can do.
    ///
    /// # Errors
    /// [`super::Error::Absent`] before rdma-core 65; [`super::Error::Lacks`];
    /// [`super::Error::Call`] with the answer of `ibv_query_comp_cntr_caps`.
    pub fn limits(context: &Context) -> Result<CounterLimits> {
        let query = function!(context.library(), ibv, _ibv_query_comp_cntr_caps)?;
        context.needs(Capability::CompletionCounters)?;
        let mut caps = ibv_comp_cntr_caps::default();
        // SAFETY: the context is open; the structure can be written.
        let code = unsafe { query(context.raw(), &mut caps, size_of::<ibv_comp_cntr_caps>()) };
        check("ibv_query_comp_cntr_caps", code)?;
        Ok(CounterLimits {
            max_value: caps.max_value,
            max_counters: caps.max_counters,
            counted: Counted(caps.supported_qp_attach_ops),
        })
    }

    /// Makes a counter whose words are rdma-core's own, read with [`Self::completions`] and
    /// [`Self::errors`].
    ///
    /// # Errors
    /// [`super::Error::Absent`] before rdma-core 65; [`super::Error::Lacks`];
    /// [`super::Error::Call`] with the answer of `efadv_create_comp_cntr`.
    pub fn create(context: &Context) -> Result<Self> {
        // SAFETY: no memory of the caller's.
        unsafe { Self::make(context, efadv_comp_cntr_init_attr::default()) }
    }

    /// Makes a counter whose words are the caller's, such as a GPU's.
    ///
    /// # Safety
    /// Both words stay allocated until the counter is destroyed: the adapter writes to them.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub unsafe fn create_external(
        context: &Context,
        completions: CounterMemory<'_>,
        errors: CounterMemory<'_>,
    ) -> Result<Self> {
        let attr = efadv_comp_cntr_init_attr {
            flags: verbs::EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM
                | verbs::EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM,
            comp_cntr_ext_mem: completions.location,
            err_cntr_ext_mem: errors.location,
            ..Default::default()
        };
        // SAFETY: passed on to the caller.
        unsafe { Self::make(context, attr) }
    }

    /// # Safety
    /// Words that `efa` names stay allocated until the counter is destroyed.
    unsafe fn make(context: &Context, mut efa: efadv_comp_cntr_init_attr) -> Result<Self> {
        let create = function!(context.library(), efadv, efadv_create_comp_cntr)?;
        // Looked up before anything is made, so that what is made can be destroyed.
        function!(context.library(), ibv, ibv_destroy_comp_cntr)?;
        context.needs(Capability::CompletionCounters)?;
        let mut attr = ibv_comp_cntr_init_attr { type_: verbs::IBV_COMP_CNTR_TYPE_WRS, ..Default::default() };
        let size = inlen(&efa);
        // SAFETY: the context is open; both structures are whole; the caller vouches for the words.
        let raw =
            pointer("efadv_create_comp_cntr", unsafe { create(context.raw(), &mut attr, &mut efa, size) })?;
        // SAFETY: just made, and known to nobody else.
        Ok(Self(Arc::new(unsafe { Object::adopt(raw, context.clone()) })))
    }

    /// Successes counted.
    ///
    /// # Errors
    /// [`super::Error::Call`] with the answer of `ibv_read_comp_cntr`: EOPNOTSUPP for a word in a
    /// dmabuf that this process does not see.
    pub fn completions(&self) -> Result<u64> {
        let read = function!(self.library(), ibv, ibv_read_comp_cntr)?;
        let mut value = 0;
        // SAFETY: the counter is live; the value can be written.
        check("ibv_read_comp_cntr", unsafe { read(self.raw(), &mut value) })?;
        Ok(value)
    }

    /// Errors counted.
    ///
    /// # Errors
    /// As [`Self::completions`], with `ibv_read_err_comp_cntr`.
    pub fn errors(&self) -> Result<u64> {
        let read = function!(self.library(), ibv, ibv_read_err_comp_cntr)?;
        let mut value = 0;
        // SAFETY: the counter is live; the value can be written.
        check("ibv_read_err_comp_cntr", unsafe { read(self.raw(), &mut value) })?;
        Ok(value)
    }

    /// Sets both words.
    ///
    /// # Errors
    /// [`super::Error::Call`] with the answer of `ibv_set_comp_cntr` or `ibv_set_err_comp_cntr`.
    pub fn set(&self, completions: u64, errors: u64) -> Result<()> {
        let set = function!(self.library(), ibv, ibv_set_comp_cntr)?;
        let set_errors = function!(self.library(), ibv, ibv_set_err_comp_cntr)?;
        // SAFETY: the counter is live.
        check("ibv_set_comp_cntr", unsafe { set(self.raw(), completions) })?;
        // SAFETY: as above.
        check("ibv_set_err_comp_cntr", unsafe { set_errors(self.raw(), errors) })
    }

    /// The adapter that it is of.
    pub fn context(&self) -> &Context {
        self.0.parents()
    }

    /// Destroys it and says how that went.
    ///
    /// # Errors
    /// [`super::Error::Busy`] while a queue pair or another clone uses it; [`super::Error::Call`]
    /// with the answer of `ibv_destroy_comp_cntr`.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    pub(super) fn raw(&self) -> *mut verbs::ibv_comp_cntr {
        self.0.raw()
    }
}
