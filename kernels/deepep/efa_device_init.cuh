/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What a host program of DeepEP calls to fill in the device state, and three kernels to look at it. docs/deepep.md is
 * the guide. efa_device_state.cu, compiled once into the program, defines all of it. */
#ifndef EFA_DEVICE_INIT_CUH
#define EFA_DEVICE_INIT_CUH

#include "efa_gda/ibgda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* efa_gda_nvshmem_init (efa_gda_nvshmem_heap.h) with virtual counts: num_channels, which docs/deepep.md bounds, is
 * DeepEP's num_rc_per_pe, and num_devices the number that DeepEP sees as adapters. A collective call after NVSHMEM's
 * initialisation. Returns 0, or a negative enum efa_gda_error with a text in efa_gda_nvshmem_last_error(). */
int init_efa_device_state(int num_channels, int num_devices);

/* The same for the chunk of the heap that contains `symmetric`: DeepEP's RDMA buffer. */
int init_efa_device_state_at(int num_channels, int num_devices, void *symmetric);

/* efa_gda_nvshmem_fini. */
int finalize_efa_device_state(void);

#ifdef __cplusplus
}
#endif

#if defined(__CUDACC__)
#include "efa_gda/ibgda_compat.cuh"

namespace EFA_GDA_COMPAT_NS {

/* Copies the device state that kernels see to `out`. Launch one thread. */
__global__ void debug_state(efa_gda_ibgda_state *out);

/* Stores for each PE where this GPU has `pointer` of that PE mapped, or 0. Launch one block. */
__global__ void test_p2p(uint64_t pointer, uint64_t *mapped);

/* Each warp puts `count` times `bytes` bytes, at the same offset of both heaps, to PE `pe`, and then waits. Stores the
 * nanoseconds of each warp to `nanoseconds`. */
__global__ void benchmark_put(uint64_t remote, uint64_t local, uint64_t bytes, int count, int pe,
                              uint64_t *nanoseconds);

}  // namespace EFA_GDA_COMPAT_NS
#endif

#endif
