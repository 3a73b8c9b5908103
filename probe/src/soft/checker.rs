//! What the software adapter's strict checker found, through the C interface of its provider
//! (`softefa/include/softefa.h`). The provider is the file that libfabric has loaded already, so
//! that both speak of the same adapters.

use std::ffi::{CStr, c_char};
use std::path::Path;

/// What `softefa_version()` returns for the interface used here.
const VERSION: u32 = 2;
/// Longest text of a violation that is shown.
const LONGEST: usize = 512;
/// More violations than this are counted, not shown.
const MOST_SHOWN: usize = 8;

/// The checker's functions.
#[derive(Debug)]
pub(crate) struct Checker {
    count: unsafe extern "C" fn() -> usize,
    text: unsafe extern "C" fn(usize, *mut c_char, usize) -> usize,
    /// Keeps the functions where they are.
    _library: libloading::Library,
}

impl Checker {
    /// The checker of the provider in the file `provider`.
    pub(crate) fn of(provider: &Path) -> Result<Self, String> {
        // SAFETY: libfabric loaded the same file before; its initialisers do not run again.
        let library = unsafe { libloading::Library::new(provider) }.map_err(|error| error.to_string())?;
        // SAFETY: softefa.h declares it `uint32_t softefa_version(void)`.
        let version: unsafe extern "C" fn() -> u32 = unsafe { function(&library, c"softefa_version")? };
        // SAFETY: takes no argument and returns a constant.
        let version = unsafe { version() };
        if version != VERSION {
            return Err(format!("softefa's interface is version {version}; {VERSION} is needed"));
        }
        Ok(Self {
            // SAFETY: softefa.h declares it `size_t softefa_violation_count(void)`.
            count: unsafe { function(&library, c"softefa_violation_count")? },
            // SAFETY: softefa.h declares it `size_t softefa_violation_text(size_t, char *, size_t)`.
            text: unsafe { function(&library, c"softefa_violation_text")? },
            _library: library,
        })
    }

    /// How many rules were broken.
    pub(crate) fn count(&self) -> usize {
        // SAFETY: may be called from any thread at any time.
        unsafe { (self.count)() }
    }

    /// The rules that were broken, the first few in words.
    pub(crate) fn violations(&self) -> Vec<String> {
        let count = self.count();
        let mut all: Vec<String> = (0..count.min(MOST_SHOWN)).map(|index| self.words(index)).collect();
        if count > MOST_SHOWN {
            all.push(format!("and {} more", count - MOST_SHOWN));
        }
        all
    }

    fn words(&self, index: usize) -> String {
        let mut text = [0_u8; LONGEST];
        // SAFETY: the buffer can be written for the length given; the text is ended within it.
        unsafe { (self.text)(index, text.as_mut_ptr().cast(), text.len()) };
        let words = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        words.to_string_lossy().into_owned()
    }
}

/// # Safety
/// `F` is the function's type.
unsafe fn function<F: Copy>(library: &libloading::Library, name: &CStr) -> Result<F, String> {
    // SAFETY: passed on to the caller.
    let symbol = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
    symbol.map(|symbol| *symbol).map_err(|error| format!("the provider lacks {name:?}: {error}"))
}
