/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Free slots of the send queue: how many entries may be placed.
 *
 * TERMS. Owner, entry, place, handle, next, poison, abort flag: see sq.h. Turn: turns.h. `completed`: the number of
 * completed requests modulo 2^32, as completed_so_far() returns it (cq.h). It only grows. (So does the word
 * completion.completed, except with counters whose wrap is 0, where it may step back.)
 *
 * FREE SLOTS. capacity is num_entries, or less with a doorbell record (sq.h). An entry with the producer index s may be
 * placed if
 *     s < completed + capacity.
 * Requests complete in any order, so `completed` is a count and not a position; rdma-core bounds its ring by the same
 * count (wqe_posted - wqe_completed). On a queue with a request table the limit may be lower (LIMIT in requests.h).
 *
 * THE CACHED LIMIT. A handle does not poll for each post: it keeps the limit of its last poll, which is never too high,
 * because `completed` only grows. A handle that has posted nothing knows of no free slot.
 *
 * A LOOK (look_for_slots() in sq.h) is what an owner does before it polls in a usual post: its leader loads `completed`
 * without a poll (completed_so_far() in cq.h). It needs a queue without a doorbell record and without a request table.
 *
 * THE WAIT. An owner that waits for free slots first rings for everything that it has placed, and a group that shares
 * the queue rings in its turn for what stands before it (turns.h). So all that they wait for is with the adapter, or
 * covered by the doorbell record. They wait for no more than half the capacity. The bound is the timeout of the handle;
 * it begins again whenever completion.completed has changed. If the wait fails, the call returns one of these statuses:
 *   at the bound                         | EFA_GDA_TIMEOUT_SLOTS; the leader poisons the queue with it
 *   the abort flag is raised             | the flag's status (EFA_GDA_ABORTED for 1); the leader poisons the queue with
 *                                        |   it
 *   the queue is poisoned already        | EFA_GDA_POISONED
 *   next - completed is more than        | EFA_GDA_BAD_COMPLETION; the leader poisons the queue with it. More requests
 *     num_entries                        |   completed than were posted, or more are in flight than the ring holds:
 *                                        |   the counts are wrong, and the ring is not treated as empty
 * The handle keeps the status (post.h), so it places nothing more. Some entries of the call may be placed and rung for,
 * others not. The adapter may still access the buffers of requests in flight.
 */
#ifndef EFA_GDA_FREE_SLOTS_H
#define EFA_GDA_FREE_SLOTS_H

#include "requests.h"

namespace efa_gda {

/* The most requests that may be in flight: `capacity` above. */
EFA_GDA_FN uint32_t capacity_of(const efa_gda_queue *queue) {
  const efa_gda_sq &sq = queue->sq;
  return (sq.flags & EFA_GDA_SQ_RECORD) != 0 && sq.max_batch < sq.num_entries ? sq.max_batch : sq.num_entries;
}

/* The free slots from `next` on: capacity - (next - completed), or 0 if that is negative, or fewer if the request table
 * allows fewer. Called by a leader. */
EFA_GDA_FN uint32_t free_slots_of(efa_gda_queue *queue, uint32_t next, uint32_t completed) {
  uint32_t in_flight = next - completed, capacity = capacity_of(queue);
  uint32_t free_slots = in_flight < capacity ? capacity - in_flight : 0;
  return queue->requests.num_entries == 0 ? free_slots : limit_by_table(queue, next, free_slots);
}

}  // namespace efa_gda

#endif
