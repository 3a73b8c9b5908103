/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program of NCCL's public device API, ncclGin, that knows nothing of this library: each call that EFA has. It
 * compiles with NCCL's own post path and with efa_gda/nccl_gin.h in front of it.
 */
#include <nccl_device.h>

struct calls {
  ncclDevComm comm;
  ncclWindow_t from, to;
  ncclTeam team;
  int *result;
  uint64_t *out;
};

#define KERNEL extern "C" __global__ void __launch_bounds__(1024)

KERNEL gin_put(calls c) {
  ncclGin gin(c.comm, blockIdx.x);
  gin.put(c.team, 1, c.to, 64 * threadIdx.x, c.from, 64 * threadIdx.x, 64);
}

KERNEL gin_put_with_actions(calls c, size_t bytes, uint64_t n) {
  ncclGin gin(c.comm, blockIdx.x, NCCL_GIN_RESOURCE_SHARING_CTA);
  gin.put(c.team, 1, c.to, 0, c.from, 0, bytes, ncclGin_WeakSignalAdd{3, n}, ncclGin_WeakCounterInc{2}, ncclCoopWarp{});
}

KERNEL gin_signal(calls c) {
  ncclGin gin(c.comm, blockIdx.x);
  gin.signal(c.team, 1, ncclGin_WeakSignalInc{3}, ncclCoopCta{});
}

KERNEL gin_put_value(calls c) {
  ncclGin gin(c.comm, blockIdx.x);
  gin.putValue(c.team, 1, c.to, 8 * threadIdx.x, (uint64_t)threadIdx.x, ncclGin_WeakSignalInc{1});
  gin.putValue(c.team, 1, c.to, threadIdx.x, (uint8_t)threadIdx.x);
}

KERNEL gin_get(calls c, size_t bytes) {
  ncclGin gin(c.comm, blockIdx.x);
  gin.get(c.team, 1, c.from, bytes * threadIdx.x, c.to, bytes * threadIdx.x, bytes);
}

KERNEL gin_flush(calls c) {
  ncclGin gin(c.comm, blockIdx.x);
  gin.flush(ncclCoopCta{});
  ncclResult_t result = gin.flush(ncclCoopCta{}, cuda::memory_order_acquire, ncclGin_None{}, (uint64_t)1000000);
  if (threadIdx.x == 0) *c.result = result;
}

KERNEL gin_flush_async(calls c) {
  ncclGin gin(c.comm, blockIdx.x);
  ncclGinRequest_t request;
  gin.flushAsync(c.team, 1, &request);
  gin.wait(request);
  *c.result = gin.wait(request, ncclCoopThread{}, ncclGin_None{}, cuda::memory_order_acquire, (uint64_t)1000000);
}

KERNEL gin_signals_and_counters(calls c) {
  ncclGin gin(c.comm, blockIdx.x);
  gin.waitSignal(ncclCoopCta{}, 3, 7);
  gin.waitCounter(ncclCoopCta{}, 2, 1);
  if (threadIdx.x != 0) return;
  *c.out = gin.readSignal(3) + gin.readCounter(2);
  gin.resetSignal(3);
  gin.resetCounter(2);
}
