//! Creates rdma-core's objects on one adapter and reads the exposed queues.

use std::os::fd::AsFd;

use efa_gda::verbs::{
    Access, Buffer, Capability, CompletionCounter, CompletionQueue, Context, CountedOperations,
    ExternalMemory, ProtectionDomain, QueuePair, QueuePairOptions,
};
use efa_gda::wire::{EntrySize, QueueKey};
use efa_gda::{Error, Result};

use super::{Session, refused};
use crate::check::{Checked, Outcome};
use crate::checks::external_memory;
use crate::checks::session::{describe_peer, missing, open};
use crate::model::{Op, Party};

/// Requested entries of the completion queue and of each ring; fewer if the adapter supports fewer.
const COMPLETIONS: u32 = 4096;
const ENTRIES: u32 = 1024;
/// Bytes of the region that the registration check registers.
const REGION: usize = 64 << 10;
/// The queue key. Any number works, because each peer gets it with the address.
const KEY: QueueKey = QueueKey::new(0x6da0);

pub(crate) fn opens(session: &mut Session) -> Checked {
    let device = open(&session.rig.objects.device, "the device")?;
    let context = device.open().map_err(refused)?;
    let (vendor, part) = context.attributes().pci;
    session.rig.objects.context = Some(context);
    Outcome::pass(format!("PCI {vendor:04x}:{part:04x}")).into()
}

pub(crate) fn port(session: &mut Session) -> Checked {
    let context = open(&session.rig.objects.context, "the device")?;
    let queried = context.port().and_then(|port| Ok((port, context.gid()?)));
    let (port, gid) = queried.map_err(refused)?;
    if port.active {
        return Outcome::pass(format!("GID {gid}, messages of at most {} bytes", port.max_message)).into();
    }
    Err(Outcome::fail(format!("GID {gid}, port not active"))
        .expects("an active port", "a port that is not active carries no traffic")
        .into())
}

pub(crate) fn domain(session: &mut Session) -> Checked {
    let context = open(&session.rig.objects.context, "the device")?;
    let allocated = ProtectionDomain::allocate(context);
    session.rig.objects.domain = Some(allocated.map_err(refused)?);
    Outcome::pass("allocated").into()
}

fn completion_entries(context: &Context) -> u32 {
    COMPLETIONS.min(context.attributes().max_completions)
}

/// A completion queue for a queue of [`new_queue_pair`].
pub(super) fn new_completion_queue(context: &Context) -> Result<CompletionQueue> {
    CompletionQueue::create(context, completion_entries(context))
}

pub(crate) fn completion_queue(session: &mut Session) -> Checked {
    let context = open(&session.rig.objects.context, "the device")?;
    let entries = completion_entries(context);
    let created = new_completion_queue(context);
    session.rig.objects.completions = Some(created.map_err(refused)?);
    Outcome::pass(format!("at least {entries} entries")).into()
}

pub(crate) fn memory(session: &mut Session) -> Checked {
    let domain = open(&session.rig.objects.domain, "the domain")?;
    let Some(buffer) = Buffer::zeroed(REGION) else {
        return Outcome::unknown(format!("{REGION} bytes cannot be allocated")).into();
    };
    let region = domain.register(buffer, Access::ALL).map_err(refused)?;
    let local = domain.local_key(&region).map_err(refused)?;
    let (local, remote) = (local.get(), region.remote_key().get());
    session.rig.objects.region = Some(region);
    Outcome::pass(format!("{REGION} bytes, lkey {local:#x}, rkey {remote:#x}")).into()
}

/// A queue pair for puts of `op`, ready for requests.
pub(super) fn new_queue_pair(
    context: &Context,
    domain: &ProtectionDomain,
    completions: &CompletionQueue,
    op: Op,
) -> Result<QueuePair> {
    let wide = op == Op::InlineWrite;
    let has = context.attributes();
    let options = QueuePairOptions {
        send_entries: ENTRIES.min(has.max_send_entries),
        receive_entries: ENTRIES.min(has.max_receive_entries),
        // Inline RDMA writes need 128-byte entries; other operations do not.
        entry_size: if wide { EntrySize::B128 } else { EntrySize::B64 },
        unsolicited_writes: has.has(Capability::UnsolicitedWriteReceive),
        queue_key: KEY,
        counters: Vec::new(),
    };
    QueuePair::open(domain, completions, &options)
}

pub(crate) fn queue_pair(session: &mut Session) -> Checked {
    let objects = &session.rig.objects;
    let context = open(&objects.context, "the domain")?;
    let domain = open(&objects.domain, "the domain")?;
    let completions = open(&objects.completions, "the domain")?;
    let created = new_queue_pair(context, domain, completions, session.request.put.op);
    let pair = created.map_err(refused)?;
    let observed = format!("queue pair {}", pair.number().get());
    session.rig.objects.pair = Some(pair);
    Outcome::pass(observed).into()
}

pub(crate) fn work_queues(session: &mut Session) -> Checked {
    let pair = open(&session.rig.objects.pair, "the queue pair")?;
    let queried = pair.query().map_err(refused)?;
    (session.rig.send, session.rig.receive) = (Some(queried.0), Some(queried.1));
    Outcome::pass("the send queue and the receive queue are exposed").into()
}

pub(crate) fn completion_ring(session: &mut Session) -> Checked {
    let completions = open(&session.rig.objects.completions, "the completion queue")?;
    let queue = completions.query().map_err(refused)?;
    session.rig.completion = Some(queue);
    Outcome::pass("the completion queue is exposed").into()
}

pub(crate) fn peer(session: &mut Session) -> Checked {
    let pair = session.rig.objects.pair.as_mut().ok_or_else(|| missing("the queue pair"))?;
    let created = pair.address().and_then(|address| pair.peer(&address));
    let peer = created.map_err(refused)?;
    session.rig.peer = Some(peer);
    Outcome::pass(describe_peer(&peer)).into()
}

/// A warning about a capability that queues work without.
fn optional(error: &Error, required: &str, why: &str) -> Checked {
    Outcome::warn(error.what()).expects(required, why).fix(error.hint(), Party::Operator).into()
}

/// Attaches a counter to a separate queue pair and closes both.
pub(crate) fn counter(session: &mut Session) -> Checked {
    let objects = &session.rig.objects;
    let (context, domain) = (open(&objects.context, "the domain")?, open(&objects.domain, "the domain")?);
    // A completion queue serves one queue pair in its life, and the session's is for the puts.
    let attached = CompletionCounter::limits(context).and_then(|limits| {
        let counter = CompletionCounter::create(context)?;
        let counters = vec![(counter.clone(), CountedOperations::WRITE)];
        let of_pair =
            QueuePairOptions { send_entries: 16, receive_entries: 16, counters, ..Default::default() };
        let completions = CompletionQueue::create(context, 32)?;
        QueuePair::open(domain, &completions, &of_pair)?.close()?;
        drop(of_pair);
        counter.read()?;
        counter.close()?;
        completions.close()?;
        Ok(limits)
    });
    match attached {
        Ok(limits) => {
            let (most, value) = (limits.max_counters, limits.max_value);
            Outcome::pass(format!("{most} counters, each up to {value}")).into()
        }
        Err(error) => optional(
            &error,
            "efadv_create_comp_cntr and ibv_qp_attach_comp_cntr succeed",
            "queues work without counters: programs read completions from the completion queue",
        ),
    }
}

pub(crate) fn external(session: &mut Session) -> Checked {
    let context = open(&session.rig.objects.context, "the device")?;
    let memory = match external_memory::memory(session.request.soft) {
        Ok(memory) if context.attributes().has(Capability::ExternalCompletionQueue) => memory,
        Err(why) if context.attributes().has(Capability::ExternalCompletionQueue) => {
            return Outcome::unknown(format!("no external memory for the test: {why}")).into();
        }
        _ => {
            return Outcome::warn("the adapter does not offer it")
                .expects(
                    Capability::ExternalCompletionQueue.to_string(),
                    "queues work without it: the driver allocates completion queues in host memory",
                )
                .into();
        }
    };
    let external = ExternalMemory {
        dmabuf: memory.as_fd(),
        offset: 0,
        length: external_memory::BYTES,
        buffer: std::ptr::null_mut(),
    };
    // SAFETY: the descriptor keeps the memory alive. The queue is closed before the descriptor, which is leaked
    // if the queue does not close.
    let created = unsafe { CompletionQueue::create_external(context, &external, external_memory::ENTRIES) };
    let closed = created.and_then(|queue| {
        let raw = queue.query()?;
        queue.close()?;
        Ok(raw)
    });
    match closed {
        Ok(raw) => Outcome::pass(format!("{} entries of {} bytes", raw.num_entries, raw.entry_size)).into(),
        Err(error) => {
            // The adapter may still write to the memory, so it is leaked.
            std::mem::forget(memory);
            optional(
                &error,
                "efadv_create_cq, efadv_query_cq and ibv_destroy_cq succeed",
                "a GPU reads completions in its memory faster than across PCIe",
            )
        }
    }
}
