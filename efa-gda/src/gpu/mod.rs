//! A GPU of this process: its context, pages of the host that are registered with it, its memory, and the kernels that
//! are compiled for it. This module knows neither fabrics nor queues; [`crate::gpu_queue`] joins them.
//!
//! libcuda and NVRTC are loaded at run time, so a program with this module also starts on a machine without them.

mod compile;
mod device;
pub(crate) mod error;
pub(crate) mod memory;
mod nearest;
mod pages;
pub(crate) mod relaxed;

pub use compile::{Origin, compile_source};
#[cfg(feature = "test-utils")]
pub(crate) use device::Bench;
pub use device::{Gpu, HostRange};
pub(crate) use device::{in_call, stream_ends};
pub use error::failed_call;
pub use memory::GpuMemory;
