/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The posting engine of one revision as the benchmark uses it. scripts/bench_gpu.sh compiles this file once with the
 * headers of the working tree (EFA_GDA_BENCH_ENGINE=engine_after), and once with those of an earlier revision, whose
 * namespace it renames (-Defa_gda=efa_gda_before).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "efa_gda/post.h"
#include "rig.h"

namespace {

using efa_gda::BlockGroup;
using efa_gda::Sharing;
using efa_gda::ThreadGroup;
using efa_gda::WarpGroup;

struct Load {
  efa_gda_queue *queues;
  uint32_t *status;
  uint64_t *completed;
  int queue_count;
  int calls;
};

/* More than the entries by which calls that have returned are ahead of a shared ring. */
constexpr uint64_t kMostAhead = 1024;
/* Completions are counted by so many at once, since a store for each call would lengthen the fences. */
constexpr uint64_t kCountedAtOnce = 512;

template <Sharing S, class Group, int StoreBytes>
struct SenderOf {
#ifdef EFA_GDA_TURN_BITS
  using Type = efa_gda::Sender<S, Group>;
#else
  using Type = efa_gda::Sender<S, Group, StoreBytes>;
#endif
};

/* StoreBytes: of revisions that choose the width when they are compiled. */
template <Sharing S, class Group, int StoreBytes>
__global__ void EFA_GDA_BENCH_BOUNDS post_kernel(Load load) {
  Group group;
  uint32_t index = (blockIdx.x * blockDim.x + threadIdx.x) / group.size();
  unsigned long long *completed = nullptr;
  if (load.completed != nullptr && group.rank() == 0) {
    completed = (unsigned long long *)load.completed + blockIdx.x % load.queue_count;
  }
  typename SenderOf<S, Group, StoreBytes>::Type sender(load.queues + blockIdx.x % load.queue_count);
  efa_gda_status status = sender.status();
  /* Forces `index` into a register. Without this the compiler computes it again for each entry. */
  asm volatile("" : "+r"(index));
  efa_gda_peer peer = {3, 9, 0x1234};
  uint64_t base = (uint64_t)index << 48;
  for (int call = 0; call < load.calls && status == EFA_GDA_OK; call++) {
    uint64_t tag = base | (uint64_t)(uint32_t)call << 16;
    uint32_t first = 0;
    auto make = [&](uint32_t i) {
      return efa_gda::write_entry(peer, efa_gda::Memory{tag + i, 5, 64}, tag + i, 0xabc);
    };
    status = sender.post(group.size(), make, efa_gda::kPostDefault, &first);
    uint64_t done = (uint64_t)first + group.size(), ahead = S == Sharing::Device ? kMostAhead : 0;
    if (completed != nullptr && done % kCountedAtOnce < group.size() && done > ahead) atomicMax(completed, done - ahead);
  }
  efa_gda_status closed = sender.close();
  if (status == EFA_GDA_OK) status = closed;
  if (group.rank() == 0 && status != EFA_GDA_OK) efa_gda::store_relaxed(load.status, (uint32_t)status);
}

/* The words of shared queues: turns, or the publication slots and lock of revisions before. */
void set_sharing(const Rig &rig, int index, uint32_t start, efa_gda_queue &q) {
#ifdef EFA_GDA_TURN_BITS
  (void)rig, (void)index;
  q.turn.word = (uint64_t)start << EFA_GDA_TURN_BITS;
#else
  q.publication.entries = rig.published_entries + (size_t)index * kDepth * kEntry;
  q.publication.flags = rig.published_flags + (size_t)index * kDepth;
  q.publication.num_entries = kDepth;
  q.lock.serving = (uint64_t)start << EFA_GDA_LOCK_STATE_BITS;
  q.lock.doorbell_index = q.lock.confirmed_index = start;
#endif
}

void reset(const Rig &rig, const Fresh &fresh) {
  static_assert(sizeof(efa_gda_queue) <= kQueueBytes, "kQueueBytes is too small");
  std::vector<efa_gda_queue> queues(fresh.count);
  for (int i = 0; i < fresh.count; i++) {
    efa_gda_queue &q = queues[i];
    memset(static_cast<void *>(&q), 0, sizeof q);
    q.sq.buffer = rig.ring_gpu + (size_t)i * kDepth * kEntry;
    q.sq.doorbell = (volatile uint32_t *)(rig.doorbells_gpu + i * kDoorbellStride);
    q.sq.entry_size = kEntry;
    q.sq.num_entries = kDepth;
    q.sq.max_batch = fresh.max_batch;
    q.sq.flags = fresh.flags;
    q.counters.success = fresh.completed + i;
    q.max_rdma_size = 1 << 30;
    q.reserve.word = fresh.start;
    set_sharing(rig, i, fresh.start, q);
  }
  CHECK_CUDA(cudaMemcpy(rig.queues, queues.data(), sizeof(efa_gda_queue) * fresh.count, cudaMemcpyHostToDevice));
}

template <Sharing S, class Group>
void launch_as(const Rig &rig, const Shape &shape, int calls, int store_bytes, uint64_t *completed,
               cudaStream_t stream) {
  Load load = {(efa_gda_queue *)rig.queues, rig.status, completed, shape.queues, calls};
  auto kernel = store_bytes == 8 ? post_kernel<S, Group, 8> : post_kernel<S, Group, 16>;
  kernel<<<shape.blocks, shape.threads, 0, stream>>>(load);
}

void launch(const Rig &rig, const Shape &shape, int calls, int store_bytes, uint64_t *completed,
            cudaStream_t stream) {
  switch (shape.poster) {
    case Poster::Thread:
      if (shape.owned) return launch_as<Sharing::Thread, ThreadGroup>(rig, shape, calls, store_bytes, completed, stream);
      return launch_as<Sharing::Device, ThreadGroup>(rig, shape, calls, store_bytes, completed, stream);
    case Poster::Warp:
      if (shape.owned) return launch_as<Sharing::Warp, WarpGroup>(rig, shape, calls, store_bytes, completed, stream);
      return launch_as<Sharing::Device, WarpGroup>(rig, shape, calls, store_bytes, completed, stream);
    case Poster::Block:
      if (shape.owned) return launch_as<Sharing::Block, BlockGroup>(rig, shape, calls, store_bytes, completed, stream);
      return launch_as<Sharing::Device, BlockGroup>(rig, shape, calls, store_bytes, completed, stream);
  }
}

}  // namespace

extern const Engine EFA_GDA_BENCH_ENGINE = {reset, launch};
