//! Domains: of libfabric, opened by the library or borrowed from the caller, or of rdma-core.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda::fabric::{Domain, Fabric, GdaOps, Info, Library, Query};
use efa_gda::verbs::{self, ProtectionDomain};
use efa_gda_sys::fi;

use crate::error::{Code, Fault};
use crate::foreign;
use crate::handles::Table;
use crate::{Handle, call, call_for};

const WIDE_ENTRIES: u32 = 1 << 0;
const GPU_MEMORY: u32 = 1 << 1;

static DOMAINS: Table<Parts> = Table::new("domain", 1 << 32);

/// An open domain. The regions, counters and queues of the domain hold a clone.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) layer: Opened,
    /// Counts the clones.
    users: Arc<()>,
}

/// The domain in the layer that opened it.
#[derive(Clone)]
pub(crate) enum Opened {
    Fabric { domain: Domain, info: Info, ops: GdaOps },
    Verbs { domain: ProtectionDomain, wide_entries: bool },
}

impl Parts {
    /// Returns the parts of an open domain, for an object that is opened on it.
    pub(crate) fn of(handle: Handle) -> Result<Self, Fault> {
        DOMAINS.with(handle, |parts, _| Ok(parts.clone()))
    }

    /// Adds a domain of libfabric.
    pub(crate) fn insert_fabric(domain: Domain, info: Info) -> Result<Handle, Fault> {
        let ops = domain.gda_ops()?;
        Ok(Self::insert(Opened::Fabric { domain, info, ops }))
    }

    fn insert(layer: Opened) -> Handle {
        DOMAINS.insert(Self { layer, users: Arc::new(()) }, ())
    }
}

impl Opened {
    /// Closes the domain, which no object uses.
    fn close(self) -> Result<(), Fault> {
        match self {
            Self::Fabric { domain, ops, .. } => {
                drop(ops);
                Ok(domain.close()?)
            }
            Self::Verbs { domain, .. } => {
                let context = domain.context().clone();
                domain.close()?;
                Ok(context.close()?)
            }
        }
    }
}

fn refuse_unknown_flags(flags: u32) -> Result<(), Fault> {
    match flags & !(WIDE_ENTRIES | GPU_MEMORY) {
        0 => Ok(()),
        unknown => Err(Fault::argument(format_args!(
            "flags {unknown:#x} are unknown; enum efa_gda_domain_flags has the known ones"
        ))),
    }
}

/// Returns the caller's name of an adapter; None for null.
///
/// # Safety
/// `name` must be null or a string that ends with a zero and lives as long as the result.
unsafe fn adapter_name<'a>(name: *const c_char) -> Result<Option<&'a str>, Fault> {
    if name.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees a string.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    name.map(Some).map_err(|_| Fault::argument("the adapter's name is not UTF-8"))
}

/// See `efa_gda.h`.
///
/// # Safety
/// `adapter` must be null or a string that ends with a zero. `domain` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_domain_open(
    adapter: *const c_char,
    flags: u32,
    domain: *mut Handle,
) -> c_int {
    let body = || {
        refuse_unknown_flags(flags)?;
        let mut query =
            Query::new().wide_entries(flags & WIDE_ENTRIES != 0).gpu_memory(flags & GPU_MEMORY != 0);
        // SAFETY: the caller guarantees a string.
        if let Some(name) = unsafe { adapter_name(adapter) }? {
            query = query.adapter(name);
        }
        let library = Library::load()?;
        let info = query.first(&library)?;
        let opened = Fabric::open(&library, &info)?.domain(&info)?;
        Parts::insert_fabric(opened, info)
    };
    // SAFETY: the caller guarantees that it is null or writable.
    unsafe { call_for(domain, "the pointer to the domain", body) }
}

/// See `efa_gda.h`.
///
/// # Safety
/// As for [`efa_gda_domain_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_domain_open_verbs(
    device: *const c_char,
    flags: u32,
    domain: *mut Handle,
) -> c_int {
    let body = || {
        refuse_unknown_flags(flags)?;
        // SAFETY: the caller guarantees a string.
        let name = unsafe { adapter_name(device) }?;
        let library = verbs::Library::load()?;
        library.exposes_queues()?;
        let opened = ProtectionDomain::allocate(&library.adapter(name)?)?;
        let layer = Opened::Verbs { domain: opened, wide_entries: flags & WIDE_ENTRIES != 0 };
        Ok(Parts::insert(layer))
    };
    // SAFETY: the caller guarantees that it is null or writable.
    unsafe { call_for(domain, "the pointer to the domain", body) }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `fid` and `info` must be null or as the header demands. `domain` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_domain_borrow(
    fid: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    domain: *mut Handle,
) -> c_int {
    let body = || {
        let fid = foreign::domain(fid)?;
        let info = NonNull::new(info).ok_or_else(|| Fault::null("the fi_info"))?;
        foreign::refuse_unreadable(info, "the fi_info")?;
        // SAFETY: the caller guarantees that both outlive the domain's users, and that concurrent calls into libfabric
        // are allowed or do not happen.
        let (borrowed, info) = unsafe {
            let info = Info::borrow(info);
            (Domain::borrow(fid, Some(info.clone())), info)
        };
        foreign::refuse_other_provider(&info)?;
        Parts::insert_fabric(borrowed, info)
    };
    // SAFETY: the caller guarantees that it is null or writable.
    unsafe { call_for(domain, "the pointer to the domain", body) }
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_domain_close(domain: Handle) -> c_int {
    call(|| close(domain))
}

/// Closes a domain that has no users, and removes its handle.
pub(crate) fn close(handle: Handle) -> Result<(), Fault> {
    DOMAINS.close(handle, |parts, _| {
        // The table's own is no user.
        let users = Arc::strong_count(&parts.users).saturating_sub(1);
        if users != 0 {
            let text = format!(
                "the domain is in use by {users} region(s), counter(s) and queue(s); close them first"
            );
            return (Some(parts), Err(Fault::new(Code::Busy, text)));
        }
        (None, parts.layer.close())
    })
}
