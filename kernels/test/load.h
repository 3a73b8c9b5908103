/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Arguments of the load generator for tests (load.cu). */
#ifndef EFA_GDA_TEST_LOAD_H
#define EFA_GDA_TEST_LOAD_H

#include "efa_gda/queue.h"

enum efa_gda_load_sharing { EFA_GDA_LOAD_OWNED = 0, EFA_GDA_LOAD_SHARED = 1 };

/* Each group of each block makes `calls` posts of `per_call` entries, block b to queue b modulo queue_count. Entry i of
 * call
 * c of group g, counted over the grid, is an RDMA write of 64 bytes with the remote address g << 48 | c << 16 | i. */
struct efa_gda_load_args {
  struct efa_gda_queue *queues;
  /* One word for each group: its final enum efa_gda_status. */
  uint32_t *status;
  struct efa_gda_peer peer;
  uint32_t queue_count;
  /* enum efa_gda_load_sharing */
  uint32_t sharing;
  /* Threads of a group: 1, 32 (a warp), or 0 for the whole block. */
  uint32_t group;
  uint32_t calls;
  uint32_t per_call;
  /* Every ring_every-th call rings; the others defer the doorbell. 0 and 1: each call rings. */
  uint32_t ring_every;
  /* Every quiet_every-th call is followed by quiet(). If a request posted before is not done when quiet() returns, the
   * group's status is EFA_GDA_BAD_COMPLETION. 0: never. */
  uint32_t quiet_every;
  uint32_t reserved;
  uint32_t lkey;
  uint32_t rkey;
  uint64_t timeout_ns;
};

#endif
