/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The definitions of efa_device_init.cuh and, by kernels/nvshmem/device.cu, of the device state. */
#include "../nvshmem/device.cu"

#include "../nvshmem/efa_gda_nvshmem_heap.h"
#include "efa_device_init.cuh"

extern "C" int init_efa_device_state(int num_channels, int num_devices) {
  return init_efa_device_state_at(num_channels, num_devices, nullptr);
}

extern "C" int init_efa_device_state_at(int num_channels, int num_devices, void *symmetric) {
  efa_gda_nvshmem_attr attr = {};
  attr.size = sizeof attr;
  attr.symmetric = symmetric;
  attr.num_channels = num_channels < 0 ? 0 : (uint32_t)num_channels;
  attr.num_devices = num_devices < 0 ? 0 : (uint32_t)num_devices;
  return efa_gda_nvshmem_init(&attr);
}

extern "C" int finalize_efa_device_state(void) { return efa_gda_nvshmem_fini(); }

namespace EFA_GDA_COMPAT_NS {

__global__ void debug_state(efa_gda_ibgda_state *out) { *out = *ibgda_get_state(); }

__global__ void test_p2p(uint64_t pointer, uint64_t *mapped) {
  for (uint32_t pe = threadIdx.x; pe < ibgda_get_state()->num_pes; pe += blockDim.x) {
    mapped[pe] = nvshmemi_get_p2p_ptr(pointer, (int)ibgda_get_state()->rank, (int)pe);
  }
}

__global__ void benchmark_put(uint64_t remote, uint64_t local, uint64_t bytes, int count, int pe,
                              uint64_t *nanoseconds) {
  int lane = (int)threadIdx.x % 32, warp = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  uint64_t start = efa_gda::clock_ns();
  for (int i = 0; i < count; i++) {
    nvshmemi_ibgda_put_nbi_warp<true>(remote + warp * bytes, local + warp * bytes, bytes, pe, warp, lane, i);
  }
  if (lane == 0) {
    nvshmemi_ibgda_quiet(pe, warp);
    nanoseconds[warp] = efa_gda::clock_ns() - start;
  }
}

}  // namespace EFA_GDA_COMPAT_NS
