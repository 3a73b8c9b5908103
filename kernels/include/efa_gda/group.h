/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Who calls together: one thread, a warp of 32, or a block. Each offers rank, size, sync and a
 * value of rank 0 for all; threads and warps also votes. All threads of the group make
 * every call, in the same order; blocks are one-dimensional.
 *
 * `lanes` is how many of the group's threads share the caller's warp, `lane` its place
 * among them. Where `trades` holds these are all 32, and `trade` lets them rearrange what
 * they hold, so that a store of the warp covers whole lines.
 */
#ifndef EFA_GDA_GROUP_H
#define EFA_GDA_GROUP_H

#include "platform.h"

namespace efa_gda {

#if EFA_GDA_ON_GPU
EFA_GDA_FN uint32_t thread_index() { return threadIdx.x; }
EFA_GDA_FN uint32_t block_threads() { return blockDim.x; }
EFA_GDA_FN uint32_t block_index() { return blockIdx.x; }
EFA_GDA_FN uint32_t block_count() { return gridDim.x; }
#else
inline uint32_t thread_index() { return host::lane(); }
inline uint32_t block_threads() { return host::lanes(); }
inline uint32_t block_index() { return host::block(); }
inline uint32_t block_count() { return host::blocks(); }
#endif
/* Whether thread_index() tells a block's threads apart. */
EFA_GDA_FN bool one_dimensional() {
#if EFA_GDA_ON_GPU
  return blockDim.y == 1 && blockDim.z == 1;
#else
  return true;
#endif
}

/* Where `trade` moves things: each lane of a warp comes with four quads of its own, 0 to 3,
 * and leaves with quad `quad(lane)` of four lanes, `from(lane, k)` in place k. Eight lanes
 * in a row then hold, in place k, all quads of two neighbouring lanes: for entries of 64
 * bytes, a line of 128. */
struct Trade {
  EFA_GDA_FN static uint32_t quad(uint32_t lane) { return lane >> 1 & 3; }
  EFA_GDA_FN static uint32_t from(uint32_t lane, uint32_t k) { return (lane & ~6u) | k << 1; }
};

struct ThreadGroup {
  /* Whether it is a single thread. */
  static constexpr bool kAlone = true;
  /* Whether the group can look for others' entries: it can vote. */
  static constexpr bool kServes = true;
  /* Whether every thread of the group takes part in its fences. */
  static constexpr bool kAllFence = true;
  EFA_GDA_FN uint32_t rank() const { return 0; }
  EFA_GDA_FN uint32_t size() const { return 1; }
  EFA_GDA_FN uint32_t lane() const { return 0; }
  EFA_GDA_FN uint32_t lanes() const { return 1; }
  EFA_GDA_FN bool trades() const { return false; }
  EFA_GDA_FN void trade(Quad (&)[4]) const {}
  EFA_GDA_FN void sync() const {}
  template <class T>
  EFA_GDA_FN T from_leader(T value) const {
    return value;
  }
  /* Bit i: what rank i passed. */
  EFA_GDA_FN uint32_t vote(bool holds) const { return holds ? 1 : 0; }
};

#if EFA_GDA_ON_GPU

/* Read once into a register: the compiler would rather read it again each time, which is slow. */
EFA_GDA_FN uint32_t thread_index_once() {
  uint32_t v;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(v));
  return v;
}

/* Swaps place bit 1 with lane bit 2 and place bit 0 with lane bit 1: of each pair of
 * places a lane keeps one and trades the other for its partner's. */
EFA_GDA_FN void trade_full_warp(uint32_t lane, Quad (&q)[4]) {
  auto swap = [](Quad &low, Quad &high, bool upper, int mask) {
    Quad give;
    if (upper) {
      give = low;
    } else {
      give = high;
    }
    give.x = __shfl_xor_sync(~0u, give.x, mask);
    give.y = __shfl_xor_sync(~0u, give.y, mask);
    give.z = __shfl_xor_sync(~0u, give.z, mask);
    give.w = __shfl_xor_sync(~0u, give.w, mask);
    if (upper) {
      low = give;
    } else {
      high = give;
    }
  };
  bool four = (lane & 4) != 0, two = (lane & 2) != 0;
  swap(q[0], q[2], four, 4);
  swap(q[1], q[3], four, 4);
  swap(q[0], q[1], two, 2);
  swap(q[2], q[3], two, 2);
}

/* A whole warp, of which every lane takes part. All masks are constants: for a mask that it
 * does not know, the compiler makes the warp match masks at each step, which takes longer
 * than the step. */
struct WarpGroup {
  static constexpr bool kAlone = false;
  static constexpr bool kServes = true;
  static constexpr bool kAllFence = true;
  EFA_GDA_FN uint32_t rank() const { return threadIdx.x & 31; }
  EFA_GDA_FN uint32_t size() const { return 32; }
  EFA_GDA_FN uint32_t lane() const { return rank(); }
  EFA_GDA_FN uint32_t lanes() const { return 32; }
  EFA_GDA_FN bool trades() const { return true; }
  EFA_GDA_FN void trade(Quad (&q)[4]) const { trade_full_warp(lane(), q); }
  EFA_GDA_FN void sync() const { __syncwarp(); }
  EFA_GDA_FN uint32_t from_leader(uint32_t value) const { return __shfl_sync(~0u, value, 0); }
  EFA_GDA_FN uint64_t from_leader(uint64_t value) const { return __shfl_sync(~0u, (unsigned long long)value, 0); }
  EFA_GDA_FN uint32_t vote(bool holds) const { return __ballot_sync(~0u, holds); }
};

struct BlockGroup {
  static constexpr bool kAlone = false;
  static constexpr bool kServes = false;
  static constexpr bool kAllFence = false;
  EFA_GDA_FN BlockGroup() : rank_(thread_index_once()) {}
  EFA_GDA_FN uint32_t rank() const { return rank_; }
  EFA_GDA_FN uint32_t size() const { return blockDim.x; }
  EFA_GDA_FN uint32_t lane() const { return rank_ & 31; }
  EFA_GDA_FN uint32_t lanes() const {
    uint32_t left = blockDim.x - (rank_ & ~31u);
    return left < 32 ? left : 32;
  }
  EFA_GDA_FN bool trades() const { return lanes() == 32; }
  EFA_GDA_FN void trade(Quad (&q)[4]) const { trade_full_warp(lane(), q); }
  EFA_GDA_FN void sync() const { __syncthreads(); }
  template <class T>
  EFA_GDA_FN T from_leader(T value) const {
    __shared__ uint64_t word;
    __syncthreads();
    if (rank_ == 0) word = value;
    __syncthreads();
    return (T)word;
  }

 private:
  uint32_t rank_;
};

#else

inline void trade_full_warp(uint32_t lane, Quad (&q)[4]) {
  const void *all[32];
  host::show_warp(q, all);
  Quad mine[4];
  for (uint32_t k = 0; k < 4; k++) {
    mine[k] = static_cast<const Quad *>(all[Trade::from(lane, k)])[Trade::quad(lane)];
  }
  /* Before anyone changes what it showed. */
  host::sync_warp();
  for (uint32_t k = 0; k < 4; k++) q[k] = mine[k];
}

struct WarpGroup {
  static constexpr bool kAlone = false;
  static constexpr bool kServes = true;
  static constexpr bool kAllFence = true;
  uint32_t rank() const { return host::lane() % 32; }
  uint32_t size() const { return host::warp_size(); }
  uint32_t lane() const { return rank(); }
  uint32_t lanes() const { return size(); }
  bool trades() const { return size() == 32; }
  void trade(Quad (&q)[4]) const { trade_full_warp(lane(), q); }
  void sync() const { host::sync_warp(); }
  template <class T>
  T from_leader(T value) const {
    return (T)host::exchange_warp(value, 0);
  }
  uint32_t vote(bool holds) const { return host::vote_warp(holds); }
};

struct BlockGroup {
  static constexpr bool kAlone = false;
  static constexpr bool kServes = false;
  static constexpr bool kAllFence = false;
  uint32_t rank() const { return host::lane(); }
  uint32_t size() const { return host::lanes(); }
  uint32_t lane() const { return host::lane() % 32; }
  uint32_t lanes() const { return host::warp_size(); }
  bool trades() const { return lanes() == 32; }
  void trade(Quad (&q)[4]) const { trade_full_warp(lane(), q); }
  void sync() const { host::sync_block(); }
  template <class T>
  T from_leader(T value) const {
    return (T)host::exchange_block(value, 0);
  }
};

#endif

}  // namespace efa_gda

#endif
