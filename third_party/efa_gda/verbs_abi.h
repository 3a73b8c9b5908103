/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The part of libibverbs' binary interface that this project uses, as of
 * rdma-core 65. Names and layouts are those of <infiniband/verbs.h>.
 *
 * Objects whose members this project does not read are left incomplete. Only
 * functions that libibverbs.so.1 exports are called. The verbs that are inline
 * upstream read the context's tables, whose length depends on the release; none of
 * them is needed here, because queues are driven through their memory.
 *
 * On failure, a call that returns a pointer returns null and sets errno. A call that
 * returns an int returns 0 on success; on failure it returns the errno value, or -1
 * and sets errno, depending on the release and the call.
 */
#ifndef EFA_GDA_THIRD_PARTY_VERBS_ABI_H
#define EFA_GDA_THIRD_PARTY_VERBS_ABI_H

#ifndef EFA_GDA_BINDINGS
#include <pthread.h>
#endif
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* If this is defined, upstream's header is included first, and only the tables of calls follow. */
#ifndef EFA_GDA_VERBS_CALLS_ONLY

struct ibv_device;
struct ibv_context;
struct ibv_cq;
struct ibv_cq_ex;
struct ibv_comp_channel;
struct ibv_srq;
struct ibv_xrcd;
struct ibv_rwq_ind_table;
struct ibv_comp_cntr;

/* In network byte order, as both 64-bit halves are upstream. */
union ibv_gid {
  uint8_t raw[16];
  struct {
    uint64_t subnet_prefix;
    uint64_t interface_id;
  } global;
};

enum ibv_port_state {
  IBV_PORT_NOP = 0,
  IBV_PORT_DOWN = 1,
  IBV_PORT_INIT = 2,
  IBV_PORT_ARMED = 3,
  IBV_PORT_ACTIVE = 4,
  IBV_PORT_ACTIVE_DEFER = 5,
};

enum ibv_mtu {
  IBV_MTU_256 = 1,
  IBV_MTU_512 = 2,
  IBV_MTU_1024 = 3,
  IBV_MTU_2048 = 4,
  IBV_MTU_4096 = 5,
};

/* The exported ibv_query_port writes the members up to and including `flags`; the caller must zero it first. */
struct ibv_port_attr {
  enum ibv_port_state state;
  enum ibv_mtu max_mtu;
  enum ibv_mtu active_mtu;
  int gid_tbl_len;
  uint32_t port_cap_flags;
  /* Most bytes of one SEND. */
  uint32_t max_msg_sz;
  uint32_t bad_pkey_cntr;
  uint32_t qkey_viol_cntr;
  uint16_t pkey_tbl_len;
  uint16_t lid;
  uint16_t sm_lid;
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
  uint16_t port_cap_flags2;
  uint32_t active_speed_ex;
};

enum ibv_atomic_cap { IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB };

struct ibv_device_attr {
  char fw_ver[64];
  uint64_t node_guid;
  uint64_t sys_image_guid;
  uint64_t max_mr_size;
  uint64_t page_size_cap;
  uint32_t vendor_id;
  uint32_t vendor_part_id;
  uint32_t hw_ver;
  int max_qp;
  int max_qp_wr;
  unsigned int device_cap_flags;
  int max_sge;
  int max_sge_rd;
  int max_cq;
  int max_cqe;
  int max_mr;
  int max_pd;
  int max_qp_rd_atom;
  int max_ee_rd_atom;
  int max_res_rd_atom;
  int max_qp_init_rd_atom;
  int max_ee_init_rd_atom;
  enum ibv_atomic_cap atomic_cap;
  int max_ee;
  int max_rdd;
  int max_mw;
  int max_raw_ipv6_qp;
  int max_raw_ethy_qp;
  int max_mcast_grp;
  int max_mcast_qp_attach;
  int max_total_mcast_qp_attach;
  int max_ah;
  int max_fmr;
  int max_map_per_fmr;
  int max_srq;
  int max_srq_wr;
  int max_srq_sge;
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay;
  uint8_t phys_port_cnt;
};

struct ibv_pd {
  struct ibv_context *context;
  uint32_t handle;
};

/* Bits of a registration's `access`; local reads need none. rdma-core and drivers that do not know an optional bit, such
 * as RELAXED_ORDERING, ignore it. */
enum ibv_access_flags {
  IBV_ACCESS_LOCAL_WRITE = 1,
  IBV_ACCESS_REMOTE_WRITE = 1 << 1,
  IBV_ACCESS_REMOTE_READ = 1 << 2,
  IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
};

struct ibv_mr {
  struct ibv_context *context;
  struct ibv_pd *pd;
  void *addr;
  size_t length;
  uint32_t handle;
  uint32_t lkey;
  uint32_t rkey;
};

struct ibv_global_route {
  union ibv_gid dgid;
  uint32_t flow_label;
  uint8_t sgid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
};

struct ibv_ah_attr {
  struct ibv_global_route grh;
  uint16_t dlid;
  uint8_t sl;
  uint8_t src_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port_num;
};

struct ibv_ah {
  struct ibv_context *context;
  struct ibv_pd *pd;
  uint32_t handle;
};

enum ibv_qp_type {
  IBV_QPT_RC = 2,
  IBV_QPT_UC,
  IBV_QPT_UD,
  IBV_QPT_RAW_PACKET = 8,
  IBV_QPT_XRC_SEND = 9,
  IBV_QPT_XRC_RECV,
  /* Includes SRD; efadv_qp_init_attr::driver_qp_type states the type. */
  IBV_QPT_DRIVER = 0xff,
};

struct ibv_qp_cap {
  uint32_t max_send_wr;
  uint32_t max_recv_wr;
  uint32_t max_send_sge;
  uint32_t max_recv_sge;
  uint32_t max_inline_data;
};

struct ibv_rx_hash_conf {
  uint8_t rx_hash_function;
  uint8_t rx_hash_key_len;
  uint8_t *rx_hash_key;
  uint64_t rx_hash_fields_mask;
};

/* Bits of ibv_qp_init_attr_ex::comp_mask. */
enum ibv_qp_init_attr_mask {
  IBV_QP_INIT_ATTR_PD = 1 << 0,
};

struct ibv_qp_init_attr_ex {
  void *qp_context;
  struct ibv_cq *send_cq;
  struct ibv_cq *recv_cq;
  struct ibv_srq *srq;
  struct ibv_qp_cap cap;
  enum ibv_qp_type qp_type;
  int sq_sig_all;
  uint32_t comp_mask;
  struct ibv_pd *pd;
  struct ibv_xrcd *xrcd;
  uint32_t create_flags;
  uint16_t max_tso_header;
  struct ibv_rwq_ind_table *rwq_ind_tbl;
  struct ibv_rx_hash_conf rx_hash_conf;
  uint32_t source_qpn;
  uint64_t send_ops_flags;
};

/* Members of ibv_qp_attr that a call uses. */
enum ibv_qp_attr_mask {
  IBV_QP_STATE = 1 << 0,
  IBV_QP_PKEY_INDEX = 1 << 4,
  IBV_QP_PORT = 1 << 5,
  IBV_QP_QKEY = 1 << 6,
  IBV_QP_RNR_RETRY = 1 << 11,
  IBV_QP_SQ_PSN = 1 << 16,
};

enum ibv_qp_state {
  IBV_QPS_RESET,
  IBV_QPS_INIT,
  IBV_QPS_RTR,
  IBV_QPS_RTS,
  IBV_QPS_SQD,
  IBV_QPS_SQE,
  IBV_QPS_ERR,
  IBV_QPS_UNKNOWN,
};

enum ibv_mig_state { IBV_MIG_MIGRATED, IBV_MIG_REARM, IBV_MIG_ARMED };

struct ibv_qp_attr {
  enum ibv_qp_state qp_state;
  enum ibv_qp_state cur_qp_state;
  enum ibv_mtu path_mtu;
  enum ibv_mig_state path_mig_state;
  uint32_t qkey;
  uint32_t rq_psn;
  uint32_t sq_psn;
  uint32_t dest_qp_num;
  unsigned int qp_access_flags;
  struct ibv_qp_cap cap;
  struct ibv_ah_attr ah_attr;
  struct ibv_ah_attr alt_ah_attr;
  uint16_t pkey_index;
  uint16_t alt_pkey_index;
  uint8_t en_sqd_async_notify;
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
  uint32_t rate_limit;
};

/* Allocated by libibverbs. Bindings end with the last member that is read, so that
 * they are the same for every architecture. */
struct ibv_qp {
  struct ibv_context *context;
  void *qp_context;
  struct ibv_pd *pd;
  struct ibv_cq *send_cq;
  struct ibv_cq *recv_cq;
  struct ibv_srq *srq;
  uint32_t handle;
  uint32_t qp_num;
  enum ibv_qp_state state;
  enum ibv_qp_type qp_type;
#ifndef EFA_GDA_BINDINGS /* their sizes depend on the architecture and the C library */
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t events_completed;
#endif
};

struct ibv_cq_init_attr_ex {
  uint32_t cqe;
  void *cq_context;
  struct ibv_comp_channel *channel;
  uint32_t comp_vector;
  uint64_t wc_flags;
  uint32_t comp_mask;
  uint32_t flags;
  struct ibv_pd *parent_domain;
};

/* Events that a completion counter counts; from rdma-core 65 on. */
enum ibv_qp_attach_comp_cntr_op {
  IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0,
  IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
  IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
  IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3,
  IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
  IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5,
};

struct ibv_comp_cntr_caps {
  /* After this value a counter wraps to 0. */
  uint64_t max_value;
  uint32_t max_counters;
  /* Bits of enum ibv_qp_attach_comp_cntr_op. */
  uint32_t supported_qp_attach_ops;
};

enum ibv_comp_cntr_type { IBV_COMP_CNTR_TYPE_WRS, IBV_COMP_CNTR_TYPE_BYTES };

struct ibv_comp_cntr_init_attr {
  uint32_t comp_mask;
  enum ibv_comp_cntr_type type;
  uint32_t flags;
};

struct ibv_qp_attach_comp_cntr_attr {
  uint32_t comp_mask;
  uint32_t op_mask;
};

#endif /* EFA_GDA_VERBS_CALLS_ONLY */

/* Argument of the exported ibv_query_port, which is older than the declaration in verbs.h. */
struct _compat_ibv_port_attr;

/*
 * Functions of libibverbs.so.1 that are used, by name. Upstream has no such
 * structure: a loader fills it, with null for a function that the library does not
 * export.
 */
struct efa_gda_ibverbs_calls {
  /* IBVERBS_1.1: every rdma-core. */
  struct ibv_device **(*ibv_get_device_list)(int *num_devices);
  void (*ibv_free_device_list)(struct ibv_device **list);
  const char *(*ibv_get_device_name)(struct ibv_device *device);
  /* In network byte order. */
  unsigned long long (*ibv_get_device_guid)(struct ibv_device *device);
  struct ibv_context *(*ibv_open_device)(struct ibv_device *device);
  int (*ibv_close_device)(struct ibv_context *context);
  int (*ibv_query_device)(struct ibv_context *context, struct ibv_device_attr *device_attr);
  int (*ibv_query_port)(struct ibv_context *context, uint8_t port_num,
                        struct _compat_ibv_port_attr *port_attr);
  int (*ibv_query_gid)(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid);
  struct ibv_pd *(*ibv_alloc_pd)(struct ibv_context *context);
  int (*ibv_dealloc_pd)(struct ibv_pd *pd);
  struct ibv_mr *(*ibv_reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
  int (*ibv_dereg_mr)(struct ibv_mr *mr);
  struct ibv_cq *(*ibv_create_cq)(struct ibv_context *context, int cqe, void *cq_context,
                                  struct ibv_comp_channel *channel, int comp_vector);
  int (*ibv_destroy_cq)(struct ibv_cq *cq);
  int (*ibv_modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
  int (*ibv_destroy_qp)(struct ibv_qp *qp);
  struct ibv_ah *(*ibv_create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
  int (*ibv_destroy_ah)(struct ibv_ah *ah);
  /* IBVERBS_1.12: rdma-core 34. */
  struct ibv_mr *(*ibv_reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                      int fd, int access);
  /* IBVERBS_1.18: rdma-core 65. */
  int (*_ibv_query_comp_cntr_caps)(struct ibv_context *context, struct ibv_comp_cntr_caps *caps,
                                   size_t caps_size);
  int (*ibv_destroy_comp_cntr)(struct ibv_comp_cntr *comp_cntr);
  int (*ibv_set_comp_cntr)(struct ibv_comp_cntr *comp_cntr, uint64_t value);
  int (*ibv_set_err_comp_cntr)(struct ibv_comp_cntr *comp_cntr, uint64_t value);
  int (*ibv_read_comp_cntr)(struct ibv_comp_cntr *comp_cntr, uint64_t *value);
  int (*ibv_read_err_comp_cntr)(struct ibv_comp_cntr *comp_cntr, uint64_t *value);
  int (*ibv_qp_attach_comp_cntr)(struct ibv_qp *qp, struct ibv_comp_cntr *comp_cntr,
                                 struct ibv_qp_attach_comp_cntr_attr *attr);
};

#ifdef __cplusplus
}
#endif

#endif
