/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ticket lock of a shared send queue, with flat combining. Groups take tickets. One group at a time owns the lock
 * and is the queue's writer (sq.h). A group that waits for the lock may publish its entries; the lock owner then places
 * them and rings for them. publication.h states how the lock owner finds published calls, combine.h how it combines
 * them and why a published call may return early.
 *
 * TERMS. Group, leader, handle, call, entry, round, place, ring, writer, poison, abort flag: see sq.h. The low
 * and the high half of a 64-bit word are its low and its high 32 bits.
 *   ticket         of a call of n entries: the value of reserve.word before the call's leader adds 2^32 + n to that
 *                  word. Tickets are unique and ascend. The low half is the producer index of the call's first entry.
 *                  A flush, a quiet and the constructor of an owner's handle have an empty ticket: n = 0.
 *   next ticket    of a ticket t of n entries: t + 2^32 + n. Perhaps no group has taken it yet.
 *   T              the ticket in lock.serving. T is at most reserve.word; if they are equal, no group has taken T yet.
 *                  T's group is the group that has taken T or that will take it.
 *   served         of a call: its ticket is before T. All its entries are then in the ring, and rung for unless the
 *                  call deferred its doorbell.
 *   queue's owner  a group that opened its handle with Sharing::Thread, Warp or Block (post.h). It owns the lock from
 *                  the constructor to close(), and neither publishes nor combines.
 *   lock owner     the group that owns the lock. Below, it shares the queue unless the text names a queue's owner.
 *   publish        to write a call's entries, complete with phase and request id, to publication slots or ahead to the
 *                  ring, and then their flags to publication slots (publication.h). A group publishes only its own
 *                  call, of one round, and only before it owns the lock.
 *   place ahead    of a group that publishes: to write its entries to the ring (PLACING AHEAD).
 *   combine        to place published calls, unless they are placed ahead, and to ring for them. Only the lock owner
 *                  combines, and only calls of other groups.
 *   return early   of a published call: to return EFA_GDA_OK although its group has not seen it served. The group must
 *                  have read the state Open (STATES) after it published.
 *   end            the value of reserve.word that a combining lock owner loads after it has stored Closing. Each call
 *                  that returns early because of an Open of this owner or of an earlier one has a ticket before `end`,
 *                  also a call that returns after the load (combine.h).
 *
 * WORDS
 *   word                  | written by                    | read by             | ordered by
 *   reserve.word          | leaders, by fetch_add;        | leaders             | relaxed, the CAS acq_rel; carries no
 *                         | queue's owners, by CAS        |                     |   data. F1, F2 (combine.h) order it
 *   lock.serving          | the lock owner; a queue's     | leaders; all        | A1, A3
 *                         | owner, in close()             | threads in Sender() |
 *   lock.doorbell_index,  | the same, before it stores    | leaders; used by    | relaxed: may be older than serving
 *   lock.confirmed_index, | serving; free_limit also by   | the next writer and |   or newer (A1)
 *   reserve.free_limit    | leaders that publish          | by PLACING AHEAD    |
 *   publication entries,  | the group whose ticket        | the lock owner      | A2; reuse: A3
 *   publication flags     | reserved the slots            |                     |
 *   error.poison          | a leader, by CAS from 0; the  | all groups          | relaxed; it carries no data
 *                         | host, if words are lost       |                     |
 *
 * PAIRS: a release, its acquire, and what the acquire makes visible.
 *   A1  The lock owner passes the lock: its group synchronises, then its leader stores the two indices and the limit on
 *       free slots relaxed, and serving with a release (pass_lock; release_queue() in post.h). The leader of the next
 *       lock owner loads serving with an acquire, then its group synchronises (wait; acquire_queue() in post.h).
 *       Visible: all that earlier groups wrote as lock owners: ring slots, doorbells, poster words and tracking.oldest
 *       (requests.h). Completion words have pairs of their own (cq.h).
 *       Ticket() only begins its acquire of serving, because an acquire empties L1. complete_acquire() completes it for
 *       the leader; the other threads have then acquired at the next sync. It precedes the first doorbell, the fence
 *       that confirms one, and the passing of the lock (post_shared() in post.h), poster words and loads of the request
 *       table (R2, R3), and the rest of a call that is not a usual post (post_slowly(), begin_empty_call()). acquire()
 *       fences before it stores Open. Until then, of the words that earlier lock owners wrote, the group uses the two
 *       indices and the limit, and stores ring slots, which depend on the load of serving by a branch, and flags. That
 *       ring slots therefore follow the load is an assumption about the GPU and not an axiom of PTX (docs/fidelity.md,
 *       batch window).
 *       A group that places ahead stores ring slots that depend in the same way on its loads of confirmed_index and of
 *       the limit, which may be newer than serving. A lock owner's stores depend in the same way on its load of the
 *       limit, if a group that waited stored that limit after a look.
 *       The two indices may be older than T, because the 16-byte load is two loads of 8 bytes; the limit, because it is
 *       loaded before serving. With an older doorbell_index the owner may store the last doorbell value again or, if it
 *       does not ring, pass the older index on: the host then counts too many entries as not rung for. With an older
 *       confirmed_index it fences earlier than it must; with an older limit it polls earlier than it must. The protocol
 *       needs none of them to be exact.
 *       If release_alone() passes on entries that are not rung for, its fence is a system fence (order_placed). PTX
 *       does not require that scope: the next owner's ring fences at it, and fences are cumulative. The library keeps
 *       it until a real adapter has been tested without it.
 *   A2  The threads of a group that publishes store entries, the group synchronises, and each thread that has a flag to
 *       store executes fence_release_device() and stores it relaxed (publish). The fence makes that store a release,
 *       also of the poster word that the thread stores before on a queue with a request table. The threads of the lock
 *       owner load flags relaxed (scan_published) and execute fence_acquire_device(), then their group synchronises
 *       (combine).
 *       Visible: the published entries, also those placed ahead, and their poster words. The owner's ring passes
 *       entries that are placed ahead on to the adapter: fences are cumulative, so the poster's needs no system scope.
 *   A3  The lock owner copies published entries to the ring, rings (which fences), and stores serving relaxed, past
 *       their tickets (combine). A waiting group loads serving with an acquire, then synchronises. One that places
 *       ahead by what Ticket() has loaded has not acquired it: it stores no entries to publication slots, and an
 *       earlier scan does not find its flags, because scans acquire what they find (A2). A flag that does not match has
 *       no effect.
 *       Visible: that the publication slots of these calls have been read, so that they may be written again.
 *       If a group places its published call from its own copy, no group reads the published entries. Earlier
 *       lock owners may have loaded the flags; they did so before they passed the lock (A1). The next store of serving
 *       past the call's ticket lets the slots be used again.
 * Only the leader of the group that owns the lock stores serving. The second column makes each store a release:
 *   Open at its own ticket                     | the fence just before, in acquire()
 *   Open at the next ticket (combine)          | the fence of the ring before; without a ring, that of release_alone()
 *   Open or Closing, with T advanced (combine) | the fence of the ring before
 *   Closing (close_lock)                       | that of the store of serving before it
 *   Passed, PassedMustCombine                  | the store is a release (pass_lock; release_queue() in post.h)
 *
 * STATES. The low two bits of lock.serving are the state, the others T.
 *   state             | lock owner                  | calls from T on, but for the lock owner's
 *   Passed            | T's group, once it has read | may be published, and wait. None has returned early
 *                     |   this; until then no group |
 *   PassedMustCombine | the same                    | may be published, and wait. Calls after T, but not T, may have
 *                     |                             |   returned early, so T's group must combine
 *   Open              | a group O, which will       | may be published, and return early: O combines them, or passes
 *                     |   combine or combines       |   the lock in PassedMustCombine
 *   Closing           | the same group O            | may be published, and wait. Some may have returned early
 * In Open T is O's ticket until O's own entries are rung for, then a later ticket. In Closing it is a later ticket. The
 * lock is free if it is Passed and no group has taken T: serving == reserve.word << 2.
 *   T's group owns the lock from the moment at which it reads Passed or PassedMustCombine with its own ticket, whether
 * it has published its call or not. Three exceptions: a group that reads a poison when it takes its ticket abandons the
 * ticket, even if the lock is passed to it; a group whose wait for the lock failed reads the lock once more but does
 * not act on it; and a queue's owner reads the state before it takes its ticket, and owns the lock from its CAS.
 *
 * THE LOCK OWNER
 *   1. If it sees that other groups wait (others_wait), stores Open when it acquires the lock. It sees that if its last
 *      load of reserve.word, before it acquired, shows later tickets with entries, and the queue has publication slots.
 *      Empty tickets have nothing to combine. A block does not look: it combines only if it received the lock in
 *      PassedMustCombine (step 3).
 *   2. Places its call's entries: those of the first round as made, those of each further round after it has made
 *      them. For that it may wait for free slots. A flush and a quiet have no entries. A quiet rings, and waits
 *      until all requests in the ring are done.
 *   3. If it stored Open in step 1, or received the lock in PassedMustCombine: rings, and combines (combine.h). Of a
 *      block the leader combines alone, as a one-thread group. Otherwise: rings, unless the call defers its doorbell,
 *      and passes the lock in Passed to the next ticket.
 * Where it rings, it rings for all entries in the ring; if they are rung for already, it does not ring again.
 *   If the call is placed ahead, step 2 only goes past its entries.
 *   From the store of Open on, calls may return early although the lock owner still waits. They are combined later.
 *
 * A CALL THAT WAITS. If the lock is not passed to a call when its group takes the ticket, the group loads serving
 * (publish_usual, has_ended, wait): the leader loads it with an acquire, then the group synchronises. (Case 4, for a
 * call that is placed ahead, may use what Ticket() loaded: A1.) The group acts on the first of these cases that
 * applies. After cases 4 and 5 it begins again at case 1. outcome() decides which it is.
 *   1. T is past the call's ticket: the call is served, and the group returns.
 *   2. T is the call's ticket, and the state is Passed or PassedMustCombine: the group owns the lock.
 *   3. The call is published and has at most kMaxEarlyReturnEntries entries, the state is Open, and the call's slots
 *      are among the first kMaxEntriesAhead * (threads of the group) slots from T on: the group returns early. A
 *      scan after F2 that begins at its ticket must find it, whichever kind of group scans: hence the limit on its
 *      entries. The limit on slots bounds how many entries are ahead of it.
 *   4. The call has entries and is not published, the queue has publication slots, the call's slots are among the
 *      first publication.num_entries slots from T on, and the call has one round: the group publishes the call, its
 *      leader executes F1 (combine.h), and the group loads serving. The calls that last used these publication slots
 *      have tickets before T, and no group reads the slots for them any more (A3).
 *   5. Otherwise the group loads serving until it changes (leader_wait_for_change).
 *
 * PLACING AHEAD. In publish_usual() a group places its call ahead if its slots are of one lap of the ring and, by the
 * words that Ticket() or else read_lock() has loaded, the entries fit the batch window and the free slots
 * (Ring::has_room):
 *     first slot + entries - confirmed_index <= max_batch        first slot + entries <= free_limit
 * Both limits are on positions in the ring. No value of confirmed_index or free_limit is too high, and an older one is
 * only stricter. So it does not matter which group writes the slots, nor that slots before them are not written yet,
 * and the lock owner need not check them again. If the limit does not suffice, the group looks for free slots (A LOOK
 * in free_slots.h). No other group writes these slots: they are those of the ticket. (While a group owns the queue, no
 * other group places ahead or looks: OWNED QUEUES in post.h.) The flags have kPlacedAhead, and the publication slots
 * keep older entries. The lock owner, which would otherwise copy the entries, only rings for them. While it combines,
 * it confirms doorbells early, so that more groups can place ahead (confirm_for_others() in sq.h).
 *
 * WAITS THAT RUN OUT
 *   wait                                   | at its bound
 *   for the lock                           | EFA_GDA_TIMEOUT_LOCK
 *   of the lock owner, for free slots      | EFA_GDA_TIMEOUT_SLOTS (free_slots.h)
 *   of quiet() as lock owner, for requests | EFA_GDA_TIMEOUT_COMPLETION (waits.h)
 * At the bound the leader poisons the queue with that status. If the abort flag is raised before, the leader poisons
 * the queue with the flag's status. If the queue is poisoned already, the wait ends with EFA_GDA_POISONED. A
 * lock owner whose wait failed does not pass the lock; a queue's owner passes it in close() nevertheless (post.h).
 *   The bound of the wait for the lock is the handle's timeout. It begins again with each change of lock.serving, and
 * of completion.completed, because the lock owner may wait for a slow adapter. The clock is first read after 33 to 74
 * loads of serving without a change, and the abort flag kAbortPollNs (100 us) later, or at the bound. While serving
 * changes more often, neither bound nor flag ends the wait. The wait ends even if completing requests restart its bound
 * again and again: finitely many calls have earlier tickets, and each waits for finitely many requests. A lock owner
 * waits only for free slots and for requests, and combine() ends: it has at most kMaxOpenRounds rounds in Open and, in
 * Closing, at most one for each call before `end`. A queue's owner keeps the lock until close(). Other groups must take
 * no tickets meanwhile: a group that does waits until its bound runs out after the last completion, or until the
 * owner's close() poisons the queue.
 *   A waiting group looks for a poison after 33 to 74 loads of serving without a change, and after each further 32.
 * Between these looks it acts on cases 1 to 4 as without a poison. A call that returned early before the poison is
 * perhaps never rung for. Its group sees the poison in its next post(), flush() or quiet(), or in a wait for these
 * requests; close() of a shared handle looks at the poison only if it has to ring for deferred entries.
 *   A group whose wait for the lock failed must not use its ticket again. If it had published the call, a lock owner
 * may still place and ring for its entries. If a wait for free slots fails while the lock owner combines, its own
 * entries are all rung for, although the call returns the failure.
 *
 * WRAP-AROUNDS. Entries carry from reserve.word's low half into the high half every 2^32 entries; a ticket is one
 * 64-bit number, so order and slots stay right. lock.serving and flags hold tickets modulo 2^62, and tickets are
 * compared by signed difference. The tickets that are not served belong to waiting calls, one of each group, and to
 * calls that returned early, which case 3 limits: together far fewer than the 2^29 tickets that the comparison allows.
 *   Flags are not cleared. A flag of an earlier call matches again for a later entry of the same sum ticket + i, modulo
 * 2^62 (the same producer index, about 2^30 calls later), if nothing was published in the slot meanwhile. The lock
 * owner could then place the old entry. The library accepts that.
 */
#ifndef EFA_GDA_TICKET_LOCK_H
#define EFA_GDA_TICKET_LOCK_H

#include "combine.h"

namespace efa_gda {

/* What a reading of the lock means for a call, and how its wait ended. Owner: the lock is passed to the call; after
 * wait() the group owns it. Ended: the call is served, or may return early. MayPublish: the group may publish the
 * call. Failed, only from wait(): Ticket::status() says how. None, never from wait(): the group must wait. */
enum class TicketOutcome { Owner, Ended, MayPublish, Failed, None };

/* What a Ticket keeps between its functions. SharedCall (shared_call.h) keeps it in the thread's memory. */
struct TicketState {
  /* Entries of the call. */
  uint32_t count_;
  /* From collect() on shifted, as lock.serving holds it; before that, on the leader, as reserve.word held it. */
  uint64_t ticket_;
  /* lock.serving, and the low half of reserve.word, as last read; reserved_ is valid on all threads if
   * Group::kCombines, otherwise on the leader. The ring has inherited the other words. */
  uint64_t serving_;
  uint32_t reserved_;
  /* must_combine_: the group received the lock in PassedMustCombine. published_: the group has published the call;
   * placed_ahead_: ahead. */
  bool owns_lock_, must_combine_, published_, placed_ahead_;
  /* Not EFA_GDA_OK: the ticket must not be used. */
  efa_gda_status status_;
};

/* One call's ticket. All threads of the group construct it and call each public function together, in this order:
 *   1. Ticket(), collect(), and complete_acquire() at the latest when A1 requires it.
 *   2. acquire_if_passed().
 *   3. In a post() for which Ring::is_usual_round() holds, unless the group owns the lock, publish_usual(); if that
 *      returns true, has_ended(); if that returns true, the call ends. Otherwise step 2 again.
 *   4. Unless owns_lock(), wait(). If it returns MayPublish, resume(), store the entries, publish(), and wait() again.
 *      If it returns Ended or Failed, the call ends.
 *   5. The lock owner places what it has not placed yet, and calls release_alone().
 * finish_call() (shared_call.h) does steps 4 and 5, proceed() (post.h) the others. If the lock owner has placed all
 * entries and rung for them, it may also pass(), unless it must_combine(). */
template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ticket : private TicketState {
 public:
  using RingOf = Ring<Group, StoreBytes>;

  /* Case 3 of A CALL THAT WAITS. Times size(), it is two flag windows (publication.h) of a thread or a warp. */
  static constexpr uint32_t kMaxEntriesAhead = 2 * kFlagsPerThread<Group>;

  /* Takes a ticket for `count` entries, at most kMaxEntriesPerCall, and reads the lock. The accesses are in flight
   * together, for one round trip; collect() waits for them. */
  EFA_GDA_FN Ticket(efa_gda_queue *queue, RingOf &ring, uint32_t count)
      : TicketState(), queue_(queue), ring_(ring) {
    forget_reading();
    count_ = count;
    if (ring.is_leader()) {
      ticket_ = fetch_add_relaxed(&queue->reserve.word, kOneCall + count + zero_by_thread());
      status_ = (efa_gda_status)load_relaxed(&queue->error.poison);
      leader_read_reserve();
      begin_acquire_pair(&queue->lock.serving, serving_, indices_);
    }
  }
  /* Continues with a ticket whose state() was `state`. */
  EFA_GDA_FN Ticket(efa_gda_queue *queue, RingOf &ring, const TicketState &state)
      : TicketState(state), queue_(queue), ring_(ring) {}
  EFA_GDA_FN const TicketState &state() const { return *this; }

  /* Waits for these accesses, and gives all threads what the leader read. */
  EFA_GDA_FN void collect() {
    Group group = ring_.group();
    ticket_ = group.from_leader(ticket_) << EFA_GDA_LOCK_STATE_BITS;
    share_lock_words();
    if (group.from_leader((uint32_t)status_) != EFA_GDA_OK) status_ = EFA_GDA_POISONED;
  }
  /* Completes the acquire of Ticket() (A1), for the leader; for the other threads at the next sync. */
  EFA_GDA_FN void complete_acquire() const {
    if (ring_.is_leader()) end_acquire();
  }
  EFA_GDA_FN void complete_acquire_for_all() const {
    complete_acquire();
    ring_.group().sync();
  }
  /* Makes the group the lock owner if, as last read, the lock is passed to this ticket and there is no poison. */
  EFA_GDA_FN bool acquire_if_passed() {
    if (EFA_GDA_LIKELY(status_ == EFA_GDA_OK && is_passed_to(ticket_, serving_))) acquire();
    return owns_lock_;
  }

  /* For a call for which Ring::is_usual_round() holds, whose only round is in `quads`: if case 4 applies and the slots
   * are of one lap, publishes the call; ahead, if it can. Reads the lock first, unless what Ticket() has read is enough
   * to place ahead. Returns whether it published. */
  EFA_GDA_FN bool publish_usual(const PublicationSlots &publication, Quad (&quads)[4]) {
    if (status_ != EFA_GDA_OK || !ring_.has_publication_slots()) return false;
    bool ahead = false;
    if (outcome(publication.mask + 1) == TicketOutcome::MayPublish) {
      resume();
      ahead = ring_.has_room(count_);
    }
    if (!ahead) {
      read_lock();
      if (outcome(publication.mask + 1) != TicketOutcome::MayPublish) return false;
      bool is_owned = is_limit_of_owned(ring_.free_limit(), first_slot());
      resume();
      if (!is_owned) ring_.look_for_slots(count_);
      ahead = ring_.has_room(count_);
    }
    uint8_t *memory = ahead ? ring_.slot_address(0) : publication.entries;
    uint32_t slot = first_slot(), ring_mask = ring_.num_entries() - 1, mask = ahead ? ring_mask : publication.mask;
    /* finish_call() publishes a call of two laps of the ring or, if not placed ahead, of the publication slots. */
    if ((slot & mask) + count_ > mask + 1 || (slot & ring_mask) + count_ > ring_mask + 1) return false;
    bool phase = (slot & ring_.num_entries()) != 0;
    typename RingOf::StoringGroupOf group = ring_.storing_group();
    if (!EFA_GDA_LIKELY(!ring_.has_wide_ids())) set_wide_ids(group, quads, slot, phase);
    store_quads_of_lap(group, quads, 0, Group::kSingleThread ? 1 : count_, slot, phase, memory, mask, 6,
                       [&](uint8_t *to, const Quad &quad) {
                         /* Stores of 16 bytes suit either memory. */
                         if (ahead || StoreBytes == 16) {
                           RingOf::store_to_ring(to, quad);
                         } else {
                           store_quad_local(to, quad);
                         }
                       });
    publish(publication, ahead);
    return true;
  }
  /* Reads the lock until case 1, 2 or 3 of A CALL THAT WAITS applies, at most kLoadsWithoutClock times. Returns whether
   * the published call is served, or may return early. */
  EFA_GDA_FN bool has_ended() {
    TicketOutcome now = TicketOutcome::None;
    EFA_GDA_NO_UNROLL for (uint32_t n = 0; now == TicketOutcome::None && n != kLoadsWithoutClock; n++) {
      read_lock();
      now = outcome(0);
      if (now == TicketOutcome::None) pause();
    }
    return now == TicketOutcome::Ended;
  }
  EFA_GDA_FN bool has_placed_ahead() const { return placed_ahead_; }

  EFA_GDA_FN bool owns_lock() const { return owns_lock_; }
  /* Passes the lock to the next ticket, in Passed. */
  EFA_GDA_FN void pass() { pass_lock(queue_, ring_, next_ticket() | kPassed); }
  /* The producer index of the call's first entry. */
  EFA_GDA_FN uint32_t first_slot() const { return (uint32_t)(ticket_ >> EFA_GDA_LOCK_STATE_BITS); }
  EFA_GDA_FN efa_gda_status status() const { return status_; }

  /* Waits until case 1, 2, 3 or 4 of A CALL THAT WAITS applies. In case 2 it makes the group the lock owner. If it
   * fails, the queue is poisoned. `publication_slots`: those of the queue. */
  EFA_GDA_FN TicketOutcome wait(uint32_t publication_slots, uint64_t timeout_ns) {
    if (status_ != EFA_GDA_OK) return TicketOutcome::Failed;
    Group group = ring_.group();
    /* Not a call without entries, nor one of several rounds. */
    bool can_publish = !published_ && count_ - 1 < group.size() && ring_.has_publication_slots();
    if (!can_publish) publication_slots = 0;
    read_lock();
    EFA_GDA_NO_UNROLL for (;;) {
      TicketOutcome now = outcome(publication_slots);
      if (now == TicketOutcome::Owner) acquire();
      if (now != TicketOutcome::None) return now;
      uint32_t status = group.rank() == 0 ? leader_wait_for_change(timeout_ns) : EFA_GDA_OK;
      share_lock_words();
      status = group.from_leader(status);
      if (status != EFA_GDA_OK) {
        status_ = (efa_gda_status)status;
        if (group.rank() == 0) poison(queue_, status_);
        return TicketOutcome::Failed;
      }
    }
  }

  /* To be called before the group places ahead, publishes, or acts as the lock owner. */
  EFA_GDA_FN void resume() {
    ring_.resume(first_slot());
    if (placed_ahead_) ring_.advance(count_);
  }

  /* Publishes the call: stores the flags of its only round, whose entries the group has stored to the publication slots
   * or, if it `placed` them ahead, to the ring. Then executes F1. */
  EFA_GDA_FN void publish(const PublicationSlots &publication, bool placed) {
    Group group = ring_.group();
    uint32_t i = group.rank();
    published_ = true;
    placed_ahead_ = placed;
    /* R2 (requests.h). */
    if (ring_.poster() != 0) complete_acquire();
    /* A thread's release below covers what all threads stored before this sync. */
    group.sync();
    if (i < count_) {
      ring_.mark_posted(0, count_, first_slot());
      /* The release of A2, also for the poster word. */
      fence_release_device();
      uint64_t bits = (i + 1 == count_ ? kLastSlot : 0) | (placed ? kPlacedAhead : 0);
      store_relaxed(publication.flag(first_slot() + i), flag_of(ticket_, i) | bits);
    }
    group.sync();
    /* F1. */
    if (ring_.is_leader()) fence_device_ordered();
  }

  EFA_GDA_FN bool must_combine() const { return must_combine_ || others_wait(); }
  /* Step 3 of THE LOCK OWNER: ends the group's time as lock owner, if it does not have to combine, and returns true.
   * Otherwise rings for all entries in the ring and returns false; the group still owns the lock, and the caller must
   * combine from next_ticket() on. The group must have placed the call's entries. `rings`: the call does not defer its
   * doorbell. */
  EFA_GDA_FN bool release_alone(bool rings) {
    bool combines = must_combine(), rang = (rings || combines) && ring_.next() != ring_.doorbell_index();
    if (EFA_GDA_LIKELY(rang)) ring_.ring();
    if (!rang) {
      if (ring_.next() != ring_.doorbell_index()) {
        /* A1: passes on entries that are not rung for. */
        ring_.order_placed();
      } else if (combines && ring_.is_leader()) {
        /* The release of the store of Open in combine(). */
        fence_release_device();
      }
    }
    if (EFA_GDA_LIKELY(!combines)) pass();
    return !combines;
  }
  EFA_GDA_FN uint64_t next_ticket() const { return ticket_ + ((kOneCall + count_) << EFA_GDA_LOCK_STATE_BITS); }

 private:
  /* Returns the case of A CALL THAT WAITS that applies, by the lock's words as last read. `publication_slots`: the
   * limit of case 4, or 0 if the group must not publish. */
  EFA_GDA_FN TicketOutcome outcome(uint32_t publication_slots) const {
    uint64_t serving = serving_;
    if ((int64_t)((serving | kLockStateMask) - (ticket_ | kLockStateMask)) > 0) return TicketOutcome::Ended;
    if (is_passed_to(ticket_, serving)) return TicketOutcome::Owner;
    /* Slots from T's first to the call's last. */
    uint32_t ahead = first_slot() + count_ - (uint32_t)(serving >> EFA_GDA_LOCK_STATE_BITS);
    if (published_ && count_ <= kMaxEarlyReturnEntries && (serving & kLockStateMask) == kOpen &&
        ahead <= kMaxEntriesAhead * ring_.group().size()) {
      return TicketOutcome::Ended;
    }
    /* A call without entries may have none ahead. */
    return ahead - 1 < publication_slots ? TicketOutcome::MayPublish : TicketOutcome::None;
  }

  /* So that no register keeps the reading before until the next one. */
  EFA_GDA_FN void forget_reading() {
    serving_ = indices_ = 0;
    reserved_ = limit_ = 0;
  }
  EFA_GDA_FN void leader_read_reserve() {
    uint64_t word, limit;
    load_relaxed_pair(&queue_->reserve.word, word, limit);
    reserved_ = (uint32_t)word;
    limit_ = (uint32_t)limit;
  }
  EFA_GDA_FN void leader_read_lock() {
    leader_read_reserve();
    load_acquire_pair(&queue_->lock.serving, serving_, indices_);
  }
  /* Gives all threads what the leader read. If the leader read it with an acquire, completes that for them. */
  EFA_GDA_FN void share_lock_words() {
    Group group = ring_.group();
    serving_ = group.from_leader(serving_);
    uint64_t indices = group.from_leader(indices_);
    ring_.inherit(indices, group.from_leader(limit_));
    if constexpr (Group::kCombines) reserved_ = group.from_leader(reserved_);
    group.sync();
  }

  /* Whether the state is Passed or PassedMustCombine, and T is `ticket`. */
  EFA_GDA_FN static bool is_passed_to(uint64_t ticket, uint64_t serving) {
    return (serving & ~(uint64_t)kPassedMustCombine) == ticket;
  }

  /* Loads the lock's words with an acquire, for all threads. */
  EFA_GDA_FN void read_lock() {
    forget_reading();
    if (ring_.is_leader()) leader_read_lock();
    share_lock_words();
  }

  /* The most loads of serving in has_ended(), and those without a change before leader_wait_long(): most waits end
   * earlier. */
  static constexpr uint32_t kLoadsWithoutClock = 31;

  /* Reads the lock until serving changes, or until the wait fails. */
  EFA_GDA_FN efa_gda_status leader_wait_for_change(uint64_t timeout_ns) {
    uint64_t before = serving_;
    EFA_GDA_NO_UNROLL for (uint32_t loads = 0; loads != kLoadsWithoutClock; loads++) {
      leader_read_lock();
      if (serving_ != before) return EFA_GDA_OK;
      pause();
    }
    efa_gda_status status = leader_wait_long(queue_, before, timeout_ns);
    leader_read_lock();
    return status;
  }
  /* The rest of that wait, with a clock. Its Deadline is in the thread's memory, and each acquire makes the next access
   * to that slow; so the first loads do without. */
  EFA_GDA_COLD static efa_gda_status leader_wait_long(const efa_gda_queue *queue, uint64_t before,
                                                      uint64_t timeout_ns) {
    Deadline::State state(timeout_ns, clock_ns() + Deadline::kAbortPollNs);
    Deadline deadline(state, queue, &queue->completion.completed);
    efa_gda_status status = EFA_GDA_OK;
    EFA_GDA_NO_UNROLL while (status == EFA_GDA_OK && load_acquire(&queue->lock.serving) == before) {
      status = deadline.expired(EFA_GDA_TIMEOUT_LOCK);
    }
    return status;
  }

  /* Step 1 of THE LOCK OWNER. */
  EFA_GDA_FN bool others_wait() const {
    return Group::kCombines && reserved_ != first_slot() + count_ && ring_.has_publication_slots();
  }

  /* Makes the group the lock owner, and stores Open if others_wait(). The lock must be passed to this ticket. */
  EFA_GDA_FN void acquire() {
    owns_lock_ = true;
    must_combine_ = (serving_ & kPassedMustCombine) != 0;
    resume();
    if (!EFA_GDA_LIKELY(!others_wait()) && ring_.is_leader()) {
      /* So that groups that acquire this Open see what the previous lock owner released. */
      fence_device();
      store_relaxed(&queue_->lock.serving, ticket_ | kOpen);
    }
  }

  efa_gda_queue *queue_;
  RingOf &ring_;
  /* What the leader read besides: the two indices and the limit, until share_lock_words() gives them to the ring. Not
   * earlier: to move a value to another register, the leader would wait for its load, and make() after that. */
  uint64_t indices_;
  uint32_t limit_;
};

}  // namespace efa_gda

#endif
