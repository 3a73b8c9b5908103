//! Mapped queues: open, describe, insert peers, retain regions, close.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use efa_gda::doorbell::{DoorbellChoice, DoorbellMode};
use efa_gda::fabric::Bindings;
use efa_gda::queue::{MappedQueue, device_peer};
use efa_gda_sys::device::efa_gda_peer;

use crate::domain::{OpenDomain, Parts};
use crate::driven::{Abort, Driven, Launch, NotClosed, Processor};
use crate::error::{Code, Fault};
use crate::handles::Table;
use crate::region;
use crate::{Handle, call, read_struct, refuse_null, write_struct};

pub(crate) static QUEUES: Table<OpenQueue> = Table::new("mapped queue", 3 << 32);

const DEFAULT_COMPLETIONS: u32 = 8192;
const DEFAULT_PEERS: u32 = 64;
/// More bytes than any raw address has.
const MAX_ADDRESS: usize = 4096;

/// The queue behind a handle.
pub(crate) struct OpenQueue {
    /// None once it is closed.
    driven: Mutex<Option<Driven>>,
    pub(crate) abort: Abort,
    launches: Mutex<Vec<Launch>>,
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
}

impl OpenQueue {
    fn lock(&self) -> MutexGuard<'_, Option<Driven>> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn launches(&self) -> MutexGuard<'_, Vec<Launch>> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn refuse_in_launch(&self) -> Result<(), Fault> {
        match self.launches().len() {
            0 => Ok(()),
            launches => {
                let text = format!(
                    "{launches} launch(es) use the queue; call efa_gda_mapped_end_launch for each when it has ended"
                );
                Err(Fault::new(Code::Busy, text))
            }
        }
    }
}

/// Calls `body` with an open queue, whose lock it holds.
pub(crate) fn with<T>(
    handle: Handle,
    body: impl FnOnce(&OpenQueue, &mut Driven) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let open = QUEUES.get(handle)?;
    let mut driven = open.lock();
    body(&open, driven.as_mut().ok_or_else(closed)?)
}

fn closed() -> Fault {
    Fault::argument("the mapped queue is closed")
}

/// Converts a value of `enum efa_gda_doorbell_mode`.
fn doorbell_choice(number: u32) -> Result<DoorbellChoice, Fault> {
    Ok(match number {
        0 => DoorbellChoice::Auto,
        1 => DoorbellMode::Direct.into(),
        2 => DoorbellMode::Record.into(),
        3 => DoorbellMode::Staged.into(),
        other => {
            return Err(Fault::argument(format_args!(
                "doorbell {other} is unknown; expected 0 to 3, a value of enum efa_gda_doorbell_mode"
            )));
        }
    })
}

fn doorbell_number(mode: DoorbellMode) -> u32 {
    match mode {
        DoorbellMode::Direct => 1,
        DoorbellMode::Record => 2,
        DoorbellMode::Staged => 3,
    }
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
    call(|| {
        refuse_null(queue, "the pointer to the queue")?;
        // SAFETY: the caller guarantees a struct with its size.
        let attr = unsafe { read_struct(attr, "the queue's attributes") }?;
        let open = open(OpenDomain::parts(domain)?, &attr)?;
        // SAFETY: it is not null, and the caller guarantees that it is writable.
        unsafe { queue.write(QUEUES.insert(open)) };
        Ok(())
    })
}

fn open(parts: Parts, attr: &MappedAttr) -> Result<OpenQueue, Fault> {
    let or = |number: u32, default: u32| (if number == 0 { default } else { number }) as usize;
    let choice = doorbell_choice(attr.doorbell)?;
    let processor = Processor::open(attr.gpu, choice)?;
    let addresses = parts.domain.address_vector(or(attr.peers, DEFAULT_PEERS))?;
    let completions = processor.completion_queue(&parts, or(attr.completions, DEFAULT_COMPLETIONS))?;
    let endpoint = parts.domain.endpoint(&parts.info)?;
    let endpoint = endpoint.bind(Bindings::shared(&addresses, &completions))?.enable()?;
    let driven = processor.drive(MappedQueue::new(endpoint, &parts.ops)?, choice)?;
    let abort = driven.abort();
    Ok(OpenQueue { driven: Mutex::new(Some(driven)), abort, launches: Mutex::default(), _parts: parts })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `info` must be null or a struct of the header with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_describe(queue: Handle, info: *mut MappedInfo) -> c_int {
    call(|| {
        let value = with(queue, |_, driven| {
            let mapped = driven.mapped();
            let (exposure, limits) = (mapped.exposure(), mapped.limits());
            Ok(MappedInfo {
                size: 0,
                entry_size: exposure.sq.entry_size.bytes() as u32,
                num_entries: exposure.sq.num_entries,
                max_batch: exposure.sq.max_batch,
                completion_size: exposure.cq.entry_size,
                completions: exposure.cq.num_entries,
                receives: limits.receives,
                qpn: mapped.number().get().into(),
                doorbell: doorbell_number(mapped.doorbell_mode()),
                completions_in_gpu: mapped.endpoint().send_completions().device().is_some().into(),
                max_inline: limits.inline_send as u32,
                max_rdma_size: limits.rdma,
                max_msg_size: limits.message,
            })
        })?;
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
        let bytes = with(queue, |_, driven| Ok(driven.mapped().endpoint().address()?))?;
        // SAFETY: it is not null, and the caller guarantees that it is readable and writable.
        let capacity = unsafe { length.replace(bytes.len()) };
        refuse_null(address, "the buffer for the address")?;
        if capacity < bytes.len() {
            return Err(Fault::argument(format_args!(
                "the address has {} bytes, and the buffer {capacity}; length now has the number that is needed",
                bytes.len()
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
    call(|| {
        refuse_null(peer, "the pointer to the peer")?;
        refuse_null(address, "the peer's address")?;
        if length > MAX_ADDRESS {
            return Err(Fault::argument(format_args!(
                "the peer's address: {length} bytes are too many; expected the bytes and the length that \
                 efa_gda_mapped_address returned to the peer"
            )));
        }
        // SAFETY: it is not null, and the caller guarantees the length.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
        let inserted = with(queue, |_, driven| Ok(driven.mapped().insert_peer(bytes)?))?;
        // SAFETY: it is not null, and the caller guarantees that it is writable.
        unsafe { peer.write(device_peer(inserted)) };
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_retain(queue: Handle, region: Handle) -> c_int {
    call(|| {
        let region = region::region(region)?;
        with(queue, |_, driven| driven.retain(&region))
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_close(queue: Handle) -> c_int {
    call(|| release(queue, Driven::close))
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_destroy(queue: Handle) -> c_int {
    call(|| release(queue, Driven::destroy))
}

/// Closes or destroys a queue that no launch uses. Removes its handle, unless the queue is handed back.
fn release(handle: Handle, how: impl FnOnce(Driven) -> Result<(), NotClosed>) -> Result<(), Fault> {
    let open = QUEUES.get(handle)?;
    let mut slot = open.lock();
    open.refuse_in_launch()?;
    let Err((fault, queue)) = how(slot.take().ok_or_else(closed)?) else {
        return QUEUES.remove(handle).map(drop);
    };
    *slot = queue;
    if slot.is_none() {
        QUEUES.remove(handle)?;
    }
    Err(fault)
}
