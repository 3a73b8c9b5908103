/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The other posting engines of the benchmark, on the same ring and doorbells. Their code is not part of this project:
 * with EFA_GDA_BENCH_PEERS it comes from the headers of the PyPI package nvidia-nccl-cu13. This file is separate
 * because these headers define the adapter's descriptors under the same names as this project.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "rig.h"

#ifdef EFA_GDA_BENCH_PEERS

#include <nccl_device.h>
#include <nccl_device/gin/efa_gda/gin_efa_gda.h>

namespace {

using Endpoint = nccl_ofi_gin_gdaki_dev_endpoint_handle;

efa_cuda_qp *g_qps;
Endpoint *g_endpoints;

__global__ void EFA_GDA_BENCH_BOUNDS post_nccl(Endpoint *endpoints, int queues, int iterations) {
  Endpoint *endpoint = &endpoints[blockIdx.x % queues];
  for (int i = 0; i < iterations; i++) {
    nccl::gin::efa_gda::postRdmaOp<NCCL_GIN_RESOURCE_SHARING_GPU>(
        endpoint, 3, 9, 0x1234, 0x6000000000ull + i * 64, 0xabc,
        nccl::gin::efa_gda::RdmaSgeEncoder{0x7000000000ull + i * 64, 5, 64});
  }
}

/* One thread, with `batch` entries for each doorbell. The queue's struct is in GPU memory, because efa-dp-direct reads
 * it through the read-only cache. */
__global__ void EFA_GDA_BENCH_BOUNDS post_dp_direct(Endpoint *endpoints, int queues, int iterations, int batch) {
  efa_cuda_qp *qp = static_cast<efa_cuda_qp *>(endpoints[blockIdx.x % queues].qp);
  if (threadIdx.x != 0) return;
  efa_io_tx_wqe entry;
  EfaCudaWrBuilder builder(&qp->sq.wr_ctx, reinterpret_cast<uint8_t *>(&entry));
  for (int i = 0; i < iterations; i += batch) {
    efa_cuda_start_sq_batch(qp, batch);
    for (int j = 0; j < batch; j++) {
      builder.init_rdma_write(i + j, 0xabc, 0x6000000000ull + (i + j) * 64);
      builder.set_sge(5, 0x7000000000ull + (i + j) * 64, 64);
      builder.set_remote(3, 9, 0x1234);
      efa_cuda_sq_batch_place_wr(qp, j, &entry);
    }
    efa_cuda_flush_sq_wrs(qp);
  }
}

}  // namespace

bool peers_available() { return true; }

void peers_reset(const Rig &rig, uint32_t max_batch) {
  if (g_qps == nullptr) {
    CHECK_CUDA(cudaMalloc(&g_qps, sizeof(efa_cuda_qp) * kQueues));
    CHECK_CUDA(cudaMalloc(&g_endpoints, sizeof(Endpoint) * kQueues));
  }
  std::vector<efa_cuda_qp> qps(kQueues);
  std::vector<Endpoint> endpoints(kQueues);
  memset(qps.data(), 0, sizeof(efa_cuda_qp) * kQueues);
  memset(endpoints.data(), 0, sizeof(Endpoint) * kQueues);
  for (int i = 0; i < kQueues; i++) {
    auto &wq = qps[i].sq.wq;
    wq.max_wqes = kDepth;
    wq.queue_mask = kDepth - 1;
    wq.queue_size_shift = 12;
    wq.max_batch = max_batch;
    wq.buf = rig.ring_gpu + static_cast<size_t>(i) * kDepth * kEntry;
    wq.db = reinterpret_cast<uint32_t *>(rig.doorbells_gpu + i * kDoorbellStride);
    /* Offsets in an entry, which efa-dp-direct takes from this struct. */
    auto &layout = qps[i].sq.wr_ctx;
    layout.wqe_size = kEntry;
    layout.sgl_offset = layout.send_inline_data_offset = offsetof(efa_io_tx_wqe, data);
    layout.remote_mem_offset = offsetof(efa_io_tx_wqe, data.rdma_req.remote_mem);
    layout.local_mem_offset = offsetof(efa_io_tx_wqe, data.rdma_req.local_mem);
    layout.max_inline_data = 32;
    layout.max_rdma_sges = 1;
    endpoints[i].qp = g_qps + i;
    endpoints[i].local_cntr_value = rig.completed + i;
    /* No backpressure: free slots for all entries of a run. */
    endpoints[i].sq_size = 0x3fffffffu;
  }
  CHECK_CUDA(cudaMemcpy(g_qps, qps.data(), sizeof(efa_cuda_qp) * kQueues, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(g_endpoints, endpoints.data(), sizeof(Endpoint) * kQueues, cudaMemcpyHostToDevice));
}

void peers_launch(Peer peer, int blocks, int threads, int queues, int iterations, int batch) {
  switch (peer) {
    case Peer::Nccl: post_nccl<<<blocks, threads>>>(g_endpoints, queues, iterations); break;
    case Peer::DropIn: drop_in_launch(g_endpoints, blocks, threads, queues, iterations); break;
    case Peer::DropIn16: drop_in_16_launch(g_endpoints, blocks, threads, queues, iterations); break;
    case Peer::DpDirect: post_dp_direct<<<blocks, threads>>>(g_endpoints, queues, iterations, batch); break;
  }
}

#else

bool peers_available() { return false; }
void peers_reset(const Rig &, uint32_t) {}
void peers_launch(Peer, int, int, int, int, int) {}

#endif
