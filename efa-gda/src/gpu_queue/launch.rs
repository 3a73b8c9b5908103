//! Launches of the caller's kernels: what keeps a queue mapped for them, and what ends their waits.

use std::sync::Arc;

use efa_gda_sys::device::efa_gda_queue;

use crate::doorbell::End;
use crate::gpu::memory::SharedWord;
use crate::queue::mapped::{raise_status, swap_word};

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

/// Ends every wait of a queue's kernels, from any thread.
#[derive(Clone, Debug)]
pub struct GpuAbortFlag(pub(super) Arc<SharedWord>);

impl GpuAbortFlag {
    /// Ends waits with [`DeviceError::Aborted`](crate::status::DeviceError::Aborted), now and until [`Self::lower`]. An
    /// aborted wait of the send side (to post, or for requests) poisons the queue, because requests may still complete.
    pub fn raise(&self) {
        swap_word(self.0.get(), 0, 1);
    }

    /// Allows waits again. A queue whose doorbell proxy has stopped stays aborted.
    pub fn lower(&self) {
        swap_word(self.0.get(), 1, 0);
    }

    /// The alarm of the queue's registrations.
    pub(super) fn end_waits(&self, end: End) {
        raise_status(self.0.get(), end.status());
    }
}
