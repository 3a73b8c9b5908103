/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What efa-gda/benches/soft_adapter measures on the software adapter. Each block is one warp. Not for applications.
 */
#include "efa_gda/signal.h"

/* Arguments of all kernels. The benchmark and soft_adapter_nccl.cu declare the same struct. */
struct soft_adapter_args {
  efa_gda_queue *queue;
  efa_gda_peer peer;
  uint32_t lkey, rkey;
  /* The adapter's addresses of the source and of the target of writes, and the kernel's addresses of the same. */
  uint64_t local, remote;
  uint64_t *source, *target;
  /* Zeroed memory of the kernel: results, and words between blocks. NCCL's structs in soft_adapter_nccl.cu. */
  uint64_t *scratch;
  /* 0, or why the first group failed: the enum efa_gda_status. */
  uint32_t *status;
  /* Calls of each thread, or of the block that measures. A write has `bytes` bytes. */
  uint32_t calls;
  uint32_t bytes;
  /* Time between the calls of a block that posts while another one measures. */
  uint64_t pause_ns;
  /* soft_adapter_nccl.cu describes it. */
  const struct gin_endpoints *endpoints;
};

#if EFA_GDA_ON_GPU
#define SOFT_ADAPTER_KERNEL EFA_GDA_KERNEL __launch_bounds__(1024)
#else
#define SOFT_ADAPTER_KERNEL EFA_GDA_KERNEL
#endif

namespace {

using namespace efa_gda;
using SharedSender = Sender<Sharing::Device, WarpGroup>;

/* The first failure is the cause of the others. */
EFA_GDA_FN void report(const soft_adapter_args &a, WarpGroup group, efa_gda_status status) {
  if (group.rank() == 0) compare_swap_acquire(a.status, EFA_GDA_OK, (uint32_t)status);
}

/* A write of part `i` of the source, of `bytes` bytes, to the same part of the target. */
EFA_GDA_FN Entry write_part(const soft_adapter_args &a, uint32_t i) {
  uint64_t at = (uint64_t)i * a.bytes;
  return write_entry(a.peer, Memory{a.local + at, a.lkey, a.bytes}, a.remote + at, a.rkey);
}

/* Waits, on all threads of the group, until another block has stored `value` in `word`. */
EFA_GDA_FN efa_gda_status wait_for_block(const soft_adapter_args &a, WarpGroup group, const uint64_t *word,
                                         uint64_t value) {
  uint32_t status = EFA_GDA_OK;
  if (group.rank() == 0) {
    Deadline::State state(kDefaultTimeoutNs);
    Deadline deadline(state, a.queue);
    while (load_acquire(word) != value && status == EFA_GDA_OK) status = deadline.expired(EFA_GDA_TIMEOUT_SIGNAL);
  }
  status = group.from_leader(status);
  group.sync();
  return (efa_gda_status)status;
}

/* The scratch memory of soft_adapter_signal(). `sent`: the last round whose signal the receiver may wait for. `seen`:
 * the last round whose signal it has seen, and found the data. Then three times of each round. */
struct SignalWords {
  uint64_t sent, seen;
  /* When the put began and when its signal was seen; how long the same put took without a receiver, until its signal's
   * own completion. */
  struct {
    uint64_t begin, seen, two_completions;
  } rounds[1];
};

/* Two words behind the data, on different cache lines: the receiver waits for the first. */
constexpr uint32_t kWordsBetweenSignals = 16;

EFA_GDA_FN efa_gda_status send_signals(const soft_adapter_args &a, WarpGroup group, SignalWords &words) {
  SharedSender sender(a.queue);
  efa_gda_status status = sender.status();
  uint32_t data_words = a.bytes / 8;
  for (uint32_t step = 0; step < 2 * a.calls && status == EFA_GDA_OK; step++) {
    uint32_t round = step / 2 + 1;
    bool is_received = step % 2 == 0;
    uint32_t word = data_words + (is_received ? 0 : kWordsBetweenSignals);
    for (uint32_t i = group.rank(); i < data_words; i += group.size()) {
      store_relaxed(a.source + i, (uint64_t)round * data_words + i);
    }
    group.sync();
    if (is_received && group.rank() == 0) store_release(&words.sent, (uint64_t)round);
    uint64_t begin = clock_ns();
    uint32_t request = 0;
    status = put_signal(
        sender, 1, [&](uint32_t i) { return write_part(a, i); },
        [&] {
          return value_signal(a.queue, SignalTarget{a.peer, a.rkey, a.remote + 8 * word}, (uint64_t)round,
                              SignalWord{a.source + word, a.local + 8 * word, a.lkey});
        },
        nullptr, &request);
    /* The sender does not poll while the receiver does: at a real adapter they are on different machines. */
    if (status == EFA_GDA_OK && is_received) status = wait_for_block(a, group, &words.seen, round);
    if (status == EFA_GDA_OK) status = sender.wait(request, 1);
    uint64_t end = clock_ns();
    if (group.rank() == 0) {
      if (is_received) words.rounds[round - 1].begin = begin;
      if (!is_received) words.rounds[round - 1].two_completions = end - begin;
    }
  }
  efa_gda_status closed = sender.close();
  return status == EFA_GDA_OK ? closed : status;
}

EFA_GDA_FN efa_gda_status receive_signals(const soft_adapter_args &a, WarpGroup group, SignalWords &words) {
  uint32_t data_words = a.bytes / 8;
  efa_gda_status status = EFA_GDA_OK;
  for (uint32_t round = 1; round <= a.calls && status == EFA_GDA_OK; round++) {
    /* Until the put begins, the receiver reads nothing across PCIe. */
    status = wait_for_block(a, group, &words.sent, round);
    if (status != EFA_GDA_OK) break;
    status = wait_until<WarpGroup, uint64_t>(a.queue, group, a.target + data_words, Until::Equal, round,
                                             kDefaultTimeoutNs);
    uint64_t seen = clock_ns();
    bool wrong = false;
    for (uint32_t i = group.rank(); i < data_words; i += group.size()) {
      wrong |= a.target[i] != (uint64_t)round * data_words + i;
    }
    if (group.vote(wrong) != 0 && status == EFA_GDA_OK) status = EFA_GDA_BAD_COMPLETION;
    if (group.rank() == 0) {
      words.rounds[round - 1].seen = seen;
      if (status == EFA_GDA_OK) store_release(&words.seen, (uint64_t)round);
    }
  }
  return status;
}

/* The scratch memory of soft_adapter_own(): how many other blocks have opened the queue, whether they must end, how
 * many calls they made in all, and for how long. Then the time of each call of block 0. */
struct OwnWords {
  uint64_t others, end, calls, elapsed;
  uint64_t times[1];
};

/* Each call is one write. Its time begins before post(), and ends when wait() has returned. */
EFA_GDA_FN efa_gda_status wait_for_own(const soft_adapter_args &a, WarpGroup group, OwnWords &words) {
  SharedSender sender(a.queue);
  efa_gda_status status = sender.status();
  if (status == EFA_GDA_OK) status = wait_for_block(a, group, &words.others, block_count() - 1);
  uint64_t first_begin = clock_ns();
  for (uint32_t call = 0; call < a.calls && status == EFA_GDA_OK; call++) {
    uint64_t begin = clock_ns();
    uint32_t request = 0;
    status = sender.post(1, [&](uint32_t) { return write_part(a, 0); }, kPostDefault, &request);
    if (status == EFA_GDA_OK) status = sender.wait(request, 1);
    if (group.rank() == 0) words.times[call] = clock_ns() - begin;
  }
  if (group.rank() == 0) {
    words.elapsed = clock_ns() - first_begin;
    store_release(&words.end, (uint64_t)1);
  }
  efa_gda_status closed = sender.close();
  return status == EFA_GDA_OK ? closed : status;
}

/* Posts one write every `pause_ns`, and does not wait for them, until block 0 has ended. */
EFA_GDA_FN efa_gda_status post_on(const soft_adapter_args &a, WarpGroup group, OwnWords &words) {
  SharedSender sender(a.queue);
  efa_gda_status status = sender.status();
  if (group.rank() == 0) fetch_add_relaxed(&words.others, (uint64_t)1);
  uint64_t next = clock_ns() + a.pause_ns * block_index() / block_count();
  uint32_t calls = 0;
  for (bool goes_on = true; goes_on && status == EFA_GDA_OK;) {
    uint32_t has_ended = 0;
    if (group.rank() == 0) {
      while ((has_ended = load_acquire(&words.end) != 0) == 0 && clock_ns() < next) pause();
    }
    goes_on = group.from_leader(has_ended) == 0;
    if (goes_on) status = sender.post(1, [&](uint32_t) { return write_part(a, block_index()); });
    calls += goes_on;
    next += a.pause_ns;
  }
  if (group.rank() == 0) fetch_add_relaxed(&words.calls, (uint64_t)calls);
  if (status == EFA_GDA_OK) status = sender.wait_own();
  efa_gda_status closed = sender.close();
  return status == EFA_GDA_OK ? closed : status;
}

}  // namespace

/* All warps share the queue. Each thread of a warp writes in each call, and each call rings. Ends when all writes
 * completed. */
SOFT_ADAPTER_KERNEL soft_adapter_writes(struct soft_adapter_args a) {
  WarpGroup group;
  SharedSender sender(a.queue);
  efa_gda_status status = sender.status();
  for (uint32_t call = 0; call < a.calls && status == EFA_GDA_OK; call++) {
    status = sender.post(32, [&](uint32_t i) { return write_part(a, i); });
  }
  if (status == EFA_GDA_OK) status = sender.quiet();
  efa_gda_status closed = sender.close();
  report(a, group, status == EFA_GDA_OK ? closed : status);
}

/* Two blocks: the first puts with signal, and the second waits for every other signal. */
SOFT_ADAPTER_KERNEL soft_adapter_signal(struct soft_adapter_args a) {
  WarpGroup group;
  SignalWords &words = *reinterpret_cast<SignalWords *>(a.scratch);
  report(a, group, block_index() == 0 ? send_signals(a, group, words) : receive_signals(a, group, words));
}

/* Block 0 waits for its own calls. The other blocks share the queue and post on. */
SOFT_ADAPTER_KERNEL soft_adapter_own(struct soft_adapter_args a) {
  WarpGroup group;
  OwnWords &words = *reinterpret_cast<OwnWords *>(a.scratch);
  report(a, group, block_index() == 0 ? wait_for_own(a, group, words) : post_on(a, group, words));
}

#if !EFA_GDA_ON_GPU
/* Compiled as C++: runs one block of a launch on the calling thread. */
#define SOFT_ADAPTER_ON_HOST(kernel)                                                               \
  extern "C" bool kernel##_on_host(const struct soft_adapter_args *args, uint32_t block, uint32_t blocks,      \
                                   uint32_t threads) {                                                         \
    return efa_gda::host::run_block(block, blocks, threads, [=] { kernel(*args); });                           \
  }
SOFT_ADAPTER_ON_HOST(soft_adapter_writes)
SOFT_ADAPTER_ON_HOST(soft_adapter_signal)
SOFT_ADAPTER_ON_HOST(soft_adapter_own)
#endif
