//! Environment variables of NCCL, NVSHMEM and libfabric that have another effect than their user expects: values
//! whose meaning moved between releases, and names that the libfabric of this machine does not know.

use crate::check::{Outcome, Outcomes, Problem};
use crate::model::Who;
use crate::releases::GIN_EFA_GDA;
use crate::system::{System, version_numbers};

/// A variable, and the values that do not do what they did, or what their name says.
struct Moved {
    name: &'static str,
    /// What a value does today; None for a value that is right.
    effect: fn(&str) -> Option<&'static str>,
    fix: &'static str,
}

static MOVED: [Moved; 6] = [
    Moved {
        name: "NCCL_GIN_TYPE",
        effect: |value| match value.trim() {
            "" | "5" => None,
            "2" => Some("type 2 is the CPU proxy: no GPU posts to the adapter"),
            "3" => Some("type 3 is GDAKI of other adapters; EFA has none, and NCCL refuses it"),
            "4" => Some("type 4 was EFA-GDA in aws-ofi-nccl 1.20 only; NCCL 2.31.2 and newer use 5"),
            _ => Some("EFA-GDA is type 5"),
        },
        fix: "unset NCCL_GIN_TYPE, or set it to 5 with NCCL 2.31.2 or newer",
    },
    Moved {
        name: "NCCL_GIN_ENABLE",
        effect: |value| (value.trim() == "0").then_some("0 turns all GIN types off, EFA-GDA among them"),
        fix: "unset NCCL_GIN_ENABLE",
    },
    Moved {
        name: "OFI_NCCL_GIN_GDAKI",
        effect: |_| Some("no release of aws-ofi-nccl reads this variable"),
        fix: "unset OFI_NCCL_GIN_GDAKI; NCCL_GIN_TYPE=5 selects EFA-GDA",
    },
    Moved {
        name: "NVSHMEM_DISABLE_CUDA_VMM",
        effect: |value| {
            is_true(value).then_some(
                "a workaround of old images: low-latency kernels of DeepEP now fail with \"invalid argument\" with it, \
                 and normal kernels do not need it",
            )
        },
        fix: "unset NVSHMEM_DISABLE_CUDA_VMM",
    },
    Moved {
        name: "NVSHMEM_REMOTE_TRANSPORT",
        effect: |value| {
            (!value.trim().is_empty() && !value.trim().eq_ignore_ascii_case("libfabric"))
                .then_some("NVSHMEM reaches EFA through its libfabric transport only")
        },
        fix: "set NVSHMEM_REMOTE_TRANSPORT=libfabric and NVSHMEM_LIBFABRIC_PROVIDER=efa",
    },
    Moved {
        name: "NVSHMEM_IB_ENABLE_IBGDA",
        effect: |value| {
            is_true(value).then_some("IBGDA drives mlx5 adapters; NVSHMEM has no GPU-rung transport for EFA")
        },
        fix: "unset NVSHMEM_IB_ENABLE_IBGDA",
    },
];

fn is_true(value: &str) -> bool {
    !matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "n" | "off")
}

/// ENV-007.
pub(super) fn moved(system: &mut System) -> Outcomes {
    let warn = |variable: &Moved| {
        let value = system.env(variable.name)?.to_string_lossy().into_owned();
        let problem = Problem {
            observed: format!("{}={value}", variable.name),
            required: "a value that selects a transport of EFA".to_owned(),
            why: (variable.effect)(&value)?.to_owned(),
            fix: variable.fix.to_owned(),
            who: Who::Pod,
        };
        Some((Some(variable.name.to_owned()), Outcome::Warn(problem)))
    };
    let outcomes: Vec<_> = MOVED.iter().filter_map(warn).collect();
    if outcomes.is_empty() {
        return Outcome::pass(format!("no variable has such a value ({})", GIN_EFA_GDA.piece)).into();
    }
    Outcomes(outcomes)
}

/// A name, the first release that reads it and the last; None for no limit among the supported releases.
type Name = (&'static str, Option<&'static str>, Option<&'static str>);

const fn always(name: &'static str) -> Name {
    (name, None, None)
}

/// The variables of the efa provider (`efa_env.c` of libfabric 1.20 to 2.7.0a1).
const OF_EFA: [Name; 44] = [
    always("FI_EFA_CQ_SIZE"),
    always("FI_EFA_EFA_CQ_READ_SIZE"),
    always("FI_EFA_ENABLE_SHM_TRANSFER"),
    always("FI_EFA_FORK_SAFE"),
    always("FI_EFA_IFACE"),
    always("FI_EFA_INTERNAL_RX_REFILL_THRESHOLD"),
    always("FI_EFA_INTER_MAX_GDRCOPY_MESSAGE_SIZE"),
    always("FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE"),
    always("FI_EFA_INTER_MIN_READ_MESSAGE_SIZE"),
    always("FI_EFA_INTER_MIN_READ_WRITE_SIZE"),
    always("FI_EFA_INTER_READ_SEGMENT_SIZE"),
    always("FI_EFA_MAX_MEMCPY_SIZE"),
    always("FI_EFA_MAX_TIMEOUT"),
    always("FI_EFA_MR_CACHE_ENABLE"),
    always("FI_EFA_MR_MAX_CACHED_COUNT"),
    always("FI_EFA_MR_MAX_CACHED_SIZE"),
    always("FI_EFA_READCOPY_POOL_SIZE"),
    always("FI_EFA_RECVWIN_SIZE"),
    always("FI_EFA_RUNT_SIZE"),
    always("FI_EFA_RX_COPY_OOO"),
    always("FI_EFA_RX_COPY_UNEXP"),
    always("FI_EFA_RX_SIZE"),
    always("FI_EFA_SHM_AV_SIZE"),
    always("FI_EFA_SHM_CQ_READ_SIZE"),
    always("FI_EFA_TIMEOUT_INTERVAL"),
    always("FI_EFA_TX_MIN_CREDITS"),
    always("FI_EFA_TX_QUEUE_SIZE"),
    always("FI_EFA_TX_SIZE"),
    always("FI_EFA_USE_DEVICE_RDMA"),
    always("FI_EFA_USE_HUGE_PAGE"),
    always("FI_EFA_USE_SM2"),
    always("FI_EFA_USE_UNSOLICITED_WRITE_RECV"),
    always("FI_EFA_USE_ZCPY_RX"),
    // ENV-005 judges these three.
    always("FI_EFA_MTU_SIZE"),
    always("FI_EFA_RX_IOV_LIMIT"),
    always("FI_EFA_TX_IOV_LIMIT"),
    ("FI_EFA_IMPLICIT_AV_SIZE", Some("2.3"), None),
    ("FI_EFA_USE_DATA_PATH_DIRECT", Some("2.3"), None),
    ("FI_EFA_TRACK_MR", Some("2.5.1"), None),
    ("FI_EFA_ZCPY_RX_SEED", None, Some("2.5")),
    ("FI_EFA_USE_HW_CNTR", Some("2.6"), None),
    ("FI_EFA_ENABLE_HIGH_PPS", Some("2.6"), Some("2.6")),
    ("FI_EFA_USE_SQ_REQ_ID_64_BIT", Some("2.7"), None),
    ("FI_EFA_SET_CUDA_SYNC_MEMOPS", None, Some("1")),
];

/// The variables of libfabric's core (`fi_param_define` without a provider).
const OF_CORE: [Name; 35] = [
    always("FI_ADDR_FORMAT"),
    always("FI_AV_REMOVE_CLEANUP"),
    always("FI_FORK_UNSAFE"),
    always("FI_HMEM"),
    always("FI_HMEM_CUDA_ENABLE_ASYNC_COPY"),
    always("FI_HMEM_CUDA_ENABLE_XFER"),
    always("FI_HMEM_CUDA_USE_DMABUF"),
    always("FI_HMEM_CUDA_USE_GDRCOPY"),
    always("FI_HMEM_DISABLE_P2P"),
    always("FI_HMEM_NEURON_USE_DMABUF"),
    always("FI_HMEM_ROCR_USE_DMABUF"),
    always("FI_HMEM_SYNAPSEAI_USE_DMABUF"),
    always("FI_HMEM_ZE_COPY_ENGINE"),
    always("FI_HMEM_ZE_USE_DMABUF"),
    always("FI_HOOK"),
    always("FI_LOG_INTERVAL"),
    always("FI_LOG_LEVEL"),
    always("FI_LOG_LOCATION"),
    always("FI_LOG_LOCATION_MODE"),
    always("FI_LOG_PROV"),
    always("FI_LOG_SUBSYS"),
    always("FI_MR_CACHE_MAX_COUNT"),
    always("FI_MR_CACHE_MAX_SIZE"),
    always("FI_MR_CACHE_MONITOR"),
    always("FI_MR_CUDA_CACHE_MONITOR_ENABLED"),
    always("FI_MR_ROCR_CACHE_MONITOR_ENABLED"),
    always("FI_MR_ZE_CACHE_MONITOR_ENABLED"),
    always("FI_OFFLOAD_COLL_PROVIDER"),
    always("FI_PERF_CNTR"),
    always("FI_POLL_FAIRNESS"),
    always("FI_PREFER_SYSCONFIG"),
    always("FI_PROVIDER"),
    always("FI_PROVIDER_PATH"),
    always("FI_ROCR_D2H_THRESHOLD"),
    always("FI_UNIVERSE_SIZE"),
];

/// Providers other than efa; their variables are not judged.
const OTHER_PROVIDERS: [&str; 24] = [
    "BGQ", "COLL", "CXI", "GNI", "HOOK", "LNX", "LPP", "MLX", "MRAIL", "NETDIR", "OFI", "OPX", "PSM", "PSM2",
    "PSM3", "RXD", "RXM", "SHM", "SM2", "SOCKETS", "TCP", "UCX", "UDP", "VERBS",
];

/// Why a libfabric of this release ignores the variable `name`; None if it reads it, or another provider does.
fn ignored(name: &str, release: Option<&str>) -> Option<String> {
    let tail = name.strip_prefix("FI_")?;
    let of_other =
        || OTHER_PROVIDERS.iter().any(|one| tail.strip_prefix(one).is_some_and(|t| t.starts_with('_')));
    let known = || OF_EFA.iter().chain(&OF_CORE);
    let Some((_, first, last)) = known().find(|(known, ..)| *known == name) else {
        let nearest = known().map(|(known, ..)| *known).max_by(|left, right| {
            strsim::jaro_winkler(name, left).total_cmp(&strsim::jaro_winkler(name, right))
        });
        return (!of_other())
            .then(|| format!("no release has it; the nearest name is {}", nearest.unwrap_or("none")));
    };
    let release = version_numbers(release?);
    if first.is_some_and(|first| release < version_numbers(first)) {
        return Some(format!("libfabric {} is the first that reads it", first.unwrap_or_default()));
    }
    let last = last.map(version_numbers)?;
    let length = last.len().min(release.len());
    (release[..length] > last[..]).then(|| "newer releases do not read it".to_owned())
}

/// ENV-008.
pub(super) fn unknown(system: &mut System) -> Outcomes {
    let release = system.libfabric_release();
    let mut names: Vec<String> =
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.sort();
    let of = release.as_deref().map_or("libfabric".to_owned(), |release| format!("libfabric {release}"));
    let warn = |name: String| {
        let why = ignored(&name, release.as_deref())?;
        let problem = Problem {
            observed: format!("{name} is set, and {of} does not read it: {why}"),
            required: "only variables that this libfabric reads".to_owned(),
            why: "a setting that its user relies on has no effect".to_owned(),
            fix: format!("correct the name, or unset {name}"),
            who: Who::Pod,
        };
        Some((Some(name), Outcome::Warn(problem)))
    };
    let outcomes: Vec<_> = names.into_iter().filter_map(warn).collect();
    if outcomes.is_empty() {
        return Outcome::pass(format!("{of} reads every FI_ variable that is set")).into();
    }
    Outcomes(outcomes)
}

#[cfg(test)]
mod tests {
    use super::ignored;

    #[test]
    fn names_are_judged_by_the_release() {
        for (name, release, ignored_by_it) in [
            ("FI_EFA_USE_HW_CNTR", "2.5.1", true),
            ("FI_EFA_USE_HW_CNTR", "2.6.0", false),
            ("FI_EFA_ENABLE_HIGH_PPS", "2.6.1", false),
            ("FI_EFA_ENABLE_HIGH_PPS", "2.7.0amzn2", true),
            ("FI_EFA_ZCPY_RX_SEED", "2.5.1", false),
            ("FI_EFA_ZCPY_RX_SEED", "2.6.0", true),
            ("FI_EFA_SET_CUDA_SYNC_MEMOPS", "2.1.0", true),
            ("FI_EFA_SET_CUDA_SYNC_MEMOPS", "1.17.0", false),
            ("FI_TCP_IFACE", "2.6.0", false),
            ("FI_LOG_LEVEL", "2.6.0", false),
            ("PATH", "2.6.0", false),
        ] {
            assert_eq!(ignored(name, Some(release)).is_some(), ignored_by_it, "{name} {release}");
        }
    }

    #[test]
    fn a_misspelt_name_is_reported_with_the_nearest_one() {
        for (wrong, right) in [
            ("FI_EFA_USE_DEVICE_RDMAS", "FI_EFA_USE_DEVICE_RDMA"),
            ("FI_HMEM_P2P_DISABLED", "FI_HMEM_DISABLE_P2P"),
            ("FI_PROVIDERS", "FI_PROVIDER"),
        ] {
            let why = ignored(wrong, None).expect("not a name");
            assert!(why.ends_with(&format!(" {right}")), "{why}");
        }
    }
}
