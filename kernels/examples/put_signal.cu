/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A kernel of one's own, as docs/kernels.md explains it: all warps of all blocks share one
 * queue. Each writes its part of a buffer to a peer and, when all of that is in the peer's
 * memory, a word that says so.
 */
#include "efa_gda/post.h"

struct put_signal_args {
  struct efa_gda_queue *queue;
  struct efa_gda_peer peer;
  /* Each warp's part: `pieces` times `piece_bytes`, of the warp's index on. */
  uint64_t local;
  uint64_t remote;
  /* A word of 8 bytes for each warp. */
  uint64_t local_signals;
  uint64_t remote_signals;
  uint32_t lkey;
  uint32_t rkey;
  uint32_t pieces;
  uint32_t piece_bytes;
  /* Bound of each wait. */
  uint64_t timeout_ns;
  /* One for each warp: the enum efa_gda_status that it ended with. */
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
  /* Writes reach the peer in any order: the signal is posted when the others are done. */
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
/* Compiled as C++: one block of the launch, on the calling thread. Blocks wait for each
 * other, so each gets a thread. */
extern "C" bool put_signal_on_host(const struct put_signal_args *args, uint32_t block, uint32_t blocks,
                                   uint32_t threads) {
  auto body = [](void *context) { put_signal(*static_cast<put_signal_args *>(context)); };
  return efa_gda::host::run_block(block, blocks, threads, body, const_cast<put_signal_args *>(args));
}
#endif
