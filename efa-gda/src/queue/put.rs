//! Puts: requests against registered memory, checked before anything is posted, executed by the
//! device library on the host's CPU, with a result that has a name.

use std::time::Duration;

use efa_gda_sys::device::{self, efa_gda_peer, efa_gda_put_args};
use efa_gda_wire::{CompletionStatus, Peer, RequestId};

use super::MappedQueue;
use crate::executor::DeviceError;
use crate::executor::host::{self, LaunchError};
use crate::fabric::{self, Access, MemoryRegion, RemoteRegion};

/// `count` requests of `bytes` bytes; request `i` is at `offset + i * stride` of both regions.
///
/// ```no_run
/// # use efa_gda::{fabric::{MemoryRegion, RemoteRegion}, queue::*, wire::Peer};
/// # fn f(queue: &mut MappedQueue, peer: Peer, local: MemoryRegion, remote: RemoteRegion) -> Result<(), PutError> {
/// let report = queue.put(&Put::write(peer, &local, remote).bytes(64).count(1000).stride(64))?;
/// assert_eq!(report.completed, 1000);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "does nothing before MappedQueue::put"]
pub struct Put {
    operation: u32,
    peer: Peer,
    local: MemoryRegion,
    remote: Option<RemoteRegion>,
    local_offset: u64,
    remote_offset: u64,
    bytes: u64,
    count: u64,
    local_stride: u64,
    remote_stride: u64,
    immediate: u32,
    aggregate: bool,
    timeout: Duration,
    lanes: u32,
}

/// What a put that went well did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutReport {
    /// Entries rung; more than requests where one is longer than the adapter moves at once.
    pub posted: u64,
    /// Completions read.
    pub completed: u64,
}

/// Why a put was not posted, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The bytes do not lie in the region, or its key could not be had. Nothing was posted.
    #[error("{side} memory: {source}")]
    Region {
        /// `local` or `remote`.
        side: &'static str,
        /// What is wrong.
        source: fabric::Error,
    },
    /// The region was not registered for this. Nothing was posted.
    #[error("the local region was registered for {:#x}, and this needs {:#x}: register it with that access", .has.bits(), .needs.bits())]
    Access {
        /// What the region allows.
        has: Access,
        /// What the request needs.
        needs: Access,
    },
    /// The executor did not start. Nothing was posted.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A request completed with an error. The queue can be used on.
    #[error("request {request} completed with status {}: {status} (after {completed} of {posted} completions)", .status.code())]
    Completion {
        /// How it ended.
        status: CompletionStatus,
        /// The first request that failed.
        request: RequestId,
        /// Entries rung.
        posted: u64,
        /// Completions read.
        completed: u64,
    },
    /// The device library stopped for another reason. After a wait that ran out the queue is
    /// poisoned and keeps the region until its endpoint is destroyed.
    #[error("{error} ({completed} of {posted} entries completed, {in_flight} in flight)")]
    Device {
        /// What it said.
        error: DeviceError,
        /// Entries rung.
        posted: u64,
        /// Completions read.
        completed: u64,
        /// Requests of the queue that the adapter has not completed.
        in_flight: u32,
    },
}

impl Put {
    /// A wait of this length ends a put that asks for nothing else.
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    fn new(operation: u32, peer: Peer, local: &MemoryRegion, remote: Option<RemoteRegion>) -> Self {
        Self {
            operation,
            peer,
            local: local.clone(),
            remote,
            local_offset: 0,
            remote_offset: 0,
            bytes: local.len() as u64,
            count: 1,
            local_stride: 0,
            remote_stride: 0,
            immediate: 0,
            aggregate: false,
            timeout: Self::TIMEOUT,
            lanes: 32,
        }
    }

    /// An RDMA write of the whole local region to the beginning of the remote one.
    pub fn write(peer: Peer, local: &MemoryRegion, remote: RemoteRegion) -> Self {
        Self::new(device::EFA_GDA_OP_WRITE, peer, local, Some(remote))
    }

    /// Bytes in each request.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// How many requests.
    pub fn count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }

    /// From one request to the next, in both regions, in bytes.
    pub fn stride(mut self, stride: u64) -> Self {
        (self.local_stride, self.remote_stride) = (stride, stride);
        self
    }

    /// Where the first request begins, in each region, in bytes.
    pub fn offsets(mut self, local: u64, remote: u64) -> Self {
        (self.local_offset, self.remote_offset) = (local, remote);
        self
    }

    /// Rings once at the end, and where `max_batch` asks for it, instead of as soon as it may.
    pub fn aggregate(mut self, aggregate: bool) -> Self {
        self.aggregate = aggregate;
        self
    }

    /// Bound of each wait.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Lanes of the block that posts: 1 to [`host::MAX_LANES`].
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = lanes;
        self
    }

    /// What the region must have been registered for.
    fn needs(&self) -> Access {
        match self.operation {
            device::EFA_GDA_OP_READ => Access::READ,
            device::EFA_GDA_OP_SEND | device::EFA_GDA_OP_SEND_IMM => Access::SEND,
            _ => Access::WRITE,
        }
    }

    /// Bytes from the first request's beginning to the last one's end; None past 2^64.
    fn extent(&self, stride: u64) -> Option<u64> {
        match self.count.checked_sub(1) {
            None => Some(0),
            Some(others) => others.checked_mul(stride)?.checked_add(self.bytes),
        }
    }

    /// Address of the first request, where all requests lie in the local region.
    fn local_address(&self) -> Result<u64, PutError> {
        let length = self.extent(self.local_stride).unwrap_or(u64::MAX);
        self.local.at(self.local_offset, length).map_err(|source| PutError::Region { side: "local", source })
    }

    /// Address and key of the first request, where all requests lie in the remote region.
    fn remote_memory(&self) -> Result<(u64, u32), PutError> {
        let Some(remote) = self.remote else { return Ok((0, 0)) };
        let length = self.extent(self.remote_stride).unwrap_or(u64::MAX);
        let memory = remote.at(self.remote_offset, length);
        let memory = memory.map_err(|source| PutError::Region { side: "remote", source })?;
        Ok((memory.address, memory.key.get()))
    }

    /// The arguments for the kernel, checked against both regions and the queue.
    ///
    /// # Errors
    /// [`PutError`]: nothing may be posted with them.
    pub fn arguments(&self, queue: &MappedQueue) -> Result<efa_gda_put_args, PutError> {
        let (has, needs) = (self.local.access(), self.needs());
        if !has.contains(needs) {
            return Err(PutError::Access { has, needs });
        }
        let local_address = self.local_address()?;
        let (remote_address, rkey) = self.remote_memory()?;
        let lkey = queue.local_key(&self.local);
        let lkey = lkey.map_err(|source| PutError::Region { side: "local", source })?;
        Ok(efa_gda_put_args {
            queue: queue.as_ptr().as_ptr(),
            result: std::ptr::null_mut(),
            peer: efa_gda_peer {
                ah: self.peer.address_handle.get(),
                qpn: self.peer.queue_pair.get(),
                qkey: self.peer.queue_key.get(),
            },
            op: self.operation,
            flags: if self.aggregate { device::EFA_GDA_PUT_AGGREGATE } else { 0 },
            local_address,
            remote_address,
            lkey: lkey.get(),
            rkey,
            bytes: self.bytes,
            count: self.count,
            local_stride: self.local_stride,
            remote_stride: self.remote_stride,
            immediate: self.immediate,
            reserved: 0,
            timeout_ns: self.timeout.as_nanos().try_into().unwrap_or(u64::MAX),
        })
    }
}

impl MappedQueue {
    /// Posts a put from this thread, with the host executor, and waits for all of its completions.
    ///
    /// # Errors
    /// [`PutError`]. Where a wait ran out, the queue is poisoned and keeps the local region.
    pub fn put(&mut self, put: &Put) -> Result<PutReport, PutError> {
        let args = put.arguments(self)?;
        // SAFETY: the struct was filled in from an exposure that keeps the rules, and is borrowed
        // exclusively; its rings stay mapped while the endpoint and the completion queue are open,
        // which this queue owns. Local bytes lie in a region that `put` owns.
        let ran = unsafe { host::put(&args, put.lanes) };
        self.settle(&put.local);
        let outcome = ran?;
        let (posted, completed) = (outcome.posted, outcome.completed);
        match outcome.status {
            Ok(()) => Ok(PutReport { posted, completed }),
            Err(DeviceError::Completion) => Err(PutError::Completion {
                // The status is one byte of the completion, widened for the report.
                status: CompletionStatus::from_code(outcome.completion_status as u8),
                request: RequestId::new(outcome.request_id),
                posted,
                completed,
            }),
            Err(error) => Err(PutError::Device { error, posted, completed, in_flight: self.in_flight() }),
        }
    }
}
