/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The load generator for tests: any number of groups, which own or share queues, post entries that name their group,
 * call and number (load.h).
 */
#include "load.h"

#include "efa_gda/post.h"

namespace {

template <efa_gda::Sharing S, class Group>
EFA_GDA_FN void load(const efa_gda_load_args &a, Group group, uint32_t index) {
  using namespace efa_gda;
  efa_gda_queue *queue = a.queues + block_index() % a.queue_count;
  Sender<S, Group> sender(queue, a.timeout_ns, group);
  efa_gda_status early = EFA_GDA_OK;
  efa_gda_status status = sender.status();
  for (uint32_t call = 0; call < a.calls && status == EFA_GDA_OK; call++) {
    uint64_t remote = (uint64_t)index << 48 | (uint64_t)call << 16;
    bool defer = a.ring_every > 1 && (call + 1) % a.ring_every != 0;
    status = sender.post(
        a.per_call,
        [&](uint32_t i) { return write_entry(a.peer, Memory{remote + i, a.lkey, 64}, remote + i, a.rkey); },
        defer ? kPostDefer : kPostDefault);
    if (a.quiet_every == 0 || (call + 1) % a.quiet_every != 0 || status != EFA_GDA_OK) continue;
    uint32_t before = (uint32_t)load_relaxed(&queue->reserve.word);
    status = sender.quiet(a.peer);
    if (status != EFA_GDA_OK || group.rank() != 0) continue;
    if ((int32_t)(load_acquire(&queue->completion.completed) - before) < 0) early = EFA_GDA_BAD_COMPLETION;
  }
  if (status == EFA_GDA_OK) status = sender.flush();
  efa_gda_status closed = sender.close();
  if (status == EFA_GDA_OK) status = closed;
  if (status == EFA_GDA_OK) status = early;
  if (group.rank() == 0) store_relaxed(a.status + index, (uint32_t)status);
}

}  // namespace

EFA_GDA_KERNEL efa_gda_load_kernel(struct efa_gda_load_args a) {
  using namespace efa_gda;
  uint32_t groups = a.group == 0 ? 1 : (block_threads() + a.group - 1) / a.group;
  uint32_t index = block_index() * groups + (a.group == 0 ? 0 : thread_index() / a.group);
  bool shared = a.sharing == EFA_GDA_LOAD_SHARED;
  switch (a.group) {
    case 0:
      if (shared) {
        load<Sharing::Device>(a, BlockGroup(), index);
      } else {
        load<Sharing::Block>(a, BlockGroup(), index);
      }
      break;
    case 1:
      if (shared) {
        load<Sharing::Device>(a, ThreadGroup(), index);
      } else if (thread_index() == 0) {
        load<Sharing::Thread>(a, ThreadGroup(), index);
      }
      break;
    default:
      if (shared) {
        load<Sharing::Device>(a, WarpGroup(), index);
      } else if (thread_index() < 32) {
        load<Sharing::Warp>(a, WarpGroup(), index);
      }
  }
}

/* The same with groups of all kinds that share queues: by block index modulo 3, a block posts as a block, by warps, or
 * by threads. Ignores `sharing` and `group`. There is a status word for each thread; a group writes its leader's. A
 * block must have whole warps; on the host executor any size. */
EFA_GDA_KERNEL efa_gda_load_mixed_kernel(struct efa_gda_load_args a) {
  using namespace efa_gda;
  uint32_t index = block_index() * block_threads();
  switch (block_index() % 3) {
    case 0:
      return load<Sharing::Device>(a, BlockGroup(), index);
    case 1:
      return load<Sharing::Device>(a, WarpGroup(), index + thread_index() / 32 * 32);
    default:
      return load<Sharing::Device>(a, ThreadGroup(), index + thread_index());
  }
}
