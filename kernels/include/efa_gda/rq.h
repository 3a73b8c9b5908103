/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The receive queue: posts buffers for what others send. One thread posts; several take
 * turns through `receive.lock`. A receive entry has no phase, and the adapter takes a
 * whole ring of them for one doorbell.
 */
#ifndef EFA_GDA_RQ_H
#define EFA_GDA_RQ_H

#include "cq.h"

namespace efa_gda {

/* Posts a receive of `local`; its completion carries the low 16 bits of `*id`. Waits, up
 * to the bound, while the queue is full: completions are what makes room. */
EFA_GDA_FN efa_gda_status post_receive(efa_gda_queue *queue, const Memory &local, uint32_t *id,
                                       Completions &found, uint64_t timeout_ns) {
  const efa_gda_rq &rq = queue->rq;
  if (rq.num_entries == 0) return EFA_GDA_UNSUPPORTED;
  if (local.length > 0xffff || (local.key & ~(uint32_t)EFA_IO_RX_DESC_LKEY_MASK) != 0) return EFA_GDA_BAD_ARGUMENT;
  Deadline deadline(queue, timeout_ns);
  while (compare_swap_acquire(&queue->receive.lock, 0, 1) != 0) {
    efa_gda_status status = deadline.turn(EFA_GDA_TIMEOUT_TURN);
    if (status != EFA_GDA_OK) return status;
  }
  efa_gda_status status = EFA_GDA_OK;
  uint32_t slot = load_relaxed(&queue->receive.posted);
  while (slot - load_acquire(&queue->completion.received) >= rq.num_entries) {
    found.add(poll(queue, 64));
    status = deadline.turn(EFA_GDA_TIMEOUT_ROOM);
    if (status != EFA_GDA_OK) break;
  }
  if (status == EFA_GDA_OK) {
    store_quad(rq.buffer + (uint64_t)(slot & (rq.num_entries - 1)) * rq.entry_size,
               receive_descriptor(local, (uint16_t)slot, true, true));
    fence_system();
    store_relaxed(&queue->receive.posted, slot + 1);
    store_relaxed(&queue->receive.rung, slot + 1);
    store_doorbell(rq.doorbell, (slot + 1) & 0xffff);
    if (id != nullptr) *id = slot;
  }
  store_release(&queue->receive.lock, 0u);
  return status;
}

}  // namespace efa_gda

#endif
