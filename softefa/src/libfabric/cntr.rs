//! Completion counters: opened in memory of the adapter's (`fi_cntr_open`) or of the client's
//! (`cntr_open_ext`), bound to endpoints before they are enabled. The adapter counts whether or not
//! anybody reads the completion queue. What counts is [`crate::device::CompletionCounter`].

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use efa_gda_sys::fi;

use crate::device::{CompletionCounter, Counted, Memory};

use super::config::{Config, FIRST_COUNTERS};
use super::domain::{Domain, Shared};
use super::ffi::{self, Code, Object};
use super::mapping::Mapping;
use super::mr;
use super::references::{Reference, ReferenceCount};

/// The first API whose domains say how far counters count, without which the real provider has none.
const FIRST_API: u32 = fi::fi_version(2, 5);

/// How long a wait "for ever" lasts.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// An open counter.
#[repr(C)]
pub(crate) struct Counter {
    fid: fi::fid_cntr,
    domain: Arc<Shared>,
    counter: Arc<CompletionCounter>,
    access: Access,
    references: ReferenceCount,
    _reference: Reference,
}

/// What the application may call on a counter.
#[derive(Clone, Copy)]
struct Access {
    /// The word of successes has an address for the processor.
    success: bool,
    /// The word of errors has one.
    error: bool,
    /// It was not opened with FI_WAIT_NONE.
    waitable: bool,
}

static FID_OPS: fi::fi_ops = fi::fi_ops {
    size: size_of::<fi::fi_ops>(),
    close: Some(close),
    bind: Some(ffi::no_bind),
    control: Some(ffi::no_control),
    ops_open: Some(ffi::no_ops_open),
    tostr: None,
    ops_set: None,
};

static OPS: fi::fi_ops_cntr = fi::fi_ops_cntr {
    size: size_of::<fi::fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
};

// SAFETY: repr(C), begins with fid_cntr, which begins with fid; FID_OPS is used by this type alone.
unsafe impl Object for Counter {
    const CLASS: u32 = fi::FI_CLASS_CNTR;
    fn ops() -> *const fi::fi_ops {
        &raw const FID_OPS
    }
}

/// What an endpoint's binds attach to its queue pair.
#[derive(Default)]
pub(crate) struct BoundCounters(Vec<(Counted, Arc<CompletionCounter>, Reference)>);

impl BoundCounters {
    /// Binds `counter` for what `flags` name.
    ///
    /// # Errors
    /// [`Code::BAD_FLAGS`] for flags that name nothing to count; [`Code::INVALID`] for a counter of
    /// another domain, and for a kind that has one.
    pub(crate) fn bind(&mut self, domain: &Arc<Shared>, counter: &Counter, flags: u64) -> Result<(), Code> {
        const KINDS: [(u64, Counted); 6] = [
            (fi::FI_SEND, Counted::SEND),
            (fi::FI_RECV, Counted::RECEIVE),
            (fi::FI_READ, Counted::READ),
            (fi::FI_WRITE, Counted::WRITE),
            (fi::FI_REMOTE_READ, Counted::REMOTE_READ),
            (fi::FI_REMOTE_WRITE, Counted::REMOTE_WRITE),
        ];
        let known = KINDS.iter().fold(0, |known, (flag, _)| known | flag);
        if flags == 0 || flags & !known != 0 {
            return Err(Code::BAD_FLAGS);
        }
        let kinds = || KINDS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, kind)| *kind);
        let already_bound = kinds().any(|kind| self.0.iter().any(|(counted, ..)| counted.contains(kind)));
        if already_bound || !domain.same(&counter.domain) {
            return Err(Code::INVALID);
        }
        let bound = |kind| (kind, Arc::clone(&counter.counter), counter.references.add());
        self.0.extend(kinds().map(bound));
        Ok(())
    }

    /// As a queue pair takes them.
    pub(crate) fn counters(&self) -> Vec<(Counted, Arc<CompletionCounter>)> {
        self.0.iter().map(|(counted, counter, _)| (*counted, Arc::clone(counter))).collect()
    }
}

/// `fi_cntr_open`. Where the real provider would count completions as they are read, this one has
/// nothing: its clients read the completion queue themselves.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cntr_attr,
    cntr: *mut *mut fi::fid_cntr,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain.
        let domain = unsafe { ffi::object::<Domain>(domain.cast()) }?;
        check_enabled()?;
        // SAFETY: null or the application's attributes, and its place for the counter.
        unsafe {
            create(
                domain,
                attr,
                Word::Allocated(AtomicU64::new(0)),
                Word::Allocated(AtomicU64::new(0)),
                cntr,
                context,
            )
        }
    })
}

/// `fi_efa_ops_gda::cntr_open_ext`: either word, or both, in memory that the client gives. It goes on
/// from the value that stands there; in a GPU's memory from 0.
pub(crate) unsafe extern "C" fn open_ext(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cntr_attr,
    cntr: *mut *mut fi::fid_cntr,
    context: *mut c_void,
    efa: *mut fi::fi_efa_comp_cntr_init_attr,
) -> c_int {
    const SUCCESS: u32 = fi::FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM;
    const ERROR: u32 = fi::FI_EFA_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM;
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain.
        let domain = unsafe { ffi::object::<Domain>(domain.cast()) }?;
        check_enabled()?;
        if efa.is_null() {
            return Err(Code::INVALID);
        }
        // SAFETY: not null, and the application's.
        let efa = unsafe { &*efa };
        if efa.comp_mask != 0 || efa.flags & !(SUCCESS | ERROR) != 0 {
            return Err(Code::INVALID);
        }
        let success = Word::new(domain, efa.flags & SUCCESS != 0, &efa.comp_cntr_ext_mem)?;
        let error = Word::new(domain, efa.flags & ERROR != 0, &efa.err_cntr_ext_mem)?;
        // SAFETY: null or the application's attributes, and its place for the counter.
        unsafe { create(domain, attr, success, error, cntr, context) }
    })
}

/// Whether the process asked for counters (FI_EFA_USE_HW_CNTR), which the real provider looks at
/// before anything else, and the release that is claimed has them.
fn check_enabled() -> Result<(), Code> {
    let config = Config::get().map_err(|_| Code::INVALID)?;
    if config.counters && config.version >= FIRST_COUNTERS { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// # Safety
/// `attr` is null or the application's attributes; `cntr` is null or can be written.
unsafe fn create(
    domain: &Domain,
    attr: *const fi::fi_cntr_attr,
    success: Word,
    error: Word,
    cntr: *mut *mut fi::fid_cntr,
    context: *mut c_void,
) -> Result<(), Code> {
    if cntr.is_null() {
        return Err(Code::INVALID);
    }
    let shared = domain.shared();
    let config = Config::get().map_err(|_| Code::INVALID)?;
    if shared.api < FIRST_API && !config.counters_for_old_api {
        ffi::log(format_args!("counters take a domain of API 2.5 or newer, or SOFTEFA_HW_CNTR=1"));
        return Err(Code::NOT_SUPPORTED);
    }
    // SAFETY: not null, and the application's; these fields are in every release's struct.
    let requested = (!attr.is_null()).then(|| unsafe { ((*attr).events, (*attr).wait_obj, (*attr).flags) });
    // Without attributes as with zeroes, except that one may wait.
    let (events, wait, flags) = requested.unwrap_or((fi::FI_CNTR_EVENTS_COMP, fi::FI_WAIT_UNSPEC, 0));
    let waitable = wait == fi::FI_WAIT_UNSPEC;
    if events != fi::FI_CNTR_EVENTS_COMP || !(waitable || wait == fi::FI_WAIT_NONE) || flags != 0 {
        // The adapter counts requests, not bytes, and raises no events to wait for.
        return Err(Code::NOT_SUPPORTED);
    }
    let access = Access { success: success.has_address(), error: error.has_address(), waitable };
    let counter = Arc::new(match (success, error) {
        (Word::Gpu(success, at), Word::Gpu(error, errors_at)) => {
            CompletionCounter::mirrored((success, at), (error, errors_at))
        }
        // One copies values out, the other has them where they are.
        (Word::Gpu(..), _) | (_, Word::Gpu(..)) => return Err(Code::NOT_SUPPORTED),
        (success, error) => {
            let words = Arc::new([success, error]);
            let [success, error] = [words[0].pointer()?, words[1].pointer()?];
            // SAFETY: `place` gives aligned words, mapped as long as `words`, which goes along; those that
            // the client gave by address it keeps until it has closed the counter, and reaches
            // atomically, by the contract of cntr_open_ext.
            unsafe { CompletionCounter::from_raw(success, error, words) }
        }
    });
    let object = Counter {
        fid: fi::fid_cntr { fid: ffi::header::<Counter>(context), ops: (&raw const OPS).cast_mut() },
        domain: shared,
        counter,
        access,
        references: ReferenceCount::default(),
        _reference: domain.add_reference(),
    };
    // SAFETY: the application gives the place for the counter.
    unsafe { ffi::store(cntr, ffi::expose(Box::new(object))) }
}

/// Where a word lies.
enum Word {
    Allocated(AtomicU64),
    /// An address of the client's.
    ClientAddress(NonNull<u64>),
    /// A file of the client's, and whether the client gave an address for it too.
    ClientFile(Mapping, bool),
    /// A GPU's memory, and the address there.
    Gpu(Arc<dyn Memory>, u64),
}

// SAFETY: `Given` is an address; access to it is for CompletionCounter::from_raw to justify.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// The word at `location` where it is `given`, otherwise one of the adapter's.
    fn new(domain: &Domain, external: bool, location: &fi::fi_efa_memory_location) -> Result<Self, Code> {
        if !external {
            return Ok(Self::Allocated(AtomicU64::new(0)));
        }
        match u32::from(location.type_) {
            fi::FI_EFA_MEMORY_LOCATION_VA => {
                NonNull::new(location.ptr.cast()).map(Self::ClientAddress).ok_or(Code::INVALID)
            }
            fi::FI_EFA_MEMORY_LOCATION_DMABUF => {
                match Mapping::new(location.dmabuf.fd, location.dmabuf.offset, size_of::<u64>()) {
                    Ok(file) => Ok(Self::ClientFile(file, !location.ptr.is_null())),
                    // A GPU's, which is reached where the client says that it lies.
                    Err(Code::NOT_SUPPORTED) if location.ptr.cast::<u64>().is_aligned() => {
                        let address = location.ptr.addr() as u64;
                        let gpu = mr::gpu_memory(&domain.shared(), address, size_of::<u64>() as u64);
                        Ok(Self::Gpu(Arc::new(gpu.map_err(|_| Code::NOT_SUPPORTED)?), address))
                    }
                    Err(code) => Err(code),
                }
            }
            _ => Err(Code::INVALID),
        }
    }

    /// Whether the client said how the processor reaches it; the real provider does not read others.
    fn has_address(&self) -> bool {
        !matches!(self, Self::ClientFile(_, false) | Self::Gpu(..))
    }

    /// The word itself.
    ///
    /// # Errors
    /// [`Code::INVALID`] where it is not aligned to its 8 bytes.
    fn pointer(&self) -> Result<NonNull<u64>, Code> {
        let pointer = match self {
            Self::Allocated(word) => NonNull::from(word).cast(),
            Self::ClientAddress(pointer) => *pointer,
            Self::ClientFile(file, _) => file.start().cast(),
            Self::Gpu(..) => return Err(Code::INVALID),
        };
        if pointer.is_aligned() { Ok(pointer) } else { Err(Code::INVALID) }
    }
}

/// Runs `body` on an open counter; a null or a foreign one is an error.
///
/// # Safety
/// As for [`ffi::object`].
unsafe fn with(cntr: *mut fi::fid_cntr, body: impl FnOnce(&Counter) -> Result<(), Code>) -> c_int {
    // SAFETY: the caller's contract.
    ffi::entry(|| body(unsafe { ffi::object::<Counter>(cntr.cast()) }?))
}

unsafe extern "C" fn read(cntr: *mut fi::fid_cntr) -> u64 {
    let mut value = 0;
    let load = |counter: &Counter| {
        // What has no address reads as 0, as in the real provider.
        if counter.access.success {
            value = counter.counter.success().load(Ordering::Acquire);
        }
        Ok(())
    };
    // SAFETY: libfabric's contract: an open counter.
    unsafe { with(cntr, load) };
    value
}

unsafe extern "C" fn readerr(cntr: *mut fi::fid_cntr) -> u64 {
    let mut value = 0;
    let load = |counter: &Counter| {
        if counter.access.error {
            value = counter.counter.error().load(Ordering::Acquire);
        }
        Ok(())
    };
    // SAFETY: libfabric's contract: an open counter.
    unsafe { with(cntr, load) };
    value
}

unsafe extern "C" fn add(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    let change = |counter: &Counter| {
        counter.counter.add(false, value);
        Ok(())
    };
    // SAFETY: libfabric's contract: an open counter.
    unsafe { with(cntr, change) }
}

unsafe extern "C" fn adderr(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    let change = |counter: &Counter| {
        counter.counter.add(true, value);
        Ok(())
    };
    // SAFETY: libfabric's contract: an open counter.
    unsafe { with(cntr, change) }
}

unsafe extern "C" fn set(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    let change = |counter: &Counter| {
        counter.counter.set(false, value);
        Ok(())
    };
    // SAFETY: libfabric's contract: an open counter.
    unsafe { with(cntr, change) }
}

unsafe extern "C" fn seterr(cntr: *mut fi::fid_cntr, value: u64) -> c_int {
    let change = |counter: &Counter| {
        counter.counter.set(true, value);
        Ok(())
    };
    // SAFETY: libfabric's contract: an open counter.
    unsafe { with(cntr, change) }
}

/// `fi_cntr_wait`; a negative timeout, for ever in libfabric, ends after a minute.
unsafe extern "C" fn wait(cntr: *mut fi::fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: libfabric's contract: an open counter.
    unsafe { with(cntr, |counter| counter.wait(threshold, timeout)) }
}

impl Counter {
    fn wait(&self, threshold: u64, timeout: c_int) -> Result<(), Code> {
        if !(self.access.success && self.access.error) {
            return Err(Code::NOT_SUPPORTED);
        }
        if !self.access.waitable {
            return Err(Code::INVALID);
        }
        let limit = u64::try_from(timeout).map_or(MAX_WAIT, Duration::from_millis);
        let (start, errors) = (Instant::now(), self.counter.error().load(Ordering::Acquire));
        loop {
            if self.counter.success().load(Ordering::Acquire) >= threshold {
                return Ok(());
            }
            if self.counter.error().load(Ordering::Acquire) != errors {
                return Err(Code::ERROR_AVAILABLE);
            }
            if start.elapsed() >= limit {
                return Err(Code::TIMED_OUT);
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract for close: an open fid, not used again once this succeeds.
        unsafe { ffi::object::<Counter>(fid) }?.references.require_none()?;
        // SAFETY: as above, and no endpoint is bound.
        unsafe { ffi::reclaim::<Counter>(fid) }.map(drop)
    })
}
