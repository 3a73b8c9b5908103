/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The completion side: reads the completion queue, or the hardware counters, and says
 * how many requests ended and how. Knows nothing of who posted them.
 *
 * Protocol. The adapter writes an entry and then its phase bit, which starts at 1 and
 * flips each time the queue wraps. One reader at a time (`completion.lock`, taken with an
 * acquire, given back with a release): it alone reads entries past `consumed`, advances
 * `consumed` and then publishes `completed` and `received`. An entry's phase is read with
 * its status in one load, then a system-scope fence, then the rest, so no older rest is
 * taken for a new entry. `completed` only grows; it counts errors too, for a request that
 * failed has left the ring as well.
 *
 * Requests complete in any order (SRD), so a count says how many are done, not which.
 *
 * With counters, `completed` is what they say, and the completion queue is read only when
 * the word of errors has moved: what nobody reads is overwritten. Nothing else completes
 * there, so the completion at index i is that of the i-th request that ended. `completed`
 * stands still until the errors that were counted are read, so posters are at most a ring
 * past it, and what may be an error lies at most a ring before it (an adapter that has
 * counted a ring of later requests has counted, and completed, this one). A completion
 * queue of two rings holds all of that: a reader begins a ring before `completed`, or
 * where the last one ended, and finds nothing overwritten. An error that is counted and
 * never found ends waits by their bound.
 */
#ifndef EFA_GDA_CQ_H
#define EFA_GDA_CQ_H

#include "group.h"
#include "wqe.h"

namespace efa_gda {

/* What a poll found. The first error of those it read is described. A completion of another
 * queue pair is taken off the queue and not counted: it says that the queue is shared. */
struct Completions {
  uint32_t sends = 0;
  /* Of these, `unsolicited` used no posted receive. */
  uint32_t receives = 0;
  uint32_t unsolicited = 0;
  uint32_t errors = 0;
  uint32_t first_error = 0;
  uint64_t first_error_id = 0;
  bool foreign = false;

  EFA_GDA_FN void add(const Completions &more) {
    if (errors == 0 && more.errors != 0) {
      first_error = more.first_error;
      first_error_id = more.first_error_id;
    }
    sends += more.sends;
    receives += more.receives;
    unsolicited += more.unsolicited;
    errors += more.errors;
    foreign = foreign || more.foreign;
  }
};

/* First eight bytes of a completion: id 15:0, status 23:16, flags 31:24, queue pair 47:32. */
struct CompletionHead {
  uint64_t bits;
  EFA_GDA_FN uint32_t id() const { return (uint32_t)bits & 0xffff; }
  EFA_GDA_FN uint32_t status() const { return (uint32_t)(bits >> 16) & 0xff; }
  EFA_GDA_FN uint32_t flags() const { return (uint32_t)(bits >> 24) & 0xff; }
  EFA_GDA_FN uint32_t qpn() const { return (uint32_t)(bits >> 32) & 0xffff; }
  EFA_GDA_FN bool phase() const { return (flags() & EFA_IO_CDESC_COMMON_PHASE_MASK) != 0; }
  EFA_GDA_FN bool is_send() const {
    return (flags() & EFA_IO_CDESC_COMMON_Q_TYPE_MASK) == (uint32_t)EFA_IO_SEND_QUEUE << 1;
  }
  EFA_GDA_FN bool is_good_send(uint32_t qpn_of_queue) const {
    return is_send() && status() == EFA_IO_COMP_STATUS_OK && qpn() == qpn_of_queue;
  }
};

/* Keeps the first error of the queue where a host can read it. */
EFA_GDA_FN void report_error(efa_gda_queue *queue, uint32_t status, uint64_t id) {
  if (compare_swap_acquire(&queue->error.reported, 0, 2) == 0) {
    store_relaxed(&queue->error.completion_status, status);
    store_relaxed(&queue->error.request_id, id);
    store_release(&queue->error.reported, 1u);
  }
  /* Last: whoever goes by counters publishes what completed once this says that the error was read. */
  fence_device();
  fetch_add_relaxed(&queue->error.count, 1u);
}

EFA_GDA_FN const uint8_t *completion_at(const efa_gda_cq &cq, uint32_t index) {
  return cq.buffer + (uint64_t)(index & (cq.num_entries - 1)) * cq.entry_size;
}
EFA_GDA_FN CompletionHead head_at(const efa_gda_cq &cq, uint32_t index) {
  return {load_system(reinterpret_cast<const volatile uint64_t *>(completion_at(cq, index)))};
}
/* Whether `head`, read at `index`, is of this lap. */
EFA_GDA_FN bool is_there(const efa_gda_cq &cq, uint32_t index, CompletionHead head) {
  return head.phase() == ((index & cq.num_entries) == 0);
}

/* What the completion at `index` says, whose head was there. */
EFA_GDA_FN Completions read_completion(const efa_gda_queue *queue, uint32_t index, CompletionHead head) {
  Completions out;
  if (head.qpn() != queue->qpn) {
    out.foreign = true;
    return out;
  }
  if (!head.is_send()) {
    out.receives = 1;
    out.unsolicited = (head.flags() & EFA_IO_CDESC_COMMON_UNSOLICITED_MASK) != 0;
    return out;
  }
  out.sends = 1;
  if (head.status() == EFA_IO_COMP_STATUS_OK) return out;
  out.errors = 1;
  out.first_error = head.status();
  out.first_error_id = head.id();
  if ((queue->sq.flags & EFA_GDA_SQ_REQ_ID_64) != 0) {
    fence_system();
    const uint8_t *entry = completion_at(queue->cq, index);
    uint64_t tail = load_system(reinterpret_cast<const volatile uint64_t *>(entry) + 1);
    out.first_error_id |= (head.bits >> 48) << 16 | tail << 32;
  }
  return out;
}

/* Leaves the receive completion at `index` in the inbox; one that finds it full is lost,
 * and counted. Only by the reader, which has seen the entry's phase. */
EFA_GDA_FN void keep_receive(efa_gda_queue *queue, uint32_t index) {
  const efa_gda_inbox &box = queue->inbox;
  if (box.num_entries == 0) return;
  uint32_t at = load_relaxed(&queue->completion.inboxed);
  if (at - load_acquire(&queue->receive.taken) >= box.num_entries) {
    store_relaxed(&queue->completion.lost, load_relaxed(&queue->completion.lost) + 1);
    return;
  }
  const uint8_t *entry = completion_at(queue->cq, index);
  uint8_t *to = box.entries + (uint64_t)(at & (box.num_entries - 1)) * EFA_GDA_INBOX_ENTRY;
  /* The phase was seen before; the rest is read after it. */
  fence_system();
  for (uint32_t i = 0; i < EFA_GDA_INBOX_ENTRY; i += 8) {
    uint64_t word = i < queue->cq.entry_size ? load_system(reinterpret_cast<const volatile uint64_t *>(entry + i)) : 0;
    store_relaxed(reinterpret_cast<uint64_t *>(to + i), word);
  }
  store_release(&queue->completion.inboxed, at + 1);
}

/* Heads that are read in one go. A read of host memory takes the GPU 1.3 us; this many
 * take hardly longer. A queue that has nothing new is asked for one only, for those who
 * wait look often, and all of them share PCIe. */
constexpr uint32_t kHeads = 8;

/* Where a reader begins that found the queue read up to `consumed`; see above. */
EFA_GDA_FN uint32_t oldest_unread(const efa_gda_queue *queue, uint32_t consumed) {
  if (queue->counters.success == nullptr) return consumed;
  uint32_t depth = queue->sq.num_entries, oldest = load_acquire(&queue->completion.completed) - depth;
  return consumed - oldest > 2 * depth ? oldest : consumed;
}

/* Completions that are read in one go at most, where not more are asked for. */
constexpr uint32_t kPoll = 64;

/* Reads what the completion queue holds now, up to `sends` completions of sends, unless
 * another thread is reading. `completed` of the queue grows by them, where no counters say
 * what it is. */
EFA_GDA_FN Completions poll_queue(efa_gda_queue *queue, uint32_t sends) {
  Completions all;
  if (queue->cq.buffer == nullptr) return all;
  uint32_t most = sends > kPoll ? sends : kPoll;
  if (compare_swap_acquire(&queue->completion.lock, 0, 1) != 0) return all;
  uint32_t begin = oldest_unread(queue, load_relaxed(&queue->completion.consumed)), index = begin;
  for (uint32_t want = 1; index - begin < most && all.sends < sends; want = kHeads) {
    if (want > most - (index - begin)) want = most - (index - begin);
    if (want > sends - all.sends) want = sends - all.sends;
    CompletionHead heads[kHeads], odd = {0};
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kHeads; k++) {
      if (k < want) heads[k] = head_at(queue->cq, index + k);
    }
    /* Sends that went well are all alike. What stops their row is looked at by itself. */
    uint32_t row = 0;
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kHeads; k++) {
      if (row != k || k >= want) continue;
      if (is_there(queue->cq, index + k, heads[k]) && heads[k].is_good_send(queue->qpn)) {
        row++;
      } else {
        odd = heads[k];
      }
    }
    all.sends += row;
    index += row;
    if (row == want) continue;
    if (!is_there(queue->cq, index, odd)) break;
    Completions one = read_completion(queue, index, odd);
    if (one.errors != 0) report_error(queue, one.first_error, one.first_error_id);
    if (one.receives != 0) keep_receive(queue, index);
    all.add(one);
    index++;
  }
  if (index != begin) {
    /* Before anyone reuses what these requests read or wrote. */
    fence_system();
    store_relaxed(&queue->completion.consumed, index);
    store_relaxed(&queue->completion.received, load_relaxed(&queue->completion.received) + all.receives - all.unsolicited);
    if (queue->counters.success == nullptr) {
      store_relaxed(&queue->completion.completed, load_relaxed(&queue->completion.completed) + all.sends);
    }
    if (queue->cq.doorbell != nullptr) store_doorbell(queue->cq.doorbell, index & 0xffff);
  }
  store_release(&queue->completion.lock, 0u);
  return all;
}

/* Errors that are counted and whose completions nobody has read. */
EFA_GDA_FN uint32_t errors_unread(const efa_gda_queue *queue, uint64_t counted) {
  uint32_t unread = ((uint32_t)counted - load_acquire(&queue->error.count)) & (uint32_t)(queue->counters.wrap - 1);
  /* More than a ring of them: a completion was read before it was counted. */
  return unread > queue->sq.num_entries ? 0 : unread;
}

/* Publishes that `more` completed after `known`; what is returned is this call's. */
EFA_GDA_FN uint32_t publish_completed(efa_gda_queue *queue, uint32_t known, uint32_t more) {
  if (more == 0) return 0;
  /* Before anyone reuses what these requests read or wrote. */
  fence_system();
  if (compare_swap_acquire(&queue->completion.completed, known, known + more) != known) return 0;
  /* Once in a while, so that where the last reader ended is not taken for a later lap. */
  if (((known ^ (known + more)) >> 30) != 0 && compare_swap_acquire(&queue->completion.lock, 0, 1) == 0) {
    store_relaxed(&queue->completion.consumed, oldest_unread(queue, load_relaxed(&queue->completion.consumed)));
    store_release(&queue->completion.lock, 0u);
  }
  return more;
}

/* Takes in what completed: up to `sends` sends, with the receives among them, or all that the
 * counters say; after an error the completions that may tell of it. One thread calls. */
EFA_GDA_COLD Completions poll(efa_gda_queue *queue, uint32_t sends) {
  Completions all;
  const efa_gda_counters &c = queue->counters;
  if (c.success != nullptr) {
    /* Acquired; a look that is older all the same counts for nothing below. */
    uint32_t known = load_acquire(&queue->completion.completed);
    uint64_t good = load_system(c.success), bad = c.error != nullptr ? load_system(c.error) : 0;
    if (errors_unread(queue, bad) == 0) {
      /* A power-of-two wrap leaves the difference. No more than the ring can have completed
       * since; anything else is another thread's older sight of the counters. */
      uint32_t more = ((uint32_t)(good + bad) - known) & (uint32_t)(c.wrap - 1);
      if (more <= queue->sq.num_entries) all.sends = publish_completed(queue, known, more);
      return all;
    }
    sends = 2 * queue->sq.num_entries;
  }
  all = poll_queue(queue, sends);
  /* What went well is in the counters, for the next look. */
  if (c.success != nullptr) all.sends = 0;
  return all;
}

/* Send completions of this queue so far, modulo 2^32, after reading what has come in.
 * What this call itself read is added to `found`. Of sends no more are read than are under
 * way of `posted`, the requests so far: a look past the last one takes a round trip over
 * PCIe, which who waits for it would pay. Where none is under way receives may have come in.
 * One thread calls. */
EFA_GDA_FN uint32_t completed_now(efa_gda_queue *queue, uint32_t posted, Completions &found) {
  const efa_gda_counters &c = queue->counters;
  if (c.success != nullptr && c.wrap == 0) {
    return (uint32_t)(load_system(c.success) + (c.error != nullptr ? load_system(c.error) : 0));
  }
  uint32_t under_way = posted - load_relaxed(&queue->completion.completed);
  found.add(poll(queue, under_way - 1 < kPoll ? under_way : kPoll));
  return load_acquire(&queue->completion.completed);
}

}  // namespace efa_gda

#endif
