//! The rows of ENV: environment.

use super::*;
use crate::checks::{env, node, variables};

pub(super) static ROWS: &[Row] = &[
    declared(SOFTWARE_ADAPTER, "The kind of adapter is determined", Run::Machine(env::adapter_kind))
        .stops(EVERY)
        .who(&[Image, Pod])
        .fix(
            "build the provider (cargo build -p softefa), name it by SOFTEFA_LIBRARY, and set TMPDIR to a \
            directory that can be written",
        )
        .page(
            "Reports whether the run uses hardware or the software adapter (`--soft`), and in that case the \
            file of its provider. Under `--soft` the check fails if no `libsoftefa.so` is in the \
            executable, in its directory, in `../lib`, or at the path in `SOFTEFA_LIBRARY`: build it with \
            `cargo build -p softefa`. A self-contained executable loads its own one from a memory file, \
            which a seccomp profile must allow (`memfd_create`). It also fails if the directory from which \
            libfabric loads the provider cannot be made in `TMPDIR` (by default `/tmp`, or else \
            `/dev/shm`). Checks of hardware are blocked by this code under `--soft`, because a software \
            adapter proves nothing about a machine's hardware.",
        ),
    declared("ENV-001", "The system is 64-bit Linux", Run::Machine(env::platform))
        .stops(EVERY)
        .who(&[Operator])
        .expects("64-bit little-endian Linux", "EFA has drivers for no other system")
        .fix("run on an x86_64 or aarch64 instance with Linux")
        .page("EFA has drivers only for Linux on x86_64 and aarch64. The observed text names the kernel."),
    declared("ENV-002", "The instance type has GPU-Direct Async", Run::Machine(env::instance))
        .of(Hardware)
        .who(&[Account])
        .fix("use a p5en, p6-b200 or p6-b300 instance")
        .page(
            "Reads the instance type from DMI (`/sys/class/dmi/id`), without network access, and compares \
            it with the types for which AWS documents GPU-Direct Async: p5en, p6-b200, p6-b300. Another \
            EC2 type is a warning, because new types may be missing in this list; the proven checks below \
            decide. `unknown` if DMI does not identify EC2, as in some containers.",
        ),
    declared("ENV-003", "The limit of locked memory is high enough", Run::Machine(env::memlock))
        .stops(EVERY)
        .who(&[Pod])
        .fix(env::RAISE_MEMLOCK)
        .page(
            "Registration locks every buffer in memory, which counts against RLIMIT_MEMLOCK unless the \
            process has CAP_IPC_LOCK. Below 1 MiB the probe's buffers do not fit (fail). Below 1 GiB the \
            first transport that registers its buffers gets ENOMEM (warn). The limit is raised by \
            `--ulimit memlock=-1` (Docker), `LimitMEMLOCK=infinity` in the unit of the service (systemd; \
            in Kubernetes that of the container runtime, for Slurm that of slurmd, with \
            `PropagateResourceLimitsExcept=MEMLOCK` in slurm.conf), or a line for memlock in \
            `/etc/security/limits.conf` (shell).\n\n\
            CAP_IPC_LOCK lifts the limit only for a process that has the capability effective. A container \
            that adds it gives it to processes of root; a process of another user has it only as an \
            ambient capability, which Docker and Kubernetes do not set. The check reads the effective \
            capabilities.",
        ),
    declared("ENV-004", "Fork and huge-page settings are compatible", Run::Machine(env::fork))
        .of(Hardware)
        .stops(EVERY)
        .who(&[Job])
        .fix("unset the variables that the finding names")
        .page(
            "From Linux 5.13 on the kernel copies registered pages at a fork, fork support is not needed, \
            and the check passes. On older kernels, `RDMAV_FORK_SAFE` and `IBV_FORK_SAFE` with any value, \
            also 0 or none, and `FI_EFA_FORK_SAFE` with 1, true, yes or on request fork support of \
            rdma-core. This support marks memory by small pages, which corrupts registered memory in huge \
            pages: the check warns if the machine reserves any. Beside fork support, two variables for \
            huge pages are failures: with `FI_EFA_USE_HUGE_PAGE` on, the efa provider aborts the process; \
            with `RDMAV_HUGEPAGES_SAFE` of any value it does not start, and libfabric finds no adapter \
            (before libfabric 2.0, no domain opens). rdma-core alone accepts both, so with `--via verbs` \
            they are warnings. The check knows the kernel by its release number: a kernel that has this \
            change as a backport is judged as an older one.",
        ),
    declared("ENV-005", "No environment variable aborts libfabric", Run::Machine(env::aborting))
        .stops(EVERY)
        .who(&[Job])
        .fix("unset the variable that the finding names")
        .page(
            "The efa provider of libfabric 2 aborts the process if `FI_EFA_MTU_SIZE`, `FI_EFA_TX_IOV_LIMIT` \
            or `FI_EFA_RX_IOV_LIMIT` is set, if `FI_EFA_IFACE` is set and empty, or if \
            `FI_EFA_TX_MIN_CREDITS` is not positive. Old job scripts still set these variables: unset \
            them. Until then, this code blocks every check that loads libfabric.",
        ),
    declared("ENV-006", "No environment variable restricts libfabric", Run::Machine(env::restricting))
        .each(Subject::Variable)
        .who(&[Job])
        .fix("unset the variable that the finding names, unless the restriction is wanted")
        .page(
            "libfabric starts with these settings, but adapters or capabilities are missing: `FI_PROVIDER` \
            that excludes efa, `FI_EFA_IFACE` that names some adapters, `FI_HMEM_DISABLE_P2P`, \
            `FI_EFA_USE_DEVICE_RDMA=0` and `FI_EFA_USE_UNSOLICITED_WRITE_RECV=0`. There is one warning for \
            each such variable. `FI_PROVIDER` that excludes efa is a failure, because no program of \
            libfabric reaches an adapter then; with `--via verbs` it is a warning.",
        ),
    declared(
        "ENV-007",
        "NCCL's and NVSHMEM's variables have the values that EFA needs",
        Run::Machine(variables::moved),
    )
    .of(Hardware)
    .each(Subject::Variable)
    .stops(VARIABLES)
    .who(&[Job])
    .fix(
        "set the value that the finding names, or unset the variable; for NCCL's EFA-GDA set \
            NCCL_GIN_TYPE=5 and NCCL_SYM_GIN_KERNELS_ENABLE=0",
    )
    .page(
        "Values with another effect than their user expects, one warning for each: `NCCL_GIN_TYPE` \
            (EFA-GDA is 5; 2 is the CPU proxy, 3 is for other adapters, 4 was EFA-GDA in aws-ofi-nccl 1.20 \
            only), `NCCL_GIN_ENABLE=0`, `OFI_NCCL_GIN_GDAKI` (nothing reads it), \
            `NVSHMEM_DISABLE_CUDA_VMM` (low-latency kernels of DeepEP fail with it), \
            `NVSHMEM_REMOTE_TRANSPORT` other than libfabric, and `NVSHMEM_IB_ENABLE_IBGDA`.\n\n\
            NCCL takes EFA-GDA only with `NCCL_GIN_TYPE=5` and `NCCL_SYM_GIN_KERNELS_ENABLE=0` (page \
            docs/nccl.md). Without the first it takes the proxy and reports no error. With the first alone \
            it finds no backend: `GIN strong signals are required, but the GIN plugin does not support \
            them`, `GIN: DevComm setup failed on all available backends`. The check warns of both cases if \
            the first NCCL is 2.31.2 or newer and a plugin is there, and with `--for nccl` or `--for \
            deepep` on every machine. It reads variables `NCCL_*` as NCCL does: from the environment, then \
            from the file in `NCCL_CONF_FILE` or otherwise `.nccl.conf` in the home directory of the \
            password database, then from `/etc/nccl.conf`; with `--root` the files are those below it. The \
            environment is the probe's own: run it with the job's.",
    ),
    declared("ENV-008", "libfabric reads every FI_ variable that is set", Run::Machine(variables::unknown))
        .of(Hardware)
        .each(Subject::Variable)
        .who(&[Job])
        .expects(
            "only variables that this libfabric reads",
            "a setting that its user relies on has no effect",
        )
        .fix("correct the variable's name, or unset it")
        .page(
            "libfabric silently ignores names that it does not know. There is one warning for each variable \
            that starts with `FI_` and that the first libfabric on the loader's path does not read: a \
            misspelt name, with the nearest name, or a name of another release (`FI_EFA_USE_HW_CNTR` \
            before 2.6, `FI_EFA_ENABLE_HIGH_PPS` after it). Variables of other providers are not judged.",
        ),
    declared("ENV-009", "Shared memory is large enough", Run::Machine(node::shared_memory))
        .of(Hardware)
        .who(&[Pod])
        .expects(
            "at least 1 GiB of /dev/shm",
            "NCCL and libfabric's fabric efa share memory between the ranks of a node, and fail or are slow without it",
        )
        .fix("docker: `--shm-size=8g`; Kubernetes: an emptyDir with `medium: Memory` at /dev/shm")
        .page(
            "Reads the size of `/dev/shm` from `/proc/self/mounts`. Docker's default of 64 MiB is too small \
            for ranks that share memory (warn).",
        ),
];
