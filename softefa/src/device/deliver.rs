//! Delivery: the last part of a request whose keys and target were checked (`execute.rs`). It stores the bytes, writes
//! the receive completion if there is one, and adds to the target's counters.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use efa_gda_wire::{
    AddressHandle, Completion, CompletionKind, CompletionStatus, OperationCode, ReceiveInfo, Request,
    RequestId, RequestIdWidth, UNKNOWN_ADDRESS_HANDLE,
};

use super::completion::CompletionRecord;
use super::config::Gid;
use super::counter::{Counted, UnwrittenCounters};
use super::execute::Outcome;
use super::memory::HostRange;
use super::queue_pair::QueuePairCore;
use super::receive_queue::{MAX_SEGMENTS, PostedReceive};
use super::shared::add;
use super::tables::{Port, View};
use super::transfer::scatter;

/// The bytes of a request.
pub(super) enum Source<'a> {
    Inline(&'a [u8]),
    /// The engine's scratch memory: this many bytes from its start.
    Scratch(usize),
    /// Memory of this process. The sink is also memory of this process.
    Host(HostRange),
    /// Memory that could not be read.
    Unreachable,
}

/// What a delivery completes.
pub(super) enum End {
    /// A piece of an RDMA request that has further pieces.
    Piece { length: u64, is_read: bool },
    /// An RDMA write, with the receive that it consumes.
    Write(Option<PostedReceive>),
    /// An RDMA read.
    Read,
    /// A message. `refusal`: the statuses of the receive and of the request if the message does not fit the receive, or
    /// if a segment to which bytes of it go has a bad key or access, or these bytes are outside its region
    /// ([`BAD_SINK`]). A message that does not fit stores nothing. If a segment is bad, only the segments before it are
    /// written.
    Message { receive: PostedReceive, refusal: Option<(CompletionStatus, CompletionStatus)> },
}

/// The statuses of the receive and of the request if a receive's memory cannot be written, as if its lkey were bad.
pub(super) const BAD_SINK: (CompletionStatus, CompletionStatus) =
    (CompletionStatus::InvalidLocalKey, CompletionStatus::RemoteAbort);

/// A checked request and where its bytes go.
pub(super) struct Delivery<'a> {
    pub(super) target: &'a QueuePairCore,
    /// The target's adapter.
    pub(super) target_port: &'a Port,
    /// The handle for the sender's adapter in the target's domain, if it has one.
    pub(super) handle: Option<AddressHandle>,
    pub(super) sender: &'a QueuePairCore,
    pub(super) sender_gid: Gid,
    pub(super) request: &'a Request,
    pub(super) source: Source<'a>,
    pub(super) sinks: [Option<View<'a>>; MAX_SEGMENTS],
    pub(super) end: End,
}

/// The side of a request whose memory could not be reached: the source (`From`) or the sinks (`To`).
#[derive(Clone, Copy)]
enum Side {
    From,
    To,
}

impl Delivery<'_> {
    /// Stores the bytes, writes the receive completion and adds to the target's counters, as `end` requires.
    pub(super) fn run(self, scratch: &[u8], unwritten: &mut UnwrittenCounters) -> Outcome {
        let Self { target, target_port, handle, sender, sender_gid, request, source, sinks, end } = self;
        let is_read = matches!(end, End::Read | End::Piece { is_read: true, .. });
        if is_read {
            return match (store(&source, &sinks, scratch), end) {
                (Err(Side::From), _) => Outcome::Done(CompletionStatus::RemoteBadAddress),
                (Err(Side::To), _) => Outcome::Done(CompletionStatus::InvalidLocalKey),
                (Ok(()), End::Piece { length, .. }) => Outcome::Moved(length),
                (Ok(()), _) => {
                    let ok = CompletionStatus::Ok;
                    target.counters.count(Counted::REMOTE_READ, ok, unwritten);
                    Outcome::Done(ok)
                }
            };
        }
        // If a sink's `Memory` panics, the target's receive, which is taken, must still complete.
        let stored = catch_unwind(AssertUnwindSafe(|| store(&source, &sinks, scratch)));
        let (stored, panic) = match stored {
            Ok(stored) => (stored, None),
            Err(panic) => (Err(Side::To), Some(panic)),
        };
        let receiver =
            Receiver { queue_pair: target, port: target_port, handle, sender, sender_gid, request };
        let outcome = receiver.finish(end, stored, unwritten);
        panic.map_or(outcome, |panic| resume_unwind(panic))
    }
}

/// Stores the source's bytes in the sinks.
fn store(source: &Source<'_>, sinks: &[Option<View<'_>>], scratch: &[u8]) -> Result<(), Side> {
    let bytes = match source {
        Source::Inline(bytes) => bytes,
        Source::Scratch(length) => &scratch[..*length],
        Source::Host(from) => {
            if let Some(View::Host(to)) = &sinks[0] {
                to.copy_from(*from);
            }
            return Ok(());
        }
        Source::Unreachable => return Err(Side::From),
    };
    scatter(sinks, bytes).map_err(|_| Side::To)
}

/// The target of a request, and what its receive completion states of the sender.
struct Receiver<'a> {
    queue_pair: &'a QueuePairCore,
    port: &'a Port,
    handle: Option<AddressHandle>,
    sender: &'a QueuePairCore,
    sender_gid: Gid,
    request: &'a Request,
}

impl Receiver<'_> {
    /// Writes the receive completion, if there is one, and adds to the target's counters. Not called for a read.
    fn finish(&self, end: End, stored: Result<(), Side>, unwritten: &mut UnwrittenCounters) -> Outcome {
        let length = (self.request.operation.length() + self.queue_pair.transport.prefix()) as u32;
        match end {
            End::Message { receive, refusal } => {
                let (status, length, sent) = match (stored, refusal) {
                    (Err(Side::From), _) => {
                        (CompletionStatus::RemoteAbort, 0, CompletionStatus::InvalidLocalKey)
                    }
                    (Err(Side::To), _) => (BAD_SINK.0, length, BAD_SINK.1),
                    (Ok(()), Some((status, sent))) => (status, length, sent),
                    (Ok(()), None) => (CompletionStatus::Ok, length, CompletionStatus::Ok),
                };
                self.complete_receive(Some(&receive), length, status);
                Outcome::Done(sent)
            }
            End::Piece { length, .. } if stored.is_ok() => Outcome::Moved(length),
            End::Piece { .. } | End::Write(_) | End::Read => {
                let receive = if let End::Write(receive) = end { receive } else { None };
                let completes_receive =
                    self.request.immediate.is_some() && (stored.is_ok() || receive.is_some());
                if completes_receive {
                    let status =
                        if stored.is_ok() { CompletionStatus::Ok } else { CompletionStatus::RemoteAbort };
                    self.complete_receive(receive.as_ref(), length, status);
                }
                Outcome::Done(match stored {
                    Err(Side::From) => CompletionStatus::InvalidLocalKey,
                    Err(Side::To) => CompletionStatus::RemoteBadAddress,
                    Ok(()) => {
                        let ok = CompletionStatus::Ok;
                        self.queue_pair.counters.count(Counted::REMOTE_WRITE, ok, unwritten);
                        ok
                    }
                })
            }
        }
    }

    /// Passes the receive completion to the target's completion queue at once, so that it is visible before the
    /// sender's completion (exception: `engine.rs`, "Order of one request"). First it lands the late writes of the
    /// target's adapter; for a message it then adds to the target's counter of receives and writes that counter's mirror.
    fn complete_receive(&self, receive: Option<&PostedReceive>, length: u32, status: CompletionStatus) {
        self.port.land_late_writes(None);
        let code = self.request.operation.code();
        let info = ReceiveInfo {
            length,
            address_handle: self.handle.unwrap_or(UNKNOWN_ADDRESS_HANDLE),
            source_queue_pair: self.sender.number,
            immediate: self.request.immediate,
            unsolicited: receive.is_none(),
        };
        let completion = Completion {
            id: receive.map_or(RequestId::new(0), |receive| receive.id),
            status,
            operation_code: code.get() as u8,
            queue_pair: self.queue_pair.number,
            kind: CompletionKind::Receive(info),
        };
        let is_message = code == OperationCode::Send;
        // Bytes 16 to 31 hold either the sender's GID or the high half of a write's length.
        let source = if self.handle.is_none() && is_message { Some(self.sender_gid) } else { None };
        let ids = RequestIdWidth::Bits16;
        if is_message {
            let mut unwritten = UnwrittenCounters::default();
            self.queue_pair.counters.count(Counted::RECEIVE, status, &mut unwritten);
            self.queue_pair.write_mirrors(&mut unwritten);
        }
        self.queue_pair.receive_cq.push(std::iter::once(CompletionRecord { completion, ids, source }));
        add(&self.queue_pair.shared.counts.receives, 1);
    }
}
