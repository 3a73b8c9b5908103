/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Combining: how the lock owner places calls from their publication slots, rings for them and passes the lock; and why
 * a published call may return early. ticket_lock.h states the terms, the words, their pairs (A1 to A3) and the states
 * of lock.serving. Flag, flag window, scan, reading: see publication.h.
 *
 * STEPS of combine(). The lock owner
 *   1. stores Open: at its own ticket if its call is not placed yet (`own` is not 0), otherwise at the next ticket.
 *      A group that will combine because it saw later tickets has stored Open at its own ticket already, when it
 *      acquired the lock (Ticket::acquire).
 *   2. in Open, scans the flags from T on, places the calls found, rings, and stores serving past them. In place of its
 *      first scan it takes its own call, if that is not placed yet. It repeats step 2 until a scan finds no call, or
 *      until it has executed step 2 kMaxOpenRounds times.
 *   3. stores Closing, executes F2, loads `end`, and synchronises the group.
 *   4. in Closing, passes the lock in Passed if T is at or past `end`. Otherwise it scans. If T's call is not found, it
 *      passes the lock to T's group in PassedMustCombine. Otherwise it places the calls found and rings as in step 2,
 *      and repeats step 4.
 * One execution of step 2 or 4 is a round of combine(). It has nothing to do with the rounds of a call (sq.h).
 *   A scan finds a call if all flags of the calls from T's to this one, both included, match in the scan's last
 * reading. So it does not find T's call if that is not published, is empty, or has more entries than the flag window
 * has slots.
 *   On a queue without publication slots no group combines, and the lock is only passed in Passed.
 *
 * WHY AN EARLY RETURN IS SAFE. F1 and F2 are fence_device_ordered() (fence.sc.gpu). Such fences have one total order,
 * and each synchronises with the later ones. Group P takes its ticket p, publishes, synchronises, executes F1, and then
 * loads serving. Lock owner O stores Closing, executes F2, loads `end`, synchronises, and then scans.
 *   F1 before F2: O's load of `end` sees P's fetch_add, so p is before `end`. O's scans in step 4 see P's flags.
 *   F2 before F1: P's load of serving sees O's Closing or a later value. So P does not return early because of O's
 *                 Open. If the later value is Open, a later lock owner has stored it, and the argument is repeated with
 *                 that owner's F2.
 * So let P have returned early because of O's Open. Then p is before O's `end`, and O's scans in step 4 see its flags.
 * O leaves step 4 in one of three cases.
 *   T is at or past `end`: P's call is served.
 *   T's call was not found: T's group is not P, because a scan that begins at P's ticket finds P's call. The same holds
 *     for each group that returned early because of O's Open or an earlier one, so T's group is none of them. T is
 *     before `end`, so T's group has its ticket: it reads PassedMustCombine, unless the queue is poisoned first. Until
 *     it does, no group stores serving. T's group then combines, and its `end` is not before O's, because reserve.word
 *     only grows. It leaves step 4 in one of the same three cases. Its scans in step 4 see P's flags, because it has
 *     acquired what O did (A1). T grows with each such group, so P's call is reached.
 *   a wait for free slots failed: the queue is poisoned, and the state stays Closing for ever.
 * If such a wait fails in step 2, or a wait of O fails between Ticket::acquire(), which stored Open, and
 * combine(), the queue is poisoned and the state stays Open for ever: calls return early even then.
 * So each call that returned early is rung for, unless the queue is poisoned first. efa-gda/tests/memory_model checks
 * this argument and the pairs A1 to A3, in small programs of up to three groups, in every execution that PTX allows,
 * and shows for each fence of these programs that it is needed.
 */
#ifndef EFA_GDA_COMBINE_H
#define EFA_GDA_COMBINE_H

#include "publication.h"

namespace efa_gda {

/* Low bits of lock.serving. */
enum LockState : uint64_t { kPassed = 0, kClosing = 1, kPassedMustCombine = 2, kOpen = 3 };
constexpr uint64_t kLockStateMask = 3;
static_assert(kLockStateMask == ((uint64_t)1 << EFA_GDA_LOCK_STATE_BITS) - 1 && kLastSlot <= kLockStateMask,
              "tickets are shifted by EFA_GDA_LOCK_STATE_BITS in lock.serving and in flags");

/* The most rounds in Open (step 2). */
constexpr int kMaxOpenRounds = 16;

/* lock.doorbell_index and, in the high half, lock.confirmed_index. Another group may load them while they are stored,
 * so each access has 64 bits. */
EFA_GDA_FN uint64_t *lock_indices(efa_gda_queue *queue) {
  return reinterpret_cast<uint64_t *>(&queue->lock.doorbell_index);
}
/* Stores what the next writer continues with. Called by the leader. */
template <class Group, int StoreBytes>
EFA_GDA_FN void store_indices(efa_gda_queue *queue, const Ring<Group, StoreBytes> &ring) {
  store_relaxed(lock_indices(queue), (uint64_t)ring.leader_confirmed_index() << 32 | ring.doorbell_index());
}

/* Passes the lock (A1). `serving`: the ticket to which it passes, shifted, and the state. */
template <class Group, int StoreBytes>
EFA_GDA_FN void pass_lock(efa_gda_queue *queue, const Ring<Group, StoreBytes> &ring, uint64_t serving) {
  ring.group().sync();
  if (ring.is_leader()) {
    store_indices(queue, ring);
    store_release(&queue->lock.serving, serving);
  }
}

/* Step 3: stores Closing, and returns `end`, shifted as lock.serving is. `serving`: T, shifted, with state bits 0. All
 * threads' later loads follow F2. */
template <class Group, int StoreBytes>
EFA_GDA_FN uint64_t close_lock(efa_gda_queue *queue, const Ring<Group, StoreBytes> &ring, uint64_t serving) {
  uint64_t end = 0;
  if (ring.is_leader()) {
    store_relaxed(&queue->lock.serving, serving | kClosing);
    /* F2. */
    fence_device_ordered();
    end = load_relaxed(&queue->reserve.word) << EFA_GDA_LOCK_STATE_BITS;
  }
  end = ring.group().from_leader(end);
  /* from_leader() may order nothing, so it does not extend F2 to the other threads. */
  ring.group().sync();
  return end;
}

/* Places the `count` published entries from producer index next() on. If the cached limit does not allow them, it calls
 * `make_room(&n)`, which must do as Ring::make_room() does. If that fails, the queue is poisoned, and some of the
 * entries may be placed and rung for. */
template <class Group, int StoreBytes, class MakeRoom>
EFA_GDA_FN efa_gda_status place_published(Ring<Group, StoreBytes> &ring, const PublicationSlots &publication,
                                          uint32_t count, MakeRoom make_room) {
  auto copy = [&](uint32_t, uint32_t n, uint32_t slot) { copy_published(ring, publication, slot, n); };
  if (!Footprint<Group>::kCompact &&
      EFA_GDA_LIKELY(ring.fits_batch_window(count) && ring.free_limit() - ring.next() >= count)) {
    ring.place_at_once(count, copy);
    return EFA_GDA_OK;
  }
  EFA_GDA_NO_UNROLL for (uint32_t left = count, n; left != 0; left -= n) {
    n = left;
    if (!EFA_GDA_LIKELY(ring.free_limit() - ring.next() >= n)) {
      efa_gda_status status = make_room(&n);
      if (status != EFA_GDA_OK) return status;
    }
    ring.place(n, copy);
  }
  return EFA_GDA_OK;
}

/* Ring::make_room() for a compact group, as a function that is not inlined. `*state` is the ring's, in the thread's
 * memory. Returns the number of entries for which there are free slots in the low half and the status in the high half.
 */
template <class Group, int StoreBytes>
EFA_GDA_COLD uint64_t make_room_apart(efa_gda_queue *queue, RingState *state, uint32_t count, uint64_t timeout_ns,
                                      Completions *all) {
  Ring<Group, StoreBytes> ring(queue, Group(), *state);
  efa_gda_status status = ring.make_room(&count, timeout_ns, all);
  *state = ring.state();
  return (uint64_t)status << 32 | count;
}

/* What few rounds of combine() use. `end`: what step 3 loads, shifted as lock.serving is. */
struct Rarely {
  uint64_t timeout_ns;
  Completions *all;
  uint64_t end;
};

/* Combines, and passes the lock. All threads of the lock owner call it, of a block the leader alone. `serving` is the
 * first ticket to combine, as lock.serving holds it but with state bits 0; caller_ring->next_ must be the low half of
 * that ticket. With `own` 0, `serving` is the next ticket, and the caller must have rung for everything placed.
 * Otherwise `serving` is the group's own: the group must have published all of its `own` entries, which may be more
 * than a flag window has slots. The leader must have executed the fence that the store of Open needs (ticket_lock.h).
 * `*caller_ring`, in the thread's memory, is the state of the group's ring before and after the call. Adds what it read
 * to `all`. A status other than EFA_GDA_OK: the queue is poisoned, the lock was not passed, and lock.serving stays Open
 * or Closing at the last T. */
template <class Group, int StoreBytes>
EFA_GDA_COLD efa_gda_status combine(efa_gda_queue *queue, RingState *caller_ring, PublicationSlots publication,
                                    uint64_t serving, uint32_t own, uint64_t timeout_ns, Completions *all) {
  Ring<Group, StoreBytes> ring(queue, Group(), *caller_ring);
  efa_gda_status status = EFA_GDA_OK;
  /* Volatile, so that no register keeps it. */
  volatile Rarely rarely = {timeout_ns, all, 0};
  LockState state = kOpen;
  if (ring.is_leader()) store_relaxed(&queue->lock.serving, serving | state);
  EFA_GDA_NO_UNROLL for (int round = 0;; round++) {
    uint64_t after = serving + ((kOneCall + own) << EFA_GDA_LOCK_STATE_BITS);
    uint32_t count = own;
    if (own == 0) {
      bool linger = round != 0 && state == kOpen;
      MatchedFlags found = scan_published(queue, ring.group(), ring.next(), publication, linger, serving);
      count = found.slots;
      after = serving + (((uint64_t)found.calls << 32 | found.slots) << EFA_GDA_LOCK_STATE_BITS);
    }
    own = 0;
    if (count != 0) {
      status = place_published(ring, publication, count, [&](uint32_t *n) {
        if constexpr (!Footprint<Group>::kCompact) return ring.make_room(n, timeout_ns, all);
        *caller_ring = ring.state();
        auto apart = cold_function<Group, make_room_apart<Group, StoreBytes>>();
        uint64_t result = apart(queue, caller_ring, *n, rarely.timeout_ns, rarely.all);
        ring.continue_from(*caller_ring);
        *n = (uint32_t)result;
        return (efa_gda_status)(result >> 32);
      });
      if (status != EFA_GDA_OK) break;
      ring.ring();
      serving = after;
      /* The ring's fence orders the copies before this store (A3). */
      if (ring.is_leader()) store_relaxed(&queue->lock.serving, serving | state);
    }
    /* Only a scan after F2 shows that T's group has not returned early. */
    bool not_found = state == kClosing && count == 0;
    if (state == kOpen && (count == 0 || round + 1 == kMaxOpenRounds)) {
      state = kClosing;
      rarely.end = close_lock(queue, ring, serving);
    }
    bool all_served = state == kClosing && (int64_t)(rarely.end - serving) <= 0;
    if (all_served || not_found) {
      pass_lock(queue, ring, serving | (all_served ? kPassed : kPassedMustCombine));
      break;
    }
  }
  *caller_ring = ring.state();
  return status;
}

}  // namespace efa_gda

#endif
