/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A shared send queue, by turns. Any number of groups of one GPU post to it at the same time. A group reserves slots by
 * one atomic add, writes its entries in place, and takes its turn in the order of the slots. In its turn it rings for
 * all entries before its end, or leaves the doorbell to a later call.
 *
 * TERMS. Group, leader, entry, round, producer index, ring, poison, abort flag: see sq.h. Capacity: free_slots.h.
 *   ticket  of a call: the value of reserve.word before the call's leader adds the number of its entries, and 2^32 if
 *           the call rings (all but posts with kPostDefer). Its low half is the producer index of the first entry. The
 *           ticket after a call is that sum.
 *   window  min(max_batch, num_entries, 4095). With a doorbell record it is half of min(max_batch, num_entries),
 *   because
 *           capacity keeps the adapter's window (DOORBELL RECORD in sq.h).
 *   chunk   entries of one call that are written before the next turn: at most `window`, and half of num_entries. A
 *           call of several chunks has as many turns; the ticket of a later chunk is that of the call plus the entries
 *           before it.
 *   turn    turn.word names one ticket: the group that has it has the turn, until it stores a later ticket. It alone
 *           rings and stores turn.word.
 *   unrung  the low bits of turn.word: so many entries before the ticket's slot are not rung for. The slot minus unrung
 *           is the last doorbell, `rung` below.
 *
 * WORDS
 *   word         | meaning, at all times                        | written by               | ordered by
 *   reserve.word | the next ticket                              | leaders, by an add       | relaxed
 *   turn.word    | all entries before its slot are in the ring  | the leader that has the  | T1, T2
 *                | and fenced; the adapter received doorbell    | turn, by exchange; at    |
 *                | `rung` before all that is stored after a     | close() an owner         |
 *                | load of the word (T2)                        |                          |
 *   ring slots   |                                              | the group that reserved  | T1; reuse: B2 (cq.h)
 *   doorbell     |                                              | the leader with the turn | T1, T3
 *   error.poison | not 0: out of service                        | leaders, by CAS; host    | relaxed
 *
 * A POST
 *   1. The leader takes a ticket, and loads turn.word with an acquire.
 * For each chunk [begin, end):
 *   2. The group waits for room: end <= rung + window, and end <= completed + capacity (free_slots.h). If its turn
 *      begins meanwhile, it rings for what stands before `begin`, as in step 4, and keeps the turn: the calls before
 *      may have left these entries to it.
 *   3. The threads write the entries, the group synchronises, and the leader fences (fence.release.sys) and waits for
 *      its turn: it loads turn.word with an acquire. If the end fills the window, it must ring, so it waits first.
 *   4. The leader ends the turn.
 *      - It leaves the doorbell to a later call if it is sure that one will ring: reserve.word shows a later call that
 *        rings, or this call has more chunks, or defers; but never if `window` entries would be unrung. It stores the
 *        next ticket and unrung = end - rung.
 *      - Otherwise it rings: it fences once more if its fence of step 3 came before it had the turn; stores `end` to
 *        the doorbell; fences; and stores the next ticket with unrung = 0.
 * A flush() takes a ticket for no entries if entries are unrung, waits for its turn and rings.
 *
 * WHY A DOORBELL THAT WAS LEFT IS RUNG. reserve.word minus the ticket after the own call is at least 2^32 exactly if a
 * later call rings. Its turn comes later. There it rings, or leaves the doorbell to a still later one; the last one
 * rings. Calls that wait for slots ring before they wait, and so never wait for entries that they have to ring for.
 *
 * WHAT ORDERS IT
 *   T1  Step 3's fence, then the exchange of turn.word, are a release; the load of the next group is an acquire. All
 *       stores to turn.word are exchanges, so each group that loads it has acquired what every earlier group released,
 *       also of groups that stored it without a fence since their own acquire. So a fence after that load, and the
 *       doorbell after that fence, come after all entries before the slot: also after those that an earlier doorbell
 *       covers, because the adapter may read this doorbell and not the earlier one.
 *   T2  Step 4's fence after the doorbell, then the exchange, the next leader's acquire and its group's sync: all that
 *       this group writes because of `rung` reaches the adapter after that doorbell.
 *   T3  By T1, doorbells have one order, the order of turns, so they ascend.
 *   EFA_GDA_FENCES_REACH_ADAPTER=1 leaves out the second fence of step 4. That rests on an assumption outside of PTX: a
 * system fence ends only when the stores before it have reached the adapter. NCCL's post path assumes the same.
 *
 *   Example: max_batch = 4, nothing in flight. Groups A, B, C post 2, 1 and 3 entries. Their tickets have the slots 0,
 *   2 and 3. A and B write at once: their ends, 2 and 3, are within 0 + 4. C waits, because its end is 6. A has the
 *   turn: it has seen that B has a ticket, so it stores {B's ticket, unrung 2}. B has the turn and sees C's ticket:
 *   {C's ticket, unrung 3}. C, which waits for room, has the turn: it rings 3 and stores {its ticket, unrung 0}. Now 6
 *   is within 3 + 4: it writes, finds no later ticket, rings 6, and stores {the next ticket, unrung 0}.
 *
 * WAITS THAT RUN OUT. The bound of each wait is the handle's timeout, and begins again with each change of turn.word or
 * completion.completed (Deadline in platform.h).
 *   wait                       | at its bound
 *   for a turn, for the window | EFA_GDA_TIMEOUT_LOCK: another group does not take its turn
 *   for free slots             | EFA_GDA_TIMEOUT_SLOTS
 * The leader then poisons the queue with this status, because its slots stay unwritten and no later turn can come; or
 * with the abort flag's status, if that is raised; or with EFA_GDA_BAD_COMPLETION, if the counts are wrong
 * (free_slots.h). A wait that finds a poison ends with EFA_GDA_POISONED, as does a call that finds one when it takes
 * its ticket. Entries that were left to a call that fails are never rung for; their groups see the poison in the next
 * call.
 *
 * OWNED QUEUES (post.h). An owner opens the queue in the turn of the next ticket: its CAS of reserve.word adds 2^32 and
 * moves the low half by 2^31. So a group that wrongly takes a ticket meanwhile finds no room, and writes nothing.
 *
 * WRAP-AROUNDS. turn.word has the low 52 bits of a ticket. Tickets of waiting groups differ in them: with equal slots
 * they are of flushes without entries between them, of which fewer than 2^20 wait, because a GPU has fewer threads.
 */
#ifndef EFA_GDA_TURNS_H
#define EFA_GDA_TURNS_H

#include "waits.h"

namespace efa_gda {

/* Whether a system fence is known to end only when the stores before it have reached the adapter (WHAT ORDERS IT). */
#ifndef EFA_GDA_FENCES_REACH_ADAPTER
#define EFA_GDA_FENCES_REACH_ADAPTER 0
#endif

constexpr uint64_t kDefaultTimeoutNs = (uint64_t)10 * 1000 * 1000 * 1000;

/* What a call that rings adds to reserve.word besides its entries. */
constexpr uint64_t kOneCall = (uint64_t)1 << 32;
constexpr uint32_t kMaxWindow = (1u << EFA_GDA_TURN_BITS) - 1;

/* `window` of a queue. */
EFA_GDA_FN uint32_t window_of(uint32_t num_entries, uint32_t max_batch, bool record) {
  uint32_t window = max_batch < num_entries ? max_batch : num_entries;
  if (record) window = (window + 1) / 2;
  return window < kMaxWindow ? window : kMaxWindow;
}

EFA_GDA_FN uint32_t unrung_of(uint64_t turn) { return (uint32_t)turn & kMaxWindow; }

/* A leader's view of the turn. */
struct Turn {
  efa_gda_queue *queue;
  /* Of the next chunk. */
  uint64_t ticket;
  /* reserve.word and turn.word, as last loaded. They are loaded together, for one round trip. */
  uint64_t reserved, word;

  EFA_GDA_FN void load() {
    reserved = load_relaxed(&queue->reserve.word);
    word = load_acquire(&queue->turn.word);
  }
  EFA_GDA_FN bool is_mine() const { return is_turn_of(word, ticket); }
  EFA_GDA_FN uint32_t begin() const { return (uint32_t)ticket; }
  EFA_GDA_FN uint32_t rung() const { return (uint32_t)(word >> EFA_GDA_TURN_BITS) - unrung_of(word); }
  /* Ends the turn, or with the own ticket keeps it. */
  EFA_GDA_FN void pass(uint64_t next, uint32_t unrung) {
    ticket = next;
    word = next << EFA_GDA_TURN_BITS | unrung;
    exchange_relaxed(&queue->turn.word, word);
  }
  EFA_GDA_FN volatile uint32_t *doorbell() const { return load_doorbell(queue); }
  /* Step 4's doorbell. Entries before `end`, and their fences, must be in order before. */
  EFA_GDA_FN static void ring(volatile uint32_t *doorbell, bool record, uint32_t end) {
    store_doorbell(doorbell, record ? end : end & 0xffff);
    fence_release_system();
  }
  /* In this group's turn, before its chunk is written: rings for what stands before it. */
  EFA_GDA_FN void ring_before(bool record) {
    volatile uint32_t *to = doorbell();
    /* T1. */
    fence_release_system();
    ring(to, record, begin());
    pass(ticket, 0);
  }
};

/* How often leaders load turn.word before they look at a clock: most waits end before. */
constexpr uint32_t kLoadsWithoutClock = 64;

/* What a wait returns in place of turn.word if it fails: the status, and more unrung entries than any turn has. */
EFA_GDA_FN uint64_t failed_turn(efa_gda_status status) { return (uint64_t)status << EFA_GDA_TURN_BITS | kMaxWindow; }
EFA_GDA_FN efa_gda_status status_of_turn(uint64_t word) {
  return unrung_of(word) != kMaxWindow ? EFA_GDA_OK : (efa_gda_status)(word >> EFA_GDA_TURN_BITS);
}

/* Waits for the turn of `ticket` or, if `window` is not 0, until the window reaches `end` (step 2). Returns turn.word,
 * or failed_turn(). Called by a leader. */
EFA_GDA_COLD uint64_t wait_long(efa_gda_queue *queue, uint64_t ticket, uint32_t end, uint32_t window, bool record,
                                uint64_t timeout_ns) {
  Turn t = {queue, ticket, 0, 0};
  efa_gda_status status = EFA_GDA_OK;
  /* A handle whose timeout is 0 does not wait for the adapter; the turn of this ticket is up to other groups. */
  Deadline::State state(timeout_ns != 0 ? timeout_ns : kDefaultTimeoutNs, clock_ns() + Deadline::kAbortPollNs);
  Deadline deadline(state, queue, &queue->completion.completed);
  for (;;) {
    uint64_t before = t.word;
    t.load();
    if (window != 0 && t.is_mine() && t.rung() != t.begin()) t.ring_before(record);
    if (window != 0 ? end - t.rung() <= window : t.is_mine()) return t.word;
    if (status != EFA_GDA_OK) break;
    if (t.word != before) deadline.restart();
    status = deadline.expired(EFA_GDA_TIMEOUT_LOCK);
  }
  poison(queue, status);
  return failed_turn(status);
}

/* Waits for the turn of turn.ticket. Called by a leader. `timeout_ns` is in the thread's memory, which is slow after an
 * acquire, and is loaded only if the wait is long. */
EFA_GDA_FN efa_gda_status wait_for_turn(Turn &turn, const volatile uint64_t &timeout_ns) {
  EFA_GDA_NO_UNROLL for (uint32_t loads = 0; !turn.is_mine(); loads++) {
    if (loads == kLoadsWithoutClock) {
      turn.word = wait_long(turn.queue, turn.ticket, 0, 0, false, timeout_ns);
      return status_of_turn(turn.word);
    }
    pause();
    turn.load();
  }
  return EFA_GDA_OK;
}

/* Step 2 for the window, for the chunk that ends at `end`. Called by a leader. */
EFA_GDA_FN efa_gda_status wait_for_window(Turn &turn, bool record, uint32_t window, uint32_t end,
                                          const volatile uint64_t &timeout_ns) {
  EFA_GDA_NO_UNROLL for (uint32_t loads = 0; end - turn.rung() > window; loads++) {
    if (loads == kLoadsWithoutClock) {
      turn.word = wait_long(turn.queue, turn.ticket, end, window, record, timeout_ns);
      return status_of_turn(turn.word);
    }
    if (turn.is_mine() && turn.rung() != turn.begin()) {
      turn.ring_before(record);
    } else {
      pause();
      turn.load();
    }
  }
  return EFA_GDA_OK;
}

/* Step 2 for free slots, if the cached limit does not reach `end`. `begin`: the next entry to be written. Called by all
 * lanes of the poller; the arguments and the result are the leader's. Returns the status in the high half, and in the
 * low half the free slots from `begin` on. */
template <class Group>
EFA_GDA_COLD uint64_t wait_for_slots(efa_gda_queue *queue, uint64_t ticket, uint32_t begin, uint32_t end,
                                     uint64_t timeout_ns) {
  using Poller = typename Group::Poller;
  Poller poller;
  const bool has_counters = queue->counters.success != nullptr, leads = poller.rank() == 0;
  Turn turn = {queue, ticket, 0, 0};
  Deadline::State state(timeout_ns);
  Deadline deadline(state, queue, &queue->completion.completed);
  uint32_t status = EFA_GDA_OK, completed = 0, slots = 0;
  if (leads) completed = completed_so_far(queue);
  for (bool polls = false;; polls = true) {
    uint32_t waits = 0;
    if (leads) {
      turn.load();
      if (turn.is_mine() && turn.rung() != turn.begin()) turn.ring_before((queue->sq.flags & EFA_GDA_SQ_RECORD) != 0);
      bool is_broken = turn.is_mine() && turn.begin() - completed > queue->sq.num_entries;
      /* It may be older than what the calls before knew, whose turns have ended. */
      if (is_broken) completed = completed_so_far(queue);
      is_broken = is_broken && turn.begin() - completed > queue->sq.num_entries;
      slots = free_slots_of(queue, begin, completed);
      waits = slots < end - begin;
      if (is_broken) status = EFA_GDA_BAD_COMPLETION;
      /* The first look at `completed` may have been enough. */
      if (waits != 0 && polls && !is_broken) status = deadline.expired(EFA_GDA_TIMEOUT_SLOTS);
      if (status != EFA_GDA_OK) waits = 0;
    }
    if (poller.from_leader(waits) == 0) break;
    uint32_t known = CompletionReader<Poller>(queue, has_counters).completed_now(turn.rung(), completed);
    if (leads) completed = known;
  }
  if (leads && status != EFA_GDA_OK) poison(queue, (efa_gda_status)status);
  return (uint64_t)status << 32 | slots;
}

/* Step 1 of a post that does not wait for slots (kPostTry in post.h): adds `adds` to reserve.word if `count` slots are
 * free after it, and sets *ticket; otherwise returns EFA_GDA_NO_ROOM or, on a poisoned queue, EFA_GDA_POISONED. Called
 * by all lanes of the poller; the result is the leader's. */
template <class Poller>
EFA_GDA_COLD uint32_t reserve_if_free(efa_gda_queue *queue, uint32_t count, uint64_t adds, uint64_t *ticket) {
  uint64_t word = load_relaxed(&queue->reserve.word);
  uint32_t first = Poller().from_leader((uint32_t)word), slots = poll_slots<Poller>(queue, first);
  if (Poller().rank() != 0) return EFA_GDA_OK;
  while (slots - ((uint32_t)word - first) >= count && slots >= (uint32_t)word - first) {
    *ticket = compare_swap(&queue->reserve.word, word, word + adds);
    if (*ticket == word) return EFA_GDA_OK;
    word = *ticket;
  }
  return load_relaxed(&queue->error.poison) != EFA_GDA_OK ? EFA_GDA_POISONED : EFA_GDA_NO_ROOM;
}

/* Steps 3 and 4 for the chunk that ends at `end`, when its threads have written and the group has synchronised. `last`:
 * it is the call's last one. `rings`: the call does not defer. Called by a leader. */
EFA_GDA_FN efa_gda_status take_turn(Turn &turn, bool record, uint32_t window, uint32_t end, bool last, bool rings,
                                    const volatile uint64_t &timeout_ns) {
  efa_gda_status status = EFA_GDA_OK;
  if (!turn.is_mine()) {
    turn.load();
    if (end - turn.rung() >= window) status = wait_for_turn(turn, timeout_ns);
  } else {
    turn.reserved = load_relaxed(&turn.queue->reserve.word);
  }
  bool is_covered = turn.is_mine();
  /* It arrives during the fence. */
  volatile uint32_t *doorbell = turn.doorbell();
  fence_release_system();
  if (!is_covered && status == EFA_GDA_OK) {
    turn.load();
    status = wait_for_turn(turn, timeout_ns);
  }
  if (status != EFA_GDA_OK) return status;
  uint32_t begin = turn.begin(), unrung = end - turn.rung();
  uint64_t next = turn.ticket + (end - begin) + (last && rings ? kOneCall : 0);
  /* The second fence takes long enough for another call to come. */
  EFA_GDA_NO_UNROLL for (bool fences = !EFA_GDA_FENCES_REACH_ADAPTER && !is_covered;; fences = false) {
    bool leaves = !last || !rings || (turn.reserved - next) >> 32 != 0;
    if (leaves && unrung < window) {
      turn.pass(next, unrung);
      return EFA_GDA_OK;
    }
    if (!fences) break;
    turn.reserved = load_relaxed(&turn.queue->reserve.word);
    fence_release_system();
  }
  Turn::ring(doorbell, record, end);
  turn.pass(next, 0);
  return EFA_GDA_OK;
}

/* A flush(): rings for all entries of calls that had their turn. Called by a leader. */
EFA_GDA_COLD efa_gda_status flush_in_turn(efa_gda_queue *queue, uint64_t timeout_ns) {
  if (load_relaxed(&queue->error.poison) != EFA_GDA_OK) return EFA_GDA_POISONED;
  if (unrung_of(load_acquire(&queue->turn.word)) == 0) return EFA_GDA_OK;
  Turn turn = {queue, fetch_add_relaxed(&queue->reserve.word, kOneCall), 0, 0};
  turn.load();
  efa_gda_status status = wait_for_turn(turn, timeout_ns);
  if (status != EFA_GDA_OK) return status;
  bool record = (queue->sq.flags & EFA_GDA_SQ_RECORD) != 0;
  if (turn.rung() != turn.begin()) turn.ring_before(record);
  turn.pass(turn.ticket + kOneCall, 0);
  return EFA_GDA_OK;
}

/* How long quiet() without a request table waits for an idle queue, and how long it then keeps others from ringing. */
constexpr uint64_t kIdleWaitNs = 1000 * 1000, kPauseNs = 50 * 1000;

/* quiet() on a queue without a request table: the count of completed requests says how many are done, not which. So it
 * waits until nothing is in flight. Beside steady posts that may never be so. So it pauses the queue from time to time:
 * it takes a ticket for no entries and keeps the turn for at most kPauseNs, so that nothing is rung for after it; if
 * `completed` reaches its slot, all requests before are done. Between two pauses others post on for kIdleWaitNs. The
 * bound begins again with each completed request, but only as often as requests were in flight at first, because all
 * others may be of later calls. Called by all lanes of the poller. */
template <class Group>
EFA_GDA_COLD efa_gda_status wait_until_idle(efa_gda_queue *queue, uint64_t timeout_ns) {
  typename Group::Poller poller;
  const bool leads = poller.rank() == 0;
  uint32_t first = load_relaxed(&queue->completion.completed), seen = first, in_flight = 0;
  uint64_t waited = 0;
  if (leads) in_flight = (uint32_t)(load_acquire(&queue->turn.word) >> EFA_GDA_TURN_BITS) - first;
  EFA_GDA_NO_UNROLL for (;;) {
    uint32_t status = (uint32_t)(wait_polling<Group>(queue, WaitFor::Idle, 0, 0, kIdleWaitNs) >> 32);
    status = poller.from_leader(status);
    if (status != kNotQuiet) return (efa_gda_status)status;
    Turn turn = {queue, 0, 0, 0};
    if (leads) {
      turn.ticket = fetch_add_relaxed(&queue->reserve.word, kOneCall);
      turn.load();
      status = wait_for_turn(turn, timeout_ns);
      bool record = (queue->sq.flags & EFA_GDA_SQ_RECORD) != 0;
      if (status == EFA_GDA_OK && turn.rung() != turn.begin()) turn.ring_before(record);
    }
    status = poller.from_leader(status);
    if (status != EFA_GDA_OK) return (efa_gda_status)status;
    uint32_t next = poller.from_leader(turn.begin());
    status = (uint32_t)(wait_polling<Group>(queue, WaitFor::Pause, next, 0, kPauseNs) >> 32);
    if (leads) {
      turn.pass(turn.ticket + kOneCall, 0);
      uint32_t now = load_relaxed(&queue->completion.completed);
      waited = now != seen && seen - first < in_flight ? 0 : waited + kIdleWaitNs + kPauseNs;
      seen = now;
      if (status == kNotQuiet && waited > timeout_ns) {
        status = EFA_GDA_TIMEOUT_COMPLETION;
        poison(queue, EFA_GDA_TIMEOUT_COMPLETION);
      }
    }
    status = poller.from_leader(status);
    if (status != kNotQuiet) return (efa_gda_status)status;
  }
}

}  // namespace efa_gda

#endif
