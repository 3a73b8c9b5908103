//! What a queue is opened with.

use std::path::PathBuf;

use crate::Result;
use crate::doorbell::DoorbellMode;
#[cfg(feature = "cuda")]
use crate::gpu::Gpu;
use crate::memory::CountedOperations;
use crate::queue::StoreWidth;

/// The library that opens a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// libfabric's provider `efa`, on the fabric `efa-direct`.
    Libfabric,
    /// rdma-core alone: libibverbs and libefa (feature `verbs`).
    RdmaCore,
}

/// What a queue is opened with. What is not set is chosen when the queue is opened.
#[derive(Clone, Debug, Default)]
#[must_use = "Queue::open opens a queue with them"]
pub struct Options {
    pub(super) source: Option<Source>,
    pub(super) adapter: Option<String>,
    #[cfg(feature = "cuda")]
    pub(super) gpu: Option<usize>,
    pub(super) doorbell: Option<DoorbellMode>,
    pub(super) wide_entries: bool,
    pub(super) request_table: bool,
    pub(super) counters: bool,
    pub(super) store_width: StoreWidth,
    pub(super) peers: Option<usize>,
    pub(super) requests: Option<u32>,
    pub(super) receives: Option<u32>,
    pub(super) completions: Option<u32>,
    pub(super) counted: Option<CountedOperations>,
}

impl Options {
    /// The first usable adapter, driven by this host's CPU.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the library that opens the queue. By default libfabric, and rdma-core if libfabric shows no adapter, or
    /// none that exposes queues.
    pub fn source(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the adapter, by default the one nearest to the GPU, where GPUs that are equally near to several adapters share
    /// them, or the first one for the host. It is named by its device (`rdmap79s0`) or of libfabric's domain.
    pub fn adapter(mut self, name: impl Into<String>) -> Self {
        self.adapter = Some(name.into());
        self
    }

    /// Makes the GPU with this CUDA ordinal drive the queue.
    #[cfg(feature = "cuda")]
    pub fn gpu(mut self, ordinal: usize) -> Self {
        self.gpu = Some(ordinal);
        self
    }

    /// Sets the doorbell mode. By default the first one that works, beginning with [`DoorbellMode::Direct`].
    pub fn doorbell(mut self, mode: DoorbellMode) -> Self {
        self.doorbell = Some(mode);
        self
    }

    /// Asks for entries of 128 bytes, which carry up to 80 bytes inline.
    pub fn wide_entries(mut self) -> Self {
        self.wide_entries = true;
        self
    }

    /// Gives the queue a request table ([`crate::queue::MappedQueue::with_request_table`]).
    pub fn request_table(mut self) -> Self {
        self.request_table = true;
        self
    }

    /// Makes device code use completion counters in place of the completion queue ([`crate::queue::MappedQueue::with_counters`]). The
    /// queue then takes no receives. Not with rdma-core.
    pub fn counters(mut self) -> Self {
        self.counters = true;
        self
    }

    /// Gives the queue a completion counter of its own for `operations`, whose words ([`super::Queue::counter`]) are in the
    /// memory of the GPU that drives the queue if that is possible, else in the host's. With [`Self::counters`], it cannot
    /// count sends, writes and reads of this side, which that counter counts.
    pub fn count(mut self, operations: CountedOperations) -> Self {
        self.counted = Some(operations);
        self
    }

    /// Sets the width of the stores that write entries ([`crate::queue::MappedQueue::with_store_width`]).
    pub fn store_width(mut self, width: StoreWidth) -> Self {
        self.store_width = width;
        self
    }

    /// Sets the entries of the send queue. 0 leaves the choice to the library, as everywhere
    /// below. Only with rdma-core: libfabric's `fi_info` sets its depth.
    pub fn requests(mut self, entries: u32) -> Self {
        self.requests = (entries != 0).then_some(entries);
        self
    }

    /// Sets the entries of the receive queue, as [`Self::requests`].
    pub fn receives(mut self, entries: u32) -> Self {
        self.receives = (entries != 0).then_some(entries);
        self
    }

    /// Sets the entries of the completion queue. By default as many as both rings have together, which is the
    /// least, and twice as many with [`Self::counters`].
    pub fn completions(mut self, entries: u32) -> Self {
        self.completions = (entries != 0).then_some(entries);
        self
    }

    /// Sets the number of peers that the queue is made for. More may be inserted; libfabric then grows its table.
    pub fn peers(mut self, peers: usize) -> Self {
        self.peers = (peers != 0).then_some(peers);
        self
    }

    /// The index of the adapter for the queue's processor, of those whose entries of sysfs are `adapters`: the one
    /// nearest to the GPU, or the first for the host.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, clippy::unnecessary_wraps, reason = "no GPU"))]
    pub(super) fn nearest(&self, adapters: impl FnOnce() -> Vec<PathBuf>) -> Result<usize> {
        #[cfg(feature = "cuda")]
        if let Some(ordinal) = self.gpu {
            return Ok(Gpu::open(ordinal)?.nearest(&adapters()));
        }
        Ok(0)
    }

    /// Whether a GPU drives the queue.
    pub(super) fn for_gpu(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.gpu.is_some();
        #[cfg(not(feature = "cuda"))]
        false
    }
}
