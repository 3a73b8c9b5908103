/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The send queue as its writer uses it: the writer places entries, rings the doorbell, and waits for free slots.
 * ticket_lock.h decides which group is the writer, round.h makes entries, cq.h counts completions, free_slots.h states
 * how many entries the writer may place.
 *
 * TERMS. cq.h, ticket_lock.h, post.h and rq.h use them too.
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
 *   next            producer index of the next entry to place.
 *   ticket          what a call takes from reserve.word: its position in the order of calls, and the slots of its
 *                   entries. The ticket lock passes to tickets in ascending order, past those of combined calls; the
 *                   group that receives the lock is the lock owner (ticket_lock.h).
 *   owner           a group that has a queue for itself from Sender's constructor to close() (post.h). All that time
 *                   it has the ticket lock, with a ticket for no entries. A queue without an owner is shared.
 *   writer          the only group that may ring at this time: a shared queue's lock owner, or the queue's owner. Only
 *                   it writes ring slots, but for groups that place ahead: they write those of their own tickets
 *                   (ticket_lock.h).
 *   call            a post() of at least one entry, a flush(), the wait of a quiet() that acquires the lock, or the
 *                   constructor of an owner's handle. It takes one ticket, but for an owner's post() and flush(), and a
 *                   constructor that fails.
 *   round           the entries that a group makes or publishes at once, at most one for each thread. A post() has one
 *                   or more rounds, any other call none.
 *   place           to write an entry to its slot in the ring.
 *   ring (verb)     to store a producer index into the doorbell. The doorbell covers each entry before that producer
 *                   index: these entries are rung for.
 *   publish         to write a call's entries to publication slots, from which the lock owner copies them to the ring,
 *                   or ahead to the ring (ticket_lock.h).
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
 * WORDS
 *   word                 | written by                   | read by              | ordered by
 *   ring slots           | writer, each thread a share; | adapter or proxy     | step 3 of RINGING. Reuse: `completed`
 *                        | groups that place ahead      |                      |
 *   doorbell             | writer's leader              | adapter or proxy     | the same
 *   lock.doorbell_index, | writer's leader, just before | next writer's leader | the release of lock.serving that
 *   lock.confirmed_index,| it passes the lock; when it  |   and leaders that   |   follows; the reader may see older
 *   reserve.free_limit   | combines, after each ring.   |   wait for the lock  |   values, which do no harm (A1 in
 *                        | free_limit also in           |                      |   ticket_lock.h)
 *                        | look_for_slots(), and in     |                      |
 *                        | acquire_queue() (post.h)     |                      |
 *   completion.completed | pollers (cq.h)               | writer's leader      | B2 (cq.h): its load_acquire, then a
 *                        |                              |                      |   group sync, before a thread writes a
 *                        |                              |                      |   slot again. With counters whose wrap
 *                        |                              |                      |   is 0: COUNTERS in cq.h
 *   error.poison         | a leader, by CAS from 0; the | all groups           | nothing
 *                        | host, if a kernel failed or  |                      |
 *                        | words were lost              |                      |
 *   abort flag           | host, proxy                  | leaders that wait    | nothing
 *   posters[i mod R],    | requests.h states the writers and readers of these words of the request table, and what
 *   tracking.oldest      | orders them (R2, R3)
 * post.h states when a leader poisons the queue (WAITS THAT RUN OUT, OWNED QUEUES). While a group is the writer, it
 * keeps the three words that it passes on in registers (doorbell_index_, confirmed_index_, free_limit_).
 *
 * RINGING. To place entries up to `next` and ring for them, the writer
 *   1. writes the entries, each thread its share: with plain stores of 16 bytes, or with st.mmio.relaxed.sys of 8
 *      bytes (store_to_ring()),
 *   2. synchronises the group,
 *   3. executes fence_release_system(): the leader, or in a warp all lanes, which costs the same (kAllThreadsFence in
 *      group.h),
 *   4. stores `next` into the doorbell: the leader.
 * The fence is cumulative. It orders before step 4 everything that happens before it:
 *   - the entries of all threads of the group, by step 2,
 *   - what earlier writers stored, doorbells included: each passed the lock with a release, and the next one has
 *     acquired it before this fence (A1 in ticket_lock.h),
 *   - entries that other groups published: the lock owner acquired them and wrote them to the ring itself,
 *   - entries that other groups placed ahead: the lock owner acquired their flags, which follow them (A2).
 * So the adapter receives each entry before the doorbell that covers it, and doorbells in ascending order. To ring, the
 * writer executes no fence after the doorbell: only the next doorbell has to come after this one, and step 3 of the
 * next ring orders the two.
 *
 * BATCH WINDOW. The adapter accepts at most max_batch entries past the last doorbell that it has received. A doorbell
 * value is confirmed for a thread when its store happens before step 3 of that thread: everything that the thread
 * stores after this fence reaches the adapter after that doorbell. confirmed_index is the latest confirmed
 * value. Before the writer stores n entries from `next` on, it makes sure that
 *     next + n - confirmed_index <= max_batch.
 * Step 3 of a ring confirms the previous doorbell. If that is not enough, the writer rings for what it has placed. If
 * everything placed is rung for, it executes one more fence, which confirms the last doorbell, so that confirmed_index
 * = next. Then max_batch entries fit, so a chunk of at most max_batch entries can always be placed, even with
 * max_batch 1.
 *   Example: max_batch = 4. If each call has 4 entries, it costs two fences: one before its entries, which confirms the
 *   doorbell of the previous call, and one in its ring. If each call has 2 entries, it costs one: the fence in a call's
 *   ring confirms the doorbell of the previous call, so the next call's 2 entries fit.
 * Another thread of the group may rely on the fence after a group sync that follows it; the threads of the next writer,
 * after they have received lock.confirmed_index (A1 in ticket_lock.h). Therefore Ring has two variables:
 * leader_confirmed_index_ is confirmed for the leader, confirmed_index_ for all threads of the group. If all threads
 * fence, only the second is used.
 * With max_batch >= num_entries the limit on free slots is the stricter one, and no batch window is kept.
 *
 * DOORBELL RECORD (EFA_GDA_SQ_RECORD). The doorbell is a word in memory; the proxy reads it and rings some time later.
 * A fence by the writer then says nothing about the adapter, so no doorbell value is ever confirmed, and no batch
 * window is kept: the window is set to kNoBatchWindow, so that the comparison with confirmed_index always holds.
 * Completions take its place. If `completed` requests have completed, one of them has an index of at least
 * completed - 1, and the adapter received a doorbell that covers it. So with a doorbell record the writer keeps
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

/* Bytes that one store of a GPU carries into the ring: 16, or 8 as rdma-core's copy does. A handle that stores 16
 * cannot open a queue with EFA_GDA_SQ_STORES_OF_8. The host executor stores 8 in either case. */
#ifndef EFA_GDA_STORE_BYTES
#define EFA_GDA_STORE_BYTES 16
#endif

/* The most entries of one call. */
constexpr uint32_t kMaxEntriesPerCall = 1 << 16;

/* The state of a Ring. SharedCall (shared_call.h) has it in the thread's memory, undefined at first: stores to the
 * thread's memory delay the next fence. */
struct RingState {
  /* Bits of Ring, the handle's status and poster number, and the queue's hints. */
  uint32_t options_;
  uint32_t next_, doorbell_index_, confirmed_index_;
  /* Not used if all threads of the group fence. */
  uint32_t leader_confirmed_index_;
  /* See Ring::free_limit(). */
  uint32_t free_limit_;
  /* `batch_window_`: max_batch, or kNoBatchWindow. */
  uint32_t num_entries_, batch_window_;
  uint8_t *buffer_;
  volatile uint32_t *doorbell_;
};

/* The ring as its writer sees it. Each thread of the group has a copy. While the group is the writer all copies are
 * equal, but for the rank in group_, and but for the time in which the leader of a block combines (combine_as() in
 * shared_call.h).
 * All threads of the group must call each function together, with the same arguments but for `make`, except where a
 * comment names the caller. Any thread may call alone what only returns a value, store_to_ring() and mark_posted().
 * Only the writer may call functions that ring or wait, from resume() until it passes the lock, or until one of its
 * waits has failed. Only the writer, and a group that places ahead (ticket_lock.h), may call functions that place. A
 * ring made from the state() of the writer's ring goes on in its place; on a shared queue the indices of the handle's
 * ring are then not valid until its next resume().
 * REGISTERS. A kernel for blocks of 1,024 threads has 64 registers, and what is in use at a direct call of a function
 * that is not inlined adds to what the function uses (cold_function() in group.h avoids that on shared queues).
 * Therefore an owner waits for free slots before it makes entries; after a wait it reads the geometry again; small
 * values share options_; a post that is not usual keeps its entries, a wait its requests, and a poll what it can, in
 * the thread's memory, whose address is computed at each call (local_pointer() in group.h); and a reading of the lock
 * is zeroed before the next one, because the threads that do not read would keep it until then (forget_reading() in
 * ticket_lock.h). What ptxas spills nevertheless, it loads anew in each post. On a shared queue that takes a round trip
 * to L2, because the acquire of the post before has emptied L1 (A1 in ticket_lock.h). */
template <class Group, int StoreBytes = EFA_GDA_STORE_BYTES>
class Ring : private RingState {
 public:
  /* Bits of options_ for Sender. kOwnsQueue: the group owns the queue. kDeferred: the last post of a shared handle left
   * its doorbell to a later call, and the handle has not flushed since. */
  static constexpr uint32_t kOwnsQueue = 16, kDeferred = 32;

  EFA_GDA_FN Ring(efa_gda_queue *queue, Group group) : group_(group), queue_(queue) {
    options_ = (queue->hints & EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK) << kHintsShift |
               ((queue->sq.flags & EFA_GDA_SQ_REQ_ID_64) != 0 ? kWideIds : 0) |
               ((queue->sq.flags & EFA_GDA_SQ_RECORD) != 0 ? kRecord : 0) |
               (queue->sq.entry_size == 128 ? kWideEntries : 0) |
               (queue->publication.num_entries != 0 ? kPublicationSlots : 0);
    read_geometry();
    forget();
  }
  /* A ring of the same queue as the one whose state() was `state`, and of the same group; or of a block's leader as a
   * one-thread group, for which combine_as() adapts the state. */
  EFA_GDA_FN Ring(efa_gda_queue *queue, Group group, const RingState &state)
      : RingState(state), group_(group), queue_(queue) {}
  EFA_GDA_FN const RingState &state() const { return *this; }

  EFA_GDA_FN void read_geometry() {
    SendQueueGeometry sq = load_geometry(queue_);
    buffer_ = sq.buffer;
    doorbell_ = sq.doorbell;
    num_entries_ = sq.num_entries;
    batch_window_ = has(kRecord) || sq.max_batch >= sq.num_entries ? kNoBatchWindow : sq.max_batch;
  }

  /* Takes the words that the previous writer left: the two indices as lock_indices() has them, and the limit. next(),
   * the indices and what depends on them have no meaning until resume(). */
  EFA_GDA_FN void inherit(uint64_t indices, uint32_t free_limit) {
    doorbell_index_ = (uint32_t)indices;
    set_confirmed((uint32_t)(indices >> 32));
    free_limit_ = free_limit;
  }
  /* To be called when this group becomes the writer, or places ahead (ticket_lock.h): with the producer index of its
   * first entry. A limit on free slots that is not from next to next + num_entries_ is an old one, and becomes next. */
  EFA_GDA_FN void resume(uint32_t next) {
    next_ = next;
    free_limit_ = free_limit_ - next <= num_entries_ ? free_limit_ : next;
  }

  /* Zeroes what inherit() and resume() set, so that no register keeps it until then. */
  EFA_GDA_FN void forget() {
    next_ = doorbell_index_ = confirmed_index_ = leader_confirmed_index_ = free_limit_ = 0;
  }
  EFA_GDA_FN uint32_t next() const { return next_; }
  EFA_GDA_FN uint32_t doorbell_index() const { return doorbell_index_; }
  EFA_GDA_FN uint32_t leader_confirmed_index() const {
    return Group::kAllThreadsFence ? confirmed_index_ : leader_confirmed_index_;
  }
  /* The cached limit on free slots (free_slots.h): next() may grow up to it. */
  EFA_GDA_FN uint32_t free_limit() const { return free_limit_; }
  EFA_GDA_FN uint32_t num_entries() const { return num_entries_; }
  EFA_GDA_FN bool has_wide_ids() const { return has(kWideIds); }
  EFA_GDA_FN bool has_publication_slots() const { return has(kPublicationSlots); }
  /* Binary logarithm of an entry's size. */
  EFA_GDA_FN uint32_t entry_shift() const { return has(kWideEntries) ? 7 : 6; }
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
  /* On a queue with a request table, stores the poster words of `count` entries: the thread of rank first_rank + i
   * stores that of producer index slot + i. */
  EFA_GDA_FN void mark_posted(uint32_t first_rank, uint32_t count, uint32_t slot) const {
    uint32_t i = group_.rank() - first_rank;
    if (EFA_GDA_LIKELY(poster() == 0) || i >= count) return;
    /* R2 (requests.h). An owner has fenced when it learnt the limit. */
    if (kIsShared<Group>) fence_release_device();
    store_poster(queue_->requests, slot + i, poster());
  }
  EFA_GDA_FN Group group() const { return group_; }
  using StoringGroupOf = StoringGroup<Group, StoreBytes>;
  EFA_GDA_FN StoringGroupOf storing_group() const { return StoringGroupOf(group_); }
  EFA_GDA_FN bool is_leader() const { return group_.leads(); }
  /* Step 1 of RINGING for one quad, by the calling thread. */
  EFA_GDA_FN static void store_to_ring(uint8_t *to, const Quad &quad) {
    if (StoreBytes == 16) {
      store_quad(to, quad);
    } else {
      store_quad_by_eight(to, quad);
    }
  }

  /* The end of the round that begins at entry `begin` of a post() of `count` entries. A round ends at a multiple of the
   * group's size, or at `count`. */
  EFA_GDA_FN uint32_t end_of_round(uint32_t begin, uint32_t count) const {
    uint32_t most = group_.size() - begin % group_.size();
    return count - begin < most ? count : begin + most;
  }

  /* Makes this thread's share of the round [begin, end) of a post(): the thread of rank i modulo size makes entry i by
   * `make(i)`. `end` must be at most what end_of_round() returns. A full warp that stores 16 bytes then exchanges quads
   * among its lanes (StoringGroup): entries that several warps store quad by quad reach PCIe in pieces. store_share()
   * adds the phase and the request id. */
  template <class Make>
  EFA_GDA_FN void make(EntryShare &share, uint32_t begin, uint32_t end, Make make) {
    uint32_t first = begin - begin % group_.size(), i = first + group_.rank();
    StoringGroupOf group = storing_group();
    /* So that no register keeps what an earlier call of this has computed from it. */
    uint32_t options = options_;
    keep(options);
    make_quads(group, options >> kHintsShift, share.quads, i, i - begin < end - begin, make,
               [&](const Entry &entry) {
                 if (!has(kWideEntries)) return;
                 EFA_GDA_UNROLL for (int k = 0; k < 16; k++) share.upper[k] = entry.word[16 + k];
                 if (group.in_full_warp()) transpose_upper(group, share);
               });
    share.first = first;
    share.begin = begin;
    share.end = end;
  }

  /* Calls `store(offset, quad)` for each quad of this thread's share that belongs to an entry made by the threads of
   * rank first_rank to first_rank + count - 1, of which the first has the producer index `slot`. `quads` and `upper`
   * are those of the share (EntryShare), in the thread's memory: quad by quad, for which few registers suffice. Sets
   * phase and request id in the quads. The memory to which they go, the ring or the publication slots, has mask + 1
   * slots; `offset` is in bytes from its first. */
  template <class Store>
  EFA_GDA_FN void store_share(const Quad *quads, const volatile uint32_t *upper, uint32_t first_rank, uint32_t count,
                              uint32_t slot, uint32_t mask, Store store) const {
    StoringGroupOf group = storing_group();
    EFA_GDA_NO_UNROLL for (uint32_t k = 0; k < 1u << (entry_shift() - 4); k++) {
      uint32_t i = entry_number(group, k & 3) - first_rank, s = slot + i;
      uint32_t number = quad_number(group, k & 3) + (k & 4);
      const volatile uint32_t *words = upper + 4 * (k & 3);
      Quad quad = k < 4 ? quads[k] : Quad{words[0], words[1], words[2], words[3]};
      set_ring_fields(quad, number, (s & num_entries_) != 0, s, has(kWideIds));
      if (i < count) store(((s & mask) << entry_shift()) + 16 * number, quad);
    }
  }

  /* Whether the cached limit allows `count` more entries. */
  EFA_GDA_FN bool has_slots(uint32_t count) const { return free_limit_ - next_ >= count; }

  /* If the cached limit does not allow `count` more entries, looks for free slots (A LOOK in free_slots.h). Called by
   * the writer, and by a group that is about to publish. A thread that shares its queue does not look, because that
   * made its posts slower. */
  EFA_GDA_FN void look_for_slots(uint32_t count) {
    if ((kIsShared<Group> && Group::kSingleThread) || EFA_GDA_LIKELY(has_slots(count))) return;
    /* A look does not know the table's limit. (The ring of an empty call has no poster number, so poster() does not
     * show the table.) */
    if (!is_usual() || queue_->requests.num_entries != 0) return;
    uint32_t limit = free_limit_;
    if (is_leader()) {
      limit = completed_so_far(queue_) + num_entries_;
      if (kIsShared<Group>) store_relaxed(limit_word(queue_), (uint64_t)limit);
    }
    limit = group_.from_leader(limit);
    /* As in end_wait(). */
    group_.sync();
    if (limit - next_ <= num_entries_) free_limit_ = limit;
  }

  /* Waits until there are free slots for `*count` entries, and returns the status. Before, it rings for everything
   * placed, and reduces `*count` to half the capacity (free_slots.h), so that the adapter has requests meanwhile. They
   * may exceed the batch window: place() splits them. If the status is not EFA_GDA_OK, the queue is poisoned. */
  EFA_GDA_FN efa_gda_status make_room(uint32_t *count, uint64_t timeout_ns) {
    *count = prepare_wait(*count);
    uint64_t result = 0;
    if (group_.polls()) {
      result = wait_polling<Group>(queue_, WaitFor::FreeSlots, next_, *count, timeout_ns);
    }
    return end_wait(result);
  }
  /* The steps of make_room() before and after wait_polling(), which the caller calls between them. prepare_wait()
   * rings, and returns for how many slots to wait; `result` is that of wait_polling(), the leader's. */
  EFA_GDA_FN uint32_t prepare_wait(uint32_t count) {
    uint32_t most = (capacity_of(queue_) + 1) / 2;
    if (next_ != doorbell_index_) ring();
    return count < most ? count : most;
  }
  EFA_GDA_FN efa_gda_status end_wait(uint64_t result) {
    result = group_.from_leader(result);
    /* Orders the leader's load of `completed` before all threads' stores to the slots that it freed. */
    group_.sync();
    /* R2 (requests.h). */
    if (!kIsShared<Group> && poster() != 0) fence_release_device();
    free_limit_ = next_ + (uint32_t)result;
    if (!kIsShared<Group>) read_geometry();
    return (efa_gda_status)(result >> 32);
  }

  /* Whether `count` more entries fit the batch window without a further fence. */
  EFA_GDA_FN bool fits_batch_window(uint32_t count) const {
    return next_ + count - confirmed_index_ <= batch_window_;
  }

  /* Places `count` entries, for which there must be free slots. `write(done, n, slot)` writes the n entries from the
   * `done`-th of these on to the slots from `slot` on; all threads call it. Entries that exceed the batch window are
   * written in chunks: after each chunk but the last, place() rings and confirms that doorbell. */
  template <class Write>
  EFA_GDA_FN void place(uint32_t count, Write write) {
    uint32_t n = count;
    if (!EFA_GDA_LIKELY(fits_batch_window(n))) {
      if (n > batch_window_) n = batch_window_;
      open_batch_window(n);
    }
    EFA_GDA_NO_UNROLL for (uint32_t done = 0;;) {
      write(done, n, next_);
      next_ += n;
      done += n;
      if (EFA_GDA_LIKELY(done == count)) return;
      ring();
      confirm();
      n = count - done < batch_window_ ? count - done : batch_window_;
    }
  }

  /* Places the entries [share.begin, share.end), for which there must be free slots. */
  EFA_GDA_FN void place_share(const EntryShare &share) {
    place(share.end - share.begin, [&](uint32_t done, uint32_t n, uint32_t slot) {
      uint32_t first_rank = share.begin - share.first + done;
      mark_posted(first_rank, n, slot);
      store_share(share.quads, share.upper, first_rank, n, slot, num_entries_ - 1,
                  [&](uint32_t offset, const Quad &quad) { Ring::store_to_ring(buffer_ + offset, quad); });
    });
  }

  /* Makes and places the `count` entries of a post(), round by round, each when there are free slots for it. If
   * make_room() allows only a part of a round, that part is made and placed before the next wait. */
  template <class Make>
  EFA_GDA_FN efa_gda_status place_entries(EntryShare &share, uint32_t count, Make make, uint64_t timeout_ns) {
    for (uint32_t begin = 0; begin < count;) {
      uint32_t n = end_of_round(begin, count) - begin;
      if (!EFA_GDA_LIKELY(has_slots(n))) {
        efa_gda_status status = make_room(&n, timeout_ns);
        if (status != EFA_GDA_OK) return status;
      }
      this->make(share, begin, begin + n, make);
      place_share(share);
      begin += n;
    }
    return EFA_GDA_OK;
  }

  /* Address of a slot, and the slots from it to the ring's end. */
  EFA_GDA_FN uint8_t *slot_address(uint32_t slot) const {
    return buffer_ + ((slot & (num_entries_ - 1)) << entry_shift());
  }
  EFA_GDA_FN uint32_t slots_to_end(uint32_t slot) const { return num_entries_ - (slot & (num_entries_ - 1)); }

  /* Whether rounds are usual ones: on a queue with entries of 64 bytes and a doorbell of the adapter, by a handle
   * without an error. A post() of one usual round, for which there are free slots, has code of its own with few
   * branches, because a warp's instructions between two fences bound its rate. */
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
    make_quads(storing_group(), options_ >> kHintsShift, quads, group_.rank(),
               Group::kSingleThread || group_.rank() < count, make, [](const Entry &) {});
  }
  EFA_GDA_FN void place_usual(Quad (&quads)[4], uint32_t count) {
    uint32_t mask = num_entries_ - 1;
    bool in_lap = Group::kSingleThread || (next_ & mask) + count <= num_entries_;
    /* One branch for all three. (A call that was published, and then got the lock, has ids and phases already.) */
    if (EFA_GDA_LIKELY(in_lap & fits_batch_window(count) & !has(kWideIds))) {
      store_quads_of_lap(storing_group(), quads, 0, Group::kSingleThread ? 1 : count, next_,
                         (next_ & num_entries_) != 0, buffer_, mask, 6,
                         [](uint8_t *to, const Quad &quad) { Ring::store_to_ring(to, quad); });
      next_ += count;
    } else {
      place_in_windows(quads, count);
    }
  }

  /* Whether `count` entries from next() on fit the free slots and the batch window, without a wait or a fence. */
  EFA_GDA_FN bool has_room(uint32_t count) const {
    return fits_batch_window(count) && has_slots(count);
  }

  /* Goes past the next `count` entries, which are in the ring. */
  EFA_GDA_FN void advance(uint32_t count) {
    next_ += count;
    /* They were placed in free slots, so the limit is not below. */
    if (free_limit_ - next_ > num_entries_) free_limit_ = next_;
  }

  /* Steps 2 and 3 of a ring, for a writer that passes the lock without ringing: orders the stores of placed entries
   * before all that later writers store, also as the adapter sees it. */
  EFA_GDA_FN void order_placed() const {
    group_.sync();
    if (executes_fences()) fence_release_system();
  }

  /* Rings for everything placed: steps 2 to 4. The fence confirms the previous doorbell, for the threads that execute
   * it. After the sync all threads may rely on the fence of the ring() before, so confirmed_index_ becomes equal to
   * leader_confirmed_index_. */
  EFA_GDA_FN void ring() {
    group_.sync();
    confirmed_index_ = leader_confirmed_index();
    bool leads = is_leader();
    if (Group::kAllThreadsFence || leads) fence_release_system();
    /* A record takes all 32 bits of the producer index, a doorbell of the adapter the low 16. */
    store_doorbell_if(leads, doorbell_, has(kRecord) ? next_ : next_ & 0xffff);
    confirm_for_leader(doorbell_index_);
    doorbell_index_ = next_;
  }

  /* If the entries that are not confirmed fill more than an eighth of the batch window, confirms the last doorbell, so
   * that other groups can place ahead up to max_batch entries past it. To copy their entries would take longer than
   * this fence. With fewer entries, calls of up to seven eighths of the window can place ahead without it. */
  EFA_GDA_FN void confirm_for_others() {
    if (batch_window_ != kNoBatchWindow && next_ - leader_confirmed_index() > batch_window_ / 8) confirm();
  }

 private:
  /* place_usual() for entries that exceed the batch window, of two laps, or with wide ids. All of them are ready before
   * the first chunk, so that little happens between two fences. */
  EFA_GDA_FN void place_in_windows(Quad (&quads)[4], uint32_t count) {
    uint32_t offsets[4], entries[4];
    StoringGroupOf group = storing_group();
    EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
      entries[k] = entry_number(group, k);
      uint32_t s = next_ + entries[k];
      set_ring_fields(quads[k], quad_number(group, k), (s & num_entries_) != 0, s, has(kWideIds));
      offsets[k] = ((s & (num_entries_ - 1)) << 6) + 16 * quad_number(group, k);
      /* The compiler would otherwise compute them again for each chunk, between two fences. */
      if (!Group::kSingleThread) keep(entries[k]);
      if (!Group::kSingleThread) keep(offsets[k]);
    }
    place(count, [&](uint32_t done, uint32_t n, uint32_t) {
      EFA_GDA_UNROLL for (uint32_t k = 0; k < 4; k++) {
        if (Group::kSingleThread || entries[k] - done < n) store_to_ring(buffer_ + offsets[k], quads[k]);
      }
    });
  }

  static constexpr uint32_t kNoBatchWindow = 0x80000000u;
  /* Bits of options_ from the queue's geometry; above the flags are the handle's status, the queue's hints, and the
   * poster number. */
  static constexpr uint32_t kWideIds = 1, kRecord = 2, kWideEntries = 4, kPublicationSlots = 8;
  static constexpr int kStatusShift = 6, kHintsShift = 14, kPosterShift = 16;
  static constexpr uint32_t kUnusual = kWideEntries | kRecord | 0xffu << kStatusShift;
  static_assert(EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK >> (kPosterShift - kHintsShift) == 0 &&
                    (kMaxPoster << kPosterShift) >> kPosterShift == kMaxPoster && kDeferred < 1 << kStatusShift,
                "the fields of options_ do not overlap");
  EFA_GDA_FN bool executes_fences() const { return Group::kAllThreadsFence || is_leader(); }
  /* The threads that execute fences have confirmed the doorbell value `index`. */
  EFA_GDA_FN void confirm_for_leader(uint32_t index) {
    if (Group::kAllThreadsFence) {
      confirmed_index_ = index;
    } else {
      leader_confirmed_index_ = index;
    }
  }
  /* All threads of the group have confirmed it. */
  EFA_GDA_FN void set_confirmed(uint32_t index) {
    confirmed_index_ = index;
    confirm_for_leader(index);
  }

  /* Confirms the last doorbell for all threads of the group. */
  EFA_GDA_FN void confirm() {
    if (Group::kAllThreadsFence) group_.sync();
    if (executes_fences()) fence_release_system();
    if (!Group::kAllThreadsFence) group_.sync();
    set_confirmed(doorbell_index_);
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

  Group group_;
  efa_gda_queue *queue_;
};

}  // namespace efa_gda

#endif
