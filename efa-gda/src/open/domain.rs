//! What a queue was opened on: it registers memory for the queue, and opens further queues.

use std::ptr::NonNull;

use efa_gda_wire::LocalKey;

use super::{Options, Queue, Source};
use crate::error::Result;
use crate::fabric::{GdaOps, Info};
use crate::memory::{Access, Buffer, DeviceMemory, Region};
#[cfg(feature = "verbs")]
use crate::verbs::ProtectionDomain;

/// The domain of a queue ([`Queue::domain`]). Clones are handles of one domain, which is closed when the last of them, of
/// its queues and of its regions is dropped. A domain that a transport lent is not closed.
#[derive(Clone, Debug)]
pub struct OpenDomain(pub(super) Layer);

#[derive(Clone, Debug)]
pub(super) enum Layer {
    Libfabric {
        ops: GdaOps,
        info: Info,
    },
    #[cfg(feature = "verbs")]
    RdmaCore(ProtectionDomain),
}

impl OpenDomain {
    /// Opens another queue on the domain. The options' source and adapter do not count, and with libfabric not their size
    /// of entries either.
    ///
    /// # Errors
    /// Those of [`Queue::on_domain`].
    pub fn open(&self, options: &Options) -> Result<Queue> {
        match &self.0 {
            Layer::Libfabric { ops, info } => Queue::on_domain(ops.domain(), info, options),
            #[cfg(feature = "verbs")]
            Layer::RdmaCore(domain) => Queue::on_protection_domain(domain, options),
        }
    }

    pub(super) fn source(&self) -> Source {
        match &self.0 {
            Layer::Libfabric { .. } => Source::Libfabric,
            #[cfg(feature = "verbs")]
            Layer::RdmaCore(_) => Source::RdmaCore,
        }
    }

    pub(super) fn register(&self, buffer: Buffer, access: Access) -> Result<Region> {
        match &self.0 {
            Layer::Libfabric { ops, .. } => ops.domain().register(buffer, access),
            #[cfg(feature = "verbs")]
            Layer::RdmaCore(domain) => domain.register(buffer, access),
        }
    }

    /// Registers memory of the host that the caller owns.
    ///
    /// # Safety
    /// The `length` bytes from `start` must stay mapped until the last clone of the region is dropped, and every queue
    /// that retains it is closed. Until then the adapter reads and writes the bytes as `access` allows.
    ///
    /// # Errors
    /// Those of [`Queue::allocate`].
    pub unsafe fn register_foreign(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Region> {
        // SAFETY: the caller guarantees it, as this function requires.
        unsafe {
            match &self.0 {
                Layer::Libfabric { ops, .. } => ops.domain().register_foreign(start, length, access),
                #[cfg(feature = "verbs")]
                Layer::RdmaCore(domain) => domain.register_foreign(start, length, access),
            }
        }
    }

    /// Registers memory of a GPU, which the region keeps allocated: as a dmabuf, or with libfabric by its address.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if neither is possible; those of [`Queue::allocate`].
    pub fn register_device(&self, memory: DeviceMemory, access: Access) -> Result<Region> {
        match &self.0 {
            Layer::Libfabric { ops, .. } => Ok(ops.domain().register_device(memory, access)?.0),
            #[cfg(feature = "verbs")]
            Layer::RdmaCore(domain) => domain.register_device(memory, access),
        }
    }

    /// Returns the key with which entries name a region of the domain as local memory.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for a region of another domain; with libfabric, those of
    /// [`GdaOps::get_mr_lkey`].
    pub fn local_key(&self, region: &Region) -> Result<LocalKey> {
        match &self.0 {
            Layer::Libfabric { ops, .. } => ops.get_mr_lkey(region),
            #[cfg(feature = "verbs")]
            Layer::RdmaCore(domain) => domain.local_key(region),
        }
    }
}
