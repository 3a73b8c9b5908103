/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The waits for free slots (free_slots.h), and those of quiet() (post.h) for requests. A queue's owner and a lock owner
 * wait as the writer. In quiet() on a shared queue a group first waits without the lock, until the queue is idle, for
 * at most kIdleWaitNs (post.h). The waits of wait(), wait_own() and test() are in requests.h.
 *
 * TERMS. Writer, next, done, poison, abort flag: see sq.h. Queue's owner, lock owner, a free lock: see ticket_lock.h.
 * Poller: see cq.h. `completed`: what completed_now() returned (cq.h).
 *
 *   wait for      | until                                     | bound            | at the bound
 *   free slots    | free_slots.h states it                    |                  |
 *   done, as the  | completed is next: all requests in the    | the handle's;    | EFA_GDA_TIMEOUT_COMPLETION; poisons
 *   writer        |   ring are done                           |   begins again   |   the queue
 *                 |                                           |   when a request |
 *                 |                                           |   completes      |
 *   idle          | completed is the low half of reserve.word,| kIdleWaitNs      | kNotIdle, poisons nothing: quiet()
 *                 |   and the lock is free                    |                  |   acquires the lock
 * Before its condition or its bound, a wait also ends with a poison (EFA_GDA_POISONED), with the abort flag (its
 * status; poisons the queue), and, as the writer, if next - completed is more than sq.num_entries: more requests
 * completed than were posted, or more are in flight than the ring holds (EFA_GDA_BAD_COMPLETION; poisons the queue).
 *   After EFA_GDA_OK the group may use these requests' buffers: the leader loads `completed` with an acquire (B2 in
 * cq.h; with counters it fences before it returns), and then the group synchronises (for_all() in post.h,
 * Ring::end_wait() in sq.h).
 */
#ifndef EFA_GDA_WAITS_H
#define EFA_GDA_WAITS_H

#include "free_slots.h"

namespace efa_gda {

/* What the wait for an idle queue returns at its bound. No caller of Sender receives it. */
constexpr efa_gda_status kNotIdle = EFA_GDA_NOT_RUN;

/* Whether the queue is idle: the lock is free, and no request is in flight. reserve.word must be loaded after
 * `completed`: if they are then equal, all requests with a ticket are done. The lock must be free besides, because the
 * word lacks the requests of a present queue's owner: `completed` can equal it although such requests are in flight. */
EFA_GDA_FN bool is_idle(const efa_gda_queue *queue, uint32_t completed) {
  uint64_t word = load_relaxed(&queue->reserve.word);
  return completed == (uint32_t)word && load_acquire(&queue->lock.serving) == word << EFA_GDA_LOCK_STATE_BITS;
}

/* What a wait of the send side waits for: as the writer, for free slots or until all requests in the ring are done;
 * otherwise until the queue is idle. */
enum class WaitFor : uint32_t { FreeSlots, Done, Idle };

/* Polls until there are `n` free slots from `next` on (`n` must be at most capacity); until all requests before `next`
 * are done; or until the queue is idle. Returns the status in the high half, and in the low half, to the writer, the
 * free slots from `next` on, if the status is EFA_GDA_OK. Unless that or kNotIdle is the status, the queue is poisoned.
 * Called by all lanes of the poller; the arguments and the result are the leader's, but `what` is the same for all. */
template <class Group>
EFA_GDA_COLD uint64_t wait_polling(efa_gda_queue *queue, WaitFor what, uint32_t next, uint32_t n, uint64_t bound_ns) {
  using Poller = typename Group::Poller;
  Poller poller;
  const bool has_counters = queue->counters.success != nullptr;
  const bool as_writer = what != WaitFor::Idle, for_slots = what == WaitFor::FreeSlots;
  const uint32_t at_bound = for_slots ? EFA_GDA_TIMEOUT_SLOTS : as_writer ? EFA_GDA_TIMEOUT_COMPLETION : kNotIdle;
  Deadline::State state(bound_ns);
  Deadline deadline(state, queue, as_writer ? &queue->completion.completed : nullptr);
  uint32_t status = EFA_GDA_OK, free_slots = 0, completed = 0;
  if (poller.rank() == 0) completed = load_relaxed(&queue->completion.completed);
  for (bool waits = true; waits;) {
    if (!as_writer && poller.rank() == 0) next = (uint32_t)load_relaxed(&queue->reserve.word);
    completed = CompletionReader<Poller>(queue, has_counters).completed_now(next, completed);
    waits = false;
    if (poller.rank() == 0) {
      bool is_broken = as_writer && next - completed > queue->sq.num_entries;
      bool frees = for_slots || (as_writer && completed == next);
      if (frees && !is_broken) free_slots = free_slots_of(queue, next, completed);
      if (for_slots) {
        waits = free_slots < n;
      } else {
        /* completed_now() loads counters that never wrap without an acquire (COUNTERS in cq.h). */
        if (has_counters && (completed == next || !as_writer)) fence_acquire_system();
        waits = as_writer ? completed != next : !is_idle(queue, completed);
      }
      if (waits) status = is_broken ? EFA_GDA_BAD_COMPLETION : deadline.expired((efa_gda_status)at_bound);
      if (status != EFA_GDA_OK && status != kNotIdle) poison(queue, (efa_gda_status)status);
      waits = waits && status == EFA_GDA_OK;
    }
    waits = poller.from_leader((uint32_t)waits) != 0;
  }
  return (uint64_t)status << 32 | free_slots;
}

}  // namespace efa_gda

#endif
