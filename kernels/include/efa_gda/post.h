/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Posting, for the author of a kernel: one handle, whoever shares the queue.
 *
 *   efa_gda::Sender<efa_gda::Sharing::Device, efa_gda::WarpGroup> sender(queue);
 *   status = sender.post(32, [&](uint32_t i) {
 *     return efa_gda::write_entry(peer, {local + i * 64, lkey, 64}, remote + i * 64, rkey);
 *   });
 *   status = sender.quiet();
 *   sender.close();
 *
 * All threads of the group construct the handle and make every call together, with the
 * same arguments, and all get the same status. Entry i is made by the thread whose rank is i
 * modulo the group's size, so a thread may also post what it holds in registers. Every path
 * out of the kernel closes the handle. docs/kernels.md has a whole kernel.
 *
 * A status other than EFA_GDA_OK stays: the handle refuses everything after it. Two do not
 * stay: EFA_GDA_COMPLETION_ERROR (quiet), and EFA_GDA_BAD_ARGUMENT for a call of more entries
 * than kMostEntries, which posts none.
 */
#ifndef EFA_GDA_POST_H
#define EFA_GDA_POST_H

#include "ticket_lock.h"

namespace efa_gda {

/* Who uses the queue while the handle is open. Thread, Warp, Block: this group alone.
 * Device: any number of groups of the GPU, of any kind. */
enum class Sharing { Thread, Warp, Block, Device };

/* The group that owns a queue of this sharing. */
template <Sharing S>
struct GroupOf {
  using Type = ThreadGroup;
};
template <>
struct GroupOf<Sharing::Warp> {
  using Type = WarpGroup;
};
template <>
struct GroupOf<Sharing::Block> {
  using Type = BlockGroup;
};

/* Flags of Sender::post. */
enum PostFlags : uint32_t {
  kPostDefault = 0,
  /* Leave the doorbell to a later post or flush. max_batch and the ring's room still
   * force one where they must. */
  kPostDefer = 1
};

constexpr uint64_t kDefaultTimeoutNs = (uint64_t)10 * 1000 * 1000 * 1000;

template <Sharing S, class Group = typename GroupOf<S>::Type, int StoreBytes = EFA_GDA_STORE_BYTES>
class Sender {
 public:
  /* Opens `queue`. An owner takes it over: EFA_GDA_IN_USE where somebody posts, where another
   * owner has it open, or one did not close it. EFA_GDA_BAD_ARGUMENT: the block is not
   * one-dimensional, and threads would take each other's places. */
  EFA_GDA_FN explicit Sender(efa_gda_queue *queue, uint64_t timeout_ns = kDefaultTimeoutNs, Group group = Group())
      : queue_(queue), timeout_ns_(timeout_ns), ring_(queue, group), posted_(0), status_(EFA_GDA_OK) {
    if (!one_dimensional()) {
      status_ = EFA_GDA_BAD_ARGUMENT;
      return;
    }
    if (ring_.leads()) errors_ = load_relaxed(&queue->error.count);
    if constexpr (S == Sharing::Device) {
      stage_ = PublicationSlots(queue);
      ring_.open(load_relaxed(&queue->lock.serving) >> EFA_GDA_LOCK_STATE_BITS);
    } else {
      open_owned();
    }
  }

  EFA_GDA_FN efa_gda_status status() const { return status_; }
  /* Completions that this handle read while it waited (valid on rank 0). */
  EFA_GDA_FN Completions &found() { return ring_.found(); }

  /* Posts `count` entries and rings (see PostFlags); none of more than kMostEntries. `first`,
   * where given, receives the slot of the first: its request id, and the others follow. On a
   * queue that is shared across the device it may return when another group has taken over
   * the entries and is about to ring; should that fail, the queue is poisoned. */
  template <class Make>
  EFA_GDA_FN efa_gda_status post(uint32_t count, Make make, uint32_t flags = kPostDefault,
                                 uint32_t *first = nullptr) {
    if (!EFA_GDA_LIKELY(status_ == EFA_GDA_OK && count - 1 < kMostEntries)) {
      return status_ == EFA_GDA_OK && count != 0 ? EFA_GDA_BAD_ARGUMENT : status_;
    }
    if constexpr (S == Sharing::Device) {
      deferred_ = (flags & kPostDefer) != 0;
      status_ = post_shared(count, make, !deferred_, first);
    } else {
      if (first != nullptr) *first = ring_.next();
      Made made;
      ring_.make(made, 0, count, make);
      status_ = ring_.place_made(made, count, make, timeout_ns_);
      if (EFA_GDA_LIKELY(status_ == EFA_GDA_OK && (flags & kPostDefer) == 0)) ring_.ring();
      posted_ += count;
    }
    return status_;
  }

  /* Rings for everything placed on the queue and not yet rung. */
  EFA_GDA_FN efa_gda_status flush() {
    if (status_ != EFA_GDA_OK) return status_;
    if constexpr (S == Sharing::Device) {
      deferred_ = false;
      status_ = flush_shared();
    } else if (ring_.next() != ring_.rung()) {
      ring_.ring();
    }
    return status_;
  }

  /* Rings, then waits until every request that was posted to the queue before is done. Where
   * others share it, that is first a moment at which nothing at all is in flight; should none
   * come because they post on, the handle takes the turn and keeps them from it until what is
   * in flight has come in.
   * EFA_GDA_COMPLETION_ERROR: all are done, and some request of the queue, whoever posted it,
   * has failed since the handle was opened or last said so. The handle can be used on. Which
   * one it was: `found` on rank 0 has the first among the completions that this handle read,
   * efa_gda_queue::error the first of all. */
  EFA_GDA_FN efa_gda_status quiet() {
    if (flush() != EFA_GDA_OK) return status_;
    if constexpr (S == Sharing::Device) {
      status_ = wait_until_done(false, kPatienceNs);
      if (status_ == kNotYet) status_ = quiet_in_turn();
    } else {
      status_ = wait_until_done(true, timeout_ns_);
    }
    return status_ == EFA_GDA_OK && failed() ? EFA_GDA_COMPLETION_ERROR : status_;
  }

  /* The same for what was posted to one peer. Requests of a queue complete in any order, and are
   * counted, not told apart: it waits for those of all peers. */
  EFA_GDA_FN efa_gda_status quiet(const efa_gda_peer &) { return quiet(); }

  /* Ends the handle's use: rings what was deferred; an owner gives the queue back with what
   * it knows of it. EFA_GDA_IN_USE: others posted while it was owned; the queue is poisoned. */
  EFA_GDA_FN efa_gda_status close() {
    if (S != Sharing::Device || deferred_) flush();
    uint32_t was = status_;
    if (owns_) was = give_back();
    owns_ = false;
    if (status_ == EFA_GDA_OK) status_ = EFA_GDA_BAD_ARGUMENT;
    return (efa_gda_status)was;
  }

 private:
  /* Takes an empty ticket, only where it has the turn; all others then wait, or find that it is
   * not theirs. One thread looks, so that all of the group agree. */
  EFA_GDA_FN void open_owned() {
    uint64_t turn = 0, cursors = 0;
    uint32_t status = EFA_GDA_OK;
    if (ring_.leads()) {
      turn = load_acquire(&queue_->lock.serving);
      cursors = (uint64_t)load_relaxed(&queue_->lock.confirmed_index) << 32 | load_relaxed(&queue_->lock.doorbell_index);
      if (load_relaxed(&queue_->error.poison) != EFA_GDA_OK) {
        status = EFA_GDA_POISONED;
      } else {
        uint64_t word = load_relaxed(&queue_->reserve.word);
        bool free = word << EFA_GDA_LOCK_STATE_BITS == turn;
        if (!free || compare_swap(&queue_->reserve.word, word, word + kOneCall) != word) status = EFA_GDA_IN_USE;
      }
    }
    Group group = ring_.group();
    turn = group.from_leader(turn);
    cursors = group.from_leader(cursors);
    status_ = (efa_gda_status)group.from_leader(status);
    owns_ = status_ == EFA_GDA_OK;
    group.sync();
    ring_.open(turn >> EFA_GDA_LOCK_STATE_BITS);
    ring_.take(turn >> EFA_GDA_LOCK_STATE_BITS, (uint32_t)cursors, (uint32_t)(cursors >> 32));
  }

  /* Nobody may have taken a ticket meanwhile: its slots are this owner's. */
  EFA_GDA_FN uint32_t give_back() {
    ring_.group().sync();
    uint32_t status = status_;
    if (ring_.leads()) {
      uint64_t word = load_relaxed(&queue_->reserve.word), after = word + posted_;
      bool alone = (word - kOneCall) << EFA_GDA_LOCK_STATE_BITS == load_relaxed(&queue_->lock.serving);
      if (alone && compare_swap(&queue_->reserve.word, word, after) == word) {
        store_relaxed(&queue_->lock.doorbell_index, ring_.rung());
        store_relaxed(&queue_->lock.confirmed_index, ring_.fenced());
        store_release(&queue_->lock.serving, after << EFA_GDA_LOCK_STATE_BITS);
      } else {
        status = EFA_GDA_IN_USE;
        poison(queue_, EFA_GDA_IN_USE);
      }
    }
    return ring_.group().from_leader(status);
  }

  /* Whether requests of the queue failed that this handle has not told of. */
  EFA_GDA_FN bool failed() {
    uint32_t errors = ring_.leads() ? load_relaxed(&queue_->error.count) : 0;
    uint32_t more = ring_.group().from_leader(errors - errors_);
    errors_ = errors;
    return more != 0;
  }

  template <class Make>
  EFA_GDA_FN efa_gda_status post_shared(uint32_t count, Make make, bool ring, uint32_t *first) {
    Ticket<Group, StoreBytes> ticket(queue_, ring_, stage_, count);
    Made made;
    ring_.make(made, 0, count, make);
    ticket.settle();
    if (first != nullptr) *first = ticket.first_slot();
    if (!EFA_GDA_LIKELY(ticket.mine())) {
      TicketOutcome outcome = ticket.wait(made, make, timeout_ns_);
      if (outcome != TicketOutcome::Owner) return outcome == TicketOutcome::Served ? EFA_GDA_OK : ticket.status();
      if (made.done != 0) ring_.make(made, 0, count, make);
    }
    efa_gda_status status = ring_.place_made(made, count, make, timeout_ns_);
    return EFA_GDA_LIKELY(status == EFA_GDA_OK) ? ticket.finish(ring, timeout_ns_) : status;
  }

  EFA_GDA_FN efa_gda_status flush_shared() {
    Ticket<Group, StoreBytes> ticket(queue_, ring_, stage_, 0);
    efa_gda_status status = have_turn(ticket);
    return status == EFA_GDA_OK ? ticket.finish(true, timeout_ns_) : status;
  }

  /* Waits until a ticket without entries has the turn: nobody can serve it. */
  EFA_GDA_FN efa_gda_status have_turn(Ticket<Group, StoreBytes> &ticket) {
    ticket.settle();
    if (ticket.mine()) return EFA_GDA_OK;
    Made made;
    auto none = [](uint32_t) { return Entry(); };
    return ticket.wait(made, none, timeout_ns_) == TicketOutcome::Owner ? EFA_GDA_OK : ticket.status();
  }

  EFA_GDA_FN efa_gda_status quiet_in_turn() {
    Ticket<Group, StoreBytes> ticket(queue_, ring_, stage_, 0);
    efa_gda_status status = have_turn(ticket);
    if (status != EFA_GDA_OK) return status;
    if (ring_.next() != ring_.rung()) ring_.ring();
    status = wait_until_done(true, timeout_ns_);
    return status == EFA_GDA_OK ? ticket.finish(false, timeout_ns_) : status;
  }

  /* How long a shared queue is given to come to rest by itself. */
  static constexpr uint64_t kPatienceNs = 100 * 1000;
  static constexpr efa_gda_status kNotYet = EFA_GDA_NOT_RUN;

  /* Waits until all is done that this handle, which has the turn (`mine`), or anybody has posted. */
  EFA_GDA_FN efa_gda_status wait_until_done(bool mine, uint64_t bound_ns) {
    uint32_t status = EFA_GDA_OK;
    if (ring_.leads()) {
      Completions found = ring_.found();
      status = wait_alone(queue_, mine, ring_.next(), bound_ns, &found);
      ring_.found() = found;
    }
    status = ring_.group().from_leader(status);
    ring_.group().sync();
    return (efa_gda_status)status;
  }

  /* Whether all that was posted is among the `completed`. An owner's requests complete before
   * their slots are in the word, so that they are not while somebody has the turn. */
  EFA_GDA_FN static bool at_rest(const efa_gda_queue *queue, uint32_t completed) {
    uint64_t word = load_relaxed(&queue->reserve.word);
    return completed == (uint32_t)word && load_acquire(&queue->lock.serving) == word << EFA_GDA_LOCK_STATE_BITS;
  }

  EFA_GDA_COLD static uint32_t wait_alone(efa_gda_queue *queue, bool mine, uint32_t next, uint64_t bound_ns,
                                          Completions *all) {
    Completions found = *all;
    Deadline deadline(queue, bound_ns);
    uint32_t status = EFA_GDA_OK;
    while (status == EFA_GDA_OK) {
      uint32_t posted = mine ? next : (uint32_t)load_relaxed(&queue->reserve.word);
      uint32_t completed = completed_now(queue, posted, found);
      if (mine ? completed == next : at_rest(queue, completed)) break;
      /* Somebody else's completions come here, and so may ours go elsewhere. */
      status = found.foreign ? EFA_GDA_BAD_COMPLETION : deadline.expired(mine ? EFA_GDA_TIMEOUT_COMPLETION : kNotYet);
    }
    if (status != EFA_GDA_OK && status != kNotYet) poison(queue, (efa_gda_status)status);
    /* Before anyone uses what these requests read or wrote; poll() has done so itself. */
    if (queue->counters.success != nullptr) fence_system();
    *all = found;
    return status;
  }

  efa_gda_queue *queue_;
  uint64_t timeout_ns_;
  Ring<Group, StoreBytes> ring_;
  PublicationSlots stage_;
  uint64_t posted_;
  /* Errors of the queue that this handle has told of; the leader's. */
  uint32_t errors_ = 0;
  /* Whether an owner has the queue; whether this one left a doorbell to a later call. */
  bool owns_ = false, deferred_ = false;
  efa_gda_status status_;
};

}  // namespace efa_gda

#endif
