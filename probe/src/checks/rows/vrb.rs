//! The rows of VRB: rdma-core alone.

use super::*;
use crate::checks::verbs;

pub(super) static ROWS: &[Row] = &[
    proven("VRB-001", "rdma-core loads", Run::Verbs(verbs::start::loads))
        .needs(&["ENV-000"])
        .loads(Load::RdmaCore)
        .who(&[Image])
        .expects("libibverbs.so.1 and libefa.so.1", "without libfabric, libefa exposes the adapter's queues")
        .fix("install libibverbs1 and ibverbs-providers in the image")
        .page(
            "The VRB checks use no libfabric. They serve transports without libfabric, and show which \
            layer lacks the queues. They run with `--via verbs`, and then checks of queues (QUE, PUT) \
            follow them. Without it they run only if libfabric exposes no queue, and no checks of \
            queues follow.\n\n\
            Loads `libibverbs.so.1` and `libefa.so.1` in a worker process, from the directory in \
            `RDMA_CORE_LIBDIR` or from the loader's path, and names the files. Debian: `libibverbs1` and \
            `ibverbs-providers`.",
        ),
    declared("VRB-002", "rdma-core can expose queues", Run::Verbs(verbs::start::exposes))
        .needs(&["VRB-001"])
        .follows(IfSameRole(&["LIB-005"]))
        .who(&[Image])
        .expects(
            "efadv_query_qp_wqs and efadv_query_cq, which rdma-core 59 added",
            "older releases do not expose the addresses of a queue",
        )
        .fix("install rdma-core 59 or newer in the image")
        .page(
            "rdma-core 59 added `efadv_query_qp_wqs` and `efadv_query_cq`. The observed text names the \
            release and the newer functions that it lacks: `efadv_get_max_sq_depth` (63), completion \
            counters (65, or the EFA installer's 64.0amzn0). An older rdma-core also creates completion \
            queues and regions differently, so this check blocks theirs.",
        ),
    proven("VRB-003", "libibverbs finds an EFA adapter", Run::Verbs(verbs::start::finds))
        .needs(&["VRB-001"])
        .follows(IfNonePasses(NO_ADAPTER))
        .who(&[Pod, Operator])
        .fix("add the EFA devices to the container; fix DEV-002 and DEV-003 on the host first")
        .page(
            "Calls `ibv_get_device_list` and keeps the devices that libefa accepts. If there is none, the \
            container does not see `/sys/class/infiniband_verbs` or `/dev/infiniband`, another copy of \
            libefa drives the devices, or the kernel driver is missing (DEV-002, DEV-003).",
        ),
    declared("VRB-004", "The requested adapter exists", Run::Verbs(verbs::start::chosen))
        .needs(&["VRB-003"])
        .who(&[Caller])
        .fix("name one of the adapters found with --device, or omit it")
        .page(
            "`--device` names an RDMA device (`rdmap79s0`) or its libfabric domain. Without it, all \
            adapters are checked.",
        ),
    proven("VRB-005", "The device opens", Run::Device(verbs::objects::opens))
        .needs(&["VRB-004"])
        .who(&[Pod])
        .expects(
            "ibv_open_device and efadv_query_device succeed",
            "every program opens the adapter's device node in /dev/infiniband first",
        )
        .fix("give the container the adapter's node in /dev/infiniband")
        .page(
            "`ibv_open_device` and `efadv_query_device`. They fail without permission for the device node.",
        ),
    declared("VRB-006", "The adapter has an active port and an address", Run::Device(verbs::objects::port))
        .needs(&["VRB-005"])
        .who(&[Operator])
        .action(Action::Isolate)
        .expects("ibv_query_port and ibv_query_gid succeed", "peers address an adapter by its GID")
        .fix("on the host: bring the adapter's network interface up, and search dmesg for efa")
        .page("Reads the port's state, and the GID by which peers address the adapter."),
    proven("VRB-007", "A protection domain is allocated", Run::Device(verbs::objects::domain))
        .needs(&["VRB-005"])
        .who(&[Operator])
        .action(Action::Restart)
        .expects("ibv_alloc_pd succeeds", "all other objects belong to a protection domain")
        .fix(ADAPTER_REFUSED)
        .page("`ibv_alloc_pd`."),
    proven("VRB-008", "A completion queue is created", Run::Device(verbs::objects::completion_queue))
        .needs(&["VRB-002", "VRB-005"])
        .who(&[Operator])
        .action(Action::Restart)
        .expects("ibv_create_cq succeeds", "the adapter writes completions into it")
        .fix(ADAPTER_REFUSED)
        .page("`ibv_create_cq` of 4096 entries, or of the adapter's maximum if that is lower."),
    proven("VRB-009", "Memory registers through rdma-core", Run::Device(verbs::objects::memory))
        .needs(&["VRB-002", "VRB-007"])
        .who(&[Pod])
        .expects(
            "ibv_reg_mr succeeds",
            "the adapter reads and writes registered memory only, whose pages registration locks",
        )
        .fix("raise the limit of locked memory (ENV-003)")
        .page(
            "`ibv_reg_mr` of 64 KiB for local and remote reading and writing. ENOMEM is nearly always the \
            limit of ENV-003.",
        ),
    proven("VRB-010", "A queue pair becomes ready", Run::Device(verbs::objects::queue_pair))
        .needs(&["VRB-007", "VRB-008"])
        .who(&[Operator])
        .action(Action::Restart)
        .expects(
            "efadv_create_qp_ex and ibv_modify_qp succeed",
            "a GPU posts through the queue pair's rings and doorbells",
        )
        .fix(ADAPTER_REFUSED)
        .page(
            "`efadv_create_qp_ex` of an SRD queue pair with 1024 send and 1024 receive entries (128-byte \
            send entries for inline writes), and `ibv_modify_qp` up to ready-to-send.",
        ),
    proven("VRB-011", "efadv_query_qp_wqs succeeds", Run::Device(verbs::objects::work_queues))
        .needs(&["VRB-002", "VRB-010"])
        .who(&[Operator])
        .expects("efadv_query_qp_wqs succeeds", REPORTS)
        .fix("run the EFA installer on the host")
        .page(
            "rdma-core exposes the addresses, the geometry and the doorbells of the send queue and the \
            receive queue. If this passes and GDA-003 does not, the adapter, its driver and rdma-core are \
            new enough, and libfabric is too old.",
        ),
    proven("VRB-012", "efadv_query_cq succeeds", Run::Device(verbs::objects::completion_ring))
        .needs(&["VRB-002", "VRB-008"])
        .who(&[Operator])
        .expects("efadv_query_cq succeeds", REPORTS)
        .fix("run the EFA installer on the host")
        .page("The same for the completion queue."),
    proven("VRB-013", "An address handle for the adapter is created", Run::Device(verbs::objects::peer))
        .needs(&["VRB-006", "VRB-010"])
        .who(&[Operator])
        .action(Action::Restart)
        .expects(
            "ibv_create_ah and efadv_query_ah succeed",
            "a work-queue entry names its target by this handle",
        )
        .fix(ADAPTER_REFUSED)
        .page(
            "`ibv_create_ah` for the adapter's own GID, and `efadv_query_ah` for the number that work-queue \
            entries carry. The probe writes to itself through the adapter.",
        ),
    proven("VRB-014", "A completion counter attaches to a queue pair", Run::Device(verbs::objects::counter))
        .needs(&["VRB-007", "VRB-008"])
        .who(&[Operator])
        .fix("run the EFA installer on the host")
        .page(
            "Creates a completion counter (rdma-core 65, or the EFA installer's 64.0amzn0), attaches it to \
            a separate queue pair and reads it. Queues work without counters (warn). The kernel driver \
            must be 3.3.0 or newer.",
        ),
    proven(
        "VRB-015",
        "A completion queue is created in external memory",
        Run::Device(verbs::objects::external),
    )
    .needs(&["VRB-002", "VRB-005"])
    .who(&[Operator])
    .fix("to place completions in a GPU's memory, use rdma-core 59 and kernel driver 2.17 or newer")
    .page("Like GDA-009, through `efadv_create_cq`, which needs rdma-core 59 and kernel driver 2.17."),
];
