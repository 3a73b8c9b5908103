//! The rows of LIB: libraries.

use super::*;
use crate::checks::{copies, fabric, library, stacks};

pub(super) static ROWS: &[Row] = &[
    declared(NOT_LOADED, "The libraries to load are determined", Run::Machine(library::choice))
        .who(&[Caller])
        .fix("run gda-probe without --root in the container whose libraries matter")
        .page(
            "With `--root DIR` the probe reads the files of another system, whose libraries it cannot load: \
            they need that system's C library. This container's libraries prove nothing about that system, \
            so `check` leaves them out: the checks that load one are skipped, blocked by this code, and \
            those of files (LIB-004 to LIB-009) read DIR. To include a library of this container, name it: \
            `LIBFABRIC_PATH`, `RDMA_CORE_LIBDIR`, or `--gpu NUMBER` for CUDA. To check the libraries of a \
            job, run the probe in the job's container, without `--root`. `put` and `bench` load this \
            container's libraries.",
        ),
    proven("LIB-001", "libfabric loads", Run::Fabric(fabric::start::loads))
        .needs(&["ENV-000", "ENV-005"])
        .loads(Load::Libfabric)
        .stops(EVERY)
        .who(&[Image, Job])
        .expects(fabric::start::LIBFABRIC_REQUIRED, "libfabric exposes the adapter's queues")
        .fix(
            "install libfabric 1.17 or newer in the image, such as the EFA installer's, or correct \
            LIBFABRIC_PATH",
        )
        .page(
            "Loads libfabric in a worker process: the file in `LIBFABRIC_PATH`, the file that the loader \
            finds, or the EFA installer's copy in `/opt/amazon/efa`. A file that lacks functions of \
            release 1.17 is refused, and the observed text names a missing function. A wrong \
            `LIBFABRIC_PATH` fails with the variable's value and the loader's message (fix: the pod, or \
            the image that sets it). Under `--soft` it is a warning if there is no file of libfabric: the \
            software adapter is then opened without it, and the later checks prove nothing about this \
            image's libfabric.",
        ),
    declared("LIB-002", "libfabric's version is known", Run::Fabric(fabric::start::version))
        .needs(&["LIB-001"])
        .who(&[Image])
        .fix(NEW_LIBFABRIC)
        .page(
            "Reports the loaded release and the API version that the probe requests: the lower of \
            libfabric's own and 2.7. Whether it can expose queues depends on the provider: GDA-001.",
        ),
    declared("LIB-003", "The intended libfabric is loaded", Run::Libraries(library::intended))
        .needs(&["LIB-001"])
        .who(&[Image])
        .fix("put /opt/amazon/efa/lib first on the loader's path (LD_LIBRARY_PATH or ld.so.conf)")
        .page(
            "The intended file is the one in `LIBFABRIC_PATH`, otherwise the EFA installer's copy, if one \
            exists. An older libfabric of the distribution that precedes it on the loader's path is the \
            usual cause of \"no efa-direct\" on a machine on which the installer ran.",
        ),
    declared(
        "LIB-004",
        "One release of libfabric is on the loader's path",
        Run::Libraries(library::one_libfabric),
    )
    .who(&[Image])
    .fix("remove the older copies of libfabric from the image")
    .page(
        "Searches LD_LIBRARY_PATH, `ld.so.conf`, the usual directories and the installer's for copies \
            of different releases, because a program and its plugin may load different copies. The \
            observed text names each copy with the release in its file. Copies are compared by that \
            release, by file name and by the symbol versions that they define. Nothing is executed.",
    ),
    declared("LIB-005", "libefa can expose queues", Run::Libraries(library::libefa))
        .of(Hardware)
        .each(Subject::File)
        .who(&[Image])
        .fix("install rdma-core 59 or newer in the image")
        .page(
            "rdma-core 59 (symbol version EFA_1.4) added `efadv_query_qp_wqs` and `efadv_query_cq`. The \
            check reads the file and executes nothing. With an older libefa, the GDA operations fail with \
            \"function not implemented\".",
        ),
    declared("LIB-006", "One release of libefa is on the loader's path", Run::Libraries(library::one_libefa))
        .of(Hardware)
        .who(&[Image])
        .fix("remove the older copies of libefa from the image")
        .page(
            "Warns about copies of different releases. libfabric loads the first copy on the path of its \
            process.",
        ),
    declared("LIB-007", "NCCL and its EFA plugin fit each other", Run::Machine(stacks::plugin))
        .of(Hardware)
        .stops(NCCL_PASSES)
        .who(&[Image])
        .expects(
            "NCCL 2.31.2 or newer, and an aws-ofi-nccl that fits it",
            "older releases of NCCL have no EFA-GDA, and take their CPU proxy without an error",
        )
        .fix(
            "install NCCL 2.31.2 or newer with aws-ofi-nccl 1.21 or newer, or NCCL 2.32 with 1.22 or newer, in the \
            image; if the job's container has them, run gda-probe there",
        )
        .page(
            "Finds NCCL (on the loader's path and in Python's packages) and aws-ofi-nccl \
            (`NCCL_NET_PLUGIN`, the loader's path, the installer's directories), and compares the releases \
            that their files state: NCCL 2.31.2 needs aws-ofi-nccl 1.21 or newer for EFA-GDA, NCCL 2.32 \
            needs 1.22. With an older plugin NCCL reports that there is no GIN backend (warn). The same is \
            compared for what running processes have loaded, by the maps of those that the user may read \
            (run it as root on the host to see all; in a container it sees the container's). Of a process, \
            only the paths of these two libraries are kept. The observed text counts the processes that \
            could not be examined. A plugin whose file lacks the symbol `ncclGinPlugin_v14` has no GIN of type 5, \
            whatever release it states (warn). Queues that a program opens itself need neither. `unknown` \
            without NCCL, and for an NCCL before 2.31.2, which has no EFA-GDA; with `--for nccl` and `--for \
            deepep` both are warnings, and so is a second NCCL that does not fit the plugin.",
        ),
    declared("LIB-008", "GDRCopy's kernel module is as new as its library", Run::Machine(stacks::gdrcopy))
        .of(Hardware)
        .stops(NCCL_PASSES)
        .who(&[Operator])
        .expects(
            "GDRCopy 2.5 or newer in both, and a module as new as the library",
            "NCCL's EFA plugin asks the kernel module for its release and reports \"GIN requires GDRCopy 2.5+\", also if \
            only the module is older",
        )
        .fix("install the kernel module gdrdrv 2.5 or newer on the host")
        .page(
            "NCCL's EFA plugin needs GDRCopy 2.5, and asks the kernel module `gdrdrv` of the host, not the \
            library in the image: \"GIN requires GDRCopy 2.5+\" although libgdrapi is 2.5 means that the \
            module is older (warn; the host). `unknown` without libgdrapi; a warning with `--for nccl` and `--for \
            deepep`.",
        ),
    declared(
        "LIB-009",
        "libfabric's file has the GDA operations",
        Run::Libraries(library::release_of_root),
    )
    .stops(POSTING)
    .who(&[Image])
    .expects("libfabric 2.3 or newer", "older releases do not have the operations that expose a queue")
    .fix("install libfabric 2.3 or newer in the image, such as the current EFA installer's")
    .page(
        "With `--root` no libfabric is loaded (LIB-000), so the release in the file that the loader of \
        that system finds first is judged instead of GDA-001. `unknown` if that system has no libfabric, \
        or if its file states no release.",
    ),
    declared("LIB-010", "Programs find NCCL's EFA plugin", Run::Machine(copies::plugin_is_found))
        .of(Hardware)
        .stops(NCCL_PASSES)
        .who(&[Image])
        .expects(
            "the plugin's directory on the loader's path, or its path in NCCL_NET_PLUGIN",
            "NCCL finds no plugin, and reaches other hosts through sockets: NET/Socket in its log",
        )
        .fix("put /opt/amazon/ofi-nccl/lib on LD_LIBRARY_PATH, or in a file of /etc/ld.so.conf.d")
        .page(
            "A plugin that is installed where the loader does not look is not used (warn). The observed \
            text names directories of an older installer that the loader still searches. `unknown` without \
            a plugin.",
        ),
    declared("LIB-011", "One release of each library of NCCL's stack is there", Run::Machine(copies::one_release))
        .of(Hardware)
        .each(Subject::File)
        .who(&[Image])
        .expects(
            "one release of NCCL, of aws-ofi-nccl and of libibverbs",
            "a program and its libraries can load different ones, which do not fit each other",
        )
        .fix("remove all but one from the image")
        .page(
            "Lists the copies of NCCL (also Python's), aws-ofi-nccl and libibverbs in the order of the \
            loader's search, and warns of different releases. LIB-004 and LIB-006 do so for libfabric and \
            libefa. `unknown` if none of them is there.",
        ),
    declared("LIB-012", "NCCL's plugin loads the libfabric of programs", Run::Machine(copies::one_libfabric))
        .of(Hardware)
        .who(&[Image])
        .expects(
            "one libfabric for the plugin and for programs",
            "a process then has two libfabrics, which cannot share objects: transfers fail without an error",
        )
        .fix("remove the other libfabric from the image, or install a plugin that was built with the one in use")
        .page(
            "Compares the libfabric in the directories that the plugin's file names (RUNPATH) with the \
            first on the loader's path. `unknown` without a plugin, or if its file names no directory.",
        ),
];
