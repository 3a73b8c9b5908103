/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * How device code runs on a CPU. A block is one host thread. Its lanes are fibers of that
 * thread, each with a stack of its own, switched only where device code synchronises or
 * waits; so warp- and block-collective code runs as it is, and a run of one block is the
 * same every time. Blocks are real threads and race as on a GPU: what they share must be
 * atomic here as there.
 */
#ifndef EFA_GDA_HOST_LANES_H
#define EFA_GDA_HOST_LANES_H

#include <stdint.h>

namespace efa_gda {
namespace host {

/* Lanes of a block at most. */
constexpr uint32_t kMaxLanes = 1024;

/* Runs `body(context)` once for each lane of one block, on the calling thread. False:
 * no memory for the lanes' stacks, or a lane count out of range; nothing ran. */
bool run_block(uint32_t block, uint32_t blocks, uint32_t lanes, void (*body)(void *), void *context);

/* For tests: from now on run_block on this thread switches lanes, by numbers that follow from
 * `seed`, wherever device code accesses what threads share, and lets some lanes stand still for
 * a while. The same seed gives the same order. 0: only where lanes synchronise or wait. */
void interleave(uint64_t seed);
/* Comes before each access to what threads share. */
void step();

/* Below: only from inside run_block's body. */
uint32_t lane();
uint32_t lanes();
uint32_t block();
uint32_t blocks();
uint32_t warp_size();
/* Lets the other lanes run, and after a round of them the machine's other threads. */
void yield();
void sync_warp();
void sync_block();
/* The value that lane `from` of the warp (of the block) passed in the same call. */
uint64_t exchange_warp(uint64_t value, uint32_t from);
uint64_t exchange_block(uint64_t value, uint32_t from);
/* What each lane of the warp passed in the same call; of a warp of fewer than 32, the first. */
void show_warp(const void *mine, const void *(&all)[32]);
/* Bit i: what lane i of the warp passed. */
uint32_t vote_warp(bool value);

}  // namespace host
}  // namespace efa_gda

#endif
