/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ticket lock of a shared send queue, with flat combining: any number of groups take tickets, one group at a time
 * owns the lock and is the queue's writer (sq.h), and groups that wait publish their entries so that the lock owner can
 * place and ring for them. This file decides which group is the writer; sq.h states what the writer does, and combine.h
 * how the lock owner combines and why a published call may return early.
 *
 * TERMS. Group, leader, handle, call, entry, quad, round, place, ring, poison, abort flag: see sq.h. The low
 * and the high half of a 64-bit word are its low and its high 32 bits.
 *   ticket         the value of reserve.word before the call adds 2^32 + n to it, where n is the call's number of
 *                  entries. Tickets are unique and ascending. The low half is the producer index of the call's first
 *                  entry. A ticket with n = 0 is an empty ticket (flush, quiet, the owner of a queue).
 *   next ticket    of a ticket t with n entries: t + 2^32 + n. It need not have been taken yet.
 *   T              the ticket in lock.serving; it need not have been taken yet. T's group is the group that took or
 *                  will take it. Calls with tickets before T are served: their entries are in the ring. They are rung
 *                  for as well, unless the call deferred its doorbell.
 *   lock owner     the group that is the writer now. Not to be confused with the owner of a queue, a group that opened
 *                  its handle with Sharing::Thread, Warp or Block (post.h) and alone uses the queue.
 *   publish        to write a call's entries to publication slots, complete with phase and request id, and to store
 *                  their flags (publication.h). A group publishes its own call only, and only before it owns the lock.
 *   combine        to place and ring for calls that other groups published. Only the lock owner combines.
 *   return early   to return success from a published call before it is rung for. A group does so only if it has read
 *                  the state Open (STATES) after it published.
 *   end            the value of reserve.word that a combining lock owner loads after it has stored Closing. Each call
 *                  that returns early because of this owner's Open, or an earlier owner's, has a ticket before `end`,
 *                  also a call that returns after the load (combine.h).
 *
 * WORDS
 *   word                  | written by                    | read by             | ordered by
 *   reserve.word          | every group, by fetch_add;    | every group         | relaxed, the CAS acq_rel; carries no
 *                         | owners of a queue, by CAS     |                     |   data. F1, F2 (combine.h) order it
 *   lock.serving          | the lock owner                | every group         | A1, A3
 *   lock.doorbell_index,  | the lock owner, just before   | the next lock owner | relaxed: may be old (A1). A Ticket
 *   lock.confirmed_index  | it passes the lock            |                     |   loads serving and these two in 16
 *                         |                               |                     |   bytes; an owner of a queue loads
 *                         |                               |                     |   them after its acquire of serving
 *   publication entries,  | the group whose ticket        | the lock owner      | A2; reuse: A3
 *   publication flags     | reserved the slots            |                     |
 *   error.poison          | a leader, by CAS from 0; the  | every group         | relaxed; it carries no data
 *                         | host, if words are lost       |                     |
 *
 * PAIRS: a release, its acquire, and what the acquire makes visible.
 *   A1  The lock owner passes the lock: its group synchronises, then its leader stores serving with a release
 *       (pass_lock). The leader of a waiting group loads serving with an acquire, then its group synchronises
 *       (read_lock, share_lock_words).
 *       Visible: all that earlier groups wrote as lock owners: ring slots, doorbells, poster words and tracking.oldest
 *       (requests.h). Completion words have pairs of their own (cq.h).
 *       A group to which the lock is already passed when it takes its ticket has loaded serving relaxed (Ticket()).
 *       The next fence of its leader makes that load an acquire: the fence of acquire(), of the batch window, of its
 *       ring, or of release(), which fences whenever it does not ring. Before that fence, of what earlier lock owners
 *       wrote, the group stores only ring slots and poster words, and loads only tracking.oldest (limit_by_table()).
 *       These accesses depend on the load of T by a branch. That they therefore follow it is an assumption about the
 *       GPU and not an axiom of PTX (docs/fidelity.md).
 *       If release() passes on entries that are not rung for, the group synchronises, and then each thread that
 *       executes the group's fences (kAllThreadsFence in group.h) executes a system fence. PTX does not require the
 *       system scope: the next owner's ring fences at that scope, and fences are cumulative. The library keeps it
 *       until a real adapter has been tested without it.
 *       The two indices may be older than T, because the 16-byte load is two loads of 8 bytes. That is harmless: with
 *       an older doorbell_index the owner stores the same doorbell value once more; with an older confirmed_index it
 *       fences earlier than it must.
 *   A2  In publish(), the threads store entries, the group synchronises, and each thread executes fence_device() and
 *       stores its flag relaxed. The fence makes that store a release; R2 of requests.h uses the same fence. On a queue
 *       with a request table the thread stores its poster word after that fence, and fences again before the flag. The
 *       lock owner loads flags relaxed, then fences, then synchronises its group (scan_published).
 *       Visible: the published entries, and their poster words.
 *   A3  The lock owner copies published entries to the ring, rings (which fences), and stores serving relaxed, past
 *       their tickets (combine). A waiting group loads serving with an acquire, then synchronises.
 *       Visible: that the publication slots of these calls have been read, so that they may be written again.
 *       If a group places its own published call from registers, no group reads that call's publication slots. The
 *       next store of serving with a later T orders their reuse (table below).
 * All stores of serving are by the leader of the lock owner. The second column names the fence that makes each a
 * release:
 *   Open at its own ticket (acquire)              | fence_device() just before
 *   Open at its own ticket (release_published)    | the fence at the beginning of release_published()
 *   Open at the next ticket (combine)             | the fence of the ring before, or that of release()
 *   Open or Closing, with T advanced (combine)    | the fence of the ring before
 *   Closing (close_lock)                          | that of the store of serving before it
 *   Passed, PassedMustCombine (pass_lock)         | the store is a release
 *   Passed, by close() of a queue's owner (post.h)| the store is a release
 *
 * STATES. The low two bits of lock.serving are the state, the others T. A later group is a group with a ticket past T,
 * or with ticket T if another group owns the lock.
 *   state             | lock owner                  | later groups
 *   Passed            | T's group, once it has read | may publish, and wait. No call from T on has returned early. The
 *                     | this                        |   lock is free if no group has taken T: serving ==
 *                     |                             |   reserve.word << 2
 *   PassedMustCombine | T's group, once it has read | may publish, and wait. Calls after T, but not T, may have
 *                     | this                        |   returned early, so T's group must combine
 *   Open              | a group O, which combines   | may publish, and return early. O then combines the call, or
 *                     | calls from T on             |   passes the lock in PassedMustCombine
 *   Closing           | a group O, which combines   | may publish, and wait
 *                     | calls from T on             |
 * Only the lock owner stores serving. T's group owns the lock from the moment at which it reads one of the first two
 * states with its own ticket, whether it has published its call or not. Two exceptions: a group that reads a poison
 * when it takes its ticket abandons the ticket, even if the lock is passed to it; and a group whose wait for the lock
 * failed reads the lock once more but does not act on it, even if the lock was passed to it meanwhile.
 *   The lock owner first places its call, the first round from registers and each further round after it has made it.
 * Then it either
 *   - passes the lock to the next ticket in state Passed, after it has rung (unless the call deferred its doorbell), or
 *   - combines. It combines if it received the lock in PassedMustCombine, or if its last load of reserve.word showed
 *     later tickets with entries and the queue has publication slots: their groups could otherwise only wait. Empty
 *     tickets have nothing to combine.
 *     A block does not look for later tickets, because it has no vote to scan flags with. When it must combine, its
 *     leader does so as a one-thread group.
 * Exception: a call of several rounds that its group published before it owned the lock is no longer in registers. The
 * group places it from its publication slots, as the first call that it combines (release_published).
 *
 * A CALL THAT WAITS. The group of a call to which the lock was not passed when it took its ticket loads serving
 * (wait()). Then it acts on the first of these cases that applies; after cases 4 and 5 it begins again at case 1. To
 * load serving here is the leader's load with an acquire, followed by a group sync. wait() decides; publish() does what
 * case 4 says, and leader_wait_for_change() what case 5 says.
 *   1. T is past the call's ticket: the call is served, and the group returns.
 *   2. T is the call's ticket, and the state is Passed or PassedMustCombine: the group owns the lock.
 *   3. The call is published and has at most kMaxEarlyReturnEntries entries, the state is Open, and the call's slots
 *      are among the first kMaxEntriesAhead * (threads of the group) slots from T on: the group returns early. Each
 *      kind of lock owner finds a call of at most kMaxEarlyReturnEntries entries in one scan. The limit on slots bounds
 *      how many entries are ahead of a call that returned early.
 *   4. The call has entries and is not published, the queue has publication slots, and the call's slots are among the
 *      first publication.num_entries slots from T on: the group publishes the call, its leader executes F1 (combine.h),
 *      and the group loads serving. The calls that last used these publication slots have tickets before T, and no
 *      group reads the slots for them any more (A3). A block publishes only calls of one round.
 *   5. Otherwise the group loads serving until it changes.
 *
 * WAITS THAT RUN OUT
 *   wait                                   | at its bound
 *   for the lock (wait)                    | EFA_GDA_TIMEOUT_LOCK, with which the leader poisons the queue. Earlier, if
 *                                          |   the host raises the abort flag: the flag's status, with which the
 *                                          |   leader poisons the queue; if the queue is poisoned: EFA_GDA_POISONED.
 *                                          |   The flag is first read kAbortPollNs (100 us) after the clock
 *   of the lock owner, for free slots      | EFA_GDA_TIMEOUT_SLOTS (free_slots.h); the lock is not passed again, except
 *                                          |   by close() of a queue's owner (post.h)
 *   of quiet() as lock owner, for          | post.h: EFA_GDA_TIMEOUT_COMPLETION; the lock is not passed again, except
 *   completions                            |   by close() of a queue's owner
 * The bound of the wait for the lock is the handle's timeout. It begins again with each progress: a change of
 * lock.serving, or of completion.completed, because the lock owner may wait for a slow adapter. The first reading of
 * the clock is at the 32nd load after the last change of lock.serving, because each change begins a new Deadline. So a
 * waiting group poisons the queue with EFA_GDA_TIMEOUT_LOCK only if neither word has changed for the length of the
 * bound. While requests complete, the wait ends nevertheless: finitely many calls have earlier tickets, and each needs
 * finitely many requests to complete. The lock owner waits for nothing else: combine() ends after at most
 * kMaxOpenRounds rounds in Open and, in Closing, at most one round for each call before `end`. An owner of a queue
 * (post.h) keeps the lock until close(); a group that shares the queue by mistake waits on while the owner's requests
 * complete.
 *   After a poison, a waiting group returns EFA_GDA_POISONED after at most 32 loads of serving in a row that show no
 * change. Exception: a group that before that comes to case 1, 2 or 3 goes on as without the poison. A call that had
 * returned early is perhaps never rung for. Its group learns that from its next post(), flush() or quiet(), or from a
 * wait for these requests; close() of a shared handle looks at the poison only if its last post deferred the doorbell.
 *   A group whose wait for the lock failed must not use its ticket again. If it had published the call, a lock owner
 * may still place and ring for its entries. A lock owner whose wait for free slots failed must not call release(). If
 * combine() fails in release(), the owner's own entries are all rung for, although the call returns the failure; if it
 * fails in release_published(), they may not be.
 *
 * LIMITS that the callers keep: n is at most kMaxEntriesPerCall, and publication.num_entries is a power of two.
 *
 * WRAP-AROUNDS. The entries in reserve.word's low half carry into the high half every 2^32 entries; a ticket is one
 * 64-bit number, so order and slots stay right. lock.serving and flags hold tickets modulo 2^62, that is the number of
 * calls modulo 2^30. Tickets are compared by signed difference. At any time the calls that are not served are at most
 * one waiting call of each group, and those that returned early within the limit of case 3: together far fewer than
 * 2^29. A flag of an earlier lap matches again only if the producer index and the number of calls modulo 2^30 both
 * recur.
 */
#ifndef EFA_GDA_TICKET_LOCK_H
#define EFA_GDA_TICKET_LOCK_H

#include "combine.h"

namespace efa_gda {

/* How the wait of a ticket ended. */
enum class TicketOutcome {
  /* The group owns the lock. */
  Owner,
  /* The call is served, or may return early. */
  Served,
  /* The call may be published. */
  MayPublish,
  /* The wait failed; Ticket::status says how. */
  Failed
};

/* The lock as a leader last read it. */
struct LockReading {
  uint64_t serving = 0;
  /* doorbell_index in the low half, confirmed_index in the high half. */
  uint64_t indices = 0;
  /* Low half of reserve.word. */
  uint32_t reserved = 0;
};

/* One call's ticket. All threads of the group construct it and call each function together. Order of calls: Ticket(),
 * collect(); in post_shared() acquire_alone(); acquire_if_passed(), unless that returned true; then, unless
 * owns_lock(), wait(), and if that returns MayPublish publish() and wait() again. The lock owner calls
 * release_published() if it has published more than one round; otherwise it places the call's entries and calls
 * release(). If acquire_alone() returned true and the group has rung for the entries, it may call pass() in place of
 * release(). */
template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ticket {
 public:
  using RingOf = Ring<Group, StoreBytes>;

  /* A published call may return early only if its slots are among the first kMaxEntriesAhead * size() slots from T on;
   * size() is that of the waiting group. For a thread and a warp that is two of its flag windows (publication.h). */
  static constexpr uint32_t kMaxEntriesAhead = 2 * kFlagsPerThread<Group>;

  /* Takes a ticket for `count` entries and reads the lock. The accesses are in flight together, for one round trip;
   * collect() waits for them. */
  EFA_GDA_FN Ticket(efa_gda_queue *queue, RingOf &ring, const PublicationSlots &publication, uint32_t count)
      : queue_(queue), ring_(ring), publication_(publication), count_(count), ticket_(0), status_(EFA_GDA_OK) {
    if (ring.is_leader()) {
      ticket_ = fetch_add_relaxed(&queue->reserve.word, kOneCall + count + zero_by_thread());
      status_ = (efa_gda_status)load_relaxed(&queue->error.poison);
      lock_.reserved = (uint32_t)load_relaxed(&queue->reserve.word);
      load_relaxed_pair(&queue->lock.serving, lock_.serving, lock_.indices);
    }
  }
  /* Gives all threads what the leader read. */
  EFA_GDA_FN void collect() {
    Group group = ring_.group();
    ticket_ = group.from_leader(ticket_) << EFA_GDA_LOCK_STATE_BITS;
    share_lock_words(group, lock_);
    if (group.from_leader((uint32_t)status_) != EFA_GDA_OK) status_ = EFA_GDA_POISONED;
  }
  /* Makes the group the lock owner if the lock is passed to this ticket in Passed and others_wait() is false. This is
   * acquire_if_passed() for the usual case, with few branches. */
  EFA_GDA_FN bool acquire_alone() {
    if (!EFA_GDA_LIKELY(status_ == EFA_GDA_OK && lock_.serving == ticket_ && !others_wait())) return false;
    owns_lock_ = true;
    resume();
    return true;
  }
  /* Makes the group the lock owner if the lock is passed to this ticket. */
  EFA_GDA_FN void acquire_if_passed() {
    if (status_ == EFA_GDA_OK && is_passed_to(ticket_, lock_.serving)) acquire();
  }

  EFA_GDA_FN bool owns_lock() const { return owns_lock_; }
  /* Passes the lock to the next ticket, in Passed. */
  EFA_GDA_FN void pass() { pass_lock(queue_, ring_, next_ticket() | kPassed); }
  EFA_GDA_FN uint32_t first_slot() const { return (uint32_t)(ticket_ >> EFA_GDA_LOCK_STATE_BITS); }
  EFA_GDA_FN efa_gda_status status() const { return status_; }

  /* Waits until the group owns the lock or another group serves the call, or, if the group has not published the call,
   * until it may. */
  EFA_GDA_FN TicketOutcome wait(bool published, uint64_t timeout_ns) {
    if (status_ != EFA_GDA_OK) return TicketOutcome::Failed;
    Group group = ring_.group();
    bool can_publish = !published && count_ != 0 && ring_.has_publication_slots() &&
                       (Group::kCombines || count_ <= group.size());
    /* Ticket() loaded serving relaxed; this is an acquire. */
    read_lock();
    for (;;) {
      uint64_t serving = lock_.serving;
      if ((int64_t)((serving | kLockStateMask) - (ticket_ | kLockStateMask)) > 0) return TicketOutcome::Served;
      if (is_passed_to(ticket_, serving)) {
        acquire();
        return TicketOutcome::Owner;
      }
      /* Slots from T's first to this call's last. */
      uint32_t ahead = first_slot() + count_ - (uint32_t)(serving >> EFA_GDA_LOCK_STATE_BITS);
      if (published && count_ <= kMaxEarlyReturnEntries && (serving & kLockStateMask) == kOpen &&
          ahead <= kMaxEntriesAhead * group.size()) {
        return TicketOutcome::Served;
      }
      if (can_publish && ahead <= publication_.mask + 1) return TicketOutcome::MayPublish;
      uint32_t status = group.rank() == 0 ? leader_wait_for_change(serving, timeout_ns) : EFA_GDA_OK;
      share_lock_words(group, lock_);
      status = group.from_leader(status);
      if (status != EFA_GDA_OK) {
        status_ = (efa_gda_status)status;
        if (group.rank() == 0) poison(queue_, status_);
        return TicketOutcome::Failed;
      }
    }
  }

  /* Publishes the call, of which `share` holds the first round: makes its further rounds. Then executes F1. */
  template <class Make>
  EFA_GDA_FN void publish(EntryShare &share, Make make) {
    Group group = ring_.group();
    const PublicationSlots &publication = publication_;
    for (;;) {
      uint32_t slot = first_slot() + share.first, n = share.end - share.first;
      auto store = [&](uint32_t offset, const Quad &quad) { store_quad_local(publication.entries + offset, quad); };
      ring_.store_share(share, 0, n, slot, publication.mask, store);
      /* A thread's release below covers what all threads stored before this sync. */
      group.sync();
      if (group.rank() < n) {
        uint32_t i = share.first + group.rank();
        /* The release of A2, and R2 (requests.h). A poster word comes after it, and needs a release of its own. */
        fence_device();
        if (ring_.mark_posted(0, n, slot)) fence_device();
        store_relaxed(publication.flag(slot + group.rank()), flag_of(ticket_, i) | (i + 1 == count_ ? kLastSlot : 0));
      }
      if (EFA_GDA_LIKELY(share.end == count_)) break;
      ring_.make(share, share.end, ring_.end_of_round(share.end, count_), make);
    }
    group.sync();
    /* F1. */
    if (ring_.is_leader()) fence_device_ordered();
  }

  /* Places the call that the group published before it owned the lock, from its publication slots, rings, combines, and
   * passes the lock. A block never calls this: it publishes no call of several rounds. */
  EFA_GDA_FN efa_gda_status release_published(uint64_t timeout_ns) {
    /* Groups that acquire the Open of combine() then also see what the previous lock owner released. */
    if (ring_.is_leader()) fence_device();
    return combine_from(ticket_, count_, timeout_ns);
  }

  /* Ends the group's time as lock owner, after the call's entries are placed: rings for them if `rings` or if it
   * combines, combines if it must or if other groups wait, and passes the lock. */
  EFA_GDA_FN efa_gda_status release(bool rings, uint64_t timeout_ns) {
    bool combines = must_combine_ || others_wait(),
         rang = (rings || combines) && ring_.next() != ring_.doorbell_index();
    if (EFA_GDA_LIKELY(rang)) ring_.ring();
    if (!rang) {
      /* Acquires serving where Ticket() loaded it relaxed and no ring fenced since (A1). For deferred entries, which a
       * later call rings for, PTX needs only a device fence. The system fence stays until a real adapter has been
       * tested without it. */
      if (ring_.next() != ring_.doorbell_index()) {
        ring_.order_placed();
      } else if (ring_.is_leader()) {
        fence_device();
      }
    }
    if (EFA_GDA_LIKELY(!combines)) {
      pass();
      return EFA_GDA_OK;
    }
    return combine_from(next_ticket(), 0, timeout_ns);
  }

 private:
  /* Loads the lock's words with an acquire. */
  EFA_GDA_FN static void leader_read_lock(const efa_gda_queue *queue, LockReading &lock) {
    lock.reserved = (uint32_t)load_relaxed(&queue->reserve.word);
    load_acquire_pair(&queue->lock.serving, lock.serving, lock.indices);
  }
  EFA_GDA_FN static void share_lock_words(Group group, LockReading &lock) {
    lock.serving = group.from_leader(lock.serving);
    lock.indices = group.from_leader(lock.indices);
    if constexpr (Group::kCombines) lock.reserved = group.from_leader(lock.reserved);
    group.sync();
  }

  EFA_GDA_FN static bool is_passed_to(uint64_t ticket, uint64_t serving) {
    return (serving & ~(uint64_t)kPassedMustCombine) == ticket;
  }

  /* Loads the lock's words with an acquire, for all threads. */
  EFA_GDA_FN void read_lock() {
    if (ring_.is_leader()) leader_read_lock(queue_, lock_);
    share_lock_words(ring_.group(), lock_);
  }

  /* Loads of serving after each of its changes before the clock is read: most waits end earlier. */
  static constexpr uint32_t kLoadsWithoutClock = 31;

  /* Reads the lock until serving is not `before`. */
  EFA_GDA_FN efa_gda_status leader_wait_for_change(uint64_t before, uint64_t timeout_ns) {
    uint32_t loads = 0;
    do {
      leader_read_lock(queue_, lock_);
      if (lock_.serving != before) return EFA_GDA_OK;
      pause();
    } while (++loads != kLoadsWithoutClock);
    efa_gda_status status = leader_wait_long(queue_, before, timeout_ns);
    leader_read_lock(queue_, lock_);
    return status;
  }
  /* The rest of that wait, with a clock. Its Deadline is in the thread's memory, and each acquire makes the next access
   * to that slow; so the first loads do without. */
  EFA_GDA_COLD static efa_gda_status leader_wait_long(const efa_gda_queue *queue, uint64_t before,
                                                      uint64_t timeout_ns) {
    /* A new one each time that the lock has moved. */
    Deadline deadline(queue, timeout_ns, &queue->completion.completed, Deadline::kAbortPollNs);
    efa_gda_status status = EFA_GDA_OK;
    while (status == EFA_GDA_OK && load_acquire(&queue->lock.serving) == before) {
      status = deadline.expired(EFA_GDA_TIMEOUT_LOCK);
    }
    return status;
  }

  EFA_GDA_FN uint64_t next_ticket() const { return ticket_ + ((kOneCall + count_) << EFA_GDA_LOCK_STATE_BITS); }

  /* Whether this group should combine: its kind can (Group::kCombines), and the tickets that other groups had taken
   * after this one, when the leader last read reserve.word, have entries. */
  EFA_GDA_FN bool others_wait() const {
    return Group::kCombines && lock_.reserved != first_slot() + count_ && ring_.has_publication_slots();
  }

  EFA_GDA_FN void resume() {
    ring_.resume(ticket_ >> EFA_GDA_LOCK_STATE_BITS, (uint32_t)lock_.indices, (uint32_t)(lock_.indices >> 32));
  }

  /* Makes the group the lock owner, and opens the lock if others_wait(). */
  EFA_GDA_FN void acquire() {
    owns_lock_ = true;
    must_combine_ = (lock_.serving & kPassedMustCombine) != 0;
    resume();
    if (!EFA_GDA_LIKELY(!others_wait()) && ring_.is_leader()) {
      /* Groups that acquire the Open below then also see what the previous lock owner released. */
      fence_device();
      store_relaxed(&queue_->lock.serving, ticket_ | kOpen);
    }
  }

  /* Calls combine(), as one thread if the group is a block. */
  EFA_GDA_FN efa_gda_status combine_from(uint64_t serving, uint32_t own, uint64_t timeout_ns) {
    Group group = ring_.group();
    Completions more;
    uint64_t result = 0;
    if constexpr (Group::kCombines) {
      RingOf ring = ring_;
      result = combine(queue_, &ring, publication_, serving, own, timeout_ns, &more);
    } else {
      group.sync();
      if (ring_.is_leader()) {
        Ring<ThreadGroup, StoreBytes> leader_ring(queue_, ThreadGroup());
        leader_ring.resume_from(ring_);
        result = combine(queue_, &leader_ring, publication_, serving, own, timeout_ns, &more);
      }
      /* Each thread keeps its old limit; the new one is dropped, because the other threads have not fenced for it
       * (R2). */
      result = group.from_leader(result & ~(uint64_t)0 << 32) | ring_.free_limit();
    }
    ring_.add_completions(more);
    ring_.set_free_limit((uint32_t)result);
    return (efa_gda_status)(result >> 32);
  }

  efa_gda_queue *queue_;
  RingOf &ring_;
  const PublicationSlots &publication_;
  uint32_t count_;
  /* As lock.serving holds it: shifted. */
  uint64_t ticket_;
  LockReading lock_;
  bool owns_lock_ = false, must_combine_ = false;
  efa_gda_status status_;
};

}  // namespace efa_gda

#endif
