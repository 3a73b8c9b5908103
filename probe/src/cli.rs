//! The command line. Commands and options of later versions are parsed and then refused by name, so
//! that a script gets "not in this version" and not "unexpected argument".

mod ignored;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::ignored::{refuse as refuse_ignored, suggest_commands, suggest_visible};
use crate::exchange::{LONGEST, MOST_RANKS};
use crate::launcher::host_and_port;
use crate::model::{DEFAULT_TIME_LIMIT, Doorbell, Fault, GpuChoice, Memory, Op, Over, Pairs, StackName, Via};

/// Report whether a GPU can ring an EFA adapter on this machine, and if not, why and which role can change it
#[derive(Debug, Parser)]
#[command(name = "gda-probe", version, long_version = LONG_VERSION, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The version and facts about the build, as `--version` prints them.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit:  ",
    env!("GDA_PROBE_COMMIT"),
    "\nprofile: ",
    env!("GDA_PROBE_PROFILE"),
    "\ntarget:  ",
    env!("GDA_PROBE_TARGET"),
    "\nsoftefa: ",
    env!("GDA_PROBE_SOFTEFA"),
    "\nkernels: ",
    env!("GDA_PROBE_KERNELS"),
);

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
    /// check: judge one stack; the report and the exit status are those of the checks on which it depends
    #[arg(long = "for", global = true, value_enum, value_name = "STACK")]
    pub(crate) stack: Option<StackName>,
    /// Print one JSON document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show every check, and log to stderr; twice for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print one line of at most 80 characters, and exit as a plugin of the node-problem-detector: 0 fine, 1 problem,
    /// 2 unknown
    #[arg(long, global = true)]
    pub(crate) npd: bool,
    /// Read /sys, /proc, /dev and library directories below DIR, for a host's file system that is mounted there
    #[arg(long, global = true, value_name = "DIR", default_value = "/", value_parser = folder)]
    pub(crate) root: PathBuf,
    /// Milliseconds that a check in a worker process may take [default: 2000; in a bench always 20000]; for bench,
    /// that all measurements together may take [default: 20000]
    #[arg(long, global = true, value_name = "MS", value_parser = milliseconds)]
    pub(crate) time_limit: Option<u64>,
}

impl Common {
    /// Milliseconds that a check in a worker process may take.
    pub(crate) fn each_check(&self) -> u64 {
        self.time_limit.unwrap_or(DEFAULT_TIME_LIMIT)
    }
}

fn positive(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("expected a number of at least 1 and at most {}", u64::MAX))
}

/// A longer time than the longest counts as that one.
fn seconds(text: &str) -> Result<u64, String> {
    positive(text).map(|number| number.min(LONGEST.as_secs()))
}

fn milliseconds(text: &str) -> Result<u64, String> {
    positive(text).map(|number| number.min(LONGEST.as_secs() * 1000))
}

fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a number of bytes, without a unit, such as 4096".to_owned())
}

fn folder(text: &str) -> Result<PathBuf, String> {
    let read = std::fs::read_dir(text).map(|_| PathBuf::from(text));
    read.map_err(|error| format!("this folder cannot be read: {error}"))
}

/// A command; `check` is the default.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run every check whose prerequisites hold, and print a verdict
    Check(CheckArgs),
    /// Move bytes through the adapter and compare every byte
    Put(PutArgs),
    /// Measure latency, message rate and bandwidth
    Bench(BenchArgs),
    /// Put from each rank of a job to the next one, and compare every byte
    Ring(RingArgs),
    /// Print every field of a queue entry and every rule that it breaks
    #[command(after_help = "Examples:\n  \
        gda-probe decode --cqe '0700 07 23 6500 0000 0000000000000000'\n  \
        sed -n 3p CAPTURE | gda-probe decode --wqe     # a line of the file that SOFTEFA_CAPTURE names")]
    Decode(DecodeArgs),
    /// Explain the code of a check or the status of a completion: meaning, fix, and who can apply it
    Explain {
        /// A code that `check` prints, STATUS-N, N, or text to search for, such as a part of an error; without it, all
        /// codes are listed
        #[arg(value_name = "CODE|TEXT")]
        code: Vec<String>,
    },
    /// Run every check and pack the result for a bug report, without names, addresses and secrets
    Report(ReportArgs),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Run checks in this process, for the probe that started it
    #[command(name = crate::worker::COMMAND, hide = true)]
    Worker,
    /// Run ranks in this process, for the probe that started it
    #[command(name = crate::ranks::COMMAND, hide = true)]
    Ranks,
}

/// The names of all commands except the hidden ones.
pub(crate) const COMMANDS: [&str; 9] =
    ["check", "put", "bench", "ring", "decode", "explain", "report", "completions", "man"];

impl Command {
    /// The command's name on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Check(_) => "check",
            Self::Put(_) => "put",
            Self::Bench(_) => "bench",
            Self::Ring(_) => "ring",
            Self::Decode(_) => "decode",
            Self::Explain { .. } => "explain",
            Self::Report(_) => "report",
            Self::Completions { .. } => "completions",
            Self::Man => "man",
            Self::Worker => crate::worker::COMMAND,
            Self::Ranks => crate::ranks::COMMAND,
        }
    }
}

/// Arguments of `check`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// Write the result in Prometheus's text format too, to a file that is replaced in one step (of a link, the
    /// file that it names; no pipe and no device); "-" prints it in place of the report
    #[arg(long, value_name = "FILE")]
    pub(crate) prometheus: Option<PathBuf>,
}

/// Arguments of `report`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    /// The tar archive to write (of a link, the file that it names; no pipe and no device); "-" writes it to stdout
    #[arg(short, long, value_name = "FILE", default_value = "gda-probe-report.tar")]
    pub(crate) output: PathBuf,
}

/// Arguments of `put`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PutArgs {
    /// The operation
    #[arg(long, value_enum, default_value_t = Op::Write)]
    pub(crate) op: Op,
    /// Bytes of each operation; 0 with write-imm and send only, whose arrival shows without bytes
    #[arg(long, default_value_t = 64, value_parser = bytes)]
    pub(crate) bytes: u64,
    /// Number of operations
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(crate) count: u64,
    /// Seconds after which the put stops; the report covers the operations until then
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_MAX_SECONDS, value_parser = seconds)]
    pub(crate) max_seconds: u64,
    /// Where the device code runs
    #[arg(long, value_enum, default_value_t = ExecutorChoice::Auto)]
    pub(crate) executor: ExecutorChoice,
    /// Try on the adapter whether a GPU may write entries by stores of 16 bytes: put until each slot of the send queue
    /// was written LAPS times [default: 10000], and print the result and how programs set it
    #[arg(long, value_name = "LAPS", num_args = 0..=1, default_missing_value = "10000", conflicts_with = "count",
          value_parser = positive)]
    pub(crate) qualify_stores: Option<u64>,
    /// Break a rule of the rings after the put, to test that it is reported; with --soft only
    #[arg(long = "plant", value_enum, hide = true, requires = "soft")]
    pub(crate) fault: Option<Fault>,
    /// Put to the host on which "gda-probe put --listen" runs
    #[arg(long, value_name = "HOST[:PORT]", value_parser = host_and_port,
          conflicts_with_all = ["qualify_stores", "fault"])]
    pub(crate) peer: Option<String>,
    /// Wait for a put from another host, at this address [default: all addresses]
    #[arg(long, value_name = "HOST[:PORT]", num_args = 0..=1, default_missing_value = "0.0.0.0",
          value_parser = host_and_port, conflicts_with_all = ["peer", "qualify_stores", "fault"])]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
}

/// Arguments of commands whose ranks exchange addresses.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExchangeArgs {
    /// The file with the job's token, 16 bytes or more, which all ranks share [default: the variable EFA_GDA_JOB_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Seconds that ranks wait for each other [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) wait: Option<u64>,
}

/// Arguments of `ring`. The rank and the number of ranks are the launcher's, unless they are stated here.
#[derive(Clone, Debug, Args)]
pub(crate) struct RingArgs {
    /// Start N ranks on this machine
    #[arg(long, value_name = "N", conflicts_with_all = ["rank", "ranks", "rendezvous", "token_file"],
          value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) spawn: Option<u32>,
    /// The number of this rank, from 0
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,
    /// The number of ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RANKS)))]
    pub(crate) ranks: Option<u32>,
    /// Where rank 0 listens [default: MASTER_ADDR, or the launcher's first host]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = host_and_port)]
    pub(crate) rendezvous: Option<String>,
    /// Bytes of each put
    #[arg(long, default_value_t = 64, value_parser = positive)]
    pub(crate) bytes: u64,
    /// Number of puts of each rank
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(crate) count: u64,
    /// Seconds after which no rank begins another round of puts; each reports the puts until then
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_MAX_SECONDS, value_parser = seconds)]
    pub(crate) max_seconds: u64,
    /// Where the device code runs
    #[arg(long, value_enum, default_value_t = ExecutorChoice::Host)]
    pub(crate) executor: ExecutorChoice,
    /// The memory of the bytes [default: host; gpu with --over nvlink and --over auto]
    #[arg(long, value_enum)]
    pub(crate) memory: Option<Memory>,
    /// The path of the bytes
    #[arg(long, value_enum, default_value_t = Over::Efa)]
    pub(crate) over: Over,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
}

impl RingArgs {
    /// The memory of the bytes.
    pub(crate) fn memory(&self) -> Memory {
        let default = if self.over == Over::Efa { Memory::Host } else { Memory::Gpu };
        self.memory.unwrap_or(default)
    }
}

/// Arguments of `bench`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    /// Where the device code runs
    #[arg(long, value_enum, default_value_t = ExecutorChoice::Auto)]
    pub(crate) executor: ExecutorChoice,
    /// Number of queues of the cases with several queues, which --peer leaves out
    #[arg(long, default_value_t = 4, conflicts_with = "peer", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) queues: u32,
    /// Write tables and plots to a self-contained HTML file (of a link, the file that it names; no pipe and no device);
    /// "-" prints the page in place of the report
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write to the host on which "gda-probe put --listen" runs
    #[arg(long, value_name = "HOST[:PORT]", value_parser = host_and_port)]
    pub(crate) peer: Option<String>,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
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

/// Arguments of `decode`. An entry that is not on the command line is read from `--file`, or from stdin without
/// `--file`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DecodeArgs {
    /// A send-queue entry of 64 or 128 bytes, or a receive descriptor of 16, in hex, or a line of SOFTEFA_CAPTURE
    #[arg(long, value_name = "HEX", num_args = 0..=1, conflicts_with = "cqe")]
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
