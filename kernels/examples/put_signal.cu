/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The example of docs/kernels.md: the warps of all blocks share one queue. Each warp writes its part of a buffer to a
 * peer, and then a signal word, which lands after the part. The peer's kernel waits for the signals, and checks that
 * the parts are there.
 */
#include "efa_gda/signal.h"

struct put_signal_args {
  struct efa_gda_queue *queue;
  struct efa_gda_peer peer;
  /* The buffer. Warp w's part begins at w * pieces * piece_bytes, and has `pieces` writes of `piece_bytes` bytes. */
  uint64_t local;
  uint64_t remote;
  /* Signal words: 8 bytes for each warp. The kernel accesses the local ones at `signal_words`. */
  uint64_t *signal_words;
  uint64_t local_signals;
  uint64_t remote_signals;
  uint32_t lkey;
  uint32_t rkey;
  uint32_t pieces;
  uint32_t piece_bytes;
  /* Bound of each wait. */
  uint64_t timeout_ns;
  /* One word for each warp: its final enum efa_gda_status. */
  uint32_t *status;
};

/* What a part's signal word becomes. */
constexpr uint64_t kPartIsThere = 1;

EFA_GDA_KERNEL put_signal(struct put_signal_args a) {
  using namespace efa_gda;
  WarpGroup warp;
  uint32_t index = (block_index() * block_threads() + thread_index()) / 32;
  Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);

  uint64_t part = (uint64_t)index * a.pieces * a.piece_bytes, word = index * sizeof(uint64_t);
  uint32_t signal = 0;
  efa_gda_status status = put_signal(
      sender, a.pieces,
      [&](uint32_t i) {
        uint64_t at = part + (uint64_t)i * a.piece_bytes;
        return write_entry(a.peer, Memory{a.local + at, a.lkey, a.piece_bytes}, a.remote + at, a.rkey);
      },
      [&] {
        return value_signal(a.queue, SignalTarget{a.peer, a.rkey, a.remote_signals + word}, kPartIsThere,
                            SignalWord{a.signal_words + index, a.local_signals + word, a.lkey});
      },
      nullptr, &signal);
  /* The signal's own request: when it is done, local memory may be used again. */
  if (status == EFA_GDA_OK) status = sender.wait(signal, 1);
  if (status == EFA_GDA_UNSUPPORTED) status = sender.quiet();

  efa_gda_status closed = sender.close();
  if (warp.rank() == 0) store_relaxed(a.status + index, (uint32_t)(status == EFA_GDA_OK ? closed : status));
}

struct await_signal_args {
  /* Any queue of this kernel's process: the host can end the wait by its abort flag. */
  struct efa_gda_queue *queue;
  /* The signal words and the buffer that the peer writes. */
  const uint64_t *signals;
  const uint8_t *buffer;
  uint32_t part_bytes;
  /* Each byte of warp w's part must be the low byte of `pattern` + w. */
  uint32_t pattern;
  uint64_t timeout_ns;
  /* One word for each warp: its status; EFA_GDA_BAD_COMPLETION if a byte is wrong. */
  uint32_t *status;
};

EFA_GDA_KERNEL await_signal(struct await_signal_args a) {
  using namespace efa_gda;
  WarpGroup warp;
  uint32_t index = (block_index() * block_threads() + thread_index()) / 32;
  uint32_t status = wait_until(a.queue, warp, a.signals + index, Until::Equal, kPartIsThere, a.timeout_ns);
  uint32_t wrong = 0;
  if (status == EFA_GDA_OK) {
    const uint8_t *part = a.buffer + (uint64_t)index * a.part_bytes;
    for (uint32_t i = warp.rank(); i < a.part_bytes; i += warp.size()) wrong += part[i] != (uint8_t)(a.pattern + index);
  }
  bool all_right = warp.vote(wrong != 0) == 0;
  if (warp.rank() == 0) store_relaxed(a.status + index, all_right ? status : (uint32_t)EFA_GDA_BAD_COMPLETION);
}

#if !EFA_GDA_ON_GPU
/* Compiled as C++: runs one block of a launch on the calling thread. Blocks wait for each other, so the caller must
 * run each on a thread of its own. */
extern "C" bool put_signal_on_host(const struct put_signal_args *args, uint32_t block, uint32_t blocks,
                                   uint32_t threads) {
  return efa_gda::host::run_block(block, blocks, threads, [=] { put_signal(*args); });
}
extern "C" bool await_signal_on_host(const struct await_signal_args *args, uint32_t block, uint32_t blocks,
                                     uint32_t threads) {
  return efa_gda::host::run_block(block, blocks, threads, [=] { await_signal(*args); });
}
#endif
