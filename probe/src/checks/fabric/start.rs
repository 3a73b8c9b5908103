//! The checks without a subject: loading libfabric and finding adapters.

use std::time::Instant;

use efa_gda::fabric::{EFA_DIRECT, Info, Library, Query, QueryOption, Version};
use efa_gda::{Error, ErrorKind};
use efa_gda_sys::LoadError;

use super::{Session, failure, gpu_memory, refused};
use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::dev;
use crate::checks::session::{missing, not_named, open};
use crate::model::{Memory, Op, Party};
use crate::releases::{ADAPTER_EFA4, EFA_DIRECT as EFA_DIRECT_FABRIC, XPU};
use crate::system::System;
use crate::system::adapters::{Adapter, ForeignDevice};
use crate::system::loader::LIBFABRIC;
use crate::worker::Event;

/// The first release in which FI_PROVIDER_PATH can set the order of providers.
const FIRST_WITH_ORDER: Version = Version::new(2, 0);

/// The libfabric that is required.
pub(crate) const LIBFABRIC_REQUIRED: &str = "libfabric.so.1 of release 1.17 or newer";

pub(crate) fn loads(session: &mut Session) -> Checked {
    let library = match Library::load() {
        Err(error) if session.request.soft && is_absent(&error) => return without_libfabric(session),
        Err(error) if matches!(error.cause(), Some(LoadError::Named { .. })) => {
            return Err(wrong_name(session, &error));
        }
        loaded => loaded.map_err(refused)?,
    };
    let path = library.path().display().to_string();
    if session.request.soft && library.version() >= FIRST_WITH_ORDER {
        prefer_software_adapter();
    }
    session.start.library = Some(library);
    session.reports.push(Event::Loaded(path.clone()));
    Outcome::pass(path).into()
}

/// Whether no libfabric was found. A file that exists and does not load is another matter.
fn is_absent(error: &Error) -> bool {
    // glibc's text. For a dependency that is missing, it names the dependency.
    let no_file = |attempt: &String| {
        attempt.contains("libfabric.so.1: cannot open shared object file: No such file or directory")
    };
    match error.cause() {
        Some(LoadError::NotFound { attempts }) => attempts.iter().all(no_file),
        _ => false,
    }
}

/// The failure to load the file that LIBFABRIC_PATH names; `error` has its name and value.
fn wrong_name(session: &Session, error: &Error) -> Outcomes {
    let system = System { root: session.request.root.clone(), ..System::default() };
    let found: Vec<String> = system.copies(LIBFABRIC).into_iter().map(|copy| copy.path).collect();
    let loads = match &found[..] {
        [] => "which finds none here: install libfabric in the image as well".to_owned(),
        found => format!("which finds {}", found.join(", ")),
    };
    Outcome::fail(error.what())
        .required(format!("LIBFABRIC_PATH unset, or the file of a {LIBFABRIC_REQUIRED}"))
        .fix(
            format!(
                "correct LIBFABRIC_PATH, or unset it, so that libfabric is found on the loader's path or in \
             /opt/amazon/efa/lib, {loads}"
            ),
            Party::Job,
        )
        .into()
}

/// Opens the software adapter without libfabric, so that a container without libfabric shows everything else.
fn without_libfabric(session: &mut Session) -> Checked {
    let provider = open(&session.request.provider, "the software adapter")?;
    // SAFETY: the file is softefa's provider, of this release or the one that the user named.
    let opened = unsafe { Library::of_provider(provider) };
    let library = opened.map_err(refused)?;
    session.start.library = Some(library);
    session.start.bare = true;
    Outcome::warn(
        "no libfabric.so.1 on the loader's path or in /opt/amazon/efa; the software adapter was opened \
         without it",
    )
    .why(
        "the results below are of the software adapter alone; programs open adapters through \
             libfabric, of which nothing was checked",
    )
    .fix(
        "install libfabric in the image: the EFA installer's for an adapter, libfabric1 of Debian for \
         the software adapter",
        Party::Image,
    )
    .into()
}

/// Puts `@` before the directories of FI_PROVIDER_PATH: their providers then take precedence over built-in
/// providers of the same name, independent of versions.
fn prefer_software_adapter() {
    let name = "FI_PROVIDER_PATH";
    let Some(path) = std::env::var_os(name) else { return };
    let mut preferred = std::ffi::OsString::from("@");
    preferred.push(path);
    // SAFETY: this process has one thread, because libfabric was loaded and not yet called.
    unsafe { std::env::set_var(name, preferred) };
}

pub(crate) fn version(session: &mut Session) -> Checked {
    let library = open(&session.start.library, "libfabric")?;
    let (version, api) = (library.version(), library.api_version());
    if session.start.bare {
        return Outcome::unknown("no libfabric was loaded (LIB-001)").into();
    }
    Outcome::pass(format!("libfabric {version}, used at API {api}")).into()
}

pub(crate) fn provider(session: &mut Session) -> Checked {
    let library = open(&session.start.library, "libfabric")?;
    let begin = Instant::now();
    // Inline RDMA writes need 128-byte entries; other operations use the default.
    let wide = session.request.put.op == Op::InlineWrite;
    let found =
        Query::new().wide_entries(wide).gpu_memory(session.request.memory == Memory::Gpu).find(library);
    let milliseconds = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    session.reports.push(Event::Started(milliseconds));
    let outcome = match &found {
        Ok(infos) => {
            let first = infos.first().map(Info::provider_version);
            let version = first.map(|version| version.to_string()).unwrap_or_default();
            Outcome::pass(format!("efa provider {version}")).into()
        }
        Err(error) if error.kind() == ErrorKind::NoDirectFabric => Outcome::pass(error.what()).into(),
        Err(error) if session.request.soft => Err(no_software_adapter(error)),
        Err(error) => Err(no_adapter(session, error)),
    };
    session.start.lookup = Some(found);
    outcome
}

/// The failure of a query on hardware. Its `who` is the role that can apply the fix.
fn no_adapter(session: &Session, error: &Error) -> Outcomes {
    let observed = error.what().to_owned();
    let system = System { root: session.request.root.clone(), ..System::default() };
    let foreign = system.unusable_verbs_devices();
    let outcome = match error.kind() {
        ErrorKind::NoAdapter if !foreign.is_empty() => {
            let devices: Vec<String> = foreign.iter().map(ForeignDevice::describe).collect();
            Outcome::fail(format!(
                "sysfs shows a verbs device of another vendor, which does not open here: {}; {observed}",
                devices.join(", ")
            ))
            .why(
                "libfabric opens every verbs device that sysfs shows, also one without a node in the \
             container, and finds no adapter at all if one of them does not open",
            )
            .fix(
                "get the devices from the EFA device plugin 0.5.10 or newer (request \
             vpc.amazonaws.com/efa), and remove the hostPath mount of /dev/infiniband; if the \
             failure remains, the operator of the machine must unload the other vendor's driver: \
             `modprobe -r mlx5_ib`",
                Party::Pod,
            )
        }
        ErrorKind::NoAdapter if system.all_adapters().iter().any(Adapter::needs_newest_rdma_core) => {
            Outcome::fail(format!("{observed}; {} are on the PCI bus", ADAPTER_EFA4.piece)).hint(format!(
                "install an rdma-core that knows {} in the image ({}), such as the current EFA installer's",
                ADAPTER_EFA4.piece, ADAPTER_EFA4.first
            ))
        }
        ErrorKind::NoAdapter if system.all_adapters().is_empty() => {
            Outcome::fail(format!("no EFA adapter is on the PCI bus; {observed}"))
                .fix(dev::ATTACH, Party::Account)
        }
        ErrorKind::NoAdapter if has_no_node(&system) => {
            Outcome::fail(format!("no adapter has its device node in /dev/infiniband (DEV-005); {observed}"))
                .fix(
                    "fix DEV-005 first: give the container the adapters' nodes in /dev/infiniband",
                    Party::Pod,
                )
        }
        ErrorKind::NoAdapter => Outcome::fail(observed),
        ErrorKind::WithoutOption(QueryOption::GpuMemory) => Outcome::fail(observed)
            .why("the bytes are in memory of the GPU, which the provider registers only with FI_HMEM")
            .hint(gpu_memory::WITH_CUDA),
        ErrorKind::WithoutOption(_) => {
            Outcome::fail(observed).why("an inline RDMA write needs 128-byte entries").fix(
                "use another --op, or an adapter with 128-byte entries and rdma-core 63 or newer",
                Party::Caller,
            )
        }
        _ => failure(error),
    };
    outcome.into()
}

/// Whether the kernel shows adapters, and none of their device nodes exists.
fn has_no_node(system: &System) -> bool {
    let nodes: Vec<String> = system.all_adapters().iter().filter_map(dev::node_path).collect();
    !nodes.is_empty() && !nodes.iter().any(|node| system.exists(node))
}

/// The failure of a query for the software adapter, which has no hardware cause.
fn no_software_adapter(error: &Error) -> Outcomes {
    let mut set: Vec<String> = std::env::vars_os()
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
        .filter(|set| set.starts_with("SOFTEFA_") && !set.starts_with(crate::soft::SOFTEFA_LIBRARY))
        .collect();
    set.sort();
    let set = if set.is_empty() { String::new() } else { format!("; set: {}", set.join(", ")) };
    Outcome::fail(format!("{}{set}", error.what().to_owned()))
        .expects(
            "the software adapter, as a provider named efa",
            "softefa's provider did not start, or this libfabric did not load it",
        )
        .fix(
            "read softefa's messages on stderr (more with SOFTEFA_LOG=1); correct the SOFTEFA_* \
             variables that are set (docs/softefa.md lists their values), and unset FI_PROVIDER \
             if it excludes efa",
            Party::Job,
        )
        .into()
}

pub(crate) fn direct(session: &mut Session) -> Checked {
    let found = session.start.lookup.take().ok_or_else(|| missing("the list of adapters"))?;
    session.start.infos = found.map_err(|error| {
        let (piece, release) = (EFA_DIRECT_FABRIC.piece, EFA_DIRECT_FABRIC.describe());
        failure(&error).required(format!("{piece}, from {release} on"))
    })?;
    Outcome::pass(format!("{EFA_DIRECT} on {}", names(&session.start.infos).join(", "))).into()
}

fn names(infos: &[Info]) -> Vec<String> {
    infos.iter().map(|info| info.domain_name().into_owned()).collect()
}

pub(crate) fn chosen(session: &mut Session) -> Checked {
    let found = names(&session.start.infos);
    let Some(wanted) = session.request.device.clone() else {
        return Outcome::pass(format!("all adapters ({})", found.len())).into();
    };
    session.start.infos.retain(|info| info.matches_name(&wanted));
    if !session.start.infos.is_empty() {
        return Outcome::pass(names(&session.start.infos).join(", ")).into();
    }
    not_named(&wanted, &found, "a libfabric domain or its RDMA device").into()
}

/// FI_XPU is one of two ways to a queue that a GPU drives, so its absence is no failure.
pub(crate) fn xpu(session: &mut Session) -> Checked {
    let library = open(&session.start.library, "libfabric")?;
    let version = library.version().to_string();
    if !XPU.is_in(&version) {
        let observed = Some(format!("libfabric {version}"));
        return Outcome::Unknown(observed, format!("{} came with {}", XPU.piece, XPU.describe())).into();
    }
    match Query::new().xpu(true).find(library) {
        Ok(infos) => Outcome::pass(offered(&infos)).into(),
        Err(error) => {
            let why = format!("this provider does not offer {}, which the GDA operations replace", XPU.piece);
            Outcome::Unknown(Some(error.what().to_owned()), why).into()
        }
    }
}

/// Where FI_XPU is offered. Nothing is exported to find out more, because a crash in a provider's export would end this
/// worker process before it opens an adapter.
fn offered(infos: &[Info]) -> String {
    let contexts = |info: &Info| {
        format!("{} (contexts: {})", info.domain_name(), info.max_xpu_contexts().unwrap_or_default())
    };
    let on: Vec<String> = infos.iter().map(contexts).collect();
    format!(
        "offered on {}; its layout is the provider's own: kernels need this libfabric's \
             device functions; the queues of this report come through the GDA operations",
        on.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use efa_gda::fabric::Info;
    use efa_gda_sys::fi;

    use super::offered;

    #[test]
    fn a_domain_with_fi_xpu_is_reported_with_its_contexts() {
        let mut domain = fi::fi_domain_attr {
            max_xpu_ctx_cnt: 3,
            name: c"efa_0-rdm".as_ptr().cast_mut(),
            ..Default::default()
        };
        let mut fabric = fi::fi_fabric_attr { api_version: fi::fi_version(2, 7), ..Default::default() };
        let mut info =
            fi::fi_info { domain_attr: &mut domain, fabric_attr: &mut fabric, ..Default::default() };
        // SAFETY: a complete info, which outlives the borrow.
        let observed = offered(&[unsafe { Info::borrow(NonNull::from(&mut info)) }]);
        assert!(observed.contains("efa_0-rdm (contexts: 3); its layout is the provider's own"), "{observed}");
    }
}
