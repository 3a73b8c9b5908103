//! Where the kernel of `reduce.cu` runs: the first GPU, or the host executor.

use std::path::Path;
use std::process::Command;

#[cfg(feature = "cuda")]
use cudarc::driver::{CudaContext, DeviceRepr, LaunchConfig, PushKernelArg};
#[cfg(feature = "cuda")]
use efa_gda::doorbell::{DoorbellChoice, DoorbellProxy};
#[cfg(feature = "cuda")]
use efa_gda::gpu::{Gpu, GpuMemory, compile_source};
#[cfg(feature = "cuda")]
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::memory::{Access, Buffer};
use efa_gda::queue::MappedQueue;
use efa_gda::verbs::{MemoryRegion, ProtectionDomain};

use super::{BLOCKS, Reduce, Result, THREADS};

pub(crate) enum Processor {
    Host(libloading::Library),
    /// A GPU, and the host thread that rings or relays completions for it if it cannot map a part of the queue.
    #[cfg(feature = "cuda")]
    Gpu(Gpu, DoorbellProxy),
}

/// Registered memory of the processor.
pub(crate) struct Memory {
    pub(crate) region: MemoryRegion,
    /// Declared after the region, which is deregistered first.
    #[cfg(feature = "cuda")]
    gpu: Option<GpuMemory>,
}

#[cfg(feature = "cuda")]
// SAFETY: a struct of C, which the kernel takes by value.
unsafe impl DeviceRepr for Reduce {}

impl Processor {
    pub(crate) fn open() -> Result<Self> {
        #[cfg(feature = "cuda")]
        if Gpu::count().is_ok_and(|gpus| gpus > 0) {
            return Ok(Self::Gpu(Gpu::open(0)?, DoorbellProxy::start()?));
        }
        Ok(Self::Host(host_kernel()?))
    }

    pub(crate) fn name(&self) -> Result<String> {
        match self {
            Self::Host(_) => Ok("the host executor".to_owned()),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu, _) => Ok(gpu.name()?),
        }
    }

    /// Registers memory that holds `bytes`.
    pub(crate) fn register(&self, domain: &ProtectionDomain, bytes: &[u8]) -> Result<Memory> {
        let access = Access::WRITE | Access::REMOTE_WRITE;
        match self {
            Self::Host(_) => {
                let buffer = Buffer::zeroed(bytes.len()).ok_or("the memory cannot be allocated")?;
                buffer.write(0, bytes)?;
                let region = MemoryRegion::register(domain, buffer, access)?;
                Ok(Memory {
                    region,
                    #[cfg(feature = "cuda")]
                    gpu: None,
                })
            }
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu, _) => {
                use std::os::fd::AsFd;
                let memory = GpuMemory::zeroed(gpu, bytes.len())?;
                memory.write(0, bytes)?;
                let (file, address) = (memory.dmabuf()?, memory.device_address());
                let file = file.as_fd();
                let region = MemoryRegion::register_dmabuf(domain, file, 0, bytes.len(), address, access)?;
                Ok(Memory { region, gpu: Some(memory) })
            }
        }
    }

    /// Runs the kernel and waits for it. Its waits have a bound, so it ends. Returns the queue.
    pub(crate) fn run(&self, queue: MappedQueue, reduce: Reduce) -> Result<MappedQueue> {
        match self {
            Self::Host(library) => {
                // SAFETY: the type is the function's in reduce.cu.
                let run = unsafe {
                    *library.get::<unsafe extern "C" fn(*const Reduce, u32, u32, u32) -> bool>(
                        b"reduce_on_host",
                    )?
                };
                std::thread::scope(|scope| {
                    // SAFETY: the queue and the registered memory outlive the scope.
                    let block = |block| unsafe { run(&reduce, block, BLOCKS, THREADS) };
                    let blocks: Vec<_> =
                        (0..BLOCKS).map(|number| scope.spawn(move || block(number))).collect();
                    blocks.into_iter().all(|block| block.join().unwrap_or(false))
                })
                .then_some(queue)
                .ok_or_else(|| "a block of the kernel could not start".into())
            }
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu, proxy) => {
                let context = CudaContext::new(gpu.ordinal())?;
                let (major, minor) = context.compute_capability()?;
                let source = include_str!("reduce.cu");
                let image = compile_source("reduce.cu", source, &format!("sm_{major}{minor}"))?;
                let kernel =
                    context.load_module(cudarc::nvrtc::Ptx::from_binary(image))?.load_function("reduce")?;
                let stream = context.new_stream()?;
                let (queue, _) = GpuQueue::with_doorbell(queue, gpu, DoorbellChoice::Auto, proxy)?;
                let launch = queue.begin_launch();
                let reduce = Reduce { queue: queue.device_address(), ..reduce };
                let config = LaunchConfig {
                    grid_dim: (BLOCKS, 1, 1),
                    block_dim: (THREADS, 1, 1),
                    shared_mem_bytes: 0,
                };
                // SAFETY: the struct is the kernel's argument; the queue and the memory outlive the kernel.
                unsafe { stream.launch_builder(&kernel).arg(&reduce).launch(config) }?;
                stream.synchronize()?;
                drop(launch);
                Ok(queue.unmap()?)
            }
        }
    }
}

impl Memory {
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &self.gpu {
            return Ok(gpu.read(0, bytes)?);
        }
        Ok(self.region.buffer().ok_or("the region owns no memory")?.read(0, bytes)?)
    }
}

/// Compiles `reduce.cu` as C++ and loads it.
fn host_kernel() -> Result<libloading::Library> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = std::env::temp_dir().join(format!("reduce-{}.so", std::process::id()));
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-x", "c++"]);
    compiler.arg("-I").arg(root.join("kernels/include")).arg("-I").arg(root.join("../third_party/efa_gda"));
    compiler.arg(root.join("examples/transport/reduce.cu")).arg(root.join("kernels/host/lanes.cpp"));
    if !compiler.arg("-lpthread").arg("-o").arg(&file).status()?.success() {
        return Err("the C++ compiler rejects reduce.cu".into());
    }
    // SAFETY: the library has no initialisers.
    let library = unsafe { libloading::Library::new(&file) };
    std::fs::remove_file(&file)?;
    Ok(library?)
}
