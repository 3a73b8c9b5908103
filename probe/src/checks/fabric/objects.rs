//! Opens libfabric's objects on one adapter.

use efa_gda::fabric::{Access, Bindings, Buffer, CompletionQueue};
use efa_gda::queue::MappedQueue;

use super::{Libfabric, Session, refused, refused_then};
use crate::check::{Checked, Outcome};
use crate::checks::session::open;
use crate::checks::session::text;

/// Capacity of the address vector: the probe needs a few addresses.
pub(super) const PEERS: usize = 16;
/// Requested completion entries: a send queue of 4096 entries and a receive queue of 4096 need so many.
pub(super) const COMPLETIONS: usize = 8192;
/// Bytes of the region that the registration check registers.
const REGION: usize = 64 << 10;

pub(crate) fn fabric(session: &mut Session) -> Checked {
    let library = open(&session.start.library, "libfabric")?;
    let rig = &mut session.rig.objects;
    let info = open(&rig.info, "libfabric")?;
    let opened = efa_gda::fabric::Fabric::open(library, info).map_err(refused)?;
    rig.fabric = Some(opened);
    Outcome::pass(info.fabric_name()).into()
}

pub(crate) fn domain(session: &mut Session) -> Checked {
    let rig = &mut session.rig.objects;
    let (fabric, info) = (open(&rig.fabric, "the fabric")?, open(&rig.info, "the fabric")?);
    rig.domain = Some(fabric.domain(info).map_err(refused)?);
    Outcome::pass(info.domain_name()).into()
}

pub(crate) fn address_vector(session: &mut Session) -> Checked {
    let domain = open(&session.rig.objects.domain, "the domain")?;
    let addresses = domain.address_vector(PEERS).map_err(refused)?;
    session.rig.objects.addresses = Some(addresses);
    Outcome::pass(format!("capacity for {PEERS} addresses")).into()
}

pub(crate) fn completion_queue(session: &mut Session) -> Checked {
    let domain = open(&session.rig.objects.domain, "the domain")?;
    let opened = domain.completion_queue(COMPLETIONS);
    session.rig.objects.completions = Some(opened.map_err(refused)?);
    Outcome::pass(format!("at least {COMPLETIONS} entries")).into()
}

pub(crate) fn memory(session: &mut Session) -> Checked {
    let domain = open(&session.rig.objects.domain, "the domain")?;
    let Some(buffer) = Buffer::zeroed(REGION) else {
        return Outcome::unknown(format!("{REGION} bytes cannot be allocated")).into();
    };
    let registered = domain.register(buffer, Access::ALL);
    let region = registered.map_err(refused)?;
    let observed = format!("{} bytes, rkey {:#x}", region.len(), region.remote_key().get());
    session.rig.objects.region = Some(region);
    Outcome::pass(observed).into()
}

pub(crate) fn endpoint(session: &mut Session) -> Checked {
    let rig = &session.rig.objects;
    let (domain, info) = (open(&rig.domain, "the domain")?, open(&rig.info, "the domain")?);
    let addresses = open(&rig.addresses, "the domain")?;
    let completions = open(&rig.completions, "the domain")?;
    let enabled = domain.endpoint(info, Bindings::shared(addresses, completions));
    let next = format!(
        "on the host, search dmesg for efa: it names the command of {} that the adapter refused; restart the host if \
         the driver is stuck",
        info.domain_name()
    );
    session.rig.objects.endpoint = Some(enabled.map_err(refused_then(next))?);
    Outcome::pass("bound to the address vector and the completion queue, and enabled").into()
}

pub(crate) fn own_address(session: &mut Session) -> Checked {
    let rig = &session.rig.objects;
    let endpoint = open(&rig.endpoint, "the endpoint")?;
    let addresses = open(&rig.addresses, "the endpoint")?;
    let inserted = endpoint.address().and_then(|raw| Ok((addresses.insert(&raw)?, raw.len())));
    let next = format!(
        "install the current EFA installer's libfabric in the image: this one does not accept the address of {}'s own \
         endpoint",
        rig.info.as_ref().map(|info| info.domain_name()).unwrap_or_default()
    );
    let (address, length) = inserted.map_err(refused_then(next))?;
    session.rig.objects.own_address = Some(address);
    Outcome::pass(format!("{length} bytes")).into()
}

/// Another queue on the open adapter, with a separate completion queue.
pub(super) fn another_queue(objects: &Libfabric) -> Result<(CompletionQueue, MappedQueue), String> {
    let (Some(domain), Some(info), Some(addresses), Some(ops)) =
        (&objects.domain, &objects.info, &objects.addresses, &objects.ops)
    else {
        return Err("the domain is not open in this process".to_owned());
    };
    let opened = domain.completion_queue(COMPLETIONS).and_then(|completions| {
        let endpoint = domain.endpoint(info, Bindings::shared(addresses, &completions))?;
        Ok((completions, endpoint))
    });
    let (completions, endpoint) =
        opened.map_err(|error| format!("a second endpoint does not open: {}", error))?;
    let queue = MappedQueue::new(endpoint, ops).map_err(text)?;
    Ok((completions, queue))
}
