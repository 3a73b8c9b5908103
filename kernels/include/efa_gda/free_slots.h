/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Free slots of the send queue: how many entries the writer may still place, and the wait for more (wait_polling() in
 * waits.h).
 *
 * TERMS. Writer, owner, entry, place, handle, next, poison, abort flag: see sq.h. `completed`: the number of completed
 * requests modulo 2^32, as completed_so_far() returns it (cq.h). It only grows. (So does the word completion.completed,
 * except with counters whose wrap is 0, where it may step back.)
 *
 * FREE SLOTS. capacity is num_entries, or less with a doorbell record (sq.h). Before the writer stores n entries from
 * `next` on, it makes sure that
 *     next + n - completed <= capacity.
 * Requests complete in any order, so `completed` is a count and not a position; rdma-core bounds its ring by the same
 * count (wqe_posted - wqe_completed).
 *
 * THE CACHED LIMIT. The writer does not poll for each post: `next` may grow up to free_limit_. A poll for free slots
 * sets it to completed + capacity, or less on a queue with a request table (LIMIT in requests.h). The writer, and an
 * owner that closes its handle, pass it on in reserve.free_limit. `completed` only grows, so the limit of an earlier
 * writer is not too high until 2^31 further entries were posted; it may be older than the newest (A1 in ticket_lock.h),
 * and is then only stricter. So it does not matter in which order groups store it. resume() (sq.h) drops a limit that
 * is not from `next` to next + num_entries: then no free slot is known. The host does the same when it changes how the
 * queue is rung, because capacity depends on that (set_send_queue() in efa-gda/src/queue/mapped.rs).
 *
 * A LOOK (look_for_slots() in sq.h) is what a group does before it polls in a usual post, and to place ahead
 * (ticket_lock.h): its leader loads `completed` without a poll (completed_so_far() in cq.h), and sets free_limit_ to
 * completed + capacity. A poll takes long even if it need not read the completion queue, and meanwhile groups that
 * share the queue cannot place ahead. On a shared queue the leader also stores the new limit to reserve.free_limit. A
 * group that waits for the lock may do that: it has a ticket that is not served, so no group can own the queue before
 * the call has ended (OWNED QUEUES in post.h), and a constructor that succeeds stores to reserve.free_limit after this
 * store (A2 and A1). A warp that combines looks already when the limit allows fewer entries than a round and an eighth
 * of the ring. A look needs a queue of usual rounds (is_usual() in sq.h) without a request table, whose limit is
 * completed + num_entries. A thread that shares its queue does not look.
 *
 * THE WAIT. Before the writer waits for free slots, it rings for everything that it has placed, so it waits only for
 * requests that are with the adapter or that the doorbell record covers. It waits for no more than half the capacity.
 * The bound is the timeout of the handle; it begins again whenever completion.completed has changed. If the wait fails,
 * the call returns one of these statuses:
 *   at the bound                         | EFA_GDA_TIMEOUT_SLOTS; the leader poisons the queue with it
 *   the abort flag is raised             | the flag's status (EFA_GDA_ABORTED for 1); the leader poisons the queue with
 *                                        |   it
 *   the queue is poisoned already        | EFA_GDA_POISONED
 *   next - completed is more than        | EFA_GDA_BAD_COMPLETION; the leader poisons the queue with it. More requests
 *     num_entries                        |   completed than were posted, or more are in flight than the ring holds:
 *                                        |   the counts are wrong, and the ring is not treated as empty. free_limit_
 *                                        |   then has no meaning
 * The handle keeps the status (post.h), so it places nothing more. Some entries of the call, or of a call that the lock
 * owner combines, may be placed and rung for, others not. Because not all slots of that ticket are filled, the lock
 * owner of a shared queue must not pass the lock: post(), flush() and quiet() return without passing it. (An owner's
 * close() passes it all the same; release_queue() in post.h.) Calls of other groups end with EFA_GDA_POISONED, unless
 * they are served already or may return early (ticket_lock.h). The adapter may still access the buffers of requests in
 * flight.
 */
#ifndef EFA_GDA_FREE_SLOTS_H
#define EFA_GDA_FREE_SLOTS_H

#include "requests.h"

namespace efa_gda {

/* reserve.free_limit, with `reserved`, which is 0, in the high half. Another group may load it while it is stored, so
 * each access has 64 bits. */
EFA_GDA_FN uint64_t *limit_word(efa_gda_queue *queue) {
  return reinterpret_cast<uint64_t *>(&queue->reserve.free_limit);
}

/* What the leader of a queue's owner stores there for as long as the group owns the queue: no limit, because it is 2^31
 * away from the owner's first slot `first`. And whether `limit` is such a value, for a group that wrongly has a ticket
 * then, whose first slot is `slot`: it must place nothing ahead (OWNED QUEUES in post.h). Limits are nearer. */
EFA_GDA_FN uint32_t limit_of_owned(uint32_t first) { return first ^ 0x80000000u; }
EFA_GDA_FN bool is_limit_of_owned(uint32_t limit, uint32_t slot) { return ((limit - slot + (1u << 30)) >> 31) != 0; }

/* The most requests that may be in flight: `capacity` above. */
EFA_GDA_FN uint32_t capacity_of(const efa_gda_queue *queue) {
  const efa_gda_sq &sq = queue->sq;
  return (sq.flags & EFA_GDA_SQ_RECORD) != 0 && sq.max_batch < sq.num_entries ? sq.max_batch : sq.num_entries;
}

/* The free slots from the writer's `next` on: capacity - (next - completed), or 0 if that is negative, or fewer if the
 * request table allows fewer. Called by the writer's leader. */
EFA_GDA_FN uint32_t free_slots_of(efa_gda_queue *queue, uint32_t next, uint32_t completed) {
  uint32_t in_flight = next - completed, capacity = capacity_of(queue);
  uint32_t free_slots = in_flight < capacity ? capacity - in_flight : 0;
  return queue->requests.num_entries == 0 ? free_slots : limit_by_table(queue, next, free_slots);
}

}  // namespace efa_gda

#endif
