//! The environment: adapter kind, machine, limits, and variables that libfabric reads.

use crate::check::{Check, Nature, Outcome, Outcomes, Problem, Unit};
use crate::model::{Kind, Who};
use crate::soft::Unready;
use crate::system::{System, version_numbers};

/// Instance families that AWS gives GPU-Direct Async to, as the name before the dot starts.
const GDA_INSTANCES: [&str; 3] = ["p5en", "p6-b200", "p6-b300"];
/// Variables at which the efa provider aborts the process (libfabric 2.6, `efa_env.c`).
const ABORTING: [&str; 3] = ["FI_EFA_MTU_SIZE", "FI_EFA_TX_IOV_LIMIT", "FI_EFA_RX_IOV_LIMIT"];
/// Bytes that the probe itself pins at least: its test buffers and the rings.
const LOCK_LEAST: u64 = 1 << 20;
/// A limit below this is spent by the first transport that registers its buffers.
const LOCK_ENOUGH: u64 = 1 << 30;
/// The bit of CAP_IPC_LOCK in a capability mask (`linux/capability.h`).
const CAP_IPC_LOCK: u64 = 1 << 14;

/// The checks of this category.
pub(crate) static CHECKS: &[Unit<System>] = &[
    unit("ENV-000", "The kind of adapter is settled", Nature::Any, adapter_kind),
    unit("ENV-001", "This is 64-bit Linux", Nature::Any, platform),
    unit("ENV-002", "The instance type has GPU-Direct Async", Nature::Hardware, instance),
    unit("ENV-003", "Enough memory may be locked", Nature::Hardware, memlock),
    unit("ENV-004", "Fork and huge-page settings agree", Nature::Hardware, fork),
    unit("ENV-005", "No variable aborts libfabric", Nature::Any, aborting),
    unit("ENV-006", "No variable misleads libfabric", Nature::Any, misleading),
];

const fn unit(
    code: &'static str,
    title: &'static str,
    nature: Nature,
    run: fn(&mut System) -> Outcomes,
) -> Unit<System> {
    Unit { check: Check { code, title, kind: Kind::Declared, nature, needs: &[] }, run }
}

fn adapter_kind(system: &mut System) -> Outcomes {
    match (&system.provider, system.soft) {
        (_, false) => Outcome::pass("hardware is probed (no --soft)").into(),
        (Some(Ok(provider)), true) => {
            Outcome::pass(format!("software adapter, provider {}", provider.display())).into()
        }
        (Some(Err(Unready::Provider(reason))), true) => Outcome::Fail(Problem {
            observed: reason.clone(),
            required: "softefa's provider library".to_owned(),
            why: "--soft loads the software adapter into libfabric from that file".to_owned(),
            fix: format!(
                "build it (cargo build{} -p softefa) or name it with SOFTEFA_LIBRARY=FILE",
                crate::executable::CARGO_RELEASE_FLAG
            ),
            who: Who::Image,
        })
        .into(),
        (Some(Err(Unready::Directory(reason))), true) => Outcome::Fail(Problem {
            observed: reason.clone(),
            required:
                "a directory of this run's own, and a thread that removes it when a signal ends the run"
                    .to_owned(),
            why: "libfabric loads the software adapter from a directory that holds nothing else".to_owned(),
            fix: "set TMPDIR to a directory that exists and may be written to; raise the limit on processes \
                  (ulimit -u) where that is what ran out"
                .to_owned(),
            who: Who::Pod,
        })
        .into(),
        // Through rdma-core it is there before this process is.
        (None, true) => Outcome::pass("software adapter under rdma-core (softefa run)").into(),
    }
}

fn platform(system: &mut System) -> Outcomes {
    let kernel = system.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown kernel".to_owned());
    let observed = format!("{} {kernel} on {}", std::env::consts::OS, std::env::consts::ARCH);
    if cfg!(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")) {
        return Outcome::pass(observed).into();
    }
    Outcome::Fail(Problem {
        observed,
        required: "64-bit little-endian Linux".to_owned(),
        why: "EFA has a driver for no other system".to_owned(),
        fix: "run on a Linux instance of x86_64 or aarch64".to_owned(),
        who: Who::Host,
    })
    .into()
}

fn instance(system: &mut System) -> Outcomes {
    let dmi = |file: &str| system.read(format!("/sys/class/dmi/id/{file}")).unwrap_or_default();
    let (vendor, product) = (dmi("sys_vendor"), dmi("product_name"));
    if vendor != "Amazon EC2" {
        let observed = format!("DMI vendor \"{vendor}\", product \"{product}\"");
        return Outcome::Unknown(Some(observed), "DMI does not say that this is EC2".to_owned()).into();
    }
    let family = product.split('.').next().unwrap_or_default();
    if GDA_INSTANCES.contains(&family) {
        return Outcome::pass(product).into();
    }
    Outcome::Warn(Problem {
        observed: product,
        required: format!("one of {}", GDA_INSTANCES.join(", ")),
        why: "AWS names GPU-Direct Async for these types only; elsewhere doorbells may not be reachable"
            .to_owned(),
        fix: "run on one of these types; if the checks of queues and completions pass here, trust them"
            .to_owned(),
        who: Who::Host,
    })
    .into()
}

fn memlock(system: &mut System) -> Outcomes {
    if may_lock_all(system) {
        return Outcome::pass("CAP_IPC_LOCK: no limit applies").into();
    }
    let limits = system.read("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|rest| rest.split_whitespace().next());
    let bytes = match soft {
        Some("unlimited") => return Outcome::pass("unlimited").into(),
        Some(number) => number.parse::<u64>().ok(),
        None => None,
    };
    let Some(bytes) = bytes else {
        return Outcome::unknown("/proc/self/limits does not say how much memory may be locked").into();
    };
    if bytes >= LOCK_ENOUGH {
        return Outcome::pass(format!("{bytes} bytes")).into();
    }
    let trouble = Problem {
        observed: format!("{bytes} bytes"),
        required: format!("unlimited, or at least {LOCK_ENOUGH} bytes"),
        why: "every registered buffer and ring is locked in memory; past the limit registration fails with \
              ENOMEM"
            .to_owned(),
        fix: "raise RLIMIT_MEMLOCK (docker --ulimit memlock=-1; limits.conf; LimitMEMLOCK=infinity), or \
              give the container CAP_IPC_LOCK"
            .to_owned(),
        who: Who::Pod,
    };
    if bytes < LOCK_LEAST { Outcome::Fail(trouble).into() } else { Outcome::Warn(trouble).into() }
}

fn may_lock_all(system: &System) -> bool {
    let status = system.read("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & CAP_IPC_LOCK != 0)
}

fn fork(system: &mut System) -> Outcomes {
    let names = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "FI_EFA_FORK_SAFE"];
    let set: Vec<&str> = names.into_iter().filter(|name| system.env(name).is_some_and(is_on)).collect();
    let meminfo = system.read("/proc/meminfo").unwrap_or_default();
    let pages = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Total:"));
    let pages: u64 = pages.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let kernel = version_numbers(&system.read("/proc/sys/kernel/osrelease").unwrap_or_default());
    let observed = format!("{pages} huge pages reserved, fork support: {}", said(&set));
    let asked_huge = system.env("FI_EFA_USE_HUGE_PAGE").is_some_and(is_on);
    let huge_safe = system.env("RDMAV_HUGEPAGES_SAFE").is_some();
    // Since Linux 5.13 registered pages are copied on fork, and rdma-core leaves fork support off.
    let copies_on_fork = kernel.as_slice() >= [5, 13].as_slice();
    if set.is_empty() || copies_on_fork || huge_safe || (pages == 0 && !asked_huge) {
        return Outcome::pass(observed).into();
    }
    let trouble = Problem {
        observed,
        required: "fork support with RDMAV_HUGEPAGES_SAFE=1, or no huge pages, or Linux 5.13".to_owned(),
        why: "rdma-core's fork support marks pages one by one and corrupts memory in huge pages".to_owned(),
        fix: "set RDMAV_HUGEPAGES_SAFE=1, or take the fork and huge-page variables out".to_owned(),
        who: Who::Pod,
    };
    // The efa provider aborts when both are asked for outright (`efa_fork_support.c`).
    if asked_huge { Outcome::Fail(trouble).into() } else { Outcome::Warn(trouble).into() }
}

fn is_on(value: std::ffi::OsString) -> bool {
    let value = value.to_string_lossy().to_ascii_lowercase();
    !matches!(value.as_str(), "" | "0" | "false" | "no" | "off")
}

fn said(names: &[&str]) -> String {
    if names.is_empty() { "not asked for".to_owned() } else { names.join(", ") }
}

fn aborting(system: &mut System) -> Outcomes {
    let mut without_hint: Vec<String> = Vec::new();
    without_hint
        .extend(ABORTING.iter().filter(|name| system.env(name).is_some()).map(|name| (*name).to_owned()));
    if system.env("FI_EFA_IFACE").is_some_and(|value| value.is_empty()) {
        without_hint.push("FI_EFA_IFACE (empty)".to_owned());
    }
    let credits = system.env("FI_EFA_TX_MIN_CREDITS").and_then(|text| text.to_str()?.parse::<i64>().ok());
    if credits.is_some_and(|credits| credits <= 0) {
        without_hint.push("FI_EFA_TX_MIN_CREDITS (not positive)".to_owned());
    }
    if without_hint.is_empty() {
        return Outcome::pass("none is set").into();
    }
    Outcome::Fail(Problem {
        observed: without_hint.join(", "),
        required: "none of these".to_owned(),
        why: "the efa provider of libfabric 2 ends the process when it sees one".to_owned(),
        fix: format!("unset {}", without_hint.join(", ")),
        who: Who::Pod,
    })
    .into()
}

/// A variable that sends libfabric past the adapter: its name, whether its value does, and why.
struct Misleading {
    name: &'static str,
    misleads: fn(&str) -> bool,
    why: &'static str,
}

static MISLEADING: [Misleading; 5] = [
    Misleading {
        name: "FI_PROVIDER",
        misleads: leaves_out_efa,
        why: "it keeps libfabric from loading the efa provider",
    },
    Misleading {
        name: "FI_EFA_IFACE",
        misleads: |value| !value.is_empty() && value != "all",
        why: "it hides every adapter that it does not name",
    },
    Misleading {
        name: "FI_HMEM_P2P_DISABLED",
        misleads: |value| is_on(value.into()),
        why: "it forbids peer access between GPU memory and the adapter",
    },
    Misleading {
        name: "FI_EFA_USE_DEVICE_RDMA",
        misleads: |value| !is_on(value.into()),
        why: "it takes RDMA away from the plain efa fabric, so that comparisons with it mislead",
    },
    Misleading {
        name: "FI_EFA_USE_UNSOLICITED_WRITE_RECV",
        misleads: |value| !is_on(value.into()),
        why: "without it efa-direct offers RMA only to clients that ask for FI_RX_CQ_DATA",
    },
];

/// Whether an FI_PROVIDER value (names, or names to leave out after `^`) leaves out "efa".
fn leaves_out_efa(value: &str) -> bool {
    let (excluding, names) = match value.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, value),
    };
    let named = names.split(',').any(|name| name.trim().split(';').any(|part| part == "efa"));
    !names.is_empty() && named == excluding
}

fn misleading(system: &mut System) -> Outcomes {
    let mut outcomes = Vec::new();
    for variable in &MISLEADING {
        let Some(value) = system.env(variable.name) else { continue };
        let value = value.to_string_lossy().into_owned();
        if !(variable.misleads)(&value) {
            continue;
        }
        let trouble = Problem {
            observed: format!("{}={value}", variable.name),
            required: "not set, or a value that leaves the adapter in sight".to_owned(),
            why: variable.why.to_owned(),
            fix: format!("unset {}", variable.name),
            who: Who::Pod,
        };
        outcomes.push((Some(variable.name.to_owned()), Outcome::Warn(trouble)));
    }
    if outcomes.is_empty() {
        return Outcome::pass("none is set to such a value").into();
    }
    Outcomes(outcomes)
}

#[cfg(test)]
mod tests {
    use super::leaves_out_efa;

    #[test]
    fn a_provider_filter_is_read_as_libfabric_reads_it() {
        for (value, out) in
            [("efa", false), ("^efa", true), ("tcp", true), ("^tcp", false), ("shm,efa", false), ("", false)]
        {
            assert_eq!(leaves_out_efa(value), out, "{value}");
        }
    }
}
