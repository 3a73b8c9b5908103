//! The queue of a process whose libfabric domain belongs to a transport such as NVSHMEM's: one for each process, opened
//! on that domain, with a launch that lasts until the end.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use efa_gda::fabric::{Domain, Info, Library, Query};
use efa_gda::{ErrorKind, Options, Queue};
use efa_gda_sys::device::efa_gda_queue;
use efa_gda_sys::fi;

use crate::error::{Code, Fault};
use crate::queue::{HOST, QUEUES, begin_launch, release, store_bytes};
use crate::{Handle, Out, bound, call, foreign, options, queue};

/// The variable that numbers the GPU.
const GPU: &str = "EFA_GDA_GPU";
/// Bytes of the GID, with which an address of an EFA endpoint begins.
const GID: usize = 16;

/// `struct nvshmemt_efa_gda_device_state`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NvshmemState {
    pub(crate) size: usize,
    pub(crate) handle: Handle,
    pub(crate) queue: *mut efa_gda_queue,
    pub(crate) gpu: i32,
    pub(crate) store_bytes: u32,
}

// SAFETY: handles are numbers, and the queue's address is only passed on.
unsafe impl Send for NvshmemState {}

/// The state between init and fini.
static STATE: Mutex<Option<NvshmemState>> = Mutex::new(None);

fn locked() -> MutexGuard<'static, Option<NvshmemState>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_initialised() -> Fault {
    Fault::argument(
        "nothing is initialised: nvshmemt_efa_gda_init_on_ep was not called, or nvshmemt_efa_gda_fini was",
    )
}

/// See `efa_gda_nvshmem.h`.
///
/// # Safety
/// `domain` and `ep` must be null or as the header demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvshmemt_efa_gda_init_on_ep(domain: *mut c_void, ep: *mut c_void) -> c_int {
    call(|| {
        let mut state = locked();
        if state.is_some() {
            return Err(Fault::new(
                Code::Busy,
                "this process is initialised already; call nvshmemt_efa_gda_fini before another init",
            ));
        }
        let fid = foreign::domain(domain.cast())?;
        let ep = NonNull::new(ep.cast()).map(foreign::endpoint).transpose()?;
        let gpu = gpu()?;
        let address = ep.map(address_of).transpose()?;
        let info = info(address.as_deref(), gpu != HOST)?;
        // SAFETY: the caller guarantees that the domain stays open until fini, and that calls of several threads on it
        // are allowed or do not happen.
        let borrowed = unsafe { Domain::borrow(fid, Some(info.clone())) };
        let options = options::on_processor(Options::new(), gpu)?;
        let queue = Queue::on_domain(&borrowed, &info, &options).map_err(options::with_hint)?;
        *state = Some(begin(queue, gpu)?);
        Ok(())
    })
}

/// Begins the launch.
fn begin(queue: Queue, gpu: i32) -> Result<NvshmemState, Fault> {
    let handle = queue::insert(queue);
    QUEUES.with(handle, |open, queue| {
        open.of_init.store(true, Ordering::Relaxed);
        open.launches().push(begin_launch(queue));
        let (device, store_bytes) = (queue.device_address(), store_bytes(queue));
        Ok(NvshmemState { size: 0, handle, queue: device, gpu, store_bytes })
    })
}

/// See `efa_gda_nvshmem.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvshmemt_efa_gda_state(state: Out<NvshmemState>) -> c_int {
    call(|| state.fill("the state", locked().ok_or_else(not_initialised)?))
}

/// See `efa_gda_nvshmem.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvshmemt_efa_gda_fini() -> c_int {
    call(|| {
        let mut state = locked();
        let NvshmemState { handle, .. } = (*state).ok_or_else(not_initialised)?;
        let open = QUEUES.get(handle)?;
        if open.shared.launches().len() > 1 {
            open.shared.refuse_in_launch()?;
        }
        open.shared.launches().clear();
        drop(open);
        let waited = QUEUES.with(handle, |_, queue| Ok(queue.quiet(bound(0))?));
        let destroyed = release(handle, Queue::destroy);
        if destroyed.as_ref().is_err_and(|fault| fault.code() == Code::Busy) {
            // Kernels may still use the queue, which stays open.
            QUEUES.with(handle, |open, queue| {
                open.launches().push(begin_launch(queue));
                Ok(())
            })?;
            return destroyed;
        }
        *state = None;
        waited.map(drop).and(destroyed)
    })
}

/// Returns the number of the GPU: that of the environment variable, or of the thread's current CUDA context.
fn gpu() -> Result<i32, Fault> {
    match std::env::var(GPU) {
        Ok(text) => text.trim().parse().ok().filter(|gpu| *gpu >= HOST).ok_or_else(|| {
            Fault::argument(format_args!(
                "{GPU}=\"{text}\": expected the number of a GPU as CUDA counts, or -1 for the host's processor"
            ))
        }),
        Err(_) => current_gpu().ok_or_else(|| {
            Fault::argument(format_args!(
                "no CUDA context is current to this thread, so that the GPU is not known: call cudaSetDevice and \
                 cudaFree(0) before, or set {GPU} to the GPU's number (-1: the host's processor)"
            ))
        }),
    }
}

/// Returns the device of the CUDA context that is current to this thread; None without libcuda or a context.
fn current_gpu() -> Option<i32> {
    // SAFETY: the names are strings. RTLD_NOLOAD finds the driver only if the caller has loaded it, and it stays
    // loaded.
    let function = unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if driver.is_null() {
            return None;
        }
        libc::dlsym(driver, c"cuCtxGetDevice".as_ptr())
    };
    if function.is_null() {
        return None;
    }
    // SAFETY: CUresult cuCtxGetDevice(CUdevice *), of cuda.h; both types are int.
    let get: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(function) };
    let mut device = -1;
    // SAFETY: the result can be written.
    (unsafe { get(&mut device) } == 0).then_some(device)
}

/// Returns the raw address of the caller's endpoint, which is only read.
fn address_of(ep: NonNull<fi::fid_ep>) -> Result<Vec<u8>, Fault> {
    let refused =
        |why: String| Fault::new(Code::Fabric, format_args!("the endpoint's address is not known: {why}"));
    // SAFETY: an endpoint's memory was readable just now, and the caller guarantees that it is open.
    let cm = unsafe { ep.as_ref() }.cm;
    let cm = NonNull::new(cm).ok_or_else(|| refused("it has no table fi_ops_cm".to_owned()))?;
    foreign::refuse_unreadable(cm, "the endpoint's table fi_ops_cm")?;
    // SAFETY: as above; every release of libfabric has this function in the table.
    let getname = unsafe { cm.as_ref() }.getname;
    let getname = getname.ok_or_else(|| refused("its provider has no fi_getname".to_owned()))?;
    let mut address = vec![0_u8; 256];
    let mut length = address.len();
    // SAFETY: the endpoint is open, and `length` bytes can be written.
    let code = unsafe { getname(ep.as_ptr().cast(), address.as_mut_ptr().cast(), &mut length) };
    if code != 0 || length < GID || length > address.len() {
        return Err(refused(format!(
            "fi_getname returned {code} and a length of {length}; enable the endpoint first"
        )));
    }
    address.truncate(length);
    Ok(address)
}

/// Returns the info of efa-direct for the adapter of the caller's endpoint; without an endpoint, of the only adapter.
fn info(address: Option<&[u8]>, gpu_memory: bool) -> Result<Info, Fault> {
    let library = Library::load()?;
    let found = match Query::new().gpu_memory(gpu_memory).find(&library) {
        // A provider without FI_HMEM registers GPU memory as a dmabuf all the same.
        Err(error) if matches!(error.kind(), ErrorKind::WithoutOption(_)) => Query::new().find(&library)?,
        found => found?,
    };
    let names = || found.iter().map(|info| info.domain_name()).collect::<Vec<_>>().join(", ");
    let Some(address) = address else {
        return match &found[..] {
            [only] => Ok(only.clone()),
            _ => Err(Fault::argument(format_args!(
                "the endpoint is null, and there are {} adapters ({}): pass an enabled endpoint of the domain",
                found.len(),
                names()
            ))),
        };
    };
    let same = |info: &&Info| info.source_address().get(..GID) == address.get(..GID);
    found.iter().find(same).cloned().ok_or_else(|| {
        Fault::new(
            Code::NoAdapter,
            format_args!(
                "no adapter on efa-direct has the GID of the endpoint's address; pass an endpoint of one of these \
                 adapters: {}",
                names()
            ),
        )
    })
}
