//! How fast queues post and complete: RDMA writes by any number of producers, timed where they are
//! posted, on the host's CPU or on a GPU. For benches; a program puts with [`super::WorkRequest`].

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use efa_gda_sys::device::{EFA_GDA_NOT_RUN, EFA_GDA_OP_WRITE, efa_gda_put_args};

use super::backing::Backing;
use super::work_error::{Asked, report};
use super::{GpuQueue, MappedQueue, WorkError, WorkRequest};
use crate::executor::host::{self, BenchArgs, KernelOutcome};
use crate::executor::outcome;
use crate::gpu::memory::as_bytes;
use crate::gpu::{self, in_call};

/// Who calls together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Producer {
    /// Each thread for itself.
    Thread,
    /// The threads of a warp.
    Warp,
    /// The threads of a block.
    Block,
}

/// What posts, how often, and how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    /// Who calls together.
    pub producer: Producer,
    /// Whether producers share their queue; otherwise each block has the one of its number, and there
    /// are as many queues as blocks.
    pub shared: bool,
    /// Blocks; block `b` posts to queue `b` modulo the number of queues.
    pub blocks: u32,
    /// Threads of each; 1 to [`host::MAX_LANES`].
    pub threads: u32,
    /// Calls of each producer, each with a doorbell.
    pub calls: u32,
    /// Requests of each call.
    pub per_call: u32,
}

/// What a load came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests that completed.
    pub requests: u64,
    /// From the first producer's first post to the last one's last completion.
    pub nanoseconds: u64,
}

/// One call: its post, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds from the call to the doorbell's store, which need not have arrived.
    pub post: f64,
    /// Nanoseconds from there to the last completion of the call.
    pub completion: f64,
}

/// What kernels left.
#[derive(Debug)]
struct Words {
    spans: Vec<u64>,
    samples: Vec<u64>,
    status: Vec<u32>,
}

impl Words {
    fn of(load: &Load, latency: bool) -> Self {
        let groups = load.groups() as usize;
        let samples = if latency { 2 * load.calls as usize + 2 } else { 0 };
        Self { spans: vec![0; 2 * groups], samples: vec![0; samples], status: vec![EFA_GDA_NOT_RUN; groups] }
    }
}

impl Load {
    fn group(&self) -> u32 {
        match self.producer {
            Producer::Thread => 1,
            Producer::Warp => 32,
            Producer::Block => 0,
        }
    }

    /// Producers, as the kernels count them.
    fn groups(&self) -> u32 {
        self.blocks * self.groups_of_block()
    }

    fn groups_of_block(&self) -> u32 {
        if self.group() == 0 { 1 } else { self.threads.div_ceil(self.group()) }
    }

    /// Refuses what cannot run, or be counted.
    fn check(&self) -> Result<(), WorkError> {
        match self.blocks.checked_mul(self.groups_of_block()) {
            None => Err(nothing("more producers than can be counted; take fewer blocks")),
            Some(0) => Err(nothing("a load has at least one block of one thread")),
            Some(_) => Ok(()),
        }
    }

    /// A GPU's warps are whole where a warp calls together.
    fn check_warps(&self) -> Result<(), WorkError> {
        match self.producer == Producer::Warp && !self.threads.is_multiple_of(32) {
            true => Err(nothing("warps of a GPU have 32 threads each; take a multiple of that")),
            false => Ok(()),
        }
    }

    fn arguments(&self, queues: u32) -> BenchArgs {
        BenchArgs {
            puts: std::ptr::null(),
            spans: std::ptr::null_mut(),
            samples: std::ptr::null_mut(),
            status: std::ptr::null_mut(),
            queue_count: queues,
            sharing: self.shared.into(),
            group: self.group(),
            calls: self.calls,
            per_call: self.per_call,
            reserved: 0,
        }
    }
}

impl<B: Backing> MappedQueue<B> {
    /// Runs `load` over `queues` with the host executor; queue `i` gets the requests of put `i`, over and
    /// over: its count is that of their places, a power of two. RDMA writes of one entry each alone.
    ///
    /// # Errors
    /// [`WorkError`], of the first queue that failed.
    pub fn measure_rate(
        queues: &mut [Self],
        puts: &[WorkRequest<B::Region>],
        load: &Load,
    ) -> Result<Rate, WorkError> {
        Ok(rate_of(&Self::measure(queues, puts, load, false)?, load))
    }

    /// Calls of one producer, one after the other, each until it completed.
    ///
    /// # Errors
    /// As [`Self::measure_rate`].
    pub fn measure_latency(
        &mut self,
        put: &WorkRequest<B::Region>,
        producer: Producer,
        calls: u32,
    ) -> Result<Vec<Sample>, WorkError> {
        let (queues, puts) = (std::slice::from_mut(self), std::slice::from_ref(put));
        latency_of(producer, calls, |load| Self::measure(queues, puts, load, true))
    }

    fn measure(
        queues: &mut [Self],
        puts: &[WorkRequest<B::Region>],
        load: &Load,
        latency: bool,
    ) -> Result<Words, WorkError> {
        queues.iter().try_for_each(|queue| queue.host_polls("a bench on the host"))?;
        let requests = arguments(queues.iter(), puts, load)?;
        let mut words = Words::of(load, latency);
        let args = BenchArgs {
            puts: requests.as_ptr(),
            spans: words.spans.as_mut_ptr(),
            samples: words.samples.as_mut_ptr(),
            status: words.status.as_mut_ptr(),
            ..load.arguments(requests.len() as u32)
        };
        // SAFETY: the structs are borrowed exclusively, and their rings mapped and within the host's reach,
        // as in `put`; the words are as many as the kernels write, and everything outlives the call.
        let ran = unsafe { host::bench(&args, latency, load.blocks, load.threads) };
        for (queue, put) in queues.iter_mut().zip(puts) {
            queue.settle_put(put);
        }
        ran?;
        checked(&words, queues.iter())?;
        Ok(words)
    }
}

/// The kernels' argument, passed by value.
#[repr(transparent)]
struct Argument(BenchArgs);

// SAFETY: a plain struct, the same for the host's and the device's compiler (`bench.cu`).
unsafe impl DeviceRepr for Argument {}

impl GpuQueue {
    /// As [`MappedQueue::measure_rate`], on the GPU, which is the same for all of the queues.
    ///
    /// # Errors
    /// [`WorkError`], of the first queue that failed.
    pub fn measure_rate(queues: &mut [Self], puts: &[WorkRequest], load: &Load) -> Result<Rate, WorkError> {
        Ok(rate_of(&Self::measure(queues, puts, load, false)?, load))
    }

    /// As [`MappedQueue::measure_latency`], on the GPU.
    ///
    /// # Errors
    /// As [`Self::measure_rate`].
    pub fn measure_latency(
        &mut self,
        put: &WorkRequest,
        producer: Producer,
        calls: u32,
    ) -> Result<Vec<Sample>, WorkError> {
        let (queues, puts) = (std::slice::from_mut(self), std::slice::from_ref(put));
        latency_of(producer, calls, |load| Self::measure(queues, puts, load, true))
    }

    fn measure(
        queues: &mut [Self],
        puts: &[WorkRequest],
        load: &Load,
        latency: bool,
    ) -> Result<Words, WorkError> {
        let Some(first) = queues.first() else { return Err(nothing("no queue is given")) };
        if queues.iter().any(|queue| queue.gpu.ordinal() != first.gpu.ordinal()) {
            return Err(nothing("its queues belong to several GPUs"));
        }
        load.check_warps()?;
        queues.iter().try_for_each(GpuQueue::refuse_in_launch)?;
        let mut requests = arguments(queues.iter().map(GpuQueue::mapped), puts, load)?;
        for (request, queue) in requests.iter_mut().zip(queues.iter()) {
            request.queue = queue.device_address();
        }
        let mut words = Words::of(load, latency);
        let (gpu, stream) = (first.gpu.clone(), first.device.stream.clone());
        let ran = launch(&gpu, &stream, &requests, &mut words, load, latency);
        let ended = ran.is_ok() || first.ends();
        let mut looked = Ok(());
        for (queue, put) in queues.iter_mut().zip(puts) {
            // Whatever happened, the host must know what is in flight before it lets go of memory.
            looked = queue.look().and(looked);
            if !ended {
                queue.mapped.poison_lost();
            }
            queue.mapped.settle_put(put);
        }
        ran?;
        looked?;
        checked(&words, queues.iter().map(GpuQueue::mapped))?;
        Ok(words)
    }
}

/// Runs the kernel and takes back what it wrote.
fn launch(
    gpu: &gpu::Gpu,
    stream: &Arc<CudaStream>,
    requests: &[efa_gda_put_args],
    words: &mut Words,
    load: &Load,
    latency: bool,
) -> gpu::Result<()> {
    let kernels = gpu.bench_kernels()?;
    let copied = in_call("cuMemcpyHtoDAsync");
    let puts = stream.clone_htod(as_bytes(requests)).map_err(&copied)?;
    let spans = stream.clone_htod(&words.spans).map_err(&copied)?;
    // An empty allocation has no address.
    let samples =
        stream.alloc_zeros::<u64>(words.samples.len().max(1)).map_err(in_call("cuMemAllocAsync"))?;
    let status = stream.clone_htod(&words.status).map_err(&copied)?;
    let argument = Argument(BenchArgs {
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
    // SAFETY: the kernel takes one `efa_gda_bench_args` by value, whose pointers lead to this GPU's memory,
    // as many words as the kernel uses. The queues lie there too, refer to pages that their `GpuQueue`s
    // keep registered, and are borrowed exclusively.
    unsafe { launch.launch(config) }.map_err(in_call("cuLaunchKernel"))?;
    let back = in_call("cuMemcpyDtoHAsync");
    words.spans = stream.clone_dtoh(&spans).map_err(&back)?;
    words.status = stream.clone_dtoh(&status).map_err(&back)?;
    if latency {
        words.samples = stream.clone_dtoh(&samples).map_err(&back)?;
    }
    stream.synchronize().map_err(in_call("cuStreamSynchronize"))
}

/// What `measure` says of one producer's calls, one after the other.
fn latency_of(
    producer: Producer,
    calls: u32,
    measure: impl FnOnce(&Load) -> Result<Words, WorkError>,
) -> Result<Vec<Sample>, WorkError> {
    let threads = if producer == Producer::Thread { 1 } else { 32 };
    let load = Load { producer, shared: false, blocks: 1, threads, calls, per_call: 1 };
    Ok(samples_of(&measure(&load)?, calls))
}

fn nothing(why: &'static str) -> WorkError {
    WorkError::Unsupported { operation: "a bench", why }
}

/// The requests of each queue, checked as puts are: as many as there are queues.
fn arguments<'a, B: Backing + 'a>(
    queues: impl ExactSizeIterator<Item = &'a MappedQueue<B>>,
    puts: &[WorkRequest<B::Region>],
    load: &Load,
) -> Result<Vec<efa_gda_put_args>, WorkError> {
    load.check()?;
    if queues.len() != puts.len() {
        return Err(nothing("each queue needs a put, and each put a queue"));
    }
    let requests: Vec<_> = queues
        .zip(puts)
        .map(|(queue, put)| put.clone().whole().arguments(queue))
        .collect::<Result<_, _>>()?;
    if requests.is_empty() || (!load.shared && requests.len() != load.blocks as usize) {
        return Err(nothing("each block that owns its queue needs one, with a put"));
    }
    if requests.iter().any(|request| request.op != EFA_GDA_OP_WRITE || !request.count.is_power_of_two()) {
        return Err(nothing("it is made of RDMA writes to a power of two of places"));
    }
    Ok(requests)
}

/// Whether every producer ended well.
fn checked<'a, B: Backing + 'a>(
    words: &Words,
    queues: impl ExactSizeIterator<Item = &'a MappedQueue<B>>,
) -> Result<(), WorkError> {
    let Some(error) = words.status.iter().find_map(|status| outcome(*status).err()) else { return Ok(()) };
    let states: Vec<_> = queues.map(|queue| (queue.state(), queue.in_flight())).collect();
    let told = states.iter().find(|(state, _)| state.error.reported != 0).or(states.first());
    let Some((state, in_flight)) = told else { return Ok(()) };
    let outcome = KernelOutcome {
        status: Err(error),
        completion_status: state.error.completion_status,
        request_id: state.error.request_id,
        posted: state.lock.doorbell_index.into(),
        completed: state.completion.completed.into(),
    };
    report(outcome, *in_flight, Asked::default()).map(drop)
}

fn rate_of(words: &Words, load: &Load) -> Rate {
    let (begins, ends) = (words.spans.iter().step_by(2), words.spans.iter().skip(1).step_by(2));
    let span = ends.max().zip(begins.min()).map_or(0, |(end, begin)| end.saturating_sub(*begin));
    let requests = u64::from(load.calls) * u64::from(load.per_call) * words.status.len() as u64;
    Rate { requests, nanoseconds: span }
}

/// Ticks as nanoseconds, by what both clocks say of the whole run.
fn samples_of(words: &Words, calls: u32) -> Vec<Sample> {
    let calls = 2 * calls as usize;
    let ticks = words.samples[calls + 1].saturating_sub(words.samples[calls]).max(1);
    let scale = words.spans[1].saturating_sub(words.spans[0]) as f64 / ticks as f64;
    let pairs = words.samples[..calls].chunks_exact(2);
    pairs.map(|pair| Sample { post: pair[0] as f64 * scale, completion: pair[1] as f64 * scale }).collect()
}
