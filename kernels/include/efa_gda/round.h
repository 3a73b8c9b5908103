/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Rounds of entries: each thread of a group makes its own entry, a full warp exchanges quads among its lanes so that
 * stores of 16 bytes cover whole lines, and each thread stores its share to the ring. It accesses no word of the queue
 * but the ring, and orders no accesses.
 *
 * TERMS. Group, entry, quad, producer index: see sq.h. Full warp, transpose(): see group.h.
 */
#ifndef EFA_GDA_ROUND_H
#define EFA_GDA_ROUND_H

#include "group.h"
#include "wqe.h"

namespace efa_gda {

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

/* The ring as entries are written to it: slots of 64 or 128 bytes. A thread may store its own entry, or quads of
 * several entries that a full warp has exchanged, which costs instructions, but fills whole lines of PCIe. */
struct Slots {
  uint8_t *buffer;
  uint32_t num_entries;
  bool wide_entries, wide_ids;
  /* Only stores of 8 bytes may write to it (EFA_GDA_SQ_STORES_OF_8). */
  bool narrow;

  /* Stores each quad whose condition holds. One branch for all four, because the lanes of a warp wait for each other
   * after each. */
  EFA_GDA_FN void store(const bool (&conditions)[4], uint8_t *const (&addresses)[4], const Quad (&quads)[4]) const {
    if (EFA_GDA_LIKELY(!narrow)) {
      EFA_GDA_UNROLL for (int k = 0; k < 4; k++) {
        if (conditions[k]) store_quad(addresses[k], quads[k]);
      }
    } else {
      EFA_GDA_UNROLL for (int k = 0; k < 4; k++) {
        if (conditions[k]) store_quad_by_eight(addresses[k], quads[k]);
      }
    }
  }
  /* Adds phase and request id of the entry with the producer index `slot`. */
  EFA_GDA_FN void set_slot(Entry &entry, uint32_t slot) const {
    entry.word[kWordControl] |= (slot & 0xffff) | phase_bit((slot & num_entries) != 0);
    /* Bits 63:32 of the id are zero. */
    if (wide_ids) entry.word[kWordIdMiddle] = slot & 0xffff0000;
  }
  /* Stores that entry. */
  EFA_GDA_FN void store(const Entry &entry, uint32_t slot) const {
    uint8_t *to = buffer + ((slot & (num_entries - 1)) << (wide_entries ? 7 : 6));
    if (EFA_GDA_LIKELY(!narrow)) {
      EFA_GDA_UNROLL for (int k = 0; k < 4; k++) store_quad(to + 16 * k, quad_of(entry, k));
      if (!wide_entries) return;
      EFA_GDA_UNROLL for (int k = 4; k < 8; k++) store_quad(to + 16 * k, quad_of(entry, k));
    } else {
      EFA_GDA_UNROLL for (int k = 0; k < 4; k++) store_quad_by_eight(to + 16 * k, quad_of(entry, k));
      if (!wide_entries) return;
      EFA_GDA_UNROLL for (int k = 4; k < 8; k++) store_quad_by_eight(to + 16 * k, quad_of(entry, k));
    }
  }
};

/* Adds phase and request id to `quads` (of make_quads()), and calls `store(conditions, addresses, quads)`: the
 * condition of a quad is whether its entry was made by a thread of rank first_rank to first_rank + count - 1. The entry
 * of rank first_rank + i has the producer index slot + i, the phase bit `phase`, and as its id that index (`wide_ids`)
 * or its low 16 bits; `address` is that of the quad in the ring at `memory`, which has mask + 1 slots of 1 << shift
 * bytes. Few instructions suffice, because slots, offsets and ids of a thread's quads differ by constants: the ring
 * must have at most 65,536 slots so that ids do not wrap within these entries, slot & mask must be at most mask + 1 -
 * count, and all entries must have one phase. Quads of other entries are changed to values without a meaning. */
template <class Group, class Store>
EFA_GDA_FN void store_quads_of_lap(const Group &group, Quad (&quads)[4], uint32_t first_rank, uint32_t count,
                                   uint32_t slot, bool phase, bool wide_ids, uint8_t *memory, uint32_t mask,
                                   uint32_t shift, Store store) {
  bool exchanged = group.in_full_warp();
  uint32_t i = entry_number(group, 0) - first_rank, number = quad_number(group, 0);
  /* Of a thread without an entry here, `i` is past the others or, modulo 2^32, below 0. */
  int64_t offset = (int64_t)(int32_t)((slot & mask) + i) * (1 << shift) + 16 * number;
  uint32_t bits = number == 0 ? phase_bit(phase) + (slot & 0xffff) + i : 0, step = number == 0 ? 2 : 0;
  uint32_t high = wide_ids && (!exchanged || number == 1) ? 0xffff0000u : 0;
  bool conditions[4];
  uint8_t *addresses[4];
  EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
    if (exchanged || k == 0) quads[k].x |= bits + k * step;
    /* Bits 63:32 of the id are zero. */
    if (exchanged || k == 1) quads[k].z |= (slot + i + (exchanged ? 2 * k : 0)) & high;
    conditions[k] = i + (exchanged ? 2 * k : 0) < count;
    addresses[k] = memory + (offset + (exchanged ? 2 * k << shift : 16 * k));
  }
  store(conditions, addresses, quads);
}

}  // namespace efa_gda

#endif
