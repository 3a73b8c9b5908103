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
 * publish_round() in place of publish(), release_alone() and combine_as() in place of release(), and
 * begin_with_published() and combine_as() in place of release_published().
 */
#ifndef EFA_GDA_SHARED_CALL_H
#define EFA_GDA_SHARED_CALL_H

#include "ticket_lock.h"

namespace efa_gda {

/* A call after Ticket::collect() and, in post(), acquire_alone(). The caller must set `publishes` and `is_published` if
 * it has published the call. Before each continue_call() of a post() it must park the round in `words`
 * (EntryShare::park) and set `first`, `begin` and `end` to the round's. */
template <class Group, int StoreBytes>
struct SharedCall {
  EFA_GDA_FN SharedCall(const Ring<Group, StoreBytes> &handle_ring, const TicketState &ticket_state, bool rings_at_end,
                        uint64_t bound_ns, volatile uint32_t *round_words)
      : ring(handle_ring), ticket(ticket_state), rings(rings_at_end), timeout_ns(bound_ns), words(round_words) {}

  /* The group's ring: in post() a copy of the handle's, otherwise one of its own. Each step updates it, but combine()
   * updates only its limit on free slots. What the call reads of completions is in `more`, not in the ring. */
  Ring<Group, StoreBytes> ring;
  TicketState ticket;
  Completions more;
  /* The group publishes the call: all of its rounds, before it waits again for the lock. */
  bool publishes = false;
  /* All rounds are published. */
  bool is_published = false;
  /* The call rings at its end: a post() that does not defer, or a flush(). A quiet() has rung before its wait. */
  bool rings;
  uint64_t timeout_ns;
  /* The present round, as in EntryShare. Its entries are in 32 words: EntryShare::parked, then EntryShare::upper. A
   * call without entries has no words. */
  uint32_t first = 0, begin = 0, end = 0;
  volatile uint32_t *words;
  /* Arguments of combine(). */
  uint32_t own = 0;
  uint64_t serving = 0;
};

/* kMoreRounds: continue_call() and place() return it if post_compact() must make the next round and call
 * continue_call() again. kMustCombine: place() returns it if the group still owns the lock and must combine. No caller
 * of post() receives either. */
constexpr efa_gda_status kMoreRounds = EFA_GDA_NOT_RUN, kMustCombine = (efa_gda_status)(EFA_GDA_NOT_RUN - 1);

/* The steps of continue_call(). */
template <class Group, int StoreBytes>
struct SharedCallSteps {
  using Call = SharedCall<Group, StoreBytes>;
  using TicketOf = Ticket<Group, StoreBytes>;

  EFA_GDA_FN static EntryShare share_of(Call *call) {
    volatile uint32_t *words = call->words;
    EntryShare share(words == nullptr ? words : words + 16, words);
    share.first = call->first;
    share.begin = call->begin;
    share.end = call->end;
    return share;
  }

  /* Places the round in `share`, whose quads are parked, in as many parts as the waits for free slots require. */
  EFA_GDA_FN static efa_gda_status place_parked(Ring<Group, StoreBytes> &ring, EntryShare &share, Call *call) {
    for (uint32_t begin = share.begin, end = share.end; begin < end; begin = share.end) {
      uint32_t n = end - begin;
      efa_gda_status status = ring.make_room(&n, call->timeout_ns, &call->more);
      if (status != EFA_GDA_OK) return status;
      share.begin = begin;
      share.end = begin + n;
      ring.place(n, [&](uint32_t done, uint32_t n, uint32_t slot) {
        uint32_t first = share.begin - share.first + done;
        ring.mark_posted(first, n, slot);
        store_parked(ring, share, first, n, slot, ring.num_entries() - 1, [&](uint32_t offset, const Quad &quad) {
          Ring<Group, StoreBytes>::store_to_ring(ring.slot_address(0) + offset, quad);
        });
      });
    }
    return EFA_GDA_OK;
  }

  /* Acquires the lock if it is passed to the call, otherwise waits. Returns what Ticket::wait() returns. */
  EFA_GDA_COLD static TicketOutcome wait(efa_gda_queue *queue, Call *call) {
    PublicationSlots publication(queue);
    TicketOf ticket(queue, call->ring, publication, call->ticket);
    if (!call->is_published) ticket.acquire_if_passed();
    TicketOutcome outcome =
        ticket.owns_lock() ? TicketOutcome::Owner : ticket.wait(call->is_published, call->timeout_ns);
    call->ticket = ticket.state();
    return outcome;
  }

  /* Publishes the round. Returns whether it is the call's last. */
  EFA_GDA_COLD static bool publish(efa_gda_queue *queue, Call *call) {
    PublicationSlots publication(queue);
    TicketOf ticket(queue, call->ring, publication, call->ticket);
    return ticket.publish_round(share_of(call));
  }

  /* Places the round. After the last: rings if it is due and, unless the group must combine, passes the lock. */
  EFA_GDA_COLD static efa_gda_status place(efa_gda_queue *queue, Call *call) {
    Ring<Group, StoreBytes> ring = call->ring;
    EntryShare share = share_of(call);
    bool is_last = share.end == call->ticket.count_;
    efa_gda_status status = place_parked(ring, share, call);
    if (status == EFA_GDA_OK) {
      status = kMoreRounds;
      if (is_last) {
        PublicationSlots publication;
        TicketOf ticket(queue, ring, publication, call->ticket);
        call->serving = ticket.next_ticket();
        call->own = 0;
        status = ticket.release_alone(call->rings) ? EFA_GDA_OK : kMustCombine;
      }
    }
    call->ring.continue_from(ring);
    return status;
  }

  /* Combines, its own call first if call->own is not 0, and passes the lock. */
  EFA_GDA_COLD static efa_gda_status combine(efa_gda_queue *queue, Call *call) {
    if (call->own != 0) {
      PublicationSlots publication;
      TicketOf ticket(queue, call->ring, publication, call->ticket);
      call->serving = ticket.begin_with_published();
    }
    uint64_t result = TicketOf::combine_as(queue, &call->ring, PublicationSlots(queue), call->serving, call->own,
                                           call->timeout_ns, &call->more);
    call->ring.set_free_limit((uint32_t)result);
    return (efa_gda_status)(result >> 32);
  }
};

/* Publishes or places the present round of `call`. If it is not the last, and no wait failed, returns kMoreRounds.
 * Otherwise goes on until the call is served, may return early, has failed, or its group has passed the lock; returns
 * how the call ended. */
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
    return Steps::combine(queue, call);
  }
  efa_gda_status status = Steps::place(queue, call);
  return status == kMustCombine ? Steps::combine(queue, call) : status;
}

}  // namespace efa_gda

#endif
