//! Statistics of an adapter: counts, and entries as they were fetched.

use efa_gda_wire::QueuePairNumber;

use super::traffic::Traffic;

/// Counts of an adapter since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Changes of send-queue doorbells that the engine observed. It may observe several doorbells as one.
    pub doorbells: u64,
    /// Send-queue entries fetched, without those that a flush took.
    pub entries: u64,
    /// Bytes moved by this adapter's requests.
    pub bytes: u64,
    /// Completions of requests and receives, including those that wait in a backlog or were lost because it was full.
    pub completions: u64,
    /// Completions whose status is neither ok nor flushed, including all of [`Self::overruns`].
    pub errors: u64,
    /// Completions with the status flushed: requests and receives of queue pairs in the error state or destroyed.
    pub flushed: u64,
    /// Messages and writes with immediate whose receives this adapter completed, also with an error.
    pub receives: u64,
    /// Tries of requests whose receiver had no receive posted.
    pub rnr_retries: u64,
    /// Violations, including those that were not stored because there were too many.
    pub violations: u64,
    /// Completions that arrived while their queue was full ([`super::StrictRule::CompletionQueueOverrun`]), whose
    /// status was changed to an error.
    pub overruns: u64,
    /// What it moved, by operation and direction.
    pub traffic: Traffic,
}

/// A send-queue entry as it was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Its queue pair.
    pub queue_pair: QueuePairNumber,
    /// Its index: counted from 0 since the queue pair was created or reset.
    pub counter: u64,
    /// Its bytes: 64 or 128.
    pub bytes: Vec<u8>,
}
