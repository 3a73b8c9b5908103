//! Mapped queues: open, describe, insert peers, retain regions, close.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use efa_gda::doorbell::DoorbellMode;
use efa_gda::queue::{StoreWidth, device_peer};
use efa_gda::{NotClosed, Queue};
use efa_gda_sys::device::{efa_gda_peer, efa_gda_queue};

use crate::counter::CounterOfQueue;
use crate::domain::{Opened, Parts};
use crate::error::{Code, Fault};
use crate::handles::Table;
use crate::processor::{self, HOST};
use crate::region;
use crate::{Handle, call, call_for, read_struct, refuse_null, write_struct};

pub(crate) static QUEUES: Table<Queue, OpenQueue> = Table::new("mapped queue", 3 << 32);

pub(crate) const REQUEST_TABLE: u32 = 1 << 0;
pub(crate) const COUNTERS: u32 = 1 << 1;
/// Only in what `efa_gda_mapped_describe` returns.
#[cfg(feature = "cuda")]
pub(crate) const RELAYED: u32 = 1 << 2;

/// More bytes than any raw address has.
const MAX_ADDRESS: usize = 4096;

/// Ends the waits of a queue (true), or lets waits run again. It is called while another thread holds the queue's lock.
type Abort = Box<dyn Fn(bool) + Send + Sync>;

/// A launch that uses a queue: the guard that keeps a GPU's queue mapped. The host's memory needs none.
pub(crate) type Launch = Option<Box<dyn Send>>;

/// What a call uses while another one holds the queue's lock, and what is dropped after the queue.
pub(crate) struct OpenQueue {
    pub(crate) abort: Abort,
    launches: Mutex<Vec<Launch>>,
    /// Whether `nvshmemt_efa_gda_init_on_ep` opened the queue: the first launch is then the library's, and
    /// `nvshmemt_efa_gda_fini` alone ends it and closes the queue.
    pub(crate) of_init: AtomicBool,
    _counter: Option<CounterOfQueue>,
    _parts: Parts,
}

/// `struct efa_gda_mapped_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedAttr {
    pub(crate) size: usize,
    pub(crate) completions: u32,
    pub(crate) peers: u32,
    pub(crate) gpu: i32,
    pub(crate) doorbell: u32,
    pub(crate) store_width: u32,
    pub(crate) flags: u32,
    pub(crate) requests: u32,
    pub(crate) receives: u32,
    pub(crate) counter: Handle,
    pub(crate) counted: u64,
}

impl MappedAttr {
    /// What a struct of zeroes selects, for the host's processor.
    pub(crate) const DEFAULT: Self = Self {
        size: 0,
        completions: 0,
        peers: 0,
        gpu: HOST,
        doorbell: 0,
        store_width: 0,
        flags: 0,
        requests: 0,
        receives: 0,
        counter: std::ptr::null_mut(),
        counted: 0,
    };

    /// Whether the caller set this flag.
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Converts a value of `enum efa_gda_doorbell_mode`.
    fn doorbell_mode(&self) -> Result<Option<DoorbellMode>, Fault> {
        Ok(match self.doorbell {
            0 => None,
            1 => Some(DoorbellMode::Direct),
            2 => Some(DoorbellMode::Record),
            3 => Some(DoorbellMode::Staged),
            other => {
                return Err(Fault::argument(format_args!(
                    "doorbell {other} is unknown; expected 0 to 3, a value of enum efa_gda_doorbell_mode"
                )));
            }
        })
    }

    /// Converts a value of `enum efa_gda_store_width`.
    fn store_width(&self) -> Result<StoreWidth, Fault> {
        match self.store_width {
            0 => Ok(StoreWidth::Auto),
            8 => Ok(StoreWidth::Eight),
            16 => Ok(StoreWidth::Sixteen),
            other => Err(Fault::argument(format_args!(
                "store_width {other} is unknown; expected 0, 8 or 16, a value of enum efa_gda_store_width"
            ))),
        }
    }
}

/// `struct efa_gda_mapped_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedInfo {
    pub(crate) size: usize,
    pub(crate) entry_size: u32,
    pub(crate) num_entries: u32,
    pub(crate) max_batch: u32,
    pub(crate) completion_size: u32,
    pub(crate) completions: u32,
    pub(crate) receives: u32,
    pub(crate) qpn: u32,
    pub(crate) doorbell: u32,
    pub(crate) completions_in_gpu: u32,
    pub(crate) max_inline: u32,
    pub(crate) max_rdma_size: u64,
    pub(crate) max_msg_size: u64,
    pub(crate) store_bytes: u32,
    pub(crate) flags: u32,
}

impl OpenQueue {
    pub(crate) fn launches(&self) -> MutexGuard<'_, Vec<Launch>> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a launch of the caller.
    pub(crate) fn end_launch(&self) -> Result<(), Fault> {
        let mut launches = self.launches();
        if launches.len() <= usize::from(self.of_init.load(Ordering::Relaxed)) {
            return Err(Fault::argument(
                "no launch uses the queue: each efa_gda_mapped_begin_launch is ended once",
            ));
        }
        launches.pop();
        Ok(())
    }

    pub(crate) fn refuse_in_launch(&self) -> Result<(), Fault> {
        let of_init = self.of_init.load(Ordering::Relaxed);
        match self.launches().len() {
            0 => Ok(()),
            1 if of_init => Err(Fault::new(
                Code::Busy,
                "nvshmemt_efa_gda_init_on_ep opened the queue; nvshmemt_efa_gda_fini closes it",
            )),
            launches => {
                let launches = launches - usize::from(of_init);
                let text = format!(
                    "{launches} launch(es) use the queue; call efa_gda_mapped_end_launch once for each, after its \
                     kernels have ended"
                );
                Err(Fault::new(Code::Busy, text))
            }
        }
    }
}

/// Calls `body` with an open queue, whose lock it holds.
pub(crate) fn with<T>(
    handle: Handle,
    body: impl FnOnce(&OpenQueue, &mut Queue) -> Result<T, Fault>,
) -> Result<T, Fault> {
    QUEUES.with(handle, |driven, open| body(open, driven))
}

pub(crate) fn doorbell_number(mode: DoorbellMode) -> u32 {
    match mode {
        DoorbellMode::Direct => 1,
        DoorbellMode::Record => 2,
        DoorbellMode::Staged => 3,
    }
}

/// Returns the flags that a queue was opened with.
pub(crate) fn flags_of(state: &efa_gda_queue) -> u32 {
    let request_table = if state.requests.done.is_null() { 0 } else { REQUEST_TABLE };
    let counters = if state.counters.success.is_null() { 0 } else { COUNTERS };
    request_table | counters
}

/// See `efa_gda.h`.
///
/// # Safety
/// `attr` must be null or a struct of the header with its size set. `queue` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_open(
    domain: Handle,
    attr: *const MappedAttr,
    queue: *mut Handle,
) -> c_int {
    let body = || {
        // SAFETY: the caller guarantees a struct with its size.
        let attr = unsafe { read_struct(attr, "the queue's attributes") }?;
        open_queue(Parts::of(domain)?, &attr)
    };
    // SAFETY: the caller guarantees that it is null or writable.
    unsafe { call_for(queue, "the pointer to the queue", body) }
}

/// Opens a queue with the caller's attributes, and returns its handle.
pub(crate) fn open_queue(parts: Parts, attr: &MappedAttr) -> Result<Handle, Fault> {
    let unknown = attr.flags & !(REQUEST_TABLE | COUNTERS);
    if unknown != 0 {
        return Err(Fault::argument(format_args!(
            "flags {unknown:#x} are unknown; enum efa_gda_mapped_flags has the known ones"
        )));
    }
    let counter = CounterOfQueue::of(attr.counter, attr.counted)?;
    let queue = open_on(&parts, attr, counter.as_ref())?;
    let abort = abort(&queue);
    let open = OpenQueue {
        abort,
        launches: Mutex::default(),
        of_init: AtomicBool::new(false),
        _counter: counter,
        _parts: parts,
    };
    Ok(QUEUES.insert(queue, open))
}

fn open_on(parts: &Parts, attr: &MappedAttr, counter: Option<&CounterOfQueue>) -> Result<Queue, Fault> {
    let mut options = processor::options(attr.gpu, attr.doorbell_mode()?)?.store_width(attr.store_width()?);
    if attr.has(REQUEST_TABLE) {
        options = options.request_table();
    }
    if attr.has(COUNTERS) {
        options = options.counters();
    }
    if let Some(of) = counter {
        options = options.counter(of.counter(), of.counted);
    }
    let options = options
        .peers(attr.peers as usize)
        .requests(attr.requests)
        .receives(attr.receives)
        .completions(attr.completions);
    let opened = match &parts.layer {
        Opened::Fabric { domain, info, .. } => Queue::on_domain(domain, info, &options),
        Opened::Verbs { domain, wide_entries: false } => Queue::on_protection_domain(domain, &options),
        Opened::Verbs { domain, wide_entries: true } => {
            Queue::on_protection_domain(domain, &options.wide_entries())
        }
    };
    opened.map_err(processor::with_hint)
}

fn abort(queue: &Queue) -> Abort {
    #[cfg(feature = "cuda")]
    if let Some(queue) = queue.on_gpu() {
        let flag = queue.abort_flag();
        return Box::new(move |raise| if raise { flag.raise() } else { flag.lower() });
    }
    let flag = queue.mapped().abort_flag();
    Box::new(move |raise| if raise { flag.raise() } else { flag.lower() })
}

/// Begins a launch, which keeps a GPU's queue mapped.
pub(crate) fn begin_launch(queue: &Queue) -> Launch {
    #[cfg(feature = "cuda")]
    return queue.begin_launch().map(|guard| Box::new(guard) as _);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = queue;
        None
    }
}

/// Returns the queue's geometry and limits, with `size` 0.
pub(crate) fn describe(queue: &Queue) -> MappedInfo {
    // The host's processor stores 8 bytes at a time.
    let (store_bytes, relayed) = (8, 0);
    #[cfg(feature = "cuda")]
    let (store_bytes, relayed) = queue.on_gpu().map_or((store_bytes, relayed), |queue| {
        (queue.store_bytes(), queue.relayed().map_or(0, |_| RELAYED))
    });
    let queue = queue.mapped();
    let (exposure, limits) = (queue.exposure(), queue.limits());
    let completions = queue.endpoint().and_then(|endpoint| endpoint.send_completions().device());
    MappedInfo {
        size: 0,
        entry_size: exposure.sq.entry_size.bytes() as u32,
        num_entries: exposure.sq.num_entries,
        max_batch: exposure.sq.max_batch,
        completion_size: exposure.cq.entry_size,
        completions: exposure.cq.num_entries,
        receives: limits.receives,
        qpn: queue.number().get().into(),
        doorbell: doorbell_number(queue.doorbell_mode()),
        completions_in_gpu: completions.is_some().into(),
        max_inline: limits.inline_send as u32,
        max_rdma_size: limits.rdma,
        max_msg_size: limits.message,
        store_bytes,
        flags: flags_of(&queue.state()) | relayed,
    }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `info` must be null or a struct of the header with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_describe(queue: Handle, info: *mut MappedInfo) -> c_int {
    call(|| {
        let value = with(queue, |_, queue| Ok(describe(queue)))?;
        // SAFETY: the caller guarantees a struct with its size.
        unsafe { write_struct(info, "the queue's info", value) }
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `length` must be null, or readable and writable. `address` must be null or have that many writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_address(
    queue: Handle,
    address: *mut c_void,
    length: *mut usize,
) -> c_int {
    call(|| {
        refuse_null(length, "the pointer to the length")?;
        let bytes = with(queue, |_, queue| Ok(queue.address()?))?;
        // SAFETY: it is not null, and the caller guarantees that it is readable and writable.
        let capacity = unsafe { length.replace(bytes.len()) };
        refuse_null(address, "the buffer for the address")?;
        if capacity < bytes.len() {
            return Err(Fault::argument(format_args!(
                "the address of this queue has {needed} bytes, and the buffer has {capacity}; call again with a buffer \
                 of {needed} bytes, the number that *length holds now",
                needed = bytes.len()
            )));
        }
        // SAFETY: the caller guarantees `capacity` bytes, which are enough.
        unsafe { address.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `address` must be null or have `length` readable bytes. `peer` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_insert_peer(
    queue: Handle,
    address: *const c_void,
    length: usize,
    peer: *mut efa_gda_peer,
) -> c_int {
    let body = || {
        refuse_null(address, "the peer's address")?;
        if length > MAX_ADDRESS {
            return Err(Fault::argument(format_args!(
                "the peer's address: {length} bytes are too many; expected the bytes and the length that \
                 efa_gda_mapped_address returned to the peer"
            )));
        }
        // SAFETY: it is not null, and the caller guarantees the length.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
        let inserted = with(queue, |_, queue| Ok(queue.insert_peer(bytes)?))?;
        Ok(device_peer(inserted))
    };
    // SAFETY: the caller guarantees that it is null or writable.
    unsafe { call_for(peer, "the pointer to the peer", body) }
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_retain(queue: Handle, region: Handle) -> c_int {
    call(|| {
        let region = region::region(region)?;
        with(queue, |_, queue| Ok(queue.retain(&region).map(drop)?))
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_close(queue: Handle) -> c_int {
    call(|| release(queue, close))
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_destroy(queue: Handle) -> c_int {
    call(|| release(queue, destroy))
}

/// As [`Queue::close`], with the names of C functions in the reasons.
fn close(queue: Queue) -> Result<(), (Fault, Option<Queue>)> {
    let seen = match queue.snapshot() {
        Ok(seen) => seen,
        Err(error) => return Err((error.into(), Some(queue))),
    };
    let poisoned = queue.mapped().poison().is_some() || seen.poison().is_some();
    let refused = match (seen.in_flight(), seen.unrung()) {
        _ if seen.is_in_use() => Some(Fault::abandoned()),
        (requests @ 1.., _) => Some(Fault::in_flight(requests, poisoned)),
        (0, entries @ 1..) if !poisoned => Some(Fault::unrung(entries)),
        (0, _) => None,
    };
    match refused {
        Some(fault) => Err((fault, Some(queue))),
        None => queue.close().map_err(not_closed),
    }
}

/// Destroys a queue.
pub(crate) fn destroy(queue: Queue) -> Result<(), (Fault, Option<Queue>)> {
    queue.destroy().map_err(not_closed)
}

fn not_closed(error: NotClosed) -> (Fault, Option<Queue>) {
    (error.error.into(), error.queue.map(|queue| *queue))
}

/// Closes or destroys a queue that no launch uses. Removes its handle, unless the queue is handed back.
pub(crate) fn release(
    handle: Handle,
    how: impl FnOnce(Queue) -> Result<(), (Fault, Option<Queue>)>,
) -> Result<(), Fault> {
    QUEUES.close(handle, |driven, open| {
        if let Err(fault) = open.refuse_in_launch() {
            return (Some(driven), Err(fault));
        }
        match how(driven) {
            Ok(()) => (None, Ok(())),
            Err((fault, back)) => (back, Err(fault)),
        }
    })
}
