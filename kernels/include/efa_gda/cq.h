/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The completion side: reads the completion queue or the hardware counters, counts requests that ended, and records
 * errors. An error is a failed request of this queue. (A failed receive is counted in `received` if it used a posted
 * receive; its status is only in the inbox.) This file does not know which group posted a request: it only marks the
 * request as done in the queue's request table, if there is one (requests.h).
 *
 * TERMS. Group, call, owner, producer index, quiet, abort flag: see sq.h.
 *   request  of this queue's send queue, whatever its operation. (Names in the code call its completion a send.)
 *   receive  a message, or a write with immediate, that a peer sent to this queue pair. It is unsolicited if it used no
 *            posted receive: some queues need none for a write with immediate.
 *   posted receive: a buffer in the receive queue (rq.h).
 *   inbox    memory of the queue (efa_gda_inbox) to which the reader copies completions of receives, for
 *            take_received() (rq.h).
 *   receiver a thread in take_received() (rq.h).
 *   poster of receives: a thread in post_receives() (rq.h).
 *   poller   the threads that poll together (CompletionReader): of a group that waits for free slots or completions, or
 *            tests, the lanes of Group::Poller (group.h; one that waits for a turn does not poll); or a
 *            receiver or a poster of receives.
 *   reader   the poller that holds completion.lock. Only the reader reads the completion queue or writes `consumed`.
 *            Each of its lanes loads a part of the completions; its leader does everything else, but for the done words
 *            of successful requests, which the lane stores that loaded the completion.
 *   index    number of a completion, modulo 2^32. Completion i is in entry i modulo cq.num_entries. Its phase bit is 1
 *            on the first lap and flips with each lap.
 *   N        sq.num_entries.
 *
 * WORDS
 *   word                     | written by                   | read by               | ordered by
 *   completion entries       | adapter: the body, then the  | reader                | B1
 *                            | 8 bytes that hold the phase  |                       |
 *   counters.success, .error | adapter                      | pollers               | B2, B5; wrap 0: COUNTERS
 *   completion.lock, and in  | pollers: fetch_or 1, acquire;| pollers               | B6. A poll that finds 1 ends
 *   the high half of the     | reader: fetch_add, which     |                       |
 *   word .consumed           | clears lock, advances        |                       |
 *                            | consumed                     |                       |
 *   completion.completed     | without counters: reader,    | leaders that wait for | B2; counters, wrap 0: not read,
 *                            | by fetch_add. With counters: |   or look for free    |   completed_so_far() returns the
 *                            | any poller, by CAS; if wrap  |   slots, or in quiet()|   counters' sum
 *                            | is 0, by a store             | the waits of the send | relaxed: an estimate of what is
 *                            |                              |   side; ibgda.h       |   in flight; progress (Deadline)
 *                            |                              | wrap not 0: pollers   | acquire: poll() adds to it what
 *                            |                              |   and reader          |   the counters are ahead by;
 *                            |                              |                       |   oldest_unread()
 *   completion.received      | reader, by fetch_add         | posters of receives   | B2
 *   inbox entries,           | reader                       | receivers (rq.h)      | B3
 *   completion.inboxed       |                              |                       |
 *   completion.lost          | reader                       | host                  | relaxed
 *   done words               | reader                       | waiting groups, the   | R1, R3 (requests.h)
 *                            |                              | poster's leader       |
 *   receive.taken            | receivers (rq.h)             | reader                | B3
 *   error.completion_status, | the reader that changes      | host                  | fence_system() before
 *   .request_id, .reported   | reported from 0 to 2         |                       |   error.reported = 1
 *   error.put_status,        | reader; put_status also the  | put                   | release and acquire of
 *   .put_request_id          | put that begins              |                       |   put_status
 *   error.count              | reader: fetch_add            | with counters: pollers| B4
 *                            |                              | Sender: quiet, waits; | B4
 *                            |                              |   ibgda.h             |
 *                            |                              | Sender: when opened   | relaxed: errors until then
 *   cq.doorbell              | reader: the consumer index   | adapter               | after B2's fence
 * If the host's doorbell proxy relays the completions (efa-gda/src/doorbell/mod.rs), it stands for the adapter: it
 * writes the entries that device code reads, in the same order, and reads cq.doorbell.
 *
 * PAIRS
 *   B1  The reader loads an entry's first 8 bytes, with status and phase, in one access. If the phase is this lap's and
 *       it needs the rest, it executes fence_acquire_system() and then loads that. Visible: the rest, as the adapter
 *       wrote it before the phase.
 *   B2  Without counters: each lane of the reader loads its completion with an acquire of system scope, the reader
 *       synchronises, each lane executes fence_release_device(), and then the leader adds to `completed`. A reader of
 *       one thread loads several completions, relaxed, and then executes fence_system() instead. A warp that tells the
 *       adapter its consumer index loads with an acquire, but also executes fence_system(). A reader that has read
 *       other completions than those of successful requests executes fence_system() once more, before it adds to
 *       `received` and `completed`. With counters and wrap not 0: the poller executes fence_system() after it has
 *       loaded the counters, and then advances `completed`.
 *       A group that reuses slots first loads `completed` with an acquire. A group that reuses buffers after a quiet()
 *       first loads `completed` with an acquire; wait(), wait_own() and test() load done words instead (R1 in
 *       requests.h).
 *       post_receives() loads `received` with an acquire before it reuses receive slots.
 *       Visible: that the adapter no longer reads or writes the slots, nor the buffers, of what was counted.
 *   B3  The reader executes fence_acquire_system() after it has loaded a completion's head, copies the completion to
 *       the inbox, and then stores `inboxed` with a release; the receiver loads it with an acquire. Visible: the copy;
 *       that the adapter no longer writes the receive's buffer; and the message, where a completion shows it (signal.h,
 *       RECEIVING SIDE, step 2). In return the receiver copies the entry out, then stores `taken` with a release; the
 *       reader loads it with an acquire. Visible: that the inbox entry may be written again.
 *   B4  The reader stores the report (of the first error) and the words of the put, fences, adds to error.count,
 *       executes a system fence, and then stores the failed request's done word; after a further system fence (B2) it
 *       adds, without counters, to `completed`. With counters and wrap not 0, a poller loads error.count with an
 *       acquire, executes B2's fence, and then advances `completed`. So a group that loads a `completed` that counts a
 *       failed request, or finds the request failed in the request table, also sees its error in error.count, and what
 *       was stored before. On a queue with counters whose wrap is 0, or without a completion queue, no error is counted
 *       in error.count or reported.
 *   B5  With counters and wrap not 0, a poller loads `success` and `error`, executes fence_system(), loads `error`
 *       again, and advances `completed` only if both values of `error` are equal. So its `error` includes each error
 *       that the adapter counted before the last success in its `success`.
 *   B6  The reader's fence of B2 precedes the fetch_add that releases completion.lock, and makes it a release. If there
 *       were no new completions, there is no fence; the fetch_add then passes on what the reader before released. The
 *       next reader's fetch_or is an acquire, and its lanes load completions after a sync. Visible: that the reader
 *       before has loaded its completions, so that no lane loads from an entry an older completion than the one that
 *       was read there last. (A completion of two laps ago has the phase of this lap.)
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
 * not counted: the reader poisons the queue with EFA_GDA_BAD_COMPLETION, because that queue pair's pollers may have
 * read this queue's completions.
 *
 * NO OVERRUN. Without counters, `completed` grows only when a completion is read, and posters keep
 * next - completed <= N (free_slots.h). So at most N completions of requests are unread. The host makes cq.num_entries
 * at least N + rq.num_entries, and posters of receives keep posted - received <= rq.num_entries (rq.h). Nothing bounds
 * unsolicited receives: too many unread ones overrun the completion queue.
 *
 * KINDS OF QUEUES, and what a poll does on each.
 *   counters      | cq.buffer | a poll
 *   none          | set       | reads new completions, as many as its lanes load at once (kHeadsPerLane), of one lap;
 *                 |           | adds the completed requests to `completed`
 *   wrap not 0    | set       | without unread errors, advances `completed` to the counters' sum; otherwise reads
 *                 |           | completions, and leaves `completed` as it is (COUNTERS)
 *   wrap not 0    | null      | the same, but reads no completion: after an error `completed` stands still
 *   wrap = 0      | any       | completed_so_far() copies the counters' sum to `completed`; poll() does nothing
 *   none          | null      | only takes the lock; waits for completions and for free slots run out
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
 *   - The index of a completion is less than completed + N: posters keep next <= completed + N (free_slots.h), and each
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
 * completion of a counted error is never found, `completed` stays where it is and waits end at their bound. A bound
 * does not begin again while errors are looked for: 2 N completions take a thread N / 4 polls, and a warp N / 16.
 *   A reader compares `consumed` with completed - N by their difference modulo 2^32, so `consumed` must not fall 2^32
 * behind. advance_completed() therefore brings it forward whenever `completed` crosses a multiple of 2^30. If another
 * poller holds completion.lock then, this is left to the next multiple. `consumed` may fall 2^32 - 2 N behind, so one
 * of three tries in a row must find the lock free. The lock is held only while errors are unread or `consumed` is
 * brought forward.
 *   Wraps: counters.wrap is a power of two of at least 4 N, and each counter wraps at it or at a multiple of it. Their
 * sum minus `completed`, modulo counters.wrap, is at most N, unless a counter's value is older than `completed`. That
 * can happen although the poller loads `completed` first, because the load does not order the adapter's stores. The
 * difference is then negative, so modulo counters.wrap more than N, and the poller does not advance `completed`.
 *   counters.wrap = 0: the counters never wrap. Their sum is the number of completed requests. No poller looks for
 * errors: an error counts as a completion. completed_so_far() stores the sum to `completed` for waits, which see
 * progress by it, and returns it. It does not fence: stores to slots depend on the loaded counts by control flow, and
 * quiet() fences before it returns (waits.h). take_received() on such a queue returns EFA_GDA_UNSUPPORTED without an
 * inbox, or runs to its bound.
 *
 * WAITS. There are none here. A poller that finds nothing, or finds completion.lock held, returns; its caller repeats
 * the call until its own bound.
 */
#ifndef EFA_GDA_CQ_H
#define EFA_GDA_CQ_H

#include "completion.h"
#include "group.h"

namespace efa_gda {

/* Counts an error, and records the queue's first one for the host. Called by the reader. */
EFA_GDA_FN void record_error(efa_gda_queue *queue, uint32_t status, uint64_t id) {
  if (compare_swap_acquire(&queue->error.reported, 0, 2) == 0) {
    store_relaxed(&queue->error.completion_status, status);
    store_relaxed(&queue->error.request_id, id);
    fence_system();
    store_system(&queue->error.reported, 1u);
  }
  if (load_relaxed(&queue->error.put_status) == 0) {
    store_relaxed(&queue->error.put_request_id, id);
    store_release(&queue->error.put_status, status);
  }
  /* B4: makes what was stored visible to pollers that load error.count with an acquire, on queues with counters. */
  fence_device();
  fetch_add_relaxed(&queue->error.count, 1u);
}

/* The bit of a request-table word that flips with each lap of the table (requests.h). `index` may lack all bits above
 * the sixteenth. */
constexpr uint32_t kTablePhase = 0x8000;
EFA_GDA_FN uint32_t table_phase(const efa_gda_requests &table, uint32_t index) {
  return (index & table.num_entries) == 0 ? kTablePhase : 0;
}
/* Whether the done word of request `index` has the phase of its lap (requests.h). */
EFA_GDA_FN bool is_marked_done(const efa_gda_requests &table, uint32_t index) {
  return (load_relaxed(&table.done[index & (table.num_entries - 1)]) & kTablePhase) == table_phase(table, index);
}
/* Marks the request with this id as done. Called by the reader after the fence of R1. */
EFA_GDA_FN void mark_done(const efa_gda_requests &table, uint32_t id, uint32_t status) {
  store_relaxed(&table.done[id & (table.num_entries - 1)], (uint16_t)(table_phase(table, id) | status));
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
  fence_acquire_system();
  for (uint32_t i = 0; i < EFA_GDA_INBOX_ENTRY; i += 8) {
    uint64_t word = i < queue->cq.entry_size ? load_system(reinterpret_cast<const volatile uint64_t *>(entry + i)) : 0;
    store_relaxed(reinterpret_cast<uint64_t *>(to + i), word);
  }
  store_release(&queue->completion.inboxed, inboxed + 1);
}

/* completion.lock and, in the high half, completion.consumed. Device code accesses them together. */
EFA_GDA_FN uint64_t *completion_word(efa_gda_queue *queue) {
  return reinterpret_cast<uint64_t *>(&queue->completion.lock);
}
/* Takes completion.lock if it is free. Returns whether it was, and sets `consumed`. */
EFA_GDA_FN bool try_to_read(efa_gda_queue *queue, uint32_t &consumed) {
  uint64_t word = fetch_or_acquire(completion_word(queue), 1);
  consumed = (uint32_t)(word >> 32);
  return (word & 1) == 0;
}
/* Advances `consumed` by `count`, and releases completion.lock. */
EFA_GDA_FN void end_reading(efa_gda_queue *queue, uint32_t count) {
  fetch_add_relaxed(completion_word(queue), ((uint64_t)count << 32) - 1);
}

/* What a caller asks for if it does not know how many requests are in flight. */
constexpr uint32_t kMaxPoll = 32;

/* The index at which the reader of a queue with counters must begin if completion.consumed is `consumed`. */
EFA_GDA_FN uint32_t oldest_unread(const efa_gda_queue *queue, uint32_t consumed) {
  uint32_t depth = queue->sq.num_entries, oldest = load_acquire(&queue->completion.completed) - depth;
  return consumed - oldest > 2 * depth ? oldest : consumed;
}

/* What take_completion() found: a request of this queue, a receive that used a posted receive, neither. */
enum CompletionKind : uint32_t { kOtherCompletion = 0, kSendCompletion = 1, kPostedReceive = 2 };

/* Takes the completion at `index`, which is new and not of a successful request of this queue. Called by the reader. */
EFA_GDA_COLD CompletionKind take_completion(efa_gda_queue *queue, uint32_t index) {
  CompletionHead head = load_head<ThreadGroup>(completion_at(queue->cq, index));
  if (head.qpn() != queue->qpn) {
    poison(queue, EFA_GDA_BAD_COMPLETION);
    return kOtherCompletion;
  }
  if (!head.is_send()) {
    copy_to_inbox(queue, index);
    bool is_posted = (head.flags() & EFA_IO_CDESC_COMMON_UNSOLICITED_MASK) == 0;
    return is_posted ? kPostedReceive : kOtherCompletion;
  }
  uint64_t id = head.id();
  if ((queue->sq.flags & EFA_GDA_SQ_REQ_ID_64) != 0) {
    /* B1. */
    fence_acquire_system();
    const uint8_t *entry = completion_at(queue->cq, index);
    uint64_t tail = load_system(reinterpret_cast<const volatile uint64_t *>(entry) + 1);
    id |= (head.bits >> 48) << 16 | tail << 32;
  }
  record_error(queue, head.status(), id);
  if (queue->requests.num_entries != 0) {
    fence_system();
    mark_done(queue->requests, head.id(), head.status());
  }
  return kSendCompletion;
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

/* The number of completed requests, modulo 2^32, without a poll: on a queue with counters whose wrap is 0 their sum,
 * which it also stores to `completed`, where waits see progress and the host what is in flight; otherwise
 * `completed`. */
EFA_GDA_FN uint32_t completed_so_far(efa_gda_queue *queue) {
  const efa_gda_counters &c = queue->counters;
  if (c.success == nullptr || c.wrap != 0) return load_acquire(&queue->completion.completed);
  uint32_t completed = (uint32_t)(load_system(c.success) + load_error_counter(c));
  store_relaxed(&queue->completion.completed, completed);
  return completed;
}

/* Advances `completed` from `known` by `more`, on a queue with counters and wrap not 0, unless another poller advanced
 * it first or a newer error was counted. `more` is success + error of `counts`, less `known`, modulo wrap. */
EFA_GDA_FN void advance_completed(efa_gda_queue *queue, Counts counts, uint32_t known, uint32_t more) {
  if (more == 0) return;
  /* B2, and B5: the poller has loaded `success` before, and loads `error` again. */
  fence_system();
  if (load_error_counter(queue->counters) != counts.error) return;
  if (compare_swap_acquire(&queue->completion.completed, known, known + more) != known) return;
  /* Brings `consumed` forward about every 2^30 completions (COUNTERS above). */
  uint32_t consumed;
  if (((known ^ (known + more)) >> 30) != 0 && try_to_read(queue, consumed)) {
    end_reading(queue, oldest_unread(queue, consumed) - consumed);
  }
}

/* The leader's part of poll() on a queue with counters. Returns how many completions must be read, if the queue has a
 * completion queue. */
EFA_GDA_FN uint32_t poll_counters(efa_gda_queue *queue) {
  const efa_gda_counters &c = queue->counters;
  if (c.wrap == 0) return 0;
  /* Loaded with an acquire before the counters, so the counters are usually at least as new as `known`. If one is
   * older (Wraps above), the difference below is larger than N modulo `wrap`, and is discarded. */
  uint32_t known = load_acquire(&queue->completion.completed);
  Counts counts = {load_system(c.success), load_error_counter(c)};
  if (unread_errors(queue, counts.error) != 0) return 2 * queue->sq.num_entries;
  uint32_t more = ((uint32_t)(counts.success + counts.error) - known) & (uint32_t)(c.wrap - 1);
  if (more <= queue->sq.num_entries) advance_completed(queue, counts, known, more);
  return 0;
}

/* The completion queue as a poller sees it. Its fields are copies: an access with an order makes the compiler load the
 * queue's fields anew, and an acquire makes the GPU load them from L2. A wait makes a reader for each poll, so that no
 * register keeps the copies meanwhile; they arrive while the lock is taken, because nothing before depends on them. All
 * lanes of the poller call each function together; the arguments and the result are the leader's. */
template <class Poller>
class CompletionReader {
 public:
  EFA_GDA_FN explicit CompletionReader(efa_gda_queue *queue)
      : CompletionReader(queue, queue->counters.success != nullptr) {}
  /* `has_counters`: whether counters.success is set. */
  EFA_GDA_FN CompletionReader(efa_gda_queue *queue, bool has_counters)
      : queue_(queue), cq_(queue->cq), table_(queue->requests), qpn_(queue->qpn), has_counters_(has_counters) {}

  /* Polls. Without counters: reads new completions of one lap, at most `most` and not more than its lanes load at once.
   * With counters and wrap = 0: does nothing. With counters and wrap not 0: if all errors are read, tries to advance
   * `completed` by the difference between the counters' sum and `completed`, modulo wrap (advance_completed()). It does
   * not if the difference is 0 or more than N, if the adapter counted a further error meanwhile, or if another poller
   * was first. If errors are unread, it reads completions, and leaves `completed` as it is.
   *   With `ids` it reads the same entries again at once, until it has found the completions of these requests, or any
   * with the same ids, or another poller has marked the first of them as done, or all entries are new; kMaxReads times
   * in all. Each further read costs one round trip; the lock, the fence and the look at the request table are not
   * repeated. Meanwhile no other group can poll. */
  template <bool kHasIds = false>
  EFA_GDA_FN Polled poll(uint32_t most, RequestIds ids = RequestIds()) {
    const bool leads = poller_.rank() == 0;
    uint32_t consumed = 0, index = 0, want = 0;
    bool has_lock = false;
    if (leads) {
      if (has_counters_) most = poll_counters(queue_);
      has_lock = most != 0 && try_to_read(queue_, consumed);
      if (has_lock && cq_.buffer != nullptr) {
        index = has_counters_ ? oldest_unread(queue_, consumed) : consumed;
        /* Heads of one lap. */
        uint32_t to_end = cq_.num_entries - (index & (cq_.num_entries - 1)), at_once = kHeads * poller_.lanes();
        want = most < to_end ? most : to_end;
        if (want > at_once) want = at_once;
      }
    }
    want = poller_.from_leader(want);
    index = poller_.from_leader(index);
    if (kHasIds) {
      ids.first = poller_.from_leader(ids.first);
      ids.count = poller_.from_leader(ids.count);
    }
    /* The lanes' loads of heads come after the acquire of the lock. */
    poller_.sync();
    Polled polled;
    if (want != 0) polled = read<kHasIds>(index, want, ids);
    if (has_lock) end_reading(queue_, want != 0 ? index + polled.count - consumed : 0);
    return polled;
  }

  /* Polls. `posted` is the number of requests so far, and `completed` that of completed ones, perhaps of some time ago:
   * without counters, no more completions are read than requests are in flight, because a read past the last completion
   * may cost a round trip over PCIe. With none in flight it reads all the same: receives may have completed. */
  template <bool kHasIds = false>
  EFA_GDA_FN Polled poll_in_flight(uint32_t posted, uint32_t completed, RequestIds ids = RequestIds()) {
    uint32_t in_flight = posted - completed;
    return poll<kHasIds>(in_flight - 1 < kMaxPoll ? in_flight : kMaxPoll, ids);
  }

  /* poll_in_flight(); then returns the number of completed requests of this queue so far, modulo 2^32. */
  EFA_GDA_FN uint32_t completed_now(uint32_t posted, uint32_t completed) {
    if (!has_counters_ || queue_->counters.wrap != 0) poll_in_flight(posted, completed);
    return poller_.rank() == 0 ? completed_so_far(queue_) : 0;
  }

 private:
  static constexpr uint32_t kHeads = kHeadsPerLane<Poller>;
  /* The most times that a poll reads the same entries. Eight reads take about 10 us on an H100. */
  static constexpr uint32_t kMaxReads = 8;

  /* Reads the new completions from `index` on, at most `want`. */
  template <bool kHasIds>
  EFA_GDA_FN Polled read(uint32_t index, uint32_t want, RequestIds ids) {
    const uint8_t *first = completion_at(cq_, index + poller_.lane());
    uint32_t phase = CompletionHead::phase_of(index, cq_.num_entries);
    CompletionHead heads[kHeads];
    /* Bit i of `fresh`: completion index + i is new. Bit i of `good`: it is also of a successful request. */
    uint32_t fresh, good;
    EFA_GDA_NO_UNROLL for (uint32_t reads = 1;; reads++) {
      uint32_t found = 0;
      fresh = good = 0;
      /* Whether another poller has read the completion of the first of them since the group looked. */
      bool is_marked = kHasIds && is_marked_done(table_, ids.first);
      EFA_GDA_UNROLL for (uint32_t k = 0; k < kHeads; k++) {
        heads[k].bits = ~phase;
        if (poller_.lane() + k < want) heads[k] = load_head<Poller>(first + k * cq_.entry_size);
      }
      EFA_GDA_UNROLL for (uint32_t k = 0; k < kHeads; k++) {
        bool is_new = heads[k].is_new(phase);
        fresh |= poller_.vote(is_new) << k;
        good |= poller_.vote(heads[k].is_good_send(phase, qpn_)) << k;
        if (kHasIds) found += bits_in(poller_.vote(is_new && (uint16_t)(heads[k].id() - ids.first) < ids.count));
      }
      if (kHasIds && (poller_.vote(is_marked) & 1) != 0) break;
      if (!kHasIds || found >= ids.count || low_ones(fresh) == want || reads == kMaxReads) break;
    }
    Polled polled;
    uint32_t count = polled.count = low_ones(fresh);
    /* The lanes' loads happen before the leader's fence. */
    poller_.sync();
    if (count == 0) return polled;
    /* R1: if `oldest` is not past ids.first, an id names one request. */
    bool is_one_lap = kHasIds && (int32_t)(load_relaxed(&queue_->tracking.oldest) - ids.first) <= 0;
    /* B2; R1 for each lane's requests. */
    if (kHeads == 1 && cq_.doorbell == nullptr) {
      fence_release_device();
    } else {
      fence_system();
    }
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kHeads; k++) {
      uint32_t i = poller_.lane() + k;
      bool is_done = i < count && (good >> i & 1) != 0;
      if (table_.num_entries != 0 && is_done) mark_done(table_, heads[k].id(), EFA_IO_COMP_STATUS_OK);
    }
    if (kHasIds) {
      bool is_good = poller_.lane() < count && (good >> poller_.lane() & 1) != 0;
      uint32_t found = poller_.vote(is_good && (uint16_t)(heads[0].id() - ids.first) < ids.count);
      polled.has_all = ids.count != 0 && bits_in(found) == ids.count && is_one_lap;
    }
    /* The leader's later loads see the done words. */
    poller_.sync();
    if (poller_.rank() == 0) {
      uint32_t others = low_bits(count) & ~good, receives = 0, sends = count;
      if (!EFA_GDA_LIKELY(others == 0)) {
        EFA_GDA_NO_UNROLL for (; others != 0; others &= others - 1) {
          CompletionKind kind = take_completion(queue_, index + low_zeros(others));
          sends -= kind != kSendCompletion;
          receives += kind == kPostedReceive;
        }
        /* B2 for receives, and B4. */
        fence_system();
        fetch_add_relaxed(&queue_->completion.received, receives);
      }
      /* With counters, a later poll counts these requests, when it advances `completed`. */
      if (!has_counters_) fetch_add_relaxed(&queue_->completion.completed, sends);
      if (cq_.doorbell != nullptr) store_doorbell(cq_.doorbell, (index + count) & 0xffff);
    }
    return polled;
  }

  Poller poller_;
  efa_gda_queue *queue_;
  efa_gda_cq cq_;
  efa_gda_requests table_;
  uint32_t qpn_;
  bool has_counters_;
};

/* Polls as one thread, until a poll finds no completion, or up to kMaxPoll completions. */
EFA_GDA_COLD void poll(efa_gda_queue *queue) {
  constexpr uint32_t kPolls = kMaxPoll / kHeadsPerLane<ThreadGroup>;
  CompletionReader<ThreadGroup> reader(queue);
  for (uint32_t polls = 0; polls != kPolls && reader.poll(kMaxPoll).count != 0; polls++) {
  }
}

}  // namespace efa_gda

#endif
