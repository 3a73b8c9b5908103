//! Copies of libfabric and libefa on the loader's path: their releases, whether these differ, and whether
//! the intended libfabric was loaded. [`super::fabric::start`] loads it, in a worker process.

use std::path::Path;

use crate::check::{Checked, Load, Outcome, Outcomes};
use crate::model::{GpuChoice, Party, Via};
use crate::releases::{GDA_OPS, QUEUE_QUERIES};
use crate::system::System;
use crate::system::loader::{Copy, INSTALLER, LIBFABRIC};

/// libefa's soname.
const LIBEFA: &str = "libefa.so.1";

/// The state of these checks.
#[derive(Debug)]
pub(crate) struct Libraries {
    /// The machine.
    pub(crate) system: System,
    /// The file of libfabric that the worker process loaded.
    pub(crate) loaded: Option<String>,
}

const LOADS: [Load; 3] = [Load::Libfabric, Load::RdmaCore, Load::Cuda];

/// How a user names a library of this container.
fn option(library: Load) -> &'static str {
    match library {
        Load::Libfabric => "LIBFABRIC_PATH",
        Load::RdmaCore => "RDMA_CORE_LIBDIR",
        Load::Cuda => "--gpu NUMBER",
    }
}

/// Whether the user names the library of this container.
fn is_named(system: &System, library: Load) -> bool {
    match library {
        Load::Cuda => matches!(system.gpu, Some(GpuChoice::Number(_))),
        other => system.env(option(other)).is_some_and(|path| !path.is_empty()),
    }
}

/// The libraries of this container that no check may load, because the files of another system are checked, and the user
/// does not name the library. Libraries of that system cannot be loaded here: they need its C library.
pub(crate) fn left_out(system: &System) -> Vec<Load> {
    let left_out = |library: &Load| system.is_foreign() && !system.soft && !is_named(system, *library);
    LOADS.into_iter().filter(left_out).collect()
}

pub(crate) fn choice(system: &mut System) -> Checked {
    if !system.is_foreign() {
        return Outcome::pass("those of this machine").into();
    }
    let named: Vec<_> = LOADS.into_iter().filter(|one| is_named(system, *one)).map(option).collect();
    let root = system.root.display();
    let observed = match (system.soft, &named[..]) {
        (true, _) => "this container's, for the software adapter".to_owned(),
        (false, []) => format!("none: --root {root} names the files of another system"),
        (false, named) => {
            format!("this container's, as named by {}; none otherwise (--root {root})", named.join(", "))
        }
    };
    Outcome::pass(observed).into()
}

pub(crate) fn intended(libraries: &mut Libraries) -> Checked {
    if libraries.system.via == Via::Verbs {
        return Ok(Outcomes::none());
    }
    let Some(loaded) = libraries.loaded.as_deref() else {
        return Outcome::unknown("the file that was loaded is not known").into();
    };
    let resolve = |path: &str| Path::new(path).canonicalize().ok();
    let named = std::env::var("LIBFABRIC_PATH").ok().filter(|path| !path.is_empty());
    let wanted = match &named {
        Some(path) if path.contains('/') => Some(path.clone()),
        Some(_) => None,
        None => INSTALLER
            .iter()
            .map(|directory| format!("{directory}/libfabric.so.1"))
            .find(|path| resolve(path).is_some()),
    };
    let Some(wanted) = wanted else {
        return Outcome::pass(format!("{loaded}, found by the loader")).into();
    };
    if resolve(&wanted) == resolve(loaded) {
        return Outcome::pass(loaded).into();
    }
    Outcome::warn(loaded)
        .expects(
            wanted.clone(),
            "the required file is the one that LIBFABRIC_PATH names or the EFA installer's; the \
             loaded one may lack operations that it has",
        )
        .fix(
            format!("set LIBFABRIC_PATH={wanted}, or put its directory first on LD_LIBRARY_PATH"),
            Party::Image,
        )
        .into()
}

fn list(copies: &[Copy]) -> String {
    let describe = |copy: &Copy| {
        let release = copy.release.as_deref().map(|release| format!("libfabric {release}, "));
        format!("{} ({}{})", copy.path, release.unwrap_or_default(), copy.file_name())
    };
    copies.iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// Whether the copies are of one release, by the symbol versions that they define, by their file names, and
/// by the release in the file.
fn agree(copies: &[Copy]) -> bool {
    let identity = |copy: &Copy| (copy.versions.clone(), copy.file_name(), copy.release.clone());
    copies.windows(2).all(|two| identity(&two[0]) == identity(&two[1]))
}

/// Whether the copies of `soname` on the loader's path are of one release of `library`.
fn one_release(system: &System, soname: &str, library: &str, why: &str, fix: &str) -> Checked {
    let copies = system.copies(soname);
    if copies.is_empty() {
        return Outcome::unknown(format!("no {soname} in the loader's directories")).into();
    }
    if agree(&copies) {
        return Outcome::pass(list(&copies)).into();
    }
    Outcome::warn(list(&copies))
        .expects(format!("one release of {library}"), why)
        .fix(fix, Party::Image)
        .into()
}

pub(crate) fn one_libfabric(libraries: &mut Libraries) -> Checked {
    if libraries.system.via == Via::Verbs {
        return Ok(Outcomes::none());
    }
    let why = "a program and its plugin may load different copies, which cannot share objects";
    let fix = "remove all but one from the image (keep the EFA installer's, in /opt/amazon/efa, if \
             it is there), or set one LD_LIBRARY_PATH for every process";
    one_release(&libraries.system, LIBFABRIC, "libfabric", why, fix)
}

pub(crate) fn one_libefa(libraries: &mut Libraries) -> Checked {
    let why = "libfabric loads the first copy on the path of its process, which may lack the efadv queries";
    one_release(&libraries.system, LIBEFA, "libefa", why, "remove all but the newest from the image")
}

/// LIB-009: what the file of a libfabric that was not loaded says.
pub(crate) fn release_of_root(libraries: &mut Libraries) -> Checked {
    if libraries.system.via == Via::Verbs || !left_out(&libraries.system).contains(&Load::Libfabric) {
        return Ok(Outcomes::none());
    }
    let copies = libraries.system.copies(LIBFABRIC);
    let Some(first) = copies.first() else {
        return Outcome::unknown(format!("no {LIBFABRIC} in the loader's directories")).into();
    };
    let observed = list(&copies[..1]);
    match first.release.as_deref() {
        Some(release) if GDA_OPS.is_in(release) => Outcome::pass(observed).into(),
        Some(_) => Outcome::fail(observed).into(),
        None => Outcome::Unknown(Some(observed), "the file states no release".to_owned()).into(),
    }
}

/// The rdma-core release of a libefa by its file name; otherwise the newest symbol version that it defines
/// (`libefa.map`).
fn release(copy: &Copy) -> String {
    // The file name is libefa.so.1.<map>.<release>, such as libefa.so.1.4.59.0.
    let named = copy.file_name().strip_prefix("libefa.so.1.").map(crate::system::version_numbers);
    match named.as_deref() {
        Some([_, release, ..]) => format!("rdma-core {release}"),
        _ => format!("defines EFA_{}", join(&copy.newest("EFA_"))),
    }
}

fn join(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

pub(crate) fn libefa(libraries: &mut Libraries) -> Checked {
    let copies = libraries.system.copies(LIBEFA);
    let missing = |observed: String| {
        Outcome::fail(observed)
            .expects(
                format!("libefa of {} or newer (symbol version EFA_1.4)", QUEUE_QUERIES.describe()),
                "the GDA operations call efadv_query_qp_wqs and efadv_query_cq, which that release added",
            )
            .fix(
                format!(
                    "install {} or newer in the image, such as the current EFA installer's",
                    QUEUE_QUERIES.describe()
                ),
                Party::Image,
            )
    };
    if copies.is_empty() {
        return missing("no libefa.so.1 in the loader's directories".to_owned()).into();
    }
    let outcome = |copy: &Copy| {
        let observed = format!("{}: {}", copy.path, release(copy));
        let enough = copy.newest("EFA_").as_slice() >= [1, 4].as_slice();
        let outcome = if enough { Outcome::pass(observed) } else { missing(observed) };
        (Some(copy.path.clone()), outcome)
    };
    Ok(Outcomes(copies.iter().map(outcome).collect()))
}
