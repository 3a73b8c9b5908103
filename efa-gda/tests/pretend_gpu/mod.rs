//! A libcuda that pretends (`cuda.cpp` beside this), in a directory for the loader to find.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

use std::ffi::{CStr, c_char};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What the pretended driver takes for the image of its kernels.
pub(crate) const IMAGE: &[u8] = b"\x7fELF of a pretended GPU\0";

/// A directory for LD_LIBRARY_PATH, compiled once a process. None, and why on stdout, where no C++ compiler
/// is.
pub(crate) fn folder() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| Some(build()?.to_str().unwrap().to_owned())).as_deref();
    if built.is_none() {
        println!("SKIPPED: no C++ compiler");
    }
    built
}

fn build() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pretend-gpu-{}", env!("CARGO_CRATE_NAME")));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let library = folder.join("libpretend.so");
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library);
    command.args(["-Ikernels/include", "-Ithird_party/efa_gda", "efa-gda/tests/pretend_gpu/cuda.cpp"]);
    command.args(["kernels/host/executor.cpp", "kernels/host/lanes.cpp", "kernels/test/load_host.cpp"]);
    let status = command.current_dir(root).status().ok()?;
    assert!(status.success(), "the pretended CUDA driver does not compile");
    for name in ["libcuda.so.1", "libcuda.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"] {
        symlink(&library, folder.join(name)).unwrap();
    }
    Some(folder)
}

/// What tests alone ask of the driver that pretends, in a process that has loaded it.
pub(crate) struct Driver(libloading::Library);

impl Driver {
    pub(crate) fn loaded() -> Self {
        // SAFETY: it is loaded already, and has no initialisers.
        Self(unsafe { libloading::Library::new("libcuda.so.1") }.unwrap())
    }

    /// Has `call` answer `code`; 0 ends that.
    pub(crate) fn answer(&self, call: &CStr, code: i32) {
        // SAFETY: the function in `cuda.cpp` has this type.
        unsafe { self.0.get::<extern "C" fn(*const c_char, i32)>(b"pretend_gpu_answer") }.unwrap()(
            call.as_ptr(),
            code,
        );
    }

    /// Some other thread captures a graph, in the mode that all threads notice.
    pub(crate) fn capture(&self, begun: bool) {
        // SAFETY: as above.
        unsafe { self.0.get::<extern "C" fn(bool)>(b"pretend_gpu_capture") }.unwrap()(begun);
    }

    /// How often somebody began to wait for the context.
    pub(crate) fn synchronizations(&self) -> u32 {
        self.count(b"pretend_gpu_synchronizations")
    }

    /// Blocks of pages that are registered.
    pub(crate) fn registered(&self) -> u32 {
        self.count(b"pretend_gpu_registered")
    }

    fn count(&self, name: &[u8]) -> u32 {
        // SAFETY: as above.
        unsafe { self.0.get::<extern "C" fn() -> u32>(name) }.unwrap()()
    }
}
