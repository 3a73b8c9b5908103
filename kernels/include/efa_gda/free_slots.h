/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Free slots of the send queue: how many entries the writer may still place, and the wait for more.
 *
 * TERMS. Writer, entry, place, next, poison, abort flag: see sq.h.
 *
 * FREE SLOTS. The writer keeps, at each store to the ring,
 *     next + entries to be written - completed <= capacity,   capacity = num_entries.
 * Requests complete in any order, so `completed` is a count and not a position; rdma-core bounds its ring by the same
 * count (wqe_posted - wqe_completed). Each handle caches free_limit_ = completed + capacity, with the value of
 * `completed` that its last poll for free slots returned. `completed` only grows, so the cached limit is never too
 * high. The writer rings for everything it placed before it waits for free slots, so the completions it waits for do
 * come. On a queue with a request table, the table sets a second limit, which the cached one includes (LIMIT in
 * requests.h).
 *
 * A WAIT THAT RUNS OUT. The only wait of this file is for free slots. Its bound begins again whenever `completed` has
 * changed. At the bound the leader poisons the queue with EFA_GDA_TIMEOUT_SLOTS; if the host raises the abort flag,
 * with the flag's status (EFA_GDA_ABORTED for 1); if it is poisoned already, the status is EFA_GDA_POISONED. If next -
 * completed is more than num_entries, the counts are wrong, because requests completed that were not posted: the leader
 * poisons the queue with EFA_GDA_BAD_COMPLETION, and does not treat the ring as empty. The call returns the status.
 * Some of its entries may be placed and rung for, others not. The lock owner of a shared queue must then not pass the
 * lock, because its ticket's slots are not all filled (post.h and combine() return instead); an
 * owner's close() passes it (release_queue() in post.h). Other groups end with EFA_GDA_POISONED, unless their call is
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
