/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The waits of an owner for free slots (free_slots.h), and those of quiet() (post.h) for requests. Those of groups that
 * share a queue for free slots and turns are in turns.h, those of wait(), wait_own() and test() in requests.h.
 *
 * TERMS. Owner, next, done, poison, abort flag: see sq.h. Poller: see cq.h. `completed`: what completed_now() returned
 * (cq.h).
 *
 *   wait for   | until                                        | bound                | at the bound
 *   free slots | free_slots.h states it                       |                      |
 *   done       | completed is next: all requests in the ring  | the handle's; begins | EFA_GDA_TIMEOUT_COMPLETION;
 *              |   are done                                   |   again when a       |   poisons the queue
 *              |                                              |   request completes  |
 *   pause      | the same                                     | the caller's         | kNotQuiet; poisons nothing
 *   idle       | completed is the low half of reserve.word,   | the caller's         | the same
 *              |   and it is the turn of the next call        |                      |
 * Before its condition or its bound, a wait also ends with a poison (EFA_GDA_POISONED), with the abort flag (its
 * status; poisons the queue), and, but for idle, if next - completed is more than sq.num_entries: more requests
 * completed than were posted, or more are in flight than the ring holds (EFA_GDA_BAD_COMPLETION; poisons the queue).
 *   After EFA_GDA_OK the group may use these requests' buffers: the leader loads `completed` with an acquire (B2 in
 * cq.h; with counters it fences before it returns), and then the group synchronises (for_all() in post.h,
 * Ring::end_wait() in sq.h).
 */
#ifndef EFA_GDA_WAITS_H
#define EFA_GDA_WAITS_H

#include "free_slots.h"

namespace efa_gda {

/* What the waits of quiet() on a shared queue return at their bound. No caller of Sender receives it. */
constexpr efa_gda_status kNotQuiet = EFA_GDA_NOT_RUN;

/* Whether all calls have had their turn. `ticket`: reserve.word. */
EFA_GDA_FN bool is_turn_of(uint64_t turn, uint64_t ticket) {
  return (turn ^ ticket << EFA_GDA_TURN_BITS) >> EFA_GDA_TURN_BITS == 0;
}

/* Whether the queue is idle: no call is waiting for its turn, and no request is in flight. reserve.word must be loaded
 * after `completed`: if they are then equal, all requests with a ticket are done. */
EFA_GDA_FN bool is_idle(const efa_gda_queue *queue, uint32_t completed) {
  uint64_t word = load_relaxed(&queue->reserve.word);
  return completed == (uint32_t)word && is_turn_of(load_acquire(&queue->turn.word), word);
}

/* What a wait is for. */
enum class WaitFor : uint32_t { FreeSlots, Done, Pause, Idle };

/* Polls until there are `n` free slots from `next` on (`n` must be at most capacity); until all requests before `next`
 * are done; or until the queue is idle. Returns the status in the high half, and in the low half the free slots from
 * `next` on, if it waited for them or for Done and the status is EFA_GDA_OK. Unless that or kNotQuiet is the status,
 * the queue is poisoned. Called by all lanes of the poller; the arguments and the result are the leader's, but `what`
 * is the same for all. */
template <class Group>
EFA_GDA_COLD uint64_t wait_polling(efa_gda_queue *queue, WaitFor what, uint32_t next, uint32_t n, uint64_t bound_ns) {
  using Poller = typename Group::Poller;
  Poller poller;
  const bool has_counters = queue->counters.success != nullptr;
  const bool knows_next = what != WaitFor::Idle, for_slots = what == WaitFor::FreeSlots;
  const bool gives_up = what == WaitFor::Pause || what == WaitFor::Idle;
  const uint32_t at_bound = for_slots ? EFA_GDA_TIMEOUT_SLOTS : gives_up ? kNotQuiet : EFA_GDA_TIMEOUT_COMPLETION;
  Deadline::State state(bound_ns);
  Deadline deadline(state, queue, gives_up ? nullptr : &queue->completion.completed);
  uint32_t status = EFA_GDA_OK, free_slots = 0, completed = 0;
  if (poller.rank() == 0) completed = load_relaxed(&queue->completion.completed);
  for (bool waits = true; waits;) {
    if (!knows_next && poller.rank() == 0) next = (uint32_t)load_relaxed(&queue->reserve.word);
    completed = CompletionReader<Poller>(queue, has_counters).completed_now(next, completed);
    waits = false;
    if (poller.rank() == 0) {
      bool is_broken = knows_next && next - completed > queue->sq.num_entries;
      bool frees = for_slots || (what == WaitFor::Done && completed == next);
      if (frees && !is_broken) free_slots = free_slots_of(queue, next, completed);
      if (for_slots) {
        waits = free_slots < n;
      } else {
        /* completed_now() loads counters that never wrap without an acquire (COUNTERS in cq.h). */
        if (has_counters && (completed == next || !knows_next)) fence_acquire_system();
        waits = knows_next ? completed != next : !is_idle(queue, completed);
      }
      if (waits) status = is_broken ? EFA_GDA_BAD_COMPLETION : deadline.expired((efa_gda_status)at_bound);
      if (status != EFA_GDA_OK && status != kNotQuiet) poison(queue, (efa_gda_status)status);
      waits = waits && status == EFA_GDA_OK;
    }
    waits = poller.from_leader((uint32_t)waits) != 0;
  }
  return (uint64_t)status << 32 | free_slots;
}

/* Polls once, and returns the free slots from `next` on. Called by all lanes of the poller; argument and result are the
 * leader's. */
template <class Poller>
EFA_GDA_COLD uint32_t poll_slots(efa_gda_queue *queue, uint32_t next) {
  uint32_t completed = load_relaxed(&queue->completion.completed);
  completed = CompletionReader<Poller>(queue).completed_now(next, completed);
  return Poller().rank() == 0 ? free_slots_of(queue, next, completed) : 0;
}

}  // namespace efa_gda

#endif
