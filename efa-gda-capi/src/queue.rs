//! Queues: open, describe, insert peers, retain regions, close.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use efa_gda::doorbell::DoorbellMode;
use efa_gda::queue::device_peer;
use efa_gda::wire::EntrySize;
use efa_gda::{OpenDomain, Queue, Refused, Source};
use efa_gda_sys::device::efa_gda_peer;

use crate::error::{Code, Fault};
use crate::handles::Table;
use crate::{Bytes, Handle, Out, call, call_for};

pub(crate) static QUEUES: Table<Queue, OpenQueue> = Table::new("queue", 3 << 32);

/// The value of `gpu` for the host's processor.
pub(crate) const HOST: i32 = -1;

pub(crate) const REQUEST_TABLE: u32 = 1 << 0;
pub(crate) const COUNTERS: u32 = 1 << 1;
pub(crate) const WIDE_ENTRIES: u32 = 1 << 2;
pub(crate) const WIDE_STORES: u32 = 1 << 3;
/// Only in what `efa_gda_queue_describe` returns, as the next one.
const COMPLETIONS_IN_GPU: u32 = 1 << 4;
#[cfg(feature = "cuda")]
const RELAYED: u32 = 1 << 5;

/// `EFA_GDA_ADDRESS_BYTES`.
pub(crate) const ADDRESS_BYTES: usize = 32;

/// Bytes of `efa_gda_queue_info::adapter`.
const NAME_BYTES: usize = 64;

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
    /// Registers memory and opens further queues without the queue's lock.
    pub(crate) domain: OpenDomain,
}

/// `struct efa_gda_queue_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QueueInfo {
    pub(crate) size: usize,
    pub(crate) address: [u8; ADDRESS_BYTES],
    pub(crate) adapter: [c_char; NAME_BYTES],
    pub(crate) source: u32,
    pub(crate) doorbell: u32,
    pub(crate) flags: u32,
    pub(crate) entry_size: u32,
    pub(crate) num_entries: u32,
    pub(crate) receives: u32,
    pub(crate) qpn: u32,
    pub(crate) store_bytes: u32,
    pub(crate) max_message: u64,
    pub(crate) max_rdma: u64,
    pub(crate) max_inline: u32,
    pub(crate) counter_gpu: i32,
    pub(crate) successes: u64,
    pub(crate) failures: u64,
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
                "no launch uses the queue: each efa_gda_queue_begin_launch is ended once",
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
                    "{launches} launch(es) use the queue; call efa_gda_queue_end_launch once for each, after its \
                     kernels have ended"
                );
                Err(Fault::new(Code::Busy, text))
            }
        }
    }
}

pub(crate) fn doorbell_number(mode: DoorbellMode) -> u32 {
    match mode {
        DoorbellMode::Direct => 1,
        DoorbellMode::Record => 2,
        DoorbellMode::Staged => 3,
    }
}

/// Returns the handle of an open queue.
pub(crate) fn insert(queue: Queue) -> Handle {
    let open = OpenQueue {
        abort: abort(&queue),
        launches: Mutex::default(),
        of_init: AtomicBool::new(false),
        domain: queue.domain().clone(),
    };
    QUEUES.insert(queue, open)
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

/// Returns the widest stores of kernels, in bytes.
pub(crate) fn store_bytes(queue: &Queue) -> u32 {
    #[cfg(feature = "cuda")]
    if let Some(queue) = queue.on_gpu() {
        return queue.store_bytes();
    }
    #[cfg(not(feature = "cuda"))]
    let _ = queue;
    // The host's processor stores 8 bytes at a time.
    8
}

/// Returns the flags that the queue has.
fn flags(queue: &Queue) -> u32 {
    let state = queue.mapped().state();
    let completions = queue.mapped().endpoint().and_then(|endpoint| endpoint.send_completions().device());
    #[cfg(feature = "cuda")]
    let relayed = queue.on_gpu().is_some_and(|queue| queue.relayed().is_some());
    [
        (REQUEST_TABLE, !state.requests.done.is_null()),
        (COUNTERS, !state.counters.success.is_null()),
        (WIDE_ENTRIES, queue.mapped().exposure().sq.entry_size == EntrySize::B128),
        (COMPLETIONS_IN_GPU, completions.is_some()),
        #[cfg(feature = "cuda")]
        (RELAYED, relayed),
    ]
    .iter()
    .fold(0, |flags, (flag, set)| if *set { flags | flag } else { flags })
}

/// Returns the queue's address, geometry and limits, with `size` 0.
fn describe(queue: &Queue) -> Result<QueueInfo, Fault> {
    let address = queue.address()?;
    let address = address.try_into().map_err(|address: Vec<u8>| {
        let text = format!("the queue's address has {} bytes, expected {ADDRESS_BYTES}", address.len());
        Fault::new(Code::Internal, text)
    })?;
    let mut adapter = [0; NAME_BYTES];
    for (to, from) in adapter[..NAME_BYTES - 1].iter_mut().zip(queue.adapter().bytes()) {
        *to = from as c_char;
    }
    let counter = queue.counter();
    let (exposure, limits) = (queue.mapped().exposure(), queue.mapped().limits());
    Ok(QueueInfo {
        size: 0,
        address,
        adapter,
        source: if queue.source() == Source::Libfabric { 1 } else { 2 },
        doorbell: doorbell_number(queue.doorbell_mode()),
        flags: flags(queue),
        entry_size: exposure.sq.entry_size.bytes() as u32,
        num_entries: exposure.sq.num_entries,
        receives: limits.receives,
        qpn: queue.mapped().number().get().into(),
        store_bytes: store_bytes(queue),
        max_message: limits.message,
        max_rdma: limits.rdma,
        max_inline: limits.inline_send as u32,
        counter_gpu: counter.and_then(|words| words.device).unwrap_or(HOST),
        successes: counter.map_or(0, |words| words.success),
        failures: counter.map_or(0, |words| words.error),
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_describe(
    queue: Handle,
    info: Out<QueueInfo>,
    refused: Out<*const c_char>,
) -> c_int {
    call(|| {
        let (value, text) =
            QUEUES.with(queue, |_, queue| Ok((describe(queue)?, queue.refused().join("\n"))))?;
        info.fill("the queue's info", value)?;
        refused.set_text(&text);
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_insert_peer(queue: Handle, address: Bytes, peer: Out<efa_gda_peer>) -> c_int {
    call_for(peer, "the pointer to the peer", || {
        let address = address.require::<ADDRESS_BYTES>("the peer's address")?;
        let inserted = QUEUES.with(queue, |_, queue| Ok(queue.insert_peer(&address)?))?;
        Ok(device_peer(inserted))
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_close(queue: Handle) -> c_int {
    call(|| release(queue, Queue::close))
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_destroy(queue: Handle) -> c_int {
    call(|| release(queue, Queue::destroy))
}

/// Closes or destroys a queue that no launch uses. Removes its handle, unless the queue is handed back.
pub(crate) fn release(
    handle: Handle,
    how: impl FnOnce(Queue) -> Result<(), Refused<Queue>>,
) -> Result<(), Fault> {
    QUEUES.close(handle, |driven, open| {
        if let Err(fault) = open.refuse_in_launch() {
            return (Some(driven), Err(fault));
        }
        match how(driven) {
            Ok(()) => (None, Ok(())),
            Err(refused) => (refused.queue.map(|queue| *queue), Err(refused.error.into())),
        }
    })
}
