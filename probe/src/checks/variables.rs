//! Environment variables of NCCL, NVSHMEM and libfabric that have another effect than their user expects: values
//! whose meaning moved between releases, variables without which NCCL does not take EFA-GDA, and names that the
//! libfabric of this machine does not know.

use crate::check::{Checked, Outcome, Outcomes, Problem};
use crate::model::{Party, StackName};
use crate::releases::GIN_EFA_GDA;
use crate::system::{System, version_numbers};

/// A variable, and the values that do not do what they did, or what their name says.
struct Moved {
    name: &'static str,
    /// What a value does today; None for a value that is right.
    effect: fn(&str) -> Option<&'static str>,
    /// The values that are right.
    right: &'static str,
    fix: &'static str,
}

/// The variable that selects NCCL's GIN backend, and the one that lets NCCL's own collectives use GIN.
const GIN_TYPE: &str = "NCCL_GIN_TYPE";
const SYMMETRIC_KERNELS: &str = "NCCL_SYM_GIN_KERNELS_ENABLE";
/// What makes NCCL take EFA-GDA.
const SELECT_EFA_GDA: &str =
    "set NCCL_GIN_TYPE=5 and NCCL_SYM_GIN_KERNELS_ENABLE=0 for the job, with NCCL 2.31.2 or newer";

/// PyTorch's allocator with memory of cuMemCreate.
const EXPANDABLE_SEGMENTS: Moved = Moved {
    name: "PYTORCH_CUDA_ALLOC_CONF",
    effect: |value| {
        let value = value.to_ascii_lowercase().replace(' ', "");
        value.contains("expandable_segments:true").then_some(
            "tensors are memory of cuMemCreate: libraries that do not expect it get \"Invalid argument\" from \
             registration, fi_write or fi_read",
        )
    },
    right: "without expandable_segments:True",
    fix: "leave expandable_segments out, or use a library that registers such memory (with the flag gpuDirectRDMACapable)",
};

static MOVED: [Moved; 9] = [
    Moved {
        name: GIN_TYPE,
        effect: |value| match value.trim() {
            "" | "5" => None,
            "2" => Some("type 2 is the CPU proxy: no GPU posts to the adapter"),
            "3" => Some("type 3 is GDAKI of other adapters; EFA has none, and NCCL refuses it"),
            "4" => Some("type 4 was EFA-GDA in aws-ofi-nccl 1.20 only; NCCL 2.31.2 and newer use 5"),
            _ => Some("EFA-GDA is type 5"),
        },
        right: "5",
        fix: SELECT_EFA_GDA,
    },
    Moved {
        name: "NCCL_GIN_ENABLE",
        effect: |value| (value.trim() == "0").then_some("0 turns all GIN types off, EFA-GDA among them"),
        right: "unset or 1",
        fix: "unset NCCL_GIN_ENABLE, or set it to 1",
    },
    Moved {
        name: "OFI_NCCL_GIN_GDAKI",
        effect: |_| Some("no release of aws-ofi-nccl reads this variable"),
        right: "unset",
        fix: "unset OFI_NCCL_GIN_GDAKI; NCCL_GIN_TYPE=5 with NCCL_SYM_GIN_KERNELS_ENABLE=0 selects EFA-GDA",
    },
    Moved {
        name: "NCCL_NET_PLUGIN",
        effect: |value| {
            let value = value.trim();
            let is_efa = value.is_empty() || value.contains('/') || value.contains("ofi");
            (!is_efa && value != "libnccl-net.so").then_some(
                "this is not aws-ofi-nccl, through which NCCL reaches EFA: other plugins and none use sockets",
            )
        },
        right: "unset, ofi or the path of the plugin",
        fix: "unset NCCL_NET_PLUGIN, or set it to the path of libnccl-net-ofi.so",
    },
    EXPANDABLE_SEGMENTS,
    Moved { name: "PYTORCH_ALLOC_CONF", ..EXPANDABLE_SEGMENTS },
    Moved {
        name: "NVSHMEM_DISABLE_CUDA_VMM",
        effect: |value| {
            is_true(value).then_some(
                "a workaround of old images: low-latency kernels of DeepEP now fail with \"invalid argument\" with it, \
                 and normal kernels do not need it",
            )
        },
        right: "unset or 0",
        fix: "unset NVSHMEM_DISABLE_CUDA_VMM",
    },
    Moved {
        name: "NVSHMEM_REMOTE_TRANSPORT",
        effect: |value| {
            (!value.trim().is_empty() && !value.trim().eq_ignore_ascii_case("libfabric"))
                .then_some("NVSHMEM reaches EFA through its libfabric transport only")
        },
        right: "libfabric",
        fix: "set NVSHMEM_REMOTE_TRANSPORT=libfabric and NVSHMEM_LIBFABRIC_PROVIDER=efa",
    },
    Moved {
        name: "NVSHMEM_IB_ENABLE_IBGDA",
        effect: |value| {
            is_true(value).then_some("IBGDA drives mlx5 adapters; NVSHMEM has no GPU-rung transport for EFA")
        },
        right: "unset or 0",
        fix: "unset NVSHMEM_IB_ENABLE_IBGDA",
    },
];

fn is_true(value: &str) -> bool {
    !matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "n" | "off")
}

/// ENV-007.
pub(crate) fn moved(system: &mut System) -> Checked {
    let warn = |variable: &Moved| {
        let (value, file) = if variable.name.starts_with("NCCL_") {
            system.nccl_variable(variable.name)?
        } else {
            (system.env(variable.name)?.to_string_lossy().into_owned(), None)
        };
        let effect = (variable.effect)(&value)?;
        let of_file = file.map(|file| format!(" (in {})", file.display())).unwrap_or_default();
        let problem = Problem::new(format!(
            "{}={value}{of_file}, which should be {}: {effect}",
            variable.name, variable.right
        ))
        .expects(
            format!("{} is {}", variable.name, variable.right),
            "the job runs without the transport of EFA that its script asks for, or does not start",
        )
        .fix(variable.fix, Party::Job);
        Some((variable.name, problem))
    };
    let problems = MOVED.iter().filter_map(warn).chain(not_selected(system));
    let outcomes: Vec<_> =
        problems.map(|(name, problem)| (Some(name.to_owned()), Outcome::Warn(problem))).collect();
    if outcomes.is_empty() {
        return Outcome::pass(format!("no variable has another value ({})", GIN_EFA_GDA.piece)).into();
    }
    Ok(Outcomes(outcomes))
}

/// The variable without which NCCL does not take EFA-GDA, where it could.
fn not_selected(system: &System) -> Option<(&'static str, Problem)> {
    let value = |name: &str| {
        let (value, _) = system.nccl_variable(name)?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let (name, observed, required, why) = match (value(GIN_TYPE), value(SYMMETRIC_KERNELS)) {
        (None, _) => (
            GIN_TYPE,
            format!("NCCL_GIN_TYPE is not set (environment, {}): NCCL takes its CPU proxy", files(system)),
            "NCCL_GIN_TYPE is 5",
            "no GPU posts to the adapter, without an error: \"Loaded gin plugin Libfabric_GDAKI (v14)\" is in the log \
             with the proxy too; only \"gin GDAKI: createContext done\" proves EFA-GDA",
        ),
        (Some(of_type), kernels) if of_type == "5" && kernels.as_deref() != Some("0") => (
            SYMMETRIC_KERNELS,
            match kernels {
                Some(value) => format!("NCCL_GIN_TYPE is 5, and {SYMMETRIC_KERNELS} is {value}"),
                None => format!("NCCL_GIN_TYPE is 5, and {SYMMETRIC_KERNELS} is not set"),
            },
            "NCCL_SYM_GIN_KERNELS_ENABLE is 0",
            "the kernels of NCCL's collectives need signals that EFA-GDA lacks, and NCCL reports \"GIN strong signals are \
             required, but the GIN plugin does not support them\" and \"GIN: DevComm setup failed on all available \
             backends\"",
        ),
        _ => return None,
    };
    is_meant_for_efa_gda(system)
        .then_some((name, Problem::new(observed).expects(required, why).fix(SELECT_EFA_GDA, Party::Job)))
}

/// The files in which NCCL looks for variables.
fn files(system: &System) -> String {
    let files: Vec<_> = system.nccl_files().iter().map(|file| file.display().to_string()).collect();
    files.join(", ")
}

/// Whether the user asks for NCCL's EFA-GDA, or the machine has an NCCL with EFA-GDA and a plugin.
fn is_meant_for_efa_gda(system: &System) -> bool {
    let has_both = || {
        let release = system.nccl().into_iter().next().and_then(|nccl| nccl.release);
        release.is_some_and(|release| GIN_EFA_GDA.is_in(&release)) && !system.nccl_plugins().is_empty()
    };
    matches!(system.stack, Some(StackName::Nccl | StackName::Deepep)) || !system.of_node && has_both()
}

/// The variables of the efa provider that every supported release reads, without `FI_EFA_` (`efa_env.c` of libfabric
/// 1.20 to 2.7.0a1). ENV-005 judges the last three.
const OF_EFA: &str = "CQ_SIZE EFA_CQ_READ_SIZE ENABLE_SHM_TRANSFER FORK_SAFE IFACE INTERNAL_RX_REFILL_THRESHOLD \
    INTER_MAX_GDRCOPY_MESSAGE_SIZE INTER_MAX_MEDIUM_MESSAGE_SIZE INTER_MIN_READ_MESSAGE_SIZE \
    INTER_MIN_READ_WRITE_SIZE INTER_READ_SEGMENT_SIZE MAX_MEMCPY_SIZE MAX_TIMEOUT MR_CACHE_ENABLE MR_MAX_CACHED_COUNT \
    MR_MAX_CACHED_SIZE READCOPY_POOL_SIZE RECVWIN_SIZE RUNT_SIZE RX_COPY_OOO RX_COPY_UNEXP RX_SIZE SHM_AV_SIZE \
    SHM_CQ_READ_SIZE TIMEOUT_INTERVAL TX_MIN_CREDITS TX_QUEUE_SIZE TX_SIZE USE_DEVICE_RDMA USE_HUGE_PAGE USE_SM2 \
    USE_UNSOLICITED_WRITE_RECV USE_ZCPY_RX MTU_SIZE RX_IOV_LIMIT TX_IOV_LIMIT";

/// The other variables of the provider, with the first and the last release that reads them.
const OF_SOME_RELEASES: [(&str, Option<&str>, Option<&str>); 8] = [
    ("FI_EFA_IMPLICIT_AV_SIZE", Some("2.3"), None),
    ("FI_EFA_USE_DATA_PATH_DIRECT", Some("2.3"), None),
    ("FI_EFA_TRACK_MR", Some("2.5.1"), None),
    ("FI_EFA_ZCPY_RX_SEED", None, Some("2.5")),
    ("FI_EFA_USE_HW_CNTR", Some("2.6"), None),
    ("FI_EFA_ENABLE_HIGH_PPS", Some("2.6"), Some("2.6")),
    ("FI_EFA_USE_SQ_REQ_ID_64_BIT", Some("2.7"), None),
    ("FI_EFA_SET_CUDA_SYNC_MEMOPS", None, Some("1")),
];

/// The variables of libfabric's core, without `FI_` (`fi_param_define` without a provider).
const OF_CORE: &str = "ADDR_FORMAT AV_REMOVE_CLEANUP FORK_UNSAFE HMEM HMEM_CUDA_ENABLE_ASYNC_COPY \
    HMEM_CUDA_ENABLE_XFER \
    HMEM_CUDA_USE_DMABUF HMEM_CUDA_USE_GDRCOPY HMEM_DISABLE_P2P HMEM_NEURON_USE_DMABUF HMEM_ROCR_USE_DMABUF \
    HMEM_SYNAPSEAI_USE_DMABUF HMEM_ZE_COPY_ENGINE HMEM_ZE_USE_DMABUF HOOK LOG_INTERVAL LOG_LEVEL LOG_LOCATION \
    LOG_LOCATION_MODE LOG_PROV LOG_SUBSYS MR_CACHE_MAX_COUNT MR_CACHE_MAX_SIZE MR_CACHE_MONITOR \
    MR_CUDA_CACHE_MONITOR_ENABLED MR_ROCR_CACHE_MONITOR_ENABLED MR_ZE_CACHE_MONITOR_ENABLED OFFLOAD_COLL_PROVIDER \
    PERF_CNTR POLL_FAIRNESS PREFER_SYSCONFIG PROVIDER PROVIDER_PATH ROCR_D2H_THRESHOLD UNIVERSE_SIZE";

/// Providers other than efa; their variables are not judged.
const OTHER_PROVIDERS: [&str; 24] = [
    "BGQ", "COLL", "CXI", "GNI", "HOOK", "LNX", "LPP", "MLX", "MRAIL", "NETDIR", "OFI", "OPX", "PSM", "PSM2",
    "PSM3", "RXD", "RXM", "SHM", "SM2", "SOCKETS", "TCP", "UCX", "UDP", "VERBS",
];

/// The names of all variables that some supported release reads.
fn known() -> impl Iterator<Item = String> {
    let of_efa = OF_EFA.split_whitespace().map(|name| format!("FI_EFA_{name}"));
    let of_core = OF_CORE.split_whitespace().map(|name| format!("FI_{name}"));
    of_efa.chain(OF_SOME_RELEASES.map(|(name, ..)| name.to_owned())).chain(of_core)
}

/// The known name that is most like `name`.
fn nearest(name: &str) -> String {
    let alike = |one: &String| strsim::jaro_winkler(name, one);
    known().max_by(|left, right| alike(left).total_cmp(&alike(right))).unwrap_or_default()
}

/// Why a libfabric of this release ignores the variable `name`; None if it reads it, or another provider does.
fn ignored(name: &str, release: Option<&str>) -> Option<String> {
    let tail = name.strip_prefix("FI_")?;
    let of_other =
        || OTHER_PROVIDERS.iter().any(|one| tail.strip_prefix(one).is_some_and(|t| t.starts_with('_')));
    if !known().any(|one| one == name) {
        return (!of_other()).then(|| format!("no release has it; the nearest name is {}", nearest(name)));
    }
    let (_, first, last) = OF_SOME_RELEASES.iter().find(|(one, ..)| *one == name)?;
    let release = version_numbers(release?);
    if first.is_some_and(|first| release < version_numbers(first)) {
        return Some(format!("libfabric {} is the first that reads it", first.unwrap_or_default()));
    }
    let last = last.map(version_numbers)?;
    let length = last.len().min(release.len());
    (release[..length] > last[..]).then(|| "newer releases do not read it".to_owned())
}

/// ENV-008.
pub(crate) fn unknown(system: &mut System) -> Checked {
    let release = system.libfabric_release();
    let mut names: Vec<String> =
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.sort();
    let of = release.as_deref().map_or("libfabric".to_owned(), |release| format!("libfabric {release}"));
    let warn = |name: String| {
        let why = ignored(&name, release.as_deref())?;
        let problem = Problem::new(format!("{name} is set, and {of} does not read it: {why}")).fix(
            match known().any(|one| one == name) {
                true => format!("unset {name}, or use a release that reads it"),
                false => format!("correct the name (the nearest is {}), or unset {name}", nearest(&name)),
            },
            Party::Job,
        );
        Some((Some(name), Outcome::Warn(problem)))
    };
    let outcomes: Vec<_> = names.into_iter().filter_map(warn).collect();
    if outcomes.is_empty() {
        return Outcome::pass(format!("{of} reads every FI_ variable that is set")).into();
    }
    Ok(Outcomes(outcomes))
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
