/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Puts, values, signals and gets by NCCL's public device API, ncclGin, whose code comes from the PyPI package
 * nvidia-nccl-cu13. The same file is compiled a second time with efa_gda/nccl_gin.h in front of it (-include), so that this library posts.
 * Handles, windows and communicator have the shape that NCCL and aws-ofi-nccl give them; ring, doorbell and counter are
 * those of this project's struct of the queue. Not for applications.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl_device.h>
#ifndef EFA_GDA_NCCL_GIN_H
#include <nccl_device/gin/efa_gda/gin_efa_gda.h>
#endif

#include "efa_gda/queue.h"

namespace {

/* soft_adapter.cu describes it. The first launch's `local` and `remote` begin the windows; later ones may lie further
 * on. */
struct soft_adapter_args {
  efa_gda_queue *queue;
  efa_gda_peer peer;
  uint32_t lkey, rkey;
  uint64_t local, remote;
  uint64_t *source, *target;
  uint64_t *scratch;
  uint32_t *status;
  uint32_t calls;
  uint32_t bytes;
  uint64_t pause_ns;
  /* The endpoints of a context that has all of them; null: `queue` is its only one. */
  const struct gin_endpoints *endpoints;
};

/* Endpoints that post data, values and for a counter, each with its peers: the endpoint of data, and that of signal 0.
 * `signals` counts the writes that arrive at the latter. */
struct gin_endpoints {
  struct {
    efa_gda_queue *queue;
    efa_gda_peer targets[2];
  } posters[3];
  uint64_t *signals;
};

/* Statuses: of a queue that NCCL's code cannot drive, and of a flush that failed. */
constexpr uint32_t kUnsupported = 0xffff, kFlushFailed = 0xfffe;
/* Of a flush, in cycles: about 20 s. */
constexpr uint64_t kFlushCycles = 40000000000;
constexpr int kPeer = 1, kRanks = 2;
constexpr uint32_t kScratchWords = 8192;

/* The scratch memory. */
struct Handles {
  nccl_ofi_gin_gdaki_dev_handle context;
#if NCCL_MINOR == 31
  efa_cuda_qp qp[3];
#else
  efa_cuda_qp_v1 qp[3];
#endif
  /* Of each endpoint: the peers' endpoints of data, then those of signal 0. */
  uint16_t ah[3][2 * kRanks], qpn[3][2 * kRanks];
  uint32_t qkey[3][2 * kRanks];
  nccl_ofi_gin_gdaki_dev_counter_handle counter, signal;
  nccl_ofi_gin_gdaki_dev_counter_handle *counters[1], *signals[1];
  uint64_t no_requests, signal_shadows[1];
  uint64_t scratch_addresses[kRanks];
  uint32_t scratch_keys[kRanks];
  uint64_t memory[2 + 2 * kRanks]; /* nccl_ofi_gin_gdaki_mr_handle */
  void *rails[1];
  ncclWindow_vidmem window;
  ncclDevComm comm;
};

static_assert(sizeof(Handles) <= 8 * (kScratchWords - 4), "the scratch memory");

__device__ Handles &handles_of(const soft_adapter_args &a) { return *(Handles *)a.scratch; }

}  // namespace

namespace {

/* Makes endpoint `i`. Returns whether NCCL's code can drive the queue. */
__device__ bool open_endpoint(Handles &h, int i, nccl_ofi_gin_gdaki_dev_endpoint_handle &endpoint,
                              const efa_gda_queue &q, const efa_gda_peer *targets, int count) {
  auto &qp = h.qp[i];
  qp.sq.wq.max_wqes = q.sq.num_entries;
  qp.sq.wq.queue_mask = q.sq.num_entries - 1;
  qp.sq.wq.queue_size_shift = __ffs(q.sq.num_entries) - 1;
  qp.sq.wq.max_batch = q.sq.max_batch;
  qp.sq.wq.buf = q.sq.buffer;
  qp.sq.wq.db = (uint32_t *)q.sq.doorbell;
#if NCCL_MINOR != 31
  /* Offsets in an entry: the data follows the meta descriptor of 32 bytes, and the remote memory has 16. */
  qp.sq.wr_ctx.wqe_size = (uint16_t)q.sq.entry_size;
  qp.sq.wr_ctx.remote_mem_offset = 32;
  qp.sq.wr_ctx.local_mem_offset = 48;
  qp.sq.wr_ctx.write_inline_data_offset = 48;
  qp.sq.wr_ctx.max_inline_data = q.max_inline;
#endif
  for (int target = 0; target < count; target++) {
    int at = target * kRanks + kPeer;
    h.ah[i][at] = (uint16_t)targets[target].ah;
    h.qpn[i][at] = (uint16_t)targets[target].qpn;
    h.qkey[i][at] = targets[target].qkey;
  }
  endpoint.qp = &qp;
  endpoint.target_address_handles = h.ah[i];
  endpoint.target_remote_qpns = h.qpn[i];
  endpoint.target_qkey = h.qkey[i];
  endpoint.local_cntr_value = (uint64_t *)q.counters.success;
  endpoint.sq_size = q.sq.num_entries;
  return q.counters.success != nullptr && q.sq.entry_size == (i == 1 ? 128 : 64);
}

}  // namespace

/* One thread: makes the handles for queues on which nothing was posted. The scratch memory must be zero. */
extern "C" __global__ void soft_adapter_nccl_open(soft_adapter_args a) {
  Handles &h = handles_of(a);
  bool fine;
  if (a.endpoints == nullptr) {
    fine = open_endpoint(h, 0, h.context.data, *a.queue, &a.peer, 1);
    h.context.pvdata.local_cntr_value = &h.no_requests;
  } else {
    const auto &posters = a.endpoints->posters;
    fine = open_endpoint(h, 0, h.context.data, *posters[0].queue, posters[0].targets, 2) &&
           open_endpoint(h, 1, h.context.pvdata, *posters[1].queue, posters[1].targets, 2) &&
           open_endpoint(h, 2, h.counter.base, *posters[2].queue, posters[2].targets, 2);
    h.counter.cntr_value = h.counter.base.local_cntr_value;
    h.signal.cntr_value = a.endpoints->signals;
    h.counters[0] = &h.counter;
    h.signals[0] = &h.signal;
    h.context.counter_handles = h.counters;
    h.context.signal_handles = h.signals;
    h.context.nCounters = h.context.nSignals = 1;
  }
  if (!fine) {
    *a.status = kUnsupported;
    return;
  }
  h.context.nranks = kRanks;
  h.context.scratch_lkey = a.lkey;
  h.context.scratch_local_addr = a.local;
  h.context.scratch_remote_addrs = h.scratch_addresses;
  h.context.scratch_remote_rkeys = h.scratch_keys;
  h.scratch_addresses[kPeer] = a.remote;
  h.scratch_keys[kPeer] = a.rkey;
  auto &memory = *(nccl_ofi_gin_gdaki_mr_handle *)h.memory;
  memory.lkey = a.lkey;
  memory.nranks = kRanks;
  memory.local_addr = a.local;
  memory.peers[kPeer].remote_addr = a.remote;
  memory.peers[kPeer].rkey = a.rkey;
  h.rails[0] = &memory;
  h.window.ginWinsDefaultBackend[0] = h.rails;
  h.window.numSegments = 1;
  h.comm.nRanks = kRanks;
  h.comm.ginConnectionCount = 1;
  h.comm.ginConnectionStride = 1;
  h.comm.ginNetDeviceTypes[0] = NCCL_NET_DEVICE_GIN_EFA_GDA;
  h.comm.ginHandles[0] = &h.context;
  h.comm.ginSignalShadows = h.signal_shadows;
  h.comm.ginSignalCount = 1;
}

namespace {

/* The first thread of a block flushes. */
__device__ void flush(const soft_adapter_args &a, const ncclGin &gin) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  ncclResult_t result = gin.flush(ncclCoopThread{}, cuda::memory_order_acquire, ncclGin_None{}, kFlushCycles);
  if (result != ncclSuccess) *a.status = kFlushFailed;
}

/* The offset of this thread's memory for a call that has memory of its own. */
__device__ uint64_t own_offset(const soft_adapter_args &a, uint32_t call) {
  uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  return a.local - handles_of(a).context.scratch_local_addr + (thread * a.calls + call) * a.bytes;
}

}  // namespace

/* Each thread puts its `bytes` bytes of the source again and again, as soft_adapter_writes does. */
extern "C" __global__ void __launch_bounds__(1024) soft_adapter_nccl_writes(soft_adapter_args a) {
  Handles &h = handles_of(a);
  ncclGin gin(h.comm, 0);
  uint64_t at = threadIdx.x % 32 * a.bytes;
  for (uint32_t call = 0; call < a.calls; call++) {
    gin.put(ncclTeamWorld(h.comm), kPeer, &h.window, at, &h.window, at, a.bytes);
  }
  flush(a, gin);
}

/* Each thread puts `bytes` bytes of its own in each call. Three of four calls leave their doorbell to the next. */
extern "C" __global__ void __launch_bounds__(1024) soft_adapter_nccl_puts(soft_adapter_args a) {
  Handles &h = handles_of(a);
  ncclGin gin(h.comm, 0);
  for (uint32_t call = 0; call < a.calls; call++) {
    uint64_t at = own_offset(a, call);
    uint32_t flags = call % 4 != 3 && call + 1 != a.calls ? ncclGinOptFlagsAggregateRequests : ncclGinOptFlagsDefault;
    gin.put(ncclTeamWorld(h.comm), kPeer, &h.window, at, &h.window, at, a.bytes, ncclGin_None{}, ncclGin_None{},
            ncclCoopThread{}, ncclGin_None{}, cuda::thread_scope_thread, cuda::thread_scope_device, flags);
  }
  flush(a, gin);
}

/* Each thread gets `bytes` bytes of its own in each call, from the target into the source. */
extern "C" __global__ void __launch_bounds__(1024) soft_adapter_nccl_gets(soft_adapter_args a) {
  Handles &h = handles_of(a);
  ncclGin gin(h.comm, 0);
  for (uint32_t call = 0; call < a.calls; call++) {
    uint64_t at = own_offset(a, call);
    gin.get(ncclTeamWorld(h.comm), kPeer, &h.window, at, &h.window, at, a.bytes);
  }
  flush(a, gin);
}

/* As soft_adapter_nccl_puts, with what a call can announce: of four calls of a thread the first puts with a signal of
 * 3, the second with a signal and a counter, the third puts its bytes as values of 8 bytes, each with a signal, and the
 * fourth puts and then signals. Their number is a multiple of four. */
extern "C" __global__ void soft_adapter_nccl_signals(soft_adapter_args a) {
  Handles &h = handles_of(a);
  ncclGin gin(h.comm, 0);
  ncclTeam world = ncclTeamWorld(h.comm);
  ncclGin_WeakSignalInc once{0};
  for (uint32_t call = 0; call < a.calls; call++) {
    uint64_t at = own_offset(a, call);
    switch (call % 4) {
      case 0: gin.put(world, kPeer, &h.window, at, &h.window, at, a.bytes, ncclGin_WeakSignalAdd{0, 3}); break;
      case 1: gin.put(world, kPeer, &h.window, at, &h.window, at, a.bytes, once, ncclGin_WeakCounterInc{0}); break;
      case 2:
        for (uint32_t byte = 0; byte < a.bytes; byte += 8) {
          gin.putValue(world, kPeer, &h.window, at + byte, a.source[(at + byte) / 8], once);
        }
        break;
      default:
        gin.put(world, kPeer, &h.window, at, &h.window, at, a.bytes);
        gin.signal(world, kPeer, once);
    }
  }
  flush(a, gin);
}

/* One thread: reads signal 0 and counter 0, resets them, and reads them again, into the end of the scratch memory. */
extern "C" __global__ void soft_adapter_nccl_counts(soft_adapter_args a) {
  Handles &h = handles_of(a);
  ncclGin gin(h.comm, 0);
  uint64_t *counts = a.scratch + kScratchWords - 4;
  counts[0] = gin.readSignal(0);
  counts[1] = gin.readCounter(0);
  gin.resetSignal(0);
  gin.resetCounter(0);
  counts[2] = gin.readSignal(0);
  counts[3] = gin.readCounter(0);
}

namespace {

/* Puts to an endpoint that is gone if `calls` is 1, otherwise with a key that belongs to no region. */
__device__ void put_that_fails(Handles &h, const ncclGin &gin, const soft_adapter_args &a) {
  if (a.calls == 1) {
    h.qpn[0][kPeer] = (uint16_t)~a.peer.qpn;
  } else {
    ((nccl_ofi_gin_gdaki_mr_handle *)h.memory)->peers[kPeer].rkey = ~a.rkey;
  }
  gin.put(ncclTeamWorld(h.comm), kPeer, &h.window, 0, &h.window, 0, a.bytes);
}

__device__ uint64_t now_ns() {
  uint64_t v;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
  return v;
}

}  // namespace

/* One thread: after a put that fails, the results of Flush and Wait with a timeout of `pause_ns` cycles, and how long
 * each took: the last four words of the scratch memory. */
extern "C" __global__ void soft_adapter_nccl_fails(soft_adapter_args a) {
  Handles &h = handles_of(a);
  ncclGin gin(h.comm, 0);
  uint64_t *words = a.scratch + kScratchWords - 4;
  put_that_fails(h, gin, a);
  uint64_t begin = now_ns();
  words[0] = gin.flush(ncclCoopThread{}, cuda::memory_order_acquire, ncclGin_None{}, a.pause_ns);
  words[1] = now_ns() - begin;
  ncclGinRequest_t request;
  gin.flushAsync(ncclTeamWorld(h.comm), kPeer, &request);
  words[2] = gin.wait(request, ncclCoopThread{}, ncclGin_None{}, cuda::memory_order_acquire, a.pause_ns);
  words[3] = now_ns() - begin - words[1];
}

/* One thread: after a put that fails, a Flush without a timeout. The abort flag is the first word of the target. */
extern "C" __global__ void soft_adapter_nccl_hangs(soft_adapter_args a) {
  Handles &h = handles_of(a);
  h.comm.abortFlag = (uint32_t *)a.target;
  ncclGin gin(h.comm, 0);
  put_that_fails(h, gin, a);
  gin.flush(ncclCoopThread{});
}
