//! What a queue was opened with: libfabric, or rdma-core alone. The rest of the queue is the same for both.

use efa_gda_wire::LocalKey;

use crate::Error;
use crate::fabric::{self, Access, Buffer, Enabled, Endpoint, GdaOps, RegionOrdering, RemoteRegion};
#[cfg(feature = "verbs")]
use crate::leak;
#[cfg(feature = "verbs")]
use crate::memory::OutOfBounds;
#[cfg(feature = "verbs")]
use crate::verbs::{self, QueuePair};

/// Why a region cannot be written or read.
const FOREIGN: &str = "the region does not own its memory: use the caller's own pointer to it";

/// Registered memory that requests and receives name: a handle of a memory region of libfabric or of rdma-core.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Region {
    /// Registered with libfabric.
    Libfabric(fabric::MemoryRegion),
    /// Registered with rdma-core.
    #[cfg(feature = "verbs")]
    RdmaCore(verbs::MemoryRegion),
}

impl From<fabric::MemoryRegion> for Region {
    fn from(region: fabric::MemoryRegion) -> Self {
        Self::Libfabric(region)
    }
}

#[cfg(feature = "verbs")]
impl From<verbs::MemoryRegion> for Region {
    fn from(region: verbs::MemoryRegion) -> Self {
        Self::RdmaCore(region)
    }
}

impl From<&fabric::MemoryRegion> for Region {
    fn from(region: &fabric::MemoryRegion) -> Self {
        Self::Libfabric(region.clone())
    }
}

#[cfg(feature = "verbs")]
impl From<&verbs::MemoryRegion> for Region {
    fn from(region: &verbs::MemoryRegion) -> Self {
        Self::RdmaCore(region.clone())
    }
}

impl From<&Self> for Region {
    fn from(region: &Self) -> Self {
        region.clone()
    }
}

impl Region {
    /// Returns the address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`fabric::Error::OutOfBounds`].
    pub fn at(&self, offset: u64, length: u64) -> fabric::Result<u64> {
        match self {
            Self::Libfabric(region) => region.at(offset, length),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => {
                let bytes = region.len() as u64;
                region.at(offset, length).map_err(|_| OutOfBounds { offset, length, region: bytes }.into())
            }
        }
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no memory region is empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Libfabric(region) => region.len(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.len(),
        }
    }

    /// Returns the access that the region was registered for.
    pub fn access(&self) -> Access {
        match self {
            Self::Libfabric(region) => region.access(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.access(),
        }
    }

    /// Returns the order of writes to the region that users may rely on.
    pub fn ordering(&self) -> RegionOrdering {
        match self {
            Self::Libfabric(region) => region.ordering(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.ordering(),
        }
    }

    /// Deregisters the memory.
    ///
    /// # Errors
    /// The region, while another handle of it exists. The inner result is that of the deregistration.
    pub fn try_close(self) -> Result<Result<(), Error>, Self> {
        match self {
            Self::Libfabric(region) => region.try_close().map(|closed| Ok(closed?)).map_err(Self::Libfabric),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.try_close().map(|closed| Ok(closed?)).map_err(Self::RdmaCore),
        }
    }

    /// Returns all of the region, as a peer names it.
    pub fn remote(&self) -> RemoteRegion {
        match self {
            Self::Libfabric(region) => region.remote(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.remote(),
        }
    }

    /// Returns the memory, if the region owns it.
    pub fn buffer(&self) -> Option<&Buffer> {
        match self {
            Self::Libfabric(region) => region.buffer(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.buffer(),
        }
    }

    /// Copies `bytes` to `offset` of the memory that the region owns.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) if the bytes are outside, or the region does not own its
    /// memory; errors of the GPU.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        #[cfg(feature = "cuda")]
        if let Some(memory) = self.gpu_memory() {
            return Ok(memory.write(offset, bytes)?);
        }
        let buffer = self.buffer().ok_or_else(|| Error::argument(FOREIGN))?;
        Ok(buffer.write(offset, bytes)?)
    }

    /// Copies from `offset` of the memory that the region owns.
    ///
    /// # Errors
    /// Those of [`Self::write`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        #[cfg(feature = "cuda")]
        if let Some(memory) = self.gpu_memory() {
            return Ok(memory.read(offset, bytes)?);
        }
        let buffer = self.buffer().ok_or_else(|| Error::argument(FOREIGN))?;
        Ok(buffer.read(offset, bytes)?)
    }

    /// Returns the memory of a GPU, if the region owns it.
    #[cfg(feature = "cuda")]
    pub fn gpu_memory(&self) -> Option<&crate::gpu::GpuMemory> {
        match self {
            Self::Libfabric(region) => region.gpu_memory(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.owner(),
        }
    }

    /// Whether the host's CPU can access the region's bytes at its address.
    pub(crate) fn on_host(&self) -> bool {
        match self {
            Self::Libfabric(region) => region.device().is_none(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.device().is_none(),
        }
    }

    /// Returns the CUDA ordinal of the GPU whose memory it is. None for memory of the host.
    #[cfg(feature = "cuda")]
    pub(crate) fn device(&self) -> Option<i32> {
        match self {
            Self::Libfabric(region) => region.device(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(region) => region.device(),
        }
    }
}

/// What a [`super::MappedQueue`] owns, so that nothing else posts to the queue.
#[derive(Debug)]
pub(crate) enum Backing {
    /// An enabled endpoint, with the GDA operations of its domain.
    Libfabric { endpoint: Endpoint<Enabled>, ops: GdaOps },
    #[cfg(feature = "verbs")]
    RdmaCore(QueuePair),
}

impl Backing {
    /// Returns the key of a region, for entries. The adapter would complete each request with a region of another
    /// domain with a status that does not name the cause.
    ///
    /// # Errors
    /// [`fabric::Error::OtherDomain`]; with libfabric, [`fabric::Error::KeyNotAvailable`] and other errors of
    /// [`GdaOps::get_mr_lkey`].
    pub(super) fn local_key(&self, region: &Region) -> fabric::Result<LocalKey> {
        match (self, region) {
            (Self::Libfabric { ops, .. }, Region::Libfabric(region)) => ops.get_mr_lkey(region),
            #[cfg(feature = "verbs")]
            (Self::RdmaCore(pair), Region::RdmaCore(region)) if pair.domain().is_same(region.domain()) => {
                Ok(region.local_key())
            }
            #[cfg(feature = "verbs")]
            _ => Err(fabric::Error::OtherDomain { operation: "MappedQueue::local_key" }),
        }
    }

    /// Returns the CUDA ordinal of the GPU whose memory holds the completion queue; None if the host can poll it.
    pub(crate) fn completions_on(&self) -> Option<i32> {
        match self {
            Self::Libfabric { endpoint, .. } => endpoint.send_completions().device(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(_) => None,
        }
    }

    /// Retains a region until the backing is closed. `local_key` has accepted it.
    pub(super) fn retain(&mut self, region: Region) {
        match (self, region) {
            (Self::Libfabric { endpoint, .. }, Region::Libfabric(region)) => endpoint.retain(region),
            #[cfg(feature = "verbs")]
            (Self::RdmaCore(pair), Region::RdmaCore(region)) => pair.regions().retain(region),
            // Never freed under the adapter.
            #[cfg(feature = "verbs")]
            (_, region) => leak::leak(region),
        }
    }

    /// Retains the memory of a posted receive until the receive completes, or the backing is closed. `local_key` has
    /// accepted it.
    pub(super) fn receive_posted(&mut self, id: u16, region: Region) {
        match (self, region) {
            (Self::Libfabric { endpoint, .. }, Region::Libfabric(region)) => {
                endpoint.receive_posted(id, region);
            }
            #[cfg(feature = "verbs")]
            (Self::RdmaCore(pair), Region::RdmaCore(region)) => pair.regions().receive_posted(id, region),
            // Never freed under the adapter.
            #[cfg(feature = "verbs")]
            (_, region) => leak::leak(region),
        }
    }

    /// Releases the memory of a receive that completed.
    pub(super) fn receive_completed(&mut self, id: u16) {
        match self {
            Self::Libfabric { endpoint, .. } => endpoint.receive_completed(id),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(pair) => pair.regions().receive_completed(id),
        }
    }
}
