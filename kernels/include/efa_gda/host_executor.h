/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the device library needs of a host executor where a C++ compiler compiles it for the CPU. A program links an
 * implementation; this project's is kernels/host/lanes.cpp. Empty for a GPU's compiler.
 *
 * A block is one host thread. Its lanes are fibers of that thread, each with a stack; they are switched only where
 * device code synchronises or waits. So code of warps and blocks runs unchanged, and a run of one block is the same
 * every time. Blocks are concurrent threads, as on a GPU: what they share must be atomic.
 */
#ifndef EFA_GDA_HOST_EXECUTOR_H
#define EFA_GDA_HOST_EXECUTOR_H

#if !defined(__CUDA_ARCH__) && !defined(__CUDACC__)

#include <stdint.h>

namespace efa_gda {
namespace host {

/* The most lanes of a block. */
constexpr uint32_t kMaxLanes = 1024;

/* Runs `body(context)` once for each lane of one block, on the calling thread, and returns when all lanes have
 * returned. Blocks of one launch wait for each other, so the caller must run each on a thread of its own. Returns
 * false, and runs nothing, if `lanes` is 0 or more than kMaxLanes, if there is no memory for the lanes' stacks, or
 * inside another block. */
bool run_block(uint32_t block, uint32_t blocks, uint32_t lanes, void (*body)(void *), void *context);

/* The same for `body()`. All lanes call one object, and share what it captured. */
template <class Body>
bool run_block(uint32_t block, uint32_t blocks, uint32_t lanes, const Body &body) {
  auto call = [](void *context) { (*static_cast<const Body *>(context))(); };
  return run_block(block, blocks, lanes, call, const_cast<Body *>(&body));
}

/* For tests: run_block on this thread then also switches lanes at each interleave_point(), in an order that follows
 * from `seed`, and pauses some lanes for a while. The same seed gives the same order. 0 ends that. */
void interleave(uint64_t seed);

/* For tests: run_block on this thread then calls `step(context)` in place of letting other threads run, and at some of
 * the interleave points. An adapter that `step` advances needs no thread, and the clock advances by 10 us a reading, so
 * a seed gives the same run every time. Null ends that. */
void run_beside(void (*step)(void *), void *context);

/* A monotonic clock, in nanoseconds. */
uint64_t clock_ns();

/* The functions below must be called inside run_block's body, except that interleave_point() does nothing outside. */

/* Precedes each access to shared memory. */
void interleave_point();
uint32_t lane();
uint32_t lanes();
uint32_t block();
uint32_t blocks();
/* Lanes of the calling lane's warp. */
uint32_t warp_size();
/* For a lane that waits for another thread: runs the other lanes, and after a round of them other threads of the
 * machine. */
void yield();
/* These wait for all lanes of the warp (of the block) that have not ended, as a GPU does. sync_block() returns their
 * number. */
void sync_warp();
uint32_t sync_block();
/* Returns the value that lane `from` of the warp (of the block) passed in the same call. */
uint64_t broadcast_warp(uint64_t value, uint32_t from);
uint64_t broadcast_block(uint64_t value, uint32_t from);
/* Sets all[i] to the pointer that lane i of the warp passed in the same call, for each of its warp_size() lanes. */
void gather_warp(const void *pointer, const void *(&all)[32]);
/* Returns a mask whose bit i is the value that lane i of the warp passed; 0 for lanes that have ended or do not
 * exist. */
uint32_t ballot_warp(bool value);

}  // namespace host
}  // namespace efa_gda

#endif

#endif
