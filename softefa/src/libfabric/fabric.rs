//! Fabrics: `fi_fabric`, and a fabric's operations: opening domains, and the feature operations of libfabric
//! 2.6. `candidate` defines which fabrics exist.

use std::ffi::{CStr, c_char, c_int, c_void};

use efa_gda_sys::fi;

use super::candidate;
use super::config::{Config, FIRST_COUNTERS};
use super::domain;
use super::ffi::{self, Code, Object, UNUSED, text};
use super::hints::FabricHints;
use super::references::{Reference, ReferenceCount};

/// An open fabric.
#[repr(C)]
pub(crate) struct Fabric {
    fid: fi::fid_fabric,
    kind: candidate::Fabric,
    references: ReferenceCount,
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

static OPS: ffi::Table<fi::fi_ops_fabric> = ffi::Table::new(fi::fi_ops_fabric {
    size: size_of::<fi::fi_ops_fabric>(),
    domain: Some(domain::open),
    passive_ep: UNUSED,
    eq_open: UNUSED,
    wait_open: UNUSED,
    trywait: UNUSED,
    domain2: UNUSED,
});

// SAFETY: repr(C), begins with fid_fabric, which begins with fid; only this type uses FID_OPS.
unsafe impl Object for Fabric {
    const CLASS: u32 = fi::FI_CLASS_FABRIC;
    fn ops() -> *const fi::fi_ops {
        FID_OPS.as_ptr()
    }
}

impl Fabric {
    pub(crate) fn kind(&self) -> candidate::Fabric {
        self.kind
    }

    /// The API version that the application requested.
    pub(crate) fn api_version(&self) -> u32 {
        self.fid.api_version
    }

    pub(crate) fn add_reference(&self) -> Reference {
        self.references.add()
    }
}

/// `fi_fabric`.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        let config = Config::get().map_err(|_| Code::INVALID)?;
        // SAFETY: libfabric passes the application's attributes, which it has read already.
        let attr_copy = unsafe { FabricHints::read(attr) }.ok_or(Code::INVALID)?;
        let kind = attr_copy.name.as_deref().and_then(candidate::Fabric::named).ok_or(Code::NO_DATA)?;
        let available = match kind {
            candidate::Fabric::Direct => config.direct,
            candidate::Fabric::Plain => config.plain,
        };
        if !available || attr_copy.prov_version > config.version {
            return Err(Code::NO_DATA);
        }
        let fid = fi::fid_fabric {
            fid: ffi::header::<Fabric>(context),
            ops: OPS.as_ptr(),
            // SAFETY: not null, otherwise reading `attr_copy` would have failed.
            api_version: unsafe { (*attr).api_version },
        };
        let object = Box::new(Fabric { fid, kind, references: ReferenceCount::default() });
        // SAFETY: libfabric's contract: `fabric` is null or can be written.
        unsafe { ffi::expose_to(fabric, object) }
    })
}

/// The kind of an application's fabric.
///
/// # Safety
/// As for [`ffi::object`].
pub(crate) unsafe fn kind(fabric: *mut fi::fid_fabric) -> Result<candidate::Fabric, Code> {
    // SAFETY: the caller's contract.
    unsafe { ffi::object::<Fabric>(fabric.cast()) }.map(Fabric::kind)
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract for close: an open fid, not used again if this succeeds.
        unsafe { ffi::object::<Fabric>(fid) }?.references.require_none()?;
        // SAFETY: as above, and no domain is open.
        unsafe { ffi::reclaim::<Fabric>(fid) }.map(drop)
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
        let (fabric, name) = unsafe { (ffi::object::<Fabric>(fid)?, text(name)) };
        let config = Config::get().map_err(|_| Code::INVALID)?;
        if !is_named(name, fi::FI_EFA_FEATURE_OPS) || config.version < FIRST_COUNTERS {
            return Err(Code::INVALID);
        }
        let table = match fabric.kind {
            candidate::Fabric::Direct => &raw const DIRECT_FEATURES,
            candidate::Fabric::Plain => &raw const PLAIN_FEATURES,
        };
        // SAFETY: libfabric's contract: `ops` is null or can be written.
        unsafe { ffi::store(ops, table.cast_mut().cast()) }
    })
}

/// Whether the application requested the operations of that name. `name` ends in a zero byte.
pub(crate) fn is_named(requested: Option<&str>, name: &[u8]) -> bool {
    requested.is_some_and(|requested| {
        CStr::from_bytes_with_nul(name).is_ok_and(|name| name.to_bytes() == requested.as_bytes())
    })
}

static DIRECT_FEATURES: fi::fi_efa_feature_ops = fi::fi_efa_feature_ops { query: Some(query_direct) };
static PLAIN_FEATURES: fi::fi_efa_feature_ops = fi::fi_efa_feature_ops { query: Some(query_plain) };

unsafe extern "C" fn query_direct(feature: *const c_char) -> bool {
    // SAFETY: null, or the application's string.
    let feature = unsafe { text(feature) };
    // The only feature of libfabric 2.6.
    feature == Some("mixed_hmem_iov")
}

unsafe extern "C" fn query_plain(_feature: *const c_char) -> bool {
    false
}
