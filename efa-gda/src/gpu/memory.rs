//! Memory that kernels use beside a queue's rings: structs in the GPU's memory, and words that host
//! and GPU share.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result, sys};

use super::device::in_call;
use super::error::Result;

/// A plain struct in the GPU's memory. `T` must be valid for any bytes: the structs of `queue.h` are.
#[derive(Debug)]
pub(crate) struct InGpu<T> {
    bytes: CudaSlice<u8>,
    address: u64,
    _of: std::marker::PhantomData<T>,
}

impl<T: Copy> InGpu<T> {
    /// Copies `value` to the GPU. Allocations begin on 256 bytes, which is enough for any `T`.
    pub(crate) fn new(stream: &Arc<CudaStream>, value: &T) -> Result<Self> {
        const { assert!(align_of::<T>() <= 256) };
        let bytes = stream.clone_htod(as_bytes(value)).map_err(in_call("cuMemcpyHtoDAsync"))?;
        let address = bytes.device_ptr(stream).0;
        Ok(Self { bytes, address, _of: std::marker::PhantomData })
    }

    /// Where it lies, for kernels.
    pub(crate) fn address(&self) -> *mut T {
        self.address as *mut T
    }

    /// Overwrites it.
    pub(crate) fn store(&mut self, stream: &Arc<CudaStream>, value: &T) -> Result<()> {
        stream.memcpy_htod(as_bytes(value), &mut self.bytes).map_err(in_call("cuMemcpyHtoDAsync"))
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

fn as_bytes<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: a plain struct of C, read as the bytes it has; bindgen's structs have no padding that
    // was never written, for they are made with `Default`, which zeroes them.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
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
        let done = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: it came from cuMemHostAlloc; kernels that read it hold a handle through their
            // queue, which waits for them.
            unsafe { result::free_host(self.word.as_ptr().cast()) }
        });
        if let Err(error) = done {
            tracing::warn!(%error, "a word shared with the GPU could not be freed");
        }
    }
}
