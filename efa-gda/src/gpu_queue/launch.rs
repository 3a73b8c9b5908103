//! Launches of the caller's kernels: what keeps a queue mapped for them.

use std::sync::Arc;

use efa_gda_sys::device::efa_gda_queue;

/// Keeps a queue mapped for a launch of the caller's kernels. While it exists, the queue is neither unmapped nor
/// closed, and executes no work requests of its own. A [`GpuQueue`](super::GpuQueue) that is dropped meanwhile is
/// leaked.
#[derive(Debug)]
#[must_use = "the queue may be unmapped once this is dropped"]
pub struct LaunchGuard {
    pub(super) address: *mut efa_gda_queue,
    /// One reference to the queue's count of launches.
    pub(super) _launch: Arc<()>,
}

// SAFETY: the address is the GPU's, and never dereferenced here.
unsafe impl Send for LaunchGuard {}
// SAFETY: as above.
unsafe impl Sync for LaunchGuard {}

impl LaunchGuard {
    /// Returns the address of the struct in the GPU's memory, for kernels.
    pub fn device_address(&self) -> *mut efa_gda_queue {
        self.address
    }
}
