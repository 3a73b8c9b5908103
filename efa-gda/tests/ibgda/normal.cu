/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls in the shapes of DeepEP's normal kernels. */
#include "efa_device_fixed.cuh"

namespace deep_ep {

__global__ void quiet_all(int rank, int num_ranks) {
  auto qps = ibgda_get_state()->num_rc_per_pe * ibgda_get_state()->num_devices_initialized;
  for (int i = (int)threadIdx.x; i < qps * (num_ranks - 1); i += (int)blockDim.x) {
    nvshmemi_ibgda_quiet((i / qps + rank + 1) % num_ranks, i % qps);
  }
}

__global__ void normal_shapes(void *data, uint64_t *tail, uint64_t *head, size_t bytes, int rank, int num_ranks,
                              int channel, int num_channels) {
  int lane = (int)threadIdx.x % 32;
  for (int dst = 0; dst < num_ranks; dst++) {
    if (dst != rank) {
      nvshmemi_ibgda_put_nbi_warp<true>(reinterpret_cast<uint64_t>(data), reinterpret_cast<uint64_t>(data), bytes, dst,
                                        channel, lane, 0);
    }
    __syncwarp();
    if (lane == dst) nvshmemi_ibgda_amo_nonfetch_add(tail, 3, dst, channel, dst == rank);
  }
  /* Lanes diverge. */
  if (lane < num_ranks) nvshmemi_ibgda_amo_nonfetch_add(head, lane, lane, channel + num_channels, lane == rank);
}

}  // namespace deep_ep
