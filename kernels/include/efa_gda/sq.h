/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The send queue in the hands of one writer: places entries, fences, rings, and keeps the
 * window and the ring's room. Who that writer is, and how several share a queue by
 * handing it on, is turn.h's business; requests are wqe.h's.
 *
 * THE POSTING PROTOCOL
 *
 * Words, in struct efa_gda_queue (32-bit counters, compared modulo 2^32):
 *   reserve.word  slots handed out, and calls; anyone adds to it (turn.h).
 *   turn.turn     whose turn it is. Only the holder of the turn writes it.
 *   turn.rung     value of the last doorbell.        Only the holder touches it.
 *   turn.seen     a doorbell the adapter surely has. Only the holder touches it.
 *   completion.completed  send completions so far. Only cq.h's reader writes it.
 * A group that owns the queue (Sharing::Thread, Warp, Block) holds the turn for as long as
 * its Sender is open and keeps the holder's words in registers.
 *
 * Only the holder of the turn writes ring slots and rings. So there is one writer at a
 * time, and the order of two writers is the order of turns.
 *
 * One fence a doorbell. To place and ring, the holder
 *   1. writes entries [rung, next) with plain stores (each lane of the group its own),
 *   2. synchronises the group: the lanes' stores happen before what the leader does next,
 *   3. fence.acq_rel.sys (leader),
 *   4. stores the doorbell (leader).
 * The fence is cumulative. Before it, in causality order, lie the entries of every lane
 * (2), everything earlier holders did (the turn is passed with a release and taken with
 * an acquire), and the doorbell before this one, the leader's own or an earlier holder's.
 * So the adapter has every entry before the doorbell that covers it, and has doorbells in
 * their order. Nothing has to be fenced after a doorbell, for its visibility is only
 * needed by the next one, whose own fence comes first. What a producer that waits for its
 * turn leaves in the stage is acquired by the holder and written by the holder, so it is
 * covered as the holder's own.
 *
 * The window. The adapter takes at most max_batch entries past the last doorbell it has.
 * Let `seen` be a doorbell value stored before a system fence that has completed: the
 * adapter has it. Entries up to `end` may be written while end - seen <= max_batch. The
 * fence of step 3 makes the previous doorbell `seen`. Where that is not enough, the holder
 * rings what is written, and where all is rung it fences once more, which makes `rung`
 * `seen`; then at most max_batch entries fit, so every chunk of at most max_batch entries
 * goes in sooner or later, max_batch 1 included. Lanes other than the leader know of a
 * completed fence only after the next sync: `fenced_` is what the leader knows, `seen_`
 * what all may use. When max_batch is at least the ring's size, the room below is the
 * tighter bound and no window is kept.
 *
 * The room. An entry's slot is free when fewer than num_entries requests are in flight:
 * end - completed <= num_entries, counting completions in any order, as rdma-core does
 * (wqe_posted - wqe_completed). A holder that waits for room has rung everything first.
 *
 * A doorbell record (EFA_GDA_SQ_RECORD). A host thread rings some time after the record is
 * stored, so a completed fence says nothing of what the adapter has, and no `seen` can be
 * known. A completion can: its request was covered by a doorbell, so the adapter has one of
 * at least `completed`. There the room is therefore min(num_entries, max_batch), which
 * keeps end - completed <= max_batch, and no window is kept.
 *
 * Waits are bounded; one that runs out poisons the queue, for a ticket is then missing
 * from the order, and the adapter may still write.
 */
#ifndef EFA_GDA_SQ_H
#define EFA_GDA_SQ_H

#include "cq.h"

namespace efa_gda {

/* Bytes that one store carries into the ring: 16, or 8 as rdma-core's copy does. */
#ifndef EFA_GDA_STORE_BYTES
#define EFA_GDA_STORE_BYTES 16
#endif

/* The ring as one writer sees it; a copy in the registers of each thread of the group,
 * the same in all of them. */
template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ring {
 public:
  EFA_GDA_FN Ring(efa_gda_queue *queue, Group group)
      : group_(group),
        queue_(queue),
        buffer_(queue->sq.buffer),
        doorbell_(queue->sq.doorbell),
        depth_(queue->sq.num_entries),
        room_(depth_),
        window_(kNoWindow),
        flags_(queue->sq.flags),
        wide_(queue->sq.entry_size == 128),
        next_(0),
        rung_(0),
        seen_(0),
        fenced_(0),
        limit_(0) {
    uint32_t batch = queue->sq.max_batch;
    if (batch < depth_) {
      if ((flags_ & EFA_GDA_SQ_RECORD) != 0) {
        room_ = batch;
      } else {
        window_ = batch;
      }
    }
  }

  /* Takes over from whoever held the turn. A limit that is no longer within the room is
   * forgotten: between two turns the counters may have gone anywhere. */
  EFA_GDA_FN void take(uint32_t next, uint32_t rung, uint32_t seen) {
    next_ = next;
    rung_ = rung;
    seen_ = fenced_ = seen;
    if (limit_ - next > room_) limit_ = next;
  }

  EFA_GDA_FN uint32_t next() const { return next_; }
  EFA_GDA_FN uint32_t rung() const { return rung_; }
  /* What the leader knows the adapter to have. */
  EFA_GDA_FN uint32_t fenced() const { return fenced_; }
  EFA_GDA_FN uint32_t depth() const { return depth_; }
  EFA_GDA_FN uint32_t flags() const { return flags_; }
  EFA_GDA_FN bool wide_entries() const { return wide_; }
  EFA_GDA_FN Group group() const { return group_; }
  EFA_GDA_FN bool leads() const { return group_.rank() == 0; }
  /* Completions that the leader read while it waited for room. */
  EFA_GDA_FN Completions &found() { return found_; }

  EFA_GDA_FN void write(uint32_t slot, int i, const Quad &quad) {
    uint8_t *to = buffer_ + ((uint64_t)(slot & (depth_ - 1)) << (wide_ ? 7 : 6)) + 16 * i;
    if (StoreBytes == 16) {
      store_quad(to, quad);
    } else {
      store_quad_by_eight(to, quad);
    }
  }
  EFA_GDA_FN void write(uint32_t slot, const Entry &entry) {
    EFA_GDA_UNROLL for (int i = 0; i < 4; i++) write(slot, i, quad_of(entry, i));
    if (wide_) {
      EFA_GDA_UNROLL for (int i = 4; i < 8; i++) write(slot, i, quad_of(entry, i));
    }
  }
  /* Phase and request id of the entry for `slot`. The id is the slot's number. */
  EFA_GDA_FN void finish_for(uint32_t slot, Entry &entry) const {
    finish(entry, (slot & depth_) != 0, slot, (flags_ & EFA_GDA_SQ_REQ_ID_64) != 0);
  }

  /* Places `count` entries and, with `ring`, rings for them; more than fit the window or
   * the ring go in chunks with a doorbell each. `put(i, slot)` writes entry i, on the
   * thread whose rank is i modulo the group's size. */
  template <class Put>
  EFA_GDA_FN efa_gda_status place(uint32_t count, Put put, bool ring, uint64_t timeout_ns) {
    uint32_t most = window_ < room_ ? window_ : room_, chunk = count;
    if (count > most) {
      uint32_t parts = (count + most - 1) / most;
      chunk = (count + parts - 1) / parts;
    }
    uint32_t mine = group_.rank();
    for (uint32_t done = 0; done < count;) {
      uint32_t n = count - done < chunk ? count - done : chunk;
      efa_gda_status status = admit(n, timeout_ns);
      if (status != EFA_GDA_OK) return status;
      for (; mine < done + n; mine += group_.size()) put(mine, next_ + (mine - done));
      done += n;
      next_ += n;
      if (ring) this->ring();
    }
    return EFA_GDA_OK;
  }

  /* Rings for everything placed. */
  EFA_GDA_FN void ring() {
    group_.sync();
    seen_ = fenced_;
    if (leads()) {
      fence_system();
      store_rung(next_);
    }
    fenced_ = rung_;
    rung_ = next_;
  }

  /* Whether `count` entries fit the ring now. */
  EFA_GDA_FN bool has_room(uint32_t count) {
    if (limit_ - next_ >= count) return true;
    uint32_t limit = limit_;
    if (leads()) limit = limit_now();
    limit_ = group_.from_leader(limit);
    return limit_ - next_ >= count;
  }

 private:
  static constexpr uint32_t kNoWindow = 0x80000000u;

  /* Step 4. A record takes the whole counter: a host thread rings from it. */
  EFA_GDA_FN void store_rung(uint32_t value) {
    if ((flags_ & EFA_GDA_SQ_RECORD) != 0) {
      store_system(doorbell_, value);
    } else {
      store_doorbell(doorbell_, value & 0xffff);
    }
  }

  /* Waits until `n` more entries may be written; n is at most the window and the room. */
  EFA_GDA_FN efa_gda_status admit(uint32_t n, uint64_t timeout_ns) {
    while (window_ != kNoWindow && next_ + n - seen_ > window_) {
      if (fenced_ != seen_) {
        group_.sync();
        seen_ = fenced_;
      } else if (next_ != rung_) {
        ring();
      } else {
        if (leads()) fence_system();
        group_.sync();
        seen_ = fenced_ = rung_;
      }
    }
    if (limit_ - next_ >= n) return EFA_GDA_OK;
    return wait_for_room(n, timeout_ns);
  }

  /* Completions so far plus the room; never more than that past `next_`. */
  EFA_GDA_FN uint32_t limit_now() {
    uint32_t limit = completed_now(queue_, found_) + room_;
    return limit - next_ > room_ ? next_ + room_ : limit;
  }

  EFA_GDA_FN efa_gda_status wait_for_room(uint32_t n, uint64_t timeout_ns) {
    if (next_ != rung_) ring();
    uint32_t limit = limit_, status = EFA_GDA_OK;
    if (leads()) {
      Deadline deadline(queue_, timeout_ns);
      for (;;) {
        limit = limit_now();
        if (limit - next_ >= n) break;
        status = deadline.turn(EFA_GDA_TIMEOUT_ROOM);
        if (status != EFA_GDA_OK) break;
      }
      if (status != EFA_GDA_OK) poison(queue_, (efa_gda_status)status);
    }
    uint64_t both = group_.from_leader((uint64_t)status << 32 | limit);
    limit_ = (uint32_t)both;
    return (efa_gda_status)(both >> 32);
  }

  Group group_;
  efa_gda_queue *queue_;
  uint8_t *buffer_;
  volatile uint32_t *doorbell_;
  /* `room_`: requests in flight at most. */
  uint32_t depth_, room_, window_, flags_;
  bool wide_;
  uint32_t next_, rung_, seen_, fenced_;
  /* `next_` may go up to here: completions known, plus the room. At most room_ past it. */
  uint32_t limit_;
  Completions found_;
};

}  // namespace efa_gda

#endif
