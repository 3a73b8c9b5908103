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

/* Arguments of rungs_kernel; the same in the benchmark. */
struct rungs_args {
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

/* Launch one block of two warps, of which the first posts; the block owns the queue. */
EFA_GDA_KERNEL rungs_kernel(rungs_args a) {
  using namespace efa_gda;
  constexpr uint64_t kBoundCycles = 4ull * 1000 * 1000 * 1000;
  /* 256 delays of up to 4 us: more than a look, and no multiple of it. */
  constexpr uint32_t kStep = 31;
  __shared__ unsigned long long seen_at;
  __shared__ uint32_t status;
  bool posts = threadIdx.x < 32, watches = threadIdx.x == 32;
  bool leads = threadIdx.x == 0;
  Sender<Sharing::Warp> sender(a.queue);
  if (leads) {
    status = sender.status();
  }
  uint32_t index = load_relaxed(&a.queue->completion.consumed);
  uint64_t cycles = clock64(), ns = clock_ns(), watched = 0, looks = 0, rung = 0;
  efa_gda_status posted = EFA_GDA_OK;
  for (uint32_t post = 0; post < a.posts; post++) {
    index += a.per_post;
    if (leads) seen_at = ~0ull;
    __syncthreads();
    if (status != EFA_GDA_OK) break;
    if (posts) {
      /* An odd multiplier visits every delay. */
      uint64_t begin = clock64(), delay = (uint64_t)kStep * (post * 167 % 256);
      while (clock64() - begin < delay) {
      }
      posted = sender.post(a.per_post, [&](uint32_t i) {
        return write_entry(a.peer, Memory{a.local + 64 * i, a.lkey, 64}, a.remote + 64 * i, a.rkey);
      });
      rung = clock64();
    } else if (watches) {
      const efa_gda_cq &cq = a.queue->cq;
      uint64_t begin = clock64(), now = begin;
      uint32_t n = 0;
      while (!is_there(cq, index - 1, head_at(cq, index - 1)) && now - begin < kBoundCycles) {
        now = clock64();
        n++;
      }
      seen_at = (unsigned long long)clock64();
      watched += now - begin;
      looks += n;
    }
    __syncthreads();
    if (posts) {
      if (leads) a.samples[post] = seen_at - rung;
      /* Reads the completions, as a kernel does; a post that failed fails this too. */
      posted = sender.quiet();
      if (posted == EFA_GDA_OK && sender.found().errors != 0) posted = EFA_GDA_COMPLETION_ERROR;
      if (leads) status = posted;
    }
  }
  cycles = clock64() - cycles;
  ns = clock_ns() - ns;
  if (posts) sender.close();
  __syncthreads();
  if (watches) a.whole[2] = looks == 0 ? 0 : watched / looks;
  if (!leads) return;
  a.whole[0] = cycles;
  a.whole[1] = ns;
  a.whole[3] = status;
}
