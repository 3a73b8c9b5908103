/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ticket lock of a shared send queue, with flat combining: any number of groups take tickets, one group at a time
 * owns the lock and is the queue's writer (sq.h), and groups that wait publish their entries so that the lock owner can
 * place and ring for them. This file decides which group is the writer; sq.h states what the writer does.
 *
 * TERMS. Group, leader, handle, call, entry, quad, round, place, ring, poison, abort flag: see sq.h. The low
 * and the high half of a 64-bit word are its low and its high 32 bits.
 *   ticket         the value of reserve.word before the call's fetch_add of 2^32 + n, where n is the call's number of
 *                  entries. Tickets are unique and ascending. The low half is the producer index of the call's first
 *                  entry. A ticket with n = 0 is an empty ticket (flush, quiet, the owner of a queue).
 *   next ticket    of a ticket t with n entries: t + 2^32 + n. It need not have been taken yet.
 *   T              the ticket in lock.serving; it need not have been taken yet. T's group is the group that took or will
 *                  take it. Calls with tickets before T are served: their entries are in the ring,
 *                  and rung for unless the call deferred its doorbell.
 *   lock owner     the group that is the writer now. Not to be confused with the owner of a queue, a group that opened
 *                  its handle with Sharing::Thread, Warp or Block (post.h) and is the only one to use the queue.
 *   publish        to write a call's entries to publication slots, complete with phase and request id, and to
 *                  store their flags with a release. A group publishes its own call only, and only before it owns the lock.
 *   combine        to place and ring for calls that other groups published. Only the lock owner combines.
 *   return early   to return success from a published call before it is rung for.
 *   end            a limit that the lock owner reads from reserve.word: no call with a ticket at or past it has
 *                  returned early.
 *
 * WORDS
 *   word                  | written by                    | read by             | ordered by
 *   reserve.word          | every group, by fetch_add;    | every group         | relaxed; carries no data. The fences F1
 *                         | owners of a queue, by CAS     |                     |   and F2 below order it
 *   lock.serving          | the lock owner. To become it  | every group         | A1, A3
 *                         | in PassedMustServe, two       |                     |
 *                         | groups try a CAS (below)      |                     |
 *   lock.doorbell_index,  | the lock owner, just before   | the next lock owner | A1; one 16-byte load reads serving and
 *   lock.confirmed_index  | it passes the lock            |                     |   these two
 *   publication entries   | the group of the ticket whose | the lock owner      | A2; reuse: A3
 *   publication flags     | slots they are                |                     |
 *   error.poison          | a leader whose wait failed    | every group         | relaxed; carries no data (sq.h)
 *
 * PAIRS: a release, its acquire, and what the acquire makes visible.
 *   A1  pass_lock() stores serving with a release.
 *       A waiting group loads serving with an acquire (read_lock). A group that finds the lock
 *       passed to it when it takes its ticket has loaded serving relaxed, in Ticket(). The next fence of its leader makes
 *       that load an acquire. It is the first of: the fence in acquire() that precedes the store of Open; the fence of its
 *       ring; the fence in release() if it does not ring.
 *       Visible: all that earlier lock owners wrote: ring slots and doorbells. For the two indices see below.
 *       Before that fence the new owner stores only ring slots. They depend on the loaded T by control flow, and on
 *       slots being free, which it knows from an acquire of `completed` of its own. The indices need not be as new
 *       as T: the 16-byte load, relaxed or acquire, is two loads of 8 bytes. That is harmless: with an older doorbell_index the owner
 *       stores the same doorbell value once more; with an older confirmed_index it fences earlier than it must.
 *   A2  publish() stores each flag with a release, after a group sync that orders all threads' entries before it.
 *       scan_published() loads flags relaxed, then fences, then synchronises its group.
 *       Visible: the published entries.
 *   A3  combine() copies published entries to the ring, rings (which fences), and stores serving = T' relaxed.
 *       A waiting group loads serving with an acquire.
 *       Visible: that the publication slots of all calls before T' have been read, so that they may be written again.
 *
 * STATES. The low two bits of lock.serving are the state, the others T. "Later group": a group with a ticket past T, or with ticket T if
 * another group owns the lock.
 *   state           | lock owner                | a later group may
 *   Passed          | T's group, as soon as it  | publish, wait. No later group has returned early. The lock is free if
 *                   | reads this                |   T has not been handed out: serving == reserve.word << 2
 *   PassedMustServe | T's group, or the group   | publish, wait. Later groups may have returned early, so the new owner
 *                   | that passed the lock: if  |   must combine
 *                   | T's group has published,  |
 *                   | the CAS below decides     |
 *   Open            | a group O, which serves   | publish, and return early. O will scan the flags again before it
 *                   | calls from T on           |   passes the lock
 *   Closing         | a group O, which serves   | publish, wait
 *                   | calls from T on           |
 * Transitions, all by the lock owner O except where stated. T' is the ticket after the last call served, past T.
 *   Passed(T)          -> Passed(T')          O, T's group, has placed its own entries, and has rung unless it deferred
 *                                             its doorbell. In addition, either O saw no other ticket when it read
 *                                             reserve.word, or O is a block. The owner of a queue makes the same
 *                                             transition when it closes its handle (post.h)
 *   Passed(T)          -> Open(T)             O, T's group, saw other tickets when it acquired the lock: acquire()
 *   PassedMustServe(T) -> Open(T)             the same, by a plain store, if T's group had not published its call: then
 *                                             no other group tries the CAS
 *   PassedMustServe(T) -> Closing(T)          CAS, by T's group if it had published its call, or by the group that
 *                                             passed the lock. The winner is O. If T's group loses, it reads
 *                                             serving again and continues with step 1 below; if the other group
 *                                             loses, it returns to its caller
 *   Closing(T)         -> Open(T)             O, T's group, won the CAS and saw other tickets: acquire()
 *   any state at T     -> Open(T')            O, T's group, has placed and rung for its own call, T' is the next
 *                                             ticket, and O begins to combine: combine()
 *   Open(T)            -> Open(T')            O combined the calls from T to T'
 *   Open(T)            -> Closing(T)          O found nothing published, or combined kMaxOpenRounds times. O then reads
 *                                             `end`
 *   Closing(T)         -> Closing(T')         O combined the calls from T to T'
 *   Closing(T)         -> Passed(T)           T is at or past `end`
 *   Closing(T)         -> PassedMustServe(T)  T is before `end`, and T's call is not published
 * O begins to combine if it received the lock in PassedMustServe, or saw other tickets. A block does not look for other
 * tickets, because it has no vote to scan flags with; when it must combine, its leader does so as a one-thread group.
 * Without publication slots there is only Passed(T) -> Passed(T').
 *
 * A CALL that did not receive the lock with its ticket repeats these steps in this order (wait()). In each step, "load
 * serving" is an acquire, and the call continues with step 1 afterwards.
 *   1. T is past its ticket: return, the call is served.
 *   2. The state is Passed or PassedMustServe and T is its ticket: own the lock. If it has published and the state is
 *      PassedMustServe, this needs the CAS. If it loses the CAS, load serving: the winner may have served the call already.
 *   3. It has published, the state is Open, it has at most kMaxEarlyReturnEntries entries, and its slots are among the
 *      first kMaxEntriesAhead * (threads of its group) slots from T on: return early. Each kind of lock owner sees a call
 *      of this size in one scan. The second limit, on the slots from T on, bounds how many entries a lock owner has to
 *      combine.
 *   4. It has entries, has not published them, and its slots are among the first publication.num_entries slots from T
 *      on, so no call before T needs these publication slots any more (A3): publish, execute F1 (below), load serving.
 *   5. Otherwise load serving until it changes.
 *
 * FLAGS. The flag of a call's i-th entry is (ticket + i + 1) << 2, plus kLastSlot on the call's last entry and
 * kMayReturnEarly if the call may return early. The lock owner knows T, so it knows the value, without the low two bits,
 * that each flag must have: the first is (T + 1) << 2; each further one is 1 << 2 more than the flag before, and, if the
 * flag before has kLastSlot, 2^32 << 2 more in addition. It combines whole calls, from T on, up to the first flag that
 * does not match. Three kinds of flags do not match: a flag of an earlier lap, a flag that is not published yet, and
 * the flag of a call after an empty ticket. An empty ticket has no slot and no flag, but it adds 2^32 to the flags of the
 * next call, so the lock owner stops before it.
 *
 * WHY AN EARLY RETURN IS SAFE. F1, F2 and F3 are fence_device_ordered() (fence.sc.gpu); such fences have one total
 * order. Group P, with ticket p, takes its ticket, publishes, executes F1, and then loads serving. Lock owner O stores
 * Closing, executes F2, and then loads reserve.word: `end`.
 *   F1 before F2: O's load sees P's fetch_add, so p is before `end`.
 *   F2 before F1: P's load sees Closing or a later value. If that later value is Open, another lock owner stored it,
 *                 whose own Closing comes later; the argument applies to that owner.
 * So each call that returned early because of O's Open has a ticket before O's `end`. O combines until T reaches `end`,
 * or passes the lock in PassedMustServe. The group that receives the lock in PassedMustServe combines until an `end`
 * that it reads itself. That `end` is not before O's, because reserve.word only grows. So each call that returned early
 * is rung for.
 *
 * WHY PassedMustServe NEEDS THE CAS. O passes the lock at a ticket T that its last scan did not find published. Between
 * that scan and O's Closing, T's group may have published, seen Open and returned: then it will never acquire the lock.
 * So O stores PassedMustServe(T), executes F3, and loads T's first flag. T's group executes F1 after it stored its
 * flags, and then loads serving.
 *   F1 before F3: O sees the flag.
 *   F3 before F1: T's group has not returned early, and its load sees PassedMustServe(T).
 * In the first case T's group may also see PassedMustServe(T), in a later load of serving. So both groups may
 * expect to own the lock; both then try the CAS from PassedMustServe(T) to Closing(T),
 * and one wins. If O wins, it combines T's call; while it does not see all flags of that call, it passes the lock in
 * PassedMustServe again. O tries only if the flag has kMayReturnEarly: without it T's group cannot have returned, and
 * takes the lock itself. A group that has not published needs no CAS: O sees no flag of it, and once it owns the lock it does
 * not publish.
 *
 * BOUNDS. A lock owner combines in Open at most kMaxOpenRounds times, then until `end`, then returns to its caller.
 *
 * WAITS THAT RUN OUT
 *   wait                                   | at its bound
 *   for the lock (wait)                    | EFA_GDA_TIMEOUT_LOCK; the leader poisons the queue with it. If the host
 *                                          |   raises the abort flag earlier: the status that the flag holds, with which
 *                                          |   the leader poisons the queue too. If the queue is poisoned earlier: EFA_GDA_POISONED
 *   of the lock owner, for free slots      | sq.h; the lock is never passed again
 *   of the lock owner, for T's group to    | has no clock: that group stores the rest of its flags without waiting for
 *   finish publishing (combine)            |   anything. Poison ends it, also that of an abort
 * After that, waiting groups return EFA_GDA_POISONED. A call that had returned early is then perhaps never rung for;
 * its group learns that from the status of its next call, or of quiet. A group whose wait for the lock
 * failed must not use its ticket again. If it had published, a lock owner may still place and ring for its entries. A lock
 * owner whose wait for free slots failed must not call release().
 *
 * LIMITS that the callers keep: n is at most kMaxEntriesPerCall, and publication.num_entries is a power of two.
 *
 * WRAP-AROUNDS. The entries in reserve.word's low half carry into the high half every 2^32 entries; a ticket is one
 * 64-bit number, so order and slots stay right. lock.serving and flags hold tickets modulo 2^62, that is the number of
 * calls modulo 2^30. Tickets are compared by signed difference; outstanding calls are as many as groups of the grid,
 * far fewer than 2^29. A flag of an earlier lap matches again only if the producer index and the number of calls modulo
 * 2^30 both recur.
 */
#ifndef EFA_GDA_TICKET_LOCK_H
#define EFA_GDA_TICKET_LOCK_H

#include "sq.h"

namespace efa_gda {

/* What a call adds to reserve.word besides its number of entries. */
constexpr uint64_t kOneCall = (uint64_t)1 << 32;

/* Low bits of lock.serving. */
enum LockState : uint64_t { kPassed = 0, kClosing = 1, kPassedMustServe = 2, kOpen = 3 };
constexpr uint64_t kLockStateMask = 3;
/* Low bits of a publication flag. */
enum PublicationFlag : uint64_t { kLastSlot = 1, kMayReturnEarly = 2 };
constexpr uint64_t kPublicationFlagMask = 3;
static_assert(kLockStateMask == ((uint64_t)1 << EFA_GDA_LOCK_STATE_BITS) - 1 && kPublicationFlagMask == kLockStateMask,
              "tickets are shifted by EFA_GDA_LOCK_STATE_BITS in lock.serving and in flags");
/* The most entries of a call that may return early: as many as each kind of lock owner sees in one scan. */
constexpr uint32_t kMaxEarlyReturnEntries = 32;

/* How the wait of a ticket ended. */
enum class TicketOutcome {
  /* The group owns the lock. */
  Owner,
  /* Another group has placed and rung for the entries, or will. */
  Served,
  /* The wait failed; Ticket::status says how. */
  Failed
};

/* The publication slots' geometry, in registers: the compiler would otherwise read it from the queue after each fence. */
struct PublicationSlots {
  uint8_t *entries;
  uint64_t *flags;
  uint32_t mask, entry_shift;
  /* 0, in a form that the compiler does not recognise as one (zero_by_thread() in platform.h). */
  uint32_t zero;
  bool present;

  EFA_GDA_FN PublicationSlots()
      : entries(nullptr), flags(nullptr), mask(0), entry_shift(0), zero(0), present(false) {}
  EFA_GDA_FN explicit PublicationSlots(const efa_gda_queue *queue)
      : entries(queue->publication.entries),
        flags(queue->publication.flags),
        mask(queue->publication.num_entries - 1),
        entry_shift(queue->sq.entry_size == 128 ? 7 : 6),
        zero(zero_by_thread()),
        present(queue->publication.num_entries != 0) {}

  EFA_GDA_FN const uint8_t *entry(uint32_t slot) const { return entries + ((slot & mask) << entry_shift); }
  EFA_GDA_FN uint64_t *flag(uint32_t slot) const { return flags + (slot & mask); }
};

/* One call's ticket. All threads of the group construct it and call each function together. Order of calls: Ticket(),
 * collect(), wait() unless owns_lock(), and as the lock owner release() after the call's entries are placed. */
template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ticket {
 public:
  using RingOf = Ring<Group, StoreBytes>;

  /* Flags that each thread of a lock owner reads in one scan. */
  static constexpr int kFlagsPerThread = Group::kSingleThread ? kMaxEarlyReturnEntries : 16;
  /* Quads of published entries that each thread reads before it stores the first of them. */
  static constexpr int kQuadsPerThread = 16;
  /* Scans, each followed by combining, that a lock owner makes in Open before it stores Closing. */
  static constexpr int kMaxOpenRounds = 16;
  /* Further scans for calls that have a ticket and are not published yet. */
  static constexpr int kMaxRescans = 2;
  /* A call returns early only if its last slot is at most this number, times the threads of its group, past T. A lock
   * owner of the same kind reads that many flags in two scans. */
  static constexpr uint32_t kMaxEntriesAhead = 2 * kFlagsPerThread;

  /* Takes a ticket for `count` entries and reads the lock. The accesses are in flight together, for one round trip;
   * collect() waits for them. */
  EFA_GDA_FN Ticket(efa_gda_queue *queue, RingOf &ring, const PublicationSlots &publication, uint32_t count)
      : queue_(queue), ring_(ring), publication_(publication), count_(count), ticket_(0), serving_(0), indices_(0),
        status_(EFA_GDA_OK) {
    if (ring.is_leader()) {
      ticket_ = fetch_add_relaxed(&queue->reserve.word, kOneCall + count + publication.zero);
      status_ = (efa_gda_status)load_relaxed(&queue->error.poison);
      reserved_ = (uint32_t)load_relaxed(&queue->reserve.word);
      load_relaxed_pair(&queue->lock.serving, serving_, indices_);
    }
  }
  /* Gives all threads what the leader read. Owns the lock if serving is Passed or PassedMustServe at this ticket. */
  EFA_GDA_FN void collect() {
    Group group = ring_.group();
    ticket_ = group.from_leader(ticket_) << EFA_GDA_LOCK_STATE_BITS;
    serving_ = group.from_leader(serving_);
    indices_ = group.from_leader(indices_);
    if constexpr (Group::kCombines) reserved_ = group.from_leader(reserved_);
    group.sync();
    if (group.from_leader((uint32_t)status_) != EFA_GDA_OK) {
      status_ = EFA_GDA_POISONED;
    } else if (is_passed_to_this()) {
      acquire();
    }
  }

  EFA_GDA_FN bool owns_lock() const { return owns_lock_; }
  EFA_GDA_FN uint32_t first_slot() const { return (uint32_t)(ticket_ >> EFA_GDA_LOCK_STATE_BITS); }
  EFA_GDA_FN efa_gda_status status() const { return status_; }

  /* Waits until the group owns the lock, or another group serves the call. `share` and `make` are those of
   * Ring::place_entries; publishing overwrites `share` where the call has more than one round of entries. */
  template <class Make>
  EFA_GDA_FN TicketOutcome wait(EntryShare &share, Make make, uint64_t timeout_ns) {
    if (status_ != EFA_GDA_OK) return TicketOutcome::Failed;
    Deadline deadline(queue_, timeout_ns, Deadline::kAbortPollNs);
    bool can_publish = count_ != 0 && publication_.present, published = false,
         may_return_early = count_ <= kMaxEarlyReturnEntries;
    /* Ticket() loaded serving relaxed; this is an acquire. */
    read_lock();
    for (;;) {
      if ((int64_t)((serving_ | kLockStateMask) - (ticket_ | kLockStateMask)) > 0) return TicketOutcome::Served;
      if (is_passed_to_this()) {
        if (!published || claim_lock(queue_, ring_, serving_)) {
          acquire();
          return TicketOutcome::Owner;
        }
        /* The group that passed the lock owns it again, and may already have combined this call and stored Passed(T'). Then
         * serving does not change again until another group takes a ticket, so step 5 could wait in vain. */
        read_lock();
        continue;
      }
      if (published && may_return_early && (serving_ & kLockStateMask) == kOpen &&
          slots_from_serving() <= kMaxEntriesAhead * ring_.group().size()) {
        return TicketOutcome::Served;
      }
      if (can_publish && !published && slots_from_serving() <= publication_.mask + 1) {
        publish(share, make, may_return_early ? (uint64_t)kMayReturnEarly : 0);
        published = true;
        ring_.group().sync();
        /* F1. */
        if (ring_.is_leader()) fence_device_ordered();
        read_lock();
        continue;
      }
      uint64_t before = serving_;
      uint32_t status = EFA_GDA_OK;
      if (ring_.is_leader()) {
        do {
          leader_read_lock();
        } while (serving_ == before && (status = deadline.expired(EFA_GDA_TIMEOUT_LOCK)) == EFA_GDA_OK);
      }
      share_lock_words();
      status = ring_.group().from_leader(status);
      if (status != EFA_GDA_OK) {
        status_ = (efa_gda_status)status;
        if (ring_.is_leader()) poison(queue_, status_);
        return TicketOutcome::Failed;
      }
    }
  }

  /* Ends the group's time as lock owner, after the call's entries are placed: rings for them if `rings` or if it
   * combines, combines if it must or if other groups wait, and passes the lock. */
  EFA_GDA_FN efa_gda_status release(bool rings, uint64_t timeout_ns) {
    bool combines = must_combine_ || others_wait(),
         rang = (rings || combines) && ring_.next() != ring_.doorbell_index();
    if (EFA_GDA_LIKELY(rang)) ring_.ring();
    /* Acquires serving where Ticket() loaded it relaxed and no ring fenced since (A1). */
    if (!rang && ring_.is_leader()) fence_device();
    if (EFA_GDA_LIKELY(!combines)) {
      pass_lock(queue_, ring_, serving_ | kPassed);
      return EFA_GDA_OK;
    }
    efa_gda_status status = EFA_GDA_OK;
    if constexpr (Group::kCombines) {
      RingOf ring = ring_;
      status = combine(queue_, &ring, publication_, serving_, timeout_ns);
      ring_ = ring;
    } else {
      Group group = ring_.group();
      uint32_t combined = EFA_GDA_OK;
      group.sync();
      if (ring_.is_leader()) {
        using LeaderTicket = Ticket<ThreadGroup, StoreBytes>;
        typename LeaderTicket::RingOf leader_ring(queue_, ThreadGroup());
        leader_ring.resume_from(ring_);
        combined = LeaderTicket::combine(queue_, &leader_ring, publication_, serving_, timeout_ns);
        ring_.completions() = leader_ring.completions();
      }
      status = (efa_gda_status)group.from_leader(combined);
    }
    return status;
  }

  /* Combines calls from ticket `serving` on, and passes the lock. The caller must have rung for everything placed. A
   * status other than EFA_GDA_OK: the lock was not passed. */
  EFA_GDA_COLD static efa_gda_status combine(efa_gda_queue *queue, RingOf *caller_ring, PublicationSlots publication,
                                             uint64_t serving, uint64_t timeout_ns) {
    RingOf ring = *caller_ring;
    efa_gda_status status = EFA_GDA_OK;
    uint64_t end = 0;
    LockState state = kOpen;
    if (ring.is_leader()) store_relaxed(&queue->lock.serving, serving | state);
    for (int round = 0;; round++) {
      uint64_t after = serving;
      uint32_t count = scan_published(queue, ring, publication, round != 0 && state == kOpen, after);
      if (count != 0) {
        auto copy = [&](uint32_t, uint32_t n, uint32_t slot) { copy_published(ring, publication, slot, n); };
        status = ring.place(count, copy, timeout_ns);
        if (status != EFA_GDA_OK) break;
        ring.ring();
        serving = after;
        /* The ring's fence orders the copies before this store (A3). */
        if (ring.is_leader()) store_relaxed(&queue->lock.serving, serving | state);
      }
      if (state == kOpen && (count == 0 || round + 1 == kMaxOpenRounds)) {
        state = kClosing;
        end = close_lock(queue, ring, serving);
      }
      if (state == kClosing) {
        if ((int64_t)(end - serving) <= 0) {
          pass_lock(queue, ring, serving | kPassed);
          break;
        }
        if (count == 0) {
          if (!pass_and_reclaim(queue, ring, publication, serving)) break;
          /* This wait has no clock, so poison by any group ends it. */
          uint32_t poisoned = ring.is_leader() ? load_relaxed(&queue->error.poison) : 0;
          status = ring.group().from_leader(poisoned) != EFA_GDA_OK ? EFA_GDA_POISONED : EFA_GDA_OK;
          if (status != EFA_GDA_OK) break;
        }
      }
    }
    *caller_ring = ring;
    return status;
  }

 private:
  template <class, int>
  friend class Ticket;

  /* Loads the lock's words with an acquire, for all threads. */
  EFA_GDA_FN void read_lock() {
    if (ring_.is_leader()) leader_read_lock();
    share_lock_words();
  }
  EFA_GDA_FN void leader_read_lock() {
    reserved_ = (uint32_t)load_relaxed(&queue_->reserve.word);
    load_acquire_pair(&queue_->lock.serving, serving_, indices_);
  }
  EFA_GDA_FN void share_lock_words() {
    Group group = ring_.group();
    serving_ = group.from_leader(serving_);
    indices_ = group.from_leader(indices_);
    if constexpr (Group::kCombines) reserved_ = group.from_leader(reserved_);
    group.sync();
  }

  /* Slots from T's first to this call's last. */
  EFA_GDA_FN uint32_t slots_from_serving() const {
    return first_slot() + count_ - (uint32_t)(serving_ >> EFA_GDA_LOCK_STATE_BITS);
  }

  EFA_GDA_FN bool is_passed_to_this() const { return (serving_ & ~(uint64_t)kPassedMustServe) == ticket_; }

  /* Tries to own a lock that was passed at `serving`. Called by the group of the ticket if it has published its call, and
   * by the group that passed the lock in PassedMustServe. In state Passed only the former calls it, and owns the lock
   * without a CAS. In state PassedMustServe the CAS decides. */
  EFA_GDA_FN static bool claim_lock(efa_gda_queue *queue, const RingOf &ring, uint64_t serving) {
    if ((serving & kLockStateMask) == kPassed) return true;
    uint64_t before = serving;
    if (ring.is_leader()) {
      before = compare_swap(&queue->lock.serving, serving, (serving & ~kLockStateMask) | kClosing);
    }
    return ring.group().from_leader(before) == serving;
  }

  /* Whether this group should combine: its kind can (Group::kCombines), and other groups had taken tickets with entries
   * after this one when the leader last read reserve.word. */
  EFA_GDA_FN bool others_wait() const {
    return Group::kCombines && publication_.present && reserved_ != first_slot() + count_;
  }

  /* Makes the group the lock owner, and opens the lock if other groups wait. From here on serving_ is the next ticket. */
  EFA_GDA_FN void acquire() {
    owns_lock_ = true;
    must_combine_ = (serving_ & kPassedMustServe) != 0;
    ring_.resume(ticket_ >> EFA_GDA_LOCK_STATE_BITS, (uint32_t)indices_, (uint32_t)(indices_ >> 32));
    if (!EFA_GDA_LIKELY(!others_wait()) && ring_.is_leader()) {
      /* Groups that acquire the Open below then also see what the previous lock owner released. */
      fence_device();
      store_relaxed(&queue_->lock.serving, ticket_ | kOpen);
    }
    serving_ = ticket_ + ((kOneCall + count_) << EFA_GDA_LOCK_STATE_BITS);
  }

  /* Stores both indices, then `serving` with a release. */
  EFA_GDA_FN static void pass_lock(efa_gda_queue *queue, const RingOf &ring, uint64_t serving) {
    ring.group().sync();
    if (ring.is_leader()) {
      store_relaxed(reinterpret_cast<uint64_t *>(&queue->lock.doorbell_index),
                    (uint64_t)ring.leader_confirmed_index() << 32 | ring.doorbell_index());
      store_release(&queue->lock.serving, serving);
    }
  }

  /* Ends early returns, and returns `end`, shifted as lock.serving is. */
  EFA_GDA_FN static uint64_t close_lock(efa_gda_queue *queue, const RingOf &ring, uint64_t serving) {
    uint64_t end = 0;
    if (ring.is_leader()) {
      store_relaxed(&queue->lock.serving, serving | kClosing);
      /* F2. */
      fence_device_ordered();
      end = load_relaxed(&queue->reserve.word) << EFA_GDA_LOCK_STATE_BITS;
    }
    return ring.group().from_leader(end);
  }

  /* Passes the lock in PassedMustServe. Returns true if this group owns it again, because the group of the ticket may
   * have returned early. */
  EFA_GDA_FN static bool pass_and_reclaim(efa_gda_queue *queue, const RingOf &ring, const PublicationSlots &publication,
                                          uint64_t serving) {
    uint64_t passed = serving | kPassedMustServe;
    pass_lock(queue, ring, passed);
    bool may_have_returned = false;
    if (ring.is_leader()) {
      /* F3. */
      fence_device_ordered();
      uint64_t flag = load_relaxed(publication.flag((uint32_t)(serving >> EFA_GDA_LOCK_STATE_BITS)));
      may_have_returned = (flag & ~(uint64_t)kLastSlot) == (flag_of(serving, 0) | kMayReturnEarly);
    }
    return ring.group().from_leader((uint32_t)may_have_returned) != 0 && claim_lock(queue, ring, passed);
  }

  /* The flag of entry i of the call with this ticket (shifted), without its low bits. */
  EFA_GDA_FN static uint64_t flag_of(uint64_t ticket, uint64_t i) { return ticket + ((i + 1) << EFA_GDA_LOCK_STATE_BITS); }

  template <class Make>
  EFA_GDA_FN void publish(EntryShare &share, Make make, uint64_t flags) {
    Group group = ring_.group();
    for (;;) {
      ring_.assign_slots(share, first_slot() + share.first, publication_.mask);
      ring_.for_each_quad(share, 0, share.count, [&](uint32_t offset, const Quad &quad) {
        store_quad_local(publication_.entries + offset, quad);
      });
      /* A thread's release below covers what all threads stored before this sync. */
      group.sync();
      if (group.rank() < share.count) {
        uint32_t i = share.first + group.rank();
        uint64_t last = i + 1 == count_ ? (uint64_t)kLastSlot : 0;
        store_release(publication_.flag(first_slot() + i), flag_of(ticket_, i) | flags | last);
      }
      uint32_t next_round = share.first + group.size();
      if (next_round >= count_) return;
      ring_.make(share, next_round, count_, make);
    }
  }

  /* Returns the number of slots of the whole calls that are published from `serving` on, at most as many as one scan
   * reads, and advances `serving` past them. Scans again, at most kMaxRescans times, while a call with a ticket is not
   * published; with `linger` also while more groups keep taking tickets. */
  EFA_GDA_FN static uint32_t scan_published(efa_gda_queue *queue, const RingOf &ring, const PublicationSlots &publication,
                                            bool linger, uint64_t &serving) {
    Group group = ring.group();
    uint32_t outstanding_before = 0;
    for (int rescans = 0;; rescans++) {
      uint64_t flags[kFlagsPerThread], after = serving;
      EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsPerThread; k++) {
        flags[k] = load_relaxed(publication.flag(ring.next() + k * group.size() + group.rank()));
      }
      uint32_t reserved = ring.is_leader() ? (uint32_t)load_relaxed(&queue->reserve.word) : 0;
      uint32_t outstanding = group.from_leader(reserved) - ring.next();
      bool more_arrive = linger && (outstanding == 0 || outstanding != outstanding_before);
      outstanding_before = outstanding;
      if (more_arrive && outstanding < kFlagsPerThread * group.size() && rescans < kMaxRescans) continue;
      uint32_t count = match_flags(group, flags, after);
      if (count == outstanding || count > kFlagsPerThread * group.size() * 3 / 4 || rescans >= kMaxRescans) {
        /* Acquires the flags (A2): each thread those that it read, and after the sync all of them. */
        if (count != 0) {
          fence_device();
          group.sync();
        }
        serving = after;
        return count;
      }
    }
  }

  /* Returns the number of slots of the whole calls whose flags match from `serving` on, and advances `serving` past
   * them. flags[k] of the thread of rank r is the flag of the (k * size + r)-th slot. It matches if it is one more than
   * the slot before, and 2^32 more for each call that ended in between. */
  EFA_GDA_FN static uint32_t match_flags(Group group, const uint64_t (&flags)[kFlagsPerThread], uint64_t &serving) {
    uint32_t rank = group.rank(), size = group.size(), slots = 0, calls = 0, ended = 0;
    uint32_t last[kFlagsPerThread], match[kFlagsPerThread];
    /* All votes first: each has a long latency, and none depends on another's result. */
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsPerThread; k++) last[k] = group.vote((flags[k] & kLastSlot) != 0);
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsPerThread; k++) {
      uint64_t ended_before = ended + bits_in(last[k] & ((1u << rank) - 1));
      match[k] = group.vote((flags[k] & ~kPublicationFlagMask) ==
                            flag_of(serving, k * size + rank + ended_before * kOneCall));
      ended += bits_in(last[k]);
    }
    bool no_gap = true;
    ended = 0;
    EFA_GDA_UNROLL for (uint32_t k = 0; k < kFlagsPerThread; k++) {
      uint32_t ready = low_ones(match[k]);
      uint32_t ends = ready < size ? last[k] & ((1u << ready) - 1) : last[k];
      if (no_gap && ends != 0) {
        slots = k * size + bit_width(ends);
        calls = ended + bits_in(ends);
      }
      no_gap = no_gap && ready >= size;
      ended += bits_in(last[k]);
    }
    serving += (slots + calls * kOneCall) << EFA_GDA_LOCK_STATE_BITS;
    return slots;
  }

  /* Copies published entries to the ring, quad by quad, so that stores of neighbouring threads cover whole lines. One
   * iteration goes as far as neither the ring nor the publication slots wrap. */
  EFA_GDA_FN static void copy_published(const RingOf &ring, const PublicationSlots &publication, uint32_t slot,
                                        uint32_t count) {
    uint32_t rank = ring.group().rank(), stride = 16 * ring.group().size();
    while (count != 0) {
      uint32_t to_ring_end = ring.num_entries() - (slot & (ring.num_entries() - 1)),
               to_publication_end = publication.mask + 1 - (slot & publication.mask);
      uint32_t n = to_ring_end < to_publication_end ? to_ring_end : to_publication_end;
      if (n > count) n = count;
      const uint8_t *from = publication.entry(slot) + 16 * rank;
      uint8_t *to = ring.slot_address(slot) + 16 * rank;
      int32_t bytes_left = (int32_t)((n << publication.entry_shift) - 16 * rank);
      for (; bytes_left > 0;
           bytes_left -= kQuadsPerThread * stride, from += kQuadsPerThread * stride, to += kQuadsPerThread * stride) {
        Quad quads[kQuadsPerThread];
        EFA_GDA_UNROLL for (int k = 0; k < kQuadsPerThread; k++) {
          if (bytes_left > (int32_t)(k * stride)) quads[k] = load_quad_local(from + k * stride);
        }
        EFA_GDA_UNROLL for (int k = 0; k < kQuadsPerThread; k++) {
          if (bytes_left > (int32_t)(k * stride)) RingOf::store_to_ring(to + k * stride, quads[k]);
        }
      }
      slot += n;
      count -= n;
    }
  }

  efa_gda_queue *queue_;
  RingOf &ring_;
  const PublicationSlots &publication_;
  uint32_t count_;
  /* Both as lock.serving holds them: shifted, and serving_ with the state. */
  uint64_t ticket_, serving_;
  /* doorbell_index in the low half, confirmed_index in the high half. */
  uint64_t indices_;
  /* Low half of reserve.word when the leader last read it. */
  uint32_t reserved_ = 0;
  bool owns_lock_ = false, must_combine_ = false;
  efa_gda_status status_;
};

}  // namespace efa_gda

#endif
