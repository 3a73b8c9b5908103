/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * One-sided operations on a symmetric heap, with the order that kernels for InfiniBand expect of a reliable connection:
 * a flag that a thread sends lands after the data that was put before it. The functions of ibgda_compat.cuh (DeepEP)
 * and nvshmem.cuh (NVSHMEM) are these.
 *
 * TERMS. Request, done, group: see sq.h. PE: a rank of the job. Channel: a virtual queue pair to a PE, which callers
 * of NVSHMEM call a QP. Queue: one of the GPU's queue pairs of the adapter. Each reaches all PEs, so a channel is no
 * queue: the channels with the number i, of all PEs, post to queue i modulo num_queues. Flag: a value that ibgda_flag()
 * writes. Remote address: an address of this PE's heap; the functions add the difference between the heaps.
 *
 * ORDER. The adapter executes requests in any order, and has no atomic operations. So
 *   - a flag is drained first: it is posted when all requests are done that any thread of this GPU posted before the
 *     call through channels of the same number (drain() of their queue; for Set8 and Drain through any channel, drain()
 *     of each queue). Data in GPU memory that is registered with strict ordering is then visible before the flag
 *     (signal.h, form put_signal);
 *   - an add is a write of the sum. The channel keeps the sum of each remote word (counts), so each word must have one
 *     writer: this PE, and one channel of it. The sum starts at 0. Quiet of the channel forgets its sums: the
 *     caller must zero the words at the peer after a quiet, as it must before the first add.
 * "Before" includes what another thread posted, if its call returned and the threads synchronised since.
 *
 * drain() waits for the requests [start, end): end is the number of requests that have slots, or oldest + R if that is
 * less (requests.h). Every request whose post has returned is in front of both. start is queue.done, in front of which
 * all requests are done.
 *
 * POSTING. The thread that has queue.lock owns the queue (post.h) for one post. Owners need few registers: device.cu is
 * compiled for the 64 of blocks of 1,024 threads, in which the engine for shared queues does not fit. Threads wait for
 * the lock of one queue only, so more queues let more threads post at once.
 *
 * WORDS
 *   word              | written by                        | read by        | ordered by
 *   queue.lock        | CAS 0 to 1; release of 0          | the same       | its acquire and release
 *   queue.done        | drain(): modular maximum, by CAS, | drain()        | a fence before the CAS, an acquire; so a
 *                     | after its requests are done       |                | drain that starts later may skip them
 *   shared.failed     | the first thread that fails: CAS  | all calls      | relaxed; carries no data
 *   report            | that thread; status last          | host           | fence_system() before the status
 *   channel.lock      | CAS 0 to 1; release of 0          | the same       | its acquire and release
 *   channel.counts    | the thread that has the lock      | the same       | the lock
 *   channel.word      | the thread that has the lock,     | adapter        | the fence before the doorbell (sq.h). The
 *                     | when drain() has returned         |                | next drain() covers the request that reads
 *                     |                                   |                | it
 *
 * FAILURES. The functions return nothing. The first failure is stored in shared.failed and in the report, and from then
 * on every call returns at once: no data is put and no flag is sent, so a peer never sees a flag whose data is missing.
 *   EFA_GDA_COMPLETION_ERROR    a request of the queue failed, for example because a peer is unreachable
 *   EFA_GDA_TIMEOUT_COMPLETION  no request completed within the bound; and the other statuses of post() and wait()
 *                               (post.h)
 *   EFA_GDA_TIMEOUT_LOCK        another thread did not release the channel, or the queue, within the bound, which begins
 *                               again when a request completes (of any queue; of that queue). The locks are not fair
 *   EFA_GDA_BAD_ARGUMENT        a PE that does not exist; memory outside the heap; adds to more than
 *                               EFA_GDA_IBGDA_COUNTS words of a channel without a quiet
 *   EFA_GDA_UNSUPPORTED         the queue has no request table; an operation that this library cannot do
 *   EFA_GDA_IN_USE              other device code posts to the queue
 */
#ifndef EFA_GDA_IBGDA_H
#define EFA_GDA_IBGDA_H

#include "ibgda_calls.h"
#include "put.h"

namespace efa_gda {

/* One RDMA write to a PE through a channel. `lkey` is of `local`, which the adapter addresses so. */
struct IbgdaWrite {
  uint64_t local;
  uint64_t remote;
  uint64_t bytes;
  uint32_t lkey;
  uint32_t pe;
  uint32_t qp;
};

EFA_GDA_FN uint32_t ibgda_channels(const efa_gda_ibgda_state *s) {
  return s->num_rc_per_pe * (uint32_t)s->num_devices_initialized;
}

EFA_GDA_FN efa_gda_ibgda_channel *ibgda_channel(const efa_gda_ibgda_state *s, int pe, int qp) {
  uint32_t channels = ibgda_channels(s);
  return s->channels + (uint64_t)(uint32_t)pe * channels + (uint32_t)qp % channels;
}

/* The number of a channel's queue. */
EFA_GDA_FN uint32_t ibgda_queue_number(const efa_gda_ibgda_state *s, uint32_t qp) {
  return qp % ibgda_channels(s) % s->num_queues;
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

/* Raises queue.done to `index`. */
EFA_GDA_FN void ibgda_advance_done(efa_gda_ibgda_queue *queue, uint32_t index) {
  fence_device();
  uint32_t done = load_relaxed(&queue->done);
  while (is_before(done, index)) {
    uint32_t seen = compare_swap_acquire(&queue->done, done, index);
    if (seen == done) break;
    done = seen;
  }
}

/* Posts a write and rings for it, as the queue's owner. The caller has the queue's lock. Entries are stored by 8 bytes,
 * which every queue allows. */
EFA_GDA_FN uint32_t ibgda_post_locked(const efa_gda_ibgda_state *s, efa_gda_ibgda_queue *queue,
                                      const efa_gda_ibgda_peer &to, const IbgdaWrite *write) {
  uint64_t most = max_entry_bytes(*queue->queue, true), remote = write->remote - s->heap + to.heap;
  uint64_t entries = entries_per_request(write->bytes, most);
  if (entries > kMaxEntriesPerCall) return EFA_GDA_BAD_ARGUMENT;
  Sender<Sharing::Thread, ThreadGroup, 8> sender(queue->queue, s->timeout_ns);
  uint32_t first = 0;
  sender.post(
      (uint32_t)entries,
      [&](uint32_t i) {
        uint64_t at = i * most, left = write->bytes - at;
        Memory local = {write->local + at, write->lkey, (uint32_t)(left < most ? left : most)};
        return write_entry(to.peer, local, remote + at, to.rkey);
      },
      kPostDefault, &first);
  uint32_t status = sender.close();
  /* queue.done must not fall behind by 2^31, half of the range of its comparisons, if nobody drains. */
  if (status == EFA_GDA_OK && first - load_relaxed(&queue->done) > 1u << 30) {
    ibgda_advance_done(queue, load_acquire(&queue->queue->tracking.oldest));
  }
  return status;
}

/* Waits for the lock of the channel's queue, and posts a write. One thread calls it. */
EFA_GDA_COLD uint32_t ibgda_post(const efa_gda_ibgda_state *s, const IbgdaWrite *write) {
  uint32_t number = ibgda_queue_number(s, write->qp);
  efa_gda_ibgda_queue *queue = s->queues + number;
  Deadline deadline(queue->queue, s->timeout_ns, &queue->queue->completion.completed);
  uint32_t status = EFA_GDA_OK;
  bool done = false;
  while (!done && status == EFA_GDA_OK) {
    /* The lock is released within the iteration, so that it can pass between the threads of a warp. */
    if (compare_swap_acquire(&queue->lock, 0, 1) == 0) {
      status = ibgda_post_locked(s, queue, s->peers[(uint64_t)number * s->num_pes + write->pe], write);
      store_release(&queue->lock, 0u);
      done = true;
    } else {
      status = deadline.expired(EFA_GDA_TIMEOUT_LOCK);
    }
  }
  return status;
}

/* Waits until all requests are done that were posted to the queue before (ORDER). One thread calls it. */
EFA_GDA_COLD uint32_t ibgda_drain(efa_gda_ibgda_queue *of, uint64_t timeout_ns) {
  efa_gda_queue *queue = of->queue;
  if (queue->requests.num_entries == 0) return EFA_GDA_UNSUPPORTED;
  uint32_t oldest = load_acquire(&queue->tracking.oldest), start = load_acquire(&of->done);
  uint32_t end = (uint32_t)load_relaxed(&queue->reserve.word), most = oldest + queue->requests.num_entries;
  if (is_before(start, oldest)) start = oldest;
  if (is_before(most, end)) end = most;
  uint32_t status = EFA_GDA_OK;
  if (is_before(start, end)) {
    RequestWait wait(start, end - start, 0, 0, timeout_ns);
    Completions completions;
    status = wait_for_requests(queue, &wait, &completions);
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
  IbgdaWrite write = {local - s->heap + s->heap_address, remote, bytes, s->lkey, (uint32_t)pe, (uint32_t)qp};
  uint32_t status = ibgda_in_heap(s, local, bytes) ? ibgda_post(s, &write) : (uint32_t)EFA_GDA_BAD_ARGUMENT;
  if (!EFA_GDA_LIKELY(status == EFA_GDA_OK)) ibgda_fail(s, status, pe, qp);
}

EFA_GDA_FN uint32_t ibgda_flag_bytes(IbgdaFlag flag) {
  bool eight = flag == IbgdaFlag::Add8 || flag == IbgdaFlag::Set8;
  return eight ? 8 : flag == IbgdaFlag::Set4 ? 4 : 0;
}

/* The sum of a remote word; null if the channel has no room for another. The caller has the channel's lock. */
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

/* Drains, and then does `flag`. The caller has the channel's lock. */
EFA_GDA_FN uint32_t ibgda_flag_locked(const efa_gda_ibgda_state *s, efa_gda_ibgda_channel *channel, IbgdaFlag flag,
                                      uint64_t remote, uint64_t value, int pe, int qp) {
  if (flag == IbgdaFlag::Refused) return EFA_GDA_UNSUPPORTED;
  bool all = flag == IbgdaFlag::Set8 || flag == IbgdaFlag::Drain;
  uint32_t number = all ? 0 : ibgda_queue_number(s, (uint32_t)qp), end = all ? s->num_queues : number + 1;
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
  IbgdaWrite write = {local, remote, ibgda_flag_bytes(flag), s->channels_lkey, (uint32_t)pe, (uint32_t)qp};
  return ibgda_post(s, &write);
}

/* Waits until everything before is done, and then does `flag`. One thread calls it. Threads of one warp may call it at
 * the same time, also for one channel. `remote` must be an address of the heap for every flag. */
EFA_GDA_IBGDA_CALL void ibgda_flag(const efa_gda_ibgda_state *s, IbgdaFlag flag, uint64_t remote, uint64_t value,
                                   int pe, int qp) {
  if (!ibgda_begin(s, remote, ibgda_flag_bytes(flag), pe, qp)) return;
  efa_gda_ibgda_channel *channel = ibgda_channel(s, pe, qp);
  efa_gda_queue *queue = s->queues[ibgda_queue_number(s, (uint32_t)qp)].queue;
  Deadline deadline(queue, s->timeout_ns, &queue->completion.completed);
  uint32_t status = EFA_GDA_OK, completed = 0;
  bool done = false;
  while (!done && status == EFA_GDA_OK) {
    /* The lock is released within the iteration, so that it can pass between the threads of a warp. */
    if (compare_swap_acquire(&channel->lock, 0, 1) == 0) {
      status = ibgda_flag_locked(s, channel, flag, remote, value, pe, qp);
      store_release(&channel->lock, 0u);
      done = true;
    } else {
      /* Its owner may wait for the requests of any queue. */
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
