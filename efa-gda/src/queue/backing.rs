//! The backing of a mapped queue: an endpoint that libfabric opened, or a queue pair of rdma-core alone. The rest of
//! the queue is the same for both.

use std::fmt;

use efa_gda_wire::LocalKey;

use crate::fabric::{self, Access, Buffer, Enabled, Endpoint, GdaOps, RemoteRegion};

mod sealed {
    pub trait Sealed {}
}

/// A memory region of the layer that a queue was opened with.
pub trait Region: sealed::Sealed + Clone + fmt::Debug {
    /// Returns the address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`fabric::Error::OutOfBounds`].
    fn at(&self, offset: u64, length: u64) -> fabric::Result<u64>;

    /// Returns the length in bytes.
    fn length(&self) -> usize;

    /// Returns the access that the region was registered for.
    fn access(&self) -> Access;

    /// Returns all of the region, as a peer names it.
    fn remote(&self) -> RemoteRegion;

    /// Returns the memory, if the region owns it.
    fn buffer(&self) -> Option<&Buffer>;

    /// Whether the host's CPU can access the region's bytes at its address.
    fn on_host(&self) -> bool;

    /// Returns the CUDA ordinal of the GPU whose memory it is, if that is known.
    fn device(&self) -> Option<i32>;
}

/// What a [`super::MappedQueue`] owns, so that nothing else posts to the queue.
pub trait Backing: sealed::Sealed + fmt::Debug {
    /// Memory that the queue's requests name.
    type Region: Region;
    /// Why the backing could not be closed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns the key of a region, for entries.
    ///
    /// # Errors
    /// [`fabric::Error::OtherDomain`]; with libfabric, [`fabric::Error::KeyNotAvailable`] and other errors of
    /// [`GdaOps::get_mr_lkey`].
    fn local_key(&self, region: &Self::Region) -> fabric::Result<LocalKey>;

    /// Returns the CUDA ordinal of the GPU whose memory holds the completion queue; None if the host can poll it.
    fn completions_on(&self) -> Option<i32> {
        None
    }

    /// Retains a region until the backing is closed.
    fn retain(&mut self, region: Self::Region);

    /// Retains the memory of a posted receive until the receive completes, or the backing is closed.
    fn receive_posted(&mut self, id: u16, region: Self::Region);

    /// Releases the memory of a receive that completed.
    fn receive_completed(&mut self, id: u16);

    /// Destroys the queue pair. If that fails, what it refers to stays allocated.
    ///
    /// # Errors
    /// The error of the layer below.
    fn close(self) -> Result<(), Self::Error>;
}

/// An enabled endpoint of libfabric, with the GDA operations of its domain.
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

    fn device(&self) -> Option<i32> {
        self.device()
    }
}

#[cfg(feature = "verbs")]
mod rdma_core {
    use super::{Backing, Region, sealed};
    use crate::fabric::{self, Access, Buffer, RemoteRegion};
    use crate::memory::OutOfBounds;
    use crate::verbs::{self, QueuePair, Ready};
    use efa_gda_wire::LocalKey;

    impl sealed::Sealed for QueuePair<Ready> {}

    impl Backing for QueuePair<Ready> {
        type Region = verbs::MemoryRegion;
        type Error = verbs::Error;

        fn local_key(&self, region: &Self::Region) -> fabric::Result<LocalKey> {
            // The adapter would complete each request with a status that does not name the cause.
            if !self.domain().is_same(region.domain()) {
                return Err(fabric::Error::OtherDomain { operation: "MemoryRegion::local_key" });
            }
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

        // A dmabuf does not say whose memory it is.
        fn device(&self) -> Option<i32> {
            None
        }
    }
}
