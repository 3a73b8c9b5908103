//! Another adapter of the node as the target of puts, for platforms that drop what an adapter sends to itself.

use efa_gda::error_chain;
use efa_gda::fabric::{Error, Fabric, Info, Library};
use efa_gda::gpu_queue::GpuQueueError;
use efa_gda::queue::{MappedQueue, WorkReport, WorkRequest};

use super::objects::PEERS;
use super::on_gpu::{another_queue, introduce};
use super::{Libfabric, Session};
use crate::checks::session::{Layer as _, Poster, close_queue};

/// Replaces the queue of this adapter by two: one that posts, and one of another adapter that is its target.
pub(super) fn turn_to(session: &mut Session) -> Result<String, String> {
    let receiver = receiver(session)?;
    let name = session.rig.objects.neighbour.as_ref().map(|one| one.adapter()).unwrap_or_default();
    let mode = session.rig.sender().map(MappedQueue::doorbell_mode);
    // Its request is lost, so that it can only be destroyed.
    if let Some(why) = session.rig.queue.take().and_then(close_queue) {
        return Err(format!("the first queue does not close: {why}"));
    }
    let (completions, mut sender) = another_queue(&session.rig.objects)?;
    session.rig.objects.more_completions = Some(completions);
    if let (Some(proxy), Some(mode)) = (&session.rig.proxy, mode) {
        sender.set_doorbell(mode, proxy).map_err(|error| error_chain(&error).to_string())?;
    }
    let peer = introduce(&sender, &receiver).map_err(|error| error_chain(&error).to_string())?;
    session.rig.peer = Some(peer);
    session.rig.poster = Some(Box::new(sender));
    session.rig.queue = Some(receiver);
    Ok(name)
}

/// A queue of another adapter, which the session then holds open.
pub(super) fn receiver(session: &mut Session) -> Result<MappedQueue, String> {
    let own = session.rig.objects.adapter();
    let other = session.start.targets.iter().find(|info| info.domain_name() != own);
    let info = other.cloned().ok_or_else(|| match &session.request.device {
        Some(_) => "--device leaves the node's other adapters out".to_owned(),
        None => "this node shows no other adapter".to_owned(),
    })?;
    let library = session.start.library.as_ref().ok_or("libfabric is not loaded")?;
    let mut neighbour = open(library, info).map_err(|error| error_chain(&error).to_string())?;
    let (completions, queue) = another_queue(&neighbour)?;
    neighbour.completions = Some(completions);
    session.rig.objects.neighbour = Some(Box::new(neighbour));
    Ok(queue)
}

/// Opens what a queue of an adapter needs.
fn open(library: &Library, info: Info) -> Result<Libfabric, Error> {
    let fabric = Fabric::open(library, &info)?;
    let domain = fabric.domain(&info)?;
    Ok(Libfabric {
        addresses: Some(domain.address_vector(PEERS)?),
        ops: Some(domain.gda_ops()?),
        domain: Some(domain),
        fabric: Some(fabric),
        info: Some(info),
        ..Libfabric::default()
    })
}

impl Poster<Libfabric> for MappedQueue {
    fn execute(&mut self, request: &WorkRequest) -> Result<WorkReport, GpuQueueError> {
        Self::execute(self, request).map_err(Into::into)
    }

    fn store_bytes(&self) -> u32 {
        8
    }

    fn mapped(&self) -> &MappedQueue {
        self
    }

    fn close(self: Box<Self>) -> Option<String> {
        close_queue(*self)
    }
}
