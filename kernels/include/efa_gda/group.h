/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Who calls together: one thread, a warp, or a block. Each offers rank, size, sync, a
 * value of rank 0 for all, and the number of leading ranks for which something holds.
 * All threads of the group make every call, in the same order; blocks are
 * one-dimensional.
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

struct ThreadGroup {
  /* Whether the group can look for others' entries (it has the votes for it). */
  static constexpr bool kServes = true;
  EFA_GDA_FN uint32_t rank() const { return 0; }
  EFA_GDA_FN uint32_t size() const { return 1; }
  EFA_GDA_FN void sync() const {}
  template <class T>
  EFA_GDA_FN T from_leader(T value) const {
    return value;
  }
  EFA_GDA_FN uint32_t leading(bool holds) const { return holds ? 1 : 0; }
  /* One more than the highest rank for which it holds; 0 for none. */
  EFA_GDA_FN uint32_t highest(bool holds) const { return holds ? 1 : 0; }
  /* Value of the rank below; `first` for rank 0. */
  EFA_GDA_FN uint64_t below(uint64_t, uint64_t first) const { return first; }
  EFA_GDA_FN uint64_t from(uint64_t value, uint32_t) const { return value; }
};

#if EFA_GDA_ON_GPU

struct WarpGroup {
  static constexpr bool kServes = true;
  EFA_GDA_FN WarpGroup() {
    uint32_t left = blockDim.x - (threadIdx.x & ~31u);
    size_ = left < 32 ? left : 32;
    mask_ = size_ == 32 ? ~0u : (1u << size_) - 1;
  }
  EFA_GDA_FN uint32_t rank() const { return threadIdx.x & 31; }
  EFA_GDA_FN uint32_t size() const { return size_; }
  EFA_GDA_FN void sync() const { __syncwarp(mask_); }
  EFA_GDA_FN uint32_t from_leader(uint32_t value) const { return __shfl_sync(mask_, value, 0); }
  EFA_GDA_FN uint64_t from_leader(uint64_t value) const {
    return __shfl_sync(mask_, (unsigned long long)value, 0);
  }
  EFA_GDA_FN uint32_t leading(bool holds) const {
    uint32_t misses = ~__ballot_sync(mask_, holds) & mask_;
    return misses == 0 ? size_ : (uint32_t)__ffs((int)misses) - 1;
  }
  EFA_GDA_FN uint32_t highest(bool holds) const { return 32 - (uint32_t)__clz((int)__ballot_sync(mask_, holds)); }
  EFA_GDA_FN uint64_t below(uint64_t value, uint64_t first) const {
    uint64_t v = __shfl_up_sync(mask_, (unsigned long long)value, 1);
    return rank() == 0 ? first : v;
  }
  EFA_GDA_FN uint64_t from(uint64_t value, uint32_t rank) const {
    return __shfl_sync(mask_, (unsigned long long)value, (int)rank);
  }

 private:
  uint32_t size_, mask_;
};

struct BlockGroup {
  static constexpr bool kServes = false;
  EFA_GDA_FN uint32_t rank() const { return threadIdx.x; }
  EFA_GDA_FN uint32_t size() const { return blockDim.x; }
  EFA_GDA_FN void sync() const { __syncthreads(); }
  template <class T>
  EFA_GDA_FN T from_leader(T value) const {
    __shared__ uint64_t word;
    __syncthreads();
    if (threadIdx.x == 0) word = value;
    __syncthreads();
    return (T)word;
  }
};

#else

struct WarpGroup {
  static constexpr bool kServes = true;
  uint32_t rank() const { return host::lane() % 32; }
  uint32_t size() const { return host::warp_size(); }
  void sync() const { host::sync_warp(); }
  template <class T>
  T from_leader(T value) const {
    return (T)host::exchange_warp(value, 0);
  }
  uint32_t leading(bool holds) const {
    uint32_t votes = host::vote_warp(holds), n = 0;
    while (n < size() && (votes >> n & 1) != 0) n++;
    return n;
  }
  uint32_t highest(bool holds) const {
    uint32_t votes = host::vote_warp(holds);
    return votes == 0 ? 0 : 32 - (uint32_t)__builtin_clz(votes);
  }
  uint64_t below(uint64_t value, uint64_t first) const {
    uint64_t v = host::exchange_warp(value, rank() == 0 ? 0 : rank() - 1);
    return rank() == 0 ? first : v;
  }
  uint64_t from(uint64_t value, uint32_t rank) const { return host::exchange_warp(value, rank); }
};

struct BlockGroup {
  static constexpr bool kServes = false;
  uint32_t rank() const { return host::lane(); }
  uint32_t size() const { return host::lanes(); }
  void sync() const { host::sync_block(); }
  template <class T>
  T from_leader(T value) const {
    return (T)host::exchange_block(value, 0);
  }
};

#endif

}  // namespace efa_gda

#endif
