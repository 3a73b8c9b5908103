//! Completion counters: two words, of successes and of errors, that the adapter adds to as requests
//! complete (`cntr_open_ext`, efa provider 206.0). What is in flight is what was posted less both. They
//! say how many, not which, and change whether or not anybody reads the completion queue, which fills
//! all the same.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use efa_gda_sys::fi;

use super::Domain;
use super::domain::close_shared;
use super::error::{Error, Result};
use super::object::{Context, InContext, Object, Padded, table_op};
use crate::memory::{Buffer, CounterMemory, DeviceMemory, Dmabuf, OutOfBounds, Owner};
use crate::polling::{Completing, Polling, Unclaimable};

pub(super) type CntrOpenExt = unsafe extern "C" fn(
    *mut fi::fid_domain,
    *mut fi::fi_cntr_attr,
    *mut *mut fi::fid_cntr,
    *mut c_void,
    *mut fi::fi_efa_comp_cntr_init_attr,
) -> c_int;

/// A word of a counter, as libfabric takes it.
#[derive(Clone, Copy)]
pub(super) struct CounterWord<'a> {
    location: fi::fi_efa_memory_location,
    /// Whether libfabric reads the word for its callers.
    readable_by_host: bool,
    dmabuf: PhantomData<BorrowedFd<'a>>,
}

impl<'a> From<CounterMemory<'a>> for CounterWord<'a> {
    fn from(memory: CounterMemory<'a>) -> Self {
        let mut location = fi::fi_efa_memory_location { ptr: memory.mapped.cast(), ..Default::default() };
        location.type_ = match memory.dmabuf {
            None => fi::FI_EFA_MEMORY_LOCATION_VA as u8,
            Some((file, offset)) => {
                location.dmabuf.offset = offset;
                location.dmabuf.fd = file.as_raw_fd();
                fi::FI_EFA_MEMORY_LOCATION_DMABUF as u8
            }
        };
        Self { location, readable_by_host: !memory.mapped.is_null(), dmabuf: PhantomData }
    }
}

/// Both words in one piece of memory, which goes with the counter.
pub(super) struct OwnedWords {
    success: u64,
    /// The GPU whose memory it is, as CUDA counts.
    device: Option<i32>,
    owner: Owner,
}

impl OwnedWords {
    /// From the first word to the second; they are not to share a line of a GPU's cache.
    const STRIDE: u64 = 128;
    /// From the first byte of the first to the last of the second.
    pub(crate) const BYTES: usize = Self::STRIDE as usize + size_of::<u64>();

    /// Zeroes of the host's; None where memory is short.
    pub(super) fn host() -> Option<Self> {
        let words = Buffer::zeroed(Self::BYTES)?;
        Some(Self { success: words.as_ptr() as u64, device: None, owner: Arc::new(words) })
    }

    /// In a GPU's memory, with the dmabuf of it, or why there is none.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where they do not fit, [`Error::NoDmabuf`].
    pub(super) fn device(memory: DeviceMemory) -> Result<(Self, Dmabuf)> {
        let DeviceMemory { address, length, ordinal, dmabuf, owner } = memory;
        if length < Self::BYTES {
            let (needs, region) = (Self::BYTES as u64, length as u64);
            return Err(OutOfBounds { offset: 0, length: needs, region }.into());
        }
        let dmabuf = dmabuf.map_err(|why| Error::NoDmabuf { operation: super::gda::CNTR_OPEN_EXT, why })?;
        Ok((Self { success: address.as_ptr() as u64, device: Some(ordinal), owner }, dmabuf))
    }

    fn error(&self) -> u64 {
        self.success + Self::STRIDE
    }

    /// The words as host memory.
    pub(super) fn on_host(&self) -> [Option<CounterWord<'static>>; 2] {
        [self.success, self.error()].map(|word| {
            let word = NonNull::new(std::ptr::with_exposed_provenance_mut(word as usize))?;
            Some(CounterMemory::host(word).into())
        })
    }

    /// The words as parts of their dmabuf. `gpu_addresses`: with the GPU's addresses, which libfabric is
    /// not asked to read.
    pub(super) fn in_dmabuf<'a>(
        &self,
        dmabuf: &'a Dmabuf,
        gpu_addresses: bool,
    ) -> [Option<CounterWord<'a>>; 2] {
        [self.success, self.error()].map(|word| {
            let offset = dmabuf.offset + (word - self.success);
            let address =
                if gpu_addresses { std::ptr::with_exposed_provenance_mut(word as usize) } else { null_mut() };
            let memory = CounterMemory::dmabuf(dmabuf.file.as_fd(), offset, address);
            Some(CounterWord { readable_by_host: false, ..memory.into() })
        })
    }
}

/// Where the words of a counter lie whose memory is the counter's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterWords {
    /// Address of the word of successes, for who reads it.
    pub success: u64,
    /// Of the word of errors.
    pub error: u64,
    /// The GPU in whose memory they lie, as CUDA counts; None where the processor reads them.
    pub device: Option<i32>,
}

/// A completion counter. Cheap to clone; closed with its last clone and the last endpoint that it
/// counts for.
#[derive(Clone, Debug)]
pub struct CompletionCounter(Arc<Object<fi::fid_cntr, CounterParents>>);

struct CounterParents {
    /// Whether libfabric reads the word of successes, and that of errors.
    readable_by_host: [bool; 2],
    words: Option<Arc<OwnedWords>>,
    /// Which endpoints it counts for, and whether a mapped queue goes by it.
    counting: Polling,
    domain: Domain,
}

impl std::fmt::Debug for CounterParents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CounterParents")
            .field("readable_by_host", &self.readable_by_host)
            .finish_non_exhaustive()
    }
}

impl InContext for CounterParents {
    fn context(&self) -> &Context {
        self.domain.context()
    }
}

impl CompletionCounter {
    /// `cntr_open_ext`, which [`super::GdaOps`] has checked for. A word that is not given is the
    /// provider's own.
    ///
    /// # Safety
    /// Words that are given stay allocated until the counter is closed; `words` does that, where the counter
    /// owns them.
    pub(super) unsafe fn open(
        domain: &Domain,
        open: CntrOpenExt,
        [success, error]: [Option<CounterWord<'_>>; 2],
        words: Option<Arc<OwnedWords>>,
        named: impl FnOnce(&Context, i32) -> Error,
    ) -> Result<Self> {
        const OPERATION: &str = super::gda::CNTR_OPEN_EXT;
        let mut attr = Padded::new(fi::fi_cntr_attr {
            events: fi::FI_CNTR_EVENTS_COMP,
            wait_obj: fi::FI_WAIT_NONE,
            ..Default::default()
        });
        let mut efa = Padded::new(fi::fi_efa_comp_cntr_init_attr::default());
        if let Some(word) = success {
            efa.value.flags |= fi::FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM;
            efa.value.comp_cntr_ext_mem = word.location;
        }
        if let Some(word) = error {
            efa.value.flags |= fi::FI_EFA_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM;
            efa.value.err_cntr_ext_mem = word.location;
        }
        let mut counter = std::ptr::null_mut();
        let context = domain.context();
        let serialized = context.serialize_calls();
        // SAFETY: the domain is open; both attribute structures are whole, with zeroes behind them;
        // `counter` can be written; the caller vouches for words that are given.
        let code = unsafe {
            open(domain.as_ptr(), &mut attr.value, &mut counter, std::ptr::null_mut(), &mut efa.value)
        };
        drop(serialized);
        if code < 0 {
            return Err(named(context, code));
        }
        let readable_by_host = [success, error].map(|word| word.is_none_or(|word| word.readable_by_host));
        let parents =
            CounterParents { readable_by_host, words, counting: Polling::default(), domain: domain.clone() };
        // SAFETY: the call that returned `code` opened `counter`, and nobody else knows it.
        Ok(Self(Arc::new(unsafe { Object::adopt(OPERATION, code, counter, parents) }?)))
    }

    /// Requests that completed well. None where the word lies in memory that this process does not
    /// see: whoever does reads it there.
    ///
    /// # Errors
    /// [`Error::FunctionMissing`] where the provider's table has no `fi_cntr_read`.
    pub fn successes(&self) -> Result<Option<u64>> {
        let raw = self.0.raw();
        // SAFETY: an open counter points to its table, or to none.
        let read = unsafe { table_op!((*raw).ops, fi_ops_cntr.read, "fi_cntr_read") }?;
        let _serialized = self.0.context().serialize_calls();
        // SAFETY: the counter is open.
        Ok(self.0.parents().readable_by_host[0].then(|| unsafe { read(raw) }))
    }

    /// Requests that completed with an error; None as in [`Self::successes`].
    ///
    /// # Errors
    /// [`Error::FunctionMissing`] where the provider's table has no `fi_cntr_readerr`.
    pub fn errors(&self) -> Result<Option<u64>> {
        let raw = self.0.raw();
        // SAFETY: an open counter points to its table, or to none.
        let read = unsafe { table_op!((*raw).ops, fi_ops_cntr.readerr, "fi_cntr_readerr") }?;
        let _serialized = self.0.context().serialize_calls();
        // SAFETY: the counter is open.
        Ok(self.0.parents().readable_by_host[1].then(|| unsafe { read(raw) }))
    }

    /// Sets both words.
    ///
    /// # Errors
    /// [`Error::CounterInUse`] where a mapped queue goes by it; [`Error::Call`] with the answer of
    /// `fi_cntr_set` or `fi_cntr_seterr`.
    pub fn set(&self, successes: u64, errors: u64) -> Result<()> {
        const SET: &str = "fi_cntr_set";
        // Nobody takes it while it is set.
        let _counting = self.register_user()?;
        const SET_ERRORS: &str = "fi_cntr_seterr";
        let raw = self.0.raw();
        // SAFETY: an open counter points to its table, or to none.
        let set = unsafe { table_op!((*raw).ops, fi_ops_cntr.set, SET) }?;
        // SAFETY: as above.
        let set_errors = unsafe { table_op!((*raw).ops, fi_ops_cntr.seterr, SET_ERRORS) }?;
        let context = self.0.context();
        let _serialized = context.serialize_calls();
        // SAFETY: the counter is open.
        context.check(SET, unsafe { set(raw, successes) })?;
        // SAFETY: as above.
        context.check(SET_ERRORS, unsafe { set_errors(raw, errors) })
    }

    /// Closes the counter and says how that went.
    ///
    /// # Errors
    /// [`Error::Busy`] while an endpoint or another clone uses it; [`Error::Call`] with the answer of
    /// `fi_close`.
    pub fn close(self) -> Result<()> {
        close_shared(self.0, "completion counter")
    }

    /// The counter itself, for calls that this library does not have.
    pub fn as_ptr(&self) -> *mut fi::fid_cntr {
        self.0.raw()
    }

    /// Where its words lie; None where the counter does not own them.
    pub fn words(&self) -> Option<CounterWords> {
        let words = self.0.parents().words.as_ref()?;
        Some(CounterWords { success: words.success, error: words.error(), device: words.device })
    }

    /// What keeps its words allocated, where that is a `T`.
    pub(crate) fn owner<T: Any>(&self) -> Option<&T> {
        self.0.parents().words.as_ref()?.owner.downcast_ref()
    }

    /// Makes the caller the one who goes by it, for the one endpoint that it counts for.
    pub(crate) fn claim(&self) -> std::result::Result<(), Unclaimable> {
        self.0.parents().counting.claim()
    }

    /// Another endpoint is counted, or somebody sets it.
    ///
    /// # Errors
    /// [`Error::CounterInUse`].
    pub(super) fn register_user(&self) -> Result<Completing> {
        self.0.parents().counting.begin().ok_or(Error::CounterInUse)
    }

    pub(super) fn fid(&self) -> *mut fi::fid {
        self.0.fid()
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.0.parents().domain
    }
}
