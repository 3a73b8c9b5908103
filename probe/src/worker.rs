//! The protocol between the probe and its worker processes.
//!
//! Checks that load foreign libraries run in a worker process, so that a crash or a hang there is the
//! result of one check and does not end the probe. The worker is this program, started with a hidden
//! command. It reads a [`Request`] from stdin and writes [`Event`]s, one a line, to what was its
//! stdout; output of the libraries goes to stderr. [`stream`] is the worker's end; [`events`] and the
//! module `supervisor` are the probe's.

pub(crate) mod events;
pub(crate) mod stream;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::Load;
use crate::model::bench::Figure;
use crate::model::{DEFAULT_TIME_LIMIT, Doorbell, Fault, Finding, Gpu, Memory, Op, Pair, Put, Queues};

/// The hidden command that starts a worker.
pub(crate) const COMMAND: &str = "__worker";

/// The checks that one worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Group {
    /// libfabric, from loading it to a verified completion.
    Fabric,
    /// The same through rdma-core alone.
    Verbs,
    /// The CUDA driver.
    Cuda,
    /// Opening the adapters' device nodes.
    Nodes,
}

/// The work of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The checks to run.
    pub(crate) group: Group,
    /// The root of the machine's files.
    pub(crate) root: PathBuf,
    /// Whether the software adapter replaces hardware.
    pub(crate) soft: bool,
    /// Whether GPUs are left out.
    pub(crate) no_gpu: bool,
    /// Libraries that no check may load.
    pub(crate) not_loaded: Vec<Load>,
    /// The software adapter's provider.
    pub(crate) provider: Option<PathBuf>,
    /// The adapter named by `--device`.
    pub(crate) device: Option<String>,
    /// Subjects (adapters, GPUs or pairs) that ended an earlier worker.
    pub(crate) avoid: Vec<String>,
    /// The GPU named by `--gpu`.
    pub(crate) gpu: Option<u32>,
    /// Where the device code runs.
    pub(crate) executor: Executor,
    /// The memory of the bytes, of ranks.
    pub(crate) memory: Memory,
    /// The doorbell mode.
    pub(crate) doorbell: Doorbell,
    /// The bytes to move.
    pub(crate) put: PutRequest,
    /// The measurements to take; set by `bench` only.
    pub(crate) bench: Option<BenchRequest>,
    /// Whether the checks end with what rdma-core exposes.
    pub(crate) exposure_alone: bool,
    /// Milliseconds that a wait for the adapter may take.
    pub(crate) wait: u64,
    /// Earlier findings; the worker does not report these checks again.
    pub(crate) findings: Vec<Finding>,
}

/// The bytes that a put moves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PutRequest {
    /// The operation.
    pub(crate) op: Op,
    /// Bytes of each operation.
    pub(crate) bytes: u64,
    /// Operations.
    pub(crate) count: u64,
    /// Seconds after which no further round begins.
    pub(crate) max_seconds: u64,
    /// Whether only the first adapter takes part, as in the command `put`.
    pub(crate) one_adapter: bool,
    /// A fault to inject after the put.
    pub(crate) fault: Option<Fault>,
    /// To qualify stores of 16 bytes: how often each slot of the send queue is written, instead of `count`.
    pub(crate) qualify_laps: Option<u64>,
}

/// The resources of a bench.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct BenchRequest {
    /// Queues of the cases with several queues.
    pub(crate) queues: u32,
    /// Milliseconds for all measurements together.
    pub(crate) time_limit: u64,
}

/// Where the device code runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Executor {
    /// In the host executor, on every adapter.
    #[default]
    Host,
    /// On this GPU, with the first adapter.
    Gpu(u32),
    /// On the GPU of each pair, with the pair's adapter. An earlier worker checked the adapters.
    Pairs(Vec<Pair>),
}

/// A report of the worker to the probe.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// A check begins: its code and its subject.
    Begin(String, Option<String>),
    /// A check ended.
    Finding(Finding),
    /// A check of an earlier worker ended; it ran again for the objects that it opens.
    Repeated,
    /// libfabric was loaded from this file.
    Loaded(String),
    /// libfabric started, in so many milliseconds.
    Started(u64),
    /// The domains' names of the adapters that the worker checks.
    Adapters(Vec<String>),
    /// The GPUs that the worker checks.
    Gpus(Vec<Gpu>),
    /// The geometry of an adapter's queues.
    Queues(Queues),
    /// The running check needs so many milliseconds more before its next event.
    MoreTime(u64),
    /// A measurement of a bench.
    Figure(Box<Figure>),
    /// The progress of a bench: measurements that are done, those in all, and the one that begins; empty at the end.
    Step(usize, usize, String),
    /// The result of a put.
    Put(Put),
    /// All checks have ended.
    Done,
}

/// The first half of a fix when time ran out under a limit that is shorter than the default.
pub(crate) fn short_limit(each: Duration) -> Option<String> {
    let short = each < Duration::from_millis(DEFAULT_TIME_LIMIT);
    short.then(|| format!("raise --time-limit (milliseconds; default {DEFAULT_TIME_LIMIT}); otherwise "))
}
