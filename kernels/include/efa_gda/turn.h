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
 * slot: its ticket plus one, shifted left, bit 0 set on its last slot. The holder, after
 * its own entries, acquires the flags from `next` on and takes whole calls only, as long
 * as each call's ticket is the one that follows the call before; a flag left from an
 * earlier lap, or a call that has not published all its slots, ends it there. So a slow
 * waiter is never waited for: it gets the turn instead. A stage slot is written again only
 * when turn.turn, acquired, has passed the slot's last user, whose entries the holder read
 * before its fence.
 *
 * While it serves others, the holder stores the turn with bit 0 set after each doorbell,
 * so that those served may go. It serves a bounded number of rounds and then passes on.
 */
#ifndef EFA_GDA_TURN_H
#define EFA_GDA_TURN_H

#include "sq.h"

namespace efa_gda {

/* What a call adds to reserve.word beside its entries. */
constexpr uint64_t kOneCall = (uint64_t)1 << 32;

/* What became of a ticket. */
enum class Turn { Mine, Served, Failed };

template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ticket {
 public:
  using RingOf = Ring<Group, StoreBytes>;

  /* Rounds of serving others before the turn is passed on. */
  static constexpr int kRounds = 16;
  /* Flags that each thread of the holder reads in one round. */
  static constexpr int kFlags = 8;

  /* Takes a ticket for `count` entries and looks at the turn, in one round trip. */
  EFA_GDA_FN Ticket(efa_gda_queue *queue, RingOf &ring, uint32_t count)
      : queue_(queue), ring_(ring), count_(count), ticket_(0) {
    uint64_t word = 0, turn = 0, cursors = 0;
    uint32_t poisoned = 0;
    if (ring.leads()) {
      word = fetch_add_relaxed(&queue->reserve.word, kOneCall + count);
      poisoned = load_relaxed(&queue->error.poison);
      load_acquire_pair(&queue->turn.turn, turn, cursors);
    }
    Group group = ring.group();
    ticket_ = group.from_leader(word) << 1;
    turn_ = group.from_leader(turn);
    cursors_ = group.from_leader(cursors);
    status_ = group.from_leader(poisoned) == EFA_GDA_OK ? EFA_GDA_OK : EFA_GDA_POISONED;
  }

  EFA_GDA_FN uint32_t first_slot() const { return (uint32_t)(ticket_ >> 1); }
  EFA_GDA_FN efa_gda_status status() const { return status_; }

  /* Waits for the turn, or for being served. `make(i)` gives entry i. */
  template <class Make>
  EFA_GDA_FN Turn wait(Make make, uint64_t timeout_ns) {
    if (status_ != EFA_GDA_OK) return Turn::Failed;
    if (turn_ == ticket_) return take();
    Deadline deadline(queue_, timeout_ns);
    bool staged = count_ == 0 || queue_->stage.num_entries == 0;
    for (;;) {
      if ((int64_t)(turn_ - (ticket_ | 1)) > 0) return Turn::Served;
      if (!staged && first_slot() + count_ - (uint32_t)(turn_ >> 1) <= queue_->stage.num_entries) {
        stage(make);
        staged = true;
      }
      uint64_t turn = 0, cursors = 0;
      uint32_t status = EFA_GDA_OK;
      if (ring_.leads()) {
        load_acquire_pair(&queue_->turn.turn, turn, cursors);
        if (turn == turn_) status = deadline.turn(EFA_GDA_TIMEOUT_TURN);
      }
      Group group = ring_.group();
      turn_ = group.from_leader(turn);
      cursors_ = group.from_leader(cursors);
      if (turn_ == ticket_) return take();
      status = group.from_leader(status);
      if (status != EFA_GDA_OK) {
        status_ = (efa_gda_status)status;
        if (ring_.leads()) poison(queue_, status_);
        return Turn::Failed;
      }
    }
  }

  /* Serves those who wait, then passes the turn on. The caller holds the turn and has
   * placed its own entries. */
  EFA_GDA_FN efa_gda_status pass(bool serve, uint64_t timeout_ns) {
    uint64_t turn = ticket_ + ((kOneCall + count_) << 1);
    efa_gda_status status = EFA_GDA_OK;
    if constexpr (Group::kServes) {
      if (serve && queue_->stage.num_entries != 0) status = serve_others(turn, timeout_ns);
    }
    ring_.group().sync();
    if (ring_.leads() && status == EFA_GDA_OK) {
      store_relaxed(cursor_word(), (uint64_t)ring_.fenced() << 32 | ring_.rung());
      store_release(&queue_->turn.turn, turn);
    }
    return status;
  }

 private:
  EFA_GDA_FN uint64_t *cursor_word() { return reinterpret_cast<uint64_t *>(&queue_->turn.rung); }

  EFA_GDA_FN Turn take() {
    ring_.take(first_slot(), (uint32_t)cursors_, (uint32_t)(cursors_ >> 32));
    return Turn::Mine;
  }

  EFA_GDA_FN uint8_t *staged_entry(uint32_t slot) const {
    return queue_->stage.entries +
           ((uint64_t)(slot & (queue_->stage.num_entries - 1)) << (ring_.wide_entries() ? 7 : 6));
  }
  EFA_GDA_FN uint64_t *staged_flag(uint32_t slot) const {
    return queue_->stage.ready + (slot & (queue_->stage.num_entries - 1));
  }

  template <class Make>
  EFA_GDA_FN void stage(Make make) {
    Group group = ring_.group();
    for (uint32_t i = group.rank(); i < count_; i += group.size()) {
      uint32_t slot = first_slot() + i;
      Entry entry = make(i);
      ring_.finish_for(slot, entry);
      uint8_t *to = staged_entry(slot);
      EFA_GDA_UNROLL for (int k = 0; k < 4; k++) store_quad_local(to + 16 * k, quad_of(entry, k));
      if (ring_.wide_entries()) {
        EFA_GDA_UNROLL for (int k = 4; k < 8; k++) store_quad_local(to + 16 * k, quad_of(entry, k));
      }
      store_release(staged_flag(slot), ticket_ + 2 + (i + 1 == count_ ? 1 : 0));
    }
  }

  /* Whole calls that are staged from `next` on: their slots; `turn` moves past them. */
  EFA_GDA_FN uint32_t staged_from(uint32_t next, uint64_t &turn) {
    Group group = ring_.group();
    uint32_t rank = group.rank(), size = group.size(), whole = 0;
    uint64_t flags[kFlags], before = 0;
    EFA_GDA_UNROLL for (int k = 0; k < kFlags; k++) {
      flags[k] = load_acquire(staged_flag(next + (uint32_t)k * size + rank));
    }
    EFA_GDA_UNROLL for (int k = 0; k < kFlags; k++) {
      uint32_t slot = next + (uint32_t)k * size + rank;
      uint64_t call = flags[k] & ~(uint64_t)1, above = group.below(flags[k], before);
      uint32_t first = (uint32_t)(call >> 1) - 1, first_above = (uint32_t)(above >> 1) - 1;
      bool head = k == 0 && rank == 0;
      uint64_t follows = head ? turn + 2 : (above & ~(uint64_t)1) + ((kOneCall + (slot - first_above)) << 1);
      bool fits = slot == first ? call == follows : !head && call == above;
      uint32_t ready = group.leading(fits);
      uint32_t end = group.highest(rank < ready && (flags[k] & 1) != 0);
      if (end != 0) {
        whole = (uint32_t)k * size + end;
        uint64_t last = group.from(call, end - 1);
        turn = last - 2 + ((kOneCall + (next + whole - ((uint32_t)(last >> 1) - 1))) << 1);
      }
      if (ready != size) break;
      before = group.from(flags[k], size - 1);
    }
    return whole;
  }

  EFA_GDA_FN efa_gda_status serve_others(uint64_t &turn, uint64_t timeout_ns) {
    for (int round = 0; round < kRounds; round++) {
      uint64_t after = turn;
      uint32_t count = staged_from(ring_.next(), after);
      if (count == 0 || !ring_.has_room(count)) break;
      auto copy = [this](uint32_t, uint32_t slot) {
        const uint8_t *from = staged_entry(slot);
        Quad quads[4];
        EFA_GDA_UNROLL for (int k = 0; k < 4; k++) quads[k] = load_quad_local(from + 16 * k);
        EFA_GDA_UNROLL for (int k = 0; k < 4; k++) ring_.write(slot, k, quads[k]);
        if (ring_.wide_entries()) {
          EFA_GDA_UNROLL for (int k = 0; k < 4; k++) quads[k] = load_quad_local(from + 64 + 16 * k);
          EFA_GDA_UNROLL for (int k = 0; k < 4; k++) ring_.write(slot, 4 + k, quads[k]);
        }
      };
      efa_gda_status status = ring_.place(count, copy, true, timeout_ns);
      if (status != EFA_GDA_OK) return status;
      turn = after;
      if (ring_.leads()) store_relaxed(&queue_->turn.turn, turn | 1);
    }
    return EFA_GDA_OK;
  }

  efa_gda_queue *queue_;
  RingOf &ring_;
  uint32_t count_;
  /* Shifted left by one, as turn.turn. */
  uint64_t ticket_;
  uint64_t turn_, cursors_;
  efa_gda_status status_;
};

}  // namespace efa_gda

#endif
