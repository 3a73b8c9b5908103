/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The memory that the posting engines of the benchmark share: queues whose rings and doorbells are in pinned host
 * memory, in place of an adapter's BAR. No device code.
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
/* Doorbells are a page apart, as on an adapter with a page for each queue pair. */
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

/* NCCL's EFA-GDA post path, or efa-dp-direct as its benchmark uses it. */
enum class Peer { Nccl, DpDirect };

/* peers.cu. Without the peers' headers, peers_available() returns false and the others do nothing. */
bool peers_available();
void peers_reset(const Rig &rig, uint32_t max_batch);
/* `iterations` calls of each thread. `batch`: entries for each doorbell, of efa-dp-direct only. */
void peers_launch(Peer peer, int blocks, int threads, int queues, int iterations, int batch);

#endif
