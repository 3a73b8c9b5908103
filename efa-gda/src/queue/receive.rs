//! Receives: posted by device code. Their completions are taken from the queue's inbox, each with its length, immediate
//! data and source. This module moves no bytes: the adapter writes them into the posted memory.

use std::time::Duration;

use efa_gda_sys::device::{efa_gda_receive_args, efa_gda_receive_result};
use efa_gda_wire::{
    AddressHandle, Completion, CompletionKind, CompletionStatus, OperationCode, QueuePairNumber,
    RequestIdWidth, UNKNOWN_ADDRESS_HANDLE,
};

use super::work_error::{too_long, wrong_access};
use super::{Limit, MappedQueue, WorkRequest};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::host::{self, InboxEntry};
use crate::memory::{Access, Region};
use crate::status::{DeviceError, outcome};

/// Most bytes of one receive: the length field of a descriptor has 16 bits (`efa_io_rx_desc::length`).
const LONGEST: u64 = u16::MAX as u64;
/// Most completions that one call takes.
pub(crate) const AT_ONCE: usize = 256;

/// The id of a posted receive, which its completion carries (`efa_io_rx_desc::req_id`). Ids repeat after 2^16 receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiveId(u16);

impl ReceiveId {
    /// Returns the number in the descriptor.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns how many receives were posted after `first` up to this one, modulo 2^16.
    pub const fn after(self, first: Self) -> u16 {
        self.0.wrapping_sub(first.0)
    }
}

/// `count` receives of `bytes` bytes, the i-th at `offset + i * stride` of the region.
///
/// ```
/// # efa_gda_test_support::soft::example();
/// # use std::time::Duration;
/// # use efa_gda::{Options, Queue, memory::Access, queue::{Receives, WorkRequest}};
/// # let mut queue = Queue::open(&Options::new())?;
/// # let peer = queue.insert_peer(&queue.address()?)?;
/// # let region = queue.allocate(16 * 4096, Access::RECEIVE)?;
/// # let message = queue.allocate(100, Access::SEND)?;
/// let posted = queue.post_receives(&Receives::new(&region).bytes(4096).count(16).stride(4096))?;
/// # queue.execute(&WorkRequest::send(peer, &message))?;
/// let message = queue.receive_many(1, Duration::from_secs(10))?[0];
/// let offset = message.receive.map(|id| id.after(posted.first) as usize * 4096);
/// # assert_eq!((offset, message.length), (Some(0), 100));
/// # Ok::<(), efa_gda::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "does nothing before MappedQueue::post_receives"]
pub struct Receives {
    region: Region,
    offset: u64,
    bytes: u64,
    count: u32,
    stride: u64,
    timeout: Duration,
}

/// Receives that were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostedReceives {
    /// Id of the first receive; the ids of the others follow it.
    pub first: ReceiveId,
    /// Number of receives.
    pub count: u32,
}

/// A completion of the receive side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The receive that was consumed; none for an RDMA write that needed none.
    pub receive: Option<ReceiveId>,
    /// Status of the completion.
    pub status: CompletionStatus,
    /// Bytes that arrived.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The sender.
    pub source: MessageSource,
    /// The sender's operation.
    pub arrival: Arrival,
}

/// A sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageSource {
    /// This adapter's address handle of the sender, if it has one.
    pub address_handle: Option<AddressHandle>,
    /// The sender's queue pair.
    pub queue_pair: QueuePairNumber,
}

/// The operation that caused a completion of the receive side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arrival {
    /// A message, in the memory of the receive.
    Message,
    /// An RDMA write with immediate data. Its bytes are at the address that the writer chose.
    Write,
    /// An operation that this version does not know.
    Unknown(u8),
}

/// The endpoint's receives complete on another completion queue.
pub(crate) fn no_receive_queue() -> Error {
    Error::unsupported(
        "the queue takes no receives, because they complete on another completion queue than its requests: bind both \
         sides of the endpoint to one completion queue",
    )
}

fn stopped(error: DeviceError) -> Error {
    Error::new(ErrorKind::Device(error), error.to_string())
}

impl Receives {
    /// One receive of the whole region, or of its first 65535 bytes.
    pub fn new(region: impl Into<Region>) -> Self {
        let region = region.into();
        Self {
            offset: 0,
            bytes: (region.len() as u64).min(LONGEST),
            count: 1,
            stride: 0,
            timeout: WorkRequest::TIMEOUT,
            region,
        }
    }

    /// Sets the bytes of each receive, at most 65535.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the number of receives.
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Sets the distance from one receive to the next, in bytes. By default 0: all at one place.
    pub fn stride(mut self, stride: u64) -> Self {
        self.stride = stride;
        self
    }

    /// Sets where the first receive begins in the region, in bytes.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the bound of the wait for free slots in the receive queue. It counts from the last slot that became free.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the arguments for the device library, checked against the region and the queue.
    pub(crate) fn arguments(&self, queue: &MappedQueue) -> Result<efa_gda_receive_args> {
        if queue.limits().receives == 0 {
            return Err(no_receive_queue());
        }
        let (has, needs) = (self.region.access(), Access::RECEIVE);
        if !has.contains(needs) {
            return Err(wrong_access("the region", has, "receives need", needs));
        }
        if self.bytes > LONGEST {
            return Err(too_long(Limit::Receive, self.bytes, LONGEST));
        }
        let others = u64::from(self.count.saturating_sub(1));
        let extent = others.checked_mul(self.stride).and_then(|begin| begin.checked_add(self.bytes));
        let address = self.region.at(self.offset, extent.unwrap_or(u64::MAX));
        let key = queue.local_key(&self.region);
        let unusable = |error: Error| {
            error.within("the memory cannot be used for these receives").of_kind(ErrorKind::Argument)
        };
        Ok(efa_gda_receive_args {
            address: address.map_err(unusable)?,
            stride: self.stride,
            timeout_ns: nanoseconds(self.timeout),
            lkey: key.map_err(unusable)?.get(),
            // At most LONGEST.
            length: self.bytes as u32,
            count: self.count,
            ..Default::default()
        })
    }
}

/// The arguments for taking at most `most` completions, and at most [`AT_ONCE`].
pub(crate) fn taking(most: usize, timeout: Duration) -> efa_gda_receive_args {
    // At most AT_ONCE, so it fits 32 bits.
    let count = most.min(AT_ONCE) as u32;
    efa_gda_receive_args { count, timeout_ns: nanoseconds(timeout), ..Default::default() }
}

/// Converts a bound for device code; one past 2^64 ns becomes the longest.
pub(super) fn nanoseconds(timeout: Duration) -> u64 {
    timeout.as_nanos().try_into().unwrap_or(u64::MAX)
}

impl MappedQueue {
    /// Posts receives, and retains their region until each has completed or the endpoint is closed.
    ///
    /// # Errors
    /// [`Error`]. Receives that were posted before the queue stayed full stay posted.
    pub fn post_receives(&mut self, receives: &Receives) -> Result<PostedReceives> {
        let args = receives.arguments(self)?;
        self.require_host_receives()?;
        let args = efa_gda_receive_args { queue: self.as_ptr().as_ptr(), ..args };
        // SAFETY: the struct was filled in from a checked exposure, and is borrowed exclusively. Its rings stay mapped
        // while the endpoint, which this queue owns, is open.
        let posted = unsafe { host::receive(&args) };
        self.retain_posted(receives, &posted)
    }

    /// Retains the region of receives that were posted, and converts the status.
    pub(crate) fn retain_posted(
        &mut self,
        receives: &Receives,
        posted: &efa_gda_receive_result,
    ) -> Result<PostedReceives> {
        for index in 0..posted.count {
            // The descriptor carries the low 16 bits.
            self.backing
                .regions()
                .receive_posted(posted.first.wrapping_add(index) as u16, receives.region.clone());
        }
        match outcome(posted.status) {
            Ok(()) => Ok(PostedReceives { first: ReceiveId(posted.first as u16), count: posted.count }),
            Err(DeviceError::TimeoutSlots) => {
                let (posted, count) = (posted.count, receives.count);
                let text = format!(
                    "the receive queue stayed full past the bound (receives posted: {posted} of {count})"
                );
                Err(Error::new(ErrorKind::TimedOut, text)
                    .with_hint("post the others after messages have arrived"))
            }
            Err(error) => Err(stopped(error)),
        }
    }

    /// Retains the region of receives that may have been posted.
    #[cfg(feature = "cuda")]
    pub(crate) fn retain_maybe_posted(&mut self, receives: &Receives) {
        self.backing.regions().retain(receives.region.clone());
    }

    fn require_host_receives(&self) -> Result<()> {
        self.host_cannot_poll().map_or(Ok(()), |why| {
            Err(Error::unsupported(format!("receiving on the host is not possible on this queue: {why}")))
        })
    }

    /// Waits for the first completion of the receive side and returns at most `most` completions, and at most 256, in
    /// their order. Their statuses may be errors.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] before anything else, if completions were lost since the last report;
    /// [`ErrorKind::TimedOut`] if none arrived; [`ErrorKind::Unsupported`] for a queue without receives, or whose
    /// completions are in a GPU's memory; [`ErrorKind::Device`].
    pub fn receive_many(&mut self, most: usize, timeout: Duration) -> Result<Vec<Received>> {
        self.report_lost()?;
        self.require_host_receives()?;
        let mut entries = [InboxEntry::default(); AT_ONCE];
        let args = efa_gda_receive_args {
            queue: self.as_ptr().as_ptr(),
            into: entries.as_mut_ptr().cast(),
            ..taking(most, timeout)
        };
        // SAFETY: as in `post_receives`; there is room for `AT_ONCE` entries.
        let taken = unsafe { host::receive(&args) };
        self.decode_received(&entries[..taken.count as usize], taken.status)
    }

    /// Refuses a queue without receives, and reports completions that were lost since the last report.
    pub(crate) fn report_lost(&mut self) -> Result<()> {
        if self.limits().inbox == 0 {
            return Err(no_receive_queue());
        }
        let lost = self.lost_receives();
        if lost != self.reported_lost {
            let count = lost.wrapping_sub(std::mem::replace(&mut self.reported_lost, lost));
            return Err(Error::new(
                ErrorKind::Lost,
                format!("the inbox was full, so completions of receives were lost ({count})"),
            )
            .with_hint("take completions more often, or open a deeper completion queue"));
        }
        Ok(())
    }

    /// Decodes completions that were taken, and releases the memory of their receives.
    pub(crate) fn decode_received(&mut self, entries: &[InboxEntry], status: u32) -> Result<Vec<Received>> {
        match outcome(status) {
            Ok(()) => entries.iter().map(|entry| self.received(entry)).collect(),
            Err(DeviceError::TimeoutCompletion) => {
                Err(Error::new(ErrorKind::TimedOut, "nothing was received within the bound")
                    .with_hint("check that the peer sends, or wait longer"))
            }
            Err(error) => Err(stopped(error)),
        }
    }

    fn received(&mut self, entry: &InboxEntry) -> Result<Received> {
        // Receives have 16-bit ids, whatever the width of the send queue's ids.
        let completion = Completion::decode(&entry.0, RequestIdWidth::Bits16);
        let completion = completion.map_err(|_| stopped(DeviceError::BadCompletion))?;
        let CompletionKind::Receive(info) = completion.kind else {
            return Err(stopped(DeviceError::BadCompletion));
        };
        let id = ReceiveId(completion.id.get() as u16);
        if completion.queue_pair != self.number() {
            return Err(stopped(DeviceError::BadCompletion));
        }
        if !info.unsolicited {
            self.backing.regions().receive_completed(id.0);
        }
        let handle = Some(info.address_handle).filter(|handle| *handle != UNKNOWN_ADDRESS_HANDLE);
        Ok(Received {
            receive: (!info.unsolicited).then_some(id),
            status: completion.status,
            length: info.length,
            immediate: info.immediate,
            source: MessageSource { address_handle: handle, queue_pair: info.source_queue_pair },
            arrival: match OperationCode::from_number(completion.operation_code.into()) {
                Some(OperationCode::Send) => Arrival::Message,
                Some(OperationCode::Write) => Arrival::Write,
                _ => Arrival::Unknown(completion.operation_code),
            },
        })
    }

    /// Returns the number of completions that arrived while the inbox was full, modulo 2^32.
    fn lost_receives(&self) -> u32 {
        let queue = self.as_ptr().as_ptr();
        // SAFETY: the struct lives as long as the queue. Device code may be changing the word, so it is read volatile.
        unsafe { (&raw const (*queue).completion.lost).read_volatile() }
    }
}
