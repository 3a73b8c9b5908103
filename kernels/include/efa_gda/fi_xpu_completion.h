/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Completions and counters of fi_xpu_efa.h. Each function is called by one thread.
 *
 * WORDS, besides those of fi_xpu_post.h. "Reader": the thread that holds cq.lock and reads completions. If a kernel
 * ends while its thread is the reader, all later reads return -FI_EAGAIN.
 *   word                | written by                    | read by     | ordered by
 *   cq.lock             | threads: CAS 0 to 1, acquire; | threads     | the release of 0 and the next CAS
 *                       | reader: store 0, release      |             |
 *   cq.consumed         | reader                        | next reader | cq.lock
 *   cq.doorbell         | reader                        | adapter     | the reader's fence after it read the entries
 *   cntr.success_offset,| any thread                    | all threads | nothing
 *     .error_offset,    |                               |             |
 *     .error_seen       |                               |             |
 */
#ifndef EFA_GDA_FI_XPU_COMPLETION_H
#define EFA_GDA_FI_XPU_COMPLETION_H

#include "cq.h"
#include "fi_xpu_call.h"

/* The bound of a wait for which the caller gave no timeout, from the wait's begin. */
#ifndef EFA_GDA_XPU_FOREVER_NS
#define EFA_GDA_XPU_FOREVER_NS (60ull * 1000 * 1000 * 1000)
#endif

namespace efa_gda {
namespace xpu {

/* libfabric's error of a completion status, as its efa provider translates it (prov/efa/src/efa_errno.h). */
EFA_GDA_FN int error_of(uint32_t status) {
  switch (status) {
    case EFA_IO_COMP_STATUS_OK: return 0;
    case EFA_IO_COMP_STATUS_FLUSHED: return 125;
    case EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR:
    case EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP:
    case EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH:
    case EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY:
    case EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS:
    case EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH: return 22;
    case EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH:
    case EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH: return 90;
    case EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT:
    case EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE: return 103;
    case EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN:
    case EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER: return 107;
    case EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR: return 269;
    case EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS: return 121;
    case EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE: return 113;
    default: return 256;
  }
}

/* A completion, as libfabric's entries have it: op_context, flags, len, buf, data, tag. */
struct CompletionWords {
  uint64_t word[6];
  /* It used no posted receive. */
  bool unsolicited;
};

/* Decodes the completion at `entry`, whose new head is `head`, and frees a receive's context. Called by the
 * reader. */
EFA_GDA_FN CompletionWords decode_completion(efa_gda_xpu_cq *cq, const uint8_t *entry, CompletionHead head) {
  CompletionWords out = {};
  /* B1 in cq.h. */
  fence_acquire_system();
  auto word_at = [&](uint32_t i) { return load_system(reinterpret_cast<const volatile uint64_t *>(entry) + i); };
  uint64_t second = word_at(1);
  uint32_t op = (head.flags() & EFA_IO_CDESC_COMMON_OP_TYPE_MASK) >> 4;
  bool good = head.status() == EFA_IO_COMP_STATUS_OK;
  if (head.is_send()) {
    uint64_t context = head.bits >> 48 | (second & 0xffffffffu) << 16;
    out.word[0] = (uint64_t)((int64_t)(context << 16) >> 16);
    out.word[1] = op == EFA_IO_RDMA_WRITE ? kRma | kWrite : op == EFA_IO_RDMA_READ ? kRma | kRead : kMsg | kSend;
    return out;
  }
  out.unsolicited = (head.flags() & EFA_IO_CDESC_COMMON_UNSOLICITED_MASK) != 0;
  if (!out.unsolicited && head.id() < cq->num_receives) {
    efa_gda_xpu_receive *receive = &cq->receives[head.id()];
    out.word[0] = load_relaxed(&receive->context);
    store_release(&receive->used, 0u);
  }
  bool is_write = op == EFA_IO_RDMA_WRITE, has_data = good && (head.flags() & EFA_IO_CDESC_COMMON_HAS_IMM_MASK) != 0;
  out.word[1] = (is_write ? kRma | kRemoteWrite : kMsg | kRecv) | (has_data ? kRemoteData : 0);
  out.word[2] = good ? head.bits >> 48 | (is_write ? (word_at(2) & 0xffff) << 16 : 0) : 0;
  out.word[4] = has_data ? second >> 32 : 0;
  return out;
}

/* The number of words of an entry of the queue's format (enum fi_cq_format). */
EFA_GDA_FN uint32_t words_of(const efa_gda_xpu_cq *cq) {
  return cq->format == 2 ? 3 : cq->format == 3 ? 5 : cq->format == 4 ? 6 : 1;
}

/* Without `error`: reads up to `count` completions to `buf`, and stops before a failed one. With `error` and `count` 1:
 * reads the next completion to `*error` if it failed. Returns how many it read; if none, -FI_EAVAIL before a failed
 * one, otherwise -FI_EAGAIN, also while another thread reads. Called by one thread. */
EFA_GDA_COLD int64_t read_queue(efa_gda_xpu_cq *cq, uint64_t *buf, uint64_t count, fi_cq_err_entry *error) {
  if (compare_swap_acquire(&cq->lock, 0, 1) != 0) return -FI_EAGAIN;
  uint32_t index = load_relaxed(&cq->consumed), freed = 0;
  int64_t read = 0, none = -FI_EAGAIN;
  EFA_GDA_NO_UNROLL while ((uint64_t)read < count) {
    const uint8_t *entry = cq->buffer + (uint64_t)(index & (cq->num_entries - 1)) * cq->entry_size;
    CompletionHead head = {load_system(reinterpret_cast<const volatile uint64_t *>(entry))};
    if (!head.is_new(CompletionHead::phase_of(index, cq->num_entries))) break;
    bool failed = head.status() != EFA_IO_COMP_STATUS_OK;
    if (failed != (error != nullptr)) {
      if (failed) none = -FI_EAVAIL;
      break;
    }
    CompletionWords words = decode_completion(cq, entry, head);
    if (error != nullptr) {
      *error = fi_cq_err_entry();
      error->op_context = reinterpret_cast<void *>(words.word[0]);
      error->flags = words.word[1];
      error->err = error_of(head.status());
      error->prov_errno = (int)head.status();
      error->src_addr = ~0ull;
    } else {
      uint32_t length = words_of(cq);
      EFA_GDA_UNROLL for (uint32_t i = 0; i < 6; i++) {
        if (i < length) buf[(uint64_t)read * length + i] = words.word[i];
      }
    }
    freed += words.unsolicited ? 0 : 1;
    index++;
    read++;
  }
  if (read != 0) {
    /* The adapter may write these entries again. */
    fence_release_system();
    store_relaxed(&cq->consumed, index);
    fetch_add_relaxed(&cq->outstanding, 0u - freed);
    if (cq->doorbell != nullptr) store_doorbell(cq->doorbell, index & 0xffff);
  }
  store_release(&cq->lock, 0u);
  return read != 0 ? read : none;
}

EFA_GDA_FN uint64_t wait_ns(int timeout) {
  return timeout < 0 ? (uint64_t)EFA_GDA_XPU_FOREVER_NS : (uint64_t)timeout * 1000 * 1000;
}

/* fi_xpu_cq_sread in one thread. */
EFA_GDA_COLD int64_t wait_for_completions(efa_gda_xpu_cq *cq, uint64_t *buf, uint64_t count, uint64_t threshold) {
  uint64_t want = threshold == 0 ? 1 : threshold < count ? threshold : count, read = 0;
  Bound bound(wait_ns(-1));
  EFA_GDA_NO_UNROLL for (bool over = false;; over = bound.is_over()) {
    int64_t more = read_queue(cq, buf + read * words_of(cq), count - read, nullptr);
    if (more > 0) read += (uint64_t)more;
    if (read >= want || over || (more < 0 && more != -FI_EAGAIN)) return read != 0 ? (int64_t)read : more;
  }
}

/* The counter's value, or that of its errors. */
EFA_GDA_FN uint64_t value_of(const efa_gda_xpu_cntr *cntr, bool errors) {
  uint64_t value = load_system(errors ? cntr->error : cntr->success);
  return value + load_relaxed(errors ? &cntr->error_offset : &cntr->success_offset);
}

/* No error of libfabric has a larger number. A counter's value is assumed to be less than 2^64 minus this. */
constexpr int64_t kLargestError = 4095;

/* fi_xpu_cntr_wait in one thread. */
EFA_GDA_COLD int64_t wait_for_counter(efa_gda_xpu_cntr *cntr, uint64_t threshold, uint64_t bound_ns) {
  uint64_t seen = load_relaxed(&cntr->error_seen), offset = load_relaxed(&cntr->error_offset);
  Bound bound(bound_ns);
  EFA_GDA_NO_UNROLL for (bool over = false;; over = bound.is_over()) {
    uint64_t errors = load_system(cntr->error);
    if (errors != seen) store_relaxed(&cntr->error_seen, errors);
    bool changed = errors != seen || load_relaxed(&cntr->error_offset) != offset;
    if (value_of(cntr, false) >= threshold || changed || over) break;
  }
  /* The caller's later loads see what the counted requests wrote (signal.h). */
  fence_acquire_system();
  return 0;
}

/* Returns the value; what it counts is then visible (signal.h). A read of the errors marks them as seen: they end no
 * later wait. */
EFA_GDA_FN int64_t read_counter(efa_gda_xpu_cntr *cntr, bool errors) {
  uint64_t value = load_system(errors ? cntr->error : cntr->success);
  if (errors) store_relaxed(&cntr->error_seen, value);
  value += load_relaxed(errors ? &cntr->error_offset : &cntr->success_offset);
  fence_acquire_system();
  return (int64_t)value;
}

/* Changes the counter's offset, so that its value grows by `value` or becomes `value`. A change of errors ends waits
 * for the counter that have begun, as libfabric's does, and none that begins later. */
EFA_GDA_FN int64_t change_counter(efa_gda_xpu_cntr *cntr, bool errors, bool add, uint64_t value) {
  uint64_t *offset = errors ? &cntr->error_offset : &cntr->success_offset;
  if (add) {
    fetch_add_relaxed(offset, value);
  } else {
    uint64_t word = load_system(errors ? cntr->error : cntr->success);
    store_relaxed(offset, value - word);
    if (errors) store_relaxed(&cntr->error_seen, word);
  }
  return 0;
}

}  // namespace xpu
}  // namespace efa_gda

#endif
