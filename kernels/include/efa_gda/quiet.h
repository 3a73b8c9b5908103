/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The wait for requests of quiet() (post.h). A queue's owner and a lock owner wait as the writer. On a shared queue a
 * group first waits without the lock, until the queue is idle, for at most kIdleWaitNs (post.h).
 *
 * TERMS. Writer, next, done, poison, abort flag: see sq.h. Queue's owner, lock owner, a free lock: see ticket_lock.h.
 * `completed`: what completed_now() returned (cq.h).
 *
 *   waits         | until                                     | bound            | at the bound
 *   as the writer | completed is next: all requests in the    | the handle's;    | EFA_GDA_TIMEOUT_COMPLETION; poisons
 *                 |   ring are done                           |   begins again   |   the queue
 *                 |                                           |   when a request |
 *                 |                                           |   completes      |
 *   otherwise     | completed is the low half of reserve.word,| kIdleWaitNs      | kNotIdle, poisons nothing: quiet()
 *                 |   and the lock is free                    |                  |   acquires the lock
 * Until then both waits also end with a poison (EFA_GDA_POISONED), with the abort flag (its status; poisons the queue),
 * and with EFA_GDA_BAD_COMPLETION, which poisons the queue, in two cases. The handle has ever read a completion of
 * another queue pair: that queue's pollers may have read this queue's completions. Or, as the writer, next - completed
 * is more than sq.num_entries: more requests completed than were posted, or more are in flight than the ring holds.
 *   After EFA_GDA_OK the group may use these requests' buffers: the leader loads `completed` with an acquire (B2 in
 * cq.h; with counters it fences before it returns), and then the group synchronises (for_all() in post.h).
 */
#ifndef EFA_GDA_QUIET_H
#define EFA_GDA_QUIET_H

#include "sq.h"

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

/* Waits, and returns the status. Called by the leader. kWriter: as the writer; otherwise `next` is unused. all->foreign
 * must be true if the handle has read a completion of another queue pair before. Adds what it read to `all`. */
template <bool kWriter>
EFA_GDA_COLD uint32_t leader_wait_until_done(efa_gda_queue *queue, uint32_t next, uint64_t bound_ns, Completions *all) {
  Deadline deadline(queue, bound_ns, kWriter ? &queue->completion.completed : nullptr);
  uint32_t status = EFA_GDA_OK;
  EFA_GDA_NO_UNROLL while (status == EFA_GDA_OK) {
    uint32_t posted = kWriter ? next : (uint32_t)load_relaxed(&queue->reserve.word);
    uint32_t completed = completed_now(queue, posted, all);
    /* completed_now() loads counters that never wrap without an acquire (COUNTERS in cq.h). */
    if (!kWriter && queue->counters.success != nullptr) fence_system();
    if (kWriter ? completed == next : is_idle(queue, completed)) break;
    bool broken = all->foreign || (kWriter && next - completed > queue->sq.num_entries);
    status = broken ? EFA_GDA_BAD_COMPLETION : deadline.expired(kWriter ? EFA_GDA_TIMEOUT_COMPLETION : kNotIdle);
  }
  if (status != EFA_GDA_OK && status != kNotIdle) poison(queue, (efa_gda_status)status);
  /* For the writer, as above. */
  if (queue->counters.success != nullptr) fence_system();
  return status;
}

}  // namespace efa_gda

#endif
