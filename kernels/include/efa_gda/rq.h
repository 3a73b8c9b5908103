/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The receive queue: posts buffers for what others send, and takes what arrived. One
 * thread posts or takes; several take turns through `receive.lock`. A receive entry has no
 * phase, and the adapter takes a whole ring of them for one doorbell.
 *
 * Completions of receives come through the completion queue that sends complete on, so
 * whoever polls that leaves them in the queue's inbox (cq.h): `completion.inboxed` is
 * written by the reader alone, with a release; `receive.taken` by the taker alone, with a
 * release, which gives the inbox's slot back.
 *
 * A kernel that reads a message out of the GPU's memory needs the completion there as well:
 * one in the host's memory may overtake the bytes (the probe's CUDA-007).
 */
#ifndef EFA_GDA_RQ_H
#define EFA_GDA_RQ_H

#include "cq.h"

namespace efa_gda {

/* The lock of `receive`, or why it was not had. */
EFA_GDA_FN efa_gda_status lock_receive(efa_gda_queue *queue, Deadline &deadline) {
  while (compare_swap_acquire(&queue->receive.lock, 0, 1) != 0) {
    efa_gda_status status = deadline.expired(EFA_GDA_TIMEOUT_LOCK);
    if (status != EFA_GDA_OK) return status;
  }
  return EFA_GDA_OK;
}

/* Posts `count` receives, the i-th of `local.length` bytes at local.address + i * stride;
 * completions carry the low 16 bits of `*first` + i. Waits, up to the bound, while the
 * queue is full: completions are what makes room. `*posted` says how many were rung. */
EFA_GDA_FN efa_gda_status post_receives(efa_gda_queue *queue, const Memory &local, uint64_t stride,
                                        uint32_t count, uint32_t *first, uint32_t *posted, Completions &found,
                                        uint64_t timeout_ns) {
  const efa_gda_rq &rq = queue->rq;
  *posted = 0;
  if (rq.num_entries == 0) return EFA_GDA_UNSUPPORTED;
  if (local.length > 0xffff || (local.key & ~(uint32_t)EFA_IO_RX_DESC_LKEY_MASK) != 0) return EFA_GDA_BAD_ARGUMENT;
  Deadline deadline(queue, timeout_ns);
  efa_gda_status status = lock_receive(queue, deadline);
  if (status != EFA_GDA_OK) return status;
  uint32_t slot = load_relaxed(&queue->receive.posted);
  if (first != nullptr) *first = slot;
  while (*posted < count) {
    uint32_t room;
    while ((room = rq.num_entries - (slot - load_acquire(&queue->completion.received))) == 0) {
      found.add(poll(queue, kPoll));
      status = deadline.expired(EFA_GDA_TIMEOUT_SLOTS);
      if (status != EFA_GDA_OK) break;
    }
    if (status != EFA_GDA_OK) break;
    uint32_t n = count - *posted < room ? count - *posted : room;
    for (uint32_t i = 0; i < n; i++, slot++) {
      Memory piece = {local.address + (uint64_t)(*posted + i) * stride, local.key, local.length};
      store_quad(rq.buffer + (uint64_t)(slot & (rq.num_entries - 1)) * rq.entry_size,
                 receive_descriptor(piece, (uint16_t)slot, true, true));
    }
    fence_system();
    store_relaxed(&queue->receive.posted, slot);
    store_relaxed(&queue->receive.doorbell_index, slot);
    store_doorbell(rq.doorbell, slot & 0xffff);
    *posted += n;
  }
  store_release(&queue->receive.lock, 0u);
  return status;
}

/* Posts one receive of `local`. */
EFA_GDA_FN efa_gda_status post_receive(efa_gda_queue *queue, const Memory &local, uint32_t *id,
                                       Completions &found, uint64_t timeout_ns) {
  uint32_t posted;
  return post_receives(queue, local, 0, 1, id, &posted, found, timeout_ns);
}

/* Takes up to `most` completions of receives, EFA_GDA_INBOX_ENTRY bytes each, and polls
 * for them. Waits, up to the bound, for the first. `*taken` says how many were there. A
 * bound that ran out changes nothing: nobody's buffers depend on it. */
EFA_GDA_FN efa_gda_status take_received(efa_gda_queue *queue, uint8_t *out, uint32_t most, uint32_t *taken,
                                        Completions &found, uint64_t timeout_ns) {
  const efa_gda_inbox &box = queue->inbox;
  *taken = 0;
  if (box.num_entries == 0) return EFA_GDA_UNSUPPORTED;
  Deadline deadline(queue, timeout_ns);
  efa_gda_status status = lock_receive(queue, deadline);
  if (status != EFA_GDA_OK) return status;
  uint32_t next = load_relaxed(&queue->receive.taken);
  while (*taken < most) {
    if (load_acquire(&queue->completion.inboxed) == next) {
      Completions more = poll(queue, kPoll);
      found.add(more);
      if (more.receives != 0) continue;
      if (*taken != 0) break;
      status = deadline.expired(EFA_GDA_TIMEOUT_COMPLETION);
      if (status != EFA_GDA_OK) break;
      continue;
    }
    const uint8_t *from = box.entries + (uint64_t)(next & (box.num_entries - 1)) * EFA_GDA_INBOX_ENTRY;
    for (uint32_t i = 0; i < EFA_GDA_INBOX_ENTRY; i += 8) {
      uint64_t word = load_relaxed(reinterpret_cast<const uint64_t *>(from + i));
      store_relaxed(reinterpret_cast<uint64_t *>(out + (uint64_t)*taken * EFA_GDA_INBOX_ENTRY + i), word);
    }
    store_release(&queue->receive.taken, ++next);
    ++*taken;
  }
  store_release(&queue->receive.lock, 0u);
  return status;
}

}  // namespace efa_gda

#endif
