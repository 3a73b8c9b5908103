/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The same writes as soft_adapter.cu with NCCL's post path, whose code comes from the PyPI package nvidia-nccl-cu13.
 * The kernels take ring, doorbell and counter from this project's struct of the queue. Not for applications.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl_device.h>
#include <nccl_device/gin/efa_gda/gin_efa_gda.h>

#include "efa_gda/queue.h"

namespace {

using Endpoint = nccl_ofi_gin_gdaki_dev_endpoint_handle;

/* soft_adapter.cu describes it. */
struct soft_adapter_args {
  efa_gda_queue *queue;
  efa_gda_peer peer;
  uint32_t lkey, rkey;
  uint64_t local, remote;
  uint64_t *source, *target;
  uint64_t *scratch;
  uint32_t *status;
  uint32_t calls;
  uint32_t bytes;
  uint64_t pause_ns;
};

/* Status of a queue that NCCL's code cannot drive. */
constexpr uint32_t kUnsupported = 0xffff;

__device__ efa_cuda_qp *queue_of(const soft_adapter_args &a) { return (efa_cuda_qp *)a.scratch; }
__device__ Endpoint *endpoint_of(const soft_adapter_args &a) { return (Endpoint *)(a.scratch + 128); }

}  // namespace

/* One thread: makes NCCL's structs for a queue on which nothing was posted. The scratch memory must be zero. */
extern "C" __global__ void soft_adapter_nccl_open(soft_adapter_args a) {
  const efa_gda_queue &q = *a.queue;
  efa_cuda_qp &qp = *queue_of(a);
  if (q.sq.entry_size != sizeof(efa_io_tx_wqe) || q.counters.success == nullptr) {
    *a.status = kUnsupported;
    return;
  }
  qp.sq.wq.max_wqes = q.sq.num_entries;
  qp.sq.wq.queue_mask = q.sq.num_entries - 1;
  qp.sq.wq.queue_size_shift = __ffs(q.sq.num_entries) - 1;
  qp.sq.wq.max_batch = q.sq.max_batch;
  qp.sq.wq.buf = q.sq.buffer;
  qp.sq.wq.db = (uint32_t *)q.sq.doorbell;
  qp.sq.wr_ctx.wqe_size = q.sq.entry_size;
  qp.sq.wr_ctx.remote_mem_offset = offsetof(efa_io_tx_wqe, data.rdma_req.remote_mem);
  qp.sq.wr_ctx.local_mem_offset = offsetof(efa_io_tx_wqe, data.rdma_req.local_mem);
  Endpoint &endpoint = *endpoint_of(a);
  endpoint.qp = &qp;
  endpoint.local_cntr_value = (uint64_t *)q.counters.success;
  endpoint.sq_size = q.sq.num_entries;
}

/* As soft_adapter_writes. The first thread of a block waits for every write that was rung for, as NCCL's Flush does. */
extern "C" __global__ void __launch_bounds__(1024) soft_adapter_nccl_writes(soft_adapter_args a) {
  uint32_t lane = threadIdx.x % 32;
  Endpoint *endpoint = endpoint_of(a);
  for (uint32_t call = 0; call < a.calls; call++) {
    nccl::gin::efa_gda::postRdmaOp<NCCL_GIN_RESOURCE_SHARING_GPU>(
        endpoint, a.peer.ah, a.peer.qpn, a.peer.qkey, a.remote + lane * a.bytes, a.rkey,
        nccl::gin::efa_gda::RdmaSgeEncoder{a.local + lane * a.bytes, a.lkey, a.bytes});
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  /* The block's own writes are among them. */
  cuda::atomic_ref<uint64_t, cuda::thread_scope_device> submitted(endpoint->submitted_count);
  uint32_t posted = (uint32_t)submitted.load(cuda::memory_order_relaxed);
  while ((int32_t)((uint32_t)nccl::gin::efa_gda::hwCounterLoad(endpoint->local_cntr_value) - posted) < 0) {
  }
}
