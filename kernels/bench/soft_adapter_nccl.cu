/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Puts and gets by NCCL's public device API, ncclGin, whose code comes from the PyPI package nvidia-nccl-cu13. The same
 * file is compiled a second time with efa_gda/nccl_gin.h in front of it (-include), so that this library posts.
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
};

/* Statuses: of a queue that NCCL's code cannot drive, and of a flush that failed. */
constexpr uint32_t kUnsupported = 0xffff, kFlushFailed = 0xfffe;
/* Of a flush, in cycles: about 20 s. */
constexpr uint64_t kFlushCycles = 40000000000;
constexpr int kPeer = 1, kRanks = 2;

/* The scratch memory. */
struct Handles {
  nccl_ofi_gin_gdaki_dev_handle context;
#if NCCL_MINOR == 31
  efa_cuda_qp qp;
#else
  efa_cuda_qp_v1 qp;
#endif
  uint16_t ah[kRanks], qpn[kRanks];
  uint32_t qkey[kRanks];
  uint64_t no_requests;
  uint64_t scratch_addresses[kRanks];
  uint32_t scratch_keys[kRanks];
  uint64_t memory[2 + 2 * kRanks]; /* nccl_ofi_gin_gdaki_mr_handle */
  void *rails[1];
  ncclWindow_vidmem window;
  ncclDevComm comm;
};

__device__ Handles &handles_of(const soft_adapter_args &a) { return *(Handles *)a.scratch; }

}  // namespace

/* One thread: makes the handles for a queue on which nothing was posted. The scratch memory must be zero. */
extern "C" __global__ void soft_adapter_nccl_open(soft_adapter_args a) {
  const efa_gda_queue &q = *a.queue;
  Handles &h = handles_of(a);
  if (q.sq.entry_size != 64 || q.counters.success == nullptr) {
    *a.status = kUnsupported;
    return;
  }
  h.qp.sq.wq.max_wqes = q.sq.num_entries;
  h.qp.sq.wq.queue_mask = q.sq.num_entries - 1;
  h.qp.sq.wq.queue_size_shift = __ffs(q.sq.num_entries) - 1;
  h.qp.sq.wq.max_batch = q.sq.max_batch;
  h.qp.sq.wq.buf = q.sq.buffer;
  h.qp.sq.wq.db = (uint32_t *)q.sq.doorbell;
#if NCCL_MINOR != 31
  /* Offsets in an entry: the data follows the meta descriptor of 32 bytes, and the remote memory has 16. */
  h.qp.sq.wr_ctx.wqe_size = 64;
  h.qp.sq.wr_ctx.remote_mem_offset = 32;
  h.qp.sq.wr_ctx.local_mem_offset = 48;
#endif
  h.ah[kPeer] = (uint16_t)a.peer.ah;
  h.qpn[kPeer] = (uint16_t)a.peer.qpn;
  h.qkey[kPeer] = a.peer.qkey;
  nccl_ofi_gin_gdaki_dev_endpoint_handle &data = h.context.data;
  data.qp = &h.qp;
  data.target_address_handles = h.ah;
  data.target_remote_qpns = h.qpn;
  data.target_qkey = h.qkey;
  data.local_cntr_value = (uint64_t *)q.counters.success;
  data.sq_size = q.sq.num_entries;
  h.context.pvdata.local_cntr_value = &h.no_requests;
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
