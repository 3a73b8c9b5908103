/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Groups: the threads that make each call together. A group is one thread, a full warp, or a block. All threads of the
 * group must make every call, in the same order. Blocks must be one-dimensional, and may have any number of threads. No
 * thread of a warp or a block that is a group may have ended or be missing: the last warp of a block, if it has fewer
 * than 32 threads, cannot be a group by itself.
 *
 *   rank(), size()    the calling thread's number in the group, and the number of threads. The leader has rank 0.
 *   leads()           whether the calling thread is the leader. A warp's thread reads its number anew, so that no
 *                     register keeps it.
 *   lane(), lanes()   the same among those threads of the group that are in the calling thread's warp.
 *   sync()            waits for all threads of the group. Each access that any of them made before sync() happens
 *                     before each access that any of them makes after it.
 *   from_leader(v)    returns the leader's `v` to all threads.
 *   vote(b)           returns a mask whose bit i is rank i's `b` (not for blocks).
 *   is_whole()        whether all threads of the group are there. It waits for those that are.
 *   in_full_warp()    whether all 32 lanes of the calling thread's warp belong to the group.
 *   transpose(q)      rearranges the quads of a full warp (Transpose). All lanes of a full warp call it, and no others.
 *   kSingleThread     the group is one thread.
 *   kAllThreadsFence  all threads of the group execute the system fences of its Ring (sq.h); otherwise the leader does.
 *                     The fences of functions that the leader alone calls are the leader's.
 *   Poller            the group of the threads that poll the completion queue for the group (cq.h): the thread, the
 *                     warp, or of a block the first warp, which may have fewer than 32 threads. Its leader is the
 *                     group's. Of the functions above it must not be asked for size(), is_whole(), in_full_warp() and
 *                     transpose().
 *   polls()           whether the calling thread is of that group.
 * Only sync() orders accesses to memory. from_leader(), vote(), is_whole() and transpose() exchange values and promise
 * no more, whatever the kind of group does within them.
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
/* Whether thread_index() is unique in the block. */
EFA_GDA_FN bool one_dimensional() {
#if EFA_GDA_ON_GPU
  return blockDim.y == 1 && blockDim.z == 1;
#else
  return true;
#endif
}

/* What transpose() does. Before it, each lane has quads 0 to 3 of its own entry. After it, the k-th quad of a lane is
 * quad quad(lane) of the entry of lane source_lane(lane, k). The k-th quads of eight lanes, from a multiple of 8 on,
 * are then all quads of two neighbouring entries: with entries of 64 bytes, 128 contiguous bytes. */
struct Transpose {
  EFA_GDA_FN static uint32_t quad(uint32_t lane) { return lane >> 1 & 3; }
  EFA_GDA_FN static uint32_t source_lane(uint32_t lane, uint32_t k) { return (lane & ~6u) | k << 1; }
};

struct ThreadGroup {
  static constexpr bool kSingleThread = true;
  static constexpr bool kAllThreadsFence = true;
  using Poller = ThreadGroup;
  EFA_GDA_FN bool polls() const { return true; }
  EFA_GDA_FN uint32_t rank() const { return 0; }
  EFA_GDA_FN uint32_t size() const { return 1; }
  EFA_GDA_FN uint32_t lane() const { return 0; }
  EFA_GDA_FN uint32_t lanes() const { return 1; }
  EFA_GDA_FN bool leads() const { return true; }
  EFA_GDA_FN bool is_whole() const { return true; }
  EFA_GDA_FN bool in_full_warp() const { return false; }
  template <class Part>
  EFA_GDA_FN void transpose(Part (&)[4]) const {}
  EFA_GDA_FN void sync() const {}
  template <class T>
  EFA_GDA_FN T from_leader(T value) const {
    return value;
  }
  EFA_GDA_FN uint32_t vote(bool holds) const { return holds ? 1 : 0; }
};

#if EFA_GDA_ON_GPU

/* Reads the index into a register once. Without this the compiler reads it again at each use, which is slow. */
EFA_GDA_FN uint32_t thread_index_once() {
  uint32_t v;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(v));
  return v;
}

EFA_GDA_FN void exchange(uint32_t &word, int mask) { word = __shfl_xor_sync(~0u, word, mask); }
EFA_GDA_FN void exchange(Quad &quad, int mask) {
  exchange(quad.x, mask);
  exchange(quad.y, mask);
  exchange(quad.z, mask);
  exchange(quad.w, mask);
}

/* Swaps bit 1 of a quad's number with bit 2 of its lane's number, then bit 0 of the first with bit 1 of the second. In
 * each step a lane keeps one quad of each pair and exchanges the other with its partner lane. `Part`: Quad, or one word
 * of each quad. */
template <class Part>
EFA_GDA_FN void transpose_full_warp(uint32_t lane, Part (&q)[4]) {
  auto swap = [](Part &low, Part &high, bool upper, int mask) {
    Part sent;
    if (upper) {
      sent = low;
    } else {
      sent = high;
    }
    exchange(sent, mask);
    if (upper) {
      low = sent;
    } else {
      high = sent;
    }
  };
  bool four = (lane & 4) != 0, two = (lane & 2) != 0;
  swap(q[0], q[2], four, 4);
  swap(q[1], q[3], four, 4);
  swap(q[0], q[1], two, 2);
  swap(q[2], q[3], two, 2);
}

/* A full warp. All masks are constants: with a variable mask the compiler inserts a match of the lanes' masks at each
 * step, which takes longer than the step. */
struct WarpGroup {
  static constexpr bool kSingleThread = false;
  static constexpr bool kAllThreadsFence = true;
  using Poller = WarpGroup;
  EFA_GDA_FN bool polls() const { return true; }
  EFA_GDA_FN uint32_t rank() const { return threadIdx.x & 31; }
  EFA_GDA_FN uint32_t size() const { return 32; }
  EFA_GDA_FN uint32_t lane() const { return rank(); }
  EFA_GDA_FN uint32_t lanes() const { return 32; }
  EFA_GDA_FN bool leads() const { return (thread_index_once() & 31) == 0; }
  /* Lanes that have ended, or do not exist, vote false. */
  EFA_GDA_FN bool is_whole() const { return vote(true) == ~0u; }
  EFA_GDA_FN bool in_full_warp() const { return true; }
  template <class Part>
  EFA_GDA_FN void transpose(Part (&q)[4]) const {
    transpose_full_warp(lane(), q);
  }
  EFA_GDA_FN void sync() const { __syncwarp(); }
  EFA_GDA_FN uint32_t from_leader(uint32_t value) const { return __shfl_sync(~0u, value, 0); }
  EFA_GDA_FN uint64_t from_leader(uint64_t value) const { return __shfl_sync(~0u, (unsigned long long)value, 0); }
  EFA_GDA_FN uint32_t vote(bool holds) const { return __ballot_sync(~0u, holds); }
};

/* The first warp of a block. Lanes that do not exist count as ended. */
struct FirstWarp : WarpGroup {
  EFA_GDA_FN uint32_t lanes() const { return blockDim.x < 32 ? blockDim.x : 32; }
};

struct BlockGroup {
  static constexpr bool kSingleThread = false;
  static constexpr bool kAllThreadsFence = false;
  using Poller = FirstWarp;
  EFA_GDA_FN bool polls() const { return rank_ < 32; }
  EFA_GDA_FN BlockGroup() : rank_(thread_index_once()) {}
  EFA_GDA_FN uint32_t rank() const { return rank_; }
  EFA_GDA_FN uint32_t size() const { return blockDim.x; }
  EFA_GDA_FN uint32_t lane() const { return rank_ & 31; }
  EFA_GDA_FN uint32_t lanes() const {
    uint32_t rest = blockDim.x - (rank_ & ~31u);
    return rest < 32 ? rest : 32;
  }
  EFA_GDA_FN bool leads() const { return rank_ == 0; }
  /* Threads that have ended are not counted. */
  EFA_GDA_FN bool is_whole() const { return __syncthreads_count(1) == (int)blockDim.x; }
  EFA_GDA_FN bool in_full_warp() const { return lanes() == 32; }
  template <class Part>
  EFA_GDA_FN void transpose(Part (&q)[4]) const {
    transpose_full_warp(lane(), q);
  }
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

template <class Part>
inline void transpose_full_warp(uint32_t lane, Part (&q)[4]) {
  const void *quads_of_lanes[32];
  host::gather_warp(q, quads_of_lanes);
  Part received[4];
  for (uint32_t k = 0; k < 4; k++) {
    received[k] = static_cast<const Part *>(quads_of_lanes[Transpose::source_lane(lane, k)])[Transpose::quad(lane)];
  }
  /* All lanes have read before any lane overwrites its quads. */
  host::sync_warp();
  for (uint32_t k = 0; k < 4; k++) q[k] = received[k];
}

struct WarpGroup {
  static constexpr bool kSingleThread = false;
  static constexpr bool kAllThreadsFence = true;
  using Poller = WarpGroup;
  bool polls() const { return true; }
  uint32_t rank() const { return host::lane() % 32; }
  uint32_t size() const { return 32; }
  uint32_t lane() const { return rank(); }
  uint32_t lanes() const { return 32; }
  bool leads() const { return rank() == 0; }
  bool is_whole() const { return vote(true) == ~0u; }
  bool in_full_warp() const { return true; }
  template <class Part>
  void transpose(Part (&q)[4]) const {
    transpose_full_warp(lane(), q);
  }
  void sync() const { host::sync_warp(); }
  template <class T>
  T from_leader(T value) const {
    return (T)host::broadcast_warp(value, 0);
  }
  uint32_t vote(bool holds) const { return host::ballot_warp(holds); }
};

struct FirstWarp : WarpGroup {
  uint32_t lanes() const { return host::warp_size(); }
};

struct BlockGroup {
  static constexpr bool kSingleThread = false;
  static constexpr bool kAllThreadsFence = false;
  using Poller = FirstWarp;
  bool polls() const { return host::lane() < 32; }
  uint32_t rank() const { return host::lane(); }
  uint32_t size() const { return host::lanes(); }
  uint32_t lane() const { return host::lane() % 32; }
  uint32_t lanes() const { return host::warp_size(); }
  bool leads() const { return rank() == 0; }
  bool is_whole() const { return host::sync_block() == host::lanes(); }
  bool in_full_warp() const { return lanes() == 32; }
  template <class Part>
  void transpose(Part (&q)[4]) const {
    transpose_full_warp(lane(), q);
  }
  void sync() const { (void)host::sync_block(); }
  template <class T>
  T from_leader(T value) const {
    return (T)host::broadcast_block(value, 0);
  }
};

#endif

/* A pointer to `object`, which must be in the thread's memory, for a call of a function that is not inlined. Without
 * this, ptxas computes the generic address of the kernel's stack frame once, and keeps it in two registers. */
template <class T>
EFA_GDA_FN T *local_pointer(T *object) {
#if EFA_GDA_ON_GPU
  uint64_t address = __cvta_generic_to_local(object);
  asm volatile("cvta.local.u64 %0, %0;" : "+l"(address));
  return reinterpret_cast<T *>(address);
#else
  return object;
#endif
}

}  // namespace efa_gda

#endif
