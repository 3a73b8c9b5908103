//! What each operation does: finds the peer, checks keys and lengths, moves bytes, delivers. Every
//! way to fail has the status that EFA has for it (`enum efa_io_comp_status`).

use std::sync::atomic::Ordering;

use efa_gda_wire::{
    Completion, CompletionKind, CompletionStatus, InlineData, Operation, OperationCode, ReceiveInfo,
    RemoteMemory, Request, RequestId, RequestIdWidth, Segment, Segments, UNKNOWN_ADDRESS_HANDLE,
};

use super::attr::Access;
use super::completion::Finished;
use super::counter::Counted;
use super::engine::{Engine, World};
use super::queue_pair::QueuePairCore;
use super::receive_queue::Posted;
use super::shared::add;
use super::tables::{Port, View};
use super::transfer::{self, Side};
use super::violation::Queue;

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With this status.
    Done(CompletionStatus),
    /// The receiver has no receive posted.
    NotReady,
}

/// Why a try ended early.
struct Stop(Outcome);

impl From<CompletionStatus> for Stop {
    fn from(status: CompletionStatus) -> Self {
        Self(Outcome::Done(status))
    }
}

/// The destination of a request.
struct Target<'a> {
    port: &'a Port,
    queue_pair: &'a QueuePairCore,
}

/// Executes `request` of `sender`, a queue pair of `world.me`.
pub(crate) fn execute(
    world: &World<'_>,
    engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
) -> Outcome {
    let done = match &request.operation {
        Operation::Write { remote, local } => write(world, engine, sender, request, remote, local),
        Operation::WriteInline { remote, data } => write_inline(world, engine, sender, request, remote, data),
        Operation::Read { remote, local } => read(world, engine, sender, request, remote, local),
        Operation::Send(segments) => send(world, engine, sender, request, segments),
        Operation::SendInline(data) => send_inline(world, engine, sender, request, data),
    };
    match done {
        Ok(bytes) => {
            engine.bytes += bytes;
            Outcome::Done(CompletionStatus::Ok)
        }
        Err(Stop(outcome)) => outcome,
    }
}

fn write(
    world: &World<'_>,
    engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
    remote: &RemoteMemory,
    local: &Segment,
) -> Result<u64, Stop> {
    rdma_allowed(world, world.config().capabilities.rdma_write, local.length)?;
    let from = local_view(world, sender, local, Access::LOCAL_READ)?;
    let target = rdma_target(world, sender, request)?;
    let to = remote_view(&target, remote, Access::REMOTE_WRITE, local.length.into())?;
    let posted = receive_for_immediate(&target, request)?;
    let copied = match (to, from) {
        (Some(to), Some(from)) => transfer::copy(to, from, &mut engine.scratch),
        _ => Ok(()),
    };
    deliver_immediate(world, sender, &target, request, posted, local.length, copied.is_ok());
    count_remote(&target, Counted::REMOTE_WRITE, copied.is_ok());
    copied.map(|()| local.length.into()).map_err(fault)
}

fn write_inline(
    world: &World<'_>,
    engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
    remote: &RemoteMemory,
    data: &InlineData,
) -> Result<u64, Stop> {
    let length = data.len() as u32;
    rdma_allowed(world, world.config().capabilities.rdma_write, length)?;
    let target = rdma_target(world, sender, request)?;
    let to = remote_view(&target, remote, Access::REMOTE_WRITE, length.into())?;
    let posted = receive_for_immediate(&target, request)?;
    let _ = engine;
    let copied = to.map_or(Ok(()), |to| transfer::write(to, 0, data));
    deliver_immediate(world, sender, &target, request, posted, length, copied.is_ok());
    count_remote(&target, Counted::REMOTE_WRITE, copied.is_ok());
    copied.map(|()| length.into()).map_err(fault)
}

fn read(
    world: &World<'_>,
    engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
    remote: &RemoteMemory,
    local: &Segment,
) -> Result<u64, Stop> {
    rdma_allowed(world, world.config().capabilities.rdma_read, local.length)?;
    let to = local_view(world, sender, local, Access::LOCAL_WRITE)?;
    let target = rdma_target(world, sender, request)?;
    let from = remote_view(&target, remote, Access::REMOTE_READ, local.length.into())?;
    if let (Some(to), Some(from)) = (to, from) {
        // What is the source of a copy is the remote side here.
        transfer::copy(to, from, &mut engine.scratch).map_err(|side| match side {
            Side::From => fault(Side::To),
            Side::To => fault(Side::From),
        })?;
    }
    count_remote(&target, Counted::REMOTE_READ, true);
    Ok(local.length.into())
}

/// What a peer did here, where something counts that: it has no completion of its own.
fn count_remote(target: &Target<'_>, what: Counted, done: bool) {
    if done {
        target.queue_pair.count(what, CompletionStatus::Ok);
    }
}

fn send(
    world: &World<'_>,
    engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
    segments: &Segments,
) -> Result<u64, Stop> {
    let length = request.operation.length();
    if length > u64::from(world.config().limits.max_msg_size) {
        return Err(CompletionStatus::BadLength.into());
    }
    let mut views = [None; 2];
    for (view, segment) in views.iter_mut().zip(segments.iter()) {
        *view = local_view(world, sender, segment, Access::LOCAL_READ)?;
    }
    let target = target(world, sender, request)?;
    let posted = take_receive(&target)?;
    let mut message = std::mem::take(&mut engine.scratch);
    let gathered = transfer::gather(views.into_iter().flatten(), &mut message, length as usize);
    let status = match gathered {
        Ok(()) => deliver_message(world, sender, &target, request, &posted, &message[..length as usize]),
        Err(side) => {
            complete_receive(
                world,
                sender,
                &target,
                request,
                Some(&posted),
                0,
                CompletionStatus::RemoteAbort,
            );
            Err(fault(side))
        }
    };
    engine.scratch = message;
    status.map(|()| length)
}

fn send_inline(
    world: &World<'_>,
    _engine: &mut Engine,
    sender: &QueuePairCore,
    request: &Request,
    data: &InlineData,
) -> Result<u64, Stop> {
    let target = target(world, sender, request)?;
    let posted = take_receive(&target)?;
    deliver_message(world, sender, &target, request, &posted, data).map(|()| data.len() as u64)
}

fn rdma_allowed(world: &World<'_>, capability: bool, length: u32) -> Result<(), Stop> {
    if !capability {
        return Err(CompletionStatus::UnsupportedOperation.into());
    }
    if length > world.config().limits.max_rdma_size {
        return Err(CompletionStatus::BadLength.into());
    }
    Ok(())
}

/// Memory of a side that cannot be reached gives what a bad key gives.
fn fault(side: Side) -> Stop {
    match side {
        Side::From => CompletionStatus::InvalidLocalKey.into(),
        Side::To => CompletionStatus::RemoteBadAddress.into(),
    }
}

/// The local memory of a request; none where it is empty, whose key nobody looks at.
fn local_view<'a>(
    world: &World<'a>,
    sender: &QueuePairCore,
    segment: &Segment,
    access: Access,
) -> Result<Option<View<'a>>, Stop> {
    if segment.length == 0 {
        return Ok(None);
    }
    let view = world.me.local(segment.key, sender.pd, access, segment.address, segment.length.into());
    view.map(Some).ok_or_else(|| CompletionStatus::InvalidLocalKey.into())
}

fn remote_view<'a>(
    target: &Target<'a>,
    remote: &RemoteMemory,
    access: Access,
    length: u64,
) -> Result<Option<View<'a>>, Stop> {
    if length == 0 {
        return Ok(None);
    }
    let view = target.port.remote(remote.key, target.queue_pair.pd, access, remote.address, length);
    view.map(Some).ok_or_else(|| CompletionStatus::RemoteBadAddress.into())
}

/// The queue pair that a request is for.
fn target<'a>(world: &World<'a>, sender: &QueuePairCore, request: &Request) -> Result<Target<'a>, Stop> {
    find_target(world, sender, request, false)
}

/// As [`target`], for RDMA, where the other side must have an address handle for this one
/// (`EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER`).
fn rdma_target<'a>(world: &World<'a>, sender: &QueuePairCore, request: &Request) -> Result<Target<'a>, Stop> {
    find_target(world, sender, request, true)
}

fn find_target<'a>(
    world: &World<'a>,
    sender: &QueuePairCore,
    request: &Request,
    rdma: bool,
) -> Result<Target<'a>, Stop> {
    let peer = &request.peer;
    let handle = world.me.handles.get(peer.address_handle.get()).filter(|handle| handle.pd == sender.pd);
    let Some(handle) = handle else { return Err(CompletionStatus::InvalidAddressHandle.into()) };
    let Some(port) = handle.target.and_then(|index| world.ports.port(index)) else {
        return Err(match handle.answered.load(Ordering::Relaxed) {
            true => CompletionStatus::UnresponsiveRemote.into(),
            false => CompletionStatus::UnreachableRemote.into(),
        });
    };
    if !handle.answered.load(Ordering::Relaxed) {
        handle.answered.store(true, Ordering::Relaxed);
    }
    if rdma && !port.knows(world.index) {
        return Err(CompletionStatus::UnknownPeer.into());
    }
    match port.queue_pairs.get(peer.queue_pair.get()) {
        Some(queue_pair) if queue_pair.is_ready() && queue_pair.queue_key() == peer.queue_key => {
            Ok(Target { port, queue_pair })
        }
        _ => Err(CompletionStatus::RemoteBadQueuePair.into()),
    }
}

fn take_receive(target: &Target<'_>) -> Result<Posted, Stop> {
    let Some(receive) = &target.queue_pair.receive else { return Err(Stop(Outcome::NotReady)) };
    match receive.take() {
        Ok(Some(posted)) => Ok(posted),
        Ok(None) => Err(Stop(Outcome::NotReady)),
        Err(finding) => {
            target.queue_pair.fail(Queue::Receive(target.queue_pair.number), *finding);
            target.port.shared.wake();
            Err(CompletionStatus::RemoteBadQueuePair.into())
        }
    }
}

/// The receive that an RDMA write with immediate uses up, where it uses one.
fn receive_for_immediate(target: &Target<'_>, request: &Request) -> Result<Option<Posted>, Stop> {
    if request.immediate.is_none() || target.queue_pair.unsolicited_write_receive {
        return Ok(None);
    }
    take_receive(target).map(Some)
}

fn deliver_immediate(
    world: &World<'_>,
    sender: &QueuePairCore,
    target: &Target<'_>,
    request: &Request,
    posted: Option<Posted>,
    length: u32,
    written: bool,
) {
    if request.immediate.is_none() {
        return;
    }
    let status = if written { CompletionStatus::Ok } else { CompletionStatus::RemoteAbort };
    if written || posted.is_some() {
        complete_receive(world, sender, target, request, posted.as_ref(), length, status);
    }
}

/// Puts a message into a posted receive and completes it.
fn deliver_message(
    world: &World<'_>,
    sender: &QueuePairCore,
    target: &Target<'_>,
    request: &Request,
    posted: &Posted,
    message: &[u8],
) -> Result<(), Stop> {
    let room: usize = posted.segments().iter().map(|segment| usize::from(segment.length)).sum();
    let length = message.len() as u32;
    let complete = |status| complete_receive(world, sender, target, request, Some(posted), length, status);
    if message.len() > room {
        complete(CompletionStatus::BadLength);
        return Err(CompletionStatus::RemoteBadLength.into());
    }
    let mut rest = message;
    for segment in posted.segments() {
        let (part, after) = rest.split_at(rest.len().min(segment.length.into()));
        rest = after;
        if part.is_empty() {
            continue;
        }
        let (pd, wanted) = (target.queue_pair.pd, Access::LOCAL_WRITE);
        let view = target.port.local(segment.key, pd, wanted, segment.address, part.len() as u64);
        if view.is_none_or(|view| transfer::write(view, 0, part).is_err()) {
            // The receive's own key is bad: an error on both sides.
            complete(CompletionStatus::InvalidLocalKey);
            return Err(CompletionStatus::RemoteAbort.into());
        }
    }
    complete(CompletionStatus::Ok);
    Ok(())
}

fn complete_receive(
    world: &World<'_>,
    sender: &QueuePairCore,
    target: &Target<'_>,
    request: &Request,
    posted: Option<&Posted>,
    length: u32,
    status: CompletionStatus,
) {
    let handle = target.port.handle_for(world.index, target.queue_pair.pd);
    let code: OperationCode = request.operation.code();
    let info = ReceiveInfo {
        length,
        address_handle: handle.unwrap_or(UNKNOWN_ADDRESS_HANDLE),
        source_queue_pair: sender.number,
        immediate: request.immediate,
        unsolicited: posted.is_none(),
    };
    let completion = Completion {
        id: posted.map_or(RequestId::new(0), |posted| posted.id),
        status,
        operation_code: code.get() as u8,
        queue_pair: target.queue_pair.number,
        kind: CompletionKind::Receive(info),
    };
    // Bytes 16 to 31 hold either the sender's address or the high half of a write's length.
    let source = if handle.is_none() && code == OperationCode::Send { Some(world.me.gid) } else { None };
    let ids = RequestIdWidth::Bits16;
    if code == OperationCode::Send {
        target.queue_pair.count(Counted::RECEIVE, status);
    }
    target.queue_pair.receive_cq.push(std::iter::once(Finished { completion, ids, source }));
    add(&target.port.shared.counts.receives, 1);
}
