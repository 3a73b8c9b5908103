//! What a queue was opened with: libfabric, or rdma-core alone. The rest of the queue is the same for both.

use efa_gda_wire::LocalKey;

use crate::Result;
#[cfg(feature = "verbs")]
use crate::fabric;
use crate::fabric::{Endpoint, GdaOps};
use crate::memory::{Region, RetainedRegions};
#[cfg(feature = "verbs")]
use crate::verbs::QueuePair;

/// What a [`super::MappedQueue`] owns, so that nothing else posts to the queue.
#[derive(Debug)]
pub(crate) enum Backing {
    /// An enabled endpoint, with the GDA operations of its domain.
    Libfabric { endpoint: Endpoint, ops: GdaOps },
    #[cfg(feature = "verbs")]
    RdmaCore(QueuePair),
}

impl Backing {
    /// Returns the key of a region, for entries. The adapter would complete each request with a region of another
    /// domain with a status that does not name the cause.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for a region of another domain; with libfabric, errors of
    /// [`GdaOps::get_mr_lkey`].
    pub(super) fn local_key(&self, region: &Region) -> Result<LocalKey> {
        match self {
            Self::Libfabric { ops, .. } => ops.get_mr_lkey(region),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(pair) => pair
                .domain()
                .local_key(region)
                .map_err(|_| fabric::error::other_domain("MappedQueue::local_key")),
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

    /// Regions that the backing retains until it is closed. `local_key` has accepted each.
    pub(super) fn regions(&mut self) -> &mut RetainedRegions {
        match self {
            Self::Libfabric { endpoint, .. } => endpoint.regions(),
            #[cfg(feature = "verbs")]
            Self::RdmaCore(pair) => pair.regions(),
        }
    }
}
