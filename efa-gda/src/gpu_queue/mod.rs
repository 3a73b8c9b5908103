//! Queues that a GPU drives: joins the mapped queues of [`crate::queue`] with the GPUs of [`crate::gpu`].
//!
//! [`GpuQueue::with_doorbell`] maps a [`MappedQueue`](crate::queue::MappedQueue) into a GPU, in the best doorbell mode
//! that works there. Rings and doorbells stay where the adapter exposes them; their pages are registered with CUDA. The
//! struct that kernels receive is in the GPU's memory, with the GPU's addresses in it.
//!
//! - [`GpuQueue::execute`], [`GpuQueue::post_receives`], [`GpuQueue::receive_many`] and [`GpuQueue::quiet`] run kernels of
//!   this library. The caller's kernels use the queue between [`GpuQueue::begin_launch`] and the drop of its
//!   [`LaunchGuard`].
//! - [`Gpu::completion_queue`](crate::gpu::Gpu::completion_queue) and
//!   [`Gpu::completion_counter`](crate::gpu::Gpu::completion_counter) open completion queues and counters in a GPU's
//!   memory, and [`GpuMemory::register`](crate::gpu::GpuMemory::register) registers it with an adapter.
//! - The memory that the adapter may still access is retained as for a queue that the host drives.

mod device_state;
mod launch;
mod mapped_parts;
#[cfg(feature = "test-utils")]
mod measure;
mod memory;
mod queue;
mod receive;
mod snapshot;

pub use launch::LaunchGuard;
pub use mapped_parts::MappedPart;
pub use queue::{GpuQueue, RefusedMode};
