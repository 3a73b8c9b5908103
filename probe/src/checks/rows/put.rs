//! The rows of PUT: moving bytes.

use super::*;
use crate::checks::{data, fabric};

pub(super) static ROWS: &[Row] = &[
    proven(LOOPBACK, "A posted write completes", Run::Posting(data::completes, data::completes))
        .needs(&["QUE-008", "GDA-006"])
        .stops(POSTING)
        .who(&[Account, Program])
        .fix(
            "gda-probe explain STATUS-N explains the status; if it is a timeout, check the security group's \
            rules and the adapter's counters",
        )
        .page(
            "Device code, in the host executor or (subject `GPU/adapter`) on the GPU, posts one RDMA write \
            of 64 bytes to the same endpoint, rings, and waits for the completion with a time limit. \
            `gda-probe explain STATUS-N` explains status N of a request that failed. If no completion \
            arrives on EC2, the usual cause is the security group: it must allow all traffic within \
            itself, inbound and outbound. Another cause: some platforms are reported to drop what an \
            adapter sends to itself, although AWS's own health check sends from an adapter to itself. \
            Therefore, if the endpoint does not respond (no completion, or status 13 or 15), the write \
            goes to another adapter of the node, unless `--device` names one. This holds for the host \
            executor, through libfabric and through rdma-core, and for a GPU. If that write completes, the \
            check is a warning: the adapter is sound, and PUT-002 and later checks, those of GPUs too, \
            move their bytes to the other adapter, which the report and the key `target` name. If the \
            other adapter does not respond either, the network drops everything. `fi_pingpong -p efa` on \
            another host, and `fi_pingpong -p efa HOST` here, show whether a peer responds.",
        ),
    proven(MOVED, "Every byte of the put arrives", Run::Posting(data::arrives, data::arrives))
        .needs(&["PUT-001"])
        .stops(GDA_PASSES)
        .who(&[Operator, Program])
        .action(Action::Isolate)
        .fix("look at the adapter's counters; if bytes are wrong again, isolate the node and report it")
        .page(
            "`check` moves 16 × 64 bytes with RDMA writes; `put` moves what `--op`, `--bytes` and `--count` \
            select, in rounds. Sends are compared in the receives that they used. The receiver must get \
            each send and each write with immediate exactly once, with its length, its source, and the \
            number of the operation as immediate. A request that is longer than the adapter supports \
            (`max_msg_size` for sends, `max_rdma_size` for RDMA, 80 bytes inline) fails before anything is \
            posted, and the observed text names the limit. The receiver of a GPU's posts is another queue \
            of the same adapter, which the host uses. The source is random, the target starts as its \
            complement, and every byte is compared, with guard bytes after the target.",
        ),
    proven(
        "PUT-003",
        "The adapter reports no violation",
        Run::Posting(data::no_violation, data::no_violation),
    )
    .needs(&["QUE-005"])
    .who(&[Program])
    .expects(
        "entries and doorbells that comply with every rule of the rings",
        "a hardware adapter reacts to such an entry or doorbell with wrong data, or not at all",
    )
    .fix("report this text: efa-gda's device code wrote the entries")
    .page(
        "The software adapter checks every entry and every doorbell strictly (phase, must-be-zero bits, \
            batch, doorbells that move backwards, and more) and records each violation with its rule. A \
            hardware adapter reports no violations: the check is skipped there. Through rdma-core (`--soft \
            --via verbs`), `softefa run` reports violations on stderr and by its exit status: `unknown` \
            here.",
    ),
    proven(
        "PUT-004",
        "A wrong rkey causes an error completion",
        Run::Posting(data::wrong_key, data::wrong_key),
    )
    .needs(&["PUT-001"])
    .who(&[Operator])
    .action(Action::Isolate)
    .expects("an error completion", "a program hangs or reads wrong data if errors are not reported")
    .fix("report it with the versions of the adapter and its kernel driver")
    .page(
        "Posts a write with an rkey that names no region. The adapter must complete it with an error \
            status, and the device library must return this status to the poster. A program hangs if \
            errors are not reported.",
    ),
    proven(BENCH, "The bench completes", Run::Bench(fabric::bench::run))
        .needs(&["PUT-002", "PUT-003"])
        .who(&[Operator, Program])
        .action(Action::Isolate)
        .fix("run gda-probe put first: it reports the write that fails")
        .page(
            "Only `gda-probe bench` runs this check. It opens separate queues on the adapter and posts RDMA \
            writes to them from the host executor or from a GPU, in every doorbell mode that `--doorbell` \
            allows: latency of one write at a time, rate by posters and queues, bandwidth by size. It \
            fails if a write does not complete, or completes with an error. Figures never decide a check; \
            measurements for which `--time-limit` left no time are listed in `left_out`.",
        ),
    proven(CLOSES, "All objects close", Run::Posting(data::closes, data::closes))
        .needs(&["FAB-004", "VRB-005"])
        .who(&[Image])
        .expects(
            "every object closes, children first",
            "an object that does not close leaks queues and locked memory in a long-running program",
        )
        .fix("report it with the library's version")
        .page(
            "All objects close, children first: the queue, then memory, completion queue, address vector, \
            domain and fabric (or device).",
        ),
];
