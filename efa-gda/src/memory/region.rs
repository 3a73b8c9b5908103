//! Regions: their memory, bounds of byte ranges, a peer's region, and how much one request moves.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use efa_gda_wire::{RemoteKey, RemoteMemory};

use super::{Access, Buffer, Owner, RegionOrdering};
use crate::object::{Destroy, Object, into_sole_owner};
use crate::{Error, Result};

/// The range as indices into a region of `region` bytes.
pub(crate) fn in_bounds(offset: u64, length: u64, region: u64) -> Result<Range<usize>> {
    match offset.checked_add(length) {
        Some(end) if end <= region => Ok(offset as usize..end as usize),
        _ => {
            let text = format!(
                "the range of length {length} at offset {offset} is not in a region of length {region}"
            );
            Err(Error::argument(text).with_hint("name bytes inside the region"))
        }
    }
}

/// Registered memory: a handle of a memory region of libfabric or of rdma-core, which requests and receives name. Clones
/// are handles of one region, which is deregistered when the last clone is dropped. Memory that the region owns is freed
/// after that.
#[derive(Clone, Debug)]
pub struct Region(Arc<Registered>);

/// A region and its memory.
#[derive(Debug)]
pub(crate) struct Registered {
    /// The library's object, which is deregistered before the memory is released.
    pub(crate) object: Box<dyn RegionObject>,
    pub(crate) memory: Arc<RegionMemory>,
    /// The address of the first byte, as entries carry it.
    pub(crate) address: u64,
    pub(crate) length: usize,
    pub(crate) access: Access,
    pub(crate) ordering: RegionOrdering,
    pub(crate) remote_key: RemoteKey,
}

/// The object of a region, in the library that registered it. It keeps the memory allocated if it cannot be closed.
pub(crate) trait RegionObject: Any + fmt::Debug + Send + Sync {
    /// Deregisters the memory and reports the result.
    fn close(self: Box<Self>) -> Result<()>;
}

impl<T, P> RegionObject for Object<T, P>
where
    T: Destroy<Library: Send + Sync> + 'static,
    P: Send + Sync + 'static,
{
    fn close(self: Box<Self>) -> Result<()> {
        Self::close(*self)
    }
}

impl From<Registered> for Region {
    fn from(registered: Registered) -> Self {
        Self(Arc::new(registered))
    }
}

impl From<&Self> for Region {
    fn from(region: &Self) -> Self {
        region.clone()
    }
}

impl Region {
    /// Deregisters the memory and reports the result. Where it fails, memory that the region owns stays allocated until
    /// the process ends.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) while a clone, a work request or a queue uses it; the error of the
    /// library. The handle is dropped in either case.
    pub fn close(self) -> Result<()> {
        let busy = |holders| {
            Error::busy(format!(
                "the memory region was not closed: {holders} other handle(s) use it; {REGION_IN_USE_HINT}"
            ))
        };
        into_sole_owner(self.0).map_err(busy)?.object.close()
    }

    /// As [`Self::close`], but hands the region back if it is busy.
    ///
    /// # Errors
    /// The region, while another handle of it exists. The inner result is that of the deregistration.
    pub fn try_close(self) -> Result<Result<()>, Self> {
        Arc::try_unwrap(self.0).map(|registered| registered.object.close()).map_err(Self)
    }

    /// Returns the address of the first byte, as entries carry it. It is an address of the host, or of a GPU.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no memory region is empty")]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Returns the access that the region was registered for.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Returns the order of writes to the region that users may rely on. A kernel driver that ignores
    /// [`Access::RELAXED_ORDERING`] keeps the strict order all the same.
    pub fn ordering(&self) -> RegionOrdering {
        self.0.ordering
    }

    /// Returns the memory of the host, if the region owns it.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &*self.0.memory {
            RegionMemory::Buffer(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// Returns the value that keeps memory of a GPU allocated, if it is a `T`.
    pub fn owner<T: Any>(&self) -> Option<&T> {
        match &*self.0.memory {
            RegionMemory::Device { owner, .. } => owner.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the key with which peers access the region.
    pub fn remote_key(&self) -> RemoteKey {
        self.0.remote_key
    }

    /// Returns all of the region, as a peer names it.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion { address: self.address(), length: self.len() as u64, key: self.remote_key() }
    }

    /// Returns the address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) where they do not lie in the region.
    pub fn at(&self, offset: u64, length: u64) -> Result<u64> {
        in_bounds(offset, length, self.len() as u64)?;
        Ok(self.address() + offset)
    }

    /// Returns the CUDA ordinal of the GPU whose memory it is; None for memory of the host.
    pub(crate) fn device(&self) -> Option<i32> {
        match &*self.0.memory {
            RegionMemory::Device { ordinal, .. } => Some(*ordinal),
            _ => None,
        }
    }

    /// Whether the host's CPU can access the region's bytes at its address.
    pub(crate) fn on_host(&self) -> bool {
        self.device().is_none()
    }

    /// The library's object, if it is a `T`.
    pub(crate) fn object<T: RegionObject>(&self) -> Option<&T> {
        (&*self.0.object as &dyn Any).downcast_ref()
    }
}

/// The memory of a registered region, with what keeps it allocated.
pub(crate) enum RegionMemory {
    /// Host memory that the region owns.
    Buffer(Buffer),
    /// GPU memory, with the value that keeps it allocated.
    Device { ordinal: i32, owner: Owner },
    /// Host memory of the caller.
    Foreign,
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(buffer) => buffer.fmt(f),
            Self::Device { ordinal, .. } => write!(f, "of GPU {ordinal}"),
            Self::Foreign => f.write_str("the caller's"),
        }
    }
}

/// How to close a memory region that other handles still refer to.
pub(crate) const REGION_IN_USE_HINT: &str = "clones, work requests, receives that have not completed, and queues \
     with requests in flight or poisoned hold it: drop clones and work requests, wait until queues in flight are \
     quiet, destroy poisoned queues; close dropped this handle, and the last handle deregisters the region (try_close \
     hands the handle back)";

/// A peer's memory region, as the peer describes it. The application exchanges the three values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Address of the first byte at the peer.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The peer's key for the region.
    pub key: RemoteKey,
}

impl RemoteRegion {
    /// `length` bytes at `offset`, as an entry names them.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) where they do not lie in the region.
    pub fn at(&self, offset: u64, length: u64) -> Result<RemoteMemory> {
        in_bounds(offset, length, self.length)?;
        Ok(RemoteMemory { address: self.address.wrapping_add(offset), key: self.key })
    }
}

/// How many bytes one request of an endpoint or queue pair moves at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a SEND.
    pub message: usize,
    /// Bytes of an RDMA read or write; 0 where the adapter has neither.
    pub rdma: usize,
    /// Whether the adapter executes RDMA reads.
    pub reads: bool,
}
