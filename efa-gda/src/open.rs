//! A queue in one call: the library that opens it, the processor that drives it and the doorbell are values.

mod card;
mod close;
mod domain;
mod options;
mod processor;

use std::path::Path;
use std::time::Duration;

use efa_gda_sys::device::efa_gda_queue;
#[cfg(feature = "verbs")]
use efa_gda_wire::EntrySize;
use efa_gda_wire::{LocalKey, Peer};

use crate::doorbell::{DoorbellMode, DoorbellProxy};
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Bindings, Domain, Fabric, Info, Library, Query};
#[cfg(feature = "cuda")]
use crate::gpu::GpuMemory;
#[cfg(feature = "cuda")]
use crate::gpu_queue::{GpuQueue, LaunchGuard};
use crate::memory::{Access, Buffer, CountedOperations, CounterWords};
use crate::queue::{
    MappedQueue, PostedReceives, Received, Receives, Region, Snapshot, WorkReport, WorkRequest,
};
#[cfg(feature = "verbs")]
use crate::verbs::{self, Capability, Context, ProtectionDomain, QueuePair, QueuePairOptions};

use domain::Layer;
pub use domain::OpenDomain;
pub use options::{Options, Source};
use processor::Processor;

/// Peers that a queue's address vector is made for, unless [`Options::peers`] states another number.
const PEERS: usize = 64;
/// Entries of each ring of a queue pair of rdma-core, unless the options state another number.
#[cfg(feature = "verbs")]
const ENTRIES: u32 = 256;

/// Entries of a completion queue on which nothing completes.
const UNUSED: usize = 64;

/// A queue of an EFA adapter, open and mapped, with everything that it needs. Whether libfabric or rdma-core opened it,
/// and whether this host's CPU or a GPU drives it, are values of [`Options`].
///
/// A drop closes the queue, then what it was opened on. Regions may be dropped before or after the queue; memory that the
/// adapter may still access stays registered until the queue is closed.
///
/// ```
/// # efa_gda_test_support::soft::example();
/// use efa_gda::memory::Access;
/// use efa_gda::queue::WorkRequest;
/// use efa_gda::{Options, Queue};
///
/// let mut queue = Queue::open(&Options::new())?;
/// let source = queue.allocate(4096, Access::WRITE)?;
/// let target = queue.allocate(4096, Access::REMOTE_WRITE)?;
/// source.write(0, b"hello")?;
/// // The queue is its own peer.
/// let peer = queue.insert_peer(&queue.address()?)?;
/// queue.execute(&WorkRequest::write(peer, &source, target.remote()))?;
/// let mut arrived = [0; 5];
/// target.read(0, &mut arrived)?;
/// assert_eq!(&arrived, b"hello");
/// # Ok::<(), efa_gda::Error>(())
/// ```
#[derive(Debug)]
pub struct Queue {
    // Dropped in this order.
    driven: Driven,
    opened: Opened,
}

/// What a queue was opened with, beside the processor.
#[derive(Debug)]
struct Opened {
    domain: OpenDomain,
    refused: Vec<String>,
    counter: Option<CounterWords>,
}

/// A mapped queue and the processor that drives it.
#[derive(Debug)]
enum Driven {
    Host(Box<MappedQueue>),
    #[cfg(feature = "cuda")]
    Gpu(Box<GpuQueue>),
}

/// Makes a call that the queues of both processors have, and converts its error.
macro_rules! either {
    ($queue:expr, $driven:ident => $call:expr) => {
        match $queue {
            Driven::Host($driven) => Ok($call?),
            #[cfg(feature = "cuda")]
            Driven::Gpu($driven) => Ok($call?),
        }
    };
}

impl Queue {
    /// Opens a queue, with all that it needs.
    ///
    /// # Errors
    /// [`Error`]; if the options name no [`Source`], that of libfabric, with rdma-core's after it.
    pub fn open(options: &Options) -> Result<Self> {
        match options.source {
            Some(Source::Libfabric) => Libfabric::open(options)?.queue(options),
            Some(Source::RdmaCore) => Self::open_rdma_core(options),
            None => match Libfabric::open(options) {
                Ok(opened) => opened.queue(options),
                Err(first)
                    if matches!(
                        first.kind(),
                        ErrorKind::NoLibrary
                            | ErrorKind::NoAdapter
                            | ErrorKind::NoDirectFabric
                            | ErrorKind::WithoutOption(_)
                            | ErrorKind::Unavailable
                            | ErrorKind::Unsupported
                    ) =>
                {
                    let mut queue =
                        Self::open_rdma_core(options).map_err(|second| first.and_rdma_core(&second))?;
                    queue.opened.refused.insert(0, format!("libfabric: {first}"));
                    Ok(queue)
                }
                Err(first) => Err(first),
            },
        }
    }

    /// Opens a queue on a domain of libfabric, such as one that a transport lends. The options' source, adapter and size
    /// of entries do not count: `info` has them.
    ///
    /// # Errors
    /// [`Error`].
    pub fn on_domain(domain: &Domain, info: &Info, options: &Options) -> Result<Self> {
        if options.requests.is_some() || options.receives.is_some() {
            return Err(Error::argument(
                "requests and receives are not set on a domain of libfabric, whose fi_info sets the depth of the rings",
            ));
        }
        let ops = domain.gda_ops()?;
        let processor = Processor::open(options)?;
        let addresses = domain.address_vector(options.peers.unwrap_or(PEERS))?;
        let entries = info.completions() * if options.counters { 2 } else { 1 };
        let entries = options.completions.map_or(entries, |entries| entries as usize);
        let (completions, why) = processor.completion_queue(&ops, entries)?;
        let mut refused: Vec<String> = why.into_iter().collect();
        // With counters, nothing reads the completion queue, so receives cannot complete there.
        let receives = if options.counters { domain.completion_queue(UNUSED)? } else { completions.clone() };
        let mut counters = Vec::new();
        for counted in
            options.counted.into_iter().chain(options.counters.then_some(CountedOperations::TRANSMIT))
        {
            let (counter, why) = processor.counter(&ops)?;
            refused.extend(why);
            counters.push((counter, counted));
        }
        let counter = counters.first().filter(|_| options.counted.is_some());
        let counter = counter.and_then(|(counter, _)| counter.words());
        let bindings = Bindings {
            address_vector: &addresses,
            send_completions: &completions,
            receive_completions: &receives,
            counters: &counters,
        };
        let queue = MappedQueue::new(domain.endpoint(info, bindings)?, &ops)?;
        let queue = if options.counters { queue.with_counters()? } else { queue };
        let domain = OpenDomain(Layer::Libfabric { ops, info: info.clone() });
        Self::drive(queue, processor, Opened { domain, refused, counter }, options)
    }

    #[cfg(feature = "verbs")]
    fn open_rdma_core(options: &Options) -> Result<Self> {
        let library = verbs::Library::load()?;
        library.exposes_queues()?;
        let context = match &options.adapter {
            None if options.for_gpu() => nearest_adapter(&library, options)?,
            name => library.adapter(name.as_deref())?,
        };
        Self::on_protection_domain(&ProtectionDomain::allocate(&context)?, options)
    }

    #[cfg(not(feature = "verbs"))]
    fn open_rdma_core(_: &Options) -> Result<Self> {
        Err(Error::unsupported("this build of efa-gda has no rdma-core: enable its feature verbs"))
    }

    /// Opens a queue on a protection domain of rdma-core. The options' source and adapter do not count.
    ///
    /// # Errors
    /// [`Error`].
    #[cfg(feature = "verbs")]
    pub fn on_protection_domain(domain: &ProtectionDomain, options: &Options) -> Result<Self> {
        if options.counters {
            return Err(Error::unsupported(
                "a queue of rdma-core cannot use completion counters in place of its completion queue; open it without \
                 counters, or with libfabric",
            ));
        }
        let context = domain.context();
        let processor = Processor::open(options)?;
        let (requests, receives) = (options.requests.unwrap_or(ENTRIES), options.receives.unwrap_or(ENTRIES));
        let rounded = |entries: u32| entries.checked_next_power_of_two().unwrap_or(entries);
        let least = rounded(requests).saturating_add(rounded(receives));
        let completions = verbs::CompletionQueue::create(context, options.completions.unwrap_or(least))?;
        let counted =
            options.counted.map(|counted| Ok((verbs::CompletionCounter::on_host(context)?, counted)));
        let counters: Vec<_> = counted.into_iter().collect::<Result<_>>()?;
        let counter = counters.first().and_then(|(counter, _)| counter.words());
        let of_pair = QueuePairOptions {
            send_entries: requests,
            receive_entries: receives,
            entry_size: if options.wide_entries { EntrySize::B128 } else { EntrySize::B64 },
            unsolicited_writes: context.attributes().has(Capability::UnsolicitedWriteReceive),
            counters,
            ..QueuePairOptions::default()
        };
        let queue = MappedQueue::over_verbs(QueuePair::open(domain, &completions, &of_pair)?)?;
        let domain = OpenDomain(Layer::RdmaCore(domain.clone()));
        let unmapped =
            "a completion counter: its words are in memory of the host, which the GPU does not map";
        let refused = (options.for_gpu() && counter.is_some()).then(|| unmapped.to_owned());
        let opened = Opened { domain, refused: refused.into_iter().collect(), counter };
        Self::drive(queue, processor, opened, options)
    }

    fn drive(
        queue: MappedQueue,
        processor: Processor,
        mut opened: Opened,
        options: &Options,
    ) -> Result<Self> {
        let queue = queue.with_store_width(options.store_width);
        let mut queue = if options.request_table { queue.with_request_table()? } else { queue };
        let (driven, refused) = match processor {
            Processor::Host => {
                // The host's own doorbell always works. A queue for which a proxy rings keeps the proxy alive.
                if let Some(mode @ (DoorbellMode::Record | DoorbellMode::Staged)) = options.doorbell {
                    queue.set_doorbell(mode, &DoorbellProxy::start()?)?;
                }
                (Driven::Host(Box::new(queue)), Vec::new())
            }
            #[cfg(feature = "cuda")]
            Processor::Gpu(gpu) => {
                // A queue for which the proxy rings or relays completions keeps it alive. Otherwise it ends here.
                let (queue, refused) =
                    GpuQueue::with_doorbell(queue, &gpu, options.doorbell, &DoorbellProxy::start()?)?;
                let refused = refused.iter().map(|one| format!("doorbell {}: {}", one.mode, one.reason));
                (Driven::Gpu(Box::new(queue)), refused.collect())
            }
        };
        opened.refused.splice(..0, refused);
        Ok(Self { driven, opened })
    }

    /// Returns the domain of the queue, which registers memory and opens further queues.
    pub fn domain(&self) -> &OpenDomain {
        &self.opened.domain
    }

    /// Returns the library that opened the queue.
    pub fn source(&self) -> Source {
        self.opened.domain.source()
    }

    /// Returns what the queue could not use of what it would have preferred, and why: a library, doorbell modes, memory of
    /// the GPU.
    pub fn refused(&self) -> &[String] {
        &self.opened.refused
    }

    /// Returns the words of the counter of [`Options::count`].
    pub fn counter(&self) -> Option<CounterWords> {
        self.opened.counter
    }

    /// Returns the doorbell mode that the queue took.
    pub fn doorbell_mode(&self) -> DoorbellMode {
        self.mapped().doorbell_mode()
    }

    /// Returns the queue on the host: its rings, limits, and state after the last call of this library.
    pub fn mapped(&self) -> &MappedQueue {
        match &self.driven {
            Driven::Host(queue) => queue,
            #[cfg(feature = "cuda")]
            Driven::Gpu(queue) => queue.mapped(),
        }
    }

    /// Allocates zeroed memory of the host, and registers it for `access`.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`]; [`ErrorKind::Unsupported`] for an access that the adapter lacks; other errors of the
    /// registration, of which the limit of locked memory is the most frequent.
    pub fn allocate(&self, bytes: usize, access: Access) -> Result<Region> {
        let buffer = Buffer::zeroed(bytes).ok_or_else(|| Error::out_of_memory(bytes))?;
        self.opened.domain.register(buffer, access)
    }

    /// Allocates zeroed memory of the GPU that drives the queue, and registers it for `access`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the host drives the queue, or the memory has no dmabuf, which rdma-core needs; other
    /// errors of the GPU and of the registration.
    #[cfg(feature = "cuda")]
    pub fn allocate_on_gpu(&self, bytes: usize, access: Access) -> Result<Region> {
        let Some(queue) = self.on_gpu() else {
            return Err(Error::unsupported("the host drives the queue: open it with Options::gpu"));
        };
        let memory = GpuMemory::zeroed(queue.gpu(), bytes)?;
        self.opened.domain.register_device(memory.into(), access)
    }

    /// As [`MappedQueue::address`].
    ///
    /// # Errors
    /// Those of [`MappedQueue::address`].
    pub fn address(&self) -> Result<Vec<u8>> {
        self.mapped().address()
    }

    /// As [`MappedQueue::insert_peer`].
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for an address of another length; other errors of the library.
    pub fn insert_peer(&self, address: &[u8]) -> Result<Peer> {
        self.mapped().insert_peer(address)
    }

    /// Executes a work request on the processor that drives the queue, and waits for all of its completions.
    ///
    /// # Errors
    /// [`ErrorKind::FailedRequest`] with the request and its status; [`ErrorKind::Device`] if a wait ended at its bound,
    /// which poisons the queue; [`ErrorKind::Argument`] and [`ErrorKind::Unsupported`] if nothing was posted.
    pub fn execute(&mut self, work: &WorkRequest) -> Result<WorkReport> {
        either!(&mut self.driven, queue => queue.execute(work))
    }

    /// As [`MappedQueue::quiet`].
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn quiet(&mut self, timeout: Duration) -> Result<WorkReport> {
        either!(&mut self.driven, queue => queue.quiet(timeout))
    }

    /// As [`MappedQueue::post_receives`].
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if the receive queue stayed full; [`ErrorKind::Argument`], [`ErrorKind::Unsupported`].
    pub fn post_receives(&mut self, receives: &Receives) -> Result<PostedReceives> {
        either!(&mut self.driven, queue => queue.post_receives(receives))
    }

    /// As [`MappedQueue::receive_many`].
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if nothing arrived; [`ErrorKind::Lost`] if completions were lost.
    pub fn receive_many(&mut self, most: usize, timeout: Duration) -> Result<Vec<Received>> {
        either!(&mut self.driven, queue => queue.receive_many(most, timeout))
    }

    /// As [`MappedQueue::retain`].
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for a region of another domain.
    pub fn retain(&mut self, region: &Region) -> Result<LocalKey> {
        either!(&mut self.driven, queue => queue.retain(region))
    }

    /// As [`MappedQueue::snapshot`], also while a kernel runs.
    ///
    /// # Errors
    /// Those of the GPU.
    pub fn snapshot(&self) -> Result<Snapshot> {
        match &self.driven {
            Driven::Host(queue) => Ok(queue.snapshot()),
            #[cfg(feature = "cuda")]
            Driven::Gpu(queue) => Ok(queue.snapshot()?),
        }
    }

    /// Returns a copy of the struct that kernels work on, also while they run.
    ///
    /// # Errors
    /// Those of the GPU.
    pub fn state(&self) -> Result<efa_gda_queue> {
        match &self.driven {
            Driven::Host(queue) => Ok(queue.state()),
            #[cfg(feature = "cuda")]
            Driven::Gpu(queue) => Ok(queue.state()?),
        }
    }

    /// Returns the name of the adapter: libfabric's domain, or rdma-core's device.
    pub fn adapter(&self) -> String {
        match &self.opened.domain.0 {
            Layer::Libfabric { info, .. } => info.domain_name().into_owned(),
            #[cfg(feature = "verbs")]
            Layer::RdmaCore(domain) => domain.context().name().to_owned(),
        }
    }

    /// Returns the queue on the GPU, if one drives it.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(&self) -> Option<&GpuQueue> {
        match &self.driven {
            Driven::Host(_) => None,
            Driven::Gpu(queue) => Some(queue),
        }
    }

    /// Returns the address of the struct that kernels of the processor receive, for a launch of the caller's. The launch
    /// must have ended before the next call that posts, and before the queue is dropped; for a GPU, while
    /// [`Self::begin_launch`]'s guard exists, these are refused, and a drop leaks the queue.
    pub fn device_address(&self) -> *mut efa_gda_queue {
        match &self.driven {
            Driven::Host(queue) => queue.as_ptr().as_ptr(),
            #[cfg(feature = "cuda")]
            Driven::Gpu(queue) => queue.device_address(),
        }
    }

    /// As [`GpuQueue::begin_launch`]; None if the host drives the queue.
    #[cfg(feature = "cuda")]
    pub fn begin_launch(&self) -> Option<LaunchGuard> {
        match &self.driven {
            Driven::Host(_) => None,
            Driven::Gpu(queue) => Some(queue.begin_launch()),
        }
    }
}

/// Opens the EFA adapter nearest to the GPU, or the first one of the others that opens: a container may lack nodes of
/// adapters that sysfs shows.
#[cfg(feature = "verbs")]
fn nearest_adapter(library: &verbs::Library, options: &Options) -> Result<Context> {
    /// Amazon's PCI vendor.
    const VENDOR: &str = "0x1d0f";
    let entry =
        |device: &verbs::Device| Path::new("/sys/class/infiniband").join(device.name()).join("device");
    let mut devices = library.devices()?;
    devices.retain(|device| {
        // A software adapter may have no such file.
        std::fs::read_to_string(entry(device).join("vendor"))
            .map_or(true, |vendor| vendor.starts_with(VENDOR))
    });
    if devices.is_empty() {
        return library.adapter(None);
    }
    let nearest = options.nearest(|| devices.iter().map(entry).collect())?;
    devices.swap(0, nearest);
    let mut opened = devices.iter().map(verbs::Device::open);
    opened.find(Result::is_ok).unwrap_or_else(|| library.adapter(None))
}

/// A domain of libfabric that exposes queues.
struct Libfabric {
    domain: Domain,
    info: Info,
    refused: Option<String>,
}

impl Libfabric {
    fn open(options: &Options) -> Result<Self> {
        let library = Library::load()?;
        let mut query = Query::new().wide_entries(options.wide_entries);
        if let Some(adapter) = &options.adapter {
            query = query.adapter(adapter);
        }
        let (mut infos, refused) =
            match options.for_gpu().then(|| query.clone().gpu_memory(true).find(&library)) {
                Some(Ok(infos)) => (infos, None),
                // The GPU can post requests of memory of the host.
                Some(Err(why)) => (query.find(&library)?, Some(format!("memory of the GPU: {why}"))),
                None => (query.find(&library)?, None),
            };
        let adapter = |info: &Info| {
            let address = info.nic().and_then(|nic| nic.pci);
            // An adapter without an address, such as a software adapter, has no entry.
            address.map(|pci| Path::new("/sys/bus/pci/devices").join(pci.to_string())).unwrap_or_default()
        };
        let info = infos.swap_remove(options.nearest(|| infos.iter().map(adapter).collect())?);
        let domain = Fabric::open(&library, &info)?.domain(&info)?;
        domain.gda_ops()?;
        Ok(Self { domain, info, refused })
    }

    fn queue(self, options: &Options) -> Result<Queue> {
        let mut queue = Queue::on_domain(&self.domain, &self.info, options)?;
        queue.opened.refused.extend(self.refused);
        Ok(queue)
    }
}
