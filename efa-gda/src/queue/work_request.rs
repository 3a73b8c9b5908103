//! Puts: requests against registered memory, checked before anything is posted, executed by the
//! device library on the host's CPU, with a result that has a name.

use std::ops::Range;
use std::time::Duration;

use efa_gda_sys::device::{self, efa_gda_peer, efa_gda_put_args};
use efa_gda_wire::{LocalKey, Peer};

use super::MappedQueue;
use super::backing::{Backing, Region};
use super::work_error::{Asked, Limit, WorkError, WorkReport, report};
use crate::executor::host;
use crate::fabric::{Access, MemoryRegion, RemoteRegion};
use crate::readable::readable_range;

/// `count` requests of `bytes` bytes; request `i` is at `offset + i * stride` of both regions.
///
/// The first completion with an error ends it: what was posted completes, and the rest is not posted
/// ([`WorkError::Completion`] says how many of them, and names what failed by its request id, not by `i`).
///
/// ```no_run
/// # use efa_gda::{fabric::{MemoryRegion, RemoteRegion}, queue::*, wire::Peer};
/// # fn f(queue: &mut MappedQueue, peer: Peer, local: MemoryRegion, remote: RemoteRegion) -> Result<(), WorkError> {
/// let report = queue.execute(&WorkRequest::write(peer, &local, remote).bytes(64).count(1000).stride(64))?;
/// assert_eq!(report.completed, 1000);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "does nothing before MappedQueue::execute"]
pub struct WorkRequest<R: Region = MemoryRegion> {
    operation: u32,
    peer: Peer,
    local: R,
    remote: Option<RemoteRegion>,
    local_offset: u64,
    remote_offset: u64,
    bytes: u64,
    count: u64,
    local_stride: u64,
    remote_stride: u64,
    second: Option<Second<R>>,
    key: Option<LocalKey>,
    immediate: Option<u32>,
    counting: bool,
    whole: bool,
    aggregate: bool,
    timeout: Duration,
    lanes: u32,
}

/// The second piece of a send.
#[derive(Clone, Debug)]
struct Second<R> {
    region: R,
    offset: u64,
    bytes: u32,
}

impl WorkRequest {
    /// A wait of this length ends a put that asks for nothing else.
    pub const TIMEOUT: Duration = Duration::from_secs(10);
}

impl<R: Region> WorkRequest<R> {
    fn new(operation: u32, peer: Peer, local: &R, remote: Option<RemoteRegion>) -> Self {
        Self {
            operation,
            peer,
            local: local.clone(),
            remote,
            local_offset: 0,
            remote_offset: 0,
            bytes: local.length() as u64,
            count: 1,
            local_stride: 0,
            remote_stride: 0,
            second: None,
            key: None,
            immediate: None,
            counting: false,
            whole: false,
            aggregate: false,
            timeout: WorkRequest::TIMEOUT,
            lanes: 32,
        }
    }

    /// An RDMA write of the whole local region to the beginning of the remote one.
    pub fn write(peer: Peer, local: &R, remote: RemoteRegion) -> Self {
        Self::new(device::EFA_GDA_OP_WRITE, peer, local, Some(remote))
    }

    /// An RDMA write whose bytes travel inside the entry: at most 80, and only where the queue has
    /// 128-byte entries ([`crate::fabric::Query::wide_entries`]). The device code reads the bytes.
    pub fn inline_write(peer: Peer, local: &R, remote: RemoteRegion) -> Self {
        Self::new(device::EFA_GDA_OP_INLINE_WRITE, peer, local, Some(remote))
    }

    /// An RDMA read of the beginning of the remote region into all of the local one.
    pub fn read(peer: Peer, local: &R, remote: RemoteRegion) -> Self {
        Self::new(device::EFA_GDA_OP_READ, peer, local, Some(remote))
    }

    /// A message of the whole local region, into a receive that the peer posted.
    pub fn send(peer: Peer, local: &R) -> Self {
        Self::new(device::EFA_GDA_OP_SEND, peer, local, None)
    }

    /// A message whose bytes travel inside the entry: at most 32, or 80 of a 128-byte one. The device
    /// code reads the bytes.
    pub fn inline_send(peer: Peer, local: &R) -> Self {
        Self::new(device::EFA_GDA_OP_INLINE_SEND, peer, local, None)
    }

    /// Goes on with `bytes` bytes at `offset` of another region: sends only, which then gather from
    /// two segments. The second one moves with the local stride too.
    pub fn then(mut self, region: &R, offset: u64, bytes: u32) -> Self {
        self.second = Some(Second { region: region.clone(), offset, bytes });
        self
    }

    /// The target's completion carries this number. Not for reads.
    pub fn immediate(mut self, immediate: u32) -> Self {
        self.immediate = Some(immediate);
        self
    }

    /// Request i carries the immediate plus i.
    pub fn counting(mut self) -> Self {
        self.counting = true;
        self
    }

    /// A request that does not fit one entry is an error, and not split over several.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Uses this key for the local memory in place of the region's own, for memory that another
    /// registration covers too.
    pub fn with_key(mut self, key: LocalKey) -> Self {
        self.key = Some(key);
        self
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

    /// What the region must have been registered for; nothing where the device code reads it.
    fn needs(&self) -> Option<Access> {
        match self.operation {
            device::EFA_GDA_OP_READ => Some(Access::READ),
            device::EFA_GDA_OP_SEND => Some(Access::SEND),
            device::EFA_GDA_OP_WRITE => Some(Access::WRITE),
            _ => None,
        }
    }

    fn check_access(&self) -> Result<(), WorkError> {
        let Some(needs) = self.needs() else { return Ok(()) };
        let second = self.second.as_ref().map(|second| &second.region);
        for has in std::iter::once(&self.local).chain(second).map(Region::access) {
            if !has.contains(needs) {
                return Err(WorkError::Access { has, needs });
            }
        }
        Ok(())
    }

    /// The region whose bytes device code reads itself.
    pub(super) fn inline_region(&self) -> Option<&R> {
        let inline = [device::EFA_GDA_OP_INLINE_WRITE, device::EFA_GDA_OP_INLINE_SEND];
        inline.contains(&self.operation).then_some(&self.local)
    }

    /// Whether the queue has the operation, and a request of it room for the bytes.
    fn check_limits<B: Backing<Region = R>>(&self, queue: &MappedQueue<B>) -> Result<(), WorkError> {
        let limits = queue.limits();
        let unsupported = |operation, why| Err(WorkError::Unsupported { operation, why });
        let too_long = |limit, bytes, most| match bytes > most {
            true => Err(WorkError::TooLong { limit, bytes, most }),
            false => Ok(()),
        };
        if self.second.is_some() && self.operation != device::EFA_GDA_OP_SEND {
            return unsupported("a second segment", "only sends gather");
        }
        match self.operation {
            device::EFA_GDA_OP_SEND => {
                let second = self.second.as_ref().map_or(0, |second| second.bytes.into());
                too_long(Limit::Message, self.bytes.saturating_add(second), limits.message)
            }
            device::EFA_GDA_OP_INLINE_SEND => too_long(Limit::Inline, self.bytes, limits.inline_send),
            device::EFA_GDA_OP_INLINE_WRITE if limits.inline_write == 0 => {
                unsupported("an inline write", "its entries have 64 bytes; ask for 128-byte entries")
            }
            device::EFA_GDA_OP_INLINE_WRITE => too_long(Limit::Inline, self.bytes, limits.inline_write),
            device::EFA_GDA_OP_READ if self.immediate.is_some() => {
                unsupported("a read with immediate", "nothing completes at the side that is read")
            }
            _ if limits.rdma == 0 => unsupported("RDMA", "the adapter has none"),
            _ if self.whole => too_long(Limit::Rdma, self.bytes, limits.rdma),
            _ => {
                let Asked { count, each } = asked(self.operation, self.bytes, self.count, limits.rdma);
                match count.checked_mul(each) {
                    Some(_) => Ok(()),
                    None => Err(WorkError::TooMany { count, each }),
                }
            }
        }
    }

    /// Address, key and bytes of the second piece.
    fn second_piece<B: Backing<Region = R>>(
        &self,
        queue: &MappedQueue<B>,
    ) -> Result<(u64, u32, u32), WorkError> {
        let Some(Second { region, offset, bytes }) = &self.second else { return Ok((0, 0, 0)) };
        let strides = self.count.saturating_sub(1).checked_mul(self.local_stride);
        let length = strides.and_then(|begin| begin.checked_add((*bytes).into()));
        let error = |source| WorkError::Region { side: "second local", source };
        let address = region.at(*offset, length.unwrap_or(u64::MAX)).map_err(error)?;
        Ok((address, queue.local_key(region).map_err(error)?.get(), *bytes))
    }

    fn flags(&self) -> u32 {
        [
            (self.aggregate, device::EFA_GDA_PUT_AGGREGATE),
            (self.immediate.is_some(), device::EFA_GDA_PUT_IMMEDIATE),
            (self.counting, device::EFA_GDA_PUT_COUNT_IMMEDIATE),
            (self.second.is_some(), device::EFA_GDA_PUT_TWO_PIECES),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |flags, (_, flag)| flags | flag)
    }

    /// Bytes from the first request's beginning to the last one's end; None past 2^64.
    fn extent(&self, stride: u64) -> Option<u64> {
        match self.count.checked_sub(1) {
            None => Some(0),
            Some(others) => others.checked_mul(stride)?.checked_add(self.bytes),
        }
    }

    /// Address of the first request, where all requests lie in the local region.
    fn local_address(&self) -> Result<u64, WorkError> {
        let length = self.extent(self.local_stride).unwrap_or(u64::MAX);
        self.local.at(self.local_offset, length).map_err(|source| WorkError::Region { side: "local", source })
    }

    /// Address and key of the first request, where all requests lie in the remote region.
    fn remote_memory(&self) -> Result<(u64, u32), WorkError> {
        let Some(remote) = self.remote else { return Ok((0, 0)) };
        let length = self.extent(self.remote_stride).unwrap_or(u64::MAX);
        let memory = remote.at(self.remote_offset, length);
        let memory = memory.map_err(|source| WorkError::Region { side: "remote", source })?;
        Ok((memory.address, memory.key.get()))
    }

    /// The arguments for the kernel, checked against both regions and the queue.
    ///
    /// # Errors
    /// [`WorkError`]: nothing may be posted with them.
    pub fn arguments<B: Backing<Region = R>>(
        &self,
        queue: &MappedQueue<B>,
    ) -> Result<efa_gda_put_args, WorkError> {
        self.check_access()?;
        self.check_limits(queue)?;
        let local_address = self.local_address()?;
        let (remote_address, rkey) = self.remote_memory()?;
        let lkey = self.key.map_or_else(|| queue.local_key(&self.local), Ok);
        let lkey = lkey.map_err(|source| WorkError::Region { side: "local", source })?;
        let (second_address, second_lkey, second_bytes) = self.second_piece(queue)?;
        Ok(efa_gda_put_args {
            queue: queue.as_ptr().as_ptr(),
            result: std::ptr::null_mut(),
            peer: device_peer(self.peer),
            op: self.operation,
            flags: self.flags(),
            local_address,
            remote_address,
            lkey: lkey.get(),
            rkey,
            bytes: self.bytes,
            count: self.count,
            local_stride: self.local_stride,
            remote_stride: self.remote_stride,
            immediate: self.immediate.unwrap_or(0),
            reserved: 0,
            timeout_ns: self.timeout.as_nanos().try_into().unwrap_or(u64::MAX),
            second_address,
            second_lkey,
            second_bytes,
        })
    }
}

impl<B: Backing> MappedQueue<B> {
    /// Posts a put from this thread, with the host executor, and waits for all of its completions.
    ///
    /// # Errors
    /// [`WorkError`]. Where a wait ran out, the queue is poisoned and keeps the local region.
    pub fn execute(&mut self, put: &WorkRequest<B::Region>) -> Result<WorkReport, WorkError> {
        let args = put.arguments(self)?;
        self.host_reaches(put)?;
        if let Some(range) = inline_bytes(&args).filter(|_| put.local.buffer().is_none()) {
            // Others may have vouched for the region: a GPU's memory registers as well. Without a pipe to
            // find out with there is no answer, and no descriptor for anything else.
            match readable_range(range.start, range.len()) {
                Ok(true) => {}
                _ => return Err(WorkError::Unreadable),
            }
        }
        // SAFETY: the struct was filled in from an exposure that keeps the rules, and is borrowed
        // exclusively; its rings stay mapped while the endpoint and the completion queue are open,
        // which this queue owns, and the host reaches them. Local bytes lie in a region that `put`
        // owns; where device code reads them itself, the host reaches them too.
        let ran = unsafe { host::put(&args, put.lanes) };
        self.settle_put(put);
        report(ran?, self.in_flight(), asked(args.op, args.bytes, args.count, self.limits().rdma))
    }

    /// Keeps a put's memory for as long as the adapter may reach it, where that is longer than the
    /// call.
    pub(super) fn settle_put(&mut self, put: &WorkRequest<B::Region>) {
        self.settle(&put.local);
        if let Some(second) = &put.second {
            self.settle(&second.region);
        }
    }
}

/// Requests, and entries of each, where one entry carries `rdma` bytes of a read or write (put.h, `entries_per_request`).
pub(super) fn asked(op: u32, bytes: u64, count: u64, rdma: u64) -> Asked {
    let each = match op {
        device::EFA_GDA_OP_WRITE | device::EFA_GDA_OP_WRITE_IMM | device::EFA_GDA_OP_READ => {
            bytes.div_ceil(rdma.clamp(1, u32::MAX.into())).max(1)
        }
        _ => 1,
    };
    Asked { count, each }
}

/// A peer as device code names it, for kernels of the caller's.
pub fn device_peer(peer: Peer) -> efa_gda_peer {
    efa_gda_peer { ah: peer.address_handle.get(), qpn: peer.queue_pair.get(), qkey: peer.queue_key.get() }
}

/// The memory that an inline put takes its bytes from.
pub(super) fn inline_bytes(args: &efa_gda_put_args) -> Option<Range<usize>> {
    let inline = matches!(args.op, device::EFA_GDA_OP_INLINE_WRITE | device::EFA_GDA_OP_INLINE_SEND);
    if !inline || args.bytes == 0 || args.count == 0 {
        return None;
    }
    let start = args.local_address as usize;
    Some(start..start + ((args.count - 1) * args.local_stride + args.bytes) as usize)
}
