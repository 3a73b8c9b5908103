//! What the device says of itself: limits, port, GIDs, context.

use softefa_abi::sys::*;
use softefa_abi::{Answer, Command, DescriptorPlace, Errno, Ioctl, encode};

use super::context::Context;

/// Amazon, and the adapter of P5 and P5en, which every libefa since release 38 knows.
pub(crate) const VENDOR: u32 = 0x1d0f;
pub(crate) const PART: u32 = 0xefa2;
/// Bytes that fit an entry of 64 and of 128.
const INLINE: u16 = 32;
const INLINE_128: u16 = 80;
/// The memory that one region may have, and its pages.
const MAX_REGION: u64 = 1 << 40;
const PAGE_SIZES: u64 = 0xffff_f000;

/// The port's width and speed, 4 lanes of 25 Gb/s each, as the kernel driver of EFA reports it.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const ACTIVE: u8 = 4;
const LINK_UP: u8 = 5;
const MTU_4096: u8 = 5;

pub(super) fn event_place(ioctl: &Ioctl) -> Option<DescriptorPlace> {
    Answer::new(ioctl).descriptor_place(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)
}

pub(super) fn channel_place(ioctl: &Ioctl) -> Option<DescriptorPlace> {
    Answer::new(ioctl).channel_place(UVERBS_ATTR_CORE_OUT)
}

pub(super) fn is_dmabuf(answer: &Answer<'_>) -> bool {
    u32::from(answer.method()) == UVERBS_METHOD_REG_DMABUF_MR
}

pub(super) fn context(context: &Context, supported: u32, answer: &mut Answer<'_>) -> Result<(), Errno> {
    let config = context.adapter.config();
    let limits = &config.limits;
    // As the driver does: a program that could break a rule without knowing it is refused.
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
    answer.put(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &1_u32.to_ne_bytes());
    answer.put(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &0_u64.to_ne_bytes());
    answer.put(UVERBS_ATTR_UHW_OUT, &driver);
    Ok(())
}

pub(super) fn query(context: &Context, command: &Command, answer: &mut Answer<'_>) -> Result<(), Errno> {
    match command {
        Command::QueryDevice { extended } => device(context, *extended, answer),
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
            answer.put(UVERBS_ATTR_QUERY_PORT_RESP, &bytes);
        }
        Command::QueryPortSpeed { port } => {
            only_port(*port)?;
            answer.put(UVERBS_ATTR_QUERY_PORT_SPEED_RESP, &1000_u64.to_ne_bytes());
        }
        Command::QueryContext => {
            answer.put(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, &1_u32.to_ne_bytes());
            answer.put(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, &0_u64.to_ne_bytes());
        }
        Command::QueryGidEntry { port, index } => {
            only_port(*port)?;
            if *index != 0 {
                return Err(Errno::EINVAL);
            }
            answer.put(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &gid_entry(context));
        }
        Command::QueryGidTable { entry_size, room } => {
            let entry = gid_entry(context);
            if *entry_size < entry.len() as u64 || (*room as u64) < *entry_size {
                return Err(Errno::EINVAL);
            }
            answer.put(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, &entry);
            answer.put(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &1_u64.to_ne_bytes());
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

fn device(context: &Context, extended: bool, answer: &mut Answer<'_>) {
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
    answer.put(UVERBS_ATTR_CORE_OUT, if extended { &bytes } else { &base });
    let mut caps = EFA_QUERY_DEVICE_CAPS_RNR_RETRY | EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID;
    for (has, flag) in [
        (capabilities.rdma_read, EFA_QUERY_DEVICE_CAPS_RDMA_READ),
        (capabilities.rdma_write, EFA_QUERY_DEVICE_CAPS_RDMA_WRITE),
        (capabilities.unsolicited_write_receive, EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV),
        (capabilities.external_cq, EFA_QUERY_DEVICE_CAPS_CQ_WITH_EXT_MEM),
        (capabilities.request_ids_64, EFA_QUERY_DEVICE_CAPS_SQ_64_BIT_REQ_ID),
        (capabilities.completion_counters, EFA_QUERY_DEVICE_CAPS_COMP_CNTR),
    ] {
        if has {
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
    answer.put(UVERBS_ATTR_UHW_OUT, &driver);
}
