/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The send queue as its writer uses it: places entries, rings the doorbell, and waits for free slots.
 * ticket_lock.h decides which group is the writer, wqe.h formats entries, cq.h counts completions.
 *
 * TERMS. cq.h, ticket_lock.h, post.h and rq.h use them too.
 *   group           the threads that make each call together: one thread, a full warp (all 32 lanes) or a block
 *                   (group.h). Its leader is the thread of rank 0.
 *   handle          a group's Sender (post.h), with its copy of Ring (below).
 *   call            one post(), flush() or quiet() of a handle.
 *   entry           64 or 128 bytes that describe one request. The queue's hints are added to those of its maker. Its
 *                   request id is its producer index, or the low 16 bits of that unless the queue has
 *                   EFA_GDA_SQ_REQ_ID_64.
 *   quad            16 bytes of an entry.
 *   round           the entries that a group makes or publishes at once, at most one for each thread. A call has one or
 *                   more rounds.
 *   place           to write an entry to its slot in the ring.
 *   ring (verb)     to store a producer index into the doorbell. A doorbell covers, and an entry is rung for, if the
 *                   producer index stored is past the entry.
 *   publish         to write a call's entries to publication slots, from which another group, the lock owner, copies
 *                   them to the ring (ticket_lock.h).
 *   quiet           to wait until no request that was posted earlier is in flight.
 *   poison          the status in error.poison. If it is not 0, the queue is out of service.
 *   abort flag      a word of the host, at efa_gda_queue::abort. The host sets it to end all waits.
 *   writer          the only group that may write ring slots and the doorbell at this time. A shared queue's writer is
 *                   its lock owner (ticket_lock.h). An owned queue's writer is its owner, from Sender's constructor to
 *                   close(). For all that time it owns the queue's ticket lock, with a ticket for no entries.
 *   producer index  number of an entry, modulo 2^32. Entry s is in slot s modulo num_entries, with the phase bit
 *                   (s / num_entries) modulo 2. Indices are compared by their difference modulo 2^32; indices that are
 *                   compared are less than 2^31 apart, so a wrap changes nothing. The exception is free_limit_ of
 *                   a handle whose last time as writer is long ago: resume() drops it.
 *   next            producer index of the next entry to place.
 *
 * WORDS
 *   word                 | written by                   | read by              | ordered by
 *   ring slots           | writer, each thread a share  | adapter or proxy     | the fence of step 3, then the doorbell
 *   doorbell             | writer's leader              | adapter or proxy     | after the fence of step 3
 *   lock.doorbell_index, | writer's leader, just before | next writer's leader | the release of lock.serving that
 *   lock.confirmed_index | it passes the lock           |                      |   follows (ticket_lock.h, A1)
 *   completion.completed | pollers (cq.h)               | writer's leader      | its load_acquire, then a group sync,
 *                        |                              |                      |   before a thread reuses a slot
 *   error.poison         | a leader, by CAS from 0      | all groups           | relaxed; it orders no other word
 * A leader poisons the queue when a wait failed; without a wait, when it finds completions of another queue pair or
 * more completions than requests (EFA_GDA_BAD_COMPLETION), and when close() finds that an owner of the queue was not
 * alone (EFA_GDA_IN_USE). "Proxy" is the doorbell proxy: the host thread that rings the adapter for a doorbell record,
 * and that reads the slots if they are a staging ring. While a group is the writer it keeps the two lock words in
 * registers (doorbell_index_, confirmed_index_).
 *
 * RINGING. To place entries up to `next` and ring for them, the writer
 *   1. writes the entries with plain stores, each thread its share,
 *   2. synchronises the group,
 *   3. executes fence_system() (fence.acq_rel.sys): the leader; in a warp all lanes, which costs the same,
 *   4. stores `next` into the doorbell: the leader.
 * The fence is cumulative. It orders before step 4 everything that happens before it:
 *   - the entries of all threads of the group, by step 2,
 *   - what earlier writers stored, doorbells included: the lock is passed with a release and received with an acquire,
 *   - entries that other groups published: the lock owner acquired them and wrote them to the ring itself.
 * So the adapter receives each entry before the doorbell that covers it, and doorbells in ascending order. No fence
 * follows a doorbell: only the next doorbell has to come after this one, and its own step 3 comes first.
 *
 * BATCH WINDOW. The adapter accepts at most max_batch entries past the last doorbell it has received. A doorbell value
 * is confirmed when a fence_system() has completed after its store: everything stored after this fence reaches the
 * adapter after that doorbell. The writer keeps, at each store to the ring,
 *     next + entries to be written - confirmed_index <= max_batch.
 * Step 3 of a ring confirms the previous doorbell. Where that is not enough, the writer rings for what it has placed;
 * where all is rung, it executes one more fence, which confirms the last doorbell, so that confirmed_index = next. Then
 * max_batch entries fit, so a chunk of at most max_batch entries can always be placed, even with max_batch 1.
 *   Example: max_batch = 4. If each call has 4 entries, it costs two fences: one before its entries, which confirms the
 *   doorbell of the previous call, and one in its ring. If each call has 2 entries, it costs one: the fence in a call's
 *   ring confirms the doorbell of the previous call, so the next call's 2 entries fit.
 * A thread that did not execute the fence may rely on it only after the next group sync. Therefore two variables:
 * leader_confirmed_index_ is confirmed for the leader, confirmed_index_ for all threads of the group.
 * With max_batch >= num_entries the limit on free slots is the stricter one, and no batch window is kept.
 *
 * FREE SLOTS. The writer keeps, at each store to the ring,
 *     next + entries to be written - completed <= capacity,   capacity = num_entries.
 * Requests complete in any order, so `completed` is a count and not a position; rdma-core bounds its ring by the same
 * count (wqe_posted - wqe_completed). Each handle caches free_limit_ = completed + capacity, with the value
 * of `completed` that its last poll returned. `completed` only grows, so the cached limit is never too high. The
 * writer rings for everything it placed before it waits for free slots, so the completions it waits for do come.
 * On a queue with a request table, the table sets a second limit, which the cached one includes (LIMIT in requests.h).
 *
 * DOORBELL RECORD (EFA_GDA_SQ_RECORD). The doorbell is a word in memory; the proxy reads it and rings some time later.
 * A fence by the writer then says nothing about the adapter, so no doorbell value is ever confirmed and there is no
 * batch window; confirmed_index is written but not used. A completion does prove something: its request was covered by
 * a doorbell that the adapter received, so the adapter has received a doorbell of at least `completed`. There capacity
 * = min(num_entries, max_batch), which implies next + entries to be written - completed <= max_batch.
 *
 * A WAIT THAT RUNS OUT. The only wait of this file is for free slots. Its bound begins again whenever `completed` has
 * changed. At the bound the leader poisons the queue with EFA_GDA_TIMEOUT_SLOTS; if the host raises the abort flag,
 * with the flag's status (EFA_GDA_ABORTED for 1); if it is poisoned already, the status is EFA_GDA_POISONED. If
 * next - completed is more than num_entries, the counts are wrong, because requests completed that were not posted: the
 * leader poisons the queue with EFA_GDA_BAD_COMPLETION, and does not take the ring for free. The call returns the
 * status. Some of its entries may be placed and rung for, others not. A lock owner must then not pass the lock, because
 * its ticket's slots are not all filled (post.h and combine() in ticket_lock.h return instead). All other groups end
 * with EFA_GDA_POISONED. The adapter may still access the buffers of requests in flight.
 */
#ifndef EFA_GDA_SQ_H
#define EFA_GDA_SQ_H

#include "requests.h"

namespace efa_gda {

/* Bytes that one store of a GPU carries into the ring: 16, or 8 as rdma-core's copy does. A handle that stores 16
 * cannot open a queue with EFA_GDA_SQ_STORES_OF_8. The host executor stores 8 in either case. */
#ifndef EFA_GDA_STORE_BYTES
#define EFA_GDA_STORE_BYTES 16
#endif

/* The most entries of one call. */
constexpr uint32_t kMaxEntriesPerCall = 1 << 16;

/* One thread's share of a round of entries. */
struct EntryShare {
  Quad quads[4];
  /* The second halves, of entries of 128 bytes. */
  Quad upper_quads[4];
  /* Where `quads` go, in bytes from slot 0. */
  uint32_t offsets[4];
  /* The round: entries [first, first + count) of the call. */
  uint32_t first, count;
};

/* The ring as its writer sees it. Each thread of the group has a copy in registers; from resume() on all copies are
 * equal, but for completions_, which only the leader's copy holds. */
template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ring {
 public:
  EFA_GDA_FN Ring(efa_gda_queue *queue, Group group)
      : group_(group),
        queue_(queue),
        buffer_(queue->sq.buffer),
        doorbell_(queue->sq.doorbell),
        num_entries_(queue->sq.num_entries),
        capacity_(num_entries_),
        batch_window_(kNoBatchWindow),
        entry_shift_(queue->sq.entry_size == 128 ? 7 : 6),
        doorbell_mask_((queue->sq.flags & EFA_GDA_SQ_RECORD) != 0 ? ~0u : 0xffffu),
        options_(queue->hints << 16 | ((queue->sq.flags & EFA_GDA_SQ_REQ_ID_64) != 0 ? kWideIds : 0)),
        next_(0),
        doorbell_index_(0),
        confirmed_index_(0),
        leader_confirmed_index_(0),
        free_limit_(0),
        call_number_(0) {
    uint32_t batch = queue->sq.max_batch;
    if (batch < num_entries_) {
      if ((queue->sq.flags & EFA_GDA_SQ_RECORD) != 0) {
        capacity_ = batch;
      } else {
        batch_window_ = batch;
      }
    }
  }

  /* Starts at `word`, a reserve word that lock.serving held lately. Until the first poll the handle
   * knows of no free slot. */
  EFA_GDA_FN void open(uint64_t word) {
    next_ = free_limit_ = (uint32_t)word;
    call_number_ = (uint32_t)(word >> 32);
  }

  /* Makes this group the writer, as the call whose ticket is `word`, with the lock words that the previous writer left.
   * Drops the cached limit on free slots if it is not within `capacity_` of next_, or if the queue had kMaxCallsOfLimit
   * calls since the last resume(): producer indices may then have wrapped. */
  EFA_GDA_FN void resume(uint64_t word, uint32_t doorbell_index, uint32_t confirmed_index) {
    next_ = (uint32_t)word;
    doorbell_index_ = doorbell_index;
    confirmed_index_ = leader_confirmed_index_ = confirmed_index;
    uint32_t call_number = (uint32_t)(word >> 32);
    if (free_limit_ - next_ > capacity_ || call_number - call_number_ >= kMaxCallsOfLimit) free_limit_ = next_;
    call_number_ = call_number;
  }

  /* Continues as the writer in place of `other`, the ring of another group on the same queue. The leader of that group
   * calls this. `other` must not be used as the writer's afterwards. */
  template <class Other>
  EFA_GDA_FN void resume_from(Ring<Other, StoreBytes> &other) {
    next_ = free_limit_ = other.next();
    doorbell_index_ = other.doorbell_index();
    confirmed_index_ = leader_confirmed_index_ = other.leader_confirmed_index();
    completions_ = other.completions();
  }

  EFA_GDA_FN uint32_t next() const { return next_; }
  EFA_GDA_FN uint32_t doorbell_index() const { return doorbell_index_; }
  EFA_GDA_FN uint32_t leader_confirmed_index() const { return leader_confirmed_index_; }
  EFA_GDA_FN uint32_t num_entries() const { return num_entries_; }
  /* The handle's poster number in the request table (requests.h); 0 without a table. */
  EFA_GDA_FN void set_poster(uint32_t poster) { poster_ = poster; }
  /* Stores this thread's poster word of a round whose entries [first, first + count) go to the slots from `slot` on.
   * Returns whether it stored one. */
  EFA_GDA_FN bool mark_posted(uint32_t first, uint32_t count, uint32_t slot) const {
    uint32_t i = group_.rank() - first;
    bool stores = !EFA_GDA_LIKELY(poster_ == 0) && i < count;
    if (stores) store_poster(queue_->requests, slot + i, poster_);
    return stores;
  }
  EFA_GDA_FN bool wide_entries() const { return entry_shift_ == 7; }
  EFA_GDA_FN Group group() const { return group_; }
  EFA_GDA_FN bool is_leader() const { return group_.rank() == 0; }
  /* Completions that the leader read while it waited. Valid on the leader. */
  EFA_GDA_FN Completions &completions() { return completions_; }

  EFA_GDA_FN uint8_t *slot_address(uint32_t slot) const {
    return buffer_ + ((slot & (num_entries_ - 1)) << entry_shift_);
  }
  EFA_GDA_FN static void store_to_ring(uint8_t *to, const Quad &quad) {
    if (StoreBytes == 16) {
      store_quad(to, quad);
    } else {
      store_quad_by_eight(to, quad);
    }
  }

  /* Makes this thread's share of the round that begins at entry `first` of a call of `count` entries. The thread of
   * rank i makes entry first + i by `make(first + i)`. A full warp then exchanges quads among its lanes (Transpose), so
   * that each of its stores covers whole lines: entries that several warps store quad by quad reach PCIe in pieces.
   * assign_slots() adds the phase and the request id. */
  template <class Make>
  EFA_GDA_FN void make(EntryShare &share, uint32_t first, uint32_t count, Make make) {
    uint32_t i = first + group_.rank();
    Entry entry = Entry();
    if (i < count) entry = make(i);
    entry.word[kWordHandle] |= options_ & kHintsOfWord;
    EFA_GDA_UNROLL for (int k = 0; k < 4; k++) share.quads[k] = quad_of(entry, k);
    if (group_.in_full_warp()) group_.transpose(share.quads);
    if (wide_entries()) {
      EFA_GDA_UNROLL for (int k = 0; k < 4; k++) share.upper_quads[k] = quad_of(entry, 4 + k);
      if (group_.in_full_warp()) group_.transpose(share.upper_quads);
    }
    share.first = first;
    share.count = count - first < group_.size() ? count - first : group_.size();
  }

  /* Gives the round's entries the slots from `slot` on: sets phase and request id (the slot's producer index), and the
   * offsets, which wrap by `mask`. */
  EFA_GDA_FN void assign_slots(EntryShare &share, uint32_t slot, uint32_t mask) const {
    EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
      uint32_t s = slot + entry_number(k), quad = quad_number(k);
      set_ring_fields(share.quads[k], quad, (s & num_entries_) != 0, s, (options_ & kWideIds) != 0);
      share.offsets[k] = ((s & mask) << entry_shift_) + 16 * quad;
    }
  }

  /* Calls `visit(offset, quad)` for each quad of this share that belongs to the round's entries [first, first + count).
   * */
  template <class Visit>
  EFA_GDA_FN void for_each_quad(const EntryShare &share, uint32_t first, uint32_t count, Visit visit) const {
    EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
      if (entry_number(k) - first < count) visit(share.offsets[k], share.quads[k]);
    }
    if (wide_entries()) {
      EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
        if (entry_number(k) - first < count) visit(share.offsets[k] + 64, share.upper_quads[k]);
      }
    }
  }

  /* Places `count` entries. `write(done, n, slot)` writes n of them, from entry `done` on, to the slots from `slot` on;
   * all threads call it. Entries that exceed the batch window or the free slots are written in chunks. After each
   * chunk but the last it rings; with a batch window it also confirms that doorbell. The first branch is the case that
   * everything fits. It has code of its own because one loop for both cases is a tenth slower. */
  template <class Write>
  EFA_GDA_FN efa_gda_status place(uint32_t count, Write write, uint64_t timeout_ns) {
    if (EFA_GDA_LIKELY(next_ + count - confirmed_index_ <= batch_window_ && free_limit_ - next_ >= count)) {
      write(0u, count, next_);
      next_ += count;
      return EFA_GDA_OK;
    }
    uint32_t chunk = batch_window_ < capacity_ ? batch_window_ : capacity_, n = count < chunk ? count : chunk, done = 0;
    open_batch_window(n);
    for (;;) {
      if (!EFA_GDA_LIKELY(free_limit_ - next_ >= n)) {
        if (next_ != doorbell_index_) ring();
        efa_gda_status status = wait_for_free_slots(n, timeout_ns);
        if (status != EFA_GDA_OK) return status;
      }
      write(done, n, next_);
      next_ += n;
      done += n;
      if (done == count) return EFA_GDA_OK;
      ring();
      if (batch_window_ != kNoBatchWindow) confirm();
      n = count - done < chunk ? count - done : chunk;
    }
  }

  /* Places the entries of a call. `share` holds the first round of make(). */
  template <class Make>
  EFA_GDA_FN efa_gda_status place_entries(EntryShare &share, uint32_t count, Make make, uint64_t timeout_ns) {
    for (;;) {
      assign_slots(share, next_, num_entries_ - 1);
      auto write = [&](uint32_t first, uint32_t n, uint32_t slot) {
        mark_posted(first, n, slot);
        for_each_quad(share, first, n,
                      [&](uint32_t offset, const Quad &quad) { Ring::store_to_ring(buffer_ + offset, quad); });
      };
      efa_gda_status status = place(share.count, write, timeout_ns);
      uint32_t next_round = share.first + group_.size();
      if (status != EFA_GDA_OK || EFA_GDA_LIKELY(next_round >= count)) return status;
      this->make(share, next_round, count, make);
    }
  }

  /* Orders what was placed before all that later writers do, for the adapter too. */
  EFA_GDA_FN void order_placed() const {
    group_.sync();
    if (executes_fences()) fence_system();
  }

  /* Rings for everything placed: steps 2 to 4. The fence confirms the previous doorbell. The sync lets all threads rely
   * on the fence of the previous ring(), so it makes confirmed_index_ equal to leader_confirmed_index_. */
  EFA_GDA_FN void ring() {
    group_.sync();
    confirmed_index_ = leader_confirmed_index_;
    if (executes_fences()) fence_system();
    /* A record takes all 32 bits of the producer index, a doorbell of the adapter the low 16. */
    if (is_leader()) store_doorbell(doorbell_, next_ & doorbell_mask_);
    leader_confirmed_index_ = doorbell_index_;
    if (Group::kAllThreadsFence) confirmed_index_ = leader_confirmed_index_;
    doorbell_index_ = next_;
  }

 private:
  /* After transpose(), this thread's k-th quad is quad quad_number(k) of the round's entry entry_number(k). */
  EFA_GDA_FN uint32_t entry_number(uint32_t k) const {
    return group_.in_full_warp() ? group_.rank() - group_.lane() + Transpose::source_lane(group_.lane(), k)
                                 : group_.rank();
  }
  EFA_GDA_FN uint32_t quad_number(uint32_t k) const {
    return group_.in_full_warp() ? Transpose::quad(group_.lane()) : k;
  }

  static constexpr uint32_t kNoBatchWindow = 0x80000000u;
  static constexpr uint32_t kInvalidSlots = ~0u;
  static constexpr uint32_t kHintsOfWord = (uint32_t)EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK << 16, kWideIds = 1;
  static constexpr uint32_t kMaxCallsOfLimit = 1 << 16;
  static_assert((uint64_t)kMaxCallsOfLimit * kMaxEntriesPerCall <= (uint64_t)1 << 32,
                "producer indices do not wrap while the limit is used");

  EFA_GDA_FN bool executes_fences() const { return Group::kAllThreadsFence || is_leader(); }

  /* Confirms the last doorbell for all threads of the group. */
  EFA_GDA_FN void confirm() {
    if (Group::kAllThreadsFence) group_.sync();
    if (executes_fences()) fence_system();
    if (!Group::kAllThreadsFence) group_.sync();
    confirmed_index_ = leader_confirmed_index_ = doorbell_index_;
  }

  /* Rings and fences until `n` more entries fit the batch window. The caller must ask for at most a whole window. */
  EFA_GDA_FN void open_batch_window(uint32_t n) {
    while (batch_window_ != kNoBatchWindow && next_ + n - confirmed_index_ > batch_window_) {
      if (next_ + n - leader_confirmed_index_ <= batch_window_) {
        group_.sync();
        confirmed_index_ = leader_confirmed_index_;
      } else if (next_ != doorbell_index_) {
        ring();
      } else {
        confirm();
      }
    }
  }

  /* Polls, and returns the free slots from `next` on: capacity - (next - completed). kInvalidSlots: more requests
   * completed than were posted, or more are in flight than the ring holds. Called by the leader. */
  EFA_GDA_FN static uint32_t poll_free_slots(efa_gda_queue *queue, uint32_t next, uint32_t capacity,
                                             Completions &completions) {
    uint32_t in_flight = next - completed_now(queue, next, completions);
    if (in_flight > queue->sq.num_entries) return kInvalidSlots;
    uint32_t free_slots = in_flight < capacity ? capacity - in_flight : 0;
    return queue->requests.num_entries == 0 ? free_slots : limit_by_table(queue, next, free_slots);
  }

  /* Waits for `n` free slots; called by the leader. Returns the free slots in the low half and the status in the high
   * half. Poisons the queue unless the status is EFA_GDA_OK. */
  EFA_GDA_COLD static uint64_t leader_wait_for_free_slots(efa_gda_queue *queue, uint32_t next, uint32_t capacity,
                                                          uint32_t n, uint64_t timeout_ns, Completions *all) {
    Completions completions = *all;
    Deadline deadline(queue, timeout_ns, &queue->completion.completed);
    uint32_t status = EFA_GDA_OK, free_slots;
    while ((free_slots = poll_free_slots(queue, next, capacity, completions)) < n) {
      status = deadline.expired(EFA_GDA_TIMEOUT_SLOTS);
      if (status != EFA_GDA_OK) break;
    }
    if (free_slots == kInvalidSlots) status = EFA_GDA_BAD_COMPLETION;
    if (status != EFA_GDA_OK) poison(queue, (efa_gda_status)status);
    *all = completions;
    return (uint64_t)status << 32 | free_slots;
  }

  EFA_GDA_FN efa_gda_status wait_for_free_slots(uint32_t n, uint64_t timeout_ns) {
    uint64_t result = free_limit_ - next_;
    if (is_leader()) {
      Completions completions = completions_;
      result = leader_wait_for_free_slots(queue_, next_, capacity_, n, timeout_ns, &completions);
      completions_ = completions;
    }
    result = group_.from_leader(result);
    /* Orders the leader's acquire of `completed` before all threads' stores to the slots that it freed. */
    group_.sync();
    /* R2 (requests.h): precedes the poster words that the new limit allows. */
    if (poster_ != 0) fence_device();
    free_limit_ = next_ + (uint32_t)result;
    return (efa_gda_status)(result >> 32);
  }

  Group group_;
  efa_gda_queue *queue_;
  uint8_t *buffer_;
  volatile uint32_t *doorbell_;
  /* `capacity_`: the most requests in flight. `batch_window_`: max_batch, or kNoBatchWindow. */
  uint32_t num_entries_, capacity_, batch_window_;
  /* Binary logarithm of an entry's size. */
  uint32_t entry_shift_;
  uint32_t doorbell_mask_;
  /* What each entry gets: kHintsOfWord, the queue's hints; kWideIds, a request id of 64 bits. */
  uint32_t options_;
  uint32_t next_, doorbell_index_, confirmed_index_, leader_confirmed_index_;
  /* next_ may grow up to `free_limit_`. `call_number_`: the high half of the ticket of the last resume(). */
  uint32_t free_limit_, call_number_;
  uint32_t poster_ = 0;
  Completions completions_;
};

}  // namespace efa_gda

#endif
