//! A libcuda for machines without a GPU (`fake_cuda.c`), compiled when a test asks for it, and what
//! a kernel would see of its memory. `SOFTEFA_LIBCUDA` leads softefa to it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// The library's file, in a folder that cargo keeps for tests.
pub fn library() -> String {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("libfake_cuda.so");
    let own = folder.join(format!("libfake_cuda-{}.so", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../softefa/tests/fake_cuda/fake_cuda.c");
    let newer = |file: &Path| -> std::io::Result<bool> {
        Ok(file.metadata()?.modified()? > source.metadata()?.modified()?)
    };
    // A test's own process finds what its parent compiled; tests that run beside it make the same.
    if !newer(&file).unwrap_or(false) {
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"];
        let done = Command::new(compiler).args(flags).arg(&own).arg(&source).status().unwrap();
        assert!(done.success(), "{} does not compile", source.display());
        std::fs::rename(&own, &file).unwrap();
    }
    file.to_str().unwrap().to_owned()
}

/// The library that softefa opened.
pub struct FakeCuda(*mut c_void);

impl FakeCuda {
    pub fn load() -> Self {
        let path = CString::new(library()).unwrap();
        // SAFETY: a library of this project.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Self(handle)
    }

    /// # Safety
    /// `F` is the type that fake_cuda.c gives the function.
    unsafe fn get<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: an open handle and a string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        // SAFETY: the caller's contract.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// Memory of the fake GPU, with `bytes` in it; its address cannot be read.
    pub fn memory(&self, bytes: &[u8]) -> u64 {
        // SAFETY: the function's type.
        let address = unsafe { self.get::<extern "C" fn(usize) -> u64>(c"fake_alloc")(bytes.len()) };
        assert_ne!(address, 0);
        self.write(address, bytes);
        address
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        type Poke = unsafe extern "C" fn(u64, *const u8, usize) -> c_int;
        // SAFETY: the function's type, and a slice of that length.
        assert_eq!(unsafe { self.get::<Poke>(c"fake_poke")(address, bytes.as_ptr(), bytes.len()) }, 0);
    }

    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        type Peek = unsafe extern "C" fn(u64, *mut u8, usize) -> c_int;
        let mut bytes = vec![0; length];
        // SAFETY: the function's type, and room for that length.
        assert_eq!(unsafe { self.get::<Peek>(c"fake_peek")(address, bytes.as_mut_ptr(), length) }, 0);
        bytes
    }

    /// Copies answer `code` from now on; 0 makes them work again.
    pub fn fail(&self, code: c_int) {
        // SAFETY: the function's type.
        unsafe { self.get::<extern "C" fn(c_int)>(c"fake_fail")(code) }
    }

    /// Copies do not end while this is set.
    pub fn hang(&self, yes: bool) {
        // SAFETY: the function's type.
        unsafe { self.get::<extern "C" fn(c_int)>(c"fake_hang")(yes.into()) }
    }

    /// Who asks whether a copy has ended is answered `code`, which says nothing of the copy; 0 ends that.
    pub fn answer(&self, code: c_int) {
        // SAFETY: the function's type.
        unsafe { self.get::<extern "C" fn(c_int)>(c"fake_answer")(code) }
    }

    /// Some thread captures a graph in the global mode while this is set.
    pub fn capture(&self, yes: bool) {
        // SAFETY: the function's type.
        unsafe { self.get::<extern "C" fn(c_int)>(c"fake_capture")(yes.into()) }
    }

    /// This thread's mode of capture: 0, the global one, where nobody changed it.
    pub fn mode(&self) -> c_int {
        // SAFETY: the function's type.
        unsafe { self.get::<extern "C" fn() -> c_int>(c"fake_mode")() }
    }
}

/// A file that the processor cannot map, as a GPU's dmabuf.
pub fn unmappable() -> c_int {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written; they stay open for the test.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends[0]
}
