//! Completion counters: two words, of successes and of errors, that the adapter adds to as requests
//! complete (`cntr_open_ext`, efa provider 206.0). What is in flight is what was posted less both. They
//! say how many, not which, and change whether or not anybody reads the completion queue, which fills
//! all the same.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::BitOr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda_sys::fi;

use super::device_memory::{Owner, Reader};
use super::domain::close_shared;
use super::error::{Error, Result};
use super::object::{Context, InContext, Object, Padded, table_op};
use super::{Buffer, DeviceMemory, Dmabuf, Domain};
use crate::polling::{Completing, Polling, Unclaimable};

pub(super) type CntrOpenExt = unsafe extern "C" fn(
    *mut fi::fid_domain,
    *mut fi::fi_cntr_attr,
    *mut *mut fi::fid_cntr,
    *mut c_void,
    *mut fi::fi_efa_comp_cntr_init_attr,
) -> c_int;

/// What a counter counts of an endpoint (the flags of `fi_ep_bind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counted(u64);

impl Counted {
    /// Sends of the endpoint.
    pub const SEND: Self = Self(fi::FI_SEND);
    /// Messages that it receives.
    pub const RECEIVE: Self = Self(fi::FI_RECV);
    /// RDMA reads that it starts.
    pub const READ: Self = Self(fi::FI_READ);
    /// RDMA writes that it starts.
    pub const WRITE: Self = Self(fi::FI_WRITE);
    /// RDMA reads by peers.
    pub const REMOTE_READ: Self = Self(fi::FI_REMOTE_READ);
    /// RDMA writes by peers.
    pub const REMOTE_WRITE: Self = Self(fi::FI_REMOTE_WRITE);
    /// Everything that the endpoint starts, which is what a mapped queue counts by.
    pub const TRANSMIT: Self = Self(fi::FI_SEND | fi::FI_READ | fi::FI_WRITE);

    pub(super) const NOTHING: Self = Self(0);

    /// Whether all of `other` is counted.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// libfabric's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl BitOr for Counted {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A word of the caller's for a counter: 8 bytes, aligned to 8 (`fi_efa_memory_location`). The counter
/// goes on from the value that stands there.
#[derive(Clone, Copy, Debug)]
pub struct CounterMemory<'a> {
    location: fi::fi_efa_memory_location,
    /// Whether libfabric reads it for its callers.
    seen: bool,
    dmabuf: PhantomData<BorrowedFd<'a>>,
}

impl<'a> CounterMemory<'a> {
    /// Host memory.
    pub fn host(word: NonNull<u64>) -> Self {
        let location = fi::fi_efa_memory_location {
            ptr: word.as_ptr().cast(),
            type_: fi::FI_EFA_MEMORY_LOCATION_VA as u8,
            ..Default::default()
        };
        Self { location, seen: true, dmabuf: PhantomData }
    }

    /// A word of a dmabuf, such as a GPU's memory, at `offset`. `mapped` is where this process sees it,
    /// or null; only where it does can the counter be read through libfabric.
    pub fn dmabuf(dmabuf: BorrowedFd<'a>, offset: u64, mapped: *mut u64) -> Self {
        let mut location = fi::fi_efa_memory_location {
            ptr: mapped.cast(),
            type_: fi::FI_EFA_MEMORY_LOCATION_DMABUF as u8,
            ..Default::default()
        };
        location.dmabuf.offset = offset;
        location.dmabuf.fd = dmabuf.as_raw_fd();
        Self { location, seen: !mapped.is_null(), dmabuf: PhantomData }
    }
}

/// Both words in one piece of memory, which goes with the counter.
pub(super) struct OwnWords {
    success: u64,
    /// The GPU whose memory it is, as CUDA counts.
    device: Option<i32>,
    /// How the host reads the words, if they are in a GPU's memory.
    reader: Option<Reader>,
    /// Keeps the memory allocated; dropped after the reader, which may refer to it.
    _owner: Owner,
}

impl OwnWords {
    /// From the first word to the second; they are not to share a line of a GPU's cache.
    const STRIDE: u64 = 128;
    /// From the first byte of the first to the last of the second.
    pub(crate) const BYTES: usize = Self::STRIDE as usize + size_of::<u64>();

    /// Zeroes of the host's; None where memory is short.
    pub(super) fn host() -> Option<Self> {
        let words = Buffer::zeroed(Self::BYTES)?;
        Some(Self { success: words.as_ptr() as u64, device: None, reader: None, _owner: Arc::new(words) })
    }

    /// In a GPU's memory, with the dmabuf of it, or why there is none.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where they do not fit, [`Error::NoDmabuf`].
    pub(super) fn device(memory: DeviceMemory) -> Result<(Self, Dmabuf)> {
        let DeviceMemory { address, length, ordinal, dmabuf, owner, reader } = memory;
        if length < Self::BYTES {
            let (needs, region) = (Self::BYTES as u64, length as u64);
            return Err(Error::OutOfBounds { offset: 0, length: needs, region });
        }
        let dmabuf = dmabuf.map_err(|why| Error::NoDmabuf { operation: super::gda::CNTR_OPEN_EXT, why })?;
        let success = address.as_ptr() as u64;
        Ok((Self { success, device: Some(ordinal), reader, _owner: owner }, dmabuf))
    }

    fn error(&self) -> u64 {
        self.success + Self::STRIDE
    }

    /// Where the processor reaches the words.
    pub(super) fn on_host(&self) -> [Option<CounterMemory<'static>>; 2] {
        [self.success, self.error()].map(|word| {
            NonNull::new(std::ptr::with_exposed_provenance_mut(word as usize)).map(CounterMemory::host)
        })
    }

    /// Where they lie in their dmabuf. `told`: with the GPU's addresses, which libfabric is not asked to read.
    pub(super) fn in_dmabuf<'a>(&self, dmabuf: &'a Dmabuf, told: bool) -> [Option<CounterMemory<'a>>; 2] {
        [self.success, self.error()].map(|word| {
            let offset = dmabuf.offset + (word - self.success);
            let address =
                if told { std::ptr::with_exposed_provenance_mut(word as usize) } else { null_mut() };
            Some(CounterMemory { seen: false, ..CounterMemory::dmabuf(dmabuf.file.as_fd(), offset, address) })
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
    seen: [bool; 2],
    words: Option<Arc<OwnWords>>,
    /// Which endpoints it counts for, and whether a mapped queue goes by it.
    counting: Polling,
    domain: Domain,
}

impl std::fmt::Debug for CounterParents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CounterParents").field("seen", &self.seen).finish_non_exhaustive()
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
        [success, error]: [Option<CounterMemory<'_>>; 2],
        words: Option<Arc<OwnWords>>,
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
        let turn = context.turn();
        // SAFETY: the domain is open; both attribute structures are whole, with zeroes behind them;
        // `counter` can be written; the caller vouches for words that are given.
        let code = unsafe {
            open(domain.as_ptr(), &mut attr.value, &mut counter, std::ptr::null_mut(), &mut efa.value)
        };
        drop(turn);
        if code < 0 {
            return Err(named(context, code));
        }
        let seen = [success, error].map(|word| word.is_none_or(|word| word.seen));
        let parents = CounterParents { seen, words, counting: Polling::default(), domain: domain.clone() };
        // SAFETY: the call that returned `code` opened `counter`, and nobody else knows it.
        Ok(Self(Arc::new(unsafe { Object::adopt(OPERATION, code, counter, parents) }?)))
    }

    /// Requests that completed well. None where the word lies in memory that this process does not
    /// see: whoever does reads it there.
    ///
    /// # Errors
    /// [`Error::NoSuchCall`] where the provider's table has no `fi_cntr_read`.
    pub fn successes(&self) -> Result<Option<u64>> {
        let raw = self.0.raw();
        // SAFETY: an open counter points to its table, or to none.
        let read = unsafe { table_op!((*raw).ops, fi_ops_cntr.read, "fi_cntr_read") }?;
        let _turn = self.0.context().turn();
        // SAFETY: the counter is open.
        Ok(self.0.parents().seen[0].then(|| unsafe { read(raw) }))
    }

    /// Requests that completed with an error; None as in [`Self::successes`].
    ///
    /// # Errors
    /// [`Error::NoSuchCall`] where the provider's table has no `fi_cntr_readerr`.
    pub fn errors(&self) -> Result<Option<u64>> {
        let raw = self.0.raw();
        // SAFETY: an open counter points to its table, or to none.
        let read = unsafe { table_op!((*raw).ops, fi_ops_cntr.readerr, "fi_cntr_readerr") }?;
        let _turn = self.0.context().turn();
        // SAFETY: the counter is open.
        Ok(self.0.parents().seen[1].then(|| unsafe { read(raw) }))
    }

    /// Sets both words.
    ///
    /// # Errors
    /// [`Error::CounterTaken`] where a mapped queue goes by it; [`Error::Call`] with the answer of
    /// `fi_cntr_set` or `fi_cntr_seterr`.
    pub fn set(&self, successes: u64, errors: u64) -> Result<()> {
        const SET: &str = "fi_cntr_set";
        // Nobody takes it while it is set.
        let _counting = self.counts_here()?;
        const SET_ERRORS: &str = "fi_cntr_seterr";
        let raw = self.0.raw();
        // SAFETY: an open counter points to its table, or to none.
        let set = unsafe { table_op!((*raw).ops, fi_ops_cntr.set, SET) }?;
        // SAFETY: as above.
        let set_errors = unsafe { table_op!((*raw).ops, fi_ops_cntr.seterr, SET_ERRORS) }?;
        let context = self.0.context();
        let _turn = context.turn();
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

    /// Makes the caller the one who goes by it, for the one endpoint that it counts for.
    pub(crate) fn claim(&self) -> std::result::Result<(), Unclaimable> {
        self.0.parents().counting.claim()
    }

    /// Another endpoint is counted, or somebody sets it.
    ///
    /// # Errors
    /// [`Error::CounterTaken`].
    pub(super) fn counts_here(&self) -> Result<Completing> {
        self.0.parents().counting.begin().ok_or(Error::CounterTaken)
    }

    pub(super) fn fid(&self) -> *mut fi::fid {
        self.0.fid()
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.0.parents().domain
    }
}
