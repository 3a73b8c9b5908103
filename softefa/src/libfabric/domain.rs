//! Domains: `fi_domain`, and the tables through which its children are opened. A domain is a protection
//! domain of an adapter. All domains of one name in a process share that adapter. The children are in the
//! modules named after them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use efa_gda_sys::fi;

use crate::device::{Adapter, DeviceError, ProtectionDomain};

use super::candidate::{self, AdapterDescription, OLD_LOCAL_MR};
use super::config::{Config, Defect, FIRST_GDA};
use super::fabric::{Fabric, is_named};
use super::ffi::{self, Code, Object, UNUSED, text};
use super::hints::Hints;
use super::references::{Reference, ReferenceCount};
use super::{adapters, av, cntr, cq, ep, gda, mr};

/// An open domain.
#[repr(C)]
pub(crate) struct Domain {
    fid: fi::fid_domain,
    shared: Arc<Shared>,
    references: ReferenceCount,
    _fabric: Reference,
}

/// The state that the objects of a domain share. The protection domain is freed with the last of them.
pub(crate) struct Shared {
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) description: AdapterDescription,
    pub(crate) pd: ProtectionDomain,
    pub(crate) fabric: candidate::Fabric,
    /// The API version that the application requested.
    pub(crate) api: u32,
    /// Whether the domain was opened with FI_HMEM, for memory other than the system's.
    pub(crate) hmem: bool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Every object of the protection domain holds this struct, so none is left.
        if let Err(error) = self.adapter.free_domain(self.pd) {
            ffi::log(format_args!(
                "protection domain {}: freeing it with its domain failed: {error}",
                self.pd.get()
            ));
        }
    }
}

static FID_OPS: ffi::Table<fi::fi_ops> = ffi::Table::new(fi::fi_ops {
    size: size_of::<fi::fi_ops>(),
    close: Some(close),
    bind: Some(ffi::no_bind),
    control: Some(ffi::no_control),
    ops_open: Some(ops_open),
    tostr: None,
    ops_set: None,
});

static OPS: ffi::Table<fi::fi_ops_domain> = ffi::Table::new(fi::fi_ops_domain {
    size: size_of::<fi::fi_ops_domain>(),
    av_open: Some(av::open),
    cq_open: Some(cq::open),
    endpoint: Some(ep::open),
    scalable_ep: UNUSED,
    cntr_open: Some(cntr::open),
    poll_open: UNUSED,
    stx_ctx: UNUSED,
    srx_ctx: UNUSED,
    query_atomic: UNUSED,
    query_collective: UNUSED,
    endpoint2: UNUSED,
    xpu_ctx: UNUSED,
});

// SAFETY: repr(C), begins with fid_domain, which begins with fid; only this type uses FID_OPS.
unsafe impl Object for Domain {
    const CLASS: u32 = fi::FI_CLASS_DOMAIN;
    fn ops() -> *const fi::fi_ops {
        FID_OPS.as_ptr()
    }
}

impl Domain {
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn add_reference(&self) -> Reference {
        self.references.add()
    }
}

impl Shared {
    /// Whether this is the same domain as `other`.
    pub(crate) fn same(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other)
    }
}

impl From<DeviceError> for Code {
    fn from(error: DeviceError) -> Self {
        ffi::log(format_args!("{error}"));
        match error {
            DeviceError::Busy { .. } => Self::BUSY,
            DeviceError::Unsupported(_) => Self::NOT_SUPPORTED,
            DeviceError::Exhausted { .. } | DeviceError::OutOfMemory(_) => Self::NO_MEMORY,
            _ => Self::INVALID,
        }
    }
}

/// `fi_domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fi::fid_fabric,
    info: *mut fi::fi_info,
    domain: *mut *mut fi::fid_domain,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open fabric, and an info of the loaded libfabric.
        let (fabric, info) = unsafe { (ffi::object::<Fabric>(fabric.cast())?, Hints::read(info)) };
        let info = info.ok_or(Code::INVALID)?;
        let shared = Arc::new(allocate(fabric, &info)?);
        let fid = fi::fid_domain { fid: ffi::header::<Domain>(context), ops: OPS.as_ptr(), mr: mr::ops() };
        let domain_object =
            Domain { fid, shared, references: ReferenceCount::default(), _fabric: fabric.add_reference() };
        // SAFETY: libfabric's contract: `domain` is null or can be written.
        unsafe { ffi::expose_to(domain, Box::new(domain_object)) }
    })
}

/// Checks `info` and allocates the protection domain.
fn allocate(fabric: &Fabric, info: &Hints) -> Result<Shared, Code> {
    let config = Config::get().map_err(|_| Code::INVALID)?;
    let attr = info.domain.as_ref().ok_or(Code::INVALID)?;
    let name = attr.name.as_deref().ok_or(Code::INVALID)?;
    if info.ep.as_ref().is_none_or(|ep| ep.type_ != fi::FI_EP_RDM) {
        return Err(Code::INVALID);
    }
    let other_fabric = info.fabric.as_ref().and_then(|fabric| fabric.name.as_deref());
    if other_fabric.is_some_and(|name| name != fabric.kind().name()) {
        return Err(Code::INVALID);
    }
    let local = attr.mr_mode & fi::FI_MR_LOCAL != 0 || info.mode & OLD_LOCAL_MR != 0;
    if fabric.kind() == candidate::Fabric::Direct && !local {
        return Err(Code::NO_DATA);
    }
    let (description, adapter) = adapters::find(config, name)?;
    let pd = adapter.allocate_domain()?;
    Ok(Shared {
        adapter,
        description,
        pd,
        fabric: fabric.kind(),
        api: fabric.api_version(),
        hmem: info.caps & fi::FI_HMEM != 0,
    })
}

/// The fabric and the device of an application's domain.
///
/// # Safety
/// As for [`ffi::object`].
pub(crate) unsafe fn identity(domain: *mut fi::fid_domain) -> Result<(candidate::Fabric, String), Code> {
    // SAFETY: the caller's contract.
    let domain = unsafe { ffi::object::<Domain>(domain.cast()) }?;
    Ok((domain.shared.fabric, domain.shared.description.device.clone()))
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract for close: an open fid, not used again if this succeeds.
        unsafe { ffi::object::<Domain>(fid) }?.references.require_none()?;
        // SAFETY: as above, and no object of the domain is open.
        unsafe { ffi::reclaim::<Domain>(fid) }.map(drop)
    })
}

unsafe extern "C" fn ops_open(
    fid: *mut fi::fid,
    name: *const c_char,
    _flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open fid and the application's string.
        let (domain, name) = unsafe { (ffi::object::<Domain>(fid)?, text(name)) };
        let config = Config::get().map_err(|_| Code::INVALID)?;
        let table = if is_named(name, fi::FI_EFA_DOMAIN_OPS) {
            gda::domain_table(config.version)
        } else if is_named(name, fi::FI_EFA_GDA_OPS)
            && config.version >= FIRST_GDA
            && config.defect != Some(Defect::NoGda)
        {
            if domain.shared.fabric != candidate::Fabric::Direct {
                return Err(Code::NOT_SUPPORTED);
            }
            gda::table(config)
        } else {
            return Err(Code::INVALID);
        };
        // SAFETY: libfabric's contract: `ops` is null or can be written.
        unsafe { ffi::store(ops, table?) }
    })
}
