//! The EFA operations on a domain: `fi_efa_ops_gda`, which exposes queues, addresses and keys to clients that
//! drive the queues themselves, and `fi_efa_ops_domain`. The exposed objects are created by the modules `ep`,
//! `cq` and `cntr`.
//!
//! A table has as many pointers as in the reported release, and the page after it cannot be read. A client
//! that reads `cntr_open_ext` from a table of five pointers faults here; after the real provider's table it
//! would read other data.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use efa_gda_sys::fi;

use crate::device::PAGE_BYTES;

use super::cntr;
use super::config::{Config, Defect, FIRST_COUNTERS};
use super::cq;
use super::ep::Endpoint;
use super::ffi::{self, Code};
use super::mr::Region;

/// The only release whose domain operations include the first four GDA operations.
const MERGED: u32 = fi::fi_version(202, 0);

const GDA_OPS: fi::fi_efa_ops_gda = fi::fi_efa_ops_gda {
    query_addr: Some(query_addr),
    query_qp_wqs: Some(query_qp_wqs),
    query_cq: Some(query_cq),
    cq_open_ext: Some(cq::open_ext),
    get_mr_lkey: Some(get_mr_lkey),
    cntr_open_ext: Some(cntr::open_ext),
};

/// Domain operations as in release 2.2. Other releases have only the first pointer.
#[repr(C)]
struct MergedOps {
    domain: fi::fi_efa_ops_domain,
    gda: fi::fi_efa_ops_gda,
}

static DOMAIN_OPS: MergedOps = MergedOps {
    domain: fi::fi_efa_ops_domain { query_mr: Some(query_mr) },
    gda: fi::fi_efa_ops_gda {
        query_addr: Some(query_addr),
        query_qp_wqs: Some(query_qp_wqs),
        query_cq: Some(query_cq),
        cq_open_ext: Some(cq::open_ext),
        get_mr_lkey: None,
        cntr_open_ext: None,
    },
};

/// The GDA operations of the reported release, changed by the injected defect if there is one.
pub(crate) fn table(config: &Config) -> Result<*mut c_void, Code> {
    static TABLE: OnceLock<Option<GuardedTable>> = OnceLock::new();
    static COMPLETE: fi::fi_efa_ops_gda = GDA_OPS;
    static NULL_COUNTERS: fi::fi_efa_ops_gda = fi::fi_efa_ops_gda { cntr_open_ext: None, ..GDA_OPS };
    let has_counters = config.version >= FIRST_COUNTERS && config.defect != Some(Defect::FiveOperations);
    let source = if config.defect == Some(Defect::NullCounters) { &NULL_COUNTERS } else { &COMPLETE };
    GuardedTable::get_or_copy(&TABLE, (&raw const *source).cast(), if has_counters { 6 } else { 5 })
}

/// The domain operations of provider release `version`.
pub(crate) fn domain_table(version: u32) -> Result<*mut c_void, Code> {
    static TABLE: OnceLock<Option<GuardedTable>> = OnceLock::new();
    let pointers = if version == MERGED { 5 } else { 1 };
    GuardedTable::get_or_copy(&TABLE, (&raw const DOMAIN_OPS).cast(), pointers)
}

/// A copy of the first pointers of a table. It ends at the end of a readable page; the next page is not
/// readable.
struct GuardedTable(*mut c_void);

// SAFETY: nothing writes the table after it was created.
unsafe impl Send for GuardedTable {}
// SAFETY: as above.
unsafe impl Sync for GuardedTable {}

impl GuardedTable {
    /// The table in `cell`, copied from `source` on first use. It lives as long as the process, because
    /// clients store its address.
    fn get_or_copy(
        cell: &'static OnceLock<Option<Self>>,
        source: *const *const c_void,
        pointers: usize,
    ) -> Result<*mut c_void, Code> {
        let table = cell.get_or_init(|| Self::copy(source, pointers));
        table.as_ref().map(|table| table.0).ok_or(Code::NO_MEMORY)
    }

    fn copy(source: *const *const c_void, pointers: usize) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the mapping is new and has two pages. The pointers are written to the end of the first
        // page, which then becomes read-only; the second page becomes unreadable. `source` is one of the
        // tables above, which have at least `pointers` pointers.
        unsafe {
            let pages = libc::mmap(ptr::null_mut(), 2 * PAGE_BYTES, access, flags, -1, 0);
            if pages == libc::MAP_FAILED {
                return None;
            }
            let end = pages.cast::<u8>().add(PAGE_BYTES).cast::<*const c_void>();
            let table = end.sub(pointers);
            table.copy_from_nonoverlapping(source, pointers);
            let guarded = libc::mprotect(end.cast(), PAGE_BYTES, libc::PROT_NONE) == 0
                && libc::mprotect(pages, PAGE_BYTES, libc::PROT_READ) == 0;
            guarded.then(|| Self(table.cast()))
        }
    }
}

unsafe extern "C" fn query_addr(
    ep: *mut fi::fid_ep,
    addr: fi::fi_addr_t,
    ahn: *mut u16,
    remote_qpn: *mut u16,
    remote_qkey: *mut u32,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open endpoint.
        let endpoint = unsafe { ffi::object::<Endpoint>(ep.cast()) }?;
        let (handle, address) = endpoint.address_table()?.get(addr)?;
        // SAFETY: libfabric's contract: each pointer is null or can be written.
        unsafe {
            ffi::store(ahn, handle.get())?;
            ffi::store(remote_qpn, address.queue_pair.get())?;
            ffi::store(remote_qkey, address.queue_key.get())
        }
    })
}

unsafe extern "C" fn query_qp_wqs(
    ep: *mut fi::fid_ep,
    sq_attr: *mut fi::fi_efa_wq_attr,
    rq_attr: *mut fi::fi_efa_wq_attr,
) -> c_int {
    ffi::entry(|| {
        require_queries()?;
        // SAFETY: libfabric's contract: an open endpoint.
        let endpoint = unsafe { ffi::object::<Endpoint>(ep.cast()) }?;
        // SAFETY: libfabric's contract: each pointer is null or can be written.
        unsafe {
            ffi::store(sq_attr, fi::fi_efa_wq_attr::default())?;
            ffi::store(rq_attr, fi::fi_efa_wq_attr::default())?;
        }
        let pair = endpoint.queue_pair()?;
        let mut sq = fi::fi_efa_wq_attr {
            buffer: pair.sq.memory.as_ptr(),
            entry_size: pair.sq.entry_size.bytes() as u32,
            num_entries: pair.sq.num_entries,
            doorbell: pair.sq.doorbell.as_ptr(),
            max_batch: pair.sq.max_batch,
            caps: if endpoint.has_wide_ids() { fi::FI_EFA_WQ_CAPS_64_BIT_REQ_ID as u16 } else { 0 },
        };
        if let Some(defect) = Config::get().ok().and_then(|config| config.defect) {
            inject_defect(&mut sq, defect);
        }
        // SAFETY: as above.
        unsafe { ffi::store(sq_attr, sq)? };
        let Some(rq) = pair.rq else { return Ok(()) };
        let attr = fi::fi_efa_wq_attr {
            buffer: rq.memory.as_ptr(),
            entry_size: rq.entry_size,
            num_entries: rq.num_entries,
            doorbell: rq.doorbell.as_ptr(),
            max_batch: rq.max_batch,
            ..Default::default()
        };
        // SAFETY: as above.
        unsafe { ffi::store(rq_attr, attr) }
    })
}

/// Fails as a libfabric that was built with an rdma-core before 59 does, under [`Defect::NoQueries`].
fn require_queries() -> Result<(), Code> {
    let lacks = Config::get().is_ok_and(|config| config.defect == Some(Defect::NoQueries));
    if lacks { Err(Code::NOT_PROVIDED) } else { Ok(()) }
}

/// Changes the reported send queue as `defect` requires.
fn inject_defect(sq: &mut fi::fi_efa_wq_attr, defect: Defect) {
    match defect {
        Defect::Depth(depth) => sq.num_entries = depth,
        Defect::EntrySize(bytes) => sq.entry_size = bytes,
        Defect::UnalignedDoorbell => sq.doorbell = sq.doorbell.wrapping_byte_add(2),
        Defect::NullBuffer => sq.buffer = ptr::null_mut(),
        Defect::NoGda
        | Defect::FiveOperations
        | Defect::NullCounters
        | Defect::Counters(_)
        | Defect::NoQueries
        | Defect::GpuMemory(_)
        | Defect::GpuMemoryOfThreads
        | Defect::DeadEndpoint
        | Defect::CrashInGetinfo
        | Defect::HangInGetinfo => {}
    }
}

unsafe extern "C" fn query_cq(cq: *mut fi::fid_cq, attr: *mut fi::fi_efa_cq_attr) -> c_int {
    ffi::entry(|| {
        require_queries()?;
        // SAFETY: libfabric's contract: an open completion queue.
        let queue = unsafe { ffi::object::<cq::CompletionQueue>(cq.cast()) }?.shared();
        let reported = fi::fi_efa_cq_attr {
            buffer: queue.buffer(),
            entry_size: queue.queue.entry_size,
            num_entries: queue.queue.num_entries,
        };
        // SAFETY: libfabric's contract: `attr` is null or can be written.
        unsafe { ffi::store(attr, reported) }
    })
}

unsafe extern "C" fn get_mr_lkey(mr: *mut fi::fid_mr) -> u64 {
    let mut key = fi::FI_KEY_NOTAVAIL;
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open region. Null and foreign fids return FI_KEY_NOTAVAIL.
        key = unsafe { ffi::object::<Region>(mr.cast()) }?.keys().local.get().into();
        Ok(())
    });
    key
}

unsafe extern "C" fn query_mr(mr: *mut fi::fid_mr, attr: *mut fi::fi_efa_mr_attr) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open region.
        unsafe { ffi::object::<Region>(mr.cast()) }?;
        // All ids are invalid: they identify PCI buses of the host, and this adapter is on none.
        // SAFETY: libfabric's contract: `attr` is null or can be written.
        unsafe { ffi::store(attr, fi::fi_efa_mr_attr::default()) }
    })
}
