//! Loading rdma-core at run time: libibverbs, and libefa, which contains the EFA provider and its additional verbs.
//!
//! Types and constants come from `third_party/efa_gda/efadv.h`. Functions are found by name and symbol version
//! ([`CALLS`]). A function that the loaded release lacks is null in the tables, and [`RdmaCore::missing`] reports the
//! release that introduced it. The headers state the rules for calling the functions; `efa_gda::verbs` is the safe
//! layer.

use std::fmt;
use std::path::{Path, PathBuf};

pub use abi::*;

use crate::symbols::Symbols;

/// Structures, constants and tables of calls, from `efadv.h` and `verbs_abi.h`.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod abi {
    crate::bindings!("verbs.rs");
}

/// Environment variable with the directory of the libibverbs.so.1 and libefa.so.1 to load in place of the loader's
/// search.
pub const RDMA_CORE_LIBDIR: &str = "RDMA_CORE_LIBDIR";

/// One of rdma-core's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// libibverbs: the verbs.
    Ibverbs,
    /// libefa: the EFA provider, with its additional verbs.
    Efa,
}

impl Library {
    /// Its name for the dynamic loader.
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

/// A function of rdma-core, with the library, symbol version and release that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The library that exports it.
    pub library: Library,
    /// Its name.
    pub name: &'static str,
    /// Its symbol version.
    pub version: &'static str,
    /// The first rdma-core release that has it; 1 if every release has it.
    pub since: u16,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

/// The first release with every function that [`RdmaCore`] requires: it introduced `EFA_1.1`.
pub const OLDEST_SUPPORTED: u16 = 26;

/// Why rdma-core cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file could be opened as this library.
    #[error(
        "{library} of rdma-core cannot be loaded: {}; install rdma-core (Debian: libibverbs1 and \
         ibverbs-providers) or set {RDMA_CORE_LIBDIR} to its directory",
        .attempts.join("; ")
    )]
    NotFound {
        /// The library.
        library: Library,
        /// The loader's message for each file that was tried.
        attempts: Vec<String>,
    },
    /// The loaded file lacks a function that every supported release has.
    #[error(
        "{path} does not export {call}; install rdma-core {OLDEST_SUPPORTED} or newer, or set {RDMA_CORE_LIBDIR} to its directory"
    )]
    MissingSymbol {
        /// The library's file.
        path: PathBuf,
        /// The missing function.
        call: Call,
    },
}

/// The rdma-core release that a library belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Major and minor number from the file's name: `libibverbs.so.1.14.65.0` belongs to 65.0. None if the name has
    /// another form.
    pub named: Option<(u16, u16)>,
    /// The release that introduced the newest function found: the library's release is this one or a newer one.
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
    /// The file, with symbolic links resolved.
    pub path: PathBuf,
    /// Its release.
    pub release: Release,
}

/// A loaded rdma-core. It stays loaded until the process ends, because providers register themselves with libibverbs
/// and cannot be unregistered.
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

/// States each call once, for three uses: to list the calls, to fill the tables, and to find what a table lacks.
macro_rules! calls {
    ($($library:ident $table:ident { $($name:ident @ $version:literal since $since:literal;)* })*) => {
        /// Every function that [`RdmaCore`] looks up.
        pub const CALLS: &[Call] = &[$($(
            Call { library: Library::$library, name: stringify!($name), version: $version, since: $since },
        )*)*];

        /// Looks up `CALLS` in the loaded libraries.
        fn find_all(ibverbs: &Symbols, efa: &Symbols) -> (efa_gda_ibverbs_calls, efa_gda_efadv_calls) {
            let libraries = (ibverbs, efa);
            ($($table {
                // SAFETY: rdma-core exports this name, at this version, with the table's signature; it never
                // reuses a version for another signature.
                $($name: unsafe { calls!(@of $library libraries).find(stringify!($name), $version) },)*
            },)*)
        }

        /// Returns for each of `CALLS`, in this order, whether the tables have it.
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

/// Returns the entry of [`CALLS`] with this name.
pub fn call(name: &str) -> Option<Call> {
    CALLS.iter().copied().find(|call| call.name == name)
}

impl RdmaCore {
    /// Loads the libraries from the directory that `RDMA_CORE_LIBDIR` names. If the variable is not set or empty, loads
    /// those that the dynamic loader finds.
    ///
    /// # Errors
    /// [`LoadError`], if a library cannot be loaded or is too old.
    pub fn load() -> Result<Self, LoadError> {
        if let Some(directory) = std::env::var_os(RDMA_CORE_LIBDIR).filter(|path| !path.is_empty()) {
            // SAFETY: the environment names an rdma-core; its owner could load any code with LD_PRELOAD as well.
            return unsafe { Self::load_from(Path::new(&directory)) };
        }
        let ibverbs = open(Library::Ibverbs, &[PathBuf::from(Library::Ibverbs.soname())])?;
        // A libibverbs outside the loader's path has its libefa in the same directory.
        let beside = ibverbs.path.with_file_name(Library::Efa.soname());
        let efa = open(Library::Efa, &[PathBuf::from(Library::Efa.soname()), beside])?;
        Self::with(ibverbs, efa)
    }

    /// Loads the libraries from `directory`. If the process has already loaded a libibverbs, the dynamic loader returns
    /// that one.
    ///
    /// # Safety
    /// The files must be rdma-core's, with sound initialisers: loading runs them, and later calls run the functions
    /// that they export under rdma-core's names.
    ///
    /// # Errors
    /// [`LoadError`], if a library cannot be loaded or is too old.
    pub unsafe fn load_from(directory: &Path) -> Result<Self, LoadError> {
        let open = |library: Library| open(library, &[directory.join(library.soname())]);
        // libibverbs first, so that libefa uses this copy. libefa before any list of devices, so that this copy drives
        // them: its verbs return EOPNOTSUPP for devices that another copy drives.
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

    /// Wraps an rdma-core that other code has loaded, or a replacement for it.
    ///
    /// # Safety
    /// Each function in the tables that is not null must behave like rdma-core's function of that name until the
    /// process ends.
    pub unsafe fn from_tables(ibv: efa_gda_ibverbs_calls, efadv: efa_gda_efadv_calls) -> Self {
        Self { libraries: None, ibv, efadv }
    }

    /// libibverbs and libefa, in this order. None for [`Self::from_tables`].
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

    /// The functions of [`CALLS`] that the loaded release lacks.
    pub fn missing(&self) -> Vec<Call> {
        let found = present(&self.ibv, &self.efadv);
        CALLS.iter().zip(found).filter(|(_, found)| !found).map(|(call, _)| *call).collect()
    }
}

/// Reads the release from a library's file name, which ends in four numbers: soname, interface, and the two numbers of
/// rdma-core's release.
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

/// Opens the first of `candidates` that the loader accepts. The path is that of the file, with symbolic links resolved.
fn open(library: Library, candidates: &[PathBuf]) -> Result<Symbols, LoadError> {
    let mut attempts = Vec::new();
    for candidate in candidates {
        // SAFETY: the library's initialisers are sound: `load_from`'s caller, the environment's owner, or the
        // administrator who installed the library on the loader's path guarantees it.
        match unsafe { Symbols::open(candidate) } {
            Ok(mut opened) => {
                opened.path = std::fs::canonicalize(&opened.path).unwrap_or(opened.path);
                return Ok(opened);
            }
            Err(message) => attempts.push(message),
        }
    }
    Err(LoadError::NotFound { library, attempts })
}
