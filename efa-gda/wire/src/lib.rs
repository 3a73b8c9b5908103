//! EFA queue entries and ring arithmetic.
//!
//! This crate encodes and decodes the entries of an adapter's rings, byte for byte, and computes slots, phases and
//! doorbell values. It does no I/O, holds no pointers and has no unsafe code. Offsets, masks and codes come from
//! `third_party/efa_gda/efa_io_defs.h` through `efa-gda-sys`.
//!
//! - [`Request`] ⇄ send-queue entry of 64 or 128 bytes ([`Entry`], [`DecodedRequest`]).
//! - [`Receive`] ⇄ receive-queue entry.
//! - [`Completion`] ⇄ completion-queue entry.
//! - [`Ring`], [`CompletionCursor`], [`doorbell_advance`]: counters that wrap.
//!
//! ```
//! use efa_gda_wire::*;
//!
//! let request = Request {
//!     id: RequestId::new(7),
//!     peer: Peer {
//!         address_handle: AddressHandle::new(3),
//!         queue_pair: QueuePairNumber::new(101),
//!         queue_key: QueueKey::new(0x1234),
//!     },
//!     immediate: None,
//!     hints: ProcessingHints::NONE,
//!     operation: Operation::Write {
//!         remote: RemoteMemory { address: 0x7000_0000, key: RemoteKey::new(0xabc) },
//!         local: Segment { address: 0x1000, length: 64, key: LocalKey::new(0x55)? },
//!     },
//! };
//! let ring = Ring::new(256)?;
//! let counter = 1000; // producer index: the 1001st request of this queue
//! let entry = request.encode(EntrySize::B64, ring.phase(counter), RequestIdWidth::Bits16)?;
//! assert_eq!((entry.len(), ring.slot(counter)), (64, 232));
//!
//! let decoded = DecodedRequest::decode(&entry, RequestIdWidth::Bits16)?;
//! assert!(decoded.broken.is_empty());
//! assert_eq!(decoded.request, Some(request));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod bytes;
mod completion;
mod ids;
mod receive;
mod request;
mod ring;
mod rules;
mod status;
mod tx;

pub use completion::{
    COMPLETION_BYTES, Completion, CompletionDecodeError, CompletionKind, ReceiveInfo, UNKNOWN_ADDRESS_HANDLE,
};
pub use ids::{
    AddressHandle, LocalKey, LocalKeyTooWide, QueueKey, QueuePairNumber, RemoteKey, RequestId, RequestIdWidth,
};
pub use receive::{RX_DESCRIPTOR_BYTES, Receive, ReceiveDescriptor};
pub use request::{
    EntrySize, InlineData, InlineTooLong, Operation, OperationCode, Peer, ProcessingHints, RemoteMemory,
    Request, Segment, Segments, TooManySegments, UnsupportedEntrySize,
};
pub use ring::{CompletionCursor, DEEPEST_WORK_QUEUE, Ring, RingError, doorbell_advance};
pub use rules::{Rule, Rules};
pub use status::CompletionStatus;
pub use tx::{DecodeError, DecodedRequest, EncodeError, Entry};
