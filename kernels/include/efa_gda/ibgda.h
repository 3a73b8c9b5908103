/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * One-sided operations on a symmetric heap, with the order that kernels for InfiniBand expect of a reliable connection:
 * a flag that a thread sends lands after the data that was put before it. The functions of ibgda_compat.cuh (DeepEP)
 * and nvshmem.cuh (NVSHMEM) call ibgda_put() and ibgda_flag(), or store by ibgda_mapped() (NVLink). Blocks must be
 * one-dimensional.
 *
 * TERMS. Request: see cq.h. Done, R: see requests.h. PE: a rank of the job. Channel: a virtual queue
 * pair to a PE, which DeepEP and NVSHMEM call a QP. Queue: one of the GPU's queue pairs of the adapter. Each queue
 * reaches all PEs, so a channel needs no queue of its own: the channels of all PEs, one PE after the other, post to the
 * queues in turn (ibgda_queue_number()). Flag: a value that ibgda_flag() writes. Drain: to wait until all requests are
 * done that any thread of the GPU posted to a queue before; ibgda_drain(). Remote address: an address of this PE's
 * heap; the functions add the difference between the heaps.
 *
 * ORDER. The adapter executes requests in any order, and has no atomic operations. So
 *   - ibgda_flag() posts a flag when all requests are done that any thread of this GPU posted before the call through
 *     the channel, and all others of its queue: it drains the queue, and for Set8 and Drain each queue. Data in GPU
 *     memory with strict ordering that went through the flag's queue is then visible before the flag (signal.h, form
 *     put_signal). Data of other queues (Set8, Drain) went to other endpoints, for which signal.h requires a read-back,
 *     and may become visible after the flag;
 *   - an add is a write of the sum. The channel keeps the sum of each remote word (counts), so each word must have one
 *     writer: this PE, and one channel of it. The sum starts at 0. Quiet of the channel forgets its sums: the
 *     caller must zero the words at the peer after a quiet, as it must before the first add.
 * "Before" includes what another thread posted, if its call returned and the threads synchronised since.
 *
 * ibgda_drain() waits for the requests [start, end). end is the slot of turn.word; but at most oldest + R, because the
 * words of later requests may be of an earlier lap with the same phase (requests.h). Every request whose post returned
 * before the drain is before both limits. start is the later of queue.done and tracking.oldest: all requests before
 * either are done.
 *
 * POSTING. Each call posts as a thread that shares the queue (turns.h), with a handle of its own. Threads of one warp
 * may post to one queue or to several.
 *
 * WORDS
 *   word              | written by                        | read by        | ordered by
 *   queue.done        | ibgda_drain(), to its `end`; a    | the same       | fence_device() before the CAS; load with
 *                     | thread that posts, if 2^30        |                | an acquire in ibgda_drain(), which may
 *                     | behind, to tracking.oldest: CAS,  |                | then skip the requests before it. A
 *                     | which only raises it              |                | poster: relaxed, it only compares
 *   shared.failed     | the first thread that fails: CAS  | all calls      | relaxed; carries no data
 *   report            | that thread; status last          | host           | fence_system() before the status. The host
 *                     |                                   |                | must load it first, with an acquire
 *   channel.lock      | a thread in ibgda_flag(): CAS 0   | the same       | acquire of the CAS, release of the store.
 *                     | to 1; the holder: store of 0      |                | A wait for it: FAILURES
 *   channel.counts    | holder of channel.lock            | the same       | channel.lock
 *   channel.word      | holder of channel.lock, after its | adapter        | the fence before the doorbell (sq.h). The
 *                     | ibgda_drain() and before its post |                | next holder's drain covers the request
 *                     |                                   |                | that reads the word
 *
 * FAILURES. The functions return nothing. The first failure is stored in shared.failed and in the report. Each call
 * that begins later returns at once; calls in progress end by themselves. A failed request is found by the next drain
 * of its queue; ibgda_put() does not look for errors. A flag is posted only after its drain succeeded, so a peer never
 * sees a flag behind a put that failed.
 *   EFA_GDA_COMPLETION_ERROR    a request of the queue failed, for example because a peer is unreachable
 *   EFA_GDA_TIMEOUT_COMPLETION  no request completed within the bound
 *   EFA_GDA_TIMEOUT_LOCK        the thread did not get channel.lock within the bound, which begins again when a request
 *                               of any queue completes, and poisons nothing. The locks are not fair. Or as post()
 *   EFA_GDA_BAD_ARGUMENT        a PE that does not exist; memory outside the heap; a put of more than
 *                               kMaxEntriesPerCall requests; adds to more than EFA_GDA_IBGDA_COUNTS words of a channel
 *                               without a quiet; a post in a block of several dimensions
 *   EFA_GDA_UNSUPPORTED         the queue has no request table (flags), or no RDMA; IbgdaFlag::Refused
 *   others                      as post() and wait() return them (post.h); a poison or an abort flag ends the waits for
 *                               locks too
 */
#ifndef EFA_GDA_IBGDA_H
#define EFA_GDA_IBGDA_H

#include "ibgda_calls.h"
#include "put.h"

namespace efa_gda {

/* One RDMA write to PE `pe` through channel `qp`. `local` is the source as the adapter addresses it, `lkey` its
 * region's key, `offset` that of the destination in the peer's heap. The caller keeps it in the thread's memory, so
 * that ibgda_post() keeps few registers while it waits for free slots. */
struct IbgdaWrite {
  uint64_t local;
  uint64_t offset;
  uint64_t bytes;
  uint32_t lkey;
  uint32_t pe;
  uint32_t qp;
  /* Set by ibgda_post(): the peer, and the producer index of the first entry. */
  const efa_gda_ibgda_peer *to = nullptr;
  uint32_t first = 0;
};

EFA_GDA_FN uint32_t ibgda_channels(const efa_gda_ibgda_state *s) {
  return s->num_rc_per_pe * (uint32_t)s->num_devices_initialized;
}

EFA_GDA_FN efa_gda_ibgda_channel *ibgda_channel(const efa_gda_ibgda_state *s, int pe, int qp) {
  uint32_t channels = ibgda_channels(s);
  return s->channels + (uint64_t)(uint32_t)pe * channels + (uint32_t)qp % channels;
}

/* The number of the queue to which a channel posts. Peers differ, so that a few channels to each of many peers use all
 * queues. */
EFA_GDA_FN uint32_t ibgda_queue_number(const efa_gda_ibgda_state *s, uint32_t pe, uint32_t qp) {
  uint32_t channels = ibgda_channels(s);
  return (pe * channels + qp % channels) % s->num_queues;
}

EFA_GDA_FN bool ibgda_in_heap(const efa_gda_ibgda_state *s, uint64_t address, uint64_t bytes) {
  return address - s->heap <= s->heap_bytes && bytes <= s->heap_bytes - (address - s->heap);
}

/* Records the first failure. */
EFA_GDA_COLD void ibgda_fail(const efa_gda_ibgda_state *s, uint32_t status, int pe, int qp) {
  if (compare_swap_acquire(&s->shared->failed, EFA_GDA_OK, status) != EFA_GDA_OK) return;
  store_system(&s->report->pe, (uint32_t)pe);
  store_system(&s->report->qp, (uint32_t)qp);
  fence_system();
  store_system(&s->report->status, status);
}

/* Whether a call with these arguments may proceed. */
EFA_GDA_FN bool ibgda_begin(const efa_gda_ibgda_state *s, uint64_t remote, uint64_t bytes, int pe, int qp) {
  if (!EFA_GDA_LIKELY(load_relaxed(&s->shared->failed) == EFA_GDA_OK)) return false;
  bool valid = (uint32_t)pe < s->num_pes && ibgda_in_heap(s, remote, bytes);
  if (!EFA_GDA_LIKELY(valid)) ibgda_fail(s, EFA_GDA_BAD_ARGUMENT, pe, qp);
  return valid;
}

/* Raises queue.done to `index`, if it is lower. The caller has seen that all requests before `index` are done. */
EFA_GDA_FN void ibgda_advance_done(efa_gda_ibgda_queue *queue, uint32_t index) {
  fence_device();
  uint32_t done = load_relaxed(&queue->done);
  while (is_before(done, index)) {
    uint32_t seen = compare_swap_acquire(&queue->done, done, index);
    if (seen == done) break;
    done = seen;
  }
}

/* Posts a write and rings for it. One thread calls it. */
EFA_GDA_COLD uint32_t ibgda_post(const efa_gda_ibgda_state *s, IbgdaWrite *write) {
  uint32_t number = ibgda_queue_number(s, write->pe, write->qp);
  efa_gda_ibgda_queue *queue = s->queues + number;
  write->to = s->peers + (uint64_t)number * s->num_pes + write->pe;
  uint32_t most = (uint32_t)max_entry_bytes(*queue->queue, true);
  if (most == 0) return EFA_GDA_UNSUPPORTED;
  uint64_t entries = entries_per_transfer(write->bytes, most);
  if (entries > kMaxEntriesPerCall) return EFA_GDA_BAD_ARGUMENT;
  Sender<Sharing::Device> sender(queue->queue, s->timeout_ns, ThreadGroup(), false);
  uint32_t status = sender.post(
      (uint32_t)entries,
      [&](uint32_t i) {
        uint64_t at = (uint64_t)i * most, left = write->bytes - at;
        Memory local = {write->local + at, write->lkey, left < most ? (uint32_t)left : most};
        const efa_gda_ibgda_peer &to = *write->to;
        return write_entry(to.peer, local, to.heap + write->offset + at, to.rkey);
      },
      kPostDefault, &write->first);
  /* queue.done must not fall behind by 2^31, half of the range of its comparisons, if no thread drains. */
  if (status == EFA_GDA_OK && write->first - load_relaxed(&queue->done) > 1u << 30) {
    ibgda_advance_done(queue, load_acquire(&queue->queue->tracking.oldest));
  }
  return status;
}

/* Waits until all requests are done that were posted to the queue before (ORDER). One thread calls it. */
EFA_GDA_COLD uint32_t ibgda_drain(efa_gda_ibgda_queue *of, uint64_t timeout_ns) {
  efa_gda_queue *queue = of->queue;
  if (queue->requests.num_entries == 0) return EFA_GDA_UNSUPPORTED;
  uint32_t oldest = load_acquire(&queue->tracking.oldest), start = load_acquire(&of->done);
  uint32_t end = (uint32_t)(load_acquire(&queue->turn.word) >> EFA_GDA_TURN_BITS);
  uint32_t most = oldest + queue->requests.num_entries;
  if (is_before(start, oldest)) start = oldest;
  if (is_before(most, end)) end = most;
  uint32_t status = EFA_GDA_OK;
  if (is_before(start, end)) {
    RequestWait wait(start, end - start, 0, 0, timeout_ns);
    status = wait_for_requests<ThreadGroup>(queue, &wait);
  }
  /* Also errors of requests that an earlier drain covered. */
  if (status == EFA_GDA_OK && load_acquire(&queue->error.count) != 0) status = EFA_GDA_COMPLETION_ERROR;
  if (status == EFA_GDA_OK) ibgda_advance_done(of, end);
  return status;
}

/* Puts `bytes` bytes from `local` of this PE's heap. One thread calls it. */
EFA_GDA_IBGDA_CALL void ibgda_put(const efa_gda_ibgda_state *s, uint64_t remote, uint64_t local, uint64_t bytes, int pe,
                                  int qp) {
  if (bytes == 0 || !ibgda_begin(s, remote, bytes, pe, qp)) return;
  IbgdaWrite write = {local - s->heap + s->heap_address, remote - s->heap, bytes, s->lkey, (uint32_t)pe, (uint32_t)qp};
  uint32_t status = ibgda_in_heap(s, local, bytes) ? ibgda_post(s, &write) : (uint32_t)EFA_GDA_BAD_ARGUMENT;
  if (!EFA_GDA_LIKELY(status == EFA_GDA_OK)) ibgda_fail(s, status, pe, qp);
}

EFA_GDA_FN uint32_t ibgda_flag_bytes(IbgdaFlag flag) {
  bool eight = flag == IbgdaFlag::Add8 || flag == IbgdaFlag::Set8;
  return eight ? 8 : flag == IbgdaFlag::Set4 ? 4 : 0;
}

/* The sum of a remote word; null if the channel has sums of EFA_GDA_IBGDA_COUNTS other words. The caller has the
 * channel's lock. */
EFA_GDA_FN uint64_t *ibgda_sum(efa_gda_ibgda_channel *channel, uint64_t address) {
  EFA_GDA_NO_UNROLL for (uint32_t i = 0; i < EFA_GDA_IBGDA_COUNTS; i++) {
    auto &count = channel->counts[i];
    if (load_relaxed(&count.address) == 0) store_relaxed(&count.address, address);
    if (load_relaxed(&count.address) == address) return &count.value;
  }
  return nullptr;
}

/* A number that changes while requests complete, of any queue. */
EFA_GDA_FN uint32_t ibgda_completed(const efa_gda_ibgda_state *s) {
  uint32_t all = 0;
  EFA_GDA_NO_UNROLL for (uint32_t i = 0; i < s->num_queues; i++) {
    all += load_relaxed(&s->queues[i].queue->completion.completed);
  }
  return all;
}

/* Drains, and then does `flag`; Refused fails at once. The caller has the channel's lock. */
EFA_GDA_FN uint32_t ibgda_flag_locked(const efa_gda_ibgda_state *s, efa_gda_ibgda_channel *channel, IbgdaFlag flag,
                                      uint64_t remote, uint64_t value, int pe, int qp) {
  if (flag == IbgdaFlag::Refused) return EFA_GDA_UNSUPPORTED;
  bool all = flag == IbgdaFlag::Set8 || flag == IbgdaFlag::Drain;
  uint32_t number = all ? 0 : ibgda_queue_number(s, (uint32_t)pe, (uint32_t)qp), end = all ? s->num_queues : number + 1;
  EFA_GDA_NO_UNROLL for (; number != end; number++) {
    uint32_t status = ibgda_drain(s->queues + number, s->timeout_ns);
    if (status != EFA_GDA_OK) return status;
  }
  if (flag == IbgdaFlag::Drain) return EFA_GDA_OK;
  if (flag == IbgdaFlag::Quiet) {
    for (uint32_t i = 0; i < EFA_GDA_IBGDA_COUNTS; i++) {
      store_relaxed(&channel->counts[i].address, (uint64_t)0);
      store_relaxed(&channel->counts[i].value, (uint64_t)0);
    }
    return EFA_GDA_OK;
  }
  if (flag == IbgdaFlag::Add8) {
    uint64_t *sum = ibgda_sum(channel, remote);
    if (sum == nullptr) return EFA_GDA_BAD_ARGUMENT;
    value += load_relaxed(sum);
    store_relaxed(sum, value);
  }
  store_relaxed(&channel->word, value);
  uint64_t local = s->channels_address + (uint64_t)((uint8_t *)&channel->word - (uint8_t *)s->channels);
  IbgdaWrite write = {local, remote - s->heap, ibgda_flag_bytes(flag), s->channels_lkey, (uint32_t)pe, (uint32_t)qp};
  return ibgda_post(s, &write);
}

/* Waits until the requests before it are done, and then does `flag` (ibgda_calls.h). One thread calls it. */
EFA_GDA_IBGDA_CALL void ibgda_flag(const efa_gda_ibgda_state *s, IbgdaFlag flag, uint64_t remote, uint64_t value,
                                   int pe, int qp) {
  if (!ibgda_begin(s, remote, ibgda_flag_bytes(flag), pe, qp)) return;
  efa_gda_ibgda_channel *channel = ibgda_channel(s, pe, qp);
  efa_gda_queue *queue = s->queues[ibgda_queue_number(s, (uint32_t)pe, (uint32_t)qp)].queue;
  Deadline::State state(s->timeout_ns);
  Deadline deadline(state, queue, &queue->completion.completed);
  uint32_t status = EFA_GDA_OK, completed = 0;
  bool done = false;
  while (!done && status == EFA_GDA_OK) {
    /* The lock is released within the iteration, so that it can pass between the threads of a warp. */
    if (compare_swap_acquire(&channel->lock, 0, 1) == 0) {
      status = ibgda_flag_locked(s, channel, flag, remote, value, pe, qp);
      store_release(&channel->lock, 0u);
      done = true;
    } else {
      /* The lock's holder may wait for the requests of any queue. */
      uint32_t now = ibgda_completed(s);
      if (now != completed) deadline.restart();
      completed = now;
      status = deadline.expired(EFA_GDA_TIMEOUT_LOCK);
    }
  }
  if (!EFA_GDA_LIKELY(status == EFA_GDA_OK)) ibgda_fail(s, status, pe, qp);
}

}  // namespace efa_gda

#endif
