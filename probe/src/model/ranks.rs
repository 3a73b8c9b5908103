//! The results of ranks that put to each other.

use serde::{Deserialize, Serialize};

use super::bench::Bench;
use super::{Memory, Over};

/// The ranks of a job.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Ranks {
    /// The number of ranks.
    pub(crate) size: u32,
    /// Bytes of each put.
    pub(crate) bytes: u64,
    /// Puts of each rank.
    pub(crate) count: u64,
    /// The library that opened the queues: `libfabric` or `verbs`.
    pub(crate) via: String,
    /// The results that this process knows, by rank.
    pub(crate) pes: Vec<Pe>,
    /// The ranks whose results the report for people has; the document has all.
    #[serde(skip)]
    pub(crate) here: Vec<u32>,
    /// Why the exchange of addresses failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Ranks {
    /// Whether every rank is known to have passed.
    pub(crate) fn passed(&self) -> bool {
        self.pes.len() == self.size as usize && self.pes.iter().all(|pe| pe.verified) && self.error.is_none()
    }
}

/// The result of one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pe {
    /// The rank's number.
    pub(crate) rank: u32,
    /// The host's name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) host: Option<String>,
    /// The adapter; empty if none opened.
    pub(crate) adapter: String,
    /// Where the device code ran: `host` or `cuda`.
    pub(crate) executor: String,
    /// The number of the GPU that ran it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) gpu: Option<String>,
    /// The memory of its bytes; absent before it was registered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) memory: Option<Memory>,
    /// The path of its puts, `efa` or `nvlink`; absent before it was chosen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) over: Option<Over>,
    /// The doorbell mode; absent if no queue opened.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) doorbell: Option<String>,
    /// Bytes of each put, and puts of a sender, as the ranks agreed; 0 before that.
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    /// The rank to which this one put.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) to: Option<u32>,
    /// Puts that completed without error.
    pub(crate) completed: u64,
    /// From the first entry to the last completion.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) microseconds: Option<u64>,
    /// The rank that put to this one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) from: Option<u32>,
    /// The value that `from` writes after its bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) expected: Option<u64>,
    /// The value that arrived.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) got: Option<u64>,
    /// What the sender of `bench --peer` measured, until the document has it beside the ranks.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) bench: Option<Bench>,
    /// Whether this rank's puts completed, and every byte that it was to receive arrived and no other byte changed.
    pub(crate) verified: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
}
