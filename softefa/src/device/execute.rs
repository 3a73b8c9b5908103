//! The operations: each finds the peer, checks keys and lengths, moves bytes and delivers. Each failure
//! has the status that EFA has for it (`enum efa_io_comp_status`, `efa_io_defs.h`).
//!
//! The engine executes both sides of a request, under the network's lock and the lock of the sender's send state. It
//! acquires the locks of the target's receive state and completion queue one after the other, each for one call.

use std::sync::atomic::Ordering;

use efa_gda_wire::{CompletionStatus, Operation, RemoteMemory, Request, Segment};

use super::attr::{Access, Transport};
use super::config::AdapterConfig;
use super::deliver::{BAD_SINK, Delivery, End, Source};
use super::engine::{Engine, NetworkView};
use super::queue_pair::QueuePairCore;
use super::receive_queue::{MAX_SEGMENTS, PostedReceive};
use super::tables::{Port, View};
use super::transfer::{BOUNCE_BYTES, gather};
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

/// Most bytes that one try of an RDMA request moves between memory of this process; else [`BOUNCE_BYTES`]. A SEND never
/// moves in pieces.
const PIECE_BYTES: u64 = 1 << 20;

impl From<CompletionStatus> for Outcome {
    fn from(status: CompletionStatus) -> Self {
        Self::Done(status)
    }
}

/// The destination of a request.
struct Target<'a> {
    port: &'a Port,
    queue_pair: &'a QueuePairCore,
}

/// A try of a request. Its methods return a delivery, or the outcome if there is none.
struct Try<'a> {
    network: NetworkView<'a>,
    /// A queue pair of the adapter that the engine serves.
    sender: &'a QueuePairCore,
    request: &'a Request,
    /// Bytes that earlier tries moved.
    moved: u64,
}

/// Makes one try of `request`, whose earlier tries moved `moved` bytes. `sender` is a queue pair of the adapter that the
/// engine serves.
pub(crate) fn execute(
    network: NetworkView<'_>,
    engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
    moved: u64,
) -> Outcome {
    let Engine { scratch, unwritten, .. } = engine;
    let outcome = match (Try { network, sender, request, moved }).prepare(scratch) {
        Ok(delivery) => {
            let target = delivery.target;
            let outcome = delivery.run(scratch, unwritten);
            if outcome == Outcome::Done(CompletionStatus::Ok) {
                let packet_bytes = network.config().limits.max_msg_size;
                if matches!(request.operation, Operation::Read { .. }) {
                    network.local.land_late_writes(None);
                }
                let [own, peer] = [sender, target].map(|side| &side.shared.counts.traffic);
                own.count(peer, &request.operation, packet_bytes);
            }
            outcome
        }
        Err(outcome) => outcome,
    };
    let bytes = match outcome {
        Outcome::Done(CompletionStatus::Ok) => request.operation.length() - moved,
        Outcome::Moved(bytes) => bytes,
        _ => 0,
    };
    engine.bytes += bytes;
    engine.spend(bytes);
    outcome
}

/// The operations.
impl<'a> Try<'a> {
    fn prepare(&self, scratch: &mut Vec<u8>) -> Result<Delivery<'a>, Outcome> {
        let AdapterConfig { capabilities, limits, .. } = self.network.config();
        let length = self.request.operation.length();
        match &self.request.operation {
            Operation::Send(_) | Operation::SendInline(_) if length > u64::from(limits.max_msg_size) => {
                Err(CompletionStatus::BadLength.into())
            }
            Operation::Write { remote, local } => {
                self.check_rdma(capabilities.rdma_write, local.length)?;
                let from = self.local_view(local, Access::LOCAL_READ)?;
                let target = self.rdma_target()?;
                let to = remote_view(&target, remote, Access::REMOTE_WRITE, local.length.into())?;
                self.transfer(&target, to, from, false, scratch)
            }
            Operation::WriteInline { remote, data } => {
                let length = data.len() as u32;
                self.check_rdma(capabilities.rdma_write, length)?;
                let target = self.rdma_target()?;
                let to = remote_view(&target, remote, Access::REMOTE_WRITE, length.into())?;
                let end = End::Write(self.take_receive_for_immediate(&target)?);
                Ok(self.delivery(&target, Source::Inline(data), [to], end))
            }
            Operation::Read { remote, local } => {
                self.check_rdma(capabilities.rdma_read, local.length)?;
                let to = self.local_view(local, Access::LOCAL_WRITE)?;
                let target = self.rdma_target()?;
                let from = remote_view(&target, remote, Access::REMOTE_READ, local.length.into())?;
                self.transfer(&target, to, from, true, scratch)
            }
            Operation::Send(segments) => {
                let mut views = [None, None];
                for (view, segment) in views.iter_mut().zip(segments.iter()) {
                    *view = self.local_view(segment, Access::LOCAL_READ)?;
                }
                let target = self.target()?;
                expect_receive(&target)?;
                let source = load(&views, length as usize, scratch);
                Ok(self.message(&target, source, take_receive(&target)?))
            }
            Operation::SendInline(data) => {
                let target = self.target()?;
                let receive = take_receive(&target)?;
                Ok(self.message(&target, Source::Inline(data), receive))
            }
        }
    }

    /// The delivery of the next piece of an RDMA request, or of its last bytes. After a piece the try ends, so that the
    /// engine can release the network's lock before the next one.
    fn transfer(
        &self,
        target: &Target<'a>,
        to: Option<View<'a>>,
        from: Option<View<'a>>,
        is_read: bool,
        scratch: &mut Vec<u8>,
    ) -> Result<Delivery<'a>, Outcome> {
        let (mut piece, mut source, mut sink) = (None, Source::Inline(&[]), None);
        if let (Some(to), Some(from)) = (to, from) {
            let rest = from.length() - self.moved;
            let is_direct = to.host().is_some() && from.host().is_some();
            let length = rest.min(if is_direct { PIECE_BYTES } else { BOUNCE_BYTES });
            let (to, from) = (to.part(self.moved, length), from.part(self.moved, length));
            piece = Some(length).filter(|length| *length < rest);
            if piece.is_none() && self.consumes_receive(target) && !is_read {
                expect_receive(target)?;
            }
            source = match from.host().filter(|_| is_direct) {
                Some(range) => Source::Host(range),
                None => load(&[Some(from)], length as usize, scratch),
            };
            sink = Some(to);
        }
        let end = match piece {
            Some(length) => End::Piece { length, is_read },
            None if is_read => End::Read,
            None => End::Write(self.take_receive_for_immediate(target)?),
        };
        Ok(self.delivery(target, source, [sink], end))
    }

    /// The delivery of a message into a posted receive.
    fn message(&self, target: &Target<'a>, source: Source<'a>, receive: PostedReceive) -> Delivery<'a> {
        let length = self.request.operation.length();
        let mut prefix = target.queue_pair.transport.prefix();
        let capacity: u64 = receive.segments().iter().map(|segment| u64::from(segment.length)).sum();
        let mut sinks = [const { None }; MAX_SEGMENTS];
        let (mut rest, mut refusal) = (length, None);
        if length + prefix > capacity {
            (rest, refusal) = (0, Some((CompletionStatus::BadLength, CompletionStatus::RemoteBadLength)));
        }
        for (sink, segment) in sinks.iter_mut().zip(receive.segments()) {
            let skipped = prefix.min(segment.length.into());
            prefix -= skipped;
            let part = rest.min(u64::from(segment.length) - skipped);
            if refusal.is_some() || skipped + part == 0 {
                continue;
            }
            let (pd, access) = (target.queue_pair.pd, Access::LOCAL_WRITE);
            match target.port.local_memory(segment.key, pd, access, segment.address, skipped + part) {
                Some(view) => *sink = (part > 0).then(|| view.part(skipped, part)),
                None => refusal = Some(BAD_SINK),
            }
            rest -= part;
        }
        self.delivery(target, source, sinks, End::Message { receive, refusal })
    }

    fn delivery<const N: usize>(
        &self,
        target: &Target<'a>,
        source: Source<'a>,
        views: [Option<View<'a>>; N],
        end: End,
    ) -> Delivery<'a> {
        let mut sinks = [const { None }; MAX_SEGMENTS];
        sinks.iter_mut().zip(views).for_each(|(sink, view)| *sink = view);
        Delivery {
            target: target.queue_pair,
            target_port: target.port,
            handle: target.port.handle_for(self.network.local_index, target.queue_pair.pd),
            sender: self.sender,
            sender_gid: self.network.local.gid,
            request: self.request,
            source,
            sinks,
            end,
        }
    }

    fn check_rdma(&self, capability: bool, length: u32) -> Result<(), Outcome> {
        if !capability || self.sender.transport == Transport::Ud {
            return Err(CompletionStatus::UnsupportedOperation.into());
        }
        if length > self.network.config().limits.max_rdma_size {
            return Err(CompletionStatus::BadLength.into());
        }
        Ok(())
    }

    /// The local memory of a request, or `None` if it is empty: the key of an empty segment is not checked.
    fn local_view(&self, segment: &Segment, access: Access) -> Result<Option<View<'a>>, Outcome> {
        if segment.length == 0 {
            return Ok(None);
        }
        let (port, pd, length) = (self.network.local, self.sender.pd, segment.length.into());
        let view = port.local_memory(segment.key, pd, access, segment.address, length);
        view.map(Some).ok_or_else(|| CompletionStatus::InvalidLocalKey.into())
    }

    /// The queue pair that the request names.
    fn target(&self) -> Result<Target<'a>, Outcome> {
        self.find_target(false)
    }

    /// As [`Self::target`], for RDMA: the target's adapter must have an address handle for the sender's
    /// (`EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER`).
    fn rdma_target(&self) -> Result<Target<'a>, Outcome> {
        self.find_target(true)
    }

    fn find_target(&self, rdma: bool) -> Result<Target<'a>, Outcome> {
        let (network, peer) = (self.network, &self.request.peer);
        let handle = network.local.handles.get(peer.address_handle.get());
        let Some(handle) = handle.filter(|handle| handle.pd == self.sender.pd) else {
            return Err(CompletionStatus::InvalidAddressHandle.into());
        };
        // Relaxed: the flag orders nothing, and is never cleared.
        let reached = handle.target_reached.load(Ordering::Relaxed);
        let target = handle.target.and_then(|index| Some((index, network.ports.port(index)?)));
        let Some((index, port)) = target else {
            return Err(match reached {
                true => CompletionStatus::UnresponsiveRemote.into(),
                false => CompletionStatus::UnreachableRemote.into(),
            });
        };
        if index == network.local_index && network.config().faults.drop_loopback {
            return Err(Outcome::Lost);
        }
        if !reached {
            handle.target_reached.store(true, Ordering::Relaxed);
        }
        if rdma && !port.has_handle_for(network.local_index) {
            return Err(CompletionStatus::UnknownPeer.into());
        }
        match port.queue_pairs.get(peer.queue_pair.get()) {
            Some(queue_pair)
                if queue_pair.is_ready()
                    && queue_pair.transport == self.sender.transport
                    && queue_pair.queue_key() == peer.queue_key =>
            {
                Ok(Target { port, queue_pair })
            }
            _ => Err(CompletionStatus::RemoteBadQueuePair.into()),
        }
    }

    /// Whether an RDMA write with immediate consumes a receive.
    fn consumes_receive(&self, target: &Target<'_>) -> bool {
        self.request.immediate.is_some() && !target.queue_pair.unsolicited_write_receive
    }

    /// Takes the receive that an RDMA write with immediate consumes, if it consumes one.
    fn take_receive_for_immediate(&self, target: &Target<'_>) -> Result<Option<PostedReceive>, Outcome> {
        if self.consumes_receive(target) { take_receive(target).map(Some) } else { Ok(None) }
    }
}

/// Copies the views of a request's source into the scratch memory.
fn load<'a>(views: &[Option<View<'_>>], length: usize, scratch: &mut Vec<u8>) -> Source<'a> {
    scratch.resize(scratch.len().max(length), 0);
    match gather(views, &mut scratch[..length]) {
        Ok(()) => Source::Scratch(length),
        Err(_) => Source::Unreachable,
    }
}

fn remote_view<'a>(
    target: &Target<'a>,
    remote: &RemoteMemory,
    access: Access,
    length: u64,
) -> Result<Option<View<'a>>, Outcome> {
    if length == 0 {
        return Ok(None);
    }
    let view = target.port.remote_memory(remote.key, target.queue_pair.pd, access, remote.address, length);
    view.map(Some).ok_or_else(|| CompletionStatus::RemoteBadAddress.into())
}

/// Ends the try if the target has no receive posted, before bytes are loaded in vain.
fn expect_receive(target: &Target<'_>) -> Result<(), Outcome> {
    match &target.queue_pair.receive {
        Some(receive) if receive.may_have_receive() => Ok(()),
        _ => Err(Outcome::ReceiverNotReady),
    }
}

/// Takes the oldest receive of the target. If that finds a violation in the receive queue, puts the target's queue pair
/// into the error state and fails the request.
fn take_receive(target: &Target<'_>) -> Result<PostedReceive, Outcome> {
    let Some(receive) = &target.queue_pair.receive else {
        return Err(Outcome::ReceiverNotReady);
    };
    match receive.take() {
        Ok(Some(receive)) => Ok(receive),
        Ok(None) => Err(Outcome::ReceiverNotReady),
        Err(broken) => {
            target.queue_pair.fail(Queue::Receive(target.queue_pair.number), *broken);
            Err(CompletionStatus::RemoteBadQueuePair.into())
        }
    }
}
