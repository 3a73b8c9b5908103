//! Memory of a GPU that an adapter accesses: regions, completion queues, and completion counters.

use std::sync::Arc;

use efa_gda_wire::COMPLETION_BYTES;

use crate::fabric::{
    Access, CompletionCounter, CompletionQueue, DeviceMemory, Dmabuf, Domain, GdaOps, Region,
};
use crate::gpu::{Gpu, GpuMemory};
use crate::{Error, Result};

/// Bytes for the words of a counter; [`GpuMemory`] allocates whole pages anyway.
const COUNTER_BYTES: usize = 4096;

impl GpuMemory {
    /// Registers the memory with the adapter of `domain`; the region then owns it. Returns why it is no dmabuf;
    /// None if it is one.
    ///
    /// # Errors
    /// As [`Domain::register_device`]; the memory is then freed.
    pub fn register(self, domain: &Domain, access: Access) -> Result<(Region, Option<String>)> {
        domain.register_device(self.into(), access)
    }
}

impl From<GpuMemory> for DeviceMemory {
    fn from(memory: GpuMemory) -> Self {
        let dmabuf = memory.dmabuf().map(|file| Dmabuf { file, offset: 0 });
        let (address, length) = (memory.device_address(), memory.len());
        // CUDA numbers GPUs with this type.
        let ordinal = memory.ordinal() as i32;
        let memory = Arc::new(memory);
        let reader = memory.clone();
        // SAFETY: the range is the memory that becomes its owner; the dmabuf is of that memory.
        unsafe { Self::new(address, length, ordinal, dmabuf.map_err(|error| error.to_string()), memory) }
            .map(|memory| {
                memory.with_reader(Box::new(move |address, bytes| {
                    let offset = address.wrapping_sub(reader.device_address()) as usize;
                    reader.read(offset, bytes).map_err(|error| error.to_string())
                }))
            })
            .expect("CUDA allocates nothing at address 0")
    }
}

impl Gpu {
    /// Opens a completion queue of at least `entries` entries for a queue that this GPU will drive: in the GPU's memory
    /// if the provider and the adapter support that, in the host's otherwise, where each poll of a kernel crosses PCIe.
    /// Returns why it is not in the GPU's memory; None if it is.
    ///
    /// # Errors
    /// Those of [`Domain::completion_queue`].
    pub fn completion_queue(
        &self,
        ops: &GdaOps,
        entries: usize,
    ) -> Result<(CompletionQueue, Option<String>)> {
        match self.completion_queue_in_gpu(ops, entries) {
            Ok(queue) => Ok((queue, None)),
            Err(why) => {
                tracing::info!(%why, "the completion queue is in the host's memory");
                Ok((ops.domain().completion_queue(entries)?, Some(why)))
            }
        }
    }

    /// Opens a completion counter for a queue that this GPU will drive
    /// ([`MappedQueue::with_counters`](crate::queue::MappedQueue::with_counters)): with its words in the GPU's memory
    /// if the provider and the adapter support that, in the host's otherwise, where each poll of a kernel crosses PCIe.
    /// Returns why it is not in the GPU's memory; None if it is.
    ///
    /// # Errors
    /// Those of [`GdaOps::cntr_open_host`].
    pub fn completion_counter(&self, ops: &GdaOps) -> Result<(CompletionCounter, Option<String>)> {
        match self.completion_counter_in_gpu(ops) {
            Ok(counter) => Ok((counter, None)),
            Err(why) => {
                let counter = ops.cntr_open_host()?;
                tracing::info!(%why, "the completion counter is in the host's memory");
                Ok((counter, Some(why)))
            }
        }
    }

    fn completion_counter_in_gpu(&self, ops: &GdaOps) -> Result<CompletionCounter, String> {
        let memory = GpuMemory::zeroed(self, COUNTER_BYTES).map_err(|error| error.to_string())?;
        ops.cntr_open_device(memory.into()).map_err(|error| error.to_string())
    }

    fn completion_queue_in_gpu(&self, ops: &GdaOps, entries: usize) -> Result<CompletionQueue, String> {
        let rounded = entries.checked_next_power_of_two().ok_or("too many entries")?;
        let bytes = rounded.checked_mul(COMPLETION_BYTES).ok_or("too many entries")?;
        let memory = GpuMemory::zeroed(self, bytes).map_err(|error| error.to_string())?;
        // SAFETY: the memory was just zeroed, and nothing else refers to it.
        unsafe { ops.cq_open_device(memory.into(), entries) }.map_err(|error| error.to_string())
    }
}

/// Refuses memory of a GPU other than the one that would access it.
pub(super) fn require_same_gpu(gpu: &Gpu, what: &'static str, device: Option<i32>) -> Result<()> {
    match device {
        Some(has) if has as usize != gpu.ordinal() => {
            let needs = gpu.ordinal();
            let text = format!("{what} is in the memory of GPU {has}, and GPU {needs} drives the queue");
            Err(Error::argument(text).with_hint("use one GPU for both"))
        }
        _ => Ok(()),
    }
}
