//! Copies of libfabric and libefa on the loader's path: which there are, whether they agree, and
//! whether the one that was loaded is the one that was meant. (Loading itself is in
//! [`super::fabric::start`], in a child process.)

use std::path::Path;

use crate::check::{Check, Nature, Outcome, Outcomes, Problem, Unit};
use crate::model::{Kind, Who};
use crate::system::System;
use crate::system::loader::{Copy, INSTALLER, LIBFABRIC};

/// What the checks of this category look at.
#[derive(Debug)]
pub(crate) struct Libraries {
    /// The machine.
    pub(crate) system: System,
    /// The libfabric that the child process loaded, if it did.
    pub(crate) loaded: Option<String>,
}

/// The checks of libfabric's copies, after loading.
pub(crate) static OF_LIBFABRIC: &[Unit<Libraries>] = &[
    unit("LIB-003", "The libfabric loaded is the one meant", Nature::Any, &["LIB-001"], meant),
    unit("LIB-004", "One libfabric is on the loader's path", Nature::Any, &[], one_libfabric),
];

/// The checks of libefa's copies.
pub(crate) static OF_LIBEFA: &[Unit<Libraries>] = &[
    unit("LIB-005", "libefa can hand out queues", Nature::Hardware, &[], libefa),
    unit("LIB-006", "One libefa is on the loader's path", Nature::Hardware, &[], one_libefa),
];

const fn unit(
    code: &'static str,
    title: &'static str,
    nature: Nature,
    needs: &'static [&'static str],
    run: fn(&mut Libraries) -> Outcomes,
) -> Unit<Libraries> {
    Unit { check: Check { code, title, kind: Kind::Declared, nature, needs }, run }
}

fn meant(libraries: &mut Libraries) -> Outcomes {
    let Some(loaded) = libraries.loaded.as_deref() else {
        return Outcome::unknown("which file was loaded is not known").into();
    };
    let resolve = |path: &str| Path::new(path).canonicalize().ok();
    let named = std::env::var("LIBFABRIC_PATH").ok().filter(|path| !path.is_empty());
    let wanted = match &named {
        Some(path) if path.contains('/') => Some(path.clone()),
        Some(_) => None,
        None => INSTALLER
            .iter()
            .map(|place| format!("{place}/libfabric.so.1"))
            .find(|path| resolve(path).is_some()),
    };
    let Some(wanted) = wanted else {
        return Outcome::pass(format!("{loaded}, as the loader found it")).into();
    };
    if resolve(&wanted) == resolve(loaded) {
        return Outcome::pass(loaded).into();
    }
    Outcome::Warn(Problem {
        observed: loaded.to_owned(),
        required: wanted.clone(),
        why: "the EFA installer's libfabric lies beside it, and has what this one may lack".to_owned(),
        fix: format!("put its directory first on LD_LIBRARY_PATH, or set LIBFABRIC_PATH={wanted}"),
        who: Who::Image,
    })
    .into()
}

fn list(copies: &[Copy]) -> String {
    let describe = |copy: &Copy| {
        let release = copy.release.as_deref().map(|release| format!("libfabric {release}, "));
        format!("{} ({}{})", copy.path, release.unwrap_or_default(), copy.file_name())
    };
    copies.iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// Whether copies are of one release, by the versions that they define, by their files' names, and by
/// what they name themselves.
fn agree(copies: &[Copy]) -> bool {
    let said = |copy: &Copy| (copy.versions.clone(), copy.file_name(), copy.release.clone());
    copies.windows(2).all(|two| said(&two[0]) == said(&two[1]))
}

fn one_libfabric(libraries: &mut Libraries) -> Outcomes {
    let copies = libraries.system.copies(LIBFABRIC);
    if copies.is_empty() {
        return Outcome::unknown("no libfabric.so.1 in the places where a loader looks").into();
    }
    if agree(&copies) {
        return Outcome::pass(list(&copies)).into();
    }
    Outcome::Warn(Problem {
        observed: list(&copies),
        required: "one release of libfabric".to_owned(),
        why: "a program and its plugins may each load another one; their objects do not mix".to_owned(),
        fix: "remove all but one from the image, or set LD_LIBRARY_PATH for every process".to_owned(),
        who: Who::Image,
    })
    .into()
}

/// The first rdma-core that a libefa can be, by the newest version it defines (`libefa.map`).
fn release(copy: &Copy) -> String {
    // The file is named libefa.so.1.<map>.<release>, such as libefa.so.1.4.59.0.
    let named = copy.file_name().strip_prefix("libefa.so.1.").map(crate::system::version_numbers);
    match named.as_deref() {
        Some([_, release, ..]) => format!("rdma-core {release}"),
        _ => format!("defines EFA_{}", join(&copy.newest("EFA_"))),
    }
}

fn join(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

fn libefa(libraries: &mut Libraries) -> Outcomes {
    let copies = libraries.system.copies("libefa.so.1");
    let missing = |observed: String| {
        Outcome::Fail(Problem {
            observed,
            required: "libefa of rdma-core 59 or newer (symbol version EFA_1.4)".to_owned(),
            why: "efadv_query_qp_wqs and efadv_query_cq, which the GDA operations call, came with it"
                .to_owned(),
            fix: "install the current EFA installer's rdma-core, or one of 59 or newer, in the image"
                .to_owned(),
            who: Who::Image,
        })
    };
    if copies.is_empty() {
        return missing("no libefa.so.1 in the places where a loader looks".to_owned()).into();
    }
    let answer = |copy: &Copy| {
        let observed = format!("{}: {}", copy.path, release(copy));
        let enough = copy.newest("EFA_").as_slice() >= [1, 4].as_slice();
        let outcome = if enough { Outcome::pass(observed) } else { missing(observed) };
        (Some(copy.path.clone()), outcome)
    };
    Outcomes(copies.iter().map(answer).collect())
}

fn one_libefa(libraries: &mut Libraries) -> Outcomes {
    let copies = libraries.system.copies("libefa.so.1");
    if copies.is_empty() {
        return Outcome::unknown("no libefa.so.1 in the places where a loader looks").into();
    }
    if agree(&copies) {
        return Outcome::pass(list(&copies)).into();
    }
    Outcome::Warn(Problem {
        observed: list(&copies),
        required: "one release of libefa".to_owned(),
        why: "libfabric loads whichever comes first for its process, not for the file you looked at"
            .to_owned(),
        fix: "remove all but one from the image".to_owned(),
        who: Who::Image,
    })
    .into()
}
