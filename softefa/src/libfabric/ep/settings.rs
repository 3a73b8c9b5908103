//! What an endpoint takes from the info with which it is opened.

use efa_gda_sys::fi;
use efa_gda_wire::EntrySize;

use crate::libfabric::candidate::Candidate;
use crate::libfabric::config::Config;
use crate::libfabric::domain::Shared;
use crate::libfabric::ffi::{self, Code};
use crate::libfabric::hints::Hints;
use crate::libfabric::negotiation;
use crate::libfabric::options::Sizes;

/// The settings from the info with which the endpoint was opened.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) send_depth: u32,
    pub(super) receive_entries: u32,
    pub(super) entry_size: EntrySize,
    /// The info has capabilities that use the send queue, so enable requires a completion queue for it. The
    /// queue pair has both queues in any case.
    pub(super) transmits: bool,
    /// The same for the receive queue.
    pub(super) receives: bool,
    /// FI_RX_CQ_DATA: RDMA writes with immediate consume posted receives.
    pub(super) posted_cq_data: bool,
    /// FI_CONTEXT2: the application provides a context for each request.
    pub(super) contexts: bool,
    pub(super) sizes: Sizes,
}

impl Settings {
    /// Validates the info and reads the settings from it. The application may have changed it since `fi_getinfo`.
    pub(super) fn read(domain: &Shared, info: &Hints) -> Result<Self, Code> {
        let config = Config::get().map_err(|_| Code::INVALID)?;
        let (Some(tx), Some(rx), true) = (&info.tx, &info.rx, info.ep.is_some()) else {
            return Err(Code::INVALID);
        };
        let candidate = Candidate::new(&domain.description, domain.fabric, config);
        let candidate = negotiation::without_contexts(candidate, info, config.version);
        negotiation::check(&candidate, info, domain.api).map_err(|reason| {
            ffi::log(format_args!(
                "endpoint on {} ({}) not opened: the info does not match the adapter: {reason}; use an info from \
                 fi_getinfo",
                domain.description.domain_name(),
                domain.fabric.name()
            ));
            Code::NO_DATA
        })?;
        let limits = &domain.description.limits;
        let wide = tx.inject_size > limits.inline;
        let max_send_depth = if wide { limits.send_depth / 2 } else { limits.send_depth };
        let size = |requested: usize, limit: usize| {
            let entries = if requested == 0 { limit } else { requested.min(limit) };
            u32::try_from(entries).map_err(|_| Code::INVALID)
        };
        let caps = info.caps;
        Ok(Self {
            send_depth: size(tx.size, max_send_depth)?,
            receive_entries: receive_entries(size(rx.size, limits.receive_depth)?, rx.iov_limit),
            entry_size: if wide { EntrySize::B128 } else { EntrySize::B64 },
            transmits: caps & (fi::FI_SEND | fi::FI_READ | fi::FI_WRITE) != 0,
            receives: caps & (fi::FI_RECV | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE) != 0,
            posted_cq_data: info.mode & fi::FI_RX_CQ_DATA != 0,
            contexts: candidate.mode & fi::FI_CONTEXT2 != 0,
            sizes: Sizes { message: limits.message, rdma: limits.rdma, inline: limits.inline },
        })
    }
}

/// The entries of a receive queue for `receives` receives of up to `segments` segments, as rdma-core rounds them: one
/// for each segment.
fn receive_entries(receives: u32, segments: usize) -> u32 {
    let segments = u32::try_from(segments.max(1)).unwrap_or(u32::MAX);
    receives.saturating_mul(segments).checked_next_power_of_two().unwrap_or(u32::MAX)
}
