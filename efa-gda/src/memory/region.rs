//! Regions: their memory, bounds of byte ranges, a peer's region, and how much one request moves.

use std::fmt;
use std::ops::Range;

use efa_gda_wire::{RemoteKey, RemoteMemory};

use super::{Buffer, Owner};

/// A byte range that does not lie in its buffer or region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range of length {length} at offset {offset} is not in a region of length {region}; {}", self.hint())]
pub struct OutOfBounds {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub length: u64,
    /// Length of the buffer or region, in bytes.
    pub region: u64,
}

impl OutOfBounds {
    /// What to do about it.
    pub(crate) fn hint(&self) -> &'static str {
        "name bytes inside the region"
    }
}

/// The range as indices into a region of `region` bytes.
pub(crate) fn in_bounds(offset: u64, length: u64, region: u64) -> Result<Range<usize>, OutOfBounds> {
    match offset.checked_add(length) {
        Some(end) if end <= region => Ok(offset as usize..end as usize),
        _ => Err(OutOfBounds { offset, length, region }),
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

impl RegionMemory {
    /// The host memory that the region owns.
    pub(crate) fn buffer(&self) -> Option<&Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The CUDA ordinal of the GPU whose memory it is, if that is known.
    pub(crate) fn device(&self) -> Option<i32> {
        match self {
            Self::Device { ordinal, .. } => Some(*ordinal),
            _ => None,
        }
    }

    /// The value that keeps GPU memory allocated, if it is a `T`.
    pub(crate) fn owner<T: std::any::Any>(&self) -> Option<&T> {
        match self {
            Self::Device { owner, .. } => owner.downcast_ref(),
            _ => None,
        }
    }
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
    /// [`OutOfBounds`] where they do not lie in the region.
    pub fn at(&self, offset: u64, length: u64) -> Result<RemoteMemory, OutOfBounds> {
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

impl From<OutOfBounds> for crate::Error {
    fn from(error: OutOfBounds) -> Self {
        Self::new(crate::ErrorKind::Argument, error)
    }
}
