/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Free slots of the send queue: how many entries the writer may still place, and the wait for more.
 *
 * TERMS. Writer, entry, place, handle, next, poison, abort flag: see sq.h. `completed`: what completed_now() returned
 * (cq.h). On a queue with counters whose wrap is 0, the word completion.completed may be older than that: it can step
 * back.
 *
 * FREE SLOTS. The writer keeps, at each store to the ring,
 *     next + entries to be written - completed <= capacity.
 * capacity is num_entries, or less with a doorbell record (sq.h).
 *   Requests complete in any order, so `completed` is a count and not a position; rdma-core bounds its ring by the same
 * count (wqe_posted - wqe_completed). Each handle caches a limit, free_limit_. It is at most completed + capacity, with
 * the value of `completed` that the handle's last poll for free slots returned. It is less in a new handle (`next`), on
 * a queue with a request table, which sets a second limit (LIMIT in requests.h), and after a block's leader combined,
 * because the block drops that limit. `completed` only grows, so the cached limit is never too high; after a wrap of
 * the producer index it could be, so resume() (sq.h) drops a limit that old. Before the writer waits for free slots, it
 * rings for everything that it has placed, so the requests for whose completions it waits are all with the adapter.
 *
 * A WAIT THAT RUNS OUT. The bound of the wait for free slots begins again whenever completion.completed has changed.
 * The wait ends with one of these statuses, which the call returns:
 *   at the bound                         | EFA_GDA_TIMEOUT_SLOTS; the leader poisons the queue with it
 *   the host raises the abort flag       | the flag's status (EFA_GDA_ABORTED for 1); the leader poisons the queue with
 *                                        |   it
 *   the queue is poisoned already        | EFA_GDA_POISONED
 *   next - completed is more than        | EFA_GDA_BAD_COMPLETION; the leader poisons the queue with it. More requests
 *     num_entries                        |   completed than were posted, so the counts are wrong; the ring is not
 *                                        |   treated as empty
 * Some entries of the call may be placed and rung for, others not. The lock owner of a shared queue must then not pass
 * the lock, because not all slots of its ticket are filled: post() and combine() return without passing it. An owner's
 * close() passes it (release_queue() in post.h). Calls of other groups end with EFA_GDA_POISONED, unless they are
 * served already or may return early. The adapter may still access the buffers of requests in flight.
 */
#ifndef EFA_GDA_FREE_SLOTS_H
#define EFA_GDA_FREE_SLOTS_H

#include "requests.h"

namespace efa_gda {

/* The most requests in flight (FREE SLOTS above; DOORBELL RECORD in sq.h). */
EFA_GDA_FN uint32_t capacity_of(const efa_gda_queue *queue) {
  const efa_gda_sq &sq = queue->sq;
  return (sq.flags & EFA_GDA_SQ_RECORD) != 0 && sq.max_batch < sq.num_entries ? sq.max_batch : sq.num_entries;
}

/* What poll_free_slots() returns if the counts are wrong. */
constexpr uint32_t kInvalidSlots = ~0u;

/* Polls, and returns the free slots from `next` on: capacity - (next - completed). kInvalidSlots: more requests
 * completed than were posted, or more are in flight than the ring holds. Called by the leader. */
EFA_GDA_FN uint32_t poll_free_slots(efa_gda_queue *queue, uint32_t next, Completions *all) {
  uint32_t in_flight = next - completed_now(queue, next, all), capacity = capacity_of(queue);
  if (in_flight > queue->sq.num_entries) return kInvalidSlots;
  uint32_t free_slots = in_flight < capacity ? capacity - in_flight : 0;
  return queue->requests.num_entries == 0 ? free_slots : limit_by_table(queue, next, free_slots);
}

/* Waits for `n` free slots; called by the leader. Returns the free slots in the low half and the status in the high
 * half, and adds what it read to `all`. Poisons the queue unless the status is EFA_GDA_OK. */
EFA_GDA_COLD uint64_t leader_wait_for_free_slots(efa_gda_queue *queue, uint32_t next, uint32_t n, uint64_t timeout_ns,
                                                 Completions *all) {
  Deadline deadline(queue, timeout_ns, &queue->completion.completed);
  uint32_t status = EFA_GDA_OK, free_slots;
  while ((free_slots = poll_free_slots(queue, next, all)) < n) {
    status = deadline.expired(EFA_GDA_TIMEOUT_SLOTS);
    if (status != EFA_GDA_OK) break;
  }
  if (free_slots == kInvalidSlots) status = EFA_GDA_BAD_COMPLETION;
  if (status != EFA_GDA_OK) poison(queue, (efa_gda_status)status);
  return (uint64_t)status << 32 | free_slots;
}

}  // namespace efa_gda

#endif
