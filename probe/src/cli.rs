//! The command line. Commands and options of later versions are parsed and then refused by name, so
//! that a script gets "not in this version" and not "unexpected argument".

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::model::{DEFAULT_TIME_LIMIT, Doorbell, Fault, GpuChoice, Op, Pairs};

/// Report whether a GPU can ring an EFA adapter on this machine, and if not, why and which role can change it
#[derive(Debug, Parser)]
#[command(name = "gda-probe", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Milliseconds that a bench measures unless `--time-limit` is set.
pub(crate) const DEFAULT_BENCH_TIME: u64 = 20_000;

/// Seconds that a put may take unless `--max-seconds` is set.
pub(crate) const DEFAULT_MAX_SECONDS: u64 = 600;

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Common {
    /// Use the software adapter in place of hardware
    #[arg(long, global = true)]
    pub(crate) soft: bool,
    /// Use only this adapter, named by its libfabric domain or its RDMA device
    #[arg(long, global = true, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) device: Option<String>,
    /// Use only this GPU; "none" leaves GPUs out
    #[arg(long, global = true, value_name = "N|none", value_parser = GpuChoice::parse)]
    pub(crate) gpu: Option<GpuChoice>,
    /// The library that opens the queues
    #[arg(long, global = true, value_enum, default_value_t = Via::Libfabric)]
    pub(crate) via: Via,
    /// The doorbell mode: which thread writes entries and rings
    #[arg(long, global = true, value_enum, default_value_t = Doorbell::Auto)]
    pub(crate) doorbell: Doorbell,
    /// The adapters that each GPU is paired with
    #[arg(long, global = true, value_enum, default_value_t = Pairs::Near)]
    pub(crate) pairs: Pairs,
    /// Print one JSON document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log to stderr; twice for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Exit with the statuses of a node-problem-detector plugin: 0 fine, 1 problem, 2 unknown
    #[arg(long, global = true)]
    pub(crate) npd: bool,
    /// Read /sys, /proc, /dev and library directories below DIR, for a host's file system that is mounted there
    #[arg(long, global = true, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Milliseconds that a check in a worker process may take [default: 2000]; for bench, that all
    /// measurements together may take [default: 20000]
    #[arg(long, global = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) time_limit: Option<u64>,
}

impl Common {
    /// Milliseconds that a check in a worker process may take.
    pub(crate) fn each_check(&self) -> u64 {
        self.time_limit.unwrap_or(DEFAULT_TIME_LIMIT)
    }
}

/// The library that opens the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    Libfabric,
    Verbs,
}

/// A command; `check` is the default.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run every check whose prerequisites hold, and print a verdict
    Check,
    /// Move bytes through the adapter and compare every byte
    Put(PutArgs),
    /// Measure latency, message rate and bandwidth
    Bench(BenchArgs),
    /// Exchange over a ring of ranks (not in this version)
    Ring(Later),
    /// Print every field of a queue entry and every rule that it breaks
    Decode(DecodeArgs),
    /// Explain the code of a check or the status of a completion
    Explain {
        /// A code that `check` prints, STATUS-N, or N
        code: String,
    },
    /// Run checks in this process, for the probe that started it
    #[command(name = crate::worker::COMMAND, hide = true)]
    Worker,
}

/// The names of all commands except the hidden one.
pub(crate) const COMMANDS: [&str; 6] = ["check", "put", "bench", "ring", "decode", "explain"];

impl Command {
    /// The command's name on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Put(_) => "put",
            Self::Bench(_) => "bench",
            Self::Ring(_) => "ring",
            Self::Decode(_) => "decode",
            Self::Explain { .. } => "explain",
            Self::Worker => crate::worker::COMMAND,
        }
    }
}

/// Arguments of `put`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PutArgs {
    /// The operation
    #[arg(long, value_enum, default_value_t = Op::Write)]
    pub(crate) op: Op,
    /// Bytes of each operation
    #[arg(long, default_value_t = 64)]
    pub(crate) bytes: u64,
    /// Number of operations
    #[arg(long, default_value_t = 1)]
    pub(crate) count: u64,
    /// Seconds after which the put stops; the report covers the operations until then
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_MAX_SECONDS,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_seconds: u64,
    /// Where the device code runs
    #[arg(long, value_enum, default_value_t = ExecutorChoice::Auto)]
    pub(crate) executor: ExecutorChoice,
    /// Break a rule of the rings after the put, to test that it is reported; with --soft only
    #[arg(long = "plant", value_enum, hide = true, requires = "soft")]
    pub(crate) fault: Option<Fault>,
    /// The other host (not in this version)
    #[arg(long, value_name = "HOST")]
    pub(crate) peer: Option<String>,
}

/// Arguments of `bench`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    /// Where the device code runs
    #[arg(long, value_enum, default_value_t = ExecutorChoice::Auto)]
    pub(crate) executor: ExecutorChoice,
    /// Number of queues of the cases with several queues
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) queues: u32,
    /// Write tables and plots to a self-contained HTML file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Where the device code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecutorChoice {
    /// On a GPU
    Cuda,
    /// On this machine's CPU
    Host,
    /// On a GPU if one is usable, otherwise on the CPU
    Auto,
}

/// Arguments of `decode`. An entry that is not on the command line is read from `--file`, or from stdin without `--file`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DecodeArgs {
    /// A send-queue entry of 64 or 128 bytes, or a receive descriptor of 16, in hex
    #[arg(long, value_name = "HEX", num_args = 0..=1, conflicts_with = "cqe", required_unless_present = "cqe")]
    pub(crate) wqe: Option<Option<String>>,
    /// A completion, of 16 bytes or more, in hex
    #[arg(long, value_name = "HEX", num_args = 0..=1)]
    pub(crate) cqe: Option<Option<String>>,
    /// Read the entry from FILE ("-": stdin), as hex if it holds only printable characters, otherwise as bytes
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Read the file as bytes, whatever it holds
    #[arg(long)]
    pub(crate) binary: bool,
    /// Width of the queue's request ids
    #[arg(long, value_name = "BITS", default_value = "16", value_parser = ["16", "64"])]
    pub(crate) request_id_bits: String,
}

/// Arguments of a command of a later version; they are not parsed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Later {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) rest: Vec<String>,
}
