//! Work requests: operations on registered memory. They are checked before anything is posted, and the device library
//! executes them on the host's CPU.

use std::time::Duration;

use efa_gda_sys::device::{self, efa_gda_peer, efa_gda_put_args};
use efa_gda_wire::Peer;

use super::MappedQueue;
use super::inline::copy_inline_bytes;
use super::receive::nanoseconds;
use super::work_error::{Requested, WorkReport, not_possible, report, too_long, wrong_access};
use crate::error::{Error, ErrorKind, Limit, Result};
use crate::executor::host;
use crate::fabric::{Access, RemoteRegion};
use crate::memory::Region;

/// One operation, repeated `count` times: `count` transfers of `bytes` bytes, transfer `i` at `offset + i * stride` of
/// both regions. A transfer is one request; an RDMA transfer longer than the queue's limit is several
/// ([`WorkRequest::whole`]).
///
/// The first completion with an error ends the work request. Requests that were posted before still complete; the
/// others are not posted. [`Error::progress`] states how many transfers were not posted; [`ErrorKind::FailedRequest`] names the
/// failed request by its request id, not by `i`.
///
/// ```
/// # efa_gda_test_support::soft::example();
/// # use efa_gda::{Options, Queue, memory::Access, queue::WorkRequest};
/// # let mut queue = Queue::open(&Options::new())?;
/// # let peer = queue.insert_peer(&queue.address()?)?;
/// # let local = queue.allocate(64_000, Access::WRITE)?;
/// # let target = queue.allocate(64_000, Access::REMOTE_WRITE)?;
/// # let remote = target.remote();
/// let report = queue.execute(&WorkRequest::write(peer, &local, remote).bytes(64).count(1000).stride(64))?;
/// assert_eq!(report.completed, 1000);
/// # Ok::<(), efa_gda::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "does nothing before MappedQueue::execute"]
pub struct WorkRequest {
    operation: u32,
    peer: Peer,
    local: Region,
    remote: Option<RemoteRegion>,
    local_offset: u64,
    remote_offset: u64,
    bytes: u64,
    count: u64,
    local_stride: u64,
    remote_stride: u64,
    immediate: Option<u32>,
    counting: bool,
    whole: bool,
    timeout: Duration,
    lanes: u32,
}

impl WorkRequest {
    /// The default bound of each wait ([`Self::timeout`]).
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    fn new(operation: u32, peer: Peer, local: impl Into<Region>, remote: Option<RemoteRegion>) -> Self {
        let local = local.into();
        Self {
            operation,
            peer,
            remote,
            local_offset: 0,
            remote_offset: 0,
            bytes: local.len() as u64,
            local,
            count: 1,
            local_stride: 0,
            remote_stride: 0,
            immediate: None,
            counting: false,
            whole: false,
            timeout: WorkRequest::TIMEOUT,
            lanes: 32,
        }
    }

    /// An RDMA write of the whole local region to the beginning of the remote region.
    pub fn write(peer: Peer, local: impl Into<Region>, remote: RemoteRegion) -> Self {
        Self::new(device::EFA_GDA_OP_WRITE, peer, local, Some(remote))
    }

    /// An RDMA write whose bytes travel inside the entry: at most 80 bytes, and only if the queue has 128-byte entries
    /// ([`crate::fabric::Query::wide_entries`]). The device code reads the bytes.
    pub fn inline_write(peer: Peer, local: impl Into<Region>, remote: RemoteRegion) -> Self {
        Self::new(device::EFA_GDA_OP_INLINE_WRITE, peer, local, Some(remote))
    }

    /// An RDMA read of the beginning of the remote region into the whole local region.
    pub fn read(peer: Peer, local: impl Into<Region>, remote: RemoteRegion) -> Self {
        Self::new(device::EFA_GDA_OP_READ, peer, local, Some(remote))
    }

    /// A message of the whole local region, into a receive that the peer posted.
    pub fn send(peer: Peer, local: impl Into<Region>) -> Self {
        Self::new(device::EFA_GDA_OP_SEND, peer, local, None)
    }

    /// A message whose bytes travel inside the entry: at most 32 bytes, or 80 in a 128-byte entry. The device code
    /// reads the bytes.
    pub fn inline_send(peer: Peer, local: impl Into<Region>) -> Self {
        Self::new(device::EFA_GDA_OP_INLINE_SEND, peer, local, None)
    }

    /// Sets the immediate data that the target's completion carries. Not for reads.
    pub fn immediate(mut self, immediate: u32) -> Self {
        self.immediate = Some(immediate);
        self
    }

    /// Makes transfer `i` carry the immediate data plus `i`.
    pub fn counting(mut self) -> Self {
        self.counting = true;
        self
    }

    /// Makes a transfer that does not fit one request an error, instead of splitting it over several.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Sets the bytes of each transfer.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the number of transfers.
    pub fn count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }

    /// Sets the distance from one transfer to the next, in both regions, in bytes. By default 0: all at one place.
    pub fn stride(mut self, stride: u64) -> Self {
        (self.local_stride, self.remote_stride) = (stride, stride);
        self
    }

    /// Sets where the first transfer begins in each region, in bytes.
    pub fn offsets(mut self, local: u64, remote: u64) -> Self {
        (self.local_offset, self.remote_offset) = (local, remote);
        self
    }

    /// Sets the bound of each wait. It counts from the last request that completed, so a slow adapter ends a wait only
    /// if nothing completes for as long as the bound.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the lanes of the block that posts on the host: 1 to 1024.
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = lanes;
        self
    }

    /// Returns the access that the local region must be registered for. None for inline requests, whose bytes the
    /// device code reads.
    fn required_access(&self) -> Option<Access> {
        match self.operation {
            device::EFA_GDA_OP_READ => Some(Access::READ),
            device::EFA_GDA_OP_SEND => Some(Access::SEND),
            device::EFA_GDA_OP_WRITE => Some(Access::WRITE),
            _ => None,
        }
    }

    fn check_access(&self) -> Result<()> {
        let Some(needs) = self.required_access() else { return Ok(()) };
        let has = self.local.access();
        match has.contains(needs) {
            true => Ok(()),
            false => Err(wrong_access("the local region", has, "this request needs", needs)),
        }
    }

    /// Returns the region whose bytes the device code reads.
    pub(crate) fn inline_region(&self) -> Option<&Region> {
        let inline = [device::EFA_GDA_OP_INLINE_WRITE, device::EFA_GDA_OP_INLINE_SEND];
        inline.contains(&self.operation).then_some(&self.local)
    }

    /// Checks that the queue supports the operation, and that a request is within the limits.
    fn check_limits(&self, queue: &MappedQueue) -> Result<()> {
        let limits = queue.limits();
        let unsupported = |operation, why| Err(not_possible(operation, why));
        let within = |limit, bytes, most| match bytes > most {
            true => Err(too_long(limit, bytes, most)),
            false => Ok(()),
        };
        match self.operation {
            device::EFA_GDA_OP_SEND => within(Limit::Message, self.bytes, limits.message),
            device::EFA_GDA_OP_INLINE_SEND => within(Limit::Inline, self.bytes, limits.inline_send),
            device::EFA_GDA_OP_INLINE_WRITE if limits.inline_write == 0 => unsupported(
                "an inline write",
                "the queue's entries have 64 bytes; open it with 128-byte entries",
            ),
            device::EFA_GDA_OP_INLINE_WRITE => within(Limit::Inline, self.bytes, limits.inline_write),
            device::EFA_GDA_OP_READ if !limits.reads => {
                unsupported("an RDMA read", "the adapter does not support it; let the other side write")
            }
            device::EFA_GDA_OP_READ if self.immediate.is_some() => unsupported(
                "a read with immediate",
                "a read has no completion at its target; omit the immediate",
            ),
            _ if limits.rdma == 0 => unsupported("RDMA", "the adapter does not support it; use sends"),
            _ if self.whole => within(Limit::Rdma, self.bytes, limits.rdma),
            _ => {
                let Requested { count, each } =
                    requested(self.operation, self.bytes, self.count, limits.rdma);
                match count.checked_mul(each) {
                    Some(_) => Ok(()),
                    None => Err(Error::argument(format!(
                        "{count} transfers of {each} entries each are more entries than can be counted"
                    ))
                    .with_hint("ask for fewer transfers at once")),
                }
            }
        }
    }

    fn flags(&self) -> u32 {
        [
            (self.immediate.is_some(), device::EFA_GDA_PUT_IMMEDIATE),
            (self.counting, device::EFA_GDA_PUT_COUNT_IMMEDIATE),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |flags, (_, flag)| flags | flag)
    }

    /// Returns the bytes from the beginning of the first transfer to the end of the last; None past 2^64.
    fn extent(&self, stride: u64) -> Option<u64> {
        match self.count.checked_sub(1) {
            None => Some(0),
            Some(others) => others.checked_mul(stride)?.checked_add(self.bytes),
        }
    }

    /// Returns the address of the first transfer, if all transfers are within the local region.
    fn local_address(&self) -> Result<u64> {
        let length = self.extent(self.local_stride).unwrap_or(u64::MAX);
        self.local.at(self.local_offset, length).map_err(|error| unusable("local", error))
    }

    /// Returns address and key of the first transfer, if all transfers are within the remote region.
    fn remote_memory(&self) -> Result<(u64, u32)> {
        let Some(remote) = self.remote else { return Ok((0, 0)) };
        let length = self.extent(self.remote_stride).unwrap_or(u64::MAX);
        let memory = remote.at(self.remote_offset, length);
        let memory = memory.map_err(|error| unusable("remote", error))?;
        Ok((memory.address, memory.key.get()))
    }

    /// Returns the arguments for the put kernel, checked against both regions and the queue.
    ///
    /// # Errors
    /// [`Error`] if the request must not be posted.
    pub fn arguments(&self, queue: &MappedQueue) -> Result<efa_gda_put_args> {
        self.check_access()?;
        self.check_limits(queue)?;
        let local_address = self.local_address()?;
        let (remote_address, rkey) = self.remote_memory()?;
        let lkey = queue.local_key(&self.local).map_err(|error| unusable("local", error))?;
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
            timeout_ns: nanoseconds(self.timeout),
            ..Default::default()
        })
    }
}

/// The bytes are outside of the region, or the region has no key. Nothing was posted.
fn unusable(side: &str, error: Error) -> Error {
    error
        .within(format!("the {side} memory cannot be used for this work request"))
        .of_kind(ErrorKind::Argument)
}

impl MappedQueue {
    /// Executes a work request on this thread, with the host executor, and waits for all of its completions.
    ///
    /// # Errors
    /// [`Error`]. If a wait timed out, the queue is poisoned and retains the local region.
    pub fn execute(&mut self, work: &WorkRequest) -> Result<WorkReport> {
        let mut args = work.arguments(self)?;
        self.require_host_executes(work)?;
        let _inline = copy_inline_bytes(&mut args, work.local.buffer())?;
        // SAFETY: the struct was filled in from a checked exposure, and is borrowed exclusively. Its rings stay mapped
        // while the endpoint and the completion queue are open, which this queue owns, and the host can access them.
        // Local bytes are in a region that `work` owns; those that device code reads are in `_inline`.
        let ran = unsafe { host::put(&args, work.lanes) };
        self.retain_region_in_use(work);
        report(ran?, self.in_flight(), requested(args.op, args.bytes, args.count, self.limits().rdma))
    }

    /// Retains the local region of a work request if the adapter may still access it.
    pub(crate) fn retain_region_in_use(&mut self, work: &WorkRequest) {
        self.retain_if_in_use(&work.local);
    }
}

/// Returns the number of transfers, and the entries of each if one entry of an RDMA read or write carries at most
/// `rdma` bytes (put.h, `entries_per_transfer`).
pub(crate) fn requested(op: u32, bytes: u64, count: u64, rdma: u64) -> Requested {
    let each = match op {
        device::EFA_GDA_OP_WRITE | device::EFA_GDA_OP_WRITE_IMM | device::EFA_GDA_OP_READ => {
            bytes.div_ceil(rdma.clamp(1, u32::MAX.into())).max(1)
        }
        _ => 1,
    };
    Requested { count, each }
}

/// Converts a peer for device code, for the caller's kernels.
pub fn device_peer(peer: Peer) -> efa_gda_peer {
    efa_gda_peer { ah: peer.address_handle.get(), qpn: peer.queue_pair.get(), qkey: peer.queue_key.get() }
}
