//! Which parts of a queue, and which of its regions, the host's CPU can access, and copies to and from regions.
//! Completions, counters and regions may be in a GPU's memory.

use super::work_error::not_possible;
use super::{MappedQueue, WorkRequest};
use crate::memory::Region;
use crate::{Error, Result};

impl MappedQueue {
    /// Returns why the host cannot wait on the queue: its completions, or its counters, are in a GPU's memory.
    pub(crate) fn host_cannot_poll(&self) -> Option<&'static str> {
        match (self.backing.completions_on(), self.counters_on()) {
            (None, None) => None,
            (Some(_), _) => Some("its completions are in a GPU's memory; map it into that GPU"),
            (None, Some(_)) => Some("its counters are in a GPU's memory; map it into that GPU"),
        }
    }

    /// Refuses an operation for which the host must poll.
    pub(super) fn require_host_polls(&self, operation: &'static str) -> Result<()> {
        self.host_cannot_poll().map_or(Ok(()), |why| Err(not_possible(operation, why)))
    }

    /// Refuses to execute a work request on the host if the host would have to read a GPU's memory.
    pub(super) fn require_host_executes(&self, work: &WorkRequest) -> Result<()> {
        self.require_host_polls("a work request on the host")?;
        if work.inline_region().is_some_and(|region| !region.on_host()) {
            let why = "its bytes are in a GPU's memory, which the host cannot read; post from that GPU";
            return Err(not_possible("an inline request on the host", why));
        }
        Ok(())
    }
}

/// Why a region cannot be written or read.
const FOREIGN: &str = "the region does not own its memory: use the caller's own pointer to it";

impl Region {
    /// Copies `bytes` to `offset` of the memory that the region owns.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) if the bytes are outside, or the region does not own its
    /// memory; errors of the GPU.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(memory) = self.gpu_memory() {
            return memory.write(offset, bytes);
        }
        self.buffer().ok_or_else(|| Error::argument(FOREIGN))?.write(offset, bytes)
    }

    /// Copies from `offset` of the memory that the region owns.
    ///
    /// # Errors
    /// Those of [`Self::write`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(memory) = self.gpu_memory() {
            return memory.read(offset, bytes);
        }
        self.buffer().ok_or_else(|| Error::argument(FOREIGN))?.read(offset, bytes)
    }

    /// Returns the memory of a GPU, if the region owns it.
    #[cfg(feature = "cuda")]
    pub fn gpu_memory(&self) -> Option<&crate::gpu::GpuMemory> {
        self.owner()
    }
}
