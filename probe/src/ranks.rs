//! Ranks that put to each other: each in a process that loads foreign libraries, beside a process that starts it,
//! bounds its time and reports its end.
//!
//! The ranks of a launcher each have both processes. With `--spawn`, one process starts all ranks. softefa's libfabric
//! frontend reaches the queues of its own process only, so under it all spawned ranks are threads of one process.

mod nvlink;
pub(crate) mod process;
mod reach;
pub(crate) mod transfer;
mod work;

use std::convert::Infallible;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::work::run_all;
use crate::checks::fabric::Libfabric;
use crate::checks::verbs::Verbs;
use crate::exchange::token::Token;
use crate::exchange::{Limits, Party};
use crate::model::Over;
use crate::worker::stream::{WorkerError, detach, end};
use crate::worker::{Group, Request};

/// The hidden command that starts a process with ranks.
pub(crate) const COMMAND: &str = "__ranks";

/// Which ranks put to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Route {
    /// Each to its right neighbour, the last to the first.
    Ring,
    /// Rank 1 to rank 0.
    Pair,
}

impl Route {
    /// Whom the messages of the exchange address.
    pub(crate) fn party(self) -> Party {
        match self {
            Self::Ring => Party::Ranks,
            Self::Pair => Party::Pair,
        }
    }

    /// The rank to which `rank` puts.
    pub(crate) fn target(self, rank: u32, of: u32) -> Option<u32> {
        match self {
            Self::Ring => Some((rank + 1) % of),
            Self::Pair => (rank == 1).then_some(0),
        }
    }

    /// The rank that puts to `rank`.
    pub(crate) fn source(self, rank: u32, of: u32) -> Option<u32> {
        (0..of).find(|source| self.target(*source, of) == Some(rank))
    }
}

/// The most bytes of one put.
pub(crate) const MOST_BYTES: u64 = 1 << 30;

/// Whether ranks put so many times so many bytes.
pub(crate) fn in_bounds(bytes: u64, count: u64) -> bool {
    (1..=MOST_BYTES).contains(&bytes) && count > 0
}

/// What each rank of a job does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The adapter, the executor and the limits of calls, as for checks.
    pub(crate) request: Request,
    /// The number of ranks.
    pub(crate) of: u32,
    /// Which put to which.
    pub(crate) route: Route,
    /// The path of the bytes.
    pub(crate) over: Over,
    /// Where the hub is: HOST:PORT.
    pub(crate) hub: String,
    /// The job's token.
    pub(crate) token: Token,
    /// Milliseconds until all ranks have arrived.
    pub(crate) arrival: u64,
    /// Milliseconds that a step of the exchange may take.
    pub(crate) step: u64,
    /// The ranks of this process.
    pub(crate) here: Vec<Here>,
}

impl Job {
    /// How long the ranks wait for each other.
    pub(crate) fn limits(&self) -> Limits {
        Limits { arrival: Duration::from_millis(self.arrival), step: Duration::from_millis(self.step) }
    }
}

/// A rank of a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Here {
    /// Its number.
    pub(crate) rank: u32,
    /// Its number among those of its machine, which selects its adapter and its GPU.
    pub(crate) local: u32,
}

/// Runs the ranks that the job on stdin names. Returns on failure only.
pub(crate) fn run() -> Result<Infallible, WorkerError> {
    let out = detach()?;
    let job: Job = serde_json::from_reader(std::io::stdin().lock())?;
    match job.request.group {
        Group::Verbs => run_all::<Verbs>(&job, out),
        _ => run_all::<Libfabric>(&job, out),
    }
    end()
}
