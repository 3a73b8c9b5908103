//! The rows of GDA: GPU-Direct Async operations.

use super::*;
use crate::checks::fabric;

pub(super) static ROWS: &[Row] = &[
    declared(PROVIDER, "The provider is new enough for GDA operations", Run::Adapter(fabric::gda::release))
        .needs(&["LIB-001"])
        .stops(POSTING)
        .who(&[Image])
        .fix(NEW_LIBFABRIC)
        .page(
            "libfabric 2.3 added the table \"efa gda ops\". The provider has the table, so the provider's \
            version decides (203.0), not the library's. A distribution's libfabric is usually older: use \
            the EFA installer's. If no provider with efa-direct finds an adapter, the library's release \
            decides: below 2.3 its built-in provider is too old as well (fail); from 2.3 on the result is \
            `unknown` until an adapter is found.",
        ),
    proven("GDA-002", "The domain has the GDA operations", Run::Adapter(fabric::gda::table))
        .needs(&["FAB-005"])
        .stops(POSTING)
        .who(&[Image])
        .expects(
            "fi_open_ops(\"efa gda ops\") succeeds",
            "these operations expose a queue's memory and doorbell",
        )
        .fix(NEW_LIBFABRIC)
        .page(
            "`fi_open_ops(\"efa gda ops\")` on the domain. EINVAL: the provider, which is older than 2.3, \
            does not know the name. EOPNOTSUPP: the domain is on the plain `efa` fabric. The observed text \
            lists the operations that can be called.",
        ),
    proven(EXPOSES, "query_qp_wqs succeeds", Run::Adapter(fabric::gda::work_queues))
        .needs(&["GDA-002", "FAB-009"])
        .stops(POSTING)
        .follows(IfNonePasses(&["LIB-005"]))
        .who(&[Image])
        .expects("query_qp_wqs succeeds", REPORTS)
        .fix("install a libfabric that was built with rdma-core 59 or newer")
        .page(
            "Reads the send queue and the receive queue of the enabled endpoint: memory, doorbell, entry \
            size, depth, batch. ENOSYS: libfabric was built with an rdma-core without efadv queries \
            (before 59).",
        ),
    proven("GDA-004", "query_cq succeeds", Run::Adapter(fabric::gda::completion_queue))
        .needs(&["GDA-002", "FAB-007"])
        .who(&[Image])
        .expects("query_cq succeeds", REPORTS)
        .fix("install a libfabric that was built with rdma-core 59 or newer")
        .page("Reads the completion queue's memory, entry size and depth."),
    proven("GDA-005", "query_addr succeeds", Run::Adapter(fabric::gda::address))
        .needs(&["GDA-002", "FAB-010"])
        .stops(POSTING)
        .who(&[Image])
        .expects("query_addr succeeds", "a work-queue entry names its target by these three numbers")
        .fix(NEW_LIBFABRIC)
        .page(
            "Reads the address handle, queue pair number and queue key of a peer, by which a work-queue \
            entry names its target.",
        ),
    proven("GDA-006", "get_mr_lkey succeeds", Run::Adapter(fabric::gda::local_key))
        .needs(&["GDA-002", "FAB-008"])
        .stops(POSTING)
        .who(&[Image])
        .expects("get_mr_lkey succeeds", "a work-queue entry names its local memory by this key")
        .fix(NEW_LIBFABRIC)
        .page("Reads the 24-bit key by which a work-queue entry names local memory."),
    declared("GDA-007", "The provider offers completion counters", Run::Adapter(fabric::gda::counters))
        .needs(&["GDA-002"])
        .stops(NCCL)
        .who(&[Image])
        .fix("install libfabric 2.6 or newer in the image")
        .page(
            "`cntr_open_ext`, the sixth operation of the table, opens hardware counters. Providers 203.0 to \
            205.x have a table of five operations, and nothing in a table marks its end: a program that is \
            built for libfabric 2.6, or follows the manual page of 2.5, calls an invalid address. The \
            check then fails with the provider's version: use libfabric 2.6, or call no operation after \
            the fifth. A provider of version 206.0 or newer with a table of five, or with no function \
            there, is broken and fails too. Queues work without counters, with completions read from the \
            completion queue, so only GDA-010 depends on this check.",
        ),
    declared(
        "GDA-008",
        "The provider offers completion queues in external memory",
        Run::Adapter(fabric::gda::external),
    )
    .needs(&["GDA-002"])
    .who(&[Image])
    .expects(
        "cq_open_ext in the provider's table",
        "queues work without it: the driver allocates completion queues in host memory",
    )
    .fix("to place completions in a GPU's memory, install the current EFA installer's libfabric in the image")
    .page(
        "`cq_open_ext` opens a completion queue in the caller's memory, such as a GPU's. Queues work \
            without it: the driver allocates completion queues in host memory (warn).",
    ),
    proven(
        "GDA-009",
        "A completion queue opens in external memory",
        Run::Adapter(fabric::gda::external_opens),
    )
    .needs(&["GDA-002", "GDA-004"])
    .who(&[Operator])
    .fix("run the EFA installer on the host")
    .page(
        "Opens a completion queue of 1024 entries in the probe's memory (`cq_open_ext`), reads its \
            depth and closes it. The memory is a dmabuf of host memory from `/dev/udmabuf`. `unknown` if \
            the provider does not offer the operation or the kernel does not make such a dmabuf. A failure \
            is a warning, because queues work with completions in host memory. The kernel driver must be \
            2.17 or newer.",
    ),
    proven("GDA-010", "A completion counter counts", Run::Adapter(fabric::counters::count))
        .needs(&["GDA-007", "GDA-003", "GDA-006", "FAB-010"])
        .stops(NCCL_PASSES)
        .follows(IfSameRole(&["DEV-002"]))
        .who(&[Operator, Job])
        .fix("run the EFA installer on the host, and set FI_EFA_USE_HW_CNTR=1 where the release needs it")
        .page(
            "Opens a counter, binds it to a separate endpoint, and posts two RDMA writes from this endpoint \
            to itself, one that succeeds and one with a key that names no region: the counter must report \
            one success and one error. If the first write does not complete, because the platform drops \
            what an adapter sends to itself (PUT-001), the check repeats both with another counter and \
            endpoint, and writes to another adapter of the node, which the observed text names. Before \
            libfabric 2.7 counters are off unless `FI_EFA_USE_HW_CNTR=1` is in the environment (otherwise \
            `unknown`); from 2.7 on they are on by default. The provider reads the variable as a number, \
            so that words such as `yes` disable counters.\n\n\
            If the counter does not open, the code names the layer. EOPNOTSUPP: the variable disables \
            counters, the domain's API is below 2.5, or the kernel driver (before 3.3.0) or the adapter \
            has none. ENOSYS: the kernel driver is older than 3.3.0, or libfabric was built without \
            counters, or rdma-core lacks them (before 65 and the EFA installer's 64.0amzn0: a libefa \
            without the symbol version EFA_1.7). The fix is that of the first of these causes that the \
            machine's files confirm.\n\n\
            A failure is a warning, because completions can be read from the completion queue; NCCL's \
            EFA-GDA reads counters only and does not start without them. `unknown` if the writes \
            themselves did not end as expected, also if they do not complete and there is no other \
            adapter.",
        ),
];
