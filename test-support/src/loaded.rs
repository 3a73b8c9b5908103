//! C functions of a shared library, which stays loaded.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[derive(Debug)]
pub(crate) struct Loaded(*mut c_void);

impl Loaded {
    /// Loads a library of this project, whose initialisers are sound, unless this process has loaded it already.
    pub(crate) fn open(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the library's initialisers are sound; it stays loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{} cannot be loaded: cargo builds it", path.display());
        Self(handle)
    }

    /// # Safety
    /// `F` must be the pointer type of the function.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the handle is open and the name is a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "the library has no {name:?}");
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: both are pointers; the caller guarantees the type.
        unsafe { std::mem::transmute_copy(&address) }
    }
}
