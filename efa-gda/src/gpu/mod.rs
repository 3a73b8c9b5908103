//! Queues that a GPU drives: opening a GPU, registering a queue's pages with CUDA, compiling and
//! launching kernels. Nothing here knows libfabric; [`crate::queue`] joins the two.
//!
//! libcuda and NVRTC are opened at run time, so a program with this module starts anywhere.

mod compile;
mod device;
mod error;
pub(crate) mod memory;
mod pages;

pub use compile::{Origin, compile_source};
pub use device::{Gpu, HostRange};
pub(crate) use device::{in_call, kernels_end};
pub use error::{Error, Result};
pub use memory::GpuMemory;
