/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Put with signal, and the wait for a signal.
 *
 * The adapter delivers requests in any order. A signal that must land after its data is therefore posted only when the
 * data requests are done. A signal is a value that is written to a word of the peer's memory (value_signal), or one
 * tick of a completion counter of the peer (tick_signal). A group of the peer waits for it with wait_until().
 *
 * TERMS. Group, handle, call, done: see sq.h. Data: the bytes that must be visible before the signal. Data requests:
 * the requests that write them. Word: the word of the peer's memory that the signal changes: the target of a value, or
 * the completion counter.
 *
 * SENDING SIDE. There are two forms. Which one is needed depends on how the peer registered the memory of data and
 * word.
 *   form                     | steps                                     | needs
 *   put_signal, signal_own   | post the data; wait until these requests  | regions with strict ordering, the default;
 *                            | are done; post the signal                 | data and word in one GPU, or both in host
 *                            |                                           | memory (RECEIVING SIDE, step 2);
 *                            |                                           | data and signal to one endpoint of the peer
 *   put_signal_read_back,    | post the data; wait; post a read-back: an | data and signal to endpoints of one
 *   signal_own_read_back     | RDMA read, at the endpoint of the data,   | adapter of the peer; RDMA reads
 *                            | of bytes that the data wrote; wait; post  |
 *                            | the signal                                |
 * A tick usually needs the second form: each write of data ticks the counter of the endpoint to which it goes, so a
 * counter that counts signals alone belongs to another endpoint. With the first form, data and tick go to one endpoint,
 * and the value that the receiver waits for must include the ticks of the data's writes.
 * The first form rests on what libfabric states for EFA since 2.7 (fi_efa(7), FI_EFA_MR_RELAXED_ORDERING): with a
 * region of the default, strict ordering, a completion with status 0 guarantees that later operations to the same
 * endpoint appear at the target after the completed one. FI_EFA_MR_RELAXED_ORDERING gives this up: a completion then
 * proves nothing about visibility. The second form does not need this guarantee: over PCIe, a read request does not
 * pass earlier writes of the same adapter to the same memory. So when the read-back, of any bytes of the data in one
 * memory, is done, all of the data in that memory has reached it. Neither form orders requests of different adapters
 * (rails): each rail needs its own signal.
 *   The waits are those of requests.h. On a queue without a request table the functions call quiet() instead, which
 * waits for the requests of all groups; an error of another group then keeps the signal back.
 *   If a data request or the read-back failed, no signal is posted: the functions return EFA_GDA_COMPLETION_ERROR, and
 * `*failed` becomes the first failed request that the wait found. If its status is 0, it names none, and any request of
 * the queue may have failed (requests.h). Without a request table `*failed` is not written. After this status the
 * caller must not call signal_own() or signal_own_read_back() for this data: they may post the signal without waiting
 * for the data again. Exception: a queue with counters whose wrap is 0 reports no errors (cq.h), so the functions post
 * the signal although the data or the read-back failed.
 *   EFA_GDA_IN_FLIGHT (timeout 0, with a request table) means that the data is posted and the signal is not. After the
 * first form the caller may then call signal_own() until it returns another status, but not put_signal(), which would
 * post the data again.
 * Each signal_own_read_back() that finds the earlier requests done posts a further read-back, and may return
 * EFA_GDA_IN_FLIGHT for it, so the second form needs a handle with a bound.
 *   After any other failure the handle refuses all calls. Exception: EFA_GDA_BAD_ARGUMENT for more than
 * kMaxEntriesPerCall data requests; nothing was then posted, and the handle can be used.
 *   The functions return EFA_GDA_OK when the signal is posted. Its own failure is reported by the next wait that covers
 * it.
 *
 * RECEIVING SIDE. wait_until() returns EFA_GDA_OK when the word satisfies the comparison. All threads of the group then
 * see, with plain loads, the data that was sent before the signal. Why:
 *   1. The leader reads the word with ld.relaxed.sys. When it satisfies the comparison, the leader executes
 *      fence_acquire_system(), and then the group synchronises. So each later load of any thread of the group comes
 *      after the load of the word, at system scope, and does not return what the GPU had cached before.
 *   2. The adapter's writes of the data become visible to this GPU before its write of the word. That depends on the
 *      memory that both are in. "Ordering" is CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING (check CUDA-007 of
 *      gda-probe) of the GPU that has the memory.
 *      data in         | word in     | first form    | with read-back | why
 *      this GPU        | this GPU    | if ordering   | if ordering    | the writes take one path, in order
 *                      |             |   >= 100      |   >= 100       |
 *      another GPU     | that GPU    | if ordering   | if ordering    | the same
 *                      |             |   >= 200      |   >= 200       |
 *      host memory     | host memory | yes           | yes            | one adapter's writes to host memory become
 *                      |             |               |                |   visible in order; the loads after the fence
 *                      |             |               |                |   read it again
 *      this GPU        | host memory | no            | if ordering    | two paths: without the read-back, the word may
 *      host memory     | this GPU    | no            |   >= 100       |   be visible before the data has reached its
 *                      |             |               |                |   memory
 *      another GPU     | host memory | no            | if ordering    | the same
 *      host memory     | another GPU | no            |   >= 200       |
 *      one GPU         | another GPU | no            | no             | two paths, and no rule for a read-back is known
 *      by one adapter  | by another  | no            | no             | nothing orders two adapters: send one signal
 *                      |             |               |                |   through each
 *      100 is OWNER, 200 ALL_DEVICES. Host memory is mapped into this GPU. With ordering 0 (NONE) wait_until() proves
 *      nothing for data in a GPU: the host must wait for the word and call cuFlushGPUDirectRDMAWrites before it starts
 *      the kernel that reads the data. With a tick, "word in" is the memory in which the host placed the counter. The
 *      adapter counts a write after it has executed it.
 *      For the bytes of an RDMA read or of a receive, the completion is the word: the column "word in" is the memory
 *      of the completion queue, on a queue with counters that of the counters, and the column "first form" is whether
 *      the completion proves that the bytes are visible. Their region must have strict ordering.
 * Data must not be loaded through the read-only cache (ld.global.nc, __ldg, const __restrict__): no fence orders that.
 *
 * WORDS
 *   word              | written by                      | read by           | ordered by
 *   word at the peer  | adapter of the peer             | a waiting leader  | 1 and 2 above
 *   SignalWord        | the thread that makes the entry | adapter           | the fence before the doorbell (sq.h)
 *                     | (rank 0 in the functions below) |                   |
 *
 * A WAIT THAT RUNS OUT. wait_until() returns EFA_GDA_TIMEOUT_SIGNAL. The bound counts from the first time that the wait
 * reads the clock, and again from each change of the word. The wait also ends if the queue is poisoned, with
 * EFA_GDA_POISONED, or if the abort flag is raised, with EFA_GDA_ABORTED if the flag is 1 and otherwise with the
 * status whose value it has. If the word satisfies the comparison by then, wait_until() returns EFA_GDA_OK. Whatever
 * its status, wait_until() poisons nothing, because no request of the queue is concerned. The sending functions end as
 * wait(), quiet() and post() do.
 */
#ifndef EFA_GDA_SIGNAL_H
#define EFA_GDA_SIGNAL_H

#include "post.h"

namespace efa_gda {

/* The word of a peer that a value is written to: at `address`, which must be aligned to the value's size, in a region
 * with the key `key`. */
struct SignalTarget {
  efa_gda_peer peer;
  uint32_t key;
  uint64_t address;
};

/* 8 bytes of the poster's registered memory, from which the adapter reads the value if the queue's entries cannot carry
 * it: `pointer` for the kernel, `address` and `key` for the adapter. The caller must not use them again until the
 * signal's request is done. A queue whose entries carry inline writes (can_write_inline) does not use them. */
struct SignalWord {
  uint64_t *pointer;
  uint64_t address;
  uint32_t key;
};

/* Whether the queue's entries carry inline writes of `bytes` bytes. */
EFA_GDA_FN bool can_write_inline(const efa_gda_queue *queue, uint32_t bytes) {
  return queue->sq.entry_size == 128 && (queue->sq.flags & EFA_GDA_SQ_INLINE_WRITE) != 0 && bytes <= queue->max_inline;
}

/* The type itself, from which the compiler deduces no template argument: a literal then has the width of the word. */
template <class Type>
struct Exactly {
  using Value = Type;
};

/* An entry that writes `value` to the 8 bytes at `target`, or with value_signal<uint32_t>() to 4 bytes: inline if the
 * queue can, otherwise from `word`. One thread calls it, within make(). */
template <class Value = uint64_t>
EFA_GDA_FN Entry value_signal(const efa_gda_queue *queue, const SignalTarget &target,
                              typename Exactly<Value>::Value value, const SignalWord &word) {
  static_assert(sizeof(Value) == 4 || sizeof(Value) == 8, "the adapter writes such a word at once");
  if (can_write_inline(queue, sizeof(Value))) {
    uint8_t bytes[sizeof(Value)];
    for (uint32_t i = 0; i < sizeof(Value); i++) bytes[i] = (uint8_t)((uint64_t)value >> (8 * i));
    return inline_write_entry(target.peer, bytes, sizeof(Value), target.address, target.key);
  }
  store_relaxed(word.pointer, (uint64_t)value);
  return write_entry(target.peer, Memory{word.address, word.key, sizeof(Value)}, target.address, target.key);
}

/* An entry that ticks the completion counter of the endpoint `peer` for inbound writes (FI_REMOTE_WRITE): an RDMA write
 * of local.length bytes, which may be 0, to `remote`. The counter of that endpoint must be open. If the data goes to
 * another endpoint, the form with read-back is needed (SENDING SIDE). */
EFA_GDA_FN Entry tick_signal(const efa_gda_peer &peer, const Memory &local, uint64_t remote, uint32_t rkey) {
  return write_entry(peer, local, remote, rkey);
}

/* What the signal comes after. Call: the data that the function itself posts. Own: all requests that the handle posted
 * and that no earlier wait_own() covered. */
enum class SignalAfter { Call, Own };

/* Posts in `steps` steps, each when the requests of the step before are done: in step 0 `count` entries of make(0, i),
 * in each later step one entry of make(step, 0). With SignalAfter::Own, which has count 0, the wait before step 1 is
 * wait_own().
 * One loop, so that the kernel has one copy of post(). */
template <class AnySender, class Make>
[[nodiscard]] EFA_GDA_FN efa_gda_status post_in_steps(AnySender &sender, SignalAfter after, uint32_t count,
                                                      uint32_t steps, Make make, FailedRequest *failed,
                                                      uint32_t *last_request) {
  efa_gda_status status = sender.status();
  EFA_GDA_NO_UNROLL for (uint32_t step = 0; step < steps && status == EFA_GDA_OK; step++) {
    uint32_t n = step == 0 ? count : 1, first = 0;
    if (n != 0) status = sender.post(n, [&](uint32_t i) { return make(step, i); }, kPostDefault, &first);
    if (last_request != nullptr) *last_request = first;
    if (status != EFA_GDA_OK || step + 1 == steps) break;
    bool own = step == 0 && after == SignalAfter::Own;
    status = own ? sender.wait_own(failed) : sender.wait(first, n, failed);
    if (status == EFA_GDA_UNSUPPORTED) status = sender.quiet();
  }
  return status;
}

/* Posts `count` entries of data(i), waits until they are done, and posts signal(). For regions with strict ordering.
 * `data` and `signal` return entries and obey the rules of make() (post.h). With EFA_GDA_OK, `*signal_request` becomes
 * the signal's producer index, for wait(); otherwise its value means nothing. All threads of the group call it. */
template <class AnySender, class Data, class Signal>
[[nodiscard]] EFA_GDA_FN efa_gda_status put_signal(AnySender &sender, uint32_t count, Data data, Signal signal,
                                     FailedRequest *failed = nullptr, uint32_t *signal_request = nullptr) {
  auto make = [&](uint32_t step, uint32_t i) { return step == 0 ? data(i) : signal(); };
  return post_in_steps(sender, SignalAfter::Call, count, 2, make, failed, signal_request);
}

/* The same for regions with relaxed ordering, or data and word in different memories: when the data requests are done,
 * it posts read_back(), an RDMA read of bytes that the data wrote, and waits for it before it posts the signal. */
template <class AnySender, class Data, class ReadBack, class Signal>
[[nodiscard]] EFA_GDA_FN efa_gda_status put_signal_read_back(AnySender &sender, uint32_t count, Data data,
                                                             ReadBack read_back, Signal signal,
                                                             FailedRequest *failed = nullptr,
                                                             uint32_t *signal_request = nullptr) {
  auto make = [&](uint32_t step, uint32_t i) { return step == 0 ? data(i) : step == 1 ? read_back() : signal(); };
  return post_in_steps(sender, SignalAfter::Call, count, 3, make, failed, signal_request);
}

/* The signal for data that the handle has posted before: waits by wait_own() (without a request table by quiet()), and
 * posts signal(). If such a wait for this data, or an earlier signal_own(), returned EFA_GDA_COMPLETION_ERROR, the
 * caller must not signal: this call no longer waits for those requests. For regions with strict ordering. */
template <class AnySender, class Signal>
[[nodiscard]] EFA_GDA_FN efa_gda_status signal_own(AnySender &sender, Signal signal, FailedRequest *failed = nullptr,
                                     uint32_t *signal_request = nullptr) {
  auto make = [&](uint32_t, uint32_t) { return signal(); };
  return post_in_steps(sender, SignalAfter::Own, 0, 2, make, failed, signal_request);
}

/* The same with a read-back, as put_signal_read_back(). If the data went to several memories of the peer, each needs a
 * read-back after its data is done: call wait_own() (without a request table: quiet()); if it succeeded, post the
 * read-backs of all but one of these memories, and then call this function, which waits for them and reads back from
 * the last one. */
template <class AnySender, class ReadBack, class Signal>
[[nodiscard]] EFA_GDA_FN efa_gda_status signal_own_read_back(AnySender &sender, ReadBack read_back, Signal signal,
                                               FailedRequest *failed = nullptr, uint32_t *signal_request = nullptr) {
  auto make = [&](uint32_t step, uint32_t) { return step == 1 ? read_back() : signal(); };
  return post_in_steps(sender, SignalAfter::Own, 0, 3, make, failed, signal_request);
}

/* How wait_until() compares the word with the value. AtLeast: the word is the value, or was counted up from it by less
 * than half of its range: 2^31, 2^63, or half of `wrap`. */
enum class Until { Equal, NotEqual, AtLeast };

/* `wrap`: the word counts modulo this power of two; 0: modulo 2^32 or 2^64, by its type. */
template <class Word>
EFA_GDA_FN bool satisfies(Word seen, Until until, Word value, Word wrap) {
  Word mask = wrap - 1, difference = (seen - value) & mask;
  if (until == Until::AtLeast) return difference <= mask >> 1;
  return (difference == 0) == (until == Until::Equal);
}

/* Waits for the word; called by the leader. `*last` becomes the last value that it read. */
template <class Word>
EFA_GDA_COLD efa_gda_status leader_wait_until(const efa_gda_queue *queue, const volatile Word *word, Until until,
                                              Word value, Word wrap, uint64_t timeout_ns, Word *last) {
  Deadline::State state(timeout_ns);
  Deadline deadline(state, queue);
  Word seen = load_system(word);
  efa_gda_status status = EFA_GDA_OK;
  while (!satisfies(seen, until, value, wrap) && status == EFA_GDA_OK) {
    status = deadline.expired(EFA_GDA_TIMEOUT_SIGNAL);
    Word now = load_system(word);
    if (now != seen) deadline.restart();
    seen = now;
  }
  if (satisfies(seen, until, value, wrap)) status = EFA_GDA_OK;
  /* Step 1 of RECEIVING SIDE. */
  fence_acquire_system();
  *last = seen;
  return status;
}

/* Waits until the word, of 4 or 8 bytes (uint32_t, uint64_t), satisfies the comparison. All threads of the group call
 * it, with the same arguments but for `seen`. `queue`: the queue whose abort flag and poison end the wait; this call
 * posts nothing to it. Unless `seen` is null, `*seen` becomes the last value that was read of the word, with any
 * status. `wrap`: see satisfies(). */
template <class Group, class Word>
[[nodiscard]] EFA_GDA_FN efa_gda_status wait_until(const efa_gda_queue *queue, Group group, const volatile Word *word,
                                                   Until until, typename Exactly<Word>::Value value,
                                                   uint64_t timeout_ns, Word *seen = nullptr,
                                                   typename Exactly<Word>::Value wrap = 0) {
  Word last = 0;
  uint32_t status = EFA_GDA_OK;
  if (group.rank() == 0) status = leader_wait_until(queue, word, until, value, wrap, timeout_ns, &last);
  status = group.from_leader(status);
  last = group.from_leader(last);
  if (seen != nullptr) *seen = last;
  group.sync();
  return (efa_gda_status)status;
}

}  // namespace efa_gda

#endif
