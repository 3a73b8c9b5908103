//! The export of endpoints, completion queues and counters to a device. An exported object is a struct of
//! `kernels/include/efa_gda/fi_xpu_layout.h` in memory of the device: from the caller's `alloc`, or allocated here if the
//! context has no callbacks. The device's functions (`fi_xpu_efa.h`) drive the queues; this module accesses no struct
//! after it filled it in.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use efa_gda_sys::{device, fi};

use crate::device::{CompletionCounter, CompletionQueue, Memory, PAGE_BYTES, QueuePair, RingMemory};

use super::super::ffi::{self, Code};
use super::super::mr;
use super::super::references::Reference;
use super::{Shared, failed};

/// The bound of the waits of device functions, in nanoseconds.
const TIMEOUT_NS: u64 = 10_000_000_000;
/// The most contexts of receives, because a receive's request id has 16 bits.
const MOST_RECEIVES: u32 = 1 << 16;
/// Bytes from one word of a counter to the next: a cache line.
const ERROR_WORD: usize = 64;

/// Memory of the device.
struct DeviceMemory {
    context: Arc<Shared>,
    address: u64,
    /// Memory that this provider allocated, because the context has no callbacks.
    _own: Option<Arc<RingMemory>>,
}

impl DeviceMemory {
    fn new(context: &Arc<Shared>, bytes: usize) -> Result<Self, Code> {
        const ALIGNMENT: u64 = PAGE_BYTES as u64;
        let Some(callbacks) = context.callbacks else {
            let own = RingMemory::allocate(bytes)?;
            let address = own.as_ptr().addr() as u64;
            return Ok(Self { context: Arc::clone(context), address, _own: Some(own) });
        };
        let (mut start, mut fd, mut offset) = (ptr::null_mut(), -1, 0);
        // SAFETY: the caller of fi_xpu_ctx guarantees the callback; the three results can be written.
        let code = unsafe {
            (callbacks.alloc)(context.device, bytes as u64, ALIGNMENT, 0, &mut start, &mut fd, &mut offset)
        };
        if code != 0 || start.is_null() {
            return Err(failed("alloc", code));
        }
        let address = start.addr() as u64;
        let memory = Self { context: Arc::clone(context), address, _own: None };
        if !address.is_multiple_of(align_of::<device::efa_gda_queue>() as u64) {
            ffi::log(format_args!(
                "the caller's XPU callback alloc returned {start:p}, which is not a multiple of the requested {ALIGNMENT}"
            ));
            return Err(Code::INVALID);
        }
        if !context.cuda && !mr::is_readable(start, bytes) {
            return Err(Code::BAD_ADDRESS);
        }
        Ok(memory)
    }

    /// Copies the first `bytes` bytes of `image` to the device.
    fn write(&self, image: &RingMemory, bytes: usize) -> Result<(), Code> {
        let from = image.as_ptr().cast_const();
        if self.context.cuda {
            let memory = mr::gpu_memory(&self.context.domain, self.address, bytes as u64)?;
            // SAFETY: the image has so many bytes, all of them initialised, and no other thread knows it.
            let from = unsafe { std::slice::from_raw_parts(from, bytes) };
            return memory.write(self.address, from).map_err(|_| Code::BAD_ADDRESS);
        }
        let to = ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
        // SAFETY: `new` allocated so many bytes of host memory, which nothing else accesses before the export ends.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let (Some(callbacks), None) = (self.context.callbacks, &self._own) {
            let start = ptr::with_exposed_provenance_mut(self.address as usize);
            // SAFETY: `alloc` returned the address, and it is freed once; the caller guarantees the callback until the
            // context is closed, which this object's reference to it prevents.
            unsafe { (callbacks.free)(self.context.device, start) };
        }
    }
}

/// An object's use of a context, and its struct on the device once it was exported.
pub(crate) struct Use {
    shared: Arc<Shared>,
    exported: Mutex<Option<DeviceMemory>>,
    _reference: Reference,
}

impl Use {
    pub(super) fn new(shared: Arc<Shared>, reference: Reference) -> Self {
        Self { shared, exported: Mutex::default(), _reference: reference }
    }

    /// Whether `other` is of the same context.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The address of the object's struct of `bytes` bytes, which `fill` fills in when it is first exported. `fill` gets
    /// the host's image of it, zeroed, and its address on the device.
    fn export(
        &self,
        bytes: usize,
        fill: impl FnOnce(&Shared, *mut u8, u64) -> Result<(), Code>,
    ) -> Result<u64, Code> {
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = &*exported {
            return Ok(memory.address);
        }
        let image = RingMemory::allocate(bytes)?;
        let memory = DeviceMemory::new(&self.shared, bytes)?;
        fill(&self.shared, image.as_ptr(), memory.address)?;
        memory.write(&image, bytes)?;
        Ok(exported.insert(memory).address)
    }

    /// Exports a completion queue whose reads return entries of `format`.
    pub(crate) fn export_cq(&self, queue: &CompletionQueue, format: fi::fi_cq_format) -> Result<u64, Code> {
        const STRUCT: usize = size_of::<device::efa_gda_xpu_cq>().next_multiple_of(64);
        let receives = queue.num_entries.saturating_mul(2).min(MOST_RECEIVES);
        let table = receives as usize * size_of::<device::efa_gda_xpu_receive>();
        self.export(STRUCT + table, |context, image, address| {
            let ring = context.import(queue.memory.as_ref().ok_or(Code::NOT_PROVIDED)?)?;
            let doorbell = match &queue.doorbell {
                Some(doorbell) => context.import(doorbell.page())? + doorbell.offset() as u64,
                None => 0,
            };
            // SAFETY: the image is zeroed, has the struct's bytes, is aligned to a page, and is this thread's alone.
            let cq = unsafe { &mut *image.cast::<device::efa_gda_xpu_cq>() };
            cq.object = header(size_of::<device::efa_gda_xpu_cq>(), fi::FI_CLASS_CQ);
            cq.buffer = ring as *const u8;
            cq.doorbell = doorbell as *mut u32;
            cq.entry_size = queue.entry_size;
            cq.num_entries = queue.num_entries;
            cq.receives = (address + STRUCT as u64) as *mut device::efa_gda_xpu_receive;
            cq.num_receives = receives;
            cq.format = format;
            Ok(())
        })
    }

    /// Exports a counter whose words are in `words`.
    pub(crate) fn export_counter(&self, words: &Arc<RingMemory>) -> Result<u64, Code> {
        self.export(size_of::<device::efa_gda_xpu_cntr>(), |context, image, _| {
            let words = context.import(words)?;
            // SAFETY: as in `export_cq`.
            let counter = unsafe { &mut *image.cast::<device::efa_gda_xpu_cntr>() };
            counter.object = header(size_of::<device::efa_gda_xpu_cntr>(), fi::FI_CLASS_CNTR);
            counter.success = words as *const u64;
            counter.error = (words + ERROR_WORD as u64) as *const u64;
            Ok(())
        })
    }

    /// Exports an endpoint's queue pair. `send_cq` and `receive_cq` are the device's addresses of its completion queues,
    /// 0 for one that the host reads.
    pub(crate) fn export_endpoint(&self, ep: &ExportedEndpoint<'_>) -> Result<u64, Code> {
        let (pair, sq) = (ep.pair, &ep.pair.sq);
        let slots = sq.num_entries.max(64);
        let entry_size = sq.entry_size.bytes();
        const STRUCT: usize = size_of::<device::efa_gda_xpu_ep>();
        let flags_at = STRUCT + slots as usize * entry_size;
        self.export(flags_at + slots as usize * size_of::<u64>(), |context, image, address| {
            let ring = context.import(&sq.memory)?;
            let doorbell = context.import(sq.doorbell.page())? + sq.doorbell.offset() as u64;
            let counts = context.import(&ep.accounting.words)?;
            let rq = match &pair.rq {
                Some(rq) => device::efa_gda_rq {
                    buffer: context.import(&rq.memory)? as *mut u8,
                    doorbell: (context.import(rq.doorbell.page())? + rq.doorbell.offset() as u64) as *mut u32,
                    entry_size: rq.entry_size,
                    num_entries: rq.num_entries,
                    max_batch: rq.max_batch,
                    flags: 0,
                },
                None => device::efa_gda_rq::default(),
            };
            let word = |index: usize| (counts + (index * ERROR_WORD) as u64) as *const u64;
            // SAFETY: as in `export_cq`; a page is aligned for the queue.
            let image = unsafe { &mut *image.cast::<device::efa_gda_xpu_ep>() };
            image.object = header(STRUCT, fi::FI_CLASS_EP);
            image.send_cq = ep.send_cq as *mut device::efa_gda_xpu_cq;
            image.receive_cq = ep.receive_cq as *mut device::efa_gda_xpu_cq;
            (image.received, image.receive_errors) = (word(2), word(3));
            let queue = &mut image.queue;
            queue.sq = device::efa_gda_sq {
                buffer: ring as *mut u8,
                doorbell: doorbell as *mut u32,
                entry_size: entry_size as u32,
                num_entries: sq.num_entries,
                max_batch: sq.max_batch,
                flags: if entry_size == 128 { device::EFA_GDA_SQ_INLINE_WRITE } else { 0 },
            };
            queue.rq = rq;
            (queue.counters.success, queue.counters.error) = (word(0), word(1));
            queue.publication = device::efa_gda_publication {
                entries: (address + STRUCT as u64) as *mut u8,
                flags: (address + flags_at as u64) as *mut u64,
                num_entries: slots,
                reserved: 0,
            };
            queue.max_rdma_size = ep.rdma as u64;
            queue.max_msg_size = u32::try_from(ep.message).unwrap_or(u32::MAX);
            queue.max_inline = if entry_size == 128 { 80 } else { 32 };
            queue.qpn = pair.number.get().into();
            Ok(())
        })
    }
}

fn header(bytes: usize, class: u32) -> device::efa_gda_xpu_object {
    device::efa_gda_xpu_object {
        magic: device::EFA_GDA_XPU_MAGIC,
        bytes: bytes as u32,
        fclass: class,
        timeout_ns: TIMEOUT_NS,
        ..Default::default()
    }
}

/// An exported object, in the form in which the caller copies it to the device.
pub(crate) fn handle(class: u32, address: u64) -> fi::fid_xpu {
    fi::fid_xpu { fclass: class, prov_id: fi::FI_XPU_PROV_EFA, prov_ctx: address }
}

/// What [`Use::export_endpoint`] exports.
pub(crate) struct ExportedEndpoint<'a> {
    pub(crate) pair: &'a QueuePair,
    pub(crate) accounting: &'a Accounting,
    pub(crate) send_cq: u64,
    pub(crate) receive_cq: u64,
    /// Bytes of the longest message and RDMA operation.
    pub(crate) message: usize,
    pub(crate) rdma: usize,
}

/// A counter whose words are on the page `words`, which can be imported: the page has a word every [`ERROR_WORD`] bytes,
/// and the words of index `first` and `first + 1` count successes and errors.
fn counter_on(words: &Arc<RingMemory>, first: usize) -> CompletionCounter {
    let at = |index: usize| {
        // SAFETY: a page has room for four words at this distance.
        unsafe { ptr::NonNull::new_unchecked(words.as_ptr().add((first + index) * ERROR_WORD).cast::<u64>()) }
    };
    // SAFETY: aligned words of a page that `words` keeps; the engine, this provider and the device access them
    // atomically.
    unsafe { CompletionCounter::from_raw(at(0), at(1), words.clone()) }
}

/// A counter for the device, and the page of its words.
pub(crate) fn counter() -> Result<(CompletionCounter, Arc<RingMemory>), Code> {
    let words = RingMemory::allocate(PAGE_BYTES)?;
    Ok((counter_on(&words, 0), words))
}

/// Counts of an exported endpoint's requests and receives, by which the device knows how many slots of its queues are
/// free. They are apart from the application's counters, which it may set and share between endpoints.
pub(crate) struct Accounting {
    words: Arc<RingMemory>,
    pub(crate) requests: Arc<CompletionCounter>,
    pub(crate) receives: Arc<CompletionCounter>,
}

impl Accounting {
    pub(crate) fn new() -> Result<Self, Code> {
        let words = RingMemory::allocate(PAGE_BYTES)?;
        let (requests, receives) = (counter_on(&words, 0), counter_on(&words, 2));
        Ok(Self { words, requests: Arc::new(requests), receives: Arc::new(receives) })
    }
}
