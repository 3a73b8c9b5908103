/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * NCCL's GIN for EFA over this library: include it before NCCL's headers, or give it to the compiler by -include. It
 * takes the place of NCCL's nccl_device/gin/efa_gda/gin_efa_gda.h, and the program's calls of ncclGin remain as they
 * are. docs/device-apis.md is the page for users; gin_post.h states the protocol.
 *
 * Put, Put value and Get cannot return a status. If their wait runs out, the endpoint is out of service: a Flush or
 * Wait with a timeout then returns ncclSystemError, and one without ends the kernel by a trap, as do requests that EFA
 * cannot express. An abort flag ends a Flush or Wait with ncclSuccess, whatever became of the endpoint; posts do not
 * read it.
 */
#ifndef EFA_GDA_NCCL_GIN_H
#define EFA_GDA_NCCL_GIN_H

#ifdef _NCCL_DEVICE_GIN_EFA_GDA_H_
#error "efa_gda/nccl_gin.h: NCCL's device headers were included before it; include it first"
#endif
#define _NCCL_DEVICE_GIN_EFA_GDA_H_

#include <nccl.h>
#include <stddef.h>
#include <string.h>

#include <nccl_device/gin/efa_gda/gin_efa_gda_dev.h>
#include <nccl_device/gin/gin_device_common.h>
#include <nccl_device/transport/net_efa_gda/efa-dp-direct/include/common/efa_cuda_dp_types.h>
#if __has_include(<nccl_device/transport/net_efa_gda/efa-dp-direct/include/common/efa_cuda_dp_version.h>)
#include <nccl_device/transport/net_efa_gda/efa-dp-direct/include/common/efa_cuda_dp_version.h>
#endif

/* The layouts and rules that this header knows were read in these releases. */
#if NCCL_MAJOR == 2 && NCCL_MINOR == 31 && EFA_CUDA_DP_VERSION_MAJOR == 0 && EFA_CUDA_DP_VERSION_MINOR == 0
#define EFA_GDA_GIN_LAYOUT 0
#elif NCCL_MAJOR == 2 && NCCL_MINOR == 32 && EFA_CUDA_DP_VERSION_MAJOR == 1 && EFA_CUDA_DP_VERSION_MINOR == 1
#define EFA_GDA_GIN_LAYOUT 1
#else
#error "efa_gda/nccl_gin.h: it knows EFA-GDA of NCCL 2.31 (efa-dp-direct 0.0) and 2.32 (1.1), and not that of this NCCL"
#endif

#ifdef __CUDACC__

#include "gin.h"

namespace efa_gda {
namespace gin {

/* NCCL's name of each struct in gin_handle.h. */
#if EFA_GDA_GIN_LAYOUT == 0
using NcclQueue = efa_cuda_qp;
using NcclWorkQueue = efa_cuda_wq;
#else
using NcclQueue = efa_cuda_qp_v1;
using NcclWorkQueue = efa_cuda_wq_v0;
static_assert(offsetof(Queue, wqe_size) ==
                  offsetof(NcclQueue, sq) + offsetof(efa_cuda_sq_v1, wr_ctx) + offsetof(efa_cuda_wr_ctx_v0, wqe_size),
              "efa_gda/nccl_gin.h: the layout of NCCL's queue has changed");
#endif
using NcclEndpoint = nccl_ofi_gin_gdaki_dev_endpoint_handle;
using NcclCounterEndpoint = nccl_ofi_gin_gdaki_dev_counter_handle;
using NcclContext = nccl_ofi_gin_gdaki_dev_handle;
using NcclRegisteredMemory = nccl_ofi_gin_gdaki_mr_handle;
using NcclRemoteMemory = nccl_ofi_gin_gdaki_mr_peer;

#define EFA_GDA_GIN_SAME(name)                                                             \
  static_assert(sizeof(name) == sizeof(Nccl##name) && alignof(name) == alignof(Nccl##name), \
                "efa_gda/nccl_gin.h: NCCL's Nccl" #name " has changed")
#define EFA_GDA_GIN_SAME_AT(name, our_member, member)                       \
  static_assert(offsetof(name, our_member) == offsetof(Nccl##name, member), \
                "efa_gda/nccl_gin.h: " #member " of NCCL's Nccl" #name " has moved")
#define EFA_GDA_GIN_MEMBER(name, member) EFA_GDA_GIN_SAME_AT(name, member, member)
EFA_GDA_GIN_SAME(Queue);
EFA_GDA_GIN_MEMBER(Queue, sq);
EFA_GDA_GIN_MEMBER(Queue, rq);
EFA_GDA_GIN_MEMBER(WorkQueue, queue_mask);
EFA_GDA_GIN_MEMBER(WorkQueue, max_batch);
EFA_GDA_GIN_MEMBER(WorkQueue, pc);
EFA_GDA_GIN_MEMBER(WorkQueue, buf);
EFA_GDA_GIN_MEMBER(WorkQueue, db);
EFA_GDA_GIN_SAME_AT(WorkQueue, cursors, wqes_posted);
static_assert(offsetof(NcclWorkQueue, wqes_completed) == offsetof(NcclWorkQueue, wqes_posted) + 4,
              "efa_gda/nccl_gin.h: the cursors of NCCL's queue have moved");
EFA_GDA_GIN_SAME(Endpoint);
EFA_GDA_GIN_MEMBER(Endpoint, qp);
EFA_GDA_GIN_MEMBER(Endpoint, target_address_handles);
EFA_GDA_GIN_MEMBER(Endpoint, target_remote_qpns);
EFA_GDA_GIN_MEMBER(Endpoint, target_qkey);
EFA_GDA_GIN_MEMBER(Endpoint, sq_lock);
EFA_GDA_GIN_MEMBER(Endpoint, local_cntr_value);
EFA_GDA_GIN_MEMBER(Endpoint, submitted_count);
EFA_GDA_GIN_MEMBER(Endpoint, sq_size);
EFA_GDA_GIN_MEMBER(Endpoint, putvalue_slice_base);
EFA_GDA_GIN_SAME_AT(Endpoint, promised, putvalue_pad);
EFA_GDA_GIN_SAME(CounterEndpoint);
EFA_GDA_GIN_MEMBER(CounterEndpoint, cntr_value);
EFA_GDA_GIN_MEMBER(CounterEndpoint, cntr_offset);
EFA_GDA_GIN_SAME(Context);
EFA_GDA_GIN_MEMBER(Context, data);
EFA_GDA_GIN_MEMBER(Context, pvdata);
EFA_GDA_GIN_MEMBER(Context, counter_handles);
EFA_GDA_GIN_MEMBER(Context, signal_handles);
EFA_GDA_GIN_MEMBER(Context, nCounters);
EFA_GDA_GIN_MEMBER(Context, nSignals);
EFA_GDA_GIN_MEMBER(Context, nranks);
EFA_GDA_GIN_MEMBER(Context, rail_id);
EFA_GDA_GIN_MEMBER(Context, scratch_lkey);
EFA_GDA_GIN_MEMBER(Context, scratch_local_addr);
EFA_GDA_GIN_MEMBER(Context, scratch_remote_addrs);
EFA_GDA_GIN_MEMBER(Context, scratch_remote_rkeys);
EFA_GDA_GIN_MEMBER(Context, putvalue_lkey);
EFA_GDA_GIN_MEMBER(Context, putvalue_slot_size);
EFA_GDA_GIN_SAME(RegisteredMemory);
EFA_GDA_GIN_MEMBER(RegisteredMemory, lkey);
EFA_GDA_GIN_MEMBER(RegisteredMemory, local_addr);
EFA_GDA_GIN_SAME(RemoteMemory);
EFA_GDA_GIN_MEMBER(RemoteMemory, remote_addr);
EFA_GDA_GIN_MEMBER(RemoteMemory, rkey);
#undef EFA_GDA_GIN_SAME
#undef EFA_GDA_GIN_SAME_AT
#undef EFA_GDA_GIN_MEMBER

/* Threads of a warp that are in the same call and post to the same endpoint. */
template <bool FullWarp>
class Coalesced {
 public:
  static constexpr bool kAllThreadsFence = true;
  EFA_GDA_FN explicit Coalesced(uint32_t mask) : mask_(mask) {}
  EFA_GDA_FN uint32_t rank() const { return FullWarp ? lane() : bits_in(mask_ & ((1u << lane()) - 1)); }
  EFA_GDA_FN uint32_t size() const { return FullWarp ? 32 : bits_in(mask_); }
  EFA_GDA_FN uint32_t lane() const {
    uint32_t v;
    asm("mov.u32 %0, %%laneid;" : "=r"(v));
    return v;
  }
  EFA_GDA_FN bool in_full_warp() const { return FullWarp; }
  template <class Part>
  EFA_GDA_FN void transpose(Part (&q)[4]) const {
    if (FullWarp) transpose_full_warp(lane(), q);
  }
  EFA_GDA_FN void sync() const { __syncwarp(mask()); }
  EFA_GDA_FN uint32_t from_leader(uint32_t value) const {
    return __shfl_sync(mask(), value, FullWarp ? 0 : (int)low_zeros(mask_));
  }

 private:
  EFA_GDA_FN uint32_t mask() const { return FullWarp ? ~0u : mask_; }
  uint32_t mask_;
};

/* The threads of a warp that happen to call together form a group for each pair of endpoint and `defer`. */
struct CoalescedLanes {
  template <class Body>
  EFA_GDA_FN efa_gda_status operator()(const Endpoint *endpoint, bool defer, Body body) const {
    uint32_t mask = __match_any_sync(__activemask(), (unsigned long long)endpoint | (defer ? 1 : 0));
    return mask == ~0u ? body(Coalesced<true>(mask)) : body(Coalesced<false>(mask));
  }
};

EFA_GDA_FN Context *context_of(const ncclGinCtx &ctx) { return static_cast<Context *>(ctx.handle) + ctx.contextId; }
EFA_GDA_FN const RegisteredMemory *memory_of(const Context *context, ncclGinWindow_t window) {
  return static_cast<RegisteredMemory **>(window)[context->rail_id];
}

/* Ends the kernel: the call has no other way to report. */
EFA_GDA_FN void trap_unless(bool fine) {
  if (!EFA_GDA_LIKELY(fine)) asm volatile("trap;");
}

EFA_GDA_FN Signal signal_of(const Context *context, const ncclGinSignalDescriptor &signal, ncclGinSignalOp_t op,
                            uint64_t argument) {
  if (signal.type == NCCL_GIN_SIGNAL_TYPE_NONE) return Signal{Signal::kNone, 1};
  trap_unless(signal.type == NCCL_GIN_SIGNAL_TYPE_INDEXED &&
              signal.indexedSignal.signalId < (uint32_t)context->nSignals &&
              (op != ncclGinSignalAdd || argument >> 32 == 0));
  return Signal{signal.indexedSignal.signalId, op == ncclGinSignalAdd ? (uint32_t)argument : 1};
}

EFA_GDA_FN uint64_t cycles_now() {
  uint64_t v;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(v));
  return v;
}

/* A wait's bound by NCCL's arguments. kHasTimeout: ends after `cycles`. */
template <bool kHasTimeout>
struct CallerBound {
  uint32_t *abort;
  uint64_t cycles, start;
  uint32_t calls;
  DrainBound bound;
  EFA_GDA_FN CallerBound(uint32_t *flag, uint64_t timeout)
      : abort(flag), cycles(timeout), start(kHasTimeout ? cycles_now() : 0), calls(0) {}
  EFA_GDA_FN bool is_aborted() const {
    return abort != nullptr && load_system((const volatile uint32_t *)abort) != 0;
  }
  EFA_GDA_FN efa_gda_status operator()(Endpoint *endpoint, uint32_t progress) {
    if (calls++ % 32 == 0 && is_aborted()) return EFA_GDA_ABORTED;
    if (!kHasTimeout) return bound(endpoint, progress);
    return cycles_now() - start >= cycles ? EFA_GDA_TIMEOUT_COMPLETION : EFA_GDA_OK;
  }
};

/* Flush and Wait by one thread. As NCCL's, an aborted one returns ncclSuccess. */
template <bool kHasTimeout>
EFA_GDA_FN ncclResult_t flush_for(ncclGinCtx ctx, uint32_t *abort, uint64_t cycles) {
  CallerBound<kHasTimeout> bound(abort, cycles);
  efa_gda_status status = flush(context_of(ctx), bound);
  if (status == EFA_GDA_OK || bound.is_aborted()) return ncclSuccess;
  trap_unless(kHasTimeout);
  return status == EFA_GDA_TIMEOUT_COMPLETION ? ncclTimeout : ncclSystemError;
}

}  // namespace gin
}  // namespace efa_gda

template <>
struct ncclGinApi_Put<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  template <typename Coop>
  NCCL_DEVICE_INLINE static void call(ncclGinCtx ctx, Coop coop, int peer, bool hasWins, ncclGinWindow_t dstWin,
                                      size_t dstOff, ncclGinWindow_t srcWin, size_t srcOff, size_t bytes,
                                      ncclGinSignalDescriptor signal, ncclGinSignalOp_t signalOp, uint64_t signalOpArg,
                                      bool hasCounter, ncclGinCounter_t counterId, bool, ncclGinDescriptorSmem *,
                                      cuda::thread_scope, cuda::thread_scope,
                                      uint32_t optFlags = ncclGinOptFlagsDefault) {
    using namespace efa_gda::gin;
    coop.sync();
    if (coop.thread_rank() == 0) {
      Context *context = context_of(ctx);
      trap_unless(!hasCounter || counterId < (uint32_t)context->nCounters);
      bool payload = hasWins && bytes != 0;
      put(CoalescedLanes(), context, (uint32_t)peer, payload ? memory_of(context, dstWin) : nullptr, dstOff,
          payload ? memory_of(context, srcWin) : nullptr, srcOff, payload ? bytes : 0,
          signal_of(context, signal, signalOp, signalOpArg), hasCounter ? counterId : kNoCounter,
          (optFlags & ncclGinOptFlagsAggregateRequests) != 0);
    }
    coop.sync();
  }
};

template <>
struct ncclGinApi_PutValue<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  template <typename Coop, typename T>
  NCCL_DEVICE_INLINE static void call(ncclGinCtx ctx, Coop coop, int peer, ncclGinWindow_t dstWin, size_t dstOff,
                                      T srcVal, ncclGinSignalDescriptor signal, ncclGinSignalOp_t signalOp,
                                      uint64_t signalOpArg, bool, ncclGinDescriptorSmem *, cuda::thread_scope,
                                      cuda::thread_scope, uint32_t = ncclGinOptFlagsDefault) {
    using namespace efa_gda::gin;
    static_assert(sizeof(T) <= 8, "a value has at most 8 bytes");
    coop.sync();
    if (coop.thread_rank() == 0) {
      Context *context = context_of(ctx);
      uint64_t value = 0;
      memcpy(&value, &srcVal, sizeof(T));
      efa_gda_status status =
          put_value(CoalescedLanes(), context, (uint32_t)peer, memory_of(context, dstWin), dstOff, value,
                    (uint32_t)sizeof(T), signal_of(context, signal, signalOp, signalOpArg));
      trap_unless(status != EFA_GDA_UNSUPPORTED);
    }
    coop.sync();
  }
};

template <>
struct ncclGinApi_Get<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  template <typename Coop>
  NCCL_DEVICE_INLINE static void call(ncclGinCtx ctx, Coop coop, int peer, ncclGinWindow_t remoteWin, size_t remoteOff,
                                      ncclGinWindow_t localWin, size_t localOff, size_t bytes, bool,
                                      ncclGinDescriptorSmem *, uint32_t optFlags = ncclGinOptFlagsDefault) {
    using namespace efa_gda::gin;
    coop.sync();
    if (coop.thread_rank() == 0) {
      /* Endpoints of NCCL 2.31 do not count reads. */
      trap_unless(EFA_GDA_GIN_LAYOUT != 0);
      Context *context = context_of(ctx);
      get(CoalescedLanes(), context, (uint32_t)peer, memory_of(context, remoteWin), remoteOff,
          memory_of(context, localWin), localOff, bytes, (optFlags & ncclGinOptFlagsAggregateRequests) != 0);
    }
    coop.sync();
  }
};

template <>
struct ncclGinApi_Flush<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  template <typename Coop>
  NCCL_DEVICE_INLINE static void call(ncclGinCtx ctx, Coop coop, bool, ncclGinDescriptorSmem *, cuda::memory_order,
                                      uint32_t *abortFlag) {
    coop.sync();
    if (coop.thread_rank() == 0) efa_gda::gin::flush_for<false>(ctx, abortFlag, 0);
    coop.sync();
  }
  /* Only the thread of rank 0 receives a status other than ncclSuccess, as with NCCL's code. */
  template <typename Coop>
  NCCL_DEVICE_INLINE static ncclResult_t call(ncclGinCtx ctx, Coop coop, bool, ncclGinDescriptorSmem *,
                                              cuda::memory_order, uint32_t *abortFlag, uint64_t timeoutCycles) {
    ncclResult_t result = ncclSuccess;
    coop.sync();
    if (coop.thread_rank() == 0) result = efa_gda::gin::flush_for<true>(ctx, abortFlag, timeoutCycles);
    coop.sync();
    return result;
  }
};

/* A request needs no state: Wait waits until the context is idle, which covers all that was rung for before
 * FlushAsync. */
template <>
struct ncclGinApi_FlushAsync<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  NCCL_DEVICE_INLINE static void call(ncclGinCtx, int, ncclGinRequest_t *outRequest, bool, ncclGinDescriptorSmem *,
                                      uint32_t) {
    *outRequest = ncclGinRequest_t();
  }
};

template <>
struct ncclGinApi_Wait<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  NCCL_DEVICE_INLINE static void call(ncclGinCtx ctx, ncclGinRequest_t &, bool, ncclGinDescriptorSmem *,
                                      cuda::memory_order, uint32_t *abortFlag) {
    efa_gda::gin::flush_for<false>(ctx, abortFlag, 0);
  }
  NCCL_DEVICE_INLINE static ncclResult_t call(ncclGinCtx ctx, ncclGinRequest_t &, bool, ncclGinDescriptorSmem *,
                                              cuda::memory_order, uint32_t *abortFlag, uint64_t timeoutCycles) {
    return efa_gda::gin::flush_for<true>(ctx, abortFlag, timeoutCycles);
  }
};

template <>
struct ncclGinApi_SupportsStrongSignal<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  NCCL_DEVICE_INLINE static bool call(ncclGinCtx) { return false; }
};

#if EFA_GDA_GIN_LAYOUT != 0
template <>
struct ncclGinApi_FlushesAllPutsOnAnySignal<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  NCCL_DEVICE_INLINE static bool call(ncclGinCtx) { return false; }
};
#endif

template <>
struct ncclGinApi_GetSignalPtr<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  NCCL_DEVICE_INLINE static ncclGinOffsetPtr call(ncclGinCtx ctx, ncclGinSignal_t signalId) {
    const efa_gda::gin::Context *context = efa_gda::gin::context_of(ctx);
    efa_gda::gin::trap_unless(signalId < (uint32_t)context->nSignals);
    const efa_gda::gin::CounterEndpoint *signal = context->signal_handles[signalId];
    return {signal->cntr_value, signal->cntr_offset};
  }
};

template <>
struct ncclGinApi_GetCounterPtr<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  NCCL_DEVICE_INLINE static ncclGinOffsetPtr call(ncclGinCtx ctx, ncclGinCounter_t counterId) {
    const efa_gda::gin::Context *context = efa_gda::gin::context_of(ctx);
    efa_gda::gin::trap_unless(counterId < (uint32_t)context->nCounters);
    const efa_gda::gin::CounterEndpoint *counter = context->counter_handles[counterId];
    return {counter->cntr_value, counter->cntr_offset};
  }
};

template <>
struct ncclGinApi_ResetSignal<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  NCCL_DEVICE_INLINE static void call(ncclGinCtx ctx, ncclGinSignalDescriptor signal) {
    using namespace efa_gda::gin;
    Context *context = context_of(ctx);
    uint32_t id = signal_of(context, signal, ncclGinSignalInc, 1).id;
    trap_unless(id != Signal::kNone);
    reset(context->signal_handles[id]);
  }
};

template <>
struct ncclGinApi_ResetCounter<NCCL_NET_DEVICE_GIN_EFA_GDA> {
  NCCL_DEVICE_INLINE static void call(ncclGinCtx ctx, ncclGinCounter_t counterId) {
    using namespace efa_gda::gin;
    Context *context = context_of(ctx);
    trap_unless(counterId < (uint32_t)context->nCounters);
    reset(context->counter_handles[counterId]);
  }
};

#endif

#endif
