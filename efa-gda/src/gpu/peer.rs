//! Memory of another process's GPU, mapped through CUDA IPC: over NVLink where the GPUs have it, otherwise over PCIe.

use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaStream, DriverError, sys};

use super::device::{Gpu, in_call, in_context, stream_ends};
use super::error::{Error, Result};
use super::memory::{GpuMemory, Relaxed};

/// What another process of the machine needs to map memory of a GPU: the process that allocated it sends this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// CUDA's handle of the allocation (`CUipcMemHandle`).
    pub handle: [u8; 64],
    /// Offset of the first byte in the allocation.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Memory of another process's GPU, mapped into this process until the value is dropped.
///
/// The process that allocated the memory must keep it until then (`cuIpcCloseMemHandle` of `cuda.h`).
#[derive(Debug)]
pub struct MappedMemory {
    stream: Arc<CudaStream>,
    allocation: u64,
    start: u64,
    length: usize,
}

impl Gpu {
    /// Returns the GPU's address on the PCI bus, such as `0000:17:00.0`, which is the same in all processes.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn pci_address(&self) -> Result<String> {
        let mut text: [c_char; 32] = [0; 32];
        // SAFETY: the call writes a terminated string of at most that length.
        unsafe {
            sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, self.context().cu_device())
        }
        .result()
        .map_err(in_call("cuDeviceGetPCIBusId"))?;
        Ok(text.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte as u8)).collect())
    }

    /// Whether this GPU can map memory of the GPU at `pci_address`. It cannot map its own.
    ///
    /// # Errors
    /// Those of the driver: CUDA_ERROR_INVALID_DEVICE if this process does not see that GPU.
    pub fn can_map(&self, pci_address: &str) -> Result<bool> {
        const FIND: &str = "cuDeviceGetByPCIBusId";
        let invalid = |_| in_call(FIND)(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE));
        let name = CString::new(pci_address).map_err(invalid)?;
        let (mut peer, mut can) = (0, 0);
        // SAFETY: a terminated string; the call writes a device's number.
        unsafe { sys::cuDeviceGetByPCIBusId(&mut peer, name.as_ptr()) }.result().map_err(in_call(FIND))?;
        // SAFETY: the call writes a number.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.context().cu_device(), peer) }
            .result()
            .map_err(in_call("cuDeviceCanAccessPeer"))?;
        Ok(can != 0)
    }
}

impl GpuMemory {
    /// Exports memory of [`Self::zeroed_to_share`] for another process of the machine.
    ///
    /// # Errors
    /// Those of the driver: CUDA IPC does not work in every container and on every GPU.
    pub fn share(&self) -> Result<SharedMemory> {
        self.bind()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: a context is current, and the address is that of an allocation of cuMemAlloc.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, self.allocation()) }
            .result()
            .map_err(in_call("cuIpcGetMemHandle"))?;
        Ok(SharedMemory {
            handle: handle.reserved.map(|byte| byte as u8),
            offset: self.device_address() - self.allocation(),
            length: self.len() as u64,
        })
    }
}

impl MappedMemory {
    /// Maps into `gpu` the memory that another process shared.
    ///
    /// # Errors
    /// Those of the driver, which refuses a handle of this process and one of another container, and
    /// [`Error::OutOfBounds`] if the shared range exceeds the allocation.
    pub fn open(gpu: &Gpu, shared: &SharedMemory) -> Result<Self> {
        let _relaxed = Relaxed::enter();
        let stream = gpu.context().new_stream().map_err(in_call("cuStreamCreate"))?;
        let handle = sys::CUipcMemHandle { reserved: shared.handle.map(|byte| byte as c_char) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut allocation = 0;
        // SAFETY: `new_stream` left the context current. The driver checks the handle and writes one address; the drop
        // unmaps it once.
        unsafe { sys::cuIpcOpenMemHandle_v2(&mut allocation, handle, flags) }
            .result()
            .map_err(in_call("cuIpcOpenMemHandle"))?;
        let mut mapped = Self { stream, allocation, start: allocation, length: 0 };
        let (mut base, mut size) = (0, 0);
        // SAFETY: a mapped address; the call writes two numbers.
        let range = unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut size, allocation) }.result();
        // If the driver does not report the range of a mapping, a copy past its end fails.
        let after = |()| size.saturating_sub(allocation.wrapping_sub(base) as usize);
        let memory = range.map_or(usize::MAX, after);
        let (offset, length) = (shared.offset as usize, shared.length as usize);
        match offset.checked_add(length) {
            Some(end) if end <= memory => {
                (mapped.start, mapped.length) = (allocation + shared.offset, length);
                Ok(mapped)
            }
            _ => Err(Error::OutOfBounds { offset, length, memory }),
        }
    }

    /// Copies `count` pieces of `bytes` bytes, which follow each other from `offset` of `source` on, to the first bytes
    /// of this memory, and waits until they are there. The GPU's copy engine stores them.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] before anything is copied; [`Error::Unanswered`] after `limit`, when the copies may still
    /// run; those of the driver.
    pub fn copy_from(
        &self,
        source: &GpuMemory,
        offset: usize,
        (bytes, count): (usize, usize),
        limit: Duration,
    ) -> Result<()> {
        let length = bytes.saturating_mul(count);
        let from = source.at(offset, length)?;
        if length > self.length {
            return Err(Error::OutOfBounds { offset: 0, length, memory: self.length });
        }
        self.stream.context().bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        for piece in 0..count {
            let at = (piece * bytes) as u64;
            // SAFETY: a context is current, and both ranges were checked. A copy that outlives a failed wait touches
            // memory of GPUs only, whose driver faults the context if the range was freed.
            unsafe { sys::cuMemcpyDtoDAsync_v2(self.start + at, from + at, bytes, self.stream.cu_stream()) }
                .result()
                .map_err(in_call("cuMemcpyDtoDAsync"))?;
        }
        stream_ends(&self.stream, limit)
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        let done = in_context(self.stream.context(), || {
            // SAFETY: `open` mapped it, and nothing else has its address.
            unsafe { sys::cuIpcCloseMemHandle(self.allocation) }.result()
        });
        if let Err(error) = done {
            tracing::warn!(%error, "memory of another process's GPU could not be unmapped");
        }
    }
}
