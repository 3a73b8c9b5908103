//! The environment: the kind of adapter, the machine, limits, and environment variables that libfabric reads.

use std::path::Path;

use crate::check::{Checked, ON_SOFTWARE_ADAPTER, Outcome, Outcomes, Problem};
use crate::model::{Party, SOFTWARE_ADAPTER, Via};
use crate::soft::Unready;
use crate::system::instance::GDA_FAMILIES;
use crate::system::{System, version_numbers};

/// Variables that make the efa provider abort the process (libfabric 2.6, `efa_env.c`).
const ABORTING: [&str; 3] = ["FI_EFA_MTU_SIZE", "FI_EFA_TX_IOV_LIMIT", "FI_EFA_RX_IOV_LIMIT"];
/// The least number of bytes that the probe itself locks: its test buffers and the rings.
const LOCK_LEAST: u64 = 1 << 20;
/// Below this limit, the first transport that registers its buffers reaches it.
const LOCK_ENOUGH: u64 = 1 << 30;
/// How the limit is raised.
pub(crate) const RAISE_MEMLOCK: &str =
    "raise RLIMIT_MEMLOCK, which bounds locked memory, where the job is started, and start it again";
/// How each platform raises it, after what shows that the process runs there.
const PLATFORMS: [(&str, &str); 5] = [
    ("KUBERNETES_SERVICE_HOST", "Kubernetes: capability IPC_LOCK (effective for root only)"),
    ("SLURM_JOB_ID", "Slurm: LimitMEMLOCK=infinity in slurmd.service"),
    ("/.dockerenv", "Docker: --ulimit memlock=-1"),
    ("INVOCATION_ID", "systemd: LimitMEMLOCK=infinity in the service"),
    ("", "Shell: ulimit -l unlimited"),
];
/// The bit of CAP_IPC_LOCK in a capability mask (`linux/capability.h`).
const CAP_IPC_LOCK: u64 = 1 << 14;

pub(crate) fn adapter_kind(system: &mut System) -> Checked {
    match (&system.provider, system.soft) {
        (_, false) => Outcome::pass("hardware (no --soft)").into(),
        (Some(Ok(provider)), true) => {
            Outcome::pass(format!("software adapter, provider {}", described(provider))).into()
        }
        (Some(Err(Unready::Provider(reason))), true) => Outcome::fail(reason.clone())
            .expects(
                "softefa's provider library",
                "under --soft, libfabric loads the software adapter from this file",
            )
            .fix(
                format!(
                    "build it (cargo build{} -p softefa), or set SOFTEFA_LIBRARY to its path",
                    crate::executable::CARGO_RELEASE_FLAG
                ),
                Party::Image,
            )
            .into(),
        (Some(Err(Unready::Memory(reason))), true) => Outcome::fail(reason.clone())
            .expects(
                "a memory file with the provider library, and /proc",
                "the software adapter is a part of this program, and a library is loaded from a file",
            )
            .fix(
                "allow memfd_create in the container's seccomp profile (docker --security-opt \
             seccomp=FILE; Kubernetes: seccompProfile), or name softefa's library in \
             SOFTEFA_LIBRARY",
                Party::Pod,
            )
            .into(),
        (Some(Err(Unready::Directory(reason))), true) => Outcome::fail(reason.clone())
            .expects(
                "a private directory for this run, and a thread that removes it when a signal ends \
             the run",
                "libfabric loads the software adapter from a directory that must hold nothing else",
            )
            .fix(
                "set TMPDIR to a directory that exists and is writable, without a colon in its path \
             (in a container with a read-only root: docker --tmpfs /tmp; Kubernetes: an emptyDir \
             at /tmp); if the limit of processes was reached, raise it (ulimit -u)",
                Party::Pod,
            )
            .into(),
        // Under rdma-core, `softefa run` starts the adapter before this process.
        (None, true) => Outcome::pass("software adapter under rdma-core (softefa run)").into(),
    }
}

/// The provider's file, for people: an embedded one is used from a descriptor.
fn described(provider: &Path) -> String {
    if provider.starts_with("/proc/self/fd") {
        "in this program".to_owned()
    } else {
        provider.display().to_string()
    }
}

pub(crate) fn platform(system: &mut System) -> Checked {
    let kernel = system.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown kernel".to_owned());
    let observed = format!("{} {kernel} on {}", std::env::consts::OS, std::env::consts::ARCH);
    if cfg!(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")) {
        return Outcome::pass(observed).into();
    }
    Outcome::fail(observed).into()
}

pub(crate) fn instance(system: &mut System) -> Checked {
    let product = match system.instance_type() {
        Ok(product) => product,
        Err(observed) => {
            return Outcome::Unknown(Some(observed), "DMI does not identify an EC2 instance".to_owned())
                .into();
        }
    };
    let family = product.split('.').next().unwrap_or_default();
    if GDA_FAMILIES.contains(&family) {
        return Outcome::pass(product).into();
    }
    Outcome::warn(product)
        .expects(
            format!("one of {}", GDA_FAMILIES.join(", ")),
            "AWS documents GPU-Direct Async for these types only; on other types a GPU may not \
             reach doorbells",
        )
        .fix(
            format!(
                "run on {}, unless the QUE and PUT checks pass on this type: they prove what works",
                GDA_FAMILIES.join(", ")
            ),
            Party::Account,
        )
        .into()
}

/// ENV-003. The software adapter locks no memory; what a run on hardware would meet is said.
pub(crate) fn memlock(system: &mut System) -> Checked {
    let outcome = limit_of_memory(system);
    match outcome {
        Outcome::Warn(problem) | Outcome::Fail(problem) if system.soft => {
            let why = format!("on an EFA adapter, {} stops jobs: {}", problem.observed, RAISE_MEMLOCK);
            Outcome::Skip(SOFTWARE_ADAPTER.to_owned(), why).into()
        }
        _ if system.soft => Outcome::Skip(SOFTWARE_ADAPTER.to_owned(), ON_SOFTWARE_ADAPTER.to_owned()).into(),
        outcome => outcome.into(),
    }
}

fn limit_of_memory(system: &System) -> Outcome {
    if system.capabilities().is_some_and(|mask| mask & CAP_IPC_LOCK != 0) {
        return Outcome::pass("no limit (the process has CAP_IPC_LOCK)");
    }
    let limits = system.read("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|rest| rest.split_whitespace().next());
    let bytes = match soft {
        Some("unlimited") => return Outcome::pass("unlimited"),
        Some(number) => number.parse::<u64>().ok(),
        None => None,
    };
    let Some(bytes) = bytes else {
        return Outcome::unknown("/proc/self/limits has no limit of locked memory");
    };
    if bytes >= LOCK_ENOUGH {
        return Outcome::pass(format!("{bytes} bytes"));
    }
    let problem = Problem::new(format!("a limit of {bytes} bytes"))
        .expects(
            format!("unlimited, or at least {LOCK_ENOUGH} bytes"),
            "every registered buffer and ring is locked in memory; beyond the limit, registration fails with \
              ENOMEM",
        )
        .fix(raise_memlock(system), Party::Pod);
    if bytes < LOCK_LEAST { Outcome::Fail(problem) } else { Outcome::Warn(problem) }
}

/// How the limit is raised: first on the platform where this process runs.
fn raise_memlock(system: &System) -> String {
    let is_here = |sign: &str| match sign.starts_with('/') {
        true => system.exists(sign),
        false => !sign.is_empty() && system.env(sign).is_some(),
    };
    let mut platforms = PLATFORMS;
    platforms.sort_by_key(|(sign, _)| !is_here(sign));
    let ways: Vec<String> = platforms.iter().map(|(_, way)| format!("`{way}`")).collect();
    format!("raise RLIMIT_MEMLOCK, and start the job again: {}", ways.join(" "))
}

pub(crate) fn fork(system: &mut System) -> Checked {
    // rdma-core and the efa provider test whether a variable of rdma-core is set: 0 requests as well (`efa_fork_support.c`).
    let is_set = |_| true;
    let is_true = |value: std::ffi::OsString| boolean(&value.to_string_lossy()) == Some(true);
    let requests = [
        setting(system, "RDMAV_FORK_SAFE", is_set),
        setting(system, "IBV_FORK_SAFE", is_set),
        setting(system, "FI_EFA_FORK_SAFE", is_true),
    ];
    let requests: Vec<String> = requests.into_iter().flatten().collect();
    let of_provider = setting(system, "FI_EFA_USE_HUGE_PAGE", is_true);
    let of_rdma_core = setting(system, "RDMAV_HUGEPAGES_SAFE", is_set);
    let meminfo = system.read("/proc/meminfo").unwrap_or_default();
    let pages = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Total:"));
    let pages: u64 = pages.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let huge: Vec<String> = of_provider.iter().chain(&of_rdma_core).cloned().collect();
    let shown: String = huge.iter().map(|set| format!(", {set}")).collect();
    let observed = format!("fork support: {}; huge pages: {pages} reserved{shown}", listed(&requests));
    let kernel = version_numbers(&system.read("/proc/sys/kernel/osrelease").unwrap_or_default());
    // Since Linux 5.13 the kernel copies registered pages on fork, and rdma-core leaves fork support off.
    let copies_on_fork = kernel.as_slice() >= [5, 13].as_slice();
    if requests.is_empty() || copies_on_fork || (pages == 0 && huge.is_empty()) {
        return Outcome::pass(observed).into();
    }
    let unset = format!("if no program of the job forks, unset {}", names_of(&requests));
    if huge.is_empty() {
        return Outcome::warn(observed)
            .expects(
                "fork support without huge pages, or Linux 5.13 or newer",
                "fork support of rdma-core marks memory by small pages, which corrupts registered \
             memory in huge pages",
            )
            .fix(format!("{unset}; otherwise register no memory in huge pages"), Party::Job)
            .into();
    }
    let why = match of_provider {
        Some(_) => {
            "the efa provider aborts a process that requests fork support and the provider's huge pages"
        }
        None => {
            "with fork support and RDMAV_HUGEPAGES_SAFE the efa provider fails, and libfabric \
             finds no adapter"
        }
    };
    let required = format!("with fork support, not set: {}; or Linux 5.13 or newer", names_of(&huge));
    let fix = format!("unset {}; or, {unset}", names_of(&huge));
    // rdma-core alone accepts both.
    match system.via {
        Via::Libfabric => Outcome::fail(observed).expects(required, why).fix(fix, Party::Job).into(),
        Via::Verbs => Outcome::warn(observed).expects(required, why).fix(fix, Party::Job).into(),
    }
}

/// What libfabric reads in a boolean variable. It ignores a variable with any other word (`fi_parse_bool`).
fn boolean(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// `NAME=VALUE` if the variable is set to a value that `holds`.
fn setting(system: &System, name: &str, holds: impl Fn(std::ffi::OsString) -> bool) -> Option<String> {
    let value = system.env(name)?;
    let shown = format!("{name}={}", value.to_string_lossy());
    holds(value).then_some(shown)
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "not requested".to_owned() } else { names.join(", ") }
}

/// The names in settings `NAME=VALUE`.
fn names_of(set: &[String]) -> String {
    let names: Vec<&str> = set.iter().filter_map(|set| set.split('=').next()).collect();
    names.join(" ")
}

pub(crate) fn aborting(system: &mut System) -> Checked {
    let is_not_positive = |value: std::ffi::OsString| {
        value.to_str().and_then(|text| text.parse::<i64>().ok()).is_some_and(|n| n <= 0)
    };
    let set = ABORTING.iter().filter_map(|name| setting(system, name, |_| true));
    let empty = setting(system, "FI_EFA_IFACE", |value| value.is_empty()).map(|set| set + " (empty)");
    let credits =
        setting(system, "FI_EFA_TX_MIN_CREDITS", is_not_positive).map(|set| set + " (not positive)");
    let aborting: Vec<String> = set.chain(empty).chain(credits).collect();
    if aborting.is_empty() {
        return Outcome::pass("no such variable is set").into();
    }
    Outcome::fail(format!("set: {}", aborting.join(", ")))
        .expects(
            format!("not set: {}", names_of(&aborting)),
            "the efa provider of libfabric 2 aborts every process that has this setting",
        )
        .fix(format!("unset {}", names_of(&aborting)), Party::Job)
        .into()
}

/// A variable with values that hide adapters or capabilities from libfabric's clients.
struct Restricting {
    name: &'static str,
    /// Whether no program of libfabric reaches an adapter then.
    stops_all: bool,
    /// Whether a value does so.
    restricts: fn(&str) -> bool,
    /// The effect of such a value.
    why: &'static str,
}

static RESTRICTING: [Restricting; 5] = [
    Restricting {
        name: "FI_PROVIDER",
        stops_all: true,
        restricts: excludes_efa,
        why: "this value keeps libfabric from loading the efa provider",
    },
    Restricting {
        name: "FI_EFA_IFACE",
        stops_all: false,
        restricts: |value| !value.is_empty() && value != "all",
        why: "this value hides every adapter that it does not name",
    },
    Restricting {
        name: "FI_HMEM_DISABLE_P2P",
        stops_all: false,
        restricts: |value| boolean(value) == Some(true),
        why: "this value forbids peer access between GPU memory and the adapter",
    },
    Restricting {
        name: "FI_EFA_USE_DEVICE_RDMA",
        stops_all: false,
        restricts: |value| boolean(value) == Some(false),
        why: "this value disables RDMA on the plain efa fabric, so that comparisons with it mislead",
    },
    Restricting {
        name: "FI_EFA_USE_UNSOLICITED_WRITE_RECV",
        stops_all: false,
        restricts: |value| boolean(value) == Some(false),
        why: "with this value efa-direct offers RMA only to clients that request FI_RX_CQ_DATA",
    },
];

/// Whether an FI_PROVIDER value (provider names, or `^` and the names to exclude) excludes "efa".
fn excludes_efa(value: &str) -> bool {
    let (excluding, names) = match value.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, value),
    };
    let named = names.split(',').any(|name| name.trim().split(';').any(|part| part == "efa"));
    !names.is_empty() && named == excluding
}

pub(crate) fn restricting(system: &mut System) -> Checked {
    let mut outcomes = Vec::new();
    for variable in &RESTRICTING {
        let Some(value) = system.env(variable.name) else { continue };
        let value = value.to_string_lossy().into_owned();
        if !(variable.restricts)(&value) {
            continue;
        }
        let problem = Problem::new(format!("{}={value}", variable.name))
            .expects("not set, or a value without this effect", variable.why)
            .fix(format!("unset {}", variable.name), Party::Job);
        let outcome = match system.via {
            Via::Libfabric if variable.stops_all => Outcome::Fail(problem),
            _ => Outcome::Warn(problem),
        };
        outcomes.push((Some(variable.name.to_owned()), outcome));
    }
    if outcomes.is_empty() {
        return Outcome::pass("no variable has such a value").into();
    }
    Ok(Outcomes(outcomes))
}

#[cfg(test)]
mod tests {
    use super::{boolean, excludes_efa};

    #[test]
    fn booleans_are_interpreted_as_libfabric_does() {
        for (value, read) in [("On", Some(true)), ("0", Some(false)), ("", None), ("2", None)] {
            assert_eq!(boolean(value), read, "{value}");
        }
    }

    #[test]
    fn provider_filters_are_interpreted_as_libfabric_does() {
        for (value, excluded) in
            [("efa", false), ("^efa", true), ("tcp", true), ("^tcp", false), ("shm,efa", false), ("", false)]
        {
            assert_eq!(excludes_efa(value), excluded, "{value}");
        }
    }
}
