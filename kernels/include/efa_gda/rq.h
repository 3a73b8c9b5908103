/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The receive queue: posts buffers for messages of peers, and takes completions of receives from the inbox.
 *
 * One thread makes each call, not a group. Any number of threads may call at the same time: receive.lock lets one at a
 * time post, and receive.taking one at a time take. A thread that waits for a message holds neither. If several threads
 * of one warp call, the holder must run on while the others wait for the lock.
 * CUDA's execution model promises that (forward progress of each thread), and it ran so on a GPU (docs/fidelity.md).
 * Completions of receives come through the same completion queue as those of requests. Whichever thread polls it (cq.h)
 * copies them to the queue's inbox. A receive entry has no phase bit, and the adapter accepts a whole ring of them for
 * one doorbell, so there is no batch window, and rq.max_batch is not used.
 *   The buffer of a posted receive belongs to the adapter until take_received() has returned its completion (B3 in
 * cq.h). If the queue has no inbox, or the inbox dropped the completion, the caller cannot tell when that one buffer is
 * free. All buffers are free when completion.received, loaded with an acquire (B2 in cq.h), equals receive.posted while
 * no thread is in post_receives().
 *
 * TERMS. Poison, abort flag: see sq.h. Request, poll, reader, receive, posted receive, unsolicited, inbox: see cq.h.
 * The holder is the thread that holds receive.lock, and the taker the thread that holds receive.taking. To post is to
 * write receives to the ring and to ring for them. To take is to copy completions out of the inbox.
 *
 * A queue with completion counters whose wrap is not 0 must have no receives: its counters count requests only, and its
 * completion queue is read for errors alone (cq.h). The host must ensure this; the functions do not check it. On any
 * queue with counters no receive is counted: post_receives() succeeds until as many receives as the ring has slots were
 * posted, and take_received() returns EFA_GDA_UNSUPPORTED without an inbox, or runs to its bound.
 *
 * WORDS
 *   word                   | written by                    | read by     | ordered by
 *   receive.lock           | a thread: CAS 0 to 1, acquire;| all threads | the holder's release of 0 and the next CAS:
 *                          | holder: store 0, release      |             |   posted becomes visible
 *   ring slots             | holder                        | adapter     | a release, then the doorbell
 *   doorbell               | holder                        | adapter     | after that fence
 *   receive.posted         | holder                        | next holder | receive.lock
 *                          |                               | waiters for | relaxed; progress of the lock
 *                          |                               |   the lock  |
 *   receive.doorbell_index | holder                        | host        | relaxed; for snapshots only
 *   receive.taking         | as receive.lock               | the same    | the same: taken becomes visible
 *   receive.taken          | taker                         | next taker  | receive.taking
 *                          |                               | reader      | store_release; the reader's load_acquire,
 *                          |                               |             |   before it writes the inbox entry again
 *                          |                               | waiters for | relaxed; progress of the lock
 *                          |                               |   the lock  |
 *   completion.received    | reader                        | holder      | B2 in cq.h, fetch_add; the holder's
 *                          |                               |             |   load_acquire, before it reuses the slots
 *   completion.inboxed,    | reader                        | taker       | store_release; the taker's load_acquire,
 *   inbox entries          |                               |             |   before it copies the entry
 * Free slots: rq.num_entries - (posted - received). Each completion that used a posted receive frees one slot.
 *
 * WAITS THAT RUN OUT. Unlike a wait on the send side, none of these poisons the queue, because receives have no tickets
 * and later calls do not depend on this one. Each wait also ends if the queue is poisoned, with EFA_GDA_POISONED (also
 * by its own poll, if that reads a completion of another queue pair: cq.h), or if the abort flag is raised, with
 * EFA_GDA_ABORTED if the flag is 1 and otherwise with the status whose value it has.
 *   Each wait has the bound `timeout_ns`. It counts from the first time that the wait reads the clock, and again from
 * each progress that it reads: for the lock a change of `posted` or `taken`, for a slot a change of `received`. The
 * wait for a completion ends with the first one. At the bound the call looks once more; if it finds the lock free, a
 * slot or a completion, it goes on. A call that need not wait reads neither poison nor abort flag, and succeeds on a
 * poisoned queue.
 *   wait                                | at its bound
 *   for a lock                          | EFA_GDA_TIMEOUT_LOCK; nothing was posted or taken
 *   for a free slot (post_receives)     | EFA_GDA_TIMEOUT_SLOTS; the first `*posted` receives are rung for, and
 *                                       |   stay posted
 *   for a completion (take_received)    | EFA_GDA_TIMEOUT_COMPLETION; nothing was taken
 * A call holds receive.lock while it waits for a free slot, so other threads that post wait for the lock meanwhile,
 * perhaps to their bound. It polls while it waits, so completions go to the inbox; a full inbox drops further ones
 * (completion.lost).
 *
 * A kernel that has taken a completion may load the message only if the completion proves that the message is visible
 * (signal.h, RECEIVING SIDE, step 2). For a message in the GPU's memory, the completion queue must be in that memory as
 * well, because a completion in host memory may overtake the message's bytes; and the GPU's
 * GPU_DIRECT_RDMA_WRITES_ORDERING must be at least 100 (check CUDA-007 of gda-probe, docs/checks.md).
 */
#ifndef EFA_GDA_RQ_H
#define EFA_GDA_RQ_H

#include "cq.h"

namespace efa_gda {

/* Acquires `lock`: receive.lock or receive.taking. A status other than EFA_GDA_OK: the caller does not hold it. */
EFA_GDA_FN efa_gda_status lock_receive(efa_gda_queue *queue, uint32_t *lock, uint64_t timeout_ns) {
  Deadline::State state(timeout_ns);
  Deadline deadline(state, queue);
  efa_gda_status status = EFA_GDA_OK;
  uint32_t seen = 0;
  while (status == EFA_GDA_OK && compare_swap_acquire(lock, 0, 1) != 0) {
    /* Both only grow, so the sum changes with either. */
    uint32_t moved = load_relaxed(&queue->receive.posted) + load_relaxed(&queue->receive.taken);
    if (moved != seen) deadline.restart();
    seen = moved;
    status = deadline.expired(EFA_GDA_TIMEOUT_LOCK);
  }
  return status;
}

/* Posts `count` receives of local.length bytes, receive i, from 0 on, at local.address + i * stride, and rings for
 * them. The completion of receive i carries the low 16 bits of `*first` + i. Waits for completions while the ring is
 * full. `*posted` is the number of receives rung for, whatever the status. `first` may be null; `*first` is written
 * once the lock is held. EFA_GDA_UNSUPPORTED: the queue has no receive queue. EFA_GDA_BAD_ARGUMENT: local.length is
 * more than 65,535, or local.key has more than 24 bits. */
[[nodiscard]] EFA_GDA_FN efa_gda_status post_receives(efa_gda_queue *queue, const Memory &local, uint64_t stride,
                                        uint32_t count, uint32_t *first, uint32_t *posted, uint64_t timeout_ns) {
  const efa_gda_rq &rq = queue->rq;
  *posted = 0;
  if (rq.num_entries == 0) return EFA_GDA_UNSUPPORTED;
  if (local.length > 0xffff || (local.key & ~(uint32_t)EFA_IO_RX_DESC_LKEY_MASK) != 0) return EFA_GDA_BAD_ARGUMENT;
  efa_gda_status status = lock_receive(queue, &queue->receive.lock, timeout_ns);
  if (status != EFA_GDA_OK) return status;
  uint32_t slot = load_relaxed(&queue->receive.posted);
  if (first != nullptr) *first = slot;
  while (*posted < count) {
    Deadline::State state(timeout_ns);
    Deadline deadline(state, queue, &queue->completion.received);
    uint32_t free_slots;
    while ((free_slots = rq.num_entries - (slot - load_acquire(&queue->completion.received))) == 0) {
      poll(queue);
      status = deadline.expired(EFA_GDA_TIMEOUT_SLOTS);
      if (status != EFA_GDA_OK) break;
    }
    if (status != EFA_GDA_OK) break;
    uint32_t n = count - *posted < free_slots ? count - *posted : free_slots;
    for (uint32_t i = 0; i < n; i++, slot++) {
      Memory buffer = {local.address + (uint64_t)(*posted + i) * stride, local.key, local.length};
      store_quad(rq.buffer + (uint64_t)(slot & (rq.num_entries - 1)) * rq.entry_size,
                 receive_descriptor(buffer, (uint16_t)slot, true, true));
    }
    fence_release_system();
    store_relaxed(&queue->receive.posted, slot);
    store_relaxed(&queue->receive.doorbell_index, slot);
    store_doorbell(rq.doorbell, slot & 0xffff);
    *posted += n;
  }
  store_release(&queue->receive.lock, 0u);
  return status;
}

/* Posts one receive of `local`. Its completion carries the low 16 bits of `*id`. */
[[nodiscard]] EFA_GDA_FN efa_gda_status post_receive(efa_gda_queue *queue, const Memory &local, uint32_t *id,
                                                     uint64_t timeout_ns) {
  uint32_t posted;
  return post_receives(queue, local, 0, 1, id, &posted, timeout_ns);
}

/* Takes up to `max` completions of receives out of the inbox. While the inbox is empty it polls: for the first
 * completion until its bound, for further ones until a poll reads no receive. Copies EFA_GDA_INBOX_ENTRY bytes of each
 * to `out`, in global memory (not local or shared), 8-byte aligned, with `max` times as many bytes. `*taken` becomes
 * the number of completions taken; the inbox keeps the others. EFA_GDA_UNSUPPORTED: the queue has no inbox. */
[[nodiscard]] EFA_GDA_FN efa_gda_status take_received(efa_gda_queue *queue, uint8_t *out, uint32_t max, uint32_t *taken,
                                        uint64_t timeout_ns) {
  const efa_gda_inbox &inbox = queue->inbox;
  *taken = 0;
  if (inbox.num_entries == 0) return EFA_GDA_UNSUPPORTED;
  Deadline::State state(timeout_ns);
  Deadline deadline(state, queue, &queue->completion.inboxed);
  for (;;) {
    efa_gda_status status = lock_receive(queue, &queue->receive.taking, timeout_ns);
    if (status != EFA_GDA_OK) return *taken != 0 ? EFA_GDA_OK : status;
    uint32_t next = load_relaxed(&queue->receive.taken), inboxed = load_acquire(&queue->completion.inboxed);
    for (; *taken < max && next != inboxed; ++*taken) {
      const uint8_t *from = inbox.entries + (uint64_t)(next & (inbox.num_entries - 1)) * EFA_GDA_INBOX_ENTRY;
      for (uint32_t i = 0; i < EFA_GDA_INBOX_ENTRY; i += 8) {
        uint64_t word = load_relaxed(reinterpret_cast<const uint64_t *>(from + i));
        store_relaxed(reinterpret_cast<uint64_t *>(out + (uint64_t)*taken * EFA_GDA_INBOX_ENTRY + i), word);
      }
      store_release(&queue->receive.taken, ++next);
    }
    /* The wait is without the lock, so that other threads can take, too. */
    store_release(&queue->receive.taking, 0u);
    if (*taken == max) return EFA_GDA_OK;
    poll(queue);
    if (load_acquire(&queue->completion.inboxed) != next) continue;
    if (*taken != 0) return EFA_GDA_OK;
    status = deadline.expired(EFA_GDA_TIMEOUT_COMPLETION);
    if (status != EFA_GDA_OK) return status;
  }
}

}  // namespace efa_gda

#endif
