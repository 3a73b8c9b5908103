//! `fi_getinfo`: returns an info for each candidate that matches the application's hints. `candidate` defines
//! the candidates, `negotiation` applies the rules for hints, and `info` allocates the result.

use std::ffi::{c_char, c_int};
use std::net::Ipv6Addr;

use efa_gda_sys::fi;

use super::adapters;
use super::candidate::{ADDRESS_LENGTH, Candidate, candidates};
use super::config::{Config, Defect};
use super::ffi::{self, Code, text};
use super::hints::Hints;
use super::info::InfoList;
use super::negotiation::{self, Mismatch};
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
        inject_defect(config);
        // SAFETY: libfabric's contract: null, or hints that libfabric allocated.
        let hints = unsafe { Hints::read(hints) };
        // SAFETY: null, or the application's strings.
        let (node, service) = unsafe { (text(node), text(service)) };
        let query = Query { version, node, service, source: flags & fi::FI_SOURCE != 0, hints };
        let list = query.run(config)?;
        // SAFETY: libfabric's contract: `info` is null or can be written.
        unsafe { ffi::store(info, list.into_raw()) }
    })
}

/// Crashes or hangs if the configuration injects that defect.
fn inject_defect(config: &Config) {
    match config.defect {
        Some(Defect::CrashInGetinfo) => {
            // The default handler: libpsm, which libfabric 1.17 loads, catches this signal and exits with 1.
            // SAFETY: ends this process by a signal, as the defect requires.
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

/// The arguments of one call.
struct Query<'a> {
    version: u32,
    node: Option<&'a str>,
    service: Option<&'a str>,
    /// FI_SOURCE: node and service identify the local end.
    source: bool,
    hints: Option<Hints>,
}

impl Query<'_> {
    fn run(&self, config: &Config) -> Result<InfoList, Code> {
        let descriptions = adapters::descriptions(config)?;
        let destination = self.destination()?;
        let mut list = InfoList::new();
        let mut any = false;
        for candidate in candidates(&descriptions, config) {
            match self.resolve(candidate, config.version) {
                Ok(resolved) => {
                    list.push(&resolved, self.version, destination)?;
                    any = true;
                }
                Err(reason) => log(&candidate, reason),
            }
        }
        if any { Ok(list) } else { Err(Code::NO_DATA) }
    }

    /// The destination address, from node and service or from the hints.
    fn destination(&self) -> Result<Option<[u8; ADDRESS_LENGTH]>, Code> {
        if !self.source && (self.node.is_some() || self.service.is_some()) {
            return self.address_of_node().map(Some);
        }
        let Some(address) = self.hints.as_ref().and_then(|hints| hints.destination.as_deref()) else {
            return Ok(None);
        };
        address.try_into().map(Some).map_err(|_| Code::NO_DATA)
    }

    /// The address of node and service. The node is the GID as an IPv6 address, the service the queue pair
    /// number.
    fn address_of_node(&self) -> Result<[u8; ADDRESS_LENGTH], Code> {
        let gid: Ipv6Addr = self.node.ok_or(Code::INVALID)?.parse().map_err(|_| Code::INVALID)?;
        let mut address = [0; ADDRESS_LENGTH];
        address[..16].copy_from_slice(&gid.octets());
        let number: u16 = self.service.and_then(|service| service.parse().ok()).unwrap_or(0);
        address[16..18].copy_from_slice(&number.to_ne_bytes());
        Ok(address)
    }

    fn resolve<'o>(&self, mut candidate: Candidate<'o>, release: u32) -> Result<Candidate<'o>, Mismatch> {
        self.check_source(&candidate)?;
        if let Some(hints) = &self.hints {
            check_names(&candidate, hints)?;
            check_objects(&candidate, hints)?;
            candidate = negotiation::without_contexts(candidate, hints, release);
            negotiation::check(&candidate, hints, self.version)?;
        }
        negotiation::resolve(candidate, self.hints.as_ref(), self.version)
    }

    fn check_source(&self, candidate: &Candidate<'_>) -> Result<(), Mismatch> {
        const REASON: Mismatch = "the source address is not the adapter's";
        if self.source {
            let Some(node) = self.node else { return Ok(()) };
            let gid = node.parse::<Ipv6Addr>().map(|address| address.octets());
            return if gid == Ok(candidate.adapter.gid) { Ok(()) } else { Err(REASON) };
        }
        match self.hints.as_ref().and_then(|hints| hints.source.as_deref()) {
            Some(source) if source != candidate.adapter.address() => Err(REASON),
            _ => Ok(()),
        }
    }
}

fn check_names(candidate: &Candidate<'_>, hints: &Hints) -> Result<(), Mismatch> {
    let domain = hints.domain.as_ref().and_then(|domain| domain.name.as_deref());
    if domain.is_some_and(|name| name != candidate.adapter.domain_name()) {
        return Err("the domain name is another domain's");
    }
    let Some(fabric) = &hints.fabric else { return Ok(()) };
    if fabric.name.as_deref().is_some_and(|name| name != candidate.fabric.name()) {
        return Err("the fabric name is another fabric's");
    }
    match Config::get() {
        Ok(config) if fabric.prov_version > config.version => Err("prov_version is newer than the provider"),
        _ => Ok(()),
    }
}

/// Compares the candidate with the open objects in the hints, to which the result is restricted.
fn check_objects(candidate: &Candidate<'_>, hints: &Hints) -> Result<(), Mismatch> {
    if let Some(object) = hints.fabric.as_ref().and_then(|fabric| fabric.object) {
        // SAFETY: an open fabric, as fi_getinfo's documentation requires.
        if unsafe { fabric::kind(object) } != Ok(candidate.fabric) {
            return Err("the open fabric is of another kind");
        }
    }
    if let Some(object) = hints.domain.as_ref().and_then(|domain| domain.object) {
        // SAFETY: an open domain, as fi_getinfo's documentation requires.
        let identity = unsafe { domain::identity(object) };
        if identity != Ok((candidate.fabric, candidate.adapter.device.clone())) {
            return Err("the open domain is another adapter's or fabric's");
        }
    }
    Ok(())
}

fn log(candidate: &Candidate<'_>, reason: Mismatch) {
    let (domain, fabric) = (candidate.adapter.domain_name(), candidate.fabric.name());
    ffi::log(format_args!(
        "fi_getinfo: {domain} on fabric {fabric} is left out: the hints do not match: {reason}"
    ));
}
