/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The put kernels: they post requests, wait for completions with a bound, and write their result to memory. nvcc, NVRTC
 * and, for the host executor, a C++17 compiler compile this file.
 */
#include "efa_gda/put.h"

/* Queue, result and peer of __nvshmem_efa_test_put_kernel, whose parameters do not name them. The host must set it
 * before the launch (cuModuleGetGlobal, or cudaMemcpyToSymbol). */
extern "C" {
EFA_GDA_GLOBAL struct efa_gda_test_put efa_gda_test_put_target;
}

/* Launch one block of one or more warps. The block owns the queue while it runs. */
EFA_GDA_KERNEL efa_gda_put_kernel(struct efa_gda_put_args args) { efa_gda::put_block(args); }

/* Writes `n` bytes from `src`, in a region with `lkey`, to `raddr` of the target's peer, in a region with `rkey`. Waits
 * until the RDMA write completed, and writes the target's result. Launch one block, which owns the queue. */
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
