//! Negotiation with an application's hints: [`check`] tests whether a candidate satisfies them, and
//! [`resolve`] computes the info that is returned. The rules are libfabric's for providers
//! (`prov/util/src/util_attr.c`) and those of the real efa provider (`efa_user_info.c`). `fi_getinfo` leaves
//! out a candidate that does not match, and returns -FI_ENODATA if none matches. This module does not choose
//! the candidates' values; `candidate` does.

use efa_gda_sys::fi;

use super::candidate::{Candidate, Fabric, OLD_LOCAL_MR, OLD_MR_BASIC, OLD_MR_SCALABLE};
use super::config::RELEASE_2_7;
use super::hints::{DomainHints, Hints};

/// The reason why a candidate does not match, as a clause for the log.
pub(crate) type Mismatch = &'static str;

/// The first API version whose registration modes are bits instead of the two old values BASIC and SCALABLE.
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
/// Capabilities that are withheld from applications that post no receives for writes with immediate, on an
/// adapter that needs those receives.
const RMA: u64 = fi::FI_RMA | fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
/// Receive capabilities that old programs set in `tx_attr`; they are ignored there.
const IGNORED_IN_TX: u64 = fi::FI_REMOTE_READ
    | fi::FI_REMOTE_WRITE
    | fi::FI_RECV
    | fi::FI_DIRECTED_RECV
    | fi::FI_MULTI_RECV
    | fi::FI_SOURCE;
/// Transmit capabilities that old programs set in `rx_attr`; they are ignored there.
const IGNORED_IN_RX: u64 = fi::FI_READ | fi::FI_WRITE | fi::FI_SEND;

fn require(condition: bool, mismatch: Mismatch) -> Result<(), Mismatch> {
    if condition { Ok(()) } else { Err(mismatch) }
}

const fn is_subset(requested: u64, available: u64) -> bool {
    requested & !available == 0
}

/// Takes FI_CONTEXT2 from a candidate of `efa-direct` for an application that does not provide contexts, as libfabric
/// 2.7 does: every request then completes, and none can be injected, because no context says that it was.
pub(crate) fn without_contexts<'a>(
    mut candidate: Candidate<'a>,
    hints: &Hints,
    release: u32,
) -> Candidate<'a> {
    if candidate.fabric == Fabric::Direct && release >= RELEASE_2_7 && hints.mode & fi::FI_CONTEXT2 == 0 {
        candidate.mode &= !fi::FI_CONTEXT2;
        candidate.tx.mode &= !fi::FI_CONTEXT2;
        candidate.rx.mode &= !fi::FI_CONTEXT2;
        candidate.tx.inject_size = 0;
    }
    candidate
}

/// Checks that `candidate` satisfies `hints` at API version `version`.
pub(crate) fn check(candidate: &Candidate<'_>, hints: &Hints, version: u32) -> Result<(), Mismatch> {
    require(is_subset(hints.caps, candidate.caps), "caps has capabilities that the adapter lacks")?;
    let mut mode = candidate.mode;
    let no_local = hints.mr_mode().is_some_and(|requested| requested & fi::FI_MR_LOCAL == 0);
    if (version < MR_MODE_BITS || no_local) && candidate.domain.mr_mode & fi::FI_MR_LOCAL != 0 {
        mode |= OLD_LOCAL_MR;
    }
    require(is_subset(mode, hints.mode), "mode lacks FI_CONTEXT2, or mr_mode lacks FI_MR_LOCAL")?;
    require(
        !needs_receives_for_writes(candidate, hints) || hints.caps & fi::FI_RMA == 0,
        "caps has FI_RMA and mode lacks FI_RX_CQ_DATA, which an adapter without unsolicited write receives needs",
    )?;
    require(
        matches!(hints.addr_format, fi::FI_FORMAT_UNSPEC | fi::FI_ADDR_EFA),
        "addr_format is not FI_ADDR_EFA or FI_FORMAT_UNSPEC",
    )?;
    require(hints.pci_bus.is_none(), "nic names a PCI device, and a software adapter has none")?;
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
            "caps has FI_HMEM and mr_mode lacks FI_MR_HMEM",
        )?;
    }
    if candidate.fabric == Fabric::Direct && hints.caps & fi::FI_RMA == 0 {
        let requested = hints.ep.as_ref().map_or(0, |ep| ep.max_msg_size);
        require(
            requested <= candidate.adapter.limits.message,
            "max_msg_size is larger than one send, and caps lacks FI_RMA",
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
        "threading is not FI_THREAD_UNSPEC, SAFE, DOMAIN or COMPLETION",
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
        "progress is stricter than the fabric's",
    )?;
    require(requested.resource_mgmt <= fi::FI_RM_ENABLED, "resource_mgmt is unknown")?;
    require(requested.cq_data_size <= available.cq_data_size, "cq_data_size is larger than 4")?;
    check_mr_mode(candidate.domain.mr_mode, requested.mr_mode, hints, version)?;
    require(
        requested.cntr_cnt <= available.cntr_cnt,
        "cntr_cnt is larger than the adapter's (0 if FI_EFA_USE_HW_CNTR disables counters)",
    )?;
    require(requested.mr_iov_limit <= available.mr_iov_limit, "the domain's mr_iov_limit is larger than 1")?;
    require(
        is_subset(requested.caps, available.caps),
        "the domain's caps has capabilities that the adapter lacks",
    )?;
    require(requested.max_err_data <= available.max_err_data, "max_err_data is larger than 0")?;
    require(requested.mr_cnt <= available.mr_cnt, "mr_cnt is larger than the adapter's")?;
    require(requested.auth_key_size == 0, "the domain has an authorization key, which is not supported")
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

/// The modes of `available` that an application with `caps` must accept.
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
    require(
        matches!(requested.type_, fi::FI_EP_UNSPEC | fi::FI_EP_RDM),
        "the endpoint type is not FI_EP_RDM",
    )?;
    require(
        requested.protocol == 0 || requested.protocol == available.protocol,
        "protocol is not FI_PROTO_EFA",
    )?;
    require(requested.protocol_version <= available.protocol_version, "protocol_version is newer than 1")?;
    require(requested.max_msg_size <= available.max_msg_size, "max_msg_size is larger than the fabric's")?;
    require(
        requested.tx_ctx_cnt <= 1 && requested.rx_ctx_cnt <= 1,
        "the endpoint has more than one context, or a shared context",
    )?;
    require(requested.auth_key_size == 0, "the endpoint has an authorization key, which is not supported")?;
    let ordered = requested.max_order_raw_size | requested.max_order_war_size | requested.max_order_waw_size;
    let uses_order = hints.caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0;
    require(
        !uses_order || ordered == 0 || candidate.fabric == Fabric::Plain,
        "max_order_*_size asks for ordered RMA, which SRD lacks",
    )
}

fn check_rx(available: &fi::fi_rx_attr, requested: &fi::fi_rx_attr, mode: u64) -> Result<(), Mismatch> {
    require(
        is_subset(requested.caps & !IGNORED_IN_RX, available.caps),
        "rx_attr's caps has capabilities that the adapter lacks",
    )?;
    let mode = if requested.mode != 0 { requested.mode } else { mode };
    require(is_subset(available.mode, mode), "rx_attr's mode lacks FI_CONTEXT2")?;
    require(is_subset(requested.op_flags, available.op_flags), "rx_attr's op_flags has unsupported flags")?;
    require(
        is_subset(requested.msg_order, available.msg_order),
        "rx_attr's msg_order asks for message order, which SRD lacks",
    )?;
    require(requested.comp_order == 0, "rx_attr's comp_order asks for completion order, which SRD lacks")?;
    require(requested.total_buffered_recv == 0, "rx_attr's total_buffered_recv is larger than 0")?;
    require(requested.size <= available.size, "rx_attr's size is larger than the adapter's receive queue")?;
    require(requested.iov_limit <= available.iov_limit, "rx_attr's iov_limit is larger than the adapter's")
}

fn check_tx(available: &fi::fi_tx_attr, requested: &fi::fi_tx_attr, mode: u64) -> Result<(), Mismatch> {
    require(
        is_subset(requested.caps & !IGNORED_IN_TX, available.caps),
        "tx_attr's caps has capabilities that the adapter lacks",
    )?;
    let mode = if requested.mode != 0 { requested.mode } else { mode };
    require(is_subset(available.mode, mode), "tx_attr's mode lacks FI_CONTEXT2")?;
    require(is_subset(requested.op_flags, available.op_flags), "tx_attr's op_flags has unsupported flags")?;
    require(
        is_subset(requested.msg_order, available.msg_order),
        "tx_attr's msg_order asks for message order, which SRD lacks",
    )?;
    require(requested.comp_order == 0, "tx_attr's comp_order asks for completion order, which SRD lacks")?;
    require(
        requested.inject_size <= available.inject_size,
        "tx_attr's inject_size is larger than the adapter's (0 without FI_CONTEXT2)",
    )?;
    require(requested.size <= available.size, "tx_attr's size is larger than the adapter's send queue")?;
    require(requested.iov_limit <= available.iov_limit, "tx_attr's iov_limit is larger than the adapter's")?;
    require(requested.rma_iov_limit <= available.rma_iov_limit, "tx_attr's rma_iov_limit is larger than 1")
}

/// Whether RDMA writes with immediate consume posted receives, and the application did not accept that
/// (FI_RX_CQ_DATA).
fn needs_receives_for_writes(candidate: &Candidate<'_>, hints: &Hints) -> bool {
    candidate.fabric == Fabric::Direct
        && !candidate.adapter.limits.unsolicited_writes
        && hints.mode & fi::FI_RX_CQ_DATA == 0
}

/// Computes the info for `hints` from a candidate that satisfies them.
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

/// Chooses 64-byte entries, or half as many 128-byte entries if the hints need more inline bytes.
fn choose_entry_size(candidate: &mut Candidate<'_>, hints: Option<&Hints>) -> Result<(), Mismatch> {
    let limits = &candidate.adapter.limits;
    let tx = hints.and_then(|hints| hints.tx);
    if tx.is_none_or(|tx| tx.inject_size <= limits.inline) {
        candidate.tx.inject_size = candidate.tx.inject_size.min(limits.inline);
        return Ok(());
    }
    let wide_depth = limits.send_depth / 2;
    require(
        tx.is_none_or(|tx| tx.size <= wide_depth),
        "tx_attr's size is larger than the adapter's send queue of 128-byte entries, which its inject_size needs",
    )?;
    candidate.tx.size = wide_depth;
    Ok(())
}

/// Computes capabilities as `ofi_get_caps` of libfabric's core does.
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

/// The info's capabilities: those of [`resolved_caps`], without the RMA target's if the application does not
/// accept the registration modes that a target needs.
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

/// Applies the sizes and flags that the application chose.
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
