/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The send queue as its owner uses it: the owner places entries, rings the doorbell, and waits for free slots. turns.h
 * states how groups share a queue, round.h writes entries, cq.h counts completions, free_slots.h states how many
 * entries may be placed.
 *
 * TERMS. cq.h, turns.h, post.h and rq.h use them too.
 *   group           the threads that make each call together: one thread, a full warp (all 32 lanes) or a block
 *                   (group.h). Its leader is the thread of rank 0.
 *   handle          a group's Sender (post.h), which contains a Ring (below). Each thread has a copy of both.
 *   entry           64 or 128 bytes that describe one request. The caller's make() makes it (post.h). The library adds
 *                   the queue's processing hints, the phase bit and the request id.
 *   quad            16 bytes of an entry.
 *   producer index  number of an entry, modulo 2^32, from 0 for the queue's first. Entry s is in slot s modulo
 *                   num_entries of the ring (sq.buffer), with the phase bit (s / num_entries) modulo 2. Its request id
 *                   is s with EFA_GDA_SQ_REQ_ID_64, otherwise the low 16 bits of s. A parameter named `slot` is the
 *                   producer index of the entry in that slot. Indices are compared by their difference modulo 2^32.
 *                   Those that are compared are less than 2^31 apart, so a wrap changes nothing.
 *   next            producer index of the owner's next entry.
 *   owner           a group that has a queue for itself from Sender's constructor to close() (post.h). A queue without
 *                   an owner is shared.
 *   call            a post() of at least one entry, a flush() or a quiet().
 *   round           the entries that a group makes at once, at most one for each thread.
 *   place           to write an entry to its slot in the ring.
 *   ring (verb)     to store a producer index into the doorbell. The doorbell covers each entry before that producer
 *                   index: these entries are rung for.
 *   done            of a request: its completion is counted (cq.h); for wait(), wait_own() and test(): its done word is
 *                   stored (requests.h).
 *   in flight       of a request: posted (post.h), and not done.
 *   quiet           of a queue: no request that was posted before a call of quiet() is in flight. quiet() waits for
 *                   that.
 *   poison          to take a queue out of service for ever: to store a status in error.poison. Also that status.
 *   proxy           the doorbell proxy: a host thread that reads a queue's doorbell record and rings the adapter. If
 *                   the slots are a staging ring, it also copies the entries to the adapter.
 *   abort flag      the word of host memory to which efa_gda_queue::abort points. The host or the proxy sets it to end
 *                   all waits that have a bound.
 *
 * WORDS. Those of shared queues, which an owner reads when it opens the queue and stores when it closes it, are in
 * turns.h.
 *   word                 | written by                   | read by              | ordered by
 *   ring slots           | owner, each thread a share   | adapter or proxy     | step 3 of RINGING. Reuse: `completed`
 *   doorbell             | owner's leader               | adapter or proxy     | the same
 *   completion.completed | pollers (cq.h)               | leader               | B2 (cq.h): its load_acquire, then a
 *                        |                              |                      |   group sync, before a thread writes a
 *                        |                              |                      |   slot again. With counters whose wrap
 *                        |                              |                      |   is 0: COUNTERS in cq.h
 *   error.poison         | a leader, by CAS from 0; the | all groups           | nothing
 *                        | host, if a kernel failed or  |                      |
 *                        | words were lost              |                      |
 *   abort flag           | host, proxy                  | leaders that wait    | nothing
 *   posters[i mod R],    | requests.h states the writers and readers of these words of the request table, and what
 *   tracking.oldest      | orders them (R2, R3)
 *
 * RINGING. To place entries up to `next` and ring for them, the owner
 *   1. writes the entries, each thread its share: with plain stores of 16 bytes, or with st.mmio.relaxed.sys of 8
 *      bytes if the queue allows no wider ones (Slots in round.h),
 *   2. synchronises the group,
 *   3. executes fence_release_system(): the leader, or in a warp all lanes, which costs the same (kAllThreadsFence in
 *      group.h),
 *   4. stores `next` into the doorbell: the leader.
 * The fence is cumulative: it orders before step 4 the entries of all threads of the group, by step 2, and what earlier
 * groups stored, doorbells included, because the owner has acquired turn.word (post.h). So the adapter receives each
 * entry before the doorbell that covers it, and doorbells in ascending order. No fence follows the doorbell: only the
 * next doorbell has to come after this one, and step 3 of the next ring orders the two.
 *
 * BATCH WINDOW. The adapter accepts at most max_batch entries past the last doorbell that it has received. A doorbell
 * value is confirmed for a thread when its store happens before step 3 of that thread: everything that the thread
 * stores after this fence reaches the adapter after that doorbell. confirmed_index is the latest confirmed
 * value. Before the owner stores n entries from `next` on, it makes sure that
 *     next + n - confirmed_index <= max_batch.
 * Step 3 of a ring confirms the previous doorbell. If that is not enough, the owner rings for what it has placed. If
 * everything placed is rung for, it executes one more fence, which confirms the last doorbell, so that confirmed_index
 * = next. Then max_batch entries fit, so a chunk of at most max_batch entries can always be placed, even with
 * max_batch 1.
 *   Example: max_batch = 4. If each call has 4 entries, it costs two fences: one before its entries, which confirms the
 *   doorbell of the previous call, and one in its ring. If each call has 2 entries, it costs one: the fence in a call's
 *   ring confirms the doorbell of the previous call, so the next call's 2 entries fit.
 * Another thread of the group may rely on the fence after a group sync that follows it. Therefore Ring has two
 * variables: leader_confirmed_index_ is confirmed for the leader, confirmed_index_ for all threads of the group. If all
 * threads fence, only the second is used.
 * With max_batch >= num_entries the limit on free slots is the stricter one, and no batch window is kept.
 *
 * DOORBELL RECORD (EFA_GDA_SQ_RECORD). The doorbell is a word in memory; the proxy reads it and rings some time later.
 * A fence then says nothing about the adapter, so no batch window is kept: it is set to kNoBatchWindow, so that the
 * comparison with confirmed_index always holds. Completions take its place. If `completed` requests have completed, one
 * of them has an index of at least completed - 1, and the adapter received a doorbell that covers it. So with a
 * doorbell record the owner keeps
 *     next + n - completed <= max_batch:
 * capacity (free_slots.h) is min(num_entries, max_batch).
 *
 * WAITS. make_room() is the only function here that waits, for free slots. free_slots.h states how that wait ends.
 */
#ifndef EFA_GDA_SQ_H
#define EFA_GDA_SQ_H

#include "round.h"
#include "waits.h"

namespace efa_gda {

/* The most entries of one call. */
constexpr uint32_t kMaxEntriesPerCall = 1 << 16;

/* The ring as its owner sees it; a group that shares the queue uses of it the geometry, the limit and the handle's
 * bits. Each thread of the group has a copy, and all copies of an owner are equal, but for the rank in group_.
 * All threads of the group must call each function together, with the same arguments but for `make`, except where a
 * comment names the caller. Any thread may call alone what only returns a value, and mark_posted().
 * REGISTERS. A kernel for blocks of 1,024 threads has 64 registers, and what is in use at a call of a function that is
 * not inlined adds to what the function uses. Therefore an owner waits for free slots before it makes entries; after a
 * wait it reads the geometry again; small values share options_; and a wait keeps its requests, and a poll what it can,
 * in the thread's memory, whose address is computed at each call (local_pointer() in group.h). */
template <class Group>
class Ring {
 public:
  /* Bits of options_ for Sender. kOwnsQueue: the group owns the queue. kDeferred: a post of a shared handle deferred
   * its doorbell, and the handle has not flushed since. */
  static constexpr uint32_t kOwnsQueue = 16, kDeferred = 32;

  EFA_GDA_FN Ring(efa_gda_queue *queue, Group group) : group_(group), queue_(queue) {
    options_ = (queue->hints & EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK) << kHintsShift |
               ((queue->sq.flags & EFA_GDA_SQ_REQ_ID_64) != 0 ? kWideIds : 0) |
               ((queue->sq.flags & EFA_GDA_SQ_RECORD) != 0 ? kRecord : 0) |
               ((queue->sq.flags & EFA_GDA_SQ_STORES_OF_8) != 0 ? kNarrow : 0) |
               (queue->sq.entry_size == 128 ? kWideEntries : 0);
    read_geometry();
  }

  EFA_GDA_FN void read_geometry() {
    SendQueueGeometry sq = load_geometry(queue_);
    buffer_ = sq.buffer;
    doorbell_ = sq.doorbell;
    num_entries_ = sq.num_entries;
    batch_window_ = has(kRecord) || sq.max_batch >= sq.num_entries ? kNoBatchWindow : sq.max_batch;
  }

  /* To be called when this group becomes the owner. `doorbell_index` was confirmed; no free slot is known. */
  EFA_GDA_FN void resume(uint32_t next, uint32_t doorbell_index) {
    next_ = free_limit_ = next;
    doorbell_index_ = doorbell_index;
    confirmed_index_ = leader_confirmed_index_ = doorbell_index;
  }
  EFA_GDA_FN uint32_t next() const { return next_; }
  EFA_GDA_FN uint32_t doorbell_index() const { return doorbell_index_; }
  EFA_GDA_FN volatile uint32_t *doorbell() const { return doorbell_; }
  EFA_GDA_FN uint32_t num_entries() const { return num_entries_; }
  /* The cached limit on free slots (free_slots.h). */
  EFA_GDA_FN uint32_t free_limit() const { return free_limit_; }
  EFA_GDA_FN void set_free_limit(uint32_t limit) { free_limit_ = limit; }
  /* On a shared queue: turns.h. */
  EFA_GDA_FN uint32_t window() const { return batch_window_; }
  EFA_GDA_FN void set_window(uint32_t window) { batch_window_ = window; }
  EFA_GDA_FN bool has(uint32_t option) const { return (options_ & option) != 0; }
  EFA_GDA_FN void set(uint32_t option, bool on) { options_ = on ? options_ | option : options_ & ~option; }
  /* The handle's poster number in the request table (requests.h); 0 without a table. */
  EFA_GDA_FN uint32_t poster() const { return options_ >> kPosterShift; }
  EFA_GDA_FN void set_poster(uint32_t poster) { options_ |= poster << kPosterShift; }
  /* The handle's status. */
  EFA_GDA_FN efa_gda_status status() const { return (efa_gda_status)(options_ >> kStatusShift & 0xff); }
  EFA_GDA_FN void set_status(efa_gda_status status) {
    options_ = (options_ & ~(0xffu << kStatusShift)) | (uint32_t)status << kStatusShift;
  }
  EFA_GDA_FN Group group() const { return group_; }
  EFA_GDA_FN bool is_leader() const { return group_.leads(); }

  /* On a queue with a request table, stores the poster words of `count` entries: the thread of rank first_rank + i
   * stores that of producer index slot + i. `fences`: the group shares the queue; an owner has fenced when it learnt
   * the limit (R2 in requests.h). */
  EFA_GDA_FN void mark_posted(uint32_t first_rank, uint32_t count, uint32_t slot, bool fences) const {
    uint32_t i = group_.rank() - first_rank;
    if (EFA_GDA_LIKELY(poster() == 0) || i >= count) return;
    if (fences) fence_release_device();
    store_poster(queue_->requests, slot + i, poster());
  }

  /* Whether the cached limit allows `count` more entries. */
  EFA_GDA_FN bool has_slots(uint32_t count) const { return free_limit_ - next_ >= count; }

  /* If the cached limit does not allow `count` more entries, looks for free slots (A LOOK in free_slots.h). */
  EFA_GDA_FN void look_for_slots(uint32_t count) {
    if (EFA_GDA_LIKELY(has_slots(count))) return;
    /* A look does not know the table's limit. */
    if (has(kRecord) || poster() != 0) return;
    uint32_t limit = free_limit_;
    if (is_leader()) limit = completed_so_far(queue_) + num_entries_;
    limit = group_.from_leader(limit);
    /* As in end_wait(). */
    group_.sync();
    if (limit - next_ <= num_entries_) free_limit_ = limit;
  }

  /* Waits until there are free slots for `*count` entries, and returns the status. Before, it rings for everything
   * placed, and reduces `*count` to half the capacity (free_slots.h), so that the adapter has requests meanwhile. They
   * may exceed the batch window. If the status is not EFA_GDA_OK, the queue is poisoned. */
  EFA_GDA_FN efa_gda_status make_room(uint32_t *count, uint64_t timeout_ns) {
    uint32_t most = (capacity_of(queue_) + 1) / 2;
    if (next_ != doorbell_index_) ring();
    if (*count > most) *count = most;
    uint64_t result = 0;
    if (group_.polls()) result = wait_polling<Group>(queue_, WaitFor::FreeSlots, next_, *count, timeout_ns);
    return end_wait(result);
  }
  /* The step after wait_polling(): `result` is the leader's. */
  EFA_GDA_FN efa_gda_status end_wait(uint64_t result) {
    result = group_.from_leader(result);
    /* Orders the leader's load of `completed` before all threads' stores to the slots that it freed. */
    group_.sync();
    /* R2 (requests.h). */
    if (poster() != 0) fence_release_device();
    free_limit_ = next_ + (uint32_t)result;
    read_geometry();
    return (efa_gda_status)(result >> 32);
  }

  /* Places the `count` entries of a post(), each part when there are free slots for it. Entries that exceed the batch
   * window are placed in chunks, between which the group rings and confirms that doorbell. */
  template <class Make>
  EFA_GDA_FN efa_gda_status place_entries(uint32_t count, Make make, uint64_t timeout_ns) {
    EFA_GDA_NO_UNROLL for (uint32_t from = 0, round = 0; from < count;) {
      uint32_t n = round + group_.size() - from;
      if (n > count - from) n = count - from;
      if (!EFA_GDA_LIKELY(has_slots(n))) {
        efa_gda_status status = make_room(&n, timeout_ns);
        if (status != EFA_GDA_OK) return status;
      }
      if (n > batch_window_) n = batch_window_;
      if (!EFA_GDA_LIKELY(fits_batch_window(n))) open_batch_window(n);
      mark_posted(from - round, n, next_, false);
      uint32_t mine = group_.rank() - (from - round);
      if (mine < n) {
        Entry entry = make(from + mine);
        set_hints(entry, hints());
        slots().set_slot(entry, next_ + mine);
        slots().store(entry, next_ + mine);
      }
      next_ += n;
      from += n;
      if (from == round + group_.size()) round = from;
    }
    return EFA_GDA_OK;
  }

  /* Whether rounds are usual ones: on a queue with entries of 64 bytes and a doorbell of the adapter, by a handle
   * without an error. An owner's post() of one usual round, for which there are free slots, has code of its own with
   * few branches, because a warp's instructions between two fences bound its rate. */
  EFA_GDA_FN bool is_usual() const { return (options_ & kUnusual) == 0; }
  /* Whether a post() of `count` entries is one usual round. */
  EFA_GDA_FN bool is_usual_round(uint32_t count) const { return is_usual() && count - 1 < group_.size(); }
  /* Whether it is one of a handle without a poster number: its post() only has to place it. */
  EFA_GDA_FN bool is_plain_round(uint32_t count) const {
    return (options_ & (kUnusual | ~0u << kPosterShift)) == 0 && count - 1 < group_.size();
  }
  /* That round. place_usual() requires has_slots(count), and mark_posted() before it. */
  template <class Make>
  EFA_GDA_FN void make_usual(Quad (&quads)[4], uint32_t count, Make make) const {
    make_quads(group_, hints(), quads, group_.rank(), Group::kSingleThread || group_.rank() < count, make,
               [](const Entry &) {});
  }
  EFA_GDA_FN void place_usual(Quad (&quads)[4], uint32_t count) {
    uint32_t mask = num_entries_ - 1;
    bool in_lap = Group::kSingleThread || (next_ & mask) + count <= num_entries_;
    /* One branch for both. */
    if (EFA_GDA_LIKELY(in_lap & fits_batch_window(count))) {
      Slots to_ring = slots();
      store_quads_of_lap(
          group_, quads, 0, Group::kSingleThread ? 1 : count, next_, (next_ & num_entries_) != 0, has(kWideIds), buffer_,
          mask, 6, [&](const bool (&conditions)[4], uint8_t *const (&addresses)[4], const Quad (&all)[4]) {
            to_ring.store(conditions, addresses, all);
          });
      next_ += count;
    } else {
      place_in_windows(quads, count);
    }
  }

  /* Rings for everything placed: steps 2 to 4. The fence confirms the previous doorbell, for the threads that execute
   * it. After the sync all threads may rely on the fence of the ring() before, so confirmed_index_ becomes equal to
   * leader_confirmed_index_. */
  EFA_GDA_FN void ring() {
    group_.sync();
    if (!Group::kAllThreadsFence) confirmed_index_ = leader_confirmed_index_;
    bool leads = is_leader();
    if (Group::kAllThreadsFence || leads) fence_release_system();
    /* A record takes all 32 bits of the producer index, a doorbell of the adapter the low 16. */
    store_doorbell_if(leads, doorbell_, has(kRecord) ? next_ : next_ & 0xffff);
    if (Group::kAllThreadsFence) {
      confirmed_index_ = doorbell_index_;
    } else {
      leader_confirmed_index_ = doorbell_index_;
    }
    doorbell_index_ = next_;
  }

  static constexpr uint32_t kRecord = 2;
  EFA_GDA_FN uint32_t hints() const { return options_ >> kHintsShift; }
  EFA_GDA_FN Slots slots() const { return {buffer_, num_entries_, has(kWideEntries), has(kWideIds), has(kNarrow)}; }

 private:

  /* Whether `count` more entries fit the batch window without a further fence. */
  EFA_GDA_FN bool fits_batch_window(uint32_t count) const {
    return next_ + count - confirmed_index_ <= batch_window_;
  }

  /* place_usual() for entries that exceed the batch window, or of two laps. All of them are ready before the first
   * chunk, so that little happens between two fences. */
  EFA_GDA_FN void place_in_windows(Quad (&quads)[4], uint32_t count) {
    uint32_t offsets[4], entries[4];
    EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
      entries[k] = entry_number(group_, k);
      uint32_t s = next_ + entries[k];
      set_ring_fields(quads[k], quad_number(group_, k), (s & num_entries_) != 0, s, has(kWideIds));
      offsets[k] = ((s & (num_entries_ - 1)) << 6) + 16 * quad_number(group_, k);
      /* The compiler would otherwise compute them again for each chunk, between two fences. */
      if (!Group::kSingleThread) keep(entries[k]);
      if (!Group::kSingleThread) keep(offsets[k]);
    }
    Slots to_ring = slots();
    uint32_t n = count;
    if (!EFA_GDA_LIKELY(fits_batch_window(n))) {
      if (n > batch_window_) n = batch_window_;
      open_batch_window(n);
    }
    EFA_GDA_NO_UNROLL for (uint32_t done = 0;;) {
      bool conditions[4];
      uint8_t *addresses[4];
      EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
        conditions[k] = Group::kSingleThread || entries[k] - done < n;
        addresses[k] = buffer_ + offsets[k];
      }
      to_ring.store(conditions, addresses, quads);
      next_ += n;
      done += n;
      if (EFA_GDA_LIKELY(done == count)) return;
      ring();
      confirm();
      n = count - done < batch_window_ ? count - done : batch_window_;
    }
  }

  static constexpr uint32_t kNoBatchWindow = 0x80000000u;
  /* Bits of options_ from the queue's geometry; above the flags are the handle's status, the queue's hints, and the
   * poster number. */
  static constexpr uint32_t kWideIds = 1, kWideEntries = 4, kNarrow = 8;
  static constexpr int kStatusShift = 6, kHintsShift = 14, kPosterShift = 16;
  static constexpr uint32_t kUnusual = kWideEntries | kRecord | 0xffu << kStatusShift;
  static_assert(EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK >> (kPosterShift - kHintsShift) == 0 &&
                    (kMaxPoster << kPosterShift) >> kPosterShift == kMaxPoster && kDeferred < 1 << kStatusShift,
                "the fields of options_ do not overlap");

  /* Confirms the last doorbell for all threads of the group. */
  EFA_GDA_FN void confirm() {
    if (Group::kAllThreadsFence) group_.sync();
    if (Group::kAllThreadsFence || is_leader()) fence_release_system();
    if (!Group::kAllThreadsFence) group_.sync();
    confirmed_index_ = leader_confirmed_index_ = doorbell_index_;
  }

  /* Rings and fences until `n` more entries fit the batch window. `n` must be at most batch_window_. */
  EFA_GDA_FN void open_batch_window(uint32_t n) {
    EFA_GDA_NO_UNROLL while (batch_window_ != kNoBatchWindow && next_ + n - confirmed_index_ > batch_window_) {
      if (!Group::kAllThreadsFence && next_ + n - leader_confirmed_index_ <= batch_window_) {
        group_.sync();
        confirmed_index_ = leader_confirmed_index_;
      } else if (next_ != doorbell_index_) {
        ring();
      } else {
        confirm();
      }
    }
  }

  /* Bits, the handle's status and poster number, and the queue's hints. */
  uint32_t options_;
  uint32_t next_ = 0, doorbell_index_ = 0, confirmed_index_ = 0;
  /* Not used if all threads of the group fence. */
  uint32_t leader_confirmed_index_ = 0;
  uint32_t free_limit_ = 0;
  /* `batch_window_`: max_batch, or kNoBatchWindow; on a shared queue window(). */
  uint32_t num_entries_, batch_window_;
  uint8_t *buffer_;
  volatile uint32_t *doorbell_;
  Group group_;
  efa_gda_queue *queue_;
};

}  // namespace efa_gda

#endif
