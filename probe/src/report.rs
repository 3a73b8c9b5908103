//! What a run reports: findings, verdicts, queue geometry and puts, in the shape that `--json` prints
//! (`docs/schema/gda-probe-1.json`). Keys that do not apply are absent.

pub(crate) mod bench;
pub(crate) mod html;
pub(crate) mod human;

use serde::{Deserialize, Serialize};

/// The name and version of the JSON shape.
pub(crate) const SCHEMA: &str = "gda-probe/1";

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It holds.
    Pass,
    /// It holds, but something about it will cost somebody.
    Warn,
    /// It does not hold.
    Fail,
    /// It was not tried; another code says why.
    Skip,
    /// It was tried, or would be, but no answer can be had.
    Unknown,
}

/// What an answer rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Something says so: a version, a parameter, a file.
    Declared,
    /// It was done: loaded, mapped, rung, completed.
    Proven,
}

/// Who can repair it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Who {
    /// Whoever runs the machine: kernel, drivers, instance type.
    Host,
    /// Whoever builds the container image: libraries.
    Image,
    /// Whoever writes the pod or job: devices, limits, environment.
    Pod,
    /// Whoever writes the program.
    Code,
}

/// One check's answer about one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The stable code; together with `subject` it is unique in a report.
    pub(crate) code: String,
    /// What it is about, where one code repeats.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) subject: Option<String>,
    /// What is checked.
    pub(crate) title: String,
    /// The answer.
    pub(crate) state: State,
    /// What the answer rests on.
    pub(crate) kind: Kind,
    /// What was seen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) observed: Option<String>,
    /// What has to be there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) required: Option<String>,
    /// Why it matters, or why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) why: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) fix: Option<String>,
    /// Who can do it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) who: Option<Who>,
    /// The code that keeps this one from being tried.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) blocked_by: Option<String>,
}

/// What a GPU can do with an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reach {
    /// The GPU writes entries and rings the doorbell itself.
    Gda,
    /// The GPU writes entries, a host thread rings.
    HostRung,
    /// Neither was shown.
    None,
}

/// The verdict on one pair of GPU and adapter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The GPU's number, or "none".
    pub(crate) gpu: String,
    /// The adapter's name, or "none" where there is none.
    pub(crate) adapter: String,
    /// What this pair can do.
    pub(crate) result: Reach,
    /// The next step.
    pub(crate) next: String,
}

/// The geometry of one queue, as the provider reported it. Addresses are left out: they mean
/// nothing outside the process that mapped them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Geometry {
    /// Bytes of an entry.
    pub(crate) entry_size: u32,
    /// Entries of the ring.
    pub(crate) num_entries: u32,
    /// Entries that may be written between two doorbells; work queues only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) max_batch: Option<u32>,
    /// The phase bit of the ring's first round; absent where entries have none.
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
    /// Whether nothing is known of any of them.
    pub(crate) fn is_empty(&self) -> bool {
        self.sq.is_none() && self.rq.is_none() && self.cq.is_none()
    }
}

/// What a put moved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Put {
    /// The operation: `write`.
    pub(crate) op: String,
    /// Bytes of each operation.
    pub(crate) bytes: u64,
    /// Operations asked for.
    pub(crate) count: u64,
    /// Operations that completed without error.
    pub(crate) completed: u64,
    /// Whether every byte of every operation arrived, and nothing else changed.
    pub(crate) verified: bool,
    /// Who rang: `direct`, `record` or `staged`.
    pub(crate) doorbell: String,
    /// What is lost against `direct`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) lost: Option<String>,
    /// What ran the device code: `host` or `cuda`.
    pub(crate) executor: String,
    /// The GPU's number, where one did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) gpu: Option<String>,
    /// The adapter.
    pub(crate) adapter: String,
    /// From the first entry to the last completion, without filling and comparing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) microseconds: Option<u64>,
    /// Rules that the software adapter saw broken.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) violations: Vec<String>,
}

/// The document in place of a run's, where there is none.
#[derive(Debug, Serialize)]
pub(crate) struct Refusal<'a> {
    pub(crate) schema: &'static str,
    pub(crate) command: &'static str,
    /// Why there is none.
    pub(crate) error: &'a str,
}

/// The document of a page.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    schema: &'static str,
    command: &'static str,
    code: &'static str,
    title: &'static str,
    text: &'static str,
}

impl Explanation {
    /// Of a page: its first line is code and title.
    pub(crate) fn of(page: &'static str) -> Self {
        let (heading, text) = page.split_once('\n').unwrap_or((page, ""));
        let (code, title) = heading.split_once(' ').unwrap_or((heading, ""));
        Self { schema: SCHEMA, command: "explain", code, title, text: text.trim() }
    }
}

/// The document of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    pub(crate) schema: &'static str,
    pub(crate) command: &'static str,
    pub(crate) soft: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Vec<Verdict>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checks: Option<Vec<Finding>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<Queues>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) put: Option<Put>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bench: Option<bench::Bench>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decode: Option<crate::command::decode::Decoded>,
}

impl Document {
    /// An empty document of `command`.
    pub(crate) fn new(command: &'static str, soft: bool) -> Self {
        Self {
            schema: SCHEMA,
            command,
            soft,
            verdict: None,
            checks: None,
            queues: None,
            put: None,
            bench: None,
            decode: None,
        }
    }
}
