//! The operations: each finds the peer, checks keys and lengths, moves bytes and delivers. Each failure
//! has the status that EFA has for it (`enum efa_io_comp_status`, `efa_io_defs.h`).
//!
//! The sender's engine executes both sides of a request. It holds the lock of the sender's send state throughout. It
//! acquires the locks of the target's receive state and completion queue one after the other, each for one call. So a
//! receive that `expect_receive` found may be gone when `take_receive` is called; the try then ends as if none had been
//! posted.
//!
//! Memory that only calls of a [`super::Memory`] reach may block, because its client decides what is there. The engine
//! therefore releases the network's lock for an access to it. A try is one [`Stage`], or two if the source may block:
//! 1. The first stage checks keys and the target. If the source may block, the engine loads it into its scratch memory
//!    without the lock, and the second stage checks keys and the target again. During the load the engine holds the
//!    sender, and an `Arc` of the memory of each of the source's regions that may block; it does not hold or access
//!    other memory of the source then. The source of a read is a region of the target's adapter, of which the engine
//!    then holds nothing else; the target may end meanwhile.
//! 2. The last stage takes the target's receive, if the request consumes one, and the views of the memory where the
//!    bytes go. It drops all views of the source before the delivery begins.
//! 3. The delivery stores the bytes there and completes the receive (`deliver.rs`).
//!
//! `engine.rs` states which control call waits for an access ("Locks"), and how long other clients wait ("Waits and
//! their bounds").

use std::sync::Arc;
use std::sync::atomic::Ordering;

use efa_gda_wire::{CompletionStatus, Operation, RemoteMemory, Request, Segment};

use super::attr::Access;
use super::config::AdapterConfig;
use super::deliver::{BAD_SINK, Delivery, End, Source};
use super::engine::{Engine, NetworkView};
use super::memory::MemoryFault;
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

/// Most bytes that one try of an RDMA request moves if neither side may block; else [`BOUNCE_BYTES`]. A SEND never
/// moves in pieces.
const PIECE_BYTES: u64 = 1 << 20;

/// Why a stage ended without a delivery.
enum Stop {
    Outcome(Outcome),
    /// At least one of these views may block. The caller must load those that may block into the scratch memory, then
    /// run the next stage.
    Load(Sources),
}

/// The views of a request's source.
type Sources = [Option<View>; 2];

impl From<CompletionStatus> for Stop {
    fn from(status: CompletionStatus) -> Self {
        Self::Outcome(Outcome::Done(status))
    }
}

/// The destination of a request.
struct Target<'a> {
    /// The index of its adapter.
    index: u16,
    port: &'a Port,
    queue_pair: &'a Arc<QueuePairCore>,
}

/// The part of a try under the network's lock, which returns a delivery or the reason why there is none ([`Stop`]).
struct Stage<'n, 'a> {
    network: &'n NetworkView<'n>,
    /// A queue pair of the engine's adapter.
    sender: &'a QueuePairCore,
    request: &'a Request,
    /// Bytes that earlier tries moved.
    moved: u64,
    /// The result of loading the source's views that may block, in the second stage.
    loaded: Option<Result<(), MemoryFault>>,
}

/// Makes one try of `request`, whose earlier tries moved `moved` bytes. `sender` is a queue pair of the engine's
/// adapter.
pub(crate) fn execute(
    network: &mut NetworkView<'_>,
    engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
    moved: u64,
) -> Outcome {
    let Engine { scratch, unwritten, .. } = engine;
    let mut loaded = None;
    let outcome = loop {
        match (Stage { network, sender, request, moved, loaded }).run(scratch) {
            Ok(delivery) => break delivery.run(network, scratch, unwritten),
            Err(Stop::Outcome(outcome)) => break outcome,
            Err(Stop::Load(views)) => loaded = Some(network.unlocked(|| gather(&views, scratch, true))),
        }
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
impl<'n, 'a> Stage<'n, 'a> {
    fn run(&self, scratch: &mut Vec<u8>) -> Result<Delivery<'a>, Stop> {
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
                let source = self.load(views, length as usize, scratch)?;
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
        target: &Target<'_>,
        to: Option<View>,
        from: Option<View>,
        is_read: bool,
        scratch: &mut Vec<u8>,
    ) -> Result<Delivery<'a>, Stop> {
        let (mut piece, mut source, mut sink) = (None, Source::Inline(&[]), None);
        if let (Some(to), Some(from)) = (to, from) {
            let rest = from.length() - self.moved;
            let is_direct = !to.may_block() && !from.may_block();
            let length = rest.min(if is_direct { PIECE_BYTES } else { BOUNCE_BYTES });
            let (to, from) = (to.part(self.moved, length), from.part(self.moved, length));
            piece = Some(length).filter(|length| *length < rest);
            if piece.is_none() && self.consumes_receive(target) && !is_read {
                expect_receive(target)?;
            }
            source = match from {
                View::Host(range) if is_direct => Source::Host(range),
                from => self.load([Some(from), None], length as usize, scratch)?,
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

    /// Loads the views into the scratch memory: at once those that cannot block, the others by [`Stop::Load`].
    fn load(&self, views: Sources, length: usize, scratch: &mut Vec<u8>) -> Result<Source<'a>, Stop> {
        if self.loaded.is_none() {
            scratch.resize(scratch.len().max(length), 0);
        }
        let into = &mut scratch[..length];
        // `Stop::Load` skips memory of this process, so each stage loads it here, under the lock.
        let host = gather(&views, into, false);
        match self.loaded {
            None if views.iter().flatten().any(View::may_block) => Err(Stop::Load(views)),
            loaded => Ok(match loaded.unwrap_or(host) {
                Ok(()) => Source::Scratch(length),
                Err(_) => Source::Unreachable,
            }),
        }
    }

    /// The delivery of a message into a posted receive.
    fn message(&self, target: &Target<'_>, source: Source<'a>, receive: PostedReceive) -> Delivery<'a> {
        let length = self.request.operation.length();
        let capacity: u64 = receive.segments().iter().map(|segment| u64::from(segment.length)).sum();
        let mut sinks = [const { None }; MAX_SEGMENTS];
        let (mut rest, mut refusal) = (length, None);
        if length > capacity {
            (rest, refusal) = (0, Some((CompletionStatus::BadLength, CompletionStatus::RemoteBadLength)));
        }
        for (sink, segment) in sinks.iter_mut().zip(receive.segments()) {
            let part = rest.min(segment.length.into());
            if part == 0 {
                continue;
            }
            let (pd, access) = (target.queue_pair.pd, Access::LOCAL_WRITE);
            *sink = target.port.local_memory(segment.key, pd, access, segment.address, part);
            if sink.is_none() {
                refusal = Some(BAD_SINK);
                break;
            }
            rest -= part;
        }
        self.delivery(target, source, sinks, End::Message { receive, refusal })
    }

    fn delivery<const N: usize>(
        &self,
        target: &Target<'_>,
        source: Source<'a>,
        views: [Option<View>; N],
        end: End,
    ) -> Delivery<'a> {
        let mut sinks = [const { None }; MAX_SEGMENTS];
        sinks.iter_mut().zip(views).for_each(|(sink, view)| *sink = view);
        let local = self.network.local();
        Delivery {
            target: target.queue_pair.clone(),
            target_port: target.index,
            handle: target.port.handle_for(self.network.local_index, target.queue_pair.pd),
            sender: self.sender,
            sender_gid: local.gid,
            request: self.request,
            source,
            sinks,
            end,
        }
    }

    fn check_rdma(&self, capability: bool, length: u32) -> Result<(), Stop> {
        if !capability {
            return Err(CompletionStatus::UnsupportedOperation.into());
        }
        if length > self.network.config().limits.max_rdma_size {
            return Err(CompletionStatus::BadLength.into());
        }
        Ok(())
    }

    /// The local memory of a request, or `None` if it is empty: the key of an empty segment is not checked.
    fn local_view(&self, segment: &Segment, access: Access) -> Result<Option<View>, Stop> {
        if segment.length == 0 {
            return Ok(None);
        }
        let (port, pd, length) = (self.network.local(), self.sender.pd, segment.length.into());
        let view = port.local_memory(segment.key, pd, access, segment.address, length);
        view.map(Some).ok_or_else(|| CompletionStatus::InvalidLocalKey.into())
    }

    /// The queue pair that the request names.
    fn target(&self) -> Result<Target<'n>, Stop> {
        self.find_target(false)
    }

    /// As [`Self::target`], for RDMA: the target's adapter must have an address handle for the sender's
    /// (`EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER`).
    fn rdma_target(&self) -> Result<Target<'n>, Stop> {
        self.find_target(true)
    }

    fn find_target(&self, rdma: bool) -> Result<Target<'n>, Stop> {
        let (network, peer) = (self.network, &self.request.peer);
        let handle = network.local().handles.get(peer.address_handle.get());
        let Some(handle) = handle.filter(|handle| handle.pd == self.sender.pd) else {
            return Err(CompletionStatus::InvalidAddressHandle.into());
        };
        // Relaxed: the flag orders nothing, and is never cleared.
        let reached = handle.target_reached.load(Ordering::Relaxed);
        let target = handle.target.and_then(|index| Some((index, network.ports().port(index)?)));
        let Some((index, port)) = target else {
            return Err(match reached {
                true => CompletionStatus::UnresponsiveRemote.into(),
                false => CompletionStatus::UnreachableRemote.into(),
            });
        };
        if index == network.local_index && network.config().faults.drop_loopback {
            return Err(Stop::Outcome(Outcome::Lost));
        }
        if !reached {
            handle.target_reached.store(true, Ordering::Relaxed);
        }
        if rdma && !port.has_handle_for(network.local_index) {
            return Err(CompletionStatus::UnknownPeer.into());
        }
        match port.queue_pairs.get(peer.queue_pair.get()) {
            Some(queue_pair) if queue_pair.is_ready() && queue_pair.queue_key() == peer.queue_key => {
                Ok(Target { index, port, queue_pair })
            }
            _ => Err(CompletionStatus::RemoteBadQueuePair.into()),
        }
    }

    /// Whether an RDMA write with immediate consumes a receive.
    fn consumes_receive(&self, target: &Target<'_>) -> bool {
        self.request.immediate.is_some() && !target.queue_pair.unsolicited_write_receive
    }

    /// Takes the receive that an RDMA write with immediate consumes, if it consumes one.
    fn take_receive_for_immediate(&self, target: &Target<'_>) -> Result<Option<PostedReceive>, Stop> {
        if self.consumes_receive(target) { take_receive(target).map(Some) } else { Ok(None) }
    }
}

fn remote_view(
    target: &Target<'_>,
    remote: &RemoteMemory,
    access: Access,
    length: u64,
) -> Result<Option<View>, Stop> {
    if length == 0 {
        return Ok(None);
    }
    let view = target.port.remote_memory(remote.key, target.queue_pair.pd, access, remote.address, length);
    view.map(Some).ok_or_else(|| CompletionStatus::RemoteBadAddress.into())
}

/// Ends the try if the target has no receive posted, before bytes are loaded in vain.
fn expect_receive(target: &Target<'_>) -> Result<(), Stop> {
    match &target.queue_pair.receive {
        Some(receive) if receive.may_have_receive() => Ok(()),
        _ => Err(Stop::Outcome(Outcome::ReceiverNotReady)),
    }
}

/// Takes the oldest receive of the target. If that finds a violation in the receive queue, puts the target's queue pair
/// into the error state and fails the request.
fn take_receive(target: &Target<'_>) -> Result<PostedReceive, Stop> {
    let Some(receive) = &target.queue_pair.receive else {
        return Err(Stop::Outcome(Outcome::ReceiverNotReady));
    };
    match receive.take() {
        Ok(Some(receive)) => Ok(receive),
        Ok(None) => Err(Stop::Outcome(Outcome::ReceiverNotReady)),
        Err(broken) => {
            target.queue_pair.fail(Queue::Receive(target.queue_pair.number), *broken);
            target.port.shared.wake();
            Err(CompletionStatus::RemoteBadQueuePair.into())
        }
    }
}
