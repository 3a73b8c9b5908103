/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Rounds of entries: makes each thread's share of a round, exchanges quads among the lanes of a full warp if that helps
 * (StoringGroup), and hands each quad, with its offset or address, to a function of the caller that stores it. It
 * accesses no word of the queue and orders no accesses.
 *
 * TERMS. Group, entry, quad, round, producer index: see sq.h. Full warp, transpose(): see group.h.
 */
#ifndef EFA_GDA_ROUND_H
#define EFA_GDA_ROUND_H

#include "group.h"
#include "wqe.h"

namespace efa_gda {

/* A group as it makes and stores entries: the `group` of the functions below. In a full warp the lanes exchange quads
 * for stores of 16 bytes, so that each store of the warp covers whole lines. Stores of 8 bytes reach the ring one by
 * one in any case. */
template <class Group, int StoreBytes>
struct StoringGroup : Group {
  EFA_GDA_FN explicit StoringGroup(const Group &group) : Group(group) {}
  EFA_GDA_FN bool in_full_warp() const { return StoreBytes == 16 && Group::in_full_warp(); }
};

/* One thread's share of a round of entries. */
struct EntryShare {
  /* Four quads of the first 64 bytes of the round's entries; quad_number() and entry_number() state which. */
  Quad quads[4];
  /* Entries [begin, end) of the post(): the round, or the part of it that is placed now. The thread of rank r has made
   * entry first + r, if that was to be made: the round, or of a later round the part for which there were free slots.
   * `first` is a multiple of the group's size, and stays the same while the round is placed in parts. */
  uint32_t first, begin, end;
  /* 16 words of this thread's memory: four quads of the second 64 bytes of the same entries, on queues with entries of
   * 128. Volatile, so that the compiler keeps them in no registers. */
  volatile uint32_t *upper;

  EFA_GDA_FN explicit EntryShare(volatile uint32_t *upper_half) : upper(upper_half) {}
};

/* After make_quads(), the k-th of this thread's four quads is quad quad_number(group, k) of the entry that the thread
 * of rank entry_number(group, k) made. In a full warp transpose() has exchanged quads; other threads have the quads of
 * their own entries. */
template <class Group>
EFA_GDA_FN uint32_t entry_number(const Group &group, uint32_t k) {
  return group.in_full_warp() ? group.rank() - group.lane() + Transpose::source_lane(group.lane(), k) : group.rank();
}
template <class Group>
EFA_GDA_FN uint32_t quad_number(const Group &group, uint32_t k) {
  return group.in_full_warp() ? Transpose::quad(group.lane()) : k;
}

/* If this thread `has_entry`, makes its entry by `make(i)`; if not, it takes an entry of zeroes, because the exchange
 * needs all lanes. Adds `hints`, the queue's, calls `visit` with the whole entry, and stores its first 64 bytes to
 * `quads`, exchanged in a full warp. All threads of the group must call it together. */
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

/* Exchanges share.upper in a full warp, as make_quads() does the first 64 bytes, but one word of each quad at a time,
 * for which few registers suffice. All lanes of a full warp must call it together, and no other threads. */
template <class Group>
EFA_GDA_FN void transpose_upper(const Group &group, EntryShare &share) {
  EFA_GDA_NO_UNROLL for (int word = 0; word < 4; word++) {
    uint32_t words[4];
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) words[k] = share.upper[4 * k + word];
    group.transpose(words);
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) share.upper[4 * k + word] = words[k];
  }
}

/* Adds the phase and the 64-bit request id slot + i to each quad of the entry that the thread of rank i made. */
template <class Group>
EFA_GDA_FN void set_wide_ids(const Group &group, Quad (&quads)[4], uint32_t slot, bool phase) {
  EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
    set_ring_fields(quads[k], quad_number(group, k), phase, slot + entry_number(group, k), true);
  }
}

/* Adds phase and request id to `quads` (of make_quads()), and calls `store(address, quad)` for each of them whose entry
 * was made by a thread of rank first_rank to first_rank + count - 1. The entry of rank first_rank + i has the producer
 * index slot + i, the phase bit `phase`, and as its id the low 16 bits of that index; `address` is that of the quad in
 * `memory`, which has mask + 1 slots of 1 << shift bytes, the ring or publication slots, in slot (slot + i) & mask. Few
 * instructions suffice, because slots, offsets and ids of a thread's quads differ by constants: `memory` must have at
 * most 65,536 slots so that ids do not wrap within these entries, slot & mask must be at most mask + 1 - count, and all
 * entries must have one phase. Phase and id must be zero before, or have these values already. Quads of other entries
 * are changed to values without a meaning. */
template <class Group, class Store>
EFA_GDA_FN void store_quads_of_lap(const Group &group, Quad (&quads)[4], uint32_t first_rank, uint32_t count,
                                   uint32_t slot, bool phase, uint8_t *memory, uint32_t mask, uint32_t shift,
                                   Store store) {
  bool exchanged = group.in_full_warp();
  uint32_t i = entry_number(group, 0) - first_rank, number = quad_number(group, 0);
  /* Of a thread without an entry here, `i` is past the others or, modulo 2^32, below 0. */
  int64_t offset = (int64_t)(int32_t)((slot & mask) + i) * (1 << shift) + 16 * number;
  uint32_t bits = number == 0 ? phase_bit(phase) + (slot & 0xffff) + i : 0, step = number == 0 ? 2 : 0;
  EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
    if (exchanged || k == 0) quads[k].x |= bits + k * step;
    if (i + (exchanged ? 2 * k : 0) < count) {
      store(memory + (offset + (exchanged ? 2 * k << shift : 16 * k)), quads[k]);
    }
  }
}

}  // namespace efa_gda

#endif
