/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Additions of the EFA kernel driver to the RDMA subsystem's user interface: the
 * driver's half of each command (UVERBS_ATTR_UHW_IN and _OUT), and the driver's
 * methods and attributes.
 *
 * Names, layouts and values are those of the interface (rdma-core 65,
 * kernel-headers/rdma/efa-abi.h); the wording is this project's own. An older
 * program passes shorter structures, each a prefix of these.
 */
#ifndef EFA_GDA_THIRD_PARTY_EFA_ABI_H
#define EFA_GDA_THIRD_PARTY_EFA_ABI_H

#include <stdint.h>

/* Version of this interface; sysfs reports it as class/infiniband_verbs/uverbsN/abi_version. */
#define EFA_UVERBS_ABI_VERSION 1

/* Limits of the device that the client respects. */
enum {
  EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH = 1 << 0,
  EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR = 1 << 1,
};

struct efa_ibv_alloc_ucontext_cmd {
  uint32_t supported_caps;
  uint8_t reserved_20[4];
};

/* Commands whose responses contain the driver's half. */
enum efa_ibv_user_cmds_supp_udata {
  EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE = 1 << 0,
  EFA_USER_CMDS_SUPP_UDATA_CREATE_AH = 1 << 1,
};

struct efa_ibv_alloc_ucontext_resp {
  uint32_t comp_mask;
  uint32_t cmds_supp_udata_mask;
  uint16_t sub_cqs_per_cq;
  uint16_t inline_buf_size;
  uint32_t max_llq_size; /* bytes */
  uint16_t max_tx_batch; /* in units of 64 bytes; 0 for no limit */
  uint16_t min_sq_wr;
  uint16_t inline_buf_size_ex; /* with 128-byte entries */
  uint8_t reserved_b0[2];
};

struct efa_ibv_alloc_pd_resp {
  uint32_t comp_mask;
  uint16_t pdn;
  uint8_t reserved_30[2];
};

enum {
  EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL = 1 << 0,
  EFA_CREATE_CQ_WITH_SGID = 1 << 1,
  EFA_CREATE_CQ_WITH_SQ_COMP_64_BIT_REQ_ID = 1 << 2,
};

struct efa_ibv_create_cq {
  uint32_t comp_mask;
  uint32_t cq_entry_size;
  uint16_t num_sub_cqs;
  uint8_t flags;
  uint8_t reserved_58[5];
};

enum { EFA_CREATE_CQ_RESP_DB_OFF = 1 << 0 };

struct efa_ibv_create_cq_resp {
  uint32_t comp_mask;
  uint8_t reserved_20[4];
  uint64_t q_mmap_key;
  uint64_t q_mmap_size;
  uint16_t cq_idx;
  uint8_t reserved_d0[2];
  uint32_t db_off; /* offset in the doorbell's page; valid with EFA_CREATE_CQ_RESP_DB_OFF */
  uint64_t db_mmap_key;
};

enum { EFA_QP_DRIVER_TYPE_SRD = 0 };

enum {
  EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV = 1 << 0,
  EFA_CREATE_QP_WITH_SQ_64_BIT_REQ_ID = 1 << 1,
};

struct efa_ibv_create_qp {
  uint32_t comp_mask;
  uint32_t rq_ring_size; /* bytes */
  uint32_t sq_ring_size; /* bytes */
  uint32_t driver_qp_type;
  uint16_t flags;
  uint8_t sl;
  uint8_t reserved_98[5];
};

struct efa_ibv_create_qp_resp {
  uint32_t comp_mask;
  uint32_t rq_db_offset;    /* offset in the doorbell's page */
  uint32_t sq_db_offset;    /* offset in the doorbell's page */
  uint32_t llq_desc_offset; /* offset in the send queue's first page */
  uint64_t rq_mmap_key;
  uint64_t rq_mmap_size;
  uint64_t rq_db_mmap_key;
  uint64_t sq_db_mmap_key;
  uint64_t llq_desc_mmap_key;
  uint16_t send_sub_cq_idx;
  uint16_t recv_sub_cq_idx;
  uint8_t reserved_1e0[4];
};

struct efa_ibv_create_ah_resp {
  uint32_t comp_mask;
  uint16_t efa_address_handle;
  uint8_t reserved_30[2];
};

enum {
  EFA_QUERY_DEVICE_CAPS_RDMA_READ = 1 << 0,
  EFA_QUERY_DEVICE_CAPS_RNR_RETRY = 1 << 1,
  EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS = 1 << 2,
  EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID = 1 << 3,
  EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128 = 1 << 4,
  EFA_QUERY_DEVICE_CAPS_RDMA_WRITE = 1 << 5,
  EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV = 1 << 6,
  EFA_QUERY_DEVICE_CAPS_CQ_WITH_EXT_MEM = 1 << 7,
  EFA_QUERY_DEVICE_CAPS_COMP_CNTR = 1 << 8,
  EFA_QUERY_DEVICE_CAPS_SQ_64_BIT_REQ_ID = 1 << 9,
};

struct efa_ibv_ex_query_device_resp {
  uint32_t comp_mask;
  uint32_t max_sq_wr;
  uint32_t max_rq_wr;
  uint16_t max_sq_sge;
  uint16_t max_rq_sge;
  uint32_t max_rdma_size;
  uint32_t device_caps;
};

enum {
  EFA_QUERY_MR_VALIDITY_RECV_IC_ID = 1 << 0,
  EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID = 1 << 1,
  EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID = 1 << 2,
};

/* Numbers of the driver: UVERBS_ID_DRIVER_NS and above. */
enum efa_query_mr_attrs {
  EFA_IB_ATTR_QUERY_MR_HANDLE = 0x1000,
  EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY,
  EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID,
  EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID,
  EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID,
};

enum efa_mr_methods { EFA_IB_METHOD_MR_QUERY = 0x1000 };

enum efa_comp_cntr_create_attrs {
  EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER = 0x1000,
  EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER,
};

#endif
