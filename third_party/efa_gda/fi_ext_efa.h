/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libfabric's EFA extensions at API 2.7: the operations that expose an
 * endpoint's queues so that a GPU can drive them. Names and layouts are those of
 * libfabric's <rdma/fi_ext_efa.h>.
 *
 * The table fi_efa_ops_gda has neither a size nor a version: its length depends on
 * the *provider's* release. A read past its end returns unrelated memory. Callers
 * must check fi_fabric_attr::prov_version: 203.0 to 205.x have five pointers, 206.0
 * and later have six.
 */
#ifndef EFA_GDA_THIRD_PARTY_FI_EXT_EFA_H
#define EFA_GDA_THIRD_PARTY_FI_EXT_EFA_H

#include <stdbool.h>

#include "libfabric_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names for fid::ops->ops_open: GDA and DOMAIN ops on a domain, FEATURE ops on a fabric. */
#define FI_EFA_DOMAIN_OPS "efa domain ops"
#define FI_EFA_GDA_OPS "efa gda ops"
#define FI_EFA_FEATURE_OPS "efa feature ops"

/* The external buffer of a completion queue is a dmabuf. */
enum { FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF = 1 << 0 };

/* Request ids of 64 bits, from 2.7 on; `caps` occupies former tail padding of fi_efa_wq_attr. */
enum fi_efa_wq_caps { FI_EFA_WQ_CAPS_64_BIT_REQ_ID = 1 << 0 };

/* Provider-specific operation flag: ask the adapter to favour message rate. */
#define FI_EFA_WR_HIGH_PPS (1ULL << 60)

/*
 * Provider-specific registration flag, from 2.7 on: give up the order in which the adapter's
 * transactions to the region appear. Earlier releases refuse it with -FI_EBADFLAGS, and the
 * fabric "efa" ignores it.
 */
#define FI_EFA_MR_RELAXED_ORDERING (1ULL << 61)

/* Geometry of a send or a receive queue. The caller must zero it before a query. */
struct fi_efa_wq_attr {
  uint8_t *buffer;
  uint32_t entry_size;
  uint32_t num_entries;
  uint32_t *doorbell;
  uint32_t max_batch;
  uint16_t caps;
};

struct fi_efa_cq_attr {
  uint8_t *buffer;
  uint32_t entry_size;
  uint32_t num_entries;
};

struct fi_efa_cq_init_attr {
  uint64_t flags;
  struct {
    /* The dmabuf's address for the CPU; null if it has none. */
    uint8_t *buffer;
    uint64_t length;
    uint64_t offset;
    uint32_t fd;
  } ext_mem_dmabuf;
};

enum fi_efa_memory_location_type { FI_EFA_MEMORY_LOCATION_VA, FI_EFA_MEMORY_LOCATION_DMABUF };

struct fi_efa_memory_location {
  uint8_t *ptr;
  struct {
    uint64_t offset;
    int32_t fd;
    uint32_t reserved;
  } dmabuf;
  /* enum fi_efa_memory_location_type */
  uint8_t type;
  uint8_t reserved[7];
};

enum {
  FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM = 1 << 0,
  FI_EFA_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM = 1 << 1,
};

struct fi_efa_comp_cntr_init_attr {
  uint64_t comp_mask;
  uint32_t flags;
  uint32_t reserved;
  struct fi_efa_memory_location comp_cntr_ext_mem;
  struct fi_efa_memory_location err_cntr_ext_mem;
};

/* Interconnect ids of a memory region; ic_id_validity states which of them are valid. */
struct fi_efa_mr_attr {
  uint16_t ic_id_validity;
  uint16_t recv_ic_id;
  uint16_t rdma_read_ic_id;
  uint16_t rdma_recv_ic_id;
};

/* From provider version 203.0 on. In 202.0, and only there, four more pointers follow query_mr. */
struct fi_efa_ops_domain {
  int (*query_mr)(struct fid_mr *mr, struct fi_efa_mr_attr *mr_attr);
};

struct fi_efa_ops_gda {
  int (*query_addr)(struct fid_ep *ep_fid, fi_addr_t addr, uint16_t *ahn, uint16_t *remote_qpn,
                    uint32_t *remote_qkey);
  /* The endpoint must be enabled: before that, releases up to 2.6 dereference a null queue pair. */
  int (*query_qp_wqs)(struct fid_ep *ep_fid, struct fi_efa_wq_attr *sq_attr, struct fi_efa_wq_attr *rq_attr);
  int (*query_cq)(struct fid_cq *cq_fid, struct fi_efa_cq_attr *cq_attr);
  int (*cq_open_ext)(struct fid_domain *domain_fid, struct fi_cq_attr *attr,
                     struct fi_efa_cq_init_attr *efa_cq_init_attr, struct fid_cq **cq_fid, void *context);
  uint64_t (*get_mr_lkey)(struct fid_mr *mr);
  /* The sixth pointer: from provider version 206.0 on. */
  int (*cntr_open_ext)(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr,
                       void *context, struct fi_efa_comp_cntr_init_attr *efa_attr);
};

/* From 2.6 on, opened on the fabric. */
struct fi_efa_feature_ops {
  bool (*query)(const char *feature);
};

#ifdef __cplusplus
}
#endif

#endif
