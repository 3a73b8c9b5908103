/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A kernel that posts once, waits and closes, for blocks of 1,024 threads. scripts/footprint.sh compiles it for each
 * kind of group, sharing and entry, and reports what it needs; it does not run it.
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

/* `Inlined`: the bytes travel in 128-byte entries. `Own`: waits for its own requests, not for those of the queue. */
template <Sharing S, class Group, bool Inlined, bool Own>
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
  if (status == EFA_GDA_OK) {
    if constexpr (Own) {
      status = sender.wait_own();
    } else {
      status = sender.quiet();
    }
  }
  efa_gda_status closed = sender.close();
  if (status == EFA_GDA_OK) status = closed;
  if (group.rank() == 0) *r.status = status;
}

}  // namespace

/* The kernel that the caller compiles: its name, sharing, group, whether the bytes travel in the entries, and for which
 * requests it waits. One kernel a translation unit: ptxas counts every function of the unit that it calls through a
 * pointer as called by each kernel. */
extern "C" __global__ void __launch_bounds__(1024) EFA_GDA_FOOTPRINT_KERNEL(Request r) {
  post_once<Sharing::EFA_GDA_FOOTPRINT_SHARING, EFA_GDA_FOOTPRINT_GROUP, EFA_GDA_FOOTPRINT_INLINED,
            EFA_GDA_FOOTPRINT_OWN>(r);
}
