//! The operations: each finds the peer, checks keys and lengths, moves bytes and delivers. Each failure
//! has the status that EFA has for it (`enum efa_io_comp_status`, `efa_io_defs.h`).
//!
//! The sender's engine executes both sides of a request. It holds the sender's send state throughout, and
//! the target's receive state and completion queue one after the other, for one call each.

use std::sync::atomic::Ordering;

use efa_gda_wire::{
    Completion, CompletionKind, CompletionStatus, InlineData, Operation, OperationCode, ReceiveInfo,
    RemoteMemory, Request, RequestId, RequestIdWidth, Segment, Segments, UNKNOWN_ADDRESS_HANDLE,
};

use super::attr::Access;
use super::completion::CompletionRecord;
use super::counter::{Counted, UnwrittenCounters};
use super::engine::{Engine, NetworkView};
use super::queue_pair::QueuePairCore;
use super::receive_queue::PostedReceive;
use super::shared::add;
use super::tables::{Port, View};
use super::transfer::{self, Side};
use super::violation::Queue;

/// The result of one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The request completes with this status.
    Done(CompletionStatus),
    /// The receiver has no receive posted. The request has no completion at the receiver yet, and can be tried again.
    ReceiverNotReady,
    /// This many bytes moved and more remain, for the next try.
    Moved(u64),
    /// The network lost the request ([`super::Faults::drop_loopback`]): it never completes.
    Lost,
}

/// Bytes of an RDMA request that move in one try.
const PIECE_BYTES: u64 = 1 << 20;

/// The reason why a try did not succeed.
struct Failure(Outcome);

impl From<CompletionStatus> for Failure {
    fn from(status: CompletionStatus) -> Self {
        Self(Outcome::Done(status))
    }
}

/// The destination of a request.
struct Target<'a> {
    port: &'a Port,
    queue_pair: &'a QueuePairCore,
}

/// One request and its sender, a queue pair of `network.local`.
struct Execution<'a> {
    network: &'a NetworkView<'a>,
    sender: &'a QueuePairCore,
    request: &'a Request,
    /// Counters whose mirrors are written later.
    unwritten: &'a mut UnwrittenCounters,
    /// Bytes that earlier tries moved.
    moved: u64,
}

/// Executes `request` of `sender`, a queue pair of `network.local`, of which `moved` bytes have moved already.
pub(crate) fn execute(
    network: &NetworkView<'_>,
    engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
    moved: u64,
) -> Outcome {
    let Engine { scratch, unwritten, .. } = engine;
    let mut execution = Execution { network, sender, request, unwritten, moved };
    let result = match &request.operation {
        Operation::Write { remote, local } => execution.write(scratch, remote, local),
        Operation::WriteInline { remote, data } => execution.write_inline(remote, data),
        Operation::Read { remote, local } => execution.read(scratch, remote, local),
        Operation::Send(segments) => execution.send(scratch, segments),
        Operation::SendInline(data) => execution.send_inline(data),
    };
    let (bytes, outcome) = match result {
        Ok(bytes) => (bytes - moved, Outcome::Done(CompletionStatus::Ok)),
        Err(Failure(Outcome::Moved(bytes))) => (bytes, Outcome::Moved(bytes)),
        Err(Failure(outcome)) => (0, outcome),
    };
    engine.bytes += bytes;
    engine.spend(bytes);
    outcome
}

/// The operations. Each returns the bytes that it moved, in all tries.
impl<'a> Execution<'a> {
    fn write(
        &mut self,
        scratch: &mut Vec<u8>,
        remote: &RemoteMemory,
        local: &Segment,
    ) -> Result<u64, Failure> {
        self.check_rdma(self.network.config().capabilities.rdma_write, local.length)?;
        let from = self.local_view(local, Access::LOCAL_READ)?;
        let target = self.rdma_target()?;
        let to = remote_view(&target, remote, Access::REMOTE_WRITE, local.length.into())?;
        let last = match (to, from) {
            (Some(to), Some(from)) => Some(self.last_piece(to, from, scratch, unreachable_memory)?),
            _ => None,
        };
        self.deliver_write(&target, local.length, || {
            last.map_or(Ok(()), |(to, from)| transfer::copy(to, from, scratch))
        })
    }

    fn write_inline(&mut self, remote: &RemoteMemory, data: &InlineData) -> Result<u64, Failure> {
        let length = data.len() as u32;
        self.check_rdma(self.network.config().capabilities.rdma_write, length)?;
        let target = self.rdma_target()?;
        let to = remote_view(&target, remote, Access::REMOTE_WRITE, length.into())?;
        self.deliver_write(&target, length, || to.map_or(Ok(()), |to| transfer::write(to, 0, data)))
    }

    /// Moves the last bytes of an RDMA write by `copy` and delivers its immediate.
    fn deliver_write(
        &mut self,
        target: &Target<'a>,
        length: u32,
        copy: impl FnOnce() -> Result<(), Side>,
    ) -> Result<u64, Failure> {
        let receive = self.take_receive_for_immediate(target)?;
        let copied = copy();
        self.deliver_immediate(target, receive, length, copied.is_ok());
        copied.map_err(unreachable_memory)?;
        target.queue_pair.counters.count(Counted::REMOTE_WRITE, CompletionStatus::Ok, self.unwritten);
        Ok(length.into())
    }

    fn read(
        &mut self,
        scratch: &mut Vec<u8>,
        remote: &RemoteMemory,
        local: &Segment,
    ) -> Result<u64, Failure> {
        self.check_rdma(self.network.config().capabilities.rdma_read, local.length)?;
        let to = self.local_view(local, Access::LOCAL_WRITE)?;
        let target = self.rdma_target()?;
        let from = remote_view(&target, remote, Access::REMOTE_READ, local.length.into())?;
        if let (Some(to), Some(from)) = (to, from) {
            // `unreachable_memory` takes the source for the local side; in a read it is the remote side.
            let unreachable = |side| match side {
                Side::From => unreachable_memory(Side::To),
                Side::To => unreachable_memory(Side::From),
            };
            let (to, from) = self.last_piece(to, from, scratch, unreachable)?;
            transfer::copy(to, from, scratch).map_err(unreachable)?;
        }
        target.queue_pair.counters.count(Counted::REMOTE_READ, CompletionStatus::Ok, self.unwritten);
        Ok(local.length.into())
    }

    fn send(&mut self, scratch: &mut Vec<u8>, segments: &Segments) -> Result<u64, Failure> {
        let length = self.request.operation.length();
        if length > u64::from(self.network.config().limits.max_msg_size) {
            return Err(CompletionStatus::BadLength.into());
        }
        let mut views = [None; 2];
        for (view, segment) in views.iter_mut().zip(segments.iter()) {
            *view = self.local_view(segment, Access::LOCAL_READ)?;
        }
        let target = self.target()?;
        let receive = take_receive(&target)?;
        match transfer::gather(views.into_iter().flatten(), scratch, length as usize) {
            Ok(()) => self.deliver_message(&target, &receive, &scratch[..length as usize])?,
            Err(side) => {
                self.complete_receive(&target, Some(&receive), 0, CompletionStatus::RemoteAbort);
                return Err(unreachable_memory(side));
            }
        }
        Ok(length)
    }

    fn send_inline(&mut self, data: &InlineData) -> Result<u64, Failure> {
        let target = self.target()?;
        let receive = take_receive(&target)?;
        self.deliver_message(&target, &receive, data)?;
        Ok(data.len() as u64)
    }
}

impl<'a> Execution<'a> {
    fn check_rdma(&self, capability: bool, length: u32) -> Result<(), Failure> {
        if !capability {
            return Err(CompletionStatus::UnsupportedOperation.into());
        }
        if length > self.network.config().limits.max_rdma_size {
            return Err(CompletionStatus::BadLength.into());
        }
        Ok(())
    }

    /// The parts of a request's memory that move last. If more remains to be moved, moves a piece of it and ends this
    /// try: the engine can release the network's lock before the next one.
    fn last_piece(
        &self,
        to: View<'a>,
        from: View<'a>,
        scratch: &mut Vec<u8>,
        unreachable: impl Fn(Side) -> Failure,
    ) -> Result<(View<'a>, View<'a>), Failure> {
        let rest = from.length() - self.moved;
        let length = rest.min(PIECE_BYTES);
        let (to, from) = (to.part(self.moved, length), from.part(self.moved, length));
        if length == rest {
            return Ok((to, from));
        }
        transfer::copy(to, from, scratch).map_err(unreachable)?;
        Err(Failure(Outcome::Moved(length)))
    }

    /// The local memory of a request, or `None` if it is empty: the key of an empty segment is not checked.
    fn local_view(&self, segment: &Segment, access: Access) -> Result<Option<View<'a>>, Failure> {
        if segment.length == 0 {
            return Ok(None);
        }
        let (port, pd, length) = (self.network.local, self.sender.pd, segment.length.into());
        let view = port.local_memory(segment.key, pd, access, segment.address, length);
        view.map(Some).ok_or_else(|| CompletionStatus::InvalidLocalKey.into())
    }

    /// The queue pair that the request names.
    fn target(&self) -> Result<Target<'a>, Failure> {
        self.find_target(false)
    }

    /// As [`Self::target`], for RDMA: the target's adapter must have an address handle for the sender's
    /// (`EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER`).
    fn rdma_target(&self) -> Result<Target<'a>, Failure> {
        self.find_target(true)
    }

    fn find_target(&self, rdma: bool) -> Result<Target<'a>, Failure> {
        let (network, peer) = (self.network, &self.request.peer);
        let handle = network.local.handles.get(peer.address_handle.get());
        let Some(handle) = handle.filter(|handle| handle.pd == self.sender.pd) else {
            return Err(CompletionStatus::InvalidAddressHandle.into());
        };
        // Relaxed: only this engine accesses the handle's flag.
        let reached = handle.target_reached.load(Ordering::Relaxed);
        let Some(port) = handle.target.and_then(|index| network.ports.port(index)) else {
            return Err(match reached {
                true => CompletionStatus::UnresponsiveRemote.into(),
                false => CompletionStatus::UnreachableRemote.into(),
            });
        };
        if handle.target == Some(network.local_index) && network.config().faults.drop_loopback {
            return Err(Failure(Outcome::Lost));
        }
        if !reached {
            handle.target_reached.store(true, Ordering::Relaxed);
        }
        if rdma && !port.has_handle_for(network.local_index) {
            return Err(CompletionStatus::UnknownPeer.into());
        }
        match port.queue_pairs.get(peer.queue_pair.get()) {
            Some(queue_pair) if queue_pair.is_ready() && queue_pair.queue_key() == peer.queue_key => {
                Ok(Target { port, queue_pair })
            }
            _ => Err(CompletionStatus::RemoteBadQueuePair.into()),
        }
    }

    /// Takes the receive that an RDMA write with immediate consumes, if it consumes one.
    fn take_receive_for_immediate(&self, target: &Target<'_>) -> Result<Option<PostedReceive>, Failure> {
        if self.request.immediate.is_none() || target.queue_pair.unsolicited_write_receive {
            return Ok(None);
        }
        take_receive(target).map(Some)
    }

    fn deliver_immediate(
        &mut self,
        target: &Target<'_>,
        receive: Option<PostedReceive>,
        length: u32,
        written: bool,
    ) {
        if self.request.immediate.is_none() {
            return;
        }
        let status = if written { CompletionStatus::Ok } else { CompletionStatus::RemoteAbort };
        if written || receive.is_some() {
            self.complete_receive(target, receive.as_ref(), length, status);
        }
    }

    /// Copies a message into a posted receive and completes the receive.
    fn deliver_message(
        &mut self,
        target: &Target<'_>,
        receive: &PostedReceive,
        message: &[u8],
    ) -> Result<(), Failure> {
        let capacity: usize = receive.segments().iter().map(|segment| usize::from(segment.length)).sum();
        let length = message.len() as u32;
        let mut complete = |status| self.complete_receive(target, Some(receive), length, status);
        if message.len() > capacity {
            complete(CompletionStatus::BadLength);
            return Err(CompletionStatus::RemoteBadLength.into());
        }
        let mut rest = message;
        for segment in receive.segments() {
            let (part, after) = rest.split_at(rest.len().min(segment.length.into()));
            rest = after;
            if part.is_empty() {
                continue;
            }
            let (pd, access, length) = (target.queue_pair.pd, Access::LOCAL_WRITE, part.len() as u64);
            let view = target.port.local_memory(segment.key, pd, access, segment.address, length);
            if view.is_none_or(|view| transfer::write(view, 0, part).is_err()) {
                // The lkey of the receive is bad. Both sides get an error.
                complete(CompletionStatus::InvalidLocalKey);
                return Err(CompletionStatus::RemoteAbort.into());
            }
        }
        complete(CompletionStatus::Ok);
        Ok(())
    }

    /// Counts and writes the target's receive completion, at once, so that it is visible before the
    /// sender's completion.
    fn complete_receive(
        &mut self,
        target: &Target<'_>,
        receive: Option<&PostedReceive>,
        length: u32,
        status: CompletionStatus,
    ) {
        let handle = target.port.handle_for(self.network.local_index, target.queue_pair.pd);
        let code: OperationCode = self.request.operation.code();
        let info = ReceiveInfo {
            length,
            address_handle: handle.unwrap_or(UNKNOWN_ADDRESS_HANDLE),
            source_queue_pair: self.sender.number,
            immediate: self.request.immediate,
            unsolicited: receive.is_none(),
        };
        let completion = Completion {
            id: receive.map_or(RequestId::new(0), |receive| receive.id),
            status,
            operation_code: code.get() as u8,
            queue_pair: target.queue_pair.number,
            kind: CompletionKind::Receive(info),
        };
        let is_message = code == OperationCode::Send;
        // Bytes 16 to 31 hold either the sender's GID or the high half of a write's length.
        let source = if handle.is_none() && is_message { Some(self.network.local.gid) } else { None };
        let ids = RequestIdWidth::Bits16;
        if is_message {
            target.queue_pair.counters.count(Counted::RECEIVE, status, self.unwritten);
        }
        self.unwritten.write();
        target.queue_pair.receive_cq.push(std::iter::once(CompletionRecord { completion, ids, source }));
        add(&target.port.shared.counts.receives, 1);
    }
}

fn remote_view<'a>(
    target: &Target<'a>,
    remote: &RemoteMemory,
    access: Access,
    length: u64,
) -> Result<Option<View<'a>>, Failure> {
    if length == 0 {
        return Ok(None);
    }
    let view = target.port.remote_memory(remote.key, target.queue_pair.pd, access, remote.address, length);
    view.map(Some).ok_or_else(|| CompletionStatus::RemoteBadAddress.into())
}

/// Takes the oldest receive of the target. A violation in its receive queue puts the target's queue pair
/// into the error state and fails the request.
fn take_receive(target: &Target<'_>) -> Result<PostedReceive, Failure> {
    let Some(receive) = &target.queue_pair.receive else { return Err(Failure(Outcome::ReceiverNotReady)) };
    match receive.take() {
        Ok(Some(receive)) => Ok(receive),
        Ok(None) => Err(Failure(Outcome::ReceiverNotReady)),
        Err(broken) => {
            target.queue_pair.fail(Queue::Receive(target.queue_pair.number), *broken);
            target.port.shared.wake();
            Err(CompletionStatus::RemoteBadQueuePair.into())
        }
    }
}

/// The status if memory of one side is registered but cannot be reached: the same as for a bad key.
fn unreachable_memory(side: Side) -> Failure {
    match side {
        Side::From => CompletionStatus::InvalidLocalKey.into(),
        Side::To => CompletionStatus::RemoteBadAddress.into(),
    }
}
