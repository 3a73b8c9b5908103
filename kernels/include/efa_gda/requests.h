/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The request table: which requests are done, how each ended, and which handle posted it. With it a group waits for its
 * own requests, whichever thread reads the completion queue, and is given the errors of its own requests. Other groups
 * can post meanwhile.
 *
 * A queue has a request table if requests.num_entries is not 0; the host decides that before the queue's first request.
 * Without a table, wait(), wait_own() and test() of a usable handle return EFA_GDA_UNSUPPORTED, and nothing
 * below happens. A queue with completion counters has none: only the completion queue says which request completed, and
 * with counters pollers read it for errors at most (cq.h).
 *
 * TERMS. Group, handle, call, owner, next, poison, abort flag, producer index: see sq.h. Reader, poll: cq.h. Turn:
 * turns.h. A waiting group is one in wait(), wait_own(), test() or quiet(). A poster is a group that is about to place
 * entries and looks for free slots: an owner, or a group that shares the queue.
 *   R              requests.num_entries, a power of two, at least 4 and sq.num_entries; at most 32768.
 *   request i      the request whose entry has the producer index i. Its words are done[i mod R] and posters[i mod R].
 *   lap            of request i: i / R. The requests of the next lap use the same words again.
 *   phase          bit 15 of a word. The phase of a lap is 1 if the lap is even and 0 if it is odd (table_phase() in
 *                  cq.h). A request id has at least 16 bits and R is at most 2^15, so the id in a completion gives the
 *                  word and the phase.
 *   poster number  of a handle: 1 to 32767. The handle takes it from the counter tracking.handles when it is opened.
 *   done           of a request: the reader has stored its done word. A request of a later lap may have overwritten it
 *                  since. Before that store the request is in flight.
 *   oldest         tracking.oldest. All requests before it are done. The request at it may be done too.
 *
 * WORDS
 *   word             | written by                        | read by                  | ordered by
 *   done[i mod R]    | reader: phase and status of       | waiting groups, posters  | R1
 *                    | request i, when it has read the   |                          |
 *                    | completion                        |                          |
 *   posters[i mod R] | the group that posts request i:   | waiting groups           | R2
 *                    | phase and poster number, before   |                          |
 *                    | the request's doorbell            |                          |
 *   tracking.oldest  | a poster's leader, by CAS, which  | posters, waiting groups, | R2, R3
 *                    |   only raises it                  |   ibgda.h                |
 *   tracking.handles | leaders that open handles: add    | the same                 | relaxed; carries no data
 * Each word is stored on its own: done and posters with 16 bits, the words of `tracking` with 32. One load may read
 * four neighbouring words (load_relaxed_four); each of them is whole, but they may be of different ages. Done and
 * posters are two arrays, because they have different writers.
 *
 * PAIRS
 *   R1  The reader loads completions and fences (B2 in cq.h); then each lane stores the done words of the requests
 *       whose completions it has loaded. A failed request's is stored by the leader, after a fence_system(). A waiting
 *       leader loads them, relaxed or with an acquire, until it has seen all of its requests done, and then executes
 *       fence_acquire_device(); its group synchronises (wait_for() in post.h). If the leader has found none of them
 *       done, and one poll of its warp then reads the successful completions of all of them (Polled in completion.h),
 *       it does not look at done words again: each lane has loaded its completions with an acquire, and the poller
 *       synchronises (B2). After the completions the poller loads `oldest`. If that is not past the first of the
 *       requests, fewer than R requests from `oldest` on are posted (LIMIT), so that each id names one request.
 *       Visible: that the adapter no longer reads or writes the buffers of these requests; and the bytes of an RDMA
 *       read, where a completion shows them (signal.h, RECEIVING SIDE, step 2).
 *   R2  The group that posts request i stores posters[i mod R] only if i < oldest + R. The leader's load that shows
 *       this (LIMIT) is an acquire, after which the group has synchronised. Each thread that stores such a word
 *       executes fence_release_device() between that sync and the store: on a shared queue just before the store
 *       (Ring::mark_posted() in sq.h); the threads of an owner whenever they have a new limit (Ring::end_wait()). A
 *       waiting leader loads the poster word of request i with an acquire, or relaxed and then executes
 *       fence_acquire_device(), and loads `oldest` afterwards. If the word is of the next lap, that load shows
 *       i < oldest.
 *   R3  A poster's leader loads `oldest` with an acquire and then done words, executes fence_device(), and raises
 *       `oldest`. A waiting leader loads `oldest` with an acquire, or executes fence_acquire_device() before its group
 *       uses data. Visible: the same as by R1, the done words and the poster words, of all requests before `oldest`. So
 *       a poster's done words are not older than what earlier posters loaded: it does not mistake the done word of
 *       request i - 2 R, which has the phase of request i, for that of request i.
 *
 * LIMIT. Posters keep, at each store to the ring,
 *     next + entries to be written <= oldest + R.
 * They apply the limit where they compute free slots (limit_by_table()), and cache the smaller of the two limits:
 * `oldest`, like `completed`, only grows, so a cached limit is never too high. If this limit is the stricter one,
 * limit_by_table() first advances `oldest` over done words (look_ahead()). If requests complete nearly in order, about
 * R - N requests are posted between two advances, where N is sq.num_entries. While request `oldest` is in flight, each
 * call of limit_by_table() in which this limit is the stricter one loads done words again. A post within the cached
 * limit does no work for it.
 *
 * WHAT THE WORDS SAY about a posted request i. The group must see the done word of request i - R, so that it mistakes
 * no older word for i's. It does if it posted request i or a later one, or has loaded an `oldest` > i - R with an
 * acquire (ibgda.h).
 * "Differs": the word's phase is not that of i's lap. Rows with "<=" hold for an `oldest` that was loaded after the
 * word, rows with "> i" for one that was loaded before it, and rows with "> i + R" for either.
 *   done[i mod R]      | oldest    | request i is
 *   phase of i's lap   | <= i + R  | done; the low 8 bits of the word are its status (enum efa_io_comp_status)
 *   phase of i's lap   | >  i + R  | done; the word may be that of a request an even number of laps later, which has
 *                      |           |   the same phase
 *   differs            | >  i      | done; the word is that of a request an odd number of laps later: the status was
 *                      |           |   overwritten
 *   differs            | <= i      | in flight when the word was loaded
 *   posters[i mod R]   | oldest    | request i was posted by
 *   phase of i's lap   | <= i + R  | the handle whose poster number is in the low 15 bits of the word
 *   phase of i's lap   | >  i + R  | perhaps that handle: the word may be that of a request an even number of laps
 *                      |           |   later
 *   differs            | >  i      | an unknown handle: the word was overwritten
 *   differs            | <= i      | a handle that has not stored the word yet, so by another group: the words of a
 *                      |           |   group's own requests are stored before its post() returns
 * look_ahead() loads no `oldest`. It applies the first row for done words and the first row for poster words whatever
 * `oldest` is. drop_later_laps() then loads `oldest`, and drops what was found by a word to which the second row may
 * apply instead. This `oldest` must be new enough to show that. For poster words R2 makes it so. For done words the
 * order passes through the adapter, which PTX does not know: the store of `oldest`, the fence of the ring, the doorbell
 * of request i + 2R, its completion, the reader's fence, the done word. The library relies on that order.
 * look_closely() loads `oldest` before and after the words. If `oldest` passed i between the two loads and a word
 * differs, it loads all of them again: the word may have been loaded before request i's word was stored, so "differs"
 * does not show that request i's word was overwritten.
 *
 * OVERWRITTEN STATUSES. Request i + R overwrites the status of request i, which is done by then. So a group that waits
 * for a request only after R later ones may find no status for it. FailedRequest is the first failed request that the
 * wait found, in ascending order of index. Its status is 0, which names no request, if the wait found none, or if that
 * one's word may be of two laps later. If all are done and FailedRequest names a request, the wait returns
 * EFA_GDA_COMPLETION_ERROR. If it names none and a status was overwritten, the wait compares error.count with the value
 * of that word when the handle was opened or its quiet() last looked for errors. Equal: no request of the queue has
 * failed since, and a quiet() of the handle has reported each earlier failure of a request of the handle. The wait
 * succeeds. Different: one of the requests waited for may have failed, or any other request of the queue, and the wait
 * returns EFA_GDA_COMPLETION_ERROR. A wait for no requests (count 0, or wait_own() without new requests) looks at no
 * status.
 *
 * CALLS. wait(), wait_own() and test() first ring for entries that are not rung for (Sender::flush): an owner in each
 * call, a group that shares the queue only if its last post deferred the doorbell. For that it may wait for its turn
 * (turns.h); at the bound of that wait it poisons the queue.
 *   call           | bound counts from               | at its end
 *   wait, wait_own | the beginning of its polling,   | looks once more; EFA_GDA_TIMEOUT_COMPLETION, with which the
 *                  |   and again from each request   |   leader poisons the queue, because the adapter may still
 *                  |   of the queue that completes   |   access the buffers
 *   test; waits of | no bound: looks, polls, looks   | EFA_GDA_IN_FLIGHT, which poisons nothing
 *   a handle whose |                                 |
 *   timeout is 0   |                                 |
 *   post, if LIMIT | as in free_slots.h; again from  | EFA_GDA_TIMEOUT_SLOTS, with which the leader poisons the queue:
 *   allows no more |   each request of the queue     |   no request completed, not even request `oldest`
 *   entries        |   that completes                |
 * A wait_own() covers those requests of the handle that no earlier wait_own() covered. If it returns EFA_GDA_IN_FLIGHT,
 * it covers none.
 * A call whose requests are not all done also ends if the queue is poisoned (EFA_GDA_POISONED), and a wait with a bound
 * if the abort flag is raised: the leader poisons the queue with the flag's status. The look of a call without a
 * bound does not read the flag; the waits in which it first rings for deferred entries of a shared queue do. So a loop
 * of test() over a request that never completes ends only when the queue is poisoned. A wait for a request that never
 * completes ends, although each other request that completes restarts its bound: other groups can post only as many
 * requests as LIMIT allows.
 *
 * POSTER NUMBERS repeat after 32,767 handles, and sooner once in 2^32 handles, when their count wraps. If two handles
 * with the same number posted among the last R requests, wait_own() of one may also wait for requests of the other, and
 * return the error of one of these, with its index. wait() and test() do not use the number.
 */
#ifndef EFA_GDA_REQUESTS_H
#define EFA_GDA_REQUESTS_H

#include "cq.h"

namespace efa_gda {

/* A failed request: its producer index, which is its request id or, with 16-bit ids, contains it in the low 16 bits;
 * and enum efa_io_comp_status. `status` is 0 if the request is not known (OVERWRITTEN STATUSES above). */
struct FailedRequest {
  uint32_t index = 0;
  uint32_t status = 0;
};

/* The requests [next, end), or those of them that one handle posted. */
struct RequestRange {
  uint32_t next, end;
  /* Poster number; 0: all of the requests. */
  uint32_t poster;
};

/* A wait for requests. It is in the thread's memory; while the group waits, registers hold only a copy of the range. */
struct RequestWait {
  RequestRange range;
  /* error.count when the handle was opened, or when its quiet() last looked for new errors. ibgda.h passes 0: the count
   * before the queue's first request. */
  uint32_t known_errors;
  /* Bound of the wait; 0: looks once, polls once and looks again. */
  uint64_t bound_ns;
  EFA_GDA_FN bool polls_once() const { return bound_ns == 0; }
  /* of_owner: the group is the queue's owner, and `posted` its `next`, because reserve.word lacks its requests. */
  bool of_owner = false;
  uint32_t posted = 0;
  /* Found so far: the first failure, in ascending order of index, and whether a status was overwritten.
   * drop_later_laps() drops a failure whose word may be of two laps later, without looking for the next. */
  FailedRequest failed;
  bool overwritten = false;

  EFA_GDA_FN RequestWait(uint32_t first, uint32_t count, uint32_t poster, uint32_t errors, uint64_t bound)
      : range{first, first + count, poster}, known_errors(errors), bound_ns(bound) {}

  EFA_GDA_FN void add_failure(uint32_t index, uint32_t status) {
    if (failed.status == 0) failed.index = index;
    if (failed.status == 0) failed.status = status;
  }
};

/* The largest poster number. */
constexpr uint32_t kMaxPoster = kTablePhase - 1;

/* A 16-bit word times this is the word four times. */
constexpr uint64_t kInFour = 0x0001000100010001;

EFA_GDA_FN bool is_before(uint32_t index, uint32_t other) { return (int32_t)(index - other) < 0; }

/* `done` and `posters` hold four words each, of the requests from range.next / 4 * 4 on. Advances `range` over the
 * requests that they show as done or as posted by another handle, and adds failures to `wait`, if it is not null.
 * Returns whether all four are passed. The four have one phase, because R is a multiple of four. */
EFA_GDA_FN bool advance_in_four(RequestRange &range, RequestWait *wait, uint64_t phase, uint64_t done,
                                uint64_t posters) {
  constexpr uint64_t kPhases = kInFour * kTablePhase;
  uint32_t base = range.next & ~3u, from = range.next - base, to = range.end - base < 4 ? range.end - base : 4;
  uint64_t in_flight = done ^ phase * kInFour, difference = posters ^ (phase | range.poster) * kInFour;
  if (range.poster == 0) difference = 0;
  /* Bit 15 of each 16-bit field is a flag. of_others: `difference` is not zero; failed: the status is not zero; stops:
   * the request is not passed. */
  uint64_t of_others = (((difference & ~kPhases) + ~kPhases) | difference) & kPhases;
  uint64_t failed = ((done & kInFour * 0xff) + ~kPhases) & ~of_others & kPhases;
  uint64_t stops = ((in_flight & ~of_others) | difference) & kPhases;
  /* The first request from `from` on that is not passed, and the first that failed. */
  uint64_t from_here = ~(uint64_t)0 << (16 * from);
  uint32_t stop = low_zeros(stops & from_here) / 16, failure = low_zeros(failed & from_here) / 16;
  if (stop > to) stop = to;
  if (wait != nullptr && failure < stop) wait->add_failure(base + failure, (uint32_t)(done >> (16 * failure)) & 0xff);
  range.next = base + stop;
  return stop == 4;
}

/* Advances `range` as far as relaxed loads show requests that are done or of other handles, and adds failures to
 * `wait`, if it is not null. The table is a copy, so that no loop loads its fields anew. Has kFoursPerLook loads of
 * four words in flight at once. */
template <uint32_t kFoursPerLook>
EFA_GDA_FN void look_ahead(const efa_gda_requests table, RequestRange &range, RequestWait *wait) {
  for (bool passed = true; passed && range.next != range.end;) {
    uint64_t done[kFoursPerLook], posters[kFoursPerLook] = {};
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFoursPerLook; k++) {
      uint32_t at = ((range.next & ~3u) + 4 * k) & (table.num_entries - 1);
      done[k] = load_relaxed_four(table.done + at);
      if (range.poster != 0) posters[k] = load_relaxed_four(table.posters + at);
    }
    EFA_GDA_NO_UNROLL for (uint32_t left = kFoursPerLook; passed && left != 0 && range.next != range.end; left--) {
      passed = advance_in_four(range, wait, table_phase(table, range.next), done[0], posters[0]);
      EFA_GDA_UNROLL for (uint32_t k = 1; k < kFoursPerLook; k++) {
        done[k - 1] = done[k];
        posters[k - 1] = posters[k];
      }
    }
  }
}

/* Advances `range` over request range.next if it is done or of another handle, also if its words are overwritten or
 * another group has not stored its poster word yet. Returns whether it did. */
EFA_GDA_FN bool look_closely(const efa_gda_queue *queue, RequestRange &range, RequestWait *wait) {
  const efa_gda_requests &table = queue->requests;
  uint32_t i = range.next, at = i & (table.num_entries - 1), phase = table_phase(table, i);
  EFA_GDA_NO_UNROLL for (;;) {
    uint32_t before = load_acquire(&queue->tracking.oldest);
    uint32_t poster = range.poster == 0 ? phase : load_acquire(table.posters + at);
    uint32_t done = load_acquire(table.done + at);
    uint32_t after = load_acquire(&queue->tracking.oldest);
    bool poster_is_known = (poster & kTablePhase) == phase;
    bool is_own = poster_is_known && (poster & ~kTablePhase) == range.poster;
    if (is_own && (done & kTablePhase) == phase) {
      if ((done & 0xff) != 0) wait->add_failure(i, done & 0xff);
    } else if (!(poster_is_known && !is_own) && is_before(i, after)) {
      /* `oldest` passed the request between its two loads: the words were perhaps stored after they were loaded. */
      if (!is_before(i, before)) continue;
      wait->overwritten = true;
    } else if (is_own) {
      return false;
    }
    range.next++;
    return true;
  }
}

/* Advances `range` as far as its requests are done. `posted`: the number of requests so far, perhaps of some time ago;
 * `table`: the queue's. */
EFA_GDA_FN void look(const efa_gda_queue *queue, const efa_gda_requests &table, RequestRange &range, RequestWait *wait,
                     uint32_t posted) {
  do {
    look_ahead<4>(table, range, wait);
    /* Without a request of the next lap, the request is in flight. If there is one by now, the next look sees it. */
    if (range.poster == 0 && posted - range.next <= table.num_entries) return;
  } while (range.next != range.end && look_closely(queue, range, wait));
}

/* Words of requests before oldest - R may be those of requests two laps later. Drops the failure found if it is of such
 * a request; if the wait has such a request, counts a status as overwritten. `first` is the wait's first request. */
EFA_GDA_FN void drop_later_laps(const efa_gda_queue *queue, uint32_t first, RequestWait *wait) {
  /* R1. */
  fence_acquire_device();
  uint32_t oldest = load_relaxed(&queue->tracking.oldest), lap = queue->requests.num_entries;
  if (is_before(first, oldest - lap)) wait->overwritten = true;
  if (is_before(wait->failed.index, oldest - lap)) wait->failed.status = 0;
}

/* Returns how the requests ended (OVERWRITTEN STATUSES above). All must be done, and at least one. */
EFA_GDA_FN efa_gda_status status_of_done(const efa_gda_queue *queue, const RequestWait *wait) {
  if (wait->failed.status != 0) return EFA_GDA_COMPLETION_ERROR;
  bool may_have_failed = wait->overwritten && load_relaxed(&queue->error.count) != wait->known_errors;
  return may_have_failed ? EFA_GDA_COMPLETION_ERROR : EFA_GDA_OK;
}

/* Waits for requests: looks at their words, and polls while they are in flight. Called by all lanes of the poller; the
 * arguments and the result are the leader's. Poisons the queue as CALLS above states. */
template <class Poller>
EFA_GDA_COLD efa_gda_status wait_for_requests(efa_gda_queue *queue, RequestWait *wait) {
  Poller poller;
  RequestRange range = wait->range;
  const efa_gda_requests table = queue->requests;
  uint32_t first = range.next, posted = 0, completed = 0;
  Deadline::State state(wait->bound_ns);
  Deadline deadline(state, queue, &queue->completion.completed);
  efa_gda_status status = EFA_GDA_OK;
  for (;;) {
    bool waits = false;
    if (poller.rank() == 0) {
      posted = wait->of_owner ? wait->posted : (uint32_t)load_relaxed(&queue->reserve.word);
      completed = load_relaxed(&queue->completion.completed);
      look(queue, table, range, wait, posted);
      waits = range.next != range.end && status == EFA_GDA_OK;
    }
    if (poller.from_leader((uint32_t)waits) == 0) break;
    CompletionReader<Poller> reader(queue, false);
    RequestIds ids = {range.next, wait->polls_once() ? 0 : range.end - range.next};
    Polled polled = reader.template poll_in_flight<!Poller::kSingleThread>(posted, completed, ids);
    /* R1. If words of the table were used, they must be checked below. */
    if (poller.from_leader((uint32_t)(polled.has_all && range.next == first)) != 0) return EFA_GDA_OK;
    if (poller.rank() == 0) {
      status = wait->polls_once() ? EFA_GDA_IN_FLIGHT : deadline.expired(EFA_GDA_TIMEOUT_COMPLETION);
    }
  }
  if (poller.rank() != 0) return status;
  drop_later_laps(queue, first, wait);
  if (range.next == range.end) {
    status = status_of_done(queue, wait);
  } else {
    if (wait->polls_once() && load_relaxed(&queue->error.poison) != EFA_GDA_OK) status = EFA_GDA_POISONED;
    if (status != EFA_GDA_IN_FLIGHT) poison(queue, status);
  }
  return status;
}

/* Waits until all requests are done of calls that had their turn: quiet() of a group that shares the queue. Called by
 * all lanes of the poller. Failed requests are done, too. */
template <class Poller>
EFA_GDA_COLD efa_gda_status wait_for_all_before(efa_gda_queue *queue, uint64_t timeout_ns) {
  uint32_t end = (uint32_t)(load_acquire(&queue->turn.word) >> EFA_GDA_TURN_BITS);
  uint32_t oldest = load_acquire(&queue->tracking.oldest);
  /* Done since, and perhaps with words of the next lap. */
  if (is_before(end, oldest)) end = oldest;
  RequestWait wait(oldest, end - oldest, 0, 0, timeout_ns != 0 ? timeout_ns : 1);
  if (Poller().from_leader(end - oldest) == 0) return EFA_GDA_OK;
  efa_gda_status status = wait_for_requests<Poller>(queue, &wait);
  return status == EFA_GDA_COMPLETION_ERROR ? EFA_GDA_OK : status;
}

/* Raises tracking.oldest to `index`, if it is lower. The caller has seen that all requests before `index` are done. */
EFA_GDA_FN void raise_oldest(efa_gda_queue *queue, uint32_t oldest, uint32_t index) {
  /* R3. */
  fence_device();
  while (is_before(oldest, index)) {
    uint32_t seen = compare_swap_acquire(&queue->tracking.oldest, oldest, index);
    if (seen == oldest) return;
    oldest = seen;
  }
}

/* Returns how many of `free_slots` entries from `next` on the table allows (LIMIT above). If that is fewer than
 * `free_slots`, it first advances `oldest`. Called by a poster's leader. The queue must have a table. */
EFA_GDA_COLD uint32_t limit_by_table(efa_gda_queue *queue, uint32_t next, uint32_t free_slots) {
  uint32_t most = queue->requests.num_entries, oldest = load_acquire(&queue->tracking.oldest);
  if (next - oldest > most || most - (next - oldest) < free_slots) {
    RequestRange done = {oldest, next, 0};
    /* Requests from oldest + R on have no words yet. */
    if (is_before(oldest + most, next)) done.end = oldest + most;
    /* Two: with four a post of a block spills. */
    look_ahead<2>(queue->requests, done, nullptr);
    raise_oldest(queue, oldest, done.next);
    oldest = done.next;
  }
  uint32_t allowed = next - oldest < most ? most - (next - oldest) : 0;
  return allowed < free_slots ? allowed : free_slots;
}

/* Stores the poster word of request `index`. `poster`: the handle's poster number. */
EFA_GDA_FN void store_poster(const efa_gda_requests &table, uint32_t index, uint32_t poster) {
  store_relaxed(&table.posters[index & (table.num_entries - 1)], (uint16_t)(table_phase(table, index) | poster));
}

}  // namespace efa_gda

#endif
