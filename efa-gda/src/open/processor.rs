//! The processor of a queue: what it opens in its memory, or in the host's.

use super::Options;
use crate::error::Result;
use crate::fabric::{CompletionCounter, CompletionQueue, GdaOps};
#[cfg(feature = "cuda")]
use crate::gpu::Gpu;

/// The processor that will drive a queue.
pub(super) enum Processor {
    Host,
    #[cfg(feature = "cuda")]
    Gpu(Gpu),
}

impl Processor {
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, clippy::unnecessary_wraps, reason = "no GPU"))]
    pub(super) fn open(options: &Options) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(ordinal) = options.gpu {
            return Ok(Self::Gpu(Gpu::open(ordinal)?));
        }
        Ok(Self::Host)
    }

    /// Opens a completion queue, in the GPU's memory where that is possible. Returns why it is not there.
    pub(super) fn completion_queue(
        &self,
        ops: &GdaOps,
        entries: usize,
    ) -> Result<(CompletionQueue, Option<String>)> {
        match self {
            Self::Host => Ok((ops.domain().completion_queue(entries)?, None)),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => {
                let (queue, why) = gpu.completion_queue(ops, entries)?;
                Ok((queue, why.map(|why| format!("completions in the GPU's memory: {why}"))))
            }
        }
    }

    /// As [`Self::completion_queue`], for a completion counter.
    pub(super) fn counter(&self, ops: &GdaOps) -> Result<(CompletionCounter, Option<String>)> {
        match self {
            Self::Host => Ok((ops.cntr_open_host()?, None)),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => {
                let (counter, why) = gpu.completion_counter(ops)?;
                Ok((counter, why.map(|why| format!("a completion counter in the GPU's memory: {why}"))))
            }
        }
    }
}
