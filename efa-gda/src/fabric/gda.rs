//! The operations that expose an endpoint's queues (`fi_efa_ops_gda`).
//!
//! The table has neither a size nor a version: its length follows from the provider's release. No pointer that
//! this release lacks is read, and the reason is recorded for each operation that is missing.

use std::ffi::{CStr, c_int};
use std::os::fd::AsFd;
use std::sync::Arc;

use efa_gda_sys::fi;
use efa_gda_wire::{AddressHandle, LocalKey, Peer, QueueKey, QueuePairNumber};

use super::completion::CqOpenExt;
use super::counter::{CntrOpenExt, OwnedWords};
use super::error::{self, CNTR_OPEN_EXT, CQ_OPEN_EXT, UnavailableReason};
use super::memory::MemoryObject;
use super::object::{Context, Padded, open_ops};
use super::table::pointer_at;
use super::{CompletionCounter, CompletionQueue, Domain, Endpoint, FabricAddress, Version};
#[cfg(doc)]
use crate::ErrorKind;
use crate::exposure::{RawCompletionQueue, RawWorkQueue};
use crate::memory::{CounterMemory, DeviceMemory, ExternalMemory, Region, in_bounds};
use crate::{Error, Result};

/// The first provider release with `fi_efa_ops_gda`, from libfabric 2.3.
pub const FIRST_WITH_GDA_OPS: Version = Version::new(203, 0);
/// The first provider release whose table has `cntr_open_ext`, from libfabric 2.6.
pub const FIRST_WITH_COUNTERS: Version = Version::new(206, 0);
/// The only provider release that has these operations in `fi_efa_ops_domain`.
const WITH_DOMAIN_OPS: Version = Version::new(202, 0);

const OPEN: &str = "fi_open_ops(efa gda ops)";
const QUERY_ADDR: &str = "query_addr";
const QUERY_QP_WQS: &str = "query_qp_wqs";
const QUERY_CQ: &str = "query_cq";
const GET_MR_LKEY: &str = "get_mr_lkey";

type QueryAddr = unsafe extern "C" fn(*mut fi::fid_ep, u64, *mut u16, *mut u16, *mut u32) -> c_int;
type QueryQpWqs =
    unsafe extern "C" fn(*mut fi::fid_ep, *mut fi::fi_efa_wq_attr, *mut fi::fi_efa_wq_attr) -> c_int;
type QueryCq = unsafe extern "C" fn(*mut fi::fid_cq, *mut fi::fi_efa_cq_attr) -> c_int;
type GetMrLkey = unsafe extern "C" fn(*mut fi::fid_mr) -> u64;

/// A function of the table, or the reason why it is unavailable.
type Op<F> = std::result::Result<F, UnavailableReason>;

/// The GDA operations of one domain. Clones share the domain.
#[derive(Clone, Debug)]
pub struct GdaOps {
    domain: Domain,
    query_addr: Op<QueryAddr>,
    query_qp_wqs: Op<QueryQpWqs>,
    query_cq: Op<QueryCq>,
    cq_open_ext: Op<CqOpenExt>,
    get_mr_lkey: Op<GetMrLkey>,
    cntr_open_ext: Op<CntrOpenExt>,
}

/// The work queues of an endpoint, as the provider reports them. Their values are not checked.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkQueues {
    /// The send queue.
    pub send: RawWorkQueue,
    /// The receive queue.
    pub receive: RawWorkQueue,
}

impl GdaOps {
    /// See [`Domain::gda_ops`].
    pub(super) fn open(domain: &Domain) -> Result<Self> {
        let name = CStr::from_bytes_with_nul(fi::FI_EFA_GDA_OPS).expect("a C string constant");
        let provider = domain.info().map(|info| info.provider_version());
        // SAFETY: the domain is open while `domain` lives.
        let opened = unsafe { open_ops(domain.context(), domain.as_ptr().cast(), name, OPEN) }?;
        let table: *const fi::fi_efa_ops_gda = match opened {
            Ok(table) if table.is_null() => return Err(error::no_object(OPEN)),
            Ok(table) => table.cast_const().cast(),
            Err(code) => return Err(open_error(domain, provider, code)),
        };
        if let Some(provider) = provider.filter(|version| *version < FIRST_WITH_GDA_OPS) {
            return Err(error::gda_table_unknown(OPEN, provider));
        }
        let counters = match provider {
            None => Err(UnavailableReason::NoInfo),
            Some(has) if has < FIRST_WITH_COUNTERS => {
                Err(UnavailableReason::ProviderTooOld { has, needs: FIRST_WITH_COUNTERS })
            }
            Some(has) => {
                // SAFETY: from this release on the table has a sixth pointer. `pointer_at` detects a provider
                // that reports the release and lacks the pointer.
                match unsafe { pointer_at(&raw const (*table).cntr_open_ext) } {
                    Some(sixth) => sixth.ok_or(UnavailableReason::NullPointer),
                    None => Err(UnavailableReason::TableEndsEarly { has }),
                }
            }
        };
        // SAFETY: every release that returns this table has these five pointers. The table belongs to the
        // provider, and providers stay loaded. Fields are read one by one, because a reference to the whole
        // structure would reach past a table of five.
        unsafe {
            Ok(Self {
                domain: domain.clone(),
                query_addr: (&raw const (*table).query_addr).read().ok_or(UnavailableReason::NullPointer),
                query_qp_wqs: (&raw const (*table).query_qp_wqs).read().ok_or(UnavailableReason::NullPointer),
                query_cq: (&raw const (*table).query_cq).read().ok_or(UnavailableReason::NullPointer),
                cq_open_ext: (&raw const (*table).cq_open_ext).read().ok_or(UnavailableReason::NullPointer),
                get_mr_lkey: (&raw const (*table).get_mr_lkey).read().ok_or(UnavailableReason::NullPointer),
                cntr_open_ext: counters,
            })
        }
    }

    /// The domain of the operations.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Each operation of the table by name, with the reason for each that is unavailable.
    pub fn available(&self) -> [(&'static str, std::result::Result<(), UnavailableReason>); 6] {
        [
            (QUERY_ADDR, self.query_addr.map(|_| ())),
            (QUERY_QP_WQS, self.query_qp_wqs.map(|_| ())),
            (QUERY_CQ, self.query_cq.map(|_| ())),
            (CQ_OPEN_EXT, self.cq_open_ext.map(|_| ())),
            (GET_MR_LKEY, self.get_mr_lkey.map(|_| ())),
            (CNTR_OPEN_EXT, self.cntr_open_ext.map(|_| ())),
        ]
    }

    /// Returns the address handle, queue pair number and queue key of a peer, which entries for that peer
    /// carry. `address` must come from the endpoint's address vector.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for an address of another vector, or one that was removed; [`ErrorKind::Unavailable`] and
    /// [`ErrorKind::Unsupported`] as for every operation of the table.
    pub fn query_addr(&self, endpoint: &Endpoint, address: FabricAddress) -> Result<Peer> {
        let query = available(QUERY_ADDR, self.query_addr)?;
        self.require_same_domain(QUERY_ADDR, endpoint.domain())?;
        let number = endpoint.address_vector().number(address, QUERY_ADDR)?;
        let (mut handle, mut queue_pair, mut queue_key) = (0, 0, 0);
        let context = endpoint.context();
        let serialized = context.serialize_calls();
        // SAFETY: the endpoint is open. It is enabled, and so bound to an address vector, which the provider
        // dereferences. The three results can be written.
        let code = unsafe { query(endpoint.as_ptr(), number, &mut handle, &mut queue_pair, &mut queue_key) };
        drop(serialized);
        if code == -libc::EINVAL {
            return Err(context.failure(QUERY_ADDR, code).unknown_address());
        }
        check_gda_call(context, QUERY_ADDR, code)?;
        Ok(Peer {
            address_handle: AddressHandle::new(handle),
            queue_pair: QueuePairNumber::new(queue_pair),
            queue_key: QueueKey::new(queue_key),
        })
    }

    /// Returns the send and receive queues of an endpoint. Their values are not checked; see
    /// [`crate::exposure::Exposure`].
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Unsupported`], [`ErrorKind::Other`].
    pub fn query_qp_wqs(&self, endpoint: &Endpoint) -> Result<WorkQueues> {
        let query = available(QUERY_QP_WQS, self.query_qp_wqs)?;
        self.require_same_domain(QUERY_QP_WQS, endpoint.domain())?;
        // Zeroed and followed by zeroes: a provider that knows fewer fields leaves the rest unchanged, and one
        // that knows more has memory to write to.
        let mut send = Padded::new(fi::fi_efa_wq_attr::default());
        let mut receive = Padded::new(fi::fi_efa_wq_attr::default());
        let context = endpoint.context();
        let serialized = context.serialize_calls();
        // SAFETY: the endpoint is enabled, and so has the queue pair that the provider dereferences. Both
        // structures can be written.
        let code = unsafe { query(endpoint.as_ptr(), &mut send.value, &mut receive.value) };
        drop(serialized);
        check_gda_call(context, QUERY_QP_WQS, code)?;
        Ok(WorkQueues { send: send.value.into(), receive: receive.value.into() })
    }

    /// Returns the address and size of a completion queue's entries. For a queue in external memory, the buffer
    /// is the address in [`ExternalMemory`]. The values are not checked.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Unsupported`], [`ErrorKind::Other`].
    pub fn query_cq(&self, queue: &CompletionQueue) -> Result<RawCompletionQueue> {
        let query = available(QUERY_CQ, self.query_cq)?;
        self.require_same_domain(QUERY_CQ, queue.domain())?;
        let mut attr = Padded::new(fi::fi_efa_cq_attr::default());
        let context = queue.domain().context();
        let serialized = context.serialize_calls();
        // SAFETY: the queue is open; the structure can be written.
        let code = unsafe { query(queue.as_ptr(), &mut attr.value) };
        drop(serialized);
        check_gda_call(context, QUERY_CQ, code)?;
        Ok(attr.value.into())
    }

    /// Opens a completion queue of at least `entries` entries in memory of the caller that the host reads. For
    /// GPU memory, see [`Self::cq_open_device`].
    ///
    /// # Safety
    /// The memory must hold zeroes, as for [`Self::cq_open_device`]. It must stay allocated until the queue is closed,
    /// because the adapter writes to it. The buffer must be null, or an address at which the host can read all of the
    /// memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]; [`ErrorKind::Unsupported`], also for an adapter without
    /// the capability; [`ErrorKind::Other`] with EINVAL for a length of 0.
    pub unsafe fn cq_open_ext(&self, memory: &ExternalMemory<'_>, entries: usize) -> Result<CompletionQueue> {
        let open = available(CQ_OPEN_EXT, self.cq_open_ext)?;
        CompletionQueue::open_external(&self.domain, open, memory, entries, None)
    }

    /// Opens a completion queue of at least `entries` entries in GPU memory, which the queue keeps allocated.
    /// Only that GPU polls the queue. `Gpu::completion_queue` (feature `cuda`) is
    /// the safe form.
    ///
    /// # Safety
    /// The memory must hold zeroes: the phase bit of the first lap is 1, so other bytes can pass for completions.
    ///
    /// # Errors
    /// Those of [`Self::cq_open_ext`]; [`ErrorKind::Unsupported`] for memory without a dmabuf; [`ErrorKind::Argument`]
    /// where the provider's entries do not fit the memory.
    pub unsafe fn cq_open_device(&self, memory: DeviceMemory, entries: usize) -> Result<CompletionQueue> {
        let open = available(CQ_OPEN_EXT, self.cq_open_ext)?;
        let DeviceMemory { address, length, ordinal, dmabuf, owner, .. } = memory;
        let dmabuf = dmabuf.map_err(|why| error::no_dmabuf(CQ_OPEN_EXT, &why))?;
        let external = ExternalMemory {
            dmabuf: dmabuf.file.as_fd(),
            offset: dmabuf.offset,
            length: length as u64,
            buffer: address.as_ptr(),
        };
        let device = Some((ordinal, owner));
        let queue = CompletionQueue::open_external(&self.domain, open, &external, entries, device)?;
        let attributes = self.query_cq(&queue)?;
        let bytes = u64::from(attributes.num_entries) * u64::from(attributes.entry_size);
        in_bounds(0, bytes, length as u64)?;
        Ok(queue)
    }

    /// Opens a completion counter whose words the provider allocates. [`CompletionCounter::successes`] and
    /// [`CompletionCounter::errors`] read them. The counter counts for the endpoints whose
    /// [`Bindings`](super::Bindings) have it.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]; [`ErrorKind::Unsupported`], also where
    /// `FI_EFA_USE_HW_CNTR` disables counters (before libfabric 2.7, also where it is not set), on domains of an
    /// API below 2.5, and on adapters without counters; [`ErrorKind::Other`].
    pub fn cntr_open(&self) -> Result<CompletionCounter> {
        // SAFETY: the call passes no memory of the caller.
        unsafe { self.cntr_open_ext(None, None) }
    }

    /// Opens a completion counter with words of the caller, in host memory or GPU memory. The provider
    /// allocates each word that is None.
    ///
    /// # Safety
    /// The words must stay allocated until the counter is closed, and all accesses to them must be 64-bit
    /// atomics: the adapter adds to them at any time.
    ///
    /// # Errors
    /// Those of [`Self::cntr_open`]; [`ErrorKind::Other`] with EINVAL for a word that is null or not aligned.
    pub unsafe fn cntr_open_ext(
        &self,
        success: Option<CounterMemory<'_>>,
        error: Option<CounterMemory<'_>>,
    ) -> Result<CompletionCounter> {
        let open = available(CNTR_OPEN_EXT, self.cntr_open_ext)?;
        let words = [success, error].map(|word| word.map(Into::into));
        // SAFETY: the caller guarantees it, as this function requires.
        unsafe { CompletionCounter::open(&self.domain, open, words, None) }
    }

    /// Opens a completion counter that owns its words in host memory, where devices may read them
    /// ([`CompletionCounter::words`]). A mapped queue with counters (`MappedQueue::with_counters`) needs such a
    /// counter.
    ///
    /// # Errors
    /// Those of [`Self::cntr_open`]; [`ErrorKind::OutOfMemory`].
    pub fn cntr_open_host(&self) -> Result<CompletionCounter> {
        let open = available(CNTR_OPEN_EXT, self.cntr_open_ext)?;
        let words = Arc::new(OwnedWords::host().ok_or_else(|| Error::out_of_memory(OwnedWords::BYTES))?);
        // SAFETY: the counter owns the words and frees them after it is closed.
        unsafe { CompletionCounter::open(&self.domain, open, words.on_host(), Some(words)) }
    }

    /// Opens a completion counter that owns its words in GPU memory, which the counter keeps allocated. The
    /// memory must be zeroed and have at least 136 bytes. Only that GPU reads the words.
    ///
    /// # Errors
    /// Those of [`Self::cntr_open`]; [`ErrorKind::Argument`] for less memory; [`ErrorKind::Unsupported`] for memory
    /// without a dmabuf.
    pub fn cntr_open_device(&self, memory: DeviceMemory) -> Result<CompletionCounter> {
        let open = available(CNTR_OPEN_EXT, self.cntr_open_ext)?;
        let (words, dmabuf) = OwnedWords::device(memory)?;
        let words = Arc::new(words);
        let attempt = |gpu_addresses| {
            let locations = words.in_dmabuf(&dmabuf, gpu_addresses);
            // SAFETY: as in `cntr_open_host`.
            unsafe { CompletionCounter::open(&self.domain, open, locations, Some(words.clone())) }
        };
        match attempt(false) {
            // An adapter that cannot use the file descriptor, such as a software adapter, needs the address.
            Err(error) if error.code() == Some(-libc::EOPNOTSUPP) => attempt(true),
            opened => opened,
        }
    }

    /// Returns the key with which entries name the region as local memory.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for a region of another domain; [`ErrorKind::Unavailable`]; [`ErrorKind::Other`] for a region
    /// without a key that an entry can carry.
    pub fn get_mr_lkey(&self, region: &Region) -> Result<LocalKey> {
        let get = available(GET_MR_LKEY, self.get_mr_lkey)?;
        let region = region.object::<MemoryObject>().ok_or(error::other_domain(GET_MR_LKEY))?;
        self.require_same_domain(GET_MR_LKEY, &region.parents().1)?;
        let serialized = region.library().serialize_calls();
        // SAFETY: the region is open.
        let key = unsafe { get(region.raw()) };
        drop(serialized);
        if key == fi::FI_KEY_NOTAVAIL {
            return Err(error::no_key(GET_MR_LKEY));
        }
        u32::try_from(key)
            .ok()
            .and_then(|key| LocalKey::new(key).ok())
            .ok_or_else(|| error::key_too_wide(GET_MR_LKEY, key, 24))
    }

    /// Checks that an object belongs to this domain, because the provider does not check the objects it
    /// receives.
    fn require_same_domain(&self, operation: &'static str, domain: &Domain) -> Result<()> {
        if self.domain.is_same(domain) { Ok(()) } else { Err(error::other_domain(operation)) }
    }
}

fn available<F>(operation: &'static str, op: Op<F>) -> Result<F> {
    op.map_err(|reason| error::unavailable(operation, reason))
}

fn check_gda_call(context: &Context, operation: &'static str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(context.failure(operation, code).of_gda()) }
}

/// Turns the code with which `fi_open_ops` refused the table into an error.
fn open_error(domain: &Domain, provider: Option<Version>, code: c_int) -> Error {
    let failure = domain.context().failure(OPEN, code);
    match -code {
        libc::EOPNOTSUPP => failure.gda_not_on_this_fabric(),
        libc::EINVAL if provider.is_some_and(|p| p >= WITH_DOMAIN_OPS && p < FIRST_WITH_GDA_OPS) => {
            failure.gda_in_domain_ops()
        }
        libc::EINVAL => failure.no_gda(provider),
        // ENOSYS: the provider has no such tables at all (fi_no_ops_open).
        libc::ENOSYS => failure.no_gda(provider),
        _ => failure.into(),
    }
}
