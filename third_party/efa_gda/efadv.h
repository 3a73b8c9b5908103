/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Verbs that the EFA provider adds, as of rdma-core 65: queries of an adapter and
 * of its queues' memory, and the creation of objects that plain verbs cannot create.
 * Names and layouts are those of <infiniband/efadv.h>; libefa.so.1 exports the
 * functions.
 *
 * Every structure is passed with its size (`inlen`), so that an older library accepts
 * a structure that has grown. A query does not write members that it does not know:
 * the caller must zero the structure first. A creation returns EINVAL if bytes that
 * it does not know are not 0.
 *
 * All calls return EOPNOTSUPP for a device of another provider. They return it also
 * for an EFA device whose driver came from a second copy of libefa.so.1.
 */
#ifndef EFA_GDA_THIRD_PARTY_EFADV_H
#define EFA_GDA_THIRD_PARTY_EFADV_H

#include <stdint.h>

#include "verbs_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As in verbs_abi.h: if this is defined, upstream's header is included first, and only the calls follow. */
#ifndef EFA_GDA_VERBS_CALLS_ONLY

/* Bits of efadv_device_attr::device_caps. */
enum {
  EFADV_DEVICE_ATTR_CAPS_RDMA_READ = 1 << 0,
  EFADV_DEVICE_ATTR_CAPS_RNR_RETRY = 1 << 1,
  EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID = 1 << 2,
  EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE = 1 << 3,
  EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV = 1 << 4,
  /* From rdma-core 59 on, with kernel driver 2.17. */
  EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF = 1 << 5,
  /* From rdma-core 65 on. */
  EFADV_DEVICE_ATTR_CAPS_COMP_CNTR = 1 << 6,
};

struct efadv_device_attr {
  uint64_t comp_mask;
  uint32_t max_sq_wr;
  uint32_t max_rq_wr;
  uint16_t max_sq_sge;
  uint16_t max_rq_sge;
  /* Inline bytes of a 64-byte entry. */
  uint16_t inline_buf_size;
  /* Inline bytes of the widest entry; 0 before rdma-core 63. */
  uint16_t inline_buf_size_ex;
  uint32_t device_caps;
  uint32_t max_rdma_size;
};

struct efadv_ah_attr {
  uint64_t comp_mask;
  uint16_t ahn;
  uint8_t reserved[6];
};

enum {
  EFADV_SQ_DEPTH_ATTR_INLINE_WRITE = 1 << 0,
};

struct efadv_sq_depth_attr {
  uint64_t comp_mask;
  uint32_t flags;
  uint32_t max_send_sge;
  uint32_t max_rdma_sge;
  uint32_t max_inline_data;
};

struct efadv_rq_depth_attr {
  uint64_t comp_mask;
  uint32_t max_recv_sge;
};

enum {
  EFADV_QP_DRIVER_TYPE_SRD = 0,
};

/* Bits of efadv_qp_init_attr::flags. */
enum {
  EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV = 1 << 0,
  /* From rdma-core 63 on: RDMA writes may carry their data inline, in 128-byte entries. */
  EFADV_QP_FLAGS_INLINE_WRITE = 1 << 1,
};

struct efadv_qp_init_attr {
  uint64_t comp_mask;
  uint32_t driver_qp_type;
  uint16_t flags;
  uint8_t sl;
  uint8_t reserved;
  uint64_t wr_flags;
};

/* Bits of efadv_wq_attr::caps. */
enum {
  EFADV_WQ_CAPS_64_BIT_REQ_ID = 1 << 0,
};

/* Geometry of a send or a receive queue. */
struct efadv_wq_attr {
  uint64_t comp_mask;
  uint8_t *buffer;
  uint32_t entry_size;
  uint32_t num_entries;
  uint32_t *doorbell;
  uint32_t max_batch;
  uint16_t caps;
  uint8_t reserved[2];
};

enum {
  EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF = 1 << 0,
};

struct efadv_cq_init_attr {
  uint64_t comp_mask;
  uint64_t wc_flags;
  uint64_t flags;
  struct {
    /* Address of the entries in this process; null if no poll goes through libibverbs. */
    uint8_t *buffer;
    uint64_t length;
    uint64_t offset;
    int32_t fd;
    uint8_t reserved[4];
  } ext_mem_dmabuf;
};

struct efadv_cq_attr {
  uint64_t comp_mask;
  uint8_t *buffer;
  uint32_t entry_size;
  uint32_t num_entries;
  /* Doorbell for the consumer index; null if there is none. From rdma-core 60 on. */
  uint32_t *doorbell;
};

enum {
  EFADV_MEMORY_LOCATION_VA,
  EFADV_MEMORY_LOCATION_DMABUF,
};

struct efadv_memory_location {
  uint8_t *ptr;
  struct {
    uint64_t offset;
    int32_t fd;
    uint32_t reserved;
  } dmabuf;
  uint8_t type;
  uint8_t reserved[7];
};

enum {
  EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM = 1 << 0,
  EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM = 1 << 1,
};

struct efadv_comp_cntr_init_attr {
  uint64_t comp_mask;
  uint32_t flags;
  uint32_t reserved;
  struct efadv_memory_location comp_cntr_ext_mem;
  struct efadv_memory_location err_cntr_ext_mem;
};

#endif /* EFA_GDA_VERBS_CALLS_ONLY */

/* Functions of libefa.so.1 that are used, by name; null if the library does not export one. */
struct efa_gda_efadv_calls {
  /* EFA_1.1: rdma-core 26. */
  int (*efadv_query_device)(struct ibv_context *ibvctx, struct efadv_device_attr *attr, uint32_t inlen);
  int (*efadv_query_ah)(struct ibv_ah *ibvah, struct efadv_ah_attr *attr, uint32_t inlen);
  struct ibv_qp *(*efadv_create_qp_ex)(struct ibv_context *ibvctx, struct ibv_qp_init_attr_ex *attr_ex,
                                       struct efadv_qp_init_attr *efa_attr, uint32_t inlen);
  /* EFA_1.2: rdma-core 43; external memory from 59 on. */
  struct ibv_cq_ex *(*efadv_create_cq)(struct ibv_context *ibvctx, struct ibv_cq_init_attr_ex *attr_ex,
                                       struct efadv_cq_init_attr *efa_attr, uint32_t inlen);
  /* EFA_1.4: rdma-core 59. */
  int (*efadv_query_qp_wqs)(struct ibv_qp *ibvqp, struct efadv_wq_attr *sq_attr,
                            struct efadv_wq_attr *rq_attr, uint32_t inlen);
  int (*efadv_query_cq)(struct ibv_cq *ibvcq, struct efadv_cq_attr *attr, uint32_t inlen);
  /* EFA_1.5: rdma-core 63. They return the depth, or a negative errno. */
  int (*efadv_get_max_sq_depth)(struct ibv_context *ibvctx, struct efadv_sq_depth_attr *attr,
                                uint32_t inlen);
  int (*efadv_get_max_rq_depth)(struct ibv_context *ibvctx, struct efadv_rq_depth_attr *attr,
                                uint32_t inlen);
  /* EFA_1.7: rdma-core 65. */
  struct ibv_comp_cntr *(*efadv_create_comp_cntr)(struct ibv_context *ibvctx,
                                                  struct ibv_comp_cntr_init_attr *attr,
                                                  struct efadv_comp_cntr_init_attr *efa_attr,
                                                  uint32_t inlen);
};

#ifdef __cplusplus
}
#endif

#endif
