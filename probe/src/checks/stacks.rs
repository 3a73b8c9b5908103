//! The libraries of NCCL's EFA-GDA: NCCL with its EFA plugin, and GDRCopy with its kernel module. Their releases must
//! fit each other; queues that a program opens itself need none of them.

use crate::check::{Checked, Outcome, Problem};
use crate::model::{Party, StackName};
use crate::releases::{
    GDRCOPY_FOR_GIN, GIN_BACKEND_2, GIN_EFA_GDA, PLUGIN_FOR_BACKEND_2, PLUGIN_FOR_GIN, Release,
};
use crate::system::elf;
use crate::system::packages::Package;
use crate::system::processes::{Loaded, Processes};
use crate::system::{System, version_numbers};

/// The release of the plugin that NCCL of this release needs for EFA-GDA; None for an NCCL without EFA-GDA.
fn needed(nccl: &str) -> Option<&'static Release> {
    if GIN_BACKEND_2.is_in(nccl) {
        return Some(&PLUGIN_FOR_BACKEND_2);
    }
    GIN_EFA_GDA.is_in(nccl).then_some(&PLUGIN_FOR_GIN)
}

/// LIB-007: the first copies on disk, which the next process loads, and those that running processes have loaded.
pub(crate) fn plugin(system: &mut System) -> Checked {
    let processes = system.loaded_nccl();
    let on_disk = plugin_on_disk(system);
    let running = describe(&processes);
    let with = |observed: String| match &running {
        Some(running) => format!("{observed}; {running}"),
        None => observed,
    };
    let outcome = match (on_disk, misfit(&processes)) {
        (Outcome::Warn(problem), _) => Outcome::Warn(Problem { observed: with(problem.observed), ..problem }),
        (_, Some((one, needs))) => Outcome::Warn(outdated(one, needs)),
        (Outcome::Pass(observed), None) => Outcome::Pass(with(observed)),
        (Outcome::Unknown(observed, why), None) => match (observed, fitting(&processes)) {
            (None, true) => Outcome::pass(running.unwrap_or_default()),
            // The user asks whether NCCL's EFA-GDA can run here.
            (observed, _) if is_asked(system) => {
                Outcome::warn(observed.map(with).or(running).unwrap_or_else(|| why.clone())).why(why)
            }
            (observed, _) => Outcome::Unknown(observed.map(with).or(running), why),
        },
        (other, None) => other,
    };
    outcome.into()
}

/// What running processes have loaded, and what of them could not be read; None if nothing is loaded or hidden.
fn describe(processes: &Processes) -> Option<String> {
    let count = |number: usize| format!("{number} process{}", if number == 1 { "" } else { "es" });
    let one = |one: &Loaded| {
        let plugin = one.plugin.as_ref().map_or_else(|| "no EFA plugin so far".to_owned(), Package::describe);
        format!("loaded in {}: {} with {plugin}", count(one.processes), one.nccl.describe())
    };
    let mut parts: Vec<String> = processes.loaded.iter().map(one).collect();
    if processes.unreadable > 0 {
        let (many, user) = (count(processes.unreadable), "this user may not read what they loaded");
        parts.push(format!("{many} not examined: {user}"));
    }
    if processes.cut {
        parts.push(
            "not all processes were examined: there are too many, or their maps are too long".to_owned(),
        );
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The first process whose plugin is older than its NCCL needs, and the release that it needs.
fn misfit(processes: &Processes) -> Option<(&Loaded, &'static Release)> {
    processes.loaded.iter().find_map(|one| {
        let needs = needed(one.nccl.release.as_deref()?)?;
        let has = one.plugin.as_ref()?.release.as_deref()?;
        (!needs.is_in(has)).then_some((one, needs))
    })
}

/// Whether a process has an NCCL with EFA-GDA and a plugin that fits it.
fn fitting(processes: &Processes) -> bool {
    let fits = |one: &Loaded| {
        let needs = needed(one.nccl.release.as_deref()?)?;
        Some(needs.is_in(one.plugin.as_ref()?.release.as_deref()?))
    };
    processes.loaded.iter().any(|one| fits(one) == Some(true))
}

fn outdated(one: &Loaded, needs: &Release) -> Problem {
    let alone = Processes { loaded: vec![one.clone()], ..Processes::default() };
    Problem::new(describe(&alone).unwrap_or_default())
        .expects(
            format!("{} or newer for {}", needs.describe(), one.nccl.describe()),
            "this NCCL does not know the GIN backend of an older plugin, and does without \
             EFA-GDA in these processes, whatever is on disk here",
        )
        .fix(
            format!(
                "install {} or newer in the image of these processes, check that LD_LIBRARY_PATH and \
             NCCL_NET_PLUGIN lead to it, and start them again",
                needs.describe()
            ),
            Party::Image,
        )
}

/// Whether the user asks if NCCL's EFA-GDA can run here.
fn is_asked(system: &System) -> bool {
    matches!(system.stack, Some(StackName::Nccl | StackName::Deepep))
}

/// The function by which NCCL 2.31.2 and newer find the plugin's GIN of type 5.
const GIN_OF_TYPE_5: &str = "ncclGinPlugin_v14";

fn plugin_on_disk(system: &System) -> Outcome {
    let (nccl, plugins) = (system.nccl(), system.nccl_plugins());
    let Some(release) = nccl.first().and_then(|first| first.release.as_deref()) else {
        return Outcome::unknown("no NCCL with a known release is on this machine");
    };
    let named = |name: &str, one: &Package| {
        format!("{name} {} ({})", one.release.as_deref().unwrap_or("of an unknown release"), one.path)
    };
    let all = nccl.iter().map(|one| named("NCCL", one));
    let all: Vec<String> = all.chain(plugins.iter().map(|one| named("aws-ofi-nccl", one))).collect();
    let observed = all.join(", ");
    let Some(needs) = needed(release) else {
        let why = format!("NCCL {release} has no EFA-GDA: it needs {} or newer", GIN_EFA_GDA.describe());
        return Outcome::Unknown(Some(observed), why);
    };
    let required = format!("{} or newer for NCCL {release}", needs.describe());
    let Some(plugin) = plugins.first() else {
        return Outcome::warn(observed)
            .expects(required, "without the plugin, NCCL reaches other hosts through sockets")
            .hint(format!(
                "install {} or newer in the image, and put its directory on LD_LIBRARY_PATH",
                needs.describe()
            ));
    };
    let fits = |needs: &Release| plugin.release.as_deref().is_some_and(|has| needs.is_in(has));
    if !fits(needs) {
        let why = "this NCCL does not know the GIN backend of an older plugin, and does without EFA-GDA";
        return Outcome::warn(observed).expects(required, why).hint(format!(
            "install {} or newer in the image (the current EFA installer has one) instead of {}",
            needs.describe(),
            plugin.path
        ));
    }
    // Pre-releases and machine images have plugins whose release promises the function.
    if elf::exports(&system.path(&plugin.path), GIN_OF_TYPE_5) == Some(false) {
        return Outcome::warn(format!("{observed}; the plugin does not define {GIN_OF_TYPE_5}"))
            .expects(
                format!("a plugin that defines {GIN_OF_TYPE_5}"),
                "NCCL finds no GIN of type 5 in this plugin, and takes its CPU proxy without an error",
            )
            .hint(format!(
                "install a release of {} in the image instead of {}",
                needs.describe(),
                plugin.path
            ));
    }
    let other =
        nccl.iter().filter_map(|one| one.release.as_deref()).find(|one| !needed(one).is_some_and(fits));
    match other.filter(|_| is_asked(system)) {
        Some(other) => Outcome::warn(observed)
            .expects(
                format!("NCCL {release} alone, or releases that all fit the plugin"),
                format!("programs that load NCCL {other}, as PyTorch loads its own, do without EFA-GDA"),
            )
            .hint(format!("remove NCCL {other} from the image, or install {release} in its place")),
        None => Outcome::pass(observed),
    }
}

pub(crate) fn gdrcopy(system: &mut System) -> Checked {
    let Some(library) = system.gdrapi() else {
        let observed = "no libgdrapi is on the loader's path";
        return match is_asked(system) {
            true => Outcome::warn(observed)
                .fix(
                    format!("install libgdrapi of {} or newer in the image", GDRCOPY_FOR_GIN.describe()),
                    Party::Image,
                )
                .into(),
            false => Outcome::unknown(observed).into(),
        };
    };
    let module = system.read("/sys/module/gdrdrv/version");
    let observed = format!(
        "{}, kernel module gdrdrv {}",
        library.describe(),
        module.as_deref().unwrap_or("is not loaded, or states no version")
    );
    let newer = |left: &str, right: &str| version_numbers(left) >= version_numbers(right);
    let of_library = library.release.as_deref().unwrap_or(GDRCOPY_FOR_GIN.first);
    let (fix, who) = match module.as_deref() {
        Some(module) if newer(module, of_library) && GDRCOPY_FOR_GIN.is_in(of_library) => {
            return Outcome::pass(observed).into();
        }
        Some(module) if newer(module, of_library) => (
            format!("install libgdrapi of {} or newer in the image", GDRCOPY_FOR_GIN.describe()),
            Party::Image,
        ),
        Some(_) => (
            format!("on the host: upgrade the module gdrdrv to {of_library} or newer, and load it again"),
            Party::Operator,
        ),
        None => (
            format!(
                "on the host: load the module gdrdrv of {} or newer (modprobe gdrdrv)",
                GDRCOPY_FOR_GIN.describe()
            ),
            Party::Operator,
        ),
    };
    Outcome::warn(observed).fix(fix, who).into()
}

#[cfg(test)]
mod tests {
    use super::needed;

    #[test]
    fn each_nccl_needs_the_plugin_that_users_needed() {
        let first = |nccl| needed(nccl).map(|release| release.first);
        assert_eq!(first("2.30.4"), None);
        assert_eq!(first("2.31.2"), Some("1.21"));
        assert_eq!(first("2.32.3"), Some("1.22"));
    }
}
