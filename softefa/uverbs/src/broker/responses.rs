//! Responses to queries: limits, port, GIDs, context. They depend on the adapter's configuration only, not on objects.

use softefa_abi::sys::*;
use softefa_abi::{Command, DescriptorOutput, Errno, Ioctl, Response, encode};

use super::context::Context;

/// The PCI ids of Amazon and of the adapter of P5 and P5en, which libefa supports since release 38.
pub(crate) const VENDOR: u32 = 0x1d0f;
pub(crate) const PART: u32 = 0xefa2;
/// Bytes of inline data in an entry of 64 bytes and of 128 bytes.
const INLINE: u16 = 32;
const INLINE_128: u16 = 80;
/// The most bytes of a region.
pub(super) const MAX_REGION: u64 = 1 << 40;
/// As all kernels since 5.6: rdma-core passes optional access rights on.
const CORE_SUPPORT: u64 = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS as u64;
/// The page sizes.
const PAGE_SIZES: u64 = 0xffff_f000;

/// The port's width and speed as the kernel driver of EFA reports them: 4 lanes of 25 Gb/s each.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const ACTIVE: u8 = 4;
const LINK_UP: u8 = 5;
const MTU_4096: u8 = 5;

/// The memory for the number of a descriptor for asynchronous events.
pub(super) fn event_output(ioctl: &Ioctl) -> Option<DescriptorOutput> {
    Response::new(ioctl).descriptor_output(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)
}

/// The memory for the number of a completion channel's descriptor.
pub(super) fn channel_output(ioctl: &Ioctl) -> Option<DescriptorOutput> {
    Response::new(ioctl).channel_output(UVERBS_ATTR_CORE_OUT)
}

/// The number of completion vectors. The EFA driver reports one for each queue of events, of which an adapter without
/// notifications has none, and 1 instead of 0. libfabric takes 1 for such an adapter.
pub(super) fn completion_vectors(context: &Context) -> u32 {
    if context.shared.completion_doorbells { 2 } else { 1 }
}

/// Whether the response is to the registration of a dmabuf.
pub(super) fn is_dmabuf(response: &Response<'_>) -> bool {
    u32::from(response.method()) == UVERBS_METHOD_REG_DMABUF_MR
}

/// Responds to [`Command::GetContext`], or refuses the program.
pub(super) fn context(context: &Context, supported: u32, response: &mut Response<'_>) -> Result<(), Errno> {
    let config = context.adapter.config();
    let limits = &config.limits;
    // The driver also refuses a program that does not support a limit, because it could exceed the limit unknowingly.
    if limits.max_tx_batch != 0 && supported & EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH == 0
        || limits.min_sq_depth != 0 && supported & EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR == 0
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let driver = encode!(efa_ibv_alloc_ucontext_resp {
        cmds_supp_udata_mask: EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
        sub_cqs_per_cq: 1,
        inline_buf_size: INLINE,
        max_llq_size: limits.llq_bytes,
        max_tx_batch: limits.max_tx_batch,
        min_sq_wr: limits.min_sq_depth as u16,
        inline_buf_size_ex: if config.capabilities.entries_128 { INLINE_128 } else { INLINE },
    });
    response.put(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &completion_vectors(context).to_ne_bytes());
    response.put(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &CORE_SUPPORT.to_ne_bytes());
    response.put(UVERBS_ATTR_UHW_OUT, &driver);
    Ok(())
}

/// Responds to a query of the device, a port, the context or GIDs.
pub(super) fn query(context: &Context, command: &Command, response: &mut Response<'_>) -> Result<(), Errno> {
    match command {
        Command::QueryDevice { extended } => device(context, *extended, response),
        Command::QueryPort { port } => {
            only_port(*port)?;
            let bytes = encode!(ib_uverbs_query_port_resp_ex {
                legacy_resp.max_msg_sz: context.adapter.config().limits.max_msg_size,
                legacy_resp.gid_tbl_len: 1,
                legacy_resp.pkey_tbl_len: 1,
                legacy_resp.state: ACTIVE,
                legacy_resp.max_mtu: MTU_4096,
                legacy_resp.active_mtu: MTU_4096,
                legacy_resp.max_vl_num: 1,
                legacy_resp.active_width: WIDTH_4X,
                legacy_resp.active_speed: SPEED_EDR,
                legacy_resp.phys_state: LINK_UP,
                active_speed_ex: SPEED_EDR.into(),
            });
            response.put(UVERBS_ATTR_QUERY_PORT_RESP, &bytes);
        }
        Command::QueryPortSpeed { port } => {
            only_port(*port)?;
            response.put(UVERBS_ATTR_QUERY_PORT_SPEED_RESP, &1000_u64.to_ne_bytes());
        }
        Command::QueryContext => {
            response
                .put(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, &completion_vectors(context).to_ne_bytes());
            response.put(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, &CORE_SUPPORT.to_ne_bytes());
        }
        Command::QueryGidEntry { port, index } => {
            only_port(*port)?;
            if *index != 0 {
                return Err(Errno::EINVAL);
            }
            response.put(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &gid_entry(context));
        }
        Command::QueryGidTable { entry_size, capacity } => {
            let entry = gid_entry(context);
            if *entry_size < entry.len() as u64 || (*capacity as u64) < *entry_size {
                return Err(Errno::EINVAL);
            }
            response.put(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, &entry);
            response.put(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &1_u64.to_ne_bytes());
        }
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(())
}

fn only_port(port: u64) -> Result<(), Errno> {
    if port == 1 { Ok(()) } else { Err(Errno::EINVAL) }
}

fn gid_entry(context: &Context) -> Vec<u8> {
    let gid = context.adapter.gid().0;
    let mut bytes = encode!(ib_uverbs_gid_entry { port_num: 1 });
    bytes[..16].copy_from_slice(&gid);
    bytes
}

fn device(context: &Context, extended: bool, response: &mut Response<'_>) {
    let config = context.adapter.config();
    let (limits, capabilities) = (&config.limits, &config.capabilities);
    let mut guid = [0; 8];
    guid.copy_from_slice(&context.adapter.gid().0[8..]);
    let base = encode!(ib_uverbs_query_device_resp {
        node_guid: u64::from_ne_bytes(guid),
        sys_image_guid: u64::from_ne_bytes(guid),
        max_mr_size: MAX_REGION,
        page_size_cap: PAGE_SIZES,
        vendor_id: VENDOR,
        vendor_part_id: PART,
        hw_ver: PART,
        max_qp: limits.max_qp.into(),
        max_qp_wr: limits.max_sq_depth.min(limits.max_rq_depth),
        max_sge: 2,
        max_sge_rd: 1,
        max_cq: limits.max_cq.into(),
        max_cqe: limits.max_cq_depth,
        max_mr: limits.max_mr,
        max_pd: limits.max_pd.into(),
        max_ah: limits.max_ah.into(),
        max_pkeys: 1,
        phys_port_cnt: 1,
    });
    let mut bytes = encode!(ib_uverbs_ex_query_device_resp {
        response_length: size_of::<ib_uverbs_ex_query_device_resp>() as u32,
    });
    bytes[..base.len()].copy_from_slice(&base);
    response.put(UVERBS_ATTR_CORE_OUT, if extended { &bytes } else { &base });
    let mut caps = EFA_QUERY_DEVICE_CAPS_RNR_RETRY | EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID;
    for (supported, flag) in [
        (capabilities.rdma_read, EFA_QUERY_DEVICE_CAPS_RDMA_READ),
        (capabilities.rdma_write, EFA_QUERY_DEVICE_CAPS_RDMA_WRITE),
        (capabilities.unsolicited_write_receive, EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV),
        (capabilities.external_cq, EFA_QUERY_DEVICE_CAPS_CQ_WITH_EXT_MEM),
        (capabilities.request_ids_64, EFA_QUERY_DEVICE_CAPS_SQ_64_BIT_REQ_ID),
        (capabilities.completion_counters, EFA_QUERY_DEVICE_CAPS_COMP_CNTR),
        (context.shared.completion_doorbells, EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS),
    ] {
        if supported {
            caps |= flag;
        }
    }
    let driver = encode!(efa_ibv_ex_query_device_resp {
        max_sq_wr: limits.max_sq_depth,
        max_rq_wr: limits.max_rq_depth,
        max_sq_sge: 2,
        max_rq_sge: limits.max_receive_segments,
        max_rdma_size: limits.max_rdma_size,
        device_caps: caps,
    });
    response.put(UVERBS_ATTR_UHW_OUT, &driver);
}
