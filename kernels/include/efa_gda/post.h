/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Posting, for authors of kernels: Sender is a group's handle of a queue.
 *
 *   efa_gda::Sender<efa_gda::Sharing::Device, efa_gda::WarpGroup> sender(queue);
 *   status = sender.post(32, [&](uint32_t i) {
 *     return efa_gda::write_entry(peer, {local + i * 64, lkey, 64}, remote + i * 64, rkey);
 *   });
 *   status = sender.quiet();
 *
 * All threads of the group must construct the handle and make every call together, with the same arguments, but for
 * `make` and pointers to results, which may be the thread's own. All receive the same status. A handle cannot be
 * copied, and is closed at the end of its scope, which all threads of the group must leave together.
 * kernels/examples/put_signal.cu has two complete kernels.
 *
 * TERMS. Group, leader, owner, call, entry, place, ring, done, quiet, poison, abort flag: see sq.h. Ticket, turn: see
 * turns.h. To post is to place entries; post() also rings, or leaves that to a later call (turns.h; kPostDefer). The
 * handle's status is status(), its timeout the constructor's `timeout_ns`.
 *
 * MAKE. The group's thread of rank (i modulo size) calls make(i) to make entry i, at most once, so a thread can post
 * what it has in registers. On a shared queue it runs after the call has its ticket. So it must not use the queue, wait
 * for a group that does, or synchronise its group. post() does not use `make` after it returns.
 *
 * STATUS. If a call returns a status other than EFA_GDA_OK, that is the handle's status from then on: each later call
 * returns it and does nothing, except that an owner's close() releases the queue. Only these statuses leave the
 * handle usable:
 *   EFA_GDA_COMPLETION_ERROR: quiet() returns it once for new errors; wait(), wait_own() and test() for errors of their
 *     requests
 *   EFA_GDA_IN_FLIGHT and EFA_GDA_UNSUPPORTED of wait(), wait_own() and test()
 *   EFA_GDA_BAD_ARGUMENT of a post() of more than kMaxEntriesPerCall entries
 *   EFA_GDA_NO_ROOM of a post() that does not wait (kPostTry)
 * close() closes the handle whatever it returns. If the handle's status was EFA_GDA_OK, later calls return
 * EFA_GDA_BAD_ARGUMENT, also if close() returned EFA_GDA_IN_USE.
 *
 * OWNED QUEUES. With Sharing::Thread, Warp and Block the constructor makes the group the queue's owner, if it is the
 * turn of a call that no group has made: the leader loads turn.word with an acquire, and takes the ticket by a CAS of
 * reserve.word, which fails if another group has taken it meanwhile. The owner's post() takes no ticket; close() adds
 * the number of the owner's entries to reserve.word, by CAS, and ends the turn as turns.h states. Meanwhile the low
 * half of reserve.word is 2^31 away from the queue's next slot (ticket_of_owned()): a group that wrongly takes a ticket
 * finds no room, and writes nothing.
 *   If it is not the turn of such a call, because another group owns the queue or has a ticket, the constructor fails
 * with EFA_GDA_IN_USE. If another group took a ticket while this group owned the queue, close() fails with
 * EFA_GDA_IN_USE. It then also poisons the queue and does not end the turn, because that ticket's slots are no slots of
 * the ring.
 *
 * WAITS THAT RUN OUT. A call may have several of these waits, one after another. The bound of each is the handle's
 * timeout, and begins again with each progress:
 *   wait                                       | progress                        | at its bound
 *   for a turn (turns.h)                       | a change of turn.word; a        | EFA_GDA_TIMEOUT_LOCK
 *                                              |   request of the queue completed|
 *   for free slots (free_slots.h)              | a request of the queue completed| EFA_GDA_TIMEOUT_SLOTS
 *   for completions, in quiet()                | the same; on a shared queue     | EFA_GDA_TIMEOUT_COMPLETION
 *                                              |   without a request table:      |
 *                                              |   wait_until_idle() in turns.h  |
 *   for requests, in wait() and wait_own()     | a request of the queue completed| EFA_GDA_TIMEOUT_COMPLETION
 *   (requests.h)                               |                                 |
 * A wait that fails ends the call. The call returns one of these statuses, and its leader poisons the queue with it (a
 * queue keeps its first poison):
 *   - the status of the table, at the bound,
 *   - the abort flag's status (EFA_GDA_ABORTED for 1), if that flag is raised. Deadline (platform.h) states when a
 *     wait reads it; the wait for a turn does so later than the others,
 *   - EFA_GDA_BAD_COMPLETION: in a wait for free slots, and in quiet() of an owner, if more requests completed than
 *     were posted, or more are in flight than the ring holds.
 * If the wait finds the queue poisoned, the call returns EFA_GDA_POISONED. (A poller that reads a completion of another
 * queue pair poisons the queue with EFA_GDA_BAD_COMPLETION.) With timeout 0, wait() and wait_own() do as test() does:
 * they look at the requests; if some are in flight, they poll once and look again, and return EFA_GDA_IN_FLIGHT if some
 * still are. These looks do not read the abort flag, and EFA_GDA_IN_FLIGHT does not poison the queue.
 *   A call that need not wait does not read the abort flag, and reads the poison only if it takes a ticket. A call that
 * finds all of its requests done, or its slots free, need not wait. So an owner's post(), quiet() and wait() in that
 * case, and its flush() and close(), succeed on a poisoned queue. test(), and wait() and wait_own() with timeout 0,
 * read the poison if requests are in flight.
 */
#ifndef EFA_GDA_POST_H
#define EFA_GDA_POST_H

#include "sq.h"
#include "turns.h"

namespace efa_gda {

/* Which groups may use the queue while the handle is open. Thread, Warp, Block: only this group, the queue's owner.
 * Device: the queue is shared by any number of groups of the GPU, of any kinds, with handles of their own. */
enum class Sharing { Thread, Warp, Block, Device };

/* The group of a Sender that names none: the owner with this sharing; with Device a thread. */
template <Sharing S>
struct GroupOf {
  using Type = ThreadGroup;
};
template <>
struct GroupOf<Sharing::Warp> {
  using Type = WarpGroup;
};
template <>
struct GroupOf<Sharing::Block> {
  using Type = BlockGroup;
};

/* Flags of Sender::post. */
enum PostFlags : uint32_t {
  kPostDefault = 0,
  /* Do not ring. Each of these later calls rings for the entries: a post() of at least one entry without this flag, a
   * flush() or a quiet(), of any group on this queue; and of this handle close() and, on a queue with a request table,
   * wait(), wait_own() and test(). The entries are rung for earlier if the batch window or the free slots require it.
   * */
  kPostDefer = 1,
  /* Do not wait for free slots: poll once, and return EFA_GDA_NO_ROOM if there are too few for all entries. Entries that
   * were posted with kPostDefer are rung for before, which on a shared queue waits for the turn. A constant, so that other
   * posts have no code for it. */
  kPostTry = 2
};

/* What an owner that takes `ticket` stores in reserve.word (OWNED QUEUES). */
EFA_GDA_FN uint64_t ticket_of_owned(uint64_t ticket) { return (ticket + kOneCall) ^ 0x80000000u; }

/* Returns the leader's status to all threads, and synchronises the group. */
template <class Group>
EFA_GDA_FN efa_gda_status for_all(Group group, uint32_t status) {
  status = group.from_leader(status);
  group.sync();
  return (efa_gda_status)status;
}

template <Sharing S, class Group = typename GroupOf<S>::Type>
class Sender {
 public:
  /* Opens `queue`; status() returns the result. `timeout_ns` bounds each wait of the handle, from its last progress.
   * With 0, the waits for requests of wait() and wait_own() return EFA_GDA_IN_FLIGHT (WAITS THAT RUN OUT above), and a
   * wait for a turn, which other groups end, has the default bound. Every other wait with this bound poisons the queue
   * almost at once; a post with kPostTry has no other wait.
   *   Without `waits` the handle does not mark its requests in the request table: wait(), wait_own() and test() return
   * EFA_GDA_UNSUPPORTED.
   *   EFA_GDA_IN_USE, for an owner: another group has a ticket of a call that is not served, owns the queue, or did not
   * close it. EFA_GDA_BAD_ARGUMENT: the block has more than one dimension, so threads have no unique index; threads of
   * the warp or the block do not exist or have ended, so entries would be missing; or the queue's max_batch is 0.
   * EFA_GDA_POISONED: for an owner only; a shared handle learns of a poison from its first call that takes a ticket or
   * has to wait. */
  EFA_GDA_FN explicit Sender(efa_gda_queue *queue, uint64_t timeout_ns = kDefaultTimeoutNs, Group group = Group(),
                             bool waits = true)
      : queue_(queue), ring_(queue, group), timeout_ns_(timeout_ns) {
    if (!one_dimensional() || !group.is_whole() || queue->sq.max_batch == 0) {
      ring_.set_status(EFA_GDA_BAD_ARGUMENT);
      return;
    }
    if (ring_.is_leader()) reported_errors_ = load_relaxed(&queue->error.count);
    if (waits && queue->requests.num_entries != 0) take_poster_number();
    if constexpr (S == Sharing::Device) {
      /* A limit that is not too high, and that is near: this handle may be older than 2^31 entries of others. */
      ring_.set_free_limit(load_relaxed(&queue->completion.completed));
      ring_.set_window(window_of(queue->sq.num_entries, queue->sq.max_batch, ring_.has(RingOf::kRecord)));
    } else {
      acquire_queue();
    }
  }

  /* As close(). */
  EFA_GDA_FN ~Sender() {
    if (ring_.has(S == Sharing::Device ? RingOf::kDeferred : RingOf::kOwnsQueue)) close();
  }
  Sender(const Sender &) = delete;
  Sender &operator=(const Sender &) = delete;

  EFA_GDA_FN efa_gda_status status() const { return ring_.status(); }

  /* Posts `count` entries and rings (see PostFlags). `count` must be at most kMaxEntriesPerCall: with more it posts
   * none and returns EFA_GDA_BAD_ARGUMENT. With 0 it does nothing. Otherwise, if `first` is not null and the handle had
   * not failed before, `*first` becomes the producer index of entry 0, all 32 bits of it, also if this post fails.
   * Entry i has the producer index `*first` + i, from which its request id follows (sq.h). With Sharing::Device post()
   * may return before the doorbell: a later call of another group then rings for the entries, unless the queue is
   * poisoned first. */
  template <class Make>
  [[nodiscard]] EFA_GDA_FN efa_gda_status post(uint32_t count, Make make, uint32_t flags = kPostDefault,
                                 uint32_t *first = nullptr) {
    const bool rings = (flags & kPostDefer) == 0, tries = (flags & kPostTry) != 0;
    if constexpr (S != Sharing::Device) {
      uint32_t is_ready = ring_.is_plain_round(count) & ring_.has_slots(count);
      if (!EFA_GDA_LIKELY(is_ready)) {
        is_ready = get_ready(count);
        keep(is_ready);
      }
      if (EFA_GDA_LIKELY(is_ready)) {
        if (first != nullptr) *first = ring_.next();
        Quad quads[4];
        ring_.make_usual(quads, count, make);
        ring_.place_usual(quads, count);
        if (rings) ring_.ring();
        return EFA_GDA_OK;
      }
    }
    if (!EFA_GDA_LIKELY(status() == EFA_GDA_OK && count - 1 < kMaxEntriesPerCall)) {
      return status() == EFA_GDA_OK && count != 0 ? EFA_GDA_BAD_ARGUMENT : status();
    }
    efa_gda_status status;
    if constexpr (S == Sharing::Device) {
      if (!rings) ring_.set(RingOf::kDeferred, true);
      status = post_shared(count, make, rings, tries, first);
      if (!EFA_GDA_LIKELY(status != EFA_GDA_NO_ROOM)) {
        if (ring_.has(RingOf::kDeferred) && flush() != EFA_GDA_OK) return this->status();
        return status;
      }
    } else {
      if (tries && !poll_for_slots(count)) return this->status() == EFA_GDA_OK ? EFA_GDA_NO_ROOM : this->status();
      if (first != nullptr) *first = ring_.next();
      if (ring_.poster() != 0) add_own(ring_.next(), count);
      status = ring_.place_entries(count, make, timeout_ns_);
      if (EFA_GDA_LIKELY(status == EFA_GDA_OK && rings)) ring_.ring();
    }
    if (!EFA_GDA_LIKELY(status == EFA_GDA_OK)) ring_.set_status(status);
    return status;
  }

  /* Rings for all entries that any group posted to the queue before this call and that are not rung for. */
  [[nodiscard]] EFA_GDA_FN efa_gda_status flush() {
    if (status() != EFA_GDA_OK) return status();
    if constexpr (S == Sharing::Device) {
      ring_.set(RingOf::kDeferred, false);
      uint32_t result = ring_.is_leader() ? flush_in_turn(queue_, timeout_ns_) : EFA_GDA_OK;
      ring_.set_status(for_all(ring_.group(), result));
    } else if (ring_.next() != ring_.doorbell_index()) {
      ring_.ring();
    }
    return status();
  }

  /* Rings, then waits until every request is done that any group posted to the queue before this call. Other groups may
   * post meanwhile. On a shared queue without a request table they are kept from ringing now and then for a short time
   * (wait_until_idle() in turns.h).
   * EFA_GDA_COMPLETION_ERROR: all are done, and error.count has grown since the handle was opened or its quiet() last
   * returned this status. The failed request may be of any group, and may have been posted before the handle was
   * opened. efa_gda_queue::error has the first error of the queue. */
  [[nodiscard]] EFA_GDA_FN efa_gda_status quiet() {
    efa_gda_status status = flush();
    if (status != EFA_GDA_OK) return status;
    if constexpr (S == Sharing::Device) {
      uint32_t result = EFA_GDA_OK;
      if (ring_.group().polls()) {
        if (queue_->requests.num_entries != 0) {
          result = wait_for_all_before<Poller>(queue_, timeout_ns_);
        } else {
          result = wait_until_idle<Group>(queue_, timeout_ns_);
        }
      }
      status = for_all(ring_.group(), result);
    } else {
      uint64_t result = 0;
      if (ring_.group().polls()) {
        result = wait_polling<Group>(queue_, WaitFor::Done, ring_.next(), 0, timeout_ns_);
      }
      status = ring_.end_wait(result);
    }
    if (status == EFA_GDA_OK) return has_new_errors() ? EFA_GDA_COMPLETION_ERROR : EFA_GDA_OK;
    ring_.set_status(status);
    return status;
  }

  /* quiet() for the requests to one peer. No word says to which peer a request goes, so it waits for the requests to
   * all peers. */
  [[nodiscard]] EFA_GDA_FN efa_gda_status quiet(const efa_gda_peer &) { return quiet(); }

  /* Waits until the requests [first, first + count) are done, which this handle posted: `first` is what post() stored,
   * and fewer than 2^31 requests may have been posted after it. Other groups may post meanwhile.
   *   EFA_GDA_OK: all are done, and none failed but perhaps one that an earlier quiet() of this handle has reported and
   * whose status was overwritten (requests.h). failed->status is 0.
   *   EFA_GDA_COMPLETION_ERROR: all are done, and one or more failed; `*failed` becomes the first failure found, in
   * ascending order of index, on all threads. If failed->status is 0, statuses were overwritten, and any request of the
   * queue may have failed (requests.h).
   *   EFA_GDA_UNSUPPORTED: the queue has no request table.
   * With any other status `*failed` is the first failure found so far, or has status 0. It is not written if the call
   * looks at no request: with count 0, EFA_GDA_UNSUPPORTED, or a failure of the handle or of ringing. */
  [[nodiscard]] EFA_GDA_FN efa_gda_status wait(uint32_t first, uint32_t count, FailedRequest *failed = nullptr) {
    return wait_for(first, count, 0, timeout_ns_, failed);
  }

  /* wait() for all requests that this handle posted and that no earlier wait_own() covered. A wait_own() that returns
   * EFA_GDA_IN_FLIGHT covers none. */
  [[nodiscard]] EFA_GDA_FN efa_gda_status wait_own(FailedRequest *failed = nullptr) {
    /* The table has the statuses of the last R requests (requests.h). The wait covers one more: its poster word is
     * overwritten by that of the newest request, which shows that older statuses were overwritten. */
    uint32_t most = queue_->requests.num_entries, count = own_end_ - own_first_;
    if (count > most) count = most + 1;
    efa_gda_status status = wait_for(own_end_ - count, count, ring_.poster(), timeout_ns_, failed);
    if (status != EFA_GDA_IN_FLIGHT) own_first_ = own_end_;
    return status;
  }

  /* As wait(), but polls only once and returns EFA_GDA_IN_FLIGHT if requests are still in flight. As wait() does, it
   * first rings for entries that are not rung for; with Sharing::Device only if the handle's last post deferred its
   * doorbell, and then it may wait for its turn. On a poisoned queue it returns EFA_GDA_POISONED if requests are in
   * flight, or if it takes a ticket to ring. */
  [[nodiscard]] EFA_GDA_FN efa_gda_status test(uint32_t first, uint32_t count, FailedRequest *failed = nullptr) {
    return wait_for(first, count, 0, 0, failed);
  }

  /* Closes the handle (STATUS above): unless the handle has failed, rings for entries whose doorbell it deferred; an
   * owner releases the queue. Returns the handle's status, or EFA_GDA_IN_USE if another group took a ticket while this
   * group owned the queue; the queue is then poisoned. */
  EFA_GDA_FN efa_gda_status close() {
    if (S != Sharing::Device || ring_.has(RingOf::kDeferred)) (void)flush();
    uint32_t result = status();
    if (ring_.has(RingOf::kOwnsQueue)) result = release_queue();
    ring_.set(RingOf::kOwnsQueue | RingOf::kDeferred, false);
    if (status() == EFA_GDA_OK) ring_.set_status(EFA_GDA_BAD_ARGUMENT);
    return (efa_gda_status)result;
  }

 private:
  using RingOf = Ring<Group>;
  using Poller = typename Group::Poller;

  EFA_GDA_FN void take_poster_number() {
    uint32_t handles = ring_.is_leader() ? fetch_add_relaxed(&queue_->tracking.handles, 1u) : 0;
    ring_.set_poster(ring_.group().from_leader(handles) % kMaxPoster + 1);
  }

  /* Whether place_usual() may place an owner's post of `count` entries. If so, has stored their poster words, and noted
   * them for wait_own(). */
  EFA_GDA_FN bool get_ready(uint32_t count) {
    if (!ring_.is_usual_round(count)) return false;
    ring_.look_for_slots(count);
    if (!ring_.has_slots(count)) return false;
    ring_.mark_posted(0, count, ring_.next(), false);
    if (ring_.poster() != 0) add_own(ring_.next(), count);
    return true;
  }

  /* Adds the `count` entries of a post to the range that wait_own() waits for. The range stays shorter than 2^31, so
   * that indices can be compared. For that it drops its oldest requests, which are done, because more than R later ones
   * were posted (LIMIT in requests.h). The queue must have a request table. */
  EFA_GDA_FN void add_own(uint32_t first, uint32_t count) {
    if (own_first_ == own_end_) own_first_ = first;
    own_end_ = first + count;
    if (own_end_ - own_first_ > 1u << 30) own_first_ = own_end_ - (1u << 29);
  }

  /* wait(), wait_own() and test(). `poster`: 0, or the poster number to whose requests the wait is restricted.
   * `bound_ns` 0: as test(). */
  EFA_GDA_FN efa_gda_status wait_for(uint32_t first, uint32_t count, uint32_t poster, uint64_t bound_ns,
                                     FailedRequest *failed) {
    if (ring_.poster() == 0 && status() == EFA_GDA_OK) return EFA_GDA_UNSUPPORTED;
    if (S != Sharing::Device || ring_.has(RingOf::kDeferred)) (void)flush();
    if (this->status() != EFA_GDA_OK || count == 0) return this->status();
    uint64_t result = 0;
    if (ring_.group().polls()) {
      RequestWait wait(first, count, poster, reported_errors_, bound_ns);
      wait.of_owner = S != Sharing::Device;
      wait.posted = ring_.next();
      result = wait_for_requests<Poller>(queue_, local_pointer(&wait));
      result |= (uint64_t)wait.failed.index << 32 | wait.failed.status << 16;
    }
    result = ring_.group().from_leader(result);
    ring_.group().sync();
    /* So that no registers keep it during the wait. */
    if constexpr (S != Sharing::Device) ring_.read_geometry();
    efa_gda_status status = (efa_gda_status)(result & 0xffff);
    if (failed != nullptr) failed->index = (uint32_t)(result >> 32);
    if (failed != nullptr) failed->status = (uint32_t)(result >> 16) & 0xffff;
    bool is_final = status != EFA_GDA_OK && status != EFA_GDA_COMPLETION_ERROR && status != EFA_GDA_IN_FLIGHT;
    if (is_final) ring_.set_status(status);
    return status;
  }

  /* Makes the group the queue's owner, if no other group has a ticket (OWNED QUEUES above). The leader decides for the
   * group. */
  EFA_GDA_FN void acquire_queue() {
    uint64_t turn = 0;
    uint32_t status = EFA_GDA_OK;
    if (ring_.is_leader()) {
      turn = load_acquire(&queue_->turn.word);
      if (load_relaxed(&queue_->error.poison) != EFA_GDA_OK) {
        status = EFA_GDA_POISONED;
      } else {
        uint64_t word = load_relaxed(&queue_->reserve.word);
        bool free = is_turn_of(turn, word);
        if (!free || compare_swap(&queue_->reserve.word, word, ticket_of_owned(word)) != word) status = EFA_GDA_IN_USE;
      }
    }
    Group group = ring_.group();
    turn = group.from_leader(turn);
    ring_.set_status((efa_gda_status)group.from_leader(status));
    ring_.set(RingOf::kOwnsQueue, this->status() == EFA_GDA_OK);
    group.sync();
    uint32_t next = (uint32_t)(turn >> EFA_GDA_TURN_BITS);
    ring_.resume(next, next - unrung_of(turn));
  }

  /* Adds the number of the owner's entries to reserve.word and ends the turn, if no other group has taken a ticket. It
   * does so after a failure too, because the host learns from these words how many requests are in flight; the poison
   * then keeps later groups from placing entries. Called by the owner, once. */
  EFA_GDA_FN uint32_t release_queue() {
    ring_.group().sync();
    uint32_t status = this->status();
    if (ring_.is_leader()) {
      uint64_t word = load_relaxed(&queue_->reserve.word), begun = (word ^ 0x80000000u) - kOneCall;
      bool alone = is_turn_of(load_relaxed(&queue_->turn.word), begun);
      uint64_t after = begun + kOneCall + (ring_.next() - (uint32_t)begun);
      uint32_t unrung = ring_.next() - ring_.doorbell_index();
      /* T2 in turns.h, for the last doorbell. */
      fence_release_system();
      if (alone && compare_swap(&queue_->reserve.word, word, after) == word) {
        /* After a wait that failed, all that was placed is rung for: an owner rings before it waits. */
        exchange_relaxed(&queue_->turn.word, after << EFA_GDA_TURN_BITS | (unrung < kMaxWindow ? unrung : 0));
      } else {
        status = EFA_GDA_IN_USE;
        poison(queue_, EFA_GDA_IN_USE);
      }
    }
    return ring_.group().from_leader(status);
  }

  /* Whether requests of the queue failed since the handle was opened or the last call of this. Called by quiet(). */
  EFA_GDA_FN bool has_new_errors() {
    uint32_t errors = ring_.is_leader() ? load_relaxed(&queue_->error.count) : 0;
    uint32_t more = ring_.group().from_leader(errors - reported_errors_);
    reported_errors_ = errors;
    return more != 0;
  }

  /* kPostTry of an owner: whether there are free slots for `count` entries. If the cached limit does not show it, rings
   * for what is placed, and polls once. */
  EFA_GDA_FN bool poll_for_slots(uint32_t count) {
    if (ring_.has_slots(count)) return true;
    (void)flush();
    /* All threads receive what the leader saw, so that their next collective call is the same. */
    uint64_t result = 0;
    if (ring_.group().polls()) {
      result = poll_slots<Poller>(queue_, ring_.next());
      if (load_relaxed(&queue_->error.poison) != EFA_GDA_OK) result |= (uint64_t)EFA_GDA_POISONED << 32;
    }
    efa_gda_status ended = ring_.end_wait(result);
    if (ended != EFA_GDA_OK) ring_.set_status(ended);
    return ended == EFA_GDA_OK && ring_.has_slots(count);
  }

  /* post() on a shared queue (A POST in turns.h). `rings`: does not defer. `tries`: kPostTry. */
  template <class Make>
  EFA_GDA_FN efa_gda_status post_shared(uint32_t count, Make make, bool rings, bool tries, uint32_t *first) {
    Group group = ring_.group();
    const bool leads = ring_.is_leader(), record = ring_.has(RingOf::kRecord);
    Turn turn = {queue_, 0, 0, 0};
    uint32_t status = EFA_GDA_OK;
    const uint64_t adds = (rings ? kOneCall : 0) + count;
    if (!EFA_GDA_LIKELY(!tries)) {
      uint64_t reserved = 0;
      if (group.polls()) status = reserve_if_free<Poller>(queue_, count, adds, local_pointer(&reserved));
      status = group.from_leader(status);
      if (status != EFA_GDA_OK) return (efa_gda_status)status;
      turn.ticket = reserved;
    }
    if (leads) {
      if (EFA_GDA_LIKELY(!tries)) {
        turn.ticket = fetch_add_relaxed(&queue_->reserve.word, adds + zero_by_thread());
      }
      status = load_relaxed(&queue_->error.poison) != EFA_GDA_OK ? EFA_GDA_POISONED : EFA_GDA_OK;
      turn.word = load_acquire(&queue_->turn.word);
    }
    const uint32_t window = ring_.window(), half = (ring_.num_entries() + 1) / 2, most = window < half ? window : half;
    const Slots slots = ring_.slots();
    const uint32_t begin = group.from_leader(turn.begin());
    if (first != nullptr) *first = begin;
    if (ring_.poster() != 0) add_own(begin, count);
    /* Entries [from, from + n) are written at once, by the threads of the ranks from first_rank on. No entry is in
     * registers during a wait. */
    uint32_t chunk = 0, first_rank = 0;
    EFA_GDA_NO_UNROLL for (uint32_t from = 0; from != count;) {
      const bool begins = from == chunk;
      if (begins) chunk = count - from < most ? count : from + most;
      uint32_t n = group.size() - first_rank < chunk - from ? group.size() - first_rank : chunk - from;
      status = wait_to_write(turn, begin + from, begin + from + n, begins, begin + chunk, status);
      if (!EFA_GDA_LIKELY(status == EFA_GDA_OK)) return (efa_gda_status)status;
      ring_.mark_posted(first_rank, n, begin + from, true);
      const uint32_t mine = group.rank() - first_rank;
      if (mine < n) {
        Entry entry = make(from + mine);
        set_hints(entry, ring_.hints());
        slots.set_slot(entry, begin + from + mine);
        slots.store(entry, begin + from + mine);
      }
      from += n;
      first_rank = first_rank + n == group.size() ? 0 : first_rank + n;
      if (from != chunk) continue;
      group.sync();
      if (leads) status = take_turn(turn, record, window, begin + chunk, chunk == count, rings, timeout_ns_);
    }
    return for_all(group, status);
  }

  /* Step 2 for the slots [begin, end) and, if a chunk `begins` with them that ends at chunk_end, for the window.
   * `status` is the leader's. */
  EFA_GDA_FN uint32_t wait_to_write(Turn &turn, uint32_t begin, uint32_t end, bool begins, uint32_t chunk_end,
                                    uint32_t status) {
    Group group = ring_.group();
    const bool leads = ring_.is_leader();
    uint32_t has_slots = status == EFA_GDA_OK && ring_.free_limit() - end <= ring_.num_entries();
    if (!EFA_GDA_LIKELY(group.from_leader(has_slots))) {
      uint64_t result = 0;
      status = group.from_leader(status);
      if (status == EFA_GDA_OK && group.polls()) {
        result = wait_for_slots<Group>(queue_, turn.ticket, begin, end, timeout_ns_);
        status = (uint32_t)(result >> 32);
      }
      ring_.set_free_limit(begin + (uint32_t)result);
      if (leads) turn.load();
    }
    if (begins && leads && status == EFA_GDA_OK) {
      status = wait_for_window(turn, ring_.has(RingOf::kRecord), ring_.window(), chunk_end, timeout_ns_);
    }
    status = group.from_leader(status);
    /* Orders the leader's loads before all threads' stores to the slots. */
    group.sync();
    return status;
  }

  efa_gda_queue *queue_;
  RingOf ring_;
  /* The next four are rarely used: volatile, so that they are in the thread's memory. */
  volatile uint64_t timeout_ns_;
  /* With a request table: the requests that wait_own() waits for are among [own_first_, own_end_). */
  volatile uint32_t own_first_ = 0, own_end_ = 0;
  /* error.count when the handle was opened or its quiet() last looked for errors; the leader's. */
  volatile uint32_t reported_errors_ = 0;
};

}  // namespace efa_gda

#endif
