/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The host executor's blocks and lanes (efa_gda/host_executor.h). A POSIX context starts each lane on a stack of its
 * own. Later switches are jumps, because swapcontext() makes a system call. */
#undef _FORTIFY_SOURCE /* Its check of longjmp() takes another stack for a mistake. */
#include "efa_gda/host_executor.h"

#include <sched.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

namespace efa_gda {
namespace host {
namespace {

constexpr size_t kStackBytes = 128 * 1024;

struct Barrier {
  uint32_t arrived;
  uint32_t generation;
  /* Lanes that the last generation waited for. */
  uint32_t released;
};

struct Block {
  uint32_t index, count, lanes, current, live;
  void (*body)(void *);
  void *context;
  Barrier warp_barrier[kMaxLanes / 32];
  Barrier block_barrier;
  /* Lanes of each warp that have not ended. */
  uint32_t live_in_warp[kMaxLanes / 32];
  /* Values that lanes exchange. Exchanges of a warp alternate between two sets, so that each needs one barrier only. */
  uint64_t values[2][kMaxLanes];
  /* The number of exchanges that each lane has made with its warp. */
  uint32_t warp_exchanges[kMaxLanes];
  bool done[kMaxLanes];
  /* A lane waits for another thread, since the last round of all lanes began. */
  bool waits;
  /* How many switches pass over a lane before it runs again. */
  uint32_t paused[kMaxLanes];
  /* The context of run_block's caller, and that in which a lane starts. */
  ucontext_t caller, start;
  /* Where each lane that has started was left. */
  jmp_buf left[kMaxLanes];
  bool started[kMaxLanes];
  uint8_t *stacks;
};

thread_local Block *current_block = nullptr;
thread_local uint64_t random_state = 0;
/* What runs beside this thread's block, and its argument; null for other threads. */
thread_local void (*beside)(void *) = nullptr;
thread_local void *beside_context = nullptr;
/* The clock of a thread that something runs beside. */
thread_local uint64_t steps_ns = 0;

uint64_t random_number() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

/* Returns the next lane after `from` that has not ended. With interleaving it skips paused lanes, unless all are
 * paused. */
uint32_t next_lane(Block *b, uint32_t from) {
  for (uint32_t i = 0, to = from; random_state != 0 && i < b->lanes; i++) {
    to = to + 1 == b->lanes ? 0 : to + 1;
    if (b->done[to]) continue;
    if (b->paused[to] == 0) return to;
    b->paused[to]--;
  }
  uint32_t to = from;
  do {
    to = to + 1 == b->lanes ? 0 : to + 1;
  } while (b->done[to]);
  return to;
}

void lane_main();

/* Makes b->start that of a lane, on its stack. */
void prepare(Block *b, uint32_t lane) {
  b->current = lane;
  b->started[lane] = true;
  getcontext(&b->start);
  b->start.uc_stack.ss_sp = b->stacks + lane * kStackBytes;
  b->start.uc_stack.ss_size = kStackBytes;
  b->start.uc_link = nullptr;
  makecontext(&b->start, lane_main, 0);
}

/* Continues or starts a lane. Does not return. */
void enter(Block *b, uint32_t lane) {
  if (b->started[lane]) {
    b->current = lane;
    _longjmp(b->left[lane], 1);
  }
  prepare(b, lane);
  setcontext(&b->start);
}

void switch_to(Block *b, uint32_t to) {
  if (to != b->current && _setjmp(b->left[b->current]) == 0) enter(b, to);
}

uint64_t now_ns() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Lets other threads run, one of which a lane waits for. Where there are more threads than cores, sched_yield() takes
 * tens of milliseconds, because the caller gives up its share of the core, and a short sleep takes one. So a slow
 * sched_yield() is followed by sleeps. */
void rest() {
  constexpr uint64_t kSlowNs = 1000 * 1000;
  constexpr uint32_t kSleeps = 1024;
  constexpr long kSleepNs = 50 * 1000;
  thread_local uint32_t sleeps = 0;
  if (sleeps > 0) {
    sleeps--;
    struct timespec t = {0, kSleepNs};
    nanosleep(&t, nullptr);
    return;
  }
  uint64_t begin = now_ns();
  sched_yield();
  if (now_ns() - begin >= kSlowNs) sleeps = kSleeps;
}

void switch_to_next() {
  Block *b = current_block;
  uint32_t to = b->live <= 1 ? b->current : next_lane(b, b->current);
  /* Lanes that wait for each other need no other thread. */
  if (to <= b->current && b->waits) {
    b->waits = false;
    beside != nullptr ? beside(beside_context) : rest();
  }
  switch_to(b, to);
}

/* Releases the lanes at `barrier` when all that it waits for have arrived. */
void release_if_complete(Barrier &barrier, uint32_t members) {
  if (barrier.arrived == 0 || barrier.arrived < members) return;
  barrier.released = barrier.arrived;
  barrier.arrived = 0;
  barrier.generation++;
}

void lane_main() {
  Block *b = current_block;
  b->body(b->context);
  uint32_t warp = b->current / 32;
  b->done[b->current] = true;
  b->live--;
  b->live_in_warp[warp]--;
  release_if_complete(b->warp_barrier[warp], b->live_in_warp[warp]);
  release_if_complete(b->block_barrier, b->live);
  if (b->live == 0) {
    setcontext(&b->caller);
  }
  enter(b, next_lane(b, b->current));
}

void arrive(Barrier &barrier, uint32_t members) {
  uint32_t generation = barrier.generation;
  barrier.arrived++;
  release_if_complete(barrier, members);
  while (barrier.generation == generation) switch_to_next();
}

}  // namespace

bool run_block(uint32_t block, uint32_t blocks, uint32_t lanes, void (*body)(void *), void *context) {
  if (lanes == 0 || lanes > kMaxLanes || current_block != nullptr) return false;
  Block *b = static_cast<Block *>(calloc(1, sizeof(Block)));
  if (b == nullptr) return false;
  void *stacks = mmap(nullptr, kStackBytes * lanes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    free(b);
    return false;
  }
  b->index = block;
  b->count = blocks;
  b->lanes = b->live = lanes;
  b->body = body;
  b->context = context;
  b->stacks = static_cast<uint8_t *>(stacks);
  for (uint32_t i = 0; i < lanes; i++) b->live_in_warp[i / 32]++;
  current_block = b;
  prepare(b, 0);
  swapcontext(&b->caller, &b->start);
  current_block = nullptr;
  munmap(stacks, kStackBytes * lanes);
  free(b);
  return true;
}

void interleave(uint64_t seed) { random_state = seed; }

void run_beside(void (*step)(void *), void *context) {
  beside = step;
  beside_context = context;
  steps_ns = 0;
}

uint64_t clock_ns() {
  constexpr uint64_t kReadingNs = 10 * 1000;
  return beside != nullptr ? steps_ns += kReadingNs : now_ns();
}

void interleave_point() {
  Block *b = current_block;
  if (random_state == 0 || b == nullptr) return;
  uint64_t number = random_number();
  if (number % 4 != 0) return;
  if (beside != nullptr && (number >> 32) % 16 == 0) beside(beside_context);
  if (b->live <= 1) return;
  if (number / 4 % 16 == 0) b->paused[b->current] = number / 64 % 256;
  switch_to(b, next_lane(b, (uint32_t)(number / 16384 % b->lanes)));
}

uint32_t lane() { return current_block->current; }
uint32_t lanes() { return current_block->lanes; }
uint32_t block() { return current_block->index; }
uint32_t blocks() { return current_block->count; }

uint32_t warp_size() {
  uint32_t rest = lanes() - lane() / 32 * 32;
  return rest < 32 ? rest : 32;
}

void yield() {
  current_block->waits = true;
  switch_to_next();
}
void sync_warp() {
  uint32_t warp = lane() / 32;
  arrive(current_block->warp_barrier[warp], current_block->live_in_warp[warp]);
}
uint32_t sync_block() {
  arrive(current_block->block_barrier, current_block->live);
  /* The next generation cannot end before this lane arrives again. */
  return current_block->block_barrier.released;
}

/* One barrier is enough: a lane writes to this set again only two exchanges later, and all lanes have then entered the
 * exchange in between, after they read this one. */
uint64_t broadcast_warp(uint64_t value, uint32_t from) {
  Block *b = current_block;
  uint32_t me = b->current, set = b->warp_exchanges[me]++ % 2;
  b->values[set][me] = value;
  sync_warp();
  return b->values[set][me / 32 * 32 + from];
}

void gather_warp(const void *pointer, const void *(&all)[32]) {
  Block *b = current_block;
  uint32_t me = b->current, set = b->warp_exchanges[me]++ % 2;
  b->values[set][me] = reinterpret_cast<uint64_t>(pointer);
  sync_warp();
  for (uint32_t i = 0; i < warp_size(); i++) all[i] = reinterpret_cast<const void *>(b->values[set][me / 32 * 32 + i]);
}

uint64_t broadcast_block(uint64_t value, uint32_t from) {
  Block *b = current_block;
  sync_block();
  uint32_t me = b->current;
  b->values[0][me] = value;
  sync_block();
  uint64_t result = b->values[0][from];
  sync_block();
  return result;
}

uint32_t ballot_warp(bool value) {
  Block *b = current_block;
  uint32_t me = b->current, set = b->warp_exchanges[me]++ % 2, votes = 0;
  b->values[set][me] = value ? 1 : 0;
  sync_warp();
  for (uint32_t i = 0; i < warp_size(); i++) {
    uint32_t other = me / 32 * 32 + i;
    /* A lane that ended before this exchange has made fewer. */
    bool voted = (int32_t)(b->warp_exchanges[other] - b->warp_exchanges[me]) >= 0;
    if (voted) votes |= (uint32_t)b->values[set][other] << i;
  }
  return votes;
}

}  // namespace host
}  // namespace efa_gda
