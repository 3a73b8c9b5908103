/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The part of the RDMA subsystem's user interface that a program with an EFA
 * device uses: one ioctl on /dev/infiniband/uverbsN that names an object, a
 * method and a list of attributes, and the older commands that travel inside
 * the method INVOKE_WRITE.
 *
 * Names, layouts and values are those of the interface (Linux
 * include/uapi/rdma, as rdma-core 65 has them); the wording is this project's
 * own. Numbers are in the byte order of the machine unless marked "big-endian".
 */
#ifndef EFA_GDA_THIRD_PARTY_UVERBS_ABI_H
#define EFA_GDA_THIRD_PARTY_UVERBS_ABI_H

#include <stdint.h>

/* ---- the ioctl ------------------------------------------------------------ */

/* Value of RDMA_VERBS_IOCTL: type 0x1b, number 1, read and write, size of the header. */
#define EFA_GDA_RDMA_VERBS_IOCTL 0xc0181b01u

#define UVERBS_ATTR_F_MANDATORY 1u    /* if unknown, the call fails */
#define UVERBS_ATTR_F_VALID_OUTPUT 2u /* the kernel sets it if it wrote */

struct ib_uverbs_attr {
  uint16_t attr_id;
  uint16_t len; /* bytes that data points to; up to 8 bytes of input lie in data */
  uint16_t flags;
  uint16_t reserved; /* elem_id and a reserved byte if the attribute is an enumeration */
  uint64_t data;     /* a pointer, a handle, a descriptor, or the bytes themselves */
};

struct ib_uverbs_ioctl_hdr {
  uint16_t length; /* bytes of this header and of the attributes after it */
  uint16_t object_id;
  uint16_t method_id;
  uint16_t num_attrs;
  uint64_t reserved1;
  uint32_t driver_id;
  uint32_t reserved2;
};

enum rdma_driver_id { RDMA_DRIVER_EFA = 17 };

enum uverbs_default_objects {
  UVERBS_OBJECT_DEVICE = 0,
  UVERBS_OBJECT_PD = 1,
  UVERBS_OBJECT_CQ = 3,
  UVERBS_OBJECT_QP = 4,
  UVERBS_OBJECT_AH = 6,
  UVERBS_OBJECT_MR = 7,
  UVERBS_OBJECT_ASYNC_EVENT = 16,
  UVERBS_OBJECT_COMP_CNTR = 19,
};

/* Attributes that a driver adds to a method. */
enum {
  UVERBS_ID_DRIVER_NS = 0x1000,
  UVERBS_ATTR_UHW_IN = 0x1000,
  UVERBS_ATTR_UHW_OUT = 0x1001,
};

enum uverbs_methods_device {
  UVERBS_METHOD_INVOKE_WRITE = 0,
  UVERBS_METHOD_QUERY_PORT = 2,
  UVERBS_METHOD_GET_CONTEXT = 3,
  UVERBS_METHOD_QUERY_CONTEXT = 4,
  UVERBS_METHOD_QUERY_GID_TABLE = 5,
  UVERBS_METHOD_QUERY_GID_ENTRY = 6,
  UVERBS_METHOD_QUERY_PORT_SPEED = 7,
  UVERBS_METHOD_QUERY_COMP_CNTR_CAPS = 8,
};

enum { UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_WRITE_CMD };
enum { UVERBS_ATTR_QUERY_PORT_PORT_NUM, UVERBS_ATTR_QUERY_PORT_RESP };
enum { UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM, UVERBS_ATTR_QUERY_PORT_SPEED_RESP };
enum {
  UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS,
  UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE,
  UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS,
};
enum {
  UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
  UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
  UVERBS_ATTR_GET_CONTEXT_FD_ARR,
};
enum { UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT };
enum {
  UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE,
  UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
  UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES,
  UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
};
enum {
  UVERBS_ATTR_QUERY_GID_ENTRY_PORT,
  UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
  UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS,
  UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
};

enum { UVERBS_METHOD_PD_DESTROY };
enum { UVERBS_ATTR_DESTROY_PD_HANDLE };

enum { UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_CQ_DESTROY };
enum {
  UVERBS_ATTR_CREATE_CQ_HANDLE,
  UVERBS_ATTR_CREATE_CQ_CQE,
  UVERBS_ATTR_CREATE_CQ_USER_HANDLE,
  UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL,
  UVERBS_ATTR_CREATE_CQ_COMP_VECTOR,
  UVERBS_ATTR_CREATE_CQ_FLAGS,
  UVERBS_ATTR_CREATE_CQ_RESP_CQE,
  UVERBS_ATTR_CREATE_CQ_EVENT_FD,
  UVERBS_ATTR_CREATE_CQ_BUFFER_VA,
  UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH,
  UVERBS_ATTR_CREATE_CQ_BUFFER_FD,
  UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET,
};
enum { UVERBS_ATTR_DESTROY_CQ_HANDLE, UVERBS_ATTR_DESTROY_CQ_RESP };

enum { UVERBS_METHOD_QP_CREATE, UVERBS_METHOD_QP_DESTROY, UVERBS_METHOD_QP_ATTACH_COMP_CNTR };
enum {
  UVERBS_ATTR_CREATE_QP_HANDLE,
  UVERBS_ATTR_CREATE_QP_XRCD_HANDLE,
  UVERBS_ATTR_CREATE_QP_PD_HANDLE,
  UVERBS_ATTR_CREATE_QP_SRQ_HANDLE,
  UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE,
  UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE,
  UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE,
  UVERBS_ATTR_CREATE_QP_USER_HANDLE,
  UVERBS_ATTR_CREATE_QP_CAP,
  UVERBS_ATTR_CREATE_QP_TYPE,
  UVERBS_ATTR_CREATE_QP_FLAGS,
  UVERBS_ATTR_CREATE_QP_SOURCE_QPN,
  UVERBS_ATTR_CREATE_QP_EVENT_FD,
  UVERBS_ATTR_CREATE_QP_RESP_CAP,
  UVERBS_ATTR_CREATE_QP_RESP_QP_NUM,
};
enum { UVERBS_ATTR_DESTROY_QP_HANDLE, UVERBS_ATTR_DESTROY_QP_RESP };
enum {
  UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE,
  UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE,
  UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK,
};

enum { UVERBS_METHOD_AH_DESTROY };
enum { UVERBS_ATTR_DESTROY_AH_HANDLE };

enum uverbs_methods_mr {
  UVERBS_METHOD_MR_DESTROY = 1,
  UVERBS_METHOD_QUERY_MR = 3,
  UVERBS_METHOD_REG_DMABUF_MR = 4,
  UVERBS_METHOD_REG_MR = 5,
};
enum { UVERBS_ATTR_DESTROY_MR_HANDLE };
enum {
  UVERBS_ATTR_QUERY_MR_HANDLE,
  UVERBS_ATTR_QUERY_MR_RESP_LKEY,
  UVERBS_ATTR_QUERY_MR_RESP_RKEY,
  UVERBS_ATTR_QUERY_MR_RESP_LENGTH,
  UVERBS_ATTR_QUERY_MR_RESP_IOVA,
};
enum {
  UVERBS_ATTR_REG_DMABUF_MR_HANDLE,
  UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE,
  UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
  UVERBS_ATTR_REG_DMABUF_MR_LENGTH,
  UVERBS_ATTR_REG_DMABUF_MR_IOVA,
  UVERBS_ATTR_REG_DMABUF_MR_FD,
  UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
  UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
  UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY,
};
enum {
  UVERBS_ATTR_REG_MR_HANDLE,
  UVERBS_ATTR_REG_MR_PD_HANDLE,
  UVERBS_ATTR_REG_MR_DMA_HANDLE,
  UVERBS_ATTR_REG_MR_IOVA,
  UVERBS_ATTR_REG_MR_ADDR,
  UVERBS_ATTR_REG_MR_LENGTH,
  UVERBS_ATTR_REG_MR_ACCESS_FLAGS,
  UVERBS_ATTR_REG_MR_FD,
  UVERBS_ATTR_REG_MR_FD_OFFSET,
  UVERBS_ATTR_REG_MR_RESP_LKEY,
  UVERBS_ATTR_REG_MR_RESP_RKEY,
};

enum { UVERBS_METHOD_ASYNC_EVENT_ALLOC };
enum { UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE };

enum {
  UVERBS_METHOD_COMP_CNTR_CREATE,
  UVERBS_METHOD_COMP_CNTR_DESTROY,
  UVERBS_METHOD_COMP_CNTR_MODIFY,
  UVERBS_METHOD_COMP_CNTR_READ,
};
enum { UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE };
enum { UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE };
enum {
  UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE,
  UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY,
  UVERBS_ATTR_MODIFY_COMP_CNTR_OP,
  UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE,
};
enum {
  UVERBS_ATTR_READ_COMP_CNTR_HANDLE,
  UVERBS_ATTR_READ_COMP_CNTR_ENTRY,
  UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE,
};

/* ---- payloads of attributes -------------------------------------------------- */

enum ib_uverbs_core_support {
  /* The kernel accepts IB_UVERBS_ACCESS_OPTIONAL_RANGE. Without it rdma-core removes these bits. */
  IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS = 1,
};

enum {
  IB_UVERBS_ACCESS_LOCAL_WRITE = 1,
  IB_UVERBS_ACCESS_REMOTE_WRITE = 2,
  IB_UVERBS_ACCESS_REMOTE_READ = 4,
  IB_UVERBS_ACCESS_RELAXED_ORDERING = 0x100000,
  /* A device that does not know these may ignore them. */
  IB_UVERBS_ACCESS_OPTIONAL_RANGE = 0x3ff00000,
};

enum ib_uverbs_qp_type {
  IB_UVERBS_QPT_UD = 4,
  IB_UVERBS_QPT_DRIVER = 0xff,
};

struct ib_uverbs_qp_cap {
  uint32_t max_send_wr;
  uint32_t max_recv_wr;
  uint32_t max_send_sge;
  uint32_t max_recv_sge;
  uint32_t max_inline_data;
};

struct ib_uverbs_query_port_resp {
  uint32_t port_cap_flags;
  uint32_t max_msg_sz;
  uint32_t bad_pkey_cntr;
  uint32_t qkey_viol_cntr;
  uint32_t gid_tbl_len;
  uint16_t pkey_tbl_len;
  uint16_t lid;
  uint16_t sm_lid;
  uint8_t state;
  uint8_t max_mtu;
  uint8_t active_mtu;
  uint8_t lmc;
  uint8_t max_vl_num;
  uint8_t sm_sl;
  uint8_t subnet_timeout;
  uint8_t init_type_reply;
  uint8_t active_width;
  uint8_t active_speed;
  uint8_t phys_state;
  uint8_t link_layer;
  uint8_t flags;
  uint8_t reserved;
};

struct ib_uverbs_query_port_resp_ex {
  struct ib_uverbs_query_port_resp legacy_resp;
  uint16_t port_cap_flags2;
  uint8_t reserved[2];
  uint32_t active_speed_ex;
};

struct ib_uverbs_gid_entry {
  uint64_t gid[2]; /* the GID's 16 bytes in order */
  uint32_t gid_index;
  uint32_t port_num;
  uint32_t gid_type;
  uint32_t netdev_ifindex;
};

enum ib_uverbs_buffer_type { IB_UVERBS_BUFFER_TYPE_DMABUF, IB_UVERBS_BUFFER_TYPE_VA };

struct ib_uverbs_buffer_desc {
  uint32_t type;
  int32_t fd;
  uint32_t flags;
  uint32_t optional_flags;
  uint64_t addr; /* address in the process, or offset in the dma-buf */
  uint64_t length;
};

enum { IB_UVERBS_COMP_CNTR_ENTRY_COMP, IB_UVERBS_COMP_CNTR_ENTRY_ERR };
enum { IB_UVERBS_COMP_CNTR_MODIFY_OP_SET, IB_UVERBS_COMP_CNTR_MODIFY_OP_INC };
enum {
  IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND = 1,
  IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RECV = 2,
  IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 4,
  IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 8,
  IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 16,
  IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 32,
};

struct ib_uverbs_destroy_cq_resp {
  uint32_t comp_events_reported;
  uint32_t async_events_reported;
};

struct ib_uverbs_destroy_qp_resp {
  uint32_t events_reported;
};

/* ---- commands inside INVOKE_WRITE ---------------------------------------------- */

enum ib_uverbs_write_cmds {
  IB_USER_VERBS_CMD_QUERY_DEVICE = 1,
  IB_USER_VERBS_CMD_ALLOC_PD = 3,
  IB_USER_VERBS_CMD_CREATE_AH = 5,
  IB_USER_VERBS_CMD_REG_MR = 9,
  IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL = 17,
  IB_USER_VERBS_CMD_QUERY_QP = 25,
  IB_USER_VERBS_CMD_MODIFY_QP = 26,
};
#define IB_USER_VERBS_CMD_FLAG_EXTENDED 0x80000000u

struct ib_uverbs_query_device_resp {
  uint64_t fw_ver;
  uint64_t node_guid;      /* big-endian */
  uint64_t sys_image_guid; /* big-endian */
  uint64_t max_mr_size;
  uint64_t page_size_cap;
  uint32_t vendor_id;
  uint32_t vendor_part_id;
  uint32_t hw_ver;
  uint32_t max_qp;
  uint32_t max_qp_wr;
  uint32_t device_cap_flags;
  uint32_t max_sge;
  uint32_t max_sge_rd;
  uint32_t max_cq;
  uint32_t max_cqe;
  uint32_t max_mr;
  uint32_t max_pd;
  uint32_t max_qp_rd_atom;
  uint32_t max_ee_rd_atom;
  uint32_t max_res_rd_atom;
  uint32_t max_qp_init_rd_atom;
  uint32_t max_ee_init_rd_atom;
  uint32_t atomic_cap;
  uint32_t max_ee;
  uint32_t max_rdd;
  uint32_t max_mw;
  uint32_t max_raw_ipv6_qp;
  uint32_t max_raw_ethy_qp;
  uint32_t max_mcast_grp;
  uint32_t max_mcast_qp_attach;
  uint32_t max_total_mcast_qp_attach;
  uint32_t max_ah;
  uint32_t max_fmr;
  uint32_t max_map_per_fmr;
  uint32_t max_srq;
  uint32_t max_srq_wr;
  uint32_t max_srq_sge;
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay;
  uint8_t phys_port_cnt;
  uint8_t reserved[4];
};

struct ib_uverbs_odp_caps {
  uint64_t general_caps;
  uint32_t rc_odp_caps;
  uint32_t uc_odp_caps;
  uint32_t ud_odp_caps;
  uint32_t reserved;
};

struct ib_uverbs_rss_caps {
  uint32_t supported_qpts;
  uint32_t max_rwq_indirection_tables;
  uint32_t max_rwq_indirection_table_size;
  uint32_t reserved;
};

struct ib_uverbs_tm_caps {
  uint32_t max_rndv_hdr_size;
  uint32_t max_num_tags;
  uint32_t flags;
  uint32_t max_ops;
  uint32_t max_sge;
  uint32_t reserved;
};

struct ib_uverbs_cq_moderation_caps {
  uint16_t max_cq_moderation_count;
  uint16_t max_cq_moderation_period;
  uint32_t reserved;
};

struct ib_uverbs_ex_query_device_resp {
  struct ib_uverbs_query_device_resp base;
  uint32_t comp_mask;
  uint32_t response_length;
  struct ib_uverbs_odp_caps odp_caps;
  uint64_t timestamp_mask;
  uint64_t hca_core_clock;
  uint64_t device_cap_flags_ex;
  struct ib_uverbs_rss_caps rss_caps;
  uint32_t max_wq_type_rq;
  uint32_t raw_packet_caps;
  struct ib_uverbs_tm_caps tm_caps;
  struct ib_uverbs_cq_moderation_caps cq_moderation_caps;
  uint64_t max_dm_size;
  uint32_t xrc_odp_caps;
  uint32_t reserved;
};

struct ib_uverbs_alloc_pd_resp {
  uint32_t pd_handle;
};

/* `response` is unused inside INVOKE_WRITE, here and below. */
struct ib_uverbs_reg_mr {
  uint64_t response;
  uint64_t start;
  uint64_t length;
  uint64_t hca_va;
  uint32_t pd_handle;
  uint32_t access_flags;
};

struct ib_uverbs_reg_mr_resp {
  uint32_t mr_handle;
  uint32_t lkey;
  uint32_t rkey;
};

struct ib_uverbs_global_route {
  uint8_t dgid[16];
  uint32_t flow_label;
  uint8_t sgid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
  uint8_t reserved;
};

struct ib_uverbs_ah_attr {
  struct ib_uverbs_global_route grh;
  uint16_t dlid;
  uint8_t sl;
  uint8_t src_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port_num;
  uint8_t reserved;
};

struct ib_uverbs_create_ah {
  uint64_t response;
  uint64_t user_handle;
  uint32_t pd_handle;
  uint32_t reserved;
  struct ib_uverbs_ah_attr attr;
};

struct ib_uverbs_create_ah_resp {
  uint32_t ah_handle;
};

struct ib_uverbs_create_comp_channel_resp {
  uint32_t fd;
};

struct ib_uverbs_qp_dest {
  uint8_t dgid[16];
  uint32_t flow_label;
  uint16_t dlid;
  uint16_t reserved;
  uint8_t sgid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
  uint8_t sl;
  uint8_t src_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port_num;
};

struct ib_uverbs_query_qp {
  uint64_t response;
  uint32_t qp_handle;
  uint32_t attr_mask;
};

struct ib_uverbs_query_qp_resp {
  struct ib_uverbs_qp_dest dest;
  struct ib_uverbs_qp_dest alt_dest;
  uint32_t max_send_wr;
  uint32_t max_recv_wr;
  uint32_t max_send_sge;
  uint32_t max_recv_sge;
  uint32_t max_inline_data;
  uint32_t qkey;
  uint32_t rq_psn;
  uint32_t sq_psn;
  uint32_t dest_qp_num;
  uint32_t qp_access_flags;
  uint16_t pkey_index;
  uint16_t alt_pkey_index;
  uint8_t qp_state;
  uint8_t cur_qp_state;
  uint8_t path_mtu;
  uint8_t path_mig_state;
  uint8_t sq_draining;
  uint8_t max_rd_atomic;
  uint8_t max_dest_rd_atomic;
  uint8_t min_rnr_timer;
  uint8_t port_num;
  uint8_t timeout;
  uint8_t retry_cnt;
  uint8_t rnr_retry;
  uint8_t alt_port_num;
  uint8_t alt_timeout;
  uint8_t sq_sig_all;
  uint8_t reserved[5];
};

/* Bits of attr_mask, and states: the kernel's enum ib_qp_attr_mask and ib_qp_state. */
enum {
  IB_QP_STATE = 1 << 0,
  IB_QP_CUR_STATE = 1 << 1,
  IB_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
  IB_QP_PKEY_INDEX = 1 << 4,
  IB_QP_PORT = 1 << 5,
  IB_QP_QKEY = 1 << 6,
  IB_QP_RNR_RETRY = 1 << 11,
  IB_QP_SQ_PSN = 1 << 16,
};
enum {
  IB_QPS_RESET,
  IB_QPS_INIT,
  IB_QPS_RTR,
  IB_QPS_RTS,
  IB_QPS_SQD,
  IB_QPS_SQE,
  IB_QPS_ERR,
};

struct ib_uverbs_modify_qp {
  struct ib_uverbs_qp_dest dest;
  struct ib_uverbs_qp_dest alt_dest;
  uint32_t qp_handle;
  uint32_t attr_mask;
  uint32_t qkey;
  uint32_t rq_psn;
  uint32_t sq_psn;
  uint32_t dest_qp_num;
  uint32_t qp_access_flags;
  uint16_t pkey_index;
  uint16_t alt_pkey_index;
  uint8_t qp_state;
  uint8_t cur_qp_state;
  uint8_t path_mtu;
  uint8_t path_mig_state;
  uint8_t en_sqd_async_notify;
  uint8_t max_rd_atomic;
  uint8_t max_dest_rd_atomic;
  uint8_t min_rnr_timer;
  uint8_t port_num;
  uint8_t timeout;
  uint8_t retry_cnt;
  uint8_t rnr_retry;
  uint8_t alt_port_num;
  uint8_t alt_timeout;
  uint8_t reserved[2];
};

#endif
