//! Where the kernel of `reduce.cu` runs: the first GPU, or the host executor.

use std::path::Path;
use std::process::Command;

#[cfg(feature = "cuda")]
use cudarc::driver::{CudaContext, DeviceRepr, LaunchConfig, PushKernelArg};
#[cfg(feature = "cuda")]
use efa_gda::gpu::{Gpu, compile_source};
use efa_gda::memory::Access;
use efa_gda::queue::Region;
use efa_gda::{Options, Queue};

use super::{BLOCKS, Reduce, Result, THREADS};

pub(crate) enum Processor {
    Host(libloading::Library),
    #[cfg(feature = "cuda")]
    Gpu,
}

#[cfg(feature = "cuda")]
// SAFETY: a struct of C, which the kernel takes by value.
unsafe impl DeviceRepr for Reduce {}

impl Processor {
    pub(crate) fn open() -> Result<Self> {
        #[cfg(feature = "cuda")]
        if Gpu::count().is_ok_and(|gpus| gpus > 0) {
            return Ok(Self::Gpu);
        }
        Ok(Self::Host(host_kernel()?))
    }

    /// What a queue for this processor is opened with.
    pub(crate) fn options(&self) -> Options {
        match self {
            Self::Host(_) => Options::new(),
            #[cfg(feature = "cuda")]
            Self::Gpu => Options::new().gpu(0),
        }
    }

    pub(crate) fn name(&self) -> Result<String> {
        match self {
            Self::Host(_) => Ok("the host executor".to_owned()),
            #[cfg(feature = "cuda")]
            Self::Gpu => Ok(Gpu::open(0)?.name()?),
        }
    }

    /// Allocates registered memory of the processor.
    pub(crate) fn allocate(&self, queue: &Queue, bytes: usize) -> Result<Region> {
        let access = Access::WRITE | Access::REMOTE_WRITE;
        match self {
            Self::Host(_) => Ok(queue.allocate(bytes, access)?),
            #[cfg(feature = "cuda")]
            Self::Gpu => Ok(queue.allocate_on_gpu(bytes, access)?),
        }
    }

    /// Runs the kernel and waits for it. Its waits have a bound, so it ends.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(unused_variables, reason = "only a GPU needs a guard of the queue")
    )]
    pub(crate) fn run(&self, queue: &Queue, reduce: Reduce) -> Result<()> {
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
                .then_some(())
                .ok_or_else(|| "a block of the kernel could not start".into())
            }
            #[cfg(feature = "cuda")]
            Self::Gpu => {
                let context = CudaContext::new(0)?;
                let (major, minor) = context.compute_capability()?;
                let source = include_str!("reduce.cu");
                let image = compile_source("reduce.cu", source, &format!("sm_{major}{minor}"))?;
                let kernel =
                    context.load_module(cudarc::nvrtc::Ptx::from_binary(image))?.load_function("reduce")?;
                let stream = context.new_stream()?;
                let _launch = queue.begin_launch();
                let config = LaunchConfig {
                    grid_dim: (BLOCKS, 1, 1),
                    block_dim: (THREADS, 1, 1),
                    shared_mem_bytes: 0,
                };
                // SAFETY: the struct is the kernel's argument; the queue and the memory outlive the kernel.
                unsafe { stream.launch_builder(&kernel).arg(&reduce).launch(config) }?;
                Ok(stream.synchronize()?)
            }
        }
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
