/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The smoke-test put: posts real requests, polls real completions, every wait bounded,
 * and says in memory how it ended. Compiled by nvcc, NVRTC and, for the host executor,
 * as C++17.
 */
#include "efa_gda/put.h"

/* What __nvshmem_efa_test_put_kernel works on, for its interface has no room for it. The
 * host sets it (cuModuleGetGlobal, or cudaMemcpyToSymbol) before the launch. */
extern "C" {
EFA_GDA_GLOBAL struct efa_gda_test_put efa_gda_test_put_target;
}

/* Launch one block of one or more warps; the block owns the queue while it runs. */
EFA_GDA_KERNEL efa_gda_put_kernel(struct efa_gda_put_args args) { efa_gda::put_block(args); }

/* One RDMA write of `n` bytes from `src`, in a region with `lkey`, to `raddr` at the
 * target's peer, in a region with `rkey`; returns when it completed, with the outcome in
 * the target's result. Launch one block. */
EFA_GDA_KERNEL __nvshmem_efa_test_put_kernel(void *raddr, const void *src, size_t n, uint32_t lkey,
                                             uint32_t rkey) {
  struct efa_gda_put_args args = {};
  args.queue = efa_gda_test_put_target.queue;
  args.result = efa_gda_test_put_target.result;
  args.peer = efa_gda_test_put_target.peer;
  args.op = EFA_GDA_OP_WRITE;
  args.local_address = (uint64_t)src;
  args.remote_address = (uint64_t)raddr;
  args.lkey = lkey;
  args.rkey = rkey;
  args.bytes = n;
  args.count = 1;
  args.timeout_ns = efa_gda_test_put_target.timeout_ns;
  efa_gda::put_block(args);
}
