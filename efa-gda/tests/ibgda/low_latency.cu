/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls in the shapes of DeepEP's low-latency kernels, which launch blocks of 1,024 threads. */
#include "efa_device_fixed.cuh"

namespace deep_ep {

__global__ __launch_bounds__(1024, 1) void low_latency_shapes(void *rdma_recv_x, int *rdma_recv_count, void *rdma_x,
                                                              size_t bytes, int slots, int rank, int num_ranks,
                                                              int num_local_experts, int *wrong_counts) {
  int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
  int dst_rank = warp % num_ranks, expert = warp / num_ranks;
  if (thread == 0 && ibgda_get_state()->num_rc_per_pe < num_local_experts) *wrong_counts = 1;
  for (int slot = 0; slot < slots; slot++) {
    const auto src = reinterpret_cast<uint64_t>(rdma_x) + slot * bytes;
    const auto at = (expert * num_ranks + rank) * slots + slot;
    const auto dst = reinterpret_cast<uint64_t>(rdma_recv_x) + at * bytes;
    const auto mapped = nvshmemi_get_p2p_ptr(dst, rank, dst_rank);
    if (mapped == 0) {
      nvshmemi_ibgda_put_nbi_warp(dst, src, bytes, dst_rank, expert, lane, slot);
    } else {
      for (size_t i = lane; i < bytes; i += 32) reinterpret_cast<char *>(mapped)[i] = reinterpret_cast<char *>(src)[i];
    }
  }
  __syncwarp();
  if (lane == 0) {
    auto count = reinterpret_cast<uint64_t>(rdma_recv_count + expert * num_ranks + rank);
    nvshmemi_ibgda_amo_nonfetch_add(reinterpret_cast<int *>(count), -slots - 1, dst_rank, expert);
    nvshmemi_ibgda_rma_p(rdma_recv_count, slots, dst_rank, expert);
  }
}

}  // namespace deep_ep
