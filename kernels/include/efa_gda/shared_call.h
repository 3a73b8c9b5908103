/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The calls on a shared queue that need no speed, as functions that are not inlined: each flush(), the wait of quiet()
 * as lock owner, and each post() that post_shared() (post.h) does not complete. It completes usual posts (sq.h) that
 * are published and served or return early within a short time, and those that ring, if the lock is passed to them
 * within that time and there are free slots. It calls only combine_as() for them.
 *
 * TERMS. Call, round, place: see sq.h. Lock owner, publish, place ahead, combine, served, return early: see
 * ticket_lock.h, which also states the protocol.
 *
 * A SharedCall is in the thread's memory, and run_call() goes on with it in steps. Each step is a function that is not
 * inlined. So it exists once for all calls of a kernel, no value of a step is in a register during another one, and the
 * stack is as large as the largest step needs: a step that must wait for free slots returns kNeedsRoom, and run_call()
 * calls the step again after the wait.
 */
#ifndef EFA_GDA_SHARED_CALL_H
#define EFA_GDA_SHARED_CALL_H

#include "ticket_lock.h"

namespace efa_gda {

/* A call in the thread's memory. When it has taken its ticket, each field is defined but, without entries, `quads`
 * and, unless entries have 128 bytes, `upper`; for combine_as() only `combining` and `timeout_ns` must be. Nothing is
 * set before it is needed, because stores to the thread's memory delay the next fence. Its callers declare it as an
 * array of one: the arrays of one type in all functions that the compiler inlines into a kernel share their memory,
 * other objects often do not. */
struct SharedCall {
  /* The group's ring, in post() a copy of the handle's, and the arguments of combine(). */
  Combining combining;
  TicketState ticket;
  uint64_t timeout_ns;
  /* rings: the call rings at its end; a flush() does, and a post() that does not defer. holds: the call keeps the lock,
   * when it has rung; finish_call() then returns kHoldsLock. */
  bool rings, holds;
  /* Of a post(): the present round, as in EntryShare; `begin` is the first entry that is not placed. */
  uint32_t first, begin, end;
  Quad quads[4];
  volatile uint32_t upper[16];

  EFA_GDA_FN void set_round(const EntryShare &share) {
    first = share.first;
    begin = share.begin;
    end = share.end;
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) quads[k] = share.quads[k];
  }
};

/* Statuses that no caller of Sender receives. kMoreRounds: the caller must make the next round, set_round(), and call
 * again. kMustCombine: the group still owns the lock and must combine, from combining.serving on. */
constexpr efa_gda_status kMoreRounds = (efa_gda_status)(kNeedsRoom - 1),
                         kMustCombine = (efa_gda_status)(kNeedsRoom - 2), kHoldsLock = (efa_gda_status)(kNeedsRoom - 3);

/* Takes a ticket for no entries, for a flush() or a quiet(), which has set `holds` and `timeout_ns`. */
template <class Group, int StoreBytes>
EFA_GDA_COLD void begin_empty_call(efa_gda_queue *queue, SharedCall *call) {
  Ring<Group, StoreBytes> ring(queue, Group());
  Ticket<Group, StoreBytes> ticket(queue, ring, 0);
  ticket.collect();
  ticket.complete_acquire_for_all();
  call->combining.ring = ring.state();
  call->combining.publication = PublicationSlots(queue);
  call->ticket = ticket.state();
  call->rings = true;
  call->first = call->begin = call->end = 0;
}

/* The part of finish_call() that places what is not placed of a round, as far as there are free slots. Returns
 * EFA_GDA_OK after the call's last round. */
template <class Group, int StoreBytes>
EFA_GDA_FN efa_gda_status place_round(Ring<Group, StoreBytes> &ring, SharedCall *call) {
  uint32_t left = call->end - call->begin, room = ring.free_limit() - ring.next(), n = left < room ? left : room;
  uint32_t first = call->begin - call->first;
  if (n != 0) {
    ring.place(n, [&](uint32_t done, uint32_t m, uint32_t slot) {
      ring.mark_posted(first + done, m, slot);
      ring.store_share(call->quads, call->upper, first + done, m, slot, ring.num_entries() - 1,
                   [&](uint32_t offset, const Quad &quad) {
                     Ring<Group, StoreBytes>::store_to_ring(ring.slot_address(0) + offset, quad);
                   });
    });
  }
  call->begin += n;
  if (n != left) return kNeedsRoom;
  return call->end == call->ticket.count_ ? EFA_GDA_OK : kMoreRounds;
}

/* The part of finish_call() for the lock owner: places what is not placed, and ends the call. */
template <class Group, int StoreBytes>
EFA_GDA_FN efa_gda_status end_as_owner(Ring<Group, StoreBytes> &ring, Ticket<Group, StoreBytes> &ticket,
                                       SharedCall *call) {
  efa_gda_status status = place_round(ring, call);
  if (status != EFA_GDA_OK) return status;
  if (call->holds) {
    if (ring.next() != ring.doorbell_index()) ring.ring();
    return kHoldsLock;
  }
  call->combining.serving = ticket.next_ticket();
  return ticket.release_alone(call->rings) ? EFA_GDA_OK : kMustCombine;
}

/* Goes on with a call: waits for the lock, publishes, places, and ends the call. Returns how it ended, or kNeedsRoom,
 * kMoreRounds, kMustCombine or kHoldsLock. */
template <class Group, int StoreBytes>
EFA_GDA_COLD efa_gda_status finish_call(efa_gda_queue *queue, SharedCall *call) {
  Ring<Group, StoreBytes> ring(queue, Group(), call->combining.ring);
  Ticket<Group, StoreBytes> ticket(queue, ring, call->ticket);
  efa_gda_status status = EFA_GDA_OK;
  if (!ticket.owns_lock()) ticket.acquire_if_passed();
  EFA_GDA_NO_UNROLL for (;;) {
    TicketOutcome outcome = TicketOutcome::Owner;
    if (!ticket.owns_lock()) outcome = ticket.wait(queue->publication.num_entries, call->timeout_ns);
    if (outcome == TicketOutcome::MayPublish) {
      const PublicationSlots publication(queue);
      ticket.resume();
      ring.store_share(call->quads, call->upper, 0, call->end, ticket.first_slot(), publication.mask,
                   [&](uint32_t offset, const Quad &quad) { store_quad_local(publication.entries + offset, quad); });
      ticket.publish(publication, false);
      continue;
    }
    if (outcome == TicketOutcome::Failed) status = ticket.status();
    if (outcome == TicketOutcome::Owner) status = end_as_owner(ring, ticket, call);
    break;
  }
  call->combining.ring = ring.state();
  call->ticket = ticket.state();
  return status;
}

/* Ring::make_room() for `count` entries, or for as many as it can wait for at once. `*state` is that of a Ring<Group>.
 * Waiting is the group that waits. Group is Waiting, and all its threads call this; or, when a block combines, its
 * leader as a one-thread group, and all lanes of the block's poller call it. */
template <class Group, class Waiting, int StoreBytes>
EFA_GDA_COLD efa_gda_status make_room_apart(efa_gda_queue *queue, RingState *state, uint32_t count,
                                            uint64_t timeout_ns) {
  Ring<Group, StoreBytes> ring(queue, Group(), *state);
  efa_gda_status status = EFA_GDA_OK;
  uint64_t result = 0;
  bool is_of_group = !Group::kSingleThread || typename Waiting::Poller().rank() == 0;
  if (is_of_group) count = ring.prepare_wait(count);
  if (Group().polls()) {
    result = wait_polling<Waiting>(queue, WaitFor::FreeSlots, ring.next(), count, timeout_ns);
  }
  if (is_of_group) {
    status = ring.end_wait(result);
    *state = ring.state();
  }
  return status;
}

/* The group that combines for `Group`. */
template <class Group, bool kCombines = Group::kCombines>
struct CombinerOf {
  using Type = Group;
};
template <class Group>
struct CombinerOf<Group, false> {
  using Type = Shared<ThreadGroup>;
};

/* Combines, as the lock owner after its own call, and waits for free slots where combine() requires it. If the group is
 * a block, its leader combines, as a one-thread group, and its first warp waits. Returns the status on all threads. */
template <class Group, int StoreBytes>
EFA_GDA_COLD efa_gda_status combine_as(efa_gda_queue *queue, SharedCall *call) {
  using Combiner = typename CombinerOf<Group>::Type;
  using Poller = typename Group::Poller;
  Group group;
  Poller poller;
  Combining *c = &call->combining;
  efa_gda_status status = EFA_GDA_OK;
  bool is_of_combiner = !Combiner::kSingleThread || poller.rank() == 0;
  if (!Group::kCombines) {
    group.sync();
    c->ring.confirmed_index_ = c->ring.leader_confirmed_index_;
  }
  if (group.polls()) {
    if (is_of_combiner) status = combine<Combiner, StoreBytes>(queue, c, false);
    while (poller.from_leader((uint32_t)status) == kNeedsRoom) {
      status = make_room_apart<Combiner, Group, StoreBytes>(queue, &c->ring, c->left, call->timeout_ns);
      if (is_of_combiner && status == EFA_GDA_OK) status = combine<Combiner, StoreBytes>(queue, c, true);
    }
  }
  return (efa_gda_status)group.from_leader((uint32_t)status);
}

/* Goes on with a call until it has ended, and returns how; or until kMoreRounds or kHoldsLock. */
template <class Group, int StoreBytes>
EFA_GDA_COLD efa_gda_status run_call(efa_gda_queue *queue, SharedCall *call) {
  for (;;) {
    efa_gda_status status = finish_call<Group, StoreBytes>(queue, call);
    if (status == kMustCombine) return combine_as<Group, StoreBytes>(queue, call);
    if (status != kNeedsRoom) return status;
    uint32_t left = call->end - call->begin;
    status = make_room_apart<Group, Group, StoreBytes>(queue, &call->combining.ring, left, call->timeout_ns);
    if (status != EFA_GDA_OK) return status;
  }
}

}  // namespace efa_gda

#endif
