//! rdma-core as it is loaded at run time: libibverbs, and libefa, which holds the EFA provider and
//! its own verbs.
//!
//! Types and constants are generated from `third_party/efa_gda/efadv.h`. Functions are found by
//! name and symbol version ([`CALLS`]); what a release lacks stays null in the tables, and
//! [`RdmaCore::missing`] says which release brought it. Nothing here is safe to call without the
//! rules of the headers; `efa_gda::verbs` is the safe layer.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

pub use abi::*;

/// Structures, constants and tables of calls, generated from `efadv.h` and what it includes.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod abi {
    crate::bindings!("verbs.rs");
}

/// Names the directory with libibverbs.so.1 and libefa.so.1 to load, in place of the loader's
/// search.
pub const RDMA_CORE_LIBDIR: &str = "RDMA_CORE_LIBDIR";

/// One of rdma-core's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// The verbs themselves.
    Ibverbs,
    /// The EFA provider, with its own verbs.
    Efa,
}

impl Library {
    /// Its name on the loader's path.
    pub const fn soname(self) -> &'static str {
        match self {
            Self::Ibverbs => "libibverbs.so.1",
            Self::Efa => "libefa.so.1",
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.soname())
    }
}

/// A function of rdma-core's, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The library that exports it.
    pub library: Library,
    /// Its name.
    pub name: &'static str,
    /// Its symbol version.
    pub version: &'static str,
    /// The first rdma-core release with it; 1 for what every release has.
    pub since: u16,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

/// From this release on, everything that [`RdmaCore`] cannot do without is there: `EFA_1.1`.
pub const OLDEST_SUPPORTED: u16 = 26;

/// Why rdma-core cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file with that name could be opened.
    #[error(
        "{library} of rdma-core cannot be loaded: {}; install rdma-core (Debian: libibverbs1 and \
         ibverbs-providers), or name its directory in {RDMA_CORE_LIBDIR}",
        .attempts.join("; ")
    )]
    NotFound {
        /// The library.
        library: Library,
        /// What was tried, in the loader's words.
        attempts: Vec<String>,
    },
    /// The file was loaded, but lacks a function that every supported release has.
    #[error("{path} has no {call}: rdma-core {OLDEST_SUPPORTED} or newer is needed")]
    MissingSymbol {
        /// The library's file.
        path: PathBuf,
        /// The function looked for.
        call: Call,
    },
}

/// Which rdma-core a library is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Major and minor number as the file's name has them (`libibverbs.so.1.14.65.0` is of 65.0);
    /// None for a file that is named otherwise.
    pub named: Option<(u16, u16)>,
    /// The release that brought the newest function found, so that it is this one or newer.
    pub at_least: u16,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.named {
            Some((major, minor)) => write!(f, "{major}.{minor}"),
            None => write!(f, "{} or newer", self.at_least),
        }
    }
}

/// A library's file and release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The file, with symbolic links followed.
    pub path: PathBuf,
    /// Its release.
    pub release: Release,
}

/// rdma-core, loaded. It stays in the process for good: providers register themselves with
/// libibverbs and cannot be taken back.
pub struct RdmaCore {
    libraries: Option<(Loaded, Loaded)>,
    ibv: efa_gda_ibverbs_calls,
    efadv: efa_gda_efadv_calls,
}

impl fmt::Debug for RdmaCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaCore").field("libraries", &self.libraries).finish_non_exhaustive()
    }
}

/// States each call once: for filling a table, for listing what is known, and for telling what a
/// table lacks.
macro_rules! calls {
    ($($library:ident $table:ident { $($name:ident @ $version:literal since $since:literal;)* })*) => {
        /// Every function that is looked for.
        pub const CALLS: &[Call] = &[$($(
            Call { library: Library::$library, name: stringify!($name), version: $version, since: $since },
        )*)*];

        /// What the loaded libraries have of `CALLS`.
        fn find_all(ibverbs: &Symbols, efa: &Symbols) -> (efa_gda_ibverbs_calls, efa_gda_efadv_calls) {
            let libraries = (ibverbs, efa);
            ($($table {
                // SAFETY: rdma-core exports this name, at this version, with the signature that the
                // table states; a version is never given to another signature.
                $($name: unsafe { calls!(@of $library libraries).find(stringify!($name), $version) },)*
            },)*)
        }

        /// Whether each of `CALLS` is in the tables, in that order.
        fn present(ibv: &efa_gda_ibverbs_calls, efadv: &efa_gda_efadv_calls) -> Vec<bool> {
            let tables = (ibv, efadv);
            vec![$($(calls!(@of $library tables).$name.is_some(),)*)*]
        }
    };
    (@of Ibverbs $tables:ident) => { $tables.0 };
    (@of Efa $tables:ident) => { $tables.1 };
}

calls! {
    Ibverbs efa_gda_ibverbs_calls {
        ibv_get_device_list @ "IBVERBS_1.1" since 1;
        ibv_free_device_list @ "IBVERBS_1.1" since 1;
        ibv_get_device_name @ "IBVERBS_1.1" since 1;
        ibv_get_device_guid @ "IBVERBS_1.1" since 1;
        ibv_open_device @ "IBVERBS_1.1" since 1;
        ibv_close_device @ "IBVERBS_1.1" since 1;
        ibv_query_device @ "IBVERBS_1.1" since 1;
        ibv_query_port @ "IBVERBS_1.1" since 1;
        ibv_query_gid @ "IBVERBS_1.1" since 1;
        ibv_alloc_pd @ "IBVERBS_1.1" since 1;
        ibv_dealloc_pd @ "IBVERBS_1.1" since 1;
        ibv_reg_mr @ "IBVERBS_1.1" since 1;
        ibv_dereg_mr @ "IBVERBS_1.1" since 1;
        ibv_create_cq @ "IBVERBS_1.1" since 1;
        ibv_destroy_cq @ "IBVERBS_1.1" since 1;
        ibv_modify_qp @ "IBVERBS_1.1" since 1;
        ibv_destroy_qp @ "IBVERBS_1.1" since 1;
        ibv_create_ah @ "IBVERBS_1.1" since 1;
        ibv_destroy_ah @ "IBVERBS_1.1" since 1;
        ibv_reg_dmabuf_mr @ "IBVERBS_1.12" since 34;
        _ibv_query_comp_cntr_caps @ "IBVERBS_1.18" since 65;
        ibv_destroy_comp_cntr @ "IBVERBS_1.18" since 65;
        ibv_set_comp_cntr @ "IBVERBS_1.18" since 65;
        ibv_set_err_comp_cntr @ "IBVERBS_1.18" since 65;
        ibv_read_comp_cntr @ "IBVERBS_1.18" since 65;
        ibv_read_err_comp_cntr @ "IBVERBS_1.18" since 65;
        ibv_qp_attach_comp_cntr @ "IBVERBS_1.18" since 65;
    }
    Efa efa_gda_efadv_calls {
        efadv_query_device @ "EFA_1.1" since 26;
        efadv_query_ah @ "EFA_1.1" since 26;
        efadv_create_qp_ex @ "EFA_1.1" since 26;
        efadv_create_cq @ "EFA_1.2" since 43;
        efadv_query_qp_wqs @ "EFA_1.4" since 59;
        efadv_query_cq @ "EFA_1.4" since 59;
        efadv_get_max_sq_depth @ "EFA_1.5" since 63;
        efadv_get_max_rq_depth @ "EFA_1.5" since 63;
        efadv_create_comp_cntr @ "EFA_1.7" since 65;
    }
}

/// What this library knows of the call with that name.
pub fn call(name: &str) -> Option<Call> {
    CALLS.iter().copied().find(|call| call.name == name)
}

impl RdmaCore {
    /// Loads the libraries in the directory that `RDMA_CORE_LIBDIR` names, or else those that the
    /// dynamic loader finds.
    ///
    /// # Errors
    /// [`LoadError`] says what was tried and what was missing.
    pub fn load() -> Result<Self, LoadError> {
        if let Some(directory) = std::env::var_os(RDMA_CORE_LIBDIR).filter(|path| !path.is_empty()) {
            // SAFETY: whoever sets the environment answers for what is loaded, as with LD_PRELOAD.
            return unsafe { Self::load_from(Path::new(&directory)) };
        }
        let ibverbs = Symbols::open(Library::Ibverbs, &[PathBuf::from(Library::Ibverbs.soname())])?;
        // A libibverbs that lies outside the loader's path has its libefa beside it.
        let beside = ibverbs.path.with_file_name(Library::Efa.soname());
        let efa = Symbols::open(Library::Efa, &[PathBuf::from(Library::Efa.soname()), beside])?;
        Self::with(ibverbs, efa)
    }

    /// Loads the libraries in `directory`. A libibverbs that is already in the process is used in
    /// place of that directory's, as the dynamic loader has it.
    ///
    /// # Safety
    /// Loading runs the files' initialisers, and what they export under rdma-core's names is called:
    /// they are rdma-core's, with sound ones.
    ///
    /// # Errors
    /// [`LoadError`] says what was missing.
    pub unsafe fn load_from(directory: &Path) -> Result<Self, LoadError> {
        let open = |library: Library| Symbols::open(library, &[directory.join(library.soname())]);
        // libibverbs first, so that libefa finds it loaded. libefa before any list of devices, so
        // that it is the copy that drives them: its verbs answer EOPNOTSUPP for another's devices.
        let ibverbs = open(Library::Ibverbs)?;
        Self::with(ibverbs, open(Library::Efa)?)
    }

    fn with(ibverbs: Symbols, efa: Symbols) -> Result<Self, LoadError> {
        let (ibv, efadv) = find_all(&ibverbs, &efa);
        let found = present(&ibv, &efadv);
        let absent =
            CALLS.iter().zip(&found).find(|(call, found)| !**found && call.since <= OLDEST_SUPPORTED);
        if let Some((call, _)) = absent {
            let library = match call.library {
                Library::Ibverbs => ibverbs,
                Library::Efa => efa,
            };
            return Err(LoadError::MissingSymbol { path: library.path, call: *call });
        }
        let at_least = |library: Library| {
            let ours = CALLS.iter().zip(&found).filter(|(call, found)| call.library == library && **found);
            ours.map(|(call, _)| call.since).max().unwrap_or(1)
        };
        let libraries = (
            Loaded { release: release(&ibverbs.path, at_least(Library::Ibverbs)), path: ibverbs.path },
            Loaded { release: release(&efa.path, at_least(Library::Efa)), path: efa.path },
        );
        Ok(Self { libraries: Some(libraries), ibv, efadv })
    }

    /// rdma-core as somebody else has loaded it, or something that stands in for it.
    ///
    /// # Safety
    /// Each function of the tables that is not null does what rdma-core's of that name does, for the
    /// life of the process.
    pub unsafe fn from_tables(ibv: efa_gda_ibverbs_calls, efadv: efa_gda_efadv_calls) -> Self {
        Self { libraries: None, ibv, efadv }
    }

    /// libibverbs and libefa, in this order. None where somebody else loaded them.
    pub fn libraries(&self) -> Option<(&Loaded, &Loaded)> {
        self.libraries.as_ref().map(|(ibverbs, efa)| (ibverbs, efa))
    }

    /// The functions of libibverbs.
    pub fn ibv(&self) -> &efa_gda_ibverbs_calls {
        &self.ibv
    }

    /// The functions of libefa.
    pub fn efadv(&self) -> &efa_gda_efadv_calls {
        &self.efadv
    }

    /// What the loaded release lacks of [`CALLS`].
    pub fn missing(&self) -> Vec<Call> {
        let found = present(&self.ibv, &self.efadv);
        CALLS.iter().zip(found).filter(|(_, found)| !found).map(|(call, _)| *call).collect()
    }
}

/// The release in a library's file name: rdma-core ends it with its own two numbers, behind the
/// soname's one and the interface's one.
fn release(path: &Path, at_least: u16) -> Release {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let numbers: Option<Vec<u16>> = name
        .split_once(".so.")
        .and_then(|(_, numbers)| numbers.split('.').map(|number| number.parse().ok()).collect());
    let named = match numbers.as_deref() {
        Some([_soname, _interface, major, minor]) => Some((*major, *minor)),
        _ => None,
    };
    Release { named, at_least }
}

/// A loaded library in which versioned symbols are looked up.
struct Symbols {
    handle: *mut c_void,
    path: PathBuf,
}

impl Symbols {
    /// Opens the first of `candidates` that can be.
    fn open(library: Library, candidates: &[PathBuf]) -> Result<Self, LoadError> {
        // RTLD_LOCAL: a second rdma-core in the process keeps its own symbols.
        let flags: c_int = libc::RTLD_NOW | libc::RTLD_LOCAL;
        let mut attempts = Vec::new();
        for candidate in candidates {
            // SAFETY: loading runs the library's initialisers. That they are sound is the promise of
            // whoever put this rdma-core on the loader's path or named it.
            match unsafe { libloading::os::unix::Library::open(Some(candidate), flags) } {
                // Never closed: providers have registered themselves with libibverbs.
                Ok(opened) => {
                    let handle = opened.into_raw();
                    return Ok(Self { handle, path: loaded_path(handle, candidate) });
                }
                Err(error) => attempts.push(error.to_string()),
            }
        }
        Err(LoadError::NotFound { library, attempts })
    }

    /// The function `name` at exactly `version`; None where the library has none.
    ///
    /// # Safety
    /// `F` is the function pointer type of that symbol.
    unsafe fn find<F: Copy>(&self, name: &'static str, version: &'static str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let name = CString::new(name).expect("symbol names hold no zero byte");
        let tag = CString::new(version).expect("symbol versions hold no zero byte");
        // SAFETY: the handle is open for the life of the process; both strings end in a zero byte.
        let address = unsafe { libc::dlvsym(self.handle, name.as_ptr(), tag.as_ptr()) };
        // SAFETY: sizes are equal (asserted), the address is not null, and the caller vouches for F.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}

/// The file behind `handle`, with symbolic links followed; the name asked for where the loader does
/// not say.
fn loaded_path(handle: *mut c_void, asked: &Path) -> PathBuf {
    let mut origin = std::ptr::null_mut::<LinkMap>();
    // SAFETY: the handle is open; RTLD_DI_LINKMAP writes one pointer.
    let code = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut origin).cast()) };
    if code != 0 || origin.is_null() {
        return asked.to_owned();
    }
    // SAFETY: the loader's record of an open library, whose beginning <link.h> states.
    let name = unsafe { (*origin).name };
    if name.is_null() {
        return asked.to_owned();
    }
    // SAFETY: the loader's own string, which lives while the library is loaded.
    let name = PathBuf::from(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    std::fs::canonicalize(&name).unwrap_or(name)
}

/// The beginning of `struct link_map` of <link.h>.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const std::ffi::c_char,
}
