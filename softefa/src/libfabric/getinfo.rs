//! `fi_getinfo` of the provider.

use std::ffi::{c_char, c_int};
use std::net::Ipv6Addr;

use efa_gda_sys::fi;

use super::adapters;
use super::config::{Config, Defect};
use super::ffi::{self, Code, text};
use super::hints::Hints;
use super::info::InfoList;
use super::matching::{self, Mismatch};
use super::offer::{ADDRESS_LENGTH, Offer, offers};
use super::{domain, fabric};

pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    ffi::entry(|| {
        let config = Config::get().map_err(|_| Code::INVALID)?;
        misbehave(config);
        // SAFETY: libfabric hands in hints of its own making, or null.
        let hints = unsafe { Hints::read(hints) };
        // SAFETY: null, or the application's strings.
        let (node, service) = unsafe { (text(node), text(service)) };
        let query = Query { version, node, service, source: flags & fi::FI_SOURCE != 0, hints };
        let list = query.run(config)?;
        // SAFETY: libfabric gives the place for the list.
        unsafe { ffi::store(info, list.into_raw()) }
    })
}

fn misbehave(config: &Config) {
    match config.defect {
        Some(Defect::CrashInGetinfo) => {
            // libpsm, which libfabric 1.17 loads, catches this signal and exits with 1 instead.
            // SAFETY: ends this process by a signal, which is what was asked for.
            unsafe {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::raise(libc::SIGSEGV);
            }
        }
        Some(Defect::HangInGetinfo) => loop {
            std::thread::park();
        },
        _ => {}
    }
}

struct Query<'a> {
    version: u32,
    node: Option<&'a str>,
    service: Option<&'a str>,
    /// Node and service name the local end.
    source: bool,
    hints: Option<Hints>,
}

impl Query<'_> {
    fn run(&self, config: &Config) -> Result<InfoList, Code> {
        let faces = adapters::faces(config)?;
        let destination = self.destination()?;
        let mut list = InfoList::new();
        let mut found = false;
        for offer in offers(&faces, config) {
            match self.answer(offer) {
                Ok(answer) => {
                    list.push(&answer, self.version, destination)?;
                    found = true;
                }
                Err(why) => log(&offer, why),
            }
        }
        if found { Ok(list) } else { Err(Code::NO_DATA) }
    }

    /// The address to reach, from the node and service or from the hints.
    fn destination(&self) -> Result<Option<[u8; ADDRESS_LENGTH]>, Code> {
        if !self.source && (self.node.is_some() || self.service.is_some()) {
            return self.named_address().map(Some);
        }
        let Some(address) = self.hints.as_ref().and_then(|hints| hints.destination.as_deref()) else {
            return Ok(None);
        };
        address.try_into().map(Some).map_err(|_| Code::NO_DATA)
    }

    /// Node is the GID as an IPv6 address, service the queue pair number.
    fn named_address(&self) -> Result<[u8; ADDRESS_LENGTH], Code> {
        let gid: Ipv6Addr = self.node.ok_or(Code::INVALID)?.parse().map_err(|_| Code::INVALID)?;
        let mut address = [0; ADDRESS_LENGTH];
        address[..16].copy_from_slice(&gid.octets());
        let number: u16 = self.service.and_then(|service| service.parse().ok()).unwrap_or(0);
        address[16..18].copy_from_slice(&number.to_ne_bytes());
        Ok(address)
    }

    fn answer<'o>(&self, offer: Offer<'o>) -> Result<Offer<'o>, Mismatch> {
        self.check_source(&offer)?;
        if let Some(hints) = &self.hints {
            check_names(&offer, hints)?;
            check_objects(&offer, hints)?;
            matching::check(&offer, hints, self.version)?;
        }
        matching::answer(offer, self.hints.as_ref(), self.version)
    }

    fn check_source(&self, offer: &Offer<'_>) -> Result<(), Mismatch> {
        const OTHER: Mismatch = "another source address";
        if self.source {
            let Some(node) = self.node else { return Ok(()) };
            let gid = node.parse::<Ipv6Addr>().map(|address| address.octets());
            return if gid == Ok(offer.adapter.gid) { Ok(()) } else { Err(OTHER) };
        }
        match self.hints.as_ref().and_then(|hints| hints.source.as_deref()) {
            Some(source) if source != offer.adapter.address() => Err(OTHER),
            _ => Ok(()),
        }
    }
}

fn check_names(offer: &Offer<'_>, hints: &Hints) -> Result<(), Mismatch> {
    let domain = hints.domain.as_ref().and_then(|domain| domain.name.as_deref());
    if domain.is_some_and(|name| name != offer.adapter.domain_name()) {
        return Err("another domain");
    }
    let Some(fabric) = &hints.fabric else { return Ok(()) };
    if fabric.name.as_deref().is_some_and(|name| name != offer.fabric.name()) {
        return Err("another fabric");
    }
    match Config::get() {
        Ok(config) if fabric.prov_version > config.version => Err("a newer provider"),
        _ => Ok(()),
    }
}

/// Hints may hold open objects, to which answers are then restricted.
fn check_objects(offer: &Offer<'_>, hints: &Hints) -> Result<(), Mismatch> {
    if let Some(object) = hints.fabric.as_ref().and_then(|fabric| fabric.object) {
        // SAFETY: an open fabric, as fi_getinfo's documentation asks.
        if unsafe { fabric::kind(object) } != Ok(offer.fabric) {
            return Err("another open fabric");
        }
    }
    if let Some(object) = hints.domain.as_ref().and_then(|domain| domain.object) {
        // SAFETY: an open domain, as fi_getinfo's documentation asks.
        let open = unsafe { domain::identity(object) };
        if open != Ok((offer.fabric, offer.adapter.device.clone())) {
            return Err("another open domain");
        }
    }
    Ok(())
}

fn log(offer: &Offer<'_>, why: Mismatch) {
    let (domain, fabric) = (offer.adapter.domain_name(), offer.fabric.name());
    ffi::log(format_args!("{domain} on {fabric} not offered: {why}"));
}
