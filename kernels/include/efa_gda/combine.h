/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Combining: how the lock owner places and rings for the calls that other groups published, and passes the lock; and
 * why a published call may return before it is rung for. ticket_lock.h states the terms, the words, their pairs (A1 to
 * A3) and the states of lock.serving.
 *
 * STEPS of combine(). The lock owner
 *   1. stores Open: at its own ticket if its call is not placed yet (release_published), otherwise at the next ticket.
 *      A group that will combine because it saw later tickets has stored Open at its own ticket already, when it
 *      acquired the lock (Ticket::acquire).
 *   2. in Open, scans the flags from T on, places the calls found, rings, and stores serving past them. In place of its
 *      first scan it takes its own call, if that is not placed yet. It repeats this until a scan finds no call. Step 2
 *      runs at most kMaxOpenRounds times, the own call included.
 *   3. stores Closing, executes F2, loads `end`, and synchronises the group.
 *   4. in Closing, passes the lock in Passed if T is at or past `end`. Otherwise it scans. If T's call is not found, it
 *      passes the lock to T's group in PassedMustCombine. If it is found, it places and rings as in step 2, and repeats
 *      step 4.
 * A scan is one call of scan_published(), which may read the flags several times and uses the last reading. A call is
 * found if all its flags (publication.h) match in one scan, and all calls between T and it are found in the same scan.
 * So T's call is not found if it is not published, is empty, or has more entries than a flag window (publication.h) has
 * slots: 32 for a thread, 512 for a warp. On a queue without publication slots no group combines, and the lock is only
 * passed in Passed.
 *
 * WHY AN EARLY RETURN IS SAFE. F1 and F2 are fence_device_ordered() (fence.sc.gpu). Such fences have one total order,
 * and each synchronises with the later ones. Group P, with ticket p, takes its ticket, publishes, synchronises,
 * executes F1, and then loads serving. Lock owner O stores Closing, executes F2, loads `end`, synchronises, and then
 * scans.
 *   F1 before F2: O's load of reserve.word sees P's fetch_add, so p is before `end`. O's later scans see P's flags.
 *   F2 before F1: P's load of serving sees Closing or a later value. So P does not return early because of O's Open. If
 *                 the later value is Open, a group that acquired the lock after O has stored it; the argument is
 *                 repeated with that owner's F2.
 * So let P have returned early because of O's Open. Then p is before O's `end`, and O's scans in step 4 see its flags.
 * O leaves step 4 in one of three cases.
 *   T is at or past `end`: P's call is served.
 *   T's call was not found: T's group is not P, because a scan that begins at P's ticket finds P's call. The same holds
 *     for each group that returned early because of O's Open or an earlier one. So T's group is none of them: it waits,
 *     or has yet to take its ticket, and will read PassedMustCombine. No other group can store Open before T's group
 *     owns the lock. T's group then combines until an `end` of its own, which is not before O's, because reserve.word
 *     only grows; or it passes the lock on in PassedMustCombine, and the same argument applies to the next group. The
 *     scans of each of these groups see P's flags, because the group has acquired what O did (A1). T grows with each
 *     group, so P's call is reached.
 *   place_published() failed: the queue is poisoned, and the state stays Closing for ever. (If it fails in step 2, the
 *     state stays Open for ever.)
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

/* The most times that step 2 runs, the own call included. */
constexpr int kMaxOpenRounds = 16;

/* Stores both indices, then `serving` with a release. */
template <class Group, int StoreBytes>
EFA_GDA_FN void pass_lock(efa_gda_queue *queue, const Ring<Group, StoreBytes> &ring, uint64_t serving) {
  ring.group().sync();
  if (ring.is_leader()) {
    store_relaxed(reinterpret_cast<uint64_t *>(&queue->lock.doorbell_index),
                  (uint64_t)ring.leader_confirmed_index() << 32 | ring.doorbell_index());
    store_release(&queue->lock.serving, serving);
  }
}

/* Step 3: ends early returns, and returns `end`, shifted as lock.serving is. All threads' later loads follow F2. */
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

/* Places `count` published entries, from the slots at next() on. */
template <class Group, int StoreBytes>
EFA_GDA_FN efa_gda_status place_published(Ring<Group, StoreBytes> &ring, const PublicationSlots &publication,
                                          uint32_t count, uint64_t timeout_ns, Completions *all) {
  auto copy = [&](uint32_t, uint32_t n, uint32_t slot) { copy_published(ring, publication, slot, n); };
  if (EFA_GDA_LIKELY(ring.fits_batch_window(count) && ring.free_limit() - ring.next() >= count)) {
    ring.place_at_once(count, copy);
    return EFA_GDA_OK;
  }
  while (count != 0) {
    uint32_t n = count;
    efa_gda_status status = ring.make_room(&n, timeout_ns, all);
    if (status != EFA_GDA_OK) return status;
    ring.place(n, copy);
    count -= n;
  }
  return EFA_GDA_OK;
}

/* Combines calls from ticket `serving` on, and passes the lock. If `own` is not 0, the first of them is the group's own
 * published call of `own` entries, which may be longer than a flag window. If `own` is 0, the caller must have rung for
 * everything placed. Returns the handle's new limit on free slots in the low half and the status in the high half, and
 * adds what it read to `all`. A status other than EFA_GDA_OK: the queue is poisoned, the lock was not passed, and
 * lock.serving stays Open or Closing at the last T. */
template <class Group, int StoreBytes>
EFA_GDA_COLD uint64_t combine(efa_gda_queue *queue, const Ring<Group, StoreBytes> *caller_ring,
                              PublicationSlots publication, uint64_t serving, uint32_t own, uint64_t timeout_ns,
                              Completions *all) {
  Ring<Group, StoreBytes> ring = *caller_ring;
  efa_gda_status status = EFA_GDA_OK;
  uint64_t end = 0;
  LockState state = kOpen;
  if (ring.is_leader()) store_relaxed(&queue->lock.serving, serving | state);
  for (int round = 0;; round++) {
    uint64_t after = serving + ((kOneCall + own) << EFA_GDA_LOCK_STATE_BITS);
    uint32_t count = own;
    if (own == 0) {
      after = serving;
      count = scan_published(queue, ring, publication, round != 0 && state == kOpen, after);
    }
    own = 0;
    if (count != 0) {
      status = place_published(ring, publication, count, timeout_ns, all);
      if (status != EFA_GDA_OK) break;
      ring.ring();
      serving = after;
      /* The ring's fence orders the copies before this store (A3). */
      if (ring.is_leader()) store_relaxed(&queue->lock.serving, serving | state);
    }
    /* Only a scan made after F2 shows that T's group has not returned early. */
    bool not_found = state == kClosing && count == 0;
    if (state == kOpen && (count == 0 || round + 1 == kMaxOpenRounds)) {
      state = kClosing;
      end = close_lock(queue, ring, serving);
    }
    bool all_served = state == kClosing && (int64_t)(end - serving) <= 0;
    if (all_served || not_found) {
      pass_lock(queue, ring, serving | (all_served ? kPassed : kPassedMustCombine));
      break;
    }
  }
  return (uint64_t)status << 32 | ring.free_limit();
}

}  // namespace efa_gda

#endif
