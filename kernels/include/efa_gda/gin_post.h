/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * How groups post to the endpoints that aws-ofi-nccl makes: the protocol, a group leader's view of the cursors, and the
 * ring. gin.h has the operations that use it.
 *
 * Kernels compiled with NCCL's own code may post to the same endpoint before, after and at the same time. So all groups
 * keep the protocol of NCCL's post path (nccl_device/gin/efa_gda/gin_efa_gda.h, 2.31.2 and 2.32.3).
 *
 * TERMS. Those of sq.h, but a group may also be any lanes of a warp (nccl_gin.h).
 *   window  min(max_batch, sq_size).
 *   chunk   entries of one post that a group writes at once: at most `window`, all of one lap of the ring.
 *   turn    of a chunk, and of its group: begins when wqes_completed reaches the chunk's first entry, and ends when
 *           the group stores a later wqes_completed. Only in its turn may a group ring.
 *
 * WORDS
 *   word            | meaning, at all times                                   | written by
 *   pc              | the next entry to reserve                               | each group, by an atomic add
 *   wqes_completed  | all entries before it are written and fenced, and their | the group whose turn it is; this ends
 *                   |   turns have ended                                      |   the turn
 *   wqes_posted     | the last doorbell. The adapter has received it: its     | the group whose turn it is
 *                   |   writer has fenced since                               |
 *   submitted_count | the entries that were rung for: equal to wqes_posted,   | the group whose turn it is, by an
 *                   |   in 64 bits, unless a group is ringing                 |   atomic add: this library's before its
 *                   |                                                         |   doorbell, with no fence between the
 *                   |                                                         |   two; NCCL's after its doorbell
 *   counter         | successful requests, modulo 2^31                        | the adapter
 *   promised        | the end of a reservation of this library whose doorbell | this library's groups, after they
 *                   |   is not deferred                                       |   reserve
 *   sq_lock         | 0, or the status that took the endpoint out of service  | this library's groups, by CAS from 0
 * NCCL's code does not access the last two. wqes_posted and wqes_completed are the halves of one aligned word of 8
 * bytes, which this library loads and stores whole: such an access is single-copy atomic on NVIDIA's GPUs, x86-64 and
 * AArch64, also beside accesses to the halves.
 *
 * A POST of n entries
 *   1. The leader reserves n entries: pc. Unless its caller defers the doorbell, it promises their end.
 * For each chunk:
 *   2. The leader waits until the chunk fits: its end is at most `window` entries past wqes_posted, and at most sq_size
 *      past the counter. If its turn begins meanwhile, it rings for earlier entries that are not rung for. Their groups
 *      may have left the doorbell to it, and should not wait until it has slots.
 *   3. The threads write the entries, synchronise, and fence (fence.release.sys). NCCL's code reads the turn with a
 *      relaxed load and rings at once, so entries must be fenced before the turn passes.
 *   4. The leader waits for its turn. It then rings for all entries before the chunk's end, or ends its turn without
 *      that and so leaves the doorbell to a later chunk. It may leave it if its caller deferred the doorbell, or if an
 *      end past the chunk's is promised, perhaps by its own post; but never if `window` entries would then not be rung
 *      for. To ring: submitted_count, the doorbell, a fence, both cursors. The fence orders the doorbell before entries
 *      that other groups write because they have read wqes_posted.
 * After the last chunk:
 *   5. Unless its caller deferred the doorbell, the leader waits until wqes_posted covers its entries, so that a flush
 *      after its post, also by NCCL's code, counts them. If the group that promised fails, it takes the endpoint out of
 *      service, which ends this wait.
 * So groups that post at the same time share a doorbell and its fence, which are what a turn costs.
 *
 * WHY A PROMISE HOLDS. A leader loads `promised` after its own store of it, so it reads its own end or one that was
 * stored later. An end that is past its own is of a group that reserved later, so that group's turn comes later, and in
 * that turn or a still later one the doorbell is rung (step 4). Far fewer than 2^31 entries are reserved while a group
 * is in a post, so the difference of two ends has the right sign. The window never exceeds sq_size, so the promising
 * group's wait for free slots ends when all requests that were rung for have succeeded.
 *
 * WHAT ORDERS ENTRIES. A group fences its entries before it waits for its turn, and ends the turn with a relaxed
 * store. A doorbell also covers entries of groups whose turns ended before; no pattern of the PTX memory model orders
 * those entries before the doorbell. This library assumes that fence.release.sys ends only when the entries have
 * reached the adapter; each turn ends later than that. NCCL's code, which reads the turn with a relaxed load, relies on
 * the same.
 *
 * VALUES in the plugin's memory: entry s uses value slot s modulo sq_size. The counter says how many requests are done,
 * not which, so the value slot of entry s - sq_size is known to be free only if all earlier requests are done. All
 * posts to such an endpoint, also those without values, are post_by<true>. There the first chunk of each lap waits in
 * its turn until the endpoint is idle, and each other chunk of the lap waits until that turn has ended. NCCL's code
 * does not wait so: beside its posts, a value of either may change one that is in flight.
 *
 * WAITS. Each wait ends EFA_GDA_GIN_TIMEOUT_NS (which must be below 2^42 ns, 73 minutes) after the last change of what
 * it waits for (step 2: of a cursor or the counter), or when it finds that another group has taken the endpoint out of
 * service. A post whose wait ran out may leave reserved entries that no group can write. So it takes the endpoint out
 * of service: this library's later posts and flushes end at once with EFA_GDA_POISONED, a flush also if nothing is in
 * flight, because a post before it may have written nothing. A drain whose caller gave no timeout also takes the
 * endpoint out of service at its bound (gin.h). A post with a `window` of 0 does so at once, and returns
 * EFA_GDA_BAD_ARGUMENT. Posts reserve entries even on an endpoint out of service (a test before the add would delay
 * each post). NCCL's code does not load sq_lock, so behind such entries it waits without a bound.
 *
 * FAILED REQUESTS. The counter counts successes only, and the completion queue cannot be read by the GPU (the plugin
 * does not map it). A failed request is in flight for ever: it keeps its slot, and each flush ends at its bound.
 * Without a timeout that bound counts from the endpoint's last doorbell or completion, so beside steady posts the flush
 * does not end.
 */
#ifndef EFA_GDA_GIN_POST_H
#define EFA_GDA_GIN_POST_H

#include "gin_handle.h"
#include "round.h"

/* Bytes that one store of a GPU carries into the ring: 8, as NCCL's, or 16. */
#ifndef EFA_GDA_GIN_STORE_BYTES
#define EFA_GDA_GIN_STORE_BYTES 8
#endif
/* How long a wait without a bound of its own lasts without progress. */
#ifndef EFA_GDA_GIN_TIMEOUT_NS
#define EFA_GDA_GIN_TIMEOUT_NS 60000000000ull
#endif

namespace efa_gda {
namespace gin {

/* A group as it makes and stores entries. In a full warp the lanes exchange quads for stores of 16 bytes, so that each
 * store of the warp covers whole lines. Stores of 8 bytes reach the ring one by one in any case. */
template <class Group, int StoreBytes>
struct StoringGroup : Group {
  EFA_GDA_FN explicit StoringGroup(const Group &group) : Group(group) {}
  EFA_GDA_FN bool in_full_warp() const { return StoreBytes == 16 && Group::in_full_warp(); }
};

/* The counter's wrap. */
constexpr uint32_t kCounterMask = 0x7fffffff;

/* The bound of a wait: EFA_GDA_GIN_TIMEOUT_NS from the last change of `progress`. */
class Bound {
 public:
  /* To be called in each iteration of a waiting loop. EFA_GDA_OK: continue to wait. After the bound the caller looks
   * once more at what it waits for before a later call returns `at_bound`: a thread that did not run for a while has
   * perhaps not seen what happened meanwhile. */
  EFA_GDA_FN efa_gda_status over(const Endpoint *endpoint, uint32_t progress, efa_gda_status at_bound) {
    pause();
    if (++calls_ % kCallsPerLook != 0) return EFA_GDA_OK;
    if (load_relaxed(&endpoint->sq_lock) != 0) return EFA_GDA_POISONED;
    uint32_t now = (uint32_t)(clock_ns() >> kUnit);
    if (calls_ == kCallsPerLook || progress != seen_) start_ = now;
    seen_ = progress;
    bool is_over = now - start_ >= (EFA_GDA_GIN_TIMEOUT_NS >> kUnit), was_over = calls_ >= kLastLook;
    calls_ = is_over ? kLastLook : kCallsPerLook;
    return is_over && was_over ? at_bound : EFA_GDA_OK;
  }

 private:
  /* The first calls look at nothing: a look would delay a short wait. */
  static constexpr uint32_t kCallsPerLook = 32;
  /* In calls_: the bound was over at the last look at the clock. */
  static constexpr uint32_t kLastLook = 0x80000000u;
  /* The clock in units of 1,024 ns, which fits one register. */
  static constexpr int kUnit = 10;
  uint32_t start_ = 0, calls_ = 0, seen_ = 0;
};

EFA_GDA_FN efa_gda_status take_out_of_service(Endpoint *endpoint, efa_gda_status reason) {
  if (reason != EFA_GDA_POISONED) compare_swap_acquire(&endpoint->sq_lock, EFA_GDA_OK, reason);
  return reason;
}

EFA_GDA_FN bool has_wide_entries(const Queue *queue) {
#if EFA_GDA_GIN_LAYOUT == 0
  (void)queue;
  return false;
#else
  return queue->wqe_size == 128;
#endif
}

/* A group leader's view of the cursors. */
struct Turn {
  Endpoint *endpoint;
  WorkQueue *sq;
  uint32_t window;
  /* wqes_posted and wqes_completed as last loaded. While it is this group's turn they are exact. */
  uint32_t posted, released;
  /* The end of the free slots, modulo 2^31: counter + sq_size. Compared with ends of chunks that are less than 2^30
   * entries past it, so the difference has the right sign (wait_for_slots). */
  uint32_t limit;

  /* An acquiring load delays the loads that follow it, so other words are loaded before it. */
  EFA_GDA_FN void load_cursors() {
    uint64_t word = load_acquire(&sq->cursors);
    posted = (uint32_t)word;
    released = (uint32_t)(word >> 32);
  }
  EFA_GDA_FN void load_limit() {
    limit = endpoint->sq_size + (uint32_t)load_system((const volatile uint64_t *)endpoint->local_cntr_value);
  }

  /* In this group's turn: rings for all entries before `end`, and stores both cursors. That ends the turn if `end` is
   * the chunk's end; with the chunk's begin as `end` the turn goes on (step 2). */
  EFA_GDA_FN void ring(uint32_t *doorbell, uint32_t end) {
    fetch_add_relaxed(&endpoint->submitted_count, (uint64_t)(end - posted));
    store_doorbell(doorbell, end);
    fence_release_system();
    posted = end;
    pass(end);
  }
  /* In this group's turn, after a fence of its entries: ends the turn. */
  EFA_GDA_FN void pass(uint32_t end) {
    released = end;
    store_relaxed(&sq->cursors, posted | (uint64_t)end << 32);
  }

  EFA_GDA_FN bool is_in_window(uint32_t end) const { return end - posted <= window; }
  EFA_GDA_FN bool has_free_slots(uint32_t end) const { return ((limit - end) & (kCounterMask / 2 + 1)) == 0; }
  /* VALUES: whether the value slots of the chunk that begins at `begin` are free. */
  EFA_GDA_FN bool has_value_slots(uint32_t begin) const {
    uint32_t in_lap = begin % endpoint->sq_size;
    if (in_lap != 0) return (int32_t)(released - (begin - in_lap)) > 0;
    return posted == begin && ((limit - endpoint->sq_size - begin) & kCounterMask) == 0;
  }
  /* Step 2. */
  template <bool kValues>
  EFA_GDA_FN efa_gda_status wait_for_slots(uint32_t begin, uint32_t end) {
    Bound bound;
    efa_gda_status status = EFA_GDA_OK;
    while (status == EFA_GDA_OK &&
           !(is_in_window(end) && has_free_slots(end) && (!kValues || has_value_slots(begin)))) {
      if (released == begin && posted != begin) {
        ring(sq->db, begin);
        continue;
      }
      status = bound.over(endpoint, posted + released + limit, EFA_GDA_TIMEOUT_SLOTS);
      /* Far outside the window has_free_slots() is not valid. */
      if (kValues || !has_free_slots(end) || end - posted > kCounterMask / 4) load_limit();
      load_cursors();
    }
    return status;
  }
  /* Step 4, for the chunk [begin, end). `promised`: the word as loaded after this group's own promise. */
  EFA_GDA_FN efa_gda_status take(uint32_t *doorbell, uint32_t begin, uint32_t end, bool defer, uint32_t promised) {
    Bound bound;
    while (released != begin) {
      promised = load_relaxed(&endpoint->promised);
      load_cursors();
      efa_gda_status status = bound.over(endpoint, released, EFA_GDA_TIMEOUT_LOCK);
      if (status != EFA_GDA_OK) return status;
    }
    if ((defer || (int32_t)(promised - end) > 0) && end - posted < window) {
      pass(end);
    } else {
      ring(doorbell, end);
    }
    return EFA_GDA_OK;
  }
  /* Step 5. */
  EFA_GDA_FN efa_gda_status wait_until_rung(uint32_t end) {
    Bound bound;
    efa_gda_status status = EFA_GDA_OK;
    while (status == EFA_GDA_OK && (int32_t)(posted - end) < 0) {
      load_cursors();
      status = bound.over(endpoint, posted, EFA_GDA_TIMEOUT_LOCK);
    }
    return status;
  }
};

/* Stores a quad of an entry to the ring. */
EFA_GDA_FN void store_to_ring(uint8_t *to, const Quad &quad) {
  if (EFA_GDA_GIN_STORE_BYTES == 16) {
    store_quad(to, quad);
  } else {
    store_quad_by_eight(to, quad);
  }
}

/* What a write to the ring needs of the queue. An acquiring load discards what the GPU has cached, so the constructor
 * loads it before the post's first acquiring load. */
struct Ring {
  uint8_t *buffer;
  /* The number of slots, less one; in the highest bit, whether entries have 128 bytes: one register for both. */
  uint32_t mask_and_wide;
  EFA_GDA_FN explicit Ring(const Queue *queue)
      : buffer(queue->sq.buf), mask_and_wide(queue->sq.queue_mask | (has_wide_entries(queue) ? kWide : 0)) {}

  /* Writes this thread's share of `count` entries, at most slots_to_end(slot), to the slots from `slot` on. They are
   * those that the threads of the ranks from `first` on made. Their first 64 bytes are `quads` (round.h). The second 64
   * bytes of an entry of 128 are zero in all of GIN's requests. */
  template <class Group>
  EFA_GDA_FN void write(const Group &group, const Quad (&quads)[4], uint32_t first, uint32_t count,
                        uint32_t slot) const {
    uint32_t mask = mask_and_wide & ~kWide, shift = (mask_and_wide & kWide) != 0 ? 7 : 6;
    Quad with_slots[4] = {quads[0], quads[1], quads[2], quads[3]};
    store_quads_of_lap(group, with_slots, first, count, slot, (slot & (mask + 1)) != 0, false, buffer, mask, shift,
                       [&](const bool (&conditions)[4], uint8_t *const (&to)[4], const Quad (&all)[4]) {
                         EFA_GDA_UNROLL for (int k = 0; k < 4; k++) {
                           if (!conditions[k]) continue;
                           store_to_ring(to[k], all[k]);
                           if (shift == 7) store_to_ring(to[k] + 64, Quad{0, 0, 0, 0});
                         }
                       });
  }
  EFA_GDA_FN uint32_t slots_to_end(uint32_t slot) const {
    uint32_t mask = mask_and_wide & ~kWide;
    return mask + 1 - (slot & mask);
  }

 private:
  static constexpr uint32_t kWide = 1u << 31;
};

/* Posts `count` entries. `write(ring, done, n, slot)` writes n of them, from entry `done` on, to the slots from `slot`
 * on; all threads of the group call it. kValues: entries of the endpoint use the plugin's memory for values. Loads that
 * do not depend on each other are issued together: the latencies of dependent loads add up. */
template <bool kValues, class Group, class Write>
EFA_GDA_FN efa_gda_status post_by(const Group &group, Endpoint *endpoint, uint32_t count, bool defer, Write write) {
  /* A thread of this group may still be in an earlier post of its own, and could leave that doorbell to the promise
   * below, which this group cannot keep before the thread is here. So all threads arrive before the leader promises. */
  group.sync();
  bool leader = group.rank() == 0;
  Queue *queue = endpoint->qp;
  const volatile uint64_t *counter = endpoint->local_cntr_value;
  uint32_t sq_size = endpoint->sq_size, begin = 0, status = EFA_GDA_OK;
  if (leader) {
    status = load_relaxed(&endpoint->sq_lock) != 0 ? EFA_GDA_POISONED : EFA_GDA_OK;
    begin = fetch_add_relaxed(&queue->sq.pc, count + zero_by_lane());
  }
  Ring ring(queue);
  uint32_t window = queue->sq.max_batch < sq_size ? queue->sq.max_batch : sq_size;
  Turn turn = {endpoint, &queue->sq, window, 0, 0, 0};
  if (leader) {
    turn.limit = sq_size + (uint32_t)load_system(counter);
    turn.load_cursors();
    if (!defer) store_relaxed(&endpoint->promised, begin + count);
    if (window == 0) status = EFA_GDA_BAD_ARGUMENT;
  }
  begin = group.from_leader(begin);
  uint32_t end = begin + count;
  while (begin != end) {
    uint32_t n = end - begin < window ? end - begin : window;
    if (n > ring.slots_to_end(begin)) n = ring.slots_to_end(begin);
    if (kValues) {
      uint32_t to_lap = sq_size - begin % sq_size;
      if (n > to_lap) n = to_lap;
    }
    if (leader && status == EFA_GDA_OK) status = turn.wait_for_slots<kValues>(begin, begin + n);
    status = group.from_leader(status);
    if (status != EFA_GDA_OK) break;
    group.sync();
    write(ring, begin + count - end, n, begin);
    group.sync();
    /* What the leader needs next is loaded while the fence waits for the stores. */
    uint32_t *doorbell = leader ? queue->sq.db : nullptr;
    uint32_t promised = leader ? load_relaxed(&endpoint->promised) : 0;
    fence_release_system();
    if (leader) status = turn.take(doorbell, begin, begin + n, defer, promised);
    begin += n;
  }
  if (leader && status == EFA_GDA_OK && !defer) status = turn.wait_until_rung(end);
  if (leader && status != EFA_GDA_OK) take_out_of_service(endpoint, (efa_gda_status)status);
  group.sync();
  return (efa_gda_status)group.from_leader(status);
}

/* Posts one entry of each thread of the group, the thread's `entry`. */
template <class Base>
EFA_GDA_FN efa_gda_status post(const Base &base, Endpoint *endpoint, bool defer, const Entry &entry) {
  StoringGroup<Base, EFA_GDA_GIN_STORE_BYTES> group(base);
  Quad quads[4];
  make_quads(group, EFA_IO_PROCESSING_HINT_BURST_PPS_SENSITIVE, quads, 0, true, [&](uint32_t) { return entry; },
             [](const Entry &) {});
  auto write = [&](const Ring &ring, uint32_t done, uint32_t n, uint32_t slot) {
    ring.write(group, quads, done, n, slot);
  };
  return post_by<false>(group, endpoint, group.size(), defer, write);
}

}  // namespace gin
}  // namespace efa_gda

#endif
