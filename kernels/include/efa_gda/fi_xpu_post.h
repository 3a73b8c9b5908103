/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Requests and receives of fi_xpu_efa.h. Each function is called by one thread.
 *
 * WORDS, besides those of sq.h and rq.h. "Poster": a thread that posts a request or a receive. "Reader": the thread
 * that reads completions (fi_xpu_completion.h).
 *   word                   | written by                    | read by | ordered by
 *   cq.outstanding         | posters: add, and subtract    | posters | the reader's release after it read the
 *                          | again if nothing was posted;  |         |   entries; the poster's acquire after the add
 *                          | reader: subtract              |         |
 *   ep.received,           | the adapter                   | posters | control flow: the stores to a receive's slot
 *   ep.receive_errors      |                               |         |   depend on them (in place of rq.h's
 *                          |                               |         |   completion.received)
 *   cq.receives[i].used    | posters: CAS 0 to 1, acquire; | posters | release and acquire: `context` may be written
 *                          | reader: store 0, release      |         |   again
 *   cq.receives[i].context | poster                        | reader  | the poster's fence_system() before the
 *                          |                               |         |   doorbell; the reader's acquire after it read
 *                          |                               |         |   the completion
 *   cq.next_receive        | posters: add                  | posters | nothing: where a search begins
 */
#ifndef EFA_GDA_FI_XPU_POST_H
#define EFA_GDA_FI_XPU_POST_H

#include "fi_xpu_call.h"
#include "post.h"
#include "rq.h"
#include "signal.h"

namespace efa_gda {
namespace xpu {

EFA_GDA_FN int64_t result_of(efa_gda_status status) {
  switch (status) {
    case EFA_GDA_OK: return 0;
    case EFA_GDA_TIMEOUT_COMPLETION:
    case EFA_GDA_TIMEOUT_SLOTS:
    case EFA_GDA_TIMEOUT_LOCK: return -FI_ETIMEDOUT;
    case EFA_GDA_UNSUPPORTED: return -FI_EOPNOTSUPP;
    case EFA_GDA_BAD_ARGUMENT: return -FI_EINVAL;
    default: return -FI_ECANCELED;
  }
}

/* Reserves an entry of the completion queue, which may be null. */
EFA_GDA_FN bool reserve_completion(efa_gda_xpu_cq *cq) {
  if (cq == nullptr) return true;
  if (fetch_add_relaxed(&cq->outstanding, 1u) < cq->num_entries) {
    /* The adapter may write the entry again. */
    fence_acquire_device();
    return true;
  }
  fetch_add_relaxed(&cq->outstanding, ~0u);
  return false;
}
EFA_GDA_FN void release_completion(efa_gda_xpu_cq *cq) {
  if (cq != nullptr) fetch_add_relaxed(&cq->outstanding, ~0u);
}

/* Arguments of a request. `op`: enum efa_io_send_op_type. */
struct Transfer {
  uint32_t op;
  const void *buf;
  uint64_t len;
  const void *desc;
  uint64_t data;
  const void *peer;
  uint64_t addr, key;
  const void *context;
  uint64_t flags;
};

/* Returns 0 if an entry can express the request. */
EFA_GDA_FN int64_t check_transfer(const efa_gda_queue &queue, const Transfer &t) {
  bool is_message = t.op == EFA_IO_SEND, is_inline = (t.flags & kInject) != 0;
  uint64_t flags = t.op == EFA_IO_RDMA_READ ? kNoChange : kNoChange | kInject | kRemoteData;
  if ((t.flags & ~flags) != 0) return -FI_EBADFLAGS;
  if (t.peer == nullptr || !is_aligned(t.peer, 4) || !is_aligned(t.desc, 4)) return -FI_EINVAL;
  if (t.desc == nullptr && t.len != 0 && !is_inline) return -FI_EINVAL;
  int64_t context = (int64_t)reinterpret_cast<uint64_t>(t.context);
  if ((int64_t)((uint64_t)context << 16) >> 16 != context) return -FI_EINVAL;
  if ((t.flags & kRemoteData) != 0 && t.data >> 32 != 0) return -FI_EINVAL;
  if (!is_message && queue.max_rdma_size == 0) return -FI_EOPNOTSUPP;
  if (!is_message && t.key >> 32 != 0) return -FI_EINVAL;
  if (is_inline) {
    if (t.len > queue.max_inline) return -FI_EMSGSIZE;
    return is_message || can_write_inline(&queue, (uint32_t)t.len) ? 0 : -FI_EOPNOTSUPP;
  }
  uint64_t most = is_message ? queue.max_msg_size : queue.max_rdma_size;
  return t.len <= most && t.len <= 0xffffffffu ? 0 : -FI_EMSGSIZE;
}

/* Makes the request's entry. Bits 63:16 of its request id are the context's low 48; the engine sets the others. */
EFA_GDA_FN Entry transfer_entry(const Transfer &t) {
  const efa_gda_peer peer = *static_cast<const efa_gda_peer *>(t.peer);
  const uint8_t *bytes = static_cast<const uint8_t *>(t.buf);
  uint32_t length = (uint32_t)t.len, key = t.desc != nullptr ? *static_cast<const uint32_t *>(t.desc) : 0;
  Memory local = {reinterpret_cast<uint64_t>(t.buf), key, length};
  Entry e;
  if ((t.flags & kInject) == 0) {
    e = t.op == EFA_IO_SEND ? send_entry(peer, local) : rdma_entry(t.op, peer, local, t.addr, (uint32_t)t.key);
  } else if (t.op == EFA_IO_SEND) {
    e = inline_send_entry(peer, bytes, length);
  } else {
    e = inline_write_entry(peer, bytes, length, t.addr, (uint32_t)t.key);
  }
  if ((t.flags & kRemoteData) != 0) set_immediate(e, (uint32_t)t.data);
  uint64_t context = reinterpret_cast<uint64_t>(t.context);
  e.word[kWordIdMiddle] |= (uint32_t)context << 16;
  e.word[kWordIdHigh] = (uint32_t)(context >> 16);
  return e;
}

/* Posts one request, not deferred. Called by one thread. */
EFA_GDA_COLD int64_t post_transfer(efa_gda_xpu_ep *ep, const Transfer *t) {
  efa_gda_queue *queue = &ep->queue;
  int64_t refused = check_transfer(*queue, *t);
  if (refused != 0) return refused;
  if (load_relaxed(&queue->error.poison) != EFA_GDA_OK) return -FI_ECANCELED;
  if (!reserve_completion(ep->send_cq)) return -FI_EAGAIN;
  uint32_t completed = CompletionReader<ThreadGroup>(queue).completed_now(0, 0);
  if ((uint32_t)load_relaxed(&queue->reserve.word) - completed >= queue->sq.num_entries) {
    release_completion(ep->send_cq);
    return -FI_EAGAIN;
  }
  /* Other groups may have taken these slots by now; then this post waits for free ones, until its bound. */
  Sender<Sharing::Device, ThreadGroup> sender(queue, ep->object.timeout_ns);
  efa_gda_status status = sender.status();
  if (status != EFA_GDA_OK) {
    /* Nothing was posted. After a failure of post() the reservation stays, because the request may still complete. */
    release_completion(ep->send_cq);
    return result_of(status);
  }
  status = sender.post(1, [&](uint32_t) { return transfer_entry(*t); });
  efa_gda_status closed = sender.close();
  return result_of(status != EFA_GDA_OK ? status : closed);
}

/* Takes a free entry of cq->receives, stores the context to it, and returns its index; num_receives if all are used. */
EFA_GDA_FN uint32_t take_receive(efa_gda_xpu_cq *cq, const void *context) {
  EFA_GDA_NO_UNROLL for (uint32_t tries = 0; tries < cq->num_receives; tries++) {
    uint32_t i = fetch_add_relaxed(&cq->next_receive, 1u) & (cq->num_receives - 1);
    if (compare_swap_acquire(&cq->receives[i].used, 0, 1) != 0) continue;
    store_relaxed(&cq->receives[i].context, reinterpret_cast<uint64_t>(context));
    return i;
  }
  return cq->num_receives;
}

/* Posts one receive, or returns -FI_EAGAIN. The caller has receive.lock. */
EFA_GDA_FN int64_t place_receive(efa_gda_xpu_ep *ep, const Memory &local, const void *context) {
  efa_gda_queue *queue = &ep->queue;
  efa_gda_xpu_cq *cq = ep->receive_cq;
  const efa_gda_rq &rq = queue->rq;
  uint32_t slot = load_relaxed(&queue->receive.posted);
  uint32_t ended = (uint32_t)(load_system(ep->received) + load_system(ep->receive_errors));
  if (slot - ended >= rq.num_entries) return -FI_EAGAIN;
  uint32_t id = slot & 0xffff;
  if (cq != nullptr && (id = take_receive(cq, context)) == cq->num_receives) return -FI_EAGAIN;
  store_quad(rq.buffer + (uint64_t)(slot & (rq.num_entries - 1)) * rq.entry_size,
             receive_descriptor(local, (uint16_t)id, true, true));
  fence_system();
  store_relaxed(&queue->receive.posted, slot + 1);
  store_relaxed(&queue->receive.doorbell_index, slot + 1);
  store_doorbell(rq.doorbell, (slot + 1) & 0xffff);
  return 0;
}

/* Posts one receive. Called by one thread. */
EFA_GDA_COLD int64_t post_receive(efa_gda_xpu_ep *ep, const void *buf, uint64_t len, const void *desc,
                                  const void *context, uint64_t flags) {
  efa_gda_queue *queue = &ep->queue;
  if ((flags & ~kNoChange) != 0) return -FI_EBADFLAGS;
  if ((desc == nullptr && len != 0) || !is_aligned(desc, 4)) return -FI_EINVAL;
  if (len > 0xffff) return -FI_EMSGSIZE;
  if (queue->rq.num_entries == 0) return -FI_EOPNOTSUPP;
  if (load_relaxed(&queue->error.poison) != EFA_GDA_OK) return -FI_ECANCELED;
  if (!reserve_completion(ep->receive_cq)) return -FI_EAGAIN;
  int64_t result = result_of(lock_receive(queue, ep->object.timeout_ns));
  if (result == 0) {
    uint32_t key = desc != nullptr ? *static_cast<const uint32_t *>(desc) : 0;
    result = place_receive(ep, Memory{reinterpret_cast<uint64_t>(buf), key, (uint32_t)len}, context);
    store_release(&queue->receive.lock, 0u);
  }
  if (result != 0) release_completion(ep->receive_cq);
  return result;
}

}  // namespace xpu
}  // namespace efa_gda

#endif
