/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the benchmark and its peers have in common: queues whose ring and doorbells lie in
 * pinned host memory, standing in for an adapter's BAR. No device code.
 */
#ifndef EFA_GDA_BENCH_RIG_H
#define EFA_GDA_BENCH_RIG_H

#include <cuda_runtime.h>
#include <stdint.h>

#define CHECK_CUDA(call)                                                                         \
  do {                                                                                           \
    cudaError_t error_ = (call);                                                                 \
    if (error_ != cudaSuccess) {                                                                 \
      fprintf(stderr, "%s: %s (%s:%d)\n", #call, cudaGetErrorString(error_), __FILE__, __LINE__); \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)

constexpr int kQueues = 132;
constexpr uint32_t kDepth = 4096;
constexpr uint32_t kEntry = 64;
/* Doorbells lie a page apart, as on an adapter with a page for each queue pair. */
constexpr size_t kDoorbellStride = 4096;

struct Rig {
  uint8_t *ring;       /* host addresses */
  uint8_t *doorbells;
  uint8_t *ring_gpu;   /* the same memory, as the GPU addresses it */
  uint8_t *doorbells_gpu;
  uint64_t *completed; /* GPU memory: one completion counter for each queue */
  volatile uint32_t *doorbell(int queue) const {
    return reinterpret_cast<volatile uint32_t *>(doorbells + queue * kDoorbellStride);
  }
};

/* Which peer posts: NCCL's EFA-GDA post path, or efa-dp-direct as its own benchmark drives it. */
enum class Peer { Nccl, DpDirect };

/* peers.cu; without the peers' headers both do nothing and say so. */
bool peers_available();
void peers_reset(const Rig &rig, uint32_t max_batch);
/* `iterations` calls by each thread; `batch` is efa-dp-direct's. */
void peers_launch(Peer peer, int blocks, int threads, int queues, int iterations, int batch);

#endif
