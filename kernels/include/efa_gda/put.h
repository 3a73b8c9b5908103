/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The body of the put kernels: a block owns the queue (post.h), posts `count` transfers, waits for their completions
 * (unless EFA_GDA_PUT_NO_WAIT) and writes the result. A transfer has one or more entries, each a request. queue.h
 * describes arguments and result (efa_gda_put_args, efa_gda_put_result). Each wait is one of post.h, with the bound
 * timeout_ns.
 */
#ifndef EFA_GDA_PUT_H
#define EFA_GDA_PUT_H

#include "post.h"

namespace efa_gda {

/* Entries of a transfer of `bytes` bytes: each has at most `max_bytes`, which must not be 0; an empty transfer has
 * one. */
EFA_GDA_FN uint64_t entries_per_transfer(uint64_t bytes, uint64_t max_bytes) {
  return bytes <= max_bytes ? 1 : (bytes - 1) / max_bytes + 1;
}

/* The most bytes of one entry: as many as its 32-bit length field can hold; for RDMA requests at most max_rdma_size,
 * which is 0 on a queue without RDMA. */
EFA_GDA_FN uint64_t max_entry_bytes(const efa_gda_queue &q, bool rdma) {
  return rdma && q.max_rdma_size < 0xffffffffu ? q.max_rdma_size : 0xffffffffu;
}

/* Returns EFA_GDA_OK if the queue and its entries can express the arguments. */
EFA_GDA_FN efa_gda_status check_put(const efa_gda_put_args &a) {
  const efa_gda_queue &q = *a.queue;
  bool inlined = a.op == EFA_GDA_OP_INLINE_WRITE || a.op == EFA_GDA_OP_INLINE_SEND;
  bool message = a.op == EFA_GDA_OP_SEND || a.op == EFA_GDA_OP_SEND_IMM || a.op == EFA_GDA_OP_INLINE_SEND;
  if (a.op > EFA_GDA_OP_INLINE_SEND) return EFA_GDA_BAD_ARGUMENT;
  if (a.op == EFA_GDA_OP_INLINE_WRITE &&
      (q.sq.entry_size != 128 || (q.sq.flags & EFA_GDA_SQ_INLINE_WRITE) == 0)) {
    return EFA_GDA_UNSUPPORTED;
  }
  uint32_t capacity = q.sq.entry_size == 128 ? EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 : EFA_IO_TX_DESC_INLINE_MAX_SIZE;
  if (inlined && (a.bytes > capacity || a.bytes > q.max_inline)) return EFA_GDA_BAD_ARGUMENT;
  if (message && !inlined && a.bytes > q.max_msg_size) return EFA_GDA_BAD_ARGUMENT;
  if (!message && !inlined && q.max_rdma_size == 0) return EFA_GDA_UNSUPPORTED;
  uint64_t entries = entries_per_transfer(a.bytes, max_entry_bytes(q, !message && !inlined));
  if (a.count > ~(uint64_t)0 / entries) return EFA_GDA_BAD_ARGUMENT;
  if (!inlined && (a.lkey & ~(uint32_t)EFA_IO_TX_BUF_DESC_LKEY_MASK) != 0) return EFA_GDA_BAD_ARGUMENT;
  return EFA_GDA_OK;
}

/* Makes entry `index` of the `entries` entries of transfer `transfer`. If the transfer has an immediate
 * (efa_gda_put_flags), its last entry carries it. */
EFA_GDA_FN Entry put_entry(const efa_gda_put_args &a, uint64_t transfer, uint64_t index, uint64_t entries,
                           uint64_t max_bytes) {
  uint64_t offset = index * max_bytes, bytes_left = a.bytes - offset;
  uint64_t local = a.local_address + transfer * a.local_stride + offset;
  uint64_t remote = a.remote_address + transfer * a.remote_stride + offset;
  Memory memory = {local, a.lkey, (uint32_t)(bytes_left < max_bytes ? bytes_left : max_bytes)};
  const uint8_t *bytes = reinterpret_cast<const uint8_t *>(local);
  Entry e;
  switch (a.op) {
    case EFA_GDA_OP_INLINE_WRITE:
      e = inline_write_entry_of(a.peer, SharedBytes(bytes, memory.length), memory.length, remote, a.rkey);
      break;
    case EFA_GDA_OP_INLINE_SEND:
      e = inline_send_entry_of(a.peer, SharedBytes(bytes, memory.length), memory.length);
      break;
    case EFA_GDA_OP_SEND:
    case EFA_GDA_OP_SEND_IMM:
      e = send_entry(a.peer, memory);
      break;
    default:
      e = rdma_entry(a.op == EFA_GDA_OP_READ ? EFA_IO_RDMA_READ : EFA_IO_RDMA_WRITE, a.peer, memory, remote, a.rkey);
  }
  bool last = index + 1 == entries;
  bool wanted = a.op == EFA_GDA_OP_WRITE_IMM || a.op == EFA_GDA_OP_SEND_IMM || (a.flags & EFA_GDA_PUT_IMMEDIATE) != 0;
  if (last && wanted && a.op != EFA_GDA_OP_READ) {
    bool counts = (a.flags & EFA_GDA_PUT_COUNT_IMMEDIATE) != 0;
    set_immediate(e, a.immediate + (counts ? (uint32_t)transfer : 0));
  }
  return e;
}

/* Executes a put. All threads of the block must call it. */
EFA_GDA_FN void put_block(const efa_gda_put_args &a) {
  /* After each post of this many entries the block stops if a request of the queue has failed since it began, so that
   * it does not post a million requests with a wrong key. */
  constexpr uint64_t kEntriesPerPost = 256;
  BlockGroup block;
  efa_gda_status status = check_put(a);
  uint64_t posted = 0;
  efa_gda_queue &q = *a.queue;
  uint32_t completed = 0, failure = 0;
  uint64_t request_id = 0;
  if (status == EFA_GDA_OK) {
    Sender<Sharing::Block> sender(a.queue, a.timeout_ns);
    bool rdma = a.op == EFA_GDA_OP_WRITE || a.op == EFA_GDA_OP_WRITE_IMM || a.op == EFA_GDA_OP_READ;
    uint64_t max_bytes = max_entry_bytes(*a.queue, rdma);
    uint64_t entries = entries_per_transfer(a.bytes, max_bytes), total = a.count * entries;
    bool failed = false;
    status = sender.status();
    const bool is_open = status == EFA_GDA_OK;
    if (is_open && block.rank() == 0) store_relaxed(&q.error.put_status, 0u);
    const uint32_t start = load_relaxed(&q.completion.completed);
    while (status == EFA_GDA_OK && posted < total && !failed) {
      uint32_t n = (uint32_t)(total - posted < kEntriesPerPost ? total - posted : kEntriesPerPost);
      uint64_t from = posted;
      status = sender.post(
          n, [&](uint32_t i) { return put_entry(a, (from + i) / entries, (from + i) % entries, entries, max_bytes); });
      if (status == EFA_GDA_OK) posted += n;
      failed = block.from_leader(load_relaxed(&q.error.put_status)) != 0;
    }
    if (status == EFA_GDA_OK) status = (a.flags & EFA_GDA_PUT_NO_WAIT) != 0 ? sender.flush() : sender.quiet();
    /* Before another put can own the queue. */
    if (is_open) {
      failure = load_acquire(&q.error.put_status);
      request_id = failure != 0 ? load_relaxed(&q.error.put_request_id) : 0;
      completed = load_relaxed(&q.completion.completed) - start;
      bool is_foreign = load_relaxed(&q.error.poison) == EFA_GDA_BAD_COMPLETION;
      if (is_foreign && (status == EFA_GDA_OK || status == EFA_GDA_POISONED)) status = EFA_GDA_BAD_COMPLETION;
    }
    efa_gda_status closed = sender.close();
    if (status == EFA_GDA_OK) status = closed;
  }
  if (block.rank() != 0) return;
  if (status == EFA_GDA_OK && failure != 0) status = EFA_GDA_COMPLETION_ERROR;
  efa_gda_put_result *result = a.result;
  result->completion_status = failure;
  result->request_id = request_id;
  result->posted = posted;
  result->completed = completed;
  /* The status comes last, for a host that polls it, and that loads it with an acquire before the other members. */
  fence_release_system();
  store_system(&result->status, status);
}

}  // namespace efa_gda

#endif
