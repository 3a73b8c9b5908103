//! Another adapter of the node as the target of puts, for platforms that drop what an adapter sends to itself.

use efa_gda::Error;
use efa_gda::fabric::{Fabric, Info, Library};
use efa_gda::queue::MappedQueue;

use super::objects::{PEERS, another_queue};
use super::{Libfabric, Session};
use crate::checks::session::{Layer as _, no_neighbour, text};

/// A queue of another adapter, which the session then holds open.
pub(super) fn receiver(session: &mut Session) -> Result<MappedQueue, String> {
    let own = session.rig.objects.adapter();
    let other = session.start.targets.iter().find(|info| info.domain_name() != own);
    let info = other.cloned().ok_or_else(|| no_neighbour(session.request.device.is_some()))?;
    let library = session.start.library.as_ref().ok_or("libfabric is not loaded")?;
    let mut neighbour = open(library, info).map_err(text)?;
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
