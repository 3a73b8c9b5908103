/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * How any number of groups share one send queue: tickets, the turn, and the stage in
 * which those who wait leave their entries for the one who writes. sq.h says what the
 * holder of the turn does with it.
 *
 * Tickets. reserve.word grows by 2^32 + n for a call with n entries. Its value before is
 * the call's ticket: unique, in order, and its low half is the first slot. turn.turn holds
 * the ticket whose owner has the turn, shifted left by one. A ticket with no entries
 * (flush) is as good as any.
 *
 * Passing on. The holder writes turn.rung and turn.seen, then releases turn.turn with the
 * ticket after the last one it served. A waiter acquires turn.turn and finds one of three:
 * it is mine (and rung and seen are then the last holder's, for nobody else may write
 * them); it is past mine (my entries were taken from the stage and rung); neither, yet.
 *
 * The stage lies in the GPU's memory, a slot for each of the last num_entries slots. A
 * waiter writes its entries, whole with phase and request id, and releases a flag for each
 * slot: its ticket plus one and plus the slot's place in the call, shifted left, bit 0 set
 * on its last slot. The holder, after its own entries, reads the flags from `next` on,
 * takes whole calls only, as long as each flag is the one that follows, and acquires them
 * with a fence; a flag left from an earlier lap, or a call that has not published all its
 * slots, ends it there. So a slow waiter is never waited for beyond a few looks: it gets
 * the turn instead. A stage slot is written again only when turn.turn, acquired, has passed
 * the slot's last user, whose entries the holder read before its fence.
 *
 * While it serves others, the holder stores the turn with bit 0 set after each doorbell,
 * so that those served may go; what they do next it learns from the stage again. A fence
 * serves as many entries as wait for it, so before a round it looks until all who hold
 * tickets have staged. It serves a bounded number of rounds and then passes on.
 */
#ifndef EFA_GDA_TURN_H
#define EFA_GDA_TURN_H

#include "sq.h"

namespace efa_gda {

/* What a call adds to reserve.word beside its entries. */
constexpr uint64_t kOneCall = (uint64_t)1 << 32;

/* What became of a ticket. */
enum class Turn { Mine, Served, Failed };

/* The stage's geometry, in registers: the queue's struct would be read again after each
 * fence. */
struct Stage {
  uint8_t *entries;
  uint64_t *ready;
  uint32_t mask, shift;
  bool there;

  EFA_GDA_FN Stage() : entries(nullptr), ready(nullptr), mask(0), shift(0), there(false) {}
  EFA_GDA_FN explicit Stage(const efa_gda_queue *queue)
      : entries(queue->stage.entries),
        ready(queue->stage.ready),
        mask(queue->stage.num_entries - 1),
        shift(queue->sq.entry_size == 128 ? 7 : 6),
        there(queue->stage.num_entries != 0) {}

  EFA_GDA_FN const uint8_t *entry(uint32_t slot) const { return entries + ((slot & mask) << shift); }
  EFA_GDA_FN uint64_t *flag(uint32_t slot) const { return ready + (slot & mask); }
};

template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ticket {
 public:
  using RingOf = Ring<Group, StoreBytes>;

  /* Rounds of serving others before the turn is passed on. */
  static constexpr int kRounds = 16;
  /* Looks for those who were just served, or have a ticket, before it is passed on: about
   * as long as passing it on takes. */
  static constexpr int kLooks = 6;
  /* Flags that each thread of the holder reads at once. */
  static constexpr int kFlags = Group::kAlone ? 16 : 8;
  /* Quads of staged entries that each thread has under way at once. */
  static constexpr int kQuads = 16;

  /* Takes a ticket for `count` entries and looks at the turn, in one round trip that
   * `settle` waits for. */
  EFA_GDA_FN Ticket(efa_gda_queue *queue, RingOf &ring, const Stage &stage, uint32_t count)
      : queue_(queue), ring_(ring), stage_(stage), count_(count), ticket_(0), turn_(0), cursors_(0), status_(EFA_GDA_OK) {
    if (ring.leads()) {
      ticket_ = fetch_add_relaxed(&queue->reserve.word, kOneCall + count);
      status_ = (efa_gda_status)load_relaxed(&queue->error.poison);
      latest_ = (uint32_t)load_relaxed(&queue->reserve.word);
      load_acquire_pair(&queue->turn.turn, turn_, cursors_);
    }
  }
  EFA_GDA_FN void settle() {
    Group group = ring_.group();
    ticket_ = group.from_leader(ticket_) << 1;
    turn_ = group.from_leader(turn_);
    cursors_ = group.from_leader(cursors_);
    group.sync();
    if (group.from_leader((uint32_t)status_) != EFA_GDA_OK) {
      status_ = EFA_GDA_POISONED;
    } else if (turn_ == ticket_) {
      take();
    }
  }

  /* Whether the turn came with the ticket. */
  EFA_GDA_FN bool mine() const { return taken_; }
  EFA_GDA_FN uint32_t first_slot() const { return (uint32_t)(ticket_ >> 1); }
  EFA_GDA_FN efa_gda_status status() const { return status_; }

  /* Waits for the turn, or for being served; entries as in Ring::place_made. */
  template <class Make>
  EFA_GDA_FN Turn wait(Made &made, Make make, uint64_t timeout_ns) {
    if (status_ != EFA_GDA_OK) return Turn::Failed;
    Deadline deadline(queue_, timeout_ns, Deadline::kLookNs);
    bool staged = count_ == 0 || !stage_.there;
    for (;;) {
      if ((int64_t)(turn_ - (ticket_ | 1)) > 0) return Turn::Served;
      if (!staged && first_slot() + count_ - (uint32_t)(turn_ >> 1) <= stage_.mask + 1) {
        stage(made, make);
        staged = true;
      }
      uint64_t turn = turn_, cursors = 0;
      uint32_t status = EFA_GDA_OK;
      if (ring_.leads()) {
        do {
          latest_ = (uint32_t)load_relaxed(&queue_->reserve.word);
          load_acquire_pair(&queue_->turn.turn, turn, cursors);
        } while (turn == turn_ && (status = deadline.turn(EFA_GDA_TIMEOUT_TURN)) == EFA_GDA_OK);
      }
      Group group = ring_.group();
      turn_ = group.from_leader(turn);
      cursors_ = group.from_leader(cursors);
      group.sync();
      if (turn_ == ticket_) {
        take();
        return Turn::Mine;
      }
      status = group.from_leader(status);
      if (status != EFA_GDA_OK) {
        status_ = (efa_gda_status)status;
        if (ring_.leads()) poison(queue_, status_);
        return Turn::Failed;
      }
    }
  }

  /* Rings for what the holder of the turn has placed, then places and rings for those who
   * wait. */
  EFA_GDA_FN efa_gda_status ring(uint64_t timeout_ns) {
    ring_.ring();
    if constexpr (Group::kServes) {
      if (!EFA_GDA_LIKELY(ring_.group().from_leader(latest_) == ring_.next()) && stage_.there) {
        RingOf ring = ring_;
        uint64_t turn = turn_;
        efa_gda_status status = serve(queue_, &ring, stage_, &turn, timeout_ns);
        ring_ = ring;
        turn_ = turn;
        return status;
      }
    }
    return EFA_GDA_OK;
  }

  /* Passes the turn on. */
  EFA_GDA_FN void pass() {
    ring_.group().sync();
    if (ring_.leads()) {
      store_relaxed(cursor_word(), (uint64_t)ring_.fenced() << 32 | ring_.rung());
      store_release(&queue_->turn.turn, turn_);
    }
  }

 private:
  EFA_GDA_FN uint64_t *cursor_word() { return reinterpret_cast<uint64_t *>(&queue_->turn.rung); }

  /* From here on `turn_` is the ticket that follows those served. */
  EFA_GDA_FN void take() {
    taken_ = true;
    ring_.take(ticket_ >> 1, (uint32_t)cursors_, (uint32_t)(cursors_ >> 32));
    turn_ = ticket_ + ((kOneCall + count_) << 1);
  }

  template <class Make>
  EFA_GDA_FN void stage(Made &made, Make make) {
    Group group = ring_.group();
    for (;;) {
      ring_.finish(made, first_slot() + made.done, stage_.mask);
      ring_.each(made, 0, made.left,
                 [&](uint32_t at, const Quad &quad) { store_quad_local(stage_.entries + at, quad); });
      /* A lane releases what the lanes before the sync wrote. */
      group.sync();
      if (group.rank() < made.left) {
        uint32_t i = made.done + group.rank();
        store_release(stage_.flag(first_slot() + i), ticket_ + 2 + ((uint64_t)i << 1) + (i + 1 == count_ ? 1 : 0));
      }
      uint32_t next = made.done + group.size();
      if (next >= count_) return;
      ring_.make(made, next, count_, make);
    }
  }

  /* Places and rings for those who wait; `turn` moves past them. */
  EFA_GDA_COLD static efa_gda_status serve(efa_gda_queue *queue, RingOf *held, Stage stage, uint64_t *held_turn,
                                           uint64_t timeout_ns) {
    RingOf ring = *held;
    uint64_t turn = *held_turn;
    efa_gda_status status = EFA_GDA_OK;
    for (int round = 0; round < kRounds; round++) {
      uint64_t after = turn;
      uint32_t count = choose(queue, ring, stage, round != 0, after);
      if (count == 0 || !ring.has_room(count)) break;
      auto copy = [&](uint32_t, uint32_t n, uint32_t slot) { write_staged(ring, stage, slot, n); };
      status = ring.place(count, copy, timeout_ns);
      if (status != EFA_GDA_OK) break;
      ring.ring();
      turn = after;
      if (ring.leads()) store_relaxed(&queue->turn.turn, turn | 1);
    }
    *held = ring;
    *held_turn = turn;
    return status;
  }

  /* The slots of whole calls that are staged from `next` on; `turn` moves past them. Waits
   * a little: for those who have a ticket to stage, and where `linger` says that others
   * will be back, until no more of them come. */
  EFA_GDA_FN static uint32_t choose(efa_gda_queue *queue, const RingOf &ring, const Stage &stage, bool linger,
                                    uint64_t &turn) {
    Group group = ring.group();
    uint32_t before = 0;
    for (int looks = 0;; looks++) {
      uint64_t flags[kFlags], after = turn;
      EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlags; k++) {
        flags[k] = load_relaxed(stage.flag(ring.next() + k * group.size() + group.rank()));
      }
      uint32_t reserved = ring.leads() ? (uint32_t)load_relaxed(&queue->reserve.word) : 0;
      uint32_t behind = group.from_leader(reserved) - ring.next();
      bool coming = linger && (behind == 0 || behind != before);
      before = behind;
      if (coming && behind < kFlags * group.size() && looks < kLooks) continue;
      uint32_t count = staged(group, flags, after);
      if (count == behind || count > kFlags * group.size() * 3 / 4 || looks >= kLooks) {
        /* Acquires the flags: each thread those it read, and after the sync all of them. */
        if (count != 0) {
          fence_device();
          group.sync();
        }
        turn = after;
        return count;
      }
    }
  }

  /* A flag is in its place when it follows from `turn`: one more for each slot before it,
   * and kOneCall more for each call that ended before it. */
  EFA_GDA_FN static uint32_t staged(Group group, const uint64_t (&flags)[kFlags], uint64_t &turn) {
    uint32_t rank = group.rank(), size = group.size(), whole = 0, calls = 0, ended = 0;
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlags; k++) {
      uint64_t flag = flags[k];
      uint32_t last = group.vote((flag & 1) != 0);
      uint64_t before = ended + bits_in(last & ((1u << rank) - 1));
      bool fits = (flag & ~(uint64_t)1) == turn + ((1 + k * size + rank + before * kOneCall) << 1);
      uint32_t ready = low_ones(group.vote(fits));
      if (ready < size) last &= (1u << ready) - 1;
      if (last != 0) {
        whole = k * size + bit_width(last);
        calls = ended + bits_in(last);
      }
      if (ready < size) break;
      ended += bits_in(last);
    }
    turn += (whole + calls * kOneCall) << 1;
    return whole;
  }

  /* Copies staged entries to the ring, quad by quad, so that neighbours' stores cover whole
   * lines; as far as neither the stage nor the ring wraps at once. */
  EFA_GDA_FN static void write_staged(const RingOf &ring, const Stage &stage, uint32_t slot, uint32_t count) {
    uint32_t rank = ring.group().rank(), stride = 16 * ring.group().size();
    while (count != 0) {
      uint32_t to_end = ring.depth() - (slot & (ring.depth() - 1)), staged_to_end = stage.mask + 1 - (slot & stage.mask);
      uint32_t n = to_end < staged_to_end ? to_end : staged_to_end;
      if (n > count) n = count;
      const uint8_t *from = stage.entry(slot) + 16 * rank;
      uint8_t *to = ring.at(slot) + 16 * rank;
      int32_t left = (int32_t)((n << stage.shift) - 16 * rank);
      for (; left > 0; left -= kQuads * stride, from += kQuads * stride, to += kQuads * stride) {
        Quad batch[kQuads];
        EFA_GDA_UNROLL for (int k = 0; k < kQuads; k++) {
          if (left > (int32_t)(k * stride)) batch[k] = load_quad_local(from + k * stride);
        }
        EFA_GDA_UNROLL for (int k = 0; k < kQuads; k++) {
          if (left > (int32_t)(k * stride)) RingOf::write(to + k * stride, batch[k]);
        }
      }
      slot += n;
      count -= n;
    }
  }

  efa_gda_queue *queue_;
  RingOf &ring_;
  const Stage &stage_;
  uint32_t count_;
  /* Both shifted left by one, as turn.turn. */
  uint64_t ticket_, turn_;
  uint64_t cursors_;
  /* Slots handed out when the leader last looked at the turn; the leader's alone. */
  uint32_t latest_ = 0;
  bool taken_ = false;
  efa_gda_status status_;
};

}  // namespace efa_gda

#endif
