/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Combining: how the lock owner places calls from their publication slots, rings for them and passes the lock; and why
 * a published call may return early. ticket_lock.h states the terms, the words, their pairs (A1 to A3) and the states
 * of lock.serving. Flag, flag window, scan, reading: see publication.h.
 *
 * STEPS of combine(). The lock owner
 *   1. stores Open at the next ticket. A group that will combine because it saw later tickets has stored Open at its
 *      own ticket already, when it acquired the lock (Ticket::acquire).
 *   2. in Open, scans the flags from T on, places the calls found unless they are placed ahead, rings, perhaps confirms
 *      the doorbell (confirm_for_others() in sq.h), and stores serving past them. It repeats step 2 until a scan finds
 *      no call, or until it has executed step 2 kMaxOpenRounds times.
 *   3. stores Closing, executes F2, loads `end`, and synchronises the group.
 *   4. in Closing, passes the lock in Passed if T is at or past `end`. Otherwise it scans. If T's call is not found, it
 *      passes the lock to T's group in PassedMustCombine. Otherwise it places the calls found and rings as in step 2,
 *      and repeats step 4.
 * One execution of step 2 or 4 is a round of combine(). It has nothing to do with the rounds of a call (sq.h).
 *   A scan finds a call if all flags of the calls from T's to this one, both included, match in the scan's last
 * reading. A flag matches only if its kPlacedAhead is that of T's first flag, so all calls that a scan finds are placed
 * ahead, or none is. It does not find T's call if that is not published, is empty, or has more entries than the flag
 * window has slots.
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
static_assert(kLockStateMask == ((uint64_t)1 << EFA_GDA_LOCK_STATE_BITS) - 1 &&
                  (kLastSlot | kPlacedAhead) == kLockStateMask,
              "tickets are shifted by EFA_GDA_LOCK_STATE_BITS in lock.serving and in flags");

/* The most rounds in Open (step 2). */
constexpr uint32_t kMaxOpenRounds = 16;

/* lock.doorbell_index and, in the high half, lock.confirmed_index. Another group may load them while they are stored,
 * so each access has 64 bits. */
EFA_GDA_FN uint64_t *lock_indices(efa_gda_queue *queue) {
  return reinterpret_cast<uint64_t *>(&queue->lock.doorbell_index);
}
/* Stores what the next writer continues with. Called by the leader. */
template <class Group, int StoreBytes>
EFA_GDA_FN void store_indices(efa_gda_queue *queue, const Ring<Group, StoreBytes> &ring) {
  store_relaxed(lock_indices(queue), (uint64_t)ring.leader_confirmed_index() << 32 | ring.doorbell_index());
  store_relaxed(limit_word(queue), (uint64_t)ring.free_limit());
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

/* combine() returns it if it must wait for free slots: the caller waits (make_room_apart() in shared_call.h) and calls
 * again. */
constexpr efa_gda_status kNeedsRoom = EFA_GDA_NOT_RUN;

/* A call of combine(), in the thread's memory. */
struct Combining {
  /* The state of the group's ring. */
  RingState ring;
  PublicationSlots publication;
  /* T, as lock.serving holds it but with state bits 0. */
  uint64_t serving;
  /* What step 3 loads, shifted as lock.serving is. */
  uint64_t end;
  /* Undefined until combine() returns kNeedsRoom. Then `left` are the entries that the present round has found and not
   * placed, `after` is T after this round, as `serving`, and `rounds` are the rounds before it. */
  LockState state;
  uint32_t left, rounds;
  uint64_t after;
};

/* Combines, and passes the lock; or returns kNeedsRoom. All threads of the lock owner call it, of a block the leader
 * alone. In the first call `resumes` is false, c->serving must be the next ticket, c->ring.next_ its low half,
 * everything placed rung for, and the leader must have executed the fence that the store of Open needs (ticket_lock.h).
 * After kNeedsRoom the caller waits for c->left entries, and calls with `resumes` true. */
template <class Group, int StoreBytes>
EFA_GDA_COLD efa_gda_status combine(efa_gda_queue *queue, Combining *c, bool resumes) {
  Ring<Group, StoreBytes> ring(queue, Group(), c->ring);
  const PublicationSlots publication = c->publication;
  uint64_t serving = c->serving, after = 0;
  LockState state = kOpen;
  uint32_t left = 0, rounds = 0;
  if (resumes) {
    state = c->state;
    left = c->left;
    rounds = c->rounds;
    after = c->after;
  } else if (ring.is_leader()) {
    store_relaxed(&queue->lock.serving, serving | kOpen);
  }
  EFA_GDA_NO_UNROLL for (;; rounds++) {
    uint32_t count = left;
    /* Before the limit is reached, so that other groups can go on placing ahead. */
    ring.look_for_slots(ring.num_entries() / 8 + ring.group().size());
    if (left == 0) {
      bool linger = rounds != 0 && state == kOpen;
      MatchedFlags found = scan_published(queue, ring.group(), ring.next(), publication, linger, serving);
      count = found.slots;
      after = serving + (((uint64_t)found.calls << 32 | found.slots) << EFA_GDA_LOCK_STATE_BITS);
      if (found.ahead == 0) left = count;
      if (count != 0) {
        /* A2: each thread acquires the flags that it loaded and, by the sync, those of the others. */
        fence_acquire_device();
        ring.group().sync();
        if (found.ahead != 0) ring.advance(count);
      }
    }
    if (left != 0) {
      uint32_t room = ring.free_limit() - ring.next(), n = left < room ? left : room;
      if (EFA_GDA_LIKELY(n != 0)) {
        ring.place(n, [&](uint32_t, uint32_t m, uint32_t slot) { copy_published(ring, publication, slot, m); });
      }
      left -= n;
      if (!EFA_GDA_LIKELY(left == 0)) break;
    }
    if (count != 0) {
      ring.ring();
      ring.confirm_for_others();
      serving = after;
      /* The ring's fence orders the copies before this store (A3). */
      if (ring.is_leader()) {
        /* For groups that place ahead. */
        store_indices(queue, ring);
        store_relaxed(&queue->lock.serving, serving | state);
      }
    }
    /* Only a scan after F2 shows that T's group has not returned early. */
    bool not_found = state == kClosing && count == 0;
    if (state == kOpen && (count == 0 || rounds + 1 == kMaxOpenRounds)) {
      state = kClosing;
      c->end = close_lock(queue, ring, serving);
    }
    bool all_served = state == kClosing && (int64_t)(c->end - serving) <= 0;
    if (all_served || not_found) {
      pass_lock(queue, ring, serving | (all_served ? kPassed : kPassedMustCombine));
      return EFA_GDA_OK;
    }
  }
  c->ring = ring.state();
  c->serving = serving;
  c->state = state;
  c->left = left;
  c->rounds = rounds;
  c->after = after;
  return kNeedsRoom;
}

}  // namespace efa_gda

#endif
