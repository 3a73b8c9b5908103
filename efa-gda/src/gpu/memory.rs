//! Memory that kernels use beside a queue's rings: structs and buffers in the GPU's memory, and words
//! that host and GPU share.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};

use super::device::{Gpu, in_call, in_context};
use super::error::{Error, Result};

/// A plain struct in the GPU's memory. `T` must be valid for any bytes: the structs of `queue.h` are.
#[derive(Debug)]
pub(crate) struct InGpu<T> {
    bytes: CudaSlice<u8>,
    address: u64,
    /// The bytes are the GPU's, so that no thread owns the `T`.
    _of: std::marker::PhantomData<fn() -> T>,
}

impl<T: Copy> InGpu<T> {
    /// Copies `value` to the GPU. Allocations begin on 256 bytes, which is enough for any `T`.
    pub(crate) fn new(stream: &Arc<CudaStream>, value: &T) -> Result<Self> {
        const { assert!(align_of::<T>() <= 256) };
        let bytes =
            stream.clone_htod(as_bytes(std::slice::from_ref(value))).map_err(in_call("cuMemcpyHtoDAsync"))?;
        let address = bytes.device_ptr(stream).0;
        Ok(Self { bytes, address, _of: std::marker::PhantomData })
    }

    /// Where it lies, for kernels.
    pub(crate) fn address(&self) -> *mut T {
        self.address as *mut T
    }

    /// Overwrites it.
    pub(crate) fn store(&mut self, stream: &Arc<CudaStream>, value: &T) -> Result<()> {
        stream
            .memcpy_htod(as_bytes(std::slice::from_ref(value)), &mut self.bytes)
            .map_err(in_call("cuMemcpyHtoDAsync"))
    }

    /// Copies it back; waits for what was launched on `stream` before.
    pub(crate) fn load(&self, stream: &Arc<CudaStream>) -> Result<T> {
        let bytes = stream.clone_dtoh(&self.bytes).map_err(in_call("cuMemcpyDtoHAsync"))?;
        stream.synchronize().map_err(in_call("cuStreamSynchronize"))?;
        debug_assert_eq!(bytes.len(), size_of::<T>());
        // SAFETY: the bytes are those of a `T`, of its size; `T` is valid for any bytes.
        Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}

/// The bytes of `queue.h`'s structs.
pub(crate) fn as_bytes<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: plain structs of C, read as the bytes they have; bindgen's structs have no padding that
    // was never written, for they are made with `Default`, which zeroes them.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// A word of the host that kernels read while they run.
#[derive(Debug)]
pub(crate) struct SharedWord {
    context: Arc<CudaContext>,
    word: NonNull<AtomicU32>,
}

// SAFETY: the word is an atomic that lives until the last handle goes.
unsafe impl Send for SharedWord {}
// SAFETY: as above.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        context.bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current; the memory is freed once, when this value is dropped.
        let memory = unsafe { result::malloc_host(size_of::<AtomicU32>(), flags) };
        let memory = memory.map_err(in_call("cuMemHostAlloc"))?.cast::<AtomicU32>();
        let word = NonNull::new(memory).expect("cuMemHostAlloc succeeded");
        // SAFETY: fresh memory of that size, which nobody else has.
        unsafe { word.write(AtomicU32::new(0)) };
        Ok(Arc::new(Self { context: context.clone(), word }))
    }

    /// The word. With unified addressing, which every 64-bit Linux has, it is the same address for
    /// the GPU.
    pub(crate) fn get(&self) -> &AtomicU32 {
        // SAFETY: written in `new`, lives as long as `self`.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for SharedWord {
    fn drop(&mut self) {
        let done = in_context(&self.context, || {
            // SAFETY: it came from cuMemHostAlloc; kernels that read it hold a handle through their
            // queue, which waits for them.
            unsafe { result::free_host(self.word.as_ptr().cast()) }
        });
        if let Err(error) = done {
            tracing::warn!(%error, "a word shared with the GPU could not be freed");
        }
    }
}

/// Copies out of a GPU's memory beside kernels that run: on a stream of its own, into memory that was
/// pinned before, with a bound. Making either may wait for kernels, so they are made early.
#[derive(Debug)]
pub(crate) struct SideCopy {
    stream: Arc<CudaStream>,
    length: usize,
    /// What was answered instead, once a copy was not seen to end: it may still write there.
    pinned: Mutex<Result<Pinned, DriverError>>,
}

#[derive(Debug)]
struct Pinned(NonNull<u8>);

// SAFETY: memory that the watch alone uses, under its lock.
unsafe impl Send for Pinned {}

impl SideCopy {
    const LIMIT: Duration = Duration::from_secs(1);

    /// For copies of at most `length` bytes.
    pub(crate) fn new(context: &Arc<CudaContext>, length: usize) -> Result<Self> {
        let stream = context.new_stream().map_err(in_call("cuStreamCreate"))?;
        // SAFETY: `new_stream` left a context current; freed once, by the drop.
        let memory = unsafe { result::malloc_host(length, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let memory = memory.map_err(in_call("cuMemHostAlloc"))?.cast::<u8>();
        let pinned = Pinned(NonNull::new(memory).expect("cuMemHostAlloc succeeded"));
        Ok(Self { stream, length, pinned: Mutex::new(Ok(pinned)) })
    }

    /// The `length` bytes at `address`.
    ///
    /// # Safety
    /// They are memory of this context's GPU.
    pub(crate) unsafe fn copy(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        assert!(length <= self.length);
        let mut held = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match &*held {
            Ok(pinned) => pinned.0,
            Err(answer) => return Err(Self::unseen(*answer)),
        };
        self.stream.context().bind_to_thread().map_err(in_call("cuCtxSetCurrent"))?;
        let stream = self.stream.cu_stream();
        let _relaxed = Relaxed::enter();
        // SAFETY: the place holds as many bytes, and nobody else uses it while the lock is held; the
        // caller vouches for the GPU's side.
        unsafe { sys::cuMemcpyDtoHAsync_v2(place.as_ptr().cast(), address, length, stream) }
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
                // Whatever else is answered says nothing of the copy, which may go on.
                answer => {
                    *held = Err(DriverError(answer));
                    return Err(Self::unseen(DriverError(answer)));
                }
            }
        }
        // SAFETY: the copy has ended, and wrote all of these bytes.
        Ok(unsafe { std::slice::from_raw_parts(place.as_ptr(), length) }.to_vec())
    }

    /// A copy's end was asked for, and this was the answer.
    fn unseen(answer: DriverError) -> Error {
        match answer.0 {
            sys::CUresult::CUDA_ERROR_NOT_READY => {
                Error::Unanswered { operation: "a copy out of the GPU", limit: Self::LIMIT }
            }
            _ => in_call("cuStreamQuery")(answer),
        }
    }
}

/// While it lives, a graph that another thread captures neither refuses this thread's calls nor is spoilt by
/// them, as asking whether a stream is done would.
pub(super) struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    pub(super) fn enter() -> Option<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: takes this thread's mode and leaves the one before it.
        let entered = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result();
        entered.is_ok().then_some(Self(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as in `enter`. A failure leaves the thread relaxed, which refuses nothing.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

impl Drop for SideCopy {
    fn drop(&mut self) {
        let held = self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Ok(Pinned(place)) = held else { return };
        let done = in_context(self.stream.context(), || {
            // SAFETY: it came from cuMemHostAlloc, and every copy into it was seen to end.
            unsafe { result::free_host(place.as_ptr().cast()) }
        });
        if let Err(error) = done {
            tracing::warn!(%error, "pinned memory could not be freed");
        }
    }
}

/// Zeroed memory of a GPU, on pages of its own. The adapter and kernels read and write it at any
/// time, so bytes go in and out by copies.
///
/// Registered with [`GpuMemory::register`], it belongs to the region, which lends it back
/// ([`MemoryRegion::gpu_memory`](crate::fabric::MemoryRegion::gpu_memory)).
#[derive(Debug)]
pub struct GpuMemory {
    stream: Arc<CudaStream>,
    allocation: u64,
    start: u64,
    length: usize,
}

impl GpuMemory {
    /// Its pages: what exporting a GPU's memory asks for, and the largest of the hosts with EFA.
    const PAGE: u64 = 64 << 10;

    /// `length` zeroes in the memory of `gpu`.
    ///
    /// # Errors
    /// The driver's; CUDA_ERROR_OUT_OF_MEMORY where there is not so much.
    pub fn zeroed(gpu: &Gpu, length: usize) -> Result<Self> {
        let stream = gpu.context().new_stream().map_err(in_call("cuStreamCreate"))?;
        let short = || in_call("cuMemAlloc")(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let rounded = length.max(1).checked_next_multiple_of(Self::PAGE as usize).ok_or_else(short)?;
        let bytes = rounded.checked_add(Self::PAGE as usize).ok_or_else(short)?;
        // SAFETY: `new_stream` left the context current; the memory is freed once, by the drop.
        let allocation = unsafe { result::malloc_sync(bytes) }.map_err(in_call("cuMemAlloc"))?;
        let memory = Self { stream, allocation, start: allocation.next_multiple_of(Self::PAGE), length };
        // SAFETY: `rounded` bytes from `start` on are inside the allocation, which is just this value's.
        unsafe { result::memset_d8_async(memory.start, 0, rounded, memory.stream.cu_stream()) }
            .map_err(in_call("cuMemsetD8Async"))?;
        memory.finish()?;
        Ok(memory)
    }

    /// Its first byte, as the GPU and the adapter address it.
    pub fn device_address(&self) -> u64 {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The GPU, as CUDA counts.
    pub fn ordinal(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// Copies `bytes` to `offset`, and waits for that alone, not for kernels.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], or the driver's.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let address = self.at(offset, bytes.len())?;
        self.bind()?;
        // SAFETY: a context is current; the range is this value's memory; `bytes` outlives the copy,
        // whose end is awaited.
        unsafe { result::memcpy_htod_async(address, bytes, self.stream.cu_stream()) }
            .map_err(in_call("cuMemcpyHtoDAsync"))?;
        self.finish()
    }

    /// Copies from `offset` to all of `bytes`. What the adapter or a kernel is writing meanwhile may
    /// be old, new or mixed.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let address = self.at(offset, bytes.len())?;
        self.bind()?;
        // SAFETY: as in `write`, with the sides exchanged.
        unsafe { result::memcpy_dtoh_async(bytes, address, self.stream.cu_stream()) }
            .map_err(in_call("cuMemcpyDtoHAsync"))?;
        self.finish()
    }

    /// A file that stands for the memory from its first byte on, for an adapter's driver.
    ///
    /// # Errors
    /// The driver's: not every GPU and kernel module exports its memory.
    pub fn dmabuf(&self) -> Result<OwnedFd> {
        self.bind()?;
        let length = self.length.max(1).next_multiple_of(Self::PAGE as usize);
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut file = -1;
        // SAFETY: the range is this value's memory, whole pages; a descriptor is written.
        unsafe { sys::cuMemGetHandleForAddressRange((&raw mut file).cast(), self.start, length, kind, 0) }
            .result()
            .map_err(in_call("cuMemGetHandleForAddressRange"))?;
        // SAFETY: a descriptor that the driver just opened for us.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    fn at(&self, offset: usize, length: usize) -> Result<u64> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.start + offset as u64),
            _ => Err(Error::OutOfBounds { offset, length, memory: self.length }),
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
            // SAFETY: allocated in `zeroed`; regions and queues that refer to it own it, so that they
            // are closed before.
            unsafe { result::free_sync(self.allocation) }
        });
        if let Err(error) = done {
            tracing::warn!(%error, "memory of the GPU could not be freed");
        }
    }
}
