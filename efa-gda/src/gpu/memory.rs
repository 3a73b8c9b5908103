//! Memory that kernels use besides rings: structs and buffers in the GPU's memory, and words that host and GPU share.

use std::ops::Deref;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, result, sys};

use super::device::{Gpu, in_call, in_context};
use super::error;
use super::relaxed::Relaxed;
use crate::leak;
use crate::{Error, Result};

/// A struct of the device library, as cudarc copies it or passes it to a kernel by value: whole, because bytes of padding
/// may not be read as `u8`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Plain<T>(pub(crate) T);

// SAFETY: these are plain structs of C, valid for any bytes, with the same layout for the host's and the device's
// compiler. Code of this crate makes no other `Plain`.
unsafe impl<T: Copy> DeviceRepr for Plain<T> {}

/// A plain struct in the GPU's memory. `T` must be valid for any bytes, as the structs of `queue.h` are.
#[derive(Debug)]
pub(crate) struct InGpu<T> {
    memory: CudaSlice<Plain<T>>,
    address: u64,
}

impl<T: Copy> InGpu<T> {
    /// Copies `value` to the GPU. Allocations are aligned to 256 bytes, which is enough for any `T`.
    pub(crate) fn new(stream: &Arc<CudaStream>, value: &T) -> Result<Self> {
        const { assert!(align_of::<T>() <= 256) };
        let memory = stream.clone_htod(&[Plain(*value)]).map_err(in_call("cuMemcpyHtoDAsync"))?;
        let address = memory.device_ptr(stream).0;
        Ok(Self { memory, address })
    }

    /// Returns its address, for kernels.
    pub(crate) fn address(&self) -> *mut T {
        self.address as *mut T
    }

    /// Overwrites the struct.
    pub(crate) fn store(&mut self, stream: &Arc<CudaStream>, value: &T) -> Result<()> {
        stream.memcpy_htod(&[Plain(*value)], &mut self.memory).map_err(in_call("cuMemcpyHtoDAsync"))
    }

    /// Copies the struct back, after all work that was launched on `stream` before.
    pub(crate) fn load(&self, stream: &Arc<CudaStream>) -> Result<T> {
        let values = stream.clone_dtoh(&self.memory).map_err(in_call("cuMemcpyDtoHAsync"))?;
        stream.synchronize().map_err(in_call("cuStreamSynchronize"))?;
        Ok(values[0].0)
    }
}

/// Pinned memory of the host, which this value owns.
#[derive(Debug)]
struct Pinned {
    context: Arc<CudaContext>,
    start: NonNull<u8>,
}

// SAFETY: the memory is tied to no thread; users of `start` state how they share it.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    fn new(context: &Arc<CudaContext>, length: usize, flags: u32) -> Result<Self> {
        context.bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        // SAFETY: a context is current; the memory is freed once, when this value is dropped.
        let memory = unsafe { result::malloc_host(length, flags) }.map_err(in_call("cuMemHostAlloc"))?;
        let start = NonNull::new(memory.cast()).expect("cuMemHostAlloc succeeded");
        Ok(Self { context: context.clone(), start })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let done = in_context(&self.context, || {
            // SAFETY: cuMemHostAlloc allocated it. Owners drop it after the kernels that read it, and the copies into it,
            // have ended.
            unsafe { result::free_host(self.start.as_ptr().cast()) }
        });
        if let Err(error) = done {
            tracing::warn!(%error, "pinned memory could not be freed");
        }
    }
}

/// A word in the host's memory that kernels read while they run. The queue of the kernels holds a handle, and waits for
/// them before it drops the handle.
#[derive(Debug)]
pub(crate) struct SharedWord(Pinned);

impl SharedWord {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let memory = Pinned::new(context, size_of::<AtomicU32>(), flags)?;
        // SAFETY: new memory of that size, which nothing else refers to.
        unsafe { memory.start.cast::<AtomicU32>().write(AtomicU32::new(0)) };
        Ok(Self(memory))
    }
}

/// With unified addressing, which every 64-bit Linux has, the GPU uses the same address.
impl Deref for SharedWord {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        // SAFETY: `new` wrote the word, which lives as long as `self`.
        unsafe { self.0.start.cast().as_ref() }
    }
}

/// Copies a GPU's memory while kernels run, within a bound: on a separate stream, into memory that was pinned before.
/// Creating either may wait for kernels, so both are created early.
#[derive(Debug)]
pub(crate) struct SideCopy {
    stream: Arc<CudaStream>,
    length: usize,
    /// The pinned memory; after a copy whose end the driver did not report, the driver's result instead. That copy may
    /// still write the memory, which is then leaked.
    pinned: Mutex<Result<Pinned, DriverError>>,
}

impl SideCopy {
    const LIMIT: Duration = Duration::from_secs(1);

    /// Prepares copies of at most `length` bytes.
    pub(crate) fn new(context: &Arc<CudaContext>, length: usize) -> Result<Self> {
        let stream = context.new_stream().map_err(in_call("cuStreamCreate"))?;
        let pinned = Pinned::new(context, length, sys::CU_MEMHOSTALLOC_PORTABLE)?;
        Ok(Self { stream, length, pinned: Mutex::new(Ok(pinned)) })
    }

    /// Copies the `length` bytes at `address`.
    ///
    /// # Safety
    /// The bytes must be memory of this context's GPU.
    pub(crate) unsafe fn copy(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        assert!(length <= self.length);
        let mut guard = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match &*guard {
            Ok(pinned) => pinned.start,
            Err(result) => return Err(self.unknown_end(*result)),
        };
        self.stream.context().bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        let stream = self.stream.cu_stream();
        let _relaxed = Relaxed::enter();
        // SAFETY: the pinned memory has `length` bytes, and nothing else uses it while the lock is held. The caller
        // vouches for the GPU's memory.
        unsafe { sys::cuMemcpyDtoHAsync_v2(buffer.as_ptr().cast(), address, length, stream) }
            .result()
            .map_err(in_call("cuMemcpyDtoHAsync"))?;
        let begun = Instant::now();
        loop {
            // SAFETY: an open stream.
            match unsafe { sys::cuStreamQuery(stream) } {
                sys::CUresult::CUDA_SUCCESS => break,
                sys::CUresult::CUDA_ERROR_NOT_READY if begun.elapsed() < Self::LIMIT => {
                    std::thread::yield_now()
                }
                // Every other result leaves open whether the copy ended: it may still write.
                result => {
                    leak::leak(std::mem::replace(&mut *guard, Err(DriverError(result))));
                    return Err(self.unknown_end(DriverError(result)));
                }
            }
        }
        // SAFETY: the copy ended, and wrote all of these bytes.
        Ok(unsafe { std::slice::from_raw_parts(buffer.as_ptr(), length) }.to_vec())
    }

    /// The error for a copy whose end the driver did not report, with the driver's result.
    fn unknown_end(&self, result: DriverError) -> Error {
        match result.0 {
            sys::CUresult::CUDA_ERROR_NOT_READY => {
                let ordinal = self.stream.context().ordinal();
                error::unanswered("a copy to the host", ordinal, Self::LIMIT)
            }
            _ => in_call("cuStreamQuery")(result),
        }
    }
}

/// Zeroed memory of a GPU, in whole pages. An adapter and kernels may read and write it at any time, so the host
/// accesses it by copies.
#[derive(Debug)]
pub struct GpuMemory {
    stream: Arc<CudaStream>,
    allocation: u64,
    start: u64,
    length: usize,
}

impl GpuMemory {
    /// Alignment and granularity: what exporting a GPU's memory needs, and the largest page size of hosts with EFA.
    const PAGE: u64 = 64 << 10;
    /// CUDA divides blocks of this size among allocations, and another process maps whole blocks.
    const BLOCK: usize = 2 << 20;

    /// Allocates `length` zeroed bytes in the memory of `gpu`.
    ///
    /// # Errors
    /// Those of the driver, such as CUDA_ERROR_OUT_OF_MEMORY.
    pub fn zeroed(gpu: &Gpu, length: usize) -> Result<Self> {
        Self::in_blocks(gpu, length, 1)
    }

    /// As [`Self::zeroed`], in blocks that hold nothing else, so that a process that maps them (`cuIpcOpenMemHandle` of `cuda.h`)
    /// reads and writes nothing else.
    ///
    /// # Errors
    /// As [`Self::zeroed`].
    pub fn zeroed_to_share(gpu: &Gpu, length: usize) -> Result<Self> {
        Self::in_blocks(gpu, length, Self::BLOCK)
    }

    fn in_blocks(gpu: &Gpu, length: usize, block: usize) -> Result<Self> {
        let _relaxed = Relaxed::enter();
        let stream = gpu.context().new_stream().map_err(in_call("cuStreamCreate"))?;
        let short = || in_call("cuMemAlloc")(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let rounded = length.max(1).checked_next_multiple_of(Self::PAGE as usize).ok_or_else(short)?;
        let bytes =
            rounded.checked_add(Self::PAGE as usize).and_then(|bytes| bytes.checked_next_multiple_of(block));
        let bytes = bytes.ok_or_else(short)?;
        // SAFETY: `new_stream` left the context current. The drop frees the memory once.
        let allocation = unsafe { result::malloc_sync(bytes) }.map_err(in_call("cuMemAlloc"))?;
        let memory = Self { stream, allocation, start: allocation.next_multiple_of(Self::PAGE), length };
        // SAFETY: the `rounded` bytes from `start` on are inside the allocation, which only this value refers to.
        unsafe { result::memset_d8_async(memory.start, 0, rounded, memory.stream.cu_stream()) }
            .map_err(in_call("cuMemsetD8Async"))?;
        memory.finish()?;
        Ok(memory)
    }

    /// Returns the address of the first byte, for the GPU and the adapter.
    pub fn device_address(&self) -> u64 {
        self.start
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the CUDA ordinal of the GPU.
    pub(crate) fn ordinal(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// Copies `bytes` to `offset`, and waits for the copy, not for kernels.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for a range outside of it, or those of the driver.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let address = self.at(offset, bytes.len())?;
        self.bind()?;
        // SAFETY: a context is current. The range is this value's memory. `bytes` outlives the copy, because `finish`
        // waits for its end.
        unsafe { result::memcpy_htod_async(address, bytes, self.stream.cu_stream()) }
            .map_err(in_call("cuMemcpyHtoDAsync"))?;
        self.finish()
    }

    /// Copies from `offset` into all of `bytes`. Bytes that the adapter or a kernel writes meanwhile may be old, new or
    /// mixed.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let address = self.at(offset, bytes.len())?;
        self.bind()?;
        // SAFETY: as in `write`, in the other direction.
        unsafe { result::memcpy_dtoh_async(bytes, address, self.stream.cu_stream()) }
            .map_err(in_call("cuMemcpyDtoHAsync"))?;
        self.finish()
    }

    /// Exports the memory as a dmabuf, from its first byte on, for an adapter's driver.
    ///
    /// # Errors
    /// Those of the driver: not every GPU and kernel module exports its memory.
    pub fn dmabuf(&self) -> Result<OwnedFd> {
        self.bind()?;
        let length = self.length.max(1).next_multiple_of(Self::PAGE as usize);
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut file = -1;
        // SAFETY: the range is whole pages of this value's memory; the call writes a descriptor.
        unsafe { sys::cuMemGetHandleForAddressRange((&raw mut file).cast(), self.start, length, kind, 0) }
            .result()
            .map_err(in_call("cuMemGetHandleForAddressRange"))?;
        // SAFETY: the driver just opened the descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    fn at(&self, offset: usize, length: usize) -> Result<u64> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.start + offset as u64),
            _ => Err(error::outside(offset, length, self.length)),
        }
    }

    fn bind(&self) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(in_call("cuCtxSetCurrent"))
    }

    fn finish(&self) -> Result<()> {
        self.stream.synchronize().map_err(in_call("cuStreamSynchronize"))
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        let done = in_context(self.stream.context(), || {
            // SAFETY: `zeroed` allocated it. Regions and queues that refer to it own it, so they were closed before.
            unsafe { result::free_sync(self.allocation) }
        });
        if let Err(error) = done {
            tracing::warn!(%error, "memory of the GPU could not be freed");
        }
    }
}
