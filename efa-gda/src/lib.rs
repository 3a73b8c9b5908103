//! Queues of an EFA adapter for GPU kernels.
//!
//! libfabric exposes a queue, this library checks and maps it, a kernel writes entries and rings
//! the doorbell, the adapter moves the bytes, a completion comes back, and every step can say why it
//! failed.
//!
//! - [`wire`]: what lies in the queues, byte for byte.
//! - [`fabric`]: libfabric objects, owned or borrowed from a transport.
//! - [`verbs`]: the same queues through rdma-core alone.
//! - [`memory`]: memory that an adapter reaches, for both.
//! - [`gpu`]: opening a GPU, and making queue memory reachable from it.
//! - [`exposure`]: what a provider exposed, checked.
//! - [`doorbell`]: rung by the device, or by a host thread from a record.
//! - [`queue`]: the mapped queue that a kernel receives.
//! - [`capi`]: the same for C (`include/efa_gda.h`, `libefa_gda.so`).
//! - [`executor`]: device code on the CPU, for tests and for machines without a GPU.
//!
//! # A put, from beginning to end
//! `examples/put.rs` is a whole program. Its steps, in their order:
//!
//! 1. [`fabric::Library`] → [`fabric::Query`] → [`fabric::Fabric`] → [`fabric::Domain`].
//! 2. An [`fabric::AddressVector`], and one [`fabric::CompletionQueue`] bound to both sides of the
//!    [`fabric::Endpoint`]: receives need that. It is at least as deep as the send queue, and for
//!    receives as both rings together, or completions can overrun it.
//! 3. [`queue::MappedQueue::new`], which takes the enabled endpoint.
//! 4. [`queue::MappedQueue::insert_peer`] on both sides, each with the other's address. A side that
//!    does not know the sender refuses what comes from it (status: unknown peer).
//! 5. [`fabric::Buffer`] → [`fabric::Domain::register`] → [`queue::WorkRequest`] →
//!    [`queue::MappedQueue::execute`].
//! 6. The [`queue::WorkRequest`] is dropped, and then everything is closed, children first.
//!
//! # On the software adapter
//! Where there is no EFA adapter, the same program runs on softefa, which libfabric finds by the
//! name of a link. From the root of this repository:
//!
//! ```sh
//! cargo build -p softefa && mkdir -p target/soft && ln -sf "$PWD/target/debug/libsoftefa.so" target/soft/softefa-fi.so
//! FI_PROVIDER_PATH="$PWD/target/soft" cargo run -p efa-gda --example put
//! ```

pub mod capi;
pub mod doorbell;
pub mod executor;
pub mod exposure;
pub mod fabric;
pub mod gpu;
pub mod memory;
pub mod queue;
pub mod verbs;

mod leak;
mod ownership;
mod polling;
mod readable;

pub use efa_gda_wire as wire;
