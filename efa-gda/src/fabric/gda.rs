//! The operations that expose an endpoint's queues (`fi_efa_ops_gda`).
//!
//! That table has neither a size nor a version: it is as long as the provider's release made it. No
//! pointer is read that this release does not have, and each operation that is missing says why.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::AsFd;
use std::sync::Arc;

use efa_gda_sys::fi;
use efa_gda_wire::{AddressHandle, LocalKey, Peer, QueueKey, QueuePairNumber};

use super::counter::{CntrOpenExt, OwnWords};
use super::error::{Absence, Error, Result};
use super::object::{Context, InContext, Padded, open_ops};
use super::table::pointer_at;
use super::{
    CompletionCounter, CompletionQueue, CounterMemory, DeviceMemory, Domain, Enabled, Endpoint,
    ExternalMemory, FabricAddress, MemoryRegion, Version,
};
use crate::exposure::{RawCompletionQueue, RawWorkQueue};

/// The first provider release with `fi_efa_ops_gda`: of libfabric 2.3.
pub const FIRST_WITH_GDA_OPS: Version = Version::new(203, 0);
/// The first provider release whose table has `cntr_open_ext`: of libfabric 2.6.
pub const FIRST_WITH_COUNTERS: Version = Version::new(206, 0);
/// The one provider release that has these operations in `fi_efa_ops_domain`.
const WITH_DOMAIN_OPS: Version = Version::new(202, 0);

const OPEN: &str = "fi_open_ops(efa gda ops)";
const QUERY_ADDR: &str = "query_addr";
const QUERY_QP_WQS: &str = "query_qp_wqs";
const QUERY_CQ: &str = "query_cq";
pub(super) const CQ_OPEN_EXT: &str = "cq_open_ext";
const GET_MR_LKEY: &str = "get_mr_lkey";
pub(super) const CNTR_OPEN_EXT: &str = "cntr_open_ext";

type QueryAddr = unsafe extern "C" fn(*mut fi::fid_ep, u64, *mut u16, *mut u16, *mut u32) -> c_int;
type QueryQpWqs =
    unsafe extern "C" fn(*mut fi::fid_ep, *mut fi::fi_efa_wq_attr, *mut fi::fi_efa_wq_attr) -> c_int;
type QueryCq = unsafe extern "C" fn(*mut fi::fid_cq, *mut fi::fi_efa_cq_attr) -> c_int;
pub(super) type CqOpenExt = unsafe extern "C" fn(
    *mut fi::fid_domain,
    *mut fi::fi_cq_attr,
    *mut fi::fi_efa_cq_init_attr,
    *mut *mut fi::fid_cq,
    *mut c_void,
) -> c_int;
type GetMrLkey = unsafe extern "C" fn(*mut fi::fid_mr) -> u64;

/// A function of the table, or why there is none.
type Op<F> = std::result::Result<F, Absence>;

/// The GDA operations of one domain. Cheap to clone.
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

/// The work queues of an endpoint, as the provider exposes them: unchecked.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkQueues {
    /// The send queue.
    pub send: RawWorkQueue,
    /// The receive queue.
    pub receive: RawWorkQueue,
}

impl GdaOps {
    /// Opens the operations of `domain`.
    ///
    /// # Errors
    /// [`Error::GdaNotOnThisFabric`] on the plain `efa` fabric, [`Error::GdaUnknown`] with a
    /// libfabric before 2.3, [`Error::GdaInDomainOps`] with 2.2, [`Error::GdaTableUnknown`] where a
    /// provider older than the table gives one out.
    pub fn open(domain: &Domain) -> Result<Self> {
        let name = CStr::from_bytes_with_nul(fi::FI_EFA_GDA_OPS).expect("a C string constant");
        let provider = domain.info().map(|info| info.provider_version());
        // SAFETY: the domain is open while `domain` lives.
        let answer = unsafe { open_ops(domain.context(), domain.as_ptr().cast(), name, OPEN) }?;
        let table: *const fi::fi_efa_ops_gda = match answer {
            Ok(table) if table.is_null() => return Err(Error::NoObject { operation: OPEN }),
            Ok(table) => table.cast_const().cast(),
            Err(code) => return Err(refused(domain, provider, code)),
        };
        if let Some(provider) = provider.filter(|version| *version < FIRST_WITH_GDA_OPS) {
            return Err(Error::GdaTableUnknown { provider });
        }
        let counters = match provider {
            None => Err(Absence::NoInfo),
            Some(has) if has < FIRST_WITH_COUNTERS => {
                Err(Absence::ProviderTooOld { has, needs: FIRST_WITH_COUNTERS })
            }
            Some(has) => {
                // SAFETY: from this release on the table has a sixth pointer; `pointer_at` finds out
                // where a provider says so and is wrong.
                match unsafe { pointer_at(&raw const (*table).cntr_open_ext) } {
                    Some(sixth) => sixth.ok_or(Absence::NullPointer),
                    None => Err(Absence::TableEndsEarly { has }),
                }
            }
        };
        // SAFETY: every release that gives out this table has these five pointers. The table is
        // the provider's own, and providers stay loaded; fields are read one by one, because a
        // reference to the whole would reach past a table of five.
        unsafe {
            Ok(Self {
                domain: domain.clone(),
                query_addr: (&raw const (*table).query_addr).read().ok_or(Absence::NullPointer),
                query_qp_wqs: (&raw const (*table).query_qp_wqs).read().ok_or(Absence::NullPointer),
                query_cq: (&raw const (*table).query_cq).read().ok_or(Absence::NullPointer),
                cq_open_ext: (&raw const (*table).cq_open_ext).read().ok_or(Absence::NullPointer),
                get_mr_lkey: (&raw const (*table).get_mr_lkey).read().ok_or(Absence::NullPointer),
                cntr_open_ext: counters,
            })
        }
    }

    /// The domain they are of.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Each operation of the table by name, and why it cannot be called where it cannot.
    pub fn available(&self) -> [(&'static str, std::result::Result<(), Absence>); 6] {
        [
            (QUERY_ADDR, self.query_addr.map(|_| ())),
            (QUERY_QP_WQS, self.query_qp_wqs.map(|_| ())),
            (QUERY_CQ, self.query_cq.map(|_| ())),
            (CQ_OPEN_EXT, self.cq_open_ext.map(|_| ())),
            (GET_MR_LKEY, self.get_mr_lkey.map(|_| ())),
            (CNTR_OPEN_EXT, self.cntr_open_ext.map(|_| ())),
        ]
    }

    /// How the adapter knows a peer: address handle, queue pair and queue key, for the entries that
    /// go to it. `address` is of the endpoint's address vector.
    ///
    /// # Errors
    /// [`Error::OtherAddressVector`] for an address of another vector, [`Error::UnknownAddress`] for
    /// one that is not there, or the errors of any operation
    /// of the table: [`Error::OpAbsent`], [`Error::NotBuiltIn`], [`Error::AdapterLacks`].
    pub fn query_addr(&self, endpoint: &Endpoint<Enabled>, address: FabricAddress) -> Result<Peer> {
        let query = present(QUERY_ADDR, self.query_addr)?;
        self.owns(QUERY_ADDR, endpoint.domain())?;
        let number = endpoint.address_vector().number(address, QUERY_ADDR)?;
        let (mut handle, mut queue_pair, mut queue_key) = (0, 0, 0);
        let context = endpoint.context();
        let turn = context.turn();
        // SAFETY: the endpoint is open and, being enabled, bound to an address vector, which the
        // provider dereferences; the three results can be written.
        let code = unsafe { query(endpoint.as_ptr(), number, &mut handle, &mut queue_pair, &mut queue_key) };
        drop(turn);
        if code == -libc::EINVAL {
            return Err(Error::UnknownAddress(context.failure(QUERY_ADDR, code)));
        }
        checked(context, QUERY_ADDR, code)?;
        Ok(Peer {
            address_handle: AddressHandle::new(handle),
            queue_pair: QueuePairNumber::new(queue_pair),
            queue_key: QueueKey::new(queue_key),
        })
    }

    /// The send and receive queues of an endpoint. Nothing is checked here; see
    /// [`crate::exposure::Exposure`].
    ///
    /// # Errors
    /// [`Error::OpAbsent`], [`Error::NotBuiltIn`], [`Error::AdapterLacks`], [`Error::Call`].
    pub fn query_qp_wqs(&self, endpoint: &Endpoint<Enabled>) -> Result<WorkQueues> {
        let query = present(QUERY_QP_WQS, self.query_qp_wqs)?;
        self.owns(QUERY_QP_WQS, endpoint.domain())?;
        // Zeroed, and with zeroes behind: a provider that knows fewer fields leaves the rest alone,
        // one that knows more has room.
        let mut send = Padded::new(fi::fi_efa_wq_attr::default());
        let mut receive = Padded::new(fi::fi_efa_wq_attr::default());
        let context = endpoint.context();
        let turn = context.turn();
        // SAFETY: the endpoint is enabled, so that it has the queue pair that the provider
        // dereferences; both structures can be written.
        let code = unsafe { query(endpoint.as_ptr(), &mut send.value, &mut receive.value) };
        drop(turn);
        checked(context, QUERY_QP_WQS, code)?;
        Ok(WorkQueues { send: send.value.into(), receive: receive.value.into() })
    }

    /// The entries of a completion queue. For one in external memory, the buffer is what its opener
    /// gave. Nothing is checked here.
    ///
    /// # Errors
    /// [`Error::OpAbsent`], [`Error::NotBuiltIn`], [`Error::AdapterLacks`], [`Error::Call`].
    pub fn query_cq(&self, queue: &CompletionQueue) -> Result<RawCompletionQueue> {
        let query = present(QUERY_CQ, self.query_cq)?;
        self.owns(QUERY_CQ, queue.domain())?;
        let mut attr = Padded::new(fi::fi_efa_cq_attr::default());
        let context = queue.domain().context();
        let turn = context.turn();
        // SAFETY: the queue is open; the structure can be written.
        let code = unsafe { query(queue.as_ptr(), &mut attr.value) };
        drop(turn);
        checked(context, QUERY_CQ, code)?;
        Ok(attr.value.into())
    }

    /// Opens a completion queue of at least `entries` entries in memory of the caller's that the
    /// processor reaches; for a GPU's, see [`Self::cq_open_device`].
    ///
    /// # Safety
    /// The memory stays allocated until the queue is closed: the adapter writes to it. The buffer is
    /// null, or where the processor can read all of it.
    ///
    /// # Errors
    /// [`Error::OpAbsent`]; [`Error::NotBuiltIn`]; [`Error::AdapterLacks`] without the device
    /// capability; [`Error::Call`] with EINVAL for a length of 0.
    pub unsafe fn cq_open_ext(&self, memory: &ExternalMemory<'_>, entries: usize) -> Result<CompletionQueue> {
        let open = present(CQ_OPEN_EXT, self.cq_open_ext)?;
        CompletionQueue::open_external(&self.domain, open, memory, entries, None, |context, code| {
            named(context, CQ_OPEN_EXT, code)
        })
    }

    /// Opens a completion queue of at least `entries` entries in memory of a GPU, which is zeroed and
    /// which the queue keeps allocated. Only that GPU polls it.
    ///
    /// # Errors
    /// As [`Self::cq_open_ext`]; [`Error::NoDmabuf`] for memory without one; [`Error::OutOfBounds`]
    /// where the provider's entries do not fit the memory.
    pub fn cq_open_device(&self, memory: DeviceMemory, entries: usize) -> Result<CompletionQueue> {
        let open = present(CQ_OPEN_EXT, self.cq_open_ext)?;
        let DeviceMemory { address, length, ordinal, dmabuf, owner, .. } = memory;
        let dmabuf = dmabuf.map_err(|why| Error::NoDmabuf { operation: CQ_OPEN_EXT, why })?;
        let place = ExternalMemory {
            dmabuf: dmabuf.file.as_fd(),
            offset: dmabuf.offset,
            length: length as u64,
            buffer: address.as_ptr(),
        };
        let device = Some((ordinal, owner));
        let queue =
            CompletionQueue::open_external(&self.domain, open, &place, entries, device, |context, code| {
                named(context, CQ_OPEN_EXT, code)
            })?;
        let has = self.query_cq(&queue)?;
        let bytes = u64::from(has.num_entries) * u64::from(has.entry_size);
        match bytes <= length as u64 {
            true => Ok(queue),
            false => Err(Error::OutOfBounds { offset: 0, length: bytes, region: length as u64 }),
        }
    }

    /// Opens a completion counter whose words are the provider's own, read with
    /// [`CompletionCounter::successes`] and [`CompletionCounter::errors`]. It counts for endpoints that
    /// [`Endpoint::count`](super::Endpoint::count) binds it to.
    ///
    /// # Errors
    /// [`Error::OpAbsent`]; [`Error::NotBuiltIn`]; [`Error::AdapterLacks`] without
    /// `FI_EFA_USE_HW_CNTR=1` in the environment, on domains of an API below 2.5, and on adapters
    /// without counters; [`Error::Call`].
    pub fn cntr_open(&self) -> Result<CompletionCounter> {
        // SAFETY: no memory of the caller's.
        unsafe { self.cntr_open_ext(None, None) }
    }

    /// Opens a completion counter whose words, or one of them, are the caller's: host memory, or a
    /// GPU's. A word that is not given is the provider's own.
    ///
    /// # Safety
    /// The words stay allocated until the counter is closed, and are reached by atomic accesses of 64
    /// bits alone: the adapter adds to them at any time.
    ///
    /// # Errors
    /// As [`Self::cntr_open`]; [`Error::Call`] with EINVAL for a word that is null or not aligned.
    pub unsafe fn cntr_open_ext(
        &self,
        success: Option<CounterMemory<'_>>,
        error: Option<CounterMemory<'_>>,
    ) -> Result<CompletionCounter> {
        let open = present(CNTR_OPEN_EXT, self.cntr_open_ext)?;
        let named = |context: &Context, code| named(context, CNTR_OPEN_EXT, code);
        // SAFETY: passed on to the caller.
        unsafe { CompletionCounter::open(&self.domain, open, [success, error], None, named) }
    }

    /// Opens a completion counter with words of its own in host memory, which devices may read
    /// ([`CompletionCounter::words`]): for
    /// [`MappedQueue::with_counters`](crate::queue::MappedQueue::with_counters).
    ///
    /// # Errors
    /// As [`Self::cntr_open`]; [`Error::OutOfMemory`].
    pub fn cntr_open_host(&self) -> Result<CompletionCounter> {
        let open = present(CNTR_OPEN_EXT, self.cntr_open_ext)?;
        let words = Arc::new(OwnWords::host().ok_or(Error::OutOfMemory { bytes: OwnWords::BYTES })?);
        let named = |context: &Context, code| named(context, CNTR_OPEN_EXT, code);
        // SAFETY: the words go with the counter, which frees them after it is closed.
        unsafe { CompletionCounter::open(&self.domain, open, words.on_host(), Some(words), named) }
    }

    /// The same with words in memory of a GPU, of at least 136 bytes, which is zeroed and which the
    /// counter keeps allocated. Only that GPU reads them.
    ///
    /// # Errors
    /// As [`Self::cntr_open`]; [`Error::OutOfBounds`] for less memory, [`Error::NoDmabuf`] for memory
    /// without one.
    pub fn cntr_open_device(&self, memory: DeviceMemory) -> Result<CompletionCounter> {
        let open = present(CNTR_OPEN_EXT, self.cntr_open_ext)?;
        let (words, dmabuf) = OwnWords::device(memory)?;
        let words = Arc::new(words);
        let attempt = |told| {
            let named = |context: &Context, code| named(context, CNTR_OPEN_EXT, code);
            let places = words.in_dmabuf(&dmabuf, told);
            // SAFETY: as in `cntr_open_host`.
            unsafe { CompletionCounter::open(&self.domain, open, places, Some(words.clone()), named) }
        };
        match attempt(false) {
            // Without hardware that follows the descriptor, the address is the one way to it.
            Err(Error::AdapterLacks(_)) => attempt(true),
            answered => answered,
        }
    }

    /// The key that entries use for the region as local memory.
    ///
    /// # Errors
    /// [`Error::OpAbsent`], [`Error::KeyNotAvailable`], [`Error::KeyTooWide`].
    pub fn get_mr_lkey(&self, region: &MemoryRegion) -> Result<LocalKey> {
        let get = present(GET_MR_LKEY, self.get_mr_lkey)?;
        self.owns(GET_MR_LKEY, region.domain())?;
        let turn = region.domain().context().turn();
        // SAFETY: the region is open.
        let key = unsafe { get(region.as_ptr()) };
        drop(turn);
        if key == fi::FI_KEY_NOTAVAIL {
            return Err(Error::KeyNotAvailable { operation: GET_MR_LKEY });
        }
        u32::try_from(key).ok().and_then(|key| LocalKey::new(key).ok()).ok_or(Error::KeyTooWide {
            operation: GET_MR_LKEY,
            key,
            bits: 24,
        })
    }

    /// The provider takes whatever it is given for one of its own objects.
    fn owns(&self, operation: &'static str, domain: &Domain) -> Result<()> {
        if self.domain.is(domain) { Ok(()) } else { Err(Error::OtherDomain { operation }) }
    }
}

fn present<F>(operation: &'static str, op: Op<F>) -> Result<F> {
    op.map_err(|reason| Error::OpAbsent { operation, reason })
}

/// What a number below zero from an operation of the table means.
fn named(context: &Context, operation: &'static str, code: c_int) -> Error {
    let failure = context.failure(operation, code);
    match -code {
        libc::ENOSYS => Error::NotBuiltIn(failure),
        libc::EOPNOTSUPP => Error::AdapterLacks(failure),
        _ => Error::Call(failure),
    }
}

fn checked(context: &Context, operation: &'static str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(named(context, operation, code)) }
}

/// Why `fi_open_ops` gave no table.
fn refused(domain: &Domain, provider: Option<Version>, code: c_int) -> Error {
    let failure = domain.context().failure(OPEN, code);
    match -code {
        libc::EOPNOTSUPP => Error::GdaNotOnThisFabric(failure),
        libc::EINVAL if provider.is_some_and(|p| p >= WITH_DOMAIN_OPS && p < FIRST_WITH_GDA_OPS) => {
            Error::GdaInDomainOps(failure)
        }
        libc::EINVAL => Error::GdaUnknown { failure, provider },
        // A domain of a provider without any such tables (fi_no_ops_open).
        libc::ENOSYS => Error::GdaUnknown { failure, provider },
        _ => Error::Call(failure),
    }
}
