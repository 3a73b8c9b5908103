//! Completion queues, in memory of the adapter or of the client (`cq_open_ext`). A client that drives queues
//! itself polls that memory; `fi_cq_read` polls it for clients that do not. A client must not use both ways
//! for one queue, because each counts the consumed completions for itself. The device core writes the
//! completions.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use efa_gda_sys::fi;
use efa_gda_wire::{COMPLETION_BYTES, Completion, CompletionCursor, CompletionStatus, RequestIdWidth, Ring};

use crate::device::{self, CompletionBacking, CompletionQueueAttr, RingMemory};

use super::adapters;
use super::domain::{self, Domain};
use super::ffi::{self, Code, Object, UNUSED};
use super::mapping::Mapping;
use super::mr;
use super::references::{Reference, ReferenceCount};

mod entry;

use entry::{data_entry, entry_words, errno};

/// The number of entries if the application requests none (the real provider's EFA_DEF_CQ_SIZE).
const DEFAULT_ENTRIES: u32 = 12_288;

/// An open completion queue.
#[repr(C)]
pub(crate) struct CompletionQueue {
    fid: fi::fid_cq,
    shared: Arc<Shared>,
    reader: Mutex<Reader>,
    references: ReferenceCount,
    _reference: Reference,
}

/// The queue of the device core. It lives until the last endpoint that is bound to it is closed.
pub(crate) struct Shared {
    pub(crate) domain: Arc<domain::Shared>,
    pub(crate) queue: device::CompletionQueue,
    /// The memory of its entries; `None` for a queue in GPU memory.
    memory: Option<Arc<RingMemory>>,
    /// The address that the client passed for a queue in its memory.
    client_buffer: Option<ReportedAddress>,
    /// Whether its endpoints have FI_CONTEXT2, which the first bind decides.
    contexts: OnceLock<bool>,
    /// The format of the entries that reads return.
    format: fi::fi_cq_format,
}

/// An address that is only reported, never dereferenced.
#[derive(Clone, Copy)]
struct ReportedAddress(*mut u8);

// SAFETY: this provider reads and writes nothing through it.
unsafe impl Send for ReportedAddress {}
// SAFETY: as above.
unsafe impl Sync for ReportedAddress {}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = self.domain.adapter.destroy_completion_queue(self.queue.number) {
            ffi::log(format_args!(
                "completion queue {}: destroying it on close failed: {error}",
                self.queue.number.get()
            ));
        }
    }
}

impl Shared {
    /// Whether an endpoint that has FI_CONTEXT2 (`contexts`), or has not, can be bound. The first call decides for the
    /// queue. As in the real provider, a queue does not take endpoints of both kinds.
    pub(crate) fn takes(&self, contexts: bool) -> bool {
        *self.contexts.get_or_init(|| contexts) == contexts
    }

    /// The buffer that `query_cq` reports; null if the client passed memory without an address.
    pub(crate) fn buffer(&self) -> *mut u8 {
        match (self.client_buffer, &self.memory) {
            (Some(address), _) => address.0,
            (None, Some(memory)) => memory.as_ptr(),
            (None, None) => ptr::null_mut(),
        }
    }

    /// Whether the host knows an address of the queue's memory: the adapter allocated it, or the client passed an
    /// address for it.
    fn readable(&self) -> bool {
        !self.buffer().is_null()
    }
}

/// The state of `fi_cq_read`: its position in the ring, the number of completions that it has taken from
/// there, and the last of them if it is an error that `fi_cq_readerr` must return next.
struct Reader {
    cursor: CompletionCursor,
    request_ids: RequestIdWidth,
    consumed: u64,
    error: Option<Completion>,
}

static FID_OPS: ffi::Table<fi::fi_ops> = ffi::only_close(close);

static OPS: ffi::Table<fi::fi_ops_cq> = ffi::Table::new(fi::fi_ops_cq {
    size: size_of::<fi::fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: UNUSED,
    sreadfrom: UNUSED,
    signal: UNUSED,
    strerror: Some(strerror),
    export_xpu: UNUSED,
});

// SAFETY: repr(C), begins with fid_cq, which begins with fid; only this type uses FID_OPS.
unsafe impl Object for CompletionQueue {
    const CLASS: u32 = fi::FI_CLASS_CQ;
    fn ops() -> *const fi::fi_ops {
        FID_OPS.as_ptr()
    }
}

/// `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cq_attr,
    cq: *mut *mut fi::fid_cq,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain, attributes or null, and an out pointer or null.
        unsafe {
            let domain = ffi::object::<Domain>(domain.cast())?;
            let queue = create(domain, attr, CompletionBacking::Allocate, None, context)?;
            ffi::expose_to(cq, queue)
        }
    })
}

/// `fi_efa_ops_gda::cq_open_ext`: opens a queue in memory that the client passes as a file descriptor. The
/// client must zero the memory first. It must have [`COMPLETION_BYTES`] for each entry of the queue, whose number
/// is rounded up to a power of two; else this returns -EINVAL.
pub(crate) unsafe extern "C" fn open_ext(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cq_attr,
    efa: *mut fi::fi_efa_cq_init_attr,
    cq: *mut *mut fi::fid_cq,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain.
        let domain = unsafe { ffi::object::<Domain>(domain.cast()) }?;
        if attr.is_null() || efa.is_null() {
            return Err(Code::INVALID);
        }
        // SAFETY: not null, and readable by libfabric's contract.
        let (size, wait, flags, memory) =
            unsafe { ((*attr).size, (*attr).wait_obj, (*efa).flags, (*efa).ext_mem_dmabuf) };
        if wait != fi::FI_WAIT_NONE {
            return Err(Code::NOT_PROVIDED);
        }
        if flags & u64::from(fi::FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF) == 0 || memory.length == 0 {
            return Err(Code::INVALID);
        }
        if !domain.shared().adapter.config().capabilities.external_cq {
            return Err(Code::NOT_SUPPORTED);
        }
        let fd = c_int::try_from(memory.fd).map_err(|_| Code::INVALID)?;
        let length = usize::try_from(memory.length).map_err(|_| Code::INVALID)?;
        let client_buffer = Some(ReportedAddress(memory.buffer));
        let backing = match Mapping::new(fd, memory.offset, length) {
            Ok(mapping) => CompletionBacking::External(mapping.ring()?),
            // The CPU cannot map it, so it must be GPU memory at the address that the application passed.
            Err(Code::NOT_SUPPORTED) => {
                // The device core compares only the length of a mapping with the ring's.
                if memory.length < u64::from(entries(size)?).next_power_of_two() * COMPLETION_BYTES as u64 {
                    return Err(Code::INVALID);
                }
                let address = memory.buffer.addr() as u64;
                let gpu = mr::gpu_memory(&domain.shared(), address, memory.length);
                CompletionBacking::Indirect {
                    memory: Arc::new(gpu.map_err(|_| Code::NOT_SUPPORTED)?),
                    address,
                }
            }
            Err(code) => return Err(code),
        };
        // SAFETY: `attr` is not null, and `cq` is null or can be written (libfabric's contract).
        unsafe {
            let queue = create(domain, attr, backing, client_buffer, context)?;
            ffi::expose_to(cq, queue)
        }
    })
}

/// The entries of a queue for which the application requests `size`, before the device core rounds them up.
fn entries(size: usize) -> Result<u32, Code> {
    if size == 0 { Ok(DEFAULT_ENTRIES) } else { u32::try_from(size).map_err(|_| Code::INVALID) }
}

/// Creates a completion queue in the device core, and its object.
///
/// # Safety
/// `attr` is null or the application's attributes.
unsafe fn create(
    domain: &Domain,
    attr: *const fi::fi_cq_attr,
    backing: CompletionBacking,
    client_buffer: Option<ReportedAddress>,
    context: *mut c_void,
) -> Result<Box<CompletionQueue>, Code> {
    if attr.is_null() {
        return Err(Code::INVALID);
    }
    // SAFETY: not null; every release's struct has these fields.
    let (size, format, wait) = unsafe { ((*attr).size, (*attr).format, (*attr).wait_obj) };
    if wait != fi::FI_WAIT_NONE || format > fi::FI_CQ_FORMAT_TAGGED {
        // The adapter raises no events, so there is nothing to wait for.
        return Err(Code::NOT_PROVIDED);
    }
    let entries = entries(size)?;
    let shared = domain.shared();
    let attr = CompletionQueueAttr { entries, backing, ..CompletionQueueAttr::default() };
    let queue = shared.adapter.create_completion_queue(attr)?;
    let memory = queue.memory.clone();
    let contexts = OnceLock::new();
    let shared = Arc::new(Shared { domain: shared, queue, memory, client_buffer, contexts, format });
    let ring = Ring::new(shared.queue.num_entries).map_err(|_| Code::OTHER)?;
    let reader = Reader {
        cursor: CompletionCursor::new(ring),
        request_ids: adapters::request_ids(&shared.domain),
        consumed: 0,
        error: None,
    };
    Ok(Box::new(CompletionQueue {
        fid: fi::fid_cq { fid: ffi::header::<CompletionQueue>(context), ops: OPS.as_ptr() },
        shared,
        reader: Mutex::new(reader),
        references: ReferenceCount::default(),
        _reference: domain.add_reference(),
    }))
}

impl CompletionQueue {
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn add_reference(&self) -> Reference {
        self.references.add()
    }

    /// Sets the consumer index. From the first call on, the device core finds overruns of the queue.
    pub(crate) fn set_consumer_index(&self, consumed: u64) -> Result<(), Code> {
        Ok(self.shared.domain.adapter.set_consumer_index(self.shared.queue.number, consumed)?)
    }

    /// Reads up to `count` completions and passes each, with its index, to `store`. Stops before an error
    /// completion, which stays for `fi_cq_readerr`.
    ///
    /// # Errors
    /// [`Code::AGAIN`] if there is none; [`Code::ERROR_AVAILABLE`] if the next one is an error;
    /// [`Code::NOT_PROVIDED`] if the CPU cannot read the queue.
    fn read_completions(
        &self,
        count: usize,
        mut store: impl FnMut(usize, &Completion),
    ) -> Result<usize, Code> {
        if !self.shared.readable() {
            return Err(Code::NOT_PROVIDED);
        }
        let memory = self.shared.memory.as_ref().ok_or(Code::NOT_PROVIDED)?;
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = 0;
        while read < count && reader.error.is_none() {
            let Some(completion) = reader.next(memory, self.shared.queue.entry_size)? else { break };
            if completion.status == CompletionStatus::Ok {
                store(read, &completion);
                read += 1;
            } else {
                reader.error = Some(completion);
            }
        }
        if read != 0 {
            self.set_consumer_index(reader.consumed)?;
            Ok(read)
        } else if reader.error.is_some() {
            Err(Code::ERROR_AVAILABLE)
        } else {
            Err(Code::AGAIN)
        }
    }
}

impl Reader {
    /// The next completion, if the adapter has written it.
    fn next(&mut self, memory: &RingMemory, entry_size: u32) -> Result<Option<Completion>, Code> {
        let at = self.cursor.slot() as usize * entry_size as usize;
        // Acquire, paired with the adapter's release of this word: it wrote the rest of the entry before the
        // word with the phase bit.
        let flags = memory.load_word_acquire(at)[Completion::FLAGS_OFFSET];
        if Completion::phase(flags) != self.cursor.phase() {
            return Ok(None);
        }
        let mut bytes = [0; COMPLETION_BYTES];
        memory.load(at, &mut bytes);
        let completion = Completion::decode(&bytes, self.request_ids).map_err(|_| Code::OTHER)?;
        self.cursor.advance();
        self.consumed += 1;
        Ok(Some(completion))
    }
}

unsafe extern "C" fn read(cq: *mut fi::fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: readfrom has the same contract; null means no source addresses.
    unsafe { readfrom(cq, buf, count, ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    cq: *mut fi::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi::fi_addr_t,
) -> isize {
    ffi::count_entry(|| {
        // SAFETY: libfabric's contract: an open completion queue.
        let queue = unsafe { ffi::object::<CompletionQueue>(cq.cast()) }?;
        if buf.is_null() || count == 0 {
            return Err(Code::AGAIN);
        }
        let words = entry_words(queue.shared.format);
        queue.read_completions(count, |index, completion| {
            let entry = data_entry(completion);
            let fields = [entry.op_context.addr() as u64, entry.flags, entry.len as u64, 0, entry.data, 0];
            // SAFETY: libfabric's contract: `buf` has space for `count` entries of the queue's format, each
            // `words` long, and `src_addr` is null or has space for `count` addresses. An entry of each
            // format is a prefix of the longest.
            unsafe {
                buf.cast::<u64>().add(index * words).copy_from_nonoverlapping(fields.as_ptr(), words);
                if !src_addr.is_null() {
                    src_addr.add(index).write(fi::FI_ADDR_NOTAVAIL);
                }
            }
        })
    })
}

unsafe extern "C" fn readerr(cq: *mut fi::fid_cq, buf: *mut fi::fi_cq_err_entry, _flags: u64) -> isize {
    ffi::count_entry(|| {
        // SAFETY: libfabric's contract: an open completion queue.
        let queue = unsafe { ffi::object::<CompletionQueue>(cq.cast()) }?;
        if buf.is_null() {
            return Err(Code::INVALID);
        }
        // Locked until the index is set, so that no other thread sets a later index before.
        let mut reader = queue.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let completion = reader.error.take().ok_or(Code::AGAIN)?;
        queue.set_consumer_index(reader.consumed)?;
        drop(reader);
        let entry = data_entry(&completion);
        // SAFETY: not null. The struct's length depends on the API version that the application requested:
        // the first fields are in every version, `err_data_size` from 1.5 on, `src_addr` from 1.20 on.
        unsafe {
            (*buf).op_context = entry.op_context;
            (*buf).flags = entry.flags;
            (*buf).len = 0;
            (*buf).buf = ptr::null_mut();
            (*buf).data = 0;
            (*buf).tag = 0;
            (*buf).olen = 0;
            (*buf).err = errno(completion.status);
            (*buf).prov_errno = completion.status.code().into();
            if queue.shared.domain.api >= fi::fi_version(1, 5) {
                (*buf).err_data_size = 0;
            }
            if queue.shared.domain.api >= fi::fi_version(1, 20) {
                (*buf).src_addr = fi::FI_ADDR_NOTAVAIL;
            }
        }
        Ok(1)
    })
}

/// `fi_cq_strerror`: the text of a provider error, which is a completion status. The text lives as long as
/// the process.
unsafe extern "C" fn strerror(
    _cq: *mut fi::fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    _buf: *mut c_char,
    _len: usize,
) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    let Ok(code) = u8::try_from(prov_errno) else { return c"not a completion status".as_ptr() };
    let texts = TEXTS.get_or_init(|| {
        let text = |code| CString::new(CompletionStatus::from_code(code).to_string()).unwrap_or_default();
        (0..=u8::MAX).map(text).collect()
    });
    texts[usize::from(code)].as_ptr()
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract for close: an open fid, not used again if this succeeds.
        unsafe { ffi::object::<CompletionQueue>(fid) }?.references.require_none()?;
        // SAFETY: as above, and no endpoint is bound.
        unsafe { ffi::reclaim::<CompletionQueue>(fid) }.map(drop)
    })
}
