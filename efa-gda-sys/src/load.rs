//! Loading libfabric at run time.
//!
//! libfabric exports its functions under several symbol versions, one for each layout that `fi_info` has had. Functions
//! of an older version cut hints to their layout, and all results have the loaded library's layout, which begins with
//! that of any older release. This module therefore binds the `fi_info` functions at the newest version whose layout
//! [`crate::fi`] declares and the library exports, and `fi_fabric` at FABRIC_1.1, its only layout.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use crate::fi;
use crate::symbols::Symbols;

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
const INFO_VERSIONS: [&str; 5] = ["FABRIC_1.10", "FABRIC_1.9", "FABRIC_1.8", "FABRIC_1.7", "FABRIC_1.3"];

/// The oldest libfabric that this project has run on.
pub const OLDEST_SUPPORTED: u32 = fi::fi_version(1, 17);

/// Why libfabric cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file could be opened as libfabric.
    #[error("libfabric cannot be loaded: {}", .attempts.join("; "))]
    NotFound {
        /// The loader's message for each file that was tried.
        attempts: Vec<String>,
    },
    /// The file that `LIBFABRIC_PATH` names cannot be used.
    #[error("{LIBFABRIC_PATH}={} names no libfabric that can be loaded: {reason}", .path.display())]
    Named {
        /// The variable's value.
        path: PathBuf,
        /// The loader's message, or what the file lacks.
        reason: String,
    },
    /// The loaded file lacks a function.
    #[error("{path} does not export {symbol}@{version}")]
    MissingSymbol {
        /// The library's file.
        path: PathBuf,
        /// The missing function.
        symbol: &'static str,
        /// Its symbol version.
        version: &'static str,
    },
    /// The library is older than [`OLDEST_SUPPORTED`].
    #[error("{path} is libfabric {}.{}", .version >> 16, .version & 0xffff)]
    TooOld {
        /// The library's file.
        path: PathBuf,
        /// Its version, as `fi_version()` packs it.
        version: u32,
    },
}

impl LoadError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "install it (Debian: libfabric1) or set LIBFABRIC_PATH to its file",
            Self::Named { .. } => {
                "set it to the file of libfabric 1.17 or newer (libfabric.so.1), or unset it to load the one that the \
                 loader finds"
            }
            Self::MissingSymbol { .. } | Self::TooOld { .. } => "libfabric 1.17 or newer is needed",
        }
    }
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
    pub(crate) path: PathBuf,
    pub(crate) version: u32,
    pub(crate) functions: Functions,
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
        // SAFETY: the caller guarantees that the library's initialisers are sound.
        let symbols = unsafe { Symbols::open(path) }
            .map_err(|message| LoadError::NotFound { attempts: vec![message] })?;
        let fi_version: unsafe extern "C" fn() -> u32 =
            // SAFETY: libfabric.map exports `fi_version` with this signature since FABRIC_1.0.
            unsafe { required(&symbols, "fi_version", "FABRIC_1.0")? };
        // SAFETY: `fi_version` takes no argument and returns a constant.
        let version = unsafe { fi_version() };
        if version < OLDEST_SUPPORTED {
            return Err(LoadError::TooOld { path: symbols.path, version });
        }
        let newest = INFO_VERSIONS.into_iter().find(|version| symbols.exports("fi_getinfo", version));
        let of_info = newest.unwrap_or(INFO_VERSIONS[INFO_VERSIONS.len() - 1]);
        let functions = Functions {
            // SAFETY: libfabric.map exports this symbol, at each of these versions, with the signature of the field.
            getinfo: unsafe { required(&symbols, "fi_getinfo", of_info)? },
            // SAFETY: as above.
            freeinfo: unsafe { required(&symbols, "fi_freeinfo", of_info)? },
            // SAFETY: as above.
            dupinfo: unsafe { required(&symbols, "fi_dupinfo", of_info)? },
            // SAFETY: libfabric.map exports this symbol, at this version, with the signature of the field.
            fabric: unsafe { required(&symbols, "fi_fabric", "FABRIC_1.1")? },
            // SAFETY: as above.
            strerror: unsafe { required(&symbols, "fi_strerror", "FABRIC_1.0")? },
        };
        Ok(Self { path: symbols.path, version, functions })
    }

    /// Path of the loaded file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's version, as `fi_version()` packs it: major in the high half.
    pub fn version(&self) -> u32 {
        self.version
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

/// Returns the function `symbol` at exactly `version`.
///
/// # Safety
/// As for [`Symbols::find`].
unsafe fn required<F: Copy>(
    symbols: &Symbols,
    symbol: &'static str,
    version: &'static str,
) -> Result<F, LoadError> {
    // SAFETY: the caller guarantees F.
    let found = unsafe { symbols.find(symbol, version) };
    found.ok_or_else(|| LoadError::MissingSymbol { path: symbols.path.clone(), symbol, version })
}
