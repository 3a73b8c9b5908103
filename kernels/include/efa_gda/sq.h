/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The send queue in the hands of one writer: places entries, fences, rings, and keeps the
 * window and the ring's room. Who that writer is, and how several share a queue by
 * handing it on, is ticket_lock.h's business; requests are wqe.h's.
 *
 * THE POSTING PROTOCOL
 *
 * Words, in struct efa_gda_queue (32-bit counters, compared modulo 2^32):
 *   reserve.word  slots handed out, and calls; anyone adds to it (ticket_lock.h).
 *   lock.serving     whose turn it is. The holder of the turn writes it; where two want it, one
 *                 compare-and-swap does (ticket_lock.h).
 *   lock.doorbell_index     value of the last doorbell.        Only the holder touches it.
 *   lock.confirmed_index     a doorbell the adapter surely has. Only the holder touches it.
 *   completion.completed  send completions so far. Only cq.h's reader writes it; by counters,
 *                 whoever looks moves it on.
 * A group that owns the queue (Sharing::Thread, Warp, Block) holds the turn for as long as
 * its Sender is open, by a ticket of its own, and keeps the holder's words in registers.
 *
 * Only the holder of the turn writes ring slots and rings. So there is one writer at a
 * time, and the order of two writers is the order of turns.
 *
 * One fence a doorbell. To place and ring, the holder
 *   1. writes entries [rung, next) with plain stores (each lane of the group its share),
 *   2. synchronises the group: the lanes' stores happen before what anyone does next,
 *   3. fence.acq_rel.sys (the leader; in a warp every lane, which costs the same),
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
 * goes in sooner or later, max_batch 1 included. So a window of M costs two fences for M
 * entries, whether as one chunk with two or as two halves with one each. Who did not fence
 * itself knows of a completed fence only after the next sync: `fenced_` is what the leader
 * knows, `seen_` what all may use. When max_batch is at least the ring's size, the room
 * below is the tighter bound and no window is kept.
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

/* Entries of one call at most. */
constexpr uint32_t kMostEntries = 1 << 16;

/* One thread's share of as many entries as the group has threads. */
struct Made {
  Quad quads[4];
  /* Of entries of 128 bytes. */
  Quad more[4];
  /* Where the quads go, in bytes from the entry of slot 0 on. */
  uint32_t at[4];
  /* Numbers of the group's entries: from `done` on, `left` of them. */
  uint32_t done, left;
};

/* The ring as one writer sees it; a copy in the registers of each thread of the group,
 * the same in all of them from `take` on. */
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
        shift_(queue->sq.entry_size == 128 ? 7 : 6),
        doorbell_bits_((queue->sq.flags & EFA_GDA_SQ_RECORD) != 0 ? ~0u : 0xffffu),
        wide_ids_((queue->sq.flags & EFA_GDA_SQ_REQ_ID_64) != 0),
        next_(0),
        rung_(0),
        seen_(0),
        fenced_(0),
        limit_(0),
        calls_(0) {
    uint32_t batch = queue->sq.max_batch;
    if (batch < depth_) {
      if ((queue->sq.flags & EFA_GDA_SQ_RECORD) != 0) {
        room_ = batch;
      } else {
        window_ = batch;
      }
    }
  }

  /* Opens the ring at `word`, the call that has the turn now or had it last: nothing is
   * known of the room from there on. */
  EFA_GDA_FN void open(uint64_t word) {
    next_ = limit_ = (uint32_t)word;
    calls_ = (uint32_t)(word >> 32);
  }

  /* Takes over from whoever held the turn, as the call `word`. A limit that is no longer
   * within the room is forgotten, and one from so many calls ago that slots may have gone
   * around since. */
  EFA_GDA_FN void take(uint64_t word, uint32_t rung, uint32_t seen) {
    next_ = (uint32_t)word;
    rung_ = rung;
    seen_ = fenced_ = seen;
    uint32_t calls = (uint32_t)(word >> 32);
    if (limit_ - next_ > room_ || calls - calls_ >= kFewCalls) limit_ = next_;
    calls_ = calls;
  }

  /* Takes over what another handle of the same queue knows, whose leader calls. */
  template <class Other>
  EFA_GDA_FN void take_over(Ring<Other, StoreBytes> &other) {
    next_ = limit_ = other.next();
    rung_ = other.rung();
    seen_ = fenced_ = other.fenced();
    found_ = other.found();
  }

  EFA_GDA_FN uint32_t next() const { return next_; }
  EFA_GDA_FN uint32_t rung() const { return rung_; }
  /* What the leader knows the adapter to have. */
  EFA_GDA_FN uint32_t fenced() const { return fenced_; }
  EFA_GDA_FN uint32_t depth() const { return depth_; }
  EFA_GDA_FN bool wide_entries() const { return shift_ == 7; }
  EFA_GDA_FN Group group() const { return group_; }
  EFA_GDA_FN bool leads() const { return group_.rank() == 0; }
  /* Completions that the leader read while it waited for room. */
  EFA_GDA_FN Completions &found() { return found_; }

  EFA_GDA_FN uint8_t *at(uint32_t slot) const { return buffer_ + ((slot & (depth_ - 1)) << shift_); }
  EFA_GDA_FN static void write(uint8_t *to, const Quad &quad) {
    if (StoreBytes == 16) {
      store_quad(to, quad);
    } else {
      store_quad_by_eight(to, quad);
    }
  }

  /* Makes this thread's share of the entries [done, done + size) of a call of `count`:
   * `make(i)` gives entry i, on the thread whose rank is i modulo the group's size. A whole
   * warp trades quads, so that its stores cover whole lines: entries that several warps
   * store quad by quad reach PCIe in pieces. `finish` adds the rest. */
  template <class Make>
  EFA_GDA_FN void make(Made &made, uint32_t done, uint32_t count, Make make) {
    uint32_t i = done + group_.rank();
    Entry entry = Entry();
    if (i < count) entry = make(i);
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) made.quads[k] = quad_of(entry, k);
    if (group_.trades()) group_.trade(made.quads);
    if (wide_entries()) {
      EFA_GDA_UNROLL for (int k = 0; k < 4; k++) made.more[k] = quad_of(entry, 4 + k);
      if (group_.trades()) group_.trade(made.more);
    }
    made.done = done;
    made.left = count - done < group_.size() ? count - done : group_.size();
  }

  /* Adds what the ring decides, the entries' slots being those from `slot` on: phase and
   * request id, which is the slot's number, and places as `mask` wraps them. */
  EFA_GDA_FN void finish(Made &made, uint32_t slot, uint32_t mask) const {
    EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
      uint32_t s = slot + number(k), quad = quad_number(k);
      efa_gda::finish(made.quads[k], quad, (s & depth_) != 0, s, wide_ids_);
      made.at[k] = ((s & mask) << shift_) + 16 * quad;
    }
  }

  /* Calls `put(at, quad)` for each quad that this thread made of the group's entries
   * [lo, lo + n), counted from made.done. */
  template <class Put>
  EFA_GDA_FN void each(const Made &made, uint32_t lo, uint32_t n, Put put) const {
    EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
      if (number(k) - lo < n) put(made.at[k], made.quads[k]);
    }
    if (wide_entries()) {
      EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
        if (number(k) - lo < n) put(made.at[k] + 64, made.more[k]);
      }
    }
  }

  /* Places `count` entries; more than fit the window or the ring go in chunks, with a
   * doorbell each but for the last, and under a window each when the adapter has the
   * doorbell before it. `write(done, n, slot)` writes n of them, from number `done` on, to
   * the slots from `slot` on; all threads call it. What fits at once has code of its own: in
   * one loop with the rest it is a tenth slower. */
  template <class Write>
  EFA_GDA_FN efa_gda_status place(uint32_t count, Write write, uint64_t timeout_ns) {
    if (EFA_GDA_LIKELY(next_ + count - seen_ <= window_ && limit_ - next_ >= count)) {
      write(0u, count, next_);
      next_ += count;
      return EFA_GDA_OK;
    }
    uint32_t chunk = window_ < room_ ? window_ : room_, n = count < chunk ? count : chunk, done = 0;
    open_window(n);
    for (;;) {
      if (!EFA_GDA_LIKELY(limit_ - next_ >= n)) {
        if (next_ != rung_) ring();
        efa_gda_status status = wait_for_room(n, timeout_ns);
        if (status != EFA_GDA_OK) return status;
      }
      write(done, n, next_);
      next_ += n;
      done += n;
      if (done == count) return EFA_GDA_OK;
      ring();
      if (window_ != kNoWindow) confirm();
      n = count - done < chunk ? count - done : chunk;
    }
  }

  /* Places a call's entries; `made` holds its first share. */
  template <class Make>
  EFA_GDA_FN efa_gda_status place_made(Made &made, uint32_t count, Make make, uint64_t timeout_ns) {
    for (;;) {
      finish(made, next_, depth_ - 1);
      auto write = [&](uint32_t lo, uint32_t n, uint32_t) {
        each(made, lo, n, [&](uint32_t at, const Quad &quad) { Ring::write(buffer_ + at, quad); });
      };
      efa_gda_status status = place(made.left, write, timeout_ns);
      uint32_t next = made.done + group_.size();
      if (status != EFA_GDA_OK || EFA_GDA_LIKELY(next >= count)) return status;
      this->make(made, next, count, make);
    }
  }

  /* Rings for everything placed. */
  EFA_GDA_FN void ring() {
    group_.sync();
    seen_ = fenced_;
    if (fences()) fence_system();
    if (leads()) store_rung(next_);
    fenced_ = rung_;
    if (Group::kAllFence) seen_ = fenced_;
    rung_ = next_;
  }

 private:
  /* Which entry of the group, and which of its quads, this thread holds in place k. */
  EFA_GDA_FN uint32_t number(uint32_t k) const {
    return group_.trades() ? group_.rank() - group_.lane() + Trade::from(group_.lane(), k) : group_.rank();
  }
  EFA_GDA_FN uint32_t quad_number(uint32_t k) const { return group_.trades() ? Trade::quad(group_.lane()) : k; }

  static constexpr uint32_t kNoWindow = 0x80000000u;
  static constexpr uint32_t kFewCalls = 1 << 16;
  static_assert((uint64_t)kFewCalls * kMostEntries <= (uint64_t)1 << 32, "slots cannot have gone around");

  EFA_GDA_FN bool fences() const { return Group::kAllFence || leads(); }

  /* Step 4. A record takes the whole counter: a host thread rings from it. */
  EFA_GDA_FN void store_rung(uint32_t value) { store_doorbell(doorbell_, value & doorbell_bits_); }

  /* Makes sure that the adapter has the last doorbell. */
  EFA_GDA_FN void confirm() {
    if (Group::kAllFence) group_.sync();
    if (fences()) fence_system();
    if (!Group::kAllFence) group_.sync();
    seen_ = fenced_ = rung_;
  }

  /* Rings and fences until the window takes `n` more entries, which is no more than a whole one. */
  EFA_GDA_FN void open_window(uint32_t n) {
    while (window_ != kNoWindow && next_ + n - seen_ > window_) {
      if (next_ + n - fenced_ <= window_) {
        group_.sync();
        seen_ = fenced_;
      } else if (next_ != rung_) {
        ring();
      } else {
        confirm();
      }
    }
  }

  /* Entries that the room has left from `next` on, by the completions so far. */
  EFA_GDA_FN static uint32_t left_now(efa_gda_queue *queue, uint32_t next, uint32_t room, Completions &found) {
    uint32_t left = completed_now(queue, next, found) + room - next;
    return left > room ? room : left;
  }

  /* What is left in the low half, how the wait for `n` entries' room ended in the high one. */
  EFA_GDA_COLD static uint64_t find_room(efa_gda_queue *queue, uint32_t next, uint32_t room, uint32_t n,
                                         uint64_t timeout_ns, Completions *all) {
    Completions found = *all;
    Deadline deadline(queue, timeout_ns);
    uint32_t status = EFA_GDA_OK, left = left_now(queue, next, room, found);
    while (left < n) {
      status = deadline.expired(EFA_GDA_TIMEOUT_SLOTS);
      if (status != EFA_GDA_OK) break;
      left = left_now(queue, next, room, found);
    }
    if (status != EFA_GDA_OK) poison(queue, (efa_gda_status)status);
    *all = found;
    return (uint64_t)status << 32 | left;
  }

  EFA_GDA_FN efa_gda_status wait_for_room(uint32_t n, uint64_t timeout_ns) {
    uint64_t both = limit_ - next_;
    if (leads()) {
      Completions found = found_;
      both = find_room(queue_, next_, room_, n, timeout_ns, &found);
      found_ = found;
    }
    both = group_.from_leader(both);
    /* All lanes write slots after what the leader read of them. */
    group_.sync();
    limit_ = next_ + (uint32_t)both;
    return (efa_gda_status)(both >> 32);
  }

  Group group_;
  efa_gda_queue *queue_;
  uint8_t *buffer_;
  volatile uint32_t *doorbell_;
  /* `room_`: requests in flight at most. */
  uint32_t depth_, room_, window_;
  /* Of an entry's size. */
  uint32_t shift_;
  uint32_t doorbell_bits_;
  bool wide_ids_;
  uint32_t next_, rung_, seen_, fenced_;
  /* `next_` may go up to `limit_`: completions known, plus the room, at most room_ past it.
   * And the number of the call that last had the turn here. */
  uint32_t limit_, calls_;
  Completions found_;
};

}  // namespace efa_gda

#endif
