//! Verdicts on pairs of a GPU and an adapter, and on the stacks that users run.

use serde::{Deserialize, Serialize};

/// A GPU and an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// CUDA's number of the GPU.
    pub(crate) gpu: u32,
    /// The adapter's domain.
    pub(crate) adapter: String,
}

impl Pair {
    /// The pair as the subject of a check.
    pub(crate) fn subject(&self) -> String {
        format!("{}/{}", self.gpu, self.adapter)
    }
}

/// How far a GPU can drive an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reach {
    /// The GPU writes entries and rings the doorbell.
    Gda,
    /// The GPU writes entries and a host thread rings.
    HostRung,
    /// No put of the GPU was verified.
    None,
}

/// The verdict on one pair of GPU and adapter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The GPU's number, or "none".
    pub(crate) gpu: String,
    /// The adapter's name, or "none" if there is no adapter.
    pub(crate) adapter: String,
    /// How far the GPU can drive the adapter.
    pub(crate) result: Reach,
    /// The check whose failure stops it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) stopped_by: Option<String>,
    /// The next step.
    pub(crate) next: String,
    /// The next step, for reports.
    #[serde(skip)]
    pub(crate) step: Step,
}

impl Verdict {
    /// A verdict with this next step.
    pub(crate) fn new(gpu: &str, adapter: &str, result: Reach, step: Step) -> Self {
        let (gpu, adapter) = (gpu.to_owned(), adapter.to_owned());
        let stopped_by = match &step {
            Step::Fix { code, .. } => Some(code.clone()),
            _ => None,
        };
        Self { gpu, adapter, result, stopped_by, next: step.text(), step }
    }
}

/// The next step on a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Step {
    /// None: the GPU drives the adapter.
    #[default]
    Drives,
    /// A failed check, its fix, and whether rdma-core exposes the queues, which libfabric does not.
    Fix { code: String, fix: String, by_verbs: bool },
    /// A host thread rings in this doorbell mode: because of the failed check that [`Self::Fix`] names, or because the
    /// mode was requested.
    Rung { mode: String, fix: Option<Box<Step>> },
    /// Libraries were left out, so that nothing was looked at through them.
    Elsewhere,
    /// Another step.
    Do(String),
}

impl Step {
    /// What to add if rdma-core exposes the queues, and libfabric does not.
    pub(crate) const BY_VERBS: &str =
        "; rdma-core exposes the queues, this libfabric does not: see --via verbs";

    /// The step in words.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Drives => "none: the GPU drives the adapter".to_owned(),
            Self::Fix { code, fix, by_verbs } => {
                format!("{code}: {fix}{}", if *by_verbs { Self::BY_VERBS } else { "" })
            }
            Self::Rung { mode, fix: Some(fix) } => {
                format!("--doorbell {mode} works; for gda: {}", fix.text())
            }
            Self::Rung { mode, fix: None } => {
                format!("--doorbell {mode} was requested and works; omit it for gda")
            }
            Self::Elsewhere => {
                "run gda-probe in the container of the job, which has its own libraries".to_owned()
            }
            Self::Do(text) => text.clone(),
        }
    }
}

/// A stack that users run on EFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StackName {
    /// GPU-Direct Async by queues that a program opens itself, such as this library's
    Gda,
    /// NCCL's GIN backend EFA-GDA
    Nccl,
    /// libfabric's FI_XPU
    FiXpu,
    /// NVSHMEM's libfabric transport, whose CPU proxy posts
    Nvshmem,
    /// DeepEP over NCCL's EFA-GDA
    Deepep,
}

impl StackName {
    /// The stack's name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Gda => "raw GDA",
            Self::Nccl => "NCCL EFA-GDA",
            Self::FiXpu => "FI_XPU",
            Self::Nvshmem => "NVSHMEM proxy",
            Self::Deepep => "DeepEP",
        }
    }
}

/// Whether a stack can run here, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Runs {
    /// Every check on which it depends holds.
    Yes,
    /// A check on which it depends has no result.
    Unknown,
    /// A check stops it.
    No,
}

/// The verdict on one stack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StackVerdict {
    /// The stack.
    pub(crate) stack: StackName,
    /// Whether it can run.
    pub(crate) runs: Runs,
    /// The check that stops it, or that leaves it unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) stopped_by: Option<String>,
    /// The next step.
    pub(crate) next: String,
}
