//! Errors of the control path. The data path has statuses and violations instead.

use efa_gda_wire::{AddressHandle, LocalKey, QueuePairNumber};

use super::attr::{CompletionQueueNumber, ProtectionDomain};
use super::config::Gid;

/// The reason why a control call failed. The call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Another adapter of the network has this GID.
    #[error("GID {0} is already used on this network; give each adapter a different GID")]
    GidTaken(Gid),
    /// The engine's thread could not be started.
    #[error("the adapter's engine thread could not be started: {0}")]
    Thread(String),
    /// No such protection domain.
    #[error("protection domain {} does not exist", .0.get())]
    NoSuchDomain(ProtectionDomain),
    /// No such completion queue.
    #[error("completion queue {} does not exist", .0.get())]
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
    /// Other objects still use the object.
    #[error("{object} is in use by {users} other object(s); destroy those first")]
    Busy {
        /// The object.
        object: String,
        /// The number of objects that use it.
        users: usize,
    },
    /// A table is full.
    #[error("the limit of {limit} {objects} is reached; destroy one first")]
    Exhausted {
        /// The kind of object, in the plural.
        objects: &'static str,
        /// The size of the table.
        limit: usize,
    },
    /// A size is outside the adapter's limits.
    #[error("{attribute} is {value} and must be {min} to {max} on this adapter")]
    OutOfRange {
        /// The attribute.
        attribute: &'static str,
        /// The requested value.
        value: u64,
        /// The lowest allowed value.
        min: u64,
        /// The highest allowed value.
        max: u64,
    },
    /// The adapter lacks a capability.
    #[error("this adapter does not support {0}")]
    Unsupported(&'static str),
    /// Memory of the client cannot be used for a ring or doorbell.
    #[error("the client's memory for the {queue} cannot be used: {reason}")]
    RingMemory {
        /// The ring or doorbell.
        queue: &'static str,
        /// The property that is wrong.
        reason: String,
    },
    /// The allocator has no memory.
    #[error("allocating a ring of {0} bytes failed: out of memory")]
    OutOfMemory(usize),
}

/// The reason why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An environment variable has an invalid value.
    #[error("{name}={value}: expected {expected}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that are allowed.
        expected: &'static str,
    },
}
