/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The six functions of DeepEP's ibgda_device.cuh (first generation, v1.2.1 and the `legacy` kernels), on an EFA
 * adapter. docs/deepep.md is the guide. ibgda.h states order and failures.
 *
 * Nothing is declared for a host compiler, so host sources may include this file. For nvcc the functions are in the
 * namespace EFA_GDA_COMPAT_NS (default: deep_ep).
 *
 * STATE. The functions read the variable efa_gda_ibgda_state_d. With -rdc=true it is declared here, and
 * kernels/nvshmem/device.cu, compiled once into the program, defines it and the posting engine. Without -rdc each
 * source has its own, which the source fills in with efa_gda_ibgda_publish().
 */
#ifndef EFA_GDA_IBGDA_COMPAT_CUH
#define EFA_GDA_IBGDA_COMPAT_CUH

/* EFA_GDA_IBGDA_STATE: an expression of the state, for code that the host executor runs. */
#if defined(__CUDACC__) || defined(EFA_GDA_IBGDA_STATE)

#if !defined(__CUDACC_RTC__)
#include <stddef.h>
#endif

#include "efa_gda/ibgda_calls.h"

/* Names ibgda_put() or ibgda_flag() for a call. Without -rdc, ptxas gives a function registers that no caller
 * uses, so the callers spill what they have beyond the 64 of blocks of 1,024 threads. It cannot do so for a call
 * through a pointer in constant memory, whose value it does not know, because the host may change constants. There, as
 * with -rdc, the function saves the registers that it uses, and its callers spill none. */
#if EFA_GDA_ON_GPU && !defined(__CUDACC_RDC__)
#define EFA_GDA_IBGDA_CALLED(function) efa_gda::function##_pointer
namespace efa_gda {
static __constant__ decltype(&ibgda_put) ibgda_put_pointer = ibgda_put;
static __constant__ decltype(&ibgda_flag) ibgda_flag_pointer = ibgda_flag;
}  // namespace efa_gda
#else
#define EFA_GDA_IBGDA_CALLED(function) efa_gda::function
#endif

#ifndef EFA_GDA_COMPAT_NS
#define EFA_GDA_COMPAT_NS deep_ep
#endif

#ifndef EFA_GDA_IBGDA_STATE
#define EFA_GDA_IBGDA_STATE efa_gda_ibgda_state_d
#if defined(__CUDACC_RDC__)
extern __device__ struct efa_gda_ibgda_state efa_gda_ibgda_state_d;
#else
static __device__ struct efa_gda_ibgda_state efa_gda_ibgda_state_d;

#if !defined(__CUDACC_RTC__)
#include <cuda_runtime.h>
/* Copies the state to this source's variable. */
static inline cudaError_t efa_gda_ibgda_publish(const struct efa_gda_ibgda_state *state) {
  return cudaMemcpyToSymbol(efa_gda_ibgda_state_d, state, sizeof *state);
}
#endif
#endif
#endif

namespace EFA_GDA_COMPAT_NS {

EFA_GDA_FN efa_gda_ibgda_state *ibgda_get_state() { return &EFA_GDA_IBGDA_STATE; }

/* Puts `bytes` bytes. All lanes of a warp call it. Each put is rung for, by it or by a later call that has begun,
 * whatever kAlwaysDoPostSend says: no later post is sure to ring for a deferred one. */
template <bool kAlwaysDoPostSend = false>
EFA_GDA_FN void nvshmemi_ibgda_put_nbi_warp(uint64_t req_rptr, uint64_t req_lptr, size_t bytes, int dst_pe, int qp_id,
                                            int lane_id, int message_idx) {
  (void)message_idx;
  efa_gda::WarpGroup warp;
  warp.sync();
  if (lane_id == 0) {
    EFA_GDA_IBGDA_CALLED(ibgda_put)(ibgda_get_state(), req_rptr, req_lptr, bytes, dst_pe, qp_id);
  }
  warp.sync();
}

/* Adds to a word of 8 bytes: at the peer by the sum of the adds since the last quiet of (pe, qp_id), and after all puts
 * before it; with is_local_copy to a word of this GPU. One thread calls it. */
EFA_GDA_FN void nvshmemi_ibgda_amo_nonfetch_add(void *rptr, const int &value, int pe, int qp_id,
                                                bool is_local_copy = false) {
  if (is_local_copy) {
    efa_gda::fetch_add_relaxed(static_cast<uint64_t *>(rptr), (uint64_t)(int64_t)value);
  } else {
    EFA_GDA_IBGDA_CALLED(ibgda_flag)(ibgda_get_state(), efa_gda::IbgdaFlag::Add8, reinterpret_cast<uint64_t>(rptr),
                                     (uint64_t)(int64_t)value, pe, qp_id);
  }
}

/* The same for a word of 4 bytes that is 0 and gets one add: it is set to the value. DeepEP's low-latency
 * kernels, which pass an int *, use their words so, and never call quiet. */
EFA_GDA_FN void nvshmemi_ibgda_amo_nonfetch_add(int *rptr, const int &value, int pe, int qp_id,
                                                bool is_local_copy = false) {
  if (is_local_copy) {
    efa_gda::fetch_add_relaxed(reinterpret_cast<uint32_t *>(rptr), (uint32_t)value);
  } else {
    EFA_GDA_IBGDA_CALLED(ibgda_flag)(ibgda_get_state(), efa_gda::IbgdaFlag::Set4, reinterpret_cast<uint64_t>(rptr),
                                     (uint32_t)value, pe, qp_id);
  }
}

/* Writes one int, after all puts before it. With an immediate it fails with EFA_GDA_UNSUPPORTED: an immediate would
 * consume a receive at the peer, which has none. */
EFA_GDA_FN void nvshmemi_ibgda_rma_p(int *rptr, const int value, int dst_pe, int qp_id, uint32_t imm = ~0u) {
  efa_gda::IbgdaFlag flag = imm == ~0u ? efa_gda::IbgdaFlag::Set4 : efa_gda::IbgdaFlag::Refused;
  EFA_GDA_IBGDA_CALLED(ibgda_flag)(ibgda_get_state(), flag, reinterpret_cast<uint64_t>(rptr), (uint32_t)value, dst_pe,
                                   qp_id);
}

/* Returns when all requests before it are done. It also forgets the sums of (dst_pe, qp_id): the caller must zero these
 * words at the peer before the next add, as DeepEP's notify_dispatch and cached_notify do. */
EFA_GDA_FN void nvshmemi_ibgda_quiet(int dst_pe, int qp_id) {
  const efa_gda_ibgda_state *s = ibgda_get_state();
  EFA_GDA_IBGDA_CALLED(ibgda_flag)(s, efa_gda::IbgdaFlag::Quiet, s->heap, 0, dst_pe, qp_id);
}

/* Returns where this GPU has `ptr` of PE `dst_rank` mapped, or 0: then only the adapter reaches it. */
EFA_GDA_FN uint64_t nvshmemi_get_p2p_ptr(const uint64_t &ptr, const int &rank, const int &dst_rank) {
  return efa_gda::ibgda_mapped(ibgda_get_state(), ptr, rank, dst_rank);
}

}  // namespace EFA_GDA_COMPAT_NS

#endif

#endif
