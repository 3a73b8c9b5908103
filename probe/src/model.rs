//! The data of a run: check codes, findings, verdicts, puts, and the documents that `--json` prints
//! (`docs/schema/gda-probe-1.json`). Keys that do not apply are absent. Nothing here reads the
//! machine or formats a report.

pub(crate) mod bench;
mod grade;
mod options;
pub(crate) mod ranks;
pub(crate) mod text;
mod verdict;

use serde::{Deserialize, Serialize};

pub(crate) use self::grade::{Action, Graded, Severity, Stops};
pub(crate) use self::options::{
    DEFAULT_TIME_LIMIT, Doorbell, Fault, GpuChoice, Memory, Op, Over, Pairs, Via,
};
pub(crate) use self::verdict::{Pair, Reach, Runs, StackName, StackVerdict, Step, Verdict};

/// The name and version of the JSON format.
pub(crate) const SCHEMA: &str = "gda-probe/1";

/// The categories of checks: the prefix of their codes, and a title.
pub(crate) const CATEGORIES: [(&str, &str); 9] = [
    ("ENV", "Environment"),
    ("DEV", "Adapters and their kernel driver"),
    ("LIB", "Libraries"),
    ("CUDA", "GPU and CUDA"),
    ("FAB", "libfabric's objects"),
    ("GDA", "GPU-Direct Async operations"),
    ("VRB", "rdma-core alone"),
    ("QUE", "Queues"),
    ("PUT", "Moving bytes"),
];

/// The check that the kernel driver maps another device's BAR.
pub(crate) const PEER_MAPPING: &str = "CUDA-002";
/// The check that queues map into a GPU.
pub(crate) const MAPS: &str = "CUDA-008";
/// The check of the provider's release.
pub(crate) const PROVIDER: &str = "GDA-001";
/// The check that libfabric exposes queues.
pub(crate) const EXPOSES: &str = "GDA-003";
/// The checks that rdma-core exposes queues.
pub(crate) const VERBS_EXPOSES: [&str; 2] = ["VRB-011", "VRB-012"];
/// The check of a write from an adapter to itself. A warning means that writes to another adapter of the node arrive.
pub(crate) const LOOPBACK: &str = "PUT-001";
/// The check that bytes moved through the queues arrive.
pub(crate) const MOVED: &str = "PUT-002";
/// The check that closes all objects.
pub(crate) const CLOSES: &str = "PUT-005";
/// The bench.
pub(crate) const BENCH: &str = "PUT-006";
/// The code that blocks checks of hardware under `--soft`.
pub(crate) const SOFTWARE_ADAPTER: &str = "ENV-000";
/// The code that blocks checks of a GPU when no GPU takes part.
pub(crate) const NO_GPU: &str = "CUDA-000";
/// The code that blocks checks of libraries that the run does not load (`--root`).
pub(crate) const NOT_LOADED: &str = "LIB-000";

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// The statement holds.
    Pass,
    /// The statement holds, at a cost.
    Warn,
    /// The statement does not hold.
    Fail,
    /// The check did not run; another code is the reason.
    Skip,
    /// The check has no result.
    Unknown,
}

/// The evidence for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A version, a parameter or a file states it.
    Declared,
    /// The probe did it: loaded, mapped, rang, completed.
    Proven,
}

/// The role that can repair a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Who {
    /// The machine's operator: kernel, drivers, instance type.
    Host,
    /// The author of the container image: libraries.
    Image,
    /// The author of the pod or job: devices, limits, environment.
    Pod,
    /// The author of the program.
    Code,
}

impl Who {
    /// The word for the role.
    pub(crate) fn role(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Image => "image",
            Self::Pod => "pod",
            Self::Code => "code",
        }
    }
}

/// The one party that can apply a fix. A role is wider: a pod's author and the user who starts the job differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Party {
    /// The administrator of the AWS account: instances, interfaces, security groups.
    Account,
    /// The operator of the machine: kernel and drivers.
    Operator,
    /// The author of the container image.
    Image,
    /// The author of the pod or job: devices and limits.
    Pod,
    /// The user who starts the job: its environment.
    Job,
    /// The author of the program.
    Program,
    /// The caller of gda-probe.
    Caller,
}

impl Party {
    /// The party's role.
    pub(crate) fn role(self) -> Who {
        match self {
            Self::Account | Self::Operator => Who::Host,
            Self::Image => Who::Image,
            Self::Pod | Self::Job => Who::Pod,
            Self::Program | Self::Caller => Who::Code,
        }
    }

    /// The role and the party in words.
    pub(crate) fn person(self) -> &'static str {
        match self {
            Self::Account => "host: the administrator of the AWS account",
            Self::Operator => "host: the operator of the machine",
            Self::Image => "image: the author of the image",
            Self::Pod => "pod: the author of the pod or job",
            Self::Job => "pod: the user who starts the job",
            Self::Program => "code: the author of the program",
            Self::Caller => "code: the caller of gda-probe",
        }
    }
}

/// The result of one check for one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The stable code. Code and subject together are unique in a report.
    pub(crate) code: String,
    /// The adapter, GPU, pair or library that was checked, for checks that repeat.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) subject: Option<String>,
    /// The statement that was checked.
    pub(crate) title: String,
    /// The result.
    pub(crate) state: State,
    /// The evidence for the result.
    pub(crate) kind: Kind,
    /// The value that was observed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) observed: Option<String>,
    /// The value that is required.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) required: Option<String>,
    /// Why the requirement matters, or why there is no result.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) why: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) fix: Option<String>,
    /// The role that can do it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) who: Option<Who>,
    /// The party of this role that can do it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) party: Option<Party>,
    /// The code because of which this check did not run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) blocked_by: Option<String>,
}

impl Finding {
    /// A finding without a subject and without texts.
    pub(crate) fn new(code: &str, title: &str, state: State, kind: Kind) -> Self {
        let (code, title) = (code.to_owned(), title.to_owned());
        let (subject, observed, required, why) = (None, None, None, None);
        Self {
            code,
            subject,
            title,
            state,
            kind,
            observed,
            required,
            why,
            fix: None,
            who: None,
            party: None,
            blocked_by: None,
        }
    }
}

/// A GPU that CUDA lists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// CUDA's number for it.
    pub(crate) number: u32,
    /// Its name.
    pub(crate) name: String,
    /// Its PCI address, as in sysfs.
    pub(crate) pci: Option<String>,
}

/// The geometry of one queue, as the provider reported it. Addresses are left out, because they have
/// no meaning outside the process that mapped them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Geometry {
    /// Bytes of an entry.
    pub(crate) entry_size: u32,
    /// Entries of the ring.
    pub(crate) num_entries: u32,
    /// Entries that may be written between two doorbells; work queues only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) max_batch: Option<u32>,
    /// The phase bit of the ring's first lap; absent for entries without a phase bit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) phase: Option<u8>,
}

/// The three queues of an endpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Queues {
    /// The send queue.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) sq: Option<Geometry>,
    /// The receive queue.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) rq: Option<Geometry>,
    /// The completion queue.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) cq: Option<Geometry>,
}

impl Queues {
    /// Whether the geometry of no queue is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.sq.is_none() && self.rq.is_none() && self.cq.is_none()
    }
}

/// The result of a put.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Put {
    /// The operation, as on the command line.
    pub(crate) op: String,
    /// Bytes of each operation.
    pub(crate) bytes: u64,
    /// Operations requested.
    pub(crate) count: u64,
    /// Operations that completed without error.
    pub(crate) completed: u64,
    /// Whether every byte of every operation arrived and no other byte changed.
    pub(crate) verified: bool,
    /// The doorbell mode: `direct`, `record` or `staged`.
    pub(crate) doorbell: String,
    /// The cost of this mode compared with `direct`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) lost: Option<String>,
    /// Where the device code ran: `host` or `cuda`.
    pub(crate) executor: String,
    /// The number of the GPU that ran it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) gpu: Option<String>,
    /// The adapter.
    pub(crate) adapter: String,
    /// The adapter that the bytes arrived at; absent if it is the same.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) target: Option<String>,
    /// Bytes of the widest stores by which the device code wrote entries into the adapter's ring; absent in mode
    /// `staged`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) store_bytes: Option<u32>,
    /// The result of `--qualify-stores`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) qualification: Option<Qualification>,
    /// From the first entry to the last completion, without filling and comparing memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) microseconds: Option<u64>,
    /// Violations that the software adapter reported.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) violations: Vec<String>,
}

/// Whether a GPU may write entries into an adapter's ring by stores of 16 bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Qualification {
    /// How often each slot of the send queue was to be written.
    pub(crate) laps: u64,
    /// Whether all of it was, without an error, and every byte arrived.
    pub(crate) passed: bool,
    /// What the result means for programs.
    pub(crate) next: String,
}

/// The document of a command that ended before it could report.
#[derive(Debug, Serialize)]
pub(crate) struct Refusal<'a> {
    pub(crate) schema: &'static str,
    pub(crate) command: &'static str,
    /// Why the command ended.
    pub(crate) error: &'a str,
}

/// Where and when a run took place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Origin {
    /// The version of the probe.
    pub(crate) version: &'static str,
    /// The time, UTC, as RFC 3339 has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<String>,
    /// The host's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// The kernel's release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kernel: Option<String>,
}

impl Default for Origin {
    fn default() -> Self {
        Self { version: env!("CARGO_PKG_VERSION"), time: None, host: None, kernel: None }
    }
}

/// A counter of an adapter that changed while the probe moved bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Counter {
    /// The RDMA device.
    pub(crate) adapter: String,
    /// Its file name in sysfs.
    pub(crate) name: String,
    /// The value before the run.
    pub(crate) before: u64,
    /// The value after the run.
    pub(crate) after: u64,
    /// What an increase means, for counters of trouble.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meaning: Option<&'static str>,
}

/// The document of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Document {
    pub(crate) schema: &'static str,
    pub(crate) command: &'static str,
    #[serde(flatten)]
    pub(crate) origin: Origin,
    pub(crate) soft: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Vec<Verdict>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stacks: Option<Vec<StackVerdict>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checks: Option<Vec<Graded>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<Queues>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) put: Option<Put>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks: Option<ranks::Ranks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counters: Option<Vec<Counter>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bench: Option<bench::Bench>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decode: Option<crate::decode::Decoded>,
}

impl Document {
    /// An empty document of `command`.
    pub(crate) fn new(command: &'static str, soft: bool) -> Self {
        Self { schema: SCHEMA, command, soft, ..Self::default() }
    }
}
