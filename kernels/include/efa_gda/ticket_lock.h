/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * How any number of groups share one send queue: tickets, the turn, and the stage in
 * which others leave their entries for the one who writes. sq.h says what the holder of
 * the turn does with it.
 *
 * Tickets. reserve.word grows by 2^32 + n for a call with n entries. Its value before is
 * the call's ticket: unique, in order, and its low half is the first slot. A ticket with
 * no entries (flush) is as good as any.
 *
 * The turn. lock.serving holds a ticket T, and in its low bits what its holder does (LockState).
 * All tickets before T are served: their entries are rung.
 *   Passed      T has the turn. Nobody beyond T has left (see below).
 *   PassedLeft  T has the turn, and must serve: some beyond T may have left.
 *   Open        somebody else holds the turn, works at T and beyond, and will look at the
 *               stage again. Who has staged its entries may leave.
 *   Closing     as Open, but nobody may leave any more. Also what a turn that two wanted is
 *               first, whoever of them has it.
 * The holder writes lock.doorbell_index and lock.confirmed_index before it passes the turn with a release. Who takes
 * it has loaded the three with one load, and its own fence in sq.h's step 3 makes that an
 * acquire for its doorbell and what follows; the entries before it depend on the turn, and on
 * completions that were acquired for the room. Should the load bring older cursors than the
 * turn, nothing breaks: an older `rung` rings once more for what was rung, an older `seen`
 * earlier than needed. Who owns the queue holds an empty ticket in Passed.
 *
 * The stage lies in the GPU's memory, a slot for each of the last num_entries slots. Who
 * has a ticket and not the turn writes its entries there, whole with phase and request id,
 * and releases a flag for each slot: its ticket plus one and plus the slot's place in the
 * call, shifted as the turn is, and in the low bits whether it is the call's last and whether
 * its owner may leave. The holder reads the flags from T's slot on, takes whole calls only,
 * as long as each flag is the one that follows, and acquires them with a fence; a flag left
 * from an earlier lap, or a call that has not published all its slots, ends it there. A
 * stage slot is written again only when the turn, acquired, has passed the slot's last user,
 * whose entries the holder read before its fence.
 *
 * Leaving. A holder that finds others waiting opens the turn, at once, and serves: places and
 * rings for all that is staged, round after round. Who staged while it is open, and no more
 * entries than any holder looks at, need not wait for its doorbell: it publishes its flags,
 * passes a sequentially consistent fence and looks at the turn; where that is Open, its post
 * has succeeded, for the holder
 *   1. writes Closing, 2. passes such a fence, 3. reads reserve.word, as `end`,
 * before it stops. Of the two fences one is first. If it is the leaver's, its ticket is
 * before `end`; if it is the holder's, it sees Closing and waits. So every ticket at or past
 * `end` belongs to somebody who waits, and the holder is done when T has come to `end`.
 * Before that it may come to a ticket T that is not staged, whose owner is therefore still
 * there, while some beyond it have left. It then writes PassedLeft, passes a sequentially
 * consistent fence and looks at T's flag again. Either T's owner, which publishes, fences
 * and looks at the turn, sees that it has the turn, or this look sees the flag, or both;
 * then both want it, and one compare-and-swap of the turn decides. Who takes a turn in
 * PassedLeft serves until `end` in turn, so nobody who left is forgotten. A holder stays
 * open for a bounded number of rounds, so that it comes back to its own work.
 */
#ifndef EFA_GDA_TICKET_LOCK_H
#define EFA_GDA_TICKET_LOCK_H

#include "sq.h"

namespace efa_gda {

/* What a call adds to reserve.word beside its entries. */
constexpr uint64_t kOneCall = (uint64_t)1 << 32;

/* Low bits of lock.serving. */
enum LockState : uint64_t { kPassed = 0, kClosing = 1, kPassedMustServe = 2, kOpen = 3 };
constexpr uint64_t kLockStates = 3;
/* Low bits of a flag. */
enum PublicationFlag : uint64_t { kLastSlot = 1, kMayReturnEarly = 2 };
constexpr uint64_t kPublicationFlags = 3;
static_assert(kLockStates == ((uint64_t)1 << EFA_GDA_LOCK_STATE_BITS) - 1 && kPublicationFlags == kLockStates, "the bits shifted by");
/* Entries of a call that every holder sees whole. */
constexpr uint32_t kScannedByEveryOwner = 32;

/* What became of a ticket. Served: its entries are rung, or in the hands of a group that
 * rings for them. */
enum class TicketOutcome { Owner, Served, Failed };

/* The stage's geometry, in registers: the queue's struct would be read again after each
 * fence. `zero` is zero_by_thread's. */
struct PublicationSlots {
  uint8_t *entries;
  uint64_t *ready;
  uint32_t mask, shift, zero;
  bool there;

  EFA_GDA_FN PublicationSlots() : entries(nullptr), ready(nullptr), mask(0), shift(0), zero(0), there(false) {}
  EFA_GDA_FN explicit PublicationSlots(const efa_gda_queue *queue)
      : entries(queue->publication.entries),
        ready(queue->publication.flags),
        mask(queue->publication.num_entries - 1),
        shift(queue->sq.entry_size == 128 ? 7 : 6),
        zero(zero_by_thread()),
        there(queue->publication.num_entries != 0) {}

  EFA_GDA_FN const uint8_t *entry(uint32_t slot) const { return entries + ((slot & mask) << shift); }
  EFA_GDA_FN uint64_t *flag(uint32_t slot) const { return ready + (slot & mask); }
};

template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ticket {
 public:
  using RingOf = Ring<Group, StoreBytes>;

  /* Flags that each thread of the holder reads at once. */
  static constexpr int kFlags = Group::kAlone ? kScannedByEveryOwner : 16;
  /* Quads of staged entries that each thread has under way at once. */
  static constexpr int kQuads = 16;
  /* Rounds of serving others before the turn is closed. */
  static constexpr int kRounds = 16;
  /* Looks for those who have a ticket and have not staged. */
  static constexpr int kLooks = 2;
  /* Who is further behind, in entries for each of its threads, does not leave: whoever holds
   * the turn has to serve all that left. Two rounds of a holder of its kind. */
  static constexpr uint32_t kAhead = 2 * kFlags;

  /* Takes a ticket for `count` entries and looks at the turn, in one round trip that
   * `settle` waits for. */
  EFA_GDA_FN Ticket(efa_gda_queue *queue, RingOf &ring, const PublicationSlots &stage, uint32_t count)
      : queue_(queue), ring_(ring), stage_(stage), count_(count), ticket_(0), turn_(0), cursors_(0), status_(EFA_GDA_OK) {
    if (ring.leads()) {
      ticket_ = fetch_add_relaxed(&queue->reserve.word, kOneCall + count + stage.zero);
      status_ = (efa_gda_status)load_relaxed(&queue->error.poison);
      latest_ = (uint32_t)load_relaxed(&queue->reserve.word);
      load_relaxed_pair(&queue->lock.serving, turn_, cursors_);
    }
  }
  EFA_GDA_FN void settle() {
    Group group = ring_.group();
    ticket_ = group.from_leader(ticket_) << EFA_GDA_LOCK_STATE_BITS;
    turn_ = group.from_leader(turn_);
    cursors_ = group.from_leader(cursors_);
    if constexpr (Group::kServes) latest_ = group.from_leader(latest_);
    group.sync();
    if (group.from_leader((uint32_t)status_) != EFA_GDA_OK) {
      status_ = EFA_GDA_POISONED;
    } else if (passed_to_me()) {
      take();
    }
  }

  /* Whether the turn came with the ticket. */
  EFA_GDA_FN bool mine() const { return taken_; }
  EFA_GDA_FN uint32_t first_slot() const { return (uint32_t)(ticket_ >> EFA_GDA_LOCK_STATE_BITS); }
  EFA_GDA_FN efa_gda_status status() const { return status_; }

  /* Waits for the turn, or until somebody else sees to the entries, which are as in
   * Ring::place_made. */
  template <class Make>
  EFA_GDA_FN TicketOutcome wait(Made &made, Make make, uint64_t timeout_ns) {
    if (status_ != EFA_GDA_OK) return TicketOutcome::Failed;
    Deadline deadline(queue_, timeout_ns, Deadline::kLookNs);
    bool stages = count_ != 0 && stage_.there, staged = false, leaves = count_ <= kScannedByEveryOwner;
    /* What came with the ticket was not acquired. */
    look();
    for (;;) {
      if ((int64_t)((turn_ | kLockStates) - (ticket_ | kLockStates)) > 0) return TicketOutcome::Served;
      if (passed_to_me() && (!staged || claim(queue_, ring_, turn_))) {
        take();
        return TicketOutcome::Owner;
      }
      if (staged && leaves && (turn_ & kLockStates) == kOpen && behind() <= kAhead * ring_.group().size()) {
        return TicketOutcome::Served;
      }
      if (stages && !staged && behind() <= stage_.mask + 1) {
        stage(made, make, leaves ? (uint64_t)kMayReturnEarly : 0);
        staged = true;
        ring_.group().sync();
        if (ring_.leads()) fence_device_ordered();
        look();
        continue;
      }
      uint64_t before = turn_;
      uint32_t status = EFA_GDA_OK;
      if (ring_.leads()) {
        do {
          look_alone();
        } while (turn_ == before && (status = deadline.expired(EFA_GDA_TIMEOUT_LOCK)) == EFA_GDA_OK);
      }
      share();
      status = ring_.group().from_leader(status);
      if (status != EFA_GDA_OK) {
        status_ = (efa_gda_status)status;
        if (ring_.leads()) poison(queue_, status_);
        return TicketOutcome::Failed;
      }
    }
  }

  /* Rings for what the holder of the turn has placed, where `rings` or others wait, then
   * places and rings for those, and passes the turn on. */
  EFA_GDA_FN efa_gda_status finish(bool rings, uint64_t timeout_ns) {
    bool serves = left_ || opened(), rang = (rings || serves) && ring_.next() != ring_.rung();
    if (EFA_GDA_LIKELY(rang)) ring_.ring();
    /* Who did not ring has not acquired yet what the look saw that came with the ticket. */
    if (!rang && ring_.leads()) fence_device();
    if (EFA_GDA_LIKELY(!serves)) {
      pass(queue_, ring_, turn_ | kPassed);
      return EFA_GDA_OK;
    }
    efa_gda_status status = EFA_GDA_OK;
    if constexpr (Group::kServes) {
      RingOf ring = ring_;
      status = serve(queue_, &ring, stage_, turn_, timeout_ns);
      ring_ = ring;
    } else {
      Group group = ring_.group();
      uint32_t served = EFA_GDA_OK;
      group.sync();
      if (ring_.leads()) {
        using Alone = Ticket<ThreadGroup, StoreBytes>;
        typename Alone::RingOf alone(queue_, ThreadGroup());
        alone.take_over(ring_);
        served = Alone::serve(queue_, &alone, stage_, turn_, timeout_ns);
        ring_.found() = alone.found();
      }
      status = (efa_gda_status)group.from_leader(served);
    }
    return status;
  }

  /* Places and rings for those who wait or have left, from ticket `turn` on, and passes the
   * turn on. All that the ring was given before is rung. */
  EFA_GDA_COLD static efa_gda_status serve(efa_gda_queue *queue, RingOf *held, PublicationSlots stage, uint64_t turn,
                                           uint64_t timeout_ns) {
    RingOf ring = *held;
    efa_gda_status status = EFA_GDA_OK;
    uint64_t end = 0;
    LockState state = kOpen;
    if (ring.leads()) store_relaxed(&queue->lock.serving, turn | state);
    for (int round = 0;; round++) {
      uint64_t after = turn;
      uint32_t count = choose(queue, ring, stage, round != 0 && state == kOpen, after);
      if (count != 0) {
        auto copy = [&](uint32_t, uint32_t n, uint32_t slot) { write_staged(ring, stage, slot, n); };
        status = ring.place(count, copy, timeout_ns);
        if (status != EFA_GDA_OK) break;
        ring.ring();
        turn = after;
        if (ring.leads()) store_relaxed(&queue->lock.serving, turn | state);
      }
      if (state == kOpen && (count == 0 || round + 1 == kRounds)) {
        state = kClosing;
        end = close(queue, ring, turn);
      }
      if (state == kClosing) {
        if ((int64_t)(end - turn) <= 0) {
          pass(queue, ring, turn | kPassed);
          break;
        }
        if (count == 0) {
          if (!pass_left(queue, ring, stage, turn)) break;
          /* Whoever did not finish staging has met its end. */
          uint32_t poisoned = ring.leads() ? load_relaxed(&queue->error.poison) : 0;
          status = ring.group().from_leader(poisoned) != EFA_GDA_OK ? EFA_GDA_POISONED : EFA_GDA_OK;
          if (status != EFA_GDA_OK) break;
        }
      }
    }
    *held = ring;
    return status;
  }

 private:
  template <class, int>
  friend class Ticket;

  /* The turn as the leader sees it now, for all. */
  EFA_GDA_FN void look() {
    if (ring_.leads()) look_alone();
    share();
  }
  EFA_GDA_FN void look_alone() {
    latest_ = (uint32_t)load_relaxed(&queue_->reserve.word);
    load_acquire_pair(&queue_->lock.serving, turn_, cursors_);
  }
  EFA_GDA_FN void share() {
    Group group = ring_.group();
    turn_ = group.from_leader(turn_);
    cursors_ = group.from_leader(cursors_);
    if constexpr (Group::kServes) latest_ = group.from_leader(latest_);
    group.sync();
  }

  /* Slots from the turn's ticket to the end of this one. */
  EFA_GDA_FN uint32_t behind() const { return first_slot() + count_ - (uint32_t)(turn_ >> EFA_GDA_LOCK_STATE_BITS); }

  EFA_GDA_FN bool passed_to_me() const { return (turn_ & ~(uint64_t)kPassedMustServe) == ticket_; }

  /* Whether a turn that was passed to whoever has staged is had: in PassedLeft, who passed
   * it on may want it back. */
  EFA_GDA_FN static bool claim(efa_gda_queue *queue, const RingOf &ring, uint64_t &turn) {
    if ((turn & kLockStates) == kPassed) return true;
    uint64_t had = turn;
    if (ring.leads()) had = compare_swap(&queue->lock.serving, turn, (turn & ~kLockStates) | kClosing);
    had = ring.group().from_leader(had);
    bool won = had == turn;
    if (!won) turn = had;
    return won;
  }

  /* Whether others waited when the turn came: then it is open. */
  EFA_GDA_FN bool opened() const { return Group::kServes && stage_.there && latest_ != first_slot() + count_; }

  /* From here on `turn_` is the ticket that follows this one. */
  EFA_GDA_FN void take() {
    taken_ = true;
    left_ = (turn_ & kPassedMustServe) != 0;
    ring_.take(ticket_ >> EFA_GDA_LOCK_STATE_BITS, (uint32_t)cursors_, (uint32_t)(cursors_ >> 32));
    if (!EFA_GDA_LIKELY(!opened()) && ring_.leads()) {
      fence_device();
      store_relaxed(&queue_->lock.serving, ticket_ | kOpen);
    }
    turn_ = ticket_ + ((kOneCall + count_) << EFA_GDA_LOCK_STATE_BITS);
  }

  /* Passes the turn on to `turn`. */
  EFA_GDA_FN static void pass(efa_gda_queue *queue, const RingOf &ring, uint64_t turn) {
    ring.group().sync();
    if (ring.leads()) {
      store_relaxed(reinterpret_cast<uint64_t *>(&queue->lock.doorbell_index), (uint64_t)ring.fenced() << 32 | ring.rung());
      store_release(&queue->lock.serving, turn);
    }
  }

  /* Lets nobody leave any more; tickets from the one returned on belong to those who wait. */
  EFA_GDA_FN static uint64_t close(efa_gda_queue *queue, const RingOf &ring, uint64_t turn) {
    uint64_t end = 0;
    if (ring.leads()) {
      store_relaxed(&queue->lock.serving, turn | kClosing);
      fence_device_ordered();
      end = load_relaxed(&queue->reserve.word) << EFA_GDA_LOCK_STATE_BITS;
    }
    return ring.group().from_leader(end);
  }

  /* Passes the turn on to `turn`, beyond which some may have left. True: its owner may have left
   * as well, and the turn is here again. */
  EFA_GDA_FN static bool pass_left(efa_gda_queue *queue, const RingOf &ring, const PublicationSlots &stage, uint64_t turn) {
    uint64_t passed = turn | kPassedMustServe;
    pass(queue, ring, passed);
    bool left = false;
    if (ring.leads()) {
      fence_device_ordered();
      uint64_t flag = load_relaxed(stage.flag((uint32_t)(turn >> EFA_GDA_LOCK_STATE_BITS)));
      left = (flag & ~(uint64_t)kLastSlot) == (flag_of(turn, 0) | kMayReturnEarly);
    }
    return ring.group().from_leader((uint32_t)left) != 0 && claim(queue, ring, passed);
  }

  /* The flag of the call `ticket`'s i-th slot, but for its low bits. */
  EFA_GDA_FN static uint64_t flag_of(uint64_t ticket, uint64_t i) { return ticket + ((i + 1) << EFA_GDA_LOCK_STATE_BITS); }

  template <class Make>
  EFA_GDA_FN void stage(Made &made, Make make, uint64_t flags) {
    Group group = ring_.group();
    for (;;) {
      ring_.finish(made, first_slot() + made.done, stage_.mask);
      ring_.each(made, 0, made.left,
                 [&](uint32_t at, const Quad &quad) { store_quad_local(stage_.entries + at, quad); });
      /* A lane releases what the lanes before the sync wrote. */
      group.sync();
      if (group.rank() < made.left) {
        uint32_t i = made.done + group.rank();
        uint64_t last = i + 1 == count_ ? (uint64_t)kLastSlot : 0;
        store_release(stage_.flag(first_slot() + i), flag_of(ticket_, i) | flags | last);
      }
      uint32_t next = made.done + group.size();
      if (next >= count_) return;
      ring_.make(made, next, count_, make);
    }
  }

  /* The slots of whole calls that are staged from `next` on; `turn` moves past them. Waits
   * a little: for those who have a ticket to stage, and where `linger` says that others
   * will be back, until no more of them come. */
  EFA_GDA_FN static uint32_t choose(efa_gda_queue *queue, const RingOf &ring, const PublicationSlots &stage, bool linger,
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

  /* A flag is in its place when it follows from `turn`: one slot more for each before it,
   * and kOneCall more for each call that ended before it. */
  EFA_GDA_FN static uint32_t staged(Group group, const uint64_t (&flags)[kFlags], uint64_t &turn) {
    uint32_t rank = group.rank(), size = group.size(), whole = 0, calls = 0, ended = 0;
    uint32_t last[kFlags], fit[kFlags];
    /* All votes first: each takes a while, and none needs another's outcome. */
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlags; k++) last[k] = group.vote((flags[k] & kLastSlot) != 0);
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlags; k++) {
      uint64_t before = ended + bits_in(last[k] & ((1u << rank) - 1));
      fit[k] = group.vote((flags[k] & ~kPublicationFlags) == flag_of(turn, k * size + rank + before * kOneCall));
      ended += bits_in(last[k]);
    }
    bool follows = true;
    ended = 0;
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlags; k++) {
      uint32_t ready = low_ones(fit[k]);
      uint32_t ends = ready < size ? last[k] & ((1u << ready) - 1) : last[k];
      if (follows && ends != 0) {
        whole = k * size + bit_width(ends);
        calls = ended + bits_in(ends);
      }
      follows = follows && ready >= size;
      ended += bits_in(last[k]);
    }
    turn += (whole + calls * kOneCall) << EFA_GDA_LOCK_STATE_BITS;
    return whole;
  }

  /* Copies staged entries to the ring, quad by quad, so that neighbours' stores cover whole
   * lines; as far as neither the stage nor the ring wraps at once. */
  EFA_GDA_FN static void write_staged(const RingOf &ring, const PublicationSlots &stage, uint32_t slot, uint32_t count) {
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
  const PublicationSlots &stage_;
  uint32_t count_;
  /* Both shifted as lock.serving is. */
  uint64_t ticket_, turn_;
  uint64_t cursors_;
  /* Slots handed out when the turn was last looked at. */
  uint32_t latest_ = 0;
  /* Whether the turn was had, and whether some beyond may have left. */
  bool taken_ = false, left_ = false;
  efa_gda_status status_;
};

}  // namespace efa_gda

#endif
