/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Posting, for authors of kernels: Sender is a group's handle of a queue.
 *
 *   efa_gda::Sender<efa_gda::Sharing::Device, efa_gda::WarpGroup> sender(queue);
 *   status = sender.post(32, [&](uint32_t i) {
 *     return efa_gda::write_entry(peer, {local + i * 64, lkey, 64}, remote + i * 64, rkey);
 *   });
 *   status = sender.quiet();
 *   sender.close();
 *
 * All threads of the group must construct the handle and make every call together, with the same arguments, but for
 * `make` and pointers to results, which may be the thread's own. All receive the same status. Each path out of the
 * kernel must close the handle, once. kernels/examples/put_signal.cu has two complete kernels.
 *
 * TERMS. Group, leader, ticket, owner, writer, call, entry, round, place, ring, publish, done, quiet, poison, abort
 * flag: see sq.h. Ticket lock, lock owner, free (of the lock), Passed, combine, return early: see ticket_lock.h. To
 * post is to place entries, or to publish them for a lock owner, which rings for them. post() also rings, or leaves
 * that to the lock owner or, with kPostDefer, to a later call. The handle's status is status(), its timeout the
 * constructor's `timeout_ns`.
 *
 * A kernel that shares a queue can be compiled for 64 registers, as many as blocks of 1,024 threads have, with few
 * spills: the rare paths of its posts are functions that are not inlined (shared_call.h).
 *
 * MAKE. The group's thread of rank (i modulo size) calls make(i) to make entry i, at most once, so a thread can post
 * what it has in registers. make(i) may be called although post() then fails. On a shared queue it runs after the call
 * has its ticket, perhaps while the group owns the lock. So it must not use the queue, wait for a group that does, or
 * synchronise its group. post() does not use `make` after it returns.
 *
 * STATUS. If a call returns a status other than EFA_GDA_OK, that is the handle's status from then on: each later call
 * returns it and does nothing, except that an owner's close() releases the queue. Only these statuses leave the
 * handle usable:
 *   EFA_GDA_COMPLETION_ERROR: quiet() returns it once for new errors; wait(), wait_own() and test() for errors of their
 *     requests
 *   EFA_GDA_IN_FLIGHT and EFA_GDA_UNSUPPORTED of wait(), wait_own() and test()
 *   EFA_GDA_BAD_ARGUMENT of a post() of more than kMaxEntriesPerCall entries
 * close() closes the handle whatever it returns. If the handle's status was EFA_GDA_OK, later calls return
 * EFA_GDA_BAD_ARGUMENT, also if close() returned EFA_GDA_IN_USE.
 *
 * OWNED QUEUES. With Sharing::Thread, Warp and Block the constructor makes the group the queue's owner, if the lock is
 * free: the leader loads lock.serving with an acquire (A1 in ticket_lock.h), and takes a ticket for no entries by a CAS
 * of reserve.word, which fails if another group has taken a ticket meanwhile. Until close(), lock.serving stays Passed
 * at this ticket, but the lock is not free, because reserve.word is one ticket further. The owner's post() takes no
 * ticket; close() adds the number of the owner's entries to reserve.word, by CAS, and passes the lock with a release.
 * Before the CAS the leader sets reserve.free_limit to a value that is no limit (limit_of_owned() in free_slots.h), so
 * that no other group looks or places ahead: a group that wrongly takes a ticket would write the owner's slots.
 *   If the lock is not free, because another group owns it or has a ticket, the constructor fails with EFA_GDA_IN_USE.
 * If another group took a ticket while this group owned the queue, close() fails with EFA_GDA_IN_USE. It then also
 * poisons the queue and does not pass the lock, because that ticket reserves slots that the owner has used.
 *
 * WAITS THAT RUN OUT. A call may have several of these waits, one after another. The bound of each is the handle's
 * timeout, and begins again with each progress:
 *   wait                                       | progress                        | at its bound
 *   for the lock (ticket_lock.h)               | a change of lock.serving; a     | EFA_GDA_TIMEOUT_LOCK
 *                                              |   request of the queue completed|
 *   for free slots (free_slots.h)              | a request of the queue completed| EFA_GDA_TIMEOUT_SLOTS
 *   for completions, in quiet()                | the same                        | EFA_GDA_TIMEOUT_COMPLETION
 *   for requests, in wait() and wait_own()     | the same                        | EFA_GDA_TIMEOUT_COMPLETION
 *   (requests.h)                               |                                 |
 * A wait that fails ends the call. The call returns one of these statuses, and its leader poisons the queue with it (a
 * queue keeps its first poison):
 *   - the status of the table, at the bound,
 *   - the abort flag's status (EFA_GDA_ABORTED for 1), if that flag is raised. Deadline (platform.h) states when a
 *     wait reads it; the wait for the lock does so later than the others,
 *   - EFA_GDA_BAD_COMPLETION: in a wait for free slots, and in quiet() as the writer, if more requests completed than
 *     were posted, or more are in flight than the ring holds.
 * If the wait finds the queue poisoned, the call returns EFA_GDA_POISONED. (A poller that reads a completion of another
 * queue pair poisons the queue with EFA_GDA_BAD_COMPLETION.) Two waits have another bound, at which they poison
 * nothing:
 *   - With timeout 0, wait() and wait_own() do as test() does: they look at the requests; if some are in flight, they
 *     poll once and look again, and return EFA_GDA_IN_FLIGHT if some still are. These looks do not read the abort flag,
 *     and EFA_GDA_IN_FLIGHT does not poison the queue.
 *   - quiet() on a shared queue rings as flush() does, and then waits, for at most kIdleWaitNs, until nothing is in
 *     flight and the lock is free. This bound does not begin again. At it quiet() poisons nothing, and acquires the
 *     lock.
 *   A call that need not wait does not read the abort flag, and reads the poison only if it takes a ticket. A call that
 * finds all of its requests done, or its slots free, need not wait. So an owner's post(), quiet() and wait() in that
 * case, and its flush() and close(), succeed on a poisoned queue. test(), and wait() and wait_own() with timeout 0,
 * read the poison if requests are in flight.
 */
#ifndef EFA_GDA_POST_H
#define EFA_GDA_POST_H

#include "shared_call.h"

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

/* The group of a Sender's Ring. */
template <Sharing S, class Group>
struct GroupOfRing {
  using Type = Group;
};
template <class Group>
struct GroupOfRing<Sharing::Device, Group> {
  using Type = Shared<Group>;
};

/* Flags of Sender::post. */
enum PostFlags : uint32_t {
  kPostDefault = 0,
  /* Do not ring. Each of these later calls rings for the entries: a post() of at least one entry without this flag, a
   * flush() or a quiet(), of any group on this queue; and of this handle close() and, on a queue with a request table,
   * wait(), wait_own() and test(). The entries are rung for earlier if the batch window or the free slots require it,
   * or if this group or another combines. */
  kPostDefer = 1
};

/* Returns the leader's status to all threads, and synchronises the group. */
template <class Group>
EFA_GDA_FN efa_gda_status for_all(Group group, uint32_t status) {
  status = group.from_leader(status);
  group.sync();
  return (efa_gda_status)status;
}

constexpr uint64_t kDefaultTimeoutNs = (uint64_t)10 * 1000 * 1000 * 1000;

template <Sharing S, class Group = typename GroupOf<S>::Type, int StoreBytes = EFA_GDA_STORE_BYTES>
class Sender {
 public:
  /* Opens `queue`; status() returns the result. `timeout_ns` bounds each wait of the handle, from its last progress.
   * With 0, the waits for requests of wait() and wait_own() return EFA_GDA_IN_FLIGHT (WAITS THAT RUN OUT above). Every
   * other wait with this bound poisons the queue almost at once, also the wait for the lock in wait(), wait_own() and
   * test() after a post that deferred its doorbell.
   *   EFA_GDA_IN_USE, for an owner: another group has a ticket of a call that is not served, owns the queue, or did not
   * close it. EFA_GDA_BAD_ARGUMENT: the block has more than one dimension, so threads have no unique index; threads of
   * the warp or the block do not exist or have ended, so entries would be missing; or the queue's max_batch is 0.
   * EFA_GDA_POISONED: for an owner only; a shared handle learns of a poison from its first call that takes a ticket or
   * has to wait. EFA_GDA_UNSUPPORTED: the queue takes entries in stores of 8 bytes only (EFA_GDA_SQ_STORES_OF_8), and
   * StoreBytes is 16. */
  EFA_GDA_FN explicit Sender(efa_gda_queue *queue, uint64_t timeout_ns = kDefaultTimeoutNs, Group group = Group())
      : queue_(queue), timeout_ns_(timeout_ns), ring_(queue, RingGroup{group}) {
    if (!one_dimensional() || !group.is_whole() || queue->sq.max_batch == 0) {
      ring_.set_status(EFA_GDA_BAD_ARGUMENT);
      return;
    }
    if (StoreBytes > 8 && (queue->sq.flags & EFA_GDA_SQ_STORES_OF_8) != 0) {
      ring_.set_status(EFA_GDA_UNSUPPORTED);
      return;
    }
    if (ring_.is_leader()) reported_errors_ = load_relaxed(&queue->error.count);
    if (queue->requests.num_entries != 0) take_poster_number();
    if constexpr (S != Sharing::Device) acquire_queue();
  }

  EFA_GDA_FN efa_gda_status status() const { return ring_.status(); }

  /* Posts `count` entries and rings (see PostFlags). `count` must be at most kMaxEntriesPerCall: with more it posts
   * none and returns EFA_GDA_BAD_ARGUMENT. With 0 it does nothing. Otherwise, if `first` is not null and the handle had
   * not failed before, `*first` becomes the producer index of entry 0, all 32 bits of it, also if this post fails.
   * Entry i has the producer index `*first` + i, from which its request id follows (sq.h). With Sharing::Device post()
   * may return before the doorbell: a lock owner then rings for the entries, unless the queue is poisoned first. */
  template <class Make>
  EFA_GDA_FN efa_gda_status post(uint32_t count, Make make, uint32_t flags = kPostDefault,
                                 uint32_t *first = nullptr) {
    const bool rings = (flags & kPostDefer) == 0;
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
      ring_.set(RingOf::kDeferred, !rings);
      status = post_shared(count, make, rings, first);
    } else {
      if (first != nullptr) *first = ring_.next();
      if (ring_.poster() != 0) add_own(ring_.next(), count);
      volatile uint32_t upper[16];
      EntryShare share(upper);
      status = ring_.place_entries(share, count, make, timeout_ns_);
      if (EFA_GDA_LIKELY(status == EFA_GDA_OK && rings)) ring_.ring();
    }
    if (!EFA_GDA_LIKELY(status == EFA_GDA_OK)) ring_.set_status(status);
    return status;
  }

  /* Rings for all entries that any group posted to the queue before this call and that are not rung for. */
  EFA_GDA_FN efa_gda_status flush() {
    if (status() != EFA_GDA_OK) return status();
    if constexpr (S == Sharing::Device) {
      ring_.set(RingOf::kDeferred, false);
      ring_.set_status(empty_call(false));
    } else if (ring_.next() != ring_.doorbell_index()) {
      ring_.ring();
    }
    return status();
  }

  /* Rings, then waits until every request is done that any group posted to the queue before this call. On a shared
   * queue that wait has at most kIdleWaitNs, and ends when nothing is in flight and the lock is free. At its bound the
   * call acquires the lock again, as flush() did to ring, so that no other group's entries are placed meanwhile (posts
   * of other groups may return early and are placed afterwards), and waits for all requests in flight.
   * EFA_GDA_COMPLETION_ERROR: all are done, and error.count has grown since the handle was opened or its quiet() last
   * returned this status. The failed request may be of any group, and may have been posted before the handle was
   * opened. efa_gda_queue::error has the first error of the queue. */
  EFA_GDA_FN efa_gda_status quiet() {
    efa_gda_status status = flush();
    if (status != EFA_GDA_OK) return status;
    constexpr bool kShared = S == Sharing::Device;
    uint64_t bound_ns = kShared ? kIdleWaitNs : timeout_ns_;
    status = wait_until_done(kShared ? WaitFor::Idle : WaitFor::Done, ring_.next(), bound_ns);
    if constexpr (kShared) {
      if (status == kNotIdle) status = empty_call(true);
    }
    if (status == EFA_GDA_OK) return has_new_errors() ? EFA_GDA_COMPLETION_ERROR : EFA_GDA_OK;
    ring_.set_status(status);
    return status;
  }

  /* quiet() for the requests to one peer. No word says to which peer a request goes, so it waits for the requests to
   * all peers. */
  EFA_GDA_FN efa_gda_status quiet(const efa_gda_peer &) { return quiet(); }

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
  EFA_GDA_FN efa_gda_status wait(uint32_t first, uint32_t count, FailedRequest *failed = nullptr) {
    return wait_for(first, count, 0, timeout_ns_, failed);
  }

  /* wait() for all requests that this handle posted and that no earlier wait_own() covered. A wait_own() that returns
   * EFA_GDA_IN_FLIGHT covers none. */
  EFA_GDA_FN efa_gda_status wait_own(FailedRequest *failed = nullptr) {
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
   * doorbell, and then it may wait for the lock. On a poisoned queue it returns EFA_GDA_POISONED if requests are in
   * flight, or if it takes a ticket to ring. */
  EFA_GDA_FN efa_gda_status test(uint32_t first, uint32_t count, FailedRequest *failed = nullptr) {
    return wait_for(first, count, 0, 0, failed);
  }

  /* Closes the handle (STATUS above): unless the handle has failed, rings for entries whose doorbell it deferred; an
   * owner releases the queue. Returns the handle's status, or EFA_GDA_IN_USE if another group took a ticket while this
   * group owned the queue; the queue is then poisoned. */
  EFA_GDA_FN efa_gda_status close() {
    if (S != Sharing::Device || ring_.has(RingOf::kDeferred)) flush();
    uint32_t result = status();
    if (ring_.has(RingOf::kOwnsQueue)) result = release_queue();
    ring_.set(RingOf::kOwnsQueue, false);
    if (status() == EFA_GDA_OK) ring_.set_status(EFA_GDA_BAD_ARGUMENT);
    return (efa_gda_status)result;
  }

 private:
  using RingGroup = typename GroupOfRing<S, Group>::Type;
  using RingOf = Ring<RingGroup, StoreBytes>;
  using Poller = typename RingGroup::Poller;

  EFA_GDA_FN void take_poster_number() {
    uint32_t handles = ring_.is_leader() ? fetch_add_relaxed(&queue_->tracking.handles, 1u) : 0;
    ring_.set_poster(ring_.group().from_leader(handles) % kMaxPoster + 1);
  }

  /* Whether place_usual() may place a post of `count` entries, for the writer. If so, has stored their poster words,
   * and an owner's handle has noted them for wait_own(). */
  EFA_GDA_FN bool get_ready(uint32_t count) {
    if (!ring_.is_usual_round(count)) return false;
    ring_.look_for_slots(count);
    if (!ring_.has_slots(count)) return false;
    ring_.mark_posted(0, count, ring_.next());
    if (S != Sharing::Device && ring_.poster() != 0) add_own(ring_.next(), count);
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
    if (S != Sharing::Device || ring_.has(RingOf::kDeferred)) flush();
    if (this->status() != EFA_GDA_OK || count == 0) return this->status();
    uint64_t result = 0;
    if (ring_.group().polls()) {
      RequestWait wait(first, count, poster, reported_errors_, bound_ns);
      wait.of_owner = S != Sharing::Device;
      wait.posted = ring_.next();
      result = cold_function<RingGroup, wait_for_requests<Poller>>()(queue_, local_pointer(&wait));
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

  /* Makes the group the queue's owner, if the lock is free (OWNED QUEUES above). The leader decides for the group. */
  EFA_GDA_FN void acquire_queue() {
    uint64_t serving = 0, indices = 0;
    uint32_t free_limit = 0, status = EFA_GDA_OK;
    if (ring_.is_leader()) {
      serving = load_acquire(&queue_->lock.serving);
      indices = load_relaxed(lock_indices(queue_));
      free_limit = (uint32_t)load_relaxed(limit_word(queue_));
      if (load_relaxed(&queue_->error.poison) != EFA_GDA_OK) {
        status = EFA_GDA_POISONED;
      } else {
        uint64_t word = load_relaxed(&queue_->reserve.word);
        bool free = word << EFA_GDA_LOCK_STATE_BITS == serving;
        /* If the CAS fails, groups place nothing ahead until a writer stores a limit. */
        if (free) store_relaxed(limit_word(queue_), (uint64_t)limit_of_owned((uint32_t)word));
        if (!free || compare_swap(&queue_->reserve.word, word, word + kOneCall) != word) status = EFA_GDA_IN_USE;
      }
    }
    RingGroup group = ring_.group();
    serving = group.from_leader(serving);
    indices = group.from_leader(indices);
    ring_.inherit(indices, group.from_leader(free_limit));
    ring_.set_status((efa_gda_status)group.from_leader(status));
    ring_.set(RingOf::kOwnsQueue, this->status() == EFA_GDA_OK);
    group.sync();
    ring_.resume((uint32_t)(serving >> EFA_GDA_LOCK_STATE_BITS));
    /* R2 (requests.h): before the poster words that the limit allows. */
    if (ring_.poster() != 0) fence_release_device();
  }

  /* Adds the number of the owner's entries to reserve.word and passes the lock to the next ticket, if no other group
   * has taken a ticket. It does so after a failure too, because the host learns from these words how many requests are
   * in flight; the poison then keeps later groups from placing entries (Ticket::collect, acquire_queue). Called by the
   * owner, once. */
  EFA_GDA_FN uint32_t release_queue() {
    ring_.group().sync();
    uint32_t status = this->status();
    if (ring_.is_leader()) {
      /* The low half of `word` is the producer index with which the owner began. */
      uint64_t word = load_relaxed(&queue_->reserve.word), after = word + (ring_.next() - (uint32_t)word);
      bool alone = (word - kOneCall) << EFA_GDA_LOCK_STATE_BITS == load_relaxed(&queue_->lock.serving);
      if (alone && compare_swap(&queue_->reserve.word, word, after) == word) {
        store_indices(queue_, ring_);
        store_release(&queue_->lock.serving, after << EFA_GDA_LOCK_STATE_BITS);
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

  /* How a post on a shared queue goes on. Ready: the group owns the lock, and place_usual() may place the entries.
   * Placed: it owns the lock, and has placed them ahead. Ended: the call is served, or may return early. */
  enum class Next { Ready, Placed, Ended, Slow };

  /* The part of a post() on a shared queue that is not ready at once: publishes a usual round, and waits a short time
   * until the call has ended or the group owns the lock. */
  EFA_GDA_FN Next proceed(Ticket<RingGroup, StoreBytes> &ticket, Quad (&quads)[4], uint32_t count, bool rings) {
    if (ring_.poster() != 0) add_own(ticket.first_slot(), count);
    if (!ticket.owns_lock() && ring_.is_usual_round(count)) {
      if (ticket.publish_usual(PublicationSlots(queue_), quads) && ticket.has_ended()) return Next::Ended;
      ticket.acquire_if_passed();
    }
    if (!ticket.owns_lock() || !rings) return Next::Slow;
    if (ticket.has_placed_ahead()) return Next::Placed;
    /* R2 (requests.h). */
    if (ring_.poster() != 0) ticket.complete_acquire_for_all();
    return get_ready(count) ? Next::Ready : Next::Slow;
  }

  /* post() on a shared queue. `rings`: does not defer. */
  template <class Make>
  EFA_GDA_FN efa_gda_status post_shared(uint32_t count, Make make, bool rings, uint32_t *first) {
    ring_.forget();
    Ticket<RingGroup, StoreBytes> ticket(queue_, ring_, count);
    SharedCall calls[1];
    SharedCall &call = calls[0];
    EntryShare share(call.upper);
    ring_.make(share, 0, ring_.end_of_round(0, count), make);
    ticket.collect();
    if (first != nullptr) *first = ticket.first_slot();
    uint32_t is_placed = 0;
    bool owns_lock = ticket.acquire_if_passed();
    bool is_ready = owns_lock & rings & ring_.is_plain_round(count) & ring_.has_slots(count);
    if (!EFA_GDA_LIKELY(is_ready)) {
      Next next = proceed(ticket, share.quads, count, rings);
      if (next == Next::Ended) return EFA_GDA_OK;
      if (next == Next::Slow) return post_slowly(ticket, share, call, count, make, rings);
      is_placed = next == Next::Placed;
      keep(is_placed);
    }
    const bool fits = ring_.fits_batch_window(count);
    /* place_usual() then rings or confirms a doorbell. */
    if (!EFA_GDA_LIKELY(fits)) ticket.complete_acquire();
    if (EFA_GDA_LIKELY(is_placed == 0)) ring_.place_usual(share.quads, count);
    if (EFA_GDA_LIKELY(fits)) ticket.complete_acquire();
    ring_.ring();
    if (EFA_GDA_LIKELY(!ticket.must_combine())) {
      ticket.pass();
      return EFA_GDA_OK;
    }
    call.combining.ring = ring_.state();
    call.combining.publication = PublicationSlots(queue_);
    call.combining.serving = ticket.next_ticket();
    call.timeout_ns = timeout_ns_;
    return cold_function<RingGroup, combine_as<RingGroup, StoreBytes>>()(queue_, local_pointer(&call));
  }

  /* The rest of a post() on a shared queue that is not Ready, Placed or Ended. */
  template <class Make>
  EFA_GDA_FN efa_gda_status post_slowly(const Ticket<RingGroup, StoreBytes> &ticket, EntryShare &share,
                                        SharedCall &call, uint32_t count, Make make, bool rings) {
    ticket.complete_acquire_for_all();
    call.combining.ring = ring_.state();
    call.combining.publication = PublicationSlots(queue_);
    call.ticket = ticket.state();
    call.timeout_ns = timeout_ns_;
    call.holds = false;
    call.rings = rings;
    for (;;) {
      call.set_round(share);
      if (ticket.has_placed_ahead()) call.begin = call.end;
      efa_gda_status status = run(&call);
      if (status != kMoreRounds) return status;
      ring_.make(share, share.end, ring_.end_of_round(share.end, count), make);
    }
  }

  /* A call without entries on a shared queue, which rings. `waits`: as the lock owner, it then waits until every
   * request is done. No other group can serve this call, because it has nothing to publish. */
  EFA_GDA_FN efa_gda_status empty_call(bool waits) {
    SharedCall calls[1];
    SharedCall &call = calls[0];
    call.holds = waits;
    call.timeout_ns = timeout_ns_;
    cold_function<RingGroup, begin_empty_call<RingGroup, StoreBytes>>()(queue_, local_pointer(&call));
    efa_gda_status status = run(&call);
    if (status == kHoldsLock) {
      status = wait_until_done(WaitFor::Done, call.combining.ring.next_, timeout_ns_);
      call.holds = false;
      if (status == EFA_GDA_OK) status = run(&call);
    }
    return status;
  }

  EFA_GDA_FN efa_gda_status run(SharedCall *call) {
    return cold_function<RingGroup, run_call<RingGroup, StoreBytes>>()(queue_, local_pointer(call));
  }

  /* How long quiet() waits for a shared queue to become idle before it acquires the lock. */
  static constexpr uint64_t kIdleWaitNs = 100 * 1000;

  /* A wait of quiet(), for `what`: Idle on a shared queue, or Done as the writer. See wait_polling(). */
  EFA_GDA_FN efa_gda_status wait_until_done(WaitFor what, uint32_t next, uint64_t bound_ns) {
    uint64_t result = 0;
    auto wait = cold_function<RingGroup, wait_polling<RingGroup>>();
    if (ring_.group().polls()) result = wait(queue_, what, next, 0, bound_ns);
    if constexpr (S != Sharing::Device) return ring_.end_wait(result);
    return for_all(ring_.group(), (uint32_t)(result >> 32));
  }

  efa_gda_queue *queue_;
  uint64_t timeout_ns_;
  RingOf ring_;
  /* The next three are rarely used: volatile, so that they are in the thread's memory. */
  /* With a request table: the requests that wait_own() waits for are among [own_first_, own_end_). */
  volatile uint32_t own_first_ = 0, own_end_ = 0;
  /* error.count when the handle was opened or its quiet() last looked for errors; the leader's. */
  volatile uint32_t reported_errors_ = 0;
};

}  // namespace efa_gda

#endif
