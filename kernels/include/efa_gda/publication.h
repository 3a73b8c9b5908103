/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Publication slots: where a group that waits for the ticket lock publishes its entries, and how the lock owner finds
 * them and copies them to the ring. ticket_lock.h states the terms, the words, their pairs, and when a group may
 * publish.
 *
 * FLAGS. The flag of entry i of a call, from 0, is (ticket + i + 1) << 2, plus kLastSlot on the call's last entry. The
 * lock owner knows T, so it knows the value, without kLastSlot, that each flag must have: the first is (T + 1) << 2;
 * each further one is 1 << 2 more than the flag before, or (2^32 + 1) << 2 more if the flag before has kLastSlot. The
 * lock owner combines whole calls, from T on, up to the first flag that does not match. A flag does not match
 *   - if its slot's call is not published: the flag is 0 or that of an earlier call in this slot,
 *   - if an empty ticket lies before that call: an empty ticket has no slot and no flag, but it adds 2^32 to the flags
 *     of the next call. So the lock owner stops before an empty ticket; in Closing it passes the lock to that ticket's
 *     group.
 * Flags start at 0 and are never cleared: the next call that uses the slot overwrites them.
 */
#ifndef EFA_GDA_PUBLICATION_H
#define EFA_GDA_PUBLICATION_H

#include "sq.h"

namespace efa_gda {

/* What a call adds to reserve.word besides its number of entries. */
constexpr uint64_t kOneCall = (uint64_t)1 << 32;

/* The low bit of a publication flag: the slot is its call's last. */
constexpr uint64_t kLastSlot = 1;
/* The most entries of a call that may return early: no more than the flag window of any kind of lock owner. */
constexpr uint32_t kMaxEarlyReturnEntries = 32;

/* Flags that each thread of a lock owner reads at once. The flag window of a group is the slots whose flags one reading
 * loads: the first kFlagsPerThread * size from T on. */
template <class Group>
constexpr int kFlagsPerThread = Group::kSingleThread ? kMaxEarlyReturnEntries : 16;
/* Further readings of the flag window in one scan, for calls that arrive or are not published yet. */
constexpr int kMaxRereadings = 2;

/* The publication slots' geometry. */
struct PublicationSlots {
  uint8_t *entries;
  uint64_t *flags;
  uint32_t mask;

  EFA_GDA_FN PublicationSlots() : entries(nullptr), flags(nullptr), mask(0) {}
  EFA_GDA_FN explicit PublicationSlots(const efa_gda_queue *queue)
      : entries(queue->publication.entries),
        flags(queue->publication.flags),
        mask(queue->publication.num_entries - 1) {}

  EFA_GDA_FN uint64_t *flag(uint32_t slot) const { return flags + (slot & mask); }
};

/* The flag of entry i of the call with this ticket (shifted), without kLastSlot. */
EFA_GDA_FN uint64_t flag_of(uint64_t ticket, uint64_t i) {
  return ticket + ((i + 1) << EFA_GDA_LOCK_STATE_BITS);
}

/* Returns the number of slots of the whole calls whose flags match from `serving` on, and advances `serving` past
 * them. flags[k] of the thread of rank r is the flag of the (k * size + r)-th slot after T's first. Without kLastSlot
 * and in units of 1 << 2, it matches if it is 1 more than that of the slot before, or 2^32 + 1 more if the slot before
 * is its call's last. */
template <class Group>
EFA_GDA_FN uint32_t match_flags(Group group, const uint64_t (&flags)[kFlagsPerThread<Group>], uint64_t &serving) {
  constexpr int kFlagsPerThread = efa_gda::kFlagsPerThread<Group>;
  uint32_t rank = group.rank(), size = group.size(), slots = 0, calls = 0, ended = 0;
  uint32_t last[kFlagsPerThread], match[kFlagsPerThread];
  /* All votes first: each has a long latency, and none depends on another's result. */
  EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsPerThread; k++) last[k] = group.vote((flags[k] & kLastSlot) != 0);
  EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsPerThread; k++) {
    uint64_t ended_before = ended + bits_in(last[k] & ((1u << rank) - 1));
    match[k] = group.vote((flags[k] & ~kLastSlot) ==
                          flag_of(serving, k * size + rank + ended_before * kOneCall));
    ended += bits_in(last[k]);
  }
  bool no_gap = true;
  ended = 0;
  EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsPerThread; k++) {
    uint32_t ready = low_ones(match[k]);
    uint32_t ends = ready < size ? last[k] & ((1u << ready) - 1) : last[k];
    if (no_gap && ends != 0) {
      slots = k * size + bit_width(ends);
      calls = ended + bits_in(ends);
    }
    no_gap = no_gap && ready >= size;
    ended += bits_in(last[k]);
  }
  serving += (slots + calls * kOneCall) << EFA_GDA_LOCK_STATE_BITS;
  return slots;
}

/* Returns the number of slots of the whole calls that are published from `serving` on, at most a flag window, and
 * advances `serving` past them. Outstanding are the entries that have a ticket and are not in the ring. After a reading
 * of the flag window, it either reads again at once, to wait for calls that arrive, or matches the flags:
 *   outstanding at this reading                            | without `linger` | with `linger`
 *   none                                                   | matches          | reads again
 *   changed since the reading before (before the first: 0) | matches          | reads again
 *   the same as at the reading before, or a window or more | matches          | matches
 * It returns what matched if that is all that is outstanding or more than three quarters of a flag window; otherwise it
 * reads again. After kMaxRereadings further readings it matches and returns in any case. */
template <class Group, int StoreBytes>
EFA_GDA_FN uint32_t scan_published(efa_gda_queue *queue, const Ring<Group, StoreBytes> &ring,
                                   const PublicationSlots &publication, bool linger, uint64_t &serving) {
  constexpr int kFlagsPerThread = efa_gda::kFlagsPerThread<Group>;
  Group group = ring.group();
  uint32_t outstanding_before = 0;
  for (int rereadings = 0;; rereadings++) {
    uint64_t flags[kFlagsPerThread], after = serving;
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsPerThread; k++) {
      flags[k] = load_relaxed(publication.flag(ring.next() + k * group.size() + group.rank()));
    }
    uint32_t reserved = ring.is_leader() ? (uint32_t)load_relaxed(&queue->reserve.word) : 0;
    uint32_t outstanding = group.from_leader(reserved) - ring.next();
    bool more_arrive = linger && (outstanding == 0 || outstanding != outstanding_before);
    outstanding_before = outstanding;
    if (more_arrive && outstanding < kFlagsPerThread * group.size() && rereadings < kMaxRereadings) continue;
    uint32_t count = match_flags(group, flags, after);
    if (count == outstanding || count > kFlagsPerThread * group.size() * 3 / 4 || rereadings >= kMaxRereadings) {
      /* Acquires the flags (A2): each thread those that it read, and after the sync all of them. */
      if (count != 0) {
        fence_device();
        group.sync();
      }
      serving = after;
      return count;
    }
  }
}

/* Copies published entries to the ring, quad by quad, so that stores of neighbouring threads cover whole lines. One
 * iteration goes as far as neither the ring nor the publication slots wrap. */
template <class Group, int StoreBytes>
EFA_GDA_FN void copy_published(const Ring<Group, StoreBytes> &ring, const PublicationSlots &publication, uint32_t slot,
                               uint32_t count) {
  /* Quads that each thread reads before it stores the first of them. */
  constexpr int kQuadsPerThread = 16;
  uint32_t rank = ring.group().rank(), stride = 16 * ring.group().size();
  while (count != 0) {
    uint32_t to_ring_end = ring.slots_to_end(slot),
             to_publication_end = publication.mask + 1 - (slot & publication.mask);
    uint32_t n = to_ring_end < to_publication_end ? to_ring_end : to_publication_end;
    if (n > count) n = count;
    const uint8_t *from = publication.entries + ((slot & publication.mask) << ring.entry_shift()) + 16 * rank;
    uint8_t *to = ring.slot_address(slot) + 16 * rank;
    int32_t bytes_left = (int32_t)((n << ring.entry_shift()) - 16 * rank);
    for (; bytes_left > 0;
         bytes_left -= kQuadsPerThread * stride, from += kQuadsPerThread * stride, to += kQuadsPerThread * stride) {
      Quad quads[kQuadsPerThread];
      EFA_GDA_UNROLL for (int k = 0; k < kQuadsPerThread; k++) {
        if (bytes_left > (int32_t)(k * stride)) quads[k] = load_quad_local(from + k * stride);
      }
      EFA_GDA_UNROLL for (int k = 0; k < kQuadsPerThread; k++) {
        if (bytes_left > (int32_t)(k * stride)) Ring<Group, StoreBytes>::store_to_ring(to + k * stride, quads[k]);
      }
    }
    slot += n;
    count -= n;
  }
}

}  // namespace efa_gda

#endif
