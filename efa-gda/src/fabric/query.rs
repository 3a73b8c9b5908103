//! Finding adapters: [`Library`] and [`Query`].

use std::ffi::CStr;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::{Libfabric, fi};

use super::error;
use super::object::Context;
use super::{Info, Version};
#[cfg(doc)]
use crate::ErrorKind;
use crate::error::QueryOption;
use crate::{Error, Result};

/// The fabric on which an endpoint is one queue pair of the adapter.
pub const EFA_DIRECT: &str = "efa-direct";

const EFA_DIRECT_C: &CStr = c"efa-direct";

/// The fabrics that a query asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fabrics {
    Direct,
    /// All fabrics of the efa provider, to diagnose a query without results.
    Any,
}

const GETINFO: &str = "fi_getinfo";

/// The most receive queue entries that endpoints have (`fi_rx_attr::size` times `iov_limit`). Adapters offer up to 32,768,
/// and a completion queue on which receives complete too must have room for all of them ([`Info::completions`]).
const RECEIVES: usize = 4096;

/// libfabric, loaded at run time. Clones are handles of one loaded library.
#[derive(Clone, Debug)]
pub struct Library(Arc<Libfabric>);

impl Library {
    /// Loads the file that `LIBFABRIC_PATH` names, and no other if that fails. If the variable is not set or empty,
    /// loads the libfabric that the dynamic loader finds or, if it finds none, the EFA installer's.
    ///
    /// # Errors
    /// [`ErrorKind::NoLibrary`] names the files that were tried.
    pub fn load() -> Result<Self> {
        Ok(Self(Arc::new(Libfabric::load()?)))
    }

    /// Opens the provider in the file `path` without libfabric. Meant for the software adapter on machines that have no
    /// libfabric: [`Self::version`] is then the release whose interface the provider is used at. A process opens one
    /// provider: a second call uses the first call's.
    ///
    /// # Safety
    /// As for [`Libfabric::of_provider`]: the file must be a provider, and its initializers must be sound.
    ///
    /// # Errors
    /// [`ErrorKind::NoLibrary`] states why the file is no provider.
    pub unsafe fn of_provider(path: &Path) -> Result<Self> {
        // SAFETY: the caller guarantees it, as this function requires.
        Ok(Self(Arc::new(unsafe { Libfabric::of_provider(path) }?)))
    }

    /// libfabric's release.
    pub fn version(&self) -> Version {
        Version::from_packed(self.0.version())
    }

    /// The API version that queries request: the lower of the library's version and 2.7.
    pub fn api_version(&self) -> Version {
        Version::from_packed(self.0.api_version())
    }

    /// The file that the library was loaded from.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn raw(&self) -> &Libfabric {
        &self.0
    }
}

impl From<Libfabric> for Library {
    fn from(library: Libfabric) -> Self {
        Self(Arc::new(library))
    }
}

/// A query for adapters on the fabric `efa-direct` (`fi_getinfo`).
///
/// ```
/// # efa_gda_test_support::soft::example();
/// use efa_gda::fabric::{Library, Query};
///
/// let library = Library::load()?;
/// for info in Query::new().find(&library)? {
///     println!("{} (provider {})", info.domain_name(), info.provider_version());
/// }
/// # Ok::<(), efa_gda::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Query {
    adapter: Option<String>,
    wide_entries: bool,
    gpu_memory: bool,
    xpu: bool,
    host_completions: bool,
}

impl Query {
    /// A query for every adapter, with 64-byte entries and host memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects one adapter by the name of its domain (`efa_0-rdm`) or of its device (`efa_0`).
    pub fn adapter(mut self, name: impl Into<String>) -> Self {
        self.adapter = Some(name.into());
        self
    }

    /// Requests 128-byte send queue entries. They carry up to 80 bytes inline, also in RDMA writes
    /// (`fi_tx_attr::inject_size` above 32).
    pub fn wide_entries(mut self, wanted: bool) -> Self {
        self.wide_entries = wanted;
        self
    }

    /// Requests GPU memory (FI_HMEM, and FI_MR_HMEM with it).
    pub fn gpu_memory(mut self, wanted: bool) -> Self {
        self.gpu_memory = wanted;
        self
    }

    /// Requests FI_XPU: objects that libfabric 2.7 and newer export to a device. This library's queues come through
    /// [`GdaOps`](super::GdaOps) also on such a domain, because only the provider's device functions may access what
    /// it exports.
    pub fn xpu(mut self, wanted: bool) -> Self {
        self.xpu = wanted;
        self
    }

    /// Requests endpoints whose completions libfabric can read (`fi_cq_read`), also those of requests that a device
    /// posted: `efa-direct` without FI_CONTEXT2, from libfabric 2.7 on. This library's queues do not need it: a GPU that
    /// maps no completion queue has its completions relayed (`GpuQueue::with_doorbell`). Such endpoints have 64-byte
    /// entries only, and share no completion queue with others.
    pub fn host_completions(mut self, wanted: bool) -> Self {
        self.host_completions = wanted;
        self
    }

    /// Returns the adapters that match, in the provider's order. The list is never empty.
    ///
    /// # Errors
    /// [`ErrorKind::NoAdapter`], [`ErrorKind::NoDirectFabric`] or [`ErrorKind::WithoutOption`] where the query has
    /// no result; [`ErrorKind::Other`] where `fi_getinfo` fails for another reason.
    pub fn find(&self, library: &Library) -> Result<Vec<Info>> {
        let infos = match self.find_in_either_mode(library)? {
            Ok(infos) if !infos.is_empty() => infos,
            Ok(_) => return Err(self.diagnose(library, -libc::ENODATA)),
            Err(code) if code == -libc::ENODATA => return Err(self.diagnose(library, code)),
            Err(code) => return Err(getinfo_error(library, code)),
        };
        let Some(wanted) = &self.adapter else { return Ok(infos) };
        let found: Vec<String> = infos.iter().map(|info| info.domain_name().into_owned()).collect();
        let infos: Vec<Info> = infos.into_iter().filter(|info| info.matches_name(wanted)).collect();
        if infos.is_empty() {
            return Err(error::no_such_adapter(wanted, &found));
        }
        Ok(infos)
    }

    /// Returns the first adapter that matches.
    ///
    /// # Errors
    /// Those of [`Self::find`].
    pub fn first(&self, library: &Library) -> Result<Info> {
        Ok(self.find(library)?.swap_remove(0))
    }

    /// Asks without the mode FI_RX_CQ_DATA, then with it. Adapters without unsolicited write receives need that
    /// mode for RMA.
    fn find_in_either_mode(&self, library: &Library) -> Result<Found> {
        let contexts = if self.host_completions { 0 } else { fi::FI_CONTEXT2 };
        let found = self.ask(library, Fabrics::Direct, contexts)?;
        match found {
            Err(code) if code == -libc::ENODATA => {
                self.ask(library, Fabrics::Direct, contexts | fi::FI_RX_CQ_DATA)
            }
            found => Ok(found),
        }
    }

    /// Calls `fi_getinfo` once. Drops infos of other fabrics, because providers may ignore a hint.
    fn ask(&self, library: &Library, fabric: Fabrics, mode: u64) -> Result<Found> {
        let hints = Hints::new(library)?;
        self.fill(&hints, fabric, mode)?;
        let mut head = std::ptr::null_mut();
        // SAFETY: the hints came from this library's fi_dupinfo; `head` can be written.
        let code = unsafe { library.raw().getinfo(hints.raw.as_ptr(), &mut head) };
        if code != 0 {
            return Ok(Err(code));
        }
        let Some(head) = NonNull::new(head) else { return Ok(Ok(Vec::new())) };
        // SAFETY: this library's fi_getinfo just returned the list.
        let mut infos = unsafe { Info::from_list(library, head) };
        infos.retain(|info| fabric == Fabrics::Any || info.fabric_name() == EFA_DIRECT);
        infos.retain(|info| !self.xpu || info.max_xpu_contexts() != Some(0));
        for info in &infos {
            // SAFETY: the list is this function's alone, and no object was opened with it yet.
            unsafe { info.limit_receives(RECEIVES) };
        }
        Ok(Ok(infos))
    }

    /// Writes the requirements of `efa-direct` into empty hints.
    fn fill(&self, hints: &Hints<'_>, fabric: Fabrics, mode: u64) -> Result<()> {
        let info = hints.raw.as_ptr();
        // SAFETY: fi_dupinfo of null allocates the info with all its attribute structures, each at least as
        // long as in release 1.17; only fields that 1.17 has are written. Strings come from malloc, as
        // fi_freeinfo expects.
        unsafe {
            (*info).mode = mode;
            (*(*info).fabric_attr).prov_name = duplicate(c"efa")?;
            let mr_mode = &raw mut (*(*info).domain_attr).mr_mode;
            *mr_mode = fi::FI_MR_LOCAL | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY | fi::FI_MR_VIRT_ADDR;
            if fabric == Fabrics::Any {
                *mr_mode |= fi::FI_MR_HMEM;
                return Ok(());
            }
            (*(*info).fabric_attr).name = duplicate(EFA_DIRECT_C)?;
            (*info).caps = fi::FI_MSG | fi::FI_RMA | fi::FI_SOURCE | fi::FI_LOCAL_COMM | fi::FI_REMOTE_COMM;
            (*(*info).ep_attr).type_ = fi::FI_EP_RDM;
            if self.gpu_memory {
                (*info).caps |= fi::FI_HMEM;
                *mr_mode |= fi::FI_MR_HMEM;
            }
            if self.xpu {
                (*info).caps |= fi::FI_XPU;
            }
            if self.wide_entries {
                (*(*info).tx_attr).inject_size = efa_gda_sys::io::EFA_IO_TX_DESC_INLINE_MAX_SIZE as usize + 1;
            }
        }
        Ok(())
    }

    /// Finds out why a query had no result, by asking for less.
    fn diagnose(&self, library: &Library, code: i32) -> Error {
        let failure = Context::new(Some(library.clone())).failure(GETINFO, code);
        for (requested, option) in [
            (self.gpu_memory, QueryOption::GpuMemory),
            (self.wide_entries, QueryOption::WideEntries),
            (self.xpu, QueryOption::Xpu),
            (self.host_completions, QueryOption::HostCompletions),
        ] {
            let mut less = self.clone();
            match option {
                QueryOption::GpuMemory => less.gpu_memory = false,
                QueryOption::WideEntries => less.wide_entries = false,
                QueryOption::Xpu => less.xpu = false,
                QueryOption::HostCompletions => less.host_completions = false,
            }
            if requested && matches!(less.find_in_either_mode(library), Ok(Ok(infos)) if !infos.is_empty()) {
                return failure.without_option(option);
            }
        }
        // Any fabric of the efa provider, in any mode.
        match self.ask(library, Fabrics::Any, !0) {
            Ok(Ok(infos)) if infos.iter().any(|info| info.fabric_name() == EFA_DIRECT) => failure.into(),
            Ok(Ok(infos)) if !infos.is_empty() => {
                let mut fabrics: Vec<String> =
                    infos.iter().map(|info| info.fabric_name().into_owned()).collect();
                fabrics.sort();
                fabrics.dedup();
                failure.no_direct_fabric(&fabrics)
            }
            _ => failure.no_adapter(),
        }
    }
}

/// The result of `fi_getinfo`: infos, or the error code that it returned.
type Found = std::result::Result<Vec<Info>, i32>;

fn getinfo_error(library: &Library, code: i32) -> Error {
    Context::new(Some(library.clone())).failure(GETINFO, code).into()
}

/// Empty hints, allocated by the library that reads them. A structure of these bindings would be too short for
/// a newer library.
struct Hints<'a> {
    raw: NonNull<fi::fi_info>,
    library: &'a Library,
}

impl<'a> Hints<'a> {
    fn new(library: &'a Library) -> Result<Self> {
        // SAFETY: null requests an empty info.
        let raw = unsafe { library.raw().dupinfo(std::ptr::null()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::out_of_memory(size_of::<fi::fi_info>()))?;
        Ok(Self { raw, library })
    }
}

impl Drop for Hints<'_> {
    fn drop(&mut self) {
        // SAFETY: the hints came from this library's fi_dupinfo and are not used again.
        unsafe { self.library.raw().freeinfo(self.raw.as_ptr()) }
    }
}

/// Copies `text` into memory that `free` can free.
fn duplicate(text: &CStr) -> Result<*mut std::ffi::c_char> {
    // SAFETY: the argument is a C string.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(Error::out_of_memory(text.count_bytes() + 1)) } else { Ok(copy) }
}
