//! Memory of a GPU, for the adapter to reach.
//!
//! A GPU's memory cannot be mapped by the processor, so this adapter, which is a thread of the
//! process, reaches it as the process could: by copies of CUDA's driver, on a stream of its own, through
//! a piece of pinned memory. Nothing here runs, and libcuda is not opened, before such memory is
//! registered. The adapter's core knows none of it: it sees a [`Memory`].
//!
//! - A copy waits for its end for at most [`LIMIT`] (`SOFTEFA_CUDA_TIMEOUT_MS`). Where that runs out,
//!   or CUDA does not say that the copy ended, the GPU is given up: its memory can no longer be reached,
//!   and the reason is kept as a warning.
//! - A copy from one GPU's memory to another's goes through the host. A copy inside a GPU can be a
//!   kernel, which would wait for ever behind a kernel that itself waits for this adapter.
//! - The device's primary context is retained on first use and stays: releasing it may wait for
//!   kernels that run.

mod driver;

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::device::{Memory, MemoryFault};

use driver::{Context, CopyStream, Driver, Failure};

/// Bound of a copy, where the environment names no other.
const COPY_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a copy.
const COPY_BYTES: usize = 256 << 10;

/// Takes the words that say why memory cannot be reached.
pub(crate) type Report = Box<dyn Fn(String) + Send + Sync>;

/// A GPU of this process.
struct Gpu {
    context: Context<'static>,
    limit: Duration,
    /// The lane, until a copy was not seen to end.
    stream: Mutex<Result<CopyStream, String>>,
}

impl Gpu {
    /// The GPU of that number, as CUDA counts.
    fn get(driver: &'static Driver, ordinal: c_int) -> Result<Arc<Self>, Failure> {
        static GPUS: OnceLock<Mutex<HashMap<c_int, Arc<Gpu>>>> = OnceLock::new();
        let mut gpus = GPUS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = gpus.get(&ordinal) {
            return Ok(Arc::clone(gpu));
        }
        let context = driver.primary_context(ordinal)?;
        let stream = context.copy_stream(COPY_BYTES)?;
        let gpu = Arc::new(Self { context, limit: limit(), stream: Mutex::new(Ok(stream)) });
        gpus.insert(ordinal, Arc::clone(&gpu));
        Ok(gpu)
    }

    /// Runs one copy after the other.
    fn copy(&self, body: impl FnOnce(&mut CopyStream) -> Result<(), Failure>) -> Result<(), String> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = match &mut *stream {
            Err(reason) => return Err(reason.clone()),
            Ok(stream) => match body(stream) {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            },
        };
        if !failure.copy_may_run {
            return Err(failure.to_string());
        }
        let reason = format!("a copy was not seen to end within {:?}; {failure}", self.limit);
        // The lane's memory is left to the copy for ever.
        *stream = Err(reason.clone());
        Err(reason)
    }
}

/// The bound of a copy: `SOFTEFA_CUDA_TIMEOUT_MS`, or ten seconds.
fn limit() -> Duration {
    let text = std::env::var("SOFTEFA_CUDA_TIMEOUT_MS").ok();
    text.and_then(|text| text.trim().parse().ok()).map_or(COPY_LIMIT, Duration::from_millis)
}

/// A range of a GPU's memory, under the GPU's own addresses.
pub(crate) struct GpuMemory {
    gpu: Arc<Gpu>,
    start: u64,
    length: u64,
    report: Report,
}

impl GpuMemory {
    /// The `length` bytes at `start`, where those are a GPU's.
    ///
    /// # Errors
    /// Words that say why not: no driver, not a GPU's memory, past the end of its allocation, or what
    /// CUDA answered.
    pub(crate) fn new(start: u64, length: u64, report: Report) -> Result<Self, String> {
        let driver = Driver::get().map_err(str::to_owned)?;
        let allocation = driver
            .allocation(start)
            .ok_or_else(|| format!("{start:#x} is not memory of a GPU that CUDA knows"))?;
        let offset = start.wrapping_sub(allocation.start);
        if length == 0 || offset.checked_add(length).is_none_or(|end| end > allocation.length) {
            return Err(format!(
                "{length} bytes at {start:#x} do not lie in the GPU's allocation, which is {} bytes at {:#x}",
                allocation.length, allocation.start
            ));
        }
        let gpu = Gpu::get(driver, allocation.ordinal).map_err(|failure| failure.to_string())?;
        Ok(Self { gpu, start, length, report })
    }

    fn check(&self, address: u64, length: usize) -> Result<(), MemoryFault> {
        let fault = MemoryFault { address, length: length as u64 };
        let offset = address.checked_sub(self.start).ok_or(fault)?;
        let inside = offset.checked_add(length as u64).is_some_and(|end| end <= self.length);
        if inside { Ok(()) } else { Err(fault) }
    }

    fn fault(&self, address: u64, length: usize, reason: &str) -> MemoryFault {
        (self.report)(format!("GPU memory at {address:#x} ({length} bytes) cannot be reached: {reason}"));
        MemoryFault { address, length: length as u64 }
    }
}

impl Memory for GpuMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.check(address, into.len())?;
        for (index, part) in into.chunks_mut(COPY_BYTES).enumerate() {
            let at = address + (index * COPY_BYTES) as u64;
            let length = part.len();
            let copy = |stream: &mut CopyStream| self.gpu.context.read(stream, at, part, self.gpu.limit);
            self.gpu.copy(copy).map_err(|reason| self.fault(at, length, &reason))?;
        }
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        self.check(address, from.len())?;
        for (index, part) in from.chunks(COPY_BYTES).enumerate() {
            let at = address + (index * COPY_BYTES) as u64;
            let copy = |stream: &mut CopyStream| self.gpu.context.write(stream, at, part, self.gpu.limit);
            self.gpu.copy(copy).map_err(|reason| self.fault(at, part.len(), &reason))?;
        }
        Ok(())
    }
}
