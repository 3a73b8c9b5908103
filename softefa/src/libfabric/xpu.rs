//! FI_XPU of libfabric 2.7: contexts (`fi_xpu_ctx`), with the caller's memory callbacks. `export` exports endpoints,
//! completion queues and counters to a context's device.
//!
//! The rings, doorbells and counters lie in memory of the process. The caller's `import` maps each block of it once for a
//! context, with FI_XPU_IMPORT_DEVICEMAP and without FI_XPU_IMPORT_IOMEMORY, because it is no I/O memory. FI_XPU has no
//! call that undoes an import. So a context keeps what it imported until it is closed, and the caller must undo its
//! imports before that. The struct of an exported object is in memory of the caller's `alloc`, and `free` is called for it
//! when the object is closed.

mod export;

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use efa_gda_sys::{device, fi};

use crate::device::RingMemory;

use super::config::{Config, RELEASE_2_7};
use super::domain::{self, Domain};
use super::ffi::{self, Code, Object};
use super::references::{Reference, ReferenceCount};

pub(crate) use export::{Accounting, ExportedEndpoint, Use, counter, handle};

/// The first API with FI_XPU.
pub(crate) const FIRST_API: u32 = fi::fi_version(2, 7);
/// The most contexts of a domain (`max_xpu_ctx_cnt`).
pub(crate) const MOST_CONTEXTS: usize = 64;

type Alloc = unsafe extern "C" fn(u64, u64, u64, u64, *mut *mut c_void, *mut c_int, *mut u64) -> c_int;
type Import = unsafe extern "C" fn(u64, *mut c_void, u64, u64, *mut *mut c_void) -> c_int;
type Free = unsafe extern "C" fn(u64, *mut c_void);

/// The caller's memory callbacks.
#[derive(Clone, Copy)]
struct Callbacks {
    alloc: Alloc,
    import: Import,
    free: Free,
}

/// An open context.
#[repr(C)]
pub(crate) struct XpuContext {
    fid: fi::fid_xpu_ctx,
    shared: Arc<Shared>,
    references: ReferenceCount,
    _reference: Reference,
}

/// The state that the objects of a context share.
pub(crate) struct Shared {
    domain: Arc<domain::Shared>,
    cuda: bool,
    device: u64,
    /// `None`: the device is the CPU, and memory is allocated here.
    callbacks: Option<Callbacks>,
    /// Each imported block of this process's memory, kept alive here, and its address on the device.
    imports: Mutex<Vec<(Arc<RingMemory>, u64)>>,
    /// One reference to [`domain::Shared::xpu_contexts`], whose strong count is the number of contexts plus one.
    _count: Arc<()>,
}

static FID_OPS: ffi::Table<fi::fi_ops> = ffi::only_close(close);

static OPS: ffi::Table<fi::fi_ops_xpu_ctx> =
    ffi::Table::new(fi::fi_ops_xpu_ctx { size: size_of::<fi::fi_ops_xpu_ctx>(), query: Some(query) });

// SAFETY: repr(C), begins with fid_xpu_ctx, which begins with fid; only this type uses FID_OPS.
unsafe impl Object for XpuContext {
    const CLASS: u32 = fi::FI_CLASS_XPU_CTX;
    fn ops() -> *const fi::fi_ops {
        FID_OPS.as_ptr()
    }
}

/// Returns an error before release 2.7, which has none of these operations.
pub(crate) fn require_release() -> Result<(), Code> {
    match Config::get() {
        Ok(config) if config.version >= RELEASE_2_7 => Ok(()),
        _ => Err(Code::NOT_PROVIDED),
    }
}

/// `fi_xpu_ctx`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_xpu_attr,
    context: *mut *mut fi::fid_xpu_ctx,
    user: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        require_release()?;
        // SAFETY: libfabric's contract: an open domain.
        let domain = unsafe { ffi::object::<Domain>(domain.cast()) }?;
        let shared = domain.shared();
        let Some(contexts) = &shared.xpu_contexts else {
            ffi::log(format_args!(
                "XPU context not opened: the domain's info lacks FI_XPU; ask fi_getinfo for it"
            ));
            return Err(Code::NOT_SUPPORTED);
        };
        if attr.is_null() || context.is_null() {
            return Err(Code::INVALID);
        }
        // SAFETY: not null, and readable by libfabric's contract.
        let attr = unsafe { &*attr };
        // SAFETY: libfabric's contract: null, or callbacks of the length that their first member states.
        let callbacks = unsafe { Callbacks::read(attr.ops) }?;
        let cuda = match (attr.iface, callbacks) {
            (fi::FI_HMEM_SYSTEM, _) => false,
            (fi::FI_HMEM_CUDA, Some(_)) => true,
            _ => {
                ffi::log(format_args!(
                    "XPU context not opened: softefa exports to FI_HMEM_SYSTEM, and with memory callbacks to FI_HMEM_CUDA"
                ));
                return Err(Code::NOT_PROVIDED);
            }
        };
        // The domain holds one reference itself.
        if Arc::strong_count(contexts) > MOST_CONTEXTS {
            return Err(Code::BUSY);
        }
        let _count = Arc::clone(contexts);
        let imports = Mutex::default();
        let object = XpuContext {
            fid: fi::fid_xpu_ctx { fid: ffi::header::<XpuContext>(user), ops: OPS.as_ptr() },
            shared: Arc::new(Shared {
                domain: shared,
                cuda,
                device: attr.device,
                callbacks,
                imports,
                _count,
            }),
            references: ReferenceCount::default(),
            _reference: domain.add_reference(),
        };
        // SAFETY: not null, and writable by libfabric's contract.
        unsafe { ffi::expose_to(context, Box::new(object)) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract for close: an open fid, not used again if this succeeds.
        unsafe { ffi::object::<XpuContext>(fid) }?.references.require_none()?;
        // SAFETY: as above, and no object of the context is open.
        unsafe { ffi::reclaim::<XpuContext>(fid) }.map(drop)
    })
}

/// `fi_xpu_ctx_query`.
unsafe extern "C" fn query(context: *mut fi::fid_xpu_ctx, attr: *mut fi::fi_xpu_ctx_attr) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open context.
        unsafe { ffi::object::<XpuContext>(context.cast()) }?;
        let counters = Config::get().is_ok_and(|config| config.counters);
        let counters = if counters { fi::FI_XPU_CAP_CNTR } else { 0 };
        let reported = fi::fi_xpu_ctx_attr {
            caps: fi::FI_XPU_CAP_EP | fi::FI_XPU_CAP_CQ | counters,
            av_addr_size: size_of::<device::efa_gda_peer>(),
            mr_desc_size: size_of::<u32>(),
        };
        // SAFETY: libfabric's contract: `attr` is null or can be written.
        unsafe { ffi::store(attr, reported) }
    })
}

impl Callbacks {
    /// # Safety
    /// `ops` must be null, or have as many readable bytes as its first member states.
    unsafe fn read(ops: *const fi::fi_xpu_ops) -> Result<Option<Self>, Code> {
        const NEEDED: usize = offset_of!(fi::fi_xpu_ops, free) + size_of::<Option<Free>>();
        if ops.is_null() {
            return Ok(None);
        }
        // SAFETY: every struct has its size; the callbacks are read only if it covers them (caller's contract).
        let (alloc, import, free) = unsafe {
            if (*ops).size < NEEDED {
                return Err(Self::incomplete());
            }
            ((*ops).alloc, (*ops).import, (*ops).free)
        };
        match (alloc, import, free) {
            (Some(alloc), Some(import), Some(free)) => Ok(Some(Self { alloc, import, free })),
            _ => Err(Self::incomplete()),
        }
    }

    fn incomplete() -> Code {
        ffi::log(format_args!("XPU context not opened: fi_xpu_ops needs its size, alloc, import and free"));
        Code::INVALID
    }
}

/// The error of a callback that returned `code`.
fn failed(callback: &str, code: c_int) -> Code {
    ffi::log(format_args!("the caller's XPU callback {callback} returned {code}"));
    if code < 0 { Code::of_system(code.saturating_neg()) } else { Code::OTHER }
}

/// The context that an object's attributes name: null for an object of the host. `requested`: the object's flags have
/// FI_XPU. A context without the flag counts too, as in the example of fi_xpu(3).
///
/// # Errors
/// [`Code::INVALID`] for FI_XPU without a context, and for a context of another domain.
///
/// # Safety
/// `context` must be null or an open context.
pub(crate) unsafe fn named(
    domain: &Arc<domain::Shared>,
    requested: bool,
    context: *mut fi::fid_xpu_ctx,
) -> Result<Option<Use>, Code> {
    if context.is_null() {
        return if requested { Err(Code::INVALID) } else { Ok(None) };
    }
    // SAFETY: the caller's contract. `object` refuses a fid of another kind.
    let context = unsafe { ffi::object::<XpuContext>(context.cast()) }?;
    if !context.shared.domain.same(domain) {
        return Err(Code::INVALID);
    }
    Ok(Some(Use::new(Arc::clone(&context.shared), context.references.add())))
}

/// Checks the context of a query for an address or a key in the device's form.
///
/// # Errors
/// [`Code::NOT_PROVIDED`] before release 2.7; [`Code::BAD_FLAGS`] for other flags than FI_XPU; [`Code::INVALID`] for no
/// context, or one of another domain.
///
/// # Safety
/// As for [`named`].
pub(crate) unsafe fn check_query(
    domain: &Arc<domain::Shared>,
    flags: u64,
    context: *mut fi::fid_xpu_ctx,
) -> Result<(), Code> {
    require_release()?;
    if flags != fi::FI_XPU {
        return Err(Code::BAD_FLAGS);
    }
    // SAFETY: the caller's contract.
    unsafe { named(domain, true, context) }.map(drop)
}

/// Copies `bytes` to a caller's buffer of `*length` bytes, as fi_av_lookup2 and fi_mr_get_xpu_desc do.
///
/// # Errors
/// [`Code::TOO_SMALL`], with the required length in `*length`; [`Code::INVALID`] for null.
///
/// # Safety
/// `length` must be null or point to the size of `out`, which must be null or writable.
pub(crate) unsafe fn copy_whole(bytes: &[u8], out: *mut c_void, length: *mut usize) -> Result<(), Code> {
    if length.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, readable and writable (caller's contract).
    let capacity = unsafe { length.replace(bytes.len()) };
    if capacity < bytes.len() {
        return Err(Code::TOO_SMALL);
    }
    if out.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null, and has at least the length of `bytes` (caller's contract).
    unsafe { out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

impl Shared {
    /// The device's address of `memory`, imported on first use.
    fn import(&self, memory: &Arc<RingMemory>) -> Result<u64, Code> {
        let Some(callbacks) = self.callbacks else { return Ok(memory.as_ptr().addr() as u64) };
        let mut imports = self.imports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, address)) = imports.iter().find(|(imported, _)| Arc::ptr_eq(imported, memory)) {
            return Ok(*address);
        }
        let (start, bytes) = (memory.as_ptr().cast(), memory.len() as u64);
        let mut address = ptr::null_mut();
        // SAFETY: the caller of fi_xpu_ctx guarantees the callback; the block is mapped as long as `imports` has it.
        let code = unsafe {
            (callbacks.import)(self.device, start, bytes, fi::FI_XPU_IMPORT_DEVICEMAP, &mut address)
        };
        if code != 0 || address.is_null() {
            return Err(failed("import", code));
        }
        imports.push((Arc::clone(memory), address.addr() as u64));
        Ok(address.addr() as u64)
    }
}
