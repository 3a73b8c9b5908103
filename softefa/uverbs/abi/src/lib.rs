//! The RDMA subsystem's user interface, as far as an EFA program uses it: what an ioctl on
//! `/dev/infiniband/uverbsN` means ([`Ioctl`], [`Command`]), how it is answered ([`Answer`]), and the
//! messages with which a preloaded library passes it on ([`protocol`]).
//!
//! Pure: no I/O, no descriptors, no unsafe code. A program's memory is behind [`UserMemory`]; every
//! malformed input is an [`Errno`], the one that the kernel gives where it has one for the case.
//! Not here: what the objects are. That is the broker's.
#![forbid(unsafe_code)]

mod answer;
mod attributes;
mod command;
mod errno;
mod field;
mod invoke_write;
pub mod protocol;

/// Layouts and constants of `third_party/efa_gda/uverbs_abi.h` and `efa_abi.h`.
#[allow(missing_docs, non_camel_case_types, unreachable_pub, clippy::all)]
pub mod sys {
    include!(concat!(env!("OUT_DIR"), "/sys.rs"));
}

pub use answer::{Answer, DescriptorPlace, Write};
pub use attributes::{Attribute, Ioctl, MAX_ATTRIBUTES, UserMemory};
pub use command::{
    BufferDescription, Command, CounterEntry, CounterOperation, CreateCompletionQueue, CreateQueuePair,
    GivenMemory, ModifyQueuePair, QueuePairCapabilities, RegisterMemory,
};
pub use errno::Errno;
pub use field::{Scalar, get_field, put_field};

/// The number of the one ioctl.
pub const VERBS_IOCTL: u64 = sys::EFA_GDA_RDMA_VERBS_IOCTL as u64;
