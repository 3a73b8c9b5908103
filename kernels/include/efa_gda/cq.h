/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The completion side: reads the completion queue or the hardware counters, counts requests that ended, and records
 * errors. An error is a failed request of this queue. (A failed receive is counted in `received` if it used a posted
 * receive; its status is only in the inbox.) This file does not know which group posted a request: it only marks the
 * request as done in the queue's request table, if there is one (requests.h).
 *
 * TERMS. Group, call, writer, producer index, quiet, abort flag: see sq.h.
 *   request  of this queue's send queue, whatever its operation. (Names in the code call its completion a send.)
 *   receive  a message, or a write with immediate, that a peer sent to this queue pair. It is unsolicited if it used no
 *            posted receive: some queues need none for a write with immediate.
 *   posted receive: a buffer in the receive queue (rq.h).
 *   inbox    memory of the queue (efa_gda_inbox) to which the reader copies completions of receives, for
 *            take_received() (rq.h).
 *   receiver a thread in take_received() (rq.h).
 *   poster of receives: a thread in post_receives() (rq.h).
 *   poller   a thread that calls poll() or completed_now(): the leader of a group that waits for free slots or
 *            completions, or tests (one that waits for the ticket lock does not poll), a receiver, a poster of
 *            receives, or a thread in post_transfer() (fi_xpu_post.h).
 *   reader   the thread that holds completion.lock. Only the reader reads the completion queue or writes `consumed`.
 *   index    number of a completion, modulo 2^32. Completion i is in entry i modulo cq.num_entries. Its phase bit is 1
 *            on the first lap and flips with each lap.
 *   N        sq.num_entries.
 *
 * WORDS
 *   word                     | written by                   | read by               | ordered by
 *   completion entries       | adapter: the body, then the  | reader                | B1
 *                            | 8 bytes that hold the phase  |                       |
 *   counters.success, .error | adapter                      | pollers               | B2, B5; wrap 0: COUNTERS
 *   completion.lock          | pollers: CAS 0 to 1, acquire;| pollers               | a reader's release and the next
 *                            | reader: store 0, release     |                       |   CAS. A poll that finds 1 ends
 *   completion.consumed      | reader                       | the next reader       | completion.lock
 *   completion.completed     | without counters: reader.    | leaders that wait for | B2; counters, wrap 0: not read,
 *                            | With counters: any poller,   |   free slots or in    |   completed_now() returns the
 *                            | by CAS; if wrap is 0, by a   |   quiet() (quiet.h)   |   sum that it stores
 *                            | store                        | completed_now(); the  | relaxed: an estimate of what is
 *                            |                              |   waits of the send   |   in flight; progress (Deadline)
 *                            |                              |   side; ibgda.h       |
 *                            |                              | wrap not 0: pollers   | acquire: poll() adds to it what
 *                            |                              |   and reader          |   the counters are ahead by;
 *                            |                              |                       |   oldest_unread()
 *   completion.received      | reader                       | posters of receives   | B2
 *   inbox entries,           | reader                       | receivers (rq.h)      | B3
 *   completion.inboxed       |                              |                       |
 *   completion.lost          | reader                       | host                  | relaxed
 *   done words               | reader                       | waiting groups, the   | R1, R3 (requests.h)
 *                            |                              | writer's leader       |
 *   receive.taken            | receivers (rq.h)             | reader                | B3
 *   error.completion_status, | the reader that changes      | host                  | fence_system() before
 *   .request_id, .reported   | reported from 0 to 2         |                       |   error.reported = 1
 *   error.count              | reader: fetch_add            | with counters: pollers| B4
 *                            |                              | Sender: quiet, waits; | B4
 *                            |                              |   ibgda.h             |
 *                            |                              | Sender: when opened   | relaxed: errors until then
 *   cq.doorbell              | reader: the consumer index   | adapter               | after B2's fence
 * If the host's doorbell proxy relays the completions (efa-gda/src/doorbell/relay.rs), it stands for the adapter: it
 * writes the entries that device code reads, in the same order, and reads cq.doorbell.
 *
 * PAIRS
 *   B1  The reader loads an entry's first 8 bytes, with status and phase, in one access. If the phase is this lap's and
 *       it needs the rest, it executes fence_system() and then loads that. Visible: the rest, as the adapter wrote it
 *       before the phase.
 *   B2  Without counters: the reader executes fence_system() after it has loaded completions, and then stores
 *       `completed` and `received`. With counters and wrap not 0: the poller executes it after it has loaded the
 *       counters, and then advances `completed`. A writer that reuses slots first loads `completed` with an acquire, or
 *       takes over the limit of a writer that did (A1 in ticket_lock.h); a group that places ahead does the latter. A
 *       group that reuses buffers after a quiet() first loads `completed` with an acquire; wait(), wait_own() and test()
 *       load done words instead (R1 in requests.h). post_receives() loads `received` with an acquire before it reuses
 *       receive slots.
 *       Visible: that the adapter no longer reads or writes the slots, nor the buffers, of what was counted.
 *   B3  The reader executes fence_system() after it has loaded a completion's head, copies the completion to the inbox,
 *       and then stores `inboxed` with a release; the receiver loads it with an acquire. Visible: the copy; that the
 *       adapter no longer writes the receive's buffer; and the message, where a completion shows it (signal.h,
 *       RECEIVING SIDE, step 2). In return the receiver copies the entry out, then stores `taken` with a release; the
 *       reader loads it with an acquire. Visible: that the inbox entry may be written again.
 *   B4  The reader stores the report (of the first error), fences, adds to error.count, executes a system fence (B2's;
 *       before a failed request's done word, one of its own), and then stores done words and, without counters,
 *       `completed`. With counters and wrap not 0, a poller loads error.count with an acquire, executes B2's fence, and
 *       then advances `completed`. So a group that loads a `completed` that counts a failed request, or finds the
 *       request failed in the request table, also sees its error in error.count, and the report. On a queue with
 *       counters whose wrap is 0, or without a completion queue, no error is counted in error.count or reported.
 *   B5  With counters and wrap not 0, a poller loads `success` and `error`, executes fence_system(), loads `error`
 *       again, and advances `completed` only if both values of `error` are equal. So its `error` includes each error
 *       that the adapter counted before the last success in its `success`.
 *
 * THE REPORT (error.completion_status, error.request_id) describes the queue's first error only; later errors are
 * counted in error.count and not described there. `reported` is 0 before the first error, 2 while its reader stores the
 * report, and 1 when the report is valid; then it never changes again. The fence before the store of 1, and the store,
 * are at system scope, because the host reads the report. A host that reads it beside a running kernel must load
 * `reported` with an acquire before the report, and use the report only if it is 1. A host that copies the whole struct
 * loads its words in any order: it may use the report in the copy only if an earlier copy had `reported` = 1, or if
 * the kernel has ended and `reported` is 1.
 *
 * WHAT IS COUNTED. `completed` counts requests, successful and failed ones: the slots of both are free. Requests
 * complete in any order, because the protocol (SRD) does not keep it, so `completed` says how many are done, not which.
 * `received` counts receives that used a posted receive. A completion with another queue pair's number is consumed and
 * not counted; Completions::foreign reports it.
 *
 * NO OVERRUN. Without counters, `completed` grows only when a completion is read, and writers keep
 * next - completed <= N (free_slots.h). So at most N completions of requests are unread. The host makes cq.num_entries
 * at least N + rq.num_entries, and posters of receives keep posted - received <= rq.num_entries (rq.h). Nothing bounds
 * unsolicited receives: too many unread ones overrun the completion queue.
 *
 * KINDS OF QUEUES, and what a poll does on each.
 *   counters      | cq.buffer | a poll
 *   none          | set       | reads new completions; adds the completed requests to `completed`
 *   wrap not 0    | set       | without unread errors, advances `completed` to the counters' sum; otherwise reads
 *                 |           | completions, and leaves `completed` as it is (COUNTERS)
 *   wrap not 0    | null      | the same, but reads no completion: after an error `completed` stands still
 *   wrap = 0      | any       | completed_now() copies the counters' sum to `completed`; poll() does nothing
 *   none          | null      | does nothing; waits for completions and for free slots run out
 *
 * COUNTERS (counters.success is not null; only then does counters.wrap have a meaning). Up to the last paragraph, wrap
 * is not 0. `completed` follows success + error. The completion queue is read only while there are unread errors:
 * counters.error is ahead of error.count. Completions that are not read are overwritten on the next lap. The host must
 * set up such a queue so that only its own requests complete on this completion queue, no receives and no other queue.
 * Then completion i belongs to the i-th request that ended. A poller that finds an unread error does not advance
 * `completed`, so `completed` stands still until all counted errors have been read. Only a poller that made its second
 * load of `error` (B5) before the adapter counted an error can still advance it. If counters.error is null, failed
 * requests are never counted, and waits for them run out.
 *   Two bounds follow.
 *   - The index of a completion is less than completed + N: writers keep next <= completed + N (free_slots.h), and each
 *     request has one completion.
 *   - The index of an unread error is at least completed - N. Assumption: when the adapter counts a request, it has
 *     counted fewer than N of the requests that ended after it. Take the poller that stored `completed`. Let L be the
 *     request of its sum that the adapter counted last. Before L the adapter had counted completed - 1 requests or
 *     more, and so, by the assumption, each error with an index below completed - N. If L is an error, the poller
 *     loaded L from `error`, with all errors counted before L. If L is a success, the poller loaded L from `success`,
 *     and afterwards all errors counted before L from `error` (B5). So its `error` counts all errors with these
 *     indices. The poller advances `completed` only if error.count is at least its `error`. Errors are read in
 *     ascending index, so all of these errors have been read.
 * So unread errors are among the 2 N completions from completed - N on. The completion queue has at least 2 N entries,
 * so none of them is overwritten. A reader begins at completed - N, or at `consumed` if that is later. If the
 * completion of a counted error is never found, `completed` stays where it is and waits end at their bound.
 *   A reader compares `consumed` with completed - N by their difference modulo 2^32, so `consumed` must not fall 2^32
 * behind. advance_completed() therefore brings it forward whenever `completed` crosses a multiple of 2^30. If another
 * poller holds completion.lock then, this is left to the next multiple. `consumed` may fall 2^32 - 2 N behind, so one
 * of three tries in a row must find the lock free. The lock is held only while errors are read or `consumed` is brought
 * forward.
 *   Wraps: counters.wrap is a power of two of at least 4 N, and each counter wraps at it or at a multiple of it. Their
 * sum minus `completed`, modulo counters.wrap, is at most N, unless a counter's value is older than `completed`. That
 * can happen although the poller loads `completed` first, because the load does not order the adapter's stores. The
 * difference is then negative, so modulo counters.wrap more than N, and the poller does not advance `completed`.
 *   counters.wrap = 0: the counters never wrap. Their sum is the number of completed requests. No poller looks for
 * errors: an error counts as a completion. completed_now() stores the sum to `completed` for waits, which see progress
 * by it, and returns it. It does not fence: stores to slots depend on the loaded counts by control flow, and quiet()
 * fences before it returns (quiet.h). take_received() on such a queue returns EFA_GDA_UNSUPPORTED without an inbox, or
 * runs to its bound.
 *
 * WAITS. There are none here. A poller that finds nothing, or finds completion.lock held, returns; its caller repeats
 * the call until its own bound.
 */
#ifndef EFA_GDA_CQ_H
#define EFA_GDA_CQ_H

#include "group.h"
#include "wqe.h"

namespace efa_gda {

/* What one or several polls counted. `first_error` and `first_error_id`: status and request id of the first error. */
struct Completions {
  /* Completed requests. */
  uint32_t sends;
  /* Completions of receives; `unsolicited`: how many of them used no posted receive. */
  uint32_t receives, unsolicited;
  /* Failed requests whose completions were read. With counters and wrap not 0, `sends` counts them later. */
  uint32_t errors, first_error;
  uint64_t first_error_id;
  /* A completion of another queue pair was read: two queues complete on this completion queue. */
  bool foreign;

  EFA_GDA_FN Completions()
      : sends(0), receives(0), unsolicited(0), errors(0), first_error(0), first_error_id(0), foreign(false) {}
  /* Leaves all members undefined: stores to the thread's memory delay the next fence. */
  enum Undefined { kUndefined };
  EFA_GDA_FN explicit Completions(Undefined) {}

  EFA_GDA_FN void add_error(uint32_t status, uint64_t id) {
    if (errors == 0) first_error = status;
    if (errors == 0) first_error_id = id;
    errors++;
  }
  EFA_GDA_FN void add(const Completions &more) { add_to(*this, more); }
  EFA_GDA_FN void add(const Completions &more) volatile { add_to(*this, more); }
  EFA_GDA_FN Completions copy() const { return *this; }
  EFA_GDA_FN Completions copy() const volatile {
    Completions out;
    out.sends = sends;
    out.receives = receives;
    out.unsolicited = unsolicited;
    out.errors = errors;
    out.first_error = first_error;
    out.first_error_id = first_error_id;
    out.foreign = foreign;
    return out;
  }

 private:
  template <class To>
  EFA_GDA_FN static void add_to(To &to, const Completions &more) {
    if (to.errors == 0 && more.errors != 0) {
      to.first_error = more.first_error;
      to.first_error_id = more.first_error_id;
    }
    to.sends = to.sends + more.sends;
    to.receives = to.receives + more.receives;
    to.unsolicited = to.unsolicited + more.unsolicited;
    to.errors = to.errors + more.errors;
    to.foreign = to.foreign || more.foreign;
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

/* Counts an error, and records the queue's first one for the host. Called by the reader. */
EFA_GDA_FN void record_error(efa_gda_queue *queue, uint32_t status, uint64_t id) {
  if (compare_swap_acquire(&queue->error.reported, 0, 2) == 0) {
    store_relaxed(&queue->error.completion_status, status);
    store_relaxed(&queue->error.request_id, id);
    fence_system();
    store_system(&queue->error.reported, 1u);
  }
  /* B4: makes the report visible to pollers that load error.count with an acquire, on queues with counters. */
  fence_device();
  fetch_add_relaxed(&queue->error.count, 1u);
}

/* The bit of a request-table word that flips with each lap of the table (requests.h). `index` may lack all bits above
 * the sixteenth. */
constexpr uint32_t kTablePhase = 0x8000;
EFA_GDA_FN uint32_t table_phase(const efa_gda_requests &table, uint32_t index) {
  return (index & table.num_entries) == 0 ? kTablePhase : 0;
}
/* Marks the request with this id as done. Called by the reader after fence_system() (R1). */
EFA_GDA_FN void mark_done(const efa_gda_requests &table, uint32_t id, uint32_t status) {
  store_relaxed(&table.done[id & (table.num_entries - 1)], (uint16_t)(table_phase(table, id) | status));
}

EFA_GDA_FN const uint8_t *completion_at(const efa_gda_cq &cq, uint32_t index) {
  return cq.buffer + (index & (cq.num_entries - 1)) * cq.entry_size;
}
EFA_GDA_FN CompletionHead head_at(const efa_gda_cq &cq, uint32_t index) {
  return {load_system(reinterpret_cast<const volatile uint64_t *>(completion_at(cq, index)))};
}
/* Whether `head`, loaded from entry `index`, is of this lap. */
EFA_GDA_FN bool is_new(const efa_gda_cq &cq, uint32_t index, CompletionHead head) {
  return head.phase() == ((index & cq.num_entries) == 0);
}

/* Copies the receive completion at `index`, whose head is new, to the inbox. A full inbox drops it and counts it in
 * completion.lost. Called by the reader. */
EFA_GDA_FN void copy_to_inbox(efa_gda_queue *queue, uint32_t index) {
  const efa_gda_inbox &inbox = queue->inbox;
  if (inbox.num_entries == 0) return;
  uint32_t inboxed = load_relaxed(&queue->completion.inboxed);
  if (inboxed - load_acquire(&queue->receive.taken) >= inbox.num_entries) {
    store_relaxed(&queue->completion.lost, load_relaxed(&queue->completion.lost) + 1);
    return;
  }
  const uint8_t *entry = completion_at(queue->cq, index);
  uint8_t *to = inbox.entries + (uint64_t)(inboxed & (inbox.num_entries - 1)) * EFA_GDA_INBOX_ENTRY;
  /* B1. */
  fence_system();
  for (uint32_t i = 0; i < EFA_GDA_INBOX_ENTRY; i += 8) {
    uint64_t word = i < queue->cq.entry_size ? load_system(reinterpret_cast<const volatile uint64_t *>(entry + i)) : 0;
    store_relaxed(reinterpret_cast<uint64_t *>(to + i), word);
  }
  store_release(&queue->completion.inboxed, inboxed + 1);
}

/* The most heads that the reader loads at once. A GPU's read of host memory takes 1.3 us, and this many take hardly
 * longer. */
constexpr uint32_t kHeadsPerRead = 10;

/* The index at which a reader must begin if completion.consumed is `consumed`. */
EFA_GDA_FN uint32_t oldest_unread(const efa_gda_queue *queue, uint32_t consumed) {
  if (queue->counters.success == nullptr) return consumed;
  uint32_t depth = queue->sq.num_entries, oldest = load_acquire(&queue->completion.completed) - depth;
  return consumed - oldest > 2 * depth ? oldest : consumed;
}

/* The most completions of requests that a caller asks poll() for (with counters poll() reads up to 2 N), and the most
 * other completions of one poll. */
constexpr uint32_t kMaxPoll = 64;
/* The most completions of requests of one poll on a queue with a request table: the reader keeps their ids until its
 * fence. */
constexpr uint32_t kMaxTrackedPoll = 32;

/* What take_completion() found: a request of this queue, a receive that used a posted receive, neither. */
enum CompletionKind : uint32_t { kOtherCompletion = 0, kSendCompletion = 1, kPostedReceive = 2 };

/* Takes the completion at `index`, whose head is new and not that of a successful request of this queue, and adds it to
 * `all`. Called by the reader. */
EFA_GDA_COLD CompletionKind take_completion(efa_gda_queue *queue, uint32_t index, CompletionHead head,
                                            Completions *all) {
  if (head.qpn() != queue->qpn) {
    all->foreign = true;
    return kOtherCompletion;
  }
  if (!head.is_send()) {
    copy_to_inbox(queue, index);
    all->receives++;
    if ((head.flags() & EFA_IO_CDESC_COMMON_UNSOLICITED_MASK) == 0) return kPostedReceive;
    all->unsolicited++;
    return kOtherCompletion;
  }
  uint64_t id = head.id();
  if ((queue->sq.flags & EFA_GDA_SQ_REQ_ID_64) != 0) {
    /* B1. */
    fence_system();
    const uint8_t *entry = completion_at(queue->cq, index);
    uint64_t tail = load_system(reinterpret_cast<const volatile uint64_t *>(entry) + 1);
    id |= (head.bits >> 48) << 16 | tail << 32;
  }
  record_error(queue, head.status(), id);
  if (queue->requests.num_entries != 0) {
    fence_system();
    mark_done(queue->requests, head.id(), head.status());
  }
  all->add_error(head.status(), id);
  return kSendCompletion;
}

/* Reads the new completions, at most `sends` of requests and at most kMaxPoll others, and adds them to `all`, but for
 * those of successful requests. Reads none while another thread is the reader. Returns the number of completions of
 * requests, which it also adds to `completed` on a queue without counters. */
EFA_GDA_FN uint32_t poll_completion_queue(efa_gda_queue *queue, uint32_t sends, Completions *all) {
  /* Copies: an access with an order makes the compiler load the queue's fields anew, and an acquire makes the GPU load
   * them from L2. */
  const efa_gda_cq cq = queue->cq;
  const efa_gda_requests table = queue->requests;
  const uint32_t qpn = queue->qpn;
  if (cq.buffer == nullptr) return 0;
  /* The ids of the successful requests of this poll; used if the queue has a request table. */
  uint16_t ids[kMaxTrackedPoll];
  uint32_t sends_read = 0;
  /* In bits 15:0 completions that are not of requests, in bits 23:16 those of them that used a posted receive, and in
   * bits 31:24 failed requests, modulo 256. */
  uint32_t others = 0;
  if (table.num_entries != 0 && sends > kMaxTrackedPoll) sends = kMaxTrackedPoll;
  if (compare_swap_acquire(&queue->completion.lock, 0, 1) != 0) return 0;
  uint32_t consumed = load_relaxed(&queue->completion.consumed), completed = load_relaxed(&queue->completion.completed),
           index = oldest_unread(queue, consumed);
  EFA_GDA_NO_UNROLL while ((others & 0xffff) < kMaxPoll && sends_read < sends) {
    uint32_t want = sends - sends_read < kHeadsPerRead ? sends - sends_read : kHeadsPerRead;
    CompletionHead heads[kHeadsPerRead];
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kHeadsPerRead; k++) {
      heads[k].bits = 0;
      if (k < want) heads[k] = head_at(cq, index + k);
    }
    /* Takes the successful requests in front: without a loop over them, whose iterations would wait for each other. */
    uint32_t fresh = 0, good = 0, first_id = sends_read - (others >> 24);
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kHeadsPerRead; k++) {
      uint32_t bit = is_new(cq, index + k, heads[k]) ? 1u << k : 0;
      fresh |= bit;
      if (heads[k].is_good_send(qpn)) good |= bit;
      /* Ids that are not taken are overwritten, or not used. */
      if (table.num_entries != 0 && k < want) ids[first_id + k] = (uint16_t)heads[k].id();
    }
    uint32_t taken = low_ones(good);
    if (taken > want) taken = want;
    sends_read += taken;
    index += taken;
    if (taken == want) continue;
    if ((fresh >> taken & 1) == 0) break;
    CompletionKind kind = take_completion(queue, index, head_at(cq, index), all);
    sends_read += kind == kSendCompletion;
    others += kind == kSendCompletion ? 1 << 24 : kind == kPostedReceive ? 0x10001 : 1;
    index++;
  }
  if (index != consumed) {
    volatile uint32_t *doorbell = queue->cq.doorbell;
    /* B2, and R1 for the ids. */
    fence_system();
    if (table.num_entries != 0) {
      /* Four at once, so that the loads of their ids overlap. */
      uint32_t good = sends_read - (others >> 24);
      EFA_GDA_NO_UNROLL for (uint32_t i = 0; i < good; i += 4) {
        EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
          if (i + k < good) mark_done(table, ids[i + k], EFA_IO_COMP_STATUS_OK);
        }
      }
    }
    store_relaxed(&queue->completion.consumed, index);
    uint32_t receives = others >> 16 & 0xff;
    if (receives != 0) {
      store_relaxed(&queue->completion.received, load_relaxed(&queue->completion.received) + receives);
    }
    if (queue->counters.success == nullptr) store_relaxed(&queue->completion.completed, completed + sends_read);
    if (doorbell != nullptr) store_doorbell(doorbell, index & 0xffff);
  }
  store_release(&queue->completion.lock, 0u);
  return sends_read;
}

/* Errors that are counted, `counted` being counters.error, and whose completions have not been read. */
EFA_GDA_FN uint32_t unread_errors(const efa_gda_queue *queue, uint64_t counted) {
  uint32_t unread = ((uint32_t)counted - load_acquire(&queue->error.count)) & (uint32_t)(queue->counters.wrap - 1);
  /* If a completion was read before the adapter counted it, the difference is negative: modulo `wrap`, more than N. */
  return unread > queue->sq.num_entries ? 0 : unread;
}

/* The counters, as one poller loaded them. */
struct Counts {
  uint64_t success, error;
};
EFA_GDA_FN uint64_t load_error_counter(const efa_gda_counters &c) {
  return c.error != nullptr ? load_system(c.error) : 0;
}

/* Advances `completed` from `known` by `more`, on a queue with counters and wrap not 0. `more` is success + error of
 * `counts`, less `known`, modulo wrap. Returns `more`, or 0 if another poller advanced `completed` first or a newer
 * error was counted. */
EFA_GDA_FN uint32_t advance_completed(efa_gda_queue *queue, Counts counts, uint32_t known, uint32_t more) {
  if (more == 0) return 0;
  /* B2, and B5: the poller has loaded `success` before, and loads `error` again. */
  fence_system();
  if (load_error_counter(queue->counters) != counts.error) return 0;
  if (compare_swap_acquire(&queue->completion.completed, known, known + more) != known) return 0;
  /* Brings `consumed` forward about every 2^30 completions (COUNTERS above). */
  if (((known ^ (known + more)) >> 30) != 0 && compare_swap_acquire(&queue->completion.lock, 0, 1) == 0) {
    store_relaxed(&queue->completion.consumed, oldest_unread(queue, load_relaxed(&queue->completion.consumed)));
    store_release(&queue->completion.lock, 0u);
  }
  return more;
}

/* Polls. Without counters: reads new completions, at most `sends` of requests and at most kMaxPoll others. With
 * counters and wrap = 0: does nothing. With counters and wrap not 0: if all errors are read, tries to advance
 * `completed` by the difference between the counters' sum and `completed`, modulo wrap (advance_completed()). It does
 * not if the difference is 0 or more than N, if the adapter counted a further error meanwhile, or if another poller was
 * first. If errors are unread, it reads up to 2 N completions for them, and leaves `completed` as it is. Adds what it
 * counted to `all`. Called by one thread of a group. */
EFA_GDA_COLD void poll(efa_gda_queue *queue, uint32_t sends, Completions *all) {
  const efa_gda_counters &c = queue->counters;
  if (c.success != nullptr && c.wrap == 0) return;
  if (c.success != nullptr) {
    /* Loaded with an acquire before the counters, so the counters are usually at least as new as `known`. If one is
     * older (Wraps above), the difference below is larger than N modulo `wrap`, and is discarded. */
    uint32_t known = load_acquire(&queue->completion.completed);
    Counts counts = {load_system(c.success), load_error_counter(c)};
    if (unread_errors(queue, counts.error) == 0) {
      uint32_t more = ((uint32_t)(counts.success + counts.error) - known) & (uint32_t)(c.wrap - 1);
      if (more <= queue->sq.num_entries) all->sends += advance_completed(queue, counts, known, more);
      return;
    }
    sends = 2 * queue->sq.num_entries;
  }
  uint32_t sends_read = poll_completion_queue(queue, sends, all);
  /* With counters, a later poll counts these requests, when it advances `completed`. */
  if (c.success == nullptr) all->sends += sends_read;
}

/* Polls. `posted` is the number of requests so far: without counters, no more completions of requests are read than are
 * in flight, because a read past the last completion may cost a round trip over PCIe. With none in flight, or more than
 * kMaxPoll, it asks for kMaxPoll: with none in flight, receives may have completed. Adds what it counted to `all`. */
EFA_GDA_FN void poll_in_flight(efa_gda_queue *queue, uint32_t posted, Completions *all) {
  uint32_t in_flight = posted - load_relaxed(&queue->completion.completed);
  poll(queue, in_flight - 1 < kMaxPoll ? in_flight : kMaxPoll, all);
}

/* poll_in_flight(); then returns the number of completed requests of this queue so far, modulo 2^32. On a queue with
 * counters whose wrap is 0 it returns the counters' sum and leaves `all` as it is, so Completions::sends stays 0. Called
 * by one thread of a group. */
EFA_GDA_FN uint32_t completed_now(efa_gda_queue *queue, uint32_t posted, Completions *all) {
  const efa_gda_counters &c = queue->counters;
  if (c.success != nullptr && c.wrap == 0) {
    uint32_t completed = (uint32_t)(load_system(c.success) + load_error_counter(c));
    /* Waits see by it that requests complete (Deadline). */
    store_relaxed(&queue->completion.completed, completed);
    return completed;
  }
  poll_in_flight(queue, posted, all);
  return load_acquire(&queue->completion.completed);
}

}  // namespace efa_gda

#endif
