//! Queues of an EFA adapter for GPU kernels.
//!
//! libfabric exposes a queue, this library checks and maps it, a kernel writes entries and rings
//! the doorbell, the adapter moves the bytes, a completion comes back, and every step can say why it
//! failed.
//!
//! - [`wire`]: what lies in the queues, byte for byte.
//! - [`fabric`]: libfabric objects, owned or borrowed from a transport.
//! - [`verbs`]: the same queues through rdma-core alone.
//! - [`gpu`]: opening a GPU, and making queue memory reachable from it.
//! - [`exposure`]: what a provider exposed, checked.
//! - [`doorbell`]: rung by the device, or by a host thread from a record.
//! - [`queue`]: the mapped queue that a kernel receives.
//! - [`executor`]: device code on the CPU, for tests and for machines without a GPU.

pub mod doorbell;
pub mod executor;
pub mod exposure;
pub mod fabric;
pub mod gpu;
pub mod queue;
pub mod verbs;

mod kept;

pub use efa_gda_wire as wire;
