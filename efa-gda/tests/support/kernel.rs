//! Kernels that tests compile for the first GPU.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream};
use cudarc::nvrtc::Ptx;
use efa_gda::gpu::compile_source;

/// A kernel, and a stream on which to launch it.
pub(crate) struct Kernel {
    pub(crate) function: CudaFunction,
    pub(crate) stream: Arc<CudaStream>,
}

impl Kernel {
    /// Compiles `source` for the first GPU and loads its kernel `name`.
    pub(crate) fn compile(source: &str, name: &str) -> Self {
        Self::load(Self::image(source, name), name)
    }

    /// Compiles `source` for the first GPU.
    pub(crate) fn image(source: &str, name: &str) -> Vec<u8> {
        let context = CudaContext::new(0).unwrap();
        let (major, minor) = context.compute_capability().unwrap();
        // NVRTC gets only the headers of the device library, so the test header is pasted in.
        let source = source.replace("#include \"load.h\"", include_str!("../../../kernels/test/load.h"));
        compile_source(&format!("{name}.cu"), &source, &format!("sm_{major}{minor}")).unwrap()
    }

    /// Loads the kernel `name` of an image.
    pub(crate) fn load(image: Vec<u8>, name: &str) -> Self {
        let context = CudaContext::new(0).unwrap();
        let module = context.load_module(Ptx::from_binary(image)).unwrap();
        Self { function: module.load_function(name).unwrap(), stream: context.new_stream().unwrap() }
    }
}
