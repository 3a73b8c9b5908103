//! What the measurements need: a domain of the software adapter, queues that kernels drive, and kernels. Without a GPU
//! the kernels run on the host executor, beside the pretended CUDA driver, so that the program can be tried.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::fabric::{
    Access, Bindings, Buffer, CompletionCounter, CountedOperations, Domain, Fabric, Info, Library, Query,
    Region,
};
use efa_gda::gpu::{Gpu, GpuMemory, HostRange, compile_source};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{MappedQueue, device_peer};
use efa_gda::status;
use efa_gda_sys::device::{efa_gda_peer, efa_gda_queue};

/// A failure is a sentence.
pub(crate) type Outcome<T> = Result<T, String>;

/// Names the step that failed, and the causes of its error.
pub(crate) trait During<T> {
    fn during(self, step: &str) -> Outcome<T>;
}

impl<T, E: Error> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Outcome<T> {
        self.map_err(|error| {
            let (mut text, mut cause) = (format!("{step}: {error}"), error.source());
            while let Some(one) = cause {
                let message = one.to_string();
                if !text.contains(&message) {
                    text = format!("{text}: {message}");
                }
                cause = one.source();
            }
            text
        })
    }
}

/// `struct soft_adapter_args` of the kernels' sources.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Args {
    queue: *mut efa_gda_queue,
    peer: efa_gda_peer,
    lkey: u32,
    rkey: u32,
    local: u64,
    remote: u64,
    source: u64,
    target: u64,
    scratch: u64,
    status: u64,
    pub(crate) calls: u32,
    pub(crate) bytes: u32,
    pub(crate) pause_ns: u64,
    endpoints: u64,
}

/// An endpoint that posts: `struct gin_endpoints` of soft_adapter_nccl.cu has three, and the word of signals.
#[derive(Clone, Copy)]
#[repr(C)]
struct Poster {
    queue: u64,
    targets: [efa_gda_peer; 2],
}

// SAFETY: a plain struct of C with the kernels' layout.
unsafe impl DeviceRepr for Args {}
// SAFETY: the blocks of a launch use what it points to as device code does.
unsafe impl Sync for Args {}

type OnHost = unsafe extern "C" fn(*const Args, u32, u32, u32) -> bool;

/// A kernel that takes [`Args`].
pub(crate) enum Kernel {
    Gpu { function: CudaFunction, stream: Arc<CudaStream> },
    HostExecutor(OnHost),
}

enum Kernels {
    Gpu { context: Arc<CudaContext>, module: Arc<CudaModule> },
    HostExecutor(libloading::Library),
}

/// The software adapter, the GPU, and the kernels of `kernels/bench/soft_adapter.cu`.
pub(crate) struct Rig {
    pub(crate) gpu: Gpu,
    /// Relays completions if the GPU cannot map a completion queue.
    proxy: DoorbellProxy,
    kernels: Kernels,
    info: Info,
    /// For endpoints with 128-byte entries.
    wide: Info,
    domain: Domain,
}

impl Rig {
    pub(crate) fn open(host_executor: bool) -> Outcome<Self> {
        let gpu = Gpu::open(0).during("open GPU 0")?;
        let kernels = if host_executor {
            let library = crate::kernels_support::kernels(&["../kernels/bench/soft_adapter.cu"]);
            Kernels::HostExecutor(library)
        } else {
            let context = CudaContext::new(0).during("open the CUDA context")?;
            let (major, minor) = context.compute_capability().during("read the compute capability")?;
            let source = include_str!("../../../kernels/bench/soft_adapter.cu");
            let image = compile_source("soft_adapter.cu", source, &format!("sm_{major}{minor}"));
            let image = Ptx::from_binary(image.during("compile soft_adapter.cu")?);
            let module = context.load_module(image).during("load the kernels of soft_adapter.cu")?;
            Kernels::Gpu { context, module }
        };
        let library = Library::load().during("load libfabric")?;
        let info = Query::new().gpu_memory(true).first(&library).during("find the software adapter")?;
        let wide = Query::new().gpu_memory(true).wide_entries(true).first(&library);
        let wide = wide.during("find an adapter with 128-byte entries")?;
        let fabric = Fabric::open(&library, &info).during("open the fabric")?;
        let domain = fabric.domain(&info).during("open the domain")?;
        let proxy = DoorbellProxy::start().during("start the doorbell proxy")?;
        Ok(Self { gpu, proxy, kernels, info, wide, domain })
    }

    /// A kernel of soft_adapter.cu.
    pub(crate) fn kernel(&self, name: &str) -> Outcome<Kernel> {
        match &self.kernels {
            Kernels::Gpu { context, module } => function(context, module, name),
            Kernels::HostExecutor(library) => {
                let symbol = format!("{name}_on_host");
                // SAFETY: soft_adapter.cu defines each such function with this type. The library lives as long as the
                // rig, which outlives its kernels.
                let on_host = unsafe { library.get::<OnHost>(symbol.as_bytes()) };
                Ok(Kernel::HostExecutor(*on_host.during(&format!("find {symbol}"))?))
            }
        }
    }

    /// Kernels of a compiled image; None on the host executor.
    pub(crate) fn kernels_of<const N: usize>(
        &self,
        image: Vec<u8>,
        names: [&str; N],
    ) -> Outcome<Option<[Kernel; N]>> {
        let Kernels::Gpu { context, .. } = &self.kernels else { return Ok(None) };
        let module = context.load_module(Ptx::from_binary(image)).during("load the compiled kernels")?;
        let kernels: Vec<Kernel> =
            names.iter().map(|name| function(context, &module, name)).collect::<Outcome<_>>()?;
        kernels.try_into().map(Some).map_err(|_| "a kernel is missing".to_owned())
    }

    fn queue(&self, counter: Option<&CompletionCounter>) -> Outcome<MappedQueue> {
        self.queue_of(&self.info, counter.map(|counter| (counter, CountedOperations::TRANSMIT)))
    }

    fn queue_of(
        &self,
        info: &Info,
        counter: Option<(&CompletionCounter, CountedOperations)>,
    ) -> Outcome<MappedQueue> {
        let ops = self.domain.gda_ops().during("find the provider's GDA operations")?;
        let addresses = self.domain.address_vector(16).during("open an address vector")?;
        let open = |entries| self.domain.completion_queue(entries).during("open a completion queue");
        // With counters, receives must complete elsewhere, and the queue must have twice the entries of the ring.
        let (requests, receives) = (open(16_384)?, open(64)?);
        let counters: Vec<_> =
            counter.into_iter().map(|(counter, counted)| (counter.clone(), counted)).collect();
        let bindings = Bindings {
            address_vector: &addresses,
            send_completions: &requests,
            receive_completions: &receives,
            counters: &counters,
        };
        let endpoint = self.domain.endpoint(info, bindings).during("open an endpoint")?;
        MappedQueue::new(endpoint, &ops).during("map the queue")
    }

    fn region(&self, bytes: usize) -> Outcome<Region> {
        let buffer =
            Buffer::zeroed(bytes).ok_or_else(|| format!("no memory for a buffer of {bytes} bytes"))?;
        self.domain.register(buffer, Access::ALL).during("register a buffer")
    }

    fn counter(&self) -> Outcome<CompletionCounter> {
        let ops = self.domain.gda_ops().during("find the provider's GDA operations")?;
        let (counter, why) = self.gpu.completion_counter(&ops).during("open the counter")?;
        if let (Kernels::Gpu { .. }, Some(why)) = (&self.kernels, &why) {
            return Err(format!("the counter must be in GPU memory, and is in host memory: {why}"));
        }
        Ok(counter)
    }

    /// A queue whose counters are in GPU memory, and a source and a target of `bytes` bytes.
    pub(crate) fn counted(&self, bytes: usize) -> Outcome<Link> {
        let counter = self.counter()?;
        let queue = self.queue(Some(&counter))?.with_counters().during("use the counter")?;
        self.link(queue, bytes, Some(counter))
    }

    /// A queue with a request table, and a source and a target of `bytes` bytes.
    pub(crate) fn tracked(&self, bytes: usize) -> Outcome<Link> {
        let queue = self.queue(None)?.with_request_table().during("add a request table")?;
        self.link(queue, bytes, None)
    }

    fn link(&self, queue: MappedQueue, bytes: usize, counter: Option<CompletionCounter>) -> Outcome<Link> {
        let other = self.queue(None)?;
        let peer = introduce(&queue, &other)?;
        let (source, target) = (self.region(bytes)?, self.region(bytes)?);
        let reach = |region: &Region| {
            let start = region.address() as usize;
            // SAFETY: the link keeps the region, and with it the memory, for longer than the range.
            unsafe { self.gpu.reach(start..start + bytes) }.during("map a buffer into the GPU")
        };
        let ranges = [reach(&source)?, reach(&target)?];
        let mapped = GpuQueue::with_doorbell(queue, &self.gpu, DoorbellMode::Direct.into(), &self.proxy);
        let (mut queue, _) = mapped.during("map the queue into the GPU")?;
        if let Some(why) = queue.relayed() {
            eprintln!("soft_adapter: the host relays completions, which the figures include: {why}");
        }
        let zeroed = |bytes| GpuMemory::zeroed(&self.gpu, bytes).during("allocate GPU memory");
        let (scratch, status) = (zeroed(SCRATCH)?, zeroed(size_of::<u32>())?);
        let args = Args {
            queue: queue.device_address(),
            peer,
            lkey: queue.retain(&source).during("retain the source")?.get(),
            rkey: target.remote_key().get(),
            local: source.address(),
            remote: target.address(),
            source: ranges[0].device_address(),
            target: ranges[1].device_address(),
            scratch: scratch.device_address(),
            status: status.device_address(),
            calls: 0,
            bytes: 64,
            pause_ns: 0,
            endpoints: 0,
        };
        Ok(Link {
            queue,
            args,
            scratch,
            status,
            _ranges: ranges,
            source,
            target,
            other,
            _counter: counter,
            context: None,
        })
    }

    /// As [`Self::counted`], and an endpoint of 128-byte entries for values, one of a counter, and at the receiver one of
    /// a signal: a whole context of NCCL's GIN.
    pub(crate) fn context(&self, bytes: usize) -> Outcome<Link> {
        let mut link = self.counted(bytes)?;
        let (signals, mut posters) = (self.counter()?, Vec::new());
        let inbound = (&signals, CountedOperations::REMOTE_WRITE);
        let signal = self.queue_of(&self.info, Some(inbound))?;
        for info in [&self.wide, &self.info] {
            let counter = self.counter()?;
            let queue = self.queue_of(info, Some((&counter, CountedOperations::TRANSMIT)))?;
            let queue = queue.with_counters().during("use the counter")?;
            let targets = [&link.other, &signal].map(|to| introduce(&queue, to));
            let mapped = GpuQueue::with_doorbell(queue, &self.gpu, DoorbellMode::Direct.into(), &self.proxy);
            let (queue, _) = mapped.during("map a queue into the GPU")?;
            posters.push((queue, counter, targets));
        }
        let data = [Ok(link.args.peer), introduce(link.queue.mapped(), &signal)];
        let mut words: Vec<u64> = Vec::new();
        let mut add = |queue: &GpuQueue, targets: [Outcome<efa_gda_peer>; 2]| -> Outcome<()> {
            let [first, second] = targets;
            let poster = Poster { queue: queue.device_address() as u64, targets: [first?, second?] };
            // SAFETY: `Poster` is repr(C): a word, and two peers of 8 bytes each; the compiler compares the sizes. So none of
            // its bytes is padding, and each is a valid byte of a word.
            words.extend(unsafe { std::mem::transmute::<Poster, [u64; 3]>(poster) });
            Ok(())
        };
        add(&link.queue, data)?;
        let mut queues = Vec::new();
        for (queue, counter, targets) in posters {
            add(&queue, targets)?;
            queues.push((queue, counter));
        }
        words.push(signals.words().ok_or("the signals have no words")?.success);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let memory = GpuMemory::zeroed(&self.gpu, bytes.len()).during("allocate GPU memory")?;
        memory.write(0, &bytes).during("write the endpoints")?;
        link.args.endpoints = memory.device_address();
        link.context = Some(Context { queues, signal, _signals: signals, _endpoints: memory });
        Ok(link)
    }
}

fn function(context: &Arc<CudaContext>, module: &Arc<CudaModule>, name: &str) -> Outcome<Kernel> {
    let function = module.load_function(name).during(&format!("find the kernel {name}"))?;
    Ok(Kernel::Gpu { function, stream: context.new_stream().during("create a stream")? })
}

/// Fills a region with bytes that are not zero and differ from their neighbours.
fn fill(region: &Region, seed: usize) -> Outcome<()> {
    let bytes: Vec<u8> = (0..region.len()).map(|at| ((at + seed) % 251) as u8 + 1).collect();
    region.buffer().ok_or("a region has no buffer")?.write(0, &bytes).during("fill a buffer")
}

/// Bytes of a link's scratch memory.
const SCRATCH: usize = 64 << 10;
/// Threads of a block.
pub(crate) const WARP: u32 = 32;

/// What a whole context has besides its endpoint of data.
struct Context {
    queues: Vec<(GpuQueue, CompletionCounter)>,
    signal: MappedQueue,
    _signals: CompletionCounter,
    _endpoints: GpuMemory,
}

/// Makes two endpoints peers; how the first addresses the second.
fn introduce(from: &MappedQueue, to: &MappedQueue) -> Outcome<efa_gda_peer> {
    let address = |queue: &MappedQueue| queue.address().during("read an endpoint's address");
    to.insert_peer(&address(from)?).during("insert the sender's address")?;
    from.insert_peer(&address(to)?).during("insert the receiver's address").map(device_peer)
}

/// A queue that kernels drive, a peer, and registered host memory that both the adapter and the kernels access.
pub(crate) struct Link {
    queue: GpuQueue,
    pub(crate) args: Args,
    scratch: GpuMemory,
    status: GpuMemory,
    _ranges: [HostRange; 2],
    source: Region,
    target: Region,
    other: MappedQueue,
    _counter: Option<CompletionCounter>,
    context: Option<Context>,
}

impl Link {
    /// Fills the source with bytes that are not zero and differ from their neighbours.
    pub(crate) fn fill_source(&self) -> Outcome<()> {
        fill(&self.source, 0)
    }

    /// Fills source and target with bytes that differ from each other, and with each `seed` below 125.
    pub(crate) fn fill_both(&self, seed: usize) -> Outcome<()> {
        fill(&self.source, seed)?;
        fill(&self.target, seed + 125)
    }

    /// Fails if the first `bytes` bytes of the target differ from those of the source.
    pub(crate) fn compare(&self, bytes: usize) -> Outcome<()> {
        let read = |region: &Region| {
            let mut copy = vec![0; bytes];
            region.buffer().ok_or("a region has no buffer")?.read(0, &mut copy).during("read a buffer")?;
            Ok::<_, String>(copy)
        };
        let (source, target) = (read(&self.source)?, read(&self.target)?);
        match source.iter().zip(&target).position(|(from, to)| from != to) {
            None => Ok(()),
            Some(at) => {
                Err(format!("byte {at} of the target is {}, and was sent as {}", target[at], source[at]))
            }
        }
    }

    /// Zeroes the scratch memory.
    pub(crate) fn clear(&self) -> Outcome<()> {
        self.scratch.write(0, &vec![0; SCRATCH]).during("clear the scratch memory")
    }

    /// The first `count` words of the scratch memory.
    pub(crate) fn words(&self, count: usize) -> Outcome<Vec<u64>> {
        let mut bytes = vec![0; 8 * count];
        self.scratch.read(0, &mut bytes).during("read the scratch memory")?;
        Ok(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// The last four words of the scratch memory.
    pub(crate) fn last_words(&self) -> Outcome<[u64; 4]> {
        let words = self.words(SCRATCH / 8)?;
        Ok(std::array::from_fn(|word| words[words.len() - 4 + word]))
    }

    /// Launches `blocks` blocks of one warp, or one block with one thread if `blocks` is 0. Returns the time until the
    /// kernel ended.
    pub(crate) fn launch(&self, kernel: &Kernel, blocks: u32) -> Outcome<Duration> {
        let (blocks, threads) = if blocks == 0 { (1, 1) } else { (blocks, WARP) };
        let _guard = self.queue.begin_launch();
        let begin = Instant::now();
        match kernel {
            Kernel::Gpu { stream, .. } => {
                self.start(kernel, blocks, threads, 0)?;
                stream.synchronize().during("wait for the kernel")?;
            }
            Kernel::HostExecutor(on_host) => std::thread::scope(|scope| {
                let args = &self.args;
                // SAFETY: the memory that the arguments point to outlives the scope; the pretended GPU's memory is this
                // process's.
                let run = move |block| unsafe { on_host(args, block, blocks, threads) };
                let threads: Vec<_> = (0..blocks).map(|block| scope.spawn(move || run(block))).collect();
                let ended = threads.into_iter().all(|thread| matches!(thread.join(), Ok(true)));
                if ended { Ok(()) } else { Err("the host executor could not run a block".to_owned()) }
            })?,
        }
        let time = begin.elapsed();
        self.check_status()?;
        Ok(time)
    }

    fn check_status(&self) -> Outcome<()> {
        let mut status = [0; 4];
        self.status.read(0, &mut status).during("read the kernel's status")?;
        status::outcome(u32::from_ne_bytes(status)).during("the kernel")
    }

    /// Launches kernels of the GPU at the same time, each of `blocks` blocks of one warp. The `i`-th uses the memory
    /// from `i * stride` bytes on.
    pub(crate) fn launch_together(&self, kernels: &[&Kernel], blocks: u32, stride: usize) -> Outcome<()> {
        let _guard = self.queue.begin_launch();
        for (number, kernel) in kernels.iter().enumerate() {
            self.start(kernel, blocks, WARP, (number * stride) as u64)?;
        }
        for kernel in kernels {
            if let Kernel::Gpu { stream, .. } = kernel {
                stream.synchronize().during("wait for the kernels")?;
            }
        }
        self.check_status()
    }

    /// Launches one thread of a kernel of the GPU, and after `time` writes 1 to the first word of the target. Returns
    /// whether the kernel ended before.
    pub(crate) fn launch_until(&self, kernel: &Kernel, time: Duration) -> Outcome<bool> {
        let _guard = self.queue.begin_launch();
        self.start(kernel, 1, 1, 0)?;
        let Kernel::Gpu { stream, .. } = kernel else { return Err("not a kernel of the GPU".to_owned()) };
        let end = stream.record_event(None).during("record the end")?;
        std::thread::sleep(time);
        let ended = end.try_is_complete().during("look at the kernel")?;
        let target = self.target.buffer().ok_or("a region has no buffer")?;
        target.write(0, &1_u32.to_ne_bytes()).during("raise the abort flag")?;
        stream.synchronize().during("wait for the kernel")?;
        Ok(ended)
    }

    /// Starts a kernel of the GPU. The caller awaits its stream before the link ends.
    fn start(&self, kernel: &Kernel, blocks: u32, threads: u32, offset: u64) -> Outcome<()> {
        let Kernel::Gpu { function, stream } = kernel else {
            return Err("not a kernel of the GPU".to_owned());
        };
        let config =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
        let (local, remote) = (self.args.local + offset, self.args.remote + offset);
        let args = Args { local, remote, ..self.args };
        // SAFETY: the kernel takes one such struct, which the launch copies. The memory that it points to outlives the
        // kernel, whose end the callers await.
        unsafe { stream.launch_builder(function).arg(&args).launch(config) }
            .during("launch the kernel")
            .map(drop)
    }

    /// Closes the queue in order.
    pub(crate) fn close(self) -> Outcome<()> {
        self.queue.close().during("close the queue")
    }

    /// Destroys queues whose requests other code posted, so that they cannot be closed in order.
    pub(crate) fn destroy(self) -> Outcome<()> {
        if let Some(context) = self.context {
            for (queue, _) in context.queues {
                queue.destroy().during("destroy a queue")?;
            }
            context.signal.destroy().during("destroy the queue of the signal")?;
        }
        self.queue.destroy().during("destroy the queue")
    }
}
