//! Errors of the control path. The data path has statuses and violations instead.

use efa_gda_wire::{AddressHandle, LocalKey, QueuePairNumber};

use super::attr::{CompletionQueueNumber, ProtectionDomain};
use super::config::Gid;

/// Why a control call failed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Another adapter of the network has this GID.
    #[error("GID {0} is taken on this network; give each adapter its own")]
    GidTaken(Gid),
    /// The engine's thread could not be started.
    #[error("the adapter's thread could not be started: {0}")]
    Thread(String),
    /// No such protection domain.
    #[error("protection domain {0:?} does not exist")]
    NoSuchDomain(ProtectionDomain),
    /// No such completion queue.
    #[error("completion queue {0:?} does not exist")]
    NoSuchCompletionQueue(CompletionQueueNumber),
    /// No such queue pair.
    #[error("queue pair {0} does not exist")]
    NoSuchQueuePair(QueuePairNumber),
    /// No such address handle.
    #[error("address handle {0} does not exist")]
    NoSuchAddressHandle(AddressHandle),
    /// No such memory region.
    #[error("no memory region has lkey {0}")]
    NoSuchMemoryRegion(LocalKey),
    /// Others still use it.
    #[error("{what} is in use by {users} other objects; destroy those first")]
    Busy {
        /// The object.
        what: String,
        /// How many use it.
        users: usize,
    },
    /// A table is full.
    #[error("the adapter's {limit} {what} are all in use")]
    Exhausted {
        /// The kind of object.
        what: &'static str,
        /// How many there are.
        limit: usize,
    },
    /// A size is outside the adapter's limits.
    #[error("{what} of {given} is not possible; this adapter takes {least} to {most}")]
    OutOfRange {
        /// The attribute.
        what: &'static str,
        /// What was asked for.
        given: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// The adapter lacks a capability.
    #[error("this adapter does not have {0}")]
    Unsupported(&'static str),
    /// Memory given for a ring does not serve.
    #[error("the memory given for the {queue} does not serve: {why}")]
    RingMemory {
        /// Which ring.
        queue: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The allocator has no more.
    #[error("no memory for a ring of {0} bytes")]
    OutOfMemory(usize),
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An environment variable has a value that means nothing.
    #[error("{name}={value}: expected {expected}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
}
