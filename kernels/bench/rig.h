/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the posting engines of the benchmark share: memory of queues whose rings and doorbells are in pinned host
 * memory, in place of an adapter's BAR, and the shapes of launches. No device code.
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

/* Kernels that post are compiled for blocks of 1,024 threads, as a transport's kernels are, and so have at most 64
 * registers. An empty macro removes the bound. */
#ifndef EFA_GDA_BENCH_BOUNDS
#define EFA_GDA_BENCH_BOUNDS __launch_bounds__(1024)
#endif

constexpr int kQueues = 132;
constexpr uint32_t kDepth = 4096;
constexpr uint32_t kEntry = 64;
/* Doorbells are a page apart, as on an adapter with a page for each queue pair. */
constexpr size_t kDoorbellStride = 4096;
/* At least the bytes of any engine's struct efa_gda_queue. All engines use the same memory, because its address affects
 * the rate. */
constexpr size_t kQueueBytes = 4096;

struct Rig {
  uint8_t *ring; /* host addresses */
  uint8_t *doorbells;
  uint64_t *host_completed; /* a completion counter for each queue that the host adds to */
  uint8_t *ring_gpu;        /* the same memory, as the GPU addresses it */
  uint8_t *doorbells_gpu;
  uint64_t *host_completed_gpu;
  /* GPU memory: a completion counter for each queue, the queues' structs one after the other, the first status other
   * than EFA_GDA_OK, and publication slots of earlier revisions. */
  uint64_t *completed;
  uint8_t *queues;
  uint32_t *status;
  uint8_t *published_entries;
  uint64_t *published_flags;
  volatile uint32_t *doorbell(int queue) const {
    return reinterpret_cast<volatile uint32_t *>(doorbells + queue * kDoorbellStride);
  }
};

enum class Poster { Thread, Warp, Block };

/* A shape of a launch: groups and queues. Block b posts to queue b modulo `queues`. */
struct Shape {
  const char *name;
  Poster poster;
  bool owned; /* each group owns its queue */
  int blocks, threads, queues;
  int group() const { return poster == Poster::Thread ? 1 : poster == Poster::Warp ? 32 : threads; }
  int groups() const { return blocks * threads / group(); }
};

/* A new queue of the first `count`. */
struct Fresh {
  int count;
  uint32_t max_batch;
  uint32_t start; /* producer indices and completion counters begin here */
  uint32_t flags; /* enum efa_gda_sq_flags */
  const uint64_t *completed;
};

/* This project's posting engine, of one revision: engine.cu. */
struct Engine {
  /* Writes the structs of `fresh.count` queues to rig.queues. */
  void (*reset)(const Rig &rig, const Fresh &fresh);
  /* Each group makes `calls` posts with an entry for each of its threads and a doorbell for each post. If `completed` is
   * not null, it has a counter for each queue, and the groups count completions in it (see FreeSlots::Unlimited). */
  void (*launch)(const Rig &rig, const Shape &shape, int calls, int store_bytes, uint64_t *completed,
                 cudaStream_t stream);
};
extern const Engine engine_after;
/* Another revision, if the benchmark was built with --before. */
extern const Engine engine_before;

/* NCCL's EFA-GDA post path; efa_gda/nccl_gin.h in its place, with stores of 8 or 16 bytes; or efa-dp-direct as its
 * benchmark uses it. */
enum class Peer { Nccl, DropIn, DropIn16, DpDirect };

/* peers.cu. Without the peers' headers, peers_available() returns false and the others do nothing. */
bool peers_available();
void peers_reset(const Rig &rig, uint32_t max_batch);
/* `iterations` calls of each thread. `batch`: entries for each doorbell, of efa-dp-direct only. */
void peers_launch(Peer peer, int blocks, int threads, int queues, int iterations, int batch);
/* drop_in.cu: calls on the endpoints of peers.cu. */
void drop_in_launch(void *endpoints, int blocks, int threads, int queues, int iterations);
void drop_in_16_launch(void *endpoints, int blocks, int threads, int queues, int iterations);

#endif
