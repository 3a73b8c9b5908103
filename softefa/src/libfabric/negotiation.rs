//! Whether an offer serves an application's hints, and what the answer then says. The rules are
//! libfabric's for providers (`prov/util/src/util_attr.c`) and the efa provider's own
//! (`efa_user_info.c`); an offer that does not match is left out, which ends in -FI_ENODATA.

use efa_gda_sys::fi;

use super::candidate::{Candidate, Fabric, OLD_LOCAL_MR, OLD_MR_BASIC, OLD_MR_SCALABLE};
use super::hints::{DomainHints, Hints};

/// Why an offer does not serve, for people.
pub(crate) type Mismatch = &'static str;

/// From this API version on, registration modes are bits and not the two old names.
const MR_MODE_BITS: u32 = fi::fi_version(1, 5);

const MESSAGE_DIRECTIONS: u64 = fi::FI_SEND | fi::FI_RECV;
const RMA_DIRECTIONS: u64 = fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
const RMA_TARGET_MODES: i32 = fi::FI_MR_VIRT_ADDR | fi::FI_MR_PROV_KEY;
const PRIMARY: u64 = fi::FI_MSG
    | fi::FI_RMA
    | fi::FI_TAGGED
    | fi::FI_ATOMIC
    | MESSAGE_DIRECTIONS
    | RMA_DIRECTIONS
    | fi::FI_DIRECTED_RECV
    | fi::FI_HMEM;
const SECONDARY: u64 = fi::FI_MULTI_RECV | fi::FI_SOURCE | fi::FI_REMOTE_COMM | fi::FI_LOCAL_COMM;
/// What an adapter does not offer to applications that would miss receives.
const RMA: u64 = fi::FI_RMA | fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
/// Receive capabilities that old programs put into `tx_attr`, and the other way round.
const IGNORED_IN_TX: u64 = fi::FI_REMOTE_READ
    | fi::FI_REMOTE_WRITE
    | fi::FI_RECV
    | fi::FI_DIRECTED_RECV
    | fi::FI_MULTI_RECV
    | fi::FI_SOURCE;
const IGNORED_IN_RX: u64 = fi::FI_READ | fi::FI_WRITE | fi::FI_SEND;

fn require(holds: bool, otherwise: Mismatch) -> Result<(), Mismatch> {
    if holds { Ok(()) } else { Err(otherwise) }
}

const fn is_subset(requested: u64, available: u64) -> bool {
    requested & !available == 0
}

/// Whether `offer` serves `hints` at API version `version`.
pub(crate) fn check(candidate: &Candidate<'_>, hints: &Hints, version: u32) -> Result<(), Mismatch> {
    require(is_subset(hints.caps, candidate.caps), "capabilities beyond the adapter's")?;
    let mut mode = candidate.mode;
    let no_local = hints.mr_mode().is_some_and(|requested| requested & fi::FI_MR_LOCAL == 0);
    if (version < MR_MODE_BITS || no_local) && candidate.domain.mr_mode & fi::FI_MR_LOCAL != 0 {
        mode |= OLD_LOCAL_MR;
    }
    require(is_subset(mode, hints.mode), "mode lacks FI_CONTEXT2, or mr_mode lacks FI_MR_LOCAL")?;
    require(
        !needs_receives_for_writes(candidate, hints) || hints.caps & fi::FI_RMA == 0,
        "FI_RMA without FI_RX_CQ_DATA in mode, on an adapter without unsolicited write receives",
    )?;
    require(
        matches!(hints.addr_format, fi::FI_FORMAT_UNSPEC | fi::FI_ADDR_EFA),
        "an address format other than FI_ADDR_EFA",
    )?;
    require(hints.pci_bus.is_none(), "a PCI device, which a software adapter is not")?;
    if let Some(domain) = &hints.domain {
        check_domain(candidate, hints, domain, version)?;
    }
    if let Some(ep) = &hints.ep {
        check_endpoint(candidate, hints, ep)?;
    }
    if let Some(rx) = &hints.rx {
        check_rx(&candidate.rx, rx, hints.mode)?;
    }
    if let Some(tx) = &hints.tx {
        check_tx(&candidate.tx, tx, hints.mode)?;
    }
    if hints.caps & fi::FI_HMEM != 0 {
        require(
            hints.mr_mode().is_none_or(|requested| requested & fi::FI_MR_HMEM != 0),
            "FI_HMEM without FI_MR_HMEM in mr_mode",
        )?;
    }
    if candidate.fabric == Fabric::Direct && hints.caps & fi::FI_RMA == 0 {
        let requested = hints.ep.as_ref().map_or(0, |ep| ep.max_msg_size);
        require(
            requested <= candidate.adapter.limits.message,
            "a max_msg_size beyond one send, without FI_RMA",
        )?;
    }
    Ok(())
}

fn check_domain(
    candidate: &Candidate<'_>,
    hints: &Hints,
    requested: &DomainHints,
    version: u32,
) -> Result<(), Mismatch> {
    let available = &candidate.domain;
    require(
        matches!(
            requested.threading,
            fi::FI_THREAD_UNSPEC | fi::FI_THREAD_SAFE | fi::FI_THREAD_DOMAIN | fi::FI_THREAD_COMPLETION
        ),
        "a threading model that is not offered",
    )?;
    let rank = |progress| match progress {
        fi::FI_PROGRESS_AUTO => 1,
        fi::FI_PROGRESS_MANUAL => 2,
        fi::FI_PROGRESS_CONTROL_UNIFIED => 3,
        fi::FI_PROGRESS_UNSPEC => 4,
        _ => -1,
    };
    require(
        rank(requested.progress) >= rank(available.control_progress),
        "a progress model that is not offered",
    )?;
    require(requested.resource_mgmt <= fi::FI_RM_ENABLED, "an unknown resource management")?;
    require(requested.cq_data_size <= available.cq_data_size, "cq_data_size beyond 4")?;
    check_mr_mode(candidate.domain.mr_mode, requested.mr_mode, hints, version)?;
    require(requested.cntr_cnt <= available.cntr_cnt, "more counters than the adapter has")?;
    require(requested.mr_iov_limit <= available.mr_iov_limit, "regions of more than one segment")?;
    require(is_subset(requested.caps, available.caps), "domain capabilities beyond the adapter's")?;
    require(requested.max_err_data <= available.max_err_data, "error data, which is not offered")?;
    require(requested.mr_cnt <= available.mr_cnt, "more regions than the adapter has")?;
    require(requested.auth_key_size == 0, "an authorization key, which is not offered")
}

fn check_mr_mode(available: i32, requested: i32, hints: &Hints, version: u32) -> Result<(), Mismatch> {
    const REASON: Mismatch =
        "mr_mode lacks FI_MR_LOCAL, ALLOCATED, PROV_KEY or VIRT_ADDR (HMEM with FI_HMEM)";
    let local = hints.mode & OLD_LOCAL_MR != 0 || requested & fi::FI_MR_LOCAL != 0;
    require(available & fi::FI_MR_LOCAL == 0 || local, REASON)?;
    if version < MR_MODE_BITS {
        return require(requested == 0 || requested == OLD_MR_BASIC, REASON);
    }
    if requested & OLD_MR_BASIC != 0 {
        return require(requested == OLD_MR_BASIC, REASON);
    }
    require(requested & OLD_MR_SCALABLE == 0, REASON)?;
    let needed = needed_mr_modes(hints.caps, available);
    require(requested == 0 || requested & needed == needed, REASON)
}

/// The registration modes that a use with `caps` needs, of those `offered`.
fn needed_mr_modes(caps: u64, mut available: i32) -> i32 {
    if caps & fi::FI_HMEM == 0 {
        available &= !fi::FI_MR_HMEM;
    }
    if !rma_target(caps) {
        if available & (fi::FI_MR_LOCAL | fi::FI_MR_HMEM) == 0 {
            return 0;
        }
        available &= !RMA_TARGET_MODES;
    }
    available & !(OLD_MR_BASIC | OLD_MR_SCALABLE)
}

/// Whether memory of an endpoint with `caps` can be the target of RMA.
fn rma_target(caps: u64) -> bool {
    caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0
        && (caps & (fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE) != 0
            || caps & (fi::FI_READ | fi::FI_WRITE) == 0)
}

fn check_endpoint(
    candidate: &Candidate<'_>,
    hints: &Hints,
    requested: &fi::fi_ep_attr,
) -> Result<(), Mismatch> {
    let available = &candidate.ep;
    require(matches!(requested.type_, fi::FI_EP_UNSPEC | fi::FI_EP_RDM), "an endpoint type other than RDM")?;
    require(
        requested.protocol == 0 || requested.protocol == available.protocol,
        "a protocol other than FI_PROTO_EFA",
    )?;
    require(requested.protocol_version <= available.protocol_version, "a newer protocol version")?;
    require(requested.max_msg_size <= available.max_msg_size, "a larger max_msg_size")?;
    require(
        requested.tx_ctx_cnt <= 1 && requested.rx_ctx_cnt <= 1,
        "more than one context, or a shared one",
    )?;
    require(requested.auth_key_size == 0, "an authorization key, which is not offered")?;
    let ordered = requested.max_order_raw_size | requested.max_order_war_size | requested.max_order_waw_size;
    let uses_order = hints.caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0;
    require(!uses_order || ordered == 0 || candidate.fabric == Fabric::Plain, "ordered RMA, which SRD lacks")
}

fn check_rx(available: &fi::fi_rx_attr, requested: &fi::fi_rx_attr, mode: u64) -> Result<(), Mismatch> {
    require(
        is_subset(requested.caps & !IGNORED_IN_RX, available.caps),
        "receive capabilities beyond the adapter's",
    )?;
    let mode = if requested.mode != 0 { requested.mode } else { mode };
    require(is_subset(available.mode, mode), "rx_attr mode lacks FI_CONTEXT2")?;
    require(is_subset(requested.op_flags, available.op_flags), "receive flags that are not offered")?;
    require(is_subset(requested.msg_order, available.msg_order), "message order, which SRD lacks")?;
    require(requested.comp_order == 0, "completion order, which SRD lacks")?;
    require(requested.total_buffered_recv == 0, "buffered receives, which are not offered")?;
    require(requested.size <= available.size, "a receive queue deeper than the adapter's")?;
    require(requested.iov_limit <= available.iov_limit, "receives of more than one segment")
}

fn check_tx(available: &fi::fi_tx_attr, requested: &fi::fi_tx_attr, mode: u64) -> Result<(), Mismatch> {
    require(
        is_subset(requested.caps & !IGNORED_IN_TX, available.caps),
        "transmit capabilities beyond the adapter's",
    )?;
    let mode = if requested.mode != 0 { requested.mode } else { mode };
    require(is_subset(available.mode, mode), "tx_attr mode lacks FI_CONTEXT2")?;
    require(is_subset(requested.op_flags, available.op_flags), "transmit flags that are not offered")?;
    require(is_subset(requested.msg_order, available.msg_order), "message order, which SRD lacks")?;
    require(requested.comp_order == 0, "completion order, which SRD lacks")?;
    require(requested.inject_size <= available.inject_size, "a larger inject_size")?;
    require(requested.size <= available.size, "a send queue deeper than the adapter's")?;
    require(requested.iov_limit <= available.iov_limit, "sends of more segments")?;
    require(requested.rma_iov_limit <= available.rma_iov_limit, "RMA of more than one remote segment")
}

/// Whether writes with immediate would need receives that the application does not know of.
fn needs_receives_for_writes(candidate: &Candidate<'_>, hints: &Hints) -> bool {
    candidate.fabric == Fabric::Direct
        && !candidate.adapter.limits.unsolicited_writes
        && hints.mode & fi::FI_RX_CQ_DATA == 0
}

/// The answer to `hints` from an offer that serves them.
pub(crate) fn resolve<'a>(
    mut candidate: Candidate<'a>,
    hints: Option<&Hints>,
    version: u32,
) -> Result<Candidate<'a>, Mismatch> {
    if hints.is_none_or(|hints| hints.caps & fi::FI_HMEM == 0) {
        candidate.caps &= !fi::FI_HMEM;
        candidate.tx.caps &= !fi::FI_HMEM;
        candidate.rx.caps &= !fi::FI_HMEM;
        candidate.domain.mr_mode &= !fi::FI_MR_HMEM;
    }
    if hints.is_none_or(|hints| hints.mode & fi::FI_RX_CQ_DATA != 0) && candidate.fabric == Fabric::Direct {
        candidate.mode |= fi::FI_RX_CQ_DATA;
        candidate.rx.mode |= fi::FI_RX_CQ_DATA;
    }
    if hints.is_some_and(|hints| needs_receives_for_writes(&candidate, hints)) {
        candidate.caps &= !RMA;
        candidate.tx.caps &= !RMA;
        candidate.rx.caps &= !RMA;
    }
    choose_entry_size(&mut candidate, hints)?;
    if candidate.fabric == Fabric::Direct && hints.is_some_and(|hints| hints.caps & fi::FI_RMA == 0) {
        candidate.ep.max_msg_size = candidate.adapter.limits.message;
    }
    candidate.caps = resolved_info_caps(&candidate, hints, version);
    if candidate.domain.mr_mode & fi::FI_MR_LOCAL != 0
        && (version < MR_MODE_BITS
            || hints
                .and_then(Hints::mr_mode)
                .is_some_and(|requested| requested & (OLD_MR_BASIC | OLD_MR_SCALABLE) != 0))
    {
        candidate.mode |= OLD_LOCAL_MR;
    }
    resolve_domain(&mut candidate, hints.and_then(|hints| hints.domain.as_ref()), version);
    let caps = candidate.caps;
    candidate.tx.caps =
        resolved_caps(caps, hints.and_then(|h| h.tx).map_or(0, |tx| tx.caps), candidate.tx.caps);
    candidate.rx.caps =
        resolved_caps(caps, hints.and_then(|h| h.rx).map_or(0, |rx| rx.caps), candidate.rx.caps);
    if let Some(hints) = hints {
        resolve_queues(&mut candidate, hints);
    }
    Ok(candidate)
}

/// 64-byte entries by default; 128-byte entries, half as many, where more is to be inlined.
fn choose_entry_size(candidate: &mut Candidate<'_>, hints: Option<&Hints>) -> Result<(), Mismatch> {
    let limits = &candidate.adapter.limits;
    let tx = hints.and_then(|hints| hints.tx);
    if tx.is_none_or(|tx| tx.inject_size <= limits.inline) {
        candidate.tx.inject_size = limits.inline;
        return Ok(());
    }
    let wide_depth = limits.send_depth / 2;
    require(
        tx.is_none_or(|tx| tx.size <= wide_depth),
        "a send queue of 128-byte entries deeper than the adapter's",
    )?;
    candidate.tx.size = wide_depth;
    Ok(())
}

/// `ofi_get_caps` of libfabric's core.
fn resolved_caps(info: u64, requested: u64, available: u64) -> u64 {
    let mut caps = if requested == 0 {
        (info & available & PRIMARY) | (available & SECONDARY)
    } else {
        let caps = (requested & PRIMARY) | (available & SECONDARY);
        (caps & !fi::FI_SOURCE) | (requested & fi::FI_SOURCE)
    };
    if caps & (fi::FI_MSG | fi::FI_TAGGED) != 0 && caps & MESSAGE_DIRECTIONS == 0 {
        caps |= available & MESSAGE_DIRECTIONS;
    }
    if caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0 && caps & RMA_DIRECTIONS == 0 {
        caps |= available & RMA_DIRECTIONS;
    }
    caps
}

fn resolved_info_caps(candidate: &Candidate<'_>, hints: Option<&Hints>, version: u32) -> u64 {
    let Some(hints) = hints else { return candidate.caps };
    let caps = resolved_caps(candidate.caps, hints.caps, candidate.caps);
    let available = candidate.domain.mr_mode & RMA_TARGET_MODES;
    if !rma_target(caps) || available == 0 {
        return caps;
    }
    let accepted = hints.mr_mode().is_some_and(|requested| {
        (version < MR_MODE_BITS && requested == 0)
            || requested == OLD_MR_BASIC
            || requested & RMA_TARGET_MODES & available == available
    });
    if accepted { caps } else { caps & !(fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE) }
}

fn resolve_domain(candidate: &mut Candidate<'_>, requested: Option<&DomainHints>, version: u32) {
    let caps = candidate.caps;
    let domain = &mut candidate.domain;
    let requested_mode = requested.map_or(0, |requested| requested.mr_mode);
    if requested_mode & (OLD_MR_BASIC | OLD_MR_SCALABLE) != 0 {
        domain.mr_mode = requested_mode;
    } else if version < MR_MODE_BITS {
        domain.mr_mode = OLD_MR_BASIC;
    } else {
        domain.mr_mode &= !(OLD_MR_BASIC | OLD_MR_SCALABLE);
        if requested.is_some() && requested_mode & domain.mr_mode != domain.mr_mode {
            domain.mr_mode = needed_mr_modes(caps, domain.mr_mode & requested_mode);
        }
    }
    domain.caps = resolved_caps(caps, requested.map_or(0, |requested| requested.caps), domain.caps);
    domain.av_type = fi::FI_AV_TABLE;
    let Some(requested) = requested else { return };
    if requested.threading != fi::FI_THREAD_UNSPEC {
        domain.threading = requested.threading;
    }
    if requested.progress != fi::FI_PROGRESS_UNSPEC {
        domain.control_progress = requested.progress;
        domain.__bindgen_anon_1.progress = requested.progress;
    }
    if requested.av_type != fi::FI_AV_UNSPEC {
        domain.av_type = requested.av_type;
    }
    if let Some(object) = requested.object {
        domain.domain = object;
    }
}

/// Sizes and flags that the application chose.
fn resolve_queues(candidate: &mut Candidate<'_>, hints: &Hints) {
    fn set_unless_zero(field: &mut usize, requested: usize) {
        if requested != 0 {
            *field = requested;
        }
    }
    if let Some(tx) = &hints.tx {
        candidate.tx.op_flags = tx.op_flags;
        set_unless_zero(&mut candidate.tx.inject_size, tx.inject_size);
        set_unless_zero(&mut candidate.tx.size, tx.size);
        set_unless_zero(&mut candidate.tx.iov_limit, tx.iov_limit);
        set_unless_zero(&mut candidate.tx.rma_iov_limit, tx.rma_iov_limit);
    }
    if let Some(rx) = &hints.rx {
        candidate.rx.op_flags = rx.op_flags;
        set_unless_zero(&mut candidate.rx.size, rx.size);
        set_unless_zero(&mut candidate.rx.iov_limit, rx.iov_limit);
    }
    if let Some(ep) = &hints.ep {
        set_unless_zero(&mut candidate.ep.tx_ctx_cnt, ep.tx_ctx_cnt);
        set_unless_zero(&mut candidate.ep.rx_ctx_cnt, ep.rx_ctx_cnt);
    }
    candidate.handle = hints.handle;
    if let Some(fabric) = hints.fabric.as_ref().and_then(|fabric| fabric.object) {
        candidate.fabric_object = fabric;
    }
}
