/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Each block of the grid posts to one of a few shared queues, as one group, by warps or by single threads: RDMA writes
 * of 8 bytes, one for each word of the source. On queues with a request table the groups also wait for their own
 * requests, in turn with calls that they do not wait for, and write their last word as a signal after the others. The
 * host compares source and target.
 */
#include "efa_gda/signal.h"

namespace soak {

struct Path {
  efa_gda_queue *queue;
  efa_gda_peer peer;
  uint32_t lkey;
  uint32_t rkey;
  uint64_t local;
  uint64_t remote;
};

constexpr uint32_t kPaths = 32;

struct Args {
  Path paths[kPaths];
  /* The largest of all groups' final enum efa_gda_status. */
  uint32_t *status;
  uint64_t timeout_ns;
  /* Entries that each block posts. */
  uint32_t entries;
  /* Threads of each warp that post, in blocks that post by threads: 1 or 32. */
  uint32_t posters;
};

template <class Group>
EFA_GDA_FN void post(const Args &a, const Path &path, Group group, uint32_t from, uint32_t count, uint32_t per_call) {
  using namespace efa_gda;
  Sender<Sharing::Device, Group> sender(path.queue, a.timeout_ns, group);
  efa_gda_status status = sender.status();
  bool tracked = path.queue->requests.num_entries != 0;
  uint32_t data = tracked ? count - 1 : count, first = 0;
  auto write = [&](uint32_t word) {
    uint64_t at = (uint64_t)(from + word) * 8;
    return write_entry(path.peer, Memory{path.local + at, path.lkey, 8}, path.remote + at, path.rkey);
  };
  /* Injected errors are counted by quiet(). */
  auto good_or_failed = [](efa_gda_status ended) { return ended == EFA_GDA_COMPLETION_ERROR ? EFA_GDA_OK : ended; };
  for (uint32_t done = 0, call = 0; done < data && status == EFA_GDA_OK; call++) {
    uint32_t n = data - done < per_call ? data - done : per_call;
    status = sender.post(
        n, [&](uint32_t i) { return write(done + i); }, call % 3 == 2 ? kPostDefer : kPostDefault, &first);
    done += n;
    if (!tracked || status != EFA_GDA_OK || call % 8 < 6) continue;
    status = good_or_failed(call % 8 == 6 ? sender.wait(first, n) : sender.wait_own());
  }
  if (tracked && status == EFA_GDA_OK) {
    auto signal = [&] { return write(data); };
    status = signal_own(sender, signal);
    /* The data of the signal failed on purpose. */
    if (status == EFA_GDA_COMPLETION_ERROR) status = sender.post(1, [&](uint32_t) { return signal(); });
  }
  if (status == EFA_GDA_OK) status = sender.quiet();
  sender.close();
  if (group.rank() == 0) atomicMax(a.status, (uint32_t)status);
}

}  // namespace soak

EFA_GDA_KERNEL soak_kernel(soak::Args a) {
  using namespace efa_gda;
  const soak::Path &path = a.paths[block_index() % soak::kPaths];
  uint32_t part = block_index() / soak::kPaths, base = part * a.entries;
  uint32_t warp = thread_index() / 32, lane_id = thread_index() % 32;
  uint32_t per_warp = a.entries / (block_threads() / 32), per_thread = per_warp / a.posters;
  switch (part % 3) {
    case 0: soak::post(a, path, BlockGroup(), base, a.entries, 37); break;
    case 1: soak::post(a, path, WarpGroup(), base + warp * per_warp, per_warp, 32); break;
    default:
      if (lane_id >= a.posters) return;
      soak::post(a, path, ThreadGroup(), base + warp * per_warp + lane_id * per_thread, per_thread, 7);
  }
}
