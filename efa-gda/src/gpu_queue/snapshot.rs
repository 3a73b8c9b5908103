//! Copies of a queue's state beside its kernels, and snapshots made of them.

use efa_gda_sys::device::efa_gda_queue;

use super::GpuQueue;
use crate::Result;
use crate::queue::counters::Counters;
use crate::queue::snapshot::{Bytes, RingBytes};
use crate::queue::{Counts, Snapshot};

impl GpuQueue {
    /// Returns a copy of the struct in the GPU's memory, also while kernels run. The words that they write may then be
    /// of different moments.
    ///
    /// # Errors
    /// Those of [`Self::snapshot`].
    pub fn state(&self) -> Result<efa_gda_queue> {
        let address = self.device.queue.address() as u64;
        // SAFETY: the struct is in this GPU's memory. It is a plain struct of C, valid for any bytes.
        unsafe {
            let bytes = self.device.side_copy.copy(address, size_of::<efa_gda_queue>())?;
            Ok(bytes.as_ptr().cast::<efa_gda_queue>().read_unaligned())
        }
    }

    /// Takes a snapshot, also while a kernel runs: the GPU's memory is copied beside the kernel.
    ///
    /// # Errors
    /// Those of the driver, also if the copy does not end within a second.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let state = self.state()?;
        Ok(self.mapped.snapshot_with(state, self.copy_completions(), self.copy_counters()))
    }

    /// Copies the completion queue, if it is in the GPU's memory.
    fn copy_completions(&self) -> Option<Bytes> {
        let cq = &self.mapped.exposure().cq;
        self.mapped.backing.completions_on()?;
        let bytes = cq.num_entries as usize * cq.entry_size as usize;
        // SAFETY: the entries are in this GPU's memory (`require_same_gpu`), which the completion queue owns.
        let copy = unsafe { self.device.side_copy.copy(cq.buffer.as_ptr() as u64, bytes) };
        Some(copy.map(RingBytes::Copied).map_err(|error| error.to_string()))
    }

    /// Copies the words of the queue's counters, if they are in the GPU's memory.
    fn copy_counters(&self) -> Option<Counts> {
        let Counters { words, .. } = self.mapped.counters.as_ref()?;
        words.device?;
        let copy = |word| -> Result<u64> {
            // SAFETY: the words are in this GPU's memory (`require_same_gpu`), which their counter owns.
            let bytes = unsafe { self.device.side_copy.copy(word, size_of::<u64>()) }?;
            Ok(u64::from_ne_bytes(bytes.try_into().expect("the copy has as many bytes as were asked for")))
        };
        let both = copy(words.success).and_then(|successes| Ok([successes, copy(words.error)?]));
        Some(both.map_err(|error| error.to_string()))
    }
}
