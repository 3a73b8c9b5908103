//! Copies of the libraries of NCCL's stack: whether programs find the plugin, whether all copies are of one release, and
//! whether the plugin loads the libfabric of programs. Nothing is loaded.

use std::path::{Path, PathBuf};

use crate::check::{Checked, Outcome, Outcomes};
use crate::system::System;
use crate::system::elf;
use crate::system::loader::LIBFABRIC;
use crate::system::packages::Package;

/// LIB-010.
pub(crate) fn plugin_is_found(system: &mut System) -> Checked {
    let plugins = system.nccl_plugins();
    let Some(first) = plugins.first() else {
        return Outcome::unknown("no aws-ofi-nccl is on this machine").into();
    };
    let directories = system.loader_directories();
    let is_named = system.env("NCCL_NET_PLUGIN").is_some_and(|name| name.to_string_lossy().contains('/'));
    let is_searched = Path::new(&first.path).parent().is_some_and(|one| directories.iter().any(|d| d == one));
    if is_named || is_searched {
        return Outcome::pass(&first.path).into();
    }
    let dangling = directories.iter().filter(|one| one.to_string_lossy().contains("ofi-nccl"));
    let dangling: Vec<String> =
        dangling.filter(|one| !system.exists(one)).map(|one| one.display().to_string()).collect();
    let searched = match dangling.is_empty() {
        true => String::new(),
        false => format!("; the loader searches {}, which does not exist", dangling.join(", ")),
    };
    let folder = Path::new(&first.path).parent().unwrap_or(Path::new("/")).display();
    Outcome::warn(format!("{}, where the loader does not look{searched}", first.path))
        .hint(format!("put {folder} on LD_LIBRARY_PATH, or in a file of /etc/ld.so.conf.d and run ldconfig"))
        .into()
}

/// The copies of a library and their releases, if there are several releases.
fn differ(copies: &[Package]) -> bool {
    copies.windows(2).any(|two| two[0].release != two[1].release)
}

/// LIB-011.
pub(crate) fn one_release(system: &mut System) -> Checked {
    let release = |copy: &crate::system::loader::Copy| Package {
        path: copy.path.clone(),
        release: copy.versions.last().cloned(),
    };
    let verbs = system.copies("libibverbs.so.1").iter().map(release).collect();
    let all = [("NCCL", system.nccl()), ("aws-ofi-nccl", system.nccl_plugins()), ("libibverbs", verbs)];
    let judge = |(name, copies): (&str, Vec<Package>)| {
        let listed: Vec<String> = copies.iter().map(Package::describe).collect();
        let outcome = match differ(&copies) {
            _ if copies.is_empty() => return None,
            false => Outcome::pass(listed.join(", ")),
            true => Outcome::warn(listed.join(", ")).hint(format!(
                "remove all but one {name} from the image; programs take the first unless they bring theirs"
            )),
        };
        Some((Some(name.to_owned()), outcome))
    };
    let outcomes: Vec<_> = all.into_iter().filter_map(judge).collect();
    match outcomes.is_empty() {
        true => Outcome::unknown("none of these libraries is on this machine").into(),
        false => Ok(Outcomes(outcomes)),
    }
}

/// LIB-012: the libfabric that the plugin's own search path names, against the first on the loader's path.
pub(crate) fn one_libfabric(system: &mut System) -> Checked {
    let plugins = system.nccl_plugins();
    let search =
        plugins.first().and_then(|plugin| Some((plugin, elf::run_path(&system.path(&plugin.path))?)));
    let Some((plugin, directories)) = search else {
        return Outcome::unknown("no aws-ofi-nccl whose file states where it searches libraries").into();
    };
    let folder = Path::new(&plugin.path).parent().unwrap_or(Path::new("/"));
    let named =
        directories.iter().map(|one| PathBuf::from(one.replace("$ORIGIN", &folder.to_string_lossy())));
    let exists = |path: &PathBuf| system.path(path).canonicalize().ok();
    let named = named.map(|one| one.join(LIBFABRIC)).find_map(|path| Some((exists(&path)?, path)));
    let copies = system.copies(LIBFABRIC);
    match (named, copies.first()) {
        (Some((file, path)), Some(first)) if file != first.file => Outcome::warn(format!(
            "the plugin names {}, and programs find {} first",
            path.display(),
            first.path
        ))
        .into(),
        (Some((_, path)), _) => Outcome::pass(path.display()).into(),
        (None, Some(first)) => Outcome::pass(&first.path).into(),
        (None, None) => Outcome::unknown(format!("no {LIBFABRIC} in the loader's directories")).into(),
    }
}
