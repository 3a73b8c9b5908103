//! Values of command-line options that the layers below the command line act on.

use clap::ValueEnum;
use efa_gda::doorbell::DoorbellMode;
use serde::{Deserialize, Serialize};

/// Milliseconds that one check may take unless `--time-limit` is set.
pub(crate) const DEFAULT_TIME_LIMIT: u64 = 2000;

/// The GPUs that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuChoice {
    /// No GPU.
    None,
    /// The GPU to which the CUDA driver assigns this number.
    Number(u32),
}

impl GpuChoice {
    /// Parses the value of `--gpu`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        text.parse().map(Self::Number).map_err(|_| "expected a GPU's number or \"none\"".to_owned())
    }
}

/// Which pairs of GPU and adapter take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pairs {
    /// The adapters nearest to each GPU, by PCI bridges and then by NUMA node
    Near,
    /// Every GPU with every adapter
    All,
}

/// The library that opens the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    #[default]
    Libfabric,
    Verbs,
}

/// An operation that moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Op {
    /// RDMA write
    Write,
    /// RDMA write with immediate data, which the receiver gets in a completion
    WriteImm,
    /// RDMA write whose bytes are in a 128-byte entry
    InlineWrite,
    /// RDMA read
    Read,
    /// A message into a posted receive
    Send,
}

impl Op {
    /// The operation's name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// A rule that fault injection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// An entry with the other lap's phase bit
    Phase,
    /// One entry more than the batch between two doorbells
    Batch,
    /// A doorbell that moves backwards
    Backwards,
}

/// The doorbell mode that `--doorbell` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Doorbell {
    /// The device code rings
    Direct,
    /// A host thread rings, from a record that the device code writes
    Record,
    /// A host thread copies the entries and rings
    Staged,
    /// The first of these modes that works
    Auto,
}

/// The memory of the bytes that ranks put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Memory {
    /// Memory of the host
    #[default]
    Host,
    /// Memory of the rank's GPU
    Gpu,
}

/// The path of the bytes that ranks put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Over {
    /// Through the adapters
    #[default]
    Efa,
    /// Between GPUs of one host that can map each other's memory
    Nvlink,
    /// nvlink where GPUs can map each other's memory, otherwise efa
    Auto,
}

impl Doorbell {
    /// The mode that was named; None for the first one that works.
    pub(crate) fn only(self) -> Option<DoorbellMode> {
        match self {
            Self::Direct => Some(DoorbellMode::Direct),
            Self::Record => Some(DoorbellMode::Record),
            Self::Staged => Some(DoorbellMode::Staged),
            Self::Auto => None,
        }
    }
}
