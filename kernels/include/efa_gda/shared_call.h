/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The calls on a shared queue that need no speed, as functions that are not inlined:
 *   - of each kind of group, flush(), and the wait of quiet() as lock owner (own_lock_apart() in post.h),
 *   - of a compact group (group.h), each post() that post_compact() (post.h) does not complete. It completes a usual
 *     post (sq.h) that rings if the group acquires the lock at once and need not combine; and a post for which
 *     is_usual_with_slots() holds if it publishes that at once and has_ended() (ticket_lock.h) then returns true.
 *
 * TERMS. Call, round, place: see sq.h. Lock owner, publish, combine, served, return early: see ticket_lock.h.
 *
 * A SharedCall is in the thread's memory, and continue_call() goes on with it in steps. Each step is a function that is
 * not inlined. So it exists once for all calls of a kernel, and no value of a step is in a register during another one.
 * ticket_lock.h states the protocol. continue_call() does steps 3 to 5 of the order of calls in Ticket, with
 * publish_round() in place of publish(), release_alone() in place of release(), and begin_with_published() in place of
 * release_published(). If the group must combine, continue_call() and own_lock_apart() return kMustCombine, and Sender
 * calls combine_as(). So combine() is called from the kernel, and the stack of these two functions does not add to its
 * own.
 */
#ifndef EFA_GDA_SHARED_CALL_H
#define EFA_GDA_SHARED_CALL_H

#include "ticket_lock.h"

namespace efa_gda {

/* A call after steps 1 and 2 of the order of calls in Ticket; so a post() may be published already (publish_usual()).
 * post_compact() sets every field but `serving`, `more` to no completions. Before each continue_call() it parks the
 * round in `words` (EntryShare::park) and sets `first`, `begin` and `end` to the round's. Sender::own_lock() sets
 * `more`, `rings` and `timeout_ns`, and own_lock_apart() the other fields that it uses. */
template <class Group, int StoreBytes>
struct SharedCall {
  /* The group's ring: in post() a copy of the handle's, otherwise one of its own. wait(), place(), release() and
   * combine_as() update it; publish() does not change a ring. What the call reads of completions is in `more`. */
  RingState ring;
  TicketState ticket;
  Completions more;
  /* The group publishes the call: all of its rounds, before it waits again for the lock. */
  bool publishes;
  /* All rounds are published. */
  bool is_published;
  /* The call rings at its end: a post() that does not defer, or a flush(). A quiet() has rung before its wait. */
  bool rings;
  uint64_t timeout_ns;
  /* Of a post(): the present round, as in EntryShare. Its entries are in 32 words: EntryShare::parked, then
   * EntryShare::upper. */
  uint32_t first, begin, end;
  volatile uint32_t *words;
  /* Arguments of combine(), if the group must combine. continue_call() and release() set `serving`. */
  uint32_t own;
  uint64_t serving;
};

/* kMoreRounds: continue_call() and place() return it if post_compact() must make the next round and call
 * continue_call() again. kMustCombine: continue_call(), own_lock_apart(), place() and release() return it if the group
 * still owns the lock and must combine, from `serving` on. No caller of post() receives either. */
constexpr efa_gda_status kMoreRounds = EFA_GDA_NOT_RUN, kMustCombine = (efa_gda_status)(EFA_GDA_NOT_RUN - 1);

/* The steps of continue_call(). */
template <class Group, int StoreBytes>
struct SharedCallSteps {
  using Call = SharedCall<Group, StoreBytes>;
  using RingOf = Ring<Group, StoreBytes>;
  using TicketOf = Ticket<Group, StoreBytes>;

  EFA_GDA_FN static EntryShare share_of(Call *call) {
    EntryShare share(call->words + 16, call->words);
    share.first = call->first;
    share.begin = call->begin;
    share.end = call->end;
    return share;
  }

  /* Places the round in `share`, whose quads are parked, in as many parts as the waits for free slots require. */
  EFA_GDA_FN static efa_gda_status place_parked(efa_gda_queue *queue, RingOf &ring, EntryShare &share, Call *call) {
    for (uint32_t begin = share.begin, end = share.end; begin < end; begin = share.end) {
      uint32_t n = end - begin;
      if (ring.free_limit() - ring.next() < n) {
        call->ring = ring.state();
        uint64_t room = make_room_apart<Group, StoreBytes>(queue, &call->ring, n, call->timeout_ns, &call->more);
        ring.continue_from(call->ring);
        if (room >> 32 != EFA_GDA_OK) return (efa_gda_status)(room >> 32);
        n = (uint32_t)room;
      }
      share.begin = begin;
      share.end = begin + n;
      ring.place(n, [&](uint32_t done, uint32_t n, uint32_t slot) {
        uint32_t first = share.begin - share.first + done;
        ring.mark_posted(first, n, slot);
        auto store = [&](uint32_t offset, const Quad &quad) {
          RingOf::store_to_ring(ring.slot_address(0) + offset, quad);
        };
        store_parked(ring, share, first, n, slot, ring.num_entries() - 1, store);
      });
    }
    return EFA_GDA_OK;
  }

  /* Acquires the lock if it is passed to the call, otherwise waits. Returns what Ticket::wait() returns. */
  EFA_GDA_COLD static TicketOutcome wait(efa_gda_queue *queue, Call *call) {
    PublicationSlots publication(queue);
    RingOf ring(queue, Group(), call->ring);
    TicketOf ticket(queue, ring, publication, call->ticket);
    if (!call->is_published) ticket.acquire_if_passed();
    TicketOutcome outcome =
        ticket.owns_lock() ? TicketOutcome::Owner : ticket.wait(call->is_published, call->timeout_ns);
    call->ticket = ticket.state();
    call->ring = ring.state();
    return outcome;
  }

  /* Publishes the round. Returns whether it is the call's last. */
  EFA_GDA_COLD static bool publish(efa_gda_queue *queue, Call *call) {
    PublicationSlots publication(queue);
    RingOf ring(queue, Group(), call->ring);
    TicketOf ticket(queue, ring, publication, call->ticket);
    return ticket.publish_round(share_of(call));
  }

  /* Places the round. After the last: release(). */
  EFA_GDA_COLD static efa_gda_status place(efa_gda_queue *queue, Call *call) {
    RingOf ring(queue, Group(), call->ring);
    EntryShare share = share_of(call);
    bool is_last = share.end == call->ticket.count_;
    efa_gda_status status = place_parked(queue, ring, share, call);
    if (status == EFA_GDA_OK && is_last) return release(queue, ring, call);
    call->ring = ring.state();
    return status == EFA_GDA_OK ? kMoreRounds : status;
  }

  /* Ticket::release_alone(): rings if it is due and, unless the group must combine, passes the lock. `ring` is the
   * group's. */
  EFA_GDA_FN static efa_gda_status release(efa_gda_queue *queue, RingOf &ring, Call *call) {
    PublicationSlots none;
    TicketOf ticket(queue, ring, none, call->ticket);
    call->serving = ticket.next_ticket();
    efa_gda_status status = ticket.release_alone(call->rings) ? EFA_GDA_OK : kMustCombine;
    call->ring = ring.state();
    return status;
  }
};

/* Publishes or places the present round of `call`. If it is not the last, and no wait failed, returns kMoreRounds.
 * Otherwise goes on until the call is served, may return early, has failed, its group has passed the lock, or must
 * combine; returns how the call ended, or kMustCombine. */
template <class Group, int StoreBytes>
EFA_GDA_COLD efa_gda_status continue_call(efa_gda_queue *queue, SharedCall<Group, StoreBytes> *call) {
  using Steps = SharedCallSteps<Group, StoreBytes>;
  while (!call->ticket.owns_lock_) {
    if (call->publishes && !call->is_published) {
      call->is_published = Steps::publish(queue, call);
      if (!call->is_published) return kMoreRounds;
    }
    TicketOutcome outcome = Steps::wait(queue, call);
    if (outcome == TicketOutcome::Ended) return EFA_GDA_OK;
    if (outcome == TicketOutcome::Failed) return call->ticket.status_;
    if (outcome == TicketOutcome::MayPublish) call->publishes = true;
  }
  /* A published call of several rounds: `words` hold only the last. */
  if (Group::kCombines && call->is_published && call->begin != 0) {
    call->own = call->ticket.count_;
    call->serving = begin_with_published(Group(), call->ticket);
    return kMustCombine;
  }
  return Steps::place(queue, call);
}

}  // namespace efa_gda

#endif
