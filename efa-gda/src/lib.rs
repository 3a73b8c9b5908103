//! Queues of an EFA adapter for GPU kernels.
//!
//! libfabric exposes a queue, this library checks and maps it, a kernel writes entries and rings the doorbell, the
//! adapter moves the bytes and writes a completion. Every step reports why it failed.
//!
//! - `wire`: the bytes of entries, receive descriptors and completions.
//! - [`fabric`]: libfabric objects, owned or borrowed from a transport.
//! - `verbs`: the same queues through rdma-core alone (feature `verbs`).
//! - [`memory`]: memory that an adapter accesses. `fabric` and `verbs` both use it.
//! - [`exposure`]: the checks of what a provider exposes.
//! - [`queue`]: the mapped queue that a kernel receives, driven from the host.
//! - [`Queue`], [`Options`], [`Error`]: a queue in one call.
//! - `gpu`: a GPU, its memory, and the registration of pages with it (feature `cuda`).
//! - `gpu_queue`: mapped queues that a GPU drives (feature `cuda`).
//! - [`doorbell`]: doorbells that the device rings, or a host thread for the device.
//! - [`executor`]: device code on the CPU, for tests and for machines without a GPU.
//! - [`status`]: how calls of device code end.
//! - [`smaps`]: what kind of memory a mapping of this process is.
//!
//! The crate `efa-gda-capi` has these queues for C. `examples/transport.rs` is a transport of two processes.
//!
//! # Features
//! `cuda` and `verbs` are on by default. Without `cuda` the crate does not depend on cudarc. `verbs` adds no
//! dependency, because rdma-core is loaded at run time. `test-utils` exports what tests and benches of this project
//! need; it has no stability promise.
//!
//! # Errors
//! Every call returns [`Error`]: its [`ErrorKind`] is matched, its text states what happened and what to do. A call that
//! takes a queue and refuses hands it back in [`Refused`].
//!
//! # An RDMA write, from beginning to end
//! [`Queue::open`] opens an adapter, a queue of it, and what the queue needs. `examples/put.rs`, which stands below, writes
//! through such a queue. [`Options`] choose the library, the GPU and the doorbell. [`Error`] has one [`ErrorKind`] to match.
//!
//! # Step by step
//! A program with other needs opens the parts itself, for example on the domain of a transport ([`Queue::on_domain`]), or
//! each of them:
//!
//! 1. [`fabric::Library`] → [`fabric::Query`] → [`fabric::Fabric`] → [`fabric::Domain`].
//! 2. An [`fabric::AddressVector`], and one [`fabric::CompletionQueue`] that is bound to both sides of the
//!    [`fabric::Endpoint`], because receives need that. It must have at least as many entries as both rings together
//!    ([`fabric::Info::completions`]), and serves one endpoint in its life.
//! 3. [`queue::MappedQueue::new`] takes the endpoint.
//! 4. [`queue::MappedQueue::insert_peer`] on both sides, each with the other's address. An adapter refuses requests of
//!    an unknown sender (status: unknown peer).
//! 5. [`fabric::Buffer`] → [`fabric::Domain::register`] → [`queue::WorkRequest`] → [`queue::MappedQueue::execute`].
//!
//! For a queue that a GPU drives (feature `cuda`), three calls follow step 4: `gpu::Gpu::open`,
//! [`doorbell::DoorbellProxy::start`], and `gpu_queue::GpuQueue::with_doorbell`, which takes the mapped queue. In step
//! 5, `GpuQueue::execute` posts by a kernel of this crate. `GpuQueue::begin_launch` gives the queue to kernels of the
//! caller.
//!
//! Objects may be dropped in any order. `close` reports what a drop cannot; children are closed before parents, and a
//! [`queue::WorkRequest`] before its region.
//!
//! # On the software adapter
//! On a machine without an EFA adapter, the same program runs on softefa, which libfabric finds through a link whose
//! name ends in `-fi.so`. From the root of this repository:
//!
//! ```sh
//! cargo build -p softefa && mkdir -p target/soft && ln -sf "$PWD/target/debug/libsoftefa.so" target/soft/softefa-fi.so
//! FI_PROVIDER_PATH="$PWD/target/soft" cargo run -p efa-gda --example put
//! ```
//!
//! # The program
// Not run here: the tests run the example itself, by the commands above.
#![doc = concat!("```no_run\n", include_str!("../examples/put.rs"), "```\n")]

pub mod doorbell;
mod error;
pub mod executor;
pub mod exposure;
pub mod fabric;
#[cfg(feature = "cuda")]
pub mod gpu;
#[cfg(feature = "cuda")]
pub mod gpu_queue;
pub mod memory;
mod open;
pub mod queue;
pub mod smaps;
pub mod status;
#[cfg(feature = "verbs")]
pub mod verbs;

mod leak;
mod object;
mod polling;
mod readable;

pub use efa_gda_wire as wire;
pub use error::{Error, ErrorKind, Progress, Refused, Result};
pub use open::{OpenDomain, Options, Queue, Source};
