//! The adapters of this process: one for each device name, shared by all domains of that name. An adapter
//! stays open until the process ends, so that its violations can be read after the application closed
//! everything. This module decides only which adapters exist; their behaviour is in [`crate::device`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use efa_gda_wire::RequestIdWidth;

use crate::device::{Adapter, AdapterConfig, Gid, Network, say};

use super::candidate::{AdapterDescription, Limits};
use super::config::{Config, RELEASE_2_7};
use super::domain::Shared;
use super::ffi::{self, Code};

/// Top bits of the interface part of a software adapter's GID. The process id and the adapter's index follow.
const GID_MARK: u64 = 0x50f7 << 48;

static ADAPTERS: Mutex<Vec<(usize, Arc<Adapter>)>> = Mutex::new(Vec::new());

/// The adapters' configuration from the defaults and the environment. Its GID is a placeholder.
fn template() -> Result<&'static AdapterConfig, Code> {
    static TEMPLATE: OnceLock<Option<AdapterConfig>> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| match AdapterConfig::new(Gid([0; 16])).with_environment() {
        Ok(config) => Some(config),
        Err(error) => {
            say(format_args!("{error}"));
            None
        }
    });
    template.as_ref().ok_or(Code::INVALID)
}

/// The GID of adapter `index`, which differs for each adapter and process. An address from another process,
/// which this network does not reach, is therefore unreachable and cannot match a local adapter.
fn gid(index: usize) -> Gid {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    let process = *PROCESS.get_or_init(|| u64::from(std::process::id()));
    Gid::link_local(GID_MARK | process << 8 | (index as u64 + 1))
}

fn describe(index: usize, config: &AdapterConfig) -> AdapterDescription {
    let (limits, capabilities) = (&config.limits, &config.capabilities);
    let receive_segments = usize::from(limits.max_receive_segments).max(1);
    let send_depth = (limits.llq_bytes / 64).min(limits.max_sq_depth) as usize;
    AdapterDescription {
        device: format!("softefa{index}"),
        gid: gid(index).0,
        limits: Limits {
            send_depth: previous_power_of_two(send_depth),
            receive_depth: previous_power_of_two(limits.max_rq_depth as usize / receive_segments),
            receive_segments,
            send_segments: 2,
            inline: 32,
            inline_wide: if capabilities.entries_128 { 80 } else { 32 },
            message: limits.max_msg_size as usize,
            rdma: limits.max_rdma_size as usize,
            completion_queues: limits.max_cq.into(),
            queue_pairs: limits.max_qp.into(),
            regions: limits.max_mr as usize,
            unsolicited_writes: capabilities.unsolicited_write_receive,
            wide_ids: capabilities.request_ids_64,
        },
    }
}

fn previous_power_of_two(number: usize) -> usize {
    number.checked_ilog2().map_or(0, |log| 1 << log)
}

/// The adapters that `fi_getinfo` reports.
///
/// # Errors
/// [`Code::INVALID`] for a variable with an invalid value; the reason was written to stderr.
pub(crate) fn descriptions(config: &Config) -> Result<Vec<AdapterDescription>, Code> {
    let template = template()?;
    Ok((0..config.adapters).map(|index| describe(index, template)).collect())
}

/// The adapter of the domain `name`, created on first use.
///
/// # Errors
/// [`Code::NO_DEVICE`] if no adapter has that name; the device core's error if the adapter cannot be created.
pub(crate) fn find(config: &Config, name: &str) -> Result<(AdapterDescription, Arc<Adapter>), Code> {
    let mut descriptions = descriptions(config)?.into_iter().enumerate();
    let (index, description) =
        descriptions.find(|(_, description)| description.domain_name() == name).ok_or(Code::NO_DEVICE)?;
    let mut adapters = ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, adapter)) = adapters.iter().find(|(number, _)| *number == index) {
        return Ok((description, Arc::clone(adapter)));
    }
    let template = template()?.clone();
    // Adapters differ in their rkeys, also with the same SOFTEFA_SEED.
    let seed = template.seed.wrapping_add(index as u64);
    let config = AdapterConfig { gid: gid(index), log_violations: ffi::logs(), seed, ..template };
    let adapter = Adapter::new(&Network::process(), config)?;
    adapters.push((index, Arc::clone(&adapter)));
    Ok((description, adapter))
}

/// The adapters that were created, in the order of creation.
pub(crate) fn created() -> Vec<Arc<Adapter>> {
    let adapters = ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner);
    adapters.iter().map(|(_, adapter)| Arc::clone(adapter)).collect()
}

/// The width of request ids in send queues: 64 bits if the adapter supports them and the reported release
/// announces them to its clients (`FI_EFA_WQ_CAPS_64_BIT_REQ_ID`).
pub(crate) fn request_ids(domain: &Shared) -> RequestIdWidth {
    let reported = Config::get().is_ok_and(|config| config.wide_ids && config.version >= RELEASE_2_7);
    match reported && domain.adapter.config().capabilities.request_ids_64 {
        true => RequestIdWidth::Bits64,
        false => RequestIdWidth::Bits16,
    }
}

/// Whether the domain's adapter accepts RDMA writes with immediate without a posted receive.
pub(crate) fn unsolicited(domain: &Shared) -> bool {
    domain.adapter.config().capabilities.unsolicited_write_receive
}

static FIRST_COUNTER: AtomicU64 = AtomicU64::new(0);

/// The producer index at which queue pairs start that are enabled from now on.
pub(crate) fn first_counter() -> u64 {
    FIRST_COUNTER.load(Ordering::Relaxed)
}

/// Sets [`first_counter`].
pub(crate) fn set_first_counter(counter: u64) {
    FIRST_COUNTER.store(counter, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_different_seeds() {
        let config = Config::parse(|name| (name == "SOFTEFA_ADAPTERS").then(|| "2".to_owned())).unwrap();
        let seed = |name| find(&config, name).unwrap().1.config().seed;
        assert_eq!(seed("softefa1-rdm"), seed("softefa0-rdm").wrapping_add(1));
    }
}
