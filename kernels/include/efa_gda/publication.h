/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Publication slots: where a group that waits for the ticket lock publishes its entries, and how the lock owner finds
 * published calls and copies them to the ring. ticket_lock.h states the words, the pairs that order them (A2, A3), and
 * when a group may publish.
 *
 * TERMS. Group, producer index: see sq.h. Ticket, T, lock owner, publish, combine, state: see ticket_lock.h. Entry i of
 * a call is the i-th, from 0; its producer index is s = (low half of the ticket) + i. Its publication slot and the
 * flag of that have the number s modulo publication.num_entries.
 *
 * FLAGS. The flag of entry i is (ticket + i + 1) << 2, plus kLastSlot on the call's last entry, and kPlacedAhead on
 * each entry of a call that is placed ahead. The lock owner knows T. So it expects a value, without these bits, of each
 * flag from T's first slot on: of the first (T + 1) << 2, of each further one 1 << 2 more than the flag before, or
 * (2^32 + 1) << 2 more if the flag before has kLastSlot. A flag of this value matches if it has kPlacedAhead as T's
 * first flag has. The lock owner combines the whole calls from T on whose flags match. A flag does not match
 *   - if its entry is not published yet: the flag is 0 or that of an earlier call in this slot,
 *   - if T or another ticket before its call is empty: an empty ticket has no slot and no flag, but it adds 2^32 to the
 *     flags of the next call. So the lock owner stops before an empty ticket, and passes the lock to its group.
 * Flags start at 0 and are never cleared: the next call that is published in the slot overwrites them.
 *   Example, with 64-bit words as (high half, low half). Call A has ticket (7, 10) and two entries, a flush the empty
 *   ticket (8, 12), call B ticket (9, 12) and one entry. T is A's ticket.
 *     slot | flag >> 2 | kLastSlot | the lock owner expects
 *     10   | (7, 11)   |           | (7, 11): T + 1
 *     11   | (7, 12)   | set       | (7, 12): one more
 *     12   | (9, 13)   | set       | (8, 13): 2^32 + 1 more, because A has ended. B's flag does not match
 *   The lock owner combines A. T is then the flush's ticket.
 *
 * A SCAN is one execution of scan_published(): the lock owner finds the published calls from T on. A reading loads the
 * flags of the flag window once, or only its first parts (kFlagsAtOnce). The window is the first kFlagsPerThread * size
 * slots from T on: 32 for a thread, 512 for a warp. (A block combines as its leader alone, a thread.) A scan has 1 to
 * 1 + kMaxRereadings readings, and finds calls in the last one only.
 */
#ifndef EFA_GDA_PUBLICATION_H
#define EFA_GDA_PUBLICATION_H

#include "sq.h"

namespace efa_gda {

/* What a call adds to reserve.word besides its number of entries. */
constexpr uint64_t kOneCall = (uint64_t)1 << 32;

/* The low bits of a publication flag. kLastSlot: the slot is its call's last. kPlacedAhead: the call's entries are in
 * the ring, and not in its publication slots. */
constexpr uint64_t kLastSlot = 1, kPlacedAhead = 2;
/* The most entries of a call that may return early: as many as the smallest flag window has slots. */
constexpr uint32_t kMaxEarlyReturnEntries = 32;

/* Flags that each thread of a lock owner loads in one reading. */
template <class Group>
constexpr int kFlagsPerThread = Group::kSingleThread ? kMaxEarlyReturnEntries : 16;
/* Of these, the flags that each thread has in flight at once: the flag window is read in parts of so many flags for
 * each thread, a further part only if all flags before it match. */
template <class Group>
constexpr int kFlagsAtOnce = Group::kSingleThread ? 16 : 8;
/* The most readings of one scan after the first, for calls that arrive or are not published yet. */
constexpr int kMaxRereadings = 2;

/* The publication slots' geometry; not valid on a queue without publication slots. */
struct PublicationSlots {
  uint8_t *entries;
  uint64_t *flags;
  uint32_t mask;

  /* Leaves all members undefined, as in RingState. */
  EFA_GDA_FN PublicationSlots() {}
  EFA_GDA_FN explicit PublicationSlots(const efa_gda_queue *queue)
      : entries(queue->publication.entries),
        flags(queue->publication.flags),
        mask(queue->publication.num_entries - 1) {}

  EFA_GDA_FN uint64_t *flag(uint32_t slot) const { return flags + (slot & mask); }
};

/* The flag of entry i of the call with this ticket (shifted, low bits 0), without kLastSlot and kPlacedAhead. */
EFA_GDA_FN uint64_t flag_of(uint64_t ticket, uint64_t i) {
  return ticket + ((i + 1) << EFA_GDA_LOCK_STATE_BITS);
}

/* What match_flags() has found so far, the same on all threads. */
struct MatchedFlags {
  /* The whole calls whose flags match, and their slots. */
  uint32_t slots = 0, calls = 0;
  /* Flags that have kLastSlot and the right number of slots, and whether all flags match. */
  uint32_t ended = 0;
  bool no_gap = true;
  /* kPlacedAhead of T's first flag; the flags of calls that differ in it do not match. */
  uint32_t ahead = 0;
};

/* Matches the flags of size * Count slots (FLAGS), from slot number `first` * size on, counted from T's first slot.
 * `found` must be the result for all slots before, and becomes the result for these as well. flags[k] of the thread of
 * rank r is the flag of slot number (first + k) * size + r. `serving` is T as lock.serving holds it, but with state
 * bits 0. */
template <class Group, int Count>
EFA_GDA_FN void match_flags(Group group, const uint64_t (&flags)[Count], uint64_t serving, uint32_t first,
                            MatchedFlags &found) {
  /* No number of calls, shifted as in a flag, has this bit, so a word with it does not match. */
  constexpr uint32_t kNoMatch = kPlacedAhead;
  uint32_t rank = group.rank(), size = group.size(), words[Count];
  if (first == 0) found.ahead = group.from_leader((uint32_t)flags[0] & (uint32_t)kPlacedAhead);
  /* From T on, a flag counts in its low half the slots up to this one, in its high half the calls before this one's. If
   * the slots are right, the word is the high half, with kLastSlot, and with kNoMatch if kPlacedAhead is not that of
   * T's first flag: one register in place of two. */
  EFA_GDA_UNROLL for (uint32_t k = 0; k < Count; k++) {
    uint64_t from_t = flags[k] - serving;
    bool slots_match = (uint32_t)(from_t >> EFA_GDA_LOCK_STATE_BITS) == (first + k) * size + rank + 1;
    words[k] = slots_match ? (uint32_t)(from_t >> 32) | (((uint32_t)from_t & 3) ^ found.ahead) : kNoMatch;
  }
  EFA_GDA_UNROLL for (uint32_t k = 0; k < Count; k++) {
    uint32_t last = group.vote((words[k] & kLastSlot) != 0);
    uint32_t ended_before = found.ended + bits_in(last & ((1u << rank) - 1));
    uint32_t match = group.vote((words[k] & ~(uint32_t)kLastSlot) == ended_before << EFA_GDA_LOCK_STATE_BITS);
    uint32_t ready = low_ones(match);
    uint32_t ends = ready < size ? last & ((1u << ready) - 1) : last;
    if (found.no_gap && ends != 0) {
      found.slots = (first + k) * size + bit_width(ends);
      found.calls = found.ended + bits_in(ends);
    }
    found.no_gap = found.no_gap && ready >= size;
    found.ended += bits_in(last);
  }
}

/* The same for a group of one thread: one flag after the other, up to the first that does not match. It does without
 * found.ended. */
template <int Count>
EFA_GDA_FN void match_in_order(const uint64_t (&flags)[Count], uint64_t serving, uint32_t first, MatchedFlags &found) {
  if (first == 0) found.ahead = (uint32_t)flags[0] & (uint32_t)kPlacedAhead;
  uint64_t before = (uint64_t)found.calls << 32 | first;
  uint64_t expected = (serving | found.ahead) + (before << EFA_GDA_LOCK_STATE_BITS);
  EFA_GDA_UNROLL for (uint32_t k = 0; k < Count; k++) {
    expected += 1 << EFA_GDA_LOCK_STATE_BITS;
    found.no_gap = (flags[k] & ~kLastSlot) == expected;
    if (!found.no_gap) return;
    if ((flags[k] & kLastSlot) != 0) {
      expected += kOneCall << EFA_GDA_LOCK_STATE_BITS;
      found.slots = first + k + 1;
      found.calls++;
    }
  }
}

/* Scans (A SCAN). All threads of `group` call it, and receive the same result. `serving` is T as lock.serving
 * holds it, but with state bits 0; `next` is the low half of T. Entries of tickets from T on are outstanding; the
 * leader loads their number in each reading. After a reading, the scan does the first of these that applies:
 *   1. It reads again, because calls are arriving. For that, `linger` must be true (combine() sets it in Open, except
 *      in its first round), the scan must have read again fewer than kMaxRereadings times, and fewer entries must
 *      be outstanding than a flag window has slots. Their number must also be 0, or not that of the reading before
 *      (which is 0 for the first reading).
 *   2. It returns the whole calls whose flags match. For that, these must have half of the outstanding entries or more,
 *      or more than three quarters of a flag window, or the scan must have read again kMaxRereadings times.
 *   3. It reads again, because calls are not published yet.
 * The caller must then acquire the entries of these calls (A2). */
template <class Group>
EFA_GDA_FN MatchedFlags scan_published(const efa_gda_queue *queue, Group group, uint32_t next,
                                       const PublicationSlots &publication, bool linger, uint64_t serving) {
  constexpr int kFlagsPerThread = efa_gda::kFlagsPerThread<Group>, kFlagsAtOnce = efa_gda::kFlagsAtOnce<Group>;
  uint32_t outstanding_before = 0;
  EFA_GDA_NO_UNROLL for (int rereadings = 0;; rereadings++) {
    MatchedFlags found;
    uint32_t outstanding = 0;
    bool reads_again = false;
    EFA_GDA_NO_UNROLL for (int first = 0; first < kFlagsPerThread && found.no_gap; first += kFlagsAtOnce) {
      uint64_t flags[kFlagsAtOnce];
      EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsAtOnce; k++) {
        flags[k] = load_relaxed(publication.flag(next + (first + k) * group.size() + group.rank()));
      }
      if (first == 0) {
        uint32_t reserved = group.rank() == 0 ? (uint32_t)load_relaxed(&queue->reserve.word) : 0;
        outstanding = group.from_leader(reserved) - next;
        bool more_arrive = linger && (outstanding == 0 || outstanding != outstanding_before);
        reads_again = more_arrive && outstanding < kFlagsPerThread * group.size() && rereadings < kMaxRereadings;
        if (reads_again) break;
      }
      if constexpr (Group::kSingleThread) {
        match_in_order(flags, serving, first, found);
      } else {
        match_flags(group, flags, serving, first, found);
      }
    }
    outstanding_before = outstanding;
    if (reads_again) continue;
    uint32_t count = found.slots;
    if (2 * count >= outstanding || count > kFlagsPerThread * group.size() * 3 / 4 || rereadings >= kMaxRereadings) {
      return found;
    }
  }
}

/* Copies the `count` published entries with the producer indices from `slot` on to their slots in the ring, quad by
 * quad, so that stores of neighbouring threads cover whole lines. The caller must have acquired the entries (A2). There
 * must be room for them in the ring and in the batch window. Each iteration ends where the ring or the publication
 * slots wrap. */
template <class Group, int StoreBytes>
EFA_GDA_FN void copy_published(const Ring<Group, StoreBytes> &ring, const PublicationSlots &publication, uint32_t slot,
                               uint32_t count) {
  /* Quads that each thread reads before it stores the first of them. */
  constexpr uint32_t kQuads = 8;
  uint32_t rank = ring.group().rank(), stride = 16 * ring.group().size();
  while (count != 0) {
    uint32_t to_ring_end = ring.slots_to_end(slot),
             to_publication_end = publication.mask + 1 - (slot & publication.mask);
    uint32_t n = to_ring_end < to_publication_end ? to_ring_end : to_publication_end;
    if (n > count) n = count;
    const uint8_t *from = publication.entries + ((slot & publication.mask) << ring.entry_shift()) + 16 * rank;
    uint8_t *to = ring.slot_address(slot) + 16 * rank;
    uint32_t bytes = n << ring.entry_shift();
    /* If quads are read under a condition, the compiler keeps them from one iteration to the next, in registers. So
     * they are read without one while there are kQuads for each thread. */
    EFA_GDA_NO_UNROLL for (; bytes >= kQuads * stride; bytes -= kQuads * stride) {
      Quad quads[kQuads];
      EFA_GDA_UNROLL for (uint32_t k = 0; k < kQuads; k++) quads[k] = load_quad_local(from + k * stride);
      EFA_GDA_UNROLL for (uint32_t k = 0; k < kQuads; k++) {
        Ring<Group, StoreBytes>::store_to_ring(to + k * stride, quads[k]);
      }
      from += kQuads * stride;
      to += kQuads * stride;
    }
    int32_t bytes_left = (int32_t)(bytes - 16 * rank);
    Quad quads[kQuads];
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kQuads; k++) {
      quads[k] = Quad{0, 0, 0, 0};
      if (bytes_left > (int32_t)(k * stride)) quads[k] = load_quad_local(from + k * stride);
    }
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kQuads; k++) {
      if (bytes_left > (int32_t)(k * stride)) Ring<Group, StoreBytes>::store_to_ring(to + k * stride, quads[k]);
    }
    slot += n;
    count -= n;
  }
}

}  // namespace efa_gda

#endif
