//! Whether an offer serves an application's hints, and what the answer then says. The rules are
//! libfabric's for providers (`prov/util/src/util_attr.c`) and the efa provider's own
//! (`efa_user_info.c`); an offer that does not match is left out, which ends in -FI_ENODATA.

use efa_gda_sys::fi;

use super::hints::{DomainHints, Hints};
use super::offer::{Fabric, OLD_LOCAL_MR, OLD_MR_BASIC, OLD_MR_SCALABLE, Offer};

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

const fn within(asked: u64, offered: u64) -> bool {
    asked & !offered == 0
}

/// Whether `offer` serves `hints` at API version `version`.
pub(crate) fn check(offer: &Offer<'_>, hints: &Hints, version: u32) -> Result<(), Mismatch> {
    require(within(hints.caps, offer.caps), "capabilities beyond the adapter's")?;
    let mut mode = offer.mode;
    let no_local = hints.mr_mode().is_some_and(|asked| asked & fi::FI_MR_LOCAL == 0);
    if (version < MR_MODE_BITS || no_local) && offer.domain.mr_mode & fi::FI_MR_LOCAL != 0 {
        mode |= OLD_LOCAL_MR;
    }
    require(within(mode, hints.mode), "mode lacks FI_CONTEXT2, or mr_mode lacks FI_MR_LOCAL")?;
    require(
        !needs_receives_for_writes(offer, hints) || hints.caps & fi::FI_RMA == 0,
        "FI_RMA without FI_RX_CQ_DATA in mode, on an adapter without unsolicited write receives",
    )?;
    require(
        matches!(hints.addr_format, fi::FI_FORMAT_UNSPEC | fi::FI_ADDR_EFA),
        "an address format other than FI_ADDR_EFA",
    )?;
    require(hints.pci_bus.is_none(), "a PCI device, which a software adapter is not")?;
    if let Some(domain) = &hints.domain {
        check_domain(offer, hints, domain, version)?;
    }
    if let Some(ep) = &hints.ep {
        check_endpoint(offer, hints, ep)?;
    }
    if let Some(rx) = &hints.rx {
        check_rx(&offer.rx, rx, hints.mode)?;
    }
    if let Some(tx) = &hints.tx {
        check_tx(&offer.tx, tx, hints.mode)?;
    }
    if hints.caps & fi::FI_HMEM != 0 {
        require(
            hints.mr_mode().is_none_or(|asked| asked & fi::FI_MR_HMEM != 0),
            "FI_HMEM without FI_MR_HMEM in mr_mode",
        )?;
    }
    if offer.fabric == Fabric::Direct && hints.caps & fi::FI_RMA == 0 {
        let asked = hints.ep.as_ref().map_or(0, |ep| ep.max_msg_size);
        require(asked <= offer.adapter.limits.message, "a max_msg_size beyond one send, without FI_RMA")?;
    }
    Ok(())
}

fn check_domain(offer: &Offer<'_>, hints: &Hints, asked: &DomainHints, version: u32) -> Result<(), Mismatch> {
    let has = &offer.domain;
    require(
        matches!(
            asked.threading,
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
    require(rank(asked.progress) >= rank(has.control_progress), "a progress model that is not offered")?;
    require(asked.resource_mgmt <= fi::FI_RM_ENABLED, "an unknown resource management")?;
    require(asked.cq_data_size <= has.cq_data_size, "cq_data_size beyond 4")?;
    check_mr_mode(offer.domain.mr_mode, asked.mr_mode, hints, version)?;
    require(asked.cntr_cnt <= has.cntr_cnt, "more counters than the adapter has")?;
    require(asked.mr_iov_limit <= has.mr_iov_limit, "regions of more than one segment")?;
    require(within(asked.caps, has.caps), "domain capabilities beyond the adapter's")?;
    require(asked.max_err_data <= has.max_err_data, "error data, which is not offered")?;
    require(asked.mr_cnt <= has.mr_cnt, "more regions than the adapter has")?;
    require(asked.auth_key_size == 0, "an authorization key, which is not offered")
}

fn check_mr_mode(offered: i32, asked: i32, hints: &Hints, version: u32) -> Result<(), Mismatch> {
    const REASON: Mismatch =
        "mr_mode lacks FI_MR_LOCAL, ALLOCATED, PROV_KEY or VIRT_ADDR (HMEM with FI_HMEM)";
    let local = hints.mode & OLD_LOCAL_MR != 0 || asked & fi::FI_MR_LOCAL != 0;
    require(offered & fi::FI_MR_LOCAL == 0 || local, REASON)?;
    if version < MR_MODE_BITS {
        return require(asked == 0 || asked == OLD_MR_BASIC, REASON);
    }
    if asked & OLD_MR_BASIC != 0 {
        return require(asked == OLD_MR_BASIC, REASON);
    }
    require(asked & OLD_MR_SCALABLE == 0, REASON)?;
    let needed = needed_mr_modes(hints.caps, offered);
    require(asked == 0 || asked & needed == needed, REASON)
}

/// The registration modes that a use with `caps` needs, of those `offered`.
fn needed_mr_modes(caps: u64, mut offered: i32) -> i32 {
    if caps & fi::FI_HMEM == 0 {
        offered &= !fi::FI_MR_HMEM;
    }
    if !rma_target(caps) {
        if offered & (fi::FI_MR_LOCAL | fi::FI_MR_HMEM) == 0 {
            return 0;
        }
        offered &= !RMA_TARGET_MODES;
    }
    offered & !(OLD_MR_BASIC | OLD_MR_SCALABLE)
}

/// Whether memory of an endpoint with `caps` can be the target of RMA.
fn rma_target(caps: u64) -> bool {
    caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0
        && (caps & (fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE) != 0
            || caps & (fi::FI_READ | fi::FI_WRITE) == 0)
}

fn check_endpoint(offer: &Offer<'_>, hints: &Hints, asked: &fi::fi_ep_attr) -> Result<(), Mismatch> {
    let has = &offer.ep;
    require(matches!(asked.type_, fi::FI_EP_UNSPEC | fi::FI_EP_RDM), "an endpoint type other than RDM")?;
    require(asked.protocol == 0 || asked.protocol == has.protocol, "a protocol other than FI_PROTO_EFA")?;
    require(asked.protocol_version <= has.protocol_version, "a newer protocol version")?;
    require(asked.max_msg_size <= has.max_msg_size, "a larger max_msg_size")?;
    require(asked.tx_ctx_cnt <= 1 && asked.rx_ctx_cnt <= 1, "more than one context, or a shared one")?;
    require(asked.auth_key_size == 0, "an authorization key, which is not offered")?;
    let ordered = asked.max_order_raw_size | asked.max_order_war_size | asked.max_order_waw_size;
    let uses_order = hints.caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0;
    require(!uses_order || ordered == 0 || offer.fabric == Fabric::Plain, "ordered RMA, which SRD lacks")
}

fn check_rx(has: &fi::fi_rx_attr, asked: &fi::fi_rx_attr, mode: u64) -> Result<(), Mismatch> {
    require(within(asked.caps & !IGNORED_IN_RX, has.caps), "receive capabilities beyond the adapter's")?;
    let mode = if asked.mode != 0 { asked.mode } else { mode };
    require(within(has.mode, mode), "rx_attr mode lacks FI_CONTEXT2")?;
    require(within(asked.op_flags, has.op_flags), "receive flags that are not offered")?;
    require(within(asked.msg_order, has.msg_order), "message order, which SRD lacks")?;
    require(asked.comp_order == 0, "completion order, which SRD lacks")?;
    require(asked.total_buffered_recv == 0, "buffered receives, which are not offered")?;
    require(asked.size <= has.size, "a receive queue deeper than the adapter's")?;
    require(asked.iov_limit <= has.iov_limit, "receives of more than one segment")
}

fn check_tx(has: &fi::fi_tx_attr, asked: &fi::fi_tx_attr, mode: u64) -> Result<(), Mismatch> {
    require(within(asked.caps & !IGNORED_IN_TX, has.caps), "transmit capabilities beyond the adapter's")?;
    let mode = if asked.mode != 0 { asked.mode } else { mode };
    require(within(has.mode, mode), "tx_attr mode lacks FI_CONTEXT2")?;
    require(within(asked.op_flags, has.op_flags), "transmit flags that are not offered")?;
    require(within(asked.msg_order, has.msg_order), "message order, which SRD lacks")?;
    require(asked.comp_order == 0, "completion order, which SRD lacks")?;
    require(asked.inject_size <= has.inject_size, "a larger inject_size")?;
    require(asked.size <= has.size, "a send queue deeper than the adapter's")?;
    require(asked.iov_limit <= has.iov_limit, "sends of more segments")?;
    require(asked.rma_iov_limit <= has.rma_iov_limit, "RMA of more than one remote segment")
}

/// Whether writes with immediate would need receives that the application does not know of.
fn needs_receives_for_writes(offer: &Offer<'_>, hints: &Hints) -> bool {
    offer.fabric == Fabric::Direct
        && !offer.adapter.limits.unsolicited_writes
        && hints.mode & fi::FI_RX_CQ_DATA == 0
}

/// The answer to `hints` from an offer that serves them.
pub(crate) fn answer<'a>(
    mut offer: Offer<'a>,
    hints: Option<&Hints>,
    version: u32,
) -> Result<Offer<'a>, Mismatch> {
    if hints.is_none_or(|hints| hints.caps & fi::FI_HMEM == 0) {
        offer.caps &= !fi::FI_HMEM;
        offer.tx.caps &= !fi::FI_HMEM;
        offer.rx.caps &= !fi::FI_HMEM;
        offer.domain.mr_mode &= !fi::FI_MR_HMEM;
    }
    if hints.is_none_or(|hints| hints.mode & fi::FI_RX_CQ_DATA != 0) && offer.fabric == Fabric::Direct {
        offer.mode |= fi::FI_RX_CQ_DATA;
        offer.rx.mode |= fi::FI_RX_CQ_DATA;
    }
    if hints.is_some_and(|hints| needs_receives_for_writes(&offer, hints)) {
        offer.caps &= !RMA;
        offer.tx.caps &= !RMA;
        offer.rx.caps &= !RMA;
    }
    choose_entry_size(&mut offer, hints)?;
    if offer.fabric == Fabric::Direct && hints.is_some_and(|hints| hints.caps & fi::FI_RMA == 0) {
        offer.ep.max_msg_size = offer.adapter.limits.message;
    }
    offer.caps = answered_info_caps(&offer, hints, version);
    if offer.domain.mr_mode & fi::FI_MR_LOCAL != 0
        && (version < MR_MODE_BITS
            || hints
                .and_then(Hints::mr_mode)
                .is_some_and(|asked| asked & (OLD_MR_BASIC | OLD_MR_SCALABLE) != 0))
    {
        offer.mode |= OLD_LOCAL_MR;
    }
    answer_domain(&mut offer, hints.and_then(|hints| hints.domain.as_ref()), version);
    let caps = offer.caps;
    offer.tx.caps = answered_caps(caps, hints.and_then(|h| h.tx).map_or(0, |tx| tx.caps), offer.tx.caps);
    offer.rx.caps = answered_caps(caps, hints.and_then(|h| h.rx).map_or(0, |rx| rx.caps), offer.rx.caps);
    if let Some(hints) = hints {
        answer_queues(&mut offer, hints);
    }
    Ok(offer)
}

/// 64-byte entries by default; 128-byte entries, half as many, where more is to be inlined.
fn choose_entry_size(offer: &mut Offer<'_>, hints: Option<&Hints>) -> Result<(), Mismatch> {
    let limits = &offer.adapter.limits;
    let tx = hints.and_then(|hints| hints.tx);
    if tx.is_none_or(|tx| tx.inject_size <= limits.inline) {
        offer.tx.inject_size = limits.inline;
        return Ok(());
    }
    let wide_depth = limits.send_depth / 2;
    require(
        tx.is_none_or(|tx| tx.size <= wide_depth),
        "a send queue of 128-byte entries deeper than the adapter's",
    )?;
    offer.tx.size = wide_depth;
    Ok(())
}

/// `ofi_get_caps` of libfabric's core.
fn answered_caps(info: u64, asked: u64, has: u64) -> u64 {
    let mut caps = if asked == 0 {
        (info & has & PRIMARY) | (has & SECONDARY)
    } else {
        let caps = (asked & PRIMARY) | (has & SECONDARY);
        (caps & !fi::FI_SOURCE) | (asked & fi::FI_SOURCE)
    };
    if caps & (fi::FI_MSG | fi::FI_TAGGED) != 0 && caps & MESSAGE_DIRECTIONS == 0 {
        caps |= has & MESSAGE_DIRECTIONS;
    }
    if caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0 && caps & RMA_DIRECTIONS == 0 {
        caps |= has & RMA_DIRECTIONS;
    }
    caps
}

fn answered_info_caps(offer: &Offer<'_>, hints: Option<&Hints>, version: u32) -> u64 {
    let Some(hints) = hints else { return offer.caps };
    let caps = answered_caps(offer.caps, hints.caps, offer.caps);
    let offered = offer.domain.mr_mode & RMA_TARGET_MODES;
    if !rma_target(caps) || offered == 0 {
        return caps;
    }
    let accepted = hints.mr_mode().is_some_and(|asked| {
        (version < MR_MODE_BITS && asked == 0)
            || asked == OLD_MR_BASIC
            || asked & RMA_TARGET_MODES & offered == offered
    });
    if accepted { caps } else { caps & !(fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE) }
}

fn answer_domain(offer: &mut Offer<'_>, asked: Option<&DomainHints>, version: u32) {
    let caps = offer.caps;
    let domain = &mut offer.domain;
    let asked_mode = asked.map_or(0, |asked| asked.mr_mode);
    if asked_mode & (OLD_MR_BASIC | OLD_MR_SCALABLE) != 0 {
        domain.mr_mode = asked_mode;
    } else if version < MR_MODE_BITS {
        domain.mr_mode = OLD_MR_BASIC;
    } else {
        domain.mr_mode &= !(OLD_MR_BASIC | OLD_MR_SCALABLE);
        if asked.is_some() && asked_mode & domain.mr_mode != domain.mr_mode {
            domain.mr_mode = needed_mr_modes(caps, domain.mr_mode & asked_mode);
        }
    }
    domain.caps = answered_caps(caps, asked.map_or(0, |asked| asked.caps), domain.caps);
    domain.av_type = fi::FI_AV_TABLE;
    let Some(asked) = asked else { return };
    if asked.threading != fi::FI_THREAD_UNSPEC {
        domain.threading = asked.threading;
    }
    if asked.progress != fi::FI_PROGRESS_UNSPEC {
        domain.control_progress = asked.progress;
        domain.__bindgen_anon_1.progress = asked.progress;
    }
    if asked.av_type != fi::FI_AV_UNSPEC {
        domain.av_type = asked.av_type;
    }
    if let Some(object) = asked.object {
        domain.domain = object;
    }
}

/// Sizes and flags that the application chose.
fn answer_queues(offer: &mut Offer<'_>, hints: &Hints) {
    fn chosen(field: &mut usize, asked: usize) {
        if asked != 0 {
            *field = asked;
        }
    }
    if let Some(tx) = &hints.tx {
        offer.tx.op_flags = tx.op_flags;
        chosen(&mut offer.tx.inject_size, tx.inject_size);
        chosen(&mut offer.tx.size, tx.size);
        chosen(&mut offer.tx.iov_limit, tx.iov_limit);
        chosen(&mut offer.tx.rma_iov_limit, tx.rma_iov_limit);
    }
    if let Some(rx) = &hints.rx {
        offer.rx.op_flags = rx.op_flags;
        chosen(&mut offer.rx.size, rx.size);
        chosen(&mut offer.rx.iov_limit, rx.iov_limit);
    }
    if let Some(ep) = &hints.ep {
        chosen(&mut offer.ep.tx_ctx_cnt, ep.tx_ctx_cnt);
        chosen(&mut offer.ep.rx_ctx_cnt, ep.rx_ctx_cnt);
    }
    offer.handle = hints.handle;
    if let Some(fabric) = hints.fabric.as_ref().and_then(|fabric| fabric.object) {
        offer.fabric_object = fabric;
    }
}
