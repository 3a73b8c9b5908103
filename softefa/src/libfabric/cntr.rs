//! Completion counters: opened in memory of the adapter (`fi_cntr_open`) or of the client (`cntr_open_ext`),
//! and bound to endpoints before enable. The adapter counts even if nothing reads the completion queue. The
//! counting itself is in [`crate::device::CompletionCounter`].

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use efa_gda_sys::fi;

use crate::device::{CompletionCounter, Counted, Memory};

use super::config::{Config, Defect, FIRST_COUNTERS};
use super::domain::{Domain, Shared};
use super::ffi::{self, Code, Object, UNUSED};
use super::mapping::Mapping;
use super::mr;
use super::references::{Reference, ReferenceCount};

/// The first API whose domains report the largest counter value. The real provider opens no counters below
/// it.
const FIRST_API: u32 = fi::fi_version(2, 5);

/// The bound of a wait without a time limit, libfabric's "forever".
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

/// The calls that the application may make on a counter.
#[derive(Clone, Copy)]
struct Access {
    /// The word of successes has an address that the CPU can read.
    success: bool,
    /// The word of errors has an address that the CPU can read.
    error: bool,
    /// The counter was not opened with FI_WAIT_NONE.
    waitable: bool,
}

static FID_OPS: ffi::Table<fi::fi_ops> = ffi::only_close(close);

static OPS: ffi::Table<fi::fi_ops_cntr> = ffi::Table::new(fi::fi_ops_cntr {
    size: size_of::<fi::fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
    export_xpu: UNUSED,
});

// SAFETY: repr(C), begins with fid_cntr, which begins with fid; only this type uses FID_OPS.
unsafe impl Object for Counter {
    const CLASS: u32 = fi::FI_CLASS_CNTR;
    fn ops() -> *const fi::fi_ops {
        FID_OPS.as_ptr()
    }
}

/// The counters that an endpoint's binds attach to its queue pair, with the kinds that each counts.
#[derive(Default)]
pub(crate) struct BoundCounters(Vec<(Counted, Arc<CompletionCounter>, Reference)>);

impl BoundCounters {
    /// Binds `counter` for the kinds that `flags` name.
    ///
    /// # Errors
    /// [`Code::BAD_FLAGS`] if `flags` is 0 or names anything that is not counted; [`Code::INVALID`] for a
    /// counter of another domain, and for a kind that already has a counter.
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

    /// The counters in the form that a queue pair's attributes need.
    pub(crate) fn counters(&self) -> Vec<(Counted, Arc<CompletionCounter>)> {
        self.0.iter().map(|(counted, counter, _)| (*counted, Arc::clone(counter))).collect()
    }
}

/// `fi_cntr_open`. Without hardware counters the real provider counts completions as they are read. This one
/// opens no counter then, because its clients read the completion queue themselves.
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
        // SAFETY: libfabric's contract: `attr` is null or attributes, `cntr` is null or can be written.
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

/// `fi_efa_ops_gda::cntr_open_ext`: opens a counter with one word or both in memory of the client. A word
/// continues from the value in that memory; in GPU memory it starts at 0.
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
        // SAFETY: not null, and readable by libfabric's contract.
        let efa = unsafe { &*efa };
        if efa.comp_mask != 0 || efa.flags & !(SUCCESS | ERROR) != 0 {
            return Err(Code::INVALID);
        }
        let success = Word::new(domain, efa.flags & SUCCESS != 0, &efa.comp_cntr_ext_mem)?;
        let error = Word::new(domain, efa.flags & ERROR != 0, &efa.err_cntr_ext_mem)?;
        // SAFETY: libfabric's contract: `attr` is null or attributes, `cntr` is null or can be written.
        unsafe { create(domain, attr, success, error, cntr, context) }
    })
}

/// Checks that counters are enabled for the process (`FI_EFA_USE_HW_CNTR`) and that the reported release has
/// them. As in the real provider, every open checks this before it validates anything else.
fn check_enabled() -> Result<(), Code> {
    let config = Config::get().map_err(|_| Code::INVALID)?;
    if let Some(Defect::Counters(code)) = config.defect {
        return Err(Code::of_system(code));
    }
    if config.counters && config.version >= FIRST_COUNTERS { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// Opens a counter on these two words.
///
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
        ffi::log(format_args!(
            "completion counter not opened: the domain has API {}.{}, and counters need 2.5 or newer; open the domain \
             with a newer API or set SOFTEFA_HW_CNTR=1",
            shared.api >> 16,
            shared.api & 0xffff
        ));
        return Err(Code::NOT_SUPPORTED);
    }
    // SAFETY: not null, and readable by the caller's contract; every release's struct has these fields.
    let requested = (!attr.is_null()).then(|| unsafe { ((*attr).events, (*attr).wait_obj, (*attr).flags) });
    // Null attributes mean zeroes, except that waiting is allowed.
    let (events, wait, flags) = requested.unwrap_or((fi::FI_CNTR_EVENTS_COMP, fi::FI_WAIT_UNSPEC, 0));
    let waitable = wait == fi::FI_WAIT_UNSPEC;
    if events != fi::FI_CNTR_EVENTS_COMP || !(waitable || wait == fi::FI_WAIT_NONE) || flags != 0 {
        // The adapter counts requests, not bytes, and raises no events to wait for.
        return Err(Code::NOT_SUPPORTED);
    }
    let access = Access { success: success.has_address(), error: error.has_address(), waitable };
    let counter = match (success, error) {
        (Word::Gpu(success, at), Word::Gpu(error, errors_at)) => {
            CompletionCounter::mirrored((success, at), (error, errors_at))
        }
        // A mirrored counter copies its values to the GPU; any other counter counts in place. They cannot be
        // mixed.
        (Word::Gpu(..), _) | (_, Word::Gpu(..)) => return Err(Code::NOT_SUPPORTED),
        (success, error) => {
            let words = Arc::new([success, error]);
            let [success, error] = [words[0].pointer()?, words[1].pointer()?];
            // SAFETY: `pointer` returns aligned words. Words in `words` stay valid because the counter owns
            // `words`. For words passed by address, the contract of cntr_open_ext obliges the client to keep
            // them until it closed the counter, and to access them atomically.
            unsafe { CompletionCounter::from_raw(success, error, words) }
        }
    };
    let object = Counter {
        fid: fi::fid_cntr { fid: ffi::header::<Counter>(context), ops: OPS.as_ptr() },
        domain: shared,
        counter: Arc::new(counter),
        access,
        references: ReferenceCount::default(),
        _reference: domain.add_reference(),
    };
    // SAFETY: `cntr` is null or can be written (caller's contract).
    unsafe { ffi::expose_to(cntr, Box::new(object)) }
}

/// A counter's word, by the owner of its memory.
enum Word {
    /// Memory of this provider.
    Allocated(AtomicU64),
    /// Memory of the client, passed by address.
    ClientAddress(NonNull<u64>),
    /// Memory of the client, passed as a file, and whether the client passed an address for it too.
    ClientFile(Mapping, bool),
    /// GPU memory, and the word's address in it.
    Gpu(Arc<dyn Memory>, u64),
}

// SAFETY: `ClientAddress` is only an address; the caller of CompletionCounter::from_raw justifies accesses to
// it.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// The word at `location` if it is `external`, otherwise a new word in memory of this provider.
    fn new(domain: &Domain, external: bool, location: &fi::fi_efa_memory_location) -> Result<Self, Code> {
        if !external {
            return Ok(Self::Allocated(AtomicU64::new(0)));
        }
        match u32::from(location.type_) {
            fi::FI_EFA_MEMORY_LOCATION_VA => {
                let word = NonNull::new(location.ptr.cast()).ok_or(Code::INVALID)?;
                // An engine that adds to a word at another address, such as a GPU's, would crash the process.
                match mr::is_readable(location.ptr.cast_const().cast(), size_of::<u64>()) {
                    true => Ok(Self::ClientAddress(word)),
                    false => Err(Code::BAD_ADDRESS),
                }
            }
            fi::FI_EFA_MEMORY_LOCATION_DMABUF => {
                match Mapping::new(location.dmabuf.fd, location.dmabuf.offset, size_of::<u64>()) {
                    Ok(file) => Ok(Self::ClientFile(file, !location.ptr.is_null())),
                    // The CPU cannot map it, so it must be GPU memory at the address that the client passed.
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

    /// Whether this provider allocated the word, or the client passed an address of it that the CPU can read. The
    /// real provider reads no other word.
    fn has_address(&self) -> bool {
        !matches!(self, Self::ClientFile(_, false) | Self::Gpu(..))
    }

    /// The word's address in this process.
    ///
    /// # Errors
    /// [`Code::INVALID`] if it is not aligned to 8 bytes, and for GPU memory.
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

/// Runs `body` on an open counter. Returns an error for null, and for a fid that is not a counter of this provider.
///
/// # Safety
/// As for [`ffi::object`].
unsafe fn with(cntr: *mut fi::fid_cntr, body: impl FnOnce(&Counter) -> Result<(), Code>) -> c_int {
    ffi::entry(|| {
        // SAFETY: the caller's contract.
        body(unsafe { ffi::object::<Counter>(cntr.cast()) }?)
    })
}

unsafe extern "C" fn read(cntr: *mut fi::fid_cntr) -> u64 {
    let mut value = 0;
    let load = |counter: &Counter| {
        // A word without an address reads as 0, as in the real provider.
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

/// `fi_cntr_wait`. Returns -FI_EAVAIL if the count of errors changes first, and -FI_ETIMEDOUT after `timeout`
/// milliseconds. A negative timeout means forever in libfabric; here the wait ends after [`MAX_WAIT`].
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
        // SAFETY: libfabric's contract for close: an open fid, not used again if this succeeds.
        unsafe { ffi::object::<Counter>(fid) }?.references.require_none()?;
        // SAFETY: as above, and no endpoint is bound.
        unsafe { ffi::reclaim::<Counter>(fid) }.map(drop)
    })
}
