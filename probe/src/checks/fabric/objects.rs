//! Opens libfabric's objects on one adapter.

use efa_gda::fabric::{Access, Bindings, Buffer};

use super::{Session, refusal, refusal_then};
use crate::check::{Checked, Outcome};
use crate::checks::session::open;
use crate::model::Party;

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
    let opened = efa_gda::fabric::Fabric::open(library, info).map_err(refusal(
        "fi_fabric succeeds",
        "all other objects are opened on the fabric",
        Party::Image,
    ))?;
    rig.fabric = Some(opened);
    Outcome::pass(info.fabric_name()).into()
}

pub(crate) fn domain(session: &mut Session) -> Checked {
    let rig = &mut session.rig.objects;
    let (fabric, info) = (open(&rig.fabric, "the fabric")?, open(&rig.info, "the fabric")?);
    let why = "fi_domain opens the adapter's device and allocates a protection domain";
    rig.domain = Some(fabric.domain(info).map_err(refusal("fi_domain succeeds", why, Party::Pod))?);
    Outcome::pass(info.domain_name()).into()
}

pub(crate) fn address_vector(session: &mut Session) -> Checked {
    let domain = open(&session.rig.objects.domain, "the domain")?;
    let why = "the address vector holds address handles";
    let addresses =
        domain.address_vector(PEERS).map_err(refusal("fi_av_open succeeds", why, Party::Image))?;
    session.rig.objects.addresses = Some(addresses);
    Outcome::pass(format!("capacity for {PEERS} addresses")).into()
}

pub(crate) fn completion_queue(session: &mut Session) -> Checked {
    let domain = open(&session.rig.objects.domain, "the domain")?;
    let why = "the adapter writes completions into it";
    let opened = domain.completion_queue(COMPLETIONS);
    session.rig.objects.completions =
        Some(opened.map_err(refusal("fi_cq_open succeeds", why, Party::Image))?);
    Outcome::pass(format!("at least {COMPLETIONS} entries")).into()
}

pub(crate) fn memory(session: &mut Session) -> Checked {
    let domain = open(&session.rig.objects.domain, "the domain")?;
    let Some(buffer) = Buffer::zeroed(REGION) else {
        return Outcome::unknown(format!("{REGION} bytes cannot be allocated")).into();
    };
    let why = "the adapter reads and writes registered memory only, whose pages registration locks";
    let registered = domain.register(buffer, Access::ALL);
    let region = registered.map_err(refusal("fi_mr_reg succeeds", why, Party::Pod))?;
    let observed = format!("{} bytes, rkey {:#x}", region.len(), region.remote_key().get());
    session.rig.objects.region = Some(region);
    Outcome::pass(observed).into()
}

pub(crate) fn endpoint(session: &mut Session) -> Checked {
    let rig = &session.rig.objects;
    let (domain, info) = (open(&rig.domain, "the domain")?, open(&rig.info, "the domain")?);
    let addresses = open(&rig.addresses, "the domain")?;
    let completions = open(&rig.completions, "the domain")?;
    let enabled = domain
        .endpoint(info)
        .and_then(|endpoint| endpoint.bind(Bindings::shared(addresses, completions)))
        .and_then(|endpoint| endpoint.enable());
    let next = format!(
        "on the host, search dmesg for efa: it names the command of {} that the adapter refused; restart the host if \
         the driver is stuck",
        info.domain_name()
    );
    let required = "fi_endpoint, fi_ep_bind and fi_enable succeed";
    let why = "fi_enable creates the queue pair";
    let enabled = enabled.map_err(refusal_then(required, why, Party::Operator, &next))?;
    session.rig.objects.endpoint = Some(enabled);
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
    let required = "fi_getname and fi_av_insert succeed";
    let why = "a writer needs an address handle for its target, and the target needs one for the writer";
    let (address, length) = inserted.map_err(refusal_then(required, why, Party::Image, &next))?;
    session.rig.objects.own_address = Some(address);
    Outcome::pass(format!("{length} bytes")).into()
}
