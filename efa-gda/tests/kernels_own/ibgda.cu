/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Ranks that use the functions of ibgda_compat.cuh as DeepEP's kernels do. Each rank is one block on the host executor,
 * and one or several on a GPU. Each warp sends to the next rank through channels of its own. */
#include "efa_gda/platform.h"
#include "efa_gda/ibgda_state.h"

/* The state of the rank whose block this is. */
#if EFA_GDA_ON_GPU
static __shared__ efa_gda_ibgda_state *state_of_rank;
#else
static thread_local efa_gda_ibgda_state *state_of_rank;
#endif
#define EFA_GDA_IBGDA_STATE (*state_of_rank)
#define EFA_GDA_COMPAT_NS deep_ep
#include "efa_gda/ibgda_compat.cuh"

static_assert(sizeof(efa_gda_ibgda_state) == 112 && sizeof(efa_gda_ibgda_channel) == 80 &&
                  sizeof(efa_gda_ibgda_peer) == 32 && sizeof(efa_gda_ibgda_queue) == 16,
              "as support/ibgda.rs declares them");

/* A launch of a rank. In the heap, warp w has from w * warp_stride on: what it sends and what it receives, `messages`
 * messages of `bytes` bytes each; then words of 8 bytes: tail, head, count, last. */
struct ibgda_args {
  struct efa_gda_ibgda_state *state;
  uint32_t rank;
  uint32_t rounds;
  uint32_t messages;
  uint32_t bytes;
  /* Warps of a rank. */
  uint32_t warps;
  uint32_t reserved;
  uint64_t warp_stride;
  uint64_t limit_ns;
  /* Bytes that were wrong when their flag, or quiet, said that they had arrived; and warps that gave up. */
  uint32_t *wrong;
  uint32_t *gave_up;
};

namespace {

using namespace efa_gda;
using namespace deep_ep;

/* The number of the calling thread's warp in its rank. Block b is of rank b modulo num_pes. */
EFA_GDA_FN uint32_t warp_number(const ibgda_args &a) {
  return block_index() / a.state->num_pes * (block_threads() / 32) + thread_index() / 32;
}

struct Place {
  uint8_t *send, *receive;
  uint64_t *tail, *head;
  int *count, *last;
};

EFA_GDA_FN Place place_of(const ibgda_args &a, uint32_t warp) {
  uint8_t *send = reinterpret_cast<uint8_t *>(a.state->heap + warp * a.warp_stride);
  uint8_t *receive = send + (uint64_t)a.messages * a.bytes;
  uint64_t *words = reinterpret_cast<uint64_t *>(receive + (uint64_t)a.messages * a.bytes);
  return {send, receive, words, words + 1, reinterpret_cast<int *>(words + 2), reinterpret_cast<int *>(words + 3)};
}

EFA_GDA_FN uint8_t pattern(uint32_t rank, uint32_t round, uint32_t at) { return (uint8_t)(rank * 101 + round * 37 + at * 3 + 1); }

/* Bytes are accessed by words that the adapter's thread may store to as well. */
EFA_GDA_FN uint32_t differences(const ibgda_args &a, const uint8_t *bytes, uint32_t rank, uint32_t round) {
  uint32_t found = 0;
  for (uint32_t at = WarpGroup().rank() * 8; at < a.messages * a.bytes; at += 256) {
    uint64_t word = load_system(reinterpret_cast<const volatile uint64_t *>(bytes + at));
    for (uint32_t b = 0; b < 8; b++) found += (uint8_t)(word >> (8 * b)) != pattern(rank, round, at + b);
  }
  return found;
}

EFA_GDA_FN void fill(const ibgda_args &a, uint8_t *bytes, uint32_t round) {
  for (uint32_t at = WarpGroup().rank() * 8; at < a.messages * a.bytes; at += 256) {
    uint64_t word = 0;
    for (uint32_t b = 0; b < 8; b++) word |= (uint64_t)pattern(a.rank, round, at + b) << (8 * b);
    store_relaxed(reinterpret_cast<uint64_t *>(bytes + at), word);
  }
}

/* Waits until `reached(word)`; all lanes get the result. False at the limit, or if a rank has failed. */
template <class Word, class Reached>
EFA_GDA_FN bool await(const ibgda_args &a, const Word *word, Reached reached) {
  WarpGroup warp;
  uint32_t seen = 0;
  if (warp.rank() == 0) {
    uint64_t start = clock_ns();
    while (seen == 0 && load_relaxed(&a.state->shared->failed) == EFA_GDA_OK && clock_ns() - start < a.limit_ns) {
      seen = reached(load_system(word)) ? 1 : 0;
      pause();
    }
    fence_system();
  }
  seen = warp.from_leader(seen);
  if (seen == 0 && warp.rank() == 0) fetch_add_relaxed(a.gave_up, 1u);
  return seen != 0;
}

template <bool kRing>
EFA_GDA_FN void put_all(const ibgda_args &a, const Place &place, int to, uint32_t channel) {
  for (uint32_t m = 0; m < a.messages; m++) {
    nvshmemi_ibgda_put_nbi_warp<kRing>(reinterpret_cast<uint64_t>(place.receive + (uint64_t)m * a.bytes),
                                       reinterpret_cast<uint64_t>(place.send + (uint64_t)m * a.bytes), a.bytes, to,
                                       (int)channel, (int)WarpGroup().rank(), (int)m);
  }
}

EFA_GDA_FN void report(const ibgda_args &a, uint32_t found) {
  if (found != 0) fetch_add_relaxed(a.wrong, found);
}

EFA_GDA_FN uint32_t neighbour(const ibgda_args &a, uint32_t by) { return (a.rank + by) % a.state->num_pes; }

/* As the normal kernels: data, a tail that counts up, and a head by which the receiver returns the space. */
EFA_GDA_FN void stream(const ibgda_args &a) {
  WarpGroup warp;
  uint32_t index = warp_number(a), last = a.state->num_pes - 1;
  uint32_t to = neighbour(a, 1), from = neighbour(a, last);
  Place place = place_of(a, index);
  for (uint32_t round = 1; round <= a.rounds; round++) {
    uint64_t before = (uint64_t)(round - 1) * a.messages, after = (uint64_t)round * a.messages;
    if (!await(a, (const volatile uint64_t *)place.head, [&](uint64_t head) { return head >= before; })) return;
    fill(a, place.send, round);
    warp.sync();
    put_all<true>(a, place, (int)to, index);
    if (warp.rank() == 1) nvshmemi_ibgda_amo_nonfetch_add(place.tail, (int)a.messages, (int)to, (int)index);
    warp.sync();
    if (!await(a, (const volatile uint64_t *)place.tail, [&](uint64_t tail) { return tail >= after; })) return;
    report(a, differences(a, place.receive, from, round));
    warp.sync();
    /* Lanes add at once, to one channel. */
    uint32_t half = a.messages / 2;
    if (warp.rank() < 2) {
      int more = (int)(warp.rank() == 0 ? half : a.messages - half);
      nvshmemi_ibgda_amo_nonfetch_add(place.head, more, (int)from, (int)(index + a.warps));
    }
    warp.sync();
  }
  uint64_t all = (uint64_t)a.rounds * a.messages;
  await(a, (const volatile uint64_t *)place.head, [&](uint64_t head) { return head >= all; });
}

/* As the low-latency kernels: data, and a count that was 0; then another word. */
EFA_GDA_FN void low_latency(const ibgda_args &a) {
  WarpGroup warp;
  uint32_t index = warp_number(a), last = a.state->num_pes - 1;
  Place place = place_of(a, index);
  fill(a, place.send, 0);
  warp.sync();
  put_all<false>(a, place, (int)neighbour(a, 1), index);
  if (warp.rank() == 0) {
    nvshmemi_ibgda_amo_nonfetch_add(place.count, -(int)a.messages - 1, (int)neighbour(a, 1), (int)index);
    nvshmemi_ibgda_rma_p(place.last, (int)index + 7, (int)neighbour(a, 1), (int)index);
  }
  warp.sync();
  uint32_t count = 0;
  auto counted = [&](uint32_t seen) { return (count = seen) != 0; };
  if (!await(a, reinterpret_cast<const volatile uint32_t *>(place.count), counted)) return;
  report(a, differences(a, place.receive, neighbour(a, last), 0));
  if (warp.rank() == 0 && (int)count != -(int)a.messages - 1) report(a, 1);
  auto ended = [&](uint32_t seen) { return seen == index + 7; };
  await(a, reinterpret_cast<const volatile uint32_t *>(place.last), ended);
}

/* Each warp looks at the peer's memory after its own quiet. */
EFA_GDA_FN void quiet(const ibgda_args &a) {
  WarpGroup warp;
  uint32_t index = warp_number(a);
  int to = (int)neighbour(a, 1);
  Place place = place_of(a, index);
  uint64_t there = nvshmemi_get_p2p_ptr(reinterpret_cast<uint64_t>(place.receive), (int)a.rank, to);
  for (uint32_t round = 1; round <= a.rounds; round++) {
    fill(a, place.send, round);
    warp.sync();
    put_all<false>(a, place, to, index);
    if (warp.rank() == 0) nvshmemi_ibgda_quiet(to, (int)index);
    warp.sync();
    report(a, differences(a, reinterpret_cast<const uint8_t *>(there), a.rank, round));
    warp.sync();
  }
}

/* As notify_dispatch begins. */
EFA_GDA_FN void quiet_all(const ibgda_args &a) {
  uint32_t channels = ibgda_get_state()->num_rc_per_pe * (uint32_t)ibgda_get_state()->num_devices_initialized;
  for (uint32_t i = thread_index(); i < channels * (a.state->num_pes - 1); i += block_threads()) {
    nvshmemi_ibgda_quiet((int)neighbour(a, i / channels + 1), (int)(i % channels));
  }
}

/* More words than a channel has sums for. */
EFA_GDA_FN void too_many_words(const ibgda_args &a) {
  Place place = place_of(a, 0);
  uint64_t *words = reinterpret_cast<uint64_t *>(place.receive);
  for (uint32_t i = 0; i <= EFA_GDA_IBGDA_COUNTS && thread_index() == 0; i++) {
    nvshmemi_ibgda_amo_nonfetch_add(words + i, 5, (int)neighbour(a, 1), 0);
  }
}

/* Calls that are refused. */
template <int kCall>
EFA_GDA_FN void refused(const ibgda_args &a) {
  Place place = place_of(a, 0);
  uint64_t outside = a.state->heap + a.state->heap_bytes - 8, inside = reinterpret_cast<uint64_t>(place.send);
  int lane = (int)WarpGroup().rank(), to = (int)neighbour(a, 1);
  if (kCall == 0) nvshmemi_ibgda_put_nbi_warp<true>(outside, inside, 16, to, 0, lane, 0);
  if (kCall == 1) nvshmemi_ibgda_put_nbi_warp<true>(inside, outside, 16, to, 0, lane, 0);
  if (kCall == 2) nvshmemi_ibgda_put_nbi_warp<true>(inside, inside, 16, (int)a.state->num_pes, 0, lane, 0);
  if (kCall == 3 && lane == 0) nvshmemi_ibgda_rma_p(place.last, 1, to, 0, 5);
}

#if !EFA_GDA_ON_GPU
using Kernel = void (*)(const ibgda_args &);
constexpr Kernel kKernels[] = {stream,     low_latency, quiet,      quiet_all, too_many_words,
                               refused<0>, refused<1>,  refused<2>, refused<3>};
#endif

}  // namespace

#if EFA_GDA_ON_GPU

struct ibgda_ranks {
  ibgda_args ranks[2];
};

/* With the launch bounds of DeepEP's kernels. All blocks must run at the same time. */
extern "C" __global__ void __launch_bounds__(1024, 1) ibgda_stream(ibgda_ranks all) {
  const ibgda_args &a = all.ranks[efa_gda::block_index() % 2];
  if (efa_gda::thread_index() == 0) state_of_rank = a.state;
  __syncthreads();
  stream(a);
}

#else

extern "C" bool ibgda_on_host(const ibgda_args *args, uint32_t kernel, uint32_t lanes, uint64_t seed) {
  state_of_rank = args->state;
  host::interleave(seed);
  bool ran = host::run_block(0, 1, lanes, [=] { kKernels[kernel](*args); });
  host::interleave(0);
  return ran;
}

#endif
