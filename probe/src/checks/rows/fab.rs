//! The rows of FAB: libfabric's objects.

use super::*;
use crate::checks::fabric;

pub(super) static ROWS: &[Row] = &[
    proven("FAB-001", "libfabric's efa provider finds an adapter", Run::Fabric(fabric::start::provider))
        .needs(&["ENV-006", "LIB-001"])
        .stops(EVERY)
        .follows(IfNonePasses(NO_ADAPTER))
        .who(&[Image, Pod])
        .expects(
            "a provider named efa that finds an adapter",
            "libfabric reaches EFA adapters through this provider, which finds them through \
             libefa and /dev/infiniband",
        )
        .fix(
            "if ENV-004, ENV-006 or a DEV check does not pass, fix that first; otherwise install \
             a libfabric with the efa provider in the image, such as the EFA installer's",
        )
        .page(
            "Calls `fi_getinfo` for the provider efa. \"No data available\" means that libfabric was built \
            without this provider (the image), that the provider found no device (DEV checks, \
            `/dev/infiniband`), or that environment variables exclude it (ENV-006) or keep it from \
            starting (ENV-004). Four causes have their own fix. First, no EFA adapter is on the PCI bus \
            (DEV-001; fix: the host). Second, none of the adapters has its device node (DEV-005; fix: the \
            pod). Third, another vendor's verbs device is visible in `/sys/class/infiniband_verbs`, and \
            its node is missing or cannot be opened: older releases of libfabric then find no adapter \
            (fix: the pod). Fourth, the rdma-core does not know the id of an adapter 1d0f:efa4 (fix: the \
            image). Under `--soft`, \"No data available\" means that softefa did not start, usually \
            because of a `SOFTEFA_*` value; softefa reports the cause on stderr.",
        ),
    proven("FAB-002", "The provider offers the fabric efa-direct", Run::Fabric(fabric::start::direct))
        .needs(&["FAB-001"])
        .stops(EVERY)
        .who(&[Image])
        .expects(
            "the fabric efa-direct, from libfabric 2.1 on",
            "on the plain efa fabric, libfabric uses the queues itself and does not expose them",
        )
        .fix(NEW_LIBFABRIC)
        .page(
            "Endpoints on the plain `efa` fabric run libfabric's protocol over their queues and do not \
            expose them. An endpoint on `efa-direct` (libfabric 2.1) is the adapter's queue pair, without \
            a protocol.",
        ),
    declared("FAB-003", "The requested adapter exists", Run::Fabric(fabric::start::chosen))
        .needs(&["FAB-002"])
        .stops(EVERY)
        .who(&[Caller])
        .fix("name one of the adapters found with --device, or omit it")
        .page(
            "`--device` names a libfabric domain (`rdmap79s0-rdm`) or its RDMA device (`rdmap79s0`). \
            Without it, all adapters are checked.",
        ),
    proven("FAB-011", "The provider offers FI_XPU", Run::Fabric(fabric::start::xpu))
        .needs(&["FAB-002"])
        .stops(XPU_PASSES)
        .who(&[Image])
        .fix("install a libfabric whose efa provider offers FI_XPU, for programs that need it")
        .page(
            "libfabric 2.7 can export endpoints, completion queues and counters to a device (FI_XPU). The \
            check asks the provider for this capability, and reports for each adapter how many contexts of \
            devices its domain has (`max_xpu_ctx_cnt`). It exports nothing itself. libfabric leaves the \
            layout of what is exported to the provider, whose device functions drive it. `unknown` with an \
            older libfabric, which is not asked, and with a provider that does not offer FI_XPU: queues \
            for a GPU need only the GDA operations, through which all queues of the report come (GDA-003). \
            In libfabric 2.7.0 the device functions return ENOSYS. softefa does not offer FI_XPU. \
            docs/device-apis.md states which interface to use.",
        ),
    proven("FAB-004", "The fabric opens", Run::Adapter(fabric::objects::fabric))
        .needs(&["FAB-003"])
        .who(&[Image])
        .expects("fi_fabric succeeds", "all other objects are opened on the fabric")
        .fix(NEW_LIBFABRIC)
        .page("`fi_fabric`. This does not access the adapter."),
    proven("FAB-005", "The domain opens", Run::Adapter(fabric::objects::domain))
        .needs(&["FAB-004"])
        .stops(EVERY_PASSES)
        .who(&[Pod])
        .expects(
            "fi_domain succeeds",
            "fi_domain opens the adapter's device and allocates a protection domain",
        )
        .fix(
            "give the container the adapter's node in /dev/infiniband, and end programs that hold its \
            resources",
        )
        .page(
            "`fi_domain` opens the device and allocates a protection domain. It fails without permission \
            for the device node, or if the adapter has no resources left.",
        ),
    proven("FAB-006", "An address vector opens", Run::Adapter(fabric::objects::address_vector))
        .needs(&["FAB-005"])
        .who(&[Image])
        .expects("fi_av_open succeeds", "the address vector holds address handles")
        .fix(NEW_LIBFABRIC)
        .page(
            "`fi_av_open` opens the table of peers, which holds an address handle of the adapter for each \
            peer.",
        ),
    proven("FAB-007", "A completion queue opens", Run::Adapter(fabric::objects::completion_queue))
        .needs(&["FAB-005"])
        .who(&[Image])
        .expects("fi_cq_open succeeds", "the adapter writes completions into it")
        .fix(NEW_LIBFABRIC)
        .page("`fi_cq_open`, without a wait object, as device code requires."),
    proven("FAB-008", "Memory registers", Run::Adapter(fabric::objects::memory))
        .needs(&["FAB-005"])
        .stops(EVERY)
        .who(&[Pod])
        .expects(
            "fi_mr_reg succeeds",
            "the adapter reads and writes registered memory only, whose pages registration locks",
        )
        .fix("raise the limit of locked memory (ENV-003)")
        .page(
            "`fi_mr_reg` of 64 KiB for local and remote reading and writing. ENOMEM is nearly always the \
            limit of ENV-003.",
        ),
    proven("FAB-009", "An endpoint enables", Run::Adapter(fabric::objects::endpoint))
        .needs(&["FAB-006", "FAB-007"])
        .stops(EVERY)
        .who(&[Operator])
        .action(Action::Restart)
        .expects("fi_endpoint, fi_ep_bind and fi_enable succeed", "fi_enable creates the queue pair")
        .fix(ADAPTER_REFUSED)
        .page("`fi_endpoint`, `fi_ep_bind`, `fi_enable`. `fi_enable` creates the queue pair."),
    proven(
        "FAB-010",
        "The address vector accepts the endpoint's address",
        Run::Adapter(fabric::objects::own_address),
    )
    .needs(&["FAB-009"])
    .who(&[Image])
    .expects(
        "fi_getname and fi_av_insert succeed",
        "a writer needs an address handle for its target, and the target needs one for the \
             writer",
    )
    .fix(NEW_LIBFABRIC)
    .page(
        "`fi_getname` and `fi_av_insert` of the endpoint's own address. The probe writes to itself \
            through the adapter; every target must also hold an address handle for its writer.",
    ),
];
