//! NVRTC, which compiles sources of CUDA at run time.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use super::include_options;

type Create = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type GetSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type GetBytes = unsafe extern "C" fn(*mut c_void, *mut u8) -> c_int;
type Destroy = unsafe extern "C" fn(*mut *mut c_void) -> c_int;

/// NVRTC, of which these tests call a few functions (nvrtc.h).
pub(crate) struct Nvrtc {
    library: libloading::Library,
}

impl Nvrtc {
    /// Loads the library of a toolkit.
    pub(crate) fn load(toolkit: &Path) -> Self {
        let path = toolkit.join("lib/libnvrtc.so.13");
        // SAFETY: NVRTC's initialisers have no preconditions.
        let library = unsafe { libloading::Library::new(&path) };
        Self { library: library.unwrap_or_else(|error| panic!("{}: {error}", path.display())) }
    }

    /// # Safety
    ///
    /// `T` must be the function's type in nvrtc.h.
    unsafe fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the caller guarantees the type.
        *unsafe { self.library.get::<T>(name.as_bytes()) }.expect("NVRTC has the function")
    }

    /// Returns the cubin or NVRTC's error code, and the log.
    pub(crate) fn compile(
        &self,
        text: &str,
        name: &str,
        architecture: &str,
    ) -> (Result<Vec<u8>, c_int>, String) {
        let text = CString::new(text).expect("no zero bytes in a source");
        let name = CString::new(name).expect("no zero bytes in a name");
        let options: Vec<CString> = [format!("--gpu-architecture={architecture}"), "-std=c++17".to_owned()]
            .into_iter()
            .chain(include_options())
            .map(|option| CString::new(option).expect("no zero bytes in an option"))
            .collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = null_mut();
        // SAFETY: the types are those of nvrtc.h, the strings and the pointer array outlive the calls, and the program
        // is destroyed once, after its last use.
        unsafe {
            let create: Create = self.function("nvrtcCreateProgram");
            let compile: Compile = self.function("nvrtcCompileProgram");
            let destroy: Destroy = self.function("nvrtcDestroyProgram");
            assert_eq!(create(&raw mut program, text.as_ptr(), name.as_ptr(), 0, null(), null()), 0);
            let code = compile(program, pointers.len() as c_int, pointers.as_ptr());
            let log = self.bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog");
            let cubin = match code {
                0 => Ok(self.bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")),
                code => Err(code),
            };
            destroy(&raw mut program);
            (cubin, String::from_utf8_lossy(&log).into_owned())
        }
    }

    /// # Safety
    ///
    /// `program` must be a live program, and the names a size and a get function of nvrtc.h.
    unsafe fn bytes(&self, program: *mut c_void, size: &str, get: &str) -> Vec<u8> {
        let mut length = 0;
        // SAFETY: the caller guarantees the functions, and `bytes` has the length that the size function returned.
        unsafe {
            assert_eq!(self.function::<GetSize>(size)(program, &raw mut length), 0);
            let mut bytes = vec![0; length];
            assert_eq!(self.function::<GetBytes>(get)(program, bytes.as_mut_ptr()), 0);
            bytes
        }
    }
}
