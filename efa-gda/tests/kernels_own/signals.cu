/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One group sends data and signals in every form of signal.h, and another waits for them and compares the data. */
#include "efa_gda/signal.h"

enum signals_form {
  /* put_signal with a value of 8 bytes; the value is the round. */
  SIGNALS_VALUE = 0,
  /* put_signal_read_back with a tick of another endpoint, by a write of no bytes, and of 8 bytes. */
  SIGNALS_TICK = 1,
  SIGNALS_TICK_8 = 2,
  SIGNALS_READ_BACK = 3,
  /* The data is posted first, in two calls. */
  SIGNALS_OWN = 4,
  SIGNALS_OWN_READ_BACK = 5,
  /* put_signal without data, with a value of 4 bytes. */
  SIGNALS_ONLY = 6
};

struct signals_args {
  struct efa_gda_queue *queue;
  /* The endpoint of data and values, and the one with the counter. */
  struct efa_gda_peer peer;
  struct efa_gda_peer counted;
  /* Threads of the groups: 1, 32 (a warp), or 0 for the whole block. */
  uint32_t group;
  /* enum signals_form */
  uint32_t form;
  uint32_t rounds;
  uint32_t words;
  uint32_t lkey;
  uint32_t rkey;
  /* In each round, `words` words of 8 bytes from `source` go to `target`; in round r each contains r * words + its
   * number. A scratch word of the sender follows the source, and the signal word follows the target. */
  uint64_t *source;
  volatile uint64_t *target;
  uint64_t local;
  uint64_t remote;
  /* The word that the receiver waits for: the signal word, or the counter of `counted`. */
  const volatile uint64_t *awaited;
  /* The round that the receiver has finished. */
  uint32_t *finished;
  uint64_t timeout_ns;
  /* The status of the sender, and of the receiver. EFA_GDA_BAD_COMPLETION: a word was wrong. */
  uint32_t *status;
};

namespace {

using namespace efa_gda;

template <class AnySender>
EFA_GDA_FN efa_gda_status send_round(const signals_args &a, AnySender &sender, uint64_t round) {
  uint32_t n = a.form == SIGNALS_ONLY ? 0 : a.words;
  uint64_t scratch = 8 * (uint64_t)a.words;
  auto data = [&](uint32_t i) {
    return write_entry(a.peer, Memory{a.local + 8 * i, a.lkey, 8}, a.remote + 8 * i, a.rkey);
  };
  auto later_data = [&](uint32_t i) { return data(n / 2 + i); };
  auto value = [&] {
    SignalWord word = {a.source + a.words, a.local + scratch, a.lkey};
    SignalTarget target = {a.peer, a.rkey, a.remote + scratch};
    return a.form == SIGNALS_ONLY ? value_signal<uint32_t>(a.queue, target, round, word)
                                  : value_signal(a.queue, target, round, word);
  };
  auto tick = [&] {
    uint32_t bytes = a.form == SIGNALS_TICK_8 ? 8 : 0;
    return tick_signal(a.counted, Memory{a.local + scratch, a.lkey, bytes}, a.remote + scratch, a.rkey);
  };
  auto read_back = [&] {
    return read_entry(a.peer, Memory{a.local + scratch, a.lkey, 8}, a.remote + 8 * (a.words - 1), a.rkey);
  };
  efa_gda_status status = EFA_GDA_OK;
  uint32_t signal = 0;
  switch (a.form) {
    case SIGNALS_TICK:
    case SIGNALS_TICK_8: status = put_signal_read_back(sender, n, data, read_back, tick, nullptr, &signal); break;
    case SIGNALS_READ_BACK: status = put_signal_read_back(sender, n, data, read_back, value, nullptr, &signal); break;
    case SIGNALS_OWN:
    case SIGNALS_OWN_READ_BACK:
      status = sender.post(n / 2, data);
      if (status == EFA_GDA_OK) status = sender.post(n - n / 2, later_data, kPostDefer);
      if (status != EFA_GDA_OK) break;
      if (a.form == SIGNALS_OWN) {
        status = signal_own(sender, value, nullptr, &signal);
      } else {
        status = signal_own_read_back(sender, read_back, value, nullptr, &signal);
      }
      break;
    default: status = put_signal(sender, n, data, value, nullptr, &signal);
  }
  if (status == EFA_GDA_OK) status = sender.wait(signal, 1);
  return status == EFA_GDA_UNSUPPORTED ? sender.quiet() : status;
}

template <class Group>
EFA_GDA_FN efa_gda_status send(const signals_args &a, Group group) {
  Sender<Sharing::Device, Group> sender(a.queue, a.timeout_ns, group);
  efa_gda_status status = sender.status();
  for (uint32_t round = 1; round <= a.rounds && status == EFA_GDA_OK; round++) {
    for (uint32_t i = group.rank(); i < a.words; i += group.size()) {
      store_relaxed(a.source + i, (uint64_t)round * a.words + i);
    }
    group.sync();
    status = send_round(a, sender, round);
    /* The receiver must have read the data before the next round overwrites it. */
    Deadline::State state(a.timeout_ns);
    Deadline deadline(state, a.queue);
    bool finished = false;
    while (status == EFA_GDA_OK && !finished) {
      status = (efa_gda_status)group.from_leader((uint32_t)deadline.expired(EFA_GDA_TIMEOUT_SIGNAL));
      finished = group.from_leader(load_acquire(a.finished)) >= round;
    }
  }
  efa_gda_status closed = sender.close();
  return status == EFA_GDA_OK ? closed : status;
}

template <class Group>
EFA_GDA_FN efa_gda_status receive(const signals_args &a, Group group) {
  efa_gda_status status = EFA_GDA_OK;
  bool wrong = false;
  for (uint32_t round = 1; round <= a.rounds && status == EFA_GDA_OK; round++) {
    if (a.form == SIGNALS_ONLY) {
      status = wait_until(a.queue, group, reinterpret_cast<const volatile uint32_t *>(a.awaited), Until::Equal, round,
                          a.timeout_ns);
    } else {
      status = wait_until(a.queue, group, a.awaited, Until::AtLeast, (uint64_t)round, a.timeout_ns);
    }
    for (uint32_t i = group.rank(); i < a.words && a.form != SIGNALS_ONLY; i += group.size()) {
      wrong |= a.target[i] != (uint64_t)round * a.words + i;
    }
    group.sync();
    if (group.rank() == 0) store_release(a.finished, round);
  }
  if (wrong) store_relaxed(a.status + 2, 1u);
  group.sync();
  bool is_wrong = group.from_leader(load_relaxed(a.status + 2)) != 0;
  return status == EFA_GDA_OK && is_wrong ? EFA_GDA_BAD_COMPLETION : status;
}

template <class Group>
EFA_GDA_FN void exchange(const signals_args &a, Group group, bool sends) {
  efa_gda_status status = sends ? send(a, group) : receive(a, group);
  if (group.rank() == 0) store_relaxed(a.status + (sends ? 0 : 1), (uint32_t)status);
}

}  // namespace

/* Block 0 sends and block 1 receives; each block is one group. */
EFA_GDA_KERNEL signals(struct signals_args a) {
  bool sends = block_index() == 0;
  switch (a.group) {
    case 0: return exchange(a, BlockGroup(), sends);
    case 1: return exchange(a, ThreadGroup(), sends);
    default: return exchange(a, WarpGroup(), sends);
  }
}

#if !EFA_GDA_ON_GPU
extern "C" bool signals_on_host(const struct signals_args *args, uint32_t block, uint32_t threads, uint64_t seed) {
  efa_gda::host::interleave(seed);
  return efa_gda::host::run_block(block, 2, threads, [=] { signals(*args); });
}

/* One wait for a word, by a warp. */
extern "C" uint32_t wait_until_on_host(const efa_gda_queue *queue, const uint32_t *word, uint32_t until, uint32_t value,
                                       uint32_t wrap, uint64_t timeout_ns) {
  uint32_t ended = EFA_GDA_NOT_RUN;
  efa_gda::host::run_block(0, 1, 32, [&] {
    uint32_t seen = 0;
    efa_gda_status status = wait_until<WarpGroup, uint32_t>(queue, WarpGroup(), word, (Until)until, value, timeout_ns,
                                                            &seen, wrap);
    ended = seen == *word ? (uint32_t)status : (uint32_t)EFA_GDA_BAD_COMPLETION;
  });
  return ended;
}

/* Two waits for a word that is 7, by a block of 64 threads of which only the leader passes `seen`. Returns how many
 * threads received EFA_GDA_OK from both. */
extern "C" uint32_t waits_of_one_observer_on_host(const efa_gda_queue *queue) {
  uint32_t word = 7, succeeded = 0;
  efa_gda::host::run_block(0, 1, 64, [&] {
    BlockGroup group;
    uint32_t seen = 0, failures = 0;
    for (uint32_t i = 0; i < 2; i++) {
      uint32_t *observed = group.rank() == 0 ? &seen : nullptr;
      failures += wait_until(queue, group, &word, Until::Equal, 7u, kDefaultTimeoutNs, observed) != EFA_GDA_OK;
    }
    succeeded += failures == 0 && seen == (group.rank() == 0 ? 7u : 0u);
  });
  return succeeded;
}
#endif
