//! Calls of this thread while another thread captures a graph.

use cudarc::driver::sys;

/// Relaxes this thread's stream capture mode until it is dropped. While another thread captures a graph, CUDA otherwise
/// refuses some calls of this thread, and a query of a stream invalidates the capture.
pub(crate) struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    pub(crate) fn enter() -> Option<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the call sets this thread's mode and writes the previous mode.
        let entered = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result();
        entered.is_ok().then_some(Self(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as in `enter`. After a failure the thread stays relaxed, which refuses no call.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}
