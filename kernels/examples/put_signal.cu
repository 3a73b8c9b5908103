/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The example of docs/kernels.md: the warps of all blocks share one queue. Each warp writes its part of a buffer to a
 * peer. When these writes are done, it writes a signal word.
 */
#include "efa_gda/post.h"

struct put_signal_args {
  struct efa_gda_queue *queue;
  struct efa_gda_peer peer;
  /* The buffer. Warp w's part begins at w * pieces * piece_bytes, and has `pieces` writes of `piece_bytes` bytes. */
  uint64_t local;
  uint64_t remote;
  /* Signal words: 8 bytes for each warp. */
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

EFA_GDA_KERNEL put_signal(struct put_signal_args a) {
  using namespace efa_gda;
  WarpGroup warp;
  uint32_t index = (block_index() * block_threads() + thread_index()) / 32;
  Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);

  uint64_t part = (uint64_t)index * a.pieces * a.piece_bytes;
  efa_gda_status status = sender.post(a.pieces, [&](uint32_t i) {
    uint64_t at = part + (uint64_t)i * a.piece_bytes;
    return write_entry(a.peer, Memory{a.local + at, a.lkey, a.piece_bytes}, a.remote + at, a.rkey);
  });
  /* Writes reach the peer in any order, so the signal is posted when the other writes are done. */
  if (status == EFA_GDA_OK) status = sender.quiet();
  if (status == EFA_GDA_OK) {
    status = sender.post(1, [&](uint32_t) {
      return write_entry(a.peer, Memory{a.local_signals + index * 8, a.lkey, 8}, a.remote_signals + index * 8, a.rkey);
    });
  }
  if (status == EFA_GDA_OK) status = sender.quiet();

  efa_gda_status closed = sender.close();
  if (warp.rank() == 0) store_relaxed(a.status + index, (uint32_t)(status == EFA_GDA_OK ? closed : status));
}

#if !EFA_GDA_ON_GPU
/* Compiled as C++: runs one block of the launch on the calling thread. Blocks wait for each other, so the caller must
 * run each on a thread of its own. */
extern "C" bool put_signal_on_host(const struct put_signal_args *args, uint32_t block, uint32_t blocks,
                                   uint32_t threads) {
  auto body = [](void *context) { put_signal(*static_cast<put_signal_args *>(context)); };
  return efa_gda::host::run_block(block, blocks, threads, body, const_cast<put_signal_args *>(args));
}
#endif
