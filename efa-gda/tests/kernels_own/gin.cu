/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads and warps make the calls of gin.h on handles in the shape that aws-ofi-nccl makes. Some may post as NCCL's
 * code does: NcclPost is a model of its protocol, written from gin_post.h's table of words. gin_layout_0.cu compiles this
 * file for the other layout.
 */
static unsigned long long g_timeout_ns;
#define EFA_GDA_GIN_TIMEOUT_NS g_timeout_ns
#include "efa_gda/gin.h"

#include <string.h>

#ifndef GIN_NAME
#define GIN_NAME(name) gin##name
#endif

/* An endpoint that posts, and its two targets: the peer's data endpoint, and the one of signal 0. */
struct gin_poster {
  struct efa_gda_queue *queue;
  uint64_t *counter;
  struct efa_gda_peer targets[2];
};

struct gin_args {
  /* Of data, values and a counter. */
  struct gin_poster posters[3];
  /* Memory of this side and of the peer. Of N entries of 64 bytes: written from here to there, then read from there to
   * here; then 8 bytes for each: values there, and here the pool of the values' endpoint (of its ring's size). */
  uint64_t local, remote;
  uint32_t lkey, rkey;
  /* Each thread then puts `big` bytes at `big_at`, with a signal; 0: none. */
  uint64_t big, big_at;
  /* Calls of each thread; threads of a group: 1 or 32. */
  uint32_t calls, group;
  /* Every second block posts as NCCL's code does. */
  uint32_t with_nccl;
  /* Each get is followed by a flush, and compared. */
  uint32_t check_gets;
  uint64_t timeout_ns, flush_timeout_ns;
  /* Results: enum efa_gda_status of each thread. EFA_GDA_BAD_COMPLETION: a flush returned before a get was done. */
  uint32_t *status;
};

namespace {

using namespace efa_gda;
using namespace efa_gda::gin;

constexpr uint32_t kPeer = 1, kRanks = 2;

/* The handles of one launch. */
struct Handles {
  Context context;
  CounterEndpoint counter;
  CounterEndpoint *counters[1];
  Queue queues[3];
  uint16_t ahs[3][2 * kRanks], qpns[3][2 * kRanks];
  uint32_t qkeys[3][2 * kRanks];
  uint64_t scratch_addresses[kRanks];
  uint32_t scratch_keys[kRanks];
  struct {
    RegisteredMemory own;
    RemoteMemory peers[kRanks];
  } memory;
};

void open_endpoint(Handles &h, uint32_t i, Endpoint &endpoint, const gin_poster &poster) {
  const efa_gda_sq &sq = poster.queue->sq;
  Queue &queue = h.queues[i];
  queue.sq.max_wqes = sq.num_entries;
  queue.sq.queue_mask = sq.num_entries - 1;
  queue.sq.queue_size_shift = (uint32_t)__builtin_ctz(sq.num_entries);
  queue.sq.max_batch = sq.max_batch;
  queue.sq.buf = sq.buffer;
  queue.sq.db = (uint32_t *)sq.doorbell;
#if EFA_GDA_GIN_LAYOUT != 0
  queue.wqe_size = (uint16_t)sq.entry_size;
#endif
  for (uint32_t slot = 0; slot < 2; slot++) {
    uint32_t at = slot * kRanks + kPeer;
    h.ahs[i][at] = (uint16_t)poster.targets[slot].ah;
    h.qpns[i][at] = (uint16_t)poster.targets[slot].qpn;
    h.qkeys[i][at] = poster.targets[slot].qkey;
  }
  endpoint.qp = &queue;
  endpoint.target_address_handles = h.ahs[i];
  endpoint.target_remote_qpns = h.qpns[i];
  endpoint.target_qkey = h.qkeys[i];
  endpoint.local_cntr_value = poster.counter;
  endpoint.sq_size = sq.num_entries;
}

Endpoint &endpoint_of(Handles &h, uint32_t i) {
  return i == 0 ? h.context.data : i == 1 ? h.context.pvdata : h.counter.base;
}

void open(Handles &h, const gin_args &a, uint64_t entries) {
  for (uint32_t i = 0; i < 3; i++) open_endpoint(h, i, endpoint_of(h, i), a.posters[i]);
  Context &c = h.context;
  h.counters[0] = &h.counter;
  h.counter.cntr_value = a.posters[2].counter;
  c.counter_handles = h.counters;
  c.nCounters = 1;
  c.nSignals = 1;
  c.nranks = kRanks;
  c.scratch_lkey = a.lkey;
  c.scratch_local_addr = a.local;
  c.scratch_remote_addrs = h.scratch_addresses;
  c.scratch_remote_rkeys = h.scratch_keys;
  h.scratch_addresses[kPeer] = a.remote;
  h.scratch_keys[kPeer] = a.rkey;
  c.putvalue_lkey = a.lkey;
  c.putvalue_slot_size = 8;
  c.pvdata.putvalue_slice_base = a.local + 2 * 64 * entries;
  h.memory.own = {a.lkey, (int32_t)kRanks, a.local};
  h.memory.peers[kPeer] = {a.remote, a.rkey, 0};
}

/* The groups of gin.h's calls: each thread by itself, or full warps. */
struct Lanes {
  uint32_t group;
  template <class Body>
  efa_gda_status operator()(const Endpoint *, bool, Body body) const {
    return group == 32 ? body(WarpGroup()) : body(ThreadGroup());
  }
};

/* NCCL's post of one entry: its view of the cursors is two words of four bytes. */
class NcclPost {
  typedef uint32_t __attribute__((may_alias)) Half;

 public:
  explicit NcclPost(Endpoint *endpoint) : e_(endpoint), sq_(&endpoint->qp->sq), ends_(clock_ns() + g_timeout_ns) {}
  bool post(const Entry &entry, bool defer) {
    uint32_t slot = fetch_add_relaxed(&sq_->pc, 1u), next = slot + 1;
    while (next - posted() > sq_->max_batch) {
      if (turn() == slot && posted() != slot) ring(slot);
      if (late()) return false;
    }
    while (((next - (uint32_t)load_system((const volatile uint64_t *)e_->local_cntr_value)) & kCounterMask) >
           e_->sq_size) {
      if (late()) return false;
    }
    Quad quads[4];
    make_quads(ThreadGroup(), 0, quads, 0, true, [&](uint32_t) { return entry; }, [](const Entry &) {});
    Ring(e_->qp).write(ThreadGroup(), quads, 0, 1, slot);
    fence_system();
    while (turn() != slot) {
      if (late()) return false;
    }
    if (!defer || next - posted() >= sq_->max_batch) ring(next);
    fence_system();
    store(1, next);
    return true;
  }

 private:
  Half *half(int i) { return reinterpret_cast<Half *>(&sq_->cursors) + i; }
  uint32_t posted() { return host::interleave_point(), __atomic_load_n(half(0), __ATOMIC_RELAXED); }
  uint32_t turn() { return host::interleave_point(), __atomic_load_n(half(1), __ATOMIC_ACQUIRE); }
  void store(int i, uint32_t v) { host::interleave_point(), __atomic_store_n(half(i), v, __ATOMIC_RELEASE); }
  void ring(uint32_t end) {
    store_doorbell(sq_->db, end);
    fence_system();
    fetch_add_relaxed(&e_->submitted_count, (uint64_t)(end - posted()));
    store(0, end);
  }
  bool late() { return pause(), clock_ns() > ends_; }

  Endpoint *e_;
  WorkQueue *sq_;
  uint64_t ends_;
};

efa_gda_status call(Handles &h, const gin_args &a, uint64_t entries, uint64_t g, uint32_t i, bool as_nccl) {
  Lanes lanes = {a.group};
  Context *c = &h.context;
  const RegisteredMemory *memory = &h.memory.own;
  Signal none = {Signal::kNone, 1}, one = {0, 1}, three = {0, 3};
  uint64_t at = 64 * g, read_at = 64 * (entries + g);
  if (as_nccl && i % 8 < 2) {
    Entry e = write_entry(target(c, &c->data, 0, kPeer), Memory{a.local + at, a.lkey, 64}, a.remote + at, a.rkey);
    return NcclPost(&c->data).post(e, i % 8 == 1) ? EFA_GDA_OK : EFA_GDA_TIMEOUT_LOCK;
  }
  switch (i % 8) {
    case 0: return put(lanes, c, kPeer, memory, at, memory, at, 64, none, kNoCounter, false);
    case 1: return put(lanes, c, kPeer, memory, at, memory, at, 64, none, kNoCounter, true);
    case 2: return put(lanes, c, kPeer, memory, at, memory, at, 64, one, kNoCounter, false);
    case 3: return put(lanes, c, kPeer, memory, at, memory, at, 64, none, 0, false);
    case 4: return put_value(lanes, c, kPeer, memory, 128 * entries + 8 * g, (g + 1) * 0x0101010101ull, 8, three);
    case 5: return get(lanes, c, kPeer, memory, read_at, memory, read_at, 64, false);
    case 6: return put(lanes, c, kPeer, memory, at, memory, at, 64, three, 0, true);
    default: return put(lanes, c, kPeer, nullptr, 0, nullptr, 0, 0, one, kNoCounter, false);
  }
}

/* A flush that ends flush_timeout_ns after its beginning. 0: gin.h's own bound. */
efa_gda_status flush_by(Context *context, uint64_t timeout_ns) {
  if (timeout_ns == 0) {
    DrainBound bound;
    return flush(context, [&](Endpoint *e, uint32_t progress) { return bound(e, progress); });
  }
  uint64_t ends = clock_ns() + timeout_ns;
  return flush(context, [=](Endpoint *, uint32_t) {
    pause();
    return clock_ns() < ends ? EFA_GDA_OK : EFA_GDA_TIMEOUT_COMPLETION;
  });
}

/* Flushes after a get, and compares what it read. */
efa_gda_status check_get(Handles &h, const gin_args &a, uint64_t at) {
  efa_gda_status status = flush_by(&h.context, a.flush_timeout_ns);
  if (status != EFA_GDA_OK) return status;
  bool same = memcmp((const void *)(a.local + at), (const void *)(a.remote + at), 64) == 0;
  return same ? EFA_GDA_OK : EFA_GDA_BAD_COMPLETION;
}

struct Launch {
  Handles handles;
  const gin_args *args;
  uint64_t entries;
};

void lane(Launch &l) {
  const gin_args &a = *l.args;
  uint64_t thread = (uint64_t)block_index() * block_threads() + thread_index();
  Context *c = &l.handles.context;
  Lanes lanes = {a.group};
  Signal none = {Signal::kNone, 1}, one = {0, 1}, zero = {0, 0};
  efa_gda_status status = EFA_GDA_OK;
  bool as_nccl = a.with_nccl != 0 && block_index() % 2 == 1;
  for (uint32_t i = 0; i < a.calls && status == EFA_GDA_OK; i++) {
    uint64_t g = thread * a.calls + i;
    status = call(l.handles, a, l.entries, g, i, as_nccl);
    if (a.check_gets != 0 && i % 8 == 5 && status == EFA_GDA_OK) status = check_get(l.handles, a, 64 * (l.entries + g));
  }
  const RegisteredMemory *memory = &l.handles.memory.own;
  if (a.big != 0 && status == EFA_GDA_OK) {
    status = put(lanes, c, kPeer, memory, a.big_at, memory, a.big_at, a.big, one, kNoCounter, false);
  }
  /* Rings for what was deferred on both endpoints. A signal of 0 changes nothing at the peer. */
  if (status == EFA_GDA_OK) status = put(lanes, c, kPeer, nullptr, 0, nullptr, 0, 0, zero, kNoCounter, false);
  if (status == EFA_GDA_OK) status = put(lanes, c, kPeer, nullptr, 0, nullptr, 0, 0, none, 0, false);
  if (status == EFA_GDA_OK) status = flush_by(c, a.flush_timeout_ns);
  store_relaxed(&a.status[thread], (uint32_t)status);
}

}  // namespace

/* The handles for launches of `threads` threads. */
extern "C" void *GIN_NAME(_open)(const gin_args *a, uint32_t threads) {
  Launch *l = new Launch();
  g_timeout_ns = a->timeout_ns;
  l->args = a;
  l->entries = (uint64_t)threads * a->calls;
  open(l->handles, *a, l->entries);
  return l;
}

/* Runs one block on the calling thread. */
extern "C" bool GIN_NAME(_block)(void *launch, uint32_t block, uint32_t blocks, uint32_t lanes, uint64_t seed) {
  host::interleave(seed);
  bool ran = host::run_block(block, blocks, lanes, [=] { lane(*static_cast<Launch *>(launch)); });
  host::interleave(0);
  return ran;
}

/* The words of endpoint `i`: pc, wqes_completed, wqes_posted, submitted_count, sq_lock. */
extern "C" void GIN_NAME(_words)(void *launch, uint32_t i, uint64_t *words) {
  Endpoint &endpoint = endpoint_of(static_cast<Launch *>(launch)->handles, i);
  const WorkQueue &sq = endpoint.qp->sq;
  words[0] = sq.pc;
  words[1] = sq.cursors >> 32;
  words[2] = (uint32_t)sq.cursors;
  words[3] = endpoint.submitted_count;
  words[4] = endpoint.sq_lock;
}

/* Waits until one request of this group is done, while other groups post requests that the adapter serves first. Returns
 * EFA_GDA_BAD_COMPLETION if the wait ended before it was done. `sq_lock`: the status that took the endpoint out of
 * service before. */
extern "C" uint32_t GIN_NAME(_drain)(uint64_t seed, uint32_t sq_lock) {
  struct Beside {
    Endpoint endpoint;
    uint64_t counter;
    uint32_t steps, status;
  } beside = {};
  beside.endpoint.local_cntr_value = &beside.counter;
  beside.endpoint.submitted_count = 1;
  beside.endpoint.sq_lock = sq_lock;
  constexpr uint32_t kOthers = 200;
  host::interleave(seed);
  host::run_beside([](void *context) {
    Beside *b = static_cast<Beside *>(context);
    b->steps++;
    if (b->steps <= kOthers) b->endpoint.submitted_count++;
    if (b->steps <= kOthers + 1) b->counter++;
  }, &beside);
  host::run_block(0, 1, 1, [&] {
    beside.status = drain(&beside.endpoint, [](Endpoint *, uint32_t) { return pause(), EFA_GDA_OK; });
    if (beside.status == EFA_GDA_OK && beside.steps <= kOthers) beside.status = EFA_GDA_BAD_COMPLETION;
  });
  host::run_beside(nullptr, nullptr);
  host::interleave(0);
  return beside.status;
}

/* A group posts one entry, for which there is a slot. Behind it another reserves more than there are free slots, which it
 * never gets, because 40 requests failed. Returns the doorbell: 41 or more if the first group's entry was rung for. */
extern "C" uint32_t GIN_NAME(_held)(uint64_t seed) {
  constexpr uint32_t kSlots = 64, kFailed = 40;
  struct Held {
    Endpoint endpoint;
    Queue queue;
    uint64_t counter;
    uint32_t doorbell;
    uint8_t ring[kSlots * 64];
  } held = {};
  g_timeout_ns = 1000000000;
  held.queue.sq.queue_mask = kSlots - 1;
  held.queue.sq.max_batch = kSlots;
  held.queue.sq.buf = held.ring;
  held.queue.sq.db = &held.doorbell;
  held.queue.sq.pc = kFailed;
  held.queue.sq.cursors = kFailed | (uint64_t)kFailed << 32;
  held.endpoint.qp = &held.queue;
  held.endpoint.local_cntr_value = &held.counter;
  held.endpoint.submitted_count = kFailed;
  held.endpoint.sq_size = kSlots;
  held.doorbell = kFailed;
  host::interleave(seed);
  host::run_beside([](void *) {}, &held);
  host::run_block(0, 1, 2, [&] {
    if (thread_index() == 0) {
      post(ThreadGroup(), &held.endpoint, false, Entry());
    } else {
      while (load_relaxed(&held.queue.sq.pc) == kFailed) pause();
      post_by<false>(ThreadGroup(), &held.endpoint, 32, false, [](const Ring &, uint32_t, uint32_t, uint32_t) {});
    }
  });
  host::run_beside(nullptr, nullptr);
  host::interleave(0);
  return held.doorbell;
}

extern "C" void GIN_NAME(_close)(void *launch) { delete static_cast<Launch *>(launch); }
