//! A GPU with an adapter's queue: the parts of the queue that map into the GPU, the doorbell mode, and a second
//! queue that is the target of the GPU's posts.

use std::time::Duration;

use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::{GpuQueue, MappedPart};
use efa_gda::queue::{MappedQueue, StoreWidth};
use efa_gda::smaps::MemoryKind;
use efa_gda::{Error, Refused};

use super::objects::another_queue;
use super::{Libfabric, Session, neighbour};
use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::data;
use crate::checks::rows::{Turn, plan};
use crate::checks::session::{Layer as _, Poster, Rig, introduce, missing, text};
use crate::model::{Finding, LOOPBACK, PEER_MAPPING, Pair, Party, State};
use crate::releases::HOST_COMPLETIONS;
use crate::worker::stream::Stream;
use crate::worker::{Event, Executor};

/// Additional time to open a context, which takes seconds on a machine with many GPUs, and to compile kernels,
/// which takes a second or two.
const STARTING: Duration = Duration::from_secs(20);

/// Runs the checks of every requested pair, each on a separate queue.
pub(super) fn run(stream: &mut Stream, session: &mut Session, names: Vec<String>) {
    let pairs = match &session.request.executor {
        Executor::Host => Vec::new(),
        Executor::Gpu(gpu) => {
            names.iter().map(|adapter| Pair { gpu: *gpu, adapter: adapter.clone() }).collect()
        }
        Executor::Pairs(pairs) => pairs.clone(),
    };
    stream.send(&Event::Adapters(names.clone()));
    let (opening, each) = (plan(&session.request, Turn::Opening), plan(&session.request, Turn::Each));
    if names.is_empty() {
        session.run(stream, None, &[&opening[..], &each].concat());
    }
    // The GPU whose context can be reused. A failed check may have broken its context.
    let mut sound: Option<u32> = None;
    for pair in pairs {
        let index = names.iter().position(|name| *name == pair.adapter);
        let info = index.and_then(|index| session.start.infos.get(index)).cloned();
        if info.is_none() || session.request.avoid.contains(&pair.subject()) {
            continue;
        }
        // Opening a context takes seconds, so the GPU's pairs share one.
        let gpu = session.rig.objects.gpu.take().filter(|_| sound == Some(pair.gpu));
        session.rig = Rig::new(Libfabric { info, gpu, ..Libfabric::default() });
        session.gpu = Some(pair.gpu);
        session.run(stream, Some(&pair.adapter), &opening);
        session.run(stream, Some(&pair.subject()), &each);
        sound = (!stream.failed(&pair.subject())).then_some(pair.gpu);
    }
}

/// As [`Layer::drive`](crate::checks::session::Layer::drive): the session's GPU drives the queue, if it has one.
pub(super) fn drive(
    session: &mut Session,
    mut queue: MappedQueue,
    mode: DoorbellMode,
) -> Result<Poster, String> {
    let proxy = match session.rig.proxy.take() {
        Some(proxy) => proxy,
        None => DoorbellProxy::start().map_err(text)?,
    };
    let poster = match (session.gpu, &session.rig.objects.gpu) {
        (Some(_), Some(gpu)) => {
            let mapped = GpuQueue::with_doorbell(queue, gpu, mode.into(), &proxy);
            Poster::Gpu(Box::new(mapped.map_err(text)?.0))
        }
        _ => {
            queue.set_doorbell(mode, &proxy).map_err(text)?;
            Poster::Host(Box::new(queue))
        }
    };
    session.rig.proxy = (mode != DoorbellMode::Direct).then_some(proxy);
    Ok(poster)
}

/// The GPU of this session, open.
pub(super) fn gpu(session: &mut Session) -> Result<Gpu, Outcomes> {
    let number = session.gpu.ok_or_else(|| missing("the GPU"))?;
    if let Some(gpu) = &session.rig.objects.gpu {
        return Ok(gpu.clone());
    }
    session.progress.request_time(STARTING);
    let gpu = Gpu::open(number as usize).map_err(|error| gpu_failed(&error))?;
    session.rig.objects.gpu = Some(gpu.clone());
    Ok(gpu)
}

fn gpu_failed(error: &Error) -> Outcomes {
    Outcome::fail(error.to_string())
        .expects(
            "a GPU that can use the adapter's queue",
            "CUDA refused a call or lost the context; nothing was posted after that",
        )
        .fix(
            "look up CUDA's result in the observed text; on the host, run nvidia-smi and search \
             dmesg for Xid",
            Party::Operator,
        )
        .into()
}

/// The wanted parts that CUDA registered, and the refusals of the others.
fn parts(session: &mut Session, wanted: [&str; 2]) -> Result<(Vec<MappedPart>, Vec<String>), Outcomes> {
    let gpu = gpu(session)?;
    let Some(queue) = &session.rig.queue else { return Err(missing("the queue")) };
    let (mut mapped, mut refused) = (Vec::new(), Vec::new());
    for (part, result) in GpuQueue::try_parts(queue, &gpu) {
        match result {
            _ if !wanted.contains(&part) => {}
            Ok(registered) => mapped.push(registered),
            Err(error) => refused.push(format!("{part}: {}", error)),
        }
    }
    Ok((mapped, refused))
}

/// How a part was registered, and why.
fn describe(registered: &MappedPart) -> String {
    let memory = match registered.kind {
        MemoryKind::Device => "device memory according to VmFlags",
        MemoryKind::Ordinary => "ordinary memory according to VmFlags",
    };
    format!("{}: {memory}, {}", registered.part, registered.how)
}

fn all_mapped(mapped: &[MappedPart]) -> Checked {
    Outcome::pass(mapped.iter().map(describe).collect::<Vec<_>>().join("; ")).into()
}

/// The parts of a queue that are in host memory; the others are in the adapter's BAR.
const IN_HOST_MEMORY: [&str; 2] = ["receive queue: ", "completion queue: "];

/// Ends a check of which CUDA refused parts in the BAR only, if the kernel driver maps no BAR: this is one problem,
/// which [`PEER_MAPPING`] has reported.
fn explained(session: &Session, refused: &[String]) -> Result<(), Outcomes> {
    let is_cause = |one: &Finding| one.code == PEER_MAPPING && one.state == State::Fail;
    let in_bar = |part: &String| IN_HOST_MEMORY.iter().all(|other| !part.starts_with(other));
    match refused.iter().all(in_bar) && session.request.findings.iter().any(is_cause) {
        true => Err(Outcome::Skip(PEER_MAPPING.to_owned(), refused.join("; ")).into()),
        false => Ok(()),
    }
}

pub(crate) fn sends(session: &mut Session) -> Checked {
    let (mapped, refused) = parts(session, ["send queue", "doorbell"])?;
    if refused.is_empty() {
        return all_mapped(&mapped);
    }
    explained(session, &refused)?;
    Err(Outcome::fail(refused.join("; ")).into())
}

pub(crate) fn completions(session: &mut Session) -> Checked {
    let (mapped, refused) = parts(session, ["completion queue", "completion doorbell"])?;
    if refused.is_empty() {
        return all_mapped(&mapped);
    }
    explained(session, &refused)?;
    Outcome::warn(format!("{}; {}", refused.join("; "), host_completions(session))).into()
}

/// Whether the host can read the completions of requests that the GPU posts.
fn host_completions(session: &Session) -> String {
    let (piece, start) = (HOST_COMPLETIONS.piece, &session.start);
    let (Some(library), Some(info)) = (&start.library, &session.rig.objects.info) else {
        return format!("{piece}: not asked");
    };
    match Query::new().host_completions(true).adapter(info.domain_name()).find(library) {
        Ok(_) => format!("{piece} is offered, so libfabric can read the completions of a GPU's requests"),
        Err(error) => format!("{piece} is not offered: {}", error),
    }
}

pub(crate) fn receives(session: &mut Session) -> Checked {
    match parts(session, ["receive queue", "receive doorbell"])? {
        (mapped, refused) if refused.is_empty() && mapped.is_empty() => {
            Outcome::pass("this queue has no receive queue").into()
        }
        (mapped, refused) if refused.is_empty() => all_mapped(&mapped),
        (_, refused) => {
            explained(session, &refused)?;
            Outcome::warn(refused.join("; ")).into()
        }
    }
}

pub(crate) fn takes_doorbell_mode(session: &mut Session) -> Checked {
    if session.gpu.is_none() {
        return data::takes_doorbell_mode(session);
    }
    Outcome::pass(map_into_gpu(session)?).into()
}

/// Maps the queue into the GPU, in the first doorbell mode of the choice that works, and opens a second queue that
/// is the target of the GPU's posts.
fn map_into_gpu(session: &mut Session) -> Result<String, Outcomes> {
    let gpu = gpu(session)?;
    session.progress.request_time(STARTING);
    gpu.prepare().map_err(|error| gpu_failed(&error))?;
    // A platform that drops what an adapter sends to itself drops what the GPU posts, too.
    let receiver = match loopback_works(session) {
        true => receiver(session)?,
        false => neighbour::receiver(session).map_err(no_doorbell_mode)?,
    };
    let proxy = DoorbellProxy::start().map_err(|error| no_doorbell_mode(error.to_string()))?;
    let Some(mut queue) = session.rig.queue.take() else { return Err(missing("the queue")) };
    let qualifies = session.request.put.qualify_laps.is_some();
    if qualifies {
        queue = queue.with_store_width(StoreWidth::Sixteen);
    }
    let only = session.request.doorbell.only();
    let (queue, refused) = match GpuQueue::with_doorbell(queue, &gpu, only, &proxy) {
        Ok(mapped) => mapped,
        Err(Refused { error, queue, .. }) => {
            session.rig.queue = queue.map(|queue| *queue);
            return Err(no_doorbell_mode(error.to_string()));
        }
    };
    let (mode, relayed) = (queue.doorbell_mode(), queue.relayed().is_some());
    if qualifies && mode == DoorbellMode::Staged {
        let why = format!("{mode}: a host thread writes the entries, and no GPU");
        return Err(no_doorbell_mode(why));
    }
    queue.prepare().map_err(|error| gpu_failed(&error))?;
    let peer = introduce(queue.mapped(), &receiver);
    session.rig.peer = Some(peer.map_err(|error| no_doorbell_mode(error.to_string()))?);
    session.rig.poster = Some(Poster::Gpu(Box::new(queue)));
    session.rig.queue = Some(receiver);
    // The mode `direct` needs no doorbell proxy; a relay of completions keeps its own handle of it.
    session.rig.proxy = (mode != DoorbellMode::Direct).then_some(proxy);
    let mut text = match mode.cost() {
        None => format!("{mode}: the GPU rings"),
        Some(cost) => format!("{mode}: {cost}"),
    };
    if relayed {
        text.push_str(
            "; a host thread relays completions, because the completion queue does not map (CUDA-012)",
        );
    }
    for refused in refused {
        text.push_str(&format!("; not {}: {}", refused.mode, refused.reason));
    }
    Ok(text)
}

/// Whether the host's write from this adapter to itself was answered, as far as is known.
fn loopback_works(session: &Session) -> bool {
    let adapter = session.rig.objects.adapter();
    let dropped = |one: &Finding| {
        one.code == LOOPBACK && one.state == State::Warn && one.subject.as_deref() == Some(adapter.as_str())
    };
    !session.request.findings.iter().any(dropped)
}

/// A second queue on the same domain, for the host.
fn receiver(session: &mut Session) -> Result<MappedQueue, Outcomes> {
    let (completions, queue) = another_queue(&session.rig.objects).map_err(no_doorbell_mode)?;
    session.rig.objects.more_completions = Some(completions);
    Ok(queue)
}

fn no_doorbell_mode(observed: String) -> Outcomes {
    Outcome::fail(observed)
        .expects(
            "a doorbell mode in which the GPU, or a host thread, rings for the entries that the GPU writes",
            "without one, nothing rings for the GPU's entries",
        )
        .fix(
            "fix CUDA-008, which names the parts that CUDA refused; or use --doorbell staged, which needs \
         the least from the adapter",
            Party::Operator,
        )
        .into()
}
