//! Violations that the software adapter's checker recorded, read through the C interface of its provider
//! (`softefa/include/softefa.h`). libfabric must have loaded the same file, so that both refer to the same
//! adapters.

use std::ffi::{CStr, c_char};
use std::path::Path;

/// The value of `softefa_version()` for the interface used here.
const VERSION: u32 = 2;
/// Bytes of the longest text of a violation that is shown.
const MAX_TEXT: usize = 512;
/// Violations that are shown; more are only counted.
const MAX_SHOWN: usize = 8;

/// The functions of the checker.
#[derive(Debug)]
pub(crate) struct Checker {
    count: unsafe extern "C" fn() -> usize,
    text: unsafe extern "C" fn(usize, *mut c_char, usize) -> usize,
    /// Keeps the functions loaded.
    _library: libloading::Library,
}

impl Checker {
    /// The checker of the provider in the file `provider`.
    pub(crate) fn of(provider: &Path) -> Result<Self, String> {
        // SAFETY: libfabric has loaded this file, so its initialisers do not run again.
        let library = unsafe { libloading::Library::new(provider) }.map_err(|error| error.to_string())?;
        // SAFETY: softefa.h declares it `uint32_t softefa_version(void)`.
        let version: unsafe extern "C" fn() -> u32 = unsafe { function(&library, c"softefa_version")? };
        // SAFETY: takes no argument and returns a constant.
        let version = unsafe { version() };
        if version != VERSION {
            return Err(format!(
                "the provider has version {version} of softefa's interface; version {VERSION} is required: build both \
                 from one release"
            ));
        }
        Ok(Self {
            // SAFETY: softefa.h declares it `size_t softefa_violation_count(void)`.
            count: unsafe { function(&library, c"softefa_violation_count")? },
            // SAFETY: softefa.h declares it `size_t softefa_violation_text(size_t, char *, size_t)`.
            text: unsafe { function(&library, c"softefa_violation_text")? },
            _library: library,
        })
    }

    /// The number of violations.
    pub(crate) fn count(&self) -> usize {
        // SAFETY: may be called from any thread at any time.
        unsafe { (self.count)() }
    }

    /// The texts of the first violations, and the number of the others.
    pub(crate) fn violations(&self) -> Vec<String> {
        let count = self.count();
        let mut all: Vec<String> = (0..count.min(MAX_SHOWN)).map(|index| self.text(index)).collect();
        if count > MAX_SHOWN {
            all.push(format!("and {} more", count - MAX_SHOWN));
        }
        all
    }

    fn text(&self, index: usize) -> String {
        let mut text = [0_u8; MAX_TEXT];
        // SAFETY: the buffer is writable for the length passed; softefa terminates the text within it.
        unsafe { (self.text)(index, text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        text.to_string_lossy().into_owned()
    }
}

/// # Safety
/// `F` must be the type of the function `name`.
unsafe fn function<F: Copy>(library: &libloading::Library, name: &CStr) -> Result<F, String> {
    // SAFETY: the caller guarantees the type.
    let symbol = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
    symbol.map(|symbol| *symbol).map_err(|error| format!("the provider lacks {name:?}: {error}"))
}
