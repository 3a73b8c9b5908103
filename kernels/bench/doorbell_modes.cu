/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * How long from a doorbell to its completion, as a GPU sees it: one warp posts and rings.
 * For efa-gda/benches/rungs.rs; not for applications.
 *
 * Looks at the completion queue cross PCIe one after another, about one in half a
 * microsecond however many threads look, which is more than the ways to ring differ. So
 * another warp looks all the time, from before the doorbell on, and the doorbell comes
 * after a delay that is spread, post by post, over several looks: what a sample is late
 * by the time to the next look is then spread evenly, on every rung alike, and shifts
 * medians alike. The clock is one that all warps of a block share.
 */
#include "efa_gda/post.h"

/* Arguments of doorbell_modes_kernel; the same in the benchmark. */
struct doorbell_modes_args {
  efa_gda_queue *queue;
  efa_gda_peer peer;
  uint32_t lkey, rkey;
  uint64_t local, remote;
  /* Posts, and entries of each. */
  uint32_t posts, per_post;
  /* `posts` words: cycles from doorbell to completion. */
  uint64_t *samples;
  /* Of the whole run: cycles, nanoseconds, cycles of a look, a status. */
  uint64_t *whole;
};

namespace {

/* What the two warps share. */
struct Shared {
  unsigned long long seen_at;
  uint32_t status;
};

/* The first warp, which owns the queue. */
__device__ void post_and_time(const doorbell_modes_args &a, Shared &shared) {
  using namespace efa_gda;
  /* 256 delays of up to 4 us: more than a look, and no multiple of it. */
  constexpr uint32_t kStep = 31;
  bool leads = threadIdx.x == 0;
  Sender<Sharing::Warp> sender(a.queue);
  if (leads) shared.status = sender.status();
  uint64_t cycles = clock64(), ns = clock_ns();
  for (uint32_t post = 0; post < a.posts; post++) {
    if (leads) shared.seen_at = ~0ull;
    __syncthreads();
    if (shared.status != EFA_GDA_OK) break;
    /* An odd multiplier visits every delay. */
    uint64_t begin = clock64(), delay = (uint64_t)kStep * (post * 167 % 256);
    while (clock64() - begin < delay) {
    }
    sender.post(a.per_post, [&](uint32_t i) {
      return write_entry(a.peer, Memory{a.local + 64 * i, a.lkey, 64}, a.remote + 64 * i, a.rkey);
    });
    uint64_t rung = clock64();
    __syncthreads();
    if (leads) a.samples[post] = shared.seen_at - rung;
    /* Reads the completions, as a kernel does; a post that failed fails this too. */
    efa_gda_status status = sender.quiet();
    if (leads) shared.status = status;
  }
  cycles = clock64() - cycles;
  ns = clock_ns() - ns;
  efa_gda_status closed = sender.close();
  if (!leads) return;
  a.whole[0] = cycles;
  a.whole[1] = ns;
  a.whole[3] = shared.status == EFA_GDA_OK ? closed : shared.status;
}

/* The second warp, whose first thread waits for the last completion of each post. */
__device__ void watch(const doorbell_modes_args &a, Shared &shared, bool watches) {
  using namespace efa_gda;
  constexpr uint64_t kBoundCycles = 4ull * 1000 * 1000 * 1000;
  const efa_gda_cq &cq = a.queue->cq;
  uint32_t index = load_relaxed(&a.queue->completion.consumed);
  uint64_t watched = 0, looks = 0;
  for (uint32_t post = 0; post < a.posts; post++) {
    index += a.per_post;
    __syncthreads();
    if (shared.status != EFA_GDA_OK) break;
    if (watches) {
      uint64_t begin = clock64(), now = begin;
      while (!is_there(cq, index - 1, head_at(cq, index - 1)) && now - begin < kBoundCycles) {
        now = clock64();
        looks++;
      }
      shared.seen_at = (unsigned long long)clock64();
      watched += now - begin;
    }
    __syncthreads();
  }
  if (watches) a.whole[2] = looks == 0 ? 0 : watched / looks;
}

}  // namespace

/* Launch one block of two warps. */
EFA_GDA_KERNEL doorbell_modes_kernel(doorbell_modes_args a) {
  __shared__ Shared shared;
  if (threadIdx.x < 32) {
    post_and_time(a, shared);
  } else {
    watch(a, shared, threadIdx.x == 32);
  }
}
