//! What a mapped queue is made of: an endpoint that libfabric opened, or a queue pair of rdma-core
//! alone. The queue itself is the same.

use std::fmt;

use efa_gda_wire::LocalKey;

use crate::fabric::{self, Access, Buffer, Enabled, Endpoint, GdaOps, RemoteRegion};
use crate::memory::OutOfBounds;
use crate::verbs::{self, QueuePair, Ready};

mod sealed {
    pub trait Sealed {}
}

/// Memory registered where a queue is.
pub trait Region: sealed::Sealed + Clone + fmt::Debug {
    /// The address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`fabric::Error::OutOfBounds`].
    fn at(&self, offset: u64, length: u64) -> fabric::Result<u64>;

    /// Length in bytes.
    fn length(&self) -> usize;

    /// What may be done with it.
    fn access(&self) -> Access;

    /// All of it, as a peer needs to know it.
    fn remote(&self) -> RemoteRegion;

    /// The memory, where the region owns it.
    fn buffer(&self) -> Option<&Buffer>;

    /// Whether the host's processor reaches its bytes at its address.
    fn on_host(&self) -> bool;
}

/// What a [`super::MappedQueue`] owns, so that nobody else posts to it.
pub trait Backing: sealed::Sealed + fmt::Debug {
    /// Memory that the queue's requests name.
    type Region: Region;
    /// Why it could not be closed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The key of a region, for entries.
    ///
    /// # Errors
    /// [`fabric::Error::KeyNotAvailable`] and its kin.
    fn local_key(&self, region: &Self::Region) -> fabric::Result<LocalKey>;

    /// The GPU in whose memory completions lie, as CUDA counts; None where the host polls them.
    fn completions_on(&self) -> Option<i32> {
        None
    }

    /// Keeps a region until this is closed.
    fn retain(&mut self, region: Self::Region);

    /// Keeps the memory of a posted receive until it completed, or this is closed.
    fn receive_posted(&mut self, id: u16, region: Self::Region);

    /// Lets the memory of a receive go, for it completed.
    fn receive_completed(&mut self, id: u16);

    /// Destroys the queue pair. Where that fails, what it refers to stays allocated.
    ///
    /// # Errors
    /// The answer of the layer below.
    fn close(self) -> Result<(), Self::Error>;
}

/// An enabled endpoint of libfabric's, with the operations of its domain.
#[derive(Debug)]
pub struct Libfabric {
    pub(super) endpoint: Endpoint<Enabled>,
    pub(super) ops: GdaOps,
}

impl sealed::Sealed for Libfabric {}

impl Backing for Libfabric {
    type Region = fabric::MemoryRegion;
    type Error = fabric::Error;

    fn local_key(&self, region: &Self::Region) -> fabric::Result<LocalKey> {
        self.ops.get_mr_lkey(region)
    }

    fn completions_on(&self) -> Option<i32> {
        self.endpoint.send_completions().device()
    }

    fn retain(&mut self, region: Self::Region) {
        self.endpoint.retain(region);
    }

    fn receive_posted(&mut self, id: u16, region: Self::Region) {
        self.endpoint.receive_posted(id, region);
    }

    fn receive_completed(&mut self, id: u16) {
        self.endpoint.receive_completed(id);
    }

    fn close(self) -> fabric::Result<()> {
        self.endpoint.close()
    }
}

impl sealed::Sealed for fabric::MemoryRegion {}

impl Region for fabric::MemoryRegion {
    fn at(&self, offset: u64, length: u64) -> fabric::Result<u64> {
        self.at(offset, length)
    }

    fn length(&self) -> usize {
        self.len()
    }

    fn access(&self) -> Access {
        self.access()
    }

    fn remote(&self) -> RemoteRegion {
        self.remote()
    }

    fn buffer(&self) -> Option<&Buffer> {
        self.buffer()
    }

    fn on_host(&self) -> bool {
        self.device().is_none()
    }
}

impl sealed::Sealed for QueuePair<Ready> {}

impl Backing for QueuePair<Ready> {
    type Region = verbs::MemoryRegion;
    type Error = verbs::Error;

    fn local_key(&self, region: &Self::Region) -> fabric::Result<LocalKey> {
        Ok(region.local_key())
    }

    fn retain(&mut self, region: Self::Region) {
        self.retain(region);
    }

    fn receive_posted(&mut self, id: u16, region: Self::Region) {
        self.receive_posted(id, region);
    }

    fn receive_completed(&mut self, id: u16) {
        self.receive_completed(id);
    }

    fn close(self) -> verbs::Result<()> {
        self.close()
    }
}

impl sealed::Sealed for verbs::MemoryRegion {}

impl Region for verbs::MemoryRegion {
    fn at(&self, offset: u64, length: u64) -> fabric::Result<u64> {
        let region = self.len() as u64;
        self.at(offset, length).map_err(|_| OutOfBounds { offset, length, region }.into())
    }

    fn length(&self) -> usize {
        self.len()
    }

    fn access(&self) -> Access {
        self.access()
    }

    fn remote(&self) -> RemoteRegion {
        self.remote()
    }

    fn buffer(&self) -> Option<&Buffer> {
        self.buffer()
    }

    fn on_host(&self) -> bool {
        self.on_host()
    }
}
