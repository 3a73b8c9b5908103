/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Rounds of entries: makes each thread's share of a round, exchanges quads among the lanes of a full warp, and passes
 * on each quad with the offset of its slot. It accesses no word of the queue.
 *
 * TERMS. Entry, quad, round, producer index: see sq.h.
 */
#ifndef EFA_GDA_ROUND_H
#define EFA_GDA_ROUND_H

#include "group.h"
#include "wqe.h"

namespace efa_gda {

/* One thread's share of a round of entries. */
struct EntryShare {
  /* The first 64 bytes of entries. A full warp's are transposed. */
  Quad quads[4];
  /* The round: entries [begin, end) of the call. The thread of rank r has entry first + r if that is among them.
   * `first` is a multiple of the group's size. */
  uint32_t first, begin, end;
  /* 16 words each of this thread's memory. `upper`: the second 64 bytes, on queues with entries of 128. `parked`:
   * `quads` during a wait; null if no wait of the caller comes between make() and the stores. Volatile, so that the
   * compiler keeps neither in registers. */
  volatile uint32_t *upper, *parked;

  EFA_GDA_FN EntryShare(volatile uint32_t *upper_half, volatile uint32_t *parked_quads)
      : upper(upper_half), parked(parked_quads) {}
  EFA_GDA_FN void park() {
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) {
      parked[4 * k] = quads[k].x;
      parked[4 * k + 1] = quads[k].y;
      parked[4 * k + 2] = quads[k].z;
      parked[4 * k + 3] = quads[k].w;
    }
  }
  EFA_GDA_FN void unpark() {
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) {
      quads[k] = Quad{parked[4 * k], parked[4 * k + 1], parked[4 * k + 2], parked[4 * k + 3]};
    }
  }
};

/* After transpose(), a thread's k-th quad is quad quad_number(group, k) of the round's entry entry_number(group, k). */
template <class Group>
EFA_GDA_FN uint32_t entry_number(const Group &group, uint32_t k) {
  return group.in_full_warp() ? group.rank() - group.lane() + Transpose::source_lane(group.lane(), k) : group.rank();
}
template <class Group>
EFA_GDA_FN uint32_t quad_number(const Group &group, uint32_t k) {
  return group.in_full_warp() ? Transpose::quad(group.lane()) : k;
}

/* Makes this thread's entry i, if it `has_entry`, with the queue's `hints`, and exchanges its first 64 bytes. All
 * threads call `visit`: with the entry or, if they have none, with an empty one. */
template <class Group, class Make, class Visit>
EFA_GDA_FN void make_quads(const Group &group, uint32_t hints, Quad (&quads)[4], uint32_t i, bool has_entry, Make make,
                           Visit visit) {
  Entry entry = Entry();
  if (has_entry) entry = make(i);
  set_hints(entry, hints);
  visit(entry);
  EFA_GDA_UNROLL for (int k = 0; k < 4; k++) quads[k] = quad_of(entry, k);
  if (group.in_full_warp()) group.transpose(quads);
}

/* Exchanges the second 64 bytes, one word of each quad at a time, for which few registers suffice. */
template <class Group>
EFA_GDA_FN void transpose_upper(const Group &group, EntryShare &share) {
  EFA_GDA_NO_UNROLL for (int word = 0; word < 4; word++) {
    uint32_t words[4];
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) words[k] = share.upper[4 * k + word];
    group.transpose(words);
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) share.upper[4 * k + word] = words[k];
  }
}

/* Calls `store(offset, quad)` for each of `quads`, of the first 64 bytes of entries, that belongs to the entries of the
 * threads of rank first_rank to first_rank + count - 1. They have the producer indices from `slot` on. The entry of
 * producer index s receives the phase bit (s & num_entries) != 0 in quad 0, and the request id: with `wide_ids` s, in
 * quads 0 and 1, otherwise the low 16 bits of s, in quad 0. The slot's offset is (s & mask) << shift. */
template <class Group, class Store>
EFA_GDA_FN void store_quads(const Group &group, const Quad (&quads)[4], uint32_t first_rank, uint32_t count,
                            uint32_t slot, uint32_t mask, uint32_t shift, uint32_t num_entries, bool wide_ids,
                            Store store) {
  EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
    uint32_t i = entry_number(group, k) - first_rank, s = slot + i;
    Quad quad = quads[k];
    set_ring_fields(quad, quad_number(group, k), (s & num_entries) != 0, s, wide_ids);
    if (i < count) store(((s & mask) << shift) + 16 * quad_number(group, k), quad);
  }
}

}  // namespace efa_gda

#endif
