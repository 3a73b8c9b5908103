//! Opens libfabric's objects on one adapter.

use efa_gda::fabric::{Access, Bindings, Buffer};

use super::{Session, refused};
use crate::check::{Outcome, Outcomes, Unit, proven};
use crate::checks::session::missing;
use crate::model::Who;

/// Capacity of the address vector: the probe needs a few addresses.
pub(super) const PEERS: usize = 16;
/// Requested completion entries: a send queue of 4096 entries and a receive queue of 4096 need so many.
pub(super) const COMPLETIONS: usize = 8192;
/// Bytes of the region that the registration check registers.
const REGION: usize = 64 << 10;

/// The checks of this category.
pub(crate) static CHECKS: &[Unit<super::Session>] = &[
    proven("FAB-004", "The fabric opens", &["FAB-003"], fabric),
    proven("FAB-005", "The domain opens", &["FAB-004"], domain),
    proven("FAB-006", "An address vector opens", &["FAB-005"], address_vector),
    proven("FAB-007", "A completion queue opens", &["FAB-005"], completion_queue),
    proven("FAB-008", "Memory registers", &["FAB-005"], memory),
    proven("FAB-009", "An endpoint enables", &["FAB-006", "FAB-007"], endpoint),
    proven("FAB-010", "The address vector accepts the endpoint's address", &["FAB-009"], own_address),
];

fn fabric(session: &mut Session) -> Outcomes {
    let (Some(library), Some(info)) = (&session.start.library, &session.rig.objects.info) else {
        return missing("libfabric");
    };
    match efa_gda::fabric::Fabric::open(library, info) {
        Ok(fabric) => {
            session.rig.objects.fabric = Some(fabric);
            Outcome::pass(info.fabric_name()).into()
        }
        Err(error) => {
            refused(&error, "fi_fabric succeeds", "all other objects are opened on the fabric", Who::Image)
        }
    }
}

fn domain(session: &mut Session) -> Outcomes {
    let (Some(fabric), Some(info)) = (&session.rig.objects.fabric, &session.rig.objects.info) else {
        return missing("the fabric");
    };
    match fabric.domain(info) {
        Ok(domain) => {
            session.rig.objects.domain = Some(domain);
            Outcome::pass(info.domain_name()).into()
        }
        Err(error) => refused(
            &error,
            "fi_domain succeeds",
            "fi_domain opens the adapter's device and allocates a protection domain",
            Who::Pod,
        ),
    }
}

fn address_vector(session: &mut Session) -> Outcomes {
    let Some(domain) = &session.rig.objects.domain else { return missing("the domain") };
    match domain.address_vector(PEERS) {
        Ok(addresses) => {
            session.rig.objects.addresses = Some(addresses);
            Outcome::pass(format!("capacity for {PEERS} addresses")).into()
        }
        Err(error) => {
            refused(&error, "fi_av_open succeeds", "the address vector holds address handles", Who::Image)
        }
    }
}

fn completion_queue(session: &mut Session) -> Outcomes {
    let Some(domain) = &session.rig.objects.domain else { return missing("the domain") };
    match domain.completion_queue(COMPLETIONS) {
        Ok(completions) => {
            session.rig.objects.completions = Some(completions);
            Outcome::pass(format!("at least {COMPLETIONS} entries")).into()
        }
        Err(error) => {
            refused(&error, "fi_cq_open succeeds", "the adapter writes completions into it", Who::Image)
        }
    }
}

fn memory(session: &mut Session) -> Outcomes {
    let Some(domain) = &session.rig.objects.domain else { return missing("the domain") };
    let Some(buffer) = Buffer::zeroed(REGION) else {
        return Outcome::unknown(format!("{REGION} bytes cannot be allocated")).into();
    };
    match domain.register(buffer, Access::ALL) {
        Ok(region) => {
            let observed = format!("{} bytes, rkey {:#x}", region.len(), region.remote_key().get());
            session.rig.objects.region = Some(region);
            Outcome::pass(observed).into()
        }
        Err(error) => refused(
            &error,
            "fi_mr_reg succeeds",
            "the adapter reads and writes registered memory only, whose pages registration locks",
            Who::Pod,
        ),
    }
}

fn endpoint(session: &mut Session) -> Outcomes {
    let rig = &session.rig.objects;
    let (Some(domain), Some(info), Some(addresses), Some(completions)) =
        (&rig.domain, &rig.info, &rig.addresses, &rig.completions)
    else {
        return missing("the domain");
    };
    let enabled = domain
        .endpoint(info)
        .and_then(|endpoint| endpoint.bind(Bindings::shared(addresses, completions)))
        .and_then(|endpoint| endpoint.enable());
    match enabled {
        Ok(endpoint) => {
            session.rig.objects.endpoint = Some(endpoint);
            Outcome::pass("bound to the address vector and the completion queue, and enabled").into()
        }
        Err(error) => refused(
            &error,
            "fi_endpoint, fi_ep_bind and fi_enable succeed",
            "fi_enable creates the queue pair",
            Who::Host,
        ),
    }
}

fn own_address(session: &mut Session) -> Outcomes {
    let (Some(endpoint), Some(addresses)) = (&session.rig.objects.endpoint, &session.rig.objects.addresses)
    else {
        return missing("the endpoint");
    };
    let inserted = endpoint.address().and_then(|raw| Ok((addresses.insert(&raw)?, raw.len())));
    match inserted {
        Ok((address, length)) => {
            session.rig.objects.own_address = Some(address);
            Outcome::pass(format!("{length} bytes")).into()
        }
        Err(error) => refused(
            &error,
            "fi_getname and fi_av_insert succeed",
            "a writer needs an address handle for its target, and the target needs one for the writer",
            Who::Image,
        ),
    }
}
