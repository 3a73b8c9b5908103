//! The rows of QUE: queues.

use super::*;
use crate::checks::{data, fabric, queues};

pub(super) static ROWS: &[Row] = &[
    declared("QUE-001", "The send queue's geometry is valid", Run::Queue(queues::send, queues::send))
        .needs(&["GDA-003", "VRB-011"])
        .stops(POSTING)
        .who(&[Image])
        .fix(GEOMETRY)
        .page(
            "Entries have 64 or 128 bytes, their number is a power of two and at most 32768, the batch is \
            at least 1, and addresses are aligned. With other values, device code would write outside the \
            ring.",
        ),
    declared(
        "QUE-002",
        "The receive queue's geometry is valid",
        Run::Queue(queues::receive, queues::receive),
    )
    .needs(&["GDA-003", "VRB-011"])
    .who(&[Image])
    .fix(GEOMETRY)
    .page("Entries have 16 bytes; the rest is as in QUE-001."),
    declared(
        "QUE-003",
        "The completion queue's geometry is valid",
        Run::Queue(queues::completion, queues::completion),
    )
    .needs(&["GDA-004", "VRB-012"])
    .who(&[Image])
    .fix(GEOMETRY)
    .page("Entries have 16 or 32 bytes, their number is a power of two, and the address is aligned."),
    declared(
        "QUE-004",
        "The completion queue is at least as deep as the send queue",
        Run::Queue(queues::deep_enough, queues::deep_enough),
    )
    .needs(&["QUE-001", "QUE-003"])
    .who(&[Program])
    .fix("open the completion queue with at least as many entries as the send queue has")
    .page(
        "Every request completes with an entry of the completion queue. If it has fewer entries than \
            the send queue, a slow reader loses completions.",
    ),
    proven("QUE-005", "The host maps the queues", Run::Queue(data::maps, data::maps))
        .needs(&["QUE-001", "QUE-002", "QUE-003", "GDA-005", "VRB-013"])
        .stops(POSTING)
        .who(&[Image])
        .fix(REPORT)
        .page("Builds the struct that device code receives from the exposed queues. Nothing is posted."),
    proven("QUE-006", "The host can write to the send queue", Run::Queue(data::writes, data::writes))
        .needs(&["QUE-005"])
        .who(&[Image])
        .fix(REPORT)
        .page(
            "Writes an entry with the next lap's phase into slot 0, without a doorbell. A crash here \
            (SIGBUS, SIGSEGV) means that the exposed memory is not mapped for writing.",
        ),
    proven("QUE-007", "The host can write to the doorbell", Run::Queue(data::rings, data::rings))
        .needs(&["QUE-005"])
        .who(&[Image])
        .fix(REPORT)
        .page(
            "Writes the present producer index, 0, which starts no request. A crash here means that the \
            doorbell's page is not mapped.",
        ),
    proven(
        "QUE-008",
        "A doorbell mode works for the queue",
        Run::Posting(fabric::on_gpu::takes_doorbell_mode, data::takes_doorbell_mode),
    )
    .needs(&["CUDA-005", "CUDA-010", "QUE-006", "QUE-007"])
    .who(&[Caller, Operator])
    .expects(
        "a doorbell proxy that accepts the queue",
        "without a doorbell proxy, nothing rings for entries that the device code posts in this mode",
    )
    .fix("use --doorbell auto, which selects the first mode that works")
    .page(
        "Sets up the doorbell mode that `--doorbell` selects: `direct` (the device code rings), \
            `record` (the device code writes a doorbell record in host memory, and the doorbell proxy \
            rings) or `staged` (the device code writes entries into host memory too, and the doorbell \
            proxy copies them and rings). `auto` selects the first mode that works. The observed text \
            reports the cost against `direct`: the latency of the doorbell proxy, and a CPU core during \
            traffic. PUT-001 and later checks prove that bytes move in this mode. With a GPU (subject \
            `GPU/adapter`) the check maps the queue into the GPU in the first mode that CUDA allows, and \
            reports why earlier modes did not work.",
    ),
];
