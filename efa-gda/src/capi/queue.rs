//! Mapped queues: opened, given peers and memory, closed.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use efa_gda_sys::device::efa_gda_peer;

use super::domain::{OpenDomain, Parts};
use super::error::{Code, Fault};
use super::handles::Table;
use super::region;
use super::{Handle, entry, fill, given, sized};
use crate::doorbell::{DoorbellChoice, DoorbellMode, DoorbellProxy, ProxyOptions};
use crate::fabric::Bindings;
use crate::gpu::Gpu;
use crate::gpu_queue::{GpuAbortFlag, GpuCloseError, GpuQueue, LaunchGuard};
use crate::queue::{AbortFlag, CloseError, MappedQueue, device_peer};

pub(super) static QUEUES: Table<OpenQueue> = Table::new("mapped queue", 3 << 32);

const DEFAULT_COMPLETIONS: u32 = 8192;
const DEFAULT_PEERS: u32 = 64;

/// A queue, and who drives it.
#[derive(Debug)]
pub(super) enum Driven {
    Host(Box<MappedQueue>),
    Gpu(Box<GpuQueue>),
}

pub(super) struct OpenQueue {
    /// None once it is closed.
    driven: Mutex<Option<Driven>>,
    pub(super) abort: Abort,
    lent: Mutex<Vec<Option<LaunchGuard>>>,
    _parts: Parts,
}

pub(super) enum Abort {
    Host(AbortFlag),
    Gpu(GpuAbortFlag),
}

/// `struct efa_gda_mapped_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedAttr {
    size: usize,
    completions: u32,
    peers: u32,
    gpu: i32,
    rung: u32,
}

/// `struct efa_gda_mapped_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedInfo {
    size: usize,
    entry_size: u32,
    num_entries: u32,
    max_batch: u32,
    completion_size: u32,
    completions: u32,
    receives: u32,
    qpn: u32,
    rung: u32,
    completions_in_gpu: u32,
    max_inline: u32,
    max_rdma_size: u64,
    max_msg_size: u64,
}

impl Driven {
    fn mapped(&self) -> &MappedQueue {
        match self {
            Self::Host(queue) => queue,
            Self::Gpu(queue) => queue.mapped(),
        }
    }
}

impl OpenQueue {
    fn lock(&self) -> MutexGuard<'_, Option<Driven>> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lent(&self) -> MutexGuard<'_, Vec<Option<LaunchGuard>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn refuse_in_launch(&self) -> Result<(), Fault> {
        match self.lent().len() {
            0 => Ok(()),
            launches => {
                let words =
                    format!("the queue is lent to {launches} launch(es); return it when they have ended");
                Err(Fault::new(Code::Busy, words))
            }
        }
    }
}

/// Runs `body` on an open queue.
pub(super) fn with<T>(
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

fn doorbell_choice(rung: u32) -> Result<DoorbellChoice, Fault> {
    Ok(match rung {
        0 => DoorbellChoice::Auto,
        1 => DoorbellMode::Direct.into(),
        2 => DoorbellMode::Record.into(),
        3 => DoorbellMode::Staged.into(),
        other => return Err(Fault::argument(format_args!("rung {other} is not known; 0 to 3 are"))),
    })
}

fn number_of(rung: DoorbellMode) -> u32 {
    match rung {
        DoorbellMode::Direct => 1,
        DoorbellMode::Record => 2,
        DoorbellMode::Staged => 3,
    }
}

/// See `efa_gda.h`.
///
/// # Safety
/// `attr` is null or a struct of the header's with its size set; `queue` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_open(
    domain: Handle,
    attr: *const MappedAttr,
    queue: *mut Handle,
) -> c_int {
    entry(|| {
        given(queue, "the place for the queue")?;
        // SAFETY: the caller's struct.
        let attr = unsafe { sized(attr, "the queue's attributes") }?;
        let open = open(OpenDomain::parts(domain)?, &attr)?;
        // SAFETY: not null, and the caller's place.
        unsafe { queue.write(QUEUES.insert(open)) };
        Ok(())
    })
}

fn open(parts: Parts, attr: &MappedAttr) -> Result<OpenQueue, Fault> {
    let or = |number: u32, default: u32| (if number == 0 { default } else { number }) as usize;
    let (completions, peers) = (or(attr.completions, DEFAULT_COMPLETIONS), or(attr.peers, DEFAULT_PEERS));
    let choice = doorbell_choice(attr.rung)?;
    let gpu = match attr.gpu {
        -1 if attr.rung > 1 => return Err(Fault::argument("the host's processor rings by itself")),
        -1 => None,
        ordinal => {
            let ordinal = usize::try_from(ordinal);
            let ordinal = ordinal.map_err(|_| Fault::argument("a GPU is -1 for none, or 0 and up"))?;
            let opened = Gpu::open(ordinal).map_err(Fault::from);
            Some(opened.map_err(|fault| fault.and("gpu = -1 is for the host's processor"))?)
        }
    };
    let addresses = parts.domain.address_vector(peers)?;
    let completions = match &gpu {
        Some(gpu) => gpu.completion_queue(&parts.ops, completions)?.0,
        None => parts.domain.completion_queue(completions)?,
    };
    let endpoint = parts.domain.endpoint(&parts.info)?;
    let endpoint = endpoint.bind(Bindings::shared(&addresses, &completions))?.enable()?;
    let mapped = MappedQueue::new(endpoint, &parts.ops)?;
    let (driven, abort) = match gpu {
        None => {
            let abort = Abort::Host(mapped.abort_flag());
            (Driven::Host(Box::new(mapped)), abort)
        }
        Some(gpu) => {
            // Kept by a queue that it rings for, and gone otherwise.
            let proxy = DoorbellProxy::start(&ProxyOptions::new())
                .map_err(|error| Fault::error(Code::Internal, error))?;
            let (queue, _) = GpuQueue::with_doorbell(mapped, &gpu, choice, &proxy)?;
            let abort = Abort::Gpu(queue.abort_flag());
            (Driven::Gpu(Box::new(queue)), abort)
        }
    };
    Ok(OpenQueue { driven: Mutex::new(Some(driven)), abort, lent: Mutex::default(), _parts: parts })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `info` is null or a struct of the header's, with its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_describe(queue: Handle, info: *mut MappedInfo) -> c_int {
    entry(|| {
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
                rung: number_of(mapped.doorbell_mode()),
                completions_in_gpu: mapped.endpoint().send_completions().device().is_some().into(),
                max_inline: limits.inline_send as u32,
                max_rdma_size: limits.rdma,
                max_msg_size: limits.message,
            })
        })?;
        // SAFETY: the caller's struct.
        unsafe { fill(info, "the queue's info", value) }
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `length` is null or can be read and written; `address` is null or has as many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_address(
    queue: Handle,
    address: *mut c_void,
    length: *mut usize,
) -> c_int {
    entry(|| {
        given(length, "the length")?;
        let own = with(queue, |_, driven| Ok(driven.mapped().endpoint().address()?))?;
        // SAFETY: not null, and the caller's.
        let room = unsafe { length.replace(own.len()) };
        if address.is_null() || room < own.len() {
            return Err(Fault::argument(format_args!(
                "the address has {} bytes, the room {room}",
                own.len()
            )));
        }
        // SAFETY: the caller's room, which is enough.
        unsafe { address.cast::<u8>().copy_from_nonoverlapping(own.as_ptr(), own.len()) };
        Ok(())
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `address` is null or has `length` bytes; `peer` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_mapped_insert_peer(
    queue: Handle,
    address: *const c_void,
    length: usize,
    peer: *mut efa_gda_peer,
) -> c_int {
    entry(|| {
        given(peer, "the place for the peer")?;
        given(address.cast_mut(), "the peer's address")?;
        if length > 4096 {
            let words = format_args!(
                "{length} bytes are no address; it is what efa_gda_mapped_address gave at the peer"
            );
            return Err(Fault::argument(words));
        }
        // SAFETY: not null, and the caller's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
        let found = with(queue, |_, driven| Ok(driven.mapped().insert_peer(bytes)?))?;
        // SAFETY: not null, and the caller's place.
        unsafe { peer.write(device_peer(found)) };
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_retain(queue: Handle, kept: Handle) -> c_int {
    entry(|| {
        let region = region::region(kept)?;
        with(queue, |_, driven| {
            match driven {
                Driven::Host(queue) => queue.retain(&region)?,
                Driven::Gpu(queue) => queue.retain(&region)?,
            };
            Ok(())
        })
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_close(queue: Handle) -> c_int {
    entry(|| {
        let open = QUEUES.get(queue)?;
        let mut slot = open.lock();
        open.refuse_in_launch()?;
        let closed = match slot.take().ok_or_else(closed)? {
            Driven::Host(queue) => queue.close().map_err(GpuCloseError::from),
            // Refused before it is unmapped.
            Driven::Gpu(back) => match back.snapshot() {
                Ok(seen) if seen.in_flight() == 0 => back.close(),
                seen => {
                    let out = back.mapped().poison().is_some();
                    *slot = Some(Driven::Gpu(back));
                    let seen = seen?;
                    return Err(Fault::in_flight(seen.in_flight(), out || seen.poison().is_some()));
                }
            },
        };
        gone(queue, &mut slot, closed)
    })
}

/// Forgets the handle of a queue that was closed, unless the queue was handed back.
fn gone(queue: Handle, slot: &mut Option<Driven>, closed: Result<(), GpuCloseError>) -> Result<(), Fault> {
    let Err(error) = closed else { return QUEUES.remove(queue).map(drop) };
    let (fault, back) = super::error::split(error);
    *slot = back;
    if slot.is_none() {
        QUEUES.remove(queue)?;
    }
    Err(fault)
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_mapped_destroy(queue: Handle) -> c_int {
    entry(|| {
        let open = QUEUES.get(queue)?;
        let mut slot = open.lock();
        open.refuse_in_launch()?;
        let destroyed = match slot.take().ok_or_else(closed)? {
            Driven::Host(queue) => queue.destroy().map_err(|error| CloseError::Destroy(error).into()),
            Driven::Gpu(queue) => queue.destroy(),
        };
        gone(queue, &mut slot, destroyed)
    })
}
