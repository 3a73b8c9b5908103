//! The pretended CUDA driver (`cuda/driver.cpp`): one GPU without hardware, whose kernels the host executor runs.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

use crate::loaded::Loaded;

/// A folder for LD_LIBRARY_PATH with the driver and NVRTC. It serves as XDG_CACHE_HOME as well, so that kernels of the
/// pretended compiler stay out of the user's cache.
pub const FOLDER: &str = env!("PRETENDED_CUDA");
/// The driver's file, for programs that take a path.
pub const LIBRARY: &str = concat!(env!("PRETENDED_CUDA"), "/libcuda.so.1");
/// The bytes that the driver accepts as the image of its kernels.
pub const IMAGE: &[u8] = b"\x7fELF of a pretended GPU\0";
/// Variables of a process whose CUDA driver is the pretended one.
pub const VARIABLES: [(&str, &str); 2] = [("LD_LIBRARY_PATH", FOLDER), ("XDG_CACHE_HOME", FOLDER)];

/// The driver that this process has loaded.
#[derive(Debug)]
pub struct Driver(Loaded);

impl Driver {
    /// Loads the driver, unless this process has loaded it already.
    pub fn loaded() -> Self {
        Self(Loaded::open(Path::new(LIBRARY)))
    }

    /// Makes `call` return `code` without effect; code 0 restores it.
    pub fn set_result(&self, call: &CStr, code: c_int) {
        // SAFETY: void (const char *, int) in driver.cpp, and a C string.
        unsafe {
            self.0.function::<unsafe extern "C" fn(*const c_char, c_int)>(c"pretend_gpu_result")(
                call.as_ptr(),
                code,
            );
        }
    }

    /// Makes copies of unreadable memory return `code`; code 0 restores them.
    pub fn fail_copies(&self, code: c_int) {
        self.set_result(c"copy", code);
    }

    /// While set, copies of unreadable memory do not end.
    pub fn hang_copies(&self, hang: bool) {
        // SAFETY: void (bool) in driver.cpp.
        unsafe { self.0.function::<unsafe extern "C" fn(bool)>(c"pretend_gpu_hang")(hang) }
    }

    /// While set, another thread captures a graph in the mode that affects all threads.
    pub fn capture(&self, begun: bool) {
        // SAFETY: void (bool) in driver.cpp.
        unsafe { self.0.function::<unsafe extern "C" fn(bool)>(c"pretend_gpu_capture")(begun) }
    }

    /// This thread's capture mode; 0, the global mode, unless the thread changed it.
    pub fn capture_mode(&self) -> c_int {
        // SAFETY: int (void) in driver.cpp.
        unsafe { self.0.function::<unsafe extern "C" fn() -> c_int>(c"pretend_gpu_capture_mode")() }
    }

    /// The number of registered ranges of pages.
    pub fn registered(&self) -> u32 {
        // SAFETY: uint32_t (void) in driver.cpp.
        unsafe { self.0.function::<unsafe extern "C" fn() -> u32>(c"pretend_gpu_registered")() }
    }

    /// Allocates GPU memory that holds `bytes` and that the processor cannot read. It is never freed.
    pub fn memory(&self, bytes: &[u8]) -> u64 {
        // SAFETY: uint64_t (size_t) in driver.cpp.
        let address = unsafe {
            self.0.function::<unsafe extern "C" fn(usize) -> u64>(c"pretend_gpu_alloc")(bytes.len())
        };
        assert_ne!(address, 0, "no memory for {} bytes", bytes.len());
        self.write(address, bytes);
        address
    }

    /// Writes to unreadable memory, as a kernel would.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        type Write = unsafe extern "C" fn(u64, *const u8, usize) -> bool;
        // SAFETY: the function's type, and a slice of that length.
        let written =
            unsafe { self.0.function::<Write>(c"pretend_gpu_write")(address, bytes.as_ptr(), bytes.len()) };
        assert!(written, "{} bytes at {address:#x} are not unreadable memory", bytes.len());
    }

    /// Reads unreadable memory, as a kernel would.
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        type Read = unsafe extern "C" fn(u64, *mut u8, usize) -> bool;
        let mut bytes = vec![0; length];
        // SAFETY: the function's type, and memory of that length.
        let read =
            unsafe { self.0.function::<Read>(c"pretend_gpu_read")(address, bytes.as_mut_ptr(), length) };
        assert!(read, "{length} bytes at {address:#x} are not unreadable memory");
        bytes
    }
}

/// Opens a descriptor that cannot be mapped, like that of a GPU's dmabuf. It stays open.
pub fn unmappable() -> c_int {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends[0]
}
