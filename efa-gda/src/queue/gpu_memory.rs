//! Memory of a GPU where it meets the adapter: regions, and completion queues.

use std::fmt;
use std::sync::Arc;

use crate::fabric::{
    self, Access, CompletionCounter, CompletionQueue, DeviceMemory, Dmabuf, Domain, GdaOps, MemoryRegion,
    Registration,
};
use crate::gpu::{self, Gpu, GpuMemory};

use super::backing::Region;
use super::{Backing, MappedQueue, WorkError, WorkRequest};

/// Bytes of a completion, where the provider does not say otherwise (`efa_io_rx_cdesc_ex`).
const COMPLETION_BYTES: usize = 32;

/// Bytes for the words of a counter; a page of its own is taken anyway.
const COUNTER_BYTES: usize = 4096;

/// Where the entries of a completion queue, or the words of a counter, lie.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// In the GPU's memory: who looks at them stays on the GPU.
    Gpu,
    /// In the host's: each look crosses PCIe.
    Host {
        /// What kept them from the GPU's.
        why: String,
    },
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu => f.write_str("GPU memory"),
            Self::Host { why } => write!(f, "host memory: {why}"),
        }
    }
}

impl GpuMemory {
    /// Registers the memory with the adapter of `domain`; the region then owns it. Says how it was
    /// registered, and why so.
    ///
    /// # Errors
    /// As [`MemoryRegion::register_device`]; the memory is then freed.
    pub fn register(self, domain: &Domain, access: Access) -> fabric::Result<(MemoryRegion, Registration)> {
        MemoryRegion::register_device(domain, self.into(), access)
    }
}

impl From<GpuMemory> for DeviceMemory {
    fn from(memory: GpuMemory) -> Self {
        let dmabuf = memory.dmabuf().map(|file| Dmabuf { file, offset: 0 });
        let (address, length) = (memory.device_address(), memory.len());
        // CUDA's own numbers are of that type.
        let ordinal = memory.ordinal() as i32;
        // SAFETY: the range is the memory that goes along as its owner; the dmabuf is of it.
        unsafe {
            Self::new(address, length, ordinal, dmabuf.map_err(|error| error.to_string()), Arc::new(memory))
        }
        .expect("CUDA allocates nothing at address 0")
    }
}

impl MemoryRegion {
    /// The GPU's memory, where the region owns such.
    pub fn gpu_memory(&self) -> Option<&GpuMemory> {
        self.owner()
    }
}

impl Gpu {
    /// Opens a completion queue of at least `entries` entries for a queue that this GPU will drive: in
    /// the GPU's memory where the provider and the adapter can, in the host's otherwise. Says which, and
    /// why.
    ///
    /// # Errors
    /// Those of [`Domain::completion_queue`].
    pub fn completion_queue(
        &self,
        ops: &GdaOps,
        entries: usize,
    ) -> fabric::Result<(CompletionQueue, Placement)> {
        match self.own_completion_queue(ops, entries) {
            Ok(queue) => Ok((queue, Placement::Gpu)),
            Err(why) => {
                tracing::info!(%why, "the completion queue lies in the host's memory");
                Ok((ops.domain().completion_queue(entries)?, Placement::Host { why }))
            }
        }
    }

    /// Opens a completion counter for a queue that this GPU will drive
    /// ([`MappedQueue::with_counters`]): with its words in the GPU's memory where the provider and the
    /// adapter can, in the host's otherwise. Says which, and why.
    ///
    /// # Errors
    /// Those of [`GdaOps::cntr_open_host`].
    pub fn completion_counter(&self, ops: &GdaOps) -> fabric::Result<(CompletionCounter, Placement)> {
        match self.own_completion_counter(ops) {
            Ok(counter) => Ok((counter, Placement::Gpu)),
            Err(why) => {
                let counter = ops.cntr_open_host()?;
                tracing::info!(%why, "the completion counter lies in the host's memory");
                Ok((counter, Placement::Host { why }))
            }
        }
    }

    fn own_completion_counter(&self, ops: &GdaOps) -> Result<CompletionCounter, String> {
        let memory = GpuMemory::zeroed(self, COUNTER_BYTES).map_err(|error| error.to_string())?;
        ops.cntr_open_device(memory.into()).map_err(|error| error.to_string())
    }

    fn own_completion_queue(&self, ops: &GdaOps, entries: usize) -> Result<CompletionQueue, String> {
        let rounded = entries.checked_next_power_of_two().ok_or("too many entries")?;
        let bytes = rounded.checked_mul(COMPLETION_BYTES).ok_or("too many entries")?;
        let memory = GpuMemory::zeroed(self, bytes).map_err(|error| error.to_string())?;
        ops.cq_open_device(memory.into(), entries).map_err(|error| error.to_string())
    }
}

impl<B: Backing> MappedQueue<B> {
    /// Why the host cannot wait on the queue: completions, or counters, lie in a GPU's memory.
    pub(super) fn host_is_blind(&self) -> Option<&'static str> {
        match (self.backing.completions_on(), self.counters_on()) {
            (None, None) => None,
            (Some(_), _) => Some("its completions lie in a GPU's memory; map it into that GPU"),
            (None, Some(_)) => Some("its counters lie in a GPU's memory; map it into that GPU"),
        }
    }

    /// Refuses what needs the host to wait.
    pub(super) fn host_polls(&self, operation: &'static str) -> Result<(), WorkError> {
        self.host_is_blind().map_or(Ok(()), |why| Err(WorkError::Unsupported { operation, why }))
    }

    /// Refuses a put from the host that would read a GPU's memory.
    pub(super) fn host_reaches(&self, put: &WorkRequest<B::Region>) -> Result<(), WorkError> {
        self.host_polls("a put from the host")?;
        if put.inline_region().is_some_and(|region| !region.on_host()) {
            let why = "its bytes lie in a GPU's memory, which the host cannot read; put from that GPU";
            return Err(WorkError::Unsupported { operation: "an inline put from the host", why });
        }
        Ok(())
    }
}

/// Refuses memory of a GPU other than the one that would read it.
pub(super) fn on_same(gpu: &Gpu, what: &'static str, device: Option<i32>) -> gpu::Result<()> {
    match device {
        Some(has) if has as usize != gpu.ordinal() => {
            Err(gpu::Error::OtherGpu { what, has, needs: gpu.ordinal() })
        }
        _ => Ok(()),
    }
}
