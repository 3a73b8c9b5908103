//! Opening libfabric at run time.
//!
//! libfabric exports its functions under several symbol versions, one for each layout that
//! `fi_info` has had. This module binds the oldest that every release since 1.17 still serves,
//! FABRIC_1.3 for the `fi_info` functions and FABRIC_1.1 for `fi_fabric`: their results carry the
//! library's own layout, whose beginning is the one declared in [`crate::fi`].

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use crate::fi;

/// Names the libfabric to load, in place of the loader's search and the usual places.
pub const LIBFABRIC_PATH: &str = "LIBFABRIC_PATH";

/// The library's name on the loader's path.
const SONAME: &str = "libfabric.so.1";

/// Where the EFA installer puts its own copy, tried when the loader finds none.
const INSTALLER_PLACES: &[&str] =
    &["/opt/amazon/efa/lib/libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1"];

/// The oldest libfabric this project has run on.
pub const OLDEST_SUPPORTED: u32 = fi::fi_version(1, 17);

/// Why libfabric cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file with that name could be opened.
    #[error("libfabric cannot be loaded: {}", .attempts.join("; "))]
    NotFound {
        /// What was tried, and the loader's words for each.
        attempts: Vec<String>,
    },
    /// The file was loaded, but lacks a function.
    #[error("{path} has no {symbol}@{version}: it is not a libfabric of release 1.17 or newer")]
    MissingSymbol {
        /// The library.
        path: PathBuf,
        /// The function looked for.
        symbol: &'static str,
        /// Its symbol version.
        version: &'static str,
    },
    /// The library is older than any this project knows.
    #[error("{path} is libfabric {}.{}; 1.17 or newer is needed", .version >> 16, .version & 0xffff)]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version, as `fi_version()` packs it.
        version: u32,
    },
}

/// libfabric, loaded. Stays loaded while this value lives; providers that it has loaded stay in the
/// process for good.
pub struct Libfabric {
    path: PathBuf,
    version: u32,
    getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi::fi_info,
        *mut *mut fi::fi_info,
    ) -> c_int,
    freeinfo: unsafe extern "C" fn(*mut fi::fi_info),
    dupinfo: unsafe extern "C" fn(*const fi::fi_info) -> *mut fi::fi_info,
    fabric: unsafe extern "C" fn(*mut fi::fi_fabric_attr, *mut *mut fi::fid_fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl std::fmt::Debug for Libfabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Libfabric").field("path", &self.path).field("version", &self.version).finish()
    }
}

impl Libfabric {
    /// Loads the libfabric that `LIBFABRIC_PATH` names, or else the one that the dynamic loader
    /// finds, or else the EFA installer's.
    ///
    /// # Errors
    /// [`LoadError`] says what was tried and what was missing.
    pub fn load() -> Result<Self, LoadError> {
        // Set and empty is not set: an empty name would be this program itself.
        if let Some(path) = std::env::var_os(LIBFABRIC_PATH).filter(|path| !path.is_empty()) {
            // SAFETY: whoever sets the environment answers for what is loaded, as with LD_PRELOAD.
            return unsafe { Self::load_from(Path::new(&path)) };
        }
        let mut attempts = Vec::new();
        for candidate in std::iter::once(SONAME).chain(INSTALLER_PLACES.iter().copied()) {
            // SAFETY: whoever set up this machine answers for the libfabric on the loader's path and for the
            // installer's.
            match unsafe { Self::load_from(Path::new(candidate)) } {
                Err(LoadError::NotFound { attempts: failed }) => attempts.extend(failed),
                done => return done,
            }
        }
        Err(LoadError::NotFound { attempts })
    }

    /// Loads the libfabric in the file `path`; a name without a slash is searched by the loader.
    ///
    /// # Safety
    /// Loading runs the file's initialisers, and what it exports under libfabric's names is called: it
    /// is a libfabric, with sound ones.
    ///
    /// # Errors
    /// [`LoadError`] says what was missing.
    pub unsafe fn load_from(path: &Path) -> Result<Self, LoadError> {
        // RTLD_LOCAL: a second libfabric in the process keeps its own symbols.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: the caller vouches for the library's initialisers.
        let library = unsafe { libloading::os::unix::Library::open(Some(path), flags) }
            .map_err(|error| LoadError::NotFound { attempts: vec![error.to_string()] })?;
        // Never closed: libfabric starts threads and registers exit handlers that point into itself.
        let handle = library.into_raw();
        let symbols = Symbols { handle, path };
        let fi_version: unsafe extern "C" fn() -> u32 =
            // SAFETY: libfabric.map gives `fi_version` this signature since FABRIC_1.0.
            unsafe { symbols.get("fi_version", "FABRIC_1.0")? };
        // SAFETY: takes no argument and reads a constant.
        let version = unsafe { fi_version() };
        let path = symbols.loaded_path(fi_version as *const c_void);
        if version < OLDEST_SUPPORTED {
            return Err(LoadError::TooOld { path, version });
        }
        Ok(Self {
            version,
            // SAFETY: libfabric.map gives this symbol, at this version, the signature of the field.
            getinfo: unsafe { symbols.get("fi_getinfo", "FABRIC_1.3")? },
            // SAFETY: as above.
            freeinfo: unsafe { symbols.get("fi_freeinfo", "FABRIC_1.3")? },
            // SAFETY: as above.
            dupinfo: unsafe { symbols.get("fi_dupinfo", "FABRIC_1.3")? },
            // SAFETY: as above.
            fabric: unsafe { symbols.get("fi_fabric", "FABRIC_1.1")? },
            // SAFETY: as above.
            strerror: unsafe { symbols.get("fi_strerror", "FABRIC_1.0")? },
            path,
        })
    }

    /// The file that was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's version, as `fi_version()` packs it: major in the high half.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The API version to request: the lower of the library's and 2.6, the newest that
    /// [`crate::fi`] describes.
    pub fn api_version(&self) -> u32 {
        self.version.min(fi::fi_version(fi::FI_MAJOR_VERSION, fi::FI_MINOR_VERSION))
    }

    /// `fi_getinfo` for `hints`, at [`Self::api_version`]. The list that `info` receives is freed
    /// with [`Self::freeinfo`].
    ///
    /// # Safety
    /// `hints` is null or came from [`Self::dupinfo`] of this library; `info` can be written.
    pub unsafe fn getinfo(&self, hints: *const fi::fi_info, info: *mut *mut fi::fi_info) -> c_int {
        // SAFETY: the caller vouches for `hints` and `info`; node and service may be null.
        unsafe { (self.getinfo)(self.api_version(), std::ptr::null(), std::ptr::null(), 0, hints, info) }
    }

    /// Frees a list that [`Self::getinfo`] or [`Self::dupinfo`] returned.
    ///
    /// # Safety
    /// `info` came from this library and is not used again.
    pub unsafe fn freeinfo(&self, info: *mut fi::fi_info) {
        // SAFETY: passed on to the caller.
        unsafe { (self.freeinfo)(info) }
    }

    /// Copies `info`, or makes an empty one (with all its attributes) from null. Null when memory
    /// is short.
    ///
    /// # Safety
    /// `info` is null or came from this library.
    pub unsafe fn dupinfo(&self, info: *const fi::fi_info) -> *mut fi::fi_info {
        // SAFETY: passed on to the caller.
        unsafe { (self.dupinfo)(info) }
    }

    /// `fi_fabric`.
    ///
    /// # Safety
    /// `attr` is the `fabric_attr` of an info of this library; `fabric` can be written.
    pub unsafe fn fabric(&self, attr: *mut fi::fi_fabric_attr, fabric: *mut *mut fi::fid_fabric) -> c_int {
        // SAFETY: passed on to the caller.
        unsafe { (self.fabric)(attr, fabric, std::ptr::null_mut()) }
    }

    /// libfabric's words for an error: `errnum` as a call returned it, negative or positive.
    pub fn strerror(&self, errnum: i32) -> String {
        // SAFETY: takes any number; returns a static string or null.
        let text = unsafe { (self.strerror)(errnum.wrapping_abs()) };
        if text.is_null() {
            return format!("error {errnum}");
        }
        // SAFETY: fi_strerror returns a string with static lifetime, ended by a zero byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A loaded library in which versioned symbols are looked up.
struct Symbols<'a> {
    handle: *mut c_void,
    path: &'a Path,
}

impl Symbols<'_> {
    /// The function `symbol` at exactly `version`.
    ///
    /// # Safety
    /// `F` is the function pointer type of that symbol.
    unsafe fn get<F: Copy>(&self, symbol: &'static str, version: &'static str) -> Result<F, LoadError> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let name = CString::new(symbol).expect("symbol names hold no zero byte");
        let tag = CString::new(version).expect("symbol versions hold no zero byte");
        // SAFETY: the handle is open for the life of the process; both strings end in a zero byte.
        let address = unsafe { libc::dlvsym(self.handle, name.as_ptr(), tag.as_ptr()) };
        if address.is_null() {
            return Err(LoadError::MissingSymbol { path: self.path.to_owned(), symbol, version });
        }
        // SAFETY: sizes are equal (asserted), the address is not null, and the caller vouches for F.
        Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// The file that holds `address`, which the loader may have found under another name.
    fn loaded_path(&self, address: *const c_void) -> PathBuf {
        // SAFETY: Dl_info is a plain C struct for which all zeroes is a value.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: any address may be asked for; `info` can be written.
        let found = unsafe { libc::dladdr(address, &mut info) };
        if found == 0 || info.dli_fname.is_null() {
            return self.path.to_owned();
        }
        // SAFETY: dladdr gave a string of the loader's, which lives while the library is loaded.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        PathBuf::from(name.to_string_lossy().into_owned())
    }
}
