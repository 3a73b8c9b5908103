/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The posts of peers.cu's NCCL kernel by efa_gda/nccl_gin.h, on the same endpoints. A file of its own, because the
 * header takes the place of NCCL's. EFA_GDA_BENCH_DROP_IN names the function, of each width of stores.
 */
#ifdef EFA_GDA_BENCH_PEERS
#include "efa_gda/nccl_gin.h"
#include <nccl_device.h>
#endif

#include "rig.h"

#ifdef EFA_GDA_BENCH_PEERS

namespace {

using namespace efa_gda::gin;

__global__ void EFA_GDA_BENCH_BOUNDS post_drop_in(Endpoint *endpoints, int queues, int iterations) {
  Endpoint *endpoint = &endpoints[blockIdx.x % queues];
  efa_gda_peer peer = {3, 9, 0x1234};
  for (int i = 0; i < iterations; i++) {
    Transfer write = {peer,   {0x7000000000ull + i * 64, 5, 64}, 0x6000000000ull + i * 64, 0, 0xabc,
                      EFA_IO_RDMA_WRITE};
    CoalescedLanes()(endpoint, false, [&](auto group) { return post(group, endpoint, false, write.entry(0)); });
  }
}

}  // namespace

void EFA_GDA_BENCH_DROP_IN(void *endpoints, int blocks, int threads, int queues, int iterations) {
  post_drop_in<<<blocks, threads>>>(static_cast<Endpoint *>(endpoints), queues, iterations);
}

#else

void EFA_GDA_BENCH_DROP_IN(void *, int, int, int, int) {}

#endif
