//! Completion counters: a word of successes and a word of errors, to which the adapter adds as requests
//! complete (`cntr_open_ext`, efa provider 206.0).
//!
//! The number of requests in flight is the number posted minus both words. Counters report how many requests
//! completed, not which. They advance whether or not the completion queue is read, and the completion queue
//! fills in either case.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda_sys::fi;

use super::Domain;
use super::error::{self, CNTR_OPEN_EXT};
use super::object::{Context, Object, Padded, table_op};
#[cfg(doc)]
use crate::ErrorKind;
use crate::memory::{Buffer, CounterMemory, CounterWords, DeviceMemory, Dmabuf, Owner, Reader, in_bounds};
use crate::polling::{Completing, Polling, Unclaimable};
use crate::{Error, Result};

pub(super) type CntrOpenExt = unsafe extern "C" fn(
    *mut fi::fid_domain,
    *mut fi::fi_cntr_attr,
    *mut *mut fi::fid_cntr,
    *mut c_void,
    *mut fi::fi_efa_comp_cntr_init_attr,
) -> c_int;

/// A counter's word in libfabric's terms.
#[derive(Clone, Copy)]
pub(super) struct CounterWord<'a> {
    location: fi::fi_efa_memory_location,
    /// Whether libfabric can read the word for its callers.
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

/// Both words of a counter in one allocation, which the counter owns.
pub(super) struct OwnedWords {
    success: u64,
    /// The CUDA ordinal of the GPU whose memory holds the words; None for host memory.
    device: Option<i32>,
    /// How the host reads the words, if they are in a GPU's memory.
    reader: Option<Reader>,
    /// Keeps the memory allocated; dropped after the reader, which may refer to it.
    _owner: Owner,
}

impl OwnedWords {
    /// Distance between the words, which keeps them on different GPU cache lines.
    const STRIDE: u64 = 128;
    /// Bytes from the start of the first word to the end of the second.
    pub(crate) const BYTES: usize = Self::STRIDE as usize + size_of::<u64>();

    /// Allocates zeroed words in host memory. None where memory is short.
    pub(super) fn host() -> Option<Self> {
        let words = Buffer::zeroed(Self::BYTES)?;
        Some(Self { success: words.as_ptr() as u64, device: None, reader: None, _owner: Arc::new(words) })
    }

    /// Places the words in GPU memory, and returns the dmabuf of that memory.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] where the words do not fit; [`ErrorKind::Unsupported`] where the memory has no dmabuf.
    pub(super) fn device(memory: DeviceMemory) -> Result<(Self, Dmabuf)> {
        let DeviceMemory { address, length, ordinal, dmabuf, owner, reader } = memory;
        in_bounds(0, Self::BYTES as u64, length as u64)?;
        let dmabuf = dmabuf.map_err(|why| error::no_dmabuf(CNTR_OPEN_EXT, &why))?;
        let success = address.as_ptr() as u64;
        Ok((Self { success, device: Some(ordinal), reader, _owner: owner }, dmabuf))
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

    /// The words as parts of their dmabuf. With `gpu_addresses`, they carry the addresses that the GPU uses,
    /// which this process must not ask libfabric to read.
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

/// A completion counter. Clones are handles of one counter, which is closed when the last clone and the last
/// endpoint that it counts for are dropped.
#[derive(Clone, Debug)]
pub struct CompletionCounter(Arc<Object<fi::fid_cntr, CounterParents>>);

struct CounterParents {
    /// Whether libfabric can read the word of successes and the word of errors.
    readable_by_host: [bool; 2],
    words: Option<Arc<OwnedWords>>,
    /// Counts the endpoints that use the counter, and records whether a mapped queue relies on it.
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

impl CompletionCounter {
    /// Calls `cntr_open_ext`, whose presence [`super::GdaOps`] has checked. The provider allocates each word
    /// that is None.
    ///
    /// # Safety
    /// Words in `success` and `error` must stay allocated until the counter is closed. `words` ensures that
    /// where the counter owns them.
    pub(super) unsafe fn open(
        domain: &Domain,
        open: CntrOpenExt,
        [success, error]: [Option<CounterWord<'_>>; 2],
        words: Option<Arc<OwnedWords>>,
    ) -> Result<Self> {
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
        let call = |counter: *mut _| {
            // SAFETY: the domain is open; both attribute structures are complete, with zeroes after them; `counter`
            // can be written; the caller guarantees the words.
            unsafe { open(domain.as_ptr(), &mut attr.value, counter, std::ptr::null_mut(), &mut efa.value) }
        };
        let readable_by_host = [success, error].map(|word| word.is_none_or(|word| word.readable_by_host));
        let parents =
            CounterParents { readable_by_host, words, counting: Polling::default(), domain: domain.clone() };
        let failed = |context: &Context, code| context.failure(CNTR_OPEN_EXT, code).of_gda();
        // SAFETY: no other handle exists to the counter that the call opens.
        let object = unsafe { Object::open_or(CNTR_OPEN_EXT, domain.context(), parents, failed, call) };
        Ok(Self(Arc::new(object?)))
    }

    /// The number of requests that completed successfully. None where this process cannot read the word, for
    /// example in GPU memory.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where the provider's table has no `fi_cntr_read`.
    pub fn successes(&self) -> Result<Option<u64>> {
        let raw = self.0.raw();
        // SAFETY: an open counter points to its operation table, or to null.
        let read = unsafe { table_op!((*raw).ops, fi_ops_cntr.read, "fi_cntr_read") }?;
        let _serialized = self.0.library().serialize_calls();
        // SAFETY: the counter is open.
        Ok(self.0.parents().readable_by_host[0].then(|| unsafe { read(raw) }))
    }

    /// The number of requests that completed with an error. None as for [`Self::successes`].
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where the provider's table has no `fi_cntr_readerr`.
    pub fn errors(&self) -> Result<Option<u64>> {
        let raw = self.0.raw();
        // SAFETY: an open counter points to its operation table, or to null.
        let read = unsafe { table_op!((*raw).ops, fi_ops_cntr.readerr, "fi_cntr_readerr") }?;
        let _serialized = self.0.library().serialize_calls();
        // SAFETY: the counter is open.
        Ok(self.0.parents().readable_by_host[1].then(|| unsafe { read(raw) }))
    }

    /// Closes the counter and reports the result.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a clone or an endpoint uses it; [`ErrorKind::Other`] where `fi_close` fails.
    pub fn close(self) -> Result<()> {
        Object::close_shared(self.0)
    }

    pub(super) fn as_ptr(&self) -> *mut fi::fid_cntr {
        self.0.raw()
    }

    /// Addresses of the words. None where the counter does not own them.
    pub fn words(&self) -> Option<CounterWords> {
        let words = self.0.parents().words.as_ref()?;
        Some(CounterWords { success: words.success, error: words.error(), device: words.device })
    }

    /// Reads the words of successes and of errors where they are, without libfabric.
    ///
    /// # Errors
    /// The reason in words: the counter does not own its words, or the host cannot read the memory that holds them.
    pub(crate) fn read_words(&self) -> std::result::Result<[u64; 2], String> {
        let words = self.0.parents().words.as_ref().ok_or("the counter does not own them")?;
        let read = |word: u64| match (words.device, &words.reader) {
            (None, _) => {
                let word = std::ptr::with_exposed_provenance_mut(word as usize);
                // SAFETY: the word is aligned memory of the host that the open counter keeps allocated; all writes to
                // it are atomic.
                Ok(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire))
            }
            (Some(_), Some(reader)) => {
                let mut bytes = [0; size_of::<u64>()];
                reader(word, &mut bytes)?;
                Ok(u64::from_ne_bytes(bytes))
            }
            (Some(_), None) => Err("the owner of the GPU's memory gave no way to read it".to_owned()),
        };
        Ok([read(words.success)?, read(words.error())?])
    }

    /// Makes the caller the only user of the counter, for the only endpoint that it counts for. The caller must check
    /// that both words are 0, because endpoints that used the counter before may have left counts.
    pub(crate) fn claim(&self) -> std::result::Result<(), Unclaimable> {
        self.0.parents().counting.claim_cleared()
    }

    /// Registers another user: an endpoint that is counted.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where a mapped queue relies on the counter.
    pub(super) fn register_user(&self) -> Result<Completing> {
        self.0.parents().counting.begin().ok_or_else(|| {
            let why = "a mapped queue relies on the completion counter, so it may not count for others";
            Error::busy(why).with_hint("open another completion counter")
        })
    }

    pub(super) fn fid(&self) -> *mut fi::fid {
        self.0.fid()
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.0.parents().domain
    }
}
