//! Receives: posted by device code, their completions taken from the queue's inbox, each with its
//! length, immediate and source. It moves no bytes: the adapter put them into the posted memory.

use std::time::Duration;

use efa_gda_wire::{
    AddressHandle, Completion, CompletionKind, CompletionStatus, OperationCode, QueuePairNumber,
    RequestIdWidth, UNKNOWN_ADDRESS_HANDLE,
};

use super::backing::{Backing, Region};
use super::{Limit, MappedQueue, WorkRequest};
use crate::executor::DeviceError;
use crate::executor::host::{self, InboxEntry};
use crate::fabric::{self, Access, MemoryRegion};

/// Bytes that one receive takes at most: its descriptor has 16 bits for the length
/// (`efa_io_rx_desc::length`).
const LONGEST: u64 = u16::MAX as u64;
/// Completions taken at once.
pub(super) const AT_ONCE: usize = 256;

/// A posted receive, as its completion names it (`efa_io_rx_desc::req_id`). Used again after 2^16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiveId(u16);

impl ReceiveId {
    /// The number in the descriptor.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// How many receives were posted from `first` on before this one.
    pub const fn after(self, first: Self) -> u16 {
        self.0.wrapping_sub(first.0)
    }
}

/// `count` receives of `bytes` bytes; the i-th at `offset + i * stride` of the region.
///
/// ```no_run
/// # use std::time::Duration;
/// # use efa_gda::{fabric::MemoryRegion, queue::*};
/// # fn f(queue: &mut MappedQueue, region: MemoryRegion) -> Result<(), ReceiveError> {
/// let posted = queue.post_receives(&Receives::new(&region).bytes(4096).count(16).stride(4096))?;
/// let message = queue.receive(Duration::from_secs(10))?;
/// let place = message.receive.map(|id| id.after(posted.first) as usize * 4096);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "does nothing before MappedQueue::post_receives"]
pub struct Receives<R: Region = MemoryRegion> {
    region: R,
    offset: u64,
    bytes: u64,
    count: u32,
    stride: u64,
    timeout: Duration,
}

/// What was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostedReceives {
    /// The first; the others follow it.
    pub first: ReceiveId,
    /// How many.
    pub count: u32,
}

/// What arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The receive that it used up; none for an RDMA write that needed none.
    pub receive: Option<ReceiveId>,
    /// How the receive ended.
    pub status: CompletionStatus,
    /// Bytes that arrived.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Who sent it.
    pub source: Source,
    /// What it is.
    pub arrival: Arrival,
}

/// A sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// This adapter's handle for the sender's; none where it has none.
    pub address_handle: Option<AddressHandle>,
    /// The sender's queue pair.
    pub queue_pair: QueuePairNumber,
}

/// What a completion of the receive side speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arrival {
    /// A message, in the memory of the receive.
    Message,
    /// An RDMA write with immediate; its bytes are where the writer put them.
    Write,
    /// An operation that this version does not know.
    Unknown(u8),
}

/// Why nothing was posted to receive, or nothing received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The endpoint's receives complete elsewhere.
    #[error(
        "the queue takes no receives: bind the endpoint's receive side to the completion queue of its send side"
    )]
    NoReceiveQueue,
    /// The bytes do not lie in the region, or its key could not be had. Nothing was posted.
    #[error("receive memory: {0}")]
    Region(fabric::Error),
    /// The region was not registered for receives. Nothing was posted.
    #[error("the region was registered for {:#x}, and this needs {:#x}: register it with that access", .has.bits(), .needs.bits())]
    Access {
        /// What the region allows.
        has: Access,
        /// What receives need.
        needs: Access,
    },
    /// A receive of more bytes than a descriptor can say. Nothing was posted.
    #[error("{bytes} bytes are more than {limit} allows, which is {most}; {}", .limit.hint())]
    TooLong {
        /// The limit.
        limit: Limit,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that it allows.
        most: u64,
    },
    /// The host cannot look at the completion queue. Nothing was posted or taken.
    #[error("receiving on the host is not possible on this queue: {why}")]
    NotOnHost {
        /// What is missing.
        why: &'static str,
    },
    /// The GPU does not reach what it would post receives through. Nothing was posted.
    #[error(
        "the GPU posts no receives on this queue: {why}; post them from the host before the queue is mapped"
    )]
    NotMapped {
        /// What CUDA refused.
        why: String,
    },
    /// The queue is lent, and those whom it is lent to use it. Nothing was posted or taken.
    #[error("the queue is lent to {launches} launch(es); wait for them and drop what was lent")]
    LaunchGuard {
        /// Values of [`super::LaunchGuard`] that live.
        launches: usize,
    },
    /// The GPU failed, or could not start the kernel. What was posted stays posted.
    #[error(transparent)]
    Gpu(#[from] crate::gpu::Error),
    /// No room came within the bound.
    #[error("the receive queue stayed full past the bound: {posted} of {count} receives were posted")]
    Full {
        /// Receives that were posted.
        posted: u32,
        /// Receives asked for.
        count: u32,
    },
    /// Nothing came within the bound. The receives stay posted.
    #[error("nothing was received within the bound")]
    Timeout,
    /// Nobody took completions for so long that the inbox was full. What the receives' memory holds is
    /// not known.
    #[error(
        "{count} completions of receives were lost: take them more often, or open a deeper completion queue"
    )]
    Lost {
        /// How many, since this was said last.
        count: u32,
    },
    /// A receive completed with an error.
    #[error("a receive completed with status {}: {status}", .status.code())]
    Completion {
        /// How it ended.
        status: CompletionStatus,
        /// Which receive.
        receive: Option<ReceiveId>,
    },
    /// The device library stopped for another reason.
    #[error(transparent)]
    Device(DeviceError),
}

impl<R: Region> Receives<R> {
    /// One receive of the whole region, or of as much of it as one receive can take.
    pub fn new(region: &R) -> Self {
        Self {
            region: region.clone(),
            offset: 0,
            bytes: (region.length() as u64).min(LONGEST),
            count: 1,
            stride: 0,
            timeout: WorkRequest::TIMEOUT,
        }
    }

    /// Bytes of each receive: at most 65535.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// How many receives.
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// From one receive to the next, in bytes.
    pub fn stride(mut self, stride: u64) -> Self {
        self.stride = stride;
        self
    }

    /// Where the first receive begins, in bytes.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Bound of the wait for room in the receive queue.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The receives as device code takes them, checked against the region.
    pub(super) fn arguments<B: Backing<Region = R>>(
        &self,
        queue: &MappedQueue<B>,
    ) -> Result<host::Receives, ReceiveError> {
        if queue.limits().receives == 0 {
            return Err(ReceiveError::NoReceiveQueue);
        }
        let (has, needs) = (self.region.access(), Access::RECEIVE);
        if !has.contains(needs) {
            return Err(ReceiveError::Access { has, needs });
        }
        if self.bytes > LONGEST {
            return Err(ReceiveError::TooLong { limit: Limit::Receive, bytes: self.bytes, most: LONGEST });
        }
        let others = u64::from(self.count.saturating_sub(1));
        let extent = others.checked_mul(self.stride).and_then(|begin| begin.checked_add(self.bytes));
        let address = self.region.at(self.offset, extent.unwrap_or(u64::MAX));
        let key = queue.local_key(&self.region);
        Ok(host::Receives {
            address: address.map_err(ReceiveError::Region)?,
            stride: self.stride,
            timeout_ns: nanoseconds(self.timeout),
            lkey: key.map_err(ReceiveError::Region)?.get(),
            // At most LONGEST.
            length: self.bytes as u32,
            count: self.count,
            reserved: 0,
        })
    }
}

/// The one that was asked for.
pub(super) fn only(received: &[Received]) -> Result<Received, ReceiveError> {
    // Without an error there is at least one.
    let received = received.first().copied().ok_or(ReceiveError::Timeout)?;
    match received.status {
        CompletionStatus::Ok => Ok(received),
        status => Err(ReceiveError::Completion { status, receive: received.receive }),
    }
}

pub(super) fn nanoseconds(timeout: Duration) -> u64 {
    timeout.as_nanos().try_into().unwrap_or(u64::MAX)
}

impl<B: Backing> MappedQueue<B> {
    /// Posts receives, and keeps their region until each completed or the endpoint is closed.
    ///
    /// # Errors
    /// [`ReceiveError`]. What was posted before the queue stayed full stays posted.
    pub fn post_receives(&mut self, receives: &Receives<B::Region>) -> Result<PostedReceives, ReceiveError> {
        let args = receives.arguments(self)?;
        self.host_receives()?;
        // SAFETY: the struct was filled in from an exposure that keeps the rules, and is borrowed
        // exclusively; its rings stay mapped while the endpoint, which this queue owns, is open.
        let posted = unsafe { host::post_receives(self.as_ptr().as_ptr(), &args) };
        self.posted(receives, posted)
    }

    /// Keeps the region of what was posted, and says how that went.
    pub(super) fn posted(
        &mut self,
        receives: &Receives<B::Region>,
        posted: host::PostedReceives,
    ) -> Result<PostedReceives, ReceiveError> {
        for index in 0..posted.count {
            // The low 16 bits are what the descriptor carries.
            self.backing.receive_posted(posted.first.wrapping_add(index) as u16, receives.region.clone());
        }
        match posted.status {
            Ok(()) => Ok(PostedReceives { first: ReceiveId(posted.first as u16), count: posted.count }),
            Err(DeviceError::TimeoutSlots) => {
                Err(ReceiveError::Full { posted: posted.count, count: receives.count })
            }
            Err(error) => Err(ReceiveError::Device(error)),
        }
    }

    /// Keeps the region of receives of which nobody knows whether they were posted.
    pub(super) fn maybe_posted(&mut self, receives: &Receives<B::Region>) {
        self.backing.retain(receives.region.clone());
    }

    fn host_receives(&self) -> Result<(), ReceiveError> {
        self.host_is_blind().map_or(Ok(()), |why| Err(ReceiveError::NotOnHost { why }))
    }

    /// Waits for one message, or one RDMA write with immediate.
    ///
    /// # Errors
    /// [`ReceiveError`]; one that completed with an error is [`ReceiveError::Completion`].
    pub fn receive(&mut self, timeout: Duration) -> Result<Received, ReceiveError> {
        only(&self.receive_many(1, timeout)?)
    }

    /// Waits for the first of at most `most` arrivals and returns those that are there, in the order
    /// of their completions, with whatever status.
    ///
    /// # Errors
    /// [`ReceiveError::Timeout`] where none came, [`ReceiveError::Lost`] before anything else where
    /// completions were lost, [`ReceiveError::NoReceiveQueue`], [`ReceiveError::Device`].
    pub fn receive_many(&mut self, most: usize, timeout: Duration) -> Result<Vec<Received>, ReceiveError> {
        self.tell_lost()?;
        self.host_receives()?;
        let mut entries = [InboxEntry::default(); AT_ONCE];
        let entries = &mut entries[..most.min(AT_ONCE)];
        // SAFETY: as in `post_receives`.
        let (count, status) =
            unsafe { host::take_received(self.as_ptr().as_ptr(), entries, nanoseconds(timeout)) };
        self.taken(&entries[..count], status)
    }

    /// Refuses a queue without receives, and says what was lost since this was said last.
    pub(super) fn tell_lost(&mut self) -> Result<(), ReceiveError> {
        if self.limits().inbox == 0 {
            return Err(ReceiveError::NoReceiveQueue);
        }
        let lost = self.lost_receives();
        if lost != self.lost {
            let count = lost.wrapping_sub(std::mem::replace(&mut self.lost, lost));
            return Err(ReceiveError::Lost { count });
        }
        Ok(())
    }

    /// What completions that were taken say, and lets go of their receives' memory.
    pub(super) fn taken(
        &mut self,
        entries: &[InboxEntry],
        status: Result<(), DeviceError>,
    ) -> Result<Vec<Received>, ReceiveError> {
        match status {
            Ok(()) => entries.iter().map(|entry| self.received(entry)).collect(),
            Err(DeviceError::TimeoutCompletion) => Err(ReceiveError::Timeout),
            Err(error) => Err(ReceiveError::Device(error)),
        }
    }

    fn received(&mut self, entry: &InboxEntry) -> Result<Received, ReceiveError> {
        // Receives have 16-bit ids whatever the send queue has.
        let completion = Completion::decode(&entry.0, RequestIdWidth::Bits16);
        let completion = completion.map_err(|_| ReceiveError::Device(DeviceError::BadCompletion))?;
        let CompletionKind::Receive(info) = completion.kind else {
            return Err(ReceiveError::Device(DeviceError::BadCompletion));
        };
        let id = ReceiveId(completion.id.get() as u16);
        if completion.queue_pair != self.number() {
            return Err(ReceiveError::Device(DeviceError::BadCompletion));
        }
        if !info.unsolicited {
            self.backing.receive_completed(id.0);
        }
        let handle = Some(info.address_handle).filter(|handle| *handle != UNKNOWN_ADDRESS_HANDLE);
        Ok(Received {
            receive: (!info.unsolicited).then_some(id),
            status: completion.status,
            length: info.length,
            immediate: info.immediate,
            source: Source { address_handle: handle, queue_pair: info.source_queue_pair },
            arrival: match OperationCode::from_number(completion.operation_code.into()) {
                Some(OperationCode::Send) => Arrival::Message,
                Some(OperationCode::Write) => Arrival::Write,
                _ => Arrival::Unknown(completion.operation_code),
            },
        })
    }

    /// Completions of receives that found the inbox full, modulo 2^32.
    fn lost_receives(&self) -> u32 {
        let queue = self.as_ptr().as_ptr();
        // SAFETY: the struct lives as long as the queue; the word is read volatile, for device code
        // may be changing it.
        unsafe { (&raw const (*queue).completion.lost).read_volatile() }
    }
}
