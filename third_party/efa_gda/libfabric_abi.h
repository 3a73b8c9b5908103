/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The part of libfabric's binary interface that this project uses, at API 2.7:
 * structures that cross the boundary, operation tables inside each fid, and the
 * constants that these take. Names and layouts are libfabric's (include/rdma/fabric.h,
 * fi_domain.h, fi_eq.h, fi_endpoint.h, fi_cm.h, fi_rma.h, fi_errno.h,
 * providers/fi_prov.h).
 *
 * libfabric grows by appending: a table's `size` states its length, and attribute
 * structures grow at their tail. A structure that is passed to a library that may
 * be newer is therefore allocated by that library (fi_info) or zero-padded.
 *
 * Operations that this project neither calls nor provides are stated as
 * fi_unused_op, which keeps their position in the table. libfabric's inline calls
 * of the operations of FI_XPU (xpu_ctx, export_xpu) do not compare the table's
 * size: a provider whose table is shorter has its caller jump to what follows.
 */
#ifndef EFA_GDA_THIRD_PARTY_LIBFABRIC_ABI_H
#define EFA_GDA_THIRD_PARTY_LIBFABRIC_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FI_MAJOR_VERSION 2
#define FI_MINOR_VERSION 7
#define FI_VERSION(major, minor) (((major) << 16) | (minor))
#define FI_MAJOR(version) ((version) >> 16)
#define FI_MINOR(version) ((version) & 0xFFFF)

typedef void (*fi_unused_op)(void);
typedef uint64_t fi_addr_t;

/* Capabilities and operation flags. */
static const uint64_t FI_MSG = 1ULL << 1;
static const uint64_t FI_RMA = 1ULL << 2;
static const uint64_t FI_TAGGED = 1ULL << 3;
static const uint64_t FI_ATOMIC = 1ULL << 4;
static const uint64_t FI_READ = 1ULL << 8;
static const uint64_t FI_WRITE = 1ULL << 9;
static const uint64_t FI_RECV = 1ULL << 10;
static const uint64_t FI_SEND = 1ULL << 11;
static const uint64_t FI_TRANSMIT = 1ULL << 11;
static const uint64_t FI_REMOTE_READ = 1ULL << 12;
static const uint64_t FI_REMOTE_WRITE = 1ULL << 13;
static const uint64_t FI_MULTI_RECV = 1ULL << 16;
static const uint64_t FI_REMOTE_CQ_DATA = 1ULL << 17;
static const uint64_t FI_MORE = 1ULL << 18;
static const uint64_t FI_COMPLETION = 1ULL << 24;
static const uint64_t FI_INJECT = 1ULL << 25;
static const uint64_t FI_TRANSMIT_COMPLETE = 1ULL << 27;
static const uint64_t FI_DELIVERY_COMPLETE = 1ULL << 28;
static const uint64_t FI_MR_DMABUF = 1ULL << 40;
static const uint64_t FI_XPU = 1ULL << 44;
static const uint64_t FI_HMEM_DEVICE_ONLY = 1ULL << 46;
static const uint64_t FI_HMEM = 1ULL << 47;
static const uint64_t FI_LOCAL_COMM = 1ULL << 51;
static const uint64_t FI_REMOTE_COMM = 1ULL << 52;
static const uint64_t FI_SOURCE = 1ULL << 57;
static const uint64_t FI_DIRECTED_RECV = 1ULL << 59;
/* Mode bits. */
static const uint64_t FI_CONTEXT2 = 1ULL << 52;
static const uint64_t FI_RX_CQ_DATA = 1ULL << 56;
static const uint64_t FI_CONTEXT = 1ULL << 59;
/* Memory registration modes. */
static const int FI_MR_LOCAL = 1 << 2;
static const int FI_MR_VIRT_ADDR = 1 << 4;
static const int FI_MR_ALLOCATED = 1 << 5;
static const int FI_MR_PROV_KEY = 1 << 6;
static const int FI_MR_HMEM = 1 << 10;
/* Values that mean "none". */
static const uint64_t FI_ADDR_UNSPEC = ~0ULL;
static const uint64_t FI_ADDR_NOTAVAIL = ~0ULL;
static const uint64_t FI_KEY_NOTAVAIL = ~0ULL;

enum {
  FI_FORMAT_UNSPEC = 0,
  FI_ADDR_EFA = 12,
};
enum { FI_PROTO_EFA = 20 };
enum { FI_TC_UNSPEC = 0 };
/* Commands of fi_ops::control. */
enum {
  FI_GETWAIT = 5,
  FI_ENABLE = 6,
  /* On a fid_nic: arg receives the copy. */
  FI_DUP = 15,
};
enum { FI_OPT_ENDPOINT = 0 };

/* Errors are negative errno values; those from 256 on are libfabric's own. */
enum {
  FI_EOTHER = 256,
  FI_ETOOSMALL = 257,
  FI_EOPBADSTATE = 258,
  FI_EAVAIL = 259,
  FI_EBADFLAGS = 260,
  FI_ENOCQ = 263,
  FI_ENOAV = 267,
  FI_ENORX = 269,
};

enum fi_av_type { FI_AV_UNSPEC, FI_AV_MAP, FI_AV_TABLE };
enum fi_progress { FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_PROGRESS_CONTROL_UNIFIED };
enum fi_threading {
  FI_THREAD_UNSPEC,
  FI_THREAD_SAFE,
  FI_THREAD_FID,
  FI_THREAD_DOMAIN,
  FI_THREAD_COMPLETION,
  FI_THREAD_ENDPOINT,
};
enum fi_resource_mgmt { FI_RM_UNSPEC, FI_RM_DISABLED, FI_RM_ENABLED };
enum fi_ep_type { FI_EP_UNSPEC, FI_EP_MSG, FI_EP_DGRAM, FI_EP_RDM };
enum fi_wait_obj {
  FI_WAIT_NONE,
  FI_WAIT_UNSPEC,
  FI_WAIT_SET,
  FI_WAIT_FD,
  FI_WAIT_MUTEX_COND,
  FI_WAIT_YIELD,
  FI_WAIT_POLLFD,
};
enum fi_cq_format {
  FI_CQ_FORMAT_UNSPEC,
  FI_CQ_FORMAT_CONTEXT,
  FI_CQ_FORMAT_MSG,
  FI_CQ_FORMAT_DATA,
  FI_CQ_FORMAT_TAGGED,
};
enum fi_cq_wait_cond { FI_CQ_COND_NONE, FI_CQ_COND_THRESHOLD };
enum fi_hmem_iface {
  FI_HMEM_SYSTEM = 0,
  FI_HMEM_CUDA = 1,
};
enum fi_cntr_events { FI_CNTR_EVENTS_COMP, FI_CNTR_EVENTS_BYTES };
enum fi_bus_type { FI_BUS_UNSPEC, FI_BUS_PCI };
enum fi_link_state { FI_LINK_UNKNOWN, FI_LINK_DOWN, FI_LINK_UP };
/* fid::fclass */
enum {
  FI_CLASS_UNSPEC,
  FI_CLASS_FABRIC,
  FI_CLASS_DOMAIN,
  FI_CLASS_EP,
  FI_CLASS_SEP,
  FI_CLASS_RX_CTX,
  FI_CLASS_SRX_CTX,
  FI_CLASS_TX_CTX,
  FI_CLASS_STX_CTX,
  FI_CLASS_PEP,
  FI_CLASS_INTERFACE,
  FI_CLASS_AV,
  FI_CLASS_MR,
  FI_CLASS_EQ,
  FI_CLASS_CQ,
  FI_CLASS_CNTR,
  FI_CLASS_NIC = 20,
};

struct fid;
struct fid_fabric;
struct fid_domain;
struct fid_av;
struct fid_eq;
struct fid_cq;
struct fid_cntr;
struct fid_ep;
struct fid_pep;
struct fid_mr;
struct fid_nic;
struct fid_xpu_ctx;
struct fi_cq_attr;
struct fi_cntr_attr;
struct fi_av_attr;
typedef struct fid *fid_t;

/* ---- fi_info and its members ------------------------------------------- */

/* Transmit attributes of an endpoint. */
struct fi_tx_attr {
  uint64_t caps;
  uint64_t mode;
  uint64_t op_flags;
  uint64_t msg_order;
  uint64_t comp_order;
  size_t inject_size;
  size_t size;
  size_t iov_limit;
  size_t rma_iov_limit;
  uint32_t tclass;
};

struct fi_rx_attr {
  uint64_t caps;
  uint64_t mode;
  uint64_t op_flags;
  uint64_t msg_order;
  uint64_t comp_order;
  size_t total_buffered_recv;
  size_t size;
  size_t iov_limit;
};

struct fi_ep_attr {
  enum fi_ep_type type;
  uint32_t protocol;
  uint32_t protocol_version;
  size_t max_msg_size;
  size_t msg_prefix_size;
  size_t max_order_raw_size;
  size_t max_order_war_size;
  size_t max_order_waw_size;
  uint64_t mem_tag_format;
  size_t tx_ctx_cnt;
  size_t rx_ctx_cnt;
  size_t auth_key_size;
  uint8_t *auth_key;
  /* Through libfabric 2.6 the structure ends before xpu_ctx. */
  struct fid_xpu_ctx *xpu_ctx;
};

struct fi_domain_attr {
  struct fid_domain *domain;
  char *name;
  enum fi_threading threading;
  enum fi_progress control_progress;
  union {
    enum fi_progress data_progress;
    enum fi_progress progress;
  };
  enum fi_resource_mgmt resource_mgmt;
  enum fi_av_type av_type;
  int mr_mode;
  size_t mr_key_size;
  size_t cq_data_size;
  size_t cq_cnt;
  size_t ep_cnt;
  size_t tx_ctx_cnt;
  size_t rx_ctx_cnt;
  size_t max_ep_tx_ctx;
  size_t max_ep_rx_ctx;
  size_t max_ep_stx_ctx;
  size_t max_ep_srx_ctx;
  size_t cntr_cnt;
  size_t mr_iov_limit;
  uint64_t caps;
  uint64_t mode;
  uint8_t *auth_key;
  size_t auth_key_size;
  size_t max_err_data;
  size_t mr_cnt;
  /* In libfabric 1.17 the structure ends after tclass. */
  uint32_t tclass;
  size_t max_ep_auth_key;
  uint32_t max_group_id;
  uint64_t max_cntr_value;
  uint64_t max_err_cntr_value;
  /* From libfabric 2.7 on. */
  size_t max_xpu_ctx_cnt;
};

struct fi_fabric_attr {
  struct fid_fabric *fabric;
  char *name;
  char *prov_name;
  uint32_t prov_version;
  uint32_t api_version;
};

struct fi_info {
  struct fi_info *next;
  uint64_t caps;
  uint64_t mode;
  uint32_t addr_format;
  size_t src_addrlen;
  size_t dest_addrlen;
  void *src_addr;
  void *dest_addr;
  fid_t handle;
  struct fi_tx_attr *tx_attr;
  struct fi_rx_attr *rx_attr;
  struct fi_ep_attr *ep_attr;
  struct fi_domain_attr *domain_attr;
  struct fi_fabric_attr *fabric_attr;
  struct fid_nic *nic;
};

struct fi_device_attr {
  char *name;
  char *device_id;
  char *device_version;
  char *vendor_id;
  char *driver;
  char *firmware;
};

struct fi_pci_attr {
  uint16_t domain_id;
  uint8_t bus_id;
  uint8_t device_id;
  uint8_t function_id;
};

struct fi_bus_attr {
  enum fi_bus_type bus_type;
  union {
    struct fi_pci_attr pci;
  } attr;
};

struct fi_link_attr {
  char *address;
  size_t mtu;
  size_t speed;
  enum fi_link_state state;
  char *network_type;
};

/* ---- fids and their operation tables ------------------------------------ */

/* Operations of every fid. */
struct fi_ops {
  size_t size;
  int (*close)(struct fid *fid);
  int (*bind)(struct fid *fid, struct fid *bfid, uint64_t flags);
  int (*control)(struct fid *fid, int command, void *arg);
  int (*ops_open)(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
  fi_unused_op tostr;
  fi_unused_op ops_set;
};

struct fid {
  size_t fclass;
  void *context;
  struct fi_ops *ops;
};

struct fid_nic {
  struct fid fid;
  struct fi_device_attr *device_attr;
  struct fi_bus_attr *bus_attr;
  struct fi_link_attr *link_attr;
  void *prov_attr;
};

struct fi_ops_fabric {
  size_t size;
  int (*domain)(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **dom, void *context);
  fi_unused_op passive_ep;
  fi_unused_op eq_open;
  fi_unused_op wait_open;
  fi_unused_op trywait;
  fi_unused_op domain2;
};

struct fid_fabric {
  struct fid fid;
  struct fi_ops_fabric *ops;
  uint32_t api_version;
};

struct fi_ops_domain {
  size_t size;
  int (*av_open)(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
  int (*cq_open)(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
  int (*endpoint)(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
  fi_unused_op scalable_ep;
  int (*cntr_open)(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context);
  fi_unused_op poll_open;
  fi_unused_op stx_ctx;
  fi_unused_op srx_ctx;
  fi_unused_op query_atomic;
  fi_unused_op query_collective;
  fi_unused_op endpoint2;
  fi_unused_op xpu_ctx;
};

struct fi_mr_dmabuf {
  int fd;
  uint64_t offset;
  size_t len;
  void *base_addr;
};

/*
 * The library reads the members that the *requested* API version has. The caller
 * must therefore request at most 2.7. FI_MR_DMABUF needs API 1.20.
 */
struct fi_mr_attr {
  union {
    const struct iovec *mr_iov;
    const struct fi_mr_dmabuf *dmabuf;
  };
  size_t iov_count;
  uint64_t access;
  uint64_t offset;
  uint64_t requested_key;
  void *context;
  size_t auth_key_size;
  uint8_t *auth_key;
  enum fi_hmem_iface iface;
  union {
    uint64_t reserved;
    int cuda;
  } device;
  void *hmem_data;
  size_t page_size;
  const struct fid_mr *base_mr;
  size_t sub_mr_cnt;
};

struct fi_ops_mr {
  size_t size;
  int (*reg)(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset,
             uint64_t requested_key, uint64_t flags, struct fid_mr **mr, void *context);
  int (*regv)(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset,
              uint64_t requested_key, uint64_t flags, struct fid_mr **mr, void *context);
  int (*regattr)(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr);
};

struct fid_domain {
  struct fid fid;
  struct fi_ops_domain *ops;
  struct fi_ops_mr *mr;
};

struct fid_mr {
  struct fid fid;
  void *mem_desc;
  uint64_t key;
};

struct fi_av_attr {
  enum fi_av_type type;
  int rx_ctx_bits;
  size_t count;
  size_t ep_per_node;
  const char *name;
  void *map_addr;
  uint64_t flags;
};

struct fi_ops_av {
  size_t size;
  int (*insert)(struct fid_av *av, const void *addr, size_t count, fi_addr_t *fi_addr, uint64_t flags,
                void *context);
  fi_unused_op insertsvc;
  fi_unused_op insertsym;
  int (*remove)(struct fid_av *av, fi_addr_t *fi_addr, size_t count, uint64_t flags);
  int (*lookup)(struct fid_av *av, fi_addr_t fi_addr, void *addr, size_t *addrlen);
  const char *(*straddr)(struct fid_av *av, const void *addr, char *buf, size_t *len);
  fi_unused_op av_set;
  fi_unused_op insert_auth_key;
  fi_unused_op lookup_auth_key;
  fi_unused_op set_user_id;
  fi_unused_op lookup2;
};

struct fid_av {
  struct fid fid;
  struct fi_ops_av *ops;
};

struct fi_cq_attr {
  size_t size;
  uint64_t flags;
  enum fi_cq_format format;
  enum fi_wait_obj wait_obj;
  int signaling_vector;
  enum fi_cq_wait_cond wait_cond;
  struct fid_wait *wait_set;
  /* From libfabric 2.7 on. */
  struct fid_xpu_ctx *xpu_ctx;
};

struct fi_cq_data_entry {
  void *op_context;
  uint64_t flags;
  size_t len;
  void *buf;
  uint64_t data;
};

/* The library writes the members that the *requested* API version has. */
struct fi_cq_err_entry {
  void *op_context;
  uint64_t flags;
  size_t len;
  void *buf;
  uint64_t data;
  uint64_t tag;
  size_t olen;
  int err;
  int prov_errno;
  void *err_data;
  size_t err_data_size;
  fi_addr_t src_addr;
};

struct fi_ops_cq {
  size_t size;
  ssize_t (*read)(struct fid_cq *cq, void *buf, size_t count);
  ssize_t (*readfrom)(struct fid_cq *cq, void *buf, size_t count, fi_addr_t *src_addr);
  ssize_t (*readerr)(struct fid_cq *cq, struct fi_cq_err_entry *buf, uint64_t flags);
  fi_unused_op sread;
  fi_unused_op sreadfrom;
  fi_unused_op signal;
  const char *(*strerror)(struct fid_cq *cq, int prov_errno, const void *err_data, char *buf, size_t len);
  fi_unused_op export_xpu;
};

struct fid_cq {
  struct fid fid;
  struct fi_ops_cq *ops;
};

struct fi_cntr_attr {
  enum fi_cntr_events events;
  enum fi_wait_obj wait_obj;
  struct fid_wait *wait_set;
  uint64_t flags;
  /* From libfabric 2.7 on. */
  struct fid_xpu_ctx *xpu_ctx;
};

struct fi_ops_cntr {
  size_t size;
  uint64_t (*read)(struct fid_cntr *cntr);
  uint64_t (*readerr)(struct fid_cntr *cntr);
  int (*add)(struct fid_cntr *cntr, uint64_t value);
  int (*set)(struct fid_cntr *cntr, uint64_t value);
  int (*wait)(struct fid_cntr *cntr, uint64_t threshold, int timeout);
  int (*adderr)(struct fid_cntr *cntr, uint64_t value);
  int (*seterr)(struct fid_cntr *cntr, uint64_t value);
  fi_unused_op export_xpu;
};

struct fid_cntr {
  struct fid fid;
  struct fi_ops_cntr *ops;
};

struct fi_ops_ep {
  size_t size;
  ssize_t (*cancel)(fid_t fid, void *context);
  int (*getopt)(fid_t fid, int level, int optname, void *optval, size_t *optlen);
  int (*setopt)(fid_t fid, int level, int optname, const void *optval, size_t optlen);
  fi_unused_op tx_ctx;
  fi_unused_op rx_ctx;
  fi_unused_op rx_size_left;
  fi_unused_op tx_size_left;
  fi_unused_op export_xpu;
};

struct fi_ops_cm {
  size_t size;
  int (*setname)(fid_t fid, void *addr, size_t addrlen);
  int (*getname)(fid_t fid, void *addr, size_t *addrlen);
  fi_unused_op getpeer;
  fi_unused_op connect;
  fi_unused_op listen;
  fi_unused_op accept;
  fi_unused_op reject;
  fi_unused_op shutdown;
  fi_unused_op join;
};

struct fi_ops_msg {
  size_t size;
  ssize_t (*recv)(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src_addr, void *context);
  fi_unused_op recvv;
  fi_unused_op recvmsg;
  ssize_t (*send)(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest_addr,
                  void *context);
  fi_unused_op sendv;
  fi_unused_op sendmsg;
  fi_unused_op inject;
  fi_unused_op senddata;
  fi_unused_op injectdata;
};

struct fi_ops_rma {
  size_t size;
  ssize_t (*read)(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src_addr, uint64_t addr,
                  uint64_t key, void *context);
  fi_unused_op readv;
  fi_unused_op readmsg;
  ssize_t (*write)(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest_addr,
                   uint64_t addr, uint64_t key, void *context);
  fi_unused_op writev;
  fi_unused_op writemsg;
  fi_unused_op inject;
  fi_unused_op writedata;
  fi_unused_op injectdata;
};

struct fid_ep {
  struct fid fid;
  struct fi_ops_ep *ops;
  struct fi_ops_cm *cm;
  struct fi_ops_msg *msg;
  struct fi_ops_rma *rma;
  struct fi_ops_tagged *tagged;
  struct fi_ops_atomic *atomic;
  struct fi_ops_collective *collective;
};

/* ---- exports of the library and of a provider --------------------------- */

/* Scratch memory that a provider supplies and libfabric uses. */
struct fi_context {
  void *internal[4];
};

struct fi_provider {
  uint32_t version;
  uint32_t fi_version;
  struct fi_context context;
  const char *name;
  int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                 const struct fi_info *hints, struct fi_info **info);
  int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
  void (*cleanup)(void);
};

/* Signatures of the exported functions; symbols are resolved at run time. */
typedef uint32_t (*fi_version_fn)(void);
typedef int (*fi_getinfo_fn)(uint32_t version, const char *node, const char *service, uint64_t flags,
                             const struct fi_info *hints, struct fi_info **info);
typedef void (*fi_freeinfo_fn)(struct fi_info *info);
typedef struct fi_info *(*fi_dupinfo_fn)(const struct fi_info *info);
typedef int (*fi_fabric_fn)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
typedef const char *(*fi_strerror_fn)(int errnum);
typedef struct fi_provider *(*fi_prov_ini_fn)(void);

#ifdef __cplusplus
}
#endif

#endif
