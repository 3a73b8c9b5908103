//! Decoder and encoder of the Linux RDMA user interface (uverbs), for the part that EFA clients use.
//!
//! - [`Ioctl`] and [`Command`]: an ioctl on `/dev/infiniband/uverbsN`, decoded.
//! - [`Response`]: the response to it, encoded.
//! - [`protocol`]: messages with which softefa's preloaded library forwards ioctls to the broker.
//!
//! The crate does no I/O and has no unsafe code. It reads a program's memory through [`UserMemory`] and returns the
//! writes for the caller to make. Malformed input is an [`Errno`]: the one that the kernel returns, where the kernel
//! has one for the case. The objects behind the commands belong to the broker.
#![forbid(unsafe_code)]

mod attributes;
mod command;
mod decode;
mod errno;
mod field;
mod invoke_write;
pub mod protocol;
mod response;

/// Layouts and constants of `third_party/efa_gda/uverbs_abi.h` and `efa_abi.h`.
#[allow(missing_docs, non_camel_case_types, unreachable_pub, clippy::all)]
pub mod sys {
    #[cfg(not(feature = "regenerate"))]
    include!("generated/sys.rs");
    #[cfg(feature = "regenerate")]
    include!(concat!(env!("OUT_DIR"), "/asserted/sys.rs"));
}

pub use attributes::{Attribute, Ioctl, MAX_ATTRIBUTES, UserMemory};
pub use command::{
    BufferDescription, Command, CounterEntry, CounterOperation, CreateCompletionQueue, CreateQueuePair,
    MemorySource, ModifyQueuePair, QueuePairCapabilities, RegisterMemory,
};
pub use errno::Errno;
pub use field::{Scalar, get_field, put_field};
pub use response::{DescriptorOutput, Response, Write};

/// The request number of the only ioctl that the interface has.
pub const VERBS_IOCTL: u64 = sys::EFA_GDA_RDMA_VERBS_IOCTL as u64;
