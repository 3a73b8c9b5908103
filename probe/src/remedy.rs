//! The usual remedy of each check: the roles that can apply it, the action on a host, and the fix in short.
//! A finding's own fix names what was found; this table is for `explain`, and for the action on a node.

use crate::checks::dev::{ATTACH, REPLACE};
use crate::checks::env::RAISE_MEMLOCK;
use crate::model::{Action, Who};

/// The remedy of a check.
#[derive(Debug)]
pub(crate) struct Remedy {
    /// The check's code.
    pub(crate) code: &'static str,
    /// The roles that can apply it, the most likely first.
    pub(crate) who: &'static [Who],
    /// What is done with the node if its operator applies it.
    pub(crate) of_host: Action,
    /// What to do.
    pub(crate) fix: &'static str,
}

/// The remedy of `code`; None for a code without one.
pub(crate) fn of(code: &str) -> Option<&'static Remedy> {
    ALL.iter().find(|remedy| remedy.code == code)
}

/// What is done with the node if its operator solves the problem that `code` reports.
pub(crate) fn of_host(code: &str) -> Action {
    of(code).map_or(Action::FixHost, |remedy| remedy.of_host)
}

/// A table of remedies: `CODE [roles] action on a host: fix`.
macro_rules! remedies {
    ($($code:literal [$($who:ident)+] $of_host:ident: $fix:expr;)*) => {
        &[$(Remedy { code: $code, who: &[$(Who::$who),+], of_host: Action::$of_host, fix: $fix }),*]
    };
}

const NEW_LIBFABRIC: &str = "install the EFA installer's libfabric in the image, and remove older copies";
const ADAPTER_REFUSED: &str = "search dmesg on the host for efa; restart the host if its driver is stuck";
const GEOMETRY: &str = "install the current EFA installer's libfabric and rdma-core; if they are current, report it (gda-probe report)";
const REPORT: &str = "report it with the versions of the provider and of gda-probe (gda-probe report)";

/// All remedies, in the order of a report.
pub(crate) static ALL: &[Remedy] = remedies! {
    "ENV-000" [Image Pod] FixHost:
        "build the provider (cargo build -p softefa), name it by SOFTEFA_LIBRARY, and set TMPDIR to a directory \
         that can be written";
    "ENV-001" [Host] FixHost: "run on an x86_64 or aarch64 instance with Linux";
    "ENV-002" [Host] FixHost: "use a p5en, p6-b200 or p6-b300 instance";
    "ENV-003" [Pod] FixHost: RAISE_MEMLOCK;
    "ENV-004" [Pod] FixHost: "unset the variables that the finding names";
    "ENV-005" [Pod] FixHost: "unset the variable that the finding names";
    "ENV-006" [Pod] FixHost: "unset the variable that the finding names, unless the restriction is wanted";
    "ENV-007" [Pod] FixHost:
        "set the value that the finding names, or unset the variable; for NCCL's EFA-GDA set NCCL_GIN_TYPE=5 and \
         NCCL_SYM_GIN_KERNELS_ENABLE=0";
    "ENV-008" [Pod] FixHost: "correct the variable's name, or unset it";
    "DEV-001" [Host] FixHost: ATTACH;
    "DEV-002" [Host] FixHost: "run the EFA installer on the host";
    "DEV-003" [Host] Restart:
        "bind the adapter to the driver efa; dmesg on the host says why the driver did not start";
    "DEV-004" [Host] Isolate: REPLACE;
    "DEV-005" [Pod Host] FixHost:
        "docker: --device /dev/infiniband/uverbsN; Kubernetes: the resource vpc.amazonaws.com/efa";
    "DEV-006" [Pod Host] Restart:
        "give the container the device node with --device or the device plugin, not by a bind mount; an open that \
         hangs needs a restart of the host";
    "DEV-007" [Pod] FixHost: "add all adapters' nodes to the container, or name the adapters that the program uses";
    "DEV-008" [Host] Isolate:
        "wait a few minutes after the boot; attach the missing EFA interfaces; replace an instance that lost a GPU";
    "LIB-000" [Code] FixHost: "run gda-probe without --root in the container whose libraries matter";
    "LIB-001" [Image Pod] FixHost:
        "install libfabric 1.17 or newer in the image, such as the EFA installer's, or correct LIBFABRIC_PATH";
    "LIB-002" [Image] FixHost: NEW_LIBFABRIC;
    "LIB-003" [Image] FixHost: "put /opt/amazon/efa/lib first on the loader's path (LD_LIBRARY_PATH or ld.so.conf)";
    "LIB-004" [Image] FixHost: "remove the older copies of libfabric from the image";
    "LIB-005" [Image] FixHost: "install rdma-core 59 or newer in the image";
    "LIB-006" [Image] FixHost: "remove the older copies of libefa from the image";
    "LIB-007" [Image] FixHost:
        "install aws-ofi-nccl 1.21 or newer for NCCL 2.31.2, and 1.22 or newer for NCCL 2.32";
    "LIB-008" [Host] FixHost: "install the kernel module gdrdrv 2.5 or newer on the host";
    "CUDA-000" [Host Pod] FixHost: "run on a machine with a GPU, give the container the GPU, or use --gpu none";
    "CUDA-001" [Host] FixHost: "install the NVIDIA driver on the host; in a container, use the NVIDIA runtime";
    "CUDA-002" [Host] FixHost:
        "on the host: options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1\" in /etc/modprobe.d, then \
         reload the module or restart";
    "CUDA-003" [Pod Host] FixHost: "run the container with the NVIDIA runtime, which brings the host's libcuda";
    "CUDA-004" [Host Pod] Restart:
        "give the container the /dev/nvidia* nodes; install a driver of CUDA 12.0 or newer; restart a host whose \
         driver does not start";
    "CUDA-005" [Pod] FixHost: "correct CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES, or the number in --gpu";
    "CUDA-006" [Host] FixHost: "install NVIDIA's open kernel modules on the host";
    "CUDA-007" [Code] FixHost:
        "let the host wait for the flag and call cuFlushGPUDirectRDMAWrites before a kernel reads the data";
    "CUDA-008" [Host] FixHost: "fix CUDA-002 first; otherwise use --doorbell record or staged";
    "CUDA-009" [Host Pod] Restart:
        "end the process that holds the GPU, or set its compute mode to default (nvidia-smi -c 0)";
    "CUDA-010" [Image] FixHost: "install libnvrtc in the image, or build with EFA_GDA_NVCC=FILE";
    "CUDA-011" [Host] FixHost: "use --pairs all to check adapters that are not near the GPU";
    "CUDA-012" [Host] FixHost: "fix CUDA-002 first";
    "CUDA-013" [Host] FixHost: "fix CUDA-002 first, or let the host post receives";
    "CUDA-014" [Image Host Pod] FixHost:
        "let the image register GPU memory as a dmabuf, or load nvidia-peermem on the host";
    "FAB-001" [Image Pod] FixHost:
        "fix ENV-006 and the DEV checks first; otherwise install a libfabric with the efa provider in the image";
    "FAB-002" [Image] FixHost: NEW_LIBFABRIC;
    "FAB-003" [Code] FixHost: "name one of the adapters found with --device, or omit it";
    "FAB-004" [Image] FixHost: NEW_LIBFABRIC;
    "FAB-005" [Pod] FixHost:
        "give the container the adapter's node in /dev/infiniband, and end programs that hold its resources";
    "FAB-006" [Image] FixHost: NEW_LIBFABRIC;
    "FAB-007" [Image] FixHost: NEW_LIBFABRIC;
    "FAB-008" [Pod] FixHost: "raise the limit of locked memory (ENV-003)";
    "FAB-009" [Host] Restart: ADAPTER_REFUSED;
    "FAB-010" [Image] FixHost: NEW_LIBFABRIC;
    "FAB-011" [Image] FixHost: "install a libfabric whose efa provider offers FI_XPU, for programs that need it";
    "GDA-001" [Image] FixHost: NEW_LIBFABRIC;
    "GDA-002" [Image] FixHost: NEW_LIBFABRIC;
    "GDA-003" [Image] FixHost: "install a libfabric that was built with rdma-core 59 or newer";
    "GDA-004" [Image] FixHost: "install a libfabric that was built with rdma-core 59 or newer";
    "GDA-005" [Image] FixHost: NEW_LIBFABRIC;
    "GDA-006" [Image] FixHost: NEW_LIBFABRIC;
    "GDA-007" [Image] FixHost: "install libfabric 2.6 or newer in the image";
    "GDA-008" [Image] FixHost: NEW_LIBFABRIC;
    "GDA-009" [Host] FixHost: "run the EFA installer on the host";
    "GDA-010" [Host Pod] FixHost:
        "run the EFA installer on the host, and set FI_EFA_USE_HW_CNTR=1 where the release needs it";
    "VRB-001" [Image] FixHost: "install libibverbs1 and ibverbs-providers in the image";
    "VRB-002" [Image] FixHost: "install rdma-core 59 or newer in the image";
    "VRB-003" [Pod Host] FixHost: "add the EFA devices to the container; fix DEV-002 and DEV-003 on the host first";
    "VRB-004" [Code] FixHost: "name one of the adapters found with --device, or omit it";
    "VRB-005" [Pod] FixHost: "give the container the adapter's node in /dev/infiniband";
    "VRB-006" [Host] Isolate: REPLACE;
    "VRB-007" [Host] Restart: ADAPTER_REFUSED;
    "VRB-008" [Host] Restart: ADAPTER_REFUSED;
    "VRB-009" [Pod] FixHost: "raise the limit of locked memory (ENV-003)";
    "VRB-010" [Host] Restart: ADAPTER_REFUSED;
    "VRB-011" [Host] FixHost: "run the EFA installer on the host";
    "VRB-012" [Host] FixHost: "run the EFA installer on the host";
    "VRB-013" [Host] Restart: ADAPTER_REFUSED;
    "VRB-014" [Host] FixHost: "run the EFA installer on the host";
    "VRB-015" [Host] FixHost: "run the EFA installer on the host";
    "QUE-001" [Image] FixHost: GEOMETRY;
    "QUE-002" [Image] FixHost: GEOMETRY;
    "QUE-003" [Image] FixHost: GEOMETRY;
    "QUE-004" [Code] FixHost: "open the completion queue with at least as many entries as the send queue";
    "QUE-005" [Image] FixHost: REPORT;
    "QUE-006" [Image] FixHost: REPORT;
    "QUE-007" [Image] FixHost: REPORT;
    "QUE-008" [Code Host] FixHost: "use --doorbell auto, which selects the first mode that works";
    "PUT-001" [Host Code] FixHost:
        "gda-probe explain STATUS-N explains the status; if it is a timeout, check the security group's rules and \
         the adapter's counters";
    "PUT-002" [Host Code] Isolate:
        "look at the adapter's counters; if bytes are wrong again, isolate the node and report it";
    "PUT-003" [Code] FixHost: "correct the program that broke the rule; the rule names entry and slot";
    "PUT-004" [Host] Isolate: REPORT;
    "PUT-005" [Image] FixHost: REPORT;
    "PUT-006" [Host Code] Isolate: "run gda-probe put first: it reports the write that fails";
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::registry;

    #[test]
    fn every_check_has_a_remedy_and_every_remedy_a_check() {
        let checks: Vec<_> = registry().iter().map(|check| check.code).collect();
        for code in &checks {
            assert!(of(code).is_some_and(|one| !one.who.is_empty() && !one.fix.is_empty()), "{code}");
        }
        for remedy in ALL {
            assert!(checks.contains(&remedy.code), "no check {}", remedy.code);
            assert_eq!(ALL.iter().filter(|other| other.code == remedy.code).count(), 1, "{}", remedy.code);
        }
    }
}
