/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernel of examples/transport.rs, an all-reduce of two ranks. Each warp sends its part of the tensor to the peer
 * with a signal behind it, waits for the signal of the peer's part, and adds the two.
 */
#include "efa_gda/signal.h"

/* One region on each side, with the same layout: for each warp `part_bytes` of this rank's tensor, of the peer's tensor
 * and of the sum; then for each warp 8 bytes for the signal that it sends, 8 for the one that it awaits, and 4 for its
 * status. */
struct reduce_args {
  struct efa_gda_queue *queue;
  struct efa_gda_peer peer;
  unsigned char *memory;
  /* Address and key of the peer's region, and the key of this one. */
  uint64_t remote;
  uint32_t rkey;
  uint32_t lkey;
  uint32_t warps;
  uint32_t part_bytes;
  /* The bound of each wait. */
  uint64_t timeout_ns;
};

/* The value of a signal: the part is there. */
constexpr uint64_t kArrived = 1;
constexpr uint32_t kPieceBytes = 4096;

EFA_GDA_KERNEL reduce(struct reduce_args a) {
  using namespace efa_gda;
  WarpGroup warp;
  uint32_t index = (block_index() * block_threads() + thread_index()) / 32;
  uint64_t tensor = (uint64_t)a.warps * a.part_bytes, part = (uint64_t)index * a.part_bytes;
  uint64_t sends = 3 * tensor + 8 * index, awaits = 3 * tensor + 8 * (a.warps + index);
  uint64_t local = (uint64_t)a.memory;
  /* Stores of 8 bytes, which every adapter takes. */
  Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);

  uint32_t signal = 0;
  efa_gda_status status = put_signal(
      sender, a.part_bytes / kPieceBytes,
      [&](uint32_t i) {
        uint64_t at = part + (uint64_t)i * kPieceBytes;
        return write_entry(a.peer, Memory{local + at, a.lkey, kPieceBytes}, a.remote + tensor + at, a.rkey);
      },
      [&] {
        return value_signal(a.queue, SignalTarget{a.peer, a.rkey, a.remote + awaits}, kArrived,
                            SignalWord{(uint64_t *)(a.memory + sends), local + sends, a.lkey});
      },
      nullptr, &signal);
  if (status == EFA_GDA_OK) {
    status = wait_until(a.queue, warp, (const uint64_t *)(a.memory + awaits), Until::Equal, kArrived, a.timeout_ns);
  }
  if (status == EFA_GDA_OK) {
    const float *mine = (const float *)(a.memory + part), *theirs = (const float *)(a.memory + tensor + part);
    float *sum = (float *)(a.memory + 2 * tensor + part);
    for (uint32_t i = warp.rank(); i < a.part_bytes / sizeof(float); i += warp.size()) sum[i] = mine[i] + theirs[i];
    /* This warp's signal, so its memory may be used again. */
    status = sender.wait(signal, 1);
  }
  efa_gda_status closed = sender.close();
  uint32_t *ended = (uint32_t *)(a.memory + 3 * tensor + 16 * a.warps) + index;
  if (warp.rank() == 0) store_relaxed(ended, (uint32_t)(status == EFA_GDA_OK ? closed : status));
}

#if !EFA_GDA_ON_GPU
/* Runs one block on the calling thread. Blocks share the queue, so each needs a thread of its own. */
extern "C" bool reduce_on_host(const struct reduce_args *args, uint32_t block, uint32_t blocks, uint32_t threads) {
  return efa_gda::host::run_block(block, blocks, threads, [=] { reduce(*args); });
}
#endif
