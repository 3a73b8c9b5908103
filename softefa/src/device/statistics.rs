//! What an adapter did, for people and tests to look at: counts, and entries as they were fetched.

use efa_gda_wire::QueuePairNumber;

/// What an adapter did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Doorbell movements seen on send queues; several rings may be seen as one.
    pub doorbells: u64,
    /// Send-queue entries fetched.
    pub entries: u64,
    /// Bytes moved by this adapter's requests.
    pub bytes: u64,
    /// Completions written, of sends and receives.
    pub completions: u64,
    /// Of those, with a status other than ok.
    pub errors: u64,
    /// Messages and writes with immediate delivered here.
    pub receives: u64,
    /// Tries that found no receive posted.
    pub rnr_retries: u64,
    /// Rules found broken, also those that were not kept because there were too many.
    pub violations: u64,
    /// Completions that found their queue full ([`super::StrictRule::CompletionQueueOverrun`]).
    pub overruns: u64,
}

/// A send-queue entry as it was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Whose.
    pub queue_pair: QueuePairNumber,
    /// Its count, from 0, never reset.
    pub counter: u64,
    /// Its bytes: 64 or 128.
    pub bytes: Vec<u8>,
}
