/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The time from a doorbell to its completion, measured on a GPU, for each doorbell mode. Not for applications.
 *
 * Reads of the completion queue cross PCIe one after another, about one in a microsecond, with any number of
 * reading threads. That is longer than the difference between doorbell modes. So a second warp polls all the time, from
 * before the doorbell on, and the first warp delays its post by times that are spread evenly over several polls. The
 * error of a sample, up to one poll, is then spread evenly too, and shifts the medians of all doorbell modes alike.
 * Both warps use one clock, which all warps of a block share.
 */
#include "efa_gda/post.h"

/* Arguments of doorbell_modes_kernel. The benchmark declares the same struct. */
struct doorbell_modes_args {
  efa_gda_queue *queue;
  efa_gda_peer peer;
  uint32_t lkey, rkey;
  uint64_t local, remote;
  /* Number of posts, and entries of each. */
  uint32_t posts, per_post;
  /* `posts` words: cycles from the doorbell to the completion. */
  uint64_t *samples;
  /* Four words about the whole run: cycles, nanoseconds, cycles of one poll, enum efa_gda_status. */
  uint64_t *whole;
};

namespace {

/* Shared memory of the two warps. */
struct Shared {
  /* The clock when the second warp read the completion. */
  unsigned long long completed_at;
  uint32_t status;
};

/* The first warp: owns the queue, posts, and records the times. */
__device__ void post_and_time(const doorbell_modes_args &a, Shared &shared) {
  using namespace efa_gda;
  /* 256 delays of up to 4 us: longer than one poll, and no multiple of it. */
  constexpr uint32_t kStep = 31;
  bool is_leader = threadIdx.x == 0;
  Sender<Sharing::Warp> sender(a.queue);
  if (is_leader) shared.status = sender.status();
  uint64_t cycles = clock64(), ns = clock_ns();
  for (uint32_t post = 0; post < a.posts; post++) {
    if (is_leader) shared.completed_at = ~0ull;
    __syncthreads();
    if (shared.status != EFA_GDA_OK) break;
    /* An odd multiplier, so that all delays occur. */
    uint64_t begin = clock64(), delay = (uint64_t)kStep * (post * 167 % 256);
    while (clock64() - begin < delay) {
    }
    sender.post(a.per_post, [&](uint32_t i) {
      return write_entry(a.peer, Memory{a.local + 64 * i, a.lkey, 64}, a.remote + 64 * i, a.rkey);
    });
    uint64_t doorbell_at = clock64();
    __syncthreads();
    if (is_leader) a.samples[post] = shared.completed_at - doorbell_at;
    /* Consumes the completions. If the post failed, this returns its status. */
    efa_gda_status status = sender.quiet();
    if (is_leader) shared.status = status;
  }
  cycles = clock64() - cycles;
  ns = clock_ns() - ns;
  efa_gda_status closed = sender.close();
  if (!is_leader) return;
  a.whole[0] = cycles;
  a.whole[1] = ns;
  a.whole[3] = shared.status == EFA_GDA_OK ? closed : shared.status;
}

/* Whether completion `index` is in the completion queue. */
__device__ bool is_in(const efa_gda_cq &cq, uint32_t index) {
  using namespace efa_gda;
  return load_head<ThreadGroup>(completion_at(cq, index)).is_new(CompletionHead::phase_of(index, cq.num_entries));
}

/* The second warp: its first thread polls for the last completion of each post. */
__device__ void poll_completions(const doorbell_modes_args &a, Shared &shared, bool polls) {
  using namespace efa_gda;
  constexpr uint64_t kBoundCycles = 4ull * 1000 * 1000 * 1000;
  const efa_gda_cq &cq = a.queue->cq;
  uint32_t index = load_relaxed(&a.queue->completion.consumed);
  uint64_t polled_cycles = 0, poll_count = 0;
  for (uint32_t post = 0; post < a.posts; post++) {
    index += a.per_post;
    __syncthreads();
    if (shared.status != EFA_GDA_OK) break;
    if (polls) {
      uint64_t begin = clock64(), now = begin;
      while (!is_in(cq, index - 1) && now - begin < kBoundCycles) {
        now = clock64();
        poll_count++;
      }
      shared.completed_at = (unsigned long long)clock64();
      polled_cycles += now - begin;
    }
    __syncthreads();
  }
  if (polls) a.whole[2] = poll_count == 0 ? 0 : polled_cycles / poll_count;
}

}  // namespace

/* Launch one block of two warps. */
EFA_GDA_KERNEL doorbell_modes_kernel(doorbell_modes_args a) {
  __shared__ Shared shared;
  if (threadIdx.x < 32) {
    post_and_time(a, shared);
  } else {
    poll_completions(a, shared, threadIdx.x == 32);
  }
}
