//! A GPU of this process: its context, the kernels loaded into it, and the pages of the host that it can access.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::Ptx;

use super::compile::{self, Kernels, Origin};
use super::error::{self, REGISTER, is_lost};
use super::pages::{PageRegistry, Pin, Pinned};
use super::relaxed::Relaxed;
use crate::memory::page_size;
use crate::smaps::{self, Mapping, MemoryKind};
use crate::{Error, ErrorKind, Result};

/// The oldest compute capability that the library supports: that of the A100, the first GPU beside an adapter with RDMA
/// writes (p4d).
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// A GPU. Clones are handles of the same GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    /// The put kernel.
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

/// A range of this process's memory that the GPU can access. A block of pages is unregistered when the last range on it
/// is dropped.
#[derive(Debug)]
pub struct HostRange {
    device: u64,
    mapping: Mapping,
    /// Flags and pages of the registration; None if the GPU accesses the range without one.
    registered: Option<(u32, Pinned<Registrar>)>,
}

impl Gpu {
    /// Opens the GPU of this CUDA ordinal.
    ///
    /// # Errors
    /// Those of the driver; without libcuda, or for a GPU before compute capability 8.0, [`ErrorKind::Gpu`](crate::ErrorKind::Gpu).
    pub fn open(ordinal: usize) -> Result<Self> {
        // SAFETY: loads libcuda, which runs only NVIDIA's initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err(error::no_driver());
        }
        let context = CudaContext::new(ordinal).map_err(in_call("cuDevicePrimaryCtxRetain"))?;
        let (major, minor) = context.compute_capability().map_err(in_call("cuDeviceGetAttribute"))?;
        if (major, minor) < OLDEST_CAPABILITY {
            return Err(error::too_old(ordinal, (major, minor)));
        }
        Ok(Self {
            context,
            loaded: Arc::default(),
            receive: Arc::default(),
            #[cfg(feature = "test-utils")]
            bench: Arc::default(),
        })
    }

    /// Returns the number of GPUs that CUDA reports to this process.
    ///
    /// # Errors
    /// Those of the driver, or that libcuda cannot be loaded.
    pub fn count() -> Result<usize> {
        // SAFETY: as in `open`.
        if !unsafe { sys::is_culib_present() } {
            return Err(error::no_driver());
        }
        let count = CudaContext::device_count().map_err(in_call("cuDeviceGetCount"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Returns the GPU's name.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn name(&self) -> Result<String> {
        self.context.name().map_err(in_call("cuDeviceGetName"))
    }

    /// Returns its CUDA ordinal in this process.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// The address of the GPU on the PCI bus, as sysfs writes it.
    pub(super) fn pci_address(&self) -> Option<String> {
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
            CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        };
        let of = |attribute| self.context.attribute(attribute).ok();
        let (domain, bus) = (of(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?, of(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?);
        let device = of(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Some(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes `range` of this process accessible to the GPU. Registers the pages that are not registered yet. The flags
    /// of their mapping ([`smaps`]) determine whether they are registered as I/O memory or as ordinary memory.
    ///
    /// # Errors
    /// The kind of memory cannot be determined, CUDA refuses the pages, or the GPU's addresses of the range are not
    /// contiguous.
    ///
    /// # Safety
    /// The range must stay mapped, to the same memory, until the returned value is dropped.
    pub unsafe fn reach(&self, range: Range<usize>) -> Result<HostRange> {
        let mapping = mapping_of(range.clone())?;
        let pinned = PAGES.acquire(&Registrar { context: self.context.clone() }, range.clone())?;
        let device = self.device_address(range.start)?;
        let last = self.device_address(range.end - 1)?;
        if last.wrapping_sub(device) != (range.end - 1 - range.start) as u64 {
            return Err(error::scattered(&range));
        }
        Ok(HostRange { device, mapping, registered: Some((registration_flags(mapping), pinned)) })
    }

    /// As [`Self::reach`], for memory that kernels only read. If CUDA refuses to register ordinary memory, and the GPU
    /// can access memory that is not registered (HMM, ATS), kernels read it at the host's address.
    ///
    /// # Errors
    /// As [`Self::reach`].
    ///
    /// # Safety
    /// As [`Self::reach`].
    pub(crate) unsafe fn reach_to_read(&self, range: Range<usize>) -> Result<HostRange> {
        const UNREGISTERED: sys::CUdevice_attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
        // SAFETY: the caller ensures the same conditions.
        let refused = match unsafe { self.reach(range.clone()) } {
            Err(error) if error.operation() == Some(REGISTER) => error,
            result => return result,
        };
        let mapping = mapping_of(range.clone())?;
        // Device memory has no struct page, so the GPU's page faults cannot resolve it.
        if mapping.kind == MemoryKind::Ordinary && matches!(self.context.attribute(UNREGISTERED), Ok(1)) {
            tracing::info!(%refused, "the GPU reads the memory at the host's address, without a registration");
            return Ok(HostRange { device: range.start as u64, mapping, registered: None });
        }
        Err(refused)
    }

    fn device_address(&self, host: usize) -> Result<u64> {
        self.context.bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        let mut device = 0;
        // SAFETY: the page is registered for this context. The call writes one address.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host as *mut _, 0) }
            .result()
            .map_err(in_call("cuMemHostGetDevicePointer"))?;
        Ok(device)
    }

    /// Returns the put kernel, which is compiled and loaded on first use.
    pub(crate) fn put_kernel(&self) -> Result<&CudaFunction> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(&loaded.put);
        }
        let (module, kernels) = self.load(compile::PUT)?;
        let put = module.load_function("efa_gda_put_kernel").map_err(in_call("cuModuleGetFunction"))?;
        let Kernels { architecture, origin, .. } = kernels;
        Ok(&self.loaded.get_or_init(|| Loaded { put, architecture, origin }).put)
    }

    /// Returns the kernel that posts and takes receives, which is loaded on first use.
    pub(crate) fn receive_kernel(&self) -> Result<&CudaFunction> {
        if let Some(kernel) = self.receive.get() {
            return Ok(kernel);
        }
        let (module, _) = self.load(compile::RECEIVE)?;
        let kernel =
            module.load_function("efa_gda_receive_kernel").map_err(in_call("cuModuleGetFunction"))?;
        Ok(self.receive.get_or_init(|| kernel))
    }

    /// Returns the kernels for benches, which are loaded on first use.
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

    /// Loads a kernel file: the code that the build included, or code that is compiled for this GPU.
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
        load(kernels).or_else(|refused| match compile::has_compiler() {
            // The driver's error explains more than the missing compiler.
            false => Err(refused),
            true => load(compile::compiled(source, major, minor)?),
        })
    }

    /// Compiles and loads the put kernel now, instead of at the first launch.
    ///
    /// # Errors
    /// Those of the driver, or of the compiler.
    pub fn prepare(&self) -> Result<()> {
        self.put_kernel().map(|_| ())
    }

    /// Returns the target of the put kernel, such as `sm_90`, and its origin; None before its first use.
    pub fn kernels(&self) -> Option<(&str, Origin)> {
        self.loaded.get().map(|loaded| (loaded.architecture.as_str(), loaded.origin))
    }
}

impl HostRange {
    /// Returns the GPU's address of the first byte.
    pub fn device_address(&self) -> u64 {
        self.device
    }

    /// Returns the properties of the mapping.
    pub fn mapping(&self) -> Mapping {
        self.mapping
    }

    /// Returns how the GPU accesses the range, in words.
    pub fn how(&self) -> String {
        match &self.registered {
            Some((flags, _)) => format!("registered as {}", describe(*flags)),
            None => "not registered; this GPU reads it at the host's address".to_owned(),
        }
    }
}

/// The registered pages of this process. A page is registered once, for all GPUs and all handles of them.
static PAGES: LazyLock<Arc<PageRegistry<Registrar>>> = LazyLock::new(|| PageRegistry::new(page_size()));

/// Registers pages with one context, for all contexts.
#[derive(Clone, Debug)]
struct Registrar {
    context: Arc<CudaContext>,
}

impl Pin for Registrar {
    type Error = Error;

    fn pin(&self, pages: Range<usize>) -> Result<()> {
        let flags = registration_flags(mapping_of(pages.clone())?);
        self.context.bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        // SAFETY: smaps reports the pages as mapped, and the caller of `Gpu::reach` keeps them mapped.
        unsafe { sys::cuMemHostRegister_v2(pages.start as *mut _, pages.len(), flags) }
            .result()
            .map_err(|result| error::not_registered(&pages, &describe(flags), result))
    }

    fn unpin(&self, pages: Range<usize>) {
        let done = in_context(&self.context, || {
            // SAFETY: exactly these pages were registered with this context, and have no users.
            unsafe { sys::cuMemHostUnregister(pages.start as *mut _) }.result()
        });
        if let Err(error) = done {
            tracing::warn!(start = pages.start, %error, "pages could not be unregistered from CUDA");
        }
    }
}

/// Runs `call` with the context current, and restores the thread's previous context, which may be of another GPU.
///
/// For calls of destructors, which must happen after earlier errors too: cudarc's `bind_to_thread` returns an error
/// that an earlier drop recorded, and CUDA refuses many calls of a thread while another thread captures a graph.
pub(super) fn in_context<T>(
    context: &CudaContext,
    call: impl FnOnce() -> std::result::Result<T, DriverError>,
) -> std::result::Result<T, DriverError> {
    let before = result::ctx::get_current()?.unwrap_or(null_mut());
    // SAFETY: `context` retains the context.
    unsafe { result::ctx::set_current(context.cu_ctx()) }?;
    let done = {
        // If `enter` fails, CUDA refuses `call` only while a graph is captured; the result of `call` reports that.
        let _relaxed = Relaxed::enter();
        call()
    };
    // SAFETY: the context was current before, or none was. After a failure this one stays current.
    let _ = unsafe { result::ctx::set_current(before) };
    done
}

/// Waits until all work that was launched on `stream` has ended. Does not wait for other streams. Kernels of a lost
/// context have ended too. After an error, kernels may still run.
pub(crate) fn stream_ends(stream: &Arc<CudaStream>, limit: Duration) -> Result<()> {
    const OPERATION: &str = "cuStreamQuery";
    const PERIOD: Duration = Duration::from_micros(100);
    let begun = Instant::now();
    loop {
        // SAFETY: an open stream of the context.
        let query = || unsafe { sys::cuStreamQuery(stream.cu_stream()) }.result();
        match in_context(stream.context(), query) {
            Ok(()) => return Ok(()),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) if begun.elapsed() < limit => {
                std::thread::sleep(PERIOD);
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => {
                let operation = "the kernels and copies of a stream";
                return Err(error::unanswered(operation, stream.context().ordinal(), limit));
            }
            Err(error) if is_lost(&error) => {
                tracing::warn!(%error, "the GPU's context is lost, and its kernels with it");
                return Ok(());
            }
            Err(error) => return Err(in_call(OPERATION)(error)),
        }
    }
}

/// The mapping of a range that a GPU is to access.
fn mapping_of(range: Range<usize>) -> Result<Mapping> {
    smaps::mapping_of(range).map_err(|error| error.of_kind(ErrorKind::Gpu))
}

/// Returns the flags of a registration. Device memory needs the I/O memory flag, with which CUDA refuses ordinary
/// memory as "invalid argument". Read-only memory is registered for reading. Pages are always registered for all
/// contexts, because queues of other contexts may have doorbells on the same page.
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

/// Returns the error of a call, with the call's name.
pub(crate) fn in_call(operation: &'static str) -> impl Fn(DriverError) -> Error {
    move |result| error::failed_call(operation, result)
}
