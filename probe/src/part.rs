//! Checks that load foreign libraries run in a child process, so that a crash or a hang there is a
//! check's result and not the probe's end. The child is this program again, with a hidden command:
//! it reads a [`Request`] from stdin and writes one [`Event`] a line to what was its stdout.
//! Whatever libraries print goes to stderr.

pub(crate) mod child;
pub(crate) mod parent;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cli::{Doorbell, Op, Plant};
use crate::report::bench::Figure;
use crate::report::{Finding, Put, Queues};

/// The hidden command's name.
pub(crate) const COMMAND: &str = "__part";

/// Which checks the child runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    /// libfabric, from loading it to a verified completion.
    Fabric,
    /// The same through rdma-core alone.
    Verbs,
    /// The CUDA driver.
    Cuda,
    /// Opening the adapters' nodes.
    Nodes,
}

/// What the child is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Which checks.
    pub(crate) part: Part,
    /// Where the machine's files lie.
    pub(crate) root: PathBuf,
    /// Whether the software adapter stands in.
    pub(crate) soft: bool,
    /// Whether GPUs are left out.
    pub(crate) no_gpu: bool,
    /// The software adapter's provider.
    pub(crate) provider: Option<PathBuf>,
    /// The adapter that was asked for.
    pub(crate) device: Option<String>,
    /// Subjects (adapters, GPUs or pairs) that a child before this one did not survive.
    pub(crate) avoid: Vec<String>,
    /// The GPU that was asked for.
    pub(crate) gpu: Option<u32>,
    /// What runs the device code.
    pub(crate) driver: Driver,
    /// Who rings.
    pub(crate) doorbell: Doorbell,
    /// What to move.
    pub(crate) put: PutRequest,
    /// What to measure; nothing but in a bench.
    pub(crate) bench: Option<BenchRequest>,
    /// Whether nothing is looked at past what rdma-core exposes.
    pub(crate) exposure_alone: bool,
    /// Milliseconds that a wait for the adapter may take.
    pub(crate) wait: u64,
    /// What was found before; checks in it are not reported again.
    pub(crate) findings: Vec<Finding>,
}

/// What a put moves.
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
    /// Whether only the first adapter takes part: the put command's way.
    pub(crate) one_adapter: bool,
    /// A rule to break after it.
    pub(crate) plant: Option<Plant>,
}

/// What a bench may use.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct BenchRequest {
    /// Queues of the cases with several.
    pub(crate) queues: u32,
    /// Milliseconds for all measuring together.
    pub(crate) time_limit: u64,
}

/// What runs the device code.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Driver {
    /// The host executor, on every adapter.
    #[default]
    Host,
    /// This GPU, on the first adapter.
    Gpu(u32),
    /// GPUs, each on adapters of its own. The adapters were looked at before.
    Pairs(Vec<Pair>),
}

/// A GPU and an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// CUDA's number of the GPU.
    pub(crate) gpu: u32,
    /// The adapter's domain.
    pub(crate) adapter: String,
}

impl Pair {
    /// Names the pair as a check's subject.
    pub(crate) fn subject(&self) -> String {
        format!("{}/{}", self.gpu, self.adapter)
    }
}

/// A GPU that CUDA shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// CUDA's number for it.
    pub(crate) number: u32,
    /// Its name.
    pub(crate) name: String,
    /// Its PCI address, as sysfs has it.
    pub(crate) pci: Option<String>,
}

/// What the child says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A check begins.
    Begin {
        /// Its code.
        code: String,
        /// Its subject.
        subject: Option<String>,
    },
    /// A check ended.
    Found {
        /// What it found.
        finding: Finding,
    },
    /// A check that was reported before was run once more, for what it opens.
    Again,
    /// libfabric was loaded from this file.
    Loaded {
        /// The file.
        path: String,
    },
    /// libfabric's start took so long.
    Started {
        /// In milliseconds.
        milliseconds: u64,
    },
    /// The adapters that will be looked at.
    Adapters {
        /// Their domains' names.
        names: Vec<String>,
    },
    /// The GPUs that will be looked at.
    Gpus {
        /// What CUDA says of them.
        gpus: Vec<Gpu>,
    },
    /// The geometry of an adapter's queues.
    Queues {
        /// What was seen.
        queues: Queues,
    },
    /// A long check goes on, and may take so much longer than others before it says more.
    Progress {
        /// In milliseconds.
        milliseconds: u64,
    },
    /// What a bench measured.
    Figure {
        /// The figure.
        figure: Box<Figure>,
    },
    /// How far a bench has come.
    Step {
        /// Figures that are done.
        done: usize,
        /// Of so many.
        total: usize,
        /// What is measured now; empty at the end.
        now: String,
    },
    /// What a put moved.
    Moved {
        /// The put.
        put: Put,
    },
    /// All is done.
    End,
}
