/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Kernels that post once, wait and close, for blocks of 1,024 threads. scripts/footprint.sh compiles them and reports
 * what they need; it does not run them.
 */
#include "efa_gda/post.h"

namespace {

using namespace efa_gda;

struct Request {
  efa_gda_queue *queue;
  uint32_t *status;
  efa_gda_peer peer;
  uint64_t local, remote;
  uint32_t lkey, rkey, bytes, count;
};

/* `Inlined`: the bytes travel in 128-byte entries. */
template <Sharing S, class Group, bool Inlined>
EFA_GDA_FN void post_once(const Request &r) {
  Group group;
  Sender<S, Group> sender(r.queue);
  efa_gda_status status = sender.post(r.count, [&](uint32_t i) {
    uint64_t offset = (uint64_t)i * r.bytes;
    if constexpr (Inlined) {
      const uint8_t *bytes = reinterpret_cast<const uint8_t *>(r.local + offset);
      return inline_write_entry(r.peer, bytes, r.bytes, r.remote + offset, r.rkey);
    } else {
      return write_entry(r.peer, Memory{r.local + offset, r.lkey, r.bytes}, r.remote + offset, r.rkey);
    }
  });
  if (status == EFA_GDA_OK) status = sender.quiet();
  efa_gda_status closed = sender.close();
  if (status == EFA_GDA_OK) status = closed;
  if (group.rank() == 0) *r.status = status;
}

}  // namespace

/* Groups on shared queues are compact, but for headers of a revision without Compact: scripts/footprint.sh. */
#ifdef EFA_GDA_FOOTPRINT_COMPACT
#define EFA_GDA_FOOTPRINT_GROUP(group) Compact<group>
#else
#define EFA_GDA_FOOTPRINT_GROUP(group) group
#endif

#define FOOTPRINT(name, sharing, group)                                            \
  extern "C" __global__ void __launch_bounds__(1024) name##_write(Request r) {     \
    post_once<sharing, group, false>(r);                                           \
  }                                                                                \
  extern "C" __global__ void __launch_bounds__(1024) name##_inline(Request r) {    \
    post_once<sharing, group, true>(r);                                            \
  }
FOOTPRINT(thread_owned, Sharing::Thread, ThreadGroup)
FOOTPRINT(warp_owned, Sharing::Warp, WarpGroup)
FOOTPRINT(block_owned, Sharing::Block, BlockGroup)
FOOTPRINT(thread_shared, Sharing::Device, EFA_GDA_FOOTPRINT_GROUP(ThreadGroup))
FOOTPRINT(warp_shared, Sharing::Device, EFA_GDA_FOOTPRINT_GROUP(WarpGroup))
FOOTPRINT(block_shared, Sharing::Device, EFA_GDA_FOOTPRINT_GROUP(BlockGroup))
