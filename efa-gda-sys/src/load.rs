//! Loading libfabric at run time.
//!
//! libfabric exports its functions under several symbol versions, one for each layout that `fi_info` has had. Functions
//! of an older version cut hints to their layout, and all results have the loaded library's layout, which begins with
//! that of any older release. This module therefore binds the `fi_info` functions at the newest version whose layout
//! [`crate::fi`] declares and the library exports ([`INFO_VERSIONS`]), and `fi_fabric` at FABRIC_1.1, its only layout.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use crate::fi;

/// Environment variable with the libfabric file to load in place of the loader's search and [the installer's
/// paths](Libfabric::load).
pub const LIBFABRIC_PATH: &str = "LIBFABRIC_PATH";

/// The library's name for the dynamic loader.
const SONAME: &str = "libfabric.so.1";

/// Paths of the EFA installer's libfabric, tried when the loader finds none.
const INSTALLER_PATHS: &[&str] =
    &["/opt/amazon/efa/lib/libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1"];

/// The symbol versions of `fi_getinfo`, `fi_freeinfo` and `fi_dupinfo`, newest first: FABRIC_1.10 came with libfabric
/// 2.7, 1.9 with 2.5, 1.8 with 2.0 and 1.7 with 1.20; 1.3 is in every release since 1.17 (libfabric.map.in).
pub const INFO_VERSIONS: [&str; 5] = ["FABRIC_1.10", "FABRIC_1.9", "FABRIC_1.8", "FABRIC_1.7", "FABRIC_1.3"];

/// The oldest libfabric that this project has run on.
pub const OLDEST_SUPPORTED: u32 = fi::fi_version(1, 17);

/// Why libfabric cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file could be opened as libfabric.
    #[error(
        "libfabric cannot be loaded: {}; install it (Debian: libfabric1) or set {LIBFABRIC_PATH} to its file",
        .attempts.join("; ")
    )]
    NotFound {
        /// The loader's message for each file that was tried.
        attempts: Vec<String>,
    },
    /// The file that `LIBFABRIC_PATH` names cannot be used.
    #[error(
        "{LIBFABRIC_PATH}={} names no libfabric that can be loaded: {reason}; set it to the file of libfabric 1.17 or \
         newer (libfabric.so.1), or unset it to load the one that the loader finds",
        .path.display()
    )]
    Named {
        /// The variable's value.
        path: PathBuf,
        /// The loader's message, or what the file lacks.
        reason: String,
    },
    /// The loaded file lacks a function.
    #[error("{path} does not export {symbol}@{version}: libfabric 1.17 or newer is needed")]
    MissingSymbol {
        /// The library's file.
        path: PathBuf,
        /// The missing function.
        symbol: &'static str,
        /// Its symbol version.
        version: &'static str,
    },
    /// The library is older than [`OLDEST_SUPPORTED`].
    #[error("{path} is libfabric {}.{}; 1.17 or newer is needed", .version >> 16, .version & 0xffff)]
    TooOld {
        /// The library's file.
        path: PathBuf,
        /// Its version, as `fi_version()` packs it.
        version: u32,
    },
}

impl LoadError {
    /// The error for the file that [`LIBFABRIC_PATH`] names.
    fn of_named(self, path: PathBuf) -> Self {
        let reason = match self {
            Self::NotFound { attempts } => attempts.join("; "),
            error => error.to_string(),
        };
        Self::Named { path, reason }
    }
}

/// A loaded libfabric. It stays loaded until the process ends, because it starts threads and registers exit handlers
/// that point into itself.
pub struct Libfabric {
    path: PathBuf,
    version: u32,
    info_version: &'static str,
    functions: Functions,
}

/// libfabric's functions.
pub(crate) struct Functions {
    pub(crate) getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi::fi_info,
        *mut *mut fi::fi_info,
    ) -> c_int,
    pub(crate) freeinfo: unsafe extern "C" fn(*mut fi::fi_info),
    pub(crate) dupinfo: unsafe extern "C" fn(*const fi::fi_info) -> *mut fi::fi_info,
    pub(crate) fabric:
        unsafe extern "C" fn(*mut fi::fi_fabric_attr, *mut *mut fi::fid_fabric, *mut c_void) -> c_int,
    pub(crate) strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl std::fmt::Debug for Libfabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Libfabric").field("path", &self.path).field("version", &self.version).finish()
    }
}

impl Libfabric {
    /// Loads the libfabric that `LIBFABRIC_PATH` names. If the variable is not set or empty, loads the one that the
    /// dynamic loader finds, or else the EFA installer's, in `/opt/amazon/efa/lib` or `lib64`.
    ///
    /// # Errors
    /// [`LoadError`], if no file can be loaded or the library is too old.
    pub fn load() -> Result<Self, LoadError> {
        // An empty name would load this program itself.
        if let Some(path) = std::env::var_os(LIBFABRIC_PATH).filter(|path| !path.is_empty()) {
            // SAFETY: the environment names a libfabric; its owner could load any code with LD_PRELOAD as well.
            let loaded = unsafe { Self::load_from(Path::new(&path)) };
            return loaded.map_err(|error| error.of_named(path.into()));
        }
        let mut attempts = Vec::new();
        for candidate in std::iter::once(SONAME).chain(INSTALLER_PATHS.iter().copied()) {
            // SAFETY: the files on the loader's path and in the installer's directories are installed by this machine's
            // administrator, who guarantees that they are libfabric.
            match unsafe { Self::load_from(Path::new(candidate)) } {
                Err(LoadError::NotFound { attempts: failed }) => attempts.extend(failed),
                done => return done,
            }
        }
        Err(LoadError::NotFound { attempts })
    }

    /// Loads libfabric from the file `path`. The dynamic loader searches for a name without a slash.
    ///
    /// # Safety
    /// The file must be a libfabric with sound initialisers: loading runs them, and later calls run the functions that
    /// it exports under libfabric's names.
    ///
    /// # Errors
    /// [`LoadError`], if the file cannot be loaded or the library is too old.
    pub unsafe fn load_from(path: &Path) -> Result<Self, LoadError> {
        // RTLD_LOCAL: symbols of several libfabrics in one process must not mix.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: the caller guarantees that the library's initialisers are sound.
        let library = unsafe { libloading::os::unix::Library::open(Some(path), flags) }
            .map_err(|error| LoadError::NotFound { attempts: vec![error.to_string()] })?;
        // Never closed (see the type).
        let handle = library.into_raw();
        let symbols = Symbols { handle, path };
        let fi_version: unsafe extern "C" fn() -> u32 =
            // SAFETY: libfabric.map exports `fi_version` with this signature since FABRIC_1.0.
            unsafe { symbols.get("fi_version", "FABRIC_1.0")? };
        // SAFETY: `fi_version` takes no argument and returns a constant.
        let version = unsafe { fi_version() };
        let path = symbols.loaded_path(fi_version as *const c_void);
        if version < OLDEST_SUPPORTED {
            return Err(LoadError::TooOld { path, version });
        }
        let info_version = symbols.newest("fi_getinfo", &INFO_VERSIONS);
        let functions = Functions {
            // SAFETY: libfabric.map exports this symbol, at each of these versions, with the signature of the field.
            getinfo: unsafe { symbols.get("fi_getinfo", info_version)? },
            // SAFETY: as above.
            freeinfo: unsafe { symbols.get("fi_freeinfo", info_version)? },
            // SAFETY: as above.
            dupinfo: unsafe { symbols.get("fi_dupinfo", info_version)? },
            // SAFETY: libfabric.map exports this symbol, at this version, with the signature of the field.
            fabric: unsafe { symbols.get("fi_fabric", "FABRIC_1.1")? },
            // SAFETY: as above.
            strerror: unsafe { symbols.get("fi_strerror", "FABRIC_1.0")? },
        };
        Ok(Self::new(path, version, info_version, functions))
    }

    pub(crate) fn new(path: PathBuf, version: u32, info_version: &'static str, functions: Functions) -> Self {
        Self { path, version, info_version, functions }
    }

    /// Path of the loaded file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's version, as `fi_version()` packs it: major in the high half.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The symbol version of the functions for `fi_info`, one of [`INFO_VERSIONS`]; "none" without libfabric
    /// ([`Self::of_provider`]).
    pub fn info_version(&self) -> &'static str {
        self.info_version
    }

    /// The API version to request: the lower of the library's version and 2.7, the newest that [`crate::fi`] declares.
    pub fn api_version(&self) -> u32 {
        self.version.min(fi::fi_version(fi::FI_MAJOR_VERSION, fi::FI_MINOR_VERSION))
    }

    /// Calls `fi_getinfo` with `hints` at [`Self::api_version`]. The caller must free the list in `info` with
    /// [`Self::freeinfo`].
    ///
    /// # Safety
    /// `hints` must be null or come from [`Self::dupinfo`] of this library, and `info` must be valid for a write.
    pub unsafe fn getinfo(&self, hints: *const fi::fi_info, info: *mut *mut fi::fi_info) -> c_int {
        // SAFETY: the caller guarantees `hints` and `info`; node and service may be null.
        unsafe {
            (self.functions.getinfo)(self.api_version(), std::ptr::null(), std::ptr::null(), 0, hints, info)
        }
    }

    /// Frees a list that [`Self::getinfo`] or [`Self::dupinfo`] returned.
    ///
    /// # Safety
    /// `info` must come from this library and must not be used again.
    pub unsafe fn freeinfo(&self, info: *mut fi::fi_info) {
        // SAFETY: the caller guarantees the function's conditions.
        unsafe { (self.functions.freeinfo)(info) }
    }

    /// Copies `info`. For null, allocates an empty one with all its attributes. Returns null if memory is short.
    ///
    /// # Safety
    /// `info` must be null or come from this library.
    pub unsafe fn dupinfo(&self, info: *const fi::fi_info) -> *mut fi::fi_info {
        // SAFETY: the caller guarantees the function's conditions.
        unsafe { (self.functions.dupinfo)(info) }
    }

    /// Calls `fi_fabric`.
    ///
    /// # Safety
    /// `attr` must be the `fabric_attr` of an info from this library, and `fabric` must be valid for a write.
    pub unsafe fn fabric(&self, attr: *mut fi::fi_fabric_attr, fabric: *mut *mut fi::fid_fabric) -> c_int {
        // SAFETY: the caller guarantees the function's conditions.
        unsafe { (self.functions.fabric)(attr, fabric, std::ptr::null_mut()) }
    }

    /// libfabric's text for an error number, negative (as calls return it) or positive.
    pub fn strerror(&self, errnum: i32) -> String {
        // SAFETY: fi_strerror takes any number and returns a static string or null.
        let text = unsafe { (self.functions.strerror)(errnum.wrapping_abs()) };
        if text.is_null() {
            return format!("error {errnum}");
        }
        // SAFETY: the string is static and ends in a zero byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A loaded library, for finding symbols by name and version.
struct Symbols<'a> {
    handle: *mut c_void,
    path: &'a Path,
}

impl Symbols<'_> {
    /// Returns the function `symbol` at exactly `version`.
    ///
    /// # Safety
    /// `F` must be the function pointer type of that symbol.
    unsafe fn get<F: Copy>(&self, symbol: &'static str, version: &'static str) -> Result<F, LoadError> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address(symbol, version);
        if address.is_null() {
            return Err(LoadError::MissingSymbol { path: self.path.to_owned(), symbol, version });
        }
        // SAFETY: the sizes are equal (asserted), the address is not null, and the caller guarantees F.
        Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// The first of `versions` at which the library exports `symbol`; the last where it exports none.
    fn newest(&self, symbol: &str, versions: &[&'static str; 5]) -> &'static str {
        let exported = versions.iter().find(|version| !self.address(symbol, version).is_null());
        exported.unwrap_or(&versions[versions.len() - 1])
    }

    /// The address of `symbol` at exactly `version`. Null where the library does not export it.
    fn address(&self, symbol: &str, version: &str) -> *mut c_void {
        let name = CString::new(symbol).expect("symbol names hold no zero byte");
        let tag = CString::new(version).expect("symbol versions hold no zero byte");
        // SAFETY: the handle stays open until the process ends; both strings end in a zero byte.
        unsafe { libc::dlvsym(self.handle, name.as_ptr(), tag.as_ptr()) }
    }

    /// Returns the path of the file that contains `address`: the loader may have found another one than was named.
    fn loaded_path(&self, address: *const c_void) -> PathBuf {
        // SAFETY: Dl_info is a plain C struct; all zeros are a valid value.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr takes any address; `info` is valid for a write.
        let found = unsafe { libc::dladdr(address, &mut info) };
        if found == 0 || info.dli_fname.is_null() {
            return self.path.to_owned();
        }
        // SAFETY: dladdr returned the loader's string, which lives as long as the library is loaded.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        PathBuf::from(name.to_string_lossy().into_owned())
    }
}
