/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The layout of what aws-ofi-nccl hands to device code of NCCL's GIN for EFA: endpoints, their queues, and registered
 * memory. The structs are this project's statement of a layout that NCCL and the plugin own (nccl_device/gin/efa_gda/
 * gin_efa_gda_dev.h and efa-dp-direct's efa_cuda_dp_types.h of NCCL 2.31.2 and 2.32.3; the plugin fills them in
 * src/rdma/gin/nccl_ofi_gin_gdaki.cpp). nccl_gin.h compares each member that this library uses with NCCL's own headers.
 *
 * EFA_GDA_GIN_LAYOUT selects the layout of a queue: 0 is that of efa-dp-direct 0.0.1 (NCCL 2.31.2), 1 that of
 * efa-dp-direct 1.1 (NCCL 2.32.3), which adds the entry's size. The endpoints are the same in both.
 */
#ifndef EFA_GDA_GIN_HANDLE_H
#define EFA_GDA_GIN_HANDLE_H

#include "platform.h"

#ifndef EFA_GDA_GIN_LAYOUT
#define EFA_GDA_GIN_LAYOUT 1
#endif
#if EFA_GDA_GIN_LAYOUT != 0 && EFA_GDA_GIN_LAYOUT != 1
#error "EFA_GDA_GIN_LAYOUT: this library knows layouts 0 (NCCL 2.31.2) and 1 (NCCL 2.32.3)"
#endif

namespace efa_gda {
namespace gin {

/* A send or receive queue of efa-dp-direct. gin_post.h states which group writes the cursors. */
struct WorkQueue {
  uint32_t max_sge, max_wqes;
  uint32_t queue_mask, queue_size_shift;
  uint32_t max_batch;
  uint32_t wqes_pending; /* not used by GIN */
  /* The two cursors share a word of 8 bytes: wqes_posted, the last doorbell, in its low half, and wqes_completed, the
   * entry whose turn it is, in its high half. NCCL's code accesses the halves. */
  uint64_t cursors;
  uint32_t pc; /* the next entry to reserve */
  int32_t phase;
  uint8_t *buf;
  uint32_t *db;
};

/* A queue pair. */
struct Queue {
  uint64_t comp_mask;
  WorkQueue sq;
#if EFA_GDA_GIN_LAYOUT == 0
  uint32_t max_inline_data, max_rdma_sges;
#else
  uint8_t offsets[5];
  uint32_t max_inline_data, max_rdma_sges;
  uint16_t wqe_size;
#endif
  WorkQueue rq;
};

/* An endpoint that posts. Element `target * nranks + peer` of the target tables: target 0 is the peer's data endpoint,
 * target 1 + s the endpoint whose counter of inbound writes is signal s. The plugin zeroes `sq_lock`. */
struct Endpoint {
  Queue *qp;
  void *cq;
  uint16_t *target_address_handles, *target_remote_qpns;
  uint32_t *target_qkey;
  /* Not 0: the endpoint is out of service (gin_post.h). NCCL's code does not access this word. */
  uint32_t sq_lock;
  /* The adapter's counter of successful requests (layout 0: of writes), modulo 2^31. */
  uint64_t *local_cntr_value;
  /* The number of requests that were rung for. */
  uint64_t submitted_count;
  uint32_t sq_size;
  /* The end of a reservation whose doorbell is not deferred (gin_post.h). For NCCL's code it is padding. Its first
   * value does not matter: a group that relies on it has stored its own end before. */
  uint32_t promised;
  uint64_t putvalue_slice_base;
};

/* A signal, or a counter. Groups post to `base` only if it is a counter's. The value that NCCL's code shows is
 * *cntr_value, a counter of the adapter, less cntr_offset. */
struct CounterEndpoint {
  Endpoint base;
  uint64_t *cntr_value;
  uint64_t cntr_offset;
};

/* A context: what NCCL's ncclGinCtx::handle is an array of. */
struct Context {
  Endpoint data, pvdata;
  CounterEndpoint **counter_handles, **signal_handles;
  int32_t nCounters, nSignals, nranks, rank;
  uint32_t rail_id;
  uint32_t scratch_lkey, scratch_pad;
  uint64_t scratch_local_addr;
  uint64_t *scratch_remote_addrs;
  uint32_t *scratch_remote_rkeys;
  uint32_t putvalue_lkey, putvalue_slot_size;
};

/* Registered memory of all ranks, on one rail. A window of NCCL is an array of pointers to RegisteredMemory, one for
 * each rail. */
struct RemoteMemory {
  uint64_t remote_addr;
  uint32_t rkey, pad;
};
struct RegisteredMemory {
  uint32_t lkey;
  int32_t nranks;
  uint64_t local_addr;
  /* NCCL's struct ends with an array of RemoteMemory. */
  EFA_GDA_FN const RemoteMemory &of_peer(uint32_t peer) const {
    return reinterpret_cast<const RemoteMemory *>(this + 1)[peer];
  }
};

static_assert(sizeof(WorkQueue) == 56 && __builtin_offsetof(WorkQueue, cursors) == 24 &&
                  __builtin_offsetof(WorkQueue, buf) == 40 && __builtin_offsetof(Queue, sq) == 8 &&
                  sizeof(Queue) == (EFA_GDA_GIN_LAYOUT == 0 ? 128 : 144),
              "the layout of efa-dp-direct");
static_assert(sizeof(Endpoint) == 80 && sizeof(CounterEndpoint) == 96 && sizeof(Context) == 240,
              "the layout of aws-ofi-nccl's handles");
static_assert(sizeof(RegisteredMemory) == 16 && sizeof(RemoteMemory) == 16, "the layout of aws-ofi-nccl's handles");

}  // namespace gin
}  // namespace efa_gda

#endif
