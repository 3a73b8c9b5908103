//! A GPU of this process: its context, the kernels loaded into it, and the pages of the host that it
//! reaches.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock, OnceLock, mpsc};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, DriverError, result, sys};
use cudarc::nvrtc::Ptx;

use super::compile::{self, Kernels, Origin};
use super::error::{Error, Result, is_lost};
use super::memory::Relaxed;
use super::pages::{PageRegistry, Pin, Pinned};
use crate::smaps::{self, Mapping, MemoryKind};

/// The oldest compute capability that the kernels are compiled for; `fence.acq_rel.sys` and
/// scoped accesses came with it.
const OLDEST_CAPABILITY: (i32, i32) = (7, 0);

/// A GPU. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    loaded: Arc<OnceLock<Loaded>>,
    receive: Arc<OnceLock<CudaFunction>>,
    #[cfg(feature = "test-utils")]
    bench: Arc<OnceLock<Bench>>,
}

#[derive(Debug)]
struct Loaded {
    put: CudaFunction,
    architecture: String,
    origin: Origin,
}

/// The kernels of `kernels/bench.cu`.
#[cfg(feature = "test-utils")]
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) rate: CudaFunction,
    pub(crate) latency: CudaFunction,
}

/// Pages of this process as the GPU reaches them. What was registered is unregistered when the last range on
/// a page goes.
#[derive(Debug)]
pub struct HostRange {
    device: u64,
    mapping: Mapping,
    /// None where nothing is registered.
    registered: Option<(u32, Pinned<Registrar>)>,
}

impl Gpu {
    /// Opens GPU `ordinal`, as CUDA counts them in this process.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::TooOld`], or the driver's.
    pub fn open(ordinal: usize) -> Result<Self> {
        // SAFETY: looks for the library; its initialisers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver);
        }
        let context = CudaContext::new(ordinal).map_err(in_call("cuDevicePrimaryCtxRetain"))?;
        let (major, minor) = context.compute_capability().map_err(in_call("cuDeviceGetAttribute"))?;
        if (major, minor) < OLDEST_CAPABILITY {
            return Err(Error::TooOld { ordinal, major, minor });
        }
        Ok(Self {
            context,
            loaded: Arc::default(),
            receive: Arc::default(),
            #[cfg(feature = "test-utils")]
            bench: Arc::default(),
        })
    }

    /// How many GPUs CUDA shows this process.
    ///
    /// # Errors
    /// [`Error::NoDriver`], or the driver's.
    pub fn count() -> Result<usize> {
        // SAFETY: as in `open`.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver);
        }
        let count = CudaContext::device_count().map_err(in_call("cuDeviceGetCount"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The GPU's name.
    ///
    /// # Errors
    /// The driver's.
    pub fn name(&self) -> Result<String> {
        self.context.name().map_err(in_call("cuDeviceGetName"))
    }

    /// Which one it is, as CUDA counts in this process.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes `range` of this process reachable from the GPU, registering what is not registered yet.
    /// Whether that is I/O memory is read from the mapping's own flags ([`smaps`]).
    ///
    /// # Errors
    /// [`Error::Mapping`] where the kind of memory is not known, [`Error::Register`] where CUDA
    /// refuses, [`Error::Scattered`] where the GPU does not see the range in one piece.
    ///
    /// # Safety
    /// The range stays mapped, as what it is, until the value returned is dropped.
    pub unsafe fn reach(&self, range: Range<usize>) -> Result<HostRange> {
        let mapping = smaps::mapping_of(range.clone())?;
        let pinned = PAGES.acquire(&Registrar { context: self.context.clone() }, range.clone())?;
        let device = self.device_address(range.start)?;
        let last = self.device_address(range.end - 1)?;
        if last.wrapping_sub(device) != (range.end - 1 - range.start) as u64 {
            return Err(Error::Scattered(range));
        }
        Ok(HostRange { device, mapping, registered: Some((registration_flags(mapping), pinned)) })
    }

    /// [`Self::reach`] for what kernels only read. Ordinary memory that CUDA refuses to register is read at
    /// its address here, where the GPU reaches what nobody registered (HMM, ATS).
    ///
    /// # Errors
    /// As [`Self::reach`].
    ///
    /// # Safety
    /// As [`Self::reach`].
    pub unsafe fn reach_to_read(&self, range: Range<usize>) -> Result<HostRange> {
        const UNREGISTERED: sys::CUdevice_attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
        // SAFETY: the caller keeps to the same conditions.
        let refused = match unsafe { self.reach(range.clone()) } {
            Err(error @ Error::Register { .. }) => error,
            answered => return answered,
        };
        let mapping = smaps::mapping_of(range.clone())?;
        // The GPU's page faults find no struct page behind device memory.
        if mapping.kind == MemoryKind::Ordinary && matches!(self.context.attribute(UNREGISTERED), Ok(1)) {
            tracing::info!(%refused, "the GPU reads it at the host's address");
            return Ok(HostRange { device: range.start as u64, mapping, registered: None });
        }
        Err(refused)
    }

    fn device_address(&self, host: usize) -> Result<u64> {
        self.context.bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        let mut device = 0;
        // SAFETY: the page is registered with this context; the call writes one address.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host as *mut _, 0) }
            .result()
            .map_err(in_call("cuMemHostGetDevicePointer"))?;
        Ok(device)
    }

    /// The put kernel, compiled and loaded on first use.
    pub(crate) fn put_kernel(&self) -> Result<&CudaFunction> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(&loaded.put);
        }
        let (module, kernels) = self.load(compile::PUT)?;
        let put = module.load_function("efa_gda_put_kernel").map_err(in_call("cuModuleGetFunction"))?;
        let Kernels { architecture, origin, .. } = kernels;
        Ok(&self.loaded.get_or_init(|| Loaded { put, architecture, origin }).put)
    }

    /// The kernel that posts and takes receives, likewise.
    pub(crate) fn receive_kernel(&self) -> Result<&CudaFunction> {
        if let Some(kernel) = self.receive.get() {
            return Ok(kernel);
        }
        let (module, _) = self.load(compile::RECEIVE)?;
        let kernel =
            module.load_function("efa_gda_receive_kernel").map_err(in_call("cuModuleGetFunction"))?;
        Ok(self.receive.get_or_init(|| kernel))
    }

    /// The kernels that benches time, likewise.
    #[cfg(feature = "test-utils")]
    pub(crate) fn bench_kernels(&self) -> Result<&Bench> {
        if let Some(bench) = self.bench.get() {
            return Ok(bench);
        }
        let (module, _) = self.load(compile::BENCH)?;
        let function = |name| module.load_function(name).map_err(in_call("cuModuleGetFunction"));
        let bench = Bench {
            rate: function("efa_gda_bench_rate_kernel")?,
            latency: function("efa_gda_bench_latency_kernel")?,
        };
        Ok(self.bench.get_or_init(|| bench))
    }

    /// Loads a file of kernels, built in or compiled for this GPU.
    fn load(&self, source: compile::Source) -> Result<(Arc<CudaModule>, Kernels)> {
        let (major, minor) = self.context.compute_capability().map_err(in_call("cuDeviceGetAttribute"))?;
        let load = |mut kernels: Kernels| {
            let image = Ptx::from_binary(std::mem::take(&mut kernels.image));
            let module = self.context.load_module(image).map_err(in_call("cuModuleLoadData"))?;
            Ok((module, kernels))
        };
        let Some(kernels) = compile::built_in(source, major, minor) else {
            return load(compile::compiled(source, major, minor)?);
        };
        load(kernels).or_else(|refused| match compile::compiled(source, major, minor) {
            // What the driver says of its own matters more than what could have replaced it.
            Err(Error::NoCompiler) => Err(refused),
            compiled => load(compiled?),
        })
    }

    /// Loads the kernels now, compiled if need be, which otherwise happens at the first launch.
    ///
    /// # Errors
    /// [`Error::NoCompiler`], [`Error::Compile`], or the driver's.
    pub fn prepare(&self) -> Result<()> {
        self.put_kernel().map(|_| ())
    }

    /// The target of the kernels, and where they came from; none before their first use.
    pub fn kernels(&self) -> Option<(&str, Origin)> {
        self.loaded.get().map(|loaded| (loaded.architecture.as_str(), loaded.origin))
    }
}

impl HostRange {
    /// The first byte as the GPU addresses it.
    pub fn device_address(&self) -> u64 {
        self.device
    }

    /// What the pages are.
    pub fn mapping(&self) -> Mapping {
        self.mapping
    }

    /// How the GPU reaches it, in words.
    pub fn how(&self) -> String {
        match &self.registered {
            Some((flags, _)) => format!("registered as {}", describe(*flags)),
            None => "not registered, read at the host's address, as this GPU can".to_owned(),
        }
    }
}

/// What this process has registered: however many GPUs are opened, and how often, a page is registered once.
static PAGES: LazyLock<Arc<PageRegistry<Registrar>>> = LazyLock::new(|| {
    // SAFETY: takes a number and answers one.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PageRegistry::new(usize::try_from(page).unwrap_or(4096))
});

/// Registers pages with one context, for all.
#[derive(Clone, Debug)]
struct Registrar {
    context: Arc<CudaContext>,
}

impl Pin for Registrar {
    type Error = Error;

    fn pin(&self, pages: Range<usize>) -> Result<()> {
        let flags = registration_flags(smaps::mapping_of(pages.clone())?);
        self.context.bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        // SAFETY: the pages are mapped, as smaps says, and stay so: `Gpu::reach` asks its caller.
        unsafe { sys::cuMemHostRegister_v2(pages.start as *mut _, pages.len(), flags) }
            .result()
            .map_err(|result| Error::Register { pages, flags: describe(flags), result })
    }

    fn unpin(&self, pages: Range<usize>) {
        let done = in_context(&self.context, || {
            // SAFETY: exactly these pages were registered with this context, and nobody uses them.
            unsafe { sys::cuMemHostUnregister(pages.start as *mut _) }.result()
        });
        if let Err(error) = done {
            tracing::warn!(start = pages.start, %error, "pages could not be unregistered from CUDA");
        }
    }
}

/// Runs `call` with the context current, for what must happen whatever happened before: cudarc's own
/// `bind_to_thread` answers with an error that some drop recorded, and CUDA refuses a thread much of what
/// it may do otherwise while another one captures a graph. Then the thread has the context again that it had,
/// which may be another GPU's.
pub(super) fn in_context<T>(
    context: &CudaContext,
    call: impl FnOnce() -> std::result::Result<T, DriverError>,
) -> std::result::Result<T, DriverError> {
    let before = result::ctx::get_current()?.unwrap_or(null_mut());
    // SAFETY: the context is retained as long as `context` lives.
    unsafe { result::ctx::set_current(context.cu_ctx()) }?;
    let done = {
        // A thread that cannot be relaxed is refused only where a graph is captured, and says so.
        let _relaxed = Relaxed::enter();
        call()
    };
    // SAFETY: the context, or none, that was current; a failure leaves this one.
    let _ = unsafe { result::ctx::set_current(before) };
    done
}

/// Waits until no kernel of the context runs, or the context is lost and they are gone with it. After an
/// error they may still run.
pub(crate) fn kernels_end(context: &Arc<CudaContext>, limit: Duration) -> Result<()> {
    const OPERATION: &str = "cuCtxSynchronize";
    let context = context.clone();
    match in_time(limit, move || in_context(&context, result::ctx::synchronize)) {
        None => Err(Error::Unanswered { operation: OPERATION, limit }),
        Some(Err(error)) if is_lost(&error) => {
            tracing::warn!(%error, "the GPU's context is lost; its kernels are gone with it");
            Ok(())
        }
        Some(done) => done.map_err(in_call(OPERATION)),
    }
}

/// What `call` answers within `limit`, on a thread of its own, which outlives the limit with it.
fn in_time<T: Send + 'static>(limit: Duration, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (answer, answered) = mpsc::channel();
    // Nobody listens to an answer that is late.
    let run = move || drop(answer.send(call()));
    if let Err(error) = std::thread::Builder::new().name("efa-gda-wait".into()).spawn(run) {
        tracing::warn!(%error, "no thread to wait on; raise the limit on processes (ulimit -u)");
        return None;
    }
    answered.recv_timeout(limit).ok()
}

/// I/O memory is registered as such, ordinary memory without the flag (with it, CUDA answers
/// "invalid argument"); what may not be written is registered for reading. Always for all contexts, of
/// which others may have doorbells on the same page.
fn registration_flags(mapping: Mapping) -> u32 {
    let mut flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
    if mapping.kind == MemoryKind::Device {
        flags |= sys::CU_MEMHOSTREGISTER_IOMEMORY;
    }
    if !mapping.writable {
        flags |= sys::CU_MEMHOSTREGISTER_READ_ONLY;
    }
    flags
}

fn describe(flags: u32) -> String {
    let mut words = vec!["device map", "portable"];
    if flags & sys::CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        words.push("I/O memory");
    }
    if flags & sys::CU_MEMHOSTREGISTER_READ_ONLY != 0 {
        words.push("read only");
    }
    words.join(", ")
}

/// Names the call that failed.
pub(crate) fn in_call(operation: &'static str) -> impl Fn(DriverError) -> Error {
    move |result| Error::Driver { operation, result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_never_ends_is_not_waited_for() {
        let (release, held) = mpsc::channel::<()>();
        assert_eq!(in_time(Duration::ZERO, move || held.recv()), None);
        drop(release);
    }

    #[test]
    fn a_call_that_ends_is_answered() {
        assert_eq!(in_time(Duration::from_secs(60), || 7), Some(7));
    }
}
