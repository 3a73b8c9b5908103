//! GPU memory that the adapter can access.
//!
//! The CPU cannot map GPU memory. The adapter's engine is a thread of the process, so it accesses GPU memory
//! as the process can: it copies with the CUDA driver, on a separate stream, through pinned memory. libcuda
//! is opened when such memory is first registered, not before. The device core does not know about CUDA: it
//! uses a [`Memory`].
//!
//! - A copy must end within [`COPY_LIMIT`] (`SOFTEFA_CUDA_TIMEOUT_MS`). If it does not, or if CUDA does not
//!   report its end, all memory of that GPU is unreachable for the rest of the process, and a warning stores
//!   the reason.
//! - All bytes go through the host, also from one range of a GPU to another. A copy within a GPU can be a
//!   kernel, which would wait forever behind a kernel that waits for this adapter.
//! - The device's primary context is retained on first use and never released, because the release may wait
//!   for running kernels.
//!
//! [`Gpu::stream`] passes the pinned memory between threads: its mutex lets one thread at a time copy, and a
//! thread releases it only after CUDA reported the end of the copy, or after it replaced the stream by the
//! failure's reason.

mod driver;

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::device::{Memory, MemoryFault, say};

use driver::{Context, CopyStream, Driver, Failure};

/// The time limit of a copy, unless the environment sets another.
const COPY_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of one copy: the size of the pinned memory.
const COPY_BYTES: usize = 256 << 10;

/// Receives the reason why memory cannot be reached.
pub(crate) type Report = Box<dyn Fn(String) + Send + Sync>;

/// A GPU of this process.
struct Gpu {
    context: Context<'static>,
    limit: Duration,
    /// The copy stream; after a copy whose end was not observed, the reason.
    stream: Mutex<Result<CopyStream, String>>,
}

impl Gpu {
    /// The GPU with this CUDA ordinal, opened on first use.
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

    /// Runs a copy while no other copy runs on this GPU.
    ///
    /// # Errors
    /// The reason why the copy failed, or why an earlier copy made the GPU's memory unreachable.
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
        let reason = format!("the end of a copy was not observed within {:?}: {failure}", self.limit);
        // Dropping the stream does not free its pinned memory, which the copy may still access.
        *stream = Err(reason.clone());
        Err(reason)
    }
}

/// The time limit of a copy: `SOFTEFA_CUDA_TIMEOUT_MS`, or ten seconds.
fn limit() -> Duration {
    let Ok(text) = std::env::var("SOFTEFA_CUDA_TIMEOUT_MS") else { return COPY_LIMIT };
    text.trim().parse().map_or_else(
        |_| {
            say(format_args!(
                "warning: SOFTEFA_CUDA_TIMEOUT_MS is \"{}\"; expected a number of milliseconds; 10000 is used",
                text.escape_debug()
            ));
            COPY_LIMIT
        },
        Duration::from_millis,
    )
}

/// A range of GPU memory, accessed by the GPU's addresses.
pub(crate) struct GpuMemory {
    gpu: Arc<Gpu>,
    start: u64,
    length: u64,
    report: Report,
}

impl GpuMemory {
    /// The `length` bytes at `start`, which must be GPU memory.
    ///
    /// # Errors
    /// The reason: no driver, no GPU memory, a range past the end of the allocation, or CUDA's error.
    pub(crate) fn new(start: u64, length: u64, report: Report) -> Result<Self, String> {
        let driver = Driver::get().map_err(str::to_owned)?;
        let allocation = driver.allocation(start).ok_or_else(|| {
            format!("the address {start:#x} is not in GPU memory that CUDA knows; pass an address of device memory")
        })?;
        let offset = start.wrapping_sub(allocation.start);
        if length == 0 || offset.checked_add(length).is_none_or(|end| end > allocation.length) {
            return Err(format!(
                "{length} bytes at {start:#x} are not inside the GPU's allocation of {} bytes at {:#x}; pass a range \
                 inside one allocation",
                allocation.length, allocation.start
            ));
        }
        let gpu = Gpu::get(driver, allocation.ordinal).map_err(|failure| failure.to_string())?;
        Ok(Self { gpu, start, length, report })
    }

    /// Checks that the bytes are inside this range.
    fn check(&self, address: u64, length: usize) -> Result<(), MemoryFault> {
        let fault = MemoryFault { address, length: length as u64 };
        let offset = address.checked_sub(self.start).ok_or(fault)?;
        let inside = offset.checked_add(length as u64).is_some_and(|end| end <= self.length);
        if inside { Ok(()) } else { Err(fault) }
    }

    /// Reports the reason why the bytes cannot be reached, and returns the fault.
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
