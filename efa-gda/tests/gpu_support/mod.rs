//! Kernels of a test's own on the first GPU, compiled there from sources that travel in the test.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

macro_rules! headers {
    ($($name:literal),*) => {
        &[$((concat!("efa_gda/", $name), include_str!(concat!("../../../kernels/include/efa_gda/", $name)))),*]
    };
}

/// The device library.
const HEADERS: &[(&str, &str)] = headers![
    "cq.h",
    "group.h",
    "host_executor.h",
    "platform.h",
    "post.h",
    "put.h",
    "queue.h",
    "rq.h",
    "sq.h",
    "ticket_lock.h",
    "wqe.h"
];
/// Arguments of the load generator (`kernels/test/load.cu`).
const LOAD: (&str, &str) = ("load.h", include_str!("../../../kernels/test/load.h"));
const INTERFACE: (&str, &str) = ("efa_io_defs.h", include_str!("../../../third_party/efa_gda/efa_io_defs.h"));

/// A kernel, and a stream of its own on which to launch it.
pub(crate) struct Kernel {
    pub(crate) function: CudaFunction,
    pub(crate) stream: Arc<CudaStream>,
}

impl Kernel {
    /// Compiles `source` and finds the kernel `name` in it. The context is the process's one.
    pub(crate) fn compile(source: &str, name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("efa-gda-kernel-{}-{name}", std::process::id()));
        std::fs::create_dir_all(folder.join("efa_gda")).unwrap();
        for (header, text) in HEADERS.iter().chain([&LOAD, &INTERFACE]) {
            std::fs::write(folder.join(header), text).unwrap();
        }
        let context = CudaContext::new(0).unwrap();
        let (major, minor) = context.compute_capability().unwrap();
        let options = CompileOptions {
            include_paths: vec![folder.to_str().unwrap().to_owned()],
            options: vec![format!("--gpu-architecture=compute_{major}{minor}"), "--std=c++17".to_owned()],
            ..CompileOptions::default()
        };
        let compiled = compile_ptx_with_opts(source, options).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let function = context.load_module(compiled).unwrap().load_function(name).unwrap();
        Self { function, stream: context.new_stream().unwrap() }
    }
}
