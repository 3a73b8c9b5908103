//! Functions of a loaded library, by name and symbol version.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};

/// A library that stays loaded until the process ends.
pub(crate) struct Symbols {
    handle: *mut c_void,
    /// The file that was loaded.
    pub(crate) path: PathBuf,
}

impl Symbols {
    /// Loads `file`, or returns the dynamic loader's message. The loader searches for a name without a slash.
    ///
    /// # Safety
    /// The library's initialisers must be sound.
    pub(crate) unsafe fn open(file: &Path) -> Result<Self, String> {
        // RTLD_LOCAL: symbols of several copies in one process must not mix.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: the caller guarantees that the library's initialisers are sound.
        let library = unsafe { libloading::os::unix::Library::open(Some(file), flags) }
            .map_err(|error| error.to_string())?;
        let handle = library.into_raw();
        Ok(Self { handle, path: loaded_path(handle).unwrap_or_else(|| file.to_owned()) })
    }

    /// Returns the function `name` at exactly `version`; None if the library does not export it.
    ///
    /// # Safety
    /// `F` must be the function pointer type of that symbol.
    pub(crate) unsafe fn find<F: Copy>(&self, name: &str, version: &str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address(name, version);
        // SAFETY: the sizes are equal (asserted), the address is not null, and the caller guarantees F.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// Whether the library exports `name` at exactly `version`.
    pub(crate) fn exports(&self, name: &str, version: &str) -> bool {
        !self.address(name, version).is_null()
    }

    fn address(&self, name: &str, version: &str) -> *mut c_void {
        let name = CString::new(name).expect("symbol names hold no zero byte");
        let tag = CString::new(version).expect("symbol versions hold no zero byte");
        // SAFETY: the handle stays open until the process ends; both strings end in a zero byte.
        unsafe { libc::dlvsym(self.handle, name.as_ptr(), tag.as_ptr()) }
    }
}

/// Returns the path of the file behind `handle`; None if the loader does not report it. The loader may have found
/// another file than was named.
fn loaded_path(handle: *mut c_void) -> Option<PathBuf> {
    let mut origin = std::ptr::null_mut::<LinkMap>();
    // SAFETY: the handle is open; RTLD_DI_LINKMAP writes one pointer.
    let code = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut origin).cast()) };
    if code != 0 || origin.is_null() {
        return None;
    }
    // SAFETY: `origin` is the loader's record of an open library; `LinkMap` is its beginning as <link.h> states it.
    let name = unsafe { (*origin).name };
    // SAFETY: the loader's string, if there is one, lives as long as the library is loaded.
    (!name.is_null()).then(|| PathBuf::from(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()))
}

/// The beginning of `struct link_map` of <link.h>.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const c_char,
}
