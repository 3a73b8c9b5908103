//! [`crate::queue::measure`] on a GPU: one launch of a kernel of `bench.cu`, on the stream of the first queue, posts to
//! all queues.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, LaunchConfig, PushKernelArg};
use efa_gda_sys::device::efa_gda_put_args;

use super::GpuQueue;
use crate::Result;
use crate::executor::host::BenchArgs;
use crate::gpu::memory::Plain;
use crate::gpu::{self, in_call};
use crate::queue::WorkRequest;
use crate::queue::measure::{
    Load, Producer, Rate, Sample, Words, arguments, check_status, latency_of, rate_of, refused,
};

impl GpuQueue {
    /// As [`MappedQueue::measure_rate`](crate::queue::MappedQueue::measure_rate), on the GPU. All queues must be mapped
    /// into the same GPU.
    ///
    /// # Errors
    /// [`Error`](crate::Error) of the first queue that failed.
    pub fn measure_rate(queues: &mut [Self], work: &[WorkRequest], load: &Load) -> Result<Rate> {
        Ok(rate_of(&Self::measure(queues, work, load, false)?, load))
    }

    /// As [`MappedQueue::measure_latency`](crate::queue::MappedQueue::measure_latency), on the GPU.
    ///
    /// # Errors
    /// As [`Self::measure_rate`].
    pub fn measure_latency(
        &mut self,
        work: &WorkRequest,
        producer: Producer,
        calls: u32,
    ) -> Result<Vec<Sample>> {
        let (queues, work) = (std::slice::from_mut(self), std::slice::from_ref(work));
        latency_of(producer, calls, |load| Self::measure(queues, work, load, true))
    }

    /// Runs the latency kernel if `latency`, otherwise the rate kernel. Returns the words that it wrote.
    fn measure(queues: &mut [Self], work: &[WorkRequest], load: &Load, latency: bool) -> Result<Words> {
        let Some(first) = queues.first() else {
            return Err(refused("there is no queue; pass at least one"));
        };
        if queues.iter().any(|queue| queue.gpu.ordinal() != first.gpu.ordinal()) {
            return Err(refused("its queues are mapped into several GPUs; map all into one"));
        }
        load.check_warps()?;
        queues.iter().try_for_each(Self::refuse_in_launch)?;
        let mut requests = arguments(queues.iter().map(Self::mapped), work, load)?;
        for (request, queue) in requests.iter_mut().zip(queues.iter()) {
            request.queue = queue.device_address();
        }
        let mut words = Words::of(load, latency);
        let (gpu, stream) = (first.gpu.clone(), first.device.stream.clone());
        // The kernel uses one width for all queues. A queue that allows stores of 16 bytes allows those of 8.
        let ran = gpu
            .bench_kernels()
            .and_then(|kernels| launch(kernels, &stream, &requests, &mut words, load, latency));
        let ended = ran.is_ok() || queues[0].kernels_ended();
        let mut loaded = Ok(());
        for (queue, work) in queues.iter_mut().zip(work) {
            // Also after an error, because the host must know what is in flight before it releases memory.
            loaded = queue.load_state().and(loaded);
            // A kernel that still runs changes the state after this copy.
            if !ended {
                queue.mapped.poison_lost();
            }
            queue.mapped.retain_region_in_use(work);
        }
        ran?;
        loaded?;
        check_status(&words, queues.iter().map(Self::mapped))?;
        Ok(words)
    }
}

/// Runs the latency or the rate kernel, and copies back the words that it wrote. Waits for its end.
fn launch(
    kernels: &gpu::Bench,
    stream: &Arc<CudaStream>,
    requests: &[efa_gda_put_args],
    words: &mut Words,
    load: &Load,
    latency: bool,
) -> Result<()> {
    let copied = in_call("cuMemcpyHtoDAsync");
    let requests: Vec<_> = requests.iter().copied().map(Plain).collect();
    let puts = stream.clone_htod(&requests).map_err(&copied)?;
    let spans = stream.clone_htod(&words.spans).map_err(&copied)?;
    // An empty allocation has no address.
    let samples =
        stream.alloc_zeros::<u64>(words.samples.len().max(1)).map_err(in_call("cuMemAllocAsync"))?;
    let status = stream.clone_htod(&words.status).map_err(&copied)?;
    let argument = Plain(BenchArgs {
        puts: puts.device_ptr(stream).0 as *const efa_gda_put_args,
        spans: spans.device_ptr(stream).0 as *mut u64,
        samples: samples.device_ptr(stream).0 as *mut u64,
        status: status.device_ptr(stream).0 as *mut u32,
        ..load.arguments(requests.len() as u32)
    });
    let config =
        LaunchConfig { grid_dim: (load.blocks, 1, 1), block_dim: (load.threads, 1, 1), shared_mem_bytes: 0 };
    let mut launch = stream.launch_builder(if latency { &kernels.latency } else { &kernels.rate });
    launch.arg(&argument);
    // SAFETY: the kernel takes one `efa_gda_bench_args` by value. Its pointers lead to this GPU's memory, with as many
    // words as the kernel uses. The queues are in the same memory, refer to pages that their `GpuQueue`s keep
    // registered, and are borrowed exclusively.
    unsafe { launch.launch(config) }.map_err(in_call("cuLaunchKernel"))?;
    let back = in_call("cuMemcpyDtoHAsync");
    words.spans = stream.clone_dtoh(&spans).map_err(&back)?;
    words.status = stream.clone_dtoh(&status).map_err(&back)?;
    if latency {
        words.samples = stream.clone_dtoh(&samples).map_err(&back)?;
    }
    stream.synchronize().map_err(in_call("cuStreamSynchronize"))
}
